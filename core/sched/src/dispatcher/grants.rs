//! The controller's part: shares of limits, and of each target's reservations and weights; their
//! usage; the activity of parents elsewhere; and remote service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Grants, Nanos, Rate, ReservationLag, RuleActivity, Scope, ScopeUsage, SectionKind, Share,
    SharePool, SlotsClaim, TargetId, Time, WaitedService,
};

use rules::EntitlementId;

use super::Dispatcher;
use crate::index::{ClassIndex, DormantIndex, MeterIndex};
use crate::keys::ClassKey;
use crate::lanes::{ReservationNeed, ReservationUse};

impl Dispatcher {
    /// Applies what a controller grants this proxy of a pool: at once, also for waiting requests and
    /// for dormant classes. Debts and savings of meters stay. O(what changed), or O(everything) if
    /// the number of proxies or the share of unlisted scopes did. Poll afterwards.
    pub fn set_grants(&mut self, pool: SharePool, grants: &Grants, now: Time) {
        self.advance(now);
        let concerns_all = self.terms.set_grants(pool, grants);
        match (pool, concerns_all) {
            (SharePool::Limits, true) => {
                let meters = self.meters.indices();
                meters.into_iter().for_each(|meter| self.grant_meter(meter));
            }
            (SharePool::Limits, false) => {
                grants.listed.iter().for_each(|(scope, _)| self.grant_meters_of(scope));
            }
            (SharePool::Target(target), true) => self.grant_all_classes(target),
            (SharePool::Target(target), false) => {
                grants.listed.iter().for_each(|(scope, _)| self.grant_class_of(target, scope));
                let rows = grants.listed.iter().filter_map(|(scope, _)| row_of(scope));
                let rows = rows.filter_map(|row| self.terms.entitlements().group_of(row));
                let groups: BTreeSet<EntitlementId> = rows.collect();
                groups.into_iter().for_each(|group| self.set_reserved(group, Some(target)));
            }
        }
        if let SharePool::Target(target) = pool {
            let part = self.terms.part_of_slots(target);
            self.lanes.set_slots_part(target, part, self.now, &mut self.observation);
        }
        self.finish_call();
    }

    /// Takes the usage of each rule's limits, meter and decay since the last call, for those that
    /// were used. O(classes + meters). Poll afterwards.
    pub fn take_limit_usage(&mut self, now: Time) -> Vec<(Scope, ScopeUsage)> {
        self.advance(now);
        let span = self.observation.begin_taking_usage(self.now);
        let mut uses: BTreeMap<Scope, ScopeUsage> = BTreeMap::new();
        for (scope, usage) in self.meters.take_usage(|moved, rate| part_used(moved, rate, span)) {
            let what = uses.entry(scope).or_insert(NO_USAGE);
            what.used = what.used.max(usage.used);
            what.waiting |= usage.waiting;
        }
        self.finish_call();
        uses.into_iter().collect()
    }

    /// The activity here of each rule on which others depend, at all targets.
    pub fn parent_activity(&mut self, now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        self.advance(now);
        self.terms.parent_activity(self.now)
    }

    /// Replaces the activity of rules at all other proxies: limits that depend on them change at
    /// once. What is not named has none. Poll afterwards.
    pub fn set_remote_activity(&mut self, remote: &[(Arc<str>, RuleActivity)], now: Time) {
        self.advance(now);
        self.terms.set_remote_activity(remote, self.now);
        self.apply_dependents();
        self.finish_call();
    }

    /// Takes the classes of a target that were served since the last call, or have requests, and
    /// the rows that reserve for some of these; those that add up are used and waited for alike. What
    /// the classes need of the slots can be read afterwards ([`Dispatcher::slots_claim`]).
    /// O(classes + rows). Poll afterwards.
    pub fn take_class_usage(&mut self, target: TargetId, now: Time) -> Vec<(Scope, ScopeUsage)> {
        self.advance(now);
        let span = self.lanes.begin_taking_usage(target, self.now);
        let (mut uses, mut groups) = (Vec::new(), BTreeMap::new());
        // What is reserved for each class, by any branch.
        let mut reserved: BTreeMap<ClassIndex, Share> = BTreeMap::new();
        let (mut active, mut lag) = (Vec::new(), ReservationLag::None);
        for class in self.active_classes() {
            if self.lanes.target_of(class) != target {
                continue;
            }
            if let Some(row) = self.registry.key(class).branch {
                // Another branch may have the key of the group, while this one has requests.
                let group = self.terms.entitlements().group_of(row).unwrap_or(row);
                let ReservationNeed { used, part, lag: own } =
                    self.lanes.take_reservation_need(class, span, self.now);
                let (queued, running, _) = self.lanes.own_load_of(class);
                if used != ReservationUse::default() || queued > 0 || running > 0 {
                    let sum = reserved.entry(self.lanes.owner_of(class)).or_default();
                    (*sum, lag) = (sum.plus(part), lag.max(own));
                    let (units, waiting) = groups.entry(group).or_insert((0, false));
                    (*units, *waiting) = (*units + used.units, *waiting || queued > 0);
                }
                continue;
            }
            let was_served = self.observation.take_class_usage(class);
            let (queued, running, _) = self.lanes.load_of(class);
            if was_served || queued > 0 || running > 0 {
                if self.lanes.has_reservation(class) {
                    let need = self.lanes.take_reservation_need(class, span, self.now);
                    let sum = reserved.entry(class).or_default();
                    (*sum, lag) = (sum.plus(need.part), lag.max(need.lag));
                }
                active.push(class);
                let usage = ScopeUsage { used: None, waiting: queued > 0 };
                uses.push((self.registry.key(class).scope(), usage));
            }
        }
        self.claim_slots(target, &active, &reserved, lag, span);
        for (group, (units, waiting)) in groups {
            self.terms.count_served(group, target, units);
            let rate = self.terms.reserved_rate_of(group);
            let used = rate.map(|rate| part_used(units, rate, span));
            let rows = self.terms.entitlements().adding_up(group);
            let usage = ScopeUsage { used, waiting };
            uses.extend(rows.map(|(id, _)| (Scope::entitlement(id.0), usage)));
        }
        self.finish_call();
        uses.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        uses
    }

    /// What this proxy needed of a target's slots when the usage of its classes was taken last; `None`:
    /// no class had requests.
    pub fn slots_claim(&self, target: TargetId) -> Option<SlotsClaim> {
        self.lanes.slots_claim(target)
    }

    /// Takes what each reservation of a target was served, by the last calls of
    /// [`Dispatcher::take_class_usage`], while its requests waited: by the row or class that reserves;
    /// rows that add up have their parts by their rates. Requests of a class that a limit delays do not
    /// count. O(classes + rows).
    pub fn take_waited(&mut self, target: TargetId) -> Vec<(Scope, WaitedService)> {
        let mut all: BTreeMap<Scope, WaitedService> = BTreeMap::new();
        for class in self.active_classes() {
            if self.lanes.target_of(class) != target {
                continue;
            }
            let Some(waited) = self.lanes.take_waited(class) else { continue };
            let key = self.registry.key(class);
            let mut add = |scope, waited: WaitedService| {
                let sum = all.entry(scope).or_default();
                *sum = sum.plus(waited);
            };
            let Some(group) = key.branch else {
                add(key.scope(), waited);
                continue;
            };
            for (row, waited) in self.terms.entitlements().divide_waited(group, waited) {
                add(Scope::entitlement(row.0), waited);
            }
        }
        all.into_iter().collect()
    }

    /// Whether this proxy has only a share of a target's slots.
    pub fn are_slots_divided(&self, target: TargetId) -> bool {
        !self.slots_part(target).is_whole()
    }

    /// The share of a target's slots that this proxy has.
    pub fn slots_part(&self, target: TargetId) -> Share {
        self.terms.part_of_slots(target)
    }

    /// Claims slots for classes with requests, and what is reserved for some of them.
    fn claim_slots(
        &mut self,
        target: TargetId,
        active: &[ClassIndex],
        reserved: &BTreeMap<ClassIndex, Share>,
        lag: ReservationLag,
        span: Nanos,
    ) {
        let (mut sum, mut reserved_weight, mut weight) = (Share::ZERO, 0u64, 0u64);
        for class in active {
            let phi = self.lanes.phi(*class).get();
            match reserved.get(class) {
                Some(part) => {
                    sum = sum.plus(*part);
                    reserved_weight = reserved_weight.saturating_add(phi);
                }
                None => weight = weight.saturating_add(phi),
            }
        }
        let claim =
            SlotsClaim { reserved: sum, reserved_weight, weight, lag, ..SlotsClaim::default() };
        let claim = (!active.is_empty()).then_some(claim);
        let seen = &mut self.observation;
        self.lanes.set_slots_claim(target, claim, span, self.now, seen);
    }

    /// Takes what [`Dispatcher::count_unreported`] counted since the last call, by class of a target.
    pub fn take_unreported(&mut self, target: TargetId) -> Vec<(Scope, Nanos)> {
        self.observation.take_unreported(target)
    }

    /// Charges a class of a target for metadata service of this cost at other proxies, for a
    /// controller that knows classes and no subjects. Poll afterwards.
    pub fn charge_class_remote_service(
        &mut self,
        target: TargetId,
        class: &Scope,
        cost: Nanos,
        now: Time,
    ) {
        self.advance(now);
        let key = ClassKey::of_scope(target, class);
        let Some(index) = self.registry.find_class(&key) else { return };
        self.observation.count_remote(None, index, cost);
        self.lanes.charge_remote(index, cost, self.now, &mut self.observation);
        self.finish_call();
    }

    fn grant_all_classes(&mut self, target: TargetId) {
        for class in self.active_classes() {
            let key = self.registry.key(class);
            if key.target == target && key.branch.is_none() {
                self.grant_class(class);
            }
        }
        for group in self.registry.groups() {
            self.set_reserved(group, Some(target));
        }
        let at_rest = self.registry.dormant();
        let at_rest = at_rest.filter(|(.., key)| key.target == target && key.branch.is_none());
        let at_rest: Vec<_> = at_rest.map(|(index, ..)| index).collect();
        at_rest.into_iter().for_each(|index| self.grant_dormant(index));
    }

    fn grant_class_of(&mut self, target: TargetId, scope: &Scope) {
        if scope.section != SectionKind::Rule {
            return;
        }
        let key = ClassKey::of_scope(target, scope);
        if let Some(class) = self.registry.find_class(&key) {
            self.grant_class(class);
        } else if let Some(dormant) = self.registry.find_dormant(&key) {
            self.grant_dormant(dormant);
        }
    }

    fn grant_dormant(&mut self, index: DormantIndex) {
        let key = self.registry.dormant_key(index);
        let (part, _) = self.terms.part_of_class(key);
        self.lanes.set_part_of_dormant(index, key.target, part, self.now);
    }

    pub(super) fn grant_meters_of(&mut self, scope: &Scope) {
        for key in self.terms.meters_of(scope) {
            if let Some(meter) = self.meters.find(&key) {
                self.grant_meter(meter);
            }
        }
    }

    fn grant_meter(&mut self, meter: MeterIndex) {
        let (key, rate) = self.meters.key_and_rate(meter);
        let (rate, part) = self.terms.pace_of(key, rate);
        self.meters.set_pace(meter, rate, part, self.now);
    }

    fn grant_class(&mut self, class: ClassIndex) {
        let key = self.registry.key(class);
        let (part, proxies) = self.terms.part_of_class(key);
        self.lanes.set_part(class, part, proxies, self.now);
    }
}

/// The number of the row of a scope, if it is of one.
fn row_of(scope: &Scope) -> Option<EntitlementId> {
    let is_row = scope.section == SectionKind::Entitlement;
    is_row.then(|| scope.name.parse().ok().map(EntitlementId)).flatten()
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
