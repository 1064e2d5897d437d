//! Which writes are durable at the peer: only what was fsynced is.
//!
//! ```text
//!   write ─► its number ─► the file is to be fsynced ─┬─ Tfsync of it by a program ─► durable
//!                                                     ├─ Tcommit: each of them
//!                                                     └─ too many of them: the oldest
//! ```
//!
//! A file that is closed is opened again for that. One that is gone by then has nothing to
//! make durable.

use std::sync::{Arc, Mutex, Weak};

use fuse::Errno;
use ninep::{Reply, Request, open};
use rustc_hash::FxHashMap;
use session::server::CommitTracker;

use super::files::UpstreamFile;
use super::life::{UpstreamCaller, UpstreamOpened, UpstreamSession};
use super::peer::{UpstreamError, UpstreamOp};
use crate::session::lock;

/// The writes of a life that may not be durable.
#[derive(Debug, Default)]
pub(super) struct DurableWrites {
    state: Mutex<DurableState>,
}

#[derive(Debug, Default)]
struct DurableState {
    commits: CommitTracker,
    /// By serial: those that have such writes.
    written: FxHashMap<u64, WrittenExtent>,
}

#[derive(Clone, Debug)]
struct WrittenExtent {
    file: Arc<UpstreamFile>,
    caller: UpstreamCaller,
    opened: Weak<UpstreamOpened>,
}

impl DurableWrites {
    /// Writes up to this number are durable.
    pub(super) fn committed(&self) -> u64 {
        lock(&self.state).commits.committed()
    }

    fn oldest(&self) -> Option<WrittenExtent> {
        let state = lock(&self.state);
        state.commits.oldest().next().and_then(|serial| state.written.get(&serial)).cloned()
    }

    fn durable(&self, serial: u64, mark: u64) {
        let mut state = lock(&self.state);
        state.commits.durable(serial, mark);
        if !state.commits.oldest().any(|dirty| dirty == serial) {
            state.written.remove(&serial);
        }
    }
}

impl UpstreamSession {
    /// A write was executed: its number. Where too many files were written, the oldest is
    /// made durable first.
    pub(super) fn written(
        &self,
        job: &UpstreamOp,
        opened: &Arc<UpstreamOpened>,
    ) -> Result<u64, UpstreamError> {
        let (number, too_many) = {
            let mut state = lock(&self.durable.state);
            let UpstreamOpened { file, caller: who, .. } = &**opened;
            let written =
                WrittenExtent { file: file.clone(), caller: *who, opened: Arc::downgrade(opened) };
            state.written.insert(file.serial, written);
            let number = state.commits.written(file.serial);
            (number, state.commits.files() > FILES_MAX)
        };
        if too_many && let Some(oldest) = self.durable.oldest() {
            let synced = self.sync_written(job, &oldest);
            // What is wrong with another file is not this write's to say.
            if synced == Err(UpstreamError::Disconnected) {
                return Err(UpstreamError::Disconnected);
            }
        }
        Ok(number)
    }

    /// Makes what was written to a file durable, by a program's wish.
    pub(super) fn fsync(
        &self,
        job: &UpstreamOp,
        opened: &UpstreamOpened,
        datasync: u32,
    ) -> Result<(), UpstreamError> {
        let mark = lock(&self.durable.state).commits.mark();
        let request = Request::Fsync { fid: opened.fid.fid, datasync };
        self.peer.call(job, request, |reply| (reply == Reply::Fsync).then_some(()))?;
        self.durable.durable(opened.file.serial, mark);
        Ok(())
    }

    /// Makes everything durable that was written so far.
    ///
    /// # Errors
    /// The first error of the upstream server for a file; the others are made durable all the same.
    pub(super) fn commit(&self, job: &UpstreamOp) -> Result<(), UpstreamError> {
        let all: Vec<WrittenExtent> = {
            let state = lock(&self.durable.state);
            let oldest = state.commits.oldest();
            oldest.filter_map(|serial| state.written.get(&serial)).cloned().collect()
        };
        let mut first = Ok(());
        for written in &all {
            match self.sync_written(job, written) {
                fail @ Err(UpstreamError::Disconnected | UpstreamError::Errno(Errno::INTR)) => {
                    return fail;
                }
                synced => first = first.and(synced),
            }
        }
        first
    }

    /// Makes the writes to a file durable. If the server cannot, retrying does not help: the session
    /// must not keep those writes for ever, nor this the file.
    fn sync_written(&self, job: &UpstreamOp, written: &WrittenExtent) -> Result<(), UpstreamError> {
        let WrittenExtent { file, caller: who, opened } = written;
        let mark = lock(&self.durable.state).commits.mark();
        let opened = match opened.upgrade() {
            Some(opened) => Ok(opened),
            None => match self.open_once(job, file, *who, open::RDONLY) {
                // A user that may write it need not be allowed to read it.
                Err(UpstreamError::Errno(Errno::ACCESS)) => {
                    self.open_once(job, file, *who, open::WRONLY)
                }
                opened => opened,
            },
        };
        let synced = match opened.and_then(|opened| self.fsync(job, &opened, 0)) {
            fail @ Err(UpstreamError::Disconnected | UpstreamError::Errno(Errno::INTR)) => {
                return fail;
            }
            Ok(()) | Err(UpstreamError::Errno(Errno::STALE)) => Ok(()),
            Err(fail) => {
                tracing::warn!(file = file.serial, ?fail, "the server cannot make writes durable");
                Err(fail)
            }
        };
        self.durable.durable(file.serial, mark);
        synced
    }
}

/// Files with writes that may not be durable: a bound of what is remembered of them.
const FILES_MAX: usize = 4096;
