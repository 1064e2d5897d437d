//! Those whose blocking Tlock has not been granted, or whose Tlock came in the grace: no thread and
//! no slot is held.
//!
//!   refused ─► park ─► [by file, in order] ─► taken out to be tried ─┬─ granted: answered
//!                ▲          │                                       │
//!                │          └─ Tflush, Tversion, the end: cancelled  │
//!                └───────────────────── refused again ──────────────┘
//!
//! A waiter that is being tried is in no list and cannot be cancelled. A Tflush then waits, as for
//! any request that is being executed, and is seen when the waiter comes back here. Nothing in this
//! file calls the backend, so a cancellation never waits for it.
//!
//! Invariant: how many wait is counted for the connection, for the owner and over all,
//! from the first refusal to the answer, also while a waiter is being tried.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ninep::{LockStatus, Tag};
use rustix::io::Errno;

use super::{FidLocks, LockCall, LockedFileId, OwnerName, WantedRange};
use crate::connection::{Connection, ReplyTo};
use crate::trace::TraceDraft;

/// A Tlock whose reply is held.
pub(super) struct LockWaiter {
    pub(super) to: ReplyTo,
    pub(super) name: OwnerName,
    pub(super) wanted: WantedRange,
    /// It waits for the end of the grace alone, and is then tried once.
    pub(super) once: bool,
    /// The fid's: closing that fid ends the waiting.
    pub(super) through: Arc<FidLocks>,
    /// Draft of the trace entry, if requests are traced.
    record: Option<TraceDraft>,
    file: LockedFileId,
    /// Counts up, so that the first waiter is tried first.
    number: u64,
    _permits: [WaitPermit; 3],
}

/// A reply, or what stands for one, to a Tlock that was held.
pub(crate) struct LockReply {
    pub(crate) to: ReplyTo,
    pub(crate) outcome: LockOutcome,
    pub(crate) record: Option<TraceDraft>,
}

/// Result of the waiting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    Status(LockStatus),
    Failed(Errno),
    /// It was given up, with its session or by these flushes, which are to be answered;
    /// it is not.
    Flushed(Vec<Tag>),
}

/// One of a bounded number of places, free again when it is dropped.
pub(super) struct WaitPermit(Arc<AtomicUsize>);

/// All lock requests that wait, by file.
#[derive(Default)]
pub(super) struct LockWaiters {
    list: Mutex<WaiterList>,
    /// Number of waiters: read far more often than there are any.
    all: Arc<AtomicUsize>,
    next: AtomicU64,
}

#[derive(Default)]
struct WaiterList {
    waiters: BTreeMap<(LockedFileId, u64), LockWaiter>,
    /// The proxy is shutting down: requests may not wait any more.
    ended: bool,
}

impl WaitPermit {
    pub(super) fn acquire(of: &Arc<AtomicUsize>, max: usize) -> Option<WaitPermit> {
        let more = |n| (n < max).then_some(n + 1);
        of.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(WaitPermit(of.clone()))
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl LockWaiter {
    pub(super) fn answer(self, outcome: LockOutcome) -> LockReply {
        LockReply { to: self.to, outcome, record: self.record }
    }
}

impl LockWaiters {
    /// Lets a Tlock wait that was just refused or came in the grace, unless as many of its
    /// connection wait as may: then it is [`LockStatus::Blocked`]. `of_owner` counts those of its
    /// owner.
    pub(super) fn begin(
        &self,
        asked: &LockCall<'_>,
        of_owner: &Arc<AtomicUsize>,
    ) -> Option<LockReply> {
        let of_connection = &asked.to.path.connection.lock_waiters;
        let Some(place) = WaitPermit::acquire(of_connection, asked.waiters_max) else {
            let outcome = LockOutcome::Status(LockStatus::Blocked);
            return Some(LockReply { to: asked.to.clone(), outcome, record: None });
        };
        let count = |of| WaitPermit::acquire(of, usize::MAX).expect("there is no bound");
        self.park(LockWaiter {
            to: asked.to.clone(),
            name: asked.owner.name.clone(),
            wanted: asked.wanted,
            once: !asked.waits,
            through: asked.through.clone(),
            record: (asked.record)(),
            file: asked.owner.file,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            _permits: [place, count(&self.all), count(of_owner)],
        })
    }

    /// Lets a waiter wait, for the first time or again; `Some` if it may not.
    pub(super) fn park(&self, waiter: LockWaiter) -> Option<LockReply> {
        let connection = waiter.to.path.connection.clone();
        let tag = waiter.to.tag;
        // What cancels a waiter holds its session's lock: before it found none to cancel,
        // or after it finds this one.
        let mut session = connection.session.lock().expect("not poisoned");
        if session.epoch != waiter.to.path.epoch || connection.closed.load(Ordering::Acquire) {
            return Some(waiter.answer(LockOutcome::Flushed(Vec::new())));
        }
        if session.flushes.iter().any(|(old, _)| *old == tag) {
            session.free(tag);
            return Some(waiter.answer(LockOutcome::Flushed(session.take_flushes_of(&[tag]))));
        }
        let mut list = self.list();
        if list.ended {
            return Some(waiter.answer(LockOutcome::Status(LockStatus::Blocked)));
        }
        list.waiters.insert((waiter.file, waiter.number), waiter);
        None
    }

    /// Takes out the oldest waiter of a file after the one of this number, to be tried.
    pub(super) fn take_after(
        &self,
        file: LockedFileId,
        number: Option<u64>,
    ) -> Option<(u64, LockWaiter)> {
        let mut list = self.list();
        let from = number.map_or(0, |number| number + 1);
        let key = *list.waiters.range((file, from)..=(file, u64::MAX)).next()?.0;
        list.waiters.remove(&key).map(|waiter| (key.1, waiter))
    }

    /// Removes all waiters of a fid.
    pub(super) fn take_through(
        &self,
        file: LockedFileId,
        through: &Arc<FidLocks>,
    ) -> Vec<LockWaiter> {
        let mut list = self.list();
        let of_file = list.waiters.range((file, 0)..=(file, u64::MAX));
        let theirs = of_file.filter(|(_, waiter)| Arc::ptr_eq(&waiter.through, through));
        let keys: Vec<_> = theirs.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| list.waiters.remove(key)).collect()
    }

    /// Cancels the waiters of a connection that are `meant`: one that is flushed, or all when the
    /// connection is gone or starts a new session. The result is for a trace; no reply is due.
    pub(super) fn cancel(
        &self,
        connection: &Connection,
        meant: impl Fn(Tag) -> bool,
    ) -> Vec<LockReply> {
        if connection.lock_waiters.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut list = self.list();
        let is =
            |w: &LockWaiter| std::ptr::eq(&*w.to.path.connection, connection) && meant(w.to.tag);
        let theirs = list.waiters.iter().filter(|(_, waiter)| is(waiter));
        let keys: Vec<_> = theirs.map(|(key, _)| *key).collect();
        let gone = keys.iter().filter_map(|key| list.waiters.remove(key));
        gone.map(|waiter| waiter.answer(LockOutcome::Flushed(Vec::new()))).collect()
    }

    /// Ends all waiting for good; returns the replies.
    pub(super) fn end(&self) -> Vec<LockReply> {
        let mut list = self.list();
        list.ended = true;
        let all = std::mem::take(&mut list.waiters).into_values();
        all.map(|waiter| waiter.answer(LockOutcome::Status(LockStatus::Blocked))).collect()
    }

    /// Whether any lock request waits.
    pub(super) fn any(&self) -> bool {
        self.all.load(Ordering::SeqCst) > 0
    }

    /// Returns the files that have waiters.
    pub(super) fn files(&self) -> Vec<LockedFileId> {
        let mut files: Vec<_> = self.list().waiters.keys().map(|(file, _)| *file).collect();
        files.dedup();
        files
    }

    fn list(&self) -> MutexGuard<'_, WaiterList> {
        self.list.lock().expect("not poisoned")
    }
}
