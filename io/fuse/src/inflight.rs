//! Requests that wait for their answer, and the races of their interrupts.
//!
//! ```text
//!   begin ──► running ──(method returned)──► waiting ──► finish
//!               │ interrupt: delivered now,    │ interrupt: delivered now
//!               │ and again when it returned   │
//!   interrupt before begin: stored ──► running, interrupted
//!   interrupt after finish: stored in vain, until newer ones push it out
//! ```
//!
//! The kernel hands an interrupt to any reader of /dev/fuse once it has handed the request to one.
//! Two threads can therefore see them in either order, and a reply may pass an interrupt on its
//! way. An unknown id does not show which of the two has happened. Keeping the interrupt serves the
//! first case and does no harm in the second, since ids are never reused. The memory is bounded: an
//! evicted interrupt goes back to the kernel (`EAGAIN`), which sends it again if the request still
//! waits.
//!
//! Sharded by id, so that threads seldom meet; a request costs two uncontended locks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::request::{FuseRequest, FuseRequestId};

/// Every request that is received and not answered.
#[derive(Debug)]
pub(crate) struct FuseInFlight {
    shards: [Mutex<InFlightShard>; SHARDS],
    /// How many of them are interrupted: zero saves a look-up per request.
    interrupted: AtomicUsize,
}

#[derive(Debug, Default)]
struct InFlightShard {
    live: FxHashMap<u64, InFlightEntry>,
    early: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug)]
struct InFlightEntry {
    interrupted: bool,
    /// The thread that asks.
    thread: u32,
    /// Checks of [`FuseInFlight::missed_kills`] that it has outlived.
    checks: u8,
}

/// Action for an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The request is here: deliver it to the file system.
    Deliver,
    /// It is not: it is stored, in case the request is on its way.
    Stored,
    /// As stored, and the kernel may have back this one, which was stored longest.
    StoredEvicting(FuseRequestId),
}

const SHARDS: usize = 16;
/// Interrupts that one shard keeps for requests that it has not seen.
const EARLY_MAX: usize = 256;

impl FuseInFlight {
    pub(crate) fn new() -> FuseInFlight {
        FuseInFlight { shards: Default::default(), interrupted: AtomicUsize::new(0) }
    }

    /// A request was received. Every call is followed by one of [`FuseInFlight::finish`].
    pub(crate) fn begin(&self, request: &FuseRequest) {
        let mut shard = self.shard(request.id);
        let early = shard.early.iter().position(|id| *id == request.id.0);
        if let Some(at) = early {
            shard.early.remove(at);
            self.interrupted.fetch_add(1, Ordering::SeqCst);
        }
        let live =
            InFlightEntry { interrupted: early.is_some(), thread: request.thread, checks: 0 };
        shard.live.insert(request.id.0, live);
    }

    /// Marks the method of a request as returned; true if the file system must be notified, now or
    /// once more, that the request is interrupted.
    pub(crate) fn returned(&self, id: FuseRequestId) -> bool {
        // A request is marked before the file system is notified. If that had no effect, since the
        // method had not stored the request yet, this sees the mark.
        self.interrupted.load(Ordering::SeqCst) != 0
            && self.shard(id).live.get(&id.0).is_some_and(|live| live.interrupted)
    }

    /// The kernel sent an interrupt.
    pub(crate) fn interrupt(&self, id: FuseRequestId) -> Interrupt {
        let mut shard = self.shard(id);
        if let Some(live) = shard.live.get_mut(&id.0) {
            if !live.interrupted {
                live.interrupted = true;
                self.interrupted.fetch_add(1, Ordering::SeqCst);
            }
            return Interrupt::Deliver;
        }
        shard.early.push_back(id.0);
        match shard.early.len() > EARLY_MAX {
            true => shard
                .early
                .pop_front()
                .map_or(Interrupt::Stored, |id| Interrupt::StoredEvicting(FuseRequestId(id))),
            false => Interrupt::Stored,
        }
    }

    /// Requests that have waited since the look before the last one and whose process is being
    /// killed without the kernel having said so: over io_uring it loses a signal that comes
    /// between the queueing of a request and its delivery (linux: fuse_uring_prepare_send does
    /// not look at FR_INTERRUPTED again).
    pub(crate) fn missed_kills(&self) -> Vec<FuseRequestId> {
        let mut waiting = Vec::new();
        for shard in &self.shards {
            for (id, live) in &mut lock(shard).live {
                live.checks = live.checks.saturating_add(1);
                if live.checks > 1 && !live.interrupted && live.thread != 0 {
                    waiting.push((FuseRequestId(*id), live.thread));
                }
            }
        }
        waiting.retain(|(_, thread)| is_being_killed(*thread));
        waiting.into_iter().map(|(id, _)| id).collect()
    }

    /// Removes a request that was answered.
    pub(crate) fn finish(&self, id: FuseRequestId) {
        let live = self.shard(id).live.remove(&id.0);
        debug_assert!(live.is_some(), "{id:?} is answered without having begun");
        if live.is_some_and(|live| live.interrupted) {
            self.interrupted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).live.len()).sum()
    }

    fn shard(&self, id: FuseRequestId) -> MutexGuard<'_, InFlightShard> {
        // Ids of requests are even.
        lock(&self.shards[(id.0 >> 1) as usize % SHARDS])
    }
}

/// Whether SIGKILL is on its way to a thread; any signal that ends a process becomes it.
fn is_being_killed(thread: u32) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        return false;
    };
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    pending.is_some_and(|set| set & SIGKILL != 0)
}

/// Nothing panics while a shard is held, and if something did, the map is whole.
fn lock(shard: &Mutex<InFlightShard>) -> MutexGuard<'_, InFlightShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::InodeId;

    fn request(id: u64) -> FuseRequest {
        FuseRequest { id: FuseRequestId(id), inode: InodeId::ROOT, uid: 0, gid: 0, thread: 1 }
    }

    #[test]
    fn an_interrupt_while_the_method_runs_is_told_now_and_when_it_returned() {
        let inflight = FuseInFlight::new();
        inflight.begin(&request(2));
        inflight.begin(&request(4));
        assert_eq!(inflight.interrupt(FuseRequestId(2)), Interrupt::Deliver);
        assert!(inflight.returned(FuseRequestId(2)));
        assert!(!inflight.returned(FuseRequestId(4)));
        inflight.finish(FuseRequestId(2));
        assert!(!inflight.returned(FuseRequestId(2)));
        inflight.finish(FuseRequestId(4));
        assert_eq!(inflight.len(), 0);
        assert_eq!(inflight.interrupted.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_waits_for_it() {
        let inflight = FuseInFlight::new();
        assert_eq!(inflight.interrupt(FuseRequestId(2)), Interrupt::Stored);
        inflight.begin(&request(2));
        assert!(inflight.returned(FuseRequestId(2)));
        assert_eq!(inflight.interrupt(FuseRequestId(2)), Interrupt::Deliver);
        inflight.finish(FuseRequestId(2));
        assert_eq!(inflight.interrupted.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn an_interrupt_after_the_answer_harms_nothing() {
        let inflight = FuseInFlight::new();
        inflight.begin(&request(2));
        inflight.finish(FuseRequestId(2));
        assert_eq!(inflight.interrupt(FuseRequestId(2)), Interrupt::Stored);
        inflight.begin(&request(4));
        assert!(!inflight.returned(FuseRequestId(4)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_back_to_the_kernel() {
        let inflight = FuseInFlight::new();
        // Ids of one shard.
        let id = |n: usize| FuseRequestId(2 * (n * SHARDS) as u64);
        for n in 0..EARLY_MAX {
            assert_eq!(inflight.interrupt(id(n)), Interrupt::Stored);
        }
        assert_eq!(inflight.interrupt(id(EARLY_MAX)), Interrupt::StoredEvicting(id(0)));
        inflight.begin(&request(id(0).0));
        assert!(!inflight.returned(id(0)));
        inflight.begin(&request(id(1).0));
        assert!(inflight.returned(id(1)));
    }
}
