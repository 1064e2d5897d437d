//! Calls that wait until they may begin: a queue for each identity, served in turn.
//!
//! ```text
//!   push ─► queue of identity 1: call, call ─┐
//!           queue of identity 2: call ───────┼─ in turn, where the window is open ─► next
//!           free of the window: call ────────┘ before all others
//! ```
//!
//! Within an identity the order is that of coming; a call whose turn it is and which needs a
//! slot that is not there holds up its own identity only.

use std::collections::VecDeque;
use std::sync::Arc;

use fuse::{Errno, FuseRequestId};
use rustc_hash::FxHashMap;

use super::call::{CallWaiter, ServerCall};
use super::identities::SessionIdentity;

/// A channel's waiting calls, and what each identity has in flight.
#[derive(Debug, Default)]
pub(crate) struct IdentityQueues {
    queues: FxHashMap<u32, IdentityQueue>,
    /// Identities with calls that wait; each once.
    round_robin: VecDeque<u32>,
    free: VecDeque<ServerCall>,
    /// Calls in flight that may wait long at the proxy.
    patient: usize,
    waiting: usize,
    waiting_bytes: usize,
}

#[derive(Debug, Default)]
struct IdentityQueue {
    queue: VecDeque<ServerCall>,
    calls: u32,
    bytes: u64,
}

impl IdentityQueues {
    /// Appends a call to the queue of its identity, or to the calls that need no window.
    pub(crate) fn push(&mut self, call: ServerCall) {
        self.count(&call);
        if call.spec.free {
            return self.free.push_back(call);
        }
        self.lane(call.pays().number).queue.push_back(call);
    }

    /// A call comes back, to go before what came after it.
    pub(crate) fn push_front(&mut self, call: ServerCall) {
        self.count(&call);
        if call.spec.free {
            return self.free.push_front(call);
        }
        self.lane(call.pays().number).queue.push_front(call);
    }

    /// The next call that may begin, counted as in flight; with `slot` it may need one. Or one
    /// that can never begin, and why.
    pub(crate) fn next(&mut self, slot: bool) -> Option<Result<ServerCall, (ServerCall, Errno)>> {
        if let Some(call) = self.next_free(slot) {
            return Some(Ok(call));
        }
        let mut left = self.round_robin.len();
        while left > 0 {
            left -= 1;
            let number = self.round_robin.pop_front()?;
            let lane = self.queues.get_mut(&number).expect("an identity in turn has a queue");
            let head = lane.queue.front().expect("a queue in turn has a call");
            if head.pays().number != head.payer.number && head.pays().refused().is_some() {
                self.round_robin.push_front(number);
                self.revoke_head_donation(number);
                left = self.round_robin.len();
                continue;
            }
            let refused = head.payer.refused();
            let goes = refused.is_some() || lane.admits(head, slot);
            if !goes {
                self.round_robin.push_back(number);
                continue;
            }
            let call = lane.queue.pop_front().expect("the queue has a call");
            if !lane.queue.is_empty() {
                self.round_robin.push_back(number);
            }
            if let Some(error) = refused {
                self.uncount(&call);
                return Some(Err((call, error)));
            }
            lane.begin(&call);
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
        if let Some(lane) = self.queues.get_mut(&call.pays().number) {
            lane.end(call);
        }
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
        self.round_robin.retain(|number| !self.queues[number].queue.is_empty());
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
        let before = call.pays().number;
        if !call.donate(donor) {
            return false;
        }
        if let Some(lane) = self.queues.get_mut(&before) {
            lane.end(call);
        }
        self.queues.entry(donor.number).or_default().begin(call);
        true
    }

    /// Nothing is in flight any more.
    pub(crate) fn all_ended(&mut self) {
        self.patient = 0;
        self.queues.retain(|_, lane| {
            (lane.calls, lane.bytes) = (0, 0);
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
        let (number, at) = self
            .queues
            .iter()
            .find_map(|(number, lane)| lane.queue.iter().position(is).map(|at| (*number, at)))?;
        let lane = self.queues.get_mut(&number)?;
        let call = lane.queue.remove(at)?;
        if lane.queue.is_empty() {
            self.round_robin.retain(|other| *other != number);
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

    fn next_free(&mut self, slot: bool) -> Option<ServerCall> {
        let room = self.patient < PATIENT_MAX;
        let goes = |call: &ServerCall| (slot || !call.spec.once) && (room || !call.spec.patient);
        let at = self.free.iter().position(goes)?;
        let call = self.free.remove(at)?;
        self.patient += usize::from(call.spec.patient);
        self.uncount(&call);
        Some(call)
    }

    /// Takes back the queue that was lent to the first call: its owner may not use it any more.
    fn revoke_head_donation(&mut self, number: u32) {
        let Some(mut call) = self.queues.get_mut(&number).and_then(|lane| lane.queue.pop_front())
        else {
            return;
        };
        if self.queues[&number].queue.is_empty() {
            self.round_robin.retain(|other| *other != number);
        }
        self.uncount(&call);
        call.revoke_donation();
        self.push(call);
    }

    /// The identity's queue, which is about to have a call.
    fn lane(&mut self, number: u32) -> &mut IdentityQueue {
        let lane = self.queues.entry(number).or_default();
        if lane.queue.is_empty() {
            self.round_robin.push_back(number);
        }
        lane
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
        self.bytes += call.spec.bytes;
    }

    fn end(&mut self, call: &ServerCall) {
        self.calls = self.calls.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(call.spec.bytes);
    }

    fn admits(&self, call: &ServerCall, slot: bool) -> bool {
        (slot || !call.spec.once) && call.pays().admits(self.calls, self.bytes, call.spec.bytes)
    }
}

/// Calls of a channel that may wait long at the proxy: fewer than its tags, so that what ends
/// their waiting can be said.
const PATIENT_MAX: usize = 96;
/// Queues that are kept although nothing is in them.
const QUEUES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::call::CallSpec;
    use super::super::identities::SessionIdentity;
    use super::*;
    use ninep::dialect::HandleList;
    use ninep::{Fid, Request};
    use std::sync::Arc;

    fn call(payer: &Arc<SessionIdentity>, fid: u32) -> ServerCall {
        let ask = CallSpec::new(HandleList::NONE, Request::Clunk { fid: Fid(fid) }).with_bytes(100);
        ServerCall::new(payer.clone(), ask, None, |_| {})
    }

    fn fid(call: &ServerCall) -> u8 {
        *call.spec.frame.bytes().last_chunk::<4>().unwrap().first().unwrap()
    }

    fn next(lanes: &mut IdentityQueues) -> Option<u8> {
        lanes.next(true).map(|call| fid(&call.unwrap()))
    }

    #[test]
    fn identities_take_turns_and_each_keeps_its_order() {
        let (first, second) =
            (SessionIdentity::known(1, 9, 9999), SessionIdentity::known(2, 9, 9999));
        let mut lanes = IdentityQueues::default();
        for number in 1..4 {
            lanes.push(call(&first, number));
        }
        lanes.push(call(&second, 11));
        lanes.push(call(&second, 12));
        let order: Vec<_> = std::iter::from_fn(|| next(&mut lanes)).collect();
        assert_eq!(order, [1, 11, 2, 12, 3]);
        assert_eq!(lanes.waiting(), (0, 0));
    }

    #[test]
    fn a_full_window_holds_up_its_own_identity_only() {
        let (full, other) = (SessionIdentity::known(1, 1, 9999), SessionIdentity::known(2, 9, 150));
        let mut lanes = IdentityQueues::default();
        for number in 1..4 {
            lanes.push(call(&full, number));
            lanes.push(call(&other, 10 + number));
        }
        assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(1), Some(11)));
        assert_eq!(next(&mut lanes), None, "150 bytes have room for one of 100");
        lanes.ended(&call(&full, 1));
        assert_eq!((next(&mut lanes), next(&mut lanes)), (Some(2), None));
        lanes.all_ended();
        let mut both = [next(&mut lanes), next(&mut lanes)];
        both.sort_unstable();
        assert_eq!((both, next(&mut lanes)), ([Some(3), Some(12)], None));
    }

    #[test]
    fn what_gives_back_waits_for_no_window_and_what_needs_a_slot_waits_for_one() {
        let payer = SessionIdentity::known(1, 1, 9999);
        let mut lanes = IdentityQueues::default();
        lanes.push(call(&payer, 1));
        lanes.push(call(&payer, 2));
        assert_eq!(next(&mut lanes), Some(1));
        let mut unlock = call(&payer, 3);
        unlock.spec.free = true;
        lanes.push(unlock);
        assert_eq!(next(&mut lanes), Some(3));
        let mut make = call(&SessionIdentity::known(2, 9, 9999), 4);
        make.spec.once = true;
        lanes.push(make);
        assert!(lanes.next(false).is_none());
        assert_eq!(next(&mut lanes), Some(4));
    }

    #[test]
    fn those_who_wait_for_locks_leave_room_for_those_who_give_them_back() {
        let payer = SessionIdentity::known(1, 1, 9999);
        let mut lanes = IdentityQueues::default();
        let lock = |patient| {
            let mut lock = call(&payer, 7);
            (lock.spec.free, lock.spec.patient) = (true, patient);
            lock
        };
        (0..PATIENT_MAX + 1).for_each(|_| lanes.push(lock(true)));
        (0..PATIENT_MAX).for_each(|_| assert!(next(&mut lanes).is_some()));
        assert_eq!(next(&mut lanes), None);
        lanes.push(lock(false));
        assert!(next(&mut lanes).is_some(), "an unlock");
        lanes.ended(&lock(true));
        assert!(next(&mut lanes).is_some(), "the last one's turn");
    }

    #[test]
    fn who_waits_is_looked_at_in_turn_and_round_again() {
        let (first, second) =
            (SessionIdentity::known(1, 9, 9999), SessionIdentity::known(2, 9, 9999));
        let mut lanes = IdentityQueues::default();
        assert!(lanes.waiters(3, 2).is_empty());
        for number in 1..=5 {
            let mut call = call(if number % 2 == 0 { &first } else { &second }, number);
            call.waiter =
                Some(CallWaiter { request: FuseRequestId(number.into()), thread: number });
            lanes.push(call);
        }
        let mut seen: Vec<_> =
            [0, 2, 4].iter().flat_map(|from| lanes.waiters(*from, 2)).map(|w| w.thread).collect();
        assert_eq!(seen.len(), 6);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn who_was_refused_is_told_for_each_call() {
        let payer = SessionIdentity::known(1, 9, 9999);
        let mut lanes = IdentityQueues::default();
        lanes.push(call(&payer, 1));
        lanes.push(call(&payer, 2));
        payer.refuse(Errno::PERM);
        for _ in 0..2 {
            let (_, error) = lanes.next(true).unwrap().unwrap_err();
            assert_eq!(error, Errno::PERM);
        }
        assert!(lanes.next(true).is_none());
    }
}
