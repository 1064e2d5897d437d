//! The choice of the next request in a lane, and its effect on start tags and slots.
//!
//! ```text
//!   1. urgent                            holds nothing, waits for nothing, is charged
//!   2. reserved and due, earliest first  does not fit? freed slots collect, nothing passes
//!   3. smallest S                        does not fit? a smaller one may pass it, until D
//!                                        slots have or it leads by as much; then freed
//!                                        slots collect
//! ```
//!
//! On dispatch F := min(S + c/φ, v + lag_max/φ) and the next S := max(v, F). v follows the smallest
//! S among the ready heads and does not move for reservations and urgent requests. The bound on F
//! limits how long service beyond its weight (a reservation, a time alone) counts against a class.

use crate::class::{Class, NO_SIZE, QueuedRequest, RESERVED, RequestStage};
use crate::dispatcher::{Dispatched, Dispatcher};
use crate::ids::{RequestId, SubjectId};
use crate::lane::{DEVICE, LANES};
use crate::slab::NONE;

/// The next step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Urgent,
    Reservation {
        class: u32,
    },
    Weight {
        class: u32,
    },
    /// `class` overtakes the head `over`, which does not fit.
    Backfill {
        class: u32,
        over: u32,
    },
}

impl Dispatcher {
    /// The next step of a lane without urgent requests, if any.
    pub(crate) fn choose(&self, lane: usize) -> Option<Choice> {
        let state = &self.lanes[lane];
        if state.free() == 0 {
            return None;
        }
        let (size, head) = state.ready.first()?;
        if let Some((due, class)) = state.first_reserved()
            && due <= self.reservation_clock.at(self.now)
        {
            let fits = self.slots_of_reservation(class, lane) <= state.free();
            return fits.then_some(Choice::Reservation { class });
        }
        let free = state.free_for_weights();
        if state.slots(size) <= free {
            return Some(Choice::Weight { class: head });
        }
        if free == 0 || self.classes[head].lanes[lane].overtaken >= state.slots_max {
            return None;
        }
        let (_, class) = state.ready.first_up_to(free.ilog2() as u8)?;
        self.may_overtake(class, head, lane).then_some(Choice::Backfill { class, over: head })
    }

    /// Whether a class is near enough to the head to overtake it: by no more than D of the smallest
    /// requests. A budget for each head alone would start again with the next head. Then a light
    /// class of small requests could overtake every single request of a heavy class of large ones.
    /// It would end up with more than the heavy class, whatever the weights.
    fn may_overtake(&self, class: u32, head: u32, lane: usize) -> bool {
        let lead = self.target.costs.unit_cost().saturating_mul(self.lanes[lane].slots_max.into());
        let own = &self.classes[class];
        let head_start = self.classes[head].lanes[lane].start;
        own.lanes[lane].start <= head_start.after(lead, own.phi)
    }

    /// Dispatches what [`Dispatcher::choose`] chose; the choice must still hold. `None` if a meter
    /// of the head fell into debt since it became ready: it waits there, choose again.
    pub(crate) fn start(&mut self, lane: usize, choice: Choice) -> Option<Dispatched> {
        let (class, least) = match choice {
            Choice::Urgent => return Some(self.start_urgent(lane)),
            Choice::Reservation { class } => {
                let queue = self.reserved_queue(class, lane).expect("a reserved class has a head");
                if !self.confirm(class, lane, queue) {
                    return None;
                }
                self.charge_reserve(class, lane, queue);
                return Some(self.start_head(class, lane, queue));
            }
            Choice::Weight { class } => (class, class),
            Choice::Backfill { class, over } => (class, over),
        };
        let standing = &self.classes[class].lanes[lane];
        let queue = standing.first(&self.requests).expect("a ready class lane has a head");
        if !self.confirm(class, lane, queue) {
            return None;
        }
        self.advance_virtual_time(class, least, lane);
        Some(self.start_head(class, lane, queue))
    }

    /// Moves v to the least start tag, and counts what overtakes its class.
    fn advance_virtual_time(&mut self, class: u32, least: u32, lane: usize) {
        let least_start = self.classes[least].lanes[lane].start;
        let state = &mut self.lanes[lane];
        state.v = state.v.max(least_start);
        if least != class {
            let passed = state.slots(self.classes[class].lanes[lane].size);
            let overtaken = &mut self.classes[least].lanes[lane].overtaken;
            *overtaken = overtaken.saturating_add(passed);
        }
    }

    /// Takes the head of a queue out, takes its slots, and moves its class on.
    fn start_head(&mut self, class: u32, lane: usize, queue: usize) -> Dispatched {
        let index = self.classes[class].lanes[lane].queues[queue].head;
        self.count_head(class, lane, queue);
        if self.requests[index].route != NONE {
            self.unready(class, lane, queue);
            self.charge_meters(index);
        }
        let Dispatcher { classes, lanes, requests, .. } = self;
        let (own, state) = (&mut classes[class], &mut lanes[lane]);
        let request = &mut requests[index];
        let phi = own.phi_of(request.kind);
        let standing = &mut own.lanes[lane];

        let slots = state.slots(request.size);
        assert!(slots <= state.free(), "{slots} slots taken where {} are free", state.free());
        state.slots_in_use += slots;
        if request.has(RESERVED) {
            state.reservation_slots_in_use += slots;
        }
        request.slots = slots;
        state.note_served(class, self.now);
        let bound = state.lag_bound(request.cost, phi);
        standing.finish = standing.start.after(request.cost, phi).min(bound);
        standing.start = standing.finish.max(state.v);
        standing.overtaken = 0;
        standing.moved_for_remote = false;
        if lane == DEVICE {
            own.slots_in_use += slots;
            own.delay.carry_over();
            self.single_request = (state.slots_in_use == slots).then_some(index);
        }
        own.queued -= 1;
        standing.ready &= !(1 << queue);
        let fifo = &mut standing.queues[queue];
        (fifo.passed, fifo.tried) = (0, 0);
        fifo.unlink(index, requests, self.now);
        if !fifo.is_empty() {
            self.admit(class, lane, queue);
        }
        if lane == DEVICE {
            self.apply_delay(class);
        }
        self.refresh(class, lane);
        self.run(index)
    }

    fn start_urgent(&mut self, lane: usize) -> Dispatched {
        let state = &mut self.lanes[lane];
        let index = state.urgent.head;
        state.urgent.unlink(index, &mut self.requests, self.now);
        let QueuedRequest { class, cost, .. } = self.requests[index];
        self.classes[class].queued -= 1;
        self.single_request = self.single_request.filter(|_| lane != DEVICE);
        self.charge_tags(index, 0, cost);
        self.charge_meters(index);
        self.run(index)
    }

    fn run(&mut self, index: u32) -> Dispatched {
        self.queued -= 1;
        let request = &mut self.requests[index];
        request.stage = RequestStage::Running;
        request.started = self.now;
        let class = &mut self.classes[request.class];
        class.running += 1;
        let write_mode = class.write_mode;
        if class.watched != 0 {
            self.dependents.dispatched(class.watched, request.amount);
        }
        let id = RequestId { index, generation: self.requests.generation(index) };
        let request = &self.requests[index];
        let (subject, of) = (request.subject, request.class);
        Dispatched {
            id,
            token: request.token,
            subject: SubjectId { index: subject, generation: self.subjects.generation(subject) },
            class: self.classes[of].id,
            kind: request.kind,
            lane: LANES[usize::from(request.lane)],
            slots: request.slots,
            queued: request.started.since(request.arrived),
            write_mode,
        }
    }

    /// Updates the position of a class in a lane after its heads, cap or tags changed.
    pub(crate) fn refresh(&mut self, class: u32, lane: usize) {
        if lane == DEVICE && self.classes[class].lanes[lane].size == NO_SIZE {
            self.apply_delay(class);
        }
        let Dispatcher { classes, lanes, requests, .. } = self;
        let (own, state) = (&classes[class], &lanes[lane]);
        let fits = |own: &Class, size| lane != DEVICE || own.cap_allows(state.slots(size));
        let head = own.lanes[lane].first(requests);
        let head = head.map(|queue| &requests[own.lanes[lane].queues[queue].head]);
        let head = head.filter(|head| fits(own, head.size)).map(|head| (head.size, head.number));
        if own.slots_cap != u32::MAX && (own.lanes[lane].size == NO_SIZE) != head.is_none() {
            self.count_capped(class, lane);
        }
        let (own, state) = (&mut self.classes[class], &mut self.lanes[lane]);
        let standing = &mut own.lanes[lane];
        match head {
            None if standing.size == NO_SIZE => {}
            None => {
                state.ready.remove(standing.size, class);
                standing.size = NO_SIZE;
            }
            Some((size, number)) => {
                if standing.size == NO_SIZE {
                    standing.start = standing.finish.max(state.v);
                    standing.overtaken = 0;
                } else if standing.size != size {
                    state.ready.remove(standing.size, class);
                }
                standing.size = size;
                state.ready.put(size, standing.start.key(number), class);
            }
        }
        if own.reserved {
            self.refresh_reserve(class, lane);
        }
    }

    /// Moves the tags of a request's class in its lane from a charge of `old` ns to one of `new`.
    pub(crate) fn charge_tags(&mut self, index: u32, old: u64, new: u64) {
        let QueuedRequest { class, lane, kind, .. } = self.requests[index];
        let lane = usize::from(lane);
        let (own, state) = (&mut self.classes[class], &self.lanes[lane]);
        let phi = own.phi_of(kind);
        let standing = &mut own.lanes[lane];
        if new >= old {
            let bound = state.lag_bound(new, phi);
            let finish = standing.finish.max(state.v).after(new - old, phi);
            standing.finish = finish.min(bound).max(standing.finish);
            standing.start = standing.start.after(new - old, phi).min(bound).max(standing.start);
        } else {
            standing.finish = standing.finish.before(old - new, phi);
            standing.start = standing.start.before(old - new, phi).max(state.v);
        }
        if standing.size != NO_SIZE {
            self.refresh(class, lane);
        }
    }
}
