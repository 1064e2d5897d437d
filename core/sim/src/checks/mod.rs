//! Invariants that are checked at every step, from outside the scheduler.
//!
//! ```text
//!   arrived ─► counts of waiting requests ─┐
//!   dispatched ─► slots, order ────────────┼─► a violation: what, when, and how to reproduce it
//!   idle ─► no usable slot is free ────────┤
//!   windows of 10 s ─► limits, reservations, division by weight
//! ```
//!
//! The checks do not know how the dispatcher chooses; they derive the classes from the rules.
//! docs/algorithms/dispatcher.md describes the invariants; of the other schedulers only slots are
//! checked. `Dispatcher::check_invariants` costs O(everything) and is called at powers of two and
//! occasionally later.

mod classes;
mod fairness;
mod windows;

use std::sync::Arc;

use model::{Lane, RuleSet, Time};
use sched::slots_needed;

use crate::scenario::Scenario;
use crate::scheduler::{Policy, Scheduler, SimDispatch};
use crate::targets::TargetSpec;
use crate::world::{SimOwner, SimRequest};

use classes::{ClassOf, RuleView};
use fairness::Fairness;
use windows::Windows;

/// The state of the checks of a world.
#[derive(Debug)]
pub(crate) struct InvariantChecks {
    policy: Policy,
    known: RuleView,
    proxies: Vec<ProxyChecks>,
    /// Limits over all proxies of a target, where a controller divides them; by target.
    whole: Vec<Windows>,
    /// Each proxy's target.
    targets: Vec<usize>,
}

/// The state of the checks of a proxy.
#[derive(Debug)]
struct ProxyChecks {
    spec: Arc<TargetSpec>,
    /// The costs that its scheduler uses.
    target: sched::TargetParams,
    /// Device slots in use.
    slots_in_use: u32,
    /// Waiting requests for the device that only slots can delay.
    plain: u32,
    /// Waiting requests for the device that need more than one slot.
    large: u32,
    /// The last number that each class dispatched, by lane and direction.
    order: Vec<[u64; ORDERS]>,
    windows: Windows,
    fairness: Fairness,
    quiets: u64,
}

/// Device and cached lane, and returned from the cached one; three directions each.
const ORDERS: usize = 9;
/// How many polls there are between two full checks.
const CHECK_EVERY: u64 = 1 << 16;

impl InvariantChecks {
    pub(crate) fn new(scenario: &Scenario, proxies: usize, policy: Policy) -> InvariantChecks {
        let specs = scenario.targets.iter().flat_map(|spec| {
            let spec = Arc::new(spec.clone());
            (0..spec.count).map(move |_| spec.clone())
        });
        let mut watches: Vec<ProxyChecks> = specs.map(ProxyChecks::new).collect();
        let alone = policy == Policy::LocalDispatcher;
        if (scenario.delay || scenario.controller) && !alone {
            // Remote service counts here: shares are of all proxies together.
            watches.iter_mut().for_each(|watch| watch.fairness.forget());
        }
        assert_eq!(watches.len(), proxies, "a watch for each proxy");
        let divided = scenario.targets.iter().filter(|_| scenario.controller && !alone);
        let of_target = |(at, spec): (usize, &TargetSpec)| vec![at; spec.count as usize];
        InvariantChecks {
            policy,
            known: RuleView::new(scenario.rules.clone()),
            proxies: watches,
            whole: divided.map(|spec| Windows::over(spec.count.into())).collect(),
            targets: scenario.targets.iter().enumerate().flat_map(of_target).collect(),
        }
    }

    /// Counts a request that waits.
    pub(crate) fn arrived(&mut self, r: &SimRequest, identity: u32, owner: &SimOwner, now: Time) {
        if !self.policy.is_ours() {
            return;
        }
        let belongs = self.known.class_of(identity, r.kind, Some(owner));
        let watch = &mut self.proxies[r.proxy as usize];
        watch.count_queued(r, &belongs, true);
        let cost = watch.cost(r);
        if r.kind.never_delayed() {
            // A request that is never delayed is charged to its class and waits for nothing.
            watch.fairness.forget();
        }
        watch.fairness.arrived(&belongs, cost);
        watch.windows.waits(&belongs, r, true, now);
    }

    /// Counts a try in the cached lane that needs the device.
    pub(crate) fn missed(&mut self, r: &SimRequest, identity: u32, now: Time) {
        if !self.policy.is_ours() {
            return;
        }
        let belongs = self.known.class_of(identity, r.kind, None);
        let watch = &mut self.proxies[r.proxy as usize];
        watch.count_queued(r, &belongs, true);
        watch.windows.waits(&belongs, r, true, now);
    }

    /// Checks a dispatched request; returns what is wrong.
    pub(crate) fn dispatched(
        &mut self,
        r: &SimRequest,
        identity: u32,
        chosen: SimDispatch,
        now: Time,
    ) -> Option<String> {
        let watch = &mut self.proxies[r.proxy as usize];
        let wrong_slots = watch.use_slots(r, chosen, self.policy);
        if !self.policy.is_ours() {
            return wrong_slots;
        }
        let belongs = self.known.class_of(identity, r.kind, None);
        watch.count_queued(r, &belongs, false);
        watch.windows.waits(&belongs, r, false, now);
        let cost = watch.cost(r);
        let whole = self.whole.get_mut(self.targets[r.proxy as usize]);
        let whole = whole.and_then(|whole| whole.dispatched(&self.known, &belongs, r, now));
        wrong_slots
            .or(whole)
            .or_else(|| watch.check_order(r, &belongs))
            .or_else(|| watch.windows.dispatched(&self.known, &belongs, r, now))
            .or_else(|| watch.fairness.dispatched(&belongs, cost, &watch.target))
    }

    /// Counts a request that has left the target.
    pub(crate) fn completed(&mut self, r: &SimRequest) {
        if r.lane == Lane::Device {
            let watch = &mut self.proxies[r.proxy as usize];
            // Schedulers other than ours serve in the device's lane what tried the cached one.
            watch.slots_in_use = watch.slots_in_use.saturating_sub(r.slots);
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
        watch.quiets += 1;
        if watch.quiets.is_power_of_two() || watch.quiets.is_multiple_of(CHECK_EVERY) {
            sched.check();
        }
        if sched.next_deadline().is_some_and(|deadline| deadline <= clock) {
            // The scheduler has reached the bound of one call, and is polled again.
            return None;
        }
        // With a controller, a reservation here is a share that changes.
        let cut = sched.reservation_shortfall_ppm(clock) > 0 || !self.whole.is_empty();
        watch
            .check_free_slots(&self.known)
            .or_else(|| watch.windows.check_reservations(&self.known, cut, now))
    }

    /// Resets the state after a fault of a proxy: earlier counts are no longer valid.
    pub(crate) fn reset_after_fault(&mut self, proxy: u32, crashed: bool) {
        self.whole.iter_mut().for_each(Windows::forget);
        let watch = &mut self.proxies[proxy as usize];
        if crashed {
            *watch = ProxyChecks::new(watch.spec.clone());
        }
        watch.windows.forget();
        watch.fairness.forget();
    }

    /// Adopts other rules, in force everywhere. Waiting requests keep waiting, perhaps in another
    /// class.
    pub(crate) fn rules_changed(&mut self, rules: Arc<RuleSet>) {
        self.known.set_rules(rules);
        self.whole.iter_mut().for_each(Windows::forget);
        for watch in &mut self.proxies {
            watch.order.clear();
            watch.windows.forget();
            watch.fairness.forget();
            // Waiting requests were counted by the old rules: from here on only the new ones count.
            watch.plain = 0;
            watch.large = u32::MAX / 2;
        }
    }
}

impl ProxyChecks {
    fn new(spec: Arc<TargetSpec>) -> ProxyChecks {
        let target = spec.scheduled();
        ProxyChecks {
            fairness: Fairness::new(spec.hit_percent > 0 || !spec.is_settled()),
            target,
            spec,
            slots_in_use: 0,
            plain: 0,
            large: 0,
            order: Vec::new(),
            windows: Windows::default(),
            quiets: 0,
        }
    }

    fn cost(&self, r: &SimRequest) -> u64 {
        self.target.costs.charge(r.lane, r.kind, r.amount).get()
    }

    /// Counts a request into or out of the queue for the device.
    fn count_queued(&mut self, r: &SimRequest, belongs: &ClassOf, joins: bool) {
        if r.lane != Lane::Device || r.kind.never_delayed() {
            return;
        }
        let unit = self.target.costs.device.read.at(model::Bytes::ZERO);
        let time = match self.target.costs.mode {
            sched::CostMode::Calibrated => self.cost(r),
            sched::CostMode::Bytes => {
                let costs =
                    sched::Costs { mode: sched::CostMode::Calibrated, ..self.target.costs.clone() };
                costs.charge(r.lane, r.kind, r.amount).get()
            }
        };
        let slots = slots_needed(model::Nanos::new(time), unit, self.target.slots_max);
        let counts = [(&mut self.plain, belongs.plain), (&mut self.large, slots > 1)];
        for (count, counted) in counts {
            if counted {
                *count = if joins { *count + 1 } else { count.saturating_sub(1) };
            }
        }
    }

    fn use_slots(&mut self, r: &SimRequest, chosen: SimDispatch, policy: Policy) -> Option<String> {
        if r.lane != Lane::Device {
            return None;
        }
        let (before, max) = (self.slots_in_use, self.target.slots_max);
        self.slots_in_use += chosen.slots;
        let bounded = !matches!(policy, Policy::Fifo);
        (bounded && before > 0 && chosen.slots > 0 && self.slots_in_use > max).then(|| {
            format!("{} slots are in use of {max}, and not by one request", self.slots_in_use)
        })
    }

    /// Checks first in, first out within a class and direction.
    fn check_order(&mut self, r: &SimRequest, belongs: &ClassOf) -> Option<String> {
        if r.kind.never_delayed() || belongs.class == u32::MAX {
            return None;
        }
        let class = belongs.class as usize;
        if class >= self.order.len() {
            self.order.resize(class + 1, [0; ORDERS]);
        }
        let lane = if r.returned { 2 } else { r.lane as usize };
        let last = &mut self.order[class][lane * 3 + r.kind.direction() as usize];
        if r.returned {
            // Requests that missed return in the order in which their tries ended.
            return None;
        }
        let before = std::mem::replace(last, r.number);
        (before > r.number)
            .then(|| format!("request {} of class {class} was dispatched after {before}", r.number))
    }

    /// Checks that no slots are free while a request waits that nothing else delays.
    fn check_free_slots(&self, known: &RuleView) -> Option<String> {
        if self.plain == 0 || known.reserves_slots || !self.spec.is_settled() {
            return None;
        }
        let free = self.target.slots_max.saturating_sub(self.slots_in_use);
        let in_vain = match self.slots_in_use {
            0 => true,
            // If a large request waits, slots may be collected for it.
            _ => free > 0 && self.large == 0,
        };
        in_vain
            .then(|| format!("{free} slots are free while {} requests could use one", self.plain))
    }
}
