//! The small words of the protocol: tags, fids, qids, and the fixed numbers.
//!
//! Numbers are those of the Linux kernel's include/net/9p/9p.h, which is what
//! every 9P2000.L client speaks.

use std::fmt;

/// The tag of one request in flight on a connection; its reply carries the same tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

/// A client's number for a file, directory or attribute at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fid(pub u32);

/// A file as the server identifies it: its kind, a version for caches, and a number that is unique
/// in the whole export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qid {
    /// [`QTDIR`], [`QTSYMLINK`] or [`QTFILE`].
    pub kind: u8,
    /// Changes when the file's data does; 0 means: do not cache.
    pub version: u32,
    /// Unique per file over the whole export.
    pub path: u64,
}

impl Qid {
    /// Bytes of a qid on the wire: kind\[1\] version\[4\] path\[8\].
    pub const ENCODED_LEN: usize = 13;
}

/// The tag that only a Tversion has.
pub const NOTAG: Tag = Tag(0xffff);
/// "No fid": the `afid` of an attach without authentication.
pub const NOFID: Fid = Fid(u32::MAX);
/// "No number": the `n_uname` of an attach that gives its user by name.
pub const NONUNAME: u32 = u32::MAX;
/// The most names in one walk.
pub const WALK_NAMES_MAX: usize = 16;
/// Bytes before a message's body: size\[4\] type\[1\] tag\[2\].
pub const HEADER_LEN: usize = 7;
/// Bytes that v9fs keeps free of payload in a read or a write, whatever the exact
/// headers need (11 and 23): payload = msize − 24.
pub const IO_HEADER: u32 = 24;
/// The one version spoken.
pub const VERSION: &[u8] = b"9P2000.L";
/// The answer to an offer that is not [`VERSION`]; the session does not begin.
pub const VERSION_UNKNOWN: &[u8] = b"unknown";
/// The largest message in bytes that a server agrees to.
pub const MSIZE_MAX: u32 = 4 << 20;
/// The smallest message size in bytes that a server agrees to; v9fs accepts no less either. It
/// holds every reply except that to a link target above 4087 bytes.
pub const MSIZE_MIN: u32 = 4096;

/// The kind of a qid that is a directory.
pub const QTDIR: u8 = 0x80;
/// The kind of a qid that is a symbolic link.
pub const QTSYMLINK: u8 = 0x02;
/// The kind of a qid that is anything else.
pub const QTFILE: u8 = 0x00;

/// Flag of Tunlinkat: remove a directory (`AT_REMOVEDIR`).
pub const REMOVE_DIR: u32 = 0x200;
/// Flag of Txattrcreate: fail with EEXIST if the attribute exists.
pub const XATTR_CREATE: u32 = 1;
/// Flag of Txattrcreate: fail with ENODATA if the attribute does not exist.
pub const XATTR_REPLACE: u32 = 2;

/// The version in the reply to a client's offer: [`VERSION`] to it and to any dialect of it
/// (`9P2000.L.something`), [`VERSION_UNKNOWN`] to all else.
///
/// Several Go clients offer a dialect first and accept the base version as well; servers that
/// compare the whole string lose them.
pub fn answer_version(offered: &[u8]) -> &'static [u8] {
    match offered.strip_prefix(VERSION) {
        Some([]) | Some([b'.', ..]) => VERSION,
        _ => VERSION_UNKNOWN,
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_is_answered_with_the_plain_version() {
        assert_eq!(answer_version(b"9P2000.L"), VERSION);
        assert_eq!(answer_version(b"9P2000.L.Google.13"), VERSION);
        assert_eq!(answer_version(b"9P2000.L."), VERSION);
    }

    #[test]
    fn other_versions_are_unknown() {
        for offered in [&b""[..], b"9P2000", b"9P2000.u", b"9P2000.Lx", b"9p2000.l", b"unknown"] {
            assert_eq!(answer_version(offered), VERSION_UNKNOWN);
        }
    }
}
