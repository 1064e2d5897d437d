//! What a controller grants this proxy: a share of each limit, reservation and weight, and the
//! rates to which decays limit single keys.
//!
//! ```text
//!   grants ─► table ─┬─► class: φ · share · proxies, reservation · share
//!                    ├─► its meters, and [[meter]]s: rate · share     what is owed and saved stays,
//!                    └─► dormant class: reservation · share           in units
//!   ScopeUsage ◄── what meters let through, as a part of the whole limit; what waits
//! ```
//!
//! Without a controller every share is the whole and there is one proxy. Each rule is then granted
//! as written, and the lookup is one test of an empty table.

use std::collections::BTreeMap;

use model::{Grant, Grants, Nanos, Rate, RuleSet, Scope, ScopeUsage, SectionKind, Share, Time};

use crate::class::NO_SIZE;
use crate::classify::{ClassKey, limits_of};
use crate::dispatcher::Dispatcher;
use crate::lane::{DEVICE, LANES};
use crate::meter::MeterKey;
use crate::reservation::ReservationTerms;

/// The grants of this proxy.
#[derive(Debug)]
pub(crate) struct GrantTable {
    proxies: u32,
    unlisted: Share,
    listed: BTreeMap<Scope, Grant>,
    /// When usage was taken last.
    usage_taken: Time,
}

/// The grant of one meter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterGrant {
    pub(crate) part: Share,
    pub(crate) rate: Option<Rate>,
}

impl Default for GrantTable {
    fn default() -> GrantTable {
        GrantTable {
            proxies: 1,
            unlisted: Share::WHOLE,
            listed: BTreeMap::new(),
            usage_taken: Time::ZERO,
        }
    }
}

impl GrantTable {
    pub(crate) fn proxies(&self) -> u32 {
        self.proxies
    }

    pub(crate) fn part_of_class(&self, key: &ClassKey) -> Share {
        match self.listed.is_empty() {
            true => self.unlisted,
            false => self.of(&Scope::rule(&key.rule, &key.values)).part,
        }
    }

    pub(crate) fn of_meter(&self, key: &MeterKey) -> MeterGrant {
        match self.listed.is_empty() {
            true => MeterGrant { part: self.unlisted, rate: None },
            false => self.of(&key.scope()),
        }
    }

    fn of(&self, scope: &Scope) -> MeterGrant {
        let Grant { part, rate } = self.listed.get(scope).copied().unwrap_or_default();
        MeterGrant { part: part.unwrap_or(self.unlisted), rate }
    }
}

impl Dispatcher {
    /// Applies what a controller grants this proxy: at once, also for waiting requests and for
    /// dormant classes. Debts and savings of meters stay. O(what changed), or O(everything) if the
    /// number of proxies or the share of unlisted scopes did. Poll afterwards.
    pub fn set_grants(&mut self, grants: &Grants, now: Time) {
        self.advance(now);
        for (scope, grant) in &grants.listed {
            match grant.is_empty() {
                true => self.grants.listed.remove(scope),
                false => self.grants.listed.insert(scope.clone(), *grant),
            };
        }
        let base = (grants.proxies.max(1), grants.unlisted);
        if (self.grants.proxies, self.grants.unlisted) == base {
            grants.listed.iter().for_each(|(scope, _)| self.apply_grant(scope));
        } else {
            (self.grants.proxies, self.grants.unlisted) = base;
            self.apply_grants();
        }
        self.finish_call();
    }

    /// Takes the usage of each rule's classes, meter and decay since the last call, for those that
    /// were used. O(classes + meters). Poll afterwards.
    pub fn take_usage(&mut self, now: Time) -> Vec<(Scope, ScopeUsage)> {
        self.advance(now);
        let span = self.now.since(self.grants.usage_taken);
        self.grants.usage_taken = self.now;
        let mut uses: BTreeMap<Scope, ScopeUsage> = BTreeMap::new();
        let meters: Vec<u32> = self.meters.indices().collect();
        for index in meters {
            let meter = &mut self.meters[index];
            let (moved, waiting) = (std::mem::take(&mut meter.moved), !meter.has_no_waiters());
            let rate = meter.pacer.rate();
            if (moved == 0 && !waiting) || rate.per_sec() == u64::MAX {
                continue;
            }
            let what = uses.entry(meter.key.scope()).or_insert(NO_USAGE);
            what.used = what.used.max(Some(part_used(moved, rate, span)));
            what.waiting |= waiting;
        }
        let classes: Vec<u32> = self.classes.indices().collect();
        for index in classes {
            let class = &mut self.classes[index];
            let cost = std::mem::replace(&mut class.cost_reported, class.usage.cost);
            if cost == class.usage.cost && class.queued == 0 && class.running == 0 {
                continue;
            }
            // The class has no meter: its weight alone counts.
            let scope = Scope::rule(&class.key.rule, &class.key.values);
            uses.entry(scope).or_insert(ScopeUsage { used: None, waiting: class.queued > 0 });
        }
        self.finish_call();
        uses.into_iter().collect()
    }

    /// Charges a class for metadata service of this cost at other proxies, for a controller that
    /// knows classes and no subjects. Poll afterwards.
    pub fn charge_class_remote_service(&mut self, class: &Scope, cost: Nanos, now: Time) {
        self.advance(now);
        let key = class_key(class);
        let Some(index) = self.names.classes.get(&key).copied() else { return };
        let own = &mut self.classes[index];
        own.usage.remote += cost;
        own.delay.add(cost);
        if own.lanes[DEVICE].size != NO_SIZE {
            self.apply_delay(index);
            self.refresh(index, DEVICE);
        }
        self.finish_call();
    }

    fn apply_grants(&mut self) {
        let classes: Vec<u32> = self.classes.indices().collect();
        classes.into_iter().for_each(|index| self.grant_class(index));
        let rested: Vec<u32> = self.dormant.indices().collect();
        rested.into_iter().for_each(|index| self.grant_dormant(index));
        let meters: Vec<u32> = self.meters.indices().collect();
        meters.into_iter().for_each(|index| self.grant_meter(index));
    }

    fn apply_grant(&mut self, scope: &Scope) {
        let key = class_key(scope);
        let keys = match scope.section {
            SectionKind::Rule => {
                if let Some(index) = self.names.classes.get(&key).copied() {
                    self.grant_class(index);
                } else if let Some(index) = self.names.dormant.get(&key).copied() {
                    self.grant_dormant(index);
                }
                limit_keys(&self.rules, &key)
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
        };
        for key in keys {
            if let Some(index) = self.names.meters.get(&key).copied() {
                self.grant_meter(index);
            }
        }
    }

    fn grant_class(&mut self, index: u32) {
        let part = self.grants.part_of_class(&self.classes[index].key);
        let class = &mut self.classes[index];
        class.set_weight(class.weight, part, self.grants.proxies);
        if let Some(reservation) = &mut class.reservation {
            let terms = ReservationTerms { part, ..reservation.terms() };
            reservation.set(terms, self.reservation_clock.at(self.now));
        }
        self.bound_lag(index);
        for lane in 0..LANES.len() {
            self.refresh_reserve(index, lane);
        }
    }

    fn grant_dormant(&mut self, index: u32) {
        let part = self.grants.part_of_class(&self.dormant[index].key);
        let now = self.reservation_clock.at(self.now);
        if let Some(reservation) = &mut self.dormant[index].reservation {
            reservation.set(ReservationTerms { part, ..reservation.terms() }, now);
        }
    }

    /// The rate of a meter for which a rate is written in the rules. What its parent leaves goes
    /// before what is granted, and that before what is written.
    pub(crate) fn effective_rate(&self, key: &MeterKey, written: Rate) -> Rate {
        let effective = key.rule().and_then(|rule| self.dependents.effective(rule));
        effective.or(self.grants.of_meter(key).rate).unwrap_or(written)
    }

    fn grant_meter(&mut self, index: u32) {
        let key = &self.meters[index].key;
        let part = self.grants.of_meter(key).part;
        let written = key.limit_in(&self.rules).map(|limit| limit.rate);
        let rate = self.effective_rate(key, written.unwrap_or(self.meters[index].pacer.rate()));
        let pacer = &mut self.meters[index].pacer;
        if (pacer.rate(), pacer.part()) != (rate, part) {
            pacer.set_pace(rate, part, self.now);
            self.sync_meter(index);
        }
    }
}

/// The keys of a rule's limits.
fn limit_keys(rules: &RuleSet, class: &ClassKey) -> Vec<MeterKey> {
    let rule = rules.rule(&class.rule);
    let limits = rule.into_iter().flat_map(limits_of);
    limits.map(|(limit, nth)| MeterKey::of_rule(class, limit.kinds, limit.rate, nth)).collect()
}

fn class_key(scope: &Scope) -> ClassKey {
    ClassKey { rule: scope.name.clone(), values: scope.key.iter().cloned().collect() }
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
