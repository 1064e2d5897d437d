//! Of the dialect: Twrite and Tappend with their numbers, Tallocate, Tseek, Tcopy and Tcommit.

use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use model::Amount;
use ninep::Request;
use ninep::dialect::{AnyRequest, ExtReply, ExtRequest, WRITE_DONATED, WRITE_KILL_PRIV};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::{Context, Ending, data, open};
use crate::credentials;
use crate::export::ExportNode;
use crate::fids::{FidState, OpenFid};
use crate::parsed_request::COPY_MAX;
use crate::sys;
use crate::writes::{DirtyAccount, WriteRequest};

pub(super) fn write(cx: &Context<'_>, offset: u64, flags: u32, bytes: &[u8]) -> Ending {
    let written = check_write_flags(flags).and_then(|()| data::write_file(cx, offset, bytes));
    let count = *written.as_ref().unwrap_or(&0);
    let result = written.map(|count| {
        kill_set_id(cx, flags);
        ExtReply::Write { count: count as u32, number: number(cx) }
    });
    cx.answer_served(result, Amount::new(count as u64, 1))
}

/// The kernel finds the end of the file, so that no other append comes between finding and writing.
pub(super) fn append(cx: &Context<'_>, flags: u32, bytes: &[u8]) -> Ending {
    let result = check_write_flags(flags).and_then(|()| append_whole(cx, bytes)).map(|offset| {
        kill_set_id(cx, flags);
        ExtReply::Append { offset, number: number(cx) }
    });
    cx.answer_served(result, Amount::new(bytes.len() as u64, 1))
}

fn append_whole(cx: &Context<'_>, bytes: &[u8]) -> io::Result<u64> {
    let side = data::writing(cx)?;
    credentials::become_non_root(cx.credentials())?;
    let file = cx.fid().node.fd.as_fd();
    let (offset, written) = {
        let _alone = position(cx.fid())?.lock().expect("not poisoned");
        sys::append(file, bytes)?
    };
    if written < bytes.len() {
        // No more space: what did get there goes, unless others have appended behind it.
        let end = offset + written as u64;
        if rustix::fs::fstat(file)?.st_size as u64 == end {
            rustix::fs::ftruncate(file, offset)?;
        }
        return Err(Errno::NOSPC.into());
    }
    let account = DirtyAccount(cx.running.class.map_or(0, |class| class.to_bits()));
    let writes = &cx.fid().user.export.target.writes;
    let request = WriteRequest { account, mode: cx.running.write_mode, offset, data: bytes };
    if writes.note_appended(file, side, request).is_err() {
        // The data is in the file and must not be appended again; its possible loss is reported as
        // such.
        cx.mount().inspect(|mount| mount.change_verifier());
    }
    Ok(offset)
}

pub(super) fn allocate<'r>(
    cx: &Context<'_>,
    mode: u32,
    offset: u64,
    length: u64,
) -> io::Result<ExtReply<'r>> {
    data::writing(cx)?;
    credentials::become_non_root(cx.credentials())?;
    let mode = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
    rustix::fs::fallocate(&cx.fid().node.fd, mode, offset, length)?;
    Ok(ExtReply::Allocate)
}

pub(super) fn seek<'r>(cx: &Context<'_>, offset: u64, whence: u32) -> io::Result<ExtReply<'r>> {
    let to = match whence as i32 {
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(Errno::INVAL.into()),
    };
    let _alone = position(cx.fid())?.lock().expect("not poisoned");
    Ok(ExtReply::Seek { offset: rustix::fs::seek(&cx.fid().node.fd, to)? })
}

pub(super) fn copy(
    cx: &Context<'_>,
    offset: u64,
    to: ninep::Fid,
    to_offset: u64,
    length: u64,
) -> Ending {
    let copied = copy_range(cx, offset, to, to_offset, length);
    let count = *copied.as_ref().map_or(&0, |(count, _)| count);
    let result = copied.map(|(count, number)| ExtReply::Copy { count, number });
    cx.answer_served(result, Amount::new(count, 1))
}

/// How many bytes were copied, and the number of the write.
fn copy_range(
    cx: &Context<'_>,
    mut offset: u64,
    to: ninep::Fid,
    mut to_offset: u64,
    length: u64,
) -> io::Result<(u64, u64)> {
    let to = cx.other_in_export(to)?;
    let (FidState::File { flags: from_flags, .. }, FidState::File { flags: to_flags, .. }) =
        (&cx.fid().role, &to.role)
    else {
        return Err(Errno::BADF.into());
    };
    let access = |flags: &OFlags| *flags & OFlags::RWMODE;
    if access(from_flags) == OFlags::WRONLY || access(to_flags) == OFlags::RDONLY {
        return Err(Errno::BADF.into());
    }
    credentials::become_non_root(cx.credentials())?;
    let length = usize::try_from(length.min(COPY_MAX)).unwrap_or(usize::MAX);
    let (from, into) = (&cx.fid().node.fd, &to.node.fd);
    let count =
        rustix::fs::copy_file_range(from, Some(&mut offset), into, Some(&mut to_offset), length)?;
    let number = cx.mount().map_or(0, |mount| mount.written(&to.node));
    Ok((count as u64, number))
}

/// Makes everything durable that the mount has written: one call for however many files.
pub(super) fn commit<'r>(cx: &Context<'_>) -> io::Result<ExtReply<'r>> {
    let mount = cx.mount().ok_or(Errno::INVAL)?;
    let mark = mount.mark();
    rustix::fs::syncfs(&cx.fid().user.export.open).inspect_err(|_| mount.change_verifier())?;
    mount.all_durable(mark);
    Ok(ExtReply::Commit)
}

/// Makes the fid of a write or fsync that names its file by handle: the file, opened for this one
/// call. A mount that sends its kept writes again has closed the file, and had it open for writing:
/// its owner may, whatever the mode says by now (as NFS servers have it).
pub(super) fn opened_for(fid: OpenFid, request: &AnyRequest<'_>) -> io::Result<OpenFid> {
    let flags = match request {
        AnyRequest::Ext(ExtRequest::Write { .. }) => OFlags::WRONLY,
        AnyRequest::Base(Request::Fsync { .. }) => OFlags::RDONLY,
        _ => return Ok(fid),
    };
    if fid.node.kind != FileType::RegularFile {
        return Ok(fid);
    }
    if flags == OFlags::WRONLY && fid.user.export.readonly {
        return Err(Errno::ROFS.into());
    }
    let who = &fid.user.credentials;
    match flags == OFlags::RDONLY || rustix::fs::fstat(&fid.node.fd)?.st_uid == who.uid {
        true => credentials::become_root(),
        false => credentials::become_user(who, who.gid)?,
    }
    let node = ExportNode::new(fid.node.reopen(flags)?, Some(fid.node.dev))?;
    let subject = fid.subject();
    Ok(OpenFid::new(fid.user.clone(), node.into(), None, open::file(flags), subject))
}

/// The number of a write to the fid's file that has just been executed.
fn number(cx: &Context<'_>) -> u64 {
    cx.mount().map_or(0, |mount| mount.written(&cx.fid().node))
}

/// Returns the lock of the position of the fid's descriptor.
fn position(fid: &OpenFid) -> io::Result<&Mutex<()>> {
    match &fid.role {
        FidState::File { position, .. } => Ok(position),
        _ => Err(Errno::BADF.into()),
    }
}

fn check_write_flags(flags: u32) -> io::Result<()> {
    if flags & !(WRITE_KILL_PRIV | WRITE_DONATED) == 0 { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The kernel takes set-id bits away when a user writes, but not from what root writes: the
/// client's word that its caller may not keep them. The data is written whatever comes of it.
fn kill_set_id(cx: &Context<'_>, flags: u32) {
    if flags & WRITE_KILL_PRIV == 0 || cx.credentials().uid != 0 {
        return;
    }
    let node = &cx.fid().node;
    let Ok(stat) = rustix::fs::fstat(&node.fd) else { return };
    let group_exec = stat.st_mode & 0o10 != 0;
    let bits = if group_exec { 0o6000 } else { 0o4000 };
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & bits != 0 {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 & !bits);
        if let Err(error) = rustix::fs::fchmod(&node.fd, mode) {
            tracing::debug!(%error, "set-id bits stay");
        }
    }
}
