//! The errnos that the tests expect, as Linux numbers them.

#![allow(missing_docs, reason = "errno(3) describes them")]

pub const EPERM: u32 = 1;
pub const ENOENT: u32 = 2;
pub const ENXIO: u32 = 6;
pub const E2BIG: u32 = 7;
pub const EBADF: u32 = 9;
pub const EAGAIN: u32 = 11;
pub const EACCES: u32 = 13;
pub const EBUSY: u32 = 16;
pub const EEXIST: u32 = 17;
pub const EXDEV: u32 = 18;
pub const ENOTDIR: u32 = 20;
pub const EISDIR: u32 = 21;
pub const EINVAL: u32 = 22;
pub const EFBIG: u32 = 27;
pub const ENOSPC: u32 = 28;
pub const EROFS: u32 = 30;
pub const ERANGE: u32 = 34;
pub const ENAMETOOLONG: u32 = 36;
pub const ENOTEMPTY: u32 = 39;
pub const ELOOP: u32 = 40;
pub const ENODATA: u32 = 61;
pub const EOPNOTSUPP: u32 = 95;
pub const ESTALE: u32 = 116;
