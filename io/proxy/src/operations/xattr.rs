//! Txattrwalk and Txattrcreate, and reads and writes of the fids that they make.
//!
//! The Linux client removes an attribute by creating it with no bytes and
//! XATTR_REPLACE, and sets an empty value with no bytes and other flags. So the
//! flags tell the two apart, and an empty value with XATTR_REPLACE is a removal
//! (docs/protocol.md).

use std::io;
use std::sync::Mutex;

use ninep::dialect::ExtReply;
use ninep::{Reply, XATTR_CREATE, XATTR_REPLACE};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{Context, Ending};
use crate::bounds::SharedBound;
use crate::fids::{FidState, OpenFid, XattrWrite};

/// The kernel's own bounds for a value and for a list of names.
const VALUE_MAX: usize = 64 << 10;
const NAME_MAX: usize = 255;

/// Reads a value, or with an empty name the list of names, for reads through `newfid`.
pub(super) fn walk<'r>(cx: &Context<'_>, newfid: ninep::Fid, name: &[u8]) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    let space = value_of(cx, name)?;
    let size = space.len() as u64;
    let charge = cx.server.shared.charge(SharedBound::Memory, fid.user.holder(), size)?;
    let role = FidState::XattrRead { value: space.into_boxed_slice(), _charge: charge };
    let new = OpenFid::new(fid.user.clone(), fid.node.clone(), None, role, fid.subject());
    cx.put_fid(newfid, new, None)?;
    Ok(Reply::Xattrwalk { size })
}

/// The value of an attribute, or with an empty name the list of names.
fn value_of(cx: &Context<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    check_name(name)?;
    cx.as_user()?;
    let path = cx.fid().node.proc_path();
    let mut space = Vec::with_capacity(VALUE_MAX);
    if name.is_empty() {
        let into = rustix::buffer::spare_capacity(&mut space);
        rustix::fs::listxattr(path.as_c_str(), into)?;
    } else {
        let into = rustix::buffer::spare_capacity(&mut space);
        rustix::fs::getxattr(path.as_c_str(), name, into)?;
    }
    Ok(space)
}

/// Tgetxattr of the dialect.
pub(super) fn get(cx: &Context<'_>, name: &[u8], count: u32) -> Ending {
    match value_of(cx, name) {
        Ok(value) if count == 0 => {
            cx.answer_own(Ok(ExtReply::Getxattr { length: value.len() as u32, data: &[] }))
        }
        Ok(value) if value.len() > count as usize => cx.answer_own(Err(Errno::RANGE.into())),
        Ok(value) => {
            let length = value.len() as u32;
            cx.answer_own(Ok(ExtReply::Getxattr { length, data: &value }))
        }
        Err(error) => cx.answer_own(Err(error)),
    }
}

/// Tsetxattr of the dialect.
pub(super) fn set<'r>(
    cx: &Context<'_>,
    name: &[u8],
    flags: u32,
    value: &[u8],
) -> io::Result<ExtReply<'r>> {
    cx.writable()?;
    check_name(name)?;
    if name.is_empty() || flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Errno::INVAL.into());
    }
    check_right(cx, name)?;
    cx.as_user()?;
    let flags = XattrFlags::from_bits_retain(flags);
    rustix::fs::setxattr(cx.fid().node.proc_path().as_c_str(), name, value, flags)?;
    Ok(ExtReply::Setxattr)
}

/// Tremovexattr of the dialect.
pub(super) fn remove<'r>(cx: &Context<'_>, name: &[u8]) -> io::Result<ExtReply<'r>> {
    cx.writable()?;
    check_name(name)?;
    check_right(cx, name)?;
    cx.as_user()?;
    rustix::fs::removexattr(cx.fid().node.proc_path().as_c_str(), name)?;
    Ok(ExtReply::Removexattr)
}

/// Turns the fid into one to which the value is written, and set when it is clunked.
pub(super) fn create<'r>(
    cx: &Context<'_>,
    number: ninep::Fid,
    name: &[u8],
    size: u64,
    flags: u32,
) -> io::Result<Reply<'r>> {
    let fid = cx.fid();
    cx.writable()?;
    check_name(name)?;
    if fid.is_open() {
        return Err(Errno::BADF.into());
    }
    let known = flags & !(XATTR_CREATE | XATTR_REPLACE) == 0;
    if name.is_empty() || !known {
        return Err(Errno::INVAL.into());
    }
    let size = usize::try_from(size).ok().filter(|size| *size <= VALUE_MAX).ok_or(Errno::TOOBIG)?;
    let charge = cx.server.shared.charge(SharedBound::Memory, fid.user.holder(), size as u64)?;
    let write = XattrWrite { name: name.into(), size, flags, value: Vec::new(), _charge: charge };
    let role = FidState::XattrWrite(Mutex::new(write));
    let new = OpenFid::new(fid.user.clone(), fid.node.clone(), None, role, fid.subject());
    cx.put_fid(number, new, Some(fid))?;
    Ok(Reply::Xattrcreate)
}

/// Takes a piece of the value, which must follow the one before.
pub(super) fn write(write: &Mutex<XattrWrite>, offset: u64, data: &[u8]) -> io::Result<usize> {
    let mut write = write.lock().expect("not poisoned");
    let follows = offset == write.value.len() as u64;
    if !follows || write.value.len() + data.len() > write.size {
        return Err(Errno::INVAL.into());
    }
    write.value.extend_from_slice(data);
    Ok(data.len())
}

/// Sets or removes the attribute, now that its fid is clunked.
pub(super) fn finish(cx: &Context<'_>, write: &XattrWrite) -> io::Result<()> {
    if write.value.len() != write.size {
        return Err(Errno::INVAL.into());
    }
    check_right(cx, &write.name)?;
    cx.as_user()?;
    let path = cx.fid().node.proc_path();
    // It removes an ACL without any flag; an ACL of no bytes does not exist.
    let acl = write.name.starts_with(b"system.posix_acl_");
    if write.size == 0 && (write.flags == XATTR_REPLACE || acl) {
        return match rustix::fs::removexattr(path.as_c_str(), &*write.name) {
            Err(Errno::NODATA) if acl => Ok(()),
            result => Ok(result?),
        };
    }
    let flags = XattrFlags::from_bits_retain(write.flags);
    Ok(rustix::fs::setxattr(path.as_c_str(), &*write.name, &write.value, flags)?)
}

fn check_name(name: &[u8]) -> io::Result<()> {
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::RANGE.into()),
        _ if name.contains(&0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// Refuses to change capabilities of files for all users but root. The kernel checks only
/// CAP_SETFCAP, not the file's owner, and a thread that acts for a user still has that capability
/// (linux: `cap_convert_nscap`, `cap_task_fix_setuid`).
fn check_right(cx: &Context<'_>, name: &[u8]) -> io::Result<()> {
    let refused = name == b"security.capability" && cx.credentials().uid != 0;
    if refused { Err(Errno::PERM.into()) } else { Ok(()) }
}
