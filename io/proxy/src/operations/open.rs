//! Tlopen and Tlcreate, and the dialect's Topen.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use leases::LeaseKinds;
use ninep::Reply;
use ninep::dialect::ExtReply;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::reached::Reached;
use super::{Context, Ending};
use crate::export::{self, ExportNode};
use crate::fids::{FidEntry, FidState, OpenFid};
use crate::trace::AccessHistory;
use crate::writes::WriteFile;

/// Maximum number of attempts to open a name that others create and remove all the time.
const CREATE_TRIES: usize = 16;

/// Opens a walked fid: the kernel checks the user's permission on the file itself.
pub(super) fn open<'r>(cx: &Context<'_>, number: ninep::Fid, flags: u32) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    if fid.is_open() {
        return Err(Errno::BADF.into());
    }
    cx.check_fid(number, Some(fid))?;
    let flags = from_wire(flags)?;
    check_openable(&fid.node, flags)?;
    let dir = fid.node.kind == FileType::Directory;
    if writes(flags) {
        cx.writable()?;
    }
    cx.as_user()?;
    let fd = fid.node.reopen(flags)?;
    let node = ExportNode::new(fd, Some(fid.user.export.root.dev))?;
    let qid = node.qid;
    let subject = fid.user.subject_of(&node, None, fid.subject());
    let role = if dir { FidState::Dir(Mutex::new(())) } else { file(flags) };
    let new = OpenFid::new(fid.user.clone(), node.into(), fid.entry.clone(), role, subject);
    cx.put_fid(number, new, Some(fid))?;
    Ok(Reply::Lopen { qid, iounit: 0 })
}

/// Topen of the dialect: opens the file, or a name in it, or makes that, as a new fid.
pub(super) fn open_in_one(
    cx: &Context<'_>,
    newfid: ninep::Fid,
    name: &[u8],
    flags: u32,
    mode: u32,
) -> Ending {
    let mut made = false;
    let path = cx.path_to(name);
    let opened = open_named(cx, newfid, name, path.as_deref(), flags, mode, &mut made);
    let created = made.into();
    // What was opened by its handle may have another name by now.
    let how = Reached { path: path.as_deref().filter(|_| !name.is_empty()), made };
    // What was there has its leases from before it was opened.
    let kinds = if name.is_empty() { LeaseKinds::NONE } else { LeaseKinds::ATTRIBUTES };
    cx.answer_file(opened, how, kinds, |handle, attributes| ExtReply::Open {
        handle,
        created,
        attributes,
    })
}

fn open_named(
    cx: &Context<'_>,
    newfid: ninep::Fid,
    name: &[u8],
    path: Option<&[u8]>,
    wire: u32,
    mode: u32,
    made: &mut bool,
) -> io::Result<Arc<ExportNode>> {
    let fid = cx.fid();
    let export = &fid.user.export;
    cx.check_fid(newfid, None)?;
    let flags = from_wire(wire)?;
    let creates = wire & ninep::open::CREATE != 0;
    if creates || writes(flags) {
        cx.writable()?;
    }
    cx.as_user()?;
    let kinds = match writes(flags) {
        true => LeaseKinds::ATTRIBUTES,
        false => LeaseKinds::ATTRIBUTES.and(LeaseKinds::READ),
    };
    let (fd, kind) = if creates {
        let name = cx.name(&fid.node, name)?;
        cx.grant_named(&fid.node, LeaseKinds::NAMES);
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let (fd, new) = create_or_open(fid, name, flags, mode)?;
        *made = new;
        (fd, FileType::RegularFile)
    } else if name.is_empty() {
        check_openable(&fid.node, flags)?;
        cx.grant_named(&fid.node, kinds);
        (fid.node.reopen(flags)?, fid.node.kind)
    } else {
        let name = cx.name(&fid.node, name)?;
        cx.grant_named(&fid.node, LeaseKinds::NAMES);
        let found = fid.node.lookup(name, export)?;
        check_openable(&found, flags)?;
        cx.grant_found(&found, kinds);
        (found.reopen(flags)?, found.kind)
    };
    let node = Arc::new(ExportNode::new(fd, Some(export.root.dev))?);
    let subject = fid.user.subject_of(&node, path, fid.subject());
    let role =
        if kind == FileType::Directory { FidState::Dir(Mutex::new(())) } else { file(flags) };
    let new = OpenFid::new(fid.user.clone(), node.clone(), None, role, subject);
    cx.put_fid(newfid, new, None)?;
    Ok(node)
}

/// Creates a file in the fid's directory and turns the fid into it. Where the file
/// exists and O_EXCL is not asked for, another client won the race: it is opened.
pub(super) fn create<'r>(
    cx: &Context<'_>,
    number: ninep::Fid,
    name: &[u8],
    flags: u32,
    mode: u32,
    gid: u32,
) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    if fid.is_open() {
        return Err(Errno::BADF.into());
    }
    cx.check_fid(number, Some(fid))?;
    // The directory stays open: the new file's fid can be removed by its name in it.
    cx.check_open_files()?;
    let name = cx.name(&fid.node, name)?;
    cx.writable()?;
    let flags = from_wire(flags)?;
    cx.as_creator(gid)?;
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let (fd, _) = create_or_open(fid, name, flags, mode)?;
    let node = ExportNode::new(fd, Some(fid.user.export.root.dev))?;
    let qid = node.qid;
    let subject = fid.user.subject_of(&node, None, fid.subject());
    let entry = Some(FidEntry { dir: fid.node.clone(), name: name.into() });
    let new = OpenFid::new(fid.user.clone(), node.into(), entry, file(flags), subject);
    cx.put_fid(number, new, Some(fid))?;
    Ok(Reply::Lcreate { qid, iounit: 0 })
}

/// Opening a device or a FIFO would act on the server's own machine; the client's kernel
/// opens its own.
fn check_openable(node: &ExportNode, flags: OFlags) -> io::Result<()> {
    match node.kind {
        FileType::Directory => Ok(()),
        FileType::RegularFile if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR.into()),
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Err(Errno::NXIO.into()),
    }
}

/// Makes the file, or opens the one that is there; whether it was made. A device or FIFO that somebody put
/// there is not even opened for a moment: that alone may act on the server's machine.
fn create_or_open(
    fid: &OpenFid,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> io::Result<(OwnedFd, bool)> {
    let new = flags.difference(OFlags::TRUNC) | OFlags::CREATE | OFlags::EXCL;
    for _ in 0..CREATE_TRIES {
        match export::open_at(&fid.node, name, new, mode) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => return result.map(|fd| (fd, true)),
        }
        if flags.contains(OFlags::EXCL) {
            return Err(Errno::EXIST.into());
        }
        let there = match fid.node.lookup(name, &fid.user.export) {
            // Removed since: make it after all.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            result => result?,
        };
        return match there.kind {
            FileType::RegularFile => Ok((there.reopen(flags)?, false)),
            FileType::Directory => Err(Errno::ISDIR.into()),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Err(Errno::NXIO.into()),
        };
    }
    Err(Errno::NOENT.into())
}

pub(super) fn file(flags: OFlags) -> FidState {
    FidState::File {
        flags,
        writing: WriteFile::default(),
        locks: Arc::default(),
        accesses: AccessHistory::default(),
        position: Mutex::default(),
    }
}

pub(super) fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

/// The wire's flags are those of x86, whatever this machine is. Left out: O_DIRECT
/// (the write mode decides), O_APPEND (every write says its offset; appending to
/// what the server has would put it elsewhere), and what concerns terminals and
/// descriptors of the client.
fn from_wire(wire: u32) -> io::Result<OFlags> {
    use ninep::open;
    let mut flags = match wire & open::ACCESS_MASK {
        open::RDONLY => OFlags::RDONLY,
        open::WRONLY => OFlags::WRONLY,
        open::RDWR => OFlags::RDWR,
        _ => return Err(Errno::INVAL.into()),
    };
    let all = [
        (open::EXCL, OFlags::EXCL),
        (open::TRUNC, OFlags::TRUNC),
        (open::DSYNC, OFlags::DSYNC),
        (open::SYNC, OFlags::SYNC),
        (open::DIRECTORY, OFlags::DIRECTORY),
        (open::NOATIME, OFlags::NOATIME),
    ];
    for (bit, flag) in all {
        if wire & bit != 0 {
            flags |= flag;
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_belong_to_the_client_are_left_out() {
        use ninep::open;
        let wire = open::RDWR | open::DIRECT | open::APPEND | open::TRUNC | open::LARGEFILE;
        assert_eq!(from_wire(wire).unwrap(), OFlags::RDWR | OFlags::TRUNC);
        assert_eq!(from_wire(3).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
