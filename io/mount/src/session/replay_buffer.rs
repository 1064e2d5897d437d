//! Writes that are kept until they are durable, with a short way for replies that say nothing new.
//!
//! ```text
//!   reply ─► as the last one ─► nothing
//!         └► else, locked: UncommittedWrites ─► lost: by handle, to be written once more
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ninep::dialect::{
    AnyRequest, ExtRequest, HandleList, ReplyHeader, WRITE_KILL_PRIV, decode_request, handle_fid,
};
use session::client::{HeaderChange, KeptWrite, UncommittedWrites};

use super::call::{CallFrame, CallWaiter};
use super::identities::SessionIdentity;
use super::lock;
use super::signals::CheckInterval;
use crate::write_behind::{OnReady, SentWrite};

/// All executed writes of a session that its proxy's machine may yet lose.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    /// Values of the last reply, to see without the lock that nothing is new.
    seen: [AtomicU64; 3],
    /// How often writes were lost, and whether no more are taken: known without the lock.
    losses: AtomicU64,
    full: AtomicBool,
    check_interval: CheckInterval,
    writes: Mutex<UncommittedWrites<SentWrite, RoomWaiter>>,
}

/// A waiter for room.
struct RoomWaiter {
    waiter: CallWaiter,
    then: OnReady,
}

/// Changes by a reply's header.
#[derive(Default)]
pub(crate) struct Changed {
    /// To be written once more.
    pub(crate) lost_writes: Vec<SentWrite>,
    /// Callbacks of the waiters for room.
    pub(crate) ready: Vec<OnReady>,
}

impl ReplayBuffer {
    /// Keeps about this many bytes at most; with 0 none.
    pub(crate) fn new(limit: u64) -> ReplayBuffer {
        let (seen, losses, full, check_interval) = Default::default();
        let writes = Mutex::new(UncommittedWrites::new(limit));
        ReplayBuffer { seen, losses, full, check_interval, writes }
    }

    /// A reply of this life of the session came.
    pub(crate) fn handle_header(&self, epoch: u64, header: ReplyHeader) -> Changed {
        let now = [epoch, header.verifier, header.commit_watermark];
        if self.seen.iter().zip(now).all(|(seen, now)| seen.load(Ordering::Relaxed) == now) {
            return Changed::default();
        }
        let change = self.change(|writes| {
            let change = writes.handle_header(epoch, header)?;
            self.seen.iter().zip(now).for_each(|(seen, now)| seen.store(now, Ordering::Relaxed));
            Some(change)
        });
        let Some(HeaderChange { lost_writes, ready }) = change else { return Changed::default() };
        Changed {
            lost_writes: lost_writes.into_iter().map(named_by_handle).collect(),
            ready: callbacks(ready),
        }
    }

    /// A write was executed. True if the proxy is to be asked to make all of them durable.
    pub(crate) fn insert(&self, epoch: u64, number: u64, write: SentWrite) -> bool {
        self.change(|writes| writes.insert(epoch, number, write))
    }

    /// Handles the reply to a Tcommit of this life of the session. Returns the waiters that wait no
    /// longer.
    pub(crate) fn committed(&self, epoch: u64, well: bool) -> Vec<OnReady> {
        callbacks(self.change(|writes| writes.committed(epoch, well)))
    }

    /// Returns the identity that pays for a commit: the one that has waited the longest.
    pub(crate) fn oldest(&self) -> Option<Arc<SessionIdentity>> {
        lock(&self.writes).kept().next().map(|write| write.payer.clone())
    }

    /// Keeps a waiter until there is room; returns the callback if it need not wait.
    pub(crate) fn wait(&self, waiter: CallWaiter, then: OnReady) -> Option<OnReady> {
        lock(&self.writes).wait(RoomWaiter { waiter, then }).map(|waiter| waiter.then)
    }

    /// Detaches, once in a while, the waiters whose processes are killed, as `killed` says of a
    /// thread.
    pub(crate) fn detach_killed(&self, now: Instant, killed: impl Fn(u32) -> bool) -> Vec<OnReady> {
        match self.is_full() && self.check_interval.is_due(now) {
            true => callbacks(lock(&self.writes).take_waiters(|one| killed(one.waiter.thread))),
            false => Vec::new(),
        }
    }

    /// Whether too many writes are kept to accept more.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    /// How often writes were lost: an fsync during which that happened is made again.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    fn change<R>(
        &self,
        make: impl FnOnce(&mut UncommittedWrites<SentWrite, RoomWaiter>) -> R,
    ) -> R {
        let mut writes = lock(&self.writes);
        let made = make(&mut writes);
        self.losses.store(writes.losses(), Ordering::SeqCst);
        self.full.store(writes.is_full(), Ordering::SeqCst);
        made
    }
}

impl KeptWrite for SentWrite {
    fn bytes(&self) -> u64 {
        SentWrite::bytes(self)
    }
}

fn callbacks(waiters: Vec<RoomWaiter>) -> Vec<OnReady> {
    waiters.into_iter().map(|waiter| waiter.then).collect()
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

#[cfg(test)]
#[path = "replay_buffer_tests.rs"]
mod tests;
