//! Open files and directories: the kernel's handles, the session's fids, and the state to reopen
//! them at a proxy that has forgotten them.
//!
//! ```text
//!   reserve ─► Topen newfid ─► opened ─► … ─► close ─► Tclunk ─► release
//!      fid = the kernel's handle = place in the table; free again once the clunk is answered
//! ```
//!
//! Invariant: a fid that the proxy may know is taken in the table.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuse::{Errno, Handle, InodeId};
use ninep::{Fid, open};
use slab::Slab;

use crate::nodes::MountNode;
use crate::operations::OpenListing;
use crate::session::{SessionIdentity, lock};

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fid: Fid,
    pub(crate) node: Arc<MountNode>,
    /// Identity of the opener, which pays for the file's requests.
    pub(crate) payer: Arc<SessionIdentity>,
    /// Open flags of the protocol.
    pub(crate) flags: u32,
    /// A directory's entries that were read ahead.
    pub(crate) listing: Mutex<OpenListing>,
    stale: AtomicBool,
    /// Whether it was used for writing.
    written: AtomicBool,
    /// Error of an acknowledged write that failed; 0 without one.
    failed: AtomicI32,
    /// The span of a READ lease in which it was opened; 0 if it was not.
    read_span: AtomicU64,
}

/// The open files of the mount, by the kernel's handle.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    /// `None`: being opened or closed.
    table: Mutex<Slab<Option<Arc<OpenFile>>>>,
}

impl OpenFiles {
    /// Reserves a fid for a file to open.
    ///
    /// # Errors
    /// `ENFILE` if there are too many.
    pub(crate) fn reserve(&self) -> Result<Fid, Errno> {
        let mut table = lock(&self.table);
        if table.len() >= FILES_MAX {
            return Err(Errno::NFILE);
        }
        Ok(Fid(table.insert(None) as u32))
    }

    /// Notes that the file is open.
    pub(crate) fn opened(
        &self,
        fid: Fid,
        node: Arc<MountNode>,
        payer: Arc<SessionIdentity>,
        flags: u32,
    ) -> Arc<OpenFile> {
        let (listing, stale, written, failed, read_span) = Default::default();
        let file = OpenFile { fid, node, payer, flags, listing, stale, written, failed, read_span };
        let file = Arc::new(file);
        if file.writes() {
            file.node.writers.fetch_add(1, Ordering::SeqCst);
        }
        lock(&self.table)[fid.0 as usize] = Some(file.clone());
        file
    }

    /// Returns the file of a kernel's handle.
    ///
    /// # Errors
    /// `EBADF` if the handle is unknown, `ESTALE` if the file could not be reopened.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        let table = lock(&self.table);
        let file = table.get(handle.0 as usize).and_then(Option::as_ref).ok_or(Errno::BADF)?;
        match file.is_stale() {
            true => Err(Errno::STALE),
            false => Ok(file.clone()),
        }
    }

    /// Removes the kernel's handle. Its fid stays reserved until it is released.
    pub(crate) fn close(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        let file = lock(&self.table).get_mut(handle.0 as usize)?.take()?;
        if file.writes() {
            file.node.writers.fetch_sub(1, Ordering::SeqCst);
        }
        Some(file)
    }

    /// Notes that the proxy does not know the fid any more, or never did.
    pub(crate) fn release(&self, fid: Fid) {
        lock(&self.table).try_remove(fid.0 as usize);
    }

    /// Returns the open file of a fid.
    pub(crate) fn by_fid(&self, fid: Fid) -> Option<Arc<OpenFile>> {
        lock(&self.table).get(fid.0 as usize)?.clone()
    }

    /// Returns an open file of this inode.
    pub(crate) fn of_node(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        let table = lock(&self.table);
        let mut files = table.iter().filter_map(|(_, file)| file.as_ref());
        files.find(|file| file.node.id == inode && !file.is_stale()).cloned()
    }

    /// Notes that an acknowledged write to a file failed, for every opener that may have made it.
    pub(crate) fn fail(&self, inode: InodeId, error: Errno) {
        let writers = |file: &&Arc<OpenFile>| file.node.id == inode && file.writes();
        for file in lock(&self.table).iter().filter_map(|(_, file)| file.as_ref()).filter(writers) {
            file.failed.store(error.raw_os_error(), Ordering::SeqCst);
        }
    }

    /// Returns the number of files that programs have open.
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).iter().filter(|(_, file)| file.is_some()).count()
    }

    /// Returns the files that are open at the proxy of one session.
    pub(crate) fn all_at(&self, home: usize) -> Vec<Arc<OpenFile>> {
        let table = lock(&self.table);
        let files = table.iter().filter_map(|(_, file)| file.as_ref());
        files.filter(|file| file.payer.home == home).cloned().collect()
    }
}

impl OpenFile {
    /// Returns the kernel's handle.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.fid.0.into())
    }

    /// Whether the file is open for writing.
    pub(crate) fn writes(&self) -> bool {
        self.flags & open::ACCESS_MASK != open::RDONLY
    }

    /// Returns why an acknowledged write failed; reported once.
    ///
    /// # Errors
    /// The error of the proxy.
    pub(crate) fn take_failure(&self) -> Result<(), Errno> {
        match self.failed.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }

    /// Notes a write; from the page cache it may belong to any open file of the inode.
    pub(crate) fn wrote(&self, from_cache: bool) {
        match from_cache {
            true => self.node.written_back.store(true, Ordering::SeqCst),
            false => self.written.store(true, Ordering::SeqCst),
        }
    }

    /// Whether the file may have been written.
    pub(crate) fn has_written(&self) -> bool {
        let written_back = self.writes() && self.node.written_back.load(Ordering::SeqCst);
        written_back || self.written.load(Ordering::SeqCst)
    }

    /// Whether writes go to the file's end (O_APPEND).
    pub(crate) fn appends(&self) -> bool {
        self.flags & open::APPEND != 0
    }

    /// Returns the flags to reopen the file: without creating or truncating.
    pub(crate) fn reopen_flags(&self) -> u32 {
        self.flags & !(open::CREATE | open::EXCL | open::TRUNC)
    }

    /// Notes in which span of a READ lease it was opened.
    pub(crate) fn set_read_span(&self, span: u64) {
        self.read_span.store(span, Ordering::SeqCst);
    }

    /// The span of a READ lease in which it was opened; 0 if it was not.
    pub(crate) fn read_span(&self) -> u64 {
        self.read_span.load(Ordering::SeqCst)
    }

    /// Drops the entries that were read ahead.
    pub(crate) fn forget_listing(&self) {
        *lock(&self.listing) = OpenListing::default();
    }

    /// Notes that the file could not be reopened.
    pub(crate) fn set_stale(&self) {
        self.stale.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::SeqCst)
    }
}

/// Maximum number of open files: the proxy's maximum for one connection, with room to spare.
const FILES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;
    use ninep::Attributes;
    use std::time::Duration;

    fn opened(files: &OpenFiles) -> Arc<OpenFile> {
        let nodes = Nodes::new(b"root", Duration::ZERO);
        let node = nodes.lookup(b"file", &Attributes::default());
        let flags = open::WRONLY | open::CREATE | open::TRUNC | open::APPEND;
        files.opened(files.reserve().unwrap(), node, SessionIdentity::known(1, 1, 1), flags)
    }

    #[test]
    fn a_fid_is_free_again_only_when_the_proxy_has_forgotten_it() {
        let files = OpenFiles::default();
        let file = opened(&files);
        assert!(files.get(file.handle()).is_ok());
        files.close(file.handle()).unwrap();
        assert_eq!(files.get(file.handle()).err(), Some(Errno::BADF));
        assert_ne!(files.reserve().unwrap(), file.fid);
        files.release(file.fid);
        assert_eq!(files.reserve().unwrap(), file.fid);
    }

    #[test]
    fn what_cannot_be_opened_again_is_stale() {
        let files = OpenFiles::default();
        let file = opened(&files);
        assert_eq!(file.reopen_flags(), open::WRONLY | open::APPEND);
        assert_eq!(files.of_node(file.node.id).unwrap().fid, file.fid);
        file.set_stale();
        assert_eq!(files.get(file.handle()).err(), Some(Errno::STALE));
        assert!(files.of_node(file.node.id).is_none());
    }
}
