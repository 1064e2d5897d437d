//! Limits that depend on other rules: the worked tables of docs/algorithms/dependent.md.
//!
//! The server gives 100 unit requests a second over D = 10 slots, in rounds of 100 ms.

use crate::server::*;
use model::{Amount, Lane, Nanos, OpKind, PathSet, RuleActivity};
use rules::{DependencyKind, Rule, RuleDependency};
use sluice_sched::{Arrival, Dispatcher};

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>) -> World {
    World::new(target(10, UNIT_NS), rules(all, vec![]))
}

fn child(job: &str, rate: u64, on: &str, kind: DependencyKind, min: u64) -> Rule {
    let parent = Some(RuleDependency { rule: on.into(), kind, min: ops(min) });
    Rule { depends_on: parent, ..limited(job, rate) }
}

fn effective(w: &World, rule: &str) -> u64 {
    let found = w.sched.dependent_limits().find(|(name, _)| *name == rule);
    found.expect("it depends on another").1.per_sec()
}

const fn part(percent: u32) -> DependencyKind {
    DependencyKind::Follow { part_ppm: percent * 10_000 }
}

#[test]
fn a_follower_has_a_part_of_its_parents_limit_within_its_bounds() {
    let set = |a: u64| vec![limited("a", a), child("b", 20, "a", part(50), 5)];
    let mut w = world(set(30));
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    assert_eq!(w.served(ms(20_000)), [300, 150]);
    // Its own limit is the most, and min the least.
    for (a, b) in [(60, 20), (4, 5), (30, 15)] {
        w.sched.set_rules(rules(set(a), vec![]), w.now);
        assert_eq!(effective(&w, "b"), b, "half of {a}");
        w.run(w.now + Nanos::from_millis(2_000));
        let got = w.served(w.now + Nanos::from_millis(10_000));
        assert!(got[1].abs_diff(10 * b) <= 1, "{got:?} with half of {a}");
    }
}

#[test]
fn a_limit_that_depends_on_another_rule_holds_from_the_start() {
    let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(500) };
    let follower = child("b", 20, "a", part(50), 5);
    let w = world(vec![limited("a", 30), follower, child("c", 70, "a", gate, 10)]);
    assert_eq!((effective(&w, "b"), effective(&w, "c")), (15, 10));
}

#[test]
fn a_follower_of_a_follower_has_a_part_of_the_part() {
    let all =
        vec![child("c", 50, "b", part(50), 1), child("b", 50, "a", part(50), 1), limited("a", 40)];
    let mut w = world(all);
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(10_000));
    assert_eq!(w.served(ms(20_000)), [400, 200, 100]);
}

#[test]
fn a_complement_has_what_its_parent_leaves_of_the_total() {
    let total = DependencyKind::Remainder { total: ops(80) };
    let all = vec![limited("a", 50), child("b", 70, "a", total, 10)];
    let mut w = world(all);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    // Nobody of a: b has the most that it may.
    assert_eq!(w.served(ms(20_000)), [700]);
    let a = w.client("a", OpKind::Read, 1, 20);
    w.run(ms(22_000));
    let got = w.served(ms(32_000));
    assert!(got[1].abs_diff(500) <= 1 && got[0].abs_diff(300) <= 10, "{got:?}: 30 left of 80");
    // When a asks for nothing any more b has it back within a second.
    w.clients[a].depth = 0;
    w.run(ms(33_000));
    let got = w.served(ms(43_000));
    assert!(got[0].abs_diff(700) <= 10 && got[1] <= 20, "{got:?}");
}

#[test]
fn a_gate_is_shut_at_once_when_its_parent_asks_and_opens_when_it_has_been_idle() {
    let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(500) };
    let mut w = world(vec![rule("a", 1), child("b", 60, "a", gate, 5)]);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    assert_eq!((w.served(ms(20_000)), effective(&w, "b")), (vec![600], 60));
    let a = w.client("a", OpKind::Read, 1, 1);
    w.run(ms(20_001));
    assert_eq!(effective(&w, "b"), 5, "at once");
    w.run(ms(21_000));
    let got = w.served(ms(31_000));
    assert!(got[0].abs_diff(50) <= 1, "{got:?}");
    w.clients[a].depth = 0;
    w.run(ms(31_400));
    assert_eq!(effective(&w, "b"), 5, "not before half a second has passed");
    w.run(ms(31_800));
    assert_eq!(effective(&w, "b"), 60);
}

#[test]
fn a_limit_that_changes_by_itself_refills_nothing() {
    let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(200) };
    let mut w = world(vec![rule("a", 1), child("b", 90, "a", gate, 1)]);
    w.client("b", OpKind::Read, 1, 20);
    let a = w.client("a", OpKind::Read, 1, 1);
    w.run(ms(10_000));
    // It opens for the part of each second in which a has been idle for 200 ms.
    let before = w.clients[0].done;
    for second in 10..30u64 {
        w.clients[a].depth = 0;
        w.run(ms(second * 1_000 + 500));
        w.clients[a].depth = 1;
        w.run(ms(second * 1_000 + 1_000));
    }
    // At most 300 ms at 90/s and 700 ms at 1/s of each, and the burst of 100 ms once.
    let got = w.clients[0].done - before;
    assert!(got <= 20 * 28 + 10, "{got}");
    assert!(got >= 20 * 9, "{got}: it did open");
}

#[test]
fn what_a_parent_has_at_other_proxies_counts_as_what_it_has_here() {
    let total = DependencyKind::Remainder { total: ops(80) };
    let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(500) };
    let all = vec![limited("a", 50), child("b", 70, "a", total, 10), child("c", 60, "a", gate, 5)];
    let mut w = world(all);
    w.run(ms(1_000));
    let idle = Some(Nanos::from_millis(200));
    let there = |ops_per_sec, idle| RuleActivity { ops_per_sec, idle, ..RuleActivity::NONE };
    w.sched.set_remote_activity(&[("a".into(), there(50, None))], w.now);
    assert_eq!((effective(&w, "b"), effective(&w, "c")), (30, 5));
    w.client("a", OpKind::Read, 1, 1);
    w.run(ms(3_000));
    let here = w.sched.parent_activity(w.now);
    let (name, activity) = &here[..][0];
    assert_eq!((&**name, here.len(), activity.idle), ("a", 1, None));
    assert!((9..=11).contains(&activity.ops_per_sec), "one request at a time: {activity:?}");
    assert!((19..=21).contains(&effective(&w, "b")), "of 80, 50 there and 10 here");
    w.clients[0].depth = 0;
    w.run(ms(4_000));
    w.sched.set_remote_activity(&[("a".into(), there(0, idle))], w.now);
    assert_eq!((effective(&w, "b"), effective(&w, "c")), (70, 5));
    w.run(ms(4_400));
    // Nothing waits that would have asked by itself.
    assert!(w.sched.poll_dispatch(w.now).is_none());
    assert_eq!(effective(&w, "c"), 60, "200 ms when it was told, and 400 since");
    assert_eq!(w.sched.parent_activity(w.now)[0].1.bytes_per_sec, 0);
}

/// Forty parents give way to forty others, so that some of these have no bit until the change is
/// everywhere.
#[test]
fn requests_of_parents_that_replace_others_are_counted() {
    let set = |name: &str| {
        let gate = DependencyKind::WhenIdle { idle: Nanos::from_millis(500) };
        let all = (0..40).flat_map(|i| {
            let parent = format!("{name}{i}");
            let child = child(&format!("c{i}"), 20, &parent, gate, 5);
            [Rule { name: parent, ..rule(&format!("j{i}"), 1) }, child]
        });
        rules(all.collect(), vec![])
    };
    let mut sched = Dispatcher::new([target(1, UNIT_NS)], set("a"));
    for i in 0..40 {
        let subject = sched.subject(T, &who(&format!("j{i}")), PathSet::default());
        for token in 0..3 {
            let (kind, amount, lane) = (OpKind::Read, Amount::new(UNIT_BYTES, 1), Lane::Device);
            sched.enqueue(Arrival { subject, kind, amount, lane, token }, ms(0));
        }
    }
    sched.set_rules(set("b"), ms(0));
    while sched.next_deadline() == Some(ms(0)) {
        sched.poll_dispatch(ms(0));
    }
    sched.check_invariants();
    let parents = sched.parent_activity(ms(0));
    let busy = parents.iter().filter(|(name, of)| name.starts_with('b') && of.idle.is_none());
    assert_eq!(busy.count(), 40, "{parents:?}");
}

/// A read that misses the page cache runs in one lane and then in the other, and was served once.
#[test]
fn a_request_that_misses_the_cache_counts_once_for_its_parent() {
    let total = DependencyKind::Remainder { total: ops(80) };
    let set = || rules(vec![rule("a", 1), child("b", 70, "a", total, 10)], vec![]);
    let served = |kind: OpKind, misses: bool| {
        let mut sched = Dispatcher::new([target(10, UNIT_NS)], set());
        let subject = sched.subject(T, &who("a"), PathSet::default());
        let lane = if misses { Lane::Cached } else { Lane::Device };
        for token in 0..10 {
            let amount = Amount::new(UNIT_BYTES, 1);
            sched.enqueue(Arrival { subject, kind, amount, lane, token }, ms(0));
        }
        while let Some(next) = sched.poll_dispatch(ms(0)) {
            match next.lane {
                Lane::Cached => sched.miss(next.id, ms(0)),
                Lane::Device => sched.complete(next.id, Amount::new(UNIT_BYTES, 1), ms(0)),
            }
        }
        sched.poll_dispatch(ms(100));
        sched.parent_activity(ms(100))[0].1.ops_per_sec
    };
    for kind in [OpKind::Read, OpKind::Clunk] {
        assert_eq!([false, true].map(|misses| served(kind, misses)), [50, 50], "{kind:?}");
    }
}
