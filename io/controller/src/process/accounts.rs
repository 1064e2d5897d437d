//! The accounts of decays: take the usage of proxies, return rates and events.
//!
//! ```text
//!   lines that grew ─► which decays count it? ─┬─► ledger: a subject for each key
//!                                              └─► plan::Decays ─┬─► rates ─► plan ─► grants
//!   begin: ledger's minutes, levels on record ─────► restore ──────┘   events ─► Teller
//!                                         └◄── each minute, if it changed
//! ```
//!
//! A key's usage is in the ledger, in the same minute and the same transaction as the counters that
//! it was made from. So a controller that continues a ledger, its own or a copy, has the same
//! accounts, and the proxies' next reports bring what was not written yet. What cannot be restored
//! from that, the published levels and the rates within the hysteresis, is on record.

mod pattern_factor;
mod rows;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use api::{EventKind, WireScope};
use model::{Amount, Nanos, OpKind, PathSet, Rate, Scope, SectionKind, Service, Time};
use plan::{DecayAccounts, DecayLevel, DecayStatus};
use rules::{DecayMode, DecayRule, DecayWindow, KeyField, Resource, key_of};
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::events::{EventFile, EventPublisher, EventsSince};
use super::queue::MsgQueue;
use super::records::{self, PublishedRules};
use super::usage::UsageUpdate;
use crate::ledger::{Ledger, LedgerError, Minute, SubjectKind, UsageOutcome};
use pattern_factor::RecentPatterns;
use rows::{first_minute, rows, rule_of};
use shown::{accounts_of, controller_event, level, stage_of, subject_of};

/// The accounts of all keys, and their outputs.
pub(crate) struct DecayAccounting {
    rules: Arc<PublishedRules>,
    decays: DecayAccounts,
    /// The names of keys in the ledger.
    names: BTreeMap<Scope, Arc<str>>,
    /// Rates that were not sent to the plan yet.
    rates: BTreeMap<Scope, Option<Rate>>,
    /// The recent patterns of requests.
    recent: RecentPatterns,
    /// Until when requests count as waiting for one another.
    contended: Time,
    /// The levels on record.
    stored_levels: Vec<ThrottledKey>,
    stored_at: Option<Instant>,
    to: AccountOutputs,
}

/// The outputs of the accounts.
pub(crate) struct AccountOutputs {
    pub(crate) plan: MsgQueue<super::plan_actor::PlanMsg>,
    pub(crate) store: MsgQueue<records::StoreMsg>,
    pub(crate) publisher: EventPublisher,
    pub(crate) counts: Arc<Counts>,
}

/// The levels of all keys that are not free, as on record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThrottledKeys {
    /// The time of this, since 1970.
    pub(crate) at_ns: u64,
    pub(crate) keys: Vec<ThrottledKey>,
}

/// The level of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThrottledKey {
    scope: WireScope,
    stage: String,
    limit: Option<api::WireRate>,
}

/// A throttled key of a decay, as [`plan::DecayAccounts::resume`] takes it.
pub(crate) type RestoredLevels = BTreeMap<Scope, (DecayLevel, Option<Rate>)>;

/// Returns the levels on record, updated by events published since.
pub(crate) fn known(standings: &ThrottledKeys, events: &EventFile) -> RestoredLevels {
    let mut known = RestoredLevels::new();
    for key in &standings.keys {
        let limit = key.limit.and_then(|form| Rate::try_from(form).ok());
        if let (Ok(scope), Some(stage)) = (key.scope.to_scope(), stage_of(&key.stage)) {
            known.insert(scope, (stage, limit));
        }
    }
    let since = EventsSince::Time(Time::from_nanos(standings.at_ns));
    let told = events.page(since, EVENTS_MAX).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read which decay events were published");
        Vec::new()
    });
    for event in told {
        let Some(change) = event.decay else { continue };
        let form = WireScope {
            section: SectionKind::Decay.name().into(),
            name: change.name,
            key: change.key,
        };
        let limit = change.limit.and_then(|form| Rate::try_from(form).ok());
        let stage = match event.kind {
            EventKind::Warned => DecayLevel::Warned,
            EventKind::Throttled => DecayLevel::Throttled,
            EventKind::Floor => DecayLevel::Floor,
            _ => DecayLevel::Free,
        };
        if let Ok(scope) = form.to_scope() {
            known.insert(scope, (stage, limit));
        }
    }
    known.retain(|_, (stage, _)| *stage != DecayLevel::Free);
    known
}

impl DecayAccounting {
    /// Restores the accounts from the ledger.
    pub(crate) fn begin(
        ledger: &mut Ledger,
        rules: Arc<PublishedRules>,
        standings: ThrottledKeys,
        known: RestoredLevels,
        to: AccountOutputs,
        now: Time,
    ) -> Result<DecayAccounting, LedgerError> {
        // Usage that is not written yet is of this minute.
        ledger.tick(now)?;
        let mut decays = DecayAccounts::new(rules.set.clone(), now);
        let fits = |scope: &Scope| rule_of(&rules.set, scope).is_some();
        let known = known.into_iter().filter(|(scope, _)| fits(scope));
        let known = known.map(|(scope, (stage, limit))| (scope, stage, limit));
        decays.resume(known, now + SETTLING_TIME, now);
        let mut accounts = DecayAccounting {
            rules,
            decays,
            names: BTreeMap::new(),
            rates: BTreeMap::new(),
            recent: RecentPatterns::default(),
            contended: now + CONTENDED,
            stored_levels: standings.keys,
            stored_at: None,
            to,
        };
        accounts.restore(ledger, |_| true, now)?;
        accounts.advance(now);
        Ok(accounts)
    }

    /// Counts the growth of a report's lines.
    pub(crate) fn count(
        &mut self,
        ledger: &mut Ledger,
        counted: &UsageUpdate,
        received: &UsageOutcome,
        now: Time,
    ) {
        if counted.contended {
            self.contended = now + CONTENDED;
        }
        if self.rules.set.decays.is_empty() {
            return;
        }
        let rules = self.rules.clone();
        let mut grown: BTreeMap<Scope, (u64, Service)> = BTreeMap::new();
        for (nth, more) in &received.grown {
            let Some(subject) = counted.subject(*nth) else { continue };
            // Bits of other rules mean nothing here.
            let same = counted.rules.as_deref() == Some(rules.version.as_str());
            let (who, paths) =
                (&subject.identity, if same { subject.paths } else { PathSet::default() });
            let mut judged = BTreeSet::new();
            for kind in OpKind::ALL {
                let part = more.part_of(*kind);
                let amount = Amount::new(part.read_bytes + part.written_bytes, part.ops_of(*kind));
                if amount == Amount::default() {
                    continue;
                }
                for at in rules.set.decays_for(who, *kind, paths) {
                    let decay = &rules.set.decays[at];
                    let units = decay.entitlement.units_of(amount);
                    if units > 0 {
                        let scope = Scope::decay(&decay.name, &key_of(&decay.per, who, *kind));
                        if !decay.pattern_factors.is_empty() {
                            judged.insert(scope.clone());
                        }
                        let (sum, sums) = grown.entry(scope).or_default();
                        *sum = sum.saturating_add(units);
                        sums.add(&part);
                    }
                }
            }
            judged.iter().for_each(|scope| self.recent.add(scope, more, now));
        }
        for (scope, (units, sums)) in grown {
            let name = self.name_of(&scope);
            ledger.charge(SubjectKind::Decay, &name, &sums);
            self.decays.charge(&scope, units, now);
        }
        self.recent.report_patterns(&rules.set, &mut self.decays, now);
    }

    /// Applies changed rules; new decays start with the usage in the ledger.
    pub(crate) fn set_rules(&mut self, rules: Arc<PublishedRules>, ledger: &mut Ledger, now: Time) {
        let old = std::mem::replace(&mut self.rules, rules);
        self.decays.set_rules(self.rules.set.clone(), now);
        self.names.clear();
        let is_new = |decay: &DecayRule| {
            let before = old.set.decays.iter().find(|before| before.name == decay.name);
            before.is_none_or(|before| counting(before) != counting(decay))
        };
        if let Err(error) = self.restore(ledger, is_new, now) {
            tracing::error!(%error, "cannot read past usage; new decays start with empty accounts");
        }
    }

    /// Does what is due, and publishes changes.
    pub(crate) fn advance(&mut self, now: Time) {
        self.decays.set_contention(now < self.contended, now);
        while let Some((scope, rate)) = self.decays.poll_rate(now) {
            self.rates.insert(scope, rate);
        }
        while let Some(event) = self.decays.poll_event(now) {
            if let Some(event) = controller_event(&event) {
                self.to.publisher.publish(event);
            }
        }
        // They are in the ledger at once.
        while self.decays.poll_ledger(now).is_some() {}
        if !self.rates.is_empty() {
            let rates = std::mem::take(&mut self.rates);
            let ask = super::plan_actor::PlanMsg::Rates(rates);
            if let Err(TrySendError::Full(super::plan_actor::PlanMsg::Rates(rates))) =
                self.to.plan.try_send(ask)
            {
                self.rates = rates;
            }
        }
    }

    /// Returns the time until something is due; a second at most.
    pub(crate) fn due_in(&self, now: Time) -> Duration {
        let due = self.decays.next_deadline().map(|due| due.since(now).to_duration());
        due.unwrap_or(CHECK_INTERVAL_MAX).min(CHECK_INTERVAL_MAX)
    }

    /// Sends the keys that are not free to the store, at most once a minute. Call it each second.
    pub(crate) fn store_levels(&mut self, now: Time) {
        let is_due = self.stored_at.is_none_or(|at| at.elapsed() >= STORE_INTERVAL_MIN);
        let (mut accounts, mut throttled, mut standing) = (0, 0, Vec::new());
        for report in self.decays.reports() {
            accounts += 1;
            throttled += u64::from(report.stage >= DecayLevel::Throttled);
            if is_due && report.stage != DecayLevel::Free {
                standing.push(report);
            }
        }
        self.to.counts.accounts.set(accounts);
        self.to.counts.throttled.set(throttled);
        if !is_due {
            return;
        }
        standing.sort_by_key(|report| std::cmp::Reverse(report.stage));
        standing.truncate(STORED_KEYS_MAX);
        let keys: Vec<_> = standing.iter().map(ThrottledKey::of).collect();
        if keys == self.stored_levels {
            return;
        }
        let standings = ThrottledKeys { at_ns: now.as_nanos(), keys: keys.clone() };
        // If the queue is full, it is retried.
        if self.to.store.try_send(records::StoreMsg::ThrottledKeys(standings)).is_ok() {
            (self.stored_levels, self.stored_at) = (keys, Some(Instant::now()));
        }
    }

    /// Returns the decays with their accounts; of one subject, if it is named.
    pub(crate) fn view(&self, subject: Option<&str>, now: Time) -> api::WireDecayAccounts {
        let mut by_decay: BTreeMap<Arc<str>, Vec<DecayStatus>> = BTreeMap::new();
        for report in self.decays.reports() {
            let named = |wanted: &str| {
                subject_of(&report.scope) == wanted
                    || report.scope.key.iter().any(|value| value.to_string() == wanted)
            };
            if subject.is_none_or(named) {
                by_decay.entry(report.scope.name.clone()).or_default().push(report);
            }
        }
        let decays = self.rules.set.decays.iter().map(|decay| {
            accounts_of(decay, by_decay.remove(decay.name.as_str()).unwrap_or_default())
        });
        api::WireDecayAccounts {
            at_ns: now.as_nanos(),
            contended: now < self.contended,
            decays: decays.collect(),
        }
    }

    /// Restores accounts of decays from the ledger.
    fn restore(
        &mut self,
        ledger: &mut Ledger,
        wanted: impl Fn(&DecayRule) -> bool,
        now: Time,
    ) -> Result<(), LedgerError> {
        let set = self.rules.set.clone();
        let from = |decay: &DecayRule| wanted(decay).then(|| first_minute(decay, now));
        let from: Vec<Option<Minute>> = set.decays.iter().map(from).collect();
        let Some(mut at) = from.iter().flatten().min().copied() else { return Ok(()) };
        let current = Minute::of(now);
        let (mut open, mut failed) = (Vec::new(), None);
        let windows = std::iter::from_fn(|| {
            if at > current || failed.is_some() {
                return None;
            }
            let to = at.plus(WINDOW_MINUTES).min(current.plus(1));
            let rows = rows(ledger, &set, &from, at, to);
            at = to;
            let (rows, of_now) = rows
                .map_err(|error| failed = Some(error))
                .ok()?
                .into_iter()
                .partition(|row: &plan::UsageMinute| row.minute < u64::from(current.number()));
            open = of_now;
            Some::<Vec<_>>(rows)
        });
        self.decays.restore(windows.flatten(), now);
        for row in open {
            self.decays.charge(&row.scope, row.used, now);
        }
        failed.map_or(Ok(()), Err)
    }

    fn name_of(&mut self, scope: &Scope) -> Arc<str> {
        if let Some(name) = self.names.get(scope) {
            return name.clone();
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let name = serde_json::to_string(&WireScope::from(scope)).expect("a scope is plain data");
        let name: Arc<str> = name.into();
        self.names.insert(scope.clone(), name.clone());
        name
    }
}

impl ThrottledKey {
    fn of(report: &DecayStatus) -> ThrottledKey {
        ThrottledKey {
            scope: WireScope::from(&report.scope),
            stage: level(report.stage).into(),
            limit: report.limit.map(Into::into),
        }
    }
}

/// The properties by which accounts are the same.
fn counting(decay: &DecayRule) -> (Nanos, Option<DecayWindow>, Resource, &[KeyField]) {
    let (span, window) = match &decay.mode {
        DecayMode::Period { period, window, .. } => (*period, Some(*window)),
        DecayMode::HalfLife { half_life, .. } => (*half_life, None),
    };
    (span, window, decay.resource, &decay.per)
}

/// The time after the start in which no key is released: proxies report their counters each second,
/// and repeat a lost report after five.
const SETTLING_TIME: Nanos = Nanos::from_secs(8);
/// The time for which requests count as waiting for one another after a report said so.
const CONTENDED: Nanos = Nanos::from_secs(15);
/// The part of the ledger that is in memory at once.
const WINDOW_MINUTES: u32 = 360;
/// The longest interval of checks.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The shortest interval between records of the levels of keys.
const STORE_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// The most keys on record, of about 150 bytes each.
const STORED_KEYS_MAX: usize = 1_024;
/// The most names of keys that are remembered.
const NAMES_MAX: usize = 65_536;
/// The most events that are read for published levels.
const EVENTS_MAX: usize = 100_000;
