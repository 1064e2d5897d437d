//! The ledger's minutes of decays' keys.
//!
//! ```text
//!   points of [from, to) ─► name is a key of the rules' decays? ─► its resource ─► rows by minute
//! ```
//!
//! The ledger names a key as the API does; a key of a decay that was removed, or that has another
//! `per` now, is skipped.

use std::collections::BTreeMap;

use api::WireScope;
use model::{KeyValue, Nanos, Scope, SectionKind, Service, Time};
use rules::{DecayMode, DecayRule, DecayWindow, KeyField, Resource, RuleSet};

use crate::ledger::{Ledger, LedgerError, Minute, SubjectKind};

/// Returns minutes of the ledger in `[at, to)`, oldest first, of each decay from `from` on.
pub(super) fn rows(
    ledger: &mut Ledger,
    set: &RuleSet,
    from: &[Option<Minute>],
    at: Minute,
    to: Minute,
) -> Result<Vec<plan::UsageMinute>, LedgerError> {
    let mut known: BTreeMap<String, Option<(Scope, usize)>> = BTreeMap::new();
    let mut sums: BTreeMap<(Minute, Scope), u64> = BTreeMap::new();
    let time = |minute: Minute| Time::from_nanos(u64::from(minute.number()) * MINUTE_NS);
    ledger.points(SubjectKind::Decay, time(at), time(to), |name, minute, counters| {
        if !known.contains_key(name) {
            known.insert(name.to_owned(), parse(set, name));
        }
        let Some((scope, nth)) = known.get(name).and_then(Option::as_ref) else { return };
        if from[*nth].is_some_and(|from| minute >= from) {
            let used = used(set.decays[*nth].resource, counters);
            let sum = sums.entry((minute, scope.clone())).or_default();
            *sum = sum.saturating_add(used);
        }
    })?;
    let row = |((minute, scope), used): ((Minute, Scope), u64)| plan::UsageMinute {
        scope,
        minute: minute.number().into(),
        used,
    };
    Ok(sums.into_iter().map(row).collect())
}

/// Returns the key of this name in the ledger, if it is one of the rules'.
fn parse(set: &RuleSet, name: &str) -> Option<(Scope, usize)> {
    let scope = serde_json::from_str::<WireScope>(name).ok()?.to_scope().ok()?;
    let at = rule_of(set, &scope)?;
    Some((scope, at))
}

/// Returns the index of the decay that has such a key.
pub(super) fn rule_of(set: &RuleSet, scope: &Scope) -> Option<usize> {
    let at = set.decays.iter().position(|decay| *decay.name == *scope.name)?;
    let per = &set.decays[at].per;
    let fits = |(field, value): (&KeyField, &KeyValue)| {
        matches!(
            (field, value),
            (KeyField::Jobid, KeyValue::Jobid(_))
                | (KeyField::Uid, KeyValue::Uid(_))
                | (KeyField::Gid, KeyValue::Gid(_))
                | (KeyField::Projid, KeyValue::Projid(_))
        )
    };
    let all = per.len() == scope.key.len() && per.iter().zip(&scope.key[..]).all(fits);
    (scope.section == SectionKind::Decay && all).then_some(at)
}

fn used(resource: Resource, counters: &Service) -> u64 {
    match resource {
        Resource::Read => counters.read_bytes,
        Resource::Write => counters.written_bytes,
        Resource::Metadata => counters.metadata_ops(),
    }
}

/// Returns the time from which usage may still count.
pub(super) fn first_minute(decay: &DecayRule, now: Time) -> Minute {
    let from = match &decay.mode {
        DecayMode::Period { period, window: DecayWindow::Fixed, .. } => {
            Time::from_nanos(now.as_nanos() / period.get() * period.get())
        }
        DecayMode::Period { period, window: DecayWindow::Sliding, .. } => {
            now.before(*period).before(Nanos::new(period.get() / 60 + MINUTE_NS))
        }
        DecayMode::HalfLife { half_life, .. } => {
            now.before(Nanos::new(half_life.get().saturating_mul(HALF_LIVES)))
        }
    };
    Minute::of(from)
}

const MINUTE_NS: u64 = 60_000_000_000;
/// The half-lives after which usage counts for nothing: less than a billionth.
const HALF_LIVES: u64 = 32;
