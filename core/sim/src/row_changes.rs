//! Changes of rows of entitlements in a scenario, and random ones.
//!
//! ```text
//!   number ─► what it is about: job, user, class, target, and combinations
//!     ├─ 3 s: put, from 0 s until 8 s
//!     ├─ 9 s: replaced: another rate, other kinds of request, another job
//!     └─ 14 s: removed
//! ```
//!
//! A row is in one allocator: that of its target, or that of limits. So of one number either every row
//! names a target or none does.

use model::{Direction, KindSet, Nanos, Rate, Scope, Time, Weight};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, RuleSet};

use crate::prng::Prng;
use crate::targets::TargetSpec;
use crate::workloads::JobSpec;

/// A row that is put, replaced or (`None`) removed; its span counts from `at`.
#[derive(Clone, Debug)]
pub(crate) struct RowChange {
    pub(crate) at: Time,
    pub(crate) id: EntitlementId,
    pub(crate) row: Option<Entitlement>,
}

/// Random changes of rows, in order of time; none for a third of all seeds.
pub(crate) fn random_rows(
    seed: u64,
    duration: Nanos,
    jobs: &[JobSpec],
    targets: &[TargetSpec],
) -> Vec<RowChange> {
    let mut prng = Prng::of(seed, 0x2085);
    if prng.below(3) == 0 {
        return Vec::new();
    }
    let numbers = prng.between(1, ROWS_MAX);
    let numbers = FIRST_OF_SCENARIO..FIRST_OF_SCENARIO + numbers;
    let mut changes: Vec<RowChange> = numbers
        .flat_map(|number| changes_of(&mut prng, EntitlementId(number), duration, jobs, targets))
        .collect();
    changes.sort_by_key(|change| change.at);
    changes
}

/// The changes of one number: put, mostly with another value later, sometimes as another row, and
/// often removed.
fn changes_of(
    prng: &mut Prng,
    id: EntitlementId,
    duration: Nanos,
    jobs: &[JobSpec],
    targets: &[TargetSpec],
) -> Vec<RowChange> {
    let target = prng.below(4) == 0;
    let target = target.then(|| &targets[prng.below(targets.len() as u64) as usize].name);
    let source = match prng.below(2) {
        0 => EntitlementSource::Reservation,
        _ => EntitlementSource::Operator,
    };
    let mut at = prng.below(duration.get() / 2);
    let mut changes = Vec::new();
    let (mut scope, mut kinds) = (scope(prng, jobs), kinds(prng));
    for step in 0..prng.between(1, 4) {
        if step > 0 {
            at += prng.below(duration.get() / 4);
            if prng.below(3) == 0 {
                (scope, kinds) = (self::scope(prng, jobs), self::kinds(prng));
            }
        }
        let removed = step > 0 && prng.below(3) == 0;
        let scope = EntitlementScope { target: target.cloned().map(Into::into), ..scope.clone() };
        let row = (!removed).then(|| row(prng, scope, kinds, source));
        changes.push(RowChange { at: Time::from_nanos(at), id, row });
    }
    changes
}

fn row(
    prng: &mut Prng,
    scope: EntitlementScope,
    kinds: KindSet,
    source: EntitlementSource,
) -> Entitlement {
    let (grants, kinds) = match prng.below(7) {
        0 => {
            let weight = Weight::new(prng.between(1, 16) as u32).expect("above zero");
            (Grantable::Weight(weight), KindSet::ALL)
        }
        1..=3 => (Grantable::Reservation(rate(prng)), kinds),
        _ => {
            let rate = rate(prng);
            let burst = (prng.below(3) == 0).then(|| prng.between(1, rate.per_sec()));
            (Grantable::Limit(rate, burst), kinds)
        }
    };
    let row = Entitlement::new(scope, grants, kinds, source).expect("no weight of some kinds");
    let from = match prng.below(3) {
        0 => Nanos::from_millis(prng.between(1, 4_000)),
        _ => Nanos::ZERO,
    };
    let until = (prng.below(2) == 0).then(|| from + Nanos::from_millis(prng.between(500, 20_000)));
    row.during(from, until).expect("it ends after its begin")
}

/// A job, a user, a class, any two of them, or everything.
fn scope(prng: &mut Prng, jobs: &[JobSpec]) -> EntitlementScope {
    let number = prng.below(jobs.len() as u64);
    let of = &jobs[number as usize];
    let job = match of.copies {
        1 => of.identity.job.clone(),
        copies => {
            let name = format!("{}.{}", of.identity.job, prng.below(copies.into()));
            model::JobId::new(&name).expect("checked when the job was made")
        }
    };
    let rule = if prng.below(4) == 0 { RuleSet::DEFAULT.into() } else { format!("r{number}") };
    let what = prng.below(12);
    EntitlementScope {
        job: matches!(what, 0..=3 | 6 | 7).then_some(job),
        uid: matches!(what, 4..=6 | 8).then_some(of.identity.uid),
        class: matches!(what, 7..=10).then(|| Scope::rule(&rule, &[])),
        ..EntitlementScope::default()
    }
}

fn kinds(prng: &mut Prng) -> KindSet {
    match prng.below(5) {
        0 => KindSet::of(Direction::Read),
        1 => KindSet::of(Direction::Write),
        2 => KindSet::of(Direction::Metadata),
        _ => KindSet::ALL,
    }
}

fn rate(prng: &mut Prng) -> Rate {
    let rate = match prng.below(2) {
        0 => Rate::ops_per_sec(prng.between(2, 400)),
        _ => Rate::bytes_per_sec(prng.between(50, 50_000) * 1_000),
    };
    rate.expect("above zero")
}

/// The first number of a row of a scenario: those of the calendar are below it.
pub(crate) const FIRST_OF_SCENARIO: u64 = 1 << 40;
/// How many rows there are at most at a time; a request pays eight limits of rows.
const ROWS_MAX: u64 = 8;
