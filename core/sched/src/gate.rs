//! How the heads of queues get past their meters.
//!
//! ```text
//!   new head ─► the unpassed meter that is due last ─ due, nobody waiting? ─► passed ─┐
//!                 ▲                └─ else: wait in its heap ─ due ─► passed ──────────┤
//!                 └──────────────────── another one left ◄────────────────────────────┘
//!                                        none left: pay all at once, ready
//! ```
//!
//! A head queues at each meter once and in turn. Were it to go back to a meter that
//! others put into debt meanwhile, a head with two contended meters would wait for a
//! moment at which both are due, which need never come. What it has passed it pays
//! with the rest, so a rate holds exactly in the long run and is exceeded, at worst, by
//! one request for each queue that waits elsewhere.
//!
//! A meter releases one waiter at a time, in the order of its own virtual time: 10,000
//! classes behind one meter cost a few heap operations a dispatch.

use crate::class::{HELD, PAID, QUEUES, Request};
use crate::dispatcher::Dispatcher;
use crate::lane::LANES;
use crate::slab::NONE;
use crate::tags::{VirtualTime, time_key, time_of_key};

impl Dispatcher {
    /// Brings the new head of a queue as far as its meters let it: ready or waiting.
    pub(crate) fn admit(&mut self, class: u32, lane: usize, queue: usize) {
        let index = self.classes[class].flows[lane].queues[queue].head;
        let request = &self.requests[index];
        if request.route != NONE && !request.has(PAID) {
            while let Some(at) = self.latest_due(class, lane, queue) {
                if !self.pass(class, lane, queue, at) {
                    self.wait(class, lane, queue, at);
                    return;
                }
            }
            self.pay(index, lane);
        }
        self.classes[class].flows[lane].ready |= 1 << queue;
    }

    /// Releases every waiter whose meter is due; to be called whenever time or meters moved.
    pub(crate) fn pump(&mut self) {
        for lane in 0..LANES.len() {
            while let Some((key, meter)) = self.lanes[lane].deadlines.first() {
                if time_of_key(key) > self.now {
                    break;
                }
                self.release(meter);
            }
        }
    }

    /// Withdraws the head of a queue from where its meters had let it come.
    pub(crate) fn withdraw(&mut self, class: u32, lane: usize, queue: usize) {
        let flow = &mut self.classes[class].flows[lane];
        let index = flow.queues[queue].head;
        let waits = flow.waiting >> queue & 1 == 1;
        flow.ready &= !(1 << queue);
        flow.waiting &= !(1 << queue);
        flow.queues[queue].passed = 0;
        if self.requests[index].has(HELD) {
            self.unhold(index, lane);
            self.refund_meters(index);
        } else if waits {
            self.leave(class, lane, queue);
        }
    }

    /// Charges all meters of a request at once, whatever they are owed.
    pub(crate) fn charge_meters(&mut self, index: u32) {
        self.requests[index].flags |= PAID;
        self.each_meter(index, |this, meter, units| {
            this.meters[meter].charge(units, this.now);
        });
    }

    /// Takes back what a request paid.
    pub(crate) fn refund_meters(&mut self, index: u32) {
        self.requests[index].flags &= !PAID;
        self.each_meter(index, |this, meter, units| this.meters[meter].pacer.refund(units));
    }

    /// Moves what a request paid to what `served` comes to.
    pub(crate) fn correct_meters(&mut self, index: u32, served: &Request) {
        let Some(links) = self.links_of(index) else { return };
        for link in links.links() {
            let meter = self.links[*link].meter;
            let rate = self.meters[meter].pacer.rate();
            let (old, new) = (self.requests[index].units(rate), served.units(rate));
            match new >= old {
                true => self.meters[meter].charge(new - old, self.now),
                false => self.meters[meter].pacer.refund(old - new),
            }
            self.sync_meter(meter);
        }
    }

    /// Lets the meters of a head that goes, or will not, count it out.
    pub(crate) fn unhold(&mut self, index: u32, lane: usize) {
        self.requests[index].flags &= !HELD;
        self.each_meter(index, |this, meter, units| this.meters[meter].unhold(lane, units));
    }

    /// Puts a meter where it belongs among both lanes' deadlines.
    pub(crate) fn sync_meter(&mut self, index: u32) {
        let meter = &self.meters[index];
        let key = time_key(meter.pacer.due(), u64::from(index));
        for (lane, state) in self.lanes.iter_mut().enumerate() {
            if !meter.waiting[lane].is_empty() && meter.gate_open(lane) {
                state.deadlines.put(key, index, &mut state.deadline_places);
            } else if state.deadline_places.holds(index) {
                state.deadlines.remove(index, &mut state.deadline_places);
            }
        }
    }

    /// Of the meters that a head has not passed, the position in its route of the one that
    /// is due last: the others are likely to be due by then.
    fn latest_due(&self, class: u32, lane: usize, queue: usize) -> Option<usize> {
        let fifo = &self.classes[class].flows[lane].queues[queue];
        let request = &self.requests[fifo.head];
        let links = self.routes[request.route].links().iter().enumerate();
        let left = links.filter(|(at, _)| fifo.passed >> at & 1 == 0);
        let meters = left.map(|(at, link)| (at, &self.meters[self.links[*link].meter]));
        let paying = meters.filter(|(_, meter)| request.units(meter.pacer.rate()) > 0);
        paying.max_by_key(|(at, meter)| (meter.pacer.due(), usize::MAX - at)).map(|(at, _)| at)
    }

    /// Passes a meter that is due and where nobody waits; false if it is not.
    fn pass(&mut self, class: u32, lane: usize, queue: usize, at: usize) -> bool {
        let fifo = &mut self.classes[class].flows[lane].queues[queue];
        let request = &self.requests[fifo.head];
        let link = &mut self.links[self.routes[request.route].links[at]];
        let meter = &mut self.meters[link.meter];
        if !meter.lets_pass(lane, self.now) {
            return false;
        }
        fifo.passed |= 1 << at;
        let units = request.units(meter.pacer.rate());
        let start = link.take_turn(meter.v, units, self.classes[class].weight);
        meter.v = meter.v.max(start);
        true
    }

    fn wait(&mut self, class: u32, lane: usize, queue: usize, at: usize) {
        let flow = &mut self.classes[class].flows[lane];
        flow.waiting |= 1 << queue;
        flow.queues[queue].at = at as u8;
        let request = &self.requests[flow.queues[queue].head];
        let link = &mut self.links[self.routes[request.route].links[at]];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let units = request.units(meter.pacer.rate());
        let start = link.take_turn(meter.v, units, self.classes[class].weight);
        let places = &mut self.lanes[lane].waiting_places;
        meter.waiting[lane].put(start.key(request.number), waiter(class, queue), places);
        self.sync_meter(index);
    }

    /// Lets the first waiter of a meter that is due go on, from either lane.
    fn release(&mut self, index: u32) {
        let meter = &mut self.meters[index];
        let open = (0..LANES.len()).filter(|lane| meter.gate_open(*lane));
        let firsts = open.filter_map(|lane| meter.waiting[lane].first().map(|first| (first, lane)));
        let ((key, item), lane) = firsts.min().expect("a meter with a deadline has a waiter");
        meter.waiting[lane].remove(item, &mut self.lanes[lane].waiting_places);
        meter.v = meter.v.max(VirtualTime::of_key(key));
        let (class, queue) = (item / QUEUES as u32, item as usize % QUEUES);
        let flow = &mut self.classes[class].flows[lane];
        flow.waiting &= !(1 << queue);
        flow.queues[queue].passed |= 1 << flow.queues[queue].at;
        self.admit(class, lane, queue);
        self.sync_meter(index);
        self.refresh(class, lane);
    }

    /// Takes a waiting head out of its meter's heap and gives its turn back.
    fn leave(&mut self, class: u32, lane: usize, queue: usize) {
        let own = &self.classes[class];
        let fifo = &own.flows[lane].queues[queue];
        let request = &self.requests[fifo.head];
        let link = &mut self.links[self.routes[request.route].links[usize::from(fifo.at)]];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let item = waiter(class, queue);
        let places = &mut self.lanes[lane].waiting_places;
        let key = meter.waiting[lane].key_of(item, places);
        meter.waiting[lane].remove(item, places);
        let units = request.units(meter.pacer.rate());
        link.give_back(VirtualTime::of_key(key), units, own.weight);
        self.sync_meter(index);
    }

    /// Charges all meters of a head and counts it among those that wait for slots.
    fn pay(&mut self, index: u32, lane: usize) {
        self.requests[index].flags |= PAID | HELD;
        self.each_meter(index, |this, meter, units| {
            this.meters[meter].charge(units, this.now);
            this.meters[meter].hold(lane, units);
        });
    }

    /// Calls `act` with each meter that a request pays and the units, then sees to its deadline.
    fn each_meter(&mut self, index: u32, act: impl Fn(&mut Dispatcher, u32, u64)) {
        let Some(route) = self.links_of(index) else { return };
        for link in route.links() {
            let meter = self.links[*link].meter;
            let units = self.requests[index].units(self.meters[meter].pacer.rate());
            if units > 0 {
                act(self, meter, units);
                self.sync_meter(meter);
            }
        }
    }

    fn links_of(&self, index: u32) -> Option<crate::meter::Route> {
        match self.requests[index].route {
            NONE => None,
            route => Some(self.routes[route]),
        }
    }
}

/// A queue's number among waiters.
pub(crate) fn waiter(class: u32, queue: usize) -> u32 {
    class * QUEUES as u32 + queue as u32
}
