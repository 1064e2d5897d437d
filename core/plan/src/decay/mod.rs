//! Decay: a limit falls when a key's past usage exceeds its entitlement, and rises as usage decays.
//!
//! ```text
//!   record ─► account of the key ─ each `update_interval`, and as a period ends ─► ratio ρ to its entitlement
//!                │ ledger of minutes ─► restore                                    │
//!                                                 rate for (decay, key), or none ◄─┤ only if it changed
//!                                                 event, if the level changed ◄────┘ enough
//! ```
//!
//! `now` counts from 1970 here, since periods begin at whole multiples of their length. Exempt
//! requests are neither counted nor throttled; that is tested first. A pattern factor, from a
//! quarter to twice, changes a key's entitlement for a while.
//!
//! The formulas are those of docs/algorithms/decay.md. Powers of two are computed in whole numbers
//! (exp2.rs).

mod account;
mod event;
mod exp2;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::{Amount, Identity, Nanos, OpKind, PathSet, Rate, Scope, Time};
use rules::{DecayMode, DecayRule, DecayWindow, RuleSet, key_of};

use account::DecayAccount;
pub use event::{DecayEvent, DecayLevel};
use exp2::{Fraction, log2_milli};

/// One minute of a key's usage: a row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageMinute {
    /// The decay and the key.
    pub scope: Scope,
    /// The minute since 1970.
    pub minute: u64,
    /// The usage in bytes or operations.
    pub used: u64,
}

/// One key's status in a decay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayStatus {
    /// The decay and the key.
    pub scope: Scope,
    /// The level of the key.
    pub stage: DecayLevel,
    /// The past usage, in bytes or operations, as the decay counts it.
    pub used: u64,
    /// The entitlement, in the same unit.
    pub entitlement: u64,
    /// The rate that it is limited to; `None`: to the decay's `max` only.
    pub limit: Option<Rate>,
    /// When the limit ends if nothing is used until then; `None` if it is not throttled.
    pub release: Option<Time>,
    /// The pattern in its requests that changes its entitlement, and the factor in millionths.
    pub pattern_factor: Option<(Arc<str>, u32)>,
}

/// The accounts of all decays of a rule set.
#[derive(Debug)]
pub struct DecayAccounts {
    rules: Arc<RuleSet>,
    now: Time,
    contended: bool,
    keys: BTreeMap<Scope, DecayKey>,
    /// When each decay is computed next, by its index among the rules.
    next_updates: Vec<Time>,
    /// Until then no limit rises and no level falls.
    settled_at: Time,
    /// Changes that were not polled yet.
    rates: BTreeMap<Scope, Option<Rate>>,
    events: VecDeque<DecayEvent>,
    ledger: VecDeque<UsageMinute>,
}

#[derive(Debug)]
struct DecayKey {
    account: DecayAccount,
    stage: DecayLevel,
    limit: Option<Rate>,
    pattern_factor: Option<PatternFactor>,
}

/// A factor on an entitlement that decays to 1.
#[derive(Clone, Debug)]
struct PatternFactor {
    pattern: Arc<str>,
    factor_ppm: u32,
    since: Time,
}

impl DecayAccounts {
    /// Creates accounts without any keys.
    pub fn new(rules: Arc<RuleSet>, now: Time) -> DecayAccounts {
        DecayAccounts {
            next_updates: rules.decays.iter().map(|decay| next_update(decay, now)).collect(),
            settled_at: Time::ZERO,
            rules,
            now,
            contended: true,
            keys: BTreeMap::new(),
            rates: BTreeMap::new(),
            events: VecDeque::new(),
            ledger: VecDeque::new(),
        }
    }

    /// Counts usage for each decay that it matches. `paths` are bits of the rules in force. New
    /// keys beyond the bound are not counted.
    pub fn record(
        &mut self,
        who: &Identity,
        paths: PathSet,
        kind: OpKind,
        served: Amount,
        now: Time,
    ) {
        self.advance(now);
        let rules = self.rules.clone();
        for decay in rules.decays_for(who, kind, paths).map(|at| &rules.decays[at]) {
            let scope = Scope::decay(&decay.name, &key_of(&decay.per, who, kind));
            self.add(decay, scope, decay.entitlement.units_of(served));
        }
        drop_surplus(&mut self.ledger);
    }

    /// Counts usage of a key in bytes or operations, for callers that know which decays count it.
    pub fn charge(&mut self, scope: &Scope, amount: u64, now: Time) {
        self.advance(now);
        let rules = self.rules.clone();
        if let Some(decay) = rules.decays.iter().find(|decay| *decay.name == *scope.name) {
            self.add(decay, scope.clone(), amount);
        }
        drop_surplus(&mut self.ledger);
    }

    /// Adopts the levels and rates of keys from another instance, whose events were published.
    /// Until `until` no limit rises and no level falls, since usage that was counted there may not
    /// be known here yet. Call it before [`DecayAccounts::restore`].
    pub fn resume(
        &mut self,
        known: impl IntoIterator<Item = (Scope, DecayLevel, Option<Rate>)>,
        until: Time,
        now: Time,
    ) {
        self.advance(now);
        let rules = self.rules.clone();
        for (scope, stage, limit) in known.into_iter().take(KEYS_MAX) {
            let Some(decay) = rules.decays.iter().find(|decay| *decay.name == *scope.name) else {
                continue;
            };
            let limit = limit.filter(|limit| limit.is_bytes() == decay.resource.is_bytes());
            let key = self.keys.entry(scope.clone()).or_insert_with(|| DecayKey::new(decay));
            (key.stage, key.limit) = (stage, limit);
            self.rates.insert(scope, limit);
        }
        self.settled_at = until;
        self.next_updates.iter_mut().for_each(|look| *look = (*look).min(until));
    }

    /// Restores accounts from rows of the ledger, each key's in the order of minutes. Rows of
    /// removed decays, and rows older than what is known, are left out.
    pub fn restore(&mut self, rows: impl IntoIterator<Item = UsageMinute>, now: Time) {
        self.advance(now);
        let rules = self.rules.clone();
        for UsageMinute { scope, minute, used } in rows {
            let Some(decay) = rules.decays.iter().find(|decay| *decay.name == *scope.name) else {
                continue;
            };
            let key = self.keys.entry(scope).or_insert_with(|| DecayKey::new(decay));
            key.account.restore(minute, used, &decay.mode);
        }
        self.update_all_limits();
    }

    /// Replaces the rules. A decay that counts differently than before starts empty: restore it
    /// from the ledger.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        let old = std::mem::replace(&mut self.rules, rules);
        let by_name = |set: &RuleSet, name: &str| {
            set.decays.iter().find(|decay| decay.name == name).map(|decay| {
                let mode = match &decay.mode {
                    DecayMode::Period { period, window, .. } => (*period, Some(*window)),
                    DecayMode::HalfLife { half_life, .. } => (*half_life, None),
                };
                (mode, decay.resource, decay.per.clone())
            })
        };
        let stays = |scope: &Scope| {
            let now_is = by_name(&self.rules, &scope.name);
            now_is.is_some() && now_is == by_name(&old, &scope.name)
        };
        let gone: Vec<Scope> = self.keys.keys().filter(|scope| !stays(scope)).cloned().collect();
        for scope in gone {
            if self.keys.remove(&scope).is_some_and(|key| key.limit.is_some()) {
                self.rates.insert(scope, None);
            }
        }
        self.next_updates =
            self.rules.decays.iter().map(|decay| next_update(decay, self.now)).collect();
        self.update_all_limits();
    }

    /// Sets whether requests wait for one another: decays with `contention` throttle only then.
    pub fn set_contention(&mut self, contended: bool, now: Time) {
        self.advance(now);
        if self.contended != contended {
            self.contended = contended;
            self.update_all_limits();
        }
    }

    /// Applies a pattern's factor to a key's entitlement. The factor, from 0.25 to 2 in millionths,
    /// returns to 1 by half an hour after hour. False if the key has no account.
    pub fn set_pattern_factor(
        &mut self,
        scope: &Scope,
        factor_ppm: u32,
        pattern: &str,
        now: Time,
    ) -> bool {
        self.advance(now);
        let since = self.now;
        let Some(key) = self.keys.get_mut(scope) else { return false };
        let factor_ppm = factor_ppm.clamp(FACTOR_MIN_PPM, FACTOR_MAX_PPM);
        key.pattern_factor = Some(PatternFactor { pattern: pattern.into(), factor_ppm, since });
        true
    }

    /// The next key whose rate changed; `None` as rate: its limit has ended.
    pub fn poll_rate(&mut self, now: Time) -> Option<(Scope, Option<Rate>)> {
        self.advance(now);
        self.rates.pop_first()
    }

    /// The next change of level. The oldest are lost if too many are not polled.
    pub fn poll_event(&mut self, now: Time) -> Option<DecayEvent> {
        self.advance(now);
        self.events.pop_front()
    }

    /// The next row for the ledger. The oldest are lost if too many are not polled.
    pub fn poll_ledger(&mut self, now: Time) -> Option<UsageMinute> {
        self.advance(now);
        self.ledger.pop_front()
    }

    /// When to poll again even though nothing is recorded.
    pub fn next_deadline(&self) -> Option<Time> {
        self.next_updates.iter().copied().min()
    }

    /// The status of every key that has an account.
    pub fn reports(&self) -> impl Iterator<Item = DecayStatus> {
        self.keys.iter().filter_map(|(scope, key)| {
            let decay = self.rules.decays.iter().find(|decay| *decay.name == *scope.name)?;
            Some(DecayStatus {
                scope: scope.clone(),
                stage: key.stage,
                used: key.account.used(&decay.mode, self.now),
                entitlement: entitlement_of(decay, key.factor_ppm(self.now)),
                limit: key.limit,
                release: key.release(decay, self.now),
                pattern_factor: key.pattern_factor(self.now),
            })
        })
    }

    // ---- the steps that calls share ----

    fn add(&mut self, decay: &DecayRule, scope: Scope, amount: u64) {
        if amount == 0 || (self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&scope)) {
            return;
        }
        let key = self.keys.entry(scope.clone()).or_insert_with(|| DecayKey::new(decay));
        if let Some((minute, used)) = key.account.record(amount, &decay.mode, self.now) {
            self.ledger.push_back(UsageMinute { scope, minute, used });
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        let rules = self.rules.clone();
        for (at, decay) in rules.decays.iter().enumerate() {
            if self.now >= self.next_updates[at] {
                self.next_updates[at] = next_update(decay, self.now);
                self.update_limits(decay);
            }
        }
    }

    fn update_all_limits(&mut self) {
        let rules = self.rules.clone();
        rules.decays.iter().for_each(|decay| self.update_limits(decay));
    }

    /// Computes the limit of each key of a decay.
    fn update_limits(&mut self, decay: &DecayRule) {
        let first = Scope::decay(&decay.name, &[]);
        let of_decay = |scope: &Scope| (scope.section, &scope.name) == (first.section, &first.name);
        let mut empty = Vec::new();
        let held_back = self.contended || !decay.contention;
        for (scope, key) in self.keys.range_mut(first.clone()..).take_while(|(s, _)| of_decay(s)) {
            if let Some((minute, used)) = key.account.close(&decay.mode, self.now) {
                self.ledger.push_back(UsageMinute { scope: scope.clone(), minute, used });
            }
            let (stage, limit) = (key.stage, key.limit);
            key.update_limit(decay, held_back, self.now);
            if self.now < self.settled_at {
                key.withhold_raise(stage, limit);
            }
            if limit != key.limit {
                self.rates.insert(scope.clone(), key.limit);
            }
            if stage != key.stage {
                self.events.push_back(key.event(scope, decay, stage, self.now));
            }
            if key.is_idle(decay, self.now) {
                empty.push(scope.clone());
            }
        }
        for scope in empty {
            self.keys.remove(&scope);
        }
        drop_surplus(&mut self.events);
        drop_surplus(&mut self.ledger);
    }
}

impl DecayKey {
    fn new(decay: &DecayRule) -> DecayKey {
        DecayKey {
            account: DecayAccount::new(&decay.mode),
            stage: DecayLevel::Free,
            limit: None,
            pattern_factor: None,
        }
    }

    fn update_limit(&mut self, decay: &DecayRule, held_back: bool, now: Time) {
        if self.factor_ppm(now) == WHOLE_PPM {
            self.pattern_factor = None;
        }
        let ratio_ppm = self.ratio_ppm(decay, now);
        let limit = limit_of(decay, ratio_ppm).filter(|_| held_back);
        if differs(decay, self.limit, limit) {
            self.limit = limit;
        }
        self.stage = match self.limit {
            Some(limit) if limit == decay.floor => DecayLevel::Floor,
            Some(_) => DecayLevel::Throttled,
            // A key at the level warned stays there until it is clearly below.
            None if ratio_ppm >= NEAR_PPM => DecayLevel::Warned,
            None if ratio_ppm >= AWAY_PPM && self.stage >= DecayLevel::Warned => DecayLevel::Warned,
            None => DecayLevel::Free,
        };
    }

    /// Withholds a change that would raise the limit.
    fn withhold_raise(&mut self, stage: DecayLevel, limit: Option<Rate>) {
        let lower = |limit: Rate| self.limit.is_some_and(|now| now.per_sec() <= limit.per_sec());
        if limit.is_some_and(|limit| !lower(limit)) {
            (self.stage, self.limit) = (stage, limit);
        }
        self.stage = self.stage.max(stage);
    }

    /// The ratio of past usage to the entitlement.
    fn ratio_ppm(&self, decay: &DecayRule, now: Time) -> u64 {
        let used = u128::from(self.account.used(&decay.mode, now)) * u128::from(WHOLE_PPM);
        let entitlement = u128::from(entitlement_of(decay, self.factor_ppm(now)).max(1));
        u64::try_from(used / entitlement).unwrap_or(u64::MAX)
    }

    fn factor_ppm(&self, now: Time) -> u32 {
        let Some(PatternFactor { factor_ppm, since, .. }) = self.pattern_factor.as_ref() else {
            return WHOLE_PPM;
        };
        let left = Fraction::half_to(now.since(*since).get(), BEHAVIOUR_NS);
        let off = left.of(u64::from(factor_ppm.abs_diff(WHOLE_PPM))) as u32;
        if *factor_ppm > WHOLE_PPM { WHOLE_PPM + off } else { WHOLE_PPM - off }
    }

    fn pattern_factor(&self, now: Time) -> Option<(Arc<str>, u32)> {
        let known = self.pattern_factor.as_ref()?;
        Some((known.pattern.clone(), self.factor_ppm(now)))
    }

    fn is_idle(&self, decay: &DecayRule, now: Time) -> bool {
        let free = self.stage == DecayLevel::Free && self.pattern_factor.is_none();
        free && self.account.is_empty(&decay.mode, now)
    }

    fn release(&self, decay: &DecayRule, now: Time) -> Option<Time> {
        self.limit.and_then(|_| release(decay, self.ratio_ppm(decay, now), now))
    }

    fn event(&self, scope: &Scope, decay: &DecayRule, before: DecayLevel, now: Time) -> DecayEvent {
        let factor = |limit: Rate, max: Rate| {
            let ppm =
                u128::from(limit.per_sec()) * u128::from(WHOLE_PPM) / u128::from(max.per_sec());
            ppm.min(u128::from(WHOLE_PPM)) as u32
        };
        DecayEvent {
            scope: scope.clone(),
            at: now,
            before,
            stage: self.stage,
            used: self.account.used(&decay.mode, now),
            entitlement: entitlement_of(decay, self.factor_ppm(now)),
            limit: self.limit,
            factor_ppm: self.limit.zip(decay.max).map(|(limit, max)| factor(limit, max)),
            release: self.release(decay, now),
            pattern_factor: self.pattern_factor(now),
        }
    }
}

/// A key's entitlement, in units: E = x·P, or x·h/ln 2.
fn entitlement_of(decay: &DecayRule, factor_ppm: u32) -> u64 {
    let (span, scale) = match decay.mode {
        DecayMode::Period { period, .. } => (period, 1_000_000_000),
        DecayMode::HalfLife { half_life, .. } => (half_life, BY_LN_2),
    };
    let nanos = u128::from(span.get()) * scale / 1_000_000_000;
    let units = u128::from(decay.entitlement.per_sec()).saturating_mul(nanos) / 1_000_000_000;
    let units = units.saturating_mul(factor_ppm.into()) / u128::from(WHOLE_PPM);
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// The limit of a key at a ratio.
fn limit_of(decay: &DecayRule, ratio_ppm: u64) -> Option<Rate> {
    let floor = decay.floor;
    let at_least = |per_sec: u64| floor.with_per_sec(per_sec.max(floor.per_sec()));
    match &decay.mode {
        DecayMode::HalfLife { steepness_milli, .. } => {
            let beyond = ratio_ppm.checked_sub(WHOLE_PPM.into()).filter(|beyond| *beyond > 0)?;
            let exponent = beyond.saturating_mul((*steepness_milli).into());
            let max = decay.max.unwrap_or(floor).per_sec();
            let limit = Fraction::half_to(exponent, 1_000 * u64::from(WHOLE_PPM)).of(max);
            at_least(limit).filter(|limit| limit.per_sec() < max || max == floor.per_sec())
        }
        DecayMode::Period { steps, .. } => {
            let reached = steps.iter().rfind(|(threshold, _)| ratio_ppm >= (*threshold).into());
            match (reached?.1, decay.max) {
                (Some(WHOLE_PPM), _) => None,
                (Some(part), Some(max)) => {
                    let part = u128::from(max.per_sec()) * u128::from(part) / u128::from(WHOLE_PPM);
                    at_least(part as u64)
                }
                _ => Some(floor),
            }
        }
    }
}

/// Whether a limit is so far from the one in force that it replaces it.
fn differs(decay: &DecayRule, before: Option<Rate>, now: Option<Rate>) -> bool {
    let top = decay.max.map(Rate::per_sec);
    let (before, now) = match (before, now) {
        (None, None) => return false,
        (Some(_), None) => return true,
        // From the top on it is a change like others.
        (None, Some(now)) if top.is_none() => return now.per_sec() > 0,
        (before, Some(now)) => (before.map(Rate::per_sec).or(top).unwrap_or(0), now.per_sec()),
    };
    let change = u128::from(before.abs_diff(now)) * u128::from(WHOLE_PPM);
    let enough = change > u128::from(before) * u128::from(decay.hysteresis_ppm);
    enough || (before != now && now == decay.floor.per_sec())
}

/// When a key's limit ends if nothing is used until then.
fn release(decay: &DecayRule, ratio_ppm: u64, now: Time) -> Option<Time> {
    match &decay.mode {
        DecayMode::Period { period, window: DecayWindow::Fixed, .. } => {
            Some(next_multiple(now, *period))
        }
        DecayMode::Period { period, window: DecayWindow::Sliding, .. } => Some(now + *period),
        DecayMode::HalfLife { half_life, .. } => {
            let halves = u128::from(log2_milli(ratio_ppm, WHOLE_PPM.into()));
            let span = u128::from(half_life.get()) * halves / 1000;
            Some(now + Nanos::new(u64::try_from(span).unwrap_or(u64::MAX)))
        }
    }
}

/// When a decay's limits are computed next: at multiples of `update_interval`, and at a period's end.
fn next_update(decay: &DecayRule, now: Time) -> Time {
    let next = next_multiple(now, decay.update_interval);
    match &decay.mode {
        DecayMode::Period { period, window: DecayWindow::Fixed, .. } => {
            next.min(next_multiple(now, *period))
        }
        _ => next,
    }
}

fn next_multiple(now: Time, of: Nanos) -> Time {
    Time::from_nanos((now.as_nanos() / of.get() + 1).saturating_mul(of.get()))
}

fn drop_surplus<T>(queue: &mut VecDeque<T>) {
    let surplus = queue.len().saturating_sub(QUEUE_MAX);
    queue.drain(..surplus);
}

/// The most keys that have accounts.
const KEYS_MAX: usize = 262_144;
/// How many events, and rows for the ledger, wait to be polled: a minute of every key.
const QUEUE_MAX: usize = KEYS_MAX;
const WHOLE_PPM: u32 = 1_000_000;
const NEAR_PPM: u64 = 800_000;
const AWAY_PPM: u64 = 750_000;
const FACTOR_MIN_PPM: u32 = 250_000;
const FACTOR_MAX_PPM: u32 = 2_000_000;
const BEHAVIOUR_NS: u64 = 3_600_000_000_000;
/// 1/ln 2, in billionths.
const BY_LN_2: u128 = 1_442_695_041;
