//! Making, renaming and removing names: Tmkdir, Tsymlink, Tmknod, Tlink, Trename,
//! Trenameat, Tunlinkat, Tremove; and Treadlink. Of the dialect: Tlookup, Tmknode.

use std::io;
use std::sync::Arc;

use leases::LeaseKinds;
use ninep::dialect::ExtReply;
use ninep::{REMOVE_DIR, Reply};
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;

use super::reached::Reached;
use super::{Context, Ending, walk};
use crate::credentials;
use crate::export::ExportNode;
use crate::fids::{FidEntry, FidState, OpenFid};

pub(super) fn mkdir<'r>(
    cx: &Context<'_>,
    name: &[u8],
    mode: u32,
    gid: u32,
) -> io::Result<Reply<'r>> {
    let dir = directory(cx, name)?;
    cx.as_creator(gid)?;
    rustix::fs::mkdirat(&dir.fd, name, Mode::from_raw_mode(mode & 0o7777))?;
    Ok(Reply::Mkdir { qid: dir.lookup(name, &cx.fid().user.export)?.qid })
}

pub(super) fn symlink<'r>(
    cx: &Context<'_>,
    name: &[u8],
    target: &[u8],
    gid: u32,
) -> io::Result<Reply<'r>> {
    let dir = directory(cx, name)?;
    cx.as_creator(gid)?;
    rustix::fs::symlinkat(target, &dir.fd, name)?;
    Ok(Reply::Symlink { qid: dir.lookup(name, &cx.fid().user.export)?.qid })
}

pub(super) fn mknod<'r>(
    cx: &Context<'_>,
    name: &[u8],
    mode: u32,
    major: u32,
    minor: u32,
    gid: u32,
) -> io::Result<Reply<'r>> {
    let dir = directory(cx, name)?;
    cx.as_creator(gid)?;
    let device = rustix::fs::makedev(major, minor);
    let kind = FileType::from_raw_mode(mode);
    if matches!(kind, FileType::Directory | FileType::Symlink) {
        return Err(Errno::INVAL.into());
    }
    let mode = Mode::from_raw_mode(mode & 0o7777);
    rustix::fs::mknodat(&dir.fd, name, kind, mode, device)?;
    Ok(Reply::Mknod { qid: dir.lookup(name, &cx.fid().user.export)?.qid })
}

/// A further name for a file. It is named by its descriptor, so that no name of it
/// has to be looked up again; what the user may link is checked by the kernel.
pub(super) fn link<'r>(cx: &Context<'_>, number: ninep::Fid, name: &[u8]) -> io::Result<Reply<'r>> {
    let dir = directory(cx, name)?;
    let file = cx.other_in_export(number)?;
    if file.node.kind == FileType::Directory {
        return Err(Errno::PERM.into());
    }
    cx.as_user()?;
    let from = file.node.proc_path();
    let (from, to) = (from.as_c_str(), &dir.fd);
    rustix::fs::linkat(rustix::fs::CWD, from, to, name, AtFlags::SYMLINK_FOLLOW)?;
    if let Err(errno) = cx.learn_link(&file, number, name) {
        // Root may remove a name that its creator may not.
        credentials::become_root();
        rustix::fs::unlinkat(to, name, AtFlags::empty())?;
        return Err(errno.into());
    }
    Ok(Reply::Link)
}

/// Looks one name up, `..` too.
pub(super) fn lookup(cx: &Context<'_>, name: &[u8]) -> Ending {
    let found = find(cx, name);
    let path = if found.is_ok() { cx.path_to(name) } else { None };
    let how = Reached { path: path.as_deref(), made: false };
    cx.answer_file(found, how, LeaseKinds::ATTRIBUTES, |handle, attributes| ExtReply::Lookup {
        handle,
        attributes,
    })
}

fn find(cx: &Context<'_>, name: &[u8]) -> io::Result<Arc<ExportNode>> {
    cx.as_user()?;
    if !matches!(name, b"" | b"." | b"..") {
        cx.grant_named(&cx.fid().node, LeaseKinds::NAMES);
    }
    Ok(walk::step(&cx.fid().node, name, cx)?.0)
}

/// Makes a directory, a symbolic link or a special file, by the type in `mode`.
pub(super) fn make(cx: &Context<'_>, name: &[u8], mode: u32, rdev: u64, target: &[u8]) -> Ending {
    let made = make_node(cx, name, mode, rdev, target);
    let path = if made.is_ok() { cx.path_to(name) } else { None };
    let how = Reached { path: path.as_deref(), made: true };
    cx.answer_file(made, how, LeaseKinds::ATTRIBUTES, |handle, attributes| ExtReply::Mknode {
        handle,
        attributes,
    })
}

fn make_node(
    cx: &Context<'_>,
    name: &[u8],
    mode: u32,
    rdev: u64,
    target: &[u8],
) -> io::Result<Arc<ExportNode>> {
    let dir = directory(cx, name)?;
    let kind = FileType::from_raw_mode(mode);
    if (kind == FileType::Symlink) == target.is_empty() {
        return Err(Errno::INVAL.into());
    }
    cx.as_user()?;
    cx.grant_named(dir, LeaseKinds::NAMES);
    let mode = Mode::from_raw_mode(mode & 0o7777);
    match kind {
        FileType::Directory => rustix::fs::mkdirat(&dir.fd, name, mode)?,
        FileType::Symlink => rustix::fs::symlinkat(target, &dir.fd, name)?,
        FileType::Unknown => return Err(Errno::INVAL.into()),
        _ => rustix::fs::mknodat(&dir.fd, name, kind, mode, rdev)?,
    }
    Ok(Arc::new(dir.lookup(name, &cx.fid().user.export)?))
}

pub(super) fn readlink(cx: &Context<'_>) -> Ending {
    if cx.fid().node.kind != FileType::Symlink {
        return cx.answer(Err(Errno::INVAL.into()));
    }
    match rustix::fs::readlinkat(&cx.fid().node.fd, c"", Vec::new()) {
        Ok(target) => cx.answer(Ok(Reply::Readlink { target: target.as_bytes() })),
        Err(error) => cx.answer(Err(error.into())),
    }
}

pub(super) fn renameat<'r>(
    cx: &Context<'_>,
    old: &[u8],
    to: ninep::Fid,
    new: &[u8],
) -> io::Result<Reply<'r>> {
    let from = directory(cx, old)?;
    let to = cx.other_in_export(to)?;
    let new = cx.name(&to.node, new)?;
    cx.as_user()?;
    let written = written_file(cx, &to.node, new);
    rustix::fs::renameat(&from.fd, old, &to.node.fd, new)?;
    cx.learn_renamed(&to, new);
    forget_writes(cx, written);
    Ok(Reply::Renameat)
}

/// Renames the file that a fid was walked to; the fid follows.
pub(super) fn rename<'r>(
    cx: &Context<'_>,
    number: ninep::Fid,
    to: ninep::Fid,
    new: &[u8],
) -> io::Result<Reply<'r>> {
    cx.writable()?;
    let fid = cx.fid();
    let entry = entry_of(fid)?;
    let to = cx.other_in_export(to)?;
    let new = cx.name(&to.node, new)?;
    cx.as_user()?;
    check_entry(cx, entry)?;
    rustix::fs::renameat(&entry.dir.fd, &entry.name[..], &to.node.fd, new)?;
    if matches!(fid.role, FidState::Path) {
        let entry = Some(FidEntry { dir: to.node.clone(), name: new.into() });
        let (user, node) = (fid.user.clone(), fid.node.clone());
        let moved = OpenFid::new(user, node, entry, FidState::Path, fid.subject());
        // The fid may have been clunked meanwhile; the rename is done all the same.
        let _ = cx.put_fid(number, moved, Some(fid));
    }
    Ok(Reply::Rename)
}

pub(super) fn unlinkat<'r>(cx: &Context<'_>, name: &[u8], flags: u32) -> io::Result<Reply<'r>> {
    let dir = directory(cx, name)?;
    if flags & !REMOVE_DIR != 0 {
        return Err(Errno::INVAL.into());
    }
    cx.as_user()?;
    let how = if flags & REMOVE_DIR != 0 { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let written = written_file(cx, dir, name);
    rustix::fs::unlinkat(&dir.fd, name, how)?;
    forget_writes(cx, written);
    Ok(Reply::Unlinkat)
}

/// The file of this name, if writes of a mount or its names may have to be forgotten with it.
fn written_file(cx: &Context<'_>, dir: &ExportNode, name: &[u8]) -> Option<ExportNode> {
    let export = &cx.fid().user.export;
    let written = cx.mount().is_some_and(|mount| mount.has_written());
    (written || !export.links.is_empty()).then(|| dir.lookup(name, export).ok())?
}

/// Notes that a name is gone. The writes to a file without names are forgotten: they cannot be made
/// durable, and no commit number must wait for that.
fn forget_writes(cx: &Context<'_>, file: Option<ExportNode>) {
    let Some(file) = file else { return };
    cx.fid().user.export.links.forget(file.key(), || file.names_now() <= 1);
    if rustix::fs::fstat(&file.fd).is_ok_and(|stat| stat.st_nlink == 0) {
        cx.server.mounts.all().iter().for_each(|mount| mount.durable(&file, mount.mark()));
    }
}

/// Removes the file that a fid was walked to. The fid is gone whatever comes of it.
pub(super) fn remove<'r>(cx: &Context<'_>, number: ninep::Fid) -> io::Result<Reply<'r>> {
    cx.take_fid(number);
    cx.server.release_locks(cx.fid(), cx.outbox);
    cx.writable()?;
    let entry = entry_of(cx.fid())?;
    cx.as_user()?;
    check_entry(cx, entry)?;
    let dir = cx.fid().node.kind == FileType::Directory;
    let how = if dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(&entry.dir.fd, &entry.name[..], how)?;
    Ok(Reply::Remove)
}

/// The fid's directory, in which `name` may be made or removed.
fn directory<'c>(cx: &Context<'c>, name: &[u8]) -> io::Result<&'c ExportNode> {
    let dir = &cx.fid().node;
    cx.name(dir, name)?;
    cx.writable()?;
    Ok(dir)
}

fn entry_of(fid: &OpenFid) -> io::Result<&FidEntry> {
    // The root of an export cannot be renamed or removed from inside.
    fid.entry.as_ref().ok_or_else(|| Errno::BUSY.into())
}

/// Another file may have taken the name since the walk: it is not the one that was meant.
fn check_entry(cx: &Context<'_>, entry: &FidEntry) -> io::Result<()> {
    let there = entry.dir.lookup(&entry.name, &cx.fid().user.export)?;
    if there.same_file(&cx.fid().node) { Ok(()) } else { Err(Errno::NOENT.into()) }
}
