//! A file system that folds the case of names: no leases of names, and all else as elsewhere.
//!
//! The kernel of a test machine may have none, so it is a FUSE file system of the test's own: a directory
//! with one file, `File`.

use std::ffi::CStr;
use std::fs;
use std::time::Duration;

use fuse::{
    Attr, Attributes, DirEntry, EntryList, EntryListPlus, Errno, FileSystem, FuseRead, FuseRequest,
    FuseSession, Handle, InodeEntry, InodeId, Options, Reply,
};

use super::{ATTRIBUTES, NAMES};
use crate::peer::{Setup, USER, errno, root_here, skip};

/// Whether names fold.
struct OneFile(bool);

const FILE: InodeId = InodeId(2);
const NAME: &[u8] = b"File";
const TTL: Duration = Duration::from_secs(3600);

fn attributes(inode: InodeId) -> Attributes {
    let mode = if inode == InodeId::ROOT { 0o040_755 } else { 0o100_644 };
    let (uid, gid) = (USER, USER);
    Attributes { number: inode.0, mode, links: 1, uid, gid, ..Attributes::default() }
}

/// The file's entry, for an offset before it.
fn entry(offset: u64) -> Option<DirEntry<'static>> {
    let (number, mode) = (FILE.0, attributes(FILE).mode);
    (offset == 0).then_some(DirEntry { number, offset: 1, mode, name: NAME })
}

impl FileSystem for OneFile {
    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        let name = name.to_bytes();
        if name != NAME && !(self.0 && name.eq_ignore_ascii_case(NAME)) {
            return reply.error(Errno::NOENT);
        }
        let (generation, attributes) = (0, attributes(FILE));
        reply.ok(&InodeEntry {
            inode: FILE,
            generation,
            attributes,
            ttl: TTL,
            attributes_ttl: TTL,
        });
    }

    fn getattr(&self, request: &FuseRequest, _handle: Option<Handle>, reply: Reply<Attr>) {
        reply.ok(&Attr { attributes: attributes(request.inode), ttl: TTL });
    }

    fn readdir(&self, _request: &FuseRequest, read: FuseRead, reply: Reply<EntryList>) {
        reply.list(|out| {
            let _ = entry(read.offset).is_some_and(|entry| out.add(&entry));
            Ok(())
        });
    }

    fn readdirplus(&self, _request: &FuseRequest, read: FuseRead, reply: Reply<EntryListPlus>) {
        reply.list(|out| {
            let _ = entry(read.offset).is_some_and(|entry| out.add_name(&entry));
            Ok(())
        });
    }
}

#[test]
fn names_are_not_granted_where_the_file_system_folds_them() {
    if !root_here() {
        return;
    }
    for (folds, names) in [(true, 0), (false, NAMES)] {
        let dir = testkit::place(&format!("folding-{folds}"));
        fs::create_dir_all(&dir).unwrap();
        let options = Options { threads: 1, request_timeout_s: 60, ..Options::default() };
        let session = match FuseSession::mount(&dir, OneFile(folds), &options) {
            Ok(session) => session,
            Err(error) => return skip(&error.to_string()),
        };
        let tables =
            format!("[[export]]\nname = \"x\"\ndir = \"{}\"\nleases = \"read\"\n", dir.display());
        let setup = Setup::new("folding").top("lease_state = \"@/leases\"");
        let served = setup.tables(&tables).start();
        let mut client = served.client();
        client.join(1);
        for name in ["File", if folds { "fILE" } else { "File" }] {
            client.find(name).unwrap();
            assert_eq!(client.granted(), (names, ATTRIBUTES), "{name}, folds: {folds}");
        }
        assert_eq!(client.find("absent").unwrap_err(), errno::ENOENT);
        assert_eq!(client.granted(), (names, 0), "folds: {folds}");
        drop((client, served));
        drop(session);
        let _ = fs::remove_dir(&dir);
    }
}
