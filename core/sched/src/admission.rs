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
//! *In line*: a meter that is short lets one waiter of a lane go at a time, in the order of its own
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

use model::{Amount, OpKind};

use crate::class::{PAID, QUEUES, QueuedRequest};
use crate::deferred::DeferredCharge;
use crate::dispatcher::Dispatcher;
use crate::lane::LANES;
use crate::meter::Meter;
use crate::slab::NONE;
use crate::tags::{VirtualTime, time_key};

impl Dispatcher {
    /// Brings the new head of a queue as far as its meters let it: ready or waiting.
    pub(crate) fn admit(&mut self, class: u32, lane: usize, queue: usize) {
        let fifo = &self.classes[class].lanes[lane].queues[queue];
        let visited = fifo.passed | fifo.tried;
        let now = self.now;
        let blocks = |meter: &Meter| meter.pacer.due() > now || !meter.has_no_waiters();
        match self.blocking_meter(fifo.head, visited, blocks) {
            Some(at) => self.wait_at_meter(class, lane, queue, at),
            None => self.make_ready(class, lane, queue),
        }
    }

    /// Whether the ready head of a queue may be dispatched now. If a meter that it has no right to
    /// pass fell into debt, it goes back in line there.
    pub(crate) fn confirm(&mut self, class: u32, lane: usize, queue: usize) -> bool {
        let fifo = &self.classes[class].lanes[lane].queues[queue];
        let now = self.now;
        let debtor = self.blocking_meter(fifo.head, fifo.passed, |meter| meter.pacer.due() > now);
        if let Some(at) = debtor {
            self.requeue_at_meter(class, lane, queue, at);
        }
        debtor.is_none()
    }

    /// Releases every waiter whose meter lets it; to be called whenever time or meters moved.
    #[inline]
    pub(crate) fn admit_ready(&mut self) {
        while let Some(meter) = self.lanes.iter().find_map(|state| state.due_meter(self.now)) {
            self.release_first_waiter(meter);
        }
    }

    /// Removes the head of a queue from where its meters had let it come.
    pub(crate) fn withdraw(&mut self, class: u32, lane: usize, queue: usize) {
        let standing = &self.classes[class].lanes[lane];
        if standing.waiting >> queue & 1 == 1 {
            self.leave_meter(class, lane, queue, true);
        } else {
            self.count_ready(class, lane, queue);
            self.unready(class, lane, queue);
        }
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        (fifo.passed, fifo.tried) = (0, 0);
    }

    /// Charges all meters of a request, whatever they are owed.
    pub(crate) fn charge_meters(&mut self, index: u32) {
        let request = &mut self.requests[index];
        if request.route == NONE || request.has(PAID) {
            return;
        }
        request.flags |= PAID;
        let QueuedRequest { route, kind, amount, class, cost, .. } = *request;
        self.move_charge(route, kind, Amount::default(), amount);
        if !kind.never_delayed() {
            self.pay_deferred(route, amount, class, cost);
        }
    }

    /// Takes back what a request paid.
    pub(crate) fn refund_meters(&mut self, index: u32) {
        let QueuedRequest { route, kind, amount, .. } = self.requests[index];
        self.move_charge(route, kind, amount, Amount::default());
    }

    /// Moves the charge for `old` at the meters of a chain to the charge for `new`. For a kind that
    /// is never delayed, the charge is deferred.
    pub(crate) fn move_charge(&mut self, route: u32, kind: OpKind, old: Amount, new: Amount) {
        if route == NONE {
            return;
        }
        let route = self.routes[route];
        for link in route.links() {
            let link = &mut self.links[*link];
            let index = link.meter;
            let meter = &mut self.meters[index];
            let rate = meter.pacer.rate();
            let (old, new) = (rate.units_of(old), rate.units_of(new));
            if kind.never_delayed() {
                meter.count(old, new, self.now);
                link.deferred.replace(old, new, meter.deferred_max());
                continue;
            }
            match new >= old {
                true => meter.charge(new - old, self.now),
                false => meter.refund(old - new),
            }
            self.sync_meter(index);
        }
    }

    /// Pays what the class of a request that is dispatched has deferred at its meters: of each at
    /// most as much as the request itself. Its turn among the waiters counts for more accordingly.
    fn pay_deferred(&mut self, route: u32, amount: Amount, class: u32, cost: u64) {
        let route = self.routes[route];
        for link in route.links() {
            let link = &mut self.links[*link];
            if link.deferred == DeferredCharge::NONE {
                continue;
            }
            let (index, phi) = (link.meter, self.classes[class].phi);
            let meter = &mut self.meters[index];
            let own = meter.pacer.rate().units_of(amount);
            let paid = link.deferred.take(own);
            if paid > 0 {
                meter.charge_deferred(paid, self.now);
                let more = u128::from(cost) * u128::from(paid) / u128::from(own);
                link.finish = link.finish.after(more as u64, phi);
                self.sync_meter(index);
            }
        }
    }

    /// Updates the position of a meter among both lanes' deadlines.
    pub(crate) fn sync_meter(&mut self, index: u32) {
        let meter = &self.meters[index];
        for (lane, state) in self.lanes.iter_mut().enumerate() {
            if !meter.waiting[lane].is_empty() {
                let key = time_key(meter.release_at(lane), u64::from(index));
                state.deadlines.put(key, index, &mut state.deadline_positions);
            } else if state.deadline_positions.holds(index) {
                state.deadlines.remove(index, &mut state.deadline_positions);
            }
        }
    }

    /// Of a request's meters that it pays and that are not in `visited`, the position in its chain
    /// of the one that is due last among those that block it. The others are likely to be due by
    /// then.
    fn blocking_meter(
        &self,
        index: u32,
        visited: u8,
        blocks: impl Fn(&Meter) -> bool,
    ) -> Option<usize> {
        let request = &self.requests[index];
        match request.route == NONE || request.has(PAID) {
            true => None,
            false => self.blocking_meter_of(request, visited, blocks),
        }
    }

    /// Apart, so that a request without meters does not pay for what it does not need.
    #[inline(never)]
    fn blocking_meter_of(
        &self,
        request: &QueuedRequest,
        visited: u8,
        blocks: impl Fn(&Meter) -> bool,
    ) -> Option<usize> {
        let links = self.routes[request.route].links().iter().enumerate();
        let left = links.filter(|(at, _)| visited >> at & 1 == 0);
        let meters = left.map(|(at, link)| (at, &self.meters[self.links[*link].meter]));
        let paid = meters.filter(|(_, meter)| meter.pacer.rate().units_of(request.amount) > 0);
        let blocking = paid.filter(|(_, meter)| blocks(meter));
        blocking.max_by_key(|(at, meter)| (meter.pacer.due(), usize::MAX - at)).map(|(at, _)| at)
    }

    /// Lets the first waiter of a meter go on, from either lane. It has passed if it was its turn,
    /// and may try if the meter has its whole burst.
    #[inline(never)]
    fn release_first_waiter(&mut self, index: u32) {
        let meter = &self.meters[index];
        let open = (0..LANES.len()).filter(|lane| meter.release_at(*lane) <= self.now);
        let firsts = open.filter_map(|lane| meter.waiting[lane].first().map(|first| (first, lane)));
        let ((_, item), lane) = firsts.min().expect("a meter with a deadline has a waiter");
        let (class, queue) = (item / QUEUES as u32, item as usize % QUEUES);
        let in_turn = meter.no_passed_heads(lane);
        if !in_turn {
            self.meters[index].count_try(self.now);
        }
        self.leave_meter(class, lane, queue, !in_turn);
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        match in_turn {
            true => fifo.passed |= 1 << fifo.at,
            false => fifo.tried |= 1 << fifo.at,
        }
        self.admit(class, lane, queue);
        self.refresh(class, lane);
    }

    /// Puts a ready head back in line at a meter of its chain.
    fn requeue_at_meter(&mut self, class: u32, lane: usize, queue: usize, at: usize) {
        self.unready(class, lane, queue);
        self.classes[class].lanes[lane].queues[queue].tried = 0;
        self.wait_at_meter(class, lane, queue, at);
        self.refresh(class, lane);
    }

    fn wait_at_meter(&mut self, class: u32, lane: usize, queue: usize, at: usize) {
        self.count_ready(class, lane, queue);
        let own = &mut self.classes[class];
        let standing = &mut own.lanes[lane];
        standing.waiting |= 1 << queue;
        standing.queues[queue].at = at as u8;
        let request = &self.requests[standing.queues[queue].head];
        let link = &mut self.links[self.routes[request.route].links[at]];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let start = link.reserve_turn(meter.v, request.cost, own.phi);
        let places = &mut self.lanes[lane].waiting_positions;
        meter.waiting[lane].put(start.key(request.number), waiter_id(class, queue), places);
        self.sync_meter(index);
    }

    /// Takes a waiting head out of its meter's heap; `unserved` gives its turn back.
    fn leave_meter(&mut self, class: u32, lane: usize, queue: usize, unserved: bool) {
        self.count_metered(class, lane, queue);
        let own = &mut self.classes[class];
        own.lanes[lane].waiting &= !(1 << queue);
        let fifo = &own.lanes[lane].queues[queue];
        let request = &self.requests[fifo.head];
        let link = &mut self.links[self.routes[request.route].links[usize::from(fifo.at)]];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let item = waiter_id(class, queue);
        let places = &mut self.lanes[lane].waiting_positions;
        let start = VirtualTime::of_key(meter.waiting[lane].key_of(item, places));
        meter.waiting[lane].remove(item, places);
        match unserved {
            true => link.refund_turn(start, request.cost, own.phi),
            false => meter.v = meter.v.max(start),
        }
        self.sync_meter(index);
    }

    /// Marks a head ready; the meters that let it go in its turn make others wait until it went.
    fn make_ready(&mut self, class: u32, lane: usize, queue: usize) {
        let standing = &mut self.classes[class].lanes[lane];
        standing.ready |= 1 << queue;
        if standing.queues[queue].passed != 0 {
            self.count_passed_heads(class, lane, queue, 1);
        }
    }

    /// Marks a head that was ready as not ready.
    pub(crate) fn unready(&mut self, class: u32, lane: usize, queue: usize) {
        let standing = &mut self.classes[class].lanes[lane];
        standing.ready &= !(1 << queue);
        if standing.queues[queue].passed != 0 {
            self.count_passed_heads(class, lane, queue, -1);
        }
    }

    fn count_passed_heads(&mut self, class: u32, lane: usize, queue: usize, change: i32) {
        let fifo = self.classes[class].lanes[lane].queues[queue];
        let route = self.routes[self.requests[fifo.head].route];
        for (at, link) in route.links().iter().enumerate() {
            if fifo.passed >> at & 1 == 1 {
                let meter = self.links[*link].meter;
                self.meters[meter].count_passed_head(lane, change);
                self.sync_meter(meter);
            }
        }
    }
}

/// A queue's number among waiters.
pub(crate) fn waiter_id(class: u32, queue: usize) -> u32 {
    class * QUEUES as u32 + queue as u32
}
