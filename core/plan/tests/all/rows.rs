//! Rows of entitlements: whatever happens to messages, proxies and controllers, a row never applies
//! beyond its end, and afterwards each proxy has the rows whose scope it has, and no others.
//!
//! `SLUICE_SEEDS` sets the number of seeds; a failure names its seed.

use std::collections::BTreeMap;

use crate::fleet::{Chance, Fleet};
use crate::props::{calm, seeds, trouble};
use model::{Directory, JobId, KeyValue, KindSet, Nanos, Rate, Scope, Share, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};
use sluice_plan::{ProxyScopes, RowsState, ScopeName};

fn job(chance: &mut Chance) -> JobId {
    JobId::new(&format!("dd.{}", chance.below(5))).unwrap()
}

/// A row of jobs, users, targets and directories; its rate tells it from all others.
fn row(chance: &mut Chance, rate: u64) -> Entitlement {
    let mut scope = EntitlementScope::default();
    if chance.percent(60) {
        scope.job = Some(job(chance));
    }
    if chance.percent(30) {
        scope.uid = Some(chance.below(3) as u32);
    }
    if chance.percent(20) {
        scope.target = Some(["t", "u"][chance.below(2) as usize].into());
    }
    if chance.percent(20) {
        scope.directory = Directory::new([b"x/a", b"y/b"][chance.below(2) as usize]);
    }
    let grants = Grantable::Reservation(Rate::ops_per_sec(rate).unwrap());
    let source = match chance.below(2) {
        0 => EntitlementSource::Reservation,
        _ => EntitlementSource::Operator,
    };
    let row = Entitlement::new(scope, grants, KindSet::ALL, source).unwrap();
    let from = if chance.percent(50) { 0 } else { chance.below(20_000) };
    let until = chance.percent(70).then(|| Nanos::from_millis(from + 1 + chance.below(60_000)));
    row.during(Nanos::from_millis(from), until).unwrap()
}

/// A row of a job that lasts.
fn lasting(name: &str, rate: u64) -> Entitlement {
    let scope = EntitlementScope { job: JobId::new(name), ..EntitlementScope::default() };
    let grants = Grantable::Reservation(Rate::ops_per_sec(rate).unwrap());
    Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Operator).unwrap()
}

/// What a proxy of these jobs has.
fn with_jobs(jobs: &[&str]) -> ProxyScopes {
    ProxyScopes::named(jobs.iter().map(|job| ScopeName::Job(JobId::new(job).unwrap())))
}

/// Jobs, users, targets and exports come to a proxy and go by chance.
fn move_scopes(fleet: &mut Fleet, chance: &mut Chance) {
    let node = chance.below(fleet.nodes.len() as u64) as usize;
    if chance.percent(10) {
        fleet.nodes[node].scopes = ProxyScopes::All.into();
        return;
    }
    let mut names = Vec::new();
    (0..chance.below(4)).for_each(|_| names.push(ScopeName::Job(job(chance))));
    (0..chance.below(3)).for_each(|_| names.push(ScopeName::User(chance.below(3) as u32)));
    names.push(ScopeName::Target(["t", "u"][chance.below(2) as usize].into()));
    names.push(ScopeName::Export(["x", "y"][chance.below(2) as usize].into()));
    fleet.nodes[node].scopes = ProxyScopes::named(names).into();
}

/// Changes rows by chance, several at once.
fn change(fleet: &mut Fleet, chance: &mut Chance, next: &mut u64) {
    let mut changes = Vec::new();
    for _ in 0..chance.below(6) {
        *next += 1;
        let id = EntitlementId(chance.below(12));
        let new = chance.percent(70).then(|| row(chance, *next));
        changes.push((id, new));
    }
    fleet.set_rows(changes);
    if chance.percent(30) {
        *next += 1;
        let key = Scope::decay("d", &[KeyValue::Uid(chance.below(4) as u32)]);
        let rate = if chance.percent(70) { Rate::ops_per_sec(*next) } else { None };
        fleet.set_rate(&key, rate);
    }
}

/// The span of a row by its proxy's clock: from and until.
fn span(row: &Entitlement) -> (Time, Option<Time>) {
    (Time::ZERO + row.from(), row.until().map(|until| Time::ZERO + until))
}

fn applies(row: &Entitlement, now: Time) -> bool {
    let (from, until) = span(row);
    from <= now && until.is_none_or(|until| now < until)
}

fn rate(row: &Entitlement) -> u64 {
    match row.grants() {
        Grantable::Reservation(rate) | Grantable::Limit(rate, _) => rate.per_sec(),
        Grantable::Weight(_) => unreachable!("there are no weights here"),
    }
}

/// Panics if a row applies at a proxy after its end.
fn check_ends(fleet: &Fleet, seed: u64) {
    let now = fleet.now();
    for node in fleet.nodes.iter().filter(|node| node.up) {
        for (id, row) in node.rows.iter().filter(|(_, row)| applies(row, now)) {
            let ends = fleet.ends.get(&rate(row)).copied().flatten();
            assert!(ends.is_none_or(|ends| now < ends), "seed {seed}, {id:?} at {now:?}: {row:?}");
        }
    }
}

/// Panics if a proxy has other rows than those of the controller whose scope it has, or has them for
/// too short a time.
fn check_same(fleet: &Fleet, seed: u64) {
    let now = fleet.now();
    let decays: BTreeMap<_, _> =
        fleet.rates.iter().map(|(key, rate)| (key.clone(), rate.per_sec())).collect();
    for node in &fleet.nodes {
        let is_decay = |row: &&Entitlement| row.source() == EntitlementSource::Decay;
        let limited = node.rows.values().filter(is_decay);
        let limited: BTreeMap<_, _> =
            limited.map(|row| (row.scope().class.clone().unwrap(), rate(row))).collect();
        assert_eq!(limited, decays, "seed {seed}, {}", node.name);
        let planned: BTreeMap<_, _> = fleet.live_rows().collect();
        let others = node.rows.iter().filter(|(_, row)| !is_decay(row));
        for (id, row) in others.filter(|(_, row)| span(row).1.is_none_or(|until| now < until)) {
            let (of, begins, ends) = planned.get(id).expect("the controller has it, too");
            assert!(node.scopes.has(of.scope()), "seed {seed}, {}: {id:?} is others'", node.name);
            let (from, until) = span(row);
            assert_eq!(rate(row), rate(of), "seed {seed}, {}: {id:?}", node.name);
            assert!(from <= now.max(*begins), "seed {seed}");
            let is_near = match (until, ends) {
                (Some(until), Some(ends)) => until <= *ends && ends.since(until) <= TRAVEL_MAX,
                (until, ends) => until.is_none() && ends.is_none(),
            };
            assert!(is_near, "seed {seed}, {id:?}: until {until:?}, not {ends:?}");
        }
        for (id, (_, _, ends)) in
            planned.into_iter().filter(|(_, (of, ..))| node.scopes.has(of.scope()))
        {
            let may_have_ended = ends.is_some_and(|ends| ends.since(now) <= TRAVEL_MAX);
            let is_known = node.rows.contains_key(&id);
            assert!(may_have_ended || is_known, "seed {seed}, {}: {id:?} is missing", node.name);
        }
    }
}

#[test]
fn a_row_never_applies_beyond_its_end_and_each_proxy_has_the_rows_of_its_scopes_when_it_is_over() {
    for seed in 1..=seeds() {
        let mut chance = Chance(seed * 104_729);
        let mut fleet = Fleet::new(1 + chance.below(4) as usize, seed);
        let mut next = 0;
        for _ in 0..100 {
            trouble(&mut fleet, &mut chance);
            // A row ends by the clocks of both sides: none may run ahead or back.
            fleet.nodes.iter_mut().for_each(|node| node.ahead = 0);
            change(&mut fleet, &mut chance, &mut next);
            move_scopes(&mut fleet, &mut chance);
            fleet.run(1 + chance.below(200), |fleet| check_ends(fleet, seed));
        }
        calm(&mut fleet);
        fleet.run(2_500, |fleet| check_ends(fleet, seed));
        check_same(&fleet, seed);
        for _ in 0..5 {
            change(&mut fleet, &mut chance, &mut next);
            move_scopes(&mut fleet, &mut chance);
            fleet.run(30, |fleet| check_ends(fleet, seed));
            check_same(&fleet, seed);
        }
    }
}

#[test]
fn rows_that_the_next_controller_does_not_have_end() {
    let mut fleet = Fleet::new(2, 5);
    fleet.secs(20);
    fleet.set_rows(vec![(EntitlementId(1), Some(lasting("dd.1", 1)))]);
    fleet.set_rate(&Scope::decay("d", &[]), Rate::ops_per_sec(2));
    fleet.secs(1);
    fleet.begin_controller();
    fleet.run(50, |fleet| assert!(fleet.nodes.iter().all(|node| node.rows.len() == 2)));
    fleet.controller = None;
    fleet.set_rows(vec![(EntitlementId(1), None)]);
    fleet.set_rate(&Scope::decay("d", &[]), None);
    fleet.begin_controller();
    fleet.secs(5);
    assert!(fleet.nodes.iter().all(|node| node.rows.is_empty()));
}

#[test]
fn many_changes_within_a_tick_are_one_message() {
    let mut fleet = Fleet::new(2, 5);
    fleet.secs(20);
    let (before, mut chance) = (fleet.sent(), Chance(3));
    let changes = (0..100).map(|id| (EntitlementId(id), Some(row(&mut chance, 1 + id))));
    fleet.set_rows(changes.collect());
    fleet.run(5, |_| {});
    assert!(fleet.nodes.iter().all(|node| node.rows.len() == 100));
    // To each of both an assignment, its acknowledgement, and what follows on that.
    assert!(fleet.sent() - before <= 6, "{} messages", fleet.sent() - before);
}

#[test]
fn a_job_that_comes_to_a_proxy_brings_rows_that_are_older_than_what_was_acknowledged() {
    let mut fleet = Fleet::new(3, 5);
    let (here, elsewhere) = (with_jobs(&["dd.1"]), with_jobs(&["dd.2"]));
    fleet.nodes[0].scopes = here.clone().into();
    fleet.nodes[1].scopes = elsewhere.clone().into();
    fleet.secs(20);
    fleet.set_rows(vec![(EntitlementId(1), Some(lasting("dd.1", 1)))]);
    fleet.set_rows(vec![(EntitlementId(2), Some(lasting("dd.2", 2)))]);
    fleet.secs(2);
    let has = |fleet: &Fleet| -> Vec<Vec<u64>> {
        fleet.nodes.iter().map(|node| node.rows.keys().map(|id| id.0).collect()).collect()
    };
    // The third has not said what it has.
    assert_eq!(has(&fleet), [vec![1], vec![2], vec![1, 2]]);
    fleet.nodes[0].scopes = with_jobs(&["dd.1", "dd.2"]).into();
    // A tick for the report, and the way of both messages.
    fleet.run(13, |_| {});
    assert_eq!(has(&fleet)[0], [1, 2]);
    fleet.nodes[0].scopes = elsewhere.into();
    fleet.nodes[1].scopes = here.into();
    fleet.run(13, |_| {});
    assert_eq!(has(&fleet)[..2], [vec![2], vec![1]]);
}

#[test]
fn a_row_is_sent_to_no_proxy_without_its_job() {
    let mut fleet = Fleet::new(2, 5);
    fleet.nodes[0].scopes = with_jobs(&["dd.1"]).into();
    fleet.nodes[1].scopes = with_jobs(&[]).into();
    fleet.secs(20);
    let revisions = |fleet: &Fleet| -> Vec<u64> {
        let proxies = fleet.controller.as_ref().unwrap().proxies();
        proxies.map(|proxy| proxy.revisions.0).collect()
    };
    let before = revisions(&fleet);
    for rate in 1..6 {
        fleet.set_rows(vec![(EntitlementId(1), Some(lasting("dd.1", rate)))]);
        fleet.run(20, |_| {});
    }
    fleet.set_rows(vec![(EntitlementId(1), None)]);
    fleet.run(20, |_| {});
    assert_eq!(revisions(&fleet), [before[0] + 6, before[1]]);
}

#[test]
fn the_state_of_a_row_says_how_many_proxies_have_yet_to_acknowledge_it() {
    let mut fleet = Fleet::new(3, 5);
    fleet.nodes[0].scopes = with_jobs(&["dd.1"]).into();
    fleet.nodes[1].scopes = with_jobs(&["dd.2"]).into();
    fleet.nodes[2].scopes = with_jobs(&["dd.1", "dd.2"]).into();
    fleet.secs(20);
    let state = |fleet: &Fleet| fleet.controller.as_ref().unwrap().rows_state(&[EntitlementId(1)]);
    assert_eq!(state(&fleet), RowsState::default());
    let row = Some(lasting("dd.1", 1));
    fleet.set_rows(vec![(EntitlementId(1), row)]);
    assert_eq!(state(&fleet), RowsState { unacknowledged: 2, ..RowsState::default() });
    fleet.run(20, |_| {});
    assert_eq!(state(&fleet), RowsState::default());
    fleet.nodes[2].deaf = true;
    fleet.set_rows(vec![(EntitlementId(1), None)]);
    fleet.run(20, |_| {});
    assert_eq!(state(&fleet), RowsState { unacknowledged: 1, ..RowsState::default() });
    fleet.secs(7);
    let unreachable = vec!["proxy2".into()];
    assert_eq!(
        state(&fleet),
        RowsState { unacknowledged: 0, unreachable, given_out: Share::WHOLE }
    );
}

/// Two proxies that divide what row 7 reserves, with a check after each step.
fn dividing() -> (Fleet, impl Fn(&Fleet)) {
    let mut fleet = Fleet::new(2, 5);
    fleet.secs(20);
    fleet.set_rows(vec![(EntitlementId(7), Some(lasting("dd.1", 1)))]);
    for node in &mut fleet.nodes {
        node.demand.insert(Scope::entitlement(7), Share::WHOLE);
    }
    fleet.secs(2);
    assert_eq!([0, 1].map(|node| part_of_row(&fleet, node)), [Share::ratio(1, 2); 2]);
    let check = |fleet: &Fleet| {
        let parts = [0, 1].map(|node| u64::from(part_of_row(fleet, node).billionths()));
        assert!(parts[0] + parts[1] <= 1_000_000_000, "{parts:?} at {:?}", fleet.now());
    };
    (fleet, check)
}

/// What a proxy gives of row 7: nothing if it does not run.
fn part_of_row(fleet: &Fleet, node: usize) -> Share {
    let node = &fleet.nodes[node];
    if node.up { node.standing.part_of(&Scope::entitlement(7)) } else { Share::ZERO }
}

#[test]
fn what_a_killed_proxy_had_of_a_row_is_given_to_the_others_when_its_lease_is_over() {
    let (mut fleet, check) = dividing();
    fleet.nodes[1].up = false;
    fleet.run(900, &check);
    assert!(part_of_row(&fleet, 0) <= Share::ratio(1, 2), "it may still run");
    fleet.run(200, &check);
    assert_eq!(part_of_row(&fleet, 0), Share::WHOLE);
}

#[test]
fn a_proxy_that_is_back_after_its_lease_gets_its_share_of_a_row_only_from_the_others() {
    for (deaf, mute) in [(true, true), (true, false), (false, true)] {
        let (mut fleet, check) = dividing();
        (fleet.nodes[1].deaf, fleet.nodes[1].mute) = (deaf, mute);
        fleet.run(4_000, &check);
        assert_eq!(part_of_row(&fleet, 0), Share::WHOLE, "{deaf} {mute}");
        (fleet.nodes[1].deaf, fleet.nodes[1].mute) = (false, false);
        fleet.run(500, &check);
        assert_eq!([0, 1].map(|node| part_of_row(&fleet, node)), [Share::ratio(1, 2); 2]);
    }
}

#[test]
fn rows_that_a_proxy_reports_as_used_are_taken_once() {
    let mut fleet = Fleet::new(2, 5);
    fleet.secs(20);
    fleet.set_rows(vec![(EntitlementId(7), Some(lasting("dd.1", 1)))]);
    for row in [7, 8] {
        fleet.nodes[0].demand.insert(Scope::entitlement(row), Share::ratio(1, 4));
    }
    fleet.secs(1);
    let mut used = || fleet.controller.as_mut().unwrap().take_used_rows();
    assert_eq!(used(), [EntitlementId(7)], "there is no row 8");
    assert_eq!(used(), []);
}

/// How long a report may travel here: 5 s by the weather, and a second.
const TRAVEL_MAX: Nanos = Nanos::from_secs(6);
