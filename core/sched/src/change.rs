//! Changes of rules and of the target while requests wait and run.
//!
//! ```text
//!   take every waiting request out ─► drop all classifications ─► new rules for classes and meters
//!                                                                      │ same name and key: same
//!   put them back in order of arrival ◄────────────────────────────────┘ tags, same debt
//! ```
//!
//! A change applies at once to waiting requests. A running request completes against the class and
//! the meters that it was charged to. No change refills a meter.

use std::sync::Arc;

use model::{Limit, RuleSet, Time};

use crate::class::{
    ClassQueue, NO_SIZE, OWN_ROUTE, PAID, QUEUES, QueuedRequest, RESERVED, RequestStage,
};
use crate::deferred::DeferredCharge;
use crate::dependent::Dependents;
use crate::dispatcher::{Dispatcher, TargetParams};
use crate::lane::{DEVICE, LANES};
use crate::recalibrate::Observed;
use crate::slab::NONE;
use crate::slot_controller::SlotController;

impl Dispatcher {
    /// Replaces the rules: at once for what waits, in its order of arrival. O(everything). Poll
    /// afterwards.
    ///
    /// Subjects keep the [`model::PathSet`] they were taken with, whose bits mean the paths of the
    /// rules then in force. Take subjects again where `path={…}` is used.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        let waiting = self.take_waiting();
        let kept: Vec<u32> =
            self.requests.indices().filter(|i| self.must_retain_chain(*i)).collect();
        for index in kept {
            let request = &mut self.requests[index];
            request.flags |= OWN_ROUTE;
            self.routes[request.route].refs += 1;
        }
        let subjects: Vec<u32> = self.subjects.indices().collect();
        for subject in subjects {
            self.drop_classifications(subject);
        }
        self.dependents = Dependents::of(&rules, &self.dependents, self.now);
        self.rules = rules;
        self.set_reserved_slots();
        self.configure();
        self.requeue(waiting);
        self.recount_dependents();
        self.make_classes_dormant();
        self.finish_call();
    }

    /// Replaces slots and costs: at once for what waits. O(everything). Poll afterwards.
    pub fn set_target(&mut self, target: TargetParams, now: Time) {
        self.advance(now);
        self.lanes[0].slots_max = target.threads.max(1);
        self.lanes[DEVICE].slots_max = target.slots_max.max(1);
        self.slot_controller = SlotController::of(&target);
        self.observed = Observed::default();
        self.target = target;
        self.recompute_costs();
        self.finish_call();
    }

    /// Puts waiting requests back in line with the current costs and sizes.
    pub(crate) fn recompute_costs(&mut self) {
        self.set_units();
        let waiting = self.take_waiting();
        for index in &waiting {
            let QueuedRequest { lane, kind, amount, .. } = self.requests[*index];
            let (cost, size) = self.weigh(usize::from(lane), kind, amount);
            let request = &mut self.requests[*index];
            (request.cost, request.size) = (cost, size);
        }
        for index in waiting {
            self.queue_up(index);
        }
    }

    /// Passes the cost of the smallest request to the device lane.
    pub(crate) fn set_units(&mut self) {
        let unit = self.target.costs.unit_cost();
        self.lanes[DEVICE].set_unit(unit);
    }

    /// Sets the number of device slots that are reserved for reservations.
    pub(crate) fn set_reserved_slots(&mut self) {
        let kept = self.rules.rules.iter().filter_map(|rule| rule.reserved_slots);
        self.lanes[DEVICE].reserved_slots = kept.fold(0, u32::saturating_add);
    }

    /// Empties every queue and heap and returns what waited, in order of arrival.
    fn take_waiting(&mut self) -> Vec<u32> {
        let classes: Vec<u32> = self.classes.indices().collect();
        for class in classes {
            for lane in 0..LANES.len() {
                self.clear_lane(class, lane);
            }
        }
        for state in &mut self.lanes {
            state.ready.clear();
            state.reserved.clear(&mut state.reserved_positions);
            state.urgent = ClassQueue::default();
        }
        self.queued = 0;
        let waits = |index: &u32| self.requests[*index].stage != RequestStage::Running;
        let mut waiting: Vec<u32> = self.requests.indices().filter(waits).collect();
        waiting.sort_unstable_by_key(|index| self.requests[*index].number);
        waiting
    }

    fn clear_lane(&mut self, class: u32, lane: usize) {
        for queue in 0..QUEUES {
            if !self.classes[class].lanes[lane].queues[queue].is_empty() {
                self.withdraw(class, lane, queue);
            }
        }
        let own = &mut self.classes[class];
        own.queued = 0;
        own.lanes[lane].queues = [ClassQueue::default(); QUEUES];
        own.lanes[lane].size = NO_SIZE;
    }

    /// Whether a request was charged to meters that it must still find at its completion.
    fn must_retain_chain(&self, index: u32) -> bool {
        let request = &self.requests[index];
        request.route != NONE && request.has(PAID) && !request.has(OWN_ROUTE)
    }

    /// Gives every class and meter what the rules of its name grant now.
    fn configure(&mut self) {
        let classes: Vec<u32> = self.classes.indices().collect();
        let unit = |this: &Dispatcher, class: u32| {
            this.classes[class]
                .reservation
                .as_ref()
                .map(|reservation| reservation.rate().is_bytes())
        };
        let before: Vec<_> = classes.iter().map(|class| unit(self, *class)).collect();
        for (class, before) in classes.into_iter().zip(before) {
            self.configure_class(class);
            if unit(self, class) != before {
                self.forget_reserved(class);
            }
            self.bound_lag(class);
        }
        let links: Vec<u32> = self.links.indices().collect();
        for link in links {
            self.links[link].deferred = DeferredCharge::NONE;
        }
        let meters: Vec<u32> = self.meters.indices().collect();
        for index in meters {
            let key = &self.meters[index].key;
            if let Some(limit) = key.limit_in(&self.rules) {
                let rate = self.effective_rate(key, limit.rate);
                self.meters[index].set_limit(&Limit { rate, ..limit }, self.now);
            }
        }
    }

    /// A charge to a removed reservation is not corrected in a new one.
    fn forget_reserved(&mut self, class: u32) {
        let of_class: Vec<u32> =
            self.requests.indices().filter(|i| self.requests[*i].class == class).collect();
        for index in of_class {
            let request = &mut self.requests[index];
            if request.has(RESERVED) {
                request.flags &= !RESERVED;
                self.lanes[usize::from(request.lane)].reservation_slots_in_use -= request.slots;
            }
        }
    }

    /// Bounds the finish tags of a class whose weight changed by what its weight allows.
    pub(crate) fn bound_lag(&mut self, class: u32) {
        let own = &mut self.classes[class];
        for (standing, state) in own.lanes.iter_mut().zip(&self.lanes) {
            standing.finish = standing.finish.min(state.lag_bound(0, own.phi));
        }
    }

    /// Makes classes dormant whose last request missed the cache under older rules and has moved to
    /// another class.
    fn make_classes_dormant(&mut self) {
        let classes: Vec<u32> = self.classes.indices().collect();
        classes.into_iter().for_each(|class| self.make_dormant(class));
    }

    fn requeue(&mut self, waiting: Vec<u32>) {
        for index in &waiting {
            let QueuedRequest { subject, kind, .. } = self.requests[*index];
            let way = self.classification(subject, kind);
            let request = &mut self.requests[*index];
            request.class = way.class;
            if !request.has(PAID) {
                request.route = way.route;
            }
            self.queue_up(*index);
        }
    }
}
