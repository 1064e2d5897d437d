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

use model::{Lane, Nanos, OpKind, TargetId, Time};
use rules::WriteMode;

use super::class::NO_SIZE;
use super::lane::{DEVICE, LANES};
use super::request::{NewHead, QueuePlace, QueuedRequest, RequestStage};
use super::{Lanes, TargetLanes};
use crate::ids::{ClassId, RequestId, SubjectId};
use crate::index::{ClassIndex, LanePlace, OptionalIndex, RequestIndex};
use crate::observation::{AREA_MAX_NS, Observation, WAIT_MIN_NS, WaitedHead};

/// A dispatched request: perform it, then call `complete` or `miss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// The id of the request.
    pub id: RequestId,
    /// The caller's name for it.
    pub token: u64,
    /// The subject of the request.
    pub subject: SubjectId,
    /// The class that paid for it.
    pub class: ClassId,
    /// The target that it is for.
    pub target: TargetId,
    /// The kind of the request.
    pub kind: OpKind,
    /// The lane that is to serve it.
    pub lane: Lane,
    /// Slots in use by it until it completes.
    pub slots: u32,
    /// How long it waited here.
    pub queued: Nanos,
    /// How its rule wants writes to reach the backend; `None`: as the target says.
    pub write_mode: Option<WriteMode>,
}

/// The next step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Urgent,
    Reservation {
        class: ClassIndex,
    },
    Weight {
        class: ClassIndex,
    },
    /// `class` overtakes the head `over`, which does not fit.
    Backfill {
        class: ClassIndex,
        over: ClassIndex,
    },
}

impl Lanes {
    /// The target and the lane whose turn it is, and its next step.
    #[inline]
    pub(crate) fn next_choice(&self, now: Time) -> Option<(LanePlace, Choice)> {
        if self.targets.len() == 1 {
            return self.next_choice_at(TargetId::FIRST, now);
        }
        self.next_choice_of_many(now)
    }

    #[inline(never)]
    fn next_choice_of_many(&self, now: Time) -> Option<(LanePlace, Choice)> {
        let (first, count) = (self.next_target.index(), self.targets.len());
        let mut order = (first..first + count).map(|at| TargetId::new(at % count));
        order.find_map(|target| self.next_choice_at(target, now))
    }

    /// The next step of a target.
    #[inline]
    pub(crate) fn next_choice_at(&self, at: TargetId, now: Time) -> Option<(LanePlace, Choice)> {
        let target = &self.targets[at];
        let mut place = LanePlace { target: at, lane: target.next_lane };
        let is_urgent = |lane: usize| !target.states[lane].urgent.is_empty();
        if is_urgent(0) || is_urgent(1) {
            place.lane = if is_urgent(place.lane) { place.lane } else { 1 - place.lane };
            return Some((place, Choice::Urgent));
        }
        for _ in LANES {
            if let Some(choice) = self.choose(target, place.lane, now) {
                return Some((place, choice));
            }
            place.lane = 1 - place.lane;
        }
        None
    }

    /// Gives the other lane, and the next target, the next turn.
    #[inline]
    pub(crate) fn end_turn(&mut self, place: LanePlace) {
        self.targets[place.target].next_lane = 1 - place.lane;
        if self.targets.len() > 1 {
            self.next_target = TargetId::new((place.target.index() + 1) % self.targets.len());
        }
    }

    /// The next step of a lane without urgent requests, if any.
    #[inline(always)]
    fn choose(&self, target: &TargetLanes, lane: usize, now: Time) -> Option<Choice> {
        let state = &target.states[lane];
        if state.free() == 0 {
            return None;
        }
        if let Some((due, class)) = state.first_reserved()
            && due <= target.reservation_clock.at(now)
        {
            let fits = self.slots_of_reservation(class, lane) <= state.free();
            return fits.then_some(Choice::Reservation { class });
        }
        let (size, head) = state.ready.first()?;
        let free = state.free_for_weights();
        let lets = |size| {
            let slots = state.slots_by_weight() + state.slots(size);
            lane != DEVICE || target.division.lets(slots, now)
        };
        if !lets(size) {
            return None;
        }
        if state.slots(size) <= free {
            return Some(Choice::Weight { class: head });
        }
        if free == 0 || self.classes[head].lanes[lane].overtaken >= state.slots_max {
            return None;
        }
        let (size, class) = state.ready.first_up_to(free.ilog2() as u8)?;
        let may = self.may_overtake(target, class, head, lane) && lets(size);
        may.then_some(Choice::Backfill { class, over: head })
    }

    /// Whether a class is near enough to the head to overtake it: by no more than D of the smallest
    /// requests. A budget for each head alone would start again with the next head. Then a light
    /// class of small requests could overtake every single request of a heavy class of large ones.
    /// It would end up with more than the heavy class, whatever the weights.
    #[inline(never)]
    fn may_overtake(
        &self,
        target: &TargetLanes,
        class: ClassIndex,
        head: ClassIndex,
        lane: usize,
    ) -> bool {
        let unit = target.params.costs.unit_cost();
        let lead = unit.saturating_mul(target.states[lane].slots_max.into());
        let own = &self.classes[class];
        let head_start = self.classes[head].lanes[lane].start;
        own.lanes[lane].start <= head_start.after(lead, own.phi)
    }

    /// The queue whose head is chosen.
    ///
    /// # Panics
    /// If the choice is of an urgent request, or holds no more.
    #[inline]
    pub(crate) fn chosen_queue(&self, lane: usize, choice: Choice) -> QueuePlace {
        let (class, queue) = match choice {
            Choice::Urgent => unreachable!("urgent requests are in no queue of a class"),
            Choice::Reservation { class } => (class, self.reserved_queue(class, lane)),
            Choice::Weight { class } | Choice::Backfill { class, .. } => {
                let own = &self.classes[class];
                if own.branched {
                    return self.first_of_all(class, lane).expect(HAS_HEAD);
                }
                (class, own.lanes[lane].first(&self.requests))
            }
        };
        QueuePlace { class, lane, queue: queue.expect(HAS_HEAD) }
    }

    /// Moves v to the start tag of a head that does not fit and is overtaken, and counts that.
    fn count_overtaken(&mut self, place: QueuePlace, over: ClassIndex) {
        let lane = place.lane;
        let own = &self.classes[self.owner_of(place.class)];
        let (at, size) = (own.target, own.lanes[lane].size);
        let head = &mut self.classes[over].lanes[lane];
        let state = &mut self.targets[at].states[lane];
        state.v = state.v.max(head.start);
        head.overtaken = head.overtaken.saturating_add(state.slots(size));
    }

    /// Counts how long the head of a queue that is about to go has waited.
    #[inline]
    fn count_head(&mut self, place: QueuePlace, now: Time, seen: &mut Observation) {
        let fifo = &mut self.classes[place.class].lanes[place.lane].queues[place.queue];
        fifo.wait.add_elapsed(fifo.len, now);
        let (head, last) = (fifo.head(), fifo.len == 1);
        let waited = now.since(self.requests[head].arrived).get();
        let area_min = if last { WAIT_MIN_NS } else { AREA_MAX_NS };
        if waited >= WAIT_MIN_NS || fifo.wait.area() >= area_min {
            self.count_waiting_head(place, waited, now, seen);
        } else if last {
            fifo.wait.clear();
        }
    }

    #[inline(never)]
    fn count_waiting_head(
        &mut self,
        place: QueuePlace,
        waited: u64,
        now: Time,
        seen: &mut Observation,
    ) {
        let fifo = &mut self.classes[place.class].lanes[place.lane].queues[place.queue];
        let (index, by) = (fifo.head(), fifo.by);
        let is_due = fifo.wait.area() >= AREA_MAX_NS || fifo.len == 1;
        let area = if is_due { fifo.wait.take(fifo.len, now) } else { None };
        let causes = self.ready_causes(place);
        let request = &self.requests[index];
        let head = WaitedHead {
            subject: request.subject,
            arrived: request.arrived,
            bytes: request.amount.bytes.get(),
            by,
            otherwise: causes.since(request.arrived),
        };
        if let Some(area) = area {
            self.charge_ready(place, area, causes, now, seen);
        }
        if waited >= WAIT_MIN_NS && seen.count_waited(place.class, &head, now) {
            self.requests[index].set_delayed();
        }
    }

    /// Takes the head of a chosen queue out: charges the reservation or moves v to the least start
    /// tag, takes its slots, and moves its class on. Returns the queue's next head.
    #[inline]
    pub(crate) fn take_head(
        &mut self,
        place: QueuePlace,
        choice: Choice,
        now: Time,
        seen: &mut Observation,
    ) -> Option<NewHead> {
        match choice {
            Choice::Urgent => {}
            Choice::Weight { .. } => self.count_beside(place),
            Choice::Reservation { .. } => self.charge_reserve(place, now),
            Choice::Backfill { over, .. } => {
                self.count_overtaken(place, over);
                self.count_beside(place);
            }
        }
        self.count_head(place, now, seen);
        let QueuePlace { class, lane, queue } = place;
        let Lanes { classes, targets, requests, .. } = self;
        let own = &mut classes[class];
        own.queued -= 1;
        let standing = &mut own.lanes[lane];
        let fifo = &mut standing.queues[queue];
        let index = fifo.head();
        let next = fifo.pop(requests);
        let next = standing.show_head(place, next, requests);
        let class = own.owner_or(class);
        let own = &mut classes[class];
        let target = &mut targets[own.target];
        let state = &mut target.states[lane];
        let request = &mut requests[index];
        let phi = own.phi_of(request.kind);
        let standing = &mut own.lanes[lane];
        if let Choice::Weight { .. } = choice {
            state.v = state.v.max(standing.start);
        }
        let slots = state.slots(request.size);
        assert!(slots <= state.free(), "{slots} slots taken where {} are free", state.free());
        state.slots_in_use += slots;
        if request.is_reserved() {
            state.reservation_slots_in_use += slots;
        }
        request.slots = slots;
        state.note_served(class, now);
        let bound = state.lag_bound(request.cost, phi);
        standing.finish = standing.start.after(request.cost, phi).min(bound);
        standing.start = standing.finish.max(state.v);
        standing.overtaken = 0;
        standing.moved_for_remote = false;
        if lane == DEVICE {
            own.slots_in_use += slots;
            let device_ns = target.params.costs.device_time(request.cost);
            let by_weight = (!request.is_reserved()).then_some(state.slots_by_weight());
            target.division.charge(request.cost, device_ns, by_weight, now);
            standing.delay.carry_over();
            let is_single = state.slots_in_use == slots;
            target.single_request = if is_single { index.into() } else { OptionalIndex::NONE };
        }
        next
    }

    /// Takes the first urgent request of a lane out, and charges its class.
    pub(crate) fn take_urgent(
        &mut self,
        place: LanePlace,
        now: Time,
        seen: &mut Observation,
    ) -> RequestIndex {
        let target = &mut self.targets[place.target];
        let state = &mut target.states[place.lane];
        let index = state.urgent.head();
        state.urgent.unlink(index, &mut self.requests, now);
        let QueuedRequest { class, cost, .. } = self.requests[index];
        self.classes[class].queued -= 1;
        if place.lane == DEVICE {
            target.single_request = OptionalIndex::NONE;
            target.division.charge(cost, target.params.costs.device_time(cost), Some(0), now);
        }
        self.charge_tags(index, 0, cost, now, seen);
        index
    }

    /// Marks a request of a subject that was taken out as running.
    #[inline]
    pub(crate) fn run(&mut self, index: RequestIndex, subject: SubjectId, now: Time) -> Dispatched {
        let id = self.id_of(index);
        let request = &mut self.requests[index];
        request.stage = RequestStage::Running;
        request.started = now;
        let class = &mut self.classes[request.class];
        class.running += 1;
        self.targets[class.target].queued -= 1;
        Dispatched {
            id,
            token: request.token,
            subject,
            class: class.id,
            target: class.target,
            kind: request.kind,
            lane: LANES[usize::from(request.lane)],
            slots: request.slots,
            queued: now.since(request.arrived),
            write_mode: class.write_mode,
        }
    }

    /// Updates the position of a class in the device lane after a dispatch there, or in another.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        class: ClassIndex,
        lane: usize,
        now: Time,
        seen: &mut Observation,
    ) {
        if lane == DEVICE {
            if self.classes[class].branched {
                self.stand_in_class(class, lane);
            }
            self.apply_delay(self.owner_of(class));
        }
        self.refresh(class, lane, now, seen);
    }

    /// Updates the position of a class in a lane after its heads, cap or tags changed.
    pub(crate) fn refresh(
        &mut self,
        class: ClassIndex,
        lane: usize,
        now: Time,
        seen: &mut Observation,
    ) {
        let own = &self.classes[class];
        if own.branched {
            return self.refresh_branched(class, lane, now, seen);
        }
        if lane == DEVICE && (own.lanes[lane].size == NO_SIZE || own.slots_cap != u32::MAX) {
            self.prepare_refresh(class, now, seen);
        }
        let Lanes { classes, targets, requests, .. } = self;
        let own = &mut classes[class];
        let state = &mut targets[own.target].states[lane];
        let head = own.lanes[lane].first_head(requests);
        let head = head.and_then(|head| own.if_fitting(lane, state, &requests[head]));
        state.stand(class, &mut own.lanes[lane], head);
        if own.reserved {
            self.refresh_reserve(class, lane, now);
        }
    }

    /// Applies remote service to a class that returns to the device lane. Handles that the cap on
    /// its slots is about to begin or to cease to delay its ready heads.
    pub(super) fn prepare_refresh(&mut self, class: ClassIndex, now: Time, seen: &mut Observation) {
        if self.classes[class].lanes[DEVICE].size == NO_SIZE {
            self.apply_delay(class);
        }
        let own = &self.classes[class];
        if own.slots_cap == u32::MAX {
            return;
        }
        let fits = self.first_fitting(class, DEVICE).is_some();
        if fits == (own.lanes[DEVICE].size == NO_SIZE) {
            self.count_heads_of_all(class, now, seen);
        }
    }

    pub(super) fn count_ready_heads(
        &mut self,
        class: ClassIndex,
        now: Time,
        seen: &mut Observation,
    ) {
        for queue in self.classes[class].lanes[DEVICE].ready_queues() {
            self.count_ready(QueuePlace { class, lane: DEVICE, queue }, now, seen);
        }
    }

    /// Moves the tags of a request's class in its lane from a charge of `old` ns to one of `new`.
    pub(super) fn charge_tags(
        &mut self,
        index: RequestIndex,
        old: u64,
        new: u64,
        now: Time,
        seen: &mut Observation,
    ) {
        let QueuedRequest { class, lane, kind, .. } = self.requests[index];
        let lane = usize::from(lane);
        let class = self.owner_of(class);
        let own = &mut self.classes[class];
        let state = &self.targets[own.target].states[lane];
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
            self.refresh(class, lane, now, seen);
        }
    }
}

const HAS_HEAD: &str = "a chosen class has a ready head";
