//! Invariants that are checked at every step, from outside the scheduler.
//!
//! ```text
//!   arrived ─► counts of waiting requests ─┐
//!   dispatched ─► slots, order ────────────┼─► a violation: what, when, and how to reproduce it
//!   idle ─► no usable slot is free ────────┤
//!   windows of 10 s ─► limits, from above and from below
//!   since a class waits ─► reservations, division by weight
//! ```
//!
//! The checks do not know how the dispatcher chooses; they derive the classes from the rules and from
//! the rows that the dispatcher was given.
//! docs/algorithms/dispatcher.md describes the invariants; of the other schedulers only slots are
//! checked. `Dispatcher::check_invariants` costs O(everything) and is called at powers of two and
//! occasionally later.

mod classes;
mod fairness;
mod reservations;
mod reserved;
mod rows;
mod usage;
mod waiting;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Lane, OpKind, Time};
use rules::RuleSet;
use sched::slots_needed;

use crate::scenario::Scenario;
use crate::scheduler::{Policy, Scheduler, SimDispatch};
use crate::targets::TargetSpec;
use crate::world::{SimOwner, SimRequest};

use classes::{ClassOf, RuleView};
use fairness::Fairness;
use reserved::ReservedService;
use waiting::{QUEUES, WaitingRequests, queue_of};
use windows::Windows;

pub(crate) use reservations::{PromisedReservation, ReservationChecks};
pub(crate) use rows::{GivenRow, RowsEvent};
pub(crate) use usage::{CountedUsage, ProxyEpoch, UsageChecks, check_account, check_level};

/// The state of the checks of a world.
#[derive(Debug)]
pub(crate) struct InvariantChecks {
    policy: Policy,
    known: RuleView,
    proxies: Vec<ProxyChecks>,
    /// Limits over all proxies, where a controller divides them.
    whole: Option<Windows>,
    /// The rows of a calendar, where there is one.
    reserved: Option<ReservedService>,
}

/// The state of the checks of a proxy.
#[derive(Debug)]
struct ProxyChecks {
    spec: Arc<TargetSpec>,
    /// The costs that its scheduler uses, and the times that determine slots.
    target: sched::TargetParams,
    times: sched::Costs,
    /// Device slots and threads in use.
    slots_in_use: u32,
    threads_in_use: u32,
    waiting: WaitingRequests,
    /// Numbers of requests that tried the cached lane, and paid for it.
    paid: BTreeSet<u64>,
    /// The last number that each class dispatched, by queue.
    order: Vec<[u64; QUEUES]>,
    /// The greatest number that arrived, and that arrived before a change had spread that took
    /// several calls.
    arrived: u64,
    before_spread: u64,
    /// The same of each identity and kind, of requests that waited when rows changed.
    own_order: BTreeMap<(u32, OpKind, usize), u64>,
    /// The greatest number that arrived before rows changed last.
    before_rows: u64,
    windows: Windows,
    fairness: Fairness,
    quiets: u64,
    /// Whether a controller divides the slots of its target.
    divided: bool,
}

/// How many polls there are between two full checks.
const CHECK_EVERY: u64 = 1 << 16;

impl InvariantChecks {
    pub(crate) fn new(scenario: &Scenario, proxies: usize, policy: Policy) -> InvariantChecks {
        let specs = scenario.targets.iter().flat_map(|spec| {
            let spec = Arc::new(spec.clone());
            (0..spec.count).map(move |_| spec.clone())
        });
        let alone = policy == Policy::LocalDispatcher;
        let divides = scenario.controller && !alone;
        let mut watches: Vec<ProxyChecks> =
            specs.map(|spec| ProxyChecks::new(spec, divides)).collect();
        if (scenario.delay || scenario.controller) && !alone {
            // Remote service counts here: shares are of all proxies together.
            watches.iter_mut().for_each(|watch| watch.fairness.turn_off());
        }
        assert_eq!(watches.len(), proxies, "a watch for each proxy");
        InvariantChecks {
            policy,
            known: RuleView::new(
                scenario.rules.clone(),
                watches.iter().map(|watch| watch.spec.name.as_str().into()),
            ),
            proxies: watches,
            whole: divides.then(|| Windows::over(proxies as u64)),
            reserved: scenario
                .reserved_size
                .filter(|_| divides)
                .map(|_| ReservedService::default()),
        }
    }

    /// Counts a request that waits.
    pub(crate) fn arrived(&mut self, r: &SimRequest, identity: u32, owner: &SimOwner, now: Time) {
        if self.policy.is_ours() {
            let belongs = self.known.class_of(r.proxy, identity, r.kind, owner);
            self.proxies[r.proxy as usize].count_arrival(r, &belongs, now);
            self.reserved.iter_mut().for_each(|of| of.waits(&belongs, r, true, now));
        }
    }

    /// Counts a try in the cached lane that needs the device.
    pub(crate) fn missed(&mut self, r: &SimRequest, identity: u32, owner: &SimOwner, now: Time) {
        if !self.policy.is_ours() {
            return;
        }
        let belongs = self.known.class_of(r.proxy, identity, r.kind, owner);
        let watch = &mut self.proxies[r.proxy as usize];
        watch.threads_in_use = watch.threads_in_use.saturating_sub(1);
        watch.windows.missed(&belongs, r);
        watch.count_arrival(r, &belongs, now);
        self.reserved.iter_mut().for_each(|of| of.waits(&belongs, r, true, now));
    }

    /// Checks a request that was dispatched, perhaps while a change of rules spreads; returns what is
    /// wrong.
    pub(crate) fn dispatched(
        &mut self,
        r: &SimRequest,
        identity: u32,
        owner: &SimOwner,
        chosen: SimDispatch,
        spreading: bool,
        now: Time,
    ) -> Option<String> {
        let watch = &mut self.proxies[r.proxy as usize];
        watch.note_spreading(spreading);
        let wrong_slots = watch.use_slots(r, chosen, self.policy);
        if !self.policy.is_ours() {
            return wrong_slots;
        }
        let belongs = self.known.class_of(r.proxy, identity, r.kind, owner);
        watch.windows.waits(&belongs, r, false, now);
        watch.windows.served(&belongs, r, now);
        if let Some(of) = &mut self.reserved {
            of.waits(&belongs, r, false, now);
            of.served(&belongs, r);
        }
        let paid = watch.pay(r, &belongs);
        watch.waiting.leave(&belongs, r, watch.slots(r), paid);
        let mut broken = None;
        if !paid {
            let is_late = watch.is_late(r) || belongs.row.is_some();
            for windows in self.whole.iter_mut().chain([&mut watch.windows]) {
                let waiting = &watch.waiting;
                broken = broken.or(windows.pays(&self.known, &belongs, r, waiting, is_late, now));
            }
        }
        wrong_slots
            .or(broken)
            .or_else(|| watch.check_order(r, identity, &belongs))
            .or_else(|| watch.check_fairness(r, &belongs, spreading))
    }

    /// Counts a request that has left the target.
    pub(crate) fn completed(&mut self, r: &SimRequest) {
        let watch = &mut self.proxies[r.proxy as usize];
        if r.lane == Lane::Device {
            // Schedulers other than ours serve in the device's lane what tried the cached one.
            watch.slots_in_use = watch.slots_in_use.saturating_sub(r.slots);
        } else {
            watch.threads_in_use = watch.threads_in_use.saturating_sub(1);
            watch.paid.remove(&r.number);
        }
    }

    /// Checks that the scheduler rightly dispatches nothing; returns what is wrong.
    pub(crate) fn check_idle(
        &mut self,
        proxy: u32,
        sched: &dyn Scheduler,
        clock: Time,
        now: Time,
    ) -> Option<String> {
        if !self.policy.is_ours() {
            return None;
        }
        let watch = &mut self.proxies[proxy as usize];
        watch.divided = sched.are_slots_divided();
        watch.quiets += 1;
        if watch.quiets.is_power_of_two() || watch.quiets.is_multiple_of(CHECK_EVERY) {
            sched.check();
        }
        if sched.next_deadline().is_some_and(|deadline| deadline <= clock) {
            // The scheduler has reached the bound of one call, and is polled again.
            return None;
        }
        let cut = sched.reservation_shortfall_ppm(clock) > 0;
        if self.whole.is_none() {
            let free = watch.free_lanes(&self.known);
            watch.windows.note_throttled(&self.known, &watch.waiting, free, now);
        }
        watch
            .check_free_slots(&self.known)
            .or_else(|| watch.windows.check_reservations(&self.known, cut, now))
    }

    /// Checks what holds over seconds, though a proxy does nothing; returns what is wrong.
    pub(crate) fn check_second(&mut self, proxy: u32, now: Time) -> Option<String> {
        let watch = &mut self.proxies[proxy as usize];
        watch.windows.check_throttled(&self.known, &watch.waiting, now)
    }

    /// Checks each second what the rows of a calendar reserve; returns what is wrong.
    pub(crate) fn check_reserved(&mut self, now: Time) -> Option<String> {
        self.reserved.as_mut()?.check(now)
    }

    /// Measures no row of a calendar until a time.
    pub(crate) fn disturb_reserved(&mut self, until: Time) {
        self.reserved.iter_mut().for_each(|of| of.disturb(until));
    }

    /// How many seconds of rows of a calendar were measured.
    pub(crate) fn reserved_seconds(&self) -> u64 {
        self.reserved.as_ref().map_or(0, |of| of.measured)
    }

    /// Begins again with an empty proxy.
    pub(crate) fn crashed(&mut self, proxy: u32, now: Time) {
        self.reserved.iter_mut().for_each(|of| of.recount(Some(proxy), now));
        self.whole.iter_mut().for_each(|whole| whole.restart(false));
        self.known.forget_rows(proxy);
        let watch = &mut self.proxies[proxy as usize];
        let off = watch.fairness.is_off();
        *watch = ProxyChecks::new(watch.spec.clone(), self.whole.is_some());
        if off {
            watch.fairness.turn_off();
        }
    }

    /// Begins again to measure time, after the clock of a proxy jumped: until `stands_until` it
    /// stands still.
    pub(crate) fn clock_jumped(&mut self, proxy: u32, stands_until: Time, now: Time) {
        self.whole.iter_mut().for_each(|whole| whole.restart(false));
        self.proxies[proxy as usize].windows.clock_jumped(stands_until, now);
    }

    /// Adopts other rules, in force everywhere but for what `spreading` says of each proxy. Each
    /// waiting request has to be passed to [`InvariantChecks::arrived`] again, in order of arrival.
    pub(crate) fn rules_changed(
        &mut self,
        rules: Arc<RuleSet>,
        spreading: impl Iterator<Item = bool>,
        now: Time,
    ) {
        self.known.set_rules(rules);
        self.reserved.iter_mut().for_each(|of| of.recount(None, now));
        self.whole.iter_mut().for_each(|whole| whole.restart(true));
        for (watch, spreads) in self.proxies.iter_mut().zip(spreading) {
            watch.order.clear();
            watch.note_spreading(spreads);
            watch.waiting = WaitingRequests::default();
            watch.windows.restart(true);
            watch.fairness.restart();
        }
    }
}

impl ProxyChecks {
    fn new(spec: Arc<TargetSpec>, divides: bool) -> ProxyChecks {
        let alone = spec.count == 1;
        let target = spec.scheduled();
        ProxyChecks {
            fairness: Fairness::new(!spec.is_settled()),
            times: sched::Costs { mode: sched::CostMode::Calibrated, ..target.costs.clone() },
            target,
            spec,
            slots_in_use: 0,
            threads_in_use: 0,
            waiting: WaitingRequests::default(),
            paid: BTreeSet::new(),
            order: Vec::new(),
            own_order: BTreeMap::new(),
            arrived: 0,
            before_spread: 0,
            before_rows: 0,
            windows: Windows::of_proxy(divides, alone),
            quiets: 0,
            divided: false,
        }
    }

    fn cost(&self, r: &SimRequest) -> u64 {
        self.target.costs.charge(r.lane, r.kind, r.amount).get()
    }

    /// The slots that a request needs in the device.
    fn slots(&self, r: &SimRequest) -> u32 {
        let unit = self.times.device.read.at(model::Bytes::ZERO);
        let time = self.times.charge(Lane::Device, r.kind, r.amount);
        slots_needed(time, unit, self.target.slots_max)
    }

    /// Notes that a request pays its meters, in whichever lane it is dispatched first; returns
    /// whether it had paid.
    fn pay(&mut self, r: &SimRequest, belongs: &ClassOf) -> bool {
        if r.lane == Lane::Cached && belongs.pays {
            self.paid.insert(r.number);
            return false;
        }
        self.paid.remove(&r.number)
    }

    fn count_arrival(&mut self, r: &SimRequest, belongs: &ClassOf, now: Time) {
        let (cost, slots) = (self.cost(r), self.slots(r));
        self.waiting.join(belongs, r, slots, self.paid.contains(&r.number));
        self.windows.waits(belongs, r, true, now);
        self.arrived = self.arrived.max(r.number);
        match r.lane {
            Lane::Device if r.kind.never_delayed() => self.fairness.urgent(belongs, cost),
            Lane::Device => self.fairness.arrived(belongs, cost),
            Lane::Cached => {}
        }
    }

    fn check_fairness(
        &mut self,
        r: &SimRequest,
        belongs: &ClassOf,
        spreading: bool,
    ) -> Option<String> {
        if r.lane != Lane::Device || r.kind.never_delayed() {
            return None;
        }
        let cost = self.cost(r);
        let wrong = self.fairness.dispatched(belongs, cost, &self.target);
        if spreading {
            // It may have been served for the class in which it waited before.
            self.fairness.unlevel();
            return None;
        }
        wrong
    }

    fn use_slots(&mut self, r: &SimRequest, chosen: SimDispatch, policy: Policy) -> Option<String> {
        if r.lane != Lane::Device {
            self.threads_in_use += 1;
            return None;
        }
        let (before, max) = (self.slots_in_use, self.target.slots_max);
        self.slots_in_use += chosen.slots;
        let bounded = !matches!(policy, Policy::Fifo);
        (bounded && before > 0 && chosen.slots > 0 && self.slots_in_use > max).then(|| {
            format!("{} slots are in use of {max}, and not by one request", self.slots_in_use)
        })
    }

    fn note_spreading(&mut self, spreads: bool) {
        if spreads {
            self.before_spread = self.arrived;
        }
    }

    /// Whether a request waited or arrived while a change spread. It may have moved when later ones
    /// had been dispatched, and gone by what held before.
    fn is_late(&self, r: &SimRequest) -> bool {
        r.number <= self.before_spread
    }

    /// Checks first in, first out within a class and direction. What waited when rows changed may have
    /// moved behind later requests of the class: it is in order with that of its identity and kind,
    /// and before what arrived after the change.
    fn check_order(&mut self, r: &SimRequest, identity: u32, belongs: &ClassOf) -> Option<String> {
        // Requests that missed return in the order in which their tries ended.
        if r.kind.never_delayed() || r.returned || self.is_late(r) {
            return None;
        }
        let class = belongs.class as usize;
        if class >= self.order.len() {
            self.order.resize(class + 1, [0; QUEUES]);
        }
        let queue = queue_of(r);
        let last = &mut self.order[class][queue];
        let before = if r.number <= self.before_rows {
            let own = self.own_order.insert((identity, r.kind, queue), r.number).unwrap_or(0);
            if *last > self.before_rows { *last } else { own }
        } else {
            std::mem::replace(last, r.number)
        };
        (before > r.number)
            .then(|| format!("request {} of class {class} was dispatched after {before}", r.number))
    }

    /// Whether every head that waits in a lane, the device's and the cached one, fits into the slots
    /// that are free.
    fn free_lanes(&self, known: &RuleView) -> [bool; 2] {
        let mut free = [false; 2];
        free[Lane::Cached as usize] = self.threads_in_use < self.target.threads;
        let settled = !known.reserves_slots && !self.divided && self.spec.is_settled();
        free[Lane::Device as usize] = settled && self.all_fit();
        free
    }

    fn all_fit(&self) -> bool {
        let max = self.target.slots_max;
        self.waiting.fit_into(max.saturating_sub(self.slots_in_use), max)
    }

    /// Checks that no slots are free while a request waits that nothing else delays.
    fn check_free_slots(&self, known: &RuleView) -> Option<String> {
        let plain = self.waiting.plain();
        if plain == 0 || known.reserves_slots || self.divided || !self.spec.is_settled() {
            return None;
        }
        let free = self.target.slots_max.saturating_sub(self.slots_in_use);
        // If a request waits that does not fit, slots may be collected for it.
        let in_vain = self.slots_in_use == 0 || (free > 0 && self.all_fit());
        in_vain.then(|| format!("{free} slots are free while {plain} requests could use one"))
    }
}
