//! Twalk and Tclunk.

use std::io;
use std::sync::Arc;

use ninep::{NameList, Qids, Reply};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::{Context, xattr};
use crate::export::ExportNode;
use crate::fids::{FidEntry, FidState, OpenFid};

/// Looks names up one below the other. Some found: their qids, and no new fid.
pub(super) fn walk<'r>(
    cx: &Context<'_>,
    number: ninep::Fid,
    newfid: ninep::Fid,
    names: NameList<'_>,
) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    // The protocol forbids walking from an open fid; diod's own client does it.
    let attribute = matches!(fid.role, FidState::XattrRead { .. } | FidState::XattrWrite(_));
    if attribute || (fid.is_open() && newfid == number) {
        return Err(Errno::BADF.into());
    }
    let export = &fid.user.export;
    let wanted = names.len();
    if wanted > 0 {
        cx.as_user()?;
    }
    let (mut node, mut entry, mut qids) = (fid.node.clone(), fid.entry.clone(), Qids::new());
    for name in names {
        match step(&node, name, cx) {
            Ok((next, reached)) => {
                entry = reached.then(|| FidEntry { dir: node.clone(), name: name.into() });
                node = next;
                qids.push(node.qid);
            }
            Err(error) if qids.is_empty() => return Err(error),
            Err(_) => return Ok(Reply::Walk { qids }),
        }
    }
    if node.same_file(&export.root) {
        entry = None;
    }
    let subject =
        if wanted == 0 { fid.subject() } else { fid.user.subject_of(&node, None, fid.subject()) };
    let new = OpenFid::new(fid.user.clone(), node, entry, FidState::Path, subject);
    cx.put_fid(newfid, new, (newfid == number).then_some(fid))?;
    Ok(Reply::Walk { qids })
}

/// One name further; whether the name is one that the result can be removed by.
pub(super) fn step(
    node: &Arc<ExportNode>,
    name: &[u8],
    cx: &Context<'_>,
) -> io::Result<(Arc<ExportNode>, bool)> {
    if node.kind != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let export = &cx.fid().user.export;
    match name {
        b"" => Err(Errno::NOENT.into()),
        b"." => Ok((node.clone(), false)),
        b".." => Ok((Arc::new(node.parent(export)?), false)),
        _ => Ok((Arc::new(node.lookup(name, export)?), true)),
    }
}

/// Forgets a fid, whatever comes of it. An extended attribute that was being
/// written is set now, and its error is the clunk's.
pub(super) fn clunk<'r>(cx: &Context<'_>, number: ninep::Fid) -> io::Result<Reply<'r>> {
    cx.take_fid(number);
    cx.server.release_locks(cx.fid(), cx.outbox);
    forget_writes(cx);
    if let FidState::XattrWrite(write) = &cx.fid().role {
        xattr::finish(cx, &write.lock().expect("not poisoned"))?;
    }
    Ok(Reply::Clunk)
}

/// Forgets the writes to a file without a name: they cannot be made durable any more, and no
/// request must wait for that.
fn forget_writes(cx: &Context<'_>) {
    let fid = cx.fid();
    if let (Some(mount), FidState::File { flags, .. }) = (cx.mount(), &fid.role)
        && flags.intersects(OFlags::WRONLY | OFlags::RDWR)
        && rustix::fs::fstat(&fid.node.fd).is_ok_and(|stat| stat.st_nlink == 0)
    {
        mount.durable(&fid.node, mount.mark());
    }
}
