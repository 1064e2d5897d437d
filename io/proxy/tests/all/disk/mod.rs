//! A disk of the test's own: it serves one write at a time, and each takes as long as the
//! test said.
//!
//! ```text
//!   proxy ─ pwrite ─► kernel: waits in line ─► one thread: sleeps for the write's time
//! ```
//!
//! So a write's service time is that of all that the proxy had under way before it, on a
//! fast machine and on a slow one alike. It is a FUSE file system with two files, `small`
//! and `large`, that past the page cache forget what is written to them.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuse::{
    Attr, Attributes, Created, Entry, Errno, FileSystem, Handle, InodeId, NewFile, Open, OpenFlags,
    Opened, Options, Reply, Request, Session, Write, Written,
};

use crate::peer::{USER, root_here, skip};

/// How long writes to each file take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub small: Duration,
    pub large: Duration,
}

/// The disk, mounted until this is dropped.
#[derive(Debug)]
pub struct Disk {
    // Ended before its directory is removed.
    session: Option<Session>,
    dir: PathBuf,
}

impl Disk {
    /// `None`, said aloud, where nothing can be mounted.
    pub fn mount(name: &str, times: Times) -> Option<Disk> {
        if !root_here() {
            return None;
        }
        let dir = testkit::place(&format!("{name}-disk"));
        fs::create_dir_all(&dir).unwrap();
        // Whoever is killed while it waits for its own disk is freed by the kernel.
        let options = Options { threads: 1, request_timeout_s: 60, ..Options::default() };
        match Session::mount(&dir, Files(times), &options) {
            Ok(session) => Some(Disk { session: Some(session), dir }),
            Err(error) => {
                skip(&error.to_string());
                let _ = fs::remove_dir(&dir);
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = fs::remove_dir(&self.dir);
    }
}

struct Files(Times);

const SMALL: InodeId = InodeId(2);
const LARGE: InodeId = InodeId(3);
/// What is asked is always the same: the kernel may believe it.
const TTL: Duration = Duration::from_secs(3600);

fn attributes(inode: InodeId) -> Attributes {
    let (mode, size) = match inode {
        InodeId::ROOT => (0o040_755, 0),
        _ => (0o100_644, 1 << 20),
    };
    let (uid, gid) = (USER, USER);
    Attributes { number: inode.0, mode, size, links: 1, uid, gid, ..Attributes::default() }
}

impl FileSystem for Files {
    fn lookup(&self, _request: &Request, name: &CStr, reply: Reply<Entry>) {
        let inode = match name.to_bytes() {
            b"small" => SMALL,
            b"large" => LARGE,
            _ => return reply.error(Errno::NOENT),
        };
        let (generation, attributes) = (0, attributes(inode));
        reply.ok(&Entry { inode, generation, attributes, ttl: TTL, attributes_ttl: TTL });
    }

    fn getattr(&self, request: &Request, _handle: Option<Handle>, reply: Reply<Attr>) {
        reply.ok(&Attr { attributes: attributes(request.inode), ttl: TTL });
    }

    fn open(&self, _request: &Request, _open: Open, reply: Reply<Opened>) {
        let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        reply.ok(&Opened { flags, ..Opened::default() });
    }

    /// No file is added: the proxy's probe takes it for a directory that it may not change.
    fn tmpfile(&self, _request: &Request, _open: Open, _new: NewFile, reply: Reply<Created>) {
        reply.error(Errno::ACCESS);
    }

    fn write(&self, request: &Request, write: Write<'_>, reply: Reply<Written>) {
        let time = if request.inode == LARGE { self.0.large } else { self.0.small };
        if time > Duration::ZERO {
            // The thread is the disk, and is busy.
            std::thread::sleep(time);
        }
        reply.ok(&Written(write.data.len() as u32));
    }
}
