//! Pool of threads: a leader, followers and helpers.
//!
//! ```text
//!   leader ── reads sockets, executes what is chosen, answers ──┐
//!     │ about to make a call that may wait: says so             │ returned in time: goes on leading
//!     ▼                                                         │
//!   standby ── looks now and then ── call older than `promote_after`? ─yes─► leads; the old leader helps on
//!   helpers ── execute what is chosen until nothing is
//! ```
//!
//! In the plain case one thread does everything and nothing is handed over: waking a thread on
//! another processor costs more than most requests. The standby thread checks only while calls that
//! may wait are being made, else it sleeps; so an idle proxy has no wake-ups.
//!
//! Invariant: at most one thread leads. The leader is one atomic word, changed by compare-and-swap,
//! so a leader that returns late finds out that it no longer is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use model::{Nanos, Time};

use crate::credentials;

/// The threads of a proxy and their roles.
pub(crate) struct ThreadPool {
    /// POLLING, VACANT or, in a call, the time of its start.
    word: AtomicU64,
    roster: Mutex<PoolState>,
    /// Waker of the standby thread.
    watch: Condvar,
    /// Waker of idle threads.
    pool: Condvar,
    /// Whether the standby thread sleeps until it is woken, for calls are rare.
    dozing: AtomicBool,
    /// Number of calls that may wait, counted while the standby thread watches.
    calls: AtomicU64,
    promote_after: Nanos,
    threads_max: usize,
}

#[derive(Default)]
struct PoolState {
    threads: usize,
    idle: usize,
    standby: bool,
    /// Number of idle threads that were woken to help and have not begun yet.
    called: usize,
    stop: bool,
}

/// Role of a thread at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    Lead,
    Help,
    Stop,
}

/// A leader's claim that it is in a call; see [`ThreadPool::begin_call`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct BlockingCall(u64);

/// No thread leads or is in a call: the leader polls or computes.
const POLLING: u64 = 0;
/// The leader is gone: the next thread that checks takes over at once.
const VACANT: u64 = 1;
/// Interval of the standby thread's checks while calls are made.
const STANDBY_CHECK_INTERVAL: Duration = Duration::from_micros(1000);
/// Number of checks without a call before it sleeps.
const PATIENCE: u32 = 10;

impl ThreadPool {
    pub(crate) fn new(promote_after: Nanos, threads_max: usize) -> ThreadPool {
        ThreadPool {
            word: AtomicU64::new(VACANT),
            roster: Mutex::default(),
            watch: Condvar::new(),
            pool: Condvar::new(),
            dozing: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            promote_after,
            threads_max: threads_max.max(2),
        }
    }

    /// A thread with nothing to do waits here for a role. `now` reads the clock.
    pub(crate) fn next_role(&self, now: impl Fn() -> Time) -> ThreadRole {
        let mut roster = self.roster.lock().expect("not poisoned");
        loop {
            if roster.stop {
                return ThreadRole::Stop;
            }
            if !roster.standby {
                roster.standby = true;
                drop(roster);
                let role = self.run_standby(&now);
                roster = self.roster.lock().expect("not poisoned");
                roster.standby = false;
                // Another idle thread stands by from now on.
                self.pool.notify_one();
                if role == ThreadRole::Lead || roster.stop {
                    return role;
                }
                continue;
            }
            if roster.called > 0 {
                roster.called -= 1;
                return ThreadRole::Help;
            }
            roster.idle += 1;
            roster = self.pool.wait(roster).expect("not poisoned");
            roster.idle -= 1;
        }
    }

    /// Notes that the leader is about to make a call that may wait.
    pub(crate) fn begin_call(&self, now: Time) -> BlockingCall {
        // 0 and 1 have a meaning of their own.
        let word = now.as_nanos().max(2);
        self.word.store(word, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.dozing.load(Ordering::SeqCst) {
            self.wake_standby();
        }
        BlockingCall(word)
    }

    /// Notes that the call has returned: `true` if the thread still leads.
    pub(crate) fn end_call(&self, call: BlockingCall) -> bool {
        self.word.compare_exchange(call.0, POLLING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Gives up the lead before a long wait.
    pub(crate) fn resign(&self) {
        self.word.store(VACANT, Ordering::SeqCst);
        self.wake_standby();
    }

    /// Wakes one idle thread to help, if there is one. Returns whether a new thread should be
    /// started instead, because no thread is idle and there may be more.
    pub(crate) fn call_help(&self) -> bool {
        let mut roster = self.roster.lock().expect("not poisoned");
        if roster.idle > roster.called {
            roster.called += 1;
            self.pool.notify_one();
            return false;
        }
        self.may_grow(&mut roster)
    }

    /// Whether no thread reads the sockets and none is about to: the lead is vacant or its call is
    /// late, and every other thread is busy. Then a thread that ends a call takes over before it
    /// does more.
    pub(crate) fn lacks_leader(&self, now: impl Fn() -> Time) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        let is_late = || now().since(Time::from_nanos(word)) >= self.promote_after;
        let lacks = word == VACANT || (word != POLLING && is_late());
        lacks && !self.roster.lock().expect("not poisoned").standby
    }

    /// Whether a new thread should be started because there is no standby thread.
    pub(crate) fn lacks_standby(&self) -> bool {
        let mut roster = self.roster.lock().expect("not poisoned");
        !roster.standby && roster.idle == 0 && self.may_grow(&mut roster)
    }

    /// Counts a thread in before it is started.
    pub(crate) fn count_in(&self) {
        self.roster.lock().expect("not poisoned").threads += 1;
    }

    pub(crate) fn threads(&self) -> usize {
        self.roster.lock().expect("not poisoned").threads
    }

    /// Makes every thread end.
    pub(crate) fn stop(&self) {
        self.roster.lock().expect("not poisoned").stop = true;
        self.watch.notify_all();
        self.pool.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.roster.lock().expect("not poisoned").stop
    }

    fn may_grow(&self, roster: &mut PoolState) -> bool {
        let may = roster.threads < self.threads_max && !roster.stop;
        roster.threads += usize::from(may);
        may
    }

    /// Watches the leader's calls; returns when this thread leads or all stop.
    fn run_standby(&self, now: &impl Fn() -> Time) -> ThreadRole {
        let mut quiet = 0;
        let mut seen = self.calls.load(Ordering::Relaxed);
        loop {
            let word = self.word.load(Ordering::SeqCst);
            let age = now().since(Time::from_nanos(word));
            if word != POLLING && (word == VACANT || age >= self.promote_after) {
                if self
                    .word
                    .compare_exchange(word, POLLING, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
                {
                    return ThreadRole::Lead;
                }
                continue;
            }
            let calls = self.calls.load(Ordering::Relaxed);
            quiet = if calls == seen && word == POLLING { quiet + 1 } else { 0 };
            seen = calls;
            let roster = self.roster.lock().expect("not poisoned");
            if roster.stop {
                return ThreadRole::Stop;
            }
            if quiet < PATIENCE {
                drop(
                    self.watch.wait_timeout(roster, STANDBY_CHECK_INTERVAL).expect("not poisoned"),
                );
                continue;
            }
            self.dozing.store(true, Ordering::SeqCst);
            if self.word.load(Ordering::SeqCst) == POLLING {
                drop(self.watch.wait(roster).expect("not poisoned"));
            }
            self.dozing.store(false, Ordering::SeqCst);
            quiet = 0;
        }
    }

    /// Wakes the standby thread. The lock orders this after its decision to sleep.
    fn wake_standby(&self) {
        drop(self.roster.lock().expect("not poisoned"));
        self.watch.notify_one();
    }
}

/// Starts a thread of the pool, which [`ThreadPool::count_in`] or a wake-up for help has counted.
pub(crate) fn start_thread(
    number: usize,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let name = format!("sluice-{number}");
    let whole = move || {
        // The thread that starts it may be acting for a user.
        credentials::begin_thread().expect("a thread may become what its process is");
        body();
    };
    // Half a crew would hold its locks and slots for ever.
    let whole = api::critical(whole);
    std::thread::Builder::new().name(name).stack_size(512 << 10).spawn(whole).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn crew() -> Arc<ThreadPool> {
        Arc::new(ThreadPool::new(Nanos::from_micros(200), 8))
    }

    #[test]
    fn a_call_that_returns_in_time_leaves_the_leader_in_place() {
        let crew = crew();
        assert_eq!(crew.next_role(|| Time::from_nanos(10)), ThreadRole::Lead);
        let call = crew.begin_call(Time::from_nanos(1_000));
        assert!(crew.end_call(call));
    }

    #[test]
    fn a_late_leader_learns_that_another_leads() {
        let crew = crew();
        assert_eq!(crew.next_role(|| Time::from_nanos(10)), ThreadRole::Lead);
        let call = crew.begin_call(Time::from_nanos(1_000));
        let late = Time::from_nanos(1_000) + Nanos::from_micros(200);
        assert_eq!(crew.next_role(move || late), ThreadRole::Lead);
        assert!(!crew.end_call(call));
    }

    #[test]
    fn the_first_helper_that_returns_leads_where_no_thread_stands_by() {
        let crew = crew();
        let at = |ns: u64| move || Time::from_nanos(ns);
        assert_eq!(crew.next_role(at(10)), ThreadRole::Lead);
        assert!(!crew.lacks_leader(at(10)), "it polls");
        let _call = crew.begin_call(Time::from_nanos(1_000));
        assert!(!crew.lacks_leader(at(1_000)), "it may return in time");
        assert!(crew.lacks_leader(at(1_000 + 200_000)));
        crew.resign();
        assert!(crew.lacks_leader(at(1_000)));
        assert_eq!(crew.next_role(at(1_000)), ThreadRole::Lead);
        assert!(!crew.lacks_leader(at(1_000)));
    }

    #[test]
    fn a_sleeping_standby_is_roused_by_a_call() {
        let crew = crew();
        assert_eq!(crew.next_role(|| Time::from_nanos(10)), ThreadRole::Lead);
        let standby = {
            let crew = crew.clone();
            std::thread::spawn(move || crew.next_role(|| Time::MAX))
        };
        while !crew.dozing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let call = crew.begin_call(Time::from_nanos(1_000));
        assert_eq!(standby.join().unwrap(), ThreadRole::Lead);
        assert!(!crew.end_call(call));
    }
}
