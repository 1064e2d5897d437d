//! The checks of the calendar detect faults: promises that are lost, late, beyond the capacity or not
//! kept by the proxies, and rows that are lost or stay.
//!
//! ```text
//!   a scenario with reservations ─► the calendar's keeper with an injected bug ─► a violation
//! ```

use model::{Bytes, Nanos, Time};
use sched::Dispatcher;

use super::World;
use super::calendar::CalendarBug;
use super::known_bad::two_jobs;
use crate::Scenario;
use crate::reservations::{ReservationSpec, ReservationStep, reservable};
use crate::scheduler::Policy;

const LEADER: &str = "[[fault]]\nwhat = \"leader\"\nat = \"20s\"\nspan = \"2s\"\n";
const CUT: &str =
    "[[fault]]\nwhat = \"partition\"\nway = \"assignments\"\nat = \"15s\"\nspan = \"12s\"\n";

/// Two jobs at two proxies of a device of 100 requests of 4 KiB a second.
fn scenario(faults: &str, steps: &[(u64, ReservationStep)]) -> Scenario {
    let text = two_jobs("controller = true\n", 2, faults);
    let mut scenario = Scenario::parse(&text, "broken").unwrap_or_else(|error| panic!("{error}"));
    scenario.targets = scenario.targets.into_iter().map(reservable).collect();
    scenario.reserved_size = Some(Bytes::kib(4));
    let step = |(ms, step): &(u64, ReservationStep)| (Time::ZERO + Nanos::from_millis(*ms), *step);
    scenario.reservations = steps.iter().map(step).collect();
    scenario
}

/// A request for a part of the reads of the target, for a number of seconds.
fn reads(percent: u64, secs: u64) -> ReservationSpec {
    ReservationSpec {
        job: 0,
        read: percent,
        write: 0,
        metadata: 0,
        release: Nanos::ZERO,
        duration: Nanos::from_secs(secs),
        claim_window: Nanos::ZERO,
        deadline: None,
        is_spontaneous: false,
    }
}

fn request(percent: u64, secs: u64) -> ReservationStep {
    ReservationStep::Request(reads(percent, secs))
}

fn found(bug: Option<CalendarBug>, faults: &str, steps: &[(u64, ReservationStep)]) -> String {
    let mut world = World::new(&scenario(faults, steps), Policy::Dispatcher, 1);
    world.calendar.as_mut().expect("a calendar").bug = bug;
    first_of(world)
}

fn first_of(world: World) -> String {
    world.run().violations.first().map_or(String::new(), |first| first.what.clone())
}

#[test]
fn promises_that_are_kept_are_not_called_broken() {
    let window = ReservationSpec { claim_window: Nanos::from_secs(3), ..reads(20, 20) };
    let queued = ReservationSpec { is_spontaneous: true, ..reads(60, 10) };
    let half = ReservationStep::Capacity { target: 0, percent: 50, span: Nanos::from_secs(5) };
    let steps = [
        (3_000, request(50, 30)),
        (4_000, ReservationStep::Request(window)),
        (5_000, ReservationStep::Request(queued)),
        (8_000, ReservationStep::Test { of: 1 }),
        (12_000, ReservationStep::Extend { of: 1, more: Nanos::from_secs(5) }),
        (18_000, half),
        (30_000, ReservationStep::Remove { of: 0 }),
    ];
    for faults in ["", LEADER, CUT] {
        assert_eq!(found(None, faults, &steps), "", "{faults}");
    }
    let report = World::new(&scenario("", &steps), Policy::Dispatcher, 1).run();
    assert!(report.promises.active >= 3 && report.promises.measured_secs > 10, "{report:?}");
}

#[test]
fn a_promise_that_is_told_before_it_is_on_record_is_seen() {
    let steps = [(20_000 - 1, request(50, 30))];
    let what = found(Some(CalendarBug::AnswersFirst), LEADER, &steps);
    assert!(what.contains("is gone, and no end of it was reported"), "{what}");
    assert_eq!(found(None, LEADER, &steps), "");
}

#[test]
fn reservations_that_never_become_active_are_seen() {
    let steps = [(5_000, request(50, 30))];
    let what = found(Some(CalendarBug::NeverHears), "", &steps);
    assert!(what.contains("reservation 1 is not active"), "{what}");
}

#[test]
fn rows_of_another_rate_are_seen() {
    let steps = [(5_000, request(50, 200))];
    let what = found(Some(CalendarBug::Halves), "", &steps);
    assert!(what.starts_with("row 4 at proxy 0 is"), "{what}");
}

#[test]
fn rows_that_stay_after_the_end_are_seen() {
    let steps = [(5_000, request(50, 50)), (15_000, ReservationStep::Remove { of: 0 })];
    for faults in ["", CUT] {
        let what = found(Some(CalendarBug::LeavesRows), faults, &steps);
        assert!(what.contains("row 4 is in force at proxy"), "{faults}: {what}");
        assert_eq!(found(None, faults, &steps), "");
    }
}

#[test]
fn a_new_leader_that_forgets_the_rows_of_what_is_active_is_seen() {
    let steps = [(5_000, request(50, 50))];
    let what = found(Some(CalendarBug::ForgetsRows), LEADER, &steps);
    assert!(what.contains("row 4 of a reservation that goes on is taken from"), "{what}");
    assert_eq!(found(None, LEADER, &steps), "");
}

#[test]
fn promises_beyond_the_capacity_are_seen() {
    let mut world = World::new(&scenario("", &[(5_000, request(80, 30))]), Policy::Dispatcher, 1);
    world.calendar.as_mut().expect("a calendar").overbook(Time::ZERO);
    let what = first_of(world);
    assert!(what.contains("of resource 0 are promised"), "{what}");
}

#[test]
fn the_sum_of_several_reservations_of_a_job_is_kept_and_measured() {
    // By weight its job has a tenth of the device.
    let rules = "[[rule]]\nname = \"b\"\nmatch = \"jobid={b}\"\nweight = 9\n";
    let steps = [(5_000, request(40, 50)), (6_000, request(30, 50))];
    let mut spec = scenario("", &steps);
    spec.rules = std::sync::Arc::new(rules::RuleSet::parse(rules).unwrap());
    let report = World::new(&spec, Policy::Dispatcher, 1).run();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    let promises = report.promises;
    assert!(promises.overlapping > 100 && promises.measured_secs > 20, "{promises:?}");
}

#[test]
fn proxies_that_do_not_serve_what_is_reserved_are_seen() {
    // By weight its job has a third of the device: b has another class, of twice the weight.
    let rules = "[[rule]]\nname = \"b\"\nmatch = \"jobid={b}\"\nweight = 2\n";
    let mut spec = scenario("", &[(5_000, request(80, 50))]);
    spec.rules = std::sync::Arc::new(rules::RuleSet::parse(rules).unwrap());
    assert_eq!(first_of(World::new(&spec, Policy::Dispatcher, 1)), "");
    let mut world = World::new(&spec, Policy::Dispatcher, 1);
    for proxy in 0..2 {
        let target = world.proxies[proxy].spec.scheduled();
        let rules = spec.rules.clone();
        world.proxies[proxy].sched =
            Box::new(super::known_bad_rows::without_rows(Dispatcher::new([target], rules)));
    }
    let what = first_of(world);
    assert!(what.contains("that row 4 reserves"), "{what}");
}
