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
//!
//! What it was asked for is known in its order. A write that begins with [`HOLD`] keeps it busy
//! until the test lets it go, so that all that is sent meanwhile waits in the proxy.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fuse::{
    Attr, Attributes, Errno, FileSystem, FuseOpen, FuseRequest, FuseSession, FuseWrite, Handle,
    InodeEntry, InodeId, OpenFlags, OpenedFile, Options, Reply, WrittenBytes,
};

use crate::peer::{PATIENCE, USER, root_here, skip};

/// How long writes to each file take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub small: Duration,
    pub large: Duration,
}

/// Something that the disk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Opened the file `large`, or the other one.
    Open { large: bool },
    /// Wrote what begins with that byte.
    Write(u8),
}

/// The first byte of a write that keeps the disk busy until [`Disk::release`].
pub const HOLD: u8 = b'!';

/// The disk, mounted until this is dropped.
#[derive(Debug)]
pub struct Disk {
    // Ended before its directory is removed.
    session: Option<FuseSession>,
    dir: PathBuf,
    log: Arc<Log>,
}

/// What was done, and how many writes that hold the disk may end.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<(Vec<Done>, usize)>,
    released: Condvar,
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
        let log = Arc::<Log>::default();
        match FuseSession::mount(&dir, Files(times, log.clone()), &options) {
            Ok(session) => Some(Disk { session: Some(session), dir, log }),
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

    /// What it did since the last call, a write that holds it included.
    pub fn take_log(&self) -> Vec<Done> {
        std::mem::take(&mut self.log.state.lock().unwrap().0)
    }

    /// Whether it began a write that holds it since the log was taken.
    pub fn is_held(&self) -> bool {
        self.log.state.lock().unwrap().0.contains(&Done::Write(HOLD))
    }

    /// Lets one write that holds the disk end.
    pub fn release(&self) {
        self.log.state.lock().unwrap().1 += 1;
        self.log.released.notify_all();
    }
}

impl Log {
    fn note(&self, done: Done) {
        self.state.lock().unwrap().0.push(done);
    }

    /// Waits until this write may end; not for ever, should a test have failed meanwhile.
    fn hold(&self) {
        let state = self.state.lock().unwrap();
        let held = |state: &mut (Vec<Done>, usize)| state.1 == 0;
        let (mut state, _) = self.released.wait_timeout_while(state, PATIENCE, held).unwrap();
        state.1 = state.1.saturating_sub(1);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = fs::remove_dir(&self.dir);
    }
}

struct Files(Times, Arc<Log>);

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
    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        let inode = match name.to_bytes() {
            b"small" => SMALL,
            b"large" => LARGE,
            _ => return reply.error(Errno::NOENT),
        };
        let (generation, attributes) = (0, attributes(inode));
        reply.ok(&InodeEntry { inode, generation, attributes, ttl: TTL, attributes_ttl: TTL });
    }

    fn getattr(&self, request: &FuseRequest, _handle: Option<Handle>, reply: Reply<Attr>) {
        reply.ok(&Attr { attributes: attributes(request.inode), ttl: TTL });
    }

    fn open(&self, request: &FuseRequest, _open: FuseOpen, reply: Reply<OpenedFile>) {
        self.1.note(Done::Open { large: request.inode == LARGE });
        let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        reply.ok(&OpenedFile { flags, ..OpenedFile::default() });
    }

    fn write(&self, request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        let time = if request.inode == LARGE { self.0.large } else { self.0.small };
        let first = write.data.first().copied().unwrap_or_default();
        self.1.note(Done::Write(first));
        if first == HOLD {
            self.1.hold();
        }
        if time > Duration::ZERO {
            // The thread is the disk, and is busy.
            std::thread::sleep(time);
        }
        reply.ok(&WrittenBytes(write.data.len() as u32));
    }
}
