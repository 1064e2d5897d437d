//! Entitlements: rows that reserve, limit and weigh for what they name, for a time.

mod sums;

use proptest::prelude::*;

use crate::server::*;
use model::{
    Amount, Directory, FilePlace, Grants, KindSet, Lane, Nanos, OpKind, PathSet, Rate, Scope,
    Share, TargetId, Time, Weight,
};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, KeyField, Match,
    Rule,
};
use sluice_sched::{Arrival, Dispatcher, MeterPayers, SubjectId};

const UNIT_NS: u64 = 1_000_000;

fn of_job(job: &str) -> EntitlementScope {
    EntitlementScope { job: Some(who(job).job), ..EntitlementScope::default() }
}

fn of_class(rule: &str) -> EntitlementScope {
    EntitlementScope { class: Some(Scope::rule(rule, &[])), ..EntitlementScope::default() }
}

fn in_directory(text: &str) -> EntitlementScope {
    let directory = Directory::new(text.as_bytes());
    EntitlementScope { directory, ..EntitlementScope::default() }
}

fn row(scope: EntitlementScope, grants: Grantable) -> Entitlement {
    Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Operator).unwrap()
}

fn reserved(scope: EntitlementScope, rate: u64) -> Entitlement {
    row(scope, Grantable::Reservation(ops(rate)))
}

fn limited_to(scope: EntitlementScope, rate: u64) -> Entitlement {
    row(scope, Grantable::Limit(ops(rate), None))
}

fn put(world: &mut World, id: u64, row: Entitlement) {
    let refused =
        world.sched.set_entitlements(vec![(EntitlementId(id), Some(row))], world.now, world.now);
    assert_eq!(refused, 0);
}

fn take_away(world: &mut World, id: u64) {
    world.sched.set_entitlements(vec![(EntitlementId(id), None)], world.now, world.now);
}

/// A rule whose one class has all of these jobs.
fn one_class(name: &str, jobs: &str, weight: u32) -> Rule {
    let matcher = format!("jobid={{{jobs}}}").parse().unwrap();
    Rule { weight: Weight::new(weight).unwrap(), ..Rule::new(name, matcher) }
}

/// A device that serves 1,000 requests a second, D = 4.
fn world(all: Vec<Rule>) -> World {
    World::new(target(4, UNIT_NS), rules(all, vec![]))
}

/// A reader of each job with so many requests.
fn clients(world: &mut World, jobs: &[&str], depth: u32) {
    for job in jobs {
        world.client(job, OpKind::Read, 1, depth);
    }
}

fn near(got: u64, wanted: u64) -> bool {
    got.abs_diff(wanted) <= 2 + wanted / 50
}

#[test]
fn a_job_has_what_is_reserved_for_it_within_its_class_and_the_class_no_more_than_its_share() {
    let mut world = world(vec![one_class("both", "a b", 1), rule("c", 3)]);
    let jobs: Vec<usize> = ["a", "b", "c"].map(|job| world.client(job, OpKind::Read, 1, 8)).into();
    put(&mut world, 1, reserved(of_job("a"), 200));
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    // A quarter of the device is the class's: 250 a second, of which 200 are reserved for a. What
    // the class is served beyond comes in order of arrival.
    assert!(near(served[jobs[0]] + served[jobs[1]], 2_500), "{served:?}");
    assert!(served[jobs[0]] >= 1_980, "{served:?}");
    assert!(near(served[jobs[2]], 7_500), "{served:?}");
}

#[test]
fn a_reservation_beyond_the_share_of_the_class_holds() {
    let mut world = world(vec![one_class("both", "a b", 1), rule("c", 9)]);
    clients(&mut world, &["a", "b", "c"], 16);
    put(&mut world, 1, reserved(of_job("a"), 600));
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    assert!(near(served[0], 6_000), "{served:?}");
    put(&mut world, 1, reserved(of_job("a"), 300));
    world.run(ms(12_000));
    let served = world.served(ms(22_000));
    assert!(near(served[0], 3_000), "another rate is in force at once: {served:?}");
    take_away(&mut world, 1);
    world.run(ms(28_000));
    let served = world.served(ms(38_000));
    assert!(near(served[0] + served[1], 1_000), "a tenth is left: {served:?}");
    assert!(near(served[0], 500), "both in order of arrival: {served:?}");
}

/// What the first row was owed and served in ten seconds while its requests waited, read each tick.
fn waited(world: &mut World) -> (u64, u64) {
    let ticks = (0..100).map(|_| {
        world.run(world.now + Nanos::from_millis(100));
        world.sched.take_class_usage(T, world.now);
        let all = world.sched.take_waited(T);
        let own = all.iter().find(|(scope, _)| *scope == Scope::entitlement(1));
        own.map_or((0, 0), |(_, waited)| (waited.owed, waited.served))
    });
    ticks.fold((0, 0), |sum, tick| (sum.0 + tick.0, sum.1 + tick.1))
}

#[test]
fn a_reservation_is_owed_its_rate_while_its_requests_wait() {
    let mut world = world(vec![one_class("both", "a b", 1)]);
    clients(&mut world, &["a", "b"], 16);
    put(&mut world, 1, reserved(of_job("a"), 600));
    waited(&mut world);
    let (owed, served) = waited(&mut world);
    assert!(near(owed, 6_000) && near(served, 6_000), "{owed} {served}");
    world.slower = 4;
    let (owed, served) = waited(&mut world);
    assert!(near(owed, 6_000) && (1_500..=2_600).contains(&served), "{owed} {served}");
}

#[test]
fn what_a_late_reservation_is_served_by_weight_is_served() {
    // Slots that it leaves to others are its own by weight, as there are none.
    let mut world = world(vec![one_class("all", "a", 1)]);
    clients(&mut world, &["a"], 16);
    put(&mut world, 1, reserved(of_job("a"), 600));
    world.slower = 4;
    waited(&mut world);
    let (owed, served) = waited(&mut world);
    assert!(near(owed, 6_000) && near(served, 2_500), "{owed} {served}");
}

#[test]
fn a_reserved_job_that_asks_for_less_is_owed_nothing() {
    // Others keep the device busy, and a reads one request after the other: less than its rate.
    let mut one = world(vec![one_class("both", "a b", 1)]);
    one.slower = 8;
    clients(&mut one, &["a"], 1);
    put(&mut one, 1, reserved(of_job("a"), 600));
    assert_eq!(waited(&mut one), (0, 0));
    // Two at once, always in service: nothing waits but for its own client.
    let mut two = world(vec![one_class("both", "a b", 1)]);
    two.slower = 8;
    clients(&mut two, &["a"], 2);
    put(&mut two, 1, reserved(of_job("a"), 600));
    let (owed, _) = waited(&mut two);
    assert!(owed <= 2 * 600, "it is measured for 1.2 s whether others are the reason: {owed}");
    // A limit delays nothing that a row reserves.
    let mut limited = world(vec![one_class("both", "a b", 1)]);
    clients(&mut limited, &["a", "b"], 16);
    put(&mut limited, 1, reserved(of_job("a"), 600));
    put(&mut limited, 2, limited_to(of_job("a"), 100));
    waited(&mut limited);
    let (owed, served) = waited(&mut limited);
    assert!(near(owed, 6_000) && near(served, 6_000), "{owed} {served}");
}

#[test]
fn a_limit_counts_what_is_reserved_by_a_row_and_does_not_delay_it() {
    let set = rules(vec![limited("a", 100), rule("b", 1)], vec![shared("both", "a b", ops(400))]);
    let mut world = World::new(target(4, UNIT_NS), set);
    clients(&mut world, &["a", "b"], 8);
    world.run(ms(1_000));
    assert!(near(world.served(ms(11_000))[0], 1_000), "the limit alone");
    put(&mut world, 1, reserved(of_job("a"), 300));
    // What its reservation catches up with first is paid by then.
    world.run(ms(14_000));
    let served = world.served(ms(24_000));
    assert!(near(served[0], 3_000), "all that is reserved, and nothing beyond: {served:?}");
    assert!(near(served[1], 1_000), "the shared meter counts it: {served:?}");
    put(&mut world, 1, reserved(of_job("a"), 50));
    world.run(ms(26_000));
    let served = world.served(ms(36_000));
    assert!(near(served[0], 1_000), "within the limit it counts, too: {served:?}");
    put(&mut world, 1, reserved(of_job("a"), 300));
    world.run(ms(60_000));
    take_away(&mut world, 1);
    world.run(ms(62_500));
    let served = world.served(ms(72_500));
    assert!(near(served[0], 1_000), "it owes next to nothing: {served:?}");
    put(&mut world, 1, reserved(of_job("a"), 500));
    world.run(ms(76_000));
    let served = world.served(ms(86_000));
    assert!(near(served[0], 5_000), "more than both limits: {served:?}");
    let beside = served[0] + served[1] - 5_000;
    assert!((180..=220).contains(&beside) && served[1] >= 140, "a twentieth stays: {served:?}");
}

#[test]
fn a_row_is_divided_over_proxies_and_its_use_is_reported() {
    let mut world = world(vec![one_class("both", "a b", 1), rule("c", 9)]);
    clients(&mut world, &["a", "b", "c"], 16);
    put(&mut world, 1, reserved(of_job("a"), 600));
    world.run(ms(1_000));
    let of_row = |part| (Scope::entitlement(1), Some(part));
    let unlisted = Share::ratio(1, 2);
    let grants = Grants { proxies: 2, unlisted, listed: vec![of_row(Share::ratio(3, 4))] };
    grant(&mut world.sched, &grants, world.now);
    let by_row = |world: &World| {
        let job = who("a").job;
        let payers = MeterPayers { job: Some(&job), user: None };
        let details = world.sched.subject_details(world.now, payers);
        world.sched.reserved_rows(T, details[0].reserved[0]).remove(0)
    };
    world.sched.take_class_usage(T, world.now);
    let before = by_row(&world);
    assert_eq!(
        (before.row, before.part, before.ends),
        (EntitlementId(1), Share::ratio(3, 4), None)
    );
    assert!(near(world.served(ms(11_000))[0], 4_500));
    let uses = world.sched.take_class_usage(T, world.now);
    assert!(near(by_row(&world).served - before.served, 4_500), "what went by it is counted");
    let (_, used) = uses.iter().find(|(scope, _)| *scope == Scope::entitlement(1)).unwrap();
    let of_rate = used.used.map(|part| part.of(10 * 600)).unwrap();
    assert!(near(of_rate, 4_500) && used.waiting, "{used:?}");
    // Only the row's share changes; then it is like what is not listed.
    let listed = vec![of_row(Share::ratio(1, 4))];
    grant(&mut world.sched, &Grants { proxies: 2, unlisted, listed }, world.now);
    assert!(near(world.served(ms(21_000))[0], 1_500));
    let listed = vec![(Scope::entitlement(1), None)];
    grant(&mut world.sched, &Grants { proxies: 2, unlisted, listed }, world.now);
    assert!(near(world.served(ms(31_000))[0], 3_000));
}

#[test]
fn a_row_of_writes_reserves_no_reads() {
    let mut world = world(vec![rule("a", 1), rule("b", 9)]);
    let [reads, writes, _] = [("a", OpKind::Read), ("a", OpKind::Write), ("b", OpKind::Read)]
        .map(|(job, kind)| world.client(job, kind, 1, 16));
    let kinds = KindSet::of(model::Direction::Write);
    let grants = Grantable::Reservation(ops(500));
    let of_writes =
        Entitlement::new(of_job("a"), grants, kinds, EntitlementSource::Reservation).unwrap();
    put(&mut world, 1, of_writes);
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    assert!(near(served[writes], 5_000), "{served:?}");
    assert!(served[reads] < 500, "{served:?}");
}

#[test]
fn the_narrowest_reservation_serves_a_request_and_all_limits_are_paid() {
    let mut world = world(vec![one_class("both", "a b", 1), rule("c", 9)]);
    clients(&mut world, &["a", "b", "c"], 16);
    put(&mut world, 1, reserved(of_class("both"), 200));
    put(&mut world, 2, reserved(of_job("a"), 300));
    let both = EntitlementScope { uid: Some(1000), ..of_job("a") };
    put(&mut world, 3, reserved(both, 400));
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    assert!(near(served[0], 4_000), "job and user before job: {served:?}");
    assert!(near(served[1], 2_000), "the class's is the other job's: {served:?}");
    // A limit does not delay what a row reserves.
    (1..=3).for_each(|id| take_away(&mut world, id));
    put(&mut world, 4, limited_to(of_job("a"), 100));
    let of_user = EntitlementScope { uid: Some(1000), ..EntitlementScope::default() };
    put(&mut world, 5, limited_to(of_user, 250));
    world.run(ms(13_000));
    let served = world.served(ms(23_000));
    assert!(near(served.iter().sum(), 2_500), "all are of one user: {served:?}");
    put(&mut world, 5, limited_to(of_class("both"), 80));
    world.run(ms(25_000));
    let served = world.served(ms(35_000));
    assert!(near(served[0] + served[1], 800) && served[0] <= 1_020, "{served:?}");
    put(&mut world, 4, limited_to(of_job("a"), 30));
    world.run(ms(36_000));
    let served = world.served(ms(46_000));
    assert!(near(served[0], 300) && served[0] + served[1] <= 820, "{served:?}");
}

#[test]
fn a_row_begins_and_ends_when_it_says() {
    let mut world = world(vec![rule("a", 1), rule("b", 9)]);
    clients(&mut world, &["a", "b"], 16);
    world.run(ms(1_000));
    let [two, four] = [2, 4].map(Nanos::from_secs);
    let later = reserved(of_job("a"), 500).during(two, Some(four)).unwrap();
    put(&mut world, 1, later);
    let before = world.served(ms(3_000));
    let during = world.served(ms(5_000));
    let after = world.served(ms(7_000));
    assert!(near(before[0], 200), "{before:?}");
    assert!(during[0] >= 980, "{during:?}");
    assert!(after[0] < 260, "what was reserved is not held against it for long: {after:?}");
    // A span that is over when it comes.
    let (since, now) = (ms(1_000), world.now);
    let over = reserved(of_job("a"), 500).during(Nanos::ZERO, Some(four)).unwrap();
    world.sched.set_entitlements(vec![(EntitlementId(2), Some(over))], since, now);
    let served = world.served(ms(9_000));
    assert!(served[0] < 260, "{served:?}");
}

#[test]
fn a_row_gives_a_class_its_weight() {
    let mut world = world(vec![rule("a", 1), rule("b", 1)]);
    clients(&mut world, &["a", "b"], 16);
    world.run(ms(500));
    let heavy = |weight| Grantable::Weight(Weight::new(weight).unwrap());
    put(&mut world, 1, row(of_class("a"), heavy(4)));
    let served = world.served(ms(10_500));
    assert!(near(served[0], 8_000), "{served:?}");
    put(&mut world, 1, row(of_class("a"), heavy(9)));
    let served = world.served(ms(20_500));
    assert!(near(served[0], 9_000), "{served:?}");
    take_away(&mut world, 1);
    let served = world.served(ms(30_500));
    assert!(near(served[0], 5_000), "{served:?}");
}

#[test]
fn a_row_of_a_directory_is_for_what_is_below_it() {
    // The three are of one user and one rule, each in a class of its own.
    let by_job = Rule { per: vec![KeyField::Jobid], ..Rule::new("jobs", Match::any()) };
    let mut world = world(vec![by_job]);
    clients(&mut world, &["a", "b", "c", "d"], 16);
    let (outer, inner) = ("x/a", "x/a/b");
    put(&mut world, 1, limited_to(in_directory(outer), 40));
    put(&mut world, 2, limited_to(in_directory(inner), 10));
    for (client, job, path) in [(0, "a", "/a/b/f"), (1, "b", "/a/bc"), (2, "c", "/ab")] {
        let mark = world.sched.mark_of(&Directory::text("x", path.as_bytes()));
        assert_eq!(
            world.sched.mark_of(&Directory::text("y", path.as_bytes())),
            None,
            "another export"
        );
        let place = FilePlace { paths: PathSet::default(), mark };
        world.clients[client].subject = world.sched.subject(T, &who(job), place);
    }
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    assert!(near(served[0], 100), "{served:?}");
    assert!(near(served[0] + served[1], 400), "{served:?}");
    assert!(near(served[2], served[3]), "{served:?}");
    // A file that was marked with a directory is still below those above it when that is not named
    // any more.
    take_away(&mut world, 2);
    assert_eq!(world.sched.mark_of(b"x/a/b/f"), Directory::new(b"x/a"));
    let served = world.served(ms(21_000));
    assert!(served[0] > 100 && near(served[0] + served[1], 400), "{served:?}");
    take_away(&mut world, 1);
    assert!(!world.sched.has_marks());
    put(&mut world, 3, reserved(in_directory(outer), 300));
    put(&mut world, 4, reserved(in_directory(inner), 400));
    world.run(ms(22_000));
    let served = world.served(ms(32_000));
    assert!(near(served[0], 4_000) && near(served[1], 3_000), "the deeper one: {served:?}");
}

#[test]
fn a_row_of_a_target_is_for_that_one() {
    let mut sched =
        Dispatcher::new([target(4, UNIT_NS), model_target("other")], rules(vec![], vec![]));
    let scope = EntitlementScope { target: Some("other".into()), ..EntitlementScope::default() };
    let limit = limited_to(scope, 1);
    sched.set_entitlements(vec![(EntitlementId(1), Some(limit))], ms(1_000), ms(1_000));
    let mut passed = [0; 2];
    for target in [T, TargetId::new(1)] {
        let subject = sched.subject(target, &who("a"), PathSet::default());
        (0..4).for_each(|_| queue(&mut sched, subject, 0, ms(1_000)));
    }
    while let Some(next) = sched.poll_dispatch(ms(1_000)) {
        passed[next.target.index()] += 1;
    }
    assert!(passed[0] == 4 && passed[1] < 4, "{passed:?}");
}

#[test]
fn the_limits_of_a_job_are_those_of_rows_for_any_target() {
    let targets = ["t", "u"].map(model_target);
    let mut sched = Dispatcher::new(targets, rules(vec![], vec![]));
    let at = |target: &str, rate| {
        let scope = EntitlementScope { target: Some(target.into()), ..of_job("a") };
        Some(limited_to(scope, rate))
    };
    let rows = vec![(EntitlementId(1), at("t", 10)), (EntitlementId(2), at("u", 20))];
    sched.set_entitlements(rows, ms(0), ms(0));
    let limits = sched.limits_of(&who("a"), PathSet::default(), ms(0));
    assert!(limits.iter().map(|one| one.rate).eq([ops(10), ops(20)]), "{limits:?}");
}

fn model_target(name: &str) -> sluice_sched::TargetParams {
    sluice_sched::TargetParams { name: name.into(), ..target(4, UNIT_NS) }
}

fn queue(sched: &mut Dispatcher, subject: SubjectId, token: u64, now: Time) {
    let amount = Amount::new(UNIT_BYTES, 1);
    let (kind, lane) = (OpKind::Read, Lane::Device);
    sched.enqueue(Arrival { subject, kind, amount, lane, token }, now);
}

#[test]
fn what_waits_is_moved_in_order_of_arrival_when_a_row_comes_and_goes() {
    let mut sched = Dispatcher::new([target(1, UNIT_NS)], rules(vec![], vec![]));
    let [a, b] = ["a", "b"].map(|job| sched.subject(T, &who(job), PathSet::default()));
    (0..6).for_each(|token| queue(&mut sched, if token % 2 == 0 { a } else { b }, token, ms(0)));
    sched.set_entitlements(
        vec![(EntitlementId(7), Some(reserved(of_job("b"), 100)))],
        ms(0),
        ms(0),
    );
    sched.check_invariants();
    let mut order = Vec::new();
    let mut serve = |sched: &mut Dispatcher, count: usize| {
        for _ in 0..count {
            let next = sched.poll_dispatch(ms(0)).expect("one waits");
            order.push(next.token);
            sched.complete(next.id, Amount::new(UNIT_BYTES, 1), ms(0));
        }
    };
    serve(&mut sched, 2);
    sched.set_entitlements(vec![(EntitlementId(7), None)], ms(0), ms(0));
    sched.check_invariants();
    serve(&mut sched, 4);
    assert_eq!(sched.queued(), 0);
    assert_eq!(order[..1], [1], "what is reserved goes first: {order:?}");
    let of_b: Vec<u64> = order.iter().copied().filter(|token| token % 2 == 1).collect();
    assert_eq!(of_b, [1, 3, 5]);
}

#[test]
fn another_cap_on_slots_holds_for_a_class_that_waits_in_branches_alone() {
    let capped = |slots| {
        let one = Rule { slots: Some(slots), ..one_class("j", "j", 1) };
        rules(vec![rule("x", 1), one], vec![])
    };
    let mut sched = Dispatcher::new([target(8, UNIT_NS)], capped(1));
    let [x, j] = ["x", "j"].map(|job| sched.subject(T, &who(job), PathSet::default()));
    [x, j].into_iter().zip(0..).for_each(|(of, token)| queue(&mut sched, of, token, ms(0)));
    let running = [(); 2].map(|()| sched.poll_dispatch(ms(0)).expect("both have slots"));
    let of_x = running.iter().find(|next| next.token == 0).expect("x has its slot");
    sched.complete(of_x.id, Amount::new(UNIT_BYTES, 1), ms(1));
    // The branch is where that class was, before the class whose branch it is.
    sched.release_subject(x);
    let row = reserved(of_job("j"), 1);
    sched.set_entitlements(vec![(EntitlementId(1), Some(row))], ms(1), ms(1));
    queue(&mut sched, j, 2, ms(1));
    assert!(sched.poll_dispatch(ms(1)).is_none(), "one slot is in use");
    sched.set_rules(capped(3), ms(1));
    let next = sched.poll_dispatch(ms(1));
    sched.check_invariants();
    assert_eq!(next.map(|next| next.token), Some(2));
}

#[test]
fn rows_beyond_the_bound_are_refused_and_the_others_hold() {
    let mut world = world(vec![rule("a", 1)]);
    world.client("a", OpKind::Read, 1, 8);
    let many = (0..65_537).map(|id| {
        let row = if id == 0 { limited_to(of_job("a"), 50) } else { reserved(of_job("none"), 1) };
        (EntitlementId(id), Some(row))
    });
    assert_eq!(world.sched.set_entitlements(many.collect(), ms(0), ms(0)), 1);
    world.run(ms(1_000));
    assert!(near(world.served(ms(11_000))[0], 500));
}

#[test]
fn jobs_and_users_are_named_once_and_counted_when_they_come_and_go() {
    let mut sched = Dispatcher::new([target(1, UNIT_NS)], rules(vec![], vec![]));
    let names = |sched: &Dispatcher| {
        let jobs: Vec<_> = sched.jobs().map(|job| job.as_str().to_owned()).collect();
        (jobs, sched.users().collect::<Vec<_>>(), sched.identity_changes())
    };
    let before = sched.identity_changes();
    for (job, uid) in [("b", 5), ("a", 5), ("b", 6)] {
        sched.subject(T, &model::Identity { uid, ..who(job) }, PathSet::default());
    }
    let known = (vec!["a".into(), "b".into()], vec![5, 6], before + 4);
    assert_eq!(names(&sched), known);
    // In other directories, or with both known, it is a subject of its own, but nobody who was not
    // there.
    for (uid, paths) in [(5, 1), (6, 0)] {
        let who = model::Identity { uid, ..who("a") };
        let subject = sched.subject(T, &who, PathSet(paths));
        sched.release_subject(subject);
    }
    assert_eq!(names(&sched), known, "and it is kept while it is idle");
    let last = sched.subject(T, &model::Identity { uid: 6, ..who("c") }, PathSet::default());
    sched.release_subject(last);
    let changes = sched.identity_changes();
    // As many idle ones as are kept, of a job and a user that are there.
    for paths in 0..1_024 {
        let subject = sched.subject(T, &model::Identity { uid: 6, ..who("b") }, PathSet(paths + 1));
        sched.release_subject(subject);
    }
    assert_eq!(names(&sched), (known.0, known.1, changes + 1), "one job is forgotten");
}

#[test]
fn rows_of_one_message_concern_each_what_it_names() {
    let targets = ["t", "u"].map(model_target);
    let mut sched = Dispatcher::new(targets, rules(vec![], vec![]));
    let any = EntitlementScope::default;
    let at = |target: &str, scope| EntitlementScope { target: Some(target.into()), ..scope };
    let of = |uid, scope| EntitlementScope { uid: Some(uid), ..scope };
    let scopes = [
        in_directory("x/a/b"),
        at("t", in_directory("x/a")),
        at("u", any()),
        of(5, any()),
        of(6, of_job("a")),
        of(6, in_directory("x/a/b")),
        in_directory("x/c"),
        of_job("b"),
    ];
    let subjects = [
        (0, "a", 5, "x/a/b", vec![0, 1, 3]),
        (1, "a", 6, "x/a/b", vec![0, 2, 4, 5]),
        (0, "a", 7, "x/a", vec![1]),
        (1, "b", 7, "x/ab", vec![2, 7]),
        (0, "c", 6, "x", vec![]),
    ];
    let ids = subjects.clone().map(|(target, job, uid, mark, _)| {
        let place = FilePlace { mark: Directory::new(mark.as_bytes()), ..FilePlace::default() };
        let subject =
            sched.subject(TargetId::new(target), &model::Identity { uid, ..who(job) }, place);
        queue(&mut sched, subject, 0, ms(0));
        subject
    });
    let mut check = |rows: Vec<_>, wanted: &dyn Fn(usize) -> Vec<u64>| {
        sched.set_entitlements(rows, ms(0), ms(0));
        // Those that it concerns have classes again.
        ids.iter().for_each(|subject| queue(&mut sched, *subject, 0, ms(0)));
        sched.check_invariants();
        for detail in sched.subject_details(ms(0), Default::default()) {
            let nth = ids.iter().position(|id| *id == detail.id).expect("one of these");
            let mut of: Vec<u64> =
                detail.meters.iter().map(|meter| meter.scope.name.parse().unwrap()).collect();
            of.sort_unstable();
            assert_eq!(of, wanted(nth), "subject {nth}");
        }
    };
    let row = |nth: usize| limited_to(scopes[nth].clone(), 1_000_000);
    let rows = (0..scopes.len()).map(|nth| (EntitlementId(nth as u64), Some(row(nth))));
    check(rows.collect(), &|nth| subjects[nth].4.clone());
    let none = (0..scopes.len()).map(|nth| (EntitlementId(nth as u64), None));
    check(none.collect(), &|_| vec![]);
}

/// The sequence of dispatches of a class that is reserved for, by its rule or by a row for all of
/// it, beside two others.
fn sequence(steps: &[(u8, usize, u64)], by_row: bool, rate: Rate) -> Vec<(u64, u64)> {
    let jobs = ["a", "b", "c"];
    let first = Rule { reservation: (!by_row).then_some(rate), ..rule("a", 1) };
    let mut sched = Dispatcher::new(
        [target(6, UNIT_NS)],
        rules(vec![first, rule("b", 2), rule("c", 5)], vec![]),
    );
    if by_row {
        let row = row(of_class("a"), Grantable::Reservation(rate));
        sched.set_entitlements(vec![(EntitlementId(1), Some(row))], ms(0), ms(0));
    }
    let subjects = jobs.map(|job| sched.subject(T, &who(job), PathSet::default()));
    let (mut now, mut running, mut asked) = (ms(1_000), Vec::new(), Vec::new());
    let mut order = Vec::new();
    for (what, job, units) in steps.iter().copied() {
        match what {
            0..6 => {
                let kind = [OpKind::Read, OpKind::Write, OpKind::Open][what as usize % 3];
                let lane = if what < 3 { Lane::Device } else { Lane::Cached };
                let bytes = if kind == OpKind::Open { 0 } else { units * UNIT_BYTES };
                let token = asked.len() as u64;
                asked.push(Amount::new(bytes, 1));
                let amount = asked[token as usize];
                let subject = subjects[job];
                sched.enqueue(Arrival { subject, kind, amount, lane, token }, now);
            }
            6..10 => {
                let next = sched.poll_dispatch(now);
                if let Some(next) = next {
                    order.push((next.token, u64::from(next.slots)));
                    match next.lane == Lane::Cached && units % 3 == 0 {
                        true => sched.miss(next.id, now),
                        false => running.push(next),
                    }
                }
            }
            10 => now = now + Nanos::from_millis(units * 7),
            _ if !running.is_empty() => {
                let done = running.swap_remove(units as usize % running.len());
                sched.complete(done.id, asked[done.token as usize], now);
            }
            _ => {}
        }
        sched.check_invariants();
    }
    order
}

/// One step with rows: of jobs, users and the class, of all kinds, with spans and removals.
fn any_row() -> impl Strategy<Value = (u64, Option<Entitlement>)> {
    let scope = (0..6usize).prop_map(|which| match which {
        0 => of_job("a"),
        1 => of_job("b"),
        2 => of_class("both"),
        3 => EntitlementScope { uid: Some(1000), ..of_job("c") },
        4 => EntitlementScope { target: Some("t".into()), ..EntitlementScope::default() },
        _ => EntitlementScope { uid: Some(1000), ..EntitlementScope::default() },
    });
    let grants = (0..3u8, 1..500u64).prop_map(|(what, value)| match what {
        0 => Grantable::Reservation(ops(value)),
        1 => Grantable::Limit(ops(value + 20), None),
        _ => Grantable::Weight(Weight::new(value as u32).unwrap()),
    });
    let span = (0..300u64, prop::option::of(1..900u64));
    (0..8u64, prop::option::weighted(0.7, (scope, grants, span))).prop_map(|(id, row)| {
        let row = row.map(|(scope, grants, (from, length))| {
            let until = length.map(|length| Nanos::from_millis(from + length));
            self::row(scope, grants).during(Nanos::from_millis(from), until).unwrap()
        });
        (id, row)
    })
}

/// Sometimes another share of a row; `None`: that of rows which are not listed.
fn any_share() -> impl Strategy<Value = Option<(u64, Option<Share>)>> {
    let share = (1..8u64).prop_map(|eighths| Share::ratio(eighths, 8));
    prop::option::weighted(0.4, (0..8u64, prop::option::weighted(0.8, share)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// A branch with all requests of a class is that class with a reservation.
    #[test]
    fn a_branch_that_is_all_of_its_class_changes_nothing(
        steps in prop::collection::vec((0..14u8, 0..3usize, 1..20u64), 1..300),
        rate in 1..400u64,
        in_bytes in any::<bool>(),
    ) {
        let rate = match in_bytes {
            true => Rate::bytes_per_sec(rate * UNIT_BYTES).unwrap(),
            false => ops(rate),
        };
        prop_assert_eq!(sequence(&steps, false, rate), sequence(&steps, true, rate));
    }

    /// Whatever rows come and go and however they are shared, each request is served once, and no limit is passed.
    #[test]
    fn any_rows_keep_the_books(
        changes in prop::collection::vec((any_row(), any_share(), 0..200u64), 1..25),
    ) {
        let mut world = world(vec![one_class("both", "a b", 2), rule("c", 1)]);
        clients(&mut world, &["a", "b", "c", "d"], 6);
        let mut end = 0;
        for ((id, row), share, pause) in changes {
            if let Some((row, part)) = share {
                let unlisted = Share::WHOLE;
                let listed = vec![(Scope::entitlement(row), part)];
                grant(&mut world.sched, &Grants { proxies: 1, unlisted, listed }, world.now);
                world.sched.check_invariants();
            }
            let change = vec![(EntitlementId(id), row)];
            world.sched.set_entitlements(change, world.now, world.now);
            world.sched.check_invariants();
            end += pause;
            world.run(ms(end));
            world.sched.check_invariants();
        }
        let all = (0..8).map(|id| (EntitlementId(id), None)).collect();
        world.sched.set_entitlements(all, world.now, world.now);
        world.run(ms(end + 200));
        let before = world.served(ms(end + 1_200));
        prop_assert!(near(before.iter().sum(), 1_000), "the device is busy again: {before:?}");
        world.sched.check_invariants();
    }
}
