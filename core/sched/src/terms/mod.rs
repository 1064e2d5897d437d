//! Terms: what the rules, a controller and parents give each class and meter now.
//!
//! ```text
//!   rules ──────────────┬─► class: weight, slots, reservation     meter: limit, share of it
//!   grants (controller) ┤
//!   dependents (parents)┘     a change names whom it concerns; the dispatcher passes it on
//! ```

mod dependent;
mod entitlements;
mod grant;
mod groups;
mod values;

use std::sync::Arc;

use model::{
    Amount, Directory, Grants, Identity, OpKind, PathSet, Rate, RuleActivity, Scope, SectionKind,
    Share, SharePool, TargetId, Time, Weight,
};
use rules::{Entitlement, EntitlementId, Limit, LimitMode, Rule, RuleSet, key_of};

use crate::deadline::Deadline;
use crate::keys::{ClassKey, MeterKey, MeterOwner, decay_ceiling, limits_of};
use crate::lanes::{ClassTerms, ReservationTerms};
use crate::meters::MeterTerms;

use dependent::Dependents;
use entitlements::EntitledRequest;
pub(crate) use entitlements::{Entitlements, RowChanges};
use grant::GrantTable;

/// The rules in force, with what changes them.
#[derive(Debug)]
pub(crate) struct Terms {
    rules: Arc<RuleSet>,
    grants: GrantTable,
    dependents: Dependents,
    entitlements: Entitlements,
    /// When a limit that depends on others is to be computed again, or a row begins or ends.
    next_change: Deadline,
}

impl Terms {
    pub(crate) fn new(rules: Arc<RuleSet>) -> Terms {
        let dependents = Dependents::of(&rules, &Dependents::default(), Time::ZERO);
        let (grants, entitlements, next_change) = Default::default();
        let mut new = Terms { rules, grants, dependents, entitlements, next_change };
        new.note_next_change();
        new
    }

    // ---- changes ----

    /// The sections whose values are others in new rules, in order; `None` if that is not the only
    /// difference.
    pub(crate) fn changed_values(&self, rules: &RuleSet) -> Option<Vec<(SectionKind, String)>> {
        values::changed_values(&self.rules, rules)
    }

    /// Replaces the rules. The state of a parent that stays is kept, and classes that have the terms
    /// of the rules before still count for the right parents.
    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.dependents = Dependents::of(&rules, &self.dependents, now);
        self.rules = rules;
        self.note_next_change();
    }

    /// Handles that every class has its terms of the rules in force. True if the classes of a parent
    /// are to have theirs once more.
    pub(crate) fn settle_dependents(&mut self) -> bool {
        self.dependents.settle()
    }

    /// Panics unless the requests of each parent are those of the classes that count for it. Each
    /// class is given by the bits of its parents and its requests.
    pub(crate) fn check(&self, classes: impl Iterator<Item = (u64, u32)>) {
        self.dependents.check(classes);
    }

    /// Makes the grants of a new target.
    pub(crate) fn add_target(&mut self) {
        self.grants.add_target();
    }

    /// Takes a change of what a controller grants in. Returns whether every class or meter of the
    /// pool is concerned, and not only what the change lists.
    pub(crate) fn set_grants(&mut self, pool: SharePool, grants: &Grants) -> bool {
        self.grants.change(pool, grants)
    }

    /// Counts requests that came (or went, below 0) where others depend on their rule. True if that
    /// changes a limit.
    pub(crate) fn count_dependents(&mut self, watched: u64, change: i64, now: Time) -> bool {
        self.dependents.count(watched, change, now)
    }

    /// Counts a dispatched request where others depend on its rule.
    pub(crate) fn count_dispatched(&mut self, watched: u64, amount: Amount) {
        self.dependents.dispatched(watched, amount);
    }

    /// The activity here of each rule on which others depend.
    pub(crate) fn parent_activity(&self, now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        self.dependents.activity(now)
    }

    /// Replaces the activity of these rules at other proxies.
    pub(crate) fn set_remote_activity(&mut self, remote: &[(Arc<str>, RuleActivity)], now: Time) {
        self.dependents.set_remote(remote, now);
    }

    /// Computes the limits that depend on other rules. Returns the rules whose limit changed, each
    /// with its new limit.
    pub(crate) fn update_dependents(&mut self, now: Time) -> Vec<(String, Rate)> {
        let changed = self.dependents.end_windows(&self.rules, now);
        self.note_next_change();
        changed
    }

    /// When limits that depend on other rules are to be computed next; `None` where there are none.
    pub(crate) fn next_update(&self) -> Option<Time> {
        (!self.dependents.is_empty()).then(|| self.dependents.next_update())
    }

    /// When anything here changes by itself: such a limit, or a row of entitlements.
    #[inline]
    pub(crate) fn next_change(&self) -> Deadline {
        self.next_change
    }

    fn note_next_change(&mut self) {
        self.next_change = Deadline::default();
        self.next_change.bring_forward(self.entitlements.next_edge());
        self.next_change.bring_forward(self.next_update());
    }

    /// The rows of entitlements.
    pub(crate) fn entitlements(&self) -> &Entitlements {
        &self.entitlements
    }

    /// Puts, replaces or removes rows, whose spans count from `since`. Returns what that concerns,
    /// and how many were refused.
    pub(crate) fn change_rows(
        &mut self,
        changes: Vec<(EntitlementId, Option<Entitlement>)>,
        since: Time,
        now: Time,
    ) -> (RowChanges, usize) {
        let changed = self.entitlements.change(changes, since, now);
        self.note_next_change();
        changed
    }

    /// Lets rows begin and end to apply by `now`. Returns what that concerns.
    pub(crate) fn pass_edges(&mut self, now: Time) -> RowChanges {
        let concerned = self.entitlements.advance(now);
        self.note_next_change();
        concerned
    }

    // ---- what is given ----

    pub(crate) fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// The number of sections in the rules.
    pub(crate) fn sections(&self) -> usize {
        let RuleSet { rules, meters, decays, .. } = &*self.rules;
        rules.len() + meters.len() + decays.len()
    }

    /// The rule that takes a request, if any does.
    pub(crate) fn rule_for(&self, who: &Identity, kind: OpKind, paths: PathSet) -> Option<&Rule> {
        self.rules.rule_for(who, kind, paths).map(|at| &self.rules.rules[at])
    }

    /// What rows give a request of a class: further meters, and the key of the branch that it
    /// belongs to.
    pub(crate) fn entitle(
        &self,
        class: &ClassKey,
        who: &Identity,
        mark: Option<&Directory>,
        target: &str,
        kind: OpKind,
        meters: &mut Vec<MeterTerms>,
    ) -> Option<EntitlementId> {
        if self.entitlements.is_empty() {
            return None;
        }
        let request = EntitledRequest { who, mark, target, class: &class.scope(), kind };
        for (id, limit) in self.entitlements.limits_for(request) {
            let key = MeterKey::of_row(id, limit.rate);
            let part = self.grants.part_of_meter(&key);
            meters.push(MeterTerms { limit, part, key });
        }
        self.entitlements.reservation_for(request)
    }

    /// What a class of the target of that name is given now.
    pub(crate) fn of_class(&self, key: &ClassKey, target: &str) -> ClassTerms {
        let terms = self.of_rule(key);
        if self.entitlements.is_empty() && key.branch.is_none() {
            return terms;
        }
        let reservation = match key.branch {
            None => terms.reservation,
            Some(row) => self.reserved_by(row, key.target),
        };
        ClassTerms { weight: self.weight_of(key, target), reservation, ..terms }
    }

    /// What the rows that add up with one reserve here: the sum of their rates, and of the shares of
    /// these. O(these rows).
    pub(crate) fn reserved_by(
        &self,
        row: EntitlementId,
        target: TargetId,
    ) -> Option<ReservationTerms> {
        let rate = self.reserved_rate_of(row)?;
        let (mut all, mut granted) = (0, 0);
        for (id, rate) in self.entitlements.adding_up(row) {
            let (rate, part) = (u128::from(rate.per_sec()), self.grants.part_of_row(id, target));
            all += rate;
            granted += rate * u128::from(part.billionths());
        }
        // Parts are whole billionths at most, so their mean is.
        let part = u32::try_from(granted / all).ok().and_then(Share::from_billionths)?;
        // As of a rule that says nothing else.
        let account = match rate.is_bytes() {
            true => Share::ratio(Rule::RESERVATION_METADATA_PPM.into(), 1_000_000),
            false => Share::ZERO,
        };
        Some(ReservationTerms { rate, part, account })
    }

    /// What the rules and a controller give a class now.
    fn of_rule(&self, key: &ClassKey) -> ClassTerms {
        let part = self.grants.part_of_class(key);
        let proxies = self.grants.proxies(key.target);
        let watched = self.dependents.watched(&key.rule);
        let Some(rule) = self.rules.rule(&key.rule) else {
            // A class without a rule, or whose rule is gone.
            return ClassTerms {
                weight: Weight::ONE,
                part,
                proxies,
                slots_cap: u32::MAX,
                min_local_service_ppm: 0,
                write_mode: None,
                reservation: None,
                watched,
            };
        };
        let overflow = !rule.per.is_empty() && key.values.is_empty();
        let effective = self.dependents.effective(&rule.name);
        let effective = effective.filter(|_| rule.limit_mode == LimitMode::Realtime);
        let promised = rule.reserved_rate().map(|rate| effective.unwrap_or(rate));
        let account = Share::ratio(rule.reservation_metadata().unwrap_or(0).into(), 1_000_000);
        let promised = promised.filter(|_| !overflow);
        ClassTerms {
            weight: rule.effective_weight(),
            part,
            proxies,
            slots_cap: rule.slots.unwrap_or(u32::MAX),
            min_local_service_ppm: rule.min_local_service_ppm.unwrap_or(0),
            write_mode: rule.write_mode,
            reservation: promised.map(|rate| ReservationTerms { rate, part, account }),
            watched,
        }
    }

    /// The share of a class, and the number of proxies.
    pub(crate) fn part_of_class(&self, key: &ClassKey) -> (Share, u32) {
        (self.grants.part_of_class(key), self.grants.proxies(key.target))
    }

    /// The share of what a row reserves at a target.
    pub(crate) fn part_of_row(&self, row: EntitlementId, target: TargetId) -> Share {
        self.grants.part_of_row(row, target)
    }

    /// The share of a target's slots.
    pub(crate) fn part_of_slots(&self, target: TargetId) -> Share {
        self.grants.part_of_slots(target)
    }

    /// Counts what went by the branches of a row at a target, and of those with which it adds up.
    pub(crate) fn count_served(&mut self, row: EntitlementId, target: TargetId, units: u64) {
        self.entitlements.count_served(row, target, units);
    }

    /// The sum of the rates of the rows that add up with one, while it applies.
    pub(crate) fn reserved_rate_of(&self, row: EntitlementId) -> Option<Rate> {
        let rates = self.entitlements.adding_up(row).map(|(_, rate)| rate);
        rates.reduce(|sum, rate| {
            let per_sec = sum.per_sec().saturating_add(rate.per_sec());
            sum.with_per_sec(per_sec).unwrap_or(sum)
        })
    }

    /// Whether the limit of a rule is a reservation, too.
    pub(crate) fn is_realtime(&self, rule: &str) -> bool {
        self.rules.rule(rule).is_some_and(|rule| rule.limit_mode == LimitMode::Realtime)
    }

    /// The device slots that are kept for reservations.
    pub(crate) fn reserved_slots(&self) -> u32 {
        let kept = self.rules.rules.iter().filter_map(|rule| rule.reserved_slots);
        kept.fold(0, u32::saturating_add)
    }

    /// The meters that a request of a class pays.
    pub(crate) fn meters_for(
        &self,
        class: &ClassKey,
        who: &Identity,
        kind: OpKind,
        paths: PathSet,
    ) -> Vec<MeterTerms> {
        let rules = &self.rules;
        let rule = self.rule_for(who, kind, paths);
        let own = rule.into_iter().flat_map(limits_of);
        let own = own
            .filter(|(limit, _)| limit.kinds.contains(kind))
            .map(|(limit, nth)| (limit, MeterKey::of_rule(class, limit.kinds, limit.rate, nth)));
        let meters = rules.meters_for(who, kind, paths).map(|i| &rules.meters[i]).map(|meter| {
            let key = key_of(&meter.per, who, kind);
            (meter.limit, MeterKey::of_meter(&meter.name, meter.limit.rate, key))
        });
        let decays = rules.decays_for(who, kind, paths).map(|i| &rules.decays[i]).map(|decay| {
            (decay_ceiling(decay), MeterKey::of_decay(decay, key_of(&decay.per, who, kind)))
        });
        let all = own.chain(meters).chain(decays);
        all.map(|(limit, key)| {
            let rate = self.rate_of(&key, limit.rate);
            let part = self.grants.part_of_meter(&key);
            MeterTerms { limit: Limit { rate, ..limit }, part, key }
        })
        .collect()
    }

    /// The limit of a meter, if the rules still have one.
    pub(crate) fn limit_of(&self, key: &MeterKey) -> Option<Limit> {
        if let MeterOwner::Row { id } = key.owner {
            return self.entitlements.row(id)?.limit();
        }
        let limit = key.limit_in(&self.rules)?;
        Some(Limit { rate: self.rate_of(key, limit.rate), ..limit })
    }

    /// The rate and the share of a meter whose rate is `rate` now.
    pub(crate) fn pace_of(&self, key: &MeterKey, rate: Rate) -> (Rate, Share) {
        let written = key.limit_in(&self.rules).map(|limit| limit.rate);
        (self.rate_of(key, written.unwrap_or(rate)), self.grants.part_of_meter(key))
    }

    /// The rate of a meter for which a rate is written in the rules: of a decay's what a row sets,
    /// of a rule's what its parent leaves.
    fn rate_of(&self, key: &MeterKey, written: Rate) -> Rate {
        let current = match &key.owner {
            MeterOwner::Rule { name, .. } => self.dependents.effective(name),
            MeterOwner::Decay { .. } if !self.entitlements.is_empty() => {
                self.entitlements.decay_rate(&key.scope(), written.is_bytes())
            }
            MeterOwner::Decay { .. } | MeterOwner::Meter { .. } | MeterOwner::Row { .. } => None,
        };
        current.unwrap_or(written)
    }

    /// The keys of the meters of a scope.
    pub(crate) fn meters_of(&self, scope: &Scope) -> Vec<MeterKey> {
        match scope.section {
            SectionKind::Rule => {
                // A limit is one over all targets.
                let class = ClassKey::of_scope(TargetId::FIRST, scope);
                let rule = self.rules.rule(&class.rule);
                let limits = rule.into_iter().flat_map(limits_of);
                let key = |(limit, nth): (Limit, usize)| {
                    MeterKey::of_rule(&class, limit.kinds, limit.rate, nth)
                };
                limits.map(key).collect()
            }
            SectionKind::Meter => {
                let found = self.rules.meters.iter().find(|meter| meter.name == *scope.name);
                let key = |rate| MeterKey::of_meter(&scope.name, rate, scope.key.to_vec());
                found.map(|meter| key(meter.limit.rate)).into_iter().collect()
            }
            SectionKind::Decay => {
                let found = self.rules.decays.iter().find(|decay| decay.name == *scope.name);
                let key = |decay| MeterKey::of_decay(decay, scope.key.to_vec());
                found.map(key).into_iter().collect()
            }
            SectionKind::Entitlement => {
                let id = scope.name.parse().ok().map(EntitlementId);
                let row = id.and_then(|id| Some((id, self.entitlements.row(id)?.limit()?)));
                row.map(|(id, limit)| MeterKey::of_row(id, limit.rate)).into_iter().collect()
            }
            SectionKind::Slots => Vec::new(),
        }
    }

    /// The rule that the limit of a meter depends on, where it does.
    pub(crate) fn parent_of(&self, key: &MeterKey) -> Option<String> {
        let (SectionKind::Rule, name) = key.section()? else { return None };
        self.dependents.effective(name)?;
        self.rules.rule(name)?.depends_on.as_ref().map(|parent| parent.rule.clone())
    }

    /// The current limits of all dependent rules.
    pub(crate) fn dependent_limits(&self) -> impl Iterator<Item = (&str, Rate)> {
        self.dependents.effective_limits()
    }

    /// The weight of a class of the target of that name, as a row or its rule says.
    pub(crate) fn weight_of(&self, key: &ClassKey, target: &str) -> Weight {
        let written = self.rules.rule(&key.rule).map_or(Weight::ONE, Rule::effective_weight);
        if self.entitlements.is_empty() {
            return written;
        }
        let row = self.entitlements.weight_for(key.job(), key.uid(), &key.scope(), target);
        row.and_then(Entitlement::weight).unwrap_or(written)
    }
}
