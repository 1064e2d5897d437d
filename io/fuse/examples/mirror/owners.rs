//! Owners and modes, as if the caller had made each call and not the mirror, which is root.
//!
//! ```text
//!   made ─► give_to_caller: owner, group, and the set-id bits that a new owner takes away
//!   written, truncated, ACL set ─► the kernel says so ─► kill_set_id, kill_set_group_id
//! ```

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fuse::{Errno, FuseRequest};
use rustix::fs::{AtFlags, Gid, Mode, Uid};

/// The inode of a descriptor as a path, for calls that have no form with a descriptor.
pub(crate) fn by_number(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The bits of a mode that chmod(2) sets.
pub(crate) fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// As if the caller had made it: its owner, its group unless the directory decides about that,
/// and set-id bits, which changing the owner took away.
pub(crate) fn give_to_caller(
    request: &FuseRequest,
    directory: &OwnedFd,
    fd: &OwnedFd,
    mode: u32,
) -> Result<(), Errno> {
    let of_directory = rustix::fs::fstat(directory)?.st_mode & 0o2000 != 0;
    let gid = (!of_directory).then(|| Gid::from_raw(request.gid));
    rustix::fs::chownat(fd, c"", Some(Uid::from_raw(request.uid)), gid, AtFlags::EMPTY_PATH)?;
    if mode & 0o6000 != 0 {
        rustix::fs::chmod(by_number(fd), permissions(mode))?;
    }
    Ok(())
}

/// Takes set-user-id away, and set-group-id where it is one (an executable file).
pub(crate) fn kill_set_id(fd: impl AsFd) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(&fd)?.st_mode;
    kill_bits(fd, if mode & 0o010 != 0 { 0o6000 } else { 0o4000 })
}

/// Takes set-group-id away, whatever it means there.
pub(crate) fn kill_set_group_id(fd: impl AsFd) -> Result<(), Errno> {
    kill_bits(fd, 0o2000)
}

fn kill_bits(fd: impl AsFd, bits: u32) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(&fd)?.st_mode;
    match mode & bits {
        0 => Ok(()),
        _ => rustix::fs::chmod(by_number(fd), permissions(mode & !bits)),
    }
}
