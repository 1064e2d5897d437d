//! The kernel's side of the protocol in numbers (linux: `include/uapi/linux/fuse.h`, 7.45).
//!
//! ```text
//!   request   in header (40 bytes) │ fixed fields of the opcode │ names, data
//!   answer    out header (16)      │ fixed fields or data
//!   notice    out header, unique 0, the code in place of the error │ fields │ name or data
//! ```
//!
//! Over /dev/fuse these bytes follow one another; over a ring the header, the fixed
//! fields and the rest lie in three places. [`Opcode::fixed_len`] says where the fixed
//! fields end, so that both are taken apart by the same code.

use crate::fields::{FieldReader, FieldWriter, Malformed};
use crate::request::{FuseRequest, FuseRequestId, InodeId};

/// Major version of the protocol.
pub(crate) const VERSION: u32 = 7;
/// The newest minor version that this crate knows.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that it speaks: 7.31 came with Linux 5.4.
pub(crate) const MINOR_MIN: u32 = 31;

/// Bytes before the fields of a request.
pub(crate) const IN_HEADER_LEN: usize = 40;
/// Bytes before the fields of an answer.
pub(crate) const OUT_HEADER_LEN: usize = 16;
/// Bytes before the data of a WRITE: its header and fixed fields.
pub(crate) const WRITE_HEADER_LEN: usize = IN_HEADER_LEN + 40;
/// An interrupt's own unique is that of its request with this bit (`fs/fuse/fuse_dev_i.h`).
pub(crate) const INTERRUPT_BIT: u64 = 1;
/// Bytes in the unit that the kernel counts pages of a request in.
pub(crate) const PAGE: usize = 4096;

// `CopiedBytes` and a few more are encoded so that their 32- and 64-bit forms agree.
const _: () = assert!(cfg!(target_endian = "little"));

macro_rules! opcodes {
    ($($name:ident = $value:literal, $fixed:literal;)*) => {
        /// The operation of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode { $($name = $value),* }

        impl Opcode {
            /// The opcode of this number, if this crate knows it.
            pub(crate) fn new(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)* _ => None }
            }

            /// Bytes of fixed fields that stand before names and data.
            pub(crate) fn fixed_len(self) -> usize {
                match self { $(Opcode::$name => $fixed),* }
            }
        }
    };
}
opcodes! {
    Lookup = 1, 0;
    Forget = 2, 8;
    GetAttr = 3, 16;
    SetAttr = 4, 88;
    ReadLink = 5, 0;
    SymLink = 6, 0;
    MkNod = 8, 16;
    MkDir = 9, 8;
    Unlink = 10, 0;
    RmDir = 11, 0;
    Rename = 12, 8;
    Link = 13, 8;
    Open = 14, 8;
    Read = 15, 40;
    Write = 16, 40;
    StatFs = 17, 0;
    Release = 18, 24;
    FSync = 20, 16;
    SetXattr = 21, 16;
    GetXattr = 22, 8;
    ListXattr = 23, 8;
    RemoveXattr = 24, 0;
    Flush = 25, 24;
    Init = 26, 16;
    OpenDir = 27, 8;
    ReadDir = 28, 40;
    ReleaseDir = 29, 24;
    FSyncDir = 30, 16;
    GetLk = 31, 48;
    SetLk = 32, 48;
    SetLkW = 33, 48;
    Access = 34, 8;
    Create = 35, 16;
    Interrupt = 36, 8;
    Destroy = 38, 0;
    NotifyReply = 41, 40;
    BatchForget = 42, 8;
    FAllocate = 43, 32;
    ReadDirPlus = 44, 40;
    Rename2 = 45, 16;
    LSeek = 46, 24;
    CopyFileRange = 47, 56;
    TmpFile = 51, 16;
    Statx = 52, 24;
    CopyFileRange64 = 53, 56;
}

/// SETXATTR's fixed fields where `SETXATTR_EXT` was not negotiated.
const SETXATTR_SHORT_LEN: usize = 8;

impl Opcode {
    /// As [`Opcode::fixed_len`], where the kernel may send the short form of SETXATTR.
    pub(crate) fn fixed_len_with(self, setxattr_ext: bool) -> usize {
        match self {
            Opcode::SetXattr if !setxattr_ext => SETXATTR_SHORT_LEN,
            _ => self.fixed_len(),
        }
    }
}

/// The change that a notice reports to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyCode {
    InvalInode = 2,
    InvalEntry = 3,
    Store = 4,
    Delete = 6,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InHeader {
    /// Bytes of the whole request, this header included. Over a ring, what it would
    /// have been over /dev/fuse.
    pub(crate) len: u32,
    /// The operation as the kernel sends it; see [`Opcode`].
    pub(crate) opcode: u32,
    /// Identity of the caller, and the inode.
    pub(crate) request: FuseRequest,
}

impl InHeader {
    /// Takes the header from the front of `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<InHeader, Malformed> {
        let mut from = FieldReader::new(bytes, &[]);
        let (len, opcode) = (from.u32("len")?, from.u32("opcode")?);
        let request = FuseRequest {
            id: FuseRequestId(from.u64("unique")?),
            inode: InodeId(from.u64("nodeid")?),
            uid: from.u32("uid")?,
            gid: from.u32("gid")?,
            thread: from.u32("pid")?,
        };
        from.u32("total_extlen")?;
        Ok(InHeader { len, opcode, request })
    }
}

/// The header of an answer or, with `unique` 0, of a notice.
///
/// `error` is 0, a negative error number, or a notice's code.
pub(crate) fn out_header(payload_len: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_LEN] {
    let len =
        u32::try_from(OUT_HEADER_LEN + payload_len).expect("answers are bounded by max_write");
    let mut put = FieldWriter::new();
    put.u32(len);
    put.i32(error);
    put.u64(unique);
    put.as_slice().try_into().expect("4 + 4 + 8 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_taken_field_by_field() {
        let mut bytes = Vec::new();
        for word in [56u32, 15] {
            bytes.extend(word.to_le_bytes());
        }
        for long in [42u64, 7] {
            bytes.extend(long.to_le_bytes());
        }
        for word in [1000u32, 100, 4711, 0] {
            bytes.extend(word.to_le_bytes());
        }
        let header = InHeader::parse(&bytes).unwrap();
        assert_eq!((header.len, Opcode::new(header.opcode)), (56, Some(Opcode::Read)));
        let request = FuseRequest {
            id: FuseRequestId(42),
            inode: InodeId(7),
            uid: 1000,
            gid: 100,
            thread: 4711,
        };
        assert_eq!(header.request, request);
        assert_eq!(InHeader::parse(&bytes[..39]).unwrap_err().field, "total_extlen");
    }

    #[test]
    fn an_answers_header_counts_itself() {
        let header = out_header(8, -5, 42);
        assert_eq!(header[..4], 24u32.to_le_bytes());
        assert_eq!(header[4..8], (-5i32).to_le_bytes());
        assert_eq!(header[8..], 42u64.to_le_bytes());
    }

    #[test]
    fn unknown_numbers_are_no_opcodes() {
        for value in [0, 7, 19, 37, 39, 40, 48, 50, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::new(value), None, "{value}");
        }
        assert_eq!(Opcode::new(46), Some(Opcode::LSeek));
    }

    #[test]
    fn setxattr_is_short_without_its_extension() {
        assert_eq!(Opcode::SetXattr.fixed_len_with(true), 16);
        assert_eq!(Opcode::SetXattr.fixed_len_with(false), 8);
        assert_eq!(Opcode::Write.fixed_len_with(false), 40);
    }
}
