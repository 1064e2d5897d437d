//! What a controller grants: parts of limits, reservations and weights, rates of decays, and what
//! is said of their use.
//!
//! Unless it says otherwise, the server gives 100 unit requests a second over D = 10 slots.

use crate::server::*;
use model::{
    Amount, Grants, KeyValue, KindSet, Lane, Nanos, OpKind, PathSet, Rate, ReservationLag, Scope,
    ScopeUsage, Share, SharePool, SlotsClaim,
};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, KeyField, Rule,
    RuleSet,
};
use sluice_sched::{Arrival, Dispatcher};

const UNIT_NS: u64 = 10_000_000;

fn world(all: Vec<Rule>) -> World {
    let mut w = World::new(target(10, UNIT_NS), rules(all, vec![]));
    w.run(ms(10_000));
    w
}

fn percent(part: u64) -> Share {
    Share::ratio(part, 100)
}

/// Parts of single rules; the others are at an equal part of `members`.
fn granted(members: u32, listed: &[(&str, Share)]) -> Grants {
    let listed = listed.iter().map(|(name, part)| (Scope::rule(name, &[]), Some(*part)));
    Grants { proxies: members, unlisted: Share::equal(members), listed: listed.collect() }
}

fn assert_near(got: &[u64], want: &[u64], slack: u64) {
    let near = got.iter().zip(want).all(|(got, want)| got.abs_diff(*want) <= slack);
    assert!(near && got.len() == want.len(), "{got:?}, not {want:?}");
}

fn used(world: &mut World) -> Vec<(Scope, ScopeUsage)> {
    usage(&mut world.sched, world.now)
}

#[test]
fn a_limit_is_scaled_by_its_part_and_by_that_of_what_is_not_listed() {
    let mut w = world(vec![limited("a", 40), limited("b", 40)]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    assert_near(&w.served(ms(20_000)), &[400, 400], 6);
    grant(&mut w.sched, &granted(2, &[("a", percent(99)), ("b", percent(1))]), w.now);
    assert_near(&w.served(ms(30_000)), &[396, 4], 5);
    grant(&mut w.sched, &granted(2, &[("a", percent(50))]), w.now);
    assert_near(&w.served(ms(40_000)), &[200, 4], 5);
    let gone = Grants { listed: vec![(Scope::rule("b", &[]), None)], ..granted(4, &[]) };
    grant(&mut w.sched, &gone, w.now);
    assert_near(&w.served(ms(50_000)), &[200, 100], 5);
}

#[test]
fn parts_that_go_up_and_down_refill_nothing() {
    let mut w = world(vec![limited("a", 50)]);
    w.client("a", OpKind::Read, 1, 20);
    w.run(ms(20_000));
    let before = w.clients[0].done;
    for step in 0..100 {
        let part = if step % 2 == 0 { 2 } else { 98 };
        grant(&mut w.sched, &granted(2, &[("a", percent(part))]), w.now);
        w.run(ms(20_000 + 100 * (step + 1)));
    }
    // Half of 50 a second for ten seconds, whatever the order.
    assert_near(&[w.clients[0].done - before], &[250], 6);
}

#[test]
fn a_third_of_a_small_limit_is_exact() {
    let mut w = world(vec![limited("a", 10)]);
    w.client("a", OpKind::Read, 1, 20);
    grant(&mut w.sched, &granted(3, &[]), w.now);
    assert_near(&w.served(ms(310_000)), &[1_000], 2);
}

#[test]
fn reservation_is_scaled_by_the_share_also_for_a_dormant_class() {
    let promised = Rule { reservation: Some(ops(60)), ..rule("a", 1) };
    let mut w = world(vec![promised, rule("b", 1), rule("c", 2)]);
    for job in ["a", "b", "c"] {
        w.client(job, OpKind::Read, 1, 20);
    }
    w.run(ms(20_000));
    assert_near(&w.served(ms(30_000)), &[600, 133, 267], 12);
    // The weight falls with the reservation.
    let all = [("a", percent(75)), ("b", percent(50)), ("c", percent(50))];
    grant(&mut w.sched, &granted(2, &all), w.now);
    assert_near(&w.served(ms(40_000)), &[450, 183, 367], 12);
    // All go, and a comes back with another part.
    for client in &mut w.clients {
        client.depth = 0;
    }
    w.run(ms(45_000));
    let subject = w.clients[0].subject;
    w.sched.release_subject(subject);
    grant(&mut w.sched, &granted(2, &[("a", percent(25))]), w.now);
    w.clients[0].subject = w.sched.subject(T, &who("a"), PathSet::default());
    for client in &mut w.clients {
        client.depth = 20;
    }
    w.run(ms(46_000));
    let served = w.served(ms(56_000));
    assert!(served[0].abs_diff(150) < 15, "{served:?}");
}

#[test]
fn a_weight_is_multiplied_by_its_part_and_by_the_members() {
    let mut w = world(vec![rule("a", 1), rule("b", 1)]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    grant(&mut w.sched, &granted(4, &[]), w.now);
    w.run(ms(15_000));
    assert_near(&w.served(ms(25_000)), &[500, 500], 6);
    // a works at all four proxies, b only here: b has 4 times the weight of a.
    grant(&mut w.sched, &granted(4, &[("b", Share::WHOLE)]), w.now);
    w.run(ms(30_000));
    assert_near(&w.served(ms(40_000)), &[200, 800], 8);
    let weights: Vec<u32> = w.sched.classes().map(|class| class.weight.get()).collect();
    assert_eq!(weights, [1, 1], "reports show what the rule says");
}

#[test]
fn a_key_that_comes_later_has_the_part_that_is_listed_for_it() {
    let per_job = Rule {
        per: vec![KeyField::Jobid],
        limits: vec![limit(ops(40))],
        ..Rule::new("jobs", "jobid={io.*}".parse().unwrap())
    };
    let mut w = world(vec![per_job]);
    let key = |job: &str| Scope::rule("jobs", &[KeyValue::Jobid(who(job).job)]);
    let listed = vec![(key("io.1"), Some(percent(75)))];
    grant(&mut w.sched, &Grants { proxies: 2, unlisted: percent(50), listed }, w.now);
    w.client("io.1", OpKind::Read, 1, 20);
    w.client("io.2", OpKind::Read, 1, 20);
    assert_near(&w.served(ms(30_000)), &[600, 400], 8);
}

#[test]
fn a_meter_of_many_classes_is_divided_too() {
    let all = rules(vec![rule("a", 1), rule("b", 1)], vec![shared("m", "a b", ops(60))]);
    let mut w = World::new(target(10, UNIT_NS), all);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    let listed = vec![(Scope::meter("m", &[]), Some(percent(10)))];
    grant(&mut w.sched, &Grants { proxies: 1, unlisted: Share::WHOLE, listed }, w.now);
    w.run(ms(5_000));
    assert_near(&w.served(ms(25_000)), &[60, 60], 4);
}

#[test]
fn uses_say_what_was_moved_of_the_whole_limit_and_who_waits() {
    let mut w = world(vec![limited("a", 40), limited("b", 80), rule("c", 1), limited("d", 5)]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 1);
    w.client("c", OpKind::Read, 1, 1);
    used(&mut w);
    w.run(ms(20_000));
    let uses = used(&mut w);
    let names: Vec<String> = uses.iter().map(|(scope, _)| scope.to_string()).collect();
    assert_eq!(names, ["rule a", "rule b", "rule c"], "d did nothing");
    let of = |at: usize| uses[at].1.used.map(|part| part.of(100));
    assert!(of(0).unwrap().abs_diff(100) <= 2 && uses[0].1.waiting, "{uses:?}");
    // One at a time of 100 ms each: ten of 80 a second.
    assert!(of(1).unwrap().abs_diff(12) <= 1 && !uses[1].1.waiting, "{uses:?}");
    assert_eq!(uses[2].1.used, None, "nothing of it is limited");
    w.clients.iter_mut().for_each(|client| client.depth = 0);
    w.run(ms(25_000));
    used(&mut w);
    w.run(ms(26_000));
    assert_eq!(used(&mut w), []);
}

fn decayed(max: &str) -> World {
    let text = format!(
        "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n\n[[decay]]\nname = \"ops\"\nper = [\"jobid\"]\nexempt = \"jobid={{root}}\"\nresource = \"metadata\"\n\
         entitlement = \"10ops/s\"\n{max}floor = \"1ops/s\"\nmode = \"period\"\nperiod = \"1h\"\n"
    );
    World::new(target(10, UNIT_NS), RuleSet::parse(&text).expect("a valid file").into())
}

#[test]
fn a_decay_holds_one_key_to_its_rate_and_lets_it_go_again() {
    let mut w = decayed("");
    for job in ["a", "b", "root"] {
        w.client(job, OpKind::Getattr, 1, 20);
    }
    w.run(ms(10_000));
    let free = w.served(ms(20_000));
    assert!(free.iter().all(|done| *done > 300), "{free:?}");
    let key = |job: &str| Scope::decay("ops", &[KeyValue::Jobid(who(job).job)]);
    let listed = vec![(key("a"), Some(percent(25)))];
    grant(&mut w.sched, &Grants { proxies: 2, unlisted: percent(50), listed }, w.now);
    limit_key(&mut w, 1, key("a"), Some(ops(40)));
    w.run(ms(21_000));
    let served = w.served(ms(31_000));
    assert!(served[0].abs_diff(100) <= 4, "a quarter of 40 a second: {served:?}");
    assert!(served[1].abs_diff(450) <= 20 && served[2].abs_diff(450) <= 20, "{served:?}");
    let uses = used(&mut w);
    let about = uses.iter().find(|(scope, _)| *scope == key("a")).expect("it is limited");
    assert!(about.1.waiting);
    assert!(uses.iter().all(|(scope, _)| *scope != key("b")), "there is nothing to divide");
    limit_key(&mut w, 1, key("a"), None);
    w.run(ms(33_000));
    let free = w.served(ms(43_000));
    assert!(free.iter().all(|done| *done > 300), "{free:?}");
}

/// Puts or removes the row that limits a key of a decay.
fn limit_key(w: &mut World, id: u64, key: Scope, rate: Option<Rate>) {
    let scope = EntitlementScope { class: Some(key), ..EntitlementScope::default() };
    let row = |rate| {
        let grants = Grantable::Limit(rate, None);
        Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Decay).unwrap()
    };
    w.sched.set_entitlements(vec![(EntitlementId(id), rate.map(row))], w.now, w.now);
}

#[test]
fn the_lowest_row_of_a_key_limits_it_and_rows_of_another_unit_or_key_do_not() {
    let mut w = decayed("max = \"200ops/s\"\n");
    w.client("a", OpKind::Getattr, 1, 20);
    w.client("b", OpKind::Getattr, 1, 20);
    let key = |job: &str| Scope::decay("ops", &[KeyValue::Jobid(who(job).job)]);
    limit_key(&mut w, 1, key("a"), Some(ops(90)));
    w.run(ms(10_000));
    limit_key(&mut w, 2, key("a"), Some(ops(30)));
    limit_key(&mut w, 3, key("a"), Rate::bytes_per_sec(1));
    limit_key(&mut w, 4, Scope::decay("ops", &[]), Some(ops(1)));
    w.run(ms(11_000));
    assert_near(&w.served(ms(21_000)), &[300, 700], 20);
    // Other values, and a row that begins to limit another key.
    limit_key(&mut w, 2, key("a"), Some(ops(50)));
    assert_near(&w.served(ms(31_000)), &[500, 500], 20);
    limit_key(&mut w, 2, key("b"), Some(ops(10)));
    assert_near(&w.served(ms(41_000)), &[900, 100], 20);
    // A class that comes later has it, too.
    limit_key(&mut w, 5, key("c"), Some(ops(20)));
    w.client("c", OpKind::Getattr, 1, 20);
    w.run(ms(42_000));
    assert!(w.served(ms(52_000))[2].abs_diff(200) <= 4);
    w.sched.check_invariants();
}

#[test]
fn a_decay_with_a_top_holds_everybody_to_it() {
    let mut w = decayed("max = \"20ops/s\"\n");
    w.client("a", OpKind::Getattr, 1, 20);
    w.client("root", OpKind::Getattr, 1, 20);
    w.run(ms(10_000));
    let served = w.served(ms(20_000));
    assert!(served[0].abs_diff(200) <= 4 && served[1] > 700, "{served:?}");
}

#[test]
fn service_elsewhere_may_be_told_of_a_class() {
    let mut w = world(vec![rule("a", 1), rule("b", 1)]);
    w.client("a", OpKind::Getattr, 1, 20);
    w.client("b", OpKind::Getattr, 1, 20);
    w.run(ms(20_000));
    let mut before = w.clients[0].done;
    let start = (w.clients[0].done, w.clients[1].done);
    for step in 0..1_000 {
        w.run(ms(20_010 + 10 * step));
        // For each request here it had one elsewhere.
        let more = w.clients[0].done - before;
        before = w.clients[0].done;
        let cost = Nanos::new(UNIT_NS * more);
        w.sched.charge_class_remote_service(T, &Scope::rule("a", &[]), cost, w.now);
        w.sched.charge_class_remote_service(T, &Scope::rule("unknown", &[]), cost, w.now);
    }
    let (a, b) = (w.clients[0].done - start.0, w.clients[1].done - start.1);
    assert!((2 * a).abs_diff(b) * 20 <= b, "a : b is 1 : 2: {a} : {b}");
}

#[test]
fn what_plain_clients_were_served_is_told_once_by_class() {
    let mut sched = Dispatcher::new([target(10, UNIT_NS)], rules(vec![rule("a", 1)], vec![]));
    let subject = sched.subject(T, &who("a"), PathSet::default());
    let ask = |sched: &mut Dispatcher| {
        let (kind, amount, lane) = (OpKind::Getattr, Amount::new(0, 1), Lane::Device);
        sched.enqueue(Arrival { subject, kind, amount, lane, token: 0 }, ms(1));
        let running = sched.poll_dispatch(ms(1)).expect("a slot is free");
        sched.count_unreported(running.id);
        sched.complete(running.id, amount, ms(1));
    };
    ask(&mut sched);
    assert_eq!(sched.take_unreported(T), [], "nobody had asked for it");
    (0..3).for_each(|_| ask(&mut sched));
    assert_eq!(sched.take_unreported(T), [(Scope::rule("a", &[]), Nanos::new(3 * UNIT_NS))]);
    assert_eq!(sched.take_unreported(T), []);
}

fn reserved(job: &str, rate: u64, weight: u32) -> Rule {
    Rule { reservation: Some(ops(rate)), ..rule(job, weight) }
}

/// A share of the slots; each class has all of its weight and reservation.
fn of_slots(part: Option<Share>) -> Grants {
    Grants { proxies: 1, unlisted: Share::WHOLE, listed: vec![(Scope::slots(), part)] }
}

/// Grants the target a share of its slots, and takes what its classes claim of them.
fn divide(w: &mut World, part: Option<Share>) -> Option<SlotsClaim> {
    w.sched.set_grants(SharePool::Target(T), &of_slots(part), w.now);
    w.sched.take_class_usage(T, w.now);
    w.sched.slots_claim(T)
}

#[test]
fn a_claim_says_what_reservations_need_of_the_device_and_the_weights_beside_them() {
    let mut w = world(vec![reserved("a", 20, 3), rule("b", 2), rule("c", 1)]);
    assert_eq!(divide(&mut w, None), None, "there are no requests");
    w.client("a", OpKind::Read, 2, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(11_000));
    divide(&mut w, None);
    w.run(ms(12_000));
    // 20 requests a second, each of two units of a hundredth of a second.
    let claim = divide(&mut w, None).unwrap();
    assert_eq!((claim.reserved_weight, claim.weight), (3 << 10, 2 << 10));
    assert!(claim.waiting && claim.used >= percent(90), "{claim:?}");
    assert!(percent(39) <= claim.reserved && claim.reserved <= percent(41), "{claim:?}");
}

#[test]
fn a_share_of_the_slots_is_of_what_goes_by_weight_and_reservations_use_all() {
    let mut w = world(vec![rule("a", 1)]);
    w.client("a", OpKind::Read, 1, 20);
    divide(&mut w, Some(percent(42)));
    assert_eq!(w.sched.slots_max(T), 5, "4.2 rounded up");
    assert_near(&w.served(ms(20_000)), &[420], 6);
    divide(&mut w, None);
    assert_eq!(w.sched.slots_max(T), 10);
    assert_near(&w.served(ms(30_000)), &[1_000], 12);
    let mut w = world(vec![reserved("a", 40, 1), rule("b", 1)]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_010));
    divide(&mut w, Some(percent(60)));
    assert_eq!(w.sched.slots_max(T), 10);
    w.run(ms(11_000));
    // 40 a second are reserved; a fifth is for both.
    assert_near(&w.served(ms(21_000)), &[400, 200], 12);
}

#[test]
fn a_share_below_what_is_reserved_leaves_something_to_requests_without_a_reservation() {
    let mut w = world(vec![reserved("a", 90, 1), rule("b", 1)]);
    w.client("a", OpKind::Read, 1, 20);
    w.client("b", OpKind::Read, 1, 20);
    w.run(ms(10_010));
    divide(&mut w, Some(percent(64)));
    w.run(ms(11_000));
    let served = w.served(ms(31_000));
    // 64 % of a target that serves 100 a second, of which one part in 64 is not for a.
    assert!((15..=40).contains(&served[1]), "{served:?}");
}

#[test]
fn a_reservation_whose_requests_are_all_in_service_is_claimed_and_lags() {
    // A thousand slots that serve ten requests a second each.
    let mut w = World::new(target(1_000, 100_000), rules(vec![reserved("a", 400, 1)], vec![]));
    w.ragged_percent = 90;
    w.client("a", OpKind::Read, 1, 8);
    let mut claims = Vec::new();
    for tick in 100..130 {
        w.run(ms(tick * 100));
        claims.push(divide(&mut w, None).expect("it has requests"));
    }
    assert_eq!(w.sched.queued(), 0);
    let lags: Vec<_> = claims.iter().map(|claim| claim.lag).collect();
    assert!(lags[..5].iter().all(|lag| *lag == ReservationLag::Growing), "{lags:?}");
    assert_eq!(claims[4].reserved, percent(4), "{claims:?}");
    // It has no more than eight outstanding: others are not the reason.
    assert_eq!(lags[29], ReservationLag::None);
    assert!(claims[29].reserved <= percent(3), "{claims:?}");
}

#[test]
fn less_than_a_slot_is_a_part_of_the_devices_time() {
    let mut w = world(vec![rule("a", 1)]);
    w.client("a", OpKind::Read, 1, 20);
    divide(&mut w, Some(percent(2)));
    assert_eq!(w.sched.slots_max(T), 1);
    w.run(ms(11_000));
    assert_near(&w.served(ms(31_000)), &[40], 1);
    // A request of four slots beside a share of two: one at a time, and no more than the share.
    let mut w = world(vec![rule("a", 1)]);
    w.client("a", OpKind::Read, 4, 20);
    divide(&mut w, Some(percent(20)));
    w.run(ms(11_000));
    assert_near(&w.served(ms(31_000)), &[100], 4);
}

#[test]
fn without_grants_everything_is_as_the_rules_say() {
    let alone =
        || World::new(target(10, UNIT_NS), rules(vec![limited("a", 33), rule("b", 3)], vec![]));
    let run = |mut w: World, tell: &dyn Fn(&mut Dispatcher)| {
        w.client("a", OpKind::Read, 1, 20);
        w.client("b", OpKind::Read, 3, 20);
        w.client("c", OpKind::Read, 1, 20);
        tell(&mut w.sched);
        w.run(ms(20_000));
        w.clients.iter().map(|client| client.starts.clone()).collect::<Vec<_>>()
    };
    let plain = run(alone(), &|_| {});
    let whole = run(alone(), &|sched| {
        let all = Grants { proxies: 1, unlisted: Share::WHOLE, listed: vec![] };
        grant(sched, &all, model::Time::ZERO);
    });
    assert_eq!(plain, whole);
}

#[test]
fn metadata_that_is_told_is_not_divided_by_parts_as_well() {
    let mut w = world(vec![rule("a", 2), rule("b", 1)]);
    // a asks at four servers, b at this one and one like it; at the other two a is alone.
    let part = |rule: &str, percent_of| (Scope::rule(rule, &[]), Some(percent(percent_of)));
    let listed = vec![part("a", 25), part("b", 50)];
    grant(&mut w.sched, &Grants { proxies: 4, unlisted: percent(25), listed }, w.now);
    w.client("a", OpKind::Getattr, 1, 20);
    w.client("b", OpKind::Getattr, 1, 20);
    w.run(ms(20_000));
    let start = [w.clients[0].done, w.clients[1].done];
    let mut before = start;
    for step in 0..2_000 {
        w.run(ms(20_010 + 10 * step));
        let done = [w.clients[0].done, w.clients[1].done];
        let all: u64 = (0..2).map(|at| done[at] - before[at]).sum();
        let elsewhere = [done[0] - before[0] + 2 * all, done[1] - before[1]];
        before = done;
        for (name, ops) in ["a", "b"].iter().zip(elsewhere) {
            let cost = Nanos::new(UNIT_NS * ops);
            w.sched.charge_class_remote_service(T, &Scope::rule(name, &[]), cost, w.now);
        }
    }
    let [a, b] = [0, 1].map(|at| w.clients[at].done - start[at]);
    // In all 2a + 2(a + b) to 2b is 2 to 1.
    assert!((2 * a).abs_diff(b) * 20 <= b, "a : b is 1 : 2 here: {a} : {b}");
}
