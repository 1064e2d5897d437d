//! The worked tables of docs/algorithms/global.md.

use crate::fleet::{Fleet, Weather, scope};
use model::{ReservationLag, Share, SlotsClaim};
use sluice_plan::{LeaseExpiry, SessionSettings};

/// Members that have registered and have nothing to do.
fn quiet(members: usize) -> Fleet {
    let mut fleet = Fleet::new(members, 7);
    fleet.run(200, Fleet::check);
    fleet
}

/// How many steps it takes until `done`.
fn steps_until(fleet: &mut Fleet, most: u64, done: impl Fn(&Fleet) -> bool) -> u64 {
    let mut steps = 0;
    while !done(fleet) {
        steps += 1;
        assert!(steps <= most, "not within {most} steps: {:?}", fleet.rates("jobs"));
        fleet.run(1, Fleet::check);
    }
    steps
}

#[test]
fn the_trace_of_the_source_is_followed() {
    let mut fleet = quiet(2);
    assert_eq!(fleet.rates("jobs"), [100, 100], "nobody does anything: K = 0");
    fleet.ask(0, "jobs", 100);
    fleet.ask(1, "jobs", 100);
    fleet.run(6_000, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [100, 100], "both: K = N");
    fleet.ask(0, "jobs", 0);
    // A second until the first counts as idle, then a tick and a round trip.
    fleet.run(150, Fleet::check);
    fleet.run(5_850, |fleet| {
        fleet.check();
        assert_eq!(fleet.rates("jobs"), [1, 199]);
    });
    fleet.ask(1, "jobs", 0);
    fleet.run(150, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [100, 100]);
}

#[test]
fn an_idle_member_that_begins_has_its_share_after_a_tick_and_a_round_trip() {
    let mut fleet = quiet(4);
    fleet.ask(0, "jobs", 100);
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [197, 1, 1, 1]);
    fleet.ask(3, "jobs", 100);
    let steps = steps_until(&mut fleet, 30, |fleet| fleet.rates("jobs") == [99, 1, 1, 99]);
    // 100 ms until it reports, a tick, and two messages each way of 10 ms.
    assert!(steps <= 25, "{steps} steps");
}

#[test]
fn who_needs_less_gets_it_with_room_and_the_others_the_rest() {
    let mut fleet = quiet(3);
    fleet.ask(0, "jobs", 10);
    fleet.ask(1, "jobs", 100);
    fleet.ask(2, "jobs", 100);
    fleet.run(400, Fleet::check);
    let rates = fleet.rates("jobs");
    assert!((25..=29).contains(&rates[0]), "20 are used: a quarter more, in 64ths: {rates:?}");
    assert_eq!(rates[1], rates[2]);
    assert!(rates.iter().sum::<u64>() >= 197, "{rates:?}");
    fleet.ask(0, "jobs", 100);
    steps_until(&mut fleet, 30, |fleet| fleet.rates("jobs") == [66, 66, 66]);
}

#[test]
fn equal_demand_gives_equal_parts_whatever_was_before() {
    let mut fleet = quiet(5);
    for node in 0..5 {
        fleet.ask(node, "jobs", 10 + 20 * node as u64);
    }
    fleet.run(300, Fleet::check);
    (0..5).for_each(|node| fleet.ask(node, "jobs", 90));
    fleet.run(50, Fleet::check);
    for node in 0..5 {
        assert_eq!(fleet.part(node, "jobs"), Share::equal(5));
    }
}

#[test]
fn a_silent_member_counts_for_what_it_may_use_until_it_is_forgotten() {
    let mut fleet = quiet(2);
    fleet.ask(1, "jobs", 100);
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 199]);
    // The idle one is cut off: room is made for what it falls back to.
    (fleet.nodes[0].mute, fleet.nodes[0].deaf) = (true, true);
    fleet.run(1_000, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 100]);
    fleet.run(3_000, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [100, 100]);
    (fleet.nodes[0].mute, fleet.nodes[0].deaf) = (false, false);
    fleet.run(400, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 199]);
    // Its process ends, and the administrator says so.
    fleet.nodes[0].up = false;
    fleet.run(3_000, Fleet::check);
    assert_eq!(fleet.part(1, "jobs").of(200), 100);
    let now = fleet.now();
    assert!(fleet.controller.as_mut().unwrap().forget("proxy0", now));
    fleet.run(100, Fleet::check);
    assert_eq!(fleet.part(1, "jobs"), Share::WHOLE);
}

#[test]
fn a_member_that_is_silent_for_five_minutes_is_forgotten() {
    let mut fleet = quiet(2);
    fleet.nodes[0].up = false;
    fleet.run(29_000, Fleet::check);
    assert_eq!(fleet.controller.as_ref().unwrap().proxies().count(), 2);
    fleet.run(1_500, Fleet::check);
    assert_eq!(fleet.controller.as_ref().unwrap().proxies().count(), 1);
    assert_eq!(fleet.part(1, "jobs"), Share::WHOLE);
}

#[test]
fn a_process_that_starts_anew_leaves_its_part_and_begins_with_nothing() {
    let mut fleet = quiet(2);
    fleet.ask(0, "jobs", 100);
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [199, 1]);
    fleet.restart(0);
    assert_eq!(fleet.part(0, "jobs"), Share::ZERO);
    let steps = steps_until(&mut fleet, 100, |fleet| fleet.rates("jobs")[0] >= 100);
    assert!(steps <= 50, "{steps} steps");
}

#[test]
fn a_member_that_hears_and_is_not_heard_or_the_other_way_round_breaks_no_limit() {
    for (mute, deaf) in [(true, false), (false, true)] {
        let mut fleet = quiet(3);
        fleet.ask(0, "jobs", 100);
        fleet.run(300, Fleet::check);
        for node in [0, 1] {
            (fleet.nodes[node].mute, fleet.nodes[node].deaf) = (mute, deaf);
        }
        fleet.ask(2, "jobs", 100);
        fleet.run(6_000, Fleet::check);
        assert!(fleet.rates("jobs")[1] >= 66, "it falls back: {:?}", fleet.rates("jobs"));
    }
}

#[test]
fn without_a_controller_everybody_falls_back_to_an_equal_part() {
    let mut fleet = quiet(4);
    fleet.ask(2, "jobs", 100);
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 1, 197, 1]);
    fleet.controller = None;
    fleet.run(900, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 1, 197, 1], "orders hold for ten seconds");
    fleet.run(2_000, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [50, 50, 50, 50]);
    fleet.begin_controller();
    fleet.run(200, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [1, 1, 197, 1]);
}

#[test]
fn another_controller_takes_over_what_members_hold() {
    let mut fleet = quiet(3);
    fleet.ask(0, "jobs", 100);
    fleet.run(300, Fleet::check);
    fleet.begin_controller();
    fleet.run(2_000, |fleet| {
        fleet.check();
        assert!(fleet.part(0, "jobs").of(200) >= 197, "nobody notices: {:?}", fleet.rates("jobs"));
    });
    // One of three does not come back: room is made for it before anybody is given more.
    fleet.nodes[2].up = false;
    fleet.run(10, |_| {});
    fleet.begin_controller();
    fleet.ask(1, "jobs", 100);
    fleet.run(1_000, |fleet| {
        fleet.check();
        assert!(fleet.part(1, "jobs") <= Share::ratio(1, 200), "it is not known yet what is held");
    });
    fleet.run(1_000, Fleet::check);
    assert_eq!(fleet.rates("jobs")[..2], [66, 66]);
}

#[test]
fn silence_may_mean_to_keep_what_was_ordered_or_to_lift_it() {
    for (silence, rates) in [(LeaseExpiry::KeepLast, [199, 1]), (LeaseExpiry::Full, [200, 200])] {
        let mut fleet = Fleet::new(0, 3);
        fleet.standing = SessionSettings { lease_expiry: silence, ..fleet.standing };
        (0..2).for_each(|_| fleet.add());
        fleet.ask(0, "jobs", 100);
        fleet.run(400, Fleet::check);
        fleet.controller = None;
        fleet.secs(60);
        assert_eq!(fleet.rates("jobs"), rates);
    }
}

#[test]
fn what_nobody_used_for_a_minute_is_listed_no_longer() {
    let mut fleet = quiet(2);
    fleet.ask(0, "jobs", 100);
    fleet.ask(1, "more", 100);
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.controller.as_ref().unwrap().scopes(), 2);
    fleet.ask(0, "jobs", 0);
    fleet.run(5_900, Fleet::check);
    assert_eq!(fleet.controller.as_ref().unwrap().scopes(), 2);
    fleet.run(500, Fleet::check);
    assert_eq!(fleet.controller.as_ref().unwrap().scopes(), 1);
    assert_eq!(fleet.rates("jobs"), [100, 100]);
    // Nor does the member keep it: what is not listed is what it goes by.
    fleet.add();
    fleet.run(300, Fleet::check);
    assert_eq!(fleet.rates("jobs"), [66, 66, 66]);
}

#[test]
fn a_class_without_a_limit_has_its_weight_where_it_works() {
    let mut fleet = quiet(2);
    let weight_only = model::ScopeUsage { used: None, waiting: false };
    let now = fleet.now();
    let node = &mut fleet.nodes[0];
    let report = node.standing.report(Some(vec![(scope("more"), weight_only)]), now).unwrap();
    fleet.controller.as_mut().unwrap().report(&report, now);
    fleet.run(80, Fleet::check);
    assert_eq!(fleet.part(0, "more"), Share::ratio(199, 200));
}

#[test]
fn a_bad_network_only_makes_it_slower() {
    for seed in 1..20 {
        let mut fleet = Fleet::new(5, seed);
        fleet.weather = Weather { lost: 30, twice: 20, late_max: 100 };
        fleet.run(500, Fleet::check);
        fleet.ask(0, "jobs", 100);
        fleet.ask(1, "jobs", 100);
        let want = |fleet: &Fleet| {
            fleet.part(0, "jobs") == fleet.part(1, "jobs") && fleet.rates("jobs")[0] >= 98
        };
        steps_until(&mut fleet, 1_000, want);
    }
}

#[test]
fn a_scope_that_is_listed_while_the_part_of_everything_moves_is_not_given_twice() {
    for seed in 1..40 {
        for offset in 0..40 {
            let mut fleet = Fleet::new(2, seed);
            fleet.run(100, Fleet::check);
            fleet.weather = Weather { lost: 10, twice: 0, late_max: 60 };
            fleet.add();
            fleet.run(offset, Fleet::check);
            fleet.ask(0, "jobs", 100);
            fleet.run(80, Fleet::check);
        }
    }
}

#[test]
fn while_a_reservation_lags_what_goes_by_weight_has_less_of_the_slots() {
    let mut fleet = Fleet::new(3, 5);
    fleet.secs(3);
    let waits = SlotsClaim { weight: 1 << 10, waiting: true, ..SlotsClaim::default() };
    let reserved = Share::ratio(1, 2);
    let lagging = |fleet: &mut Fleet, lag| {
        fleet.nodes[0].claim =
            Some(SlotsClaim { reserved, reserved_weight: 1 << 10, weight: 0, lag, ..waits });
    };
    for node in 1..3 {
        fleet.nodes[node].claim = Some(waits);
    }
    lagging(&mut fleet, ReservationLag::None);
    fleet.run(300, Fleet::check);
    let slots = |fleet: &Fleet| -> Vec<u64> {
        fleet.slots().iter().map(|part| part.expect("divided").of_rounded_up(1_000)).collect()
    };
    let calm = slots(&fleet);
    assert!(calm[0] >= 500 && calm[1] > 200 && calm[2] > 200, "{calm:?}");
    lagging(&mut fleet, ReservationLag::Growing);
    fleet.run(250, Fleet::check);
    let squeezed = slots(&fleet);
    assert!(squeezed[0] >= 500 && squeezed[1] < 5 && squeezed[2] < 5, "{squeezed:?}");
    lagging(&mut fleet, ReservationLag::CatchingUp);
    fleet.run(250, Fleet::check);
    assert_eq!(slots(&fleet), squeezed);
    lagging(&mut fleet, ReservationLag::None);
    fleet.run(600, Fleet::check);
    assert_eq!(slots(&fleet), calm);
    // What an unreachable proxy reported last squeezes nobody.
    lagging(&mut fleet, ReservationLag::Growing);
    fleet.run(250, Fleet::check);
    fleet.nodes[0].mute = true;
    fleet.run(1_500, Fleet::check);
    let without = slots(&fleet);
    assert!(without[1] > 200 && without[2] > 200, "{without:?}");
}
