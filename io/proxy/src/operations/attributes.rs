//! Tgetattr, Tsetattr and Tstatfs.

use std::io;
use std::os::fd::AsFd;

use leases::LeaseKinds;
use ninep::dialect::{ExtReply, PLAIN_FILE};
use ninep::{Attributes, Reply, SetAttributes, Statfs, Timestamp, getattr as get, setattr as set};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, StatxFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::Context;
use super::open::writes;
use crate::credentials;
use crate::export::{Export, ExportNode, device, mount_mix, qid_of};
use crate::fids::FidState;

pub(super) fn getattr<'r>(cx: &Context<'_>, mask: u64) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    // An open file is asked about before it is read.
    let kinds = match &fid.role {
        FidState::File { flags, .. } if !writes(*flags) => {
            LeaseKinds::ATTRIBUTES.and(LeaseKinds::READ)
        }
        _ => LeaseKinds::ATTRIBUTES,
    };
    cx.grant_named(&fid.node, kinds);
    let attributes = attributes_of(&fid.node, &fid.user.export, mask)?;
    if cx.mount().is_some() {
        return Ok(Reply::Getattr(with_plain(&fid.node, attributes)));
    }
    Ok(Reply::Getattr(attributes))
}

/// All attributes of a file, as the dialect's replies have them.
pub(super) fn all_attributes(node: &ExportNode, export: &Export) -> io::Result<Attributes> {
    Ok(with_plain(node, attributes_of(node, export, get::ALL)?))
}

/// Says of a file without ACL and extended attributes that it is one.
fn with_plain(node: &ExportNode, mut attributes: Attributes) -> Attributes {
    // The length alone; a file system that has none says so by an error.
    let plain = match rustix::fs::listxattr_query(node.proc_path().as_c_str()) {
        Ok(length) => length == 0,
        Err(error) => error == Errno::OPNOTSUPP,
    };
    if plain {
        attributes.valid |= PLAIN_FILE;
    }
    attributes
}

fn attributes_of(node: &ExportNode, export: &Export, mask: u64) -> io::Result<Attributes> {
    let stat = node.stat()?;
    let mix = if device(&stat) == export.root.dev { 0 } else { mount_mix(node.fd.as_fd()) };
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let known = if has_btime { get::BASIC | get::BTIME } else { get::BASIC };
    let time =
        |t: rustix::fs::StatxTimestamp| Timestamp { sec: t.tv_sec as u64, nsec: t.tv_nsec.into() };
    Ok(Attributes {
        valid: known & (mask | get::BASIC),
        qid: qid_of(&stat, mix),
        mode: stat.stx_mode.into(),
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink.into(),
        rdev: device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blksize: stat.stx_blksize.into(),
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
        generation: 0,
        data_version: 0,
    })
}

/// Tsetattr of the dialect: answers with what has become of the file.
pub(super) fn change<'r>(cx: &Context<'_>, new: &SetAttributes) -> io::Result<ExtReply<'r>> {
    setattr(cx, new)?;
    cx.grant_named(&cx.fid().node, LeaseKinds::ATTRIBUTES);
    let attributes = all_attributes(&cx.fid().node, &cx.fid().user.export)?;
    Ok(ExtReply::Change { attributes })
}

/// As the kernel passes device numbers to programs.
fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// Owner first, since changing it clears bits of the mode; times last, since
/// everything else changes them.
pub(super) fn setattr<'r>(cx: &Context<'_>, new: &SetAttributes) -> io::Result<Reply<'r>> {
    let has = |bit: u32| new.valid & bit != 0;
    if new.valid & !set::ALL != 0 {
        return Err(Errno::INVAL.into());
    }
    cx.writable()?;
    cx.as_user()?;
    let node = &cx.fid().node;
    let path = node.proc_path();
    if has(set::UID | set::GID) {
        let uid = has(set::UID).then(|| Uid::from_raw(new.uid));
        let gid = has(set::GID).then(|| Gid::from_raw(new.gid));
        rustix::fs::chownat(&node.fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if has(set::MODE) {
        let mode = Mode::from_raw_mode(new.mode & 0o7777);
        rustix::fs::chmodat(rustix::fs::CWD, path.as_c_str(), mode, AtFlags::empty())?;
    }
    if has(set::SIZE) {
        truncate(cx, new.size)?;
    }
    if has(set::ATIME | set::MTIME) {
        let time = |on: u32, given: u32, at: Timestamp| match (has(on), has(given)) {
            (false, _) => Ok(Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT }),
            (true, false) => Ok(Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }),
            (true, true) if at.nsec > 999_999_999 => Err(Errno::INVAL),
            (true, true) => {
                Ok(Timespec { tv_sec: at.sec as i64, tv_nsec: at.nsec as rustix::fs::Nsecs })
            }
        };
        let times = Timestamps {
            last_access: time(set::ATIME, set::ATIME_SET, new.atime)?,
            last_modification: time(set::MTIME, set::MTIME_SET, new.mtime)?,
        };
        rustix::fs::utimensat(&node.fd, c"", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(Reply::Setattr)
}

/// Through an open file that needs no permission any more, as ftruncate does; else
/// by opening the file as the user, as truncate does.
fn truncate(cx: &Context<'_>, size: u64) -> io::Result<()> {
    let fid = cx.fid();
    if i64::try_from(size).is_err() {
        return Err(Errno::FBIG.into());
    }
    match &fid.role {
        FidState::File { flags, .. } if flags.intersects(OFlags::WRONLY | OFlags::RDWR) => {
            credentials::become_non_root(cx.credentials())?;
            Ok(rustix::fs::ftruncate(&fid.node.fd, size)?)
        }
        _ => match fid.node.kind {
            rustix::fs::FileType::RegularFile => {
                let file = fid.node.reopen(OFlags::WRONLY)?;
                Ok(rustix::fs::ftruncate(&file, size)?)
            }
            rustix::fs::FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        },
    }
}

pub(super) fn statfs<'r>(cx: &Context<'_>) -> io::Result<Reply<'r>> {
    let fs = rustix::fs::fstatfs(&cx.fid().node.fd)?;
    let fsid = rustix::fs::fstatvfs(&cx.fid().node.fd)?.f_fsid;
    Ok(Reply::Statfs(Statfs {
        kind: fs.f_type as u32,
        bsize: fs.f_bsize as u32,
        blocks: fs.f_blocks,
        bfree: fs.f_bfree,
        bavail: fs.f_bavail,
        files: fs.f_files,
        ffree: fs.f_ffree,
        fsid,
        namelen: fs.f_namelen as u32,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_packed_as_the_kernel_does() {
        assert_eq!(device_number(8, 1), rustix::fs::makedev(8, 1));
        assert_eq!(device_number(259, 70_000), rustix::fs::makedev(259, 70_000));
    }
}
