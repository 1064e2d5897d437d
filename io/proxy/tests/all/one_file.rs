//! A directory of one file, served by the test over FUSE: what its reads return, and when, is the
//! test's.

use std::ffi::CStr;
use std::time::Duration;

use fuse::{
    Attr, Attributes, DataReply, Errno, FileSystem, FuseOpen, FuseRead, FuseRequest, FuseSession,
    Handle, InodeEntry, InodeId, OpenFlags, OpenedFile, Options, Reply,
};
use testkit::TestFolder;

use crate::peer::{USER, root_here, skip};

const FILE: InodeId = InodeId(2);
pub(crate) const LEN: u64 = 16 << 20;
/// What is asked is always the same: the kernel may believe it.
const TTL: Duration = Duration::from_secs(3600);

/// The file `file`, opened with these flags, whose reads are handed on.
struct OneFile<R> {
    flags: OpenFlags,
    read: R,
}

/// Serves a directory with one file; `None`, said aloud, where nothing can be mounted.
pub(crate) fn serve(
    folder: &TestFolder,
    flags: OpenFlags,
    read: impl Fn(FuseRead, Reply<DataReply>) + Send + Sync + 'static,
) -> Option<FuseSession> {
    if !root_here() {
        return None;
    }
    let options = Options { request_timeout_s: 60, ..Options::default() };
    let session = FuseSession::mount(folder.path(), OneFile { flags, read }, &options);
    session.inspect_err(|error| skip(&error.to_string())).ok()
}

impl<R: Fn(FuseRead, Reply<DataReply>) + Send + Sync + 'static> FileSystem for OneFile<R> {
    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        if name.to_bytes() != b"file" {
            return reply.error(Errno::NOENT);
        }
        let (generation, attributes) = (0, attributes(FILE));
        let entry =
            InodeEntry { inode: FILE, generation, attributes, ttl: TTL, attributes_ttl: TTL };
        reply.ok(&entry);
    }

    fn getattr(&self, request: &FuseRequest, _handle: Option<Handle>, reply: Reply<Attr>) {
        reply.ok(&Attr { attributes: attributes(request.inode), ttl: TTL });
    }

    fn open(&self, _request: &FuseRequest, _open: FuseOpen, reply: Reply<OpenedFile>) {
        reply.ok(&OpenedFile { flags: self.flags, ..OpenedFile::default() });
    }

    fn read(&self, _request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        (self.read)(read, reply);
    }
}

fn attributes(inode: InodeId) -> Attributes {
    let (mode, size) = match inode {
        InodeId::ROOT => (0o040_755, 0),
        _ => (0o100_644, LEN),
    };
    let (uid, gid) = (USER, USER);
    Attributes { number: inode.0, mode, size, links: 1, uid, gid, ..Attributes::default() }
}
