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
//! an earlier write waits until it is executed.
//!
//! Calls, slots and payload of a channel are for all. A queue takes more of them only while it has
//! less than a part of what is free, so that many throttled jobs together leave some.
//!
//! Bound: none here; who pushes stops while too much waits ([`CallQueues::waiting`]).

use std::collections::{BTreeMap, VecDeque};

use model::Direction;

/// A call of the caller's, and what its queue knows of it.
pub trait QueuedCall {
    /// An identity that pays for calls.
    type Identity;

    /// What the call needs to begin.
    fn needs(&self) -> CallNeeds;
    /// The number of the identity in whose queue the call goes: its own, or its donor's.
    fn queue_identity(&self) -> u32;
    /// The direction of the call's queue, the same as at the proxy.
    fn direction(&self) -> Direction;
    /// The length of its message in bytes.
    fn frame_len(&self) -> usize;
    /// Whether the window of the queue's identity admits the call beside this many others of the
    /// same direction in flight, with this many bytes of payload.
    fn is_admitted(&self, calls: u32, bytes: u64) -> bool;
    /// The errno with which the proxy refused the call's own identity, if it did.
    fn refusal(&self) -> Option<u32>;
    /// Whether the queue was lent by an identity that the proxy refused.
    fn is_donor_refused(&self) -> bool;
    /// Lends the donor's queue to the call; false if that is not possible or changes nothing.
    fn donate(&mut self, donor: &Self::Identity) -> bool;
    /// Moves the call to the queue of its own identity.
    fn revoke_donation(&mut self);
}

/// What a call needs to begin, and what it does while it is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallNeeds {
    /// It must not be executed twice, so it needs a reply slot.
    pub once: bool,
    /// No window limits it: it gives something back.
    pub free: bool,
    /// It may wait at the proxy for as long as others like.
    pub patient: bool,
    /// It takes a lock: not as soon as a proxy has forgotten the holders of locks.
    pub takes_lock: bool,
    /// Payload that it sends or asks for, in bytes.
    pub bytes: u64,
}

/// A channel's waiting calls, and what each queue has in flight.
#[derive(Debug)]
pub struct CallQueues<C> {
    queues: BTreeMap<QueueKey, IdentityQueue<C>>,
    /// Queues with calls that wait; each once.
    round_robin: VecDeque<QueueKey>,
    free: VecDeque<C>,
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
#[derive(Debug)]
struct IdentityQueue<C> {
    queue: VecDeque<C>,
    /// Calls in flight,
    calls: u32,
    /// those of them that have a slot,
    once: u32,
    /// and their payload.
    bytes: u64,
}

/// What a channel has left for all identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelRoom {
    /// Calls that may begin.
    pub calls: u32,
    /// Slots: calls of those that must not be executed twice.
    pub slots: u32,
}

impl<C> Default for CallQueues<C> {
    fn default() -> CallQueues<C> {
        CallQueues {
            queues: BTreeMap::new(),
            round_robin: VecDeque::new(),
            free: VecDeque::new(),
            patient: 0,
            waiting: 0,
            waiting_bytes: 0,
            bytes: 0,
        }
    }
}

impl<C> Default for IdentityQueue<C> {
    fn default() -> IdentityQueue<C> {
        IdentityQueue { queue: VecDeque::new(), calls: 0, once: 0, bytes: 0 }
    }
}

impl<C: QueuedCall> CallQueues<C> {
    /// Appends a call to its queue, or to the calls that need no window.
    pub fn push(&mut self, call: C) {
        self.count(&call);
        if call.needs().free {
            return self.free.push_back(call);
        }
        self.queue_of(&call).push_back(call);
    }

    /// A call comes back, to go before what came after it.
    pub fn push_front(&mut self, call: C) {
        self.count(&call);
        if call.needs().free {
            return self.free.push_front(call);
        }
        self.queue_of(&call).push_front(call);
    }

    /// The next call that may begin in a channel with this room, counted as in flight. Or one that
    /// can never begin, and why.
    pub fn next(&mut self, room: ChannelRoom) -> Option<Result<C, (C, u32)>> {
        if let Some(call) = self.next_free(room) {
            return Some(Ok(call));
        }
        let mut left = self.round_robin.len();
        while left > 0 {
            left -= 1;
            let key = self.round_robin.pop_front()?;
            let lane = self.queues.get_mut(&key).expect("what is in turn is there");
            let head = lane.queue.front().expect("a queue in turn has a call");
            if head.is_donor_refused() {
                self.round_robin.push_front(key);
                self.revoke_head_donation(key);
                left = self.round_robin.len();
                continue;
            }
            let refused = head.refusal();
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
            let needs = call.needs();
            lane.begin(needs);
            self.bytes += needs.bytes;
            self.patient += usize::from(needs.patient);
            self.uncount(&call);
            return Some(Ok(call));
        }
        None
    }

    /// A call that [`CallQueues::next`] gave is no longer in flight.
    pub fn ended(&mut self, call: &C) {
        let needs = call.needs();
        self.patient -= usize::from(needs.patient);
        if needs.free {
            return;
        }
        if let Some(lane) = self.queues.get_mut(&key_of(call)) {
            lane.end(needs);
        }
        self.bytes = self.bytes.saturating_sub(needs.bytes);
        if self.queues.len() > QUEUES_MAX {
            self.queues.retain(|_, lane| lane.calls > 0 || !lane.queue.is_empty());
        }
    }

    /// Lends a waiter's queue to the waiting calls that `is` names. True if there were any.
    pub fn donate(&mut self, is: impl Fn(&C) -> bool, donor: &C::Identity) -> bool {
        let mut taken = Vec::new();
        for lane in self.queues.values_mut().filter(|lane| lane.queue.iter().any(&is)) {
            let (of_his, others) = lane.queue.drain(..).partition(&is);
            lane.queue = others;
            let of_his: VecDeque<C> = of_his;
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

    /// Lends a waiter's queue to a call in flight; false if it stays in its queue.
    pub fn donate_begun(&mut self, call: &mut C, donor: &C::Identity) -> bool {
        let before = key_of(call);
        if !call.donate(donor) {
            return false;
        }
        if let Some(lane) = self.queues.get_mut(&before) {
            lane.end(call.needs());
        }
        self.queues.entry(key_of(call)).or_default().begin(call.needs());
        true
    }

    /// Nothing is in flight any more.
    pub fn all_ended(&mut self) {
        (self.patient, self.bytes) = (0, 0);
        self.queues.retain(|_, lane| {
            (lane.calls, lane.once, lane.bytes) = (0, 0, 0);
            !lane.queue.is_empty()
        });
    }

    /// Takes out the waiting call that `is` names.
    pub fn remove(&mut self, is: impl Fn(&C) -> bool) -> Option<C> {
        if let Some(at) = self.free.iter().position(&is) {
            let call = self.free.remove(at)?;
            self.uncount(&call);
            return Some(call);
        }
        let (key, at) = self
            .queues
            .iter()
            .find_map(|(key, lane)| lane.queue.iter().position(&is).map(|at| (*key, at)))?;
        let lane = self.queues.get_mut(&key)?;
        let call = lane.queue.remove(at)?;
        if lane.queue.is_empty() {
            self.round_robin.retain(|other| *other != key);
        }
        self.uncount(&call);
        Some(call)
    }

    /// The waiting call that `is` names.
    pub fn find(&self, is: impl Fn(&C) -> bool) -> Option<&C> {
        let all = self.free.iter().chain(self.queues.values().flat_map(|lane| &lane.queue));
        all.into_iter().find(|call| is(call))
    }

    /// Returns the waiters, as `waiter` names them, of up to `most` calls that have not begun, from
    /// the `from`th on and round to it.
    pub fn waiters<W>(
        &self,
        from: usize,
        most: usize,
        waiter: impl Fn(&C) -> Option<W> + Clone,
    ) -> Vec<W> {
        let all = self.free.iter().chain(self.queues.values().flat_map(|lane| &lane.queue));
        let all = all.filter_map(waiter);
        let from = from % self.waiting.max(1);
        let some = all.clone().skip(from).chain(all.take(from));
        some.take(most).collect()
    }

    /// Takes all calls out.
    pub fn drain(&mut self) -> Vec<C> {
        self.round_robin.clear();
        (self.waiting, self.waiting_bytes) = (0, 0);
        let mut all: Vec<_> = self.free.drain(..).collect();
        all.extend(self.queues.values_mut().flat_map(|lane| lane.queue.drain(..)));
        all
    }

    /// Whether a call is in flight that may wait long at the proxy.
    pub fn any_patient(&self) -> bool {
        self.patient > 0
    }

    /// Calls that wait, and bytes of their messages.
    pub fn waiting(&self) -> (usize, usize) {
        (self.waiting, self.waiting_bytes)
    }

    fn next_free(&mut self, room: ChannelRoom) -> Option<C> {
        let (slot, patience) = (room.slots > 0, self.patient < PATIENT_MAX);
        let goes = |call: &C| {
            let needs = call.needs();
            (slot || !needs.once) && (patience || !needs.patient)
        };
        let at = self.free.iter().position(goes)?;
        let call = self.free.remove(at)?;
        self.patient += usize::from(call.needs().patient);
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
    fn queue_of(&mut self, call: &C) -> &mut VecDeque<C> {
        let key = key_of(call);
        let lane = self.queues.entry(key).or_default();
        if lane.queue.is_empty() {
            self.round_robin.push_back(key);
        }
        &mut lane.queue
    }

    fn count(&mut self, call: &C) {
        self.waiting += 1;
        self.waiting_bytes += call.frame_len();
    }

    fn uncount(&mut self, call: &C) {
        self.waiting -= 1;
        self.waiting_bytes -= call.frame_len();
    }
}

impl<C: QueuedCall> IdentityQueue<C> {
    fn begin(&mut self, needs: CallNeeds) {
        self.calls += 1;
        self.once += u32::from(needs.once);
        self.bytes += needs.bytes;
    }

    fn end(&mut self, needs: CallNeeds) {
        self.calls = self.calls.saturating_sub(1);
        self.once = self.once.saturating_sub(needs.once.into());
        self.bytes = self.bytes.saturating_sub(needs.bytes);
    }

    fn admits(&self, call: &C, room: ChannelRoom, payload: u64) -> bool {
        let leaves_some = |held: u32, free: u32| held.saturating_mul(FREE_PART) < free;
        let CallNeeds { once, bytes, .. } = call.needs();
        leaves_some(self.calls, room.calls)
            && (!once || leaves_some(self.once, room.slots))
            && (bytes == 0 || (self.bytes + bytes).saturating_mul(FREE_PART.into()) <= payload)
            && call.is_admitted(self.calls, self.bytes)
    }
}

fn key_of<C: QueuedCall>(call: &C) -> QueueKey {
    (call.queue_identity(), call.direction())
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
#[path = "call_queues_tests.rs"]
mod tests;
