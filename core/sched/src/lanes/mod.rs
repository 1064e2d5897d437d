//! Lanes: which ready head is next, and what that changes.
//!
//! ```text
//!   request ─► queue of its class ─ head ready ─► choice: urgent, reserved, weight ─► running ─► gone
//!                                    (dispatcher)     tags, slots, D
//! ```
//!
//! The dispatcher says which heads are ready, since their meters let them go. Everything that
//! concerns the device and the cache is here: requests and queues, tags and slots, reservations,
//! costs and what is learnt of them.

mod branches;
mod choose;
mod class;
mod classes;
mod cost;
mod division;
mod heads;
mod invariants;
mod lane;
mod recalibrate;
mod remote_delay;
mod request;
mod reservation;
mod reservation_clock;
mod service_lag;
mod slot_controller;
mod slots;
mod targets;

use std::collections::BTreeSet;

use model::{Amount, Lane, Nanos, OpKind, TargetId, Time, Weight};

use crate::ids::{ClassId, RequestId};
use crate::index::{
    ChainIndex, ClassIndex, DormantIndex, OptionalIndex, RequestIndex, SubjectIndex,
    TableIndex as _,
};
use crate::observation::Observation;
use crate::slab::Parts;
use crate::tags::EffectiveWeight;

pub(crate) use choose::Choice;
pub use choose::Dispatched;
pub(crate) use class::ClassTerms;
pub use cost::{CostMode, Costs, Curve, CurveError, LaneCosts};
pub(crate) use lane::{DEVICE, LANES};
pub(crate) use request::{NewHead, NewRequest, QUEUES, QueuePlace, QueuedRequest, RequestStage};
pub(crate) use reservation::{ReservationNeed, ReservationTerms, ReservationUse};
pub use slots::slots_needed;

use branches::BranchedClasses;
use class::{ClassQueue, DormantLanes, LaneClass, NO_SIZE, Requests};
use division::SlotDivision;
use lane::LaneState;
use recalibrate::Observed;
use request::RETURNED;
use reservation_clock::ReservationClock;
use slot_controller::SlotController;
use targets::Targets;

/// Parameters of a scheduled target: one `[[target]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetParams {
    /// Unique among the targets.
    pub name: String,
    /// D: the slots of the device lane, at least one.
    pub slots_max: u32,
    /// The slots of the cached lane, at least one: how many threads execute.
    pub threads: u32,
    /// The costs of its requests.
    pub costs: Costs,
    /// The mean time that a smallest request may take after its dispatch; D is lowered to meet it.
    /// `None`: D is `slots_max`.
    pub latency: Option<Nanos>,
    /// Whether costs are learnt from requests that run alone.
    pub recalibrate: bool,
}

/// The lanes of all targets, with all requests in them. A class is at one target.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    targets: Targets,
    requests: Requests,
    classes: Parts<ClassIndex, LaneClass>,
    branches: BranchedClasses,
    dormant: Parts<DormantIndex, DormantLanes>,
    /// The number of requests that ever arrived.
    arrivals: u64,
    /// The target that is tried first: the one after the last that dispatched.
    next_target: TargetId,
    /// When the first window of a target's reservation clock is over.
    window_ends: Time,
}

/// Of a request that runs no more: its class and target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRequest {
    /// The class, whatever branch of that it was in.
    pub(crate) owner: ClassIndex,
    pub(crate) class: ClassId,
    pub(crate) target: TargetId,
    /// Bits of the parents of other rules that it counted for.
    pub(crate) watched: u64,
    /// Whether its class, or its branch, has no other requests.
    pub(crate) is_last: bool,
}

/// The lanes of one target.
#[derive(Debug)]
struct TargetLanes {
    states: [LaneState; 2],
    queued: usize,
    /// The lane that is tried first: the one that did not dispatch last.
    next_lane: usize,
    reservation_clock: ReservationClock,
    /// When a head went by a reservation to the device last.
    reserved_last: Time,
    /// The request that was dispatched while all other device slots were free, while that is so.
    single_request: OptionalIndex<RequestIndex>,
    slot_controller: Option<SlotController>,
    observed: Observed,
    division: SlotDivision,
    params: TargetParams,
}

impl TargetLanes {
    fn new(params: TargetParams) -> TargetLanes {
        let mut new = TargetLanes {
            states: [LaneState::new(params.threads), LaneState::new(params.slots_max)],
            queued: 0,
            next_lane: 0,
            reservation_clock: ReservationClock::new(),
            reserved_last: Time::ZERO,
            single_request: OptionalIndex::NONE,
            slot_controller: SlotController::of(&params),
            observed: Observed::default(),
            division: SlotDivision::new(),
            params,
        };
        new.set_unit();
        new
    }

    /// Passes the cost of the smallest request to the device lane.
    fn set_unit(&mut self) {
        let unit = self.params.costs.unit_cost();
        self.states[DEVICE].set_unit(unit);
    }

    /// Cost in ns and size of a request in a lane.
    #[inline(always)]
    fn weigh(&self, lane: usize, kind: OpKind, amount: Amount) -> (u64, u8) {
        let costs = &self.params.costs;
        if lane != DEVICE {
            return (costs.charge(LANES[lane], kind, amount).get(), 0);
        }
        let (cost, size) = costs.charge_and_size(kind, amount, self.params.slots_max);
        (cost.get(), size)
    }
}

impl Lanes {
    /// Makes the lanes of a new target.
    ///
    /// # Panics
    /// Beyond [`TargetId::MAX_COUNT`] targets.
    pub(crate) fn add_target(&mut self, params: TargetParams) -> TargetId {
        self.window_ends = Time::ZERO;
        self.targets.push(TargetLanes::new(params))
    }

    // ---- requests come and go ----

    /// Takes a request in; it waits in no queue yet.
    #[inline]
    pub(crate) fn insert(&mut self, new: NewRequest, now: Time) -> RequestIndex {
        let (cost, size) = self.of_class(new.class).weigh(new.lane, new.kind, new.amount);
        self.arrivals += 1;
        self.requests.insert(QueuedRequest::new(new, self.arrivals, cost, size, now))
    }

    /// Puts a request at the end of its queue. Returns it if it is the head there.
    #[inline]
    pub(crate) fn queue_up(&mut self, index: RequestIndex, now: Time) -> Option<NewHead> {
        let request = &self.requests[index];
        let (place, stage) = (request.place(), request.stage);
        let own = &mut self.classes[place.class];
        own.queued += 1;
        let target = &mut self.targets[own.target];
        target.queued += 1;
        if stage == RequestStage::Urgent {
            target.states[place.lane].urgent.push(index, &mut self.requests, now);
            return None;
        }
        let standing = &mut own.lanes[place.lane];
        let fifo = &mut standing.queues[place.queue];
        let was_empty = fifo.is_empty();
        fifo.push(index, &mut self.requests, now);
        if was_empty { standing.show_head(place, index.into(), &self.requests) } else { None }
    }

    /// Takes a waiting request out of its queue, of which it is not the head any more.
    pub(crate) fn unlink(&mut self, index: RequestIndex, now: Time) {
        let request = &self.requests[index];
        let (place, stage) = (request.place(), request.stage);
        let own = &mut self.classes[place.class];
        let target = &mut self.targets[own.target];
        own.queued -= 1;
        target.queued -= 1;
        let fifo = match stage {
            RequestStage::Urgent => &mut target.states[place.lane].urgent,
            _ => &mut own.lanes[place.lane].queues[place.queue],
        };
        fifo.unlink(index, &mut self.requests, now);
    }

    /// Forgets a request that is in no queue.
    pub(crate) fn remove(&mut self, index: RequestIndex) {
        self.requests.remove(index);
    }

    /// Ends the running of a request: it frees its slots.
    #[inline]
    pub(crate) fn end_running(
        &mut self,
        index: RequestIndex,
        now: Time,
        seen: &mut Observation,
    ) -> EndedRequest {
        let request = &self.requests[index];
        let (class, lane, slots) = (request.class, usize::from(request.lane), request.slots);
        let own = &mut self.classes[class];
        own.running -= 1;
        let is_last = own.running == 0 && own.queued == 0;
        let watched = own.watched;
        let is_reserved = request.is_reserved();
        let mut has_room = false;
        if own.reserved
            && let Some(reservation) = &mut own.reservation
        {
            has_room = is_reserved && lane == DEVICE && reservation.free_slots(slots);
            if is_last {
                reservation.lag.note_gap();
            }
        }
        let owner = own.owner_or(class);
        let own = &mut self.classes[owner];
        let state = &mut self.targets[own.target].states[lane];
        state.slots_in_use -= slots;
        if is_reserved {
            state.reservation_slots_in_use -= slots;
        }
        state.note_served(owner, now);
        let (id, target) = (own.id, own.target);
        let ended = EndedRequest { owner, class: id, target, watched, is_last };
        if lane == DEVICE {
            own.slots_in_use -= slots;
            if own.slots_cap != u32::MAX {
                self.refresh(owner, lane, now, seen);
            } else if has_room {
                self.refresh_reserve(class, lane, now);
            }
        }
        ended
    }

    /// Replaces the charge of a running request by the charge for `served`.
    pub(crate) fn correct(
        &mut self,
        index: RequestIndex,
        served: Amount,
        now: Time,
        seen: &mut Observation,
    ) {
        let request = &self.requests[index];
        let (lane, kind, cost) = (usize::from(request.lane), request.kind, request.cost);
        let new = self.of_class(request.class).params.costs.charge(LANES[lane], kind, served).get();
        self.charge_tags(index, cost, new, now, seen);
        self.correct_reservation(index, served, now);
        self.requests[index].cost = new;
    }

    /// Moves what a running request counts for its class's reservation to what it was served.
    fn correct_reservation(&mut self, index: RequestIndex, served: Amount, now: Time) {
        match self.requests[index].is_reserved() {
            true => self.correct_reserve(index, served, now),
            false => self.correct_beside(index, served),
        }
    }

    /// Moves a running request to the device lane, where it waits before its class's later
    /// arrivals. It gives back its turn by a reservation, and is charged the cost of a call that
    /// moved nothing, which is returned.
    ///
    /// # Panics
    /// If it is in the device lane.
    pub(crate) fn move_to_device(
        &mut self,
        index: RequestIndex,
        now: Time,
        seen: &mut Observation,
    ) -> Nanos {
        let QueuedRequest { class, kind, cost, amount, lane, .. } = self.requests[index];
        assert!(usize::from(lane) != DEVICE, "request {index:?} already is in the device lane");
        self.end_running(index, now, seen);
        let nothing = Amount::new(0, amount.ops.get().min(1));
        let attempt = self.of_class(class).params.costs.charge(Lane::Cached, kind, nothing);
        let attempt = attempt.get().min(cost);
        self.charge_tags(index, cost, attempt, now, seen);
        self.correct_reservation(index, Amount::default(), now);
        let (cost, size) = self.of_class(class).weigh(DEVICE, kind, amount);
        let request = &mut self.requests[index];
        request.arrived = now.before(request.started.since(request.arrived));
        (request.cost, request.size, request.slots) = (cost, size, 0);
        request.lane = DEVICE as u8;
        request.clear_reserved();
        (request.stage, request.queue) = (RequestStage::of(kind), RETURNED);
        Nanos::new(attempt)
    }

    /// A running request.
    ///
    /// # Panics
    /// If it is gone or does not run.
    pub(crate) fn running(&self, id: RequestId) -> RequestIndex {
        let index = self.find(id);
        let index = index.unwrap_or_else(|| panic!("request {id:?} is gone"));
        let runs = self.requests[index].stage == RequestStage::Running;
        assert!(runs, "request {id:?} does not run");
        index
    }

    /// A request that waits or runs.
    pub(crate) fn find(&self, id: RequestId) -> Option<RequestIndex> {
        let index = RequestIndex::new(id.index);
        self.requests.has(index, id.generation).then_some(index)
    }

    #[inline]
    pub(crate) fn request(&self, index: RequestIndex) -> &QueuedRequest {
        &self.requests[index]
    }

    /// All requests that wait or run.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &QueuedRequest> {
        self.requests.iter().map(|(_, request)| request)
    }

    /// The id of a request.
    #[inline]
    pub(crate) fn id_of(&self, index: RequestIndex) -> RequestId {
        RequestId { index: index.raw(), generation: self.requests.generation(index) }
    }

    /// Handles that the meters of a request are charged.
    #[inline]
    pub(crate) fn set_paid(&mut self, index: RequestIndex) {
        self.requests[index].set_paid();
    }

    /// Handles that the meters of a request are charged at its end.
    #[inline]
    pub(crate) fn set_owing(&mut self, index: RequestIndex) {
        self.requests[index].set_owing();
    }

    // ---- rules and the target change ----

    /// Replaces slots and costs; [`Lanes::weigh_again`] is to follow.
    pub(crate) fn set_target(
        &mut self,
        target: TargetId,
        params: TargetParams,
        now: Time,
        seen: &mut Observation,
    ) {
        let known = &mut self.targets[target];
        known.states[0].slots_max = params.threads.max(1);
        known.slot_controller = SlotController::of(&params);
        known.observed = Observed::default();
        known.params = params;
        self.apply_division(target, now, seen);
    }

    /// Sets the number of device slots of each target that are reserved for reservations.
    pub(crate) fn set_reserved_slots(&mut self, slots: u32) {
        for target in self.targets.iter_mut() {
            target.states[DEVICE].reserved_slots = slots;
        }
    }

    /// Charges waiting requests that were taken out by the current costs.
    pub(crate) fn weigh_again(&mut self, waiting: &[RequestIndex]) {
        self.targets.iter_mut().for_each(TargetLanes::set_unit);
        for index in waiting {
            let QueuedRequest { class, lane, kind, amount, .. } = self.requests[*index];
            let (cost, size) = self.of_class(class).weigh(lane.into(), kind, amount);
            let request = &mut self.requests[*index];
            (request.cost, request.size) = (cost, size);
        }
    }

    /// Empties every queue and heap, and returns what waited, in order of arrival. Heads must have
    /// been withdrawn from their meters.
    pub(crate) fn take_waiting(
        &mut self,
        classes: impl Iterator<Item = ClassIndex>,
    ) -> Vec<RequestIndex> {
        for class in classes {
            let own = &mut self.classes[class];
            own.queued = 0;
            for standing in &mut own.lanes {
                standing.queues = [ClassQueue::EMPTY; QUEUES];
                standing.size = NO_SIZE;
            }
        }
        self.branches.clear();
        for target in self.targets.iter_mut() {
            target.queued = 0;
            for state in &mut target.states {
                state.ready.clear();
                state.reserved.clear(&mut state.reserved_positions);
                state.urgent = ClassQueue::EMPTY;
            }
        }
        let waits = |index: &RequestIndex| self.requests[*index].stage != RequestStage::Running;
        let mut waiting: Vec<RequestIndex> = self.requests.indices().filter(waits).collect();
        waiting.sort_unstable_by_key(|index| self.requests[*index].number);
        waiting
    }

    /// The requests of some subjects that wait, each with its number.
    pub(crate) fn waiting_of(
        &self,
        subjects: &BTreeSet<SubjectIndex>,
    ) -> impl Iterator<Item = (u64, RequestIndex)> {
        let of = self.requests.iter().filter(|(_, request)| {
            request.stage != RequestStage::Running && subjects.contains(&request.subject)
        });
        of.map(|(index, request)| (request.number, index))
    }

    /// The number and index of the waiting request at a place of the table, if one waits there;
    /// `None` behind the last place.
    pub(crate) fn waiting_at(&self, place: usize) -> Option<Option<(u64, RequestIndex)>> {
        if place >= self.requests.span() {
            return None;
        }
        let index = self.requests.at(place);
        let waiting = index.filter(|at| self.requests[*at].stage != RequestStage::Running);
        Some(waiting.map(|at| (self.requests[at].number, at)))
    }

    /// Whether the request of that number is at that index and waits.
    pub(crate) fn waits(&self, index: RequestIndex, number: u64) -> bool {
        let request = &self.requests[index];
        self.requests.lives(index)
            && request.number == number
            && request.stage != RequestStage::Running
    }

    /// Whether the last request in the queue of a waiting one arrived before it.
    pub(crate) fn is_before_older(&self, index: RequestIndex) -> bool {
        let request = &self.requests[index];
        let place = request.place();
        let tail = self.queue(place).tail;
        let is_older = |tail: RequestIndex| self.requests[tail].number < request.number;
        request.stage == RequestStage::Queued && tail.get().is_some_and(is_older)
    }

    /// Gives a request that is in no queue, or stays in its class, its class and meters under other
    /// rules. Returns the meters that it had.
    pub(crate) fn reclassify(
        &mut self,
        index: RequestIndex,
        class: ClassIndex,
        chain: OptionalIndex<ChainIndex>,
    ) -> OptionalIndex<ChainIndex> {
        let request = &mut self.requests[index];
        request.class = class;
        std::mem::replace(&mut request.chain, chain)
    }

    // ---- figures ----

    /// The end of the numbers of queues among waiters.
    pub(crate) fn waiters(&self) -> usize {
        self.classes.span() * QUEUES
    }

    /// How many requests wait.
    pub(crate) fn queued(&self) -> usize {
        self.targets.iter().map(|target| target.queued).sum()
    }

    /// How many requests wait for a target.
    pub(crate) fn queued_at(&self, target: TargetId) -> usize {
        self.targets[target].queued
    }

    /// The ids of all targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = TargetId> + use<> {
        (0..self.targets.len()).map(TargetId::new)
    }

    /// The parameters of a target.
    pub(crate) fn params(&self, target: TargetId) -> &TargetParams {
        &self.targets[target].params
    }

    /// D: the target's `slots_max`, or less to meet its latency; of that the part that this proxy has.
    pub(crate) fn slots_max(&self, target: TargetId) -> u32 {
        self.targets[target].states[DEVICE].slots_max
    }

    /// Device slots of a target in use now.
    pub(crate) fn slots_in_use(&self, target: TargetId) -> u32 {
        self.targets[target].states[DEVICE].slots_in_use
    }

    /// The target of a class.
    #[inline]
    pub(crate) fn target_of(&self, class: ClassIndex) -> TargetId {
        self.classes[class].target
    }

    /// Requests of a class that wait, that run, and the device slots that it uses; its branches'
    /// count, too.
    pub(crate) fn load_of(&self, class: ClassIndex) -> (u32, u32, u32) {
        self.with_branches(class).map(|class| self.own_load_of(class)).fold((0, 0, 0), |a, b| {
            let (queued, running, slots) = b;
            (a.0 + queued, a.1 + running, a.2 + slots)
        })
    }

    /// The same of a class without its branches, or of a branch.
    pub(crate) fn own_load_of(&self, class: ClassIndex) -> (u32, u32, u32) {
        let own = &self.classes[class];
        (own.queued, own.running, own.slots_in_use)
    }

    /// Whether a head of a class or of its branches waits for a meter.
    pub(crate) fn is_throttled(&self, class: ClassIndex) -> bool {
        let waits = |class| self.classes[class].lanes.iter().any(|standing| standing.waiting != 0);
        self.with_branches(class).any(waits)
    }

    /// The class of which a class is a branch; itself, if it is none.
    #[inline]
    pub(crate) fn owner_of(&self, class: ClassIndex) -> ClassIndex {
        self.classes[class].owner_or(class)
    }

    /// Whether a class is a branch of another one, which a row reserves for.
    #[inline]
    pub(crate) fn is_branch(&self, class: ClassIndex) -> bool {
        self.classes[class].is_branch(class)
    }

    /// The weight of a class, as its rule says.
    pub(crate) fn rule_weight_of(&self, class: ClassIndex) -> Weight {
        self.classes[class].weight
    }

    /// The effective weight of a class for a kind of request.
    pub(crate) fn weight_of(&self, class: ClassIndex, kind: OpKind) -> EffectiveWeight {
        self.classes[self.owner_of(class)].phi_of(kind)
    }

    /// The effective weight of a class for reads and writes.
    #[inline]
    pub(crate) fn phi(&self, class: ClassIndex) -> EffectiveWeight {
        self.classes[self.owner_of(class)].phi
    }

    /// Bits of the parents of other rules that the requests of a class count for.
    #[inline]
    pub(crate) fn watched(&self, class: ClassIndex) -> u64 {
        self.classes[class].watched
    }

    /// Whether a class has a reservation.
    pub(crate) fn has_reservation(&self, class: ClassIndex) -> bool {
        self.classes[class].reserved
    }

    /// Whether a lane of a target has a free slot.
    pub(crate) fn has_free_slot(&self, target: TargetId, lane: usize) -> bool {
        self.targets[target].states[lane].free() > 0
    }

    /// The lanes of a class's target.
    #[inline]
    fn of_class(&self, class: ClassIndex) -> &TargetLanes {
        &self.targets[self.classes[class].target]
    }
}
