//! The controller's part: shares of limits, reservations and weights, their usage, and remote
//! service.

use std::collections::BTreeMap;

use model::{Grants, Nanos, Rate, Scope, ScopeUsage, SectionKind, Share, Time};

use super::Dispatcher;
use crate::index::ClassIndex;
use crate::keys::ClassKey;

impl Dispatcher {
    /// Applies what a controller grants this proxy: at once, also for waiting requests and for
    /// dormant classes. Debts and savings of meters stay. O(what changed), or O(everything) if the
    /// number of proxies or the share of unlisted scopes did. Poll afterwards.
    pub fn set_grants(&mut self, grants: &Grants, now: Time) {
        self.advance(now);
        match self.terms.set_grants(grants) {
            true => self.apply_grants(),
            false => grants.listed.iter().for_each(|(scope, _)| self.apply_grant(scope)),
        }
        self.finish_call();
    }

    /// Takes the usage of each rule's classes, meter and decay since the last call, for those that
    /// were used. O(classes + meters). Poll afterwards.
    pub fn take_usage(&mut self, now: Time) -> Vec<(Scope, ScopeUsage)> {
        self.advance(now);
        let span = self.observation.begin_taking_usage(self.now);
        let mut uses: BTreeMap<Scope, ScopeUsage> = BTreeMap::new();
        for (scope, usage) in self.meters.take_usage(|moved, rate| part_used(moved, rate, span)) {
            let what = uses.entry(scope).or_insert(NO_USAGE);
            what.used = what.used.max(usage.used);
            what.waiting |= usage.waiting;
        }
        for class in self.active_classes() {
            let was_served = self.observation.take_class_usage(class);
            let (queued, running, _) = self.lanes.load_of(class);
            if was_served || queued > 0 || running > 0 {
                // Without a meter its weight alone counts.
                let scope = self.registry.key(class).scope();
                uses.entry(scope).or_insert(ScopeUsage { used: None, waiting: queued > 0 });
            }
        }
        self.finish_call();
        uses.into_iter().collect()
    }

    /// Takes what [`Dispatcher::count_unreported`] counted since the last call, by class.
    pub fn take_unreported(&mut self) -> Vec<(Scope, Nanos)> {
        self.observation.take_unreported()
    }

    /// Charges a class for metadata service of this cost at other proxies, for a controller that
    /// knows classes and no subjects. Poll afterwards.
    pub fn charge_class_remote_service(&mut self, class: &Scope, cost: Nanos, now: Time) {
        self.advance(now);
        let Some(index) = self.registry.find_class(&ClassKey::of_scope(class)) else { return };
        self.observation.count_remote(None, index, cost);
        self.lanes.charge_remote(index, cost, self.now, &mut self.observation);
        self.finish_call();
    }

    fn apply_grants(&mut self) {
        self.active_classes().into_iter().for_each(|class| self.grant_class(class));
        let dormant: Vec<_> = self.registry.dormant().map(|(index, ..)| index).collect();
        for index in dormant {
            let (part, _) = self.terms.part_of_class(self.registry.dormant_key(index));
            self.lanes.set_part_of_dormant(index, part, self.now);
        }
        for meter in self.meters.indices() {
            let (key, rate) = self.meters.key_and_rate(meter);
            let (rate, part) = self.terms.pace_of(key, rate);
            self.meters.set_pace(meter, rate, part, self.now);
        }
    }

    fn apply_grant(&mut self, scope: &Scope) {
        if scope.section == SectionKind::Rule {
            let key = ClassKey::of_scope(scope);
            if let Some(class) = self.registry.find_class(&key) {
                self.grant_class(class);
            } else if let Some(dormant) = self.registry.find_dormant(&key) {
                let (part, _) = self.terms.part_of_class(&key);
                self.lanes.set_part_of_dormant(dormant, part, self.now);
            }
        }
        for key in self.terms.meters_of(scope) {
            let Some(meter) = self.meters.find(&key) else { continue };
            let (_, rate) = self.meters.key_and_rate(meter);
            let (rate, part) = self.terms.pace_of(&key, rate);
            self.meters.set_pace(meter, rate, part, self.now);
        }
    }

    fn grant_class(&mut self, class: ClassIndex) {
        let (part, proxies) = self.terms.part_of_class(self.registry.key(class));
        self.lanes.set_part(class, part, proxies, self.now);
    }
}

/// What was moved in a span as a fraction of what the rate lets through in it.
fn part_used(moved: u64, rate: Rate, span: Nanos) -> Share {
    let (whole, _) = rate.amount_in(span, 0);
    match moved {
        0 => Share::ZERO,
        _ => Share::ratio(moved, whole.max(1)).max(LEAST),
    }
}

const NO_USAGE: ScopeUsage = ScopeUsage { used: None, waiting: false };
/// Any amount that was moved counts as usage.
const LEAST: Share = match Share::from_billionths(1) {
    Some(part) => part,
    None => Share::WHOLE,
};
