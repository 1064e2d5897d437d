//! Rows that reserve for the same requests add up.

use model::ScopeUsage;

use super::*;

fn span(from_ms: u64, until_ms: u64) -> (Nanos, Option<Nanos>) {
    (Nanos::from_millis(from_ms), Some(Nanos::from_millis(until_ms)))
}

fn ending(row: Entitlement, until_ms: u64) -> Entitlement {
    let (from, until) = span(0, until_ms);
    row.during(from, until).unwrap()
}

fn of_kinds(scope: EntitlementScope, rate: Rate, direction: model::Direction) -> Entitlement {
    let (grants, kinds) = (Grantable::Reservation(rate), KindSet::of(direction));
    Entitlement::new(scope, grants, kinds, EntitlementSource::Reservation).unwrap()
}

/// Job a beside a heavy one, with a twentieth of the device by its weight.
fn beside_a_heavy_one() -> World {
    let mut world = world(vec![rule("a", 1), rule("b", 19)]);
    clients(&mut world, &["a", "b"], 16);
    world
}

/// What job a is served in the ten seconds that begin a second from now.
fn served_of_a(world: &mut World) -> u64 {
    let settled = world.now + Nanos::from_secs(1);
    world.run(settled);
    world.served(settled + Nanos::from_secs(10))[0]
}

/// The rows that reserve for job a: number, rate and share.
fn rows_of_a(world: &World) -> Vec<(u64, u64, Share)> {
    let job = who("a").job;
    let payers = MeterPayers { job: Some(&job), user: None };
    let details = world.sched.subject_details(world.now, payers);
    let groups = details.iter().flat_map(|detail| &detail.reserved);
    let rows = groups.flat_map(|group| world.sched.reserved_rows(T, *group));
    let rate = |row: &Entitlement| row.reservation().expect("it reserves").per_sec();
    rows.map(|of| (of.row.0, rate(&of.entitlement), of.part)).collect()
}

#[test]
fn two_reservations_of_a_job_are_served_their_sum_until_one_ends() {
    let mut world = beside_a_heavy_one();
    put(&mut world, 2, reserved(of_job("a"), 100));
    put(&mut world, 3, ending(reserved(of_job("a"), 200), 12_000));
    assert!(near(served_of_a(&mut world), 3_000));
    let whole = Share::WHOLE;
    assert_eq!(rows_of_a(&world), [(2, 100, whole), (3, 200, whole)]);
    world.run(ms(12_500));
    assert!(near(served_of_a(&mut world), 1_000), "the other one is left");
    put(&mut world, 2, reserved(of_job("a"), 400));
    put(&mut world, 4, reserved(of_job("a"), 200));
    assert!(near(served_of_a(&mut world), 6_000), "another rate");
    take_away(&mut world, 4);
    assert!(near(served_of_a(&mut world), 4_000));
    take_away(&mut world, 2);
    world.run(world.now + Nanos::from_secs(9));
    assert!(near(served_of_a(&mut world), 500), "its weight");
}

#[test]
fn the_older_one_may_end_first_and_an_older_one_may_come() {
    let mut world = beside_a_heavy_one();
    put(&mut world, 5, ending(reserved(of_job("a"), 200), 12_000));
    put(&mut world, 7, reserved(of_job("a"), 100));
    assert!(near(served_of_a(&mut world), 3_000));
    world.run(ms(12_500));
    assert!(near(served_of_a(&mut world), 1_000));
    put(&mut world, 1, reserved(of_job("a"), 150));
    assert!(near(served_of_a(&mut world), 2_500));
    take_away(&mut world, 7);
    assert!(near(served_of_a(&mut world), 1_500));
    world.sched.check_invariants();
}

#[test]
fn each_row_has_its_share_of_its_own_rate() {
    let mut world = beside_a_heavy_one();
    let listed = [(1, Share::ratio(1, 2)), (2, Share::ratio(1, 4))];
    let of = |(row, part)| (Scope::entitlement(row), Some(part));
    let grants = |listed: Vec<_>| Grants { proxies: 2, unlisted: Share::ratio(3, 4), listed };
    grant(&mut world.sched, &grants(listed.map(of).into()), world.now);
    put(&mut world, 1, reserved(of_job("a"), 200));
    put(&mut world, 2, reserved(of_job("a"), 400));
    assert!(near(served_of_a(&mut world), 2_000), "100 and 100 a second");
    assert_eq!(rows_of_a(&world), [(1, 200, listed[0].1), (2, 400, listed[1].1)]);
    grant(&mut world.sched, &grants(vec![of((2, Share::WHOLE))]), world.now);
    assert!(near(served_of_a(&mut world), 5_000), "100 and 400");
    grant(&mut world.sched, &grants(vec![(Scope::entitlement(1), None)]), world.now);
    assert!(near(served_of_a(&mut world), 5_500), "150 and 400");
    // The number of proxies concerns all.
    let whole = Grants { proxies: 1, unlisted: Share::WHOLE, listed: vec![] };
    grant(&mut world.sched, &whole, world.now);
    assert!(near(served_of_a(&mut world), 6_000));
}

#[test]
fn the_usage_of_each_is_that_of_both_and_what_went_by_them_is_divided() {
    let mut world = beside_a_heavy_one();
    put(&mut world, 1, reserved(of_job("a"), 100));
    world.sched.take_class_usage(T, world.now);
    served_of_a(&mut world);
    world.sched.take_class_usage(T, world.now);
    let served = |world: &World| {
        let rows = world.sched.reserved_rows(T, EntitlementId(1));
        rows.iter().map(|of| of.served).collect::<Vec<_>>()
    };
    let before = served(&world);
    put(&mut world, 2, reserved(of_job("a"), 300));
    served_of_a(&mut world);
    let uses = world.sched.take_class_usage(T, world.now);
    let usage_of = |row| {
        let found = uses.iter().find(|(scope, _)| *scope == Scope::entitlement(row));
        found.map(|(_, usage)| *usage).expect("it was used")
    };
    let ScopeUsage { used, waiting } = usage_of(1);
    assert_eq!(usage_of(2), usage_of(1));
    assert!(waiting && near(used.map_or(0, |part| part.of(11 * 400)), 11 * 400), "{used:?}");
    let after = served(&world);
    assert!(near(after[0] - before[0], 11 * 100), "{before:?} {after:?}");
    assert!(near(after[1], 11 * 300), "it has served since it came: {after:?}");
    // The same row for longer goes on.
    let longer = ending(reserved(of_job("a"), 300), 100_000);
    put(&mut world, 2, longer);
    assert_eq!(served(&world), after);
}

#[test]
fn other_directions_units_and_scopes_do_not_add_up() {
    use model::Direction::{Read, Write};
    let mut world = beside_a_heavy_one();
    world.client("a", OpKind::Write, 1, 16);
    let bytes = |per_sec: u64| Rate::bytes_per_sec(per_sec * UNIT_BYTES).unwrap();
    put(&mut world, 1, of_kinds(of_job("a"), ops(100), Read));
    put(&mut world, 2, of_kinds(of_job("a"), ops(300), Write));
    put(&mut world, 3, of_kinds(of_job("a"), ops(50), Read));
    world.run(ms(1_000));
    let served = world.served(ms(11_000));
    assert!(near(served[0], 1_500) && near(served[2], 3_000), "{served:?}");
    // Of several units the newest row says which.
    put(&mut world, 4, of_kinds(of_job("a"), bytes(200), Read));
    world.run(ms(12_000));
    let served = world.served(ms(22_000));
    assert!(near(served[0], 2_000) && near(served[2], 3_000), "{served:?}");
    put(&mut world, 5, of_kinds(of_job("a"), ops(20), Read));
    put(&mut world, 6, of_kinds(of_job("a"), bytes(250), Write));
    world.run(ms(23_000));
    let served = world.served(ms(33_000));
    assert!(near(served[0], 1_700) && near(served[2], 2_500), "{served:?}");
    // A narrower one goes first, and is all.
    let narrow = EntitlementScope { uid: Some(1000), ..of_job("a") };
    put(&mut world, 7, of_kinds(narrow, ops(110), Read));
    world.run(ms(34_000));
    let served = world.served(ms(44_000));
    assert!(near(served[0], 1_100) && near(served[2], 2_500), "{served:?}");
}

#[test]
fn a_sum_beyond_any_rate_is_the_highest_one() {
    let mut world = beside_a_heavy_one();
    put(&mut world, 1, reserved(of_job("a"), u64::MAX));
    put(&mut world, 2, reserved(of_job("a"), u64::MAX));
    world.run(ms(1_000));
    let served = world.served(ms(2_000));
    assert!(served[0] >= 980, "{served:?}");
}

#[test]
fn many_small_reservations_of_a_job_are_one_large_one() {
    const ROWS: u64 = 4_096;
    let mut world = beside_a_heavy_one();
    let rate = Rate::bytes_per_sec(800 * UNIT_BYTES / ROWS).unwrap();
    let one = || Some(row(of_job("a"), Grantable::Reservation(rate)));
    let rows = (1..=ROWS).map(|id| (EntitlementId(id), one()));
    world.sched.set_entitlements(rows.collect(), world.now, world.now);
    assert!(near(served_of_a(&mut world), 8_000));
    let half = |id| (Scope::entitlement(id), Some(Share::ratio(1, 2)));
    let listed = (1..=ROWS).map(half).collect();
    grant(&mut world.sched, &Grants { proxies: 1, unlisted: Share::WHOLE, listed }, world.now);
    assert!(near(served_of_a(&mut world), 4_000));
    let uses = world.sched.take_class_usage(T, world.now);
    assert_eq!(uses.len() as u64, ROWS + 2, "all of them, and two classes");
    let most = (1..ROWS).map(|id| (EntitlementId(id), None)).collect();
    world.sched.set_entitlements(most, world.now, world.now);
    assert_eq!(rows_of_a(&world), [(ROWS, rate.per_sec(), half(ROWS).1.unwrap())]);
    world.sched.check_invariants();
}

/// Job a asks for as much as it is served, and makes a reservation each 100 ms for one that it gives
/// up.
#[test]
fn new_reservations_in_place_of_others_save_no_burst() {
    for overlaps in [true, false] {
        let mut world = beside_a_heavy_one();
        put(&mut world, 1, reserved(of_job("a"), 100));
        world.run(ms(1_000));
        let mut served = 0;
        for row in 2..102 {
            if overlaps {
                put(&mut world, row, reserved(of_job("a"), 100));
                take_away(&mut world, row - 1);
            } else {
                take_away(&mut world, row - 1);
                put(&mut world, row, reserved(of_job("a"), 100));
            }
            let next = world.now + Nanos::from_millis(100);
            served += world.served(next)[0];
        }
        // A reservation that was not there before owes nothing, so its first request goes at once.
        let requests = if overlaps { 0 } else { 100 };
        assert!(near(served, 1_000 + requests), "{overlaps}: {served}");
    }
}

#[test]
fn what_a_request_owes_is_owed_to_the_row_that_stays() {
    let mut sched = Dispatcher::new([target(1, UNIT_NS)], rules(vec![rule("b", 9)], vec![]));
    let [a, b] = ["a", "b"].map(|job| sched.subject(T, &who(job), PathSet::default()));
    let rate = |per_sec: u64| Rate::bytes_per_sec(per_sec * UNIT_BYTES).unwrap();
    let row = |units| Some(row(of_job("a"), Grantable::Reservation(rate(units))));
    let rows = vec![(EntitlementId(1), row(5)), (EntitlementId(2), row(5))];
    sched.set_entitlements(rows, ms(0), ms(0));
    // A hundred units are ten seconds of both rows, and twenty of the one that is left.
    let amount = Amount::new(100 * UNIT_BYTES, 1);
    let (kind, lane) = (OpKind::Read, Lane::Device);
    sched.enqueue(Arrival { subject: a, kind, amount, lane, token: 0 }, ms(1_000));
    let first = sched.poll_dispatch(ms(1_000)).expect("it is due");
    sched.complete(first.id, amount, ms(1_100));
    sched.set_entitlements(vec![(EntitlementId(1), None)], ms(1_100), ms(1_100));
    (1..9).for_each(|token| queue(&mut sched, b, token, ms(1_100)));
    queue(&mut sched, a, 9, ms(1_100));
    let next = sched.poll_dispatch(ms(1_100)).expect("one of b");
    assert_eq!(next.token, 1, "job a was served ahead");
    sched.check_invariants();
}

#[test]
fn what_rows_that_add_up_are_owed_is_said_of_each() {
    let mut world = beside_a_heavy_one();
    world.slower = 8;
    put(&mut world, 1, reserved(of_job("a"), 100));
    put(&mut world, 2, reserved(of_job("a"), 300));
    let read = |world: &mut World, until: Time| {
        world.run(until);
        world.sched.take_class_usage(T, until);
        let all = world.sched.take_waited(T).into_iter();
        let rows = all.filter(|(scope, _)| scope.section == model::SectionKind::Entitlement);
        rows.map(|(scope, waited)| (scope, waited.owed, waited.served)).collect::<Vec<_>>()
    };
    read(&mut world, ms(1_000));
    let [one, other] = &read(&mut world, ms(2_000))[..] else { panic!("two rows") };
    assert_eq!((&one.0, &other.0), (&Scope::entitlement(1), &Scope::entitlement(2)));
    assert!(near(one.1, 100) && near(other.1, 300), "{one:?} {other:?}");
    assert!(one.2.abs_diff(other.2 / 3) <= 1 && other.2 < 200, "{one:?} {other:?}");
}

/// Job a has nothing to do for a while, and its files are closed; meanwhile the row with the lowest
/// number goes, and may come again. Returns how many of eight slots it has by then.
fn slots_of_a_after_rest(units: u64, returns: bool) -> usize {
    let rested = ms(9_000);
    let mut sched =
        Dispatcher::new([target(8, UNIT_NS)], rules(vec![rule("a", 1), rule("b", 99)], vec![]));
    let subject = |sched: &mut Dispatcher, job| sched.subject(T, &who(job), PathSet::default());
    let rows = [1, 2].map(|id| (EntitlementId(id), Some(reserved_units(of_job("a"), 50))));
    sched.set_entitlements(rows.into(), ms(0), ms(0));
    let (before, b) = (subject(&mut sched, "a"), subject(&mut sched, "b"));
    let amount = Amount::new(units * UNIT_BYTES, 1);
    let (kind, lane) = (OpKind::Read, Lane::Device);
    sched.enqueue(Arrival { subject: before, kind, amount, lane, token: 0 }, ms(1_000));
    let first = sched.poll_dispatch(ms(1_000)).expect("it is due");
    sched.complete(first.id, amount, ms(1_100));
    sched.release_subject(before);
    let mut changes = vec![(EntitlementId(1), None)];
    changes.extend(returns.then(|| (EntitlementId(1), Some(reserved_units(of_job("a"), 50)))));
    sched.set_entitlements(changes, rested, rested);
    sched.check_invariants();
    let a = subject(&mut sched, "a");
    (100..120).for_each(|token| queue(&mut sched, b, token, rested));
    (1..20).for_each(|token| queue(&mut sched, a, token, rested));
    let next = (0..8).map(|_| sched.poll_dispatch(rested).expect("a slot is free").token);
    next.filter(|token| *token < 100).count()
}

#[test]
fn a_job_at_rest_owes_and_has_saved_what_it_had_whatever_row_goes() {
    for returns in [false, true] {
        // 1,000 units are 20 seconds of the row that is left, and 10 of both.
        assert_eq!(slots_of_a_after_rest(1_000, returns), 0, "it was served ahead");
        assert_eq!(slots_of_a_after_rest(1, returns), 4, "half a second, and half of the slots");
    }
}

fn reserved_units(scope: EntitlementScope, per_sec: u64) -> Entitlement {
    let rate = Rate::bytes_per_sec(per_sec * UNIT_BYTES).unwrap();
    row(scope, Grantable::Reservation(rate))
}
