//! The attributes that Tgetattr, Tsetattr and Tstatfs carry.

use crate::types::Qid;

/// A file's attributes, as Rgetattr gives them; only those named in `valid` count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Which of the rest are set: bits of [`getattr`].
    pub valid: u64,
    /// The identity of the file.
    pub qid: Qid,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u64,
    /// Device number of a special file, as the kernel encodes `st_rdev`.
    pub rdev: u64,
    /// The length in bytes.
    pub size: u64,
    /// Good size of one I/O, in bytes.
    pub blksize: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// The time of the last access.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// The time of the creation.
    pub btime: Timestamp,
    /// Generation of the inode number.
    pub generation: u64,
    /// Changes with the data.
    pub data_version: u64,
}

/// The changes of a Tsetattr; only those named in `valid` count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Which of the rest to set: bits of [`setattr`].
    pub valid: u32,
    /// The new permission bits.
    pub mode: u32,
    /// The number of the new owner.
    pub uid: u32,
    /// The number of the new group.
    pub gid: u32,
    /// The new length in bytes.
    pub size: u64,
    /// Last access; used with [`setattr::ATIME_SET`], else the server's now.
    pub atime: Timestamp,
    /// Last change of data; used with [`setattr::MTIME_SET`], else the server's now.
    pub mtime: Timestamp,
}

/// Figures of a file system, as Rstatfs gives them and `struct statfs` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// The file system's magic number.
    pub kind: u32,
    /// Bytes of a block, the unit of the next three.
    pub bsize: u32,
    /// The number of all blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub bfree: u64,
    /// Free blocks for users other than root.
    pub bavail: u64,
    /// The number of all inodes.
    pub files: u64,
    /// The number of free inodes.
    pub ffree: u64,
    /// The file system's identity.
    pub fsid: u64,
    /// The longest name in bytes.
    pub namelen: u32,
}

/// A point of the calendar since 1970 UTC, in the two words of the wire.
///
/// Both are unsigned there; a time before 1970 is its seconds in two's complement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// The number of whole seconds.
    pub sec: u64,
    /// Nanoseconds past them. The codec passes any value; a server checks it.
    pub nsec: u64,
}

/// The bits of a getattr's mask and of its reply's `valid`.
pub mod getattr {
    /// Type and permission bits.
    pub const MODE: u64 = 1 << 0;
    /// Number of hard links.
    pub const NLINK: u64 = 1 << 1;
    /// The owner of the file.
    pub const UID: u64 = 1 << 2;
    /// The group of the file.
    pub const GID: u64 = 1 << 3;
    /// The number of the device.
    pub const RDEV: u64 = 1 << 4;
    /// The time of the last access.
    pub const ATIME: u64 = 1 << 5;
    /// Last change of data.
    pub const MTIME: u64 = 1 << 6;
    /// Last change of data or attributes.
    pub const CTIME: u64 = 1 << 7;
    /// Inode number, in the qid.
    pub const INO: u64 = 1 << 8;
    /// The length of the file.
    pub const SIZE: u64 = 1 << 9;
    /// The space that is taken.
    pub const BLOCKS: u64 = 1 << 10;
    /// The time of the creation.
    pub const BTIME: u64 = 1 << 11;
    /// The generation of the inode number.
    pub const GENERATION: u64 = 1 << 12;
    /// The version of the data.
    pub const DATA_VERSION: u64 = 1 << 13;
    /// What `stat` needs: all up to [`BLOCKS`].
    pub const BASIC: u64 = 0x7ff;
    /// All bits of the mask.
    pub const ALL: u64 = 0x3fff;
}

/// The bits of a setattr's `valid`.
pub mod setattr {
    /// The permission bits of the file.
    pub const MODE: u32 = 1 << 0;
    /// The owner of the file.
    pub const UID: u32 = 1 << 1;
    /// The group of the file.
    pub const GID: u32 = 1 << 2;
    /// The length of the file.
    pub const SIZE: u32 = 1 << 3;
    /// Last access: now, unless [`ATIME_SET`].
    pub const ATIME: u32 = 1 << 4;
    /// Last change of data: now, unless [`MTIME_SET`].
    pub const MTIME: u32 = 1 << 5;
    /// Last change of attributes. v9fs sets it beside others; a kernel sets ctime itself.
    pub const CTIME: u32 = 1 << 6;
    /// The last access is the one given.
    pub const ATIME_SET: u32 = 1 << 7;
    /// The last change of data is the one given.
    pub const MTIME_SET: u32 = 1 << 8;
    /// All bits of `valid`, combined.
    pub const ALL: u32 = 0x1ff;
}
