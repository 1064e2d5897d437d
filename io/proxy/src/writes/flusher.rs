//! The list of dirty extents as threads share it, and the one thread that finishes
//! what no later write pushes out.
//!
//! Without it an idle class would hold its last files open for ever, and with them
//! the space of those that have been deleted.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use model::{Bytes, Nanos, Time};

#[cfg(test)]
use super::dirty::DirtyAccount;
use super::dirty::{DirtyPiece, DirtyTracker, DirtyWrite, SyncFile, WritebackWork};
use super::sync_piece;
use crate::sys::SyncRange;

/// Dirty extents of one target behind their lock. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct FlusherQueue {
    shared: Arc<FlusherState>,
}

#[derive(Debug)]
struct FlusherState {
    dirty: Mutex<DirtyTracker>,
    /// Signalled when the first extent is listed after none, and at the end.
    wake: Condvar,
    ended: AtomicBool,
    origin: Instant,
}

/// How long an extent stays listed before it is finished without being pushed out.
const AGE_MAX: Nanos = Nanos::from_secs(1);

impl FlusherQueue {
    pub(super) fn start(budget: Bytes) -> io::Result<FlusherQueue> {
        let shared = Arc::new(FlusherState {
            dirty: Mutex::new(DirtyTracker::new(budget)),
            wake: Condvar::new(),
            ended: AtomicBool::new(false),
            origin: Instant::now(),
        });
        let sweeper = shared.clone();
        let run = api::critical(move || sweeper.run());
        std::thread::Builder::new().name("sluice-sweep".into()).spawn(run)?;
        Ok(FlusherQueue { shared })
    }

    pub(super) fn set_budget(&self, budget: Bytes) {
        self.shared.lock().set_budget(budget);
    }

    pub(super) fn add(&self, written: DirtyWrite) -> WritebackWork {
        let mut dirty = self.shared.lock();
        if dirty.is_empty() {
            self.shared.wake.notify_one();
        }
        dirty.add(written, self.shared.now())
    }

    pub(super) fn seal(&self, file: &SyncFile) -> u64 {
        self.shared.lock().seal(file)
    }

    pub(super) fn synced(&self, file: &SyncFile, seal: u64) {
        self.shared.lock().synced(file, seal);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self, account: DirtyAccount) -> Bytes {
        self.shared.lock().bytes(account)
    }

    /// Finishes every extent that has been listed for `age` or longer.
    #[cfg(test)]
    pub(super) fn sweep(&self, age: Nanos) {
        finish(&self.shared.take_older(age));
    }
}

impl Drop for FlusherQueue {
    fn drop(&mut self) {
        // Under the lock, or the thread could miss it between its look and its wait. It
        // is not joined: it may stand in a backend that does not answer.
        let _dirty = self.shared.lock();
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
    }
}

impl FlusherState {
    fn run(&self) {
        while self.wait() {
            finish(&self.take_older(AGE_MAX));
        }
    }

    /// Waits until something has been listed for a while; false at the end.
    fn wait(&self) -> bool {
        let ended = || self.ended.load(Ordering::Relaxed);
        let idle = |dirty: &mut DirtyTracker| dirty.is_empty() && !ended();
        let poisoned = "no call on the list of dirty extents panics";
        let dirty = self.wake.wait_while(self.lock(), idle).expect(poisoned);
        let age = AGE_MAX.to_duration();
        let rested = self.wake.wait_timeout_while(dirty, age, |_| !ended()).expect(poisoned);
        drop(rested);
        !ended()
    }

    fn take_older(&self, age: Nanos) -> Vec<DirtyPiece> {
        let mut dirty = self.lock();
        dirty.take_older(age, self.now())
    }

    fn lock(&self) -> MutexGuard<'_, DirtyTracker> {
        self.dirty.lock().expect("no call on the list of dirty extents panics")
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

fn finish(pieces: &[DirtyPiece]) {
    for piece in pieces {
        if let Err(error) = sync_piece(piece, SyncRange::Finish) {
            tracing::debug!(%error, start = piece.start, end = piece.end, "write-back failed");
        }
    }
}
