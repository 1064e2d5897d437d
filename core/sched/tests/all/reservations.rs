//! What a reservation is worth beside many other classes: data, and the requests without bytes
//! that a job needs to get at its data.
//!
//! The server gives 1000 units a second over 16 slots: a unit runs for 16 ms in its slot, an
//! operation without bytes for 1.6 ms. 32 classes of the same weight keep four reads of four units
//! each outstanding. The table of docs/algorithms/dispatcher.md is what these print.

use crate::server::*;
use model::{Direction, KindSet, Nanos, OpKind, PathSet, Rate, Time};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, Rule};

const UNIT_NS: u64 = 1_000_000;
const SLOTS: u32 = 16;
const BULLIES: u32 = 32;

/// 32 classes beside these.
fn world(mut first: Vec<Rule>) -> World {
    let names = (0..BULLIES).map(|i| format!("bully{i}"));
    first.extend(names.map(|name| rule(&name, 1)));
    let mut target = target(SLOTS, UNIT_NS);
    for op in &mut target.costs.device.ops {
        *op = Nanos::new(UNIT_NS / 10);
    }
    let mut w = World::new(target, rules(first, vec![]));
    for i in 0..BULLIES {
        w.client(&format!("bully{i}"), OpKind::Read, 4, 4);
    }
    w
}

fn bytes(units: u64) -> Rate {
    Rate::bytes_per_sec(units * UNIT_BYTES).expect("above zero")
}

fn reserved(job: &str, rate: Rate) -> Rule {
    Rule { reservation: Some(rate), ..rule(job, 1) }
}

/// Requests of a client that were dispatched from one time to another.
fn dispatched(client: &Client, from_ms: u64, to_ms: u64) -> u64 {
    let within = from_ms * 1_000_000..to_ms * 1_000_000;
    client.starts.iter().filter(|start| within.contains(start)).count() as u64
}

#[test]
fn files_that_are_read_in_turn_reach_the_reservation() {
    let mut w = world(vec![reserved("vip", bytes(500))]);
    let one = |kind| Step { kind, units: 0, count: 1 };
    let file =
        [one(OpKind::Walk), one(OpKind::Open), Step { kind: OpKind::Read, units: 4, count: 64 }];
    let vip = w.stepping_client("vip", &file);
    w.run(ms(10_000));
    let done = w.served(ms(70_000))[vip];
    // 64 of 66 requests are reads of four units.
    let units = done * 64 / 66 * 4;
    println!("{units} units in 60 s");
    assert!(units >= 60 * 500 * 98 / 100, "{units} of {} units", 60 * 500);
}

#[test]
fn the_fsync_of_a_dump_goes_by_the_row_that_reserves_its_writes() {
    let mut w = world(vec![rule("dumps", 1)]);
    let step = |kind, units, count| Step { kind, units, count };
    let dump = [
        step(OpKind::Create, 0, 1),
        step(OpKind::Write, 4, 100),
        step(OpKind::Fsync, 0, 1),
        step(OpKind::Clunk, 0, 1),
    ];
    let dumps = w.stepping_client("dumps", &dump);
    let scope = EntitlementScope { job: Some(who("dumps").job), ..EntitlementScope::default() };
    let (writes, grants) = (KindSet::of(Direction::Write), Grantable::Reservation(bytes(400)));
    let row = Entitlement::new(scope, grants, writes, EntitlementSource::Reservation).unwrap();
    w.sched.set_entitlements(vec![(EntitlementId(1), Some(row))], w.now, w.now);
    w.run(ms(10_000));
    let done = w.served(ms(70_000))[dumps];
    // 100 of 103 requests are writes of four units
    let units = done * 100 / 103 * 4;
    println!("{units} units in 60 s");
    assert!(units >= 60 * 400 * 97 / 100, "{units} of {} units", 60 * 400);
}

#[test]
fn an_open_of_a_reserved_class_does_not_wait_for_its_own_reads() {
    let mut w = world(vec![reserved("vip", bytes(500)), rule("idle", 1)]);
    w.client("vip", OpKind::Read, 4, 32);
    let vip = w.client("vip", OpKind::Open, 0, 1);
    let idle = w.client("idle", OpKind::Open, 0, 1);
    w.run(ms(60_000));
    // Each sends the next one when one is done: whose opens take long has few.
    let [count, others] = [vip, idle].map(|client| w.clients[client].done);
    assert!(count >= others / 2, "{count} opens beside its own reads, {others} with nothing else");
    let (own, other) = (w.clients[vip].p99(OpKind::Open), w.clients[idle].p99(OpKind::Open));
    assert!(own <= 2 * other, "{own} ns beside its own reads, {other} ns with nothing else queued");
}

#[test]
fn a_flood_of_metadata_gets_the_account_of_a_reservation_or_the_share_and_not_both() {
    let mut w = world(vec![reserved("vip", bytes(500))]);
    let vip = w.client("vip", OpKind::Open, 0, 64);
    w.run(ms(70_000));
    // A tenth of 500 units a second is 500 opens a second; a share of 33 would be 303.
    let opens = dispatched(&w.clients[vip], 10_000, 70_000);
    println!("{opens} opens in 60 s");
    assert!(opens.abs_diff(30_000) <= 100, "{opens} of 30000");
}

#[test]
fn the_smallest_reservation_gives_a_flood_of_metadata_its_share_and_no_more() {
    let opens = |rule: Rule| {
        let mut w = world(vec![rule]);
        let vip = w.client("vip", OpKind::Open, 0, 64);
        w.run(ms(70_000));
        dispatched(&w.clients[vip], 10_000, 70_000)
    };
    let smallest = reserved("vip", Rate::bytes_per_sec(1).expect("above zero"));
    let (with, without) = (opens(smallest), opens(rule("vip", 1)));
    println!("{with} opens in 60 s");
    assert!(with.abs_diff(without) <= 1, "{with} with, {without} without a reservation");
    // A 33rd of what 1000 units a second are in opens.
    assert!(without.abs_diff(60 * 10_000 / 33) <= 200, "{without}");
}

#[test]
fn what_a_reservation_serves_counts_towards_the_share_of_many_slots_too() {
    for slots in [10, 32, 64] {
        let unit = 100_000_000 / u64::from(slots);
        let all = vec![reserved("a", ops(6 * u64::from(slots))), rule("b", 1), rule("c", 2)];
        let mut w = World::new(target(slots, unit), rules(all, vec![]));
        for job in ["a", "b", "c"] {
            w.client(job, OpKind::Read, 1, 2 * slots);
        }
        w.run(ms(10_000));
        let got = w.served(ms(70_000));
        let all = 600 * u64::from(slots);
        let want = [all * 9 / 15, all * 2 / 15, all * 4 / 15];
        for (got, want) in got.iter().zip(want) {
            assert!(got.abs_diff(want) <= u64::from(slots), "{slots} slots: {got} of {want}");
        }
    }
}

#[test]
fn reservation_that_the_backend_serves_one_by_one_leaves_slots_to_others_and_slows_no_clock() {
    // Of the 500 units a second that are reserved for the first job the backend serves 62: one request
    // of a unit after the other, in 16 ms each.
    let all = vec![reserved("serial", bytes(500)), reserved("other", bytes(200)), rule("rest", 1)];
    let mut w = World::new(target(SLOTS, UNIT_NS), rules(all, vec![]));
    let serial = w.client("serial", OpKind::Read, 1, 64);
    w.clients[serial].serial_until = Some(Time::ZERO);
    w.client("other", OpKind::Read, 1, 64);
    w.client("rest", OpKind::Read, 1, 64);
    w.run(ms(10_000));
    let served = w.served(ms(20_000));
    assert!(served[1] >= 1_960, "200 a second are reserved: {served:?}");
    assert!(served[2] >= 200, "{served:?}");
    assert!(w.sched.reservation_shortfall_ppm(T, w.now) > 500_000, "what it is not served is told");
}

/// A device of 100 requests a second with ten slots, and a cached lane like it.
fn two_lanes(all: Vec<Rule>) -> World {
    World::new(target(10, 10 * UNIT_NS), rules(all, vec![]))
}

/// Lets nothing that a client has on the device from now on end before a time.
fn stick(w: &mut World, client: usize, until: Time) {
    w.clients[client].serial_until = Some(until);
    w.run(until);
    w.clients[client].serial_until = None;
}

/// Two reservations after ten seconds, one of the device and one of the cache, and their clients.
fn cache_beside_a_device() -> (World, usize, usize) {
    let all = vec![reserved("device", ops(60)), reserved("cache", ops(60)), rule("rest", 1000)];
    let mut w = two_lanes(all);
    let device = w.client("device", OpKind::Read, 1, 20);
    let cache = w.cached_client("cache", 1, 20, 0);
    w.cached_client("rest", 1, 20, 0);
    w.run(ms(10_000));
    (w, device, cache)
}

#[test]
fn reservation_that_the_cache_serves_waits_for_no_device_that_was_stuck() {
    let (mut w, device, cache) = cache_beside_a_device();
    stick(&mut w, device, ms(20_000));
    let served = w.served(ms(25_000))[cache];
    assert!(served >= 5 * 60 * 9 / 10, "{served} of 300 in the 5 s after that");
}

#[test]
fn reservation_in_another_unit_is_not_late_since_its_class_has_waited() {
    let all = |first| vec![first, reserved("b", ops(30)), rule("rest", 1000)];
    let mut w = two_lanes(all(reserved("a", ops(30))));
    w.client("a", OpKind::Read, 1, 20);
    let b = w.client("b", OpKind::Read, 1, 20);
    w.client("rest", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    let rules = rules(all(reserved("a", Rate::bytes_per_sec(30 * UNIT_BYTES).unwrap())), vec![]);
    w.sched.set_rules(rules, w.now);
    let served = w.served(ms(15_000))[b];
    assert!(served >= 5 * 30 * 9 / 10, "{served} of 150 in the 5 s after that");
}

#[test]
fn reservation_that_began_to_wait_before_the_clock_was_set_back_is_told_if_it_is_cut() {
    let all = vec![reserved("stuck", ops(50)), reserved("late", ops(200))];
    let mut w = two_lanes(all);
    let stuck = w.client("stuck", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    w.clients[stuck].serial_until = Some(ms(20_000));
    w.run(ms(19_000));
    w.client("late", OpKind::Read, 1, 20);
    w.clients[stuck].depth = 11;
    stick(&mut w, stuck, ms(20_000));
    w.clients[stuck].depth = 0;
    w.run(ms(25_000));
    let cut = w.sched.reservation_shortfall_ppm(T, w.now);
    assert!(cut >= 400_000, "half of its 200 a second can be served: {cut} ppm are cut");
}

#[test]
fn standstill_is_lost_once_however_many_waited() {
    let count = 8;
    let idle = (0..count).map(|at| reserved(&format!("idle{at}"), ops(1)));
    let all = [reserved("busy", ops(50)), rule("rest", 1000)];
    let mut w = two_lanes(all.into_iter().chain(idle).collect());
    let busy = w.client("busy", OpKind::Read, 1, 20);
    w.client("rest", OpKind::Read, 1, 20);
    w.run(ms(10_000));
    for client in &mut w.clients {
        client.serial_until = Some(ms(20_000));
    }
    w.run(ms(10_500));
    for at in 0..count {
        w.client(&format!("idle{at}"), OpKind::Read, 1, 1);
    }
    w.run(ms(20_000));
    w.clients.iter_mut().for_each(|client| client.serial_until = None);
    w.run(ms(23_000));
    let served = w.served(ms(28_000))[busy];
    assert!(served >= 5 * 50 * 9 / 10, "{served} of 250");
}

#[test]
fn reservation_at_rest_follows_the_clock_too() {
    let (mut w, device, cache) = cache_beside_a_device();
    w.clients[device].serial_until = Some(ms(20_000));
    w.run(ms(18_000));
    w.clients[cache].depth = 0;
    w.run(ms(19_000));
    w.sched.release_subject(w.clients[cache].subject);
    stick(&mut w, device, ms(20_500));
    w.clients[cache].subject = w.sched.subject(T, &who("cache"), PathSet::default());
    w.clients[cache].depth = 20;
    let served = w.served(ms(25_500))[cache];
    assert!(served >= 5 * 60 * 9 / 10, "{served} of 300 in the 5 s after that");
}
