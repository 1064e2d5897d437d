//! The dispatcher's state and public calls; each policy is a file of its own.
//!
//! ```text
//!   enqueue ─► queue of its class ─► meters ─► ready ─► poll_dispatch ─► running ─► complete
//!      cancel ◄────────┴───────────────┴────────┘                          │ miss: back, first
//!                                                                          ▼ in line, other lane
//! ```
//!
//! After any call that takes `now`, poll again until there is nothing. Time never goes
//! backwards here: each call takes the later of its `now` and the last one.

use std::sync::Arc;

use model::{Amount, Lane, Nanos, OpKind, Ops, Rate, RuleSet, Time, WriteMode};

use crate::activity::ActiveJob;
use crate::choose::Choice;
use crate::class::{Class, OWN_ROUTE, PAID, QueuedRequest, RESERVED, RETURNED, RequestStage};
use crate::classify::{Registry, Subject};
use crate::cost::Costs;
use crate::dependent::Dependents;
use crate::donate::Donations;
use crate::dormant::DormantClass;
use crate::grant::GrantTable;
use crate::ids::{ClassId, RequestId, SubjectId};
use crate::lane::{DEVICE, LANES, LaneState};
use crate::meter::{ClassMeter, Meter, MeterChain};
use crate::recalibrate::Observed;
use crate::report::Usage;
use crate::reservation_clock::ReservationClock;
use crate::slab::{NONE, Slab};
use crate::slot_controller::SlotController;
use crate::unreported::UnreportedMetadata;

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

/// A request as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The subject of the request.
    pub subject: SubjectId,
    /// The kind of the request.
    pub kind: OpKind,
    /// The requested amount; corrected by what `complete` reports as served.
    pub amount: Amount,
    /// The lane that is expected to serve it.
    pub lane: Lane,
    /// The caller's own name for it, returned unchanged.
    pub token: u64,
}

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

/// The scheduler of one target: it picks the next request to perform.
///
/// The calls are O(log n) in classes and meters, but for `set_rules`, `set_target` and
/// the reports: a call moves one head for each meter that fell due since the last one, at
/// most 64 more of each meter that has saved its burst, and sends at most 64 back in line.
/// What waits is bounded by what the caller enqueues: sessions bound their requests.
/// Unused classes, meters and subjects are kept up to a constant number.
#[derive(Debug)]
pub struct Dispatcher {
    pub(crate) target: TargetParams,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) now: Time,
    /// The number of requests that ever arrived.
    arrivals: u64,
    pub(crate) queued: usize,
    /// The lane that is tried first: the one that did not dispatch last.
    next_lane: usize,
    pub(crate) lanes: [LaneState; 2],
    pub(crate) reservation_clock: ReservationClock,
    pub(crate) dependents: Dependents,
    pub(crate) grants: GrantTable,
    pub(crate) unreported: UnreportedMetadata,
    pub(crate) slot_controller: Option<SlotController>,
    pub(crate) observed: Observed,
    /// The request that was dispatched while all other device slots were free, while that is so.
    pub(crate) single_request: Option<u32>,
    pub(crate) requests: Slab<QueuedRequest>,
    pub(crate) classes: Slab<Class>,
    pub(crate) dormant: Slab<DormantClass>,
    pub(crate) meters: Slab<Meter>,
    pub(crate) links: Slab<ClassMeter>,
    pub(crate) routes: Slab<MeterChain>,
    pub(crate) subjects: Slab<Subject>,
    pub(crate) jobs: Slab<ActiveJob>,
    /// Sums of the subjects that are forgotten, and how many of their operations are metadata.
    pub(crate) forgotten: (Usage, Ops),
    pub(crate) names: Registry,
    pub(crate) donations: Donations,
    #[cfg(debug_assertions)]
    calls: u64,
}

impl Dispatcher {
    /// A dispatcher with nothing queued.
    pub fn new(target: TargetParams, rules: Arc<RuleSet>) -> Dispatcher {
        let mut new = Dispatcher {
            lanes: [LaneState::new(target.threads), LaneState::new(target.slots_max)],
            dependents: Dependents::of(&rules, &Dependents::default(), Time::ZERO),
            slot_controller: SlotController::of(&target),
            observed: Observed::default(),
            single_request: None,
            target,
            rules,
            now: Time::ZERO,
            arrivals: 0,
            queued: 0,
            next_lane: 0,
            reservation_clock: ReservationClock::new(),
            grants: GrantTable::default(),
            unreported: UnreportedMetadata::default(),
            requests: Slab::default(),
            classes: Slab::default(),
            dormant: Slab::default(),
            meters: Slab::default(),
            links: Slab::default(),
            routes: Slab::default(),
            subjects: Slab::default(),
            jobs: Slab::default(),
            forgotten: Default::default(),
            names: Registry::default(),
            donations: Donations::default(),
            #[cfg(debug_assertions)]
            calls: 0,
        };
        new.set_reserved_slots();
        new.set_units();
        new.apply_dependents();
        new
    }

    /// Enqueues a request. Poll afterwards.
    ///
    /// # Panics
    /// If the subject was released as often as it was taken.
    pub fn enqueue(&mut self, arrival: Arrival, now: Time) -> RequestId {
        self.advance(now);
        let SubjectId { index: subject, generation } = arrival.subject;
        assert!(self.subjects.has(subject, generation), "subject {subject} is gone");
        let way = self.classification(subject, arrival.kind);
        self.count_in(subject);
        let lane = arrival.lane as usize;
        let (cost, size) = self.weigh(lane, arrival.kind, arrival.amount);
        self.arrivals += 1;
        let urgent = arrival.kind.never_delayed();
        let index = self.requests.insert(QueuedRequest {
            token: arrival.token,
            number: self.arrivals,
            amount: arrival.amount,
            cost,
            arrived: self.now,
            started: self.now,
            subject,
            class: way.class,
            route: way.route,
            prev: NONE,
            next: NONE,
            slots: 0,
            kind: arrival.kind,
            lane: lane as u8,
            queue: arrival.kind.direction() as u8,
            size,
            stage: if urgent { RequestStage::Urgent } else { RequestStage::Queued },
            flags: 0,
        });
        self.queue_up(index);
        self.count_dependents(way.class, true);
        self.finish_call();
        RequestId { index, generation: self.requests.generation(index) }
    }

    /// The next request to perform; `None` when nothing may go now. Poll until then.
    ///
    /// Rarely it is `None` because this call has sent many heads back to meters that are in debt.
    /// Then [`Dispatcher::next_deadline`] is now.
    pub fn poll_dispatch(&mut self, now: Time) -> Option<Dispatched> {
        self.advance(now);
        self.admit_ready();
        for _ in 0..REQUEUED_MAX {
            let (lane, choice) = self.next_choice()?;
            let Some(dispatched) = self.start(lane, choice) else {
                // A head that went back in line no longer delays others at its meters.
                self.admit_ready();
                continue;
            };
            if choice != Choice::Urgent {
                self.next_lane = 1 - lane;
            }
            self.finish_call();
            return Some(dispatched);
        }
        None
    }

    /// Ends a dispatched request: frees its slots and charges what was served in place of what was
    /// requested. Poll afterwards.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn complete(&mut self, id: RequestId, served: Amount, now: Time) {
        self.advance(now);
        let index = self.running(id);
        let QueuedRequest { class, subject, lane, kind, flags, route, amount, .. } =
            self.requests[index];
        self.free_slots(index);
        self.lanes[usize::from(lane)].note_served(class, self.now);
        if served != amount {
            self.correct(index, served);
        }
        let request = &self.requests[index];
        let service = self.now.since(request.started);
        let usage = Usage::of(request, served, service);
        let own = &mut self.classes[class];
        own.running -= 1;
        own.usage += usage;
        self.count_dependents(class, false);
        let payer = &mut self.subjects[subject];
        payer.usage += usage;
        payer.kinds[kind as usize].ops += served.ops;
        self.requests.remove(index);
        if flags & OWN_ROUTE != 0 {
            self.drop_chain(route);
        }
        self.count_out(subject);
        self.make_dormant(class);
        if usize::from(lane) == DEVICE {
            let alone = self.single_request.take_if(|alone| *alone == index).is_some();
            self.record_completion(kind, served, service, alone);
        }
        self.finish_call();
    }

    /// Moves a request that was dispatched in the cached lane to the device lane. It frees its
    /// slot, keeps what it paid its meters, and gives back its turn by a reservation. It is charged
    /// the cost of a call that moved nothing, and waits in the device lane before its class's later
    /// arrivals. Poll afterwards.
    ///
    /// # Panics
    /// If the request is not running in the cached lane.
    pub fn miss(&mut self, id: RequestId, now: Time) {
        self.advance(now);
        let index = self.running(id);
        let QueuedRequest { class, kind, cost, amount, lane, .. } = self.requests[index];
        assert!(usize::from(lane) != DEVICE, "request {index} already is in the device lane");
        self.free_slots(index);
        let nothing = Amount::new(0, amount.ops.get().min(1));
        let attempt = self.target.costs.charge(Lane::Cached, kind, nothing);
        let attempt = attempt.get().min(cost);
        self.charge_tags(index, cost, attempt);
        if self.requests[index].has(RESERVED) {
            self.correct_reserve(index, Amount::default());
        }
        let (cost, size) = self.weigh(DEVICE, kind, amount);
        self.classes[class].running -= 1;
        self.classes[class].usage.cost += Nanos::new(attempt);
        let request = &mut self.requests[index];
        request.arrived = self.now.before(request.started.since(request.arrived));
        (request.cost, request.size, request.slots) = (cost, size, 0);
        request.lane = DEVICE as u8;
        request.flags &= !RESERVED;
        if kind.never_delayed() {
            request.stage = RequestStage::Urgent;
        } else {
            (request.stage, request.queue) = (RequestStage::Queued, RETURNED as u8);
        }
        self.queue_up(index);
        self.finish_call();
    }

    /// Removes a request that still waits and returns its token; `None` if it runs or is gone. What
    /// it had paid is given back. Poll afterwards.
    pub fn cancel(&mut self, id: RequestId, now: Time) -> Option<u64> {
        self.advance(now);
        let index = id.index;
        if !self.requests.has(index, id.generation) {
            return None;
        }
        let QueuedRequest { token, subject, class, stage, flags, route, .. } = self.requests[index];
        match stage {
            RequestStage::Running => return None,
            RequestStage::Urgent => self.unqueue_urgent(index),
            RequestStage::Queued => self.unqueue(index),
        }
        if self.requests[index].has(PAID) {
            self.refund_meters(index);
        }
        self.queued -= 1;
        self.classes[class].queued -= 1;
        self.count_dependents(class, false);
        self.requests.remove(index);
        if flags & OWN_ROUTE != 0 {
            self.drop_chain(route);
        }
        self.count_out(subject);
        self.make_dormant(class);
        self.finish_call();
        Some(token)
    }

    /// When to poll again even though nothing arrives or completes. That is now while there is
    /// work, when a meter lets a head go, or when a reservation falls due behind a head that does
    /// not fit. `None`: no such time.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.has_work() {
            return Some(self.now);
        }
        let lanes = self.lanes.iter().enumerate().filter(|(_, state)| state.free() > 0);
        let times = lanes.flat_map(|(lane, state)| {
            let meter = state.deadlines.first().map(|(key, _)| crate::tags::time_of_key(key));
            [meter, self.reservation_deadline(lane)]
        });
        times.flatten().chain(self.dependents_deadline()).min()
    }

    /// Whether `poll_dispatch` at the time of the last call has a request to choose. It may return
    /// true in vain when the last dispatch put the next heads' meters into debt.
    pub fn has_work(&self) -> bool {
        self.next_choice().is_some()
    }

    /// How many requests wait.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// The shortfall of reservations in the last second, in parts per million of the reserved
    /// rates. It is above 0 if more is reserved than the target gives, and if requests wait for a
    /// reservation and the target gives nothing. O(classes).
    pub fn reservation_shortfall_ppm(&self, now: Time) -> u64 {
        let now = self.now.max(now);
        self.reservation_clock.cut_ppm(self.reservation_lag(now), now)
    }

    /// The current limits that depend on other rules, by rule.
    pub fn dependent_limits(&self) -> impl Iterator<Item = (&str, Rate)> {
        self.dependents.effective_limits()
    }

    /// The current D: the target's `slots_max`, or less to meet its latency.
    pub fn slots_max(&self) -> u32 {
        self.lanes[DEVICE].slots_max
    }

    /// The target it schedules for; its costs as they were learnt.
    pub fn target(&self) -> &TargetParams {
        &self.target
    }

    /// The rules in force.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    // ---- the steps that calls share ----

    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.reservation_clock.advance(self.now);
        self.update_dependents();
    }

    /// Ends a call that changed something: no head is left waiting at a meter that is due.
    pub(crate) fn finish_call(&mut self) {
        self.admit_ready();
        #[cfg(debug_assertions)]
        {
            // Checked often while small, seldom later: a check costs O(everything).
            self.calls += 1;
            if self.calls.is_power_of_two() || self.calls.is_multiple_of(4099) {
                self.check_invariants();
            }
        }
    }

    fn next_choice(&self) -> Option<(usize, Choice)> {
        let order = [self.next_lane, 1 - self.next_lane];
        if let Some(lane) = order.into_iter().find(|lane| !self.lanes[*lane].urgent.is_empty()) {
            return Some((lane, Choice::Urgent));
        }
        for lane in order {
            if let Some(choice) = self.choose(lane) {
                return Some((lane, choice));
            }
        }
        None
    }

    /// Cost in ns and size of a request in a lane.
    pub(crate) fn weigh(&self, lane: usize, kind: OpKind, amount: Amount) -> (u64, u8) {
        let costs = &self.target.costs;
        if lane != DEVICE {
            return (costs.charge(LANES[lane], kind, amount).get(), 0);
        }
        let (cost, size) = costs.charge_and_size(kind, amount, self.target.slots_max);
        (cost.get(), size)
    }

    /// Puts a request at the end of its queue.
    pub(crate) fn queue_up(&mut self, index: u32) {
        self.queued += 1;
        let QueuedRequest { class, lane, queue, stage, .. } = self.requests[index];
        let (lane, queue) = (usize::from(lane), usize::from(queue));
        let own = &mut self.classes[class];
        own.queued += 1;
        if stage == RequestStage::Urgent {
            self.lanes[lane].urgent.push(index, &mut self.requests, self.now);
            return;
        }
        let fifo = &mut own.lanes[lane].queues[queue];
        let was_empty = fifo.is_empty();
        fifo.push(index, &mut self.requests, self.now);
        if was_empty {
            self.admit(class, lane, queue);
            self.refresh(class, lane);
        }
    }

    fn unqueue(&mut self, index: u32) {
        let QueuedRequest { class, lane, queue, .. } = self.requests[index];
        let (lane, queue) = (usize::from(lane), usize::from(queue));
        let is_head = self.classes[class].lanes[lane].queues[queue].head == index;
        if is_head {
            self.withdraw(class, lane, queue);
        }
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        fifo.unlink(index, &mut self.requests, self.now);
        if !is_head {
            return;
        }
        if !fifo.is_empty() {
            self.admit(class, lane, queue);
        }
        self.refresh(class, lane);
    }

    fn unqueue_urgent(&mut self, index: u32) {
        let lane = usize::from(self.requests[index].lane);
        self.lanes[lane].urgent.unlink(index, &mut self.requests, self.now);
    }

    pub(crate) fn running(&self, id: RequestId) -> u32 {
        assert!(self.requests.has(id.index, id.generation), "request {id:?} is gone");
        assert!(
            self.requests[id.index].stage == RequestStage::Running,
            "request {id:?} does not run"
        );
        id.index
    }

    fn free_slots(&mut self, index: u32) {
        let QueuedRequest { class, lane, slots, .. } = self.requests[index];
        let lane = usize::from(lane);
        self.lanes[lane].slots_in_use -= slots;
        if self.requests[index].has(RESERVED) {
            self.lanes[lane].reservation_slots_in_use -= slots;
        }
        if lane != DEVICE {
            return;
        }
        let own = &mut self.classes[class];
        own.slots_in_use -= slots;
        if own.slots_cap != u32::MAX {
            self.refresh(class, lane);
        }
    }

    /// Replaces the charge of a running request by the charge for `served`.
    fn correct(&mut self, index: u32, served: Amount) {
        let QueuedRequest { lane, kind, cost, route, amount, .. } = self.requests[index];
        let new = self.target.costs.charge(LANES[usize::from(lane)], kind, served).get();
        self.charge_tags(index, cost, new);
        self.move_charge(route, kind, amount, served);
        if self.requests[index].has(RESERVED) {
            self.correct_reserve(index, served);
        }
        self.requests[index].cost = new;
    }
}

/// How many heads one call sends back in line before it leaves the rest to the next.
const REQUEUED_MAX: usize = 64;
