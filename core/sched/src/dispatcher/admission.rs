//! Admission: how the heads of queues get past their meters.
//!
//! ```text
//!            every meter due, no waiters ───────────────────────────────► ready ─► dispatch,
//!   new head ─┤                                                           ▲  ▲     pays all
//!            └► the meter due last: wait in its heap ─ first in line ─────┘  │
//!                     ▲                                when it is due        │
//!                     │            in debt by then: back in line             │
//!                     └──────────────────────────────────────────────────────┘
//! ```
//!
//! *In line*: a meter that is short lets one waiter of a target's lane go at a time, in the order of its own
//! virtual time. The next one follows when that one was dispatched. So 10,000 classes behind one
//! meter cost a few heap operations a dispatch, and weights hold among them whatever runs beside. A
//! waiter that was let go has a right to go, even if another of its meters delayed it and this one
//! fell into debt meanwhile. Otherwise a head with two contended meters would wait for a moment at
//! which both are due, which need never come. A rate holds exactly in the long run nevertheless, as
//! all is charged.
//!
//! *Not short*: a meter that has saved up its whole burst lets its waiters try. So a head that does
//! not fit the free slots, or whose turn by start tags is far off, delays neither the others nor a
//! reservation. A head that finds the meter in debt when it is dispatched goes back in line. If all
//! tried at once, 10,000 classes would delay one call for milliseconds. So a meter lets 64 try and
//! then one each 10 µs; and a call that has sent 64 back returns nothing and its deadline is now.

use model::Amount;

use super::Dispatcher;
use crate::index::{LanePlace, RequestIndex};
use crate::lanes::{NewHead, QueuePlace};

impl Dispatcher {
    /// Brings a new head as far as its meters let it.
    #[inline]
    pub(super) fn admit_new(&mut self, head: NewHead) {
        if !head.is_ready {
            self.admit(head.place);
        }
    }

    /// Brings the new head of a queue as far as its meters let it: ready or waiting.
    pub(super) fn admit(&mut self, place: QueuePlace) {
        match self.line_for(place) {
            Some(at) => self.wait_at_meter(place, at),
            None => self.set_ready(place, true),
        }
    }

    /// Whether the ready head of a queue may be dispatched now. If a meter that it has no right to
    /// pass fell into debt, it goes back in line there.
    #[inline]
    pub(super) fn confirm(&mut self, place: QueuePlace) -> bool {
        let Some(head) = self.lanes.paying_head(place) else { return true };
        let debtor = self.meters.debtor_of(head.chain, head.amount, head.passed, self.now);
        if let Some(at) = debtor {
            self.requeue_at_meter(place, at);
        }
        debtor.is_none()
    }

    /// Releases every waiter whose meter lets it; to be called whenever time or meters moved.
    #[inline]
    pub(super) fn admit_ready(&mut self) {
        while self.meters.has_due(self.now) {
            self.release_next_waiter();
        }
    }

    /// Removes the head of a queue from where its meters had let it come.
    pub(super) fn withdraw(&mut self, place: QueuePlace) {
        if self.lanes.is_waiting(place) {
            self.leave_meter(place, true);
        } else {
            self.lanes.count_ready(place, self.now, &mut self.observation);
            self.set_ready(place, false);
        }
        self.lanes.forget_passed(place);
    }

    /// Charges all meters of a request, whatever they are owed.
    pub(super) fn charge_meters(&mut self, index: RequestIndex) {
        let request = *self.lanes.request(index);
        let Some(chain) = request.unpaid_chain() else { return };
        self.lanes.set_paid(index);
        let (kind, amount) = (request.kind, request.amount);
        let is_deferred = self.meters.charge(chain, kind, Amount::default(), amount, self.now);
        if is_deferred && !kind.never_delayed() {
            let weight = self.lanes.phi(request.class);
            self.meters.pay_deferred(chain, amount, request.cost, weight, self.now);
        }
    }

    /// Marks a head as ready or not; the meters that let it go in its turn make others wait until it
    /// went.
    #[inline]
    pub(super) fn set_ready(&mut self, place: QueuePlace, is_ready: bool) {
        if let Some((chain, passed)) = self.lanes.set_ready(place, is_ready) {
            let change = if is_ready { 1 } else { -1 };
            self.meters.count_passed_heads(chain, passed, self.line_of(place), change);
        }
    }

    /// The position of the meter at which the head of a queue has to wait.
    #[inline]
    fn line_for(&self, place: QueuePlace) -> Option<u8> {
        let head = self.lanes.paying_head(place)?;
        self.meters.line_for(head.chain, head.amount, head.visited, self.now)
    }

    /// Lets the next waiter of a meter go on. It has passed if it was its turn, and may try if the
    /// meter has its whole burst.
    #[inline(never)]
    fn release_next_waiter(&mut self) {
        let Some(due) = self.meters.next_waiter(self.now) else { return };
        let place = QueuePlace::of_waiter(due.waiter, due.line.lane);
        self.leave_meter(place, !due.is_in_turn);
        self.lanes.let_go(place, due.is_in_turn);
        self.admit(place);
        self.lanes.refresh(place.class, place.lane, self.now, &mut self.observation);
    }

    /// Puts a ready head back in line at a meter of its chain.
    fn requeue_at_meter(&mut self, place: QueuePlace, at: u8) {
        self.set_ready(place, false);
        self.lanes.forget_tried(place);
        self.wait_at_meter(place, at);
        self.lanes.refresh(place.class, place.lane, self.now, &mut self.observation);
    }

    fn wait_at_meter(&mut self, place: QueuePlace, at: u8) {
        self.lanes.count_ready(place, self.now, &mut self.observation);
        self.lanes.set_waiting(place, at);
        self.meters.enter(&self.lanes.waiting_head(place));
    }

    /// Takes a waiting head out of its meter's line; `unserved` gives its turn back.
    pub(super) fn leave_meter(&mut self, place: QueuePlace, unserved: bool) {
        let head = self.lanes.waiting_head(place);
        let meter = || self.meters.at(head.chain, head.at);
        self.lanes.count_metered(place, meter, self.now, &mut self.observation);
        self.lanes.clear_waiting(place);
        self.meters.leave(&head, unserved);
    }

    /// The line in which the head of a queue waits at any meter.
    #[inline]
    pub(super) fn line_of(&self, place: QueuePlace) -> LanePlace {
        LanePlace { target: self.lanes.target_of(place.class), lane: place.lane }
    }
}
