//! The worked tables of docs/algorithms/dispatcher.md, same numbers.
//!
//! The server gives 100 unit requests a second over D = 10 slots (a unit costs 10 ms of
//! it and runs for 100 ms in its slot), as in the model those tables come from.

use crate::server::*;
use model::{KindSet, OpKind, Rate};
use rules::{Limit, MeterRule, Rule};

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>, meters: Vec<MeterRule>) -> World {
    World::new(target(10, UNIT_NS), rules(all, meters))
}

fn reserved(job: &str, weight: u32, rate: Rate) -> Rule {
    Rule { reservation: Some(rate), ..rule(job, weight) }
}

fn limited(job: &str, weight: u32, rate: u64) -> Rule {
    Rule { limits: vec![limit(ops(rate))], ..rule(job, weight) }
}

fn units(per_sec: u64) -> Rate {
    Rate::bytes_per_sec(per_sec * UNIT_BYTES).expect("a rate above zero")
}

#[test]
fn a_reservation_comes_before_shares_and_the_rest_is_shared_by_weight() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1), rule("c", 2)], vec![]);
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(10_000));
    let got = w.served(ms(40_000));
    assert_eq!(got, [1800, 400, 800]);
}

#[test]
fn reservations_beyond_capacity_are_cut_in_the_same_proportion() {
    let mut w = world(vec![reserved("a", 1, ops(120)), reserved("b", 1, ops(50))], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    // 3000 in the ratio of 120 to 50.
    assert_eq!(w.served(ms(40_000)), [2118, 882]);
    // 70 of 170, told for a second of rounds.
    assert!(w.sched.reservation_shortfall_ppm(T, w.now).abs_diff(411_765) < 10_000);
}

#[test]
fn cut_reservation_is_met_again_when_capacity_returns() {
    let mut w = world(vec![reserved("a", 1, ops(60)), reserved("b", 1, ops(60))], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(100_000));
    w.sched.set_rules(rules(vec![reserved("a", 1, ops(60)), rule("b", 9)], vec![]), w.now);
    w.run(ms(102_000));
    // What it missed for 100 s is not made up for.
    let got = w.served(ms(112_000));
    assert_eq!(got, [600, 400]);
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 0);
}

#[test]
fn stuck_target_reports_a_reservation_shortfall() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1)], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 0);
    // What begins now takes a hundred seconds: the dispatcher gets no completions, only queries.
    w.slower = 1000;
    w.run(ms(30_000));
    assert_eq!(w.sched.reservation_shortfall_ppm(T, ms(10_300)), 0, "it may be made up for");
    let beginning = w.sched.reservation_shortfall_ppm(T, ms(11_000));
    assert!((300_000..=600_000).contains(&beginning), "half a second of one: {beginning}");
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 1_000_000);
    // Nor do new arrivals hide the shortfall.
    w.clients[0].depth = 40;
    w.run(ms(31_000));
    w.clients[0].depth = 60;
    w.run(ms(32_500));
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 1_000_000);
    w.slower = 1;
    w.run(ms(115_000));
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 0, "the shortfall ends");
}

#[test]
fn demand_below_a_reservation_leaves_other_reservations_whole() {
    let promised = vec![reserved("a", 1, ops(1000)), reserved("b", 1, ops(60)), rule("c", 1)];
    let mut w = world(promised, vec![]);
    w.ragged_percent = 50;
    w.client("a", OpKind::Read, 1, 1);
    w.client("b", OpKind::Read, 1, 20);
    w.client("c", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    // Each of a's takes 100 ms on average, and there is always one.
    let got = w.served(ms(110_000));
    assert!(got[0].abs_diff(1000) <= 50 && got[1].abs_diff(6000) <= 10, "{got:?}");
    assert_eq!(w.sched.reservation_shortfall_ppm(T, w.now), 0);
}

#[test]
fn ended_reservation_is_not_charged_to_its_class() {
    let mut w = world(vec![reserved("a", 1, ops(60)), rule("b", 1)], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(100_000));
    w.sched.set_rules(rules(vec![rule("a", 1), rule("b", 1)], vec![]), w.now);
    // It is ahead by lag_max = 250 ms of cost, 25 requests, and not by the 1000 that it had
    // beyond its half; the four that b has in each round by share moved v by three or four
    // since. So of 1000, 6 : 4 in the round that runs, b has 21 or 22 first and the rest is
    // halved: a has 6 + (990 - 21) / 2.
    let got = w.served(ms(110_000));
    assert!((490..=491).contains(&got[0]) && got[0] + got[1] == 1000, "{got:?}");
}

#[test]
fn a_class_blocked_behind_a_meter_does_not_hold_v_back() {
    let mut w = world(vec![limited("a", 1, 1), rule("b", 1), rule("c", 1)], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(100_000));
    w.client("c", OpKind::Read, 1, 20);
    // The round that runs at 100 s was b's but for one of a's ten. The 990 after it, less
    // nine of a's, are halved: b has 9 + 981 / 2.
    let got = w.served(ms(110_000));
    assert!(got[0] == 10 && (499..=500).contains(&got[1]), "{got:?}");
    assert_eq!(got.iter().sum::<u64>(), 1000);
}

#[test]
fn a_lifted_limit_is_not_paid_back_by_the_others() {
    let mut w = world(vec![limited("a", 1, 1), rule("b", 1)], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(100_000));
    w.sched.set_rules(rules(vec![rule("a", 1), rule("b", 1)], vec![]), w.now);
    // The round that runs at 100 s was b's but for one; the 990 after it are halved, and a,
    // which counted as idle, begins at v, one request before b's next.
    let got = w.served(ms(110_000));
    assert!((496..=497).contains(&got[0]) && got[0] + got[1] == 1000, "{got:?}");
}

#[test]
fn large_reserved_requests_get_all_of_their_reservation() {
    let mut w = world(vec![reserved("a", 1, units(60)), rule("b", 1000)], vec![]);
    w.client("a", OpKind::Read, 4, 8);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    // Here all requests end in rounds, so slots are free together and none has to wait.
    assert_eq!(w.served(ms(70_000)), [3600 / 4, 2400]);
    assert_eq!(w.idle_slot_ns, 0);
}

/// Slots that stand empty while something waits, in per mille, and the units that a has in
/// 100 s with requests of 4 slots, beside requests of one slot, where service times differ.
fn cost_of_collecting(slots_max: u32, ragged_percent: u64, all: Vec<Rule>) -> (u64, u64) {
    let slots = u64::from(slots_max);
    let mut w = World::new(target(slots_max, UNIT_NS * 10 / slots), rules(all, vec![]));
    w.ragged_percent = ragged_percent;
    w.client("a", OpKind::Read, 4, slots_max);
    w.client("b", OpKind::Read, 1, 2 * slots_max);
    w.run(ms(10_000));
    let before = w.idle_slot_ns;
    let got = w.served(ms(110_000));
    ((w.idle_slot_ns - before) / (slots * 100_000_000), got[0] * 4)
}

#[test]
fn collecting_slots_for_a_reservation_costs_service_if_service_times_differ() {
    println!("D, +- %: slots empty, in per mille, with 6/10 reserved and by weights 6 : 4");
    // The most that is empty is the table's figure and a tenth of it.
    for (slots_max, ragged, most) in [
        (10, 0, 0),
        (10, 10, 28),
        (10, 30, 51),
        (10, 50, 57),
        (10, 90, 84),
        (64, 0, 0),
        (64, 90, 14),
    ] {
        let rate = 6 * u64::from(slots_max);
        let promised = vec![reserved("a", 1, units(rate)), rule("b", 1000)];
        let (with, got) = cost_of_collecting(slots_max, ragged, promised);
        let (without, _) = cost_of_collecting(slots_max, ragged, vec![rule("a", 6), rule("b", 4)]);
        println!("{slots_max} {ragged}: {with} {without}");
        assert!(got.abs_diff(100 * rate) <= slots_max.into(), "{got}: all, but for what runs");
        assert!(without <= with && with <= most, "{with} and {without} per mille");
        assert!(with >= most / 2, "{with} per mille: a model without the cost shows nothing");
    }
}

#[test]
fn small_requests_pass_a_head_that_does_not_fit_but_not_for_ever() {
    let mut w = world(vec![rule("large", 1), rule("small", 1)], vec![]);
    w.client("large", OpKind::Read, 8, 2);
    w.client("small", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    let before = w.clients[0].starts.len();
    let got = w.served(ms(90_000));
    let (large, small) = (got[0] * 8, got[1]);
    // Equal weights, apart by (D + 1)(8 + 1) units at the most, and every slot in use.
    assert!(large.abs_diff(small) <= 99, "{large} and {small}");
    assert!(8000 - (large + small) <= 10, "{large} and {small}");
    // Between two: its own 100 ms, 100 ms in which ten slots pass the next and 100 ms until
    // the last of them ends; and a round more, for all end in rounds.
    let gaps = w.clients[0].starts[before..].windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.max().expect("it ran") <= 400_000_000);
}

#[test]
fn a_light_class_does_not_overtake_a_heavy_one_without_end() {
    let mut w = world(vec![rule("large", 10), rule("small", 1)], vec![]);
    w.client("large", OpKind::Read, 8, 4);
    w.client("small", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    let got = w.served(ms(98_000));
    // One large request in each of 880 rounds of 100 ms, for two do not fit; small ones in the
    // two other slots, but for a tenth of that only.
    assert_eq!(got[0] * 8, 7040);
    assert!(got[1].abs_diff(704) <= 10, "10 : 1 came out as {} : {}", got[0] * 8, got[1]);
}

#[test]
fn weights_from_1_to_32_are_exact() {
    for weight in [2, 4, 8, 16, 32] {
        let mut w = world(vec![rule("a", weight), rule("b", 1)], vec![]);
        w.client("a", OpKind::Write, 1, 40);
        w.client("b", OpKind::Read, 1, 40);
        // 100 of b's and 100 × weight of a's are whole rounds of ten slots.
        let rounds = 10 * (u64::from(weight) + 1);
        w.run(ms(10_000));
        let got = w.served(ms(10_000 + rounds * 100));
        assert_eq!(got, [100 * u64::from(weight), 100]);
    }
}

#[test]
fn weights_hold_for_requests_of_different_sizes() {
    let mut w = world(vec![rule("a", 3), rule("b", 1)], vec![]);
    w.client("a", OpKind::Read, 4, 20);
    w.client("b", OpKind::Read, 1, 40);
    w.run(ms(10_000));
    let got = w.served(ms(90_000));
    let (a, b) = (got[0] * 4, got[1]);
    // (D + 1)(4 / 3 + 1 / 1), times 3.
    assert!((a as i64 - 3 * b as i64).abs() <= 77, "3 : 1 came out as {a} : {b}");
}

#[test]
fn classes_behind_one_meter_share_it_by_weight_whatever_runs_beside() {
    let meters = vec![shared("m", "a b", ops(50))];
    let mut w = world(vec![rule("a", 1), rule("b", 4), rule("c", 1)], meters);
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(10_000));
    let got = w.served(ms(60_000));
    assert!(got[0].abs_diff(500) <= 1 && got[1].abs_diff(2000) <= 1, "1 : 4 of 2500 is {got:?}");
    assert_eq!(got.iter().sum::<u64>(), 5000);
}

#[test]
fn many_classes_behind_one_meter_share_it_by_weight() {
    let names: Vec<String> = (0..50).map(|i| format!("j{i}")).collect();
    let all = names.iter().enumerate().map(|(i, name)| rule(name, 1 + i as u32 % 2)).collect();
    let mut w = world(all, vec![shared("m", "j*", ops(75))]);
    for name in &names {
        w.client(name, OpKind::Read, 1, 4);
    }
    w.run(ms(10_000));
    let got = w.served(ms(50_000));
    for (i, served) in got.iter().enumerate() {
        let share = 40 * (1 + i as u64 % 2);
        assert!(served.abs_diff(share) <= 1, "class {i} got {served} of {share}");
    }
}

#[test]
fn a_limit_smaller_than_one_request_spaces_requests_out() {
    let rate = Rate::bytes_per_sec(UNIT_BYTES).expect("above zero");
    let rule = Rule { limits: vec![limit(rate)], ..rule("a", 1) };
    let mut w = world(vec![rule], vec![]);
    w.client("a", OpKind::Read, 4, 3);
    w.run(ms(60_000));
    // One request is 4 s of the rate; the burst is the request in hand, which at the
    // origin of time has not been saved up.
    assert_eq!(w.clients[0].starts, (0..=15).map(|i| i * 4_000_000_000).collect::<Vec<u64>>());
}

#[test]
fn limits_hold_from_1_mb_to_1_gb_a_second() {
    let mut tried = 0;
    for (rate, request) in [(1, 4096), (1, 1 << 20), (10, 65_536), (100, 1 << 20), (1000, 1 << 20)]
    {
        for depth in [1, 4, 64] {
            let per_sec = rate * 1_000_000;
            let bytes = Rate::bytes_per_sec(per_sec).expect("above zero");
            let all = vec![Rule { limits: vec![limit(bytes)], ..rule("a", 1) }];
            // Twice the limit without it: a page takes its share of 2 × the rate.
            let unit_ns = UNIT_BYTES * 1_000_000_000 / (per_sec * 2);
            let mut w = World::new(target(64, unit_ns), rules(all, vec![]));
            w.client("a", OpKind::Read, request / UNIT_BYTES, depth);
            w.clients[0].depth = depth;
            w.run(ms(1_000));
            let got = w.served(ms(11_000))[0] * request;
            let want = per_sec * 10;
            let unlimited = unlimited_rate(request, unit_ns, depth);
            if unlimited < per_sec * 3 / 2 {
                continue;
            }
            tried += 1;
            let slack = (want / 50).max(2 * request);
            assert!(got.abs_diff(want) <= slack, "{rate} MB/s, {request} B × {depth}: {got}");
        }
    }
    assert_eq!(tried, 12, "the server must be fast enough for these to say something");
}

/// Bytes per second that the modelled server gives a closed loop of that depth.
fn unlimited_rate(request: u64, unit_ns: u64, depth: u32) -> u64 {
    let units = request / UNIT_BYTES;
    let slots = units.next_power_of_two().min(64);
    let ns = units * unit_ns * 64 / slots;
    let at_once = u64::from(depth).min(64 / slots);
    request * at_once * 1_000_000_000 / ns
}

#[test]
fn a_write_limit_does_not_block_reads() {
    let only = |kind| KindSet::NONE.with(kind);
    let writes = Limit { kinds: only(OpKind::Write), rate: ops(1), burst: Some(0) };
    let mut w = world(vec![Rule { limits: vec![writes], ..rule("a", 1) }], vec![]);
    w.client("a", OpKind::Write, 1, 30);
    w.client("a", OpKind::Read, 1, 30);
    w.run(ms(9_950));
    assert_eq!(w.clients[0].starts.len(), 10);
    // 99.5 rounds of 10 slots, nine of them written through.
    assert_eq!(w.clients[0].starts.len() + w.clients[1].starts.len(), 1000);
}

#[test]
fn a_request_pays_each_of_its_meters_and_the_slowest_decides() {
    let meters = vec![shared("ab", "a b", ops(30)), shared("bc", "b c", ops(20))];
    let mut w = world(vec![rule("a", 1), rule("b", 1), rule("c", 1)], meters);
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 10);
    }
    w.run(ms(10_000));
    let got = w.served(ms(70_000));
    // b and c halve the 20 a second of theirs; b is not short of the other, whose rest of its
    // 30 is a's. Each meter may run ahead by the request that it let go and that waits.
    let want = [20 * 60, 10 * 60, 10 * 60];
    assert!(got.iter().zip(want).all(|(got, want)| got.abs_diff(want) <= 2), "{got:?}");
}

#[test]
fn a_slow_limit_of_one_class_does_not_stall_the_meter_it_shares() {
    let meters = vec![shared("all", "a b", ops(80))];
    let mut w = world(vec![limited("a", 1, 2), rule("b", 1)], meters);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    let got = w.served(ms(40_000));
    assert_eq!((got[0], got[0] + got[1]), (60, 2400));
}

#[test]
fn a_class_at_its_slot_cap_leaves_the_rest_to_others() {
    let capped = Rule { slots: Some(3), ..rule("a", 9) };
    let mut w = world(vec![capped, rule("b", 1)], vec![]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    assert_eq!(w.served(ms(20_000)), [300, 700]);
}
