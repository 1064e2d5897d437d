//! Each published scheduler as a setting of the one dispatcher: a test for each row of the table
//! in docs/algorithms/published.md, same numbers.
//!
//! Unless it says otherwise, the server gives 100 unit requests a second over D = 10 slots.

use crate::server::*;
use model::{Amount, Bytes, Lane, Nanos, OpKind, PathSet};
use rules::{DependencyKind, Limit, LimitMode, MeterRule, Rule, RuleDependency};
use sluice_sched::{Arrival, CostMode, Curve, TargetParams};

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>) -> World {
    World::new(target(10, UNIT_NS), rules(all, vec![]))
}

/// A server that gives so many units a second.
fn world_of(per_sec: u64, all: Vec<Rule>) -> World {
    World::new(target(10, 1_000_000_000 / per_sec), rules(all, vec![]))
}

fn realtime(job: &str, rate: u64) -> Rule {
    Rule { limit_mode: LimitMode::Realtime, ..limited(job, rate) }
}

fn spare(job: &str, rate: u64) -> Rule {
    Rule { limit_mode: LimitMode::Spare, ..limited(job, rate) }
}

fn backlogged(mut w: World, jobs: &[&str]) -> World {
    for job in jobs {
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(10_000));
    w
}

fn assert_near(got: &[u64], want: &[u64], slack: u64) {
    let near = got.iter().zip(want).all(|(got, want)| got.abs_diff(*want) <= slack);
    assert!(near && got.len() == want.len(), "{got:?}, not {want:?}");
}

#[test]
fn a_tbf_rule_is_a_meter_for_each_key() {
    let per_job = Rule {
        per: vec![rules::KeyField::Jobid],
        limits: vec![limit(ops(20))],
        ..Rule::new("jobs", "jobid={io.*}".parse().unwrap())
    };
    let mut w = backlogged(world(vec![per_job]), &["io.1", "io.2", "other"]);
    // Each job of the rule has a bucket of its own.
    assert_near(&w.served(ms(40_000)), &[600, 600, 1800], 1);
}

#[test]
fn hard_token_compensation_is_a_reservation_equal_to_the_limit() {
    // Sixteen jobs that want 1570 a second where there are 500.
    let names: Vec<String> = (0..16).map(|i| format!("j{i}")).collect();
    let all = |compensated: bool| {
        let rule = |(i, name): (usize, &String)| match (i, compensated) {
            (0, true) => realtime(name, 120),
            (1, true) => realtime(name, 50),
            (0, false) => limited(name, 120),
            (1, false) => limited(name, 50),
            _ => limited(name, 100),
        };
        names.iter().enumerate().map(rule).collect::<Vec<_>>()
    };
    let jobs: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut w = backlogged(world_of(500, all(true)), &jobs);
    let got = w.served(ms(40_000));
    assert_near(&got[..2], &[3600, 1500], 1);
    // The others divide the rest.
    assert_near(&got[2..], &[30 * 330 / 14; 14], 1);
    // Without it the shares are about equal, whatever the rates.
    let mut w = backlogged(world_of(500, all(false)), &jobs);
    assert_near(&w.served(ms(40_000)), &[30 * 500 / 16; 16], 1);
}

#[test]
fn hard_token_compensation_saves_no_burst_from_idleness() {
    let mut w = world(vec![realtime("a", 50), rule("b", 1)]);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(60_000));
    w.client("a", OpKind::Read, 1, 100);
    w.run(ms(70_000));
    let in_first = |span_ms: u64| {
        let end = (60_000 + span_ms) * 1_000_000;
        w.clients[1].starts.iter().filter(|start| **start < end).count() as u64
    };
    // Its rate, and 500 ms of it at the most: a bucket without a bound would have saved 3000.
    assert!(in_first(1_000) <= 50 + 25 + 1, "{}", in_first(1_000));
    // The first round in which it may run is 100 ms after it came.
    assert!(in_first(10_000).abs_diff(490 + 25) <= 2, "{}", in_first(10_000));
}

#[test]
fn hard_token_compensation_beyond_what_there_is_starves_nobody() {
    let mut w = world(vec![realtime("a", 90), realtime("b", 40), realtime("c", 20)]);
    w = backlogged(w, &["a", "b", "c"]);
    assert_near(&w.served(ms(40_000)), &[1800, 800, 400], 6);
    assert!(w.sched.reservation_shortfall_ppm(T, w.now).abs_diff(333_333) < 10_000);
}

#[test]
fn sharing_of_spare_bandwidth_is_weight_equal_to_rate_without_a_meter() {
    // 150 and 100 of 1000: 600 and 400.
    let mut w = backlogged(world_of(1000, vec![spare("a", 150), spare("b", 100)]), &["a", "b"]);
    assert_near(&w.served(ms(20_000)), &[6000, 4000], 2);
    // 150, 100 and 50 of 600.
    let three = || vec![spare("a", 150), spare("b", 100), spare("c", 50)];
    let mut w = backlogged(world_of(600, three()), &["a", "b", "c"]);
    assert_near(&w.served(ms(20_000)), &[3000, 2000, 1000], 3);
    // The first wants 170 only: what it leaves is divided by rate again.
    let wants = rules(three(), vec![shared("m", "a", ops(170))]);
    let w = World::new(target(10, 1_000_000_000 / 600), wants);
    let mut w = backlogged(w, &["a", "b", "c"]);
    assert_near(&w.served(ms(20_000)), &[1700, 2867, 1433], 4);
    // 150 and 100 of 250: no spare.
    let mut w = backlogged(world_of(250, vec![spare("a", 150), spare("b", 100)]), &["a", "b"]);
    assert_near(&w.served(ms(20_000)), &[1500, 1000], 1);
    // 150 and 100 of 125: both are cut by the same part.
    let mut w = backlogged(world_of(125, vec![spare("a", 150), spare("b", 100)]), &["a", "b"]);
    assert_near(&w.served(ms(20_000)), &[750, 500], 3);
}

#[test]
fn a_hard_limit_has_its_rate_and_nothing_of_what_is_spare() {
    let all = vec![spare("a", 150), realtime("b", 100)];
    let mut w = backlogged(world_of(1000, all), &["a", "b"]);
    assert_near(&w.served(ms(20_000)), &[9000, 1000], 1);
}

#[test]
fn reserved_slots_let_a_reserved_request_start_at_once() {
    let gaps_and_others = |keep: Option<u32>| {
        let promised = Rule { reserved_slots: keep, ..realtime("a", 60) };
        // It asks for five a second, so its slot is taken by b in between.
        let five = Limit { burst: Some(0), ..limit(ops(5)) };
        let five = MeterRule { limit: five, ..shared("five", "a", ops(5)) };
        let set = rules(vec![promised, rule("b", 20)], vec![five]);
        let mut w = World::new(target(10, UNIT_NS), set);
        w.ragged_percent = 50;
        w.client("b", OpKind::Read, 1, 40);
        w.client("a", OpKind::Read, 1, 1);
        w.run(ms(60_000));
        let gaps = w.clients[1].starts.windows(2).map(|pair| pair[1] - pair[0]);
        (gaps.collect::<Vec<u64>>(), w.clients[0].done)
    };
    let (without, all) = gaps_and_others(None);
    let (with, rest) = gaps_and_others(Some(1));
    assert!(with.iter().all(|gap| *gap == 200_000_000), "{with:?}");
    // Else it waits until one of ten ends, 5 ms on average.
    let late: u64 = without.iter().map(|gap| gap - 200_000_000).sum();
    assert!(late / without.len() as u64 > 3_000_000, "{without:?}");
    // The price is a slot of ten, half of the time.
    assert!(rest < all && rest > all * 88 / 100, "{rest} and {all}");
}

#[test]
fn request_larger_than_the_unreserved_slots_runs_alone() {
    let promised = Rule { reserved_slots: Some(8), ..realtime("a", 10) };
    let mut w = world(vec![promised, rule("b", 1)]);
    w.client("b", OpKind::Read, 8, 3);
    w.run(ms(10_000));
    // One at a time, 100 ms each.
    assert_eq!(w.clients[0].done, 100);
}

#[test]
fn a_dependent_rule_is_a_rate_computed_from_the_parent_in_the_dispatcher() {
    let parent = RuleDependency {
        rule: "a".into(),
        kind: DependencyKind::Follow { part_ppm: 500_000 },
        min: ops(1),
    };
    // Its reservation follows as well as its limit.
    let child = Rule { depends_on: Some(parent), ..realtime("b", 40) };
    let all = |rate| rules(vec![limited("a", rate), child.clone(), rule("c", 1000)], vec![]);
    let mut w = backlogged(World::new(target(10, UNIT_NS), all(60)), &["a", "b", "c"]);
    assert_near(&w.served(ms(20_000))[1..2], &[300], 1);
    w.sched.set_rules(all(20), w.now);
    w.run(ms(22_000));
    assert_near(&w.served(ms(32_000))[1..2], &[100], 1);
}

#[test]
fn sfq_d_is_weights_with_one_slot_for_every_request() {
    // Charged by bytes; a curve that is flat makes every size hold one slot.
    let mut one = target(10, UNIT_NS);
    one.costs.mode = CostMode::Bytes;
    one.costs.device.read = Curve::new(&[(Bytes::new(UNIT_BYTES), Nanos::new(UNIT_NS))]).unwrap();
    let mut w = World::new(one, rules(vec![rule("a", 3), rule("b", 1)], vec![]));
    w.client("a", OpKind::Read, 4, 40);
    w.client("b", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    // A round of ten: bytes are 3 : 1, so requests are 3 : 4.
    assert_near(&w.served(ms(24_000)), &[600, 800], 2);
}

#[test]
fn sfq_d_plus_fills_the_last_slots_with_a_later_request_that_fits() {
    let mut w = world(vec![rule("large", 8), rule("small", 1)]);
    let subject = |w: &mut World, job| w.sched.subject(T, &who(job), PathSet::default());
    let (large, small) = (subject(&mut w, "large"), subject(&mut w, "small"));
    let mut enqueue = |subject, units: u64, token| {
        let amount = Amount::new(units * UNIT_BYTES, 1);
        let arrival = Arrival { subject, kind: OpKind::Read, amount, lane: Lane::Device, token };
        w.sched.enqueue(arrival, ms(0));
    };
    (0..2).for_each(|token| enqueue(large, 8, token));
    (2..5).for_each(|token| enqueue(small, 1, token));
    let mut went = Vec::new();
    while let Some(next) = w.sched.poll_dispatch(ms(0)) {
        went.push((next.token, next.slots));
    }
    // After one each both start at 1, and the large one came first; it does not fit beside the
    // nine slots of ten that are in use, so the second small one passes it.
    assert_eq!(went, [(0, 8), (2, 1), (3, 1)]);
    assert!(!w.sched.has_work(), "no slot is left");
}

#[test]
fn metadata_is_charged_by_its_kind() {
    let mut of = target(10, UNIT_NS);
    of.costs.device.ops[OpKind::Create as usize] = Nanos::new(4 * UNIT_NS);
    let mut w = World::new(of, rules(vec![rule("a", 1), rule("b", 1)], vec![]));
    w.client("a", OpKind::Create, 1, 20);
    w.client("b", OpKind::Getattr, 1, 40);
    w.run(ms(10_000));
    let got = w.served(ms(50_000));
    // Half of 4000 units each: a create holds and costs four.
    assert_near(&[got[0] * 4, got[1]], &[2000, 2000], 55);
}

#[test]
fn total_service_over_all_servers_follows_the_weights() {
    let mut w = world(vec![rule("a", 1), rule("b", 1)]);
    w = backlogged(w, &["a", "b"]);
    w.clients[0].elsewhere = 1;
    w.run(ms(20_000));
    // One here and one elsewhere for a are two here for b.
    assert_near(&w.served(ms(50_000)), &[1000, 2000], 2);
    w.clients[0].elsewhere = 4;
    w.run(ms(60_000));
    assert_near(&w.served(ms(90_000)), &[500, 2500], 4);
}

#[test]
fn total_service_leaves_a_least_share_on_each_server() {
    let at_least = Rule { min_local_service_ppm: Some(500_000), ..rule("a", 1) };
    let mut w = backlogged(world(vec![at_least, rule("b", 1)]), &["a", "b"]);
    w.clients[0].elsewhere = 9;
    w.run(ms(20_000));
    // Half of its share: a request of its counts as two.
    assert_near(&w.served(ms(50_000)), &[1000, 2000], 2);
}

#[test]
fn a_class_alone_is_served_at_once_whatever_it_had_elsewhere() {
    let mut w = backlogged(world(vec![rule("a", 1), rule("b", 1)]), &["a"]);
    w.clients[0].elsewhere = 1000;
    assert_eq!(w.served(ms(20_000)), [1000]);
    // Nor does that put it off for long when another comes: by the bound of any lag.
    w.clients[0].elsewhere = 0;
    w.client("b", OpKind::Read, 1, 20);
    let got = w.served(ms(30_000));
    assert!(got[0] >= 480, "{got:?}");
}

#[test]
fn a_global_limit_is_a_meter_whose_rate_is_split_over_the_servers() {
    let set = |rate| rules(vec![limited("a", rate)], vec![]);
    let server = |rate| World::new(target(10, UNIT_NS / 10), set(rate));
    let (mut one, mut two) = (server(100), server(100));
    one.client("a", OpKind::Read, 1, 20);
    two.client("a", OpKind::Read, 1, 20);
    one.run(ms(10_000));
    two.run(ms(10_000));
    // The second becomes idle at 20 s and has work again at 30 s: the trace of LIME.
    let (mut first, mut second) = (one.served(ms(20_000)), two.served(ms(20_000)));
    assert_eq!((first[0], second[0]), (1000, 1000));
    two.clients[0].depth = 0;
    one.sched.set_rules(set(199), one.now);
    two.sched.set_rules(set(1), two.now);
    (first, second) = (one.served(ms(30_000)), two.served(ms(30_000)));
    assert_near(&[first[0]], &[1990], 1);
    assert!(second[0] <= 20, "what ran when it became idle: {second:?}");
    two.clients[0].depth = 20;
    one.sched.set_rules(set(100), one.now);
    two.sched.set_rules(set(100), two.now);
    (first, second) = (one.served(ms(40_000)), two.served(ms(40_000)));
    // Changes of rate refill nothing: the burst is that of 100 ms.
    assert_near(&[first[0], second[0]], &[1000, 1000], 11);
}

#[test]
fn d_is_lowered_until_a_small_request_takes_what_it_may() {
    // A request that holds one of ten slots takes 100 ms, and one of five 50 ms: the device of
    // this server divides what it can among the slots in use.
    let latency = Some(Nanos::from_millis(50));
    let mut w = World::new(TargetParams { latency, ..target(10, UNIT_NS) }, rules(vec![], vec![]));
    w.shares_device = true;
    w.client("a", OpKind::Read, 1, 40);
    w.run(ms(60_000));
    let slots = w.sched.slots_max(T);
    assert!((4..=5).contains(&slots), "{slots}");
    let got = w.served(ms(70_000));
    assert!(got[0].abs_diff(1000) <= 10, "{got:?}");
}

#[test]
fn d_comes_back_once_requests_take_less_than_they_may() {
    let latency = Some(Nanos::from_millis(120));
    let mut w = World::new(TargetParams { latency, ..target(10, UNIT_NS) }, rules(vec![], vec![]));
    w.shares_device = true;
    w.client("a", OpKind::Read, 1, 40);
    // A request of ten takes 400 ms, and one of three 120 ms.
    w.slower = 4;
    w.run(ms(60_000));
    assert!(w.sched.slots_max(T) <= 3, "{}", w.sched.slots_max(T));
    // One of ten takes 100 ms from now on.
    w.slower = 1;
    w.run(ms(120_000));
    assert_eq!(w.sched.slots_max(T), 10);
}

#[test]
fn costs_are_learnt_from_requests_that_run_alone() {
    let mut w = World::new(
        TargetParams { recalibrate: true, ..target(10, UNIT_NS) },
        rules(vec![], vec![]),
    );
    w.slower = 3;
    w.client("a", OpKind::Read, 1, 1);
    w.run(ms(100_000));
    // Alone, a request of the model takes ten times its cost: all of D serve a cost-second a
    // second. What is learnt is that, three times as slow.
    let (_, time) = w.sched.target(T).costs.device.read.points().next().unwrap();
    assert!(time.get().abs_diff(30 * UNIT_NS) <= 30 * UNIT_NS / 8, "{time}");
    // Beside others nothing is learnt.
    let before = w.sched.target(T).costs.clone();
    w.slower = 1;
    w.client("b", OpKind::Read, 1, 10);
    w.run(ms(200_000));
    assert_eq!(w.sched.target(T).costs, before);
}
