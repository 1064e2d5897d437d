//! Usage is counted exactly once, and the levels of decays follow from it.
//!
//! ```text
//!   served by a proxy in an epoch ──┐ never less than
//!   counted of it by a controller ──┴─► at the end, equal for each proxy that is up
//!
//!   counted ─► used of a key, by the rule's words ─► as its account says; enough for its level
//!   dispatched of a key ─► within the lowest limit of the last time, if that had long been in force
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::{Amount, Identity, Nanos, OpKind, PathSet, Rate, Scope, Service, Time};
use plan::{DecayEvent, DecayLevel, DecayStatus};
use rules::{DecayMode, DecayRule, DecayWindow, RuleSet, key_of};

use crate::world::SimOwner;

/// What was served, and what keys of decays may use.
#[derive(Debug, Default)]
pub(crate) struct UsageChecks {
    /// By proxy, epoch and identity.
    served: BTreeMap<(u32, u64, u32), Service>,
    /// By key, while it is limited.
    keys: BTreeMap<Scope, LimitedKey>,
    /// By proxy, epoch and identity: of what was served the part of accounts that were closed as one
    /// sum, which no line has.
    folded: BTreeMap<(u32, u64, Identity), Service>,
}

/// What a controller has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountedUsage {
    /// By proxy, epoch and identity.
    pub(crate) lines: BTreeMap<(u32, u64, Identity), Service>,
    /// The total of the last report of each proxy and epoch.
    pub(crate) totals: BTreeMap<(u32, u64), Service>,
}

/// A proxy in one of its epochs, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxyEpoch {
    pub(crate) proxy: u32,
    pub(crate) epoch: u64,
}

/// A key of a decay and its requests.
#[derive(Debug, Default)]
struct LimitedKey {
    /// Limits, each until the next one's time.
    limits: VecDeque<(Time, Option<Rate>)>,
    /// Units that were dispatched in the last ten seconds.
    passed: VecDeque<(Time, u64)>,
    sum: u64,
    largest: u64,
}

/// A window, and the time until a limit is in force at every proxy: that of a lease and of messages.
const WINDOW: Nanos = Nanos::from_secs(10);
const IN_FORCE: Nanos = Nanos::from_secs(12);
const MINUTE: u64 = 60_000_000_000;
const WHOLE_PPM: u128 = 1_000_000;

impl UsageChecks {
    /// Counts a served request.
    pub(crate) fn served(&mut self, of: ProxyEpoch, identity: u32, kind: OpKind, amount: Amount) {
        let totals = self.served.entry((of.proxy, of.epoch, identity)).or_default();
        totals.ops[kind as usize] += amount.ops.get();
        match kind {
            OpKind::Read => totals.read_bytes += amount.bytes.get(),
            OpKind::Write => totals.written_bytes += amount.bytes.get(),
            _ => {}
        }
    }

    /// Counts growth of an account that was closed as part of one sum.
    pub(crate) fn folded(&mut self, of: ProxyEpoch, identity: Identity, growth: &Service) {
        self.folded.entry((of.proxy, of.epoch, identity)).or_default().add(growth);
    }

    /// Compares what was counted of a proxy's epoch with what it served; `all` is whether everything
    /// must have been counted.
    pub(crate) fn check_counted(
        &self,
        of: ProxyEpoch,
        counted: &CountedUsage,
        owners: &[SimOwner],
        all: bool,
    ) -> Option<String> {
        let ProxyEpoch { proxy, epoch } = of;
        let mut served: BTreeMap<&Identity, Service> = BTreeMap::new();
        for ((_, _, identity), totals) in
            self.served.range((proxy, epoch, 0)..=(proxy, epoch, u32::MAX))
        {
            served.entry(&owners[*identity as usize].identity).or_default().add(totals);
        }
        let mut total = Service::default();
        served.values().for_each(|service| total.add(service));
        let has = counted.totals.get(&(proxy, epoch)).copied().unwrap_or_default();
        if let Some(what) = compare(&total, &has, all) {
            return Some(format!("of all at proxy {proxy}, epoch {epoch}, {what}"));
        }
        let of_epoch = counted.lines.iter().filter(|((at, of, _), _)| (*at, *of) == (proxy, epoch));
        let counted: BTreeMap<&Identity, &Service> =
            of_epoch.map(|((_, _, identity), totals)| (identity, totals)).collect();
        let none = Service::default();
        let subjects = served.keys().chain(counted.keys());
        for subject in subjects.copied() {
            let had = served.get(subject).unwrap_or(&none);
            let folded = self.folded.get(&(proxy, epoch, subject.clone())).unwrap_or(&none);
            let has = counted.get(subject).copied().unwrap_or(&none);
            if let Some(what) = compare(&had.since(folded), has, all) {
                let job = &subject.job;
                return Some(format!("of job {job} at proxy {proxy}, epoch {epoch}, {what}"));
            }
        }
        None
    }

    /// Counts a dispatched request for the keys of decays that are limited.
    pub(crate) fn dispatched(
        &mut self,
        rules: &RuleSet,
        owner: &SimOwner,
        kind: OpKind,
        amount: Amount,
        now: Time,
    ) {
        // Requests that are never delayed are paid for by others.
        if rules.decays.is_empty() || kind.never_delayed() {
            return;
        }
        let paths = owner.path.as_ref();
        let paths = paths.map_or(PathSet::default(), |path| rules.path_set(path.as_bytes()));
        for at in rules.decays_for(&owner.identity, kind, paths) {
            let decay = &rules.decays[at];
            let key = key_of(&decay.per, &owner.identity, kind);
            let units = decay.entitlement.units_of(amount);
            let own = self.keys.entry(Scope::decay(&decay.name, &key)).or_default();
            own.passed.push_back((now, units));
            own.sum += units;
            own.largest = own.largest.max(units);
        }
    }

    /// Notes the limit of a key that changed.
    pub(crate) fn limited(&mut self, scope: &Scope, limit: Option<Rate>, now: Time) {
        let own = self.keys.entry(scope.clone()).or_default();
        own.limits.push_back((now, limit));
    }

    /// Begins again: other rules, or a fault that makes limits late.
    pub(crate) fn forget_limits(&mut self) {
        self.keys.clear();
    }

    /// Checks that limits of keys are kept by all proxies together.
    pub(crate) fn check_limits(&mut self, proxies: u64, now: Time) -> Option<String> {
        let mut broken = None;
        for (scope, key) in &mut self.keys {
            while key.passed.front().is_some_and(|(at, _)| now.since(*at) > WINDOW) {
                key.sum -= key.passed.pop_front().map_or(0, |(_, units)| units);
            }
            let since = now.before(WINDOW + IN_FORCE);
            while key.limits.get(1).is_some_and(|(at, _)| *at <= since) {
                key.limits.pop_front();
            }
            let Some((first, _)) = key.limits.front() else { continue };
            let limits: Option<Vec<u64>> =
                key.limits.iter().map(|(_, limit)| limit.map(Rate::per_sec)).collect();
            let Some(most) = limits.and_then(|limits| limits.into_iter().max()) else { continue };
            if *first > since {
                continue;
            }
            let whole = most * 10;
            // Each lane of each proxy may be ahead by a request, or has a burst.
            let slack = whole / 100 + most / 10 + (2 * proxies + 1) * key.largest;
            if key.sum > whole + slack {
                broken = Some(format!(
                    "{} of {scope} in 10 s, more than {whole} and {slack}, though it is limited",
                    key.sum
                ));
            }
        }
        broken
    }
}

/// Says how much was counted if that is more than what was served, or if `all` is less.
fn compare(served: &Service, counted: &Service, all: bool) -> Option<String> {
    let (had, has) = (sums(served), sums(counted));
    let more = had.iter().zip(&has).any(|(had, has)| has > had);
    (more || (all && had != has))
        .then(|| format!("{has:?} of {had:?} bytes read, bytes written and operations are counted"))
}

/// Bytes read, bytes written and all operations.
fn sums(totals: &Service) -> [u64; 3] {
    [totals.read_bytes, totals.written_bytes, totals.ops.iter().sum()]
}

/// Checks an account of a key against the minutes that were counted.
pub(crate) fn check_account(
    rules: &Arc<RuleSet>,
    minutes: &BTreeMap<(Scope, u64), u64>,
    status: &DecayStatus,
    now: Time,
) -> Option<String> {
    let decay = rules.decays.iter().find(|decay| *decay.name == *status.scope.name)?;
    let (least, most) = used(decay, minutes, &status.scope, now);
    (status.used < least || status.used > most).then(|| {
        format!("{} has used {}, and not from {least} to {most}", status.scope, status.used)
    })
}

/// Checks that a key that a decay throttles has used enough.
pub(crate) fn check_level(
    rules: &Arc<RuleSet>,
    minutes: &BTreeMap<(Scope, u64), u64>,
    event: &DecayEvent,
    now: Time,
) -> Option<String> {
    let decay = rules.decays.iter().find(|decay| *decay.name == *event.scope.name)?;
    if event.stage < DecayLevel::Throttled {
        return None;
    }
    let (_, most) = used(decay, minutes, &event.scope, now);
    let threshold = match &decay.mode {
        DecayMode::HalfLife { .. } => WHOLE_PPM,
        DecayMode::Period { steps, .. } => steps.first().map_or(0, |(at, _)| u128::from(*at)),
    };
    let needs = u128::from(event.entitlement) * threshold / WHOLE_PPM;
    (u128::from(most) < needs)
        .then(|| format!("{} is throttled at {most} at most, below {needs}", event.scope))
}

/// The least and most that a key can have used by the words of the rule.
fn used(
    decay: &DecayRule,
    minutes: &BTreeMap<(Scope, u64), u64>,
    scope: &Scope,
    now: Time,
) -> (u64, u64) {
    let now_ns = now.as_nanos();
    // Older minutes do not count, or have halved to nothing.
    let span = match &decay.mode {
        DecayMode::Period { period, .. } => period.get(),
        DecayMode::HalfLife { half_life, .. } => half_life.get().saturating_mul(64),
    };
    let oldest = (now_ns.saturating_sub(span) / MINUTE).saturating_sub(1);
    let rows = minutes.range((scope.clone(), oldest)..=(scope.clone(), u64::MAX));
    let sum = |counts: &dyn Fn(u64) -> bool| {
        let rows = rows.clone().filter(|((_, minute), _)| counts(*minute));
        rows.map(|(_, used)| *used).sum::<u64>()
    };
    match &decay.mode {
        DecayMode::Period { period, window: DecayWindow::Fixed, .. } => {
            let exact = sum(&|minute| minute * MINUTE / period.get() == now_ns / period.get());
            (exact, exact)
        }
        DecayMode::Period { period, window: DecayWindow::Sliding, .. } => {
            let since = now_ns.saturating_sub(period.get());
            let exact = sum(&|minute| (minute + 1) * MINUTE > since);
            (exact, exact)
        }
        DecayMode::HalfLife { half_life, .. } => {
            // Each minute has halved at least for each whole half-life since its end, and at most
            // for each one begun since its beginning.
            let halved = |more: u64, whole: bool| {
                let rows = rows.clone();
                let parts = rows.map(|((_, minute), used)| {
                    let age = now_ns.saturating_sub((minute + more) * MINUTE);
                    let times = age / half_life.get() + u64::from(!whole);
                    used.checked_shr(times as u32).unwrap_or(0)
                });
                parts.sum::<u64>()
            };
            let rows = rows.clone().count() as u64;
            // Each row is rounded.
            (halved(0, false).saturating_sub(2 * rows), halved(1, true) + rows)
        }
    }
}
