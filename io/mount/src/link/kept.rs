//! Writes that the proxy has executed and that its machine may yet lose.
//!
//! ```text
//!   Rwrite number ─► kept ─┬─ committed is as high ─► dropped
//!                          ├─ the verifier is another ─► lost: written once more
//!                          └─ much is kept ─► Tcommit
//! ```
//!
//! Numbers are those of one life of the session. What was kept when that ended is dropped once
//! a Tcommit of a later one has succeeded with the same verifier: a proxy that was started
//! again has lost nothing, a machine that was has.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ninep::dialect::{
    AnyRequest, Handles, OwnRequest, ReplyHeader, WRITE_KILL_PRIV, decode_request, handle_fid,
};

use super::call::{Frame, Waiter};
use super::identities::Payer;
use super::lock;
use crate::behind::{Lost, Then};
use crate::nodes::Node;

/// All that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Bytes that may be kept; 0 keeps none.
    limit: u64,
    /// What the last reply said, to see without the lock that nothing is new.
    seen: [AtomicU64; 3],
    /// How often writes were lost.
    losses: AtomicU64,
    bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    header: Option<ReplyHeader>,
    writes: BTreeMap<(u64, u64), Write>,
    committing: bool,
    held: Vec<(Waiter, Then)>,
}

/// A write that was executed.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) node: Arc<Node>,
    pub(crate) payer: Arc<Payer>,
    /// The message that wrote it.
    pub(crate) frame: Frame,
    pub(crate) place: Range<u64>,
}

/// What a reply's header has changed.
#[derive(Default)]
pub(crate) struct Changed {
    /// To be written once more.
    pub(crate) lost: Vec<Lost>,
    /// Those who waited for room.
    pub(crate) ready: Vec<Then>,
}

impl Kept {
    pub(crate) fn new(limit: u64) -> Kept {
        let (seen, losses, bytes, state) = Default::default();
        Kept { limit, seen, losses, bytes, state }
    }

    /// A reply of this life of the session came.
    pub(crate) fn heard(&self, epoch: u64, header: ReplyHeader) -> Changed {
        let now = [epoch, header.verifier, header.committed];
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
        let mut lost = Vec::new();
        if before.is_some_and(|before| before.verifier != header.verifier) {
            self.losses.fetch_add(1, Ordering::SeqCst);
            lost = std::mem::take(&mut state.writes).into_values().map(Write::again).collect();
        } else {
            state.drop_committed();
        }
        Changed { lost, ready: self.recount(&mut state) }
    }

    /// A write was executed. True if the proxy is to be asked to make all of them durable.
    pub(crate) fn keep(&self, epoch: u64, number: u64, write: Write) -> bool {
        if self.limit == 0 || number == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        let committed = state.header.map_or(0, |header| header.committed);
        if epoch < state.epoch || (epoch == state.epoch && number <= committed) {
            return false;
        }
        self.bytes.fetch_add(write.place.end - write.place.start, Ordering::SeqCst);
        state.writes.insert((epoch, number), write);
        let much = self.bytes.load(Ordering::SeqCst) > self.limit / 2;
        let older = state.writes.first_key_value().is_some_and(|((of, _), _)| *of < epoch);
        (much || older) && !std::mem::replace(&mut state.committing, true)
    }

    /// A Tcommit of this life of the session was answered. Gives those who waited: where it
    /// failed they wait no longer, and the next write asks again.
    pub(crate) fn committed(&self, epoch: u64, well: bool) -> Vec<Then> {
        let mut state = lock(&self.state);
        state.committing = false;
        if well && epoch == state.epoch {
            state.writes.retain(|(of, _), _| *of >= epoch);
            state.drop_committed();
        }
        let ready = self.recount(&mut state);
        match well {
            true => ready,
            false => ready.into_iter().chain(state.take_held(|_| true)).collect(),
        }
    }

    /// Who pays for making everything durable: whoever has waited for it the longest.
    pub(crate) fn oldest(&self) -> Option<Arc<Payer>> {
        let state = lock(&self.state);
        state.writes.first_key_value().map(|(_, write)| write.payer.clone())
    }

    /// Keeps somebody until there is room; gives back who need not wait.
    pub(crate) fn hold(&self, waiter: Waiter, then: Then) -> Option<Then> {
        let mut state = lock(&self.state);
        if !self.is_full() || !state.committing {
            return Some(then);
        }
        state.held.push((waiter, then));
        None
    }

    /// Those whose processes are killed, as `killed` says of a thread.
    pub(crate) fn let_go(&self, killed: impl Fn(u32) -> bool) -> Vec<Then> {
        match self.is_full() {
            true => lock(&self.state).take_held(|waiter| killed(waiter.thread)),
            false => Vec::new(),
        }
    }

    /// Whether so much is kept that no more should be written.
    pub(crate) fn is_full(&self) -> bool {
        self.limit > 0 && self.bytes.load(Ordering::SeqCst) >= self.limit
    }

    /// How often writes were lost: an fsync during which that happened is made again.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Counts what is kept, and gives those who waited if there is room.
    fn recount(&self, state: &mut State) -> Vec<Then> {
        let bytes = state.writes.values().map(|write| write.place.end - write.place.start).sum();
        self.bytes.store(bytes, Ordering::SeqCst);
        match self.is_full() {
            true => Vec::new(),
            false => state.take_held(|_| true),
        }
    }
}

impl State {
    fn drop_committed(&mut self) {
        let Some(header) = self.header else { return };
        // Those of lives before come first, and stay.
        let mut of_now = self.writes.split_off(&(self.epoch, 0));
        let mut later = of_now.split_off(&(self.epoch, header.committed + 1));
        self.writes.append(&mut later);
    }

    fn take_held(&mut self, which: impl Fn(&Waiter) -> bool) -> Vec<Then> {
        let held = std::mem::take(&mut self.held);
        let (go, stay): (Vec<_>, _) = held.into_iter().partition(|(waiter, _)| which(waiter));
        self.held = stay;
        go.into_iter().map(|(_, then)| then).collect()
    }
}

impl Write {
    /// The same as a message that names the file by handle: it may be closed by now.
    fn again(self) -> Lost {
        let Write { node, payer, frame, place } = self;
        let (_, _, message) = decode_request(frame.bytes()).expect("we encoded it");
        let (flags, data) = match message {
            AnyRequest::Own(OwnRequest::Write { flags, data, .. }) => (flags, data),
            AnyRequest::Own(OwnRequest::Append { flags, data, .. }) => (flags, data),
            other => unreachable!("{other:?} is not kept"),
        };
        // What set-id bits were to go have gone, or go again.
        let flags = flags & WRITE_KILL_PRIV;
        let fid = handle_fid(0);
        let message = OwnRequest::Write { fid, offset: place.start, flags, data };
        let frame = Frame::new(Handles::one(&node.handle), message);
        Lost { node, payer, frame, place }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} writes of life {})", self.writes.len(), self.epoch)
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
