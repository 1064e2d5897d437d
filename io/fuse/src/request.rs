//! Parts of a request: caller, inode, and the arguments of each operation.
//!
//! Structures that only travel one way are here; what an operation answers with is in
//! `answer`. Names are `&CStr`, as they came, so that they go into a system call uncopied.

use std::ffi::CStr;

use crate::fields::{FieldReader, Malformed};

/// The kernel's number of one request; never used twice in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuseRequestId(pub u64);

/// A file, directory or other inode, as the file system numbered it in a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

/// An open file or directory, as the file system numbered it when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Owner of a lock: the same for all descriptors that share it, and without meaning otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

impl InodeId {
    /// The root of the mount, which is never looked up.
    pub const ROOT: InodeId = InodeId(1);
}

/// Caller and inode of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseRequest {
    /// The kernel's number of it, by which it may be interrupted.
    pub id: FuseRequestId,
    /// The inode that it is about; of an operation with a name, the directory.
    pub inode: InodeId,
    /// User, for the file system: the caller's fsuid.
    pub uid: u32,
    /// Group, for the file system: the caller's fsgid.
    pub gid: u32,
    /// The calling thread. 0 for write-back and for callers in other namespaces of pids.
    pub thread: u32,
}

/// A point in time since 1970; nanoseconds are below 1,000,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// A new time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the file system's clock.
    Now,
    /// The given time since 1970.
    To(Timestamp),
}

/// A character or block device, as the kernel packs it into 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceNumber(pub u32);

impl DeviceNumber {
    /// Packs the two numbers; what they have beyond 12 and 20 bits is lost.
    pub fn new(major: u32, minor: u32) -> DeviceNumber {
        DeviceNumber(minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12)
    }

    /// Returns the number of the driver.
    pub fn major(self) -> u32 {
        self.0 >> 8 & 0xfff
    }

    /// Returns the number of the driver's device.
    pub fn minor(self) -> u32 {
        self.0 & 0xff | self.0 >> 12 & 0xfff00
    }
}

/// Attributes of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Type and permissions, as in `st_mode`. The umask is applied, except with
    /// [`Capabilities::DONT_MASK`](crate::Capabilities::DONT_MASK).
    pub mode: u32,
    /// The umask of the calling process.
    pub umask: u32,
    /// The device number, if `mode` is of a device file.
    pub device: DeviceNumber,
}

/// Arguments of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOpen {
    /// As for open(2), without what the kernel does by itself (O_CREAT, O_EXCL, O_NOCTTY).
    pub flags: u32,
    /// Take the set-id bits away, as truncating does ([`Capabilities::HANDLE_KILLPRIV_V2`](crate::Capabilities)).
    pub kill_set_id: bool,
}

/// Arguments of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseRead {
    /// The handle of the open file.
    pub handle: Handle,
    /// From which byte; of a directory, the `offset` of an entry that was listed, or 0.
    pub offset: u64,
    /// Maximum number of bytes.
    pub size: u32,
    /// The file's flags, which fcntl may have changed since it was opened.
    pub flags: u32,
    /// Whose locks count, where mandatory locks are known.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseWrite<'a> {
    /// The open file. For a page of the page cache, any handle that may write.
    pub handle: Handle,
    /// Offset of the first byte.
    pub offset: u64,
    /// The bytes to be written.
    pub data: &'a [u8],
    /// The file's flags, which fcntl may have changed since it was opened.
    pub flags: u32,
    /// Whose locks count, where mandatory locks are known.
    pub lock_owner: Option<LockOwner>,
    /// Written back from the page cache: neither the handle nor the caller is to be trusted.
    pub from_cache: bool,
    /// Take the set-id bits away.
    pub kill_set_id: bool,
}

/// Changes of attributes; `None` keeps an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions, with set-id and sticky bits.
    pub mode: Option<u32>,
    /// User id of the new owner.
    pub uid: Option<u32>,
    /// Group id of the new owning group.
    pub gid: Option<u32>,
    /// Length in bytes: truncated or extended with zeros.
    pub size: Option<u64>,
    /// Time of the last read.
    pub accessed: Option<SetTime>,
    /// Time of the last write.
    pub modified: Option<SetTime>,
    /// The open file through which it is changed, if it is.
    pub handle: Option<Handle>,
    /// Owner whose locks allow the change, where mandatory locks are known.
    pub lock_owner: Option<LockOwner>,
    /// Take the set-id bits away.
    pub kill_set_id: bool,
}

/// Arguments of a release of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The open file, which has no descriptor left.
    pub handle: Handle,
    /// The file's flags, as for open(2).
    pub flags: u32,
    /// Its flock locks end now.
    pub unlock_flock: Option<LockOwner>,
}

/// A locked range of bytes, or a range to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// The first byte of the range.
    pub start: u64,
    /// The last byte, `i64::MAX` for "to the end".
    pub end: u64,
    /// The process that holds it or asks, 0 if it cannot be named.
    pub process: u32,
}

/// Kinds of lock, by what they forbid to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A shared lock: others may read-lock, not write-lock.
    Read,
    /// An exclusive lock: others may not lock at all.
    Write,
    /// Nothing: the range is or becomes free.
    None,
}

/// Arguments of a lock operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The handle of the open file.
    pub handle: Handle,
    /// Owner of the lock.
    pub owner: LockOwner,
    /// The range to lock.
    pub lock: Lock,
    /// Whether it is a flock lock, of the whole file and apart from fcntl's.
    pub flock: bool,
    /// Whether to wait until it is free; the wait may be interrupted.
    pub wait: bool,
}

/// Arguments of a call of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// The handle of the open file.
    pub handle: Handle,
    /// The first byte of the range.
    pub offset: u64,
    /// The number of bytes from there.
    pub len: u64,
    /// Flags as for fallocate(2); 0 allocates and may extend the file.
    pub mode: u32,
}

/// Arguments of a copy of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// The open file to read, of the request's inode.
    pub from: Handle,
    /// The first byte to read.
    pub from_offset: u64,
    /// The inode to write.
    pub to_inode: InodeId,
    /// The open file to write.
    pub to: Handle,
    /// The offset of the first byte to write.
    pub to_offset: u64,
    /// The number of bytes to copy.
    pub len: u64,
}

/// Arguments of setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// The name with its prefix, such as `user.comment`.
    pub name: &'a CStr,
    /// The value as raw bytes.
    pub value: &'a [u8],
    /// XATTR_CREATE, XATTR_REPLACE or 0.
    pub flags: u32,
    /// Take the set-group-id bit away: an ACL is set by one outside of the group.
    pub kill_set_group_id: bool,
}

// Bits of the protocol that appear here as fields.
const OPEN_KILL_SUIDGID: u32 = 1;
const GETATTR_FH: u32 = 1;
const READ_LOCKOWNER: u32 = 1 << 1;
const WRITE_CACHE: u32 = 1;
const WRITE_LOCKOWNER: u32 = 1 << 1;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
const LK_FLOCK: u32 = 1;
const SETXATTR_ACL_KILL_SGID: u32 = 1;
const FSYNC_FDATASYNC: u32 = 1;

/// Bits of `fuse_setattr_in.valid`.
mod valid {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const LOCKOWNER: u32 = 1 << 9;
    pub(super) const KILL_SUIDGID: u32 = 1 << 11;
}

impl NewFile {
    pub(crate) fn parse_mknod(from: &mut FieldReader<'_, '_>) -> Result<NewFile, Malformed> {
        let (mode, device) = (from.u32("mode")?, DeviceNumber(from.u32("rdev")?));
        Ok(NewFile { mode, device, umask: from.u32("umask")? })
    }

    pub(crate) fn parse_mkdir(from: &mut FieldReader<'_, '_>) -> Result<NewFile, Malformed> {
        let mode = from.u32("mode")?;
        Ok(NewFile { mode, umask: from.u32("umask")?, device: DeviceNumber::default() })
    }
}

impl FuseOpen {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<FuseOpen, Malformed> {
        let flags = from.u32("flags")?;
        Ok(FuseOpen { flags, kill_set_id: from.u32("open_flags")? & OPEN_KILL_SUIDGID != 0 })
    }

    /// CREATE and TMPFILE: how to open, and what to create.
    pub(crate) fn parse_create(
        from: &mut FieldReader<'_, '_>,
    ) -> Result<(FuseOpen, NewFile), Malformed> {
        let (flags, mode, umask) = (from.u32("flags")?, from.u32("mode")?, from.u32("umask")?);
        let kill_set_id = from.u32("open_flags")? & OPEN_KILL_SUIDGID != 0;
        let new = NewFile { mode, umask, device: DeviceNumber::default() };
        Ok((FuseOpen { flags, kill_set_id }, new))
    }
}

impl FuseRead {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<FuseRead, Malformed> {
        let (handle, offset) = (Handle(from.u64("fh")?), from.u64("offset")?);
        let (size, read_flags) = (from.u32("size")?, from.u32("read_flags")?);
        let owner = LockOwner(from.u64("lock_owner")?);
        let lock_owner = (read_flags & READ_LOCKOWNER != 0).then_some(owner);
        Ok(FuseRead { handle, offset, size, lock_owner, flags: from.u32("flags")? })
    }
}

impl<'a> FuseWrite<'a> {
    pub(crate) fn parse(from: &mut FieldReader<'_, 'a>) -> Result<FuseWrite<'a>, Malformed> {
        let (handle, offset) = (Handle(from.u64("fh")?), from.u64("offset")?);
        let (size, write_flags) = (from.u32("size")?, from.u32("write_flags")?);
        let owner = LockOwner(from.u64("lock_owner")?);
        Ok(FuseWrite {
            handle,
            offset,
            flags: from.u32("flags")?,
            data: from.data("data", size)?,
            lock_owner: (write_flags & WRITE_LOCKOWNER != 0).then_some(owner),
            from_cache: write_flags & WRITE_CACHE != 0,
            kill_set_id: write_flags & WRITE_KILL_SUIDGID != 0,
        })
    }
}

impl SetAttributes {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<SetAttributes, Malformed> {
        let valid = from.u32("valid")?;
        from.u32("padding")?;
        let (handle, size) = (from.u64("fh")?, from.u64("size")?);
        let owner = from.u64("lock_owner")?;
        let (atime, mtime) = (from.i64("atime")?, from.i64("mtime")?);
        // The time of change is the file system's own business: nothing can set it.
        from.u64("ctime")?;
        let (atime_nsec, mtime_nsec) = (from.u32("atimensec")?, from.u32("mtimensec")?);
        from.u32("ctimensec")?;
        let mode = from.u32("mode")?;
        from.u32("unused4")?;
        let (uid, gid) = (from.u32("uid")?, from.u32("gid")?);
        let time = |to: u32, now: u32, seconds, nanoseconds| match valid {
            valid if valid & now != 0 => Some(SetTime::Now),
            valid if valid & to != 0 => Some(SetTime::To(Timestamp { seconds, nanoseconds })),
            _ => None,
        };
        Ok(SetAttributes {
            mode: (valid & valid::MODE != 0).then_some(mode),
            uid: (valid & valid::UID != 0).then_some(uid),
            gid: (valid & valid::GID != 0).then_some(gid),
            size: (valid & valid::SIZE != 0).then_some(size),
            accessed: time(valid::ATIME, valid::ATIME_NOW, atime, atime_nsec),
            modified: time(valid::MTIME, valid::MTIME_NOW, mtime, mtime_nsec),
            handle: (valid & valid::FH != 0).then_some(Handle(handle)),
            lock_owner: (valid & valid::LOCKOWNER != 0).then_some(LockOwner(owner)),
            kill_set_id: valid & valid::KILL_SUIDGID != 0,
        })
    }
}

impl Release {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<Release, Malformed> {
        let (handle, flags) = (Handle(from.u64("fh")?), from.u32("flags")?);
        let release_flags = from.u32("release_flags")?;
        let owner = LockOwner(from.u64("lock_owner")?);
        let unlock_flock = (release_flags & RELEASE_FLOCK_UNLOCK != 0).then_some(owner);
        Ok(Release { handle, flags, unlock_flock })
    }
}

impl LockRequest {
    pub(crate) fn parse(
        from: &mut FieldReader<'_, '_>,
        wait: bool,
    ) -> Result<LockRequest, Malformed> {
        let (handle, owner) = (Handle(from.u64("fh")?), LockOwner(from.u64("owner")?));
        let (start, end) = (from.u64("start")?, from.u64("end")?);
        let kind = match from.u32("type")? {
            LockKind::READ => LockKind::Read,
            LockKind::WRITE => LockKind::Write,
            _ => LockKind::None,
        };
        let lock = Lock { kind, start, end, process: from.u32("pid")? };
        Ok(LockRequest { handle, owner, lock, wait, flock: from.u32("lk_flags")? & LK_FLOCK != 0 })
    }
}

impl LockKind {
    // F_RDLCK and F_WRLCK of Linux.
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const UNLOCK: u32 = 2;
}

impl Allocate {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<Allocate, Malformed> {
        let (handle, offset) = (Handle(from.u64("fh")?), from.u64("offset")?);
        Ok(Allocate { handle, offset, len: from.u64("length")?, mode: from.u32("mode")? })
    }
}

impl CopyRange {
    pub(crate) fn parse(from: &mut FieldReader<'_, '_>) -> Result<CopyRange, Malformed> {
        Ok(CopyRange {
            from: Handle(from.u64("fh_in")?),
            from_offset: from.u64("off_in")?,
            to_inode: InodeId(from.u64("nodeid_out")?),
            to: Handle(from.u64("fh_out")?),
            to_offset: from.u64("off_out")?,
            len: from.u64("len")?,
        })
    }
}

impl<'a> SetXattr<'a> {
    pub(crate) fn parse(from: &mut FieldReader<'_, 'a>) -> Result<SetXattr<'a>, Malformed> {
        let (size, flags) = (from.u32("size")?, from.u32("flags")?);
        let more = if from.has(8) { from.u32("setxattr_flags")? } else { 0 };
        Ok(SetXattr {
            name: from.name("name")?,
            value: from.data("value", size)?,
            flags,
            kill_set_group_id: more & SETXATTR_ACL_KILL_SGID != 0,
        })
    }
}

/// GETATTR's handle, if the file is open.
pub(crate) fn parse_getattr(from: &mut FieldReader<'_, '_>) -> Result<Option<Handle>, Malformed> {
    let flags = from.u32("getattr_flags")?;
    from.u32("dummy")?;
    Ok((flags & GETATTR_FH != 0).then_some(Handle(from.u64("fh")?)))
}

/// FSYNC's handle, and whether only data has to be written.
pub(crate) fn parse_fsync(from: &mut FieldReader<'_, '_>) -> Result<(Handle, bool), Malformed> {
    let handle = Handle(from.u64("fh")?);
    Ok((handle, from.u32("fsync_flags")? & FSYNC_FDATASYNC != 0))
}

/// FLUSH's handle, and the owner whose fcntl locks end.
pub(crate) fn parse_flush(
    from: &mut FieldReader<'_, '_>,
) -> Result<(Handle, LockOwner), Malformed> {
    let handle = Handle(from.u64("fh")?);
    from.u64("unused")?;
    Ok((handle, LockOwner(from.u64("lock_owner")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_pack_as_the_kernel_packs_them() {
        for (major, minor, packed) in
            [(1, 3, 0x103), (8, 300, 0x10082c), (0xfff, 0xfffff, u32::MAX)]
        {
            let device = DeviceNumber::new(major, minor);
            assert_eq!((device.major(), device.minor(), device.0), (major, minor, packed));
        }
    }

    #[test]
    fn only_valid_attributes_are_set() {
        let mut bytes = [0u8; 88];
        let bits = valid::MODE | valid::SIZE | valid::ATIME_NOW | valid::ATIME | valid::MTIME;
        bytes[0..4].copy_from_slice(&bits.to_ne_bytes());
        bytes[16..24].copy_from_slice(&4096u64.to_ne_bytes());
        bytes[40..48].copy_from_slice(&(-7i64).to_ne_bytes());
        bytes[60..64].copy_from_slice(&5u32.to_ne_bytes());
        bytes[68..72].copy_from_slice(&0o640u32.to_ne_bytes());
        let set = SetAttributes::parse(&mut FieldReader::new(&bytes, &[])).unwrap();
        let expected = SetAttributes {
            mode: Some(0o640),
            size: Some(4096),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::To(Timestamp { seconds: -7, nanoseconds: 5 })),
            ..SetAttributes::default()
        };
        assert_eq!(set, expected);
    }

    #[test]
    fn a_write_must_bring_what_it_says() {
        let mut fixed = [0u8; 40];
        fixed[16..20].copy_from_slice(&5u32.to_ne_bytes());
        fixed[20..24].copy_from_slice(&(WRITE_CACHE | WRITE_LOCKOWNER).to_ne_bytes());
        let write = FuseWrite::parse(&mut FieldReader::new(&fixed, b"hello")).unwrap();
        assert_eq!((write.data, write.from_cache, write.kill_set_id), (&b"hello"[..], true, false));
        assert_eq!(write.lock_owner, Some(LockOwner(0)));
        assert_eq!(
            FuseWrite::parse(&mut FieldReader::new(&fixed, b"hell")).unwrap_err().field,
            "data"
        );
    }

    #[test]
    fn setxattr_is_taken_in_both_its_lengths() {
        let fixed = [3u8, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let long = SetXattr::parse(&mut FieldReader::new(&fixed, b"user.a\0xyz")).unwrap();
        assert_eq!((long.name, long.value, long.flags), (c"user.a", &b"xyz"[..], 1));
        assert!(long.kill_set_group_id);
        let short = SetXattr::parse(&mut FieldReader::new(&fixed[..8], b"user.a\0xyz")).unwrap();
        assert_eq!(short, SetXattr { kill_set_group_id: false, ..long });
    }
}
