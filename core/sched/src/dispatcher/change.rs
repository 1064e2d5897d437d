//! Changes of rules and of the target while requests wait and run.
//!
//! ```text
//!   take every waiting request out ─► drop all classifications ─► new rules for classes and meters
//!                                                                      │ same name and key: same
//!   put them back in order of arrival ◄────────────────────────────────┘ tags, same debt
//! ```
//!
//! Where only values of some sections differ (rates, bursts, weights), their classes and meters get
//! the new ones and nothing moves: [`SLICE`] of them at once, and more with each poll.
//!
//! A change applies at once to waiting requests. A running request completes against the class and
//! the meters that it was charged to. No change refills a meter.

use std::sync::Arc;

use model::{SectionKind, TargetId, Time};
use rules::RuleSet;

use super::Dispatcher;
use crate::index::{ClassIndex, RequestIndex, SubjectIndex};
use crate::keys::MeterKey;
use crate::lanes::{LANES, QUEUES, QueuePlace, TargetParams};

/// A change of values that is not everywhere yet.
#[derive(Debug)]
pub(super) struct ValueChange {
    /// The sections whose values are new, in order.
    changed: Vec<(SectionKind, String)>,
    /// The classes and the meters at lower places have them.
    classes: usize,
    meters: usize,
}

/// Classes and meters that get new values at once: a third of a millisecond.
const SLICE: usize = 1_024;

impl Dispatcher {
    /// Replaces the rules: at once for what waits, in its order of arrival. O(everything). Where only
    /// values differ (rates, bursts, weights), O(rules), and O(classes) where rules depend on others:
    /// thousands of classes and meters get them with the next polls. Poll afterwards.
    ///
    /// Subjects keep the [`model::PathSet`] they were taken with, whose bits mean the paths of the
    /// rules then in force. Take subjects again where `path={…}` is used.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        if let Some(changed) = self.terms.changed_values(&rules) {
            self.set_values(rules, changed);
            self.finish_call();
            return;
        }
        self.values = None;
        let waiting = self.take_waiting();
        for chain in self.lanes.keep_paid_chains() {
            self.meters.retain_chain(chain);
        }
        for subject in self.registry.subjects().collect::<Vec<SubjectIndex>>() {
            self.drop_classifications(subject);
        }
        self.terms.set_rules(rules, self.now);
        self.lanes.set_reserved_slots(self.terms.reserved_slots());
        for class in self.active_classes() {
            self.set_terms(class);
        }
        self.meters.forgive_deferred();
        self.meters.set_limits(0..usize::MAX, |key| self.terms.limit_of(key), self.now);
        self.requeue(waiting);
        self.recount_dependents();
        // The last request of a class may have missed the cache under older rules and has moved to
        // another class.
        self.active_classes().into_iter().for_each(|class| self.rest_unused(class));
        self.finish_call();
    }

    /// Puts rules in force of which only the values of some sections are new.
    fn set_values(&mut self, rules: Arc<RuleSet>, mut changed: Vec<(SectionKind, String)>) {
        if let Some(before) = self.values.take() {
            changed.extend(before.changed);
            changed.sort();
            changed.dedup();
        }
        self.terms.set_rules(rules, self.now);
        self.values = Some(ValueChange { changed, classes: 0, meters: 0 });
        self.spread_values();
        self.recount_dependents();
    }

    /// Gives some more classes and meters the values of a change that is not everywhere yet.
    pub(super) fn spread_values(&mut self) {
        let Some(mut change) = self.values.take() else { return };
        let classes = change.classes..change.classes + SLICE;
        change.classes = classes.end.min(self.registry.class_places());
        let meters = change.meters..change.meters + SLICE - (change.classes - classes.start);
        change.meters = meters.end.min(self.meters.places());
        for class in self.registry.classes_within(classes).collect::<Vec<_>>() {
            if change.concerns(SectionKind::Rule, &self.registry.key(class).rule) {
                self.set_terms(class);
            }
        }
        let terms = &self.terms;
        let limit_of = |key: &MeterKey| {
            let (kind, name) = key.section()?;
            change.concerns(kind, name).then(|| terms.limit_of(key)).flatten()
        };
        self.meters.set_limits(meters, limit_of, self.now);
        let places = (self.registry.class_places(), self.meters.places());
        self.values = Some(change).filter(|change| (change.classes, change.meters) != places);
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
        self.lanes.set_target(target, params);
        self.weigh_again();
        self.finish_call();
    }

    /// Puts waiting requests back in line with the current costs and sizes.
    pub(super) fn weigh_again(&mut self) {
        let waiting = self.take_waiting();
        self.lanes.weigh_again(&waiting);
        for index in waiting {
            self.queue_up(index);
        }
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
                let is_of_it = *self.registry.key(class).rule == *rule;
                if is_of_it && self.lanes.has_reservation(class) {
                    self.lanes.set_reserved_rate(class, rate, self.now);
                }
            }
        }
    }

    /// Counts all requests again, after a change of rules.
    fn recount_dependents(&mut self) {
        if self.terms.next_update().is_none() {
            return;
        }
        for class in self.active_classes() {
            let watched = self.lanes.watched(class);
            let (queued, running, _) = self.lanes.own_load_of(class);
            if watched != 0 {
                let outstanding = i64::from(queued) + i64::from(running);
                self.terms.count_dependents(watched, outstanding, self.now);
            }
        }
        self.apply_dependents();
    }

    /// The indices of all active classes.
    pub(super) fn active_classes(&self) -> Vec<ClassIndex> {
        self.registry.classes().collect()
    }

    /// Empties every queue and returns what waited, in order of arrival.
    fn take_waiting(&mut self) -> Vec<RequestIndex> {
        let classes = self.active_classes();
        for class in &classes {
            for (lane, queue) in
                (0..LANES.len()).flat_map(|lane| (0..QUEUES).map(move |q| (lane, q)))
            {
                let place = QueuePlace { class: *class, lane, queue };
                if !self.lanes.is_empty(place) {
                    self.withdraw(place);
                }
            }
        }
        self.lanes.take_waiting(classes.into_iter())
    }

    /// Puts requests that were taken out in line by their class and meters now.
    pub(super) fn requeue(&mut self, waiting: Vec<RequestIndex>) {
        for index in waiting {
            let request = self.lanes.request(index);
            let (subject, kind) = (request.subject, request.kind);
            let way = self.classification(subject, kind);
            self.lanes.reclassify(index, way.class, way.chain);
            self.queue_up(index);
        }
    }
}

impl ValueChange {
    fn concerns(&self, kind: SectionKind, name: &str) -> bool {
        let of = |(k, n): &(SectionKind, String)| (*k, n.as_str()).cmp(&(kind, name));
        self.changed.binary_search_by(of).is_ok()
    }
}
