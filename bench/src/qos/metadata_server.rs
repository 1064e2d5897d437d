//! A metadata server for the bed: a FUSE directory in which a getattr takes 4 ms, on a fast machine
//! and on a slow one alike.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fuse::{
    Attr, Attributes, Errno, FileSystem, FuseRequest, FuseSession, Handle, InodeEntry, InodeId,
    Options, Reply,
};

use super::bed::QosTestBed;

/// A directory of files whose attributes take their time, mounted until this is dropped.
pub(super) struct MetadataServer {
    // Ended before its directory is removed.
    session: Option<FuseSession>,
    dir: PathBuf,
}

impl MetadataServer {
    /// Mounts it as `name` in the bed's directory. As many getattrs as `threads` go at a time.
    pub(super) fn mount(
        bed: &QosTestBed,
        name: &str,
        threads: usize,
    ) -> anyhow::Result<MetadataServer> {
        let dir = bed.dir().join(name);
        std::fs::create_dir(&dir).context("cannot make a directory")?;
        // Whoever is killed while it waits for its own file system is freed by the kernel.
        let options = Options { threads, request_timeout_s: 60, ..Options::default() };
        let session = FuseSession::mount(&dir, MetadataNames, &options)?;
        Ok(MetadataServer { session: Some(session), dir })
    }

    /// Returns the path at which it is mounted.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// A directory with the files f0, f1, ….
struct MetadataNames;

/// The number of its files.
pub(super) const FILES: u64 = 64;
/// What one getattr of a file takes.
const OPERATION: Duration = Duration::from_millis(4);
/// Names never change; attributes are asked for each time.
const NAME_TTL: Duration = Duration::from_secs(3600);

fn attributes(inode: InodeId) -> Attributes {
    let mode = if inode == InodeId::ROOT { 0o040_755 } else { 0o100_644 };
    Attributes { number: inode.0, mode, size: 1, links: 1, ..Attributes::default() }
}

impl FileSystem for MetadataNames {
    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        let number = name.to_str().ok().and_then(|name| name.strip_prefix('f')?.parse().ok());
        let Some(number) = number.filter(|number: &u64| *number < FILES) else {
            return reply.error(Errno::NOENT);
        };
        let (inode, generation) = (InodeId(InodeId::ROOT.0 + 1 + number), 0);
        let (attributes, attributes_ttl) = (attributes(inode), Duration::ZERO);
        reply.ok(&InodeEntry { inode, generation, attributes, ttl: NAME_TTL, attributes_ttl });
    }

    fn getattr(&self, request: &FuseRequest, _handle: Option<Handle>, reply: Reply<Attr>) {
        let is_file = request.inode != InodeId::ROOT;
        if is_file {
            // The thread is the server, and is busy.
            std::thread::sleep(OPERATION);
        }
        let ttl = if is_file { Duration::ZERO } else { NAME_TTL };
        reply.ok(&Attr { attributes: attributes(request.inode), ttl });
    }
}
