//! What holds whom: each cause by name, with the time and the requests it cost.

use std::sync::Arc;

use crate::server::{T, UNIT_BYTES, World, limited, ms, ops, rule, rules, shared, target, who};
use model::{Bytes, Identity, JobId, Lane, Nanos, Nid, OpKind, PathSet, Scope, SectionKind};
use rules::{DependencyKind, Rule, RuleDependency, RuleSet};
use sluice_sched::{MeterPayers, SubjectDetail, WaitCause, WaitCauseReport, WaitReport};

const UNIT_NS: u64 = 1_000_000;

fn world(slots: u32, set: Arc<RuleSet>) -> World {
    World::new(target(slots, UNIT_NS), set)
}

/// What held the classes of a rule.
fn held(world: &World, rule: &str) -> Vec<WaitReport> {
    world.sched.wait_reports(world.now, |_, of, _| of == rule)
}

/// The one cause that held a rule's one class for more than a hundredth of its time.
fn cause(world: &World, rule: &str) -> WaitCauseReport {
    let mut classes = held(world, rule);
    assert_eq!(classes.len(), 1, "{classes:?}");
    let mut causes = std::mem::take(&mut classes[0].causes);
    let all: u64 = causes.iter().map(|cause| cause.wait.get()).sum();
    causes.retain(|cause| cause.wait.get() > all / 100);
    assert_eq!(causes.len(), 1, "{causes:?}");
    causes.remove(0)
}

fn section(by: &WaitCause) -> (SectionKind, &str) {
    match by {
        WaitCause::Meter { scope: Scope { section, name, .. }, .. } => (*section, name),
        other => panic!("{other:?} is no meter"),
    }
}

#[test]
fn a_rules_limit_is_named_with_its_rate_its_use_and_its_next_release() {
    let mut world = world(8, rules(vec![limited("a", 10), rule("b", 1)], vec![]));
    world.client("a", OpKind::Read, 1, 4);
    world.client("b", OpKind::Read, 1, 1);
    world.run(ms(10_050));
    let cause = cause(&world, "a");
    assert_eq!(section(&cause.by), (SectionKind::Rule, "a"));
    assert!(cause.now);
    assert!(cause.since < ms(500) && cause.last == world.now, "{cause:?}");
    // Four wait all the time, but for the first ones and the millisecond that each runs.
    let waited = cause.wait.get() / 1_000_000;
    assert!((38_000..=40_200).contains(&waited), "{waited} ms");
    assert!(cause.span.get() / 1_000_000 > 9_900, "{:?}", cause.span);
    assert!((98..=102).contains(&cause.requests), "{}", cause.requests);
    assert_eq!(cause.bytes, Bytes::new(cause.requests * UNIT_BYTES));
    let meter = cause.meter.expect("it exists");
    assert_eq!((meter.rate, meter.used_per_sec, meter.waiting), (ops(10), 10, 1));
    assert!(meter.due > world.now && meter.due.since(world.now) <= Nanos::from_millis(100));
    assert!(held(&world, "b").is_empty(), "nothing held b");
}

#[test]
fn a_shared_meter_is_named_to_everybody_who_waits_for_it() {
    let set = rules(vec![rule("a", 1), rule("b", 3)], vec![shared("m", "a b", ops(40))]);
    let mut world = world(8, set);
    world.client("a", OpKind::Read, 1, 2);
    world.client("b", OpKind::Read, 1, 2);
    world.run(ms(5_000));
    for job in ["a", "b"] {
        let cause = cause(&world, job);
        assert_eq!(section(&cause.by), (SectionKind::Meter, "m"));
        assert_eq!(cause.meter.expect("it exists").waiting, 2);
    }
    let served = |job| cause(&world, job).requests;
    assert!(served("b") > 2 * served("a"), "weights hold: {} {}", served("a"), served("b"));
}

#[test]
fn what_others_were_served_is_share_and_what_nobody_was_is_busy() {
    let mut two = world(1, rules(vec![rule("a", 1), rule("b", 1)], vec![]));
    two.client("a", OpKind::Read, 1, 3);
    two.client("b", OpKind::Read, 1, 3);
    two.run(ms(2_000));
    assert_eq!((cause(&two, "a").by, cause(&two, "b").by), (WaitCause::Weight, WaitCause::Weight));
    let mut one = world(1, rules(vec![rule("a", 1)], vec![]));
    one.client("a", OpKind::Read, 1, 3);
    one.run(ms(2_000));
    assert_eq!(cause(&one, "a").by, WaitCause::Busy);
}

#[test]
fn a_cap_on_slots_is_named_while_the_device_has_room() {
    let capped = Rule { slots: Some(1), ..rule("a", 1) };
    let mut world = world(8, rules(vec![capped], vec![]));
    world.client("a", OpKind::Read, 1, 4);
    world.run(ms(2_000));
    let cause = cause(&world, "a");
    assert_eq!((cause.by, cause.meter), (WaitCause::Slots, None));
    let usage = world.sched.subjects().next().expect("there is one").usage;
    assert!(usage.delayed > usage.requests * 9 / 10, "{usage:?}");
    assert_eq!(usage.delayed_bytes, Bytes::new(usage.delayed * UNIT_BYTES));
}

#[test]
fn service_elsewhere_is_named_to_who_is_put_off_for_it() {
    let mut world = world(1, rules(vec![rule("a", 1), rule("b", 1)], vec![]));
    world.client("a", OpKind::Read, 1, 2);
    world.client("b", OpKind::Read, 1, 2);
    world.clients[0].elsewhere = 3;
    world.run(ms(4_000));
    let of_a = &held(&world, "a")[0].causes[0];
    assert_eq!(of_a.by, WaitCause::RemoteService);
}

#[test]
fn a_limit_that_depends_on_another_rule_says_on_which() {
    let gate = RuleDependency {
        rule: "b".into(),
        kind: DependencyKind::WhenIdle { idle: Nanos::from_millis(200) },
        min: ops(5),
    };
    let child = Rule { depends_on: Some(gate), ..limited("a", 1_000) };
    let mut world = world(8, rules(vec![child, rule("b", 1)], vec![]));
    world.client("a", OpKind::Read, 1, 2);
    world.client("b", OpKind::Read, 1, 1);
    world.run(ms(3_000));
    let meter = cause(&world, "a").meter.expect("it exists");
    assert_eq!((meter.rate, meter.depends_on.as_deref()), (ops(5), Some("b")));
}

#[test]
fn a_pause_of_more_than_a_second_begins_anew_and_sums_go_on() {
    let mut world = world(8, rules(vec![limited("a", 10)], vec![]));
    world.client("a", OpKind::Read, 1, 2);
    world.run(ms(2_000));
    let before = cause(&world, "a");
    world.clients[0].depth = 0;
    world.run(ms(6_000));
    assert!(!cause(&world, "a").now);
    world.clients[0].depth = 2;
    world.run(ms(8_000));
    let after = cause(&world, "a");
    assert!(after.now && after.since >= ms(6_000), "{after:?}");
    assert!(after.wait > before.wait && after.span > before.span);
}

#[test]
fn what_is_kept_of_a_class_is_bounded() {
    let meter = |n: u32| rules(vec![rule("a", 1)], vec![shared(&format!("m{n}"), "a", ops(10))]);
    let mut world = world(8, meter(0));
    world.client("a", OpKind::Read, 1, 2);
    for n in 0..20u32 {
        world.sched.set_rules(meter(n), world.now);
        world.run(ms(u64::from(n + 1) * 1_000));
    }
    let causes = &held(&world, "a")[0].causes;
    let of_meters = causes.iter().filter(|cause| matches!(cause.by, WaitCause::Meter { .. }));
    assert_eq!(of_meters.count(), RuleSet::METERS_MAX);
    let other = causes.iter().find(|cause| cause.by == WaitCause::Other).expect("12 are not kept");
    assert!(other.wait > Nanos::from_secs(12), "{other:?}");
    assert!(
        causes.iter().any(
            |cause| matches!(&cause.by, WaitCause::Meter { scope, .. } if &*scope.name == "m19")
        )
    );
}

#[test]
fn who_stands_where_is_found_by_identity() {
    let set = rules(vec![rule("a", 1), rule("b", 1)], vec![shared("m", "a", ops(40))]);
    let mut world = world(8, set);
    world.client("a", OpKind::Read, 1, 1);
    world.client("b", OpKind::Read, 1, 1);
    world.run(ms(500));
    let found = standings(&world, "a", None);
    assert_eq!(found.len(), 1);
    let class = held(&world, "a")[0].class;
    assert_eq!(found[0].classes, [class]);
    assert_eq!(world.sched.wait_reports_of(&found, world.now), held(&world, "a"));
    assert_eq!(found[0].meters.iter().map(|meter| &*meter.scope.name).collect::<Vec<_>>(), ["m"]);
    let free = world.sched.subject(T, &who("c"), PathSet::default());
    let idle = standings(&world, "c", None);
    assert_eq!((idle[0].id, idle[0].classes.len()), (free, 0));
    assert_eq!(world.clients[0].lane, Lane::Device);
}

#[test]
fn of_a_job_only_its_own_subjects_are_looked_at_and_of_its_users_the_one_who_asks() {
    let mut world = world(8, rules(vec![rule("all", 1)], Vec::new()));
    for (job, uid, nid) in
        [("b", 1, "x"), ("a", 2, "x"), ("b", 2, "y"), ("b", 1, "y"), ("c", 1, "x")]
    {
        let nid = Nid::new(nid).unwrap();
        let one = Identity { job: JobId::new(job).unwrap(), uid, nid, ..who(job) };
        world.sched.subject(T, &one, PathSet::default());
    }
    let found = |job, user| {
        let of = standings(&world, job, user).into_iter();
        of.map(|one| (one.identity.uid, one.identity.nid.to_string())).collect::<Vec<_>>()
    };
    let known = [(1, "x"), (1, "y"), (2, "y")].map(|(uid, nid)| (uid, nid.to_owned()));
    assert_eq!(found("b", None), known);
    assert_eq!(found("b", Some(1)), known[..2]);
    assert_eq!(found("b", Some(3)), []);
    let of_user = world.sched.subject_details(world.now, MeterPayers { job: None, user: Some(2) });
    assert_eq!(of_user.len(), 2);
    assert_eq!(world.sched.subject_details(world.now, MeterPayers::default()).len(), 5);
}

fn standings(world: &World, job: &str, user: Option<u32>) -> Vec<SubjectDetail> {
    let job = JobId::new(job).unwrap();
    world.sched.subject_details(world.now, MeterPayers { job: Some(&job), user })
}
