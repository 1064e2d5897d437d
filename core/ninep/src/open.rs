//! The open flags of Tlopen and Tlcreate as they are on the wire: the octal values
//! of Linux on x86, whatever processor either side has.
//!
//! On arm64 `O_DIRECT`, `O_DIRECTORY`, `O_NOFOLLOW` and `O_LARGEFILE` have other
//! values, so a server translates flag by flag and drops what it does not know.

/// The two bits of the access mode.
pub const ACCESS_MASK: u32 = 0o3;
/// The access mode read only.
pub const RDONLY: u32 = 0o0;
/// The access mode write only.
pub const WRONLY: u32 = 0o1;
/// Access: read and write.
pub const RDWR: u32 = 0o2;
/// Create if missing; Tlcreate implies it.
pub const CREATE: u32 = 0o100;
/// With [`CREATE`]: fail if it exists.
pub const EXCL: u32 = 0o200;
/// Never become the controlling terminal.
pub const NOCTTY: u32 = 0o400;
/// Cut to length 0.
pub const TRUNC: u32 = 0o1000;
/// Every write goes to the end.
pub const APPEND: u32 = 0o2000;
/// Return instead of blocking.
pub const NONBLOCK: u32 = 0o4000;
/// Writes return when data is durable.
pub const DSYNC: u32 = 0o10000;
/// Signal when I/O is possible.
pub const FASYNC: u32 = 0o20000;
/// Past the page cache.
pub const DIRECT: u32 = 0o40000;
/// Large files; means nothing on 64 bits.
pub const LARGEFILE: u32 = 0o100000;
/// Fail unless it is a directory.
pub const DIRECTORY: u32 = 0o200000;
/// Not through a symbolic link.
pub const NOFOLLOW: u32 = 0o400000;
/// Leave the access time alone.
pub const NOATIME: u32 = 0o1000000;
/// Close the file on exec.
pub const CLOEXEC: u32 = 0o2000000;
/// Writes return when data and attributes are durable; the kernel sets
/// [`DSYNC`] along with it.
pub const SYNC: u32 = 0o4000000;
