//! The dispatcher's public calls: how its owners work together.
//!
//! ```text
//!   enqueue ─► queue of its class ─► meters ─► ready ─► poll_dispatch ─► running ─► complete
//!      cancel ◄────────┴───────────────┴────────┘                          │ miss: back, first
//!                                                                          ▼ in line, other lane
//!   registry   whose request it is: subject, class        lanes        which head is next
//!   meters     whether a head may pass, what it pays      observation  what was used and waited for
//!   terms      what rules and a controller give each of them
//! ```
//!
//! No owner calls another one but the lanes, which count waiting at the observation. After any call
//! that takes `now`, poll again until there is nothing. Time never goes backwards here: each call
//! takes the later of its `now` and the last one.

mod admission;
mod change;
mod classify;
mod donate;
mod entitle;
mod grants;
mod invariants;
mod reports;
mod spread;

use std::sync::Arc;

use model::{Amount, Bytes, Lane, Nanos, OpKind, Rate, TargetId, Time};
use rules::RuleSet;

use crate::deadline::Deadline;
use crate::ids::{RequestId, SubjectId};
use crate::index::{ChainIndex, LanePlace, OptionalIndex, RequestIndex, SubjectIndex};
use crate::lanes::{
    Choice, DEVICE, Dispatched, LANES, Lanes, NewRequest, QueuePlace, QueuedRequest, RequestStage,
    TargetParams,
};
use crate::meters::Meters;
use crate::observation::{AccessedBytes, AccountPlace, CompletedRequest, Observation};
use crate::registry::Registry;
use crate::terms::Terms;
use spread::{SLICE, SpreadingChange};

pub use donate::Donated;

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

/// The scheduler of all targets of a proxy: it picks the next request to perform. Targets have lanes
/// of their own; a limit is one over all of them.
///
/// The calls are O(log n) in classes and meters, but for `set_target`, the reports, and `set_rules`
/// and `set_entitlements`, whose work spreads over the polls that follow. A class with a cap on its
/// slots costs O(branches) of rows that reserve for parts of it. A call moves one head for each meter
/// that fell due since the last one, at most 64 more of each meter that has saved its burst, and sends
/// at most 64 back in line.
/// What waits is bounded by what the caller enqueues: sessions bound their requests.
/// Unused classes, meters and subjects are kept up to a constant number.
#[derive(Debug)]
pub struct Dispatcher {
    now: Time,
    terms: Terms,
    registry: Registry,
    meters: Meters,
    lanes: Lanes,
    observation: Observation,
    change: Option<SpreadingChange>,
    /// Whether those that share a class are to be classified once more as others go.
    unshares: bool,
    /// Units of work that a call spends on `change`.
    change_slice: usize,
    #[cfg(debug_assertions)]
    calls: u64,
}

impl Dispatcher {
    /// A dispatcher with nothing queued, for targets with ids from [`TargetId::FIRST`] on.
    pub fn new(targets: impl IntoIterator<Item = TargetParams>, rules: Arc<RuleSet>) -> Dispatcher {
        let mut new = Dispatcher {
            now: Time::ZERO,
            terms: Terms::new(rules),
            registry: Registry::default(),
            meters: Meters::default(),
            lanes: Lanes::default(),
            observation: Observation::default(),
            change: None,
            unshares: false,
            change_slice: SLICE,
            #[cfg(debug_assertions)]
            calls: 0,
        };
        for params in targets {
            new.add_target(params);
        }
        new.apply_dependents();
        new
    }

    /// Enqueues a request. Poll afterwards.
    ///
    /// # Panics
    /// If the subject was released as often as it was taken.
    pub fn enqueue(&mut self, arrival: Arrival, now: Time) -> RequestId {
        self.advance(now);
        let Arrival { kind, amount, lane, token, .. } = arrival;
        let subject = self.registry.find(arrival.subject);
        let way = self.classification(subject, kind);
        if self.registry.count_in(subject) {
            self.observation.begin_activity(subject, self.now);
        }
        let (class, chain) = (way.class, way.chain);
        self.retain_chain(chain);
        let lane = lane as usize;
        let new = NewRequest { subject, class, chain, kind, amount, lane, token };
        let index = self.lanes.insert(new, self.now);
        self.queue_up(index);
        self.count_dependents(self.lanes.watched(class), 1);
        self.finish_call();
        self.lanes.id_of(index)
    }

    /// The next request to perform, of each target in turn; `None` when nothing may go now. Poll
    /// until then.
    ///
    /// Rarely it is `None` because this call has sent many heads back to meters that are in debt.
    /// Then [`Dispatcher::next_deadline`] is now.
    pub fn poll_dispatch(&mut self, now: Time) -> Option<Dispatched> {
        self.advance(now);
        if self.change.is_some() || self.unshares {
            self.spread_change();
        }
        self.admit_ready();
        for _ in 0..REQUEUED_MAX {
            let (at, choice) = self.lanes.next_choice(self.now)?;
            let Some(index) = self.take(at, choice) else {
                // A head that went back in line no longer delays others at its meters.
                self.admit_ready();
                continue;
            };
            if choice != Choice::Urgent {
                self.lanes.end_turn(at);
            }
            let dispatched = self.run(index);
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
        let index = self.lanes.running(id);
        let QueuedRequest { class, subject, lane, kind, chain, amount, .. } =
            *self.lanes.request(index);
        let ended = self.lanes.end_running(index, self.now, &mut self.observation);
        let owes_meters = self.lanes.request(index).owes_meters();
        if served != amount {
            self.lanes.correct(index, served, self.now, &mut self.observation);
        }
        if let Some(chain) = chain.get() {
            if owes_meters {
                self.meters.charge_reserved(chain, served, self.now);
            } else if served != amount {
                self.meters.charge(chain, kind, amount, served, self.now);
            }
        }
        self.drop_chain(chain);
        let request = self.lanes.request(index);
        let done = CompletedRequest {
            kind,
            served,
            cost: Nanos::new(request.cost),
            queue_time: request.started.since(request.arrived),
            service_time: self.now.since(request.started),
            is_delayed: request.is_delayed(),
        };
        let at = AccountPlace { subject, class: ended.owner, id: ended.class };
        self.observation.count_completed(at, || self.registry.key(at.class).clone(), done);
        self.count_dependents(ended.watched, -1);
        self.lanes.remove(index);
        self.count_out(subject);
        if ended.is_last {
            self.rest_unused(class);
        }
        let (target, seen) = (ended.target, &mut self.observation);
        if usize::from(lane) == DEVICE
            && self.lanes.record_completion(index, target, done, self.now, seen)
        {
            self.weigh_again();
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
        let index = self.lanes.running(id);
        let class = self.lanes.request(index).class;
        let attempt = self.lanes.move_to_device(index, self.now, &mut self.observation);
        self.observation.count_missed(self.lanes.owner_of(class), attempt);
        self.queue_up(index);
        self.finish_call();
    }

    /// Removes a request that still waits and returns its token; `None` if it runs or is gone. What
    /// it had paid is given back. Poll afterwards.
    pub fn cancel(&mut self, id: RequestId, now: Time) -> Option<u64> {
        self.advance(now);
        let index = self.lanes.find(id)?;
        let request = *self.lanes.request(index);
        let QueuedRequest { token, subject, class, stage, kind, amount, .. } = request;
        if stage == RequestStage::Running {
            return None;
        }
        self.unqueue(index);
        if let Some(chain) = request.chain.get().filter(|_| request.has_paid()) {
            self.meters.charge(chain, kind, amount, Amount::default(), self.now);
        }
        self.count_dependents(self.lanes.watched(class), -1);
        self.lanes.remove(index);
        self.drop_chain(request.chain);
        self.count_out(subject);
        self.rest_unused(class);
        self.finish_call();
        Some(token)
    }

    /// Counts what a running metadata request was charged, since its client reports it to no other
    /// server. To be called before `complete`.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn count_unreported(&mut self, id: RequestId) {
        let request = self.lanes.request(self.lanes.running(id));
        let class = self.lanes.owner_of(request.class);
        let (key, class) = (self.registry.key(class), self.registry.class_id(class));
        self.observation.count_unreported(class, key, Nanos::new(request.cost));
    }

    /// Counts what a running read or write moved, whether it began where no recent one through the
    /// same open file had ended (`random`), and how many that were counted as such have turned out
    /// to follow it (`joined`). Other requests, and those that moved nothing, are not counted. To be
    /// called before `complete`.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn count_access(&mut self, id: RequestId, moved: Bytes, random: bool, joined: u8) {
        let request = self.lanes.request(self.lanes.running(id));
        let (subject, kind) = (request.subject, request.kind);
        let class = self.lanes.owner_of(request.class);
        let at = AccountPlace { subject, class, id: self.registry.class_id(class) };
        let access = AccessedBytes { kind, moved, random, joined };
        self.observation.count_access(at, || self.registry.key(class).clone(), access);
    }

    /// Charges a subject for remote service: requests of this kind had service of this cost at
    /// other servers since its previous request here. Poll afterwards.
    ///
    /// # Panics
    /// If the subject was released as often as it was taken.
    pub fn charge_remote_service(
        &mut self,
        subject: SubjectId,
        kind: OpKind,
        cost: Nanos,
        now: Time,
    ) {
        self.advance(now);
        let subject = self.registry.find(subject);
        let way = self.classification(subject, kind);
        let class = self.lanes.owner_of(way.class);
        self.observation.count_remote(Some(subject), class, cost);
        self.lanes.charge_remote(class, cost, self.now, &mut self.observation);
        self.finish_call();
    }

    /// When to poll again even though nothing arrives or completes. That is now while there is
    /// work or a change of rules is not everywhere yet, when a meter or the share of the slots lets a
    /// head go, or when a reservation falls due behind a head that does not fit. `None`: no such time.
    pub fn next_deadline(&self) -> Option<Time> {
        let spreads = self.change.is_some() || (self.unshares && self.registry.has_freed());
        if spreads || self.has_work() {
            return Some(self.now);
        }
        let change = self.terms.next_change().get().filter(|_| self.lanes.queued() > 0);
        let mut least = Deadline::default();
        least.bring_forward(change.map(|at| at.max(self.now)));
        for target in self.lanes.targets() {
            for lane in 0..LANES.len() {
                if self.lanes.has_free_slot(target, lane) {
                    least.bring_forward(self.meters.deadline(LanePlace { target, lane }));
                    least.bring_forward(self.lanes.reservation_deadline(target, lane, self.now));
                    least.bring_forward(self.lanes.share_deadline(target, lane, self.now));
                }
            }
        }
        least.get()
    }

    /// Whether `poll_dispatch` at the time of the last call has a request to choose. It may return
    /// true in vain when the last dispatch put the next heads' meters into debt.
    pub fn has_work(&self) -> bool {
        self.lanes.next_choice(self.now).is_some()
    }

    /// The same for one target.
    pub fn has_work_at(&self, target: TargetId) -> bool {
        self.lanes.next_choice_at(target, self.now).is_some()
    }

    /// How many requests wait.
    pub fn queued(&self) -> usize {
        self.lanes.queued()
    }

    /// How many requests wait for a target.
    pub fn queued_at(&self, target: TargetId) -> usize {
        self.lanes.queued_at(target)
    }

    /// The shortfall of a target's reservations in the last second, in parts per million of the
    /// reserved rates. It is above 0 if more is reserved than the target gives, and if requests wait
    /// for a reservation and the target gives nothing. O(classes).
    pub fn reservation_shortfall_ppm(&self, target: TargetId, now: Time) -> u64 {
        self.lanes.reservation_shortfall_ppm(target, self.now.max(now))
    }

    /// The current limits that depend on other rules, by rule.
    pub fn dependent_limits(&self) -> impl Iterator<Item = (&str, Rate)> {
        self.terms.dependent_limits()
    }

    /// The current D: the target's `slots_max`, or less to meet its latency; of that the part that
    /// this proxy has.
    pub fn slots_max(&self, target: TargetId) -> u32 {
        self.lanes.slots_max(target)
    }

    /// The ids of all targets.
    pub fn targets(&self) -> impl Iterator<Item = TargetId> + use<> {
        self.lanes.targets()
    }

    /// The parameters of a target; its costs as they were learnt.
    pub fn target(&self, target: TargetId) -> &TargetParams {
        self.lanes.params(target)
    }

    /// The rules in force.
    pub fn rules(&self) -> &Arc<RuleSet> {
        self.terms.rules()
    }

    // ---- the steps that calls share ----

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.lanes.advance(self.now);
        if self.terms.next_change().is_due(self.now) {
            self.change_terms();
        }
    }

    /// Ends a call that changed something: no head is left waiting at a meter that is due.
    fn finish_call(&mut self) {
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

    /// Takes what a lane has chosen out of its queue and charges it; the choice must still hold.
    /// `None` if a meter of the head fell into debt since it became ready: it waits there, choose
    /// again.
    fn take(&mut self, at: LanePlace, choice: Choice) -> Option<RequestIndex> {
        if choice == Choice::Urgent {
            let index = self.lanes.take_urgent(at, self.now, &mut self.observation);
            self.charge_meters(index);
            return Some(index);
        }
        let place = self.lanes.chosen_queue(at.lane, choice);
        let index = self.lanes.head(place);
        if self.lanes.request(index).chain.is_some() {
            let is_reserved = matches!(choice, Choice::Reservation { .. });
            if is_reserved && self.lanes.is_branch(place.class) {
                self.pass_meters(place, index);
            } else if !self.pay_meters(place, index) {
                return None;
            }
        }
        let next = self.lanes.take_head(place, choice, self.now, &mut self.observation);
        if let Some(next) = next {
            self.admit_new(next);
        }
        self.lanes.settle(place.class, place.lane, self.now, &mut self.observation);
        Some(index)
    }

    /// Takes a ready head past its meters, and charges them. False if one of them fell into debt since
    /// it became ready: it waits there.
    #[inline(always)]
    fn pay_meters(&mut self, place: QueuePlace, index: RequestIndex) -> bool {
        if !self.confirm(place) {
            return false;
        }
        if let Some((chain, passed)) = self.lanes.set_ready(place, false) {
            self.meters.forget_passed(chain, passed, self.line_of(place));
        }
        self.charge_meters(index);
        true
    }

    /// Takes a head that goes by the reservation of a row past its meters, whatever they are owed. They
    /// are charged at its end for what it was served.
    #[inline(never)]
    fn pass_meters(&mut self, place: QueuePlace, index: RequestIndex) {
        if self.lanes.is_waiting(place) {
            self.leave_meter(place, true);
        } else {
            self.set_ready(place, false);
        }
        self.lanes.set_owing(index);
    }

    fn run(&mut self, index: RequestIndex) -> Dispatched {
        let request = self.lanes.request(index);
        let (watched, subject) = (self.lanes.watched(request.class), request.subject);
        // One that missed the cache was counted before.
        if watched != 0 && !request.is_returned() {
            self.terms.count_dispatched(watched, request.amount);
        }
        self.lanes.run(index, self.registry.id_of(subject), self.now)
    }

    /// Puts a request at the end of its queue.
    fn queue_up(&mut self, index: RequestIndex) {
        if let Some(head) = self.lanes.queue_up(index, self.now) {
            self.admit_new(head);
            let place = head.place;
            self.lanes.refresh(place.class, place.lane, self.now, &mut self.observation);
        }
    }

    /// Takes a waiting request out of its queue.
    fn unqueue(&mut self, index: RequestIndex) {
        if !self.lanes.is_head(index) {
            return self.lanes.unlink(index, self.now);
        }
        let place = self.lanes.request(index).place();
        self.withdraw(place);
        self.lanes.unlink(index, self.now);
        if !self.lanes.is_empty(place) {
            self.admit(place);
        }
        self.lanes.refresh(place.class, place.lane, self.now, &mut self.observation);
    }

    /// Adds a reference on the chain of a request.
    #[inline]
    fn retain_chain(&mut self, chain: OptionalIndex<ChainIndex>) {
        if let Some(chain) = chain.get() {
            self.meters.retain_chain(chain);
        }
    }

    /// Drops the reference of a request on its chain.
    #[inline]
    fn drop_chain(&mut self, chain: OptionalIndex<ChainIndex>) {
        if let Some(chain) = chain.get() {
            self.meters.drop_chain(chain, self.now);
        }
    }

    /// Counts a request of a subject out.
    fn count_out(&mut self, subject: SubjectIndex) {
        if self.registry.count_out(subject) {
            self.observation.end_activity(subject, self.now);
            self.rest_subject(subject);
        }
    }

    /// Counts a request in or out at the parents, by their bits, for which it counts.
    fn count_dependents(&mut self, watched: u64, change: i64) {
        if watched != 0 && self.terms.count_dependents(watched, change, self.now) {
            self.apply_dependents();
        }
    }
}

/// How many heads one call sends back in line before it leaves the rest to the next.
const REQUEUED_MAX: usize = 64;
