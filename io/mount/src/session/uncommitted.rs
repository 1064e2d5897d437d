//! Writes that the proxy has executed and that its machine may yet lose.
//!
//! ```text
//!   Rwrite number ─► kept ─┬─ commit_watermark is as high ─► dropped
//!                          ├─ the verifier is another ─► lost: written once more
//!                          └─ much is kept ─► Tcommit
//! ```
//!
//! Numbers are those of one life of the session. What was kept when that ended is dropped once
//! a Tcommit of a later one has succeeded with the same verifier: a proxy that was started
//! again has lost nothing, a machine that was has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ninep::dialect::{
    AnyRequest, ExtRequest, HandleList, ReplyHeader, WRITE_KILL_PRIV, decode_request, handle_fid,
};

use super::call::{CallFrame, CallWaiter};
use super::identities::SessionIdentity;
use super::lock;
use super::signals::CheckInterval;
use crate::write_behind::{OnReady, SentWrite};

/// All that is kept.
#[derive(Debug)]
pub(crate) struct UncommittedWrites {
    /// Bytes that may be kept; 0 keeps none.
    limit: u64,
    /// Values of the last reply, to see without the lock that nothing is new.
    seen: [AtomicU64; 3],
    /// How often writes were lost.
    loss_count: AtomicU64,
    bytes: AtomicU64,
    check_interval: CheckInterval,
    state: Mutex<UncommittedState>,
}

#[derive(Default)]
struct UncommittedState {
    epoch: u64,
    header: Option<ReplyHeader>,
    writes: BTreeMap<(u64, u64), SentWrite>,
    committing: bool,
    waiters: Vec<(CallWaiter, OnReady)>,
}

/// Changes by a reply's header.
#[derive(Default)]
pub(crate) struct Changed {
    /// To be written once more.
    pub(crate) lost_writes: Vec<SentWrite>,
    /// Callbacks of the waiters for room.
    pub(crate) ready: Vec<OnReady>,
}

impl UncommittedWrites {
    pub(crate) fn new(limit: u64) -> UncommittedWrites {
        let (seen, losses, bytes, looked, state) = Default::default();
        UncommittedWrites { limit, seen, loss_count: losses, bytes, check_interval: looked, state }
    }

    /// A reply of this life of the session came.
    pub(crate) fn handle_header(&self, epoch: u64, header: ReplyHeader) -> Changed {
        let now = [epoch, header.verifier, header.commit_watermark];
        if self.seen.iter().zip(now).all(|(seen, now)| seen.load(Ordering::Relaxed) == now) {
            return Changed::default();
        }
        let mut state = lock(&self.state);
        if epoch < state.epoch {
            return Changed::default();
        }
        self.seen.iter().zip(now).for_each(|(seen, now)| seen.store(now, Ordering::Relaxed));
        let before = state.header.replace(header);
        state.epoch = epoch;
        if before.is_none_or(|before| before.verifier == header.verifier) {
            let committed = state.take_committed();
            return Changed {
                lost_writes: Vec::new(),
                ready: self.dropped(&mut state, &committed),
            };
        }
        self.loss_count.fetch_add(1, Ordering::SeqCst);
        let lost = std::mem::take(&mut state.writes);
        let ready = self.dropped(&mut state, &lost);
        Changed { lost_writes: lost.into_values().map(named_by_handle).collect(), ready }
    }

    /// A write was executed. True if the proxy is to be asked to make all of them durable.
    pub(crate) fn insert(&self, epoch: u64, number: u64, write: SentWrite) -> bool {
        if self.limit == 0 || number == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        let committed = state.header.map_or(0, |header| header.commit_watermark);
        if epoch < state.epoch || (epoch == state.epoch && number <= committed) {
            return false;
        }
        self.bytes.fetch_add(write.bytes(), Ordering::SeqCst);
        state.writes.insert((epoch, number), write);
        let much = self.bytes.load(Ordering::SeqCst) > self.limit / 2;
        let older = state.writes.first_key_value().is_some_and(|((of, _), _)| *of < epoch);
        (much || older) && !std::mem::replace(&mut state.committing, true)
    }

    /// Handles the reply to a Tcommit of this life of the session. Returns the waiters: after a
    /// failure they wait no longer, and the next write commits again.
    pub(crate) fn committed(&self, epoch: u64, well: bool) -> Vec<OnReady> {
        let mut state = lock(&self.state);
        state.committing = false;
        if !well {
            return state.take_waiters(|_| true);
        }
        if epoch != state.epoch {
            return Vec::new();
        }
        let later = state.writes.split_off(&(epoch, 0));
        let mut committed = std::mem::replace(&mut state.writes, later);
        committed.append(&mut state.take_committed());
        self.dropped(&mut state, &committed)
    }

    /// Returns the identity that pays for a commit: the one that has waited the longest.
    pub(crate) fn oldest(&self) -> Option<Arc<SessionIdentity>> {
        let state = lock(&self.state);
        state.writes.first_key_value().map(|(_, write)| write.payer.clone())
    }

    /// Keeps a waiter until there is room; returns the callback if it need not wait.
    pub(crate) fn wait(&self, waiter: CallWaiter, then: OnReady) -> Option<OnReady> {
        let mut state = lock(&self.state);
        if !self.is_full() || !state.committing {
            return Some(then);
        }
        state.waiters.push((waiter, then));
        None
    }

    /// Detaches, once in a while, the waiters whose processes are killed, as `killed` says of a
    /// thread.
    pub(crate) fn detach_killed(&self, now: Instant, killed: impl Fn(u32) -> bool) -> Vec<OnReady> {
        match self.is_full() && self.check_interval.is_due(now) {
            true => lock(&self.state).take_waiters(|waiter| killed(waiter.thread)),
            false => Vec::new(),
        }
    }

    /// Whether too many writes are kept to accept more.
    pub(crate) fn is_full(&self) -> bool {
        self.limit > 0 && self.bytes.load(Ordering::SeqCst) >= self.limit
    }

    /// How often writes were lost: an fsync during which that happened is made again.
    pub(crate) fn losses(&self) -> u64 {
        self.loss_count.load(Ordering::SeqCst)
    }

    /// Removes these writes; returns the waiters if there is room now.
    fn dropped(
        &self,
        state: &mut UncommittedState,
        writes: &BTreeMap<(u64, u64), SentWrite>,
    ) -> Vec<OnReady> {
        self.bytes.fetch_sub(writes.values().map(SentWrite::bytes).sum(), Ordering::SeqCst);
        match self.is_full() {
            true => Vec::new(),
            false => state.take_waiters(|_| true),
        }
    }
}

impl UncommittedState {
    fn take_committed(&mut self) -> BTreeMap<(u64, u64), SentWrite> {
        let Some(header) = self.header else { return BTreeMap::new() };
        // Those of lives before come first, and stay.
        let mut of_now = self.writes.split_off(&(self.epoch, 0));
        let mut later = of_now.split_off(&(self.epoch, header.commit_watermark + 1));
        self.writes.append(&mut later);
        of_now
    }

    fn take_waiters(&mut self, which: impl Fn(&CallWaiter) -> bool) -> Vec<OnReady> {
        self.waiters.extract_if(.., |(waiter, _)| which(waiter)).map(|(_, then)| then).collect()
    }
}

/// Makes the same write as a message that names the file by handle: it may be closed by now.
fn named_by_handle(write: SentWrite) -> SentWrite {
    let SentWrite { node, payer, frame, range: place } = write;
    let (_, _, message) = decode_request(frame.bytes()).expect("we encoded it");
    let (flags, data) = match message {
        AnyRequest::Ext(ExtRequest::Write { flags, data, .. }) => (flags, data),
        AnyRequest::Ext(ExtRequest::Append { flags, data, .. }) => (flags, data),
        other => unreachable!("{other:?} is not kept"),
    };
    // What set-id bits were to go have gone, or go again.
    let flags = flags & WRITE_KILL_PRIV;
    let message = ExtRequest::Write { fid: handle_fid(0), offset: place.start, flags, data };
    let frame = CallFrame::new(HandleList::one(&node.handle), message);
    SentWrite { node, payer, frame, range: place }
}

impl std::fmt::Debug for UncommittedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} writes of life {})", self.writes.len(), self.epoch)
    }
}

#[cfg(test)]
#[path = "uncommitted_tests.rs"]
mod tests;
