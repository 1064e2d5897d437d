//! The checks of rows detect faults: schedulers that are given other rows than they should keep, and
//! rows that are lost or stay on their way.
//!
//! ```text
//!   rows of a scenario ─► what the checks expect ─┐
//!         └─ changed ─► the dispatcher ───────────┴─► a violation that names the row
//! ```

use std::sync::Arc;

use model::{
    Amount, Grants, Identity, JobId, KindSet, Nanos, PathSet, Rate, Scope, ScopeUsage, SharePool,
    SlotsClaim, Time, Weight,
};
use plan::ScopeName;
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, RuleSet};
use sched::Dispatcher;

use super::World;
use super::known_bad::two_jobs;
use super::rows::RowBug;
use crate::Scenario;
use crate::row_changes::RowChange;
use crate::scheduler::{
    EntitlementChanges, Policy, Scheduler, SimAccounts, SimArrival, SimDispatch,
};

/// Two jobs in one class, with these rows.
fn scenario(keys: &str, proxies: u32, faults: &str, rows: Vec<RowChange>) -> Scenario {
    let text = two_jobs(keys, proxies, faults);
    let scenario = Scenario::parse(&text, "broken").unwrap_or_else(|error| panic!("{error}"));
    Scenario { rows, ..scenario }
}

/// Our dispatcher, whose rows are changed on their way.
#[derive(Debug)]
struct OtherRows {
    inner: Dispatcher,
    change: fn(Entitlement) -> Option<Entitlement>,
    removes: bool,
}

impl Scheduler for OtherRows {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        Scheduler::subject(&mut self.inner, who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        Scheduler::enqueue(&mut self.inner, incoming, now)
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        self.inner.poll(now)
    }

    fn complete(&mut self, id: u64, served: Amount, now: Time) {
        Scheduler::complete(&mut self.inner, id, served, now);
    }

    fn next_deadline(&self) -> Option<Time> {
        Scheduler::next_deadline(&self.inner)
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        Scheduler::set_rules(&mut self.inner, rules, now);
    }

    fn set_entitlements(&mut self, rows: EntitlementChanges, since: Time, now: Time) {
        let is_passed = |row: &Option<Entitlement>| row.is_some() || self.removes;
        let rows = rows.into_iter().filter(|(_, row)| is_passed(row));
        let rows = rows.map(|(id, row)| (id, row.and_then(self.change))).collect();
        Scheduler::set_entitlements(&mut self.inner, rows, since, now);
    }

    fn set_grants(&mut self, pool: SharePool, grants: &Grants, now: Time) {
        Scheduler::set_grants(&mut self.inner, pool, grants, now);
    }

    fn scopes(&self) -> Vec<ScopeName> {
        Scheduler::scopes(&self.inner)
    }

    fn scope_changes(&self) -> u64 {
        Scheduler::scope_changes(&self.inner)
    }

    fn take_usage(&mut self, pool: SharePool, now: Time) -> Vec<(Scope, ScopeUsage)> {
        Scheduler::take_usage(&mut self.inner, pool, now)
    }

    fn slots_claim(&self) -> Option<SlotsClaim> {
        Scheduler::slots_claim(&self.inner)
    }

    fn accounts(&mut self, now: Time) -> SimAccounts {
        Scheduler::accounts(&mut self.inner, now)
    }

    fn queued(&self) -> usize {
        Scheduler::queued(&self.inner)
    }
}

/// Our dispatcher that never gets a row.
pub(super) fn without_rows(inner: Dispatcher) -> impl Scheduler {
    OtherRows { inner, change: |_| None, removes: true }
}

/// The first violation when the rows are changed on their way to the dispatcher; a removal comes there
/// if `removes`.
fn first_violation(
    scenario: &Scenario,
    change: fn(Entitlement) -> Option<Entitlement>,
    removes: bool,
) -> String {
    let mut world = World::new(scenario, Policy::Dispatcher, 1);
    let target = world.proxies[0].spec.scheduled();
    let inner = Dispatcher::new([target], scenario.rules.clone());
    world.proxies[0].sched = Box::new(OtherRows { inner, change, removes });
    first_of(world)
}

fn first_of(world: World) -> String {
    world.run().violations.first().map_or(String::new(), |first| first.what.clone())
}

fn ops(rate: u64) -> Rate {
    Rate::ops_per_sec(rate).unwrap()
}

fn of_job(name: &str) -> EntitlementScope {
    EntitlementScope { job: JobId::new(name), ..EntitlementScope::default() }
}

fn row(scope: EntitlementScope, grants: Grantable) -> Entitlement {
    Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Reservation).unwrap()
}

fn limit(rate: u64) -> Entitlement {
    row(of_job("a"), Grantable::Limit(ops(rate), None))
}

fn reservation(rate: u64) -> Entitlement {
    row(of_job("a"), Grantable::Reservation(ops(rate)))
}

fn change(id: u64, secs: u64, row: Option<Entitlement>) -> RowChange {
    let at = Time::ZERO + Nanos::from_secs(secs);
    RowChange { at, id: EntitlementId(id), row }
}

fn put(row: Entitlement) -> Vec<RowChange> {
    vec![change(1, 5, Some(row))]
}

/// Rules with one class for each job, of which b's is heavy.
const EACH: &str = "rules = '''\n[[rule]]\nname = \"a\"\nmatch = \"jobid={a}\"\n\
    [[rule]]\nname = \"b\"\nmatch = \"jobid={b}\"\nweight = 10000\n'''\n";

fn with_rate(row: Entitlement, rate: u64) -> Entitlement {
    let grants = match row.grants() {
        Grantable::Limit(_, burst) => Grantable::Limit(ops(rate), burst),
        Grantable::Reservation(_) => Grantable::Reservation(ops(rate)),
        weight => weight,
    };
    let (from, until) = (row.from(), row.until());
    let other = Entitlement::new(row.scope().clone(), grants, row.kinds(), row.source());
    other.unwrap().during(from, until).unwrap()
}

#[test]
fn rows_that_are_kept_are_not_called_wrong() {
    let all = vec![
        change(1, 3, Some(limit(30))),
        change(2, 5, Some(reservation(20))),
        change(1, 30, None),
        change(2, 40, Some(reservation(40).during(Nanos::from_secs(2), None).unwrap())),
        change(3, 45, Some(limit(50).during(Nanos::ZERO, Some(Nanos::from_secs(4))).unwrap())),
    ];
    for rules in ["", EACH] {
        assert_eq!(first_violation(&scenario(rules, 1, "", all.clone()), Some, true), "");
    }
}

#[test]
fn a_row_of_a_limit_that_nobody_keeps_is_seen() {
    let what = first_violation(&scenario("", 1, "", put(limit(30))), |_| None, true);
    assert!(what.contains("limit \"row 1\" at 30ops/s is exceeded by"), "{what}");
}

#[test]
fn a_row_of_a_limit_that_gives_four_percent_more_or_less_is_seen() {
    // Both jobs have their limits, so that slots are free.
    let other = row(of_job("b"), Grantable::Limit(ops(25), None));
    let rows = vec![change(1, 5, Some(limit(25))), change(2, 5, Some(other))];
    let scenario = scenario(EACH, 1, "", rows);
    let what = first_violation(&scenario, |row| Some(with_rate(row, 26)), true);
    assert!(what.contains("at 25ops/s is exceeded by"), "{what}");
    let what = first_violation(&scenario, |row| Some(with_rate(row, 24)), true);
    assert!(what.contains("at 25ops/s in 9.9 s, less than"), "{what}");
    assert_eq!(first_violation(&scenario, Some, true), "");
}

#[test]
fn a_row_of_a_limit_that_is_broken_for_a_second_is_seen() {
    let short = limit(10).during(Nanos::ZERO, Some(Nanos::from_secs(1))).unwrap();
    let scenario = scenario("", 1, "", put(short));
    let what = first_violation(&scenario, |row| Some(with_rate(row, 25)), true);
    assert!(what.contains("limit \"row 1\" at 10ops/s is exceeded by"), "{what}");
}

#[test]
fn a_row_that_reserves_and_that_nobody_keeps_is_seen() {
    for rules in ["", EACH] {
        let scenario = scenario(rules, 1, "", put(reservation(80)));
        let what = first_violation(&scenario, |_| None, true);
        assert!(what.contains("that 80ops/s reserves, and nothing was cut"), "{rules} {what}");
        assert_eq!(first_violation(&scenario, Some, true), "");
    }
}

#[test]
fn a_row_that_reserves_and_is_kept_to_97_percent_is_seen() {
    for more in [EACH.to_string(), format!("{EACH}controller = true\n")] {
        let scenario = scenario(&more, 1, "", put(reservation(60)));
        let what = first_violation(&scenario, |row| Some(with_rate(row, 58)), true);
        assert!(what.contains("that 60ops/s reserves, and nothing was cut"), "{more} {what}");
        assert_eq!(first_violation(&scenario, Some, true), "");
    }
}

#[test]
fn a_row_of_a_weight_that_nobody_keeps_is_seen() {
    let class = Some(Scope::rule("a", &[]));
    let scope = EntitlementScope { class, ..EntitlementScope::default() };
    let weight = row(scope, Grantable::Weight(Weight::new(5000).unwrap()));
    let scenario = scenario(EACH, 1, "", put(weight));
    let what = first_violation(&scenario, |_| None, true);
    assert!(
        what.contains("of weights 5000 and 10000") || what.contains("of weights 10000 and 5000"),
        "{what}"
    );
    assert_eq!(first_violation(&scenario, Some, true), "");
}

#[test]
fn a_row_that_is_enforced_after_its_end_is_seen() {
    let short = limit(10).during(Nanos::ZERO, Some(Nanos::from_secs(5))).unwrap();
    let other = row(of_job("b"), Grantable::Limit(ops(10), None));
    let rows = vec![change(1, 5, Some(short)), change(2, 5, Some(other))];
    let scenario = scenario(EACH, 1, "", rows);
    let unending = |row: Entitlement| row.during(Nanos::ZERO, None).ok();
    let what = first_violation(&scenario, unending, true);
    assert!(what.contains("slots are free while"), "{what}");
    assert_eq!(first_violation(&scenario, Some, true), "");
}

#[test]
fn a_row_that_is_enforced_after_its_removal_is_seen() {
    let other = row(of_job("b"), Grantable::Limit(ops(10), None));
    let rows = vec![change(1, 5, Some(limit(10))), change(2, 5, Some(other)), change(1, 9, None)];
    let scenario = scenario(EACH, 1, "", rows);
    let what = first_violation(&scenario, Some, false);
    assert!(what.contains("slots are free while"), "{what}");
    assert_eq!(first_violation(&scenario, Some, true), "");
}

// ---- on their way ----

const LOST: &str = "[[fault]]\nwhat = \"drop\"\nat = \"1s\"\nspan = \"55s\"\npercent = 30\n";
const TWICE: &str = "[[fault]]\nwhat = \"duplicate\"\nat = \"1s\"\nspan = \"55s\"\npercent = 50\n";
const LATE: &str =
    "[[fault]]\nwhat = \"delay\"\nat = \"1s\"\nspan = \"55s\"\npercent = 50\nby = \"250ms\"\n";
const CUT: &str =
    "[[fault]]\nwhat = \"partition\"\nway = \"assignments\"\nat = \"20s\"\nspan = \"22s\"\n";
const CRASH: &str = "[[fault]]\nwhat = \"crash\"\nat = \"20s\"\nspan = \"2s\"\nnumber = 1\n";
const LEADER: &str = "[[fault]]\nwhat = \"leader\"\nat = \"25s\"\nspan = \"5s\"\n";

/// Rows of a calendar and of an operator; some end, are removed, and are changed without a leader.
fn many_rows() -> Vec<RowChange> {
    let of_operator = |rate| {
        let grants = Grantable::Limit(ops(rate), None);
        Entitlement::new(of_job("b"), grants, KindSet::ALL, EntitlementSource::Operator).unwrap()
    };
    let at_target = EntitlementScope { target: Some("disk".into()), ..of_job("b") };
    let span = (Nanos::from_secs(2), Some(Nanos::from_secs(12)));
    vec![
        change(1, 5, Some(limit(40))),
        change(2, 6, Some(of_operator(70))),
        change(3, 7, Some(reservation(20).during(span.0, span.1).unwrap())),
        change(4, 8, Some(row(at_target, Grantable::Reservation(ops(5))))),
        change(5, 9, Some(reservation(1))),
        change(5, 12, None),
        change(1, 27, Some(limit(35))),
        change(4, 28, None),
        change(6, 28, Some(of_operator(60))),
        change(
            7,
            50,
            Some(of_operator(50).during(Nanos::ZERO, Some(Nanos::from_secs(900))).unwrap()),
        ),
    ]
}

fn on_the_way(bug: Option<RowBug>, faults: &str) -> String {
    let scenario = scenario("controller = true\n", 2, faults, many_rows());
    let mut world = World::new(&scenario, Policy::Dispatcher, 1);
    world.row_record.bug = bug;
    // What the schedulers have is what the checks know.
    let found = world.run().violations;
    found.first().map_or(String::new(), |first| first.what.clone())
}

#[test]
fn every_proxy_has_the_rows_of_the_record_whatever_is_lost_late_or_double() {
    let all = [LOST, TWICE, LATE, CUT, CRASH, LEADER].concat();
    for faults in ["", LOST, TWICE, LATE, CUT, CRASH, LEADER, &all] {
        assert_eq!(on_the_way(None, faults), "", "{faults}");
    }
}

#[test]
fn rows_that_are_lost_stay_or_last_for_ever_on_their_way_are_seen() {
    for bug in [RowBug::Loses, RowBug::Keeps, RowBug::Unending] {
        for faults in ["", LEADER, LOST] {
            let what = on_the_way(Some(bug), faults);
            assert!(what.starts_with("row "), "{bug:?} {faults}: {what}");
        }
    }
}

#[test]
fn rows_of_a_leader_that_is_gone_end_and_those_of_the_calendar_stay() {
    let scenario = scenario("controller = true\n", 2, LEADER, many_rows());
    let mut world = World::new(&scenario, Policy::Dispatcher, 1);
    world.run_until(Time::ZERO + Nanos::from_secs(24));
    assert_eq!(numbers(&world), [[1, 2, 4]; 2]);
    world.run_until(Time::ZERO + Nanos::from_secs(45));
    // The operator's change while there was no leader came to nobody.
    assert_eq!(numbers(&world), [[1]; 2]);
    assert_eq!(first_of(world), "");
}

fn numbers(world: &World) -> Vec<Vec<u64>> {
    let checks = world.checks.as_ref().expect("checks are on");
    let of = |proxy| checks.current_rows(proxy, world.now).map(|(id, _)| id.0).collect();
    (0..2).map(of).collect()
}
