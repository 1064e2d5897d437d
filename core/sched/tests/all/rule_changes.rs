//! Rules that start, change, move and stop while requests wait: in force for the next decision.
//!
//! Lustre's TBF has four quirks here (docs/algorithms/baselines.md); each has a test that it
//! does not exist. The server gives 100 unit requests a second over D = 10 slots.

use std::sync::Arc;

use crate::server::*;
use model::{Amount, KeyValue, Lane, OpKind, PathSet};
use rules::{KeyField, Limit, Rule, RuleSet};
use sluice_sched::{Arrival, Dispatcher};

const UNIT_NS: u64 = 10_000_000;

fn limited(name: &str, jobs: &str, rate: u64) -> Rule {
    let limits = vec![Limit { burst: Some(3), ..limit(ops(rate)) }];
    Rule { limits, ..Rule::new(name, format!("jobid={{{jobs}}}").parse().expect("a condition")) }
}

fn set(all: Vec<Rule>) -> Arc<RuleSet> {
    rules(all, vec![])
}

/// A server with one client that has a backlog of 200 and asks for nothing more.
fn backlog(all: Vec<Rule>) -> World {
    let mut w = World::new(target(10, UNIT_NS), set(all));
    w.client("a", OpKind::Read, 1, 200);
    w.run(ms(10_000));
    w.clients[0].depth = 0;
    w
}

/// How many it was dispatched in so many milliseconds from now.
fn started(w: &mut World, span_ms: u64) -> u64 {
    let before = w.clients[0].starts.len();
    w.run(w.now + model::Nanos::from_millis(span_ms));
    (w.clients[0].starts.len() - before) as u64
}

#[test]
fn a_backlogged_class_has_its_new_rate_though_no_request_of_its_arrives() {
    let mut w = backlog(vec![limited("one", "a", 2)]);
    assert!(started(&mut w, 5_000).abs_diff(10) <= 1);
    w.sched.set_rules(set(vec![limited("one", "a", 20)]), w.now);
    assert!(started(&mut w, 5_000).abs_diff(100) <= 1);
}

#[test]
fn a_rule_that_moves_before_another_takes_what_waits_at_once() {
    let (slow, fast) = (limited("slow", "a", 2), limited("fast", "*", 20));
    let mut w = backlog(vec![slow.clone(), fast.clone()]);
    assert!(started(&mut w, 5_000).abs_diff(10) <= 1);
    w.sched.set_rules(set(vec![fast.clone(), slow.clone()]), w.now);
    // And its bucket is a new one, with the burst of one.
    assert!(started(&mut w, 5_000).abs_diff(100 + 3) <= 1);
    w.sched.set_rules(set(vec![slow, fast]), w.now);
    let got = started(&mut w, 5_000);
    // What it saved meanwhile is its burst.
    assert!(got.abs_diff(10 + 3) <= 1, "{got}");
}

#[test]
fn a_rule_that_starts_elsewhere_leaves_a_class_its_place_and_its_debt() {
    let one = limited("one", "a", 2);
    let mut w = backlog(vec![one.clone()]);
    let before = w.sched.classes().find(|class| class.rule == "one").unwrap();
    for number in 0..20 {
        let other = limited(&format!("other{number}"), &format!("x{number}"), 1);
        w.sched.set_rules(set(vec![other, one.clone()]), w.now);
        assert!(started(&mut w, 500).abs_diff(1) <= 1);
    }
    let after = w.sched.classes().find(|class| class.rule == "one").unwrap();
    assert_eq!(after.id, before.id);
    if cfg!(feature = "observation") {
        assert_eq!(after.usage.requests, before.usage.requests + 20);
    }
}

#[test]
fn changes_of_a_rate_hand_out_no_free_requests() {
    let mut w = backlog(vec![limited("one", "a", 2)]);
    // A controller that sets a small rate ten times a second: upstream gives three each time.
    let mut got = 0;
    for tick in 0..100 {
        w.sched.set_rules(set(vec![limited("one", "a", 2 + tick % 2)]), w.now);
        got += started(&mut w, 100);
    }
    assert!(got.abs_diff(25) <= 1, "{got} in ten seconds at 2 and 3 a second");
}

#[test]
fn a_rule_that_stops_frees_what_waits_for_the_next_decision() {
    let mut w = backlog(vec![limited("one", "a", 1)]);
    w.sched.set_rules(set(vec![]), w.now);
    // All slots at once, not at the next arrival nor when a token falls due.
    let now = w.now;
    let held: u32 = std::iter::from_fn(|| w.sched.poll_dispatch(now)).map(|next| next.slots).sum();
    assert!(held >= 9, "{held} of 10 slots");
}

#[test]
fn a_new_weight_holds_from_the_next_decision_on() {
    let weights = |a, b| set(vec![rule("a", a), rule("b", b)]);
    let mut w = World::new(target(10, UNIT_NS), weights(1, 1));
    w.client("a", OpKind::Read, 1, 40);
    w.client("b", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    w.sched.set_rules(weights(4, 1), w.now);
    let got = w.served(ms(10_100 + 1_000));
    // The round that runs was halved, the ten after it are 4 : 1.
    assert!(got[0].abs_diff(5 + 80) <= 2 && got[0] + got[1] == 110, "{got:?}");
}

#[test]
fn a_job_that_shared_a_class_while_those_before_ran_has_its_own_once_they_are_gone() {
    let one_class = |jobs: &str| {
        let matcher = format!("jobid={{{jobs}}}").parse().expect("a condition");
        let (per, max_classes) = (vec![KeyField::Jobid], Some(1));
        set(vec![Rule { per, max_classes, ..Rule::new("jobs", matcher) }])
    };
    for slice in [1, 1_000_000] {
        let mut w = World::new(target(10, UNIT_NS), one_class("a"));
        w.sched.set_change_slice(slice);
        w.client("a", OpKind::Read, 1, 40);
        w.client("b", OpKind::Read, 1, 40);
        w.run(ms(10_000));
        w.sched.set_rules(one_class("b"), w.now);
        // The class of a still has requests that run.
        w.run(ms(11_000));
        w.sched.check_invariants();
        let busy = w.sched.classes().filter(|class| class.queued + class.running > 0);
        let busy: Vec<_> = busy.map(|class| (class.rule, class.key)).collect();
        let own = ("jobs".to_owned(), vec![KeyValue::Jobid(who("b").job)]);
        assert_eq!(busy.len(), 2, "{busy:?}");
        assert!(busy.contains(&own), "{busy:?}");
    }
}

#[test]
fn jobs_that_share_a_class_have_their_own_one_after_another_as_those_before_go() {
    let two_classes = |jobs: &str| {
        let matcher = format!("jobid={{{jobs}}}").parse().expect("a condition");
        let (per, max_classes) = (vec![KeyField::Jobid], Some(2));
        set(vec![Rule { per, max_classes, ..Rule::new("jobs", matcher) }])
    };
    for slice in [1, 1_000_000] {
        let mut sched = Dispatcher::new([target(4, UNIT_NS)], two_classes("a*"));
        sched.set_change_slice(slice);
        let amount = Amount::new(UNIT_BYTES, 1);
        let put = |sched: &mut Dispatcher, job: &str, lane| {
            let subject = sched.subject(T, &who(job), PathSet::default());
            let kind = OpKind::Read;
            sched.enqueue(Arrival { subject, kind, amount, lane, token: 0 }, ms(1));
        };
        ["c"; 4].into_iter().for_each(|job| put(&mut sched, job, Lane::Device));
        ["a1", "a2"].into_iter().for_each(|job| put(&mut sched, job, Lane::Cached));
        let runs: Vec<_> = std::iter::from_fn(|| sched.poll_dispatch(ms(1))).collect();
        let mut of_a: Vec<_> = runs.iter().filter(|run| run.lane == Lane::Cached).collect();
        assert_eq!((runs.len(), of_a.len()), (6, 2));
        sched.set_rules(two_classes("b*"), ms(1));
        for job in ["b1", "b2", "b3", "b1", "b2", "b3"] {
            put(&mut sched, job, Lane::Device);
        }
        let class_of = |job: &str| vec![KeyValue::Jobid(who(job).job)];
        // Polls until nothing changes; the requests of each job that wait in a class of its own.
        let own = |sched: &mut Dispatcher| {
            while sched.next_deadline() == Some(ms(1)) {
                sched.poll_dispatch(ms(1));
            }
            assert_eq!(sched.poll_dispatch(ms(1)), None, "all slots of the device are in use");
            assert!(!sched.is_spreading(), "nothing is tried in vain");
            sched.check_invariants();
            let waiting = |job| {
                let mut classes = sched.classes();
                let class = classes.find(|class| class.key == class_of(job));
                class.map_or(0, |class| class.queued)
            };
            ["b1", "b2", "b3"].map(waiting)
        };
        assert_eq!(own(&mut sched), [0, 0, 0]);
        for wanted in [[2, 0, 0], [2, 2, 0]] {
            let run = of_a.pop().expect("one of them runs");
            sched.complete(run.id, amount, ms(1));
            assert_eq!(own(&mut sched), wanted);
        }
    }
}
