//! Signals of processes that wait: which of them end a call, and which requests were signalled.
//!
//! ```text
//!   INTERRUPT ─► a call: is its thread being killed? ─┬─ yes: it ends
//!                │                                    └─ no: PendingSignals, checked again
//!                └─ no call yet ─► EarlyInterrupts, until there is one
//!   what waits for no call, but for others' ─► WaitingCalls: its process, killed, does not wait for ever
//! ```

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fuse::{Errno, FuseRequestId, Reply};
use rustc_hash::FxHashMap;

use super::lock;

/// Whether a signal is ending a thread: SIGKILL is on its way to it, which any signal that ends
/// a process becomes; or it has no memory any more, closes its files, and what ended it was
/// never taken. (Not read in /proc/TID/stat: that waits while the thread is in execve, and
/// execve closes files.)
pub(super) fn is_being_killed(thread: u32) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return false;
    };
    let set = |name: &str| {
        let set = status.lines().find_map(|line| line.strip_prefix(name));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    let own = set("SigPnd:");
    if own & SIGKILL != 0 {
        return true;
    }
    let exits = !status.contains("\nVmSize:");
    let harmless = set("SigBlk:") | set("SigIgn:") | set("SigCgt:");
    exits && (own | set("ShdPnd:")) & !harmless != 0
}

/// Time of the last check of waiters: they are checked once in a while.
#[derive(Debug, Default)]
pub(crate) struct CheckInterval(Mutex<Option<Instant>>);

impl CheckInterval {
    /// Whether it is time again; if so the while begins.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut last = lock(&self.0);
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= SIGNALS_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Requests of processes that got a signal which did not end them.
#[derive(Debug, Default)]
pub(super) struct PendingSignals {
    count: AtomicUsize,
    requests: Mutex<Vec<FuseRequestId>>,
    check_interval: CheckInterval,
}

impl PendingSignals {
    pub(super) fn put(&self, request: FuseRequestId) {
        let mut requests = lock(&self.requests);
        if !requests.contains(&request) {
            requests.push(request);
        }
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    /// Whether a waiter must be checked before long.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Takes all pending signals, once in a while.
    pub(super) fn take_due(&self, now: Instant) -> Vec<FuseRequestId> {
        if !self.any() || !self.check_interval.is_due(now) {
            return Vec::new();
        }
        let mut requests = lock(&self.requests);
        self.count.store(0, Ordering::SeqCst);
        std::mem::take(&mut requests)
    }
}

/// Interrupts of requests that are in no channel: answered by now, or about to call.
#[derive(Debug, Default)]
pub(super) struct EarlyInterrupts {
    count: AtomicUsize,
    requests: Mutex<VecDeque<(FuseRequestId, Instant)>>,
}

impl EarlyInterrupts {
    pub(super) fn put(&self, request: FuseRequestId) {
        let mut requests = lock(&self.requests);
        let now = Instant::now();
        while requests.len() >= MISSED_MAX
            || requests.front().is_some_and(|(_, at)| now - *at > MISSED_FOR)
        {
            requests.pop_front();
        }
        requests.push_back((request, now));
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    pub(super) fn remove(&self, request: FuseRequestId) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut requests = lock(&self.requests);
        let before = requests.len();
        requests.retain(|(other, _)| *other != request);
        self.count.store(requests.len(), Ordering::SeqCst);
        requests.len() < before
    }
}

/// Requests that wait for what goes on without them: their processes, killed, do not wait for a
/// proxy that does not answer.
#[derive(Debug, Default)]
pub(crate) struct WaitingCalls {
    count: AtomicUsize,
    replies: Mutex<FxHashMap<FuseRequestId, Unanswered>>,
    check_interval: CheckInterval,
}

#[derive(Debug)]
struct Unanswered {
    thread: u32,
    since: Instant,
    reply: Reply<()>,
}

impl WaitingCalls {
    /// A thread waits for this answer.
    pub(crate) fn begin(&self, thread: u32, reply: Reply<()>, since: Instant) {
        self.count.fetch_add(1, Ordering::SeqCst);
        lock(&self.replies).insert(reply.id(), Unanswered { thread, since, reply });
    }

    /// It need not wait any more: its reply, unless it was killed and has got one.
    pub(crate) fn end(&self, request: FuseRequestId) -> Option<Reply<()>> {
        let found = lock(&self.replies).remove(&request)?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(found.reply)
    }

    /// Whether a waiter must be checked before long.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Detaches, once in a while, the waiters that have waited for long and are killed.
    pub(super) fn detach_killed(&self, now: Instant, killed: impl Fn(u32) -> bool) {
        if !self.any() || !self.check_interval.is_due(now) {
            return;
        }
        let late = |one: &Unanswered| now.saturating_duration_since(one.since) > FLUSH_PATIENCE;
        let killed: Vec<_> = lock(&self.replies)
            .extract_if(|_, one| late(one) && killed(one.thread))
            .map(|(_, one)| one.reply)
            .collect();
        self.count.fetch_sub(killed.len(), Ordering::SeqCst);
        killed.into_iter().for_each(|reply| reply.error(Errno::INTR));
    }
}

/// How long a process that is killed waits for the proxy to answer.
pub(super) const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// Interval of checks of waiters.
pub(super) const SIGNALS_EVERY: Duration = Duration::from_millis(100);
/// Interrupts that are remembered for requests that may yet call, and for how long.
const MISSED_MAX: usize = 256;
const MISSED_FOR: Duration = Duration::from_secs(60);
