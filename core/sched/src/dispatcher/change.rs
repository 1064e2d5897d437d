//! Changes of rules and of the target while requests wait and run.
//!
//! ```text
//!   set_rules ─► sections whose values differ, or everything ─► spread.rs, a slice with each poll
//!   set_target ─► every waiting request is taken out, charged again and put back
//! ```
//!
//! A running request completes against the class and the meters that it was charged to. No change
//! refills a meter.

use std::sync::Arc;

use model::{TargetId, Time};
use rules::RuleSet;

use super::Dispatcher;
use super::spread::{ChangeExtent, SpreadingChange};
use crate::index::{ClassIndex, RequestIndex};
use crate::lanes::{QueuePlace, TargetParams};

impl Dispatcher {
    /// Replaces the rules. Whatever is classified from now on is so by the new rules. What waits has
    /// them at once, up to a bounded amount of work; the rest follows with the next polls, and until
    /// then [`Dispatcher::next_deadline`] is now. Waiting requests move in order of arrival; one that
    /// arrives meanwhile may go before those of its subject that have yet to move. O(rules). Poll
    /// afterwards.
    ///
    /// Subjects keep the [`model::PathSet`] they were taken with, whose bits mean the paths of the
    /// rules then in force. Take subjects again where `path={…}` is used.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        let extent = match self.terms.changed_values(&rules) {
            Some(sections) if sections.is_empty() => return self.finish_call(),
            Some(sections) => ChangeExtent::Values(sections),
            None => {
                self.registry.forget_shared();
                self.unshares = true;
                ChangeExtent::Structure
            }
        };
        self.terms.set_rules(rules, self.now);
        self.lanes.set_reserved_slots(self.terms.reserved_slots());
        self.apply_dependents();
        self.change = Some(SpreadingChange::new(extent, self.change.take()));
        self.spread_change();
        self.finish_call();
    }

    /// Whether a change of rules or of rows is not everywhere yet: some requests still wait in the
    /// classes that they had before.
    pub fn is_spreading(&self) -> bool {
        self.change.is_some()
    }

    /// Sets the work that one call spends on a change of rules, in units of about 0.3 µs, at least
    /// one: for tests. A call may spend a classification more.
    #[doc(hidden)]
    pub fn set_change_slice(&mut self, units: usize) {
        self.change_slice = units.max(1);
    }

    /// Adds a target. O(meters).
    ///
    /// # Panics
    /// Beyond [`TargetId::MAX_COUNT`] targets.
    pub fn add_target(&mut self, params: TargetParams) -> TargetId {
        let target = self.lanes.add_target(params);
        self.lanes.set_reserved_slots(self.terms.reserved_slots());
        self.terms.add_target();
        self.meters.add_target();
        self.observation.add_target();
        target
    }

    /// Replaces the slots and costs of a target: at once for what waits. O(everything). Poll
    /// afterwards.
    ///
    /// # Panics
    /// If there is no such target.
    pub fn set_target(&mut self, target: TargetId, params: TargetParams, now: Time) {
        if *self.lanes.params(target) == params {
            return;
        }
        self.advance(now);
        self.lanes.set_target(target, params, self.now, &mut self.observation);
        self.weigh_again();
        self.finish_call();
    }

    /// Puts waiting requests back in line with the current costs and sizes.
    pub(super) fn weigh_again(&mut self) {
        let waits = self.lanes.reservation_waits();
        let waiting = self.take_waiting();
        self.lanes.weigh_again(&waiting);
        for index in waiting {
            self.queue_up(index);
        }
        self.lanes.resume_reservation_waits(waits);
    }

    /// Brings limits that depend on other rules up to date.
    pub(super) fn apply_dependents(&mut self) {
        let changed = self.terms.update_dependents(self.now);
        if changed.is_empty() {
            return;
        }
        self.meters.set_rates(&changed, self.now);
        for (rule, rate) in changed.into_iter().filter(|(rule, _)| self.terms.is_realtime(rule)) {
            for class in self.active_classes() {
                let key = self.registry.key(class);
                // A branch has the reservation of its rows.
                let is_of_it = *key.rule == *rule && key.branch.is_none();
                if is_of_it && self.lanes.has_reservation(class) {
                    self.lanes.set_reserved_rate(class, rate, self.now);
                }
            }
        }
    }

    /// The indices of all active classes.
    pub(super) fn active_classes(&self) -> Vec<ClassIndex> {
        self.registry.classes().collect()
    }

    /// Empties every queue and returns what waited, in order of arrival.
    fn take_waiting(&mut self) -> Vec<RequestIndex> {
        let classes = self.active_classes();
        for place in classes.iter().flat_map(|class| QueuePlace::all_of(*class)) {
            if !self.lanes.is_empty(place) {
                self.withdraw(place);
            }
        }
        self.lanes.take_waiting(classes.into_iter())
    }
}
