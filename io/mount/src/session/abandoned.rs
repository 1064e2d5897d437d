//! Calls without a waiter that the proxy has not answered: they may yet be executed.
//!
//! ```text
//!   the caller is killed ─► Tflush ─┬─ answered in time: the call was cancelled, or is done
//!                                  └─ not: the process goes ─► Abandoned ─► answered: over
//!   its user's locks are given back ─► wait for those that were abandoned before
//! ```
//!
//! A process that gets a lock relies on it that the former holder is done. A local file system
//! finishes what a killed process has begun before it releases the process's locks, and so does
//! this mount: else a truncation of SQLite's journal by a process that is dead could meet the
//! journal of the next one.
//!
//! Which process made a call is not known for certain, so all of a user's count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::call::CallWaiter;
use super::lock;
use super::signals::CheckInterval;
use crate::write_behind::OnReady;

/// All of a mount.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// Number of calls and of their waiters, readable without the lock.
    count: AtomicUsize,
    state: Mutex<AbandonedState>,
    check_interval: CheckInterval,
}

#[derive(Default)]
struct AbandonedState {
    last: u64,
    /// User of each call, by number.
    calls: BTreeMap<u64, u32>,
    waiting: Vec<AbandonedLocks>,
}

/// A waiter for the end of a user's present calls.
struct AbandonedLocks {
    uid: u32,
    to: u64,
    waiter: Option<CallWaiter>,
    then: OnReady,
}

/// A call is abandoned as long as this is there.
#[derive(Debug)]
pub(crate) struct AbandonedCall {
    all: Arc<Abandoned>,
    number: u64,
}

impl Abandoned {
    /// Notes that this user's call has lost its waiter.
    pub(crate) fn begin(self: &Arc<Abandoned>, uid: u32) -> AbandonedCall {
        let mut state = lock(&self.state);
        state.last += 1;
        let number = state.last;
        state.calls.insert(number, uid);
        self.count.fetch_add(1, Ordering::SeqCst);
        AbandonedCall { all: self.clone(), number }
    }

    /// Keeps a waiter until a user's abandoned calls are over; returns the waiter if it need not
    /// wait.
    pub(crate) fn wait(
        &self,
        uid: u32,
        waiter: Option<CallWaiter>,
        then: OnReady,
    ) -> Option<OnReady> {
        if !self.any() {
            return Some(then);
        }
        let mut state = lock(&self.state);
        let held = AbandonedLocks { uid, to: state.last, waiter, then };
        if state.is_over(&held) {
            return Some(held.then);
        }
        state.waiting.push(held);
        self.count.fetch_add(1, Ordering::SeqCst);
        None
    }

    /// Whether a waiter may have to be checked before long.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Returns, once in a while, the waiters that need not wait any more and those that are killed,
    /// as `killed` says of a thread. Each must receive the result beside it.
    pub(crate) fn take_due(
        &self,
        now: Instant,
        killed: impl Fn(u32) -> bool,
    ) -> Vec<(OnReady, Result<(), fuse::Errno>)> {
        if !self.any() || !self.check_interval.is_due(now) {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        let (mut due, mut left) = (Vec::new(), Vec::new());
        for held in std::mem::take(&mut state.waiting) {
            let is_killed = || held.waiter.is_some_and(|waiter| killed(waiter.thread));
            match () {
                () if state.is_over(&held) => due.push((held.then, Ok(()))),
                () if is_killed() => due.push((held.then, Err(fuse::Errno::INTR))),
                () => left.push(held),
            }
        }
        state.waiting = left;
        self.count.fetch_sub(due.len(), Ordering::SeqCst);
        due
    }
}

impl AbandonedState {
    fn is_over(&self, held: &AbandonedLocks) -> bool {
        !self.calls.range(..=held.to).any(|(_, uid)| *uid == held.uid)
    }
}

impl Drop for AbandonedCall {
    fn drop(&mut self) {
        lock(&self.all.state).calls.remove(&self.number);
        self.all.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for AbandonedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} calls, {} wait)", self.calls.len(), self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse::{Errno, FuseRequestId};
    use std::time::Duration;

    type Told = Arc<Mutex<Vec<(u32, Result<(), Errno>)>>>;

    struct Bench {
        all: Arc<Abandoned>,
        told: Told,
        now: Instant,
    }

    impl Bench {
        /// Makes a thread of this number wait for a user's calls; false if it need not wait.
        fn waits(&self, thread: u32, uid: u32) -> bool {
            let told = self.told.clone();
            let then = Box::new(move |result| told.lock().unwrap().push((thread, result)));
            let waiter = Some(CallWaiter { request: FuseRequestId(thread.into()), thread });
            self.all.wait(uid, waiter, then).is_none()
        }

        /// Returns the results of waiters, once it is time to check again.
        fn told(&mut self, killed: impl Fn(u32) -> bool) -> Vec<(u32, Result<(), Errno>)> {
            self.now += Duration::from_secs(1);
            let due = self.all.take_due(self.now, killed);
            due.into_iter().for_each(|(then, result)| then(result));
            std::mem::take(&mut self.told.lock().unwrap())
        }
    }

    #[test]
    fn locks_wait_for_what_was_abandoned_of_their_user_before_and_for_nothing_else() {
        let (all, told) = Default::default();
        let mut bench = Bench { all, told, now: Instant::now() };
        assert!(!bench.waits(1, 7) && !bench.all.any());
        let (first, others) = (bench.all.begin(7), bench.all.begin(8));
        assert!(bench.waits(1, 7) && bench.waits(2, 7) && !bench.waits(3, 9));
        let later = bench.all.begin(7);
        assert_eq!(bench.told(|_| false), []);
        assert_eq!(bench.told(|thread| thread == 2), [(2, Err(Errno::INTR))]);
        drop(first);
        assert_eq!(bench.told(|_| false), [(1, Ok(()))], "neither another's nor a later one");
        drop((others, later));
        assert!(!bench.all.any());
    }
}
