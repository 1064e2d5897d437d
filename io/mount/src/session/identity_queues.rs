//! Calls that wait until they may begin: three queues for each identity, as at the proxy, served in
//! turn.
//!
//! ```text
//!   push ─► identity 1 ─┬─ reads: call, call ─┐
//!                       ├─ writes: call ──────┤
//!                       └─ metadata: call ────┼─ in turn, where the window is open ─► next
//!           identity 2 ─── … ─────────────────┤
//!           free of the window: call ─────────┘ before all others
//! ```
//!
//! Within a queue the order is that of coming, and each queue has a window of its own: a call that
//! waits for its limit delays neither other identities nor the calls of its own that the limit is
//! not for. The kernel may hold the lock of a directory while such a call waits.
//!
//! Nothing relies on an order between calls: those of one file come by several channels. Who needs
//! an earlier write waits until it is executed (`operations/behind.rs`).
//!
//! Calls, slots and payload of a channel are for all. A queue takes more of them only while it has
//! less than a part of what is free, so that many throttled jobs together leave some.

use std::collections::VecDeque;
use std::sync::Arc;

use fuse::{Errno, FuseRequestId};
use model::Direction;
use rustc_hash::FxHashMap;

use super::call::{CallWaiter, ServerCall};
use super::identities::SessionIdentity;

/// A channel's waiting calls, and what each queue has in flight.
#[derive(Debug, Default)]
pub(crate) struct IdentityQueues {
    queues: FxHashMap<QueueKey, IdentityQueue>,
    /// Queues with calls that wait; each once.
    round_robin: VecDeque<QueueKey>,
    free: VecDeque<ServerCall>,
    /// Calls in flight that may wait long at the proxy.
    patient: usize,
    waiting: usize,
    waiting_bytes: usize,
    /// Payload of all calls in flight.
    bytes: u64,
}

/// Number of an identity, and the direction of the calls.
type QueueKey = (u32, Direction);

/// The calls of one identity in one direction.
#[derive(Debug, Default)]
struct IdentityQueue {
    queue: VecDeque<ServerCall>,
    /// Calls in flight,
    calls: u32,
    /// those of them that have a slot,
    once: u32,
    /// and their payload.
    bytes: u64,
}

/// What a channel has left for all identities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelRoom {
    /// Calls that may begin.
    pub(crate) calls: u32,
    /// Slots: calls of those that must not be executed twice.
    pub(crate) slots: u32,
}

impl IdentityQueues {
    /// Appends a call to its queue, or to the calls that need no window.
    pub(crate) fn push(&mut self, call: ServerCall) {
        self.count(&call);
        if call.spec.free {
            return self.free.push_back(call);
        }
        self.queue_of(&call).push_back(call);
    }

    /// A call comes back, to go before what came after it.
    pub(crate) fn push_front(&mut self, call: ServerCall) {
        self.count(&call);
        if call.spec.free {
            return self.free.push_front(call);
        }
        self.queue_of(&call).push_front(call);
    }

    /// The next call that may begin in a channel with this room, counted as in flight. Or one that
    /// can never begin, and why.
    pub(crate) fn next(
        &mut self,
        room: ChannelRoom,
    ) -> Option<Result<ServerCall, (ServerCall, Errno)>> {
        if let Some(call) = self.next_free(room) {
            return Some(Ok(call));
        }
        let mut left = self.round_robin.len();
        while left > 0 {
            left -= 1;
            let key = self.round_robin.pop_front()?;
            let lane = self.queues.get_mut(&key).expect("what is in turn is there");
            let head = lane.queue.front().expect("a queue in turn has a call");
            if head.pays().number != head.payer.number && head.pays().refused().is_some() {
                self.round_robin.push_front(key);
                self.revoke_head_donation(key);
                left = self.round_robin.len();
                continue;
            }
            let refused = head.payer.refused();
            let goes = refused.is_some()
                || lane.admits(head, room, PAYLOAD_MAX.saturating_sub(self.bytes));
            if !goes {
                self.round_robin.push_back(key);
                continue;
            }
            let call = lane.queue.pop_front().expect("the queue has a call");
            if !lane.queue.is_empty() {
                self.round_robin.push_back(key);
            }
            if let Some(error) = refused {
                self.uncount(&call);
                return Some(Err((call, error)));
            }
            lane.begin(&call);
            self.bytes += call.spec.bytes;
            self.uncount(&call);
            return Some(Ok(call));
        }
        None
    }

    /// A call that [`IdentityQueues::next`] gave is no longer in flight.
    pub(crate) fn ended(&mut self, call: &ServerCall) {
        self.patient -= usize::from(call.spec.patient);
        if call.spec.free {
            return;
        }
        if let Some(lane) = self.queues.get_mut(&key_of(call)) {
            lane.end(call);
        }
        self.bytes = self.bytes.saturating_sub(call.spec.bytes);
        if self.queues.len() > QUEUES_MAX {
            self.queues.retain(|_, lane| lane.calls > 0 || !lane.queue.is_empty());
        }
    }

    /// Lends a waiter's queue to the waiting calls that `is` names. True if there were any.
    pub(crate) fn donate(
        &mut self,
        is: impl Fn(&ServerCall) -> bool,
        donor: &Arc<SessionIdentity>,
    ) -> bool {
        let mut taken = Vec::new();
        for lane in self.queues.values_mut().filter(|lane| lane.queue.iter().any(&is)) {
            let (of_his, others) = lane.queue.drain(..).partition(&is);
            lane.queue = others;
            let of_his: VecDeque<ServerCall> = of_his;
            taken.extend(of_his);
        }
        self.round_robin.retain(|key| !self.queues[key].queue.is_empty());
        let any = !taken.is_empty();
        for mut call in taken {
            self.uncount(&call);
            call.donate(donor);
            self.push(call);
        }
        any
    }

    /// Like `donate`, for a call in flight.
    pub(crate) fn donate_begun(
        &mut self,
        call: &mut ServerCall,
        donor: &Arc<SessionIdentity>,
    ) -> bool {
        let before = key_of(call);
        if !call.donate(donor) {
            return false;
        }
        if let Some(lane) = self.queues.get_mut(&before) {
            lane.end(call);
        }
        self.queues.entry(key_of(call)).or_default().begin(call);
        true
    }

    /// Nothing is in flight any more.
    pub(crate) fn all_ended(&mut self) {
        (self.patient, self.bytes) = (0, 0);
        self.queues.retain(|_, lane| {
            (lane.calls, lane.once, lane.bytes) = (0, 0, 0);
            !lane.queue.is_empty()
        });
    }

    /// Takes the call of an interrupted request out.
    pub(crate) fn remove(&mut self, request: FuseRequestId) -> Option<ServerCall> {
        let is = |call: &ServerCall| call.is_for(request);
        if let Some(at) = self.free.iter().position(is) {
            let call = self.free.remove(at)?;
            self.uncount(&call);
            return Some(call);
        }
        let (key, at) = self
            .queues
            .iter()
            .find_map(|(key, lane)| lane.queue.iter().position(is).map(|at| (*key, at)))?;
        let lane = self.queues.get_mut(&key)?;
        let call = lane.queue.remove(at)?;
        if lane.queue.is_empty() {
            self.round_robin.retain(|other| *other != key);
        }
        self.uncount(&call);
        Some(call)
    }

    /// The call that waits for this request.
    pub(crate) fn find(&self, request: FuseRequestId) -> Option<&ServerCall> {
        let all = self.free.iter().chain(self.queues.values().flat_map(|lane| &lane.queue));
        all.into_iter().find(|call| call.is_for(request))
    }

    /// Returns the waiters of calls that have not begun, from the `from`th on and round to it.
    pub(crate) fn waiters(&self, from: usize, most: usize) -> Vec<CallWaiter> {
        let all = self.free.iter().chain(self.queues.values().flat_map(|lane| &lane.queue));
        let all = all.filter_map(|call| call.waiter);
        let from = from % self.waiting.max(1);
        let some = all.clone().skip(from).chain(all.take(from));
        some.take(most).collect()
    }

    /// Takes all calls out.
    pub(crate) fn drain(&mut self) -> Vec<ServerCall> {
        self.round_robin.clear();
        (self.waiting, self.waiting_bytes) = (0, 0);
        let mut all: Vec<_> = self.free.drain(..).collect();
        all.extend(self.queues.values_mut().flat_map(|lane| lane.queue.drain(..)));
        all
    }

    /// Whether a call is in flight that may wait long at the proxy.
    pub(crate) fn any_patient(&self) -> bool {
        self.patient > 0
    }

    /// Calls that wait, and bytes of their messages.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.waiting, self.waiting_bytes)
    }

    fn next_free(&mut self, room: ChannelRoom) -> Option<ServerCall> {
        let (slot, patience) = (room.slots > 0, self.patient < PATIENT_MAX);
        let goes =
            |call: &ServerCall| (slot || !call.spec.once) && (patience || !call.spec.patient);
        let at = self.free.iter().position(goes)?;
        let call = self.free.remove(at)?;
        self.patient += usize::from(call.spec.patient);
        self.uncount(&call);
        Some(call)
    }

    /// Takes back the queue that was lent to the first call: its owner may not use it any more.
    fn revoke_head_donation(&mut self, key: QueueKey) {
        let lane = self.queues.get_mut(&key);
        let Some(mut call) = lane.and_then(|lane| lane.queue.pop_front()) else { return };
        if self.queues[&key].queue.is_empty() {
            self.round_robin.retain(|other| *other != key);
        }
        self.uncount(&call);
        call.revoke_donation();
        self.push(call);
    }

    /// The queue of a call, which it is about to enter.
    fn queue_of(&mut self, call: &ServerCall) -> &mut VecDeque<ServerCall> {
        let key = key_of(call);
        let lane = self.queues.entry(key).or_default();
        if lane.queue.is_empty() {
            self.round_robin.push_back(key);
        }
        &mut lane.queue
    }

    fn count(&mut self, call: &ServerCall) {
        self.waiting += 1;
        self.waiting_bytes += call.spec.frame.bytes().len();
    }

    fn uncount(&mut self, call: &ServerCall) {
        self.waiting -= 1;
        self.waiting_bytes -= call.spec.frame.bytes().len();
    }
}

impl IdentityQueue {
    fn begin(&mut self, call: &ServerCall) {
        self.calls += 1;
        self.once += u32::from(call.spec.once);
        self.bytes += call.spec.bytes;
    }

    fn end(&mut self, call: &ServerCall) {
        self.calls = self.calls.saturating_sub(1);
        self.once = self.once.saturating_sub(call.spec.once.into());
        self.bytes = self.bytes.saturating_sub(call.spec.bytes);
    }

    fn admits(&self, call: &ServerCall, room: ChannelRoom, payload: u64) -> bool {
        let leaves_some = |held: u32, free: u32| held.saturating_mul(FREE_PART) < free;
        let bytes = call.spec.bytes;
        leaves_some(self.calls, room.calls)
            && (!call.spec.once || leaves_some(self.once, room.slots))
            && (bytes == 0 || (self.bytes + bytes).saturating_mul(FREE_PART.into()) <= payload)
            && call.pays().admits(self.calls, self.bytes, bytes)
    }
}

fn key_of(call: &ServerCall) -> QueueKey {
    (call.pays().number, call.spec.frame.direction())
}

/// A queue takes another call or slot while it has less than this part of the free ones: a quarter.
/// The first takes 13 of 64, the next one 11, and fifteen take all. (The dynamic thresholds of
/// Choudhury and Hahne, IEEE/ACM Transactions on Networking 6, 1998.)
const FREE_PART: u32 = 4;
/// Payload of a channel in flight: less than what a proxy takes from one connection of a mount
/// before it stops reading (four times its `bytes_in_flight_max`, 64 MiB by default). Sixteen
/// throttled jobs with requests of 1 MiB leave 3 MiB.
const PAYLOAD_MAX: u64 = 48 << 20;

/// Calls of a channel that may wait long at the proxy: fewer than its tags, so that what ends
/// their waiting can be said.
const PATIENT_MAX: usize = 96;
/// Queues that are kept although nothing is in them.
const QUEUES_MAX: usize = 768;

#[cfg(test)]
#[path = "identity_queues_tests.rs"]
mod tests;
