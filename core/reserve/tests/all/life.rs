//! The life of reservations, case by case: exact starts, ends and events under invented time.

use model::{Bytes, JobId, Nanos, Share, Time};
use sluice_reserve::{
    Calendar, CalendarChange, CalendarSettings, Capacity, Ceiling, CeilingSubject, Demand,
    EndReason, Load, PhaseRequest, ReservationError, ReservationId, ReservationOwner,
    ReservationRequest, ReservationState, ResourceId, ResourceKind, Span,
};

pub(crate) fn at(secs: u64) -> Time {
    Time::ZERO + Nanos::from_secs(secs)
}

pub(crate) fn secs(secs: u64) -> Nanos {
    Nanos::from_secs(secs)
}

pub(crate) fn owner(uid: u32) -> ReservationOwner {
    ReservationOwner { job: JobId::default(), uid, gid: 100, account: None, project: None }
}

pub(crate) fn reads(loads: &[(u32, u64)]) -> Demand {
    let load = |of: &(u32, u64)| (ResourceId::new(of.0), Load::per_sec(of.1, 0).unwrap());
    Demand::new(&loads.iter().map(load).collect::<Vec<_>>()).unwrap()
}

/// Settings with round numbers: all capacity is reserved, nothing is installed ahead.
pub(crate) fn settings() -> CalendarSettings {
    CalendarSettings {
        best_effort: Share::ZERO,
        horizon: secs(10_000),
        duration_max: secs(5_000),
        install_lead: Nanos::ZERO,
        install_retry: secs(10),
        wait_max: secs(100),
        ..CalendarSettings::default()
    }
}

/// A calendar of targets that give 100 bytes per second each.
pub(crate) fn calendar(targets: usize, settings: CalendarSettings) -> Calendar {
    let mut calendar = Calendar::new(settings);
    for number in 0..targets {
        let (name, kind) = (format!("ost{number}").into(), ResourceKind::Target);
        calendar.add_resource(name, kind, Capacity::per_sec(100, 100).unwrap(), at(0)).unwrap();
    }
    calendar
}

pub(crate) fn events(calendar: &mut Calendar) -> Vec<(u64, CalendarChange)> {
    std::iter::from_fn(|| calendar.poll_event()).map(|event| (event.id.0, event.change)).collect()
}

pub(crate) fn fixed(rate: u64, duration: u64) -> ReservationRequest {
    ReservationRequest::new(owner(1), reads(&[(0, rate)]), secs(duration))
}

pub(crate) fn start(calendar: &Calendar, id: ReservationId) -> Time {
    calendar.status(id).span.unwrap().from
}

/// Requests, installs and reports as active.
pub(crate) fn active(
    calendar: &mut Calendar,
    request: ReservationRequest,
    now: u64,
) -> ReservationId {
    let id = calendar.request(request, at(now)).unwrap();
    assert!(calendar.installed(id, at(now)));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    id
}

#[test]
fn reservation_is_installed_then_active_and_expires_at_its_end() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(60, 10).starting_from(at(5)), at(0)).unwrap();
    let span = Span { from: at(5), until: at(15) };
    assert_eq!(
        events(&mut calendar),
        [(1, CalendarChange::Scheduled { span, is_guaranteed: true })]
    );
    assert_eq!(calendar.next_deadline(), Some(at(5)));
    calendar.advance(at(5));
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Install { span })]);
    assert_eq!(calendar.status(id).state, ReservationState::Scheduled);
    assert!(calendar.installed(id, at(6)) && !calendar.installed(id, at(6)));
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Active { claim_by: None })]);
    calendar.advance(at(15));
    let reason = EndReason::Expired;
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Ended { reason })]);
    let status = calendar.status(id);
    assert_eq!((status.state, status.ended), (ReservationState::Undefined, Some(reason)));
    assert_eq!((calendar.next_deadline(), calendar.count()), (None, 0));
}

#[test]
fn installing_begins_ahead_and_active_is_not_reported_before_the_start() {
    let mut calendar = calendar(1, CalendarSettings { install_lead: secs(2), ..settings() });
    let id = calendar.request(fixed(60, 10).starting_from(at(5)), at(0)).unwrap();
    calendar.advance(at(3));
    assert!(calendar.installed(id, at(4)));
    assert_eq!(calendar.status(id).state, ReservationState::Scheduled);
    assert_eq!(calendar.test(id, at(5)).state, ReservationState::Active);
}

#[test]
fn rows_that_cannot_be_installed_are_planned_again_and_the_slip_is_reported() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(100, 10), at(0)).unwrap();
    events(&mut calendar);
    assert!(calendar.install_failed(id, at(1)));
    let (guaranteed, to) = (at(0), at(11));
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Slipped { guaranteed, to })]);
    calendar.advance(at(11));
    assert!(calendar.installed(id, at(11)));
}

#[test]
fn rows_that_are_never_in_force_end_with_their_time() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(100, 10), at(0)).unwrap();
    calendar.advance(at(10));
    assert_eq!(calendar.status(id).ended, Some(EndReason::NotInstalled));
}

#[test]
fn clock_starts_with_the_claim_and_the_window_with_the_report_of_active() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(100, 10).claimed_within(secs(5)), at(0)).unwrap();
    let next = calendar.request(fixed(100, 10), at(0)).unwrap();
    assert_eq!(start(&calendar, next), at(15), "the window is occupied, too");
    events(&mut calendar);
    assert_eq!(calendar.test(id, at(1)).state, ReservationState::Scheduled, "no claim");
    calendar.installed(id, at(1));
    let claim_by = Some(at(5));
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Active { claim_by })]);
    assert_eq!(calendar.test(id, at(3)).state, ReservationState::Active);
    let moved = CalendarChange::Moved { from: at(15), to: at(13) };
    assert_eq!(events(&mut calendar), [(1, CalendarChange::Ends { until: at(13) }), (2, moved)]);
    calendar.test(id, at(12));
    assert_eq!(calendar.status(id).span.unwrap().until, at(13), "the first test is the claim");
}

#[test]
fn unclaimed_reservation_lapses_after_its_window_and_frees_its_time() {
    let mut calendar = calendar(1, settings());
    let id = active(&mut calendar, fixed(100, 10).claimed_within(secs(5)), 0);
    let next = calendar.request(fixed(100, 10), at(0)).unwrap();
    calendar.advance(at(4));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    calendar.advance(at(5));
    assert_eq!(calendar.status(id).ended, Some(EndReason::Lapsed));
    assert_eq!(start(&calendar, next), at(5));
}

#[test]
fn window_that_installing_used_up_starts_the_clock() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(100, 10).claimed_within(secs(5)), at(0)).unwrap();
    calendar.installed(id, at(7));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    calendar.advance(at(14));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    calendar.advance(at(15));
    assert_eq!(calendar.status(id).ended, Some(EndReason::Expired));
}

#[test]
fn spontaneous_ones_pass_the_head_without_delaying_it_or_fixed_ones() {
    let mut calendar = calendar(1, settings());
    let running = active(&mut calendar, fixed(60, 50), 0);
    let head = calendar.request(fixed(80, 10).spontaneous(), at(0)).unwrap();
    let small = calendar.request(fixed(40, 50).spontaneous(), at(0)).unwrap();
    let long = calendar.request(fixed(20, 80).spontaneous(), at(0)).unwrap();
    assert_eq!(start(&calendar, head), at(50));
    assert_eq!(start(&calendar, small), at(0), "ends when the head starts");
    assert_eq!(calendar.status(long).guaranteed, None);
    calendar.advance(at(50));
    assert_eq!(calendar.status(running).ended, Some(EndReason::Expired));
    assert_eq!((start(&calendar, head), start(&calendar, long)), (at(50), at(50)));
}

#[test]
fn small_ones_that_would_delay_the_head_wait() {
    let mut calendar = calendar(1, settings());
    active(&mut calendar, fixed(60, 50), 0);
    let head = calendar.request(fixed(80, 10).spontaneous(), at(0)).unwrap();
    let long = calendar.request(fixed(40, 51).spontaneous(), at(0)).unwrap();
    calendar.advance(at(10));
    assert_eq!(start(&calendar, head), at(50));
    assert!(start(&calendar, long) > at(10));
}

#[test]
fn waiting_reservation_ages_into_a_fixed_one() {
    let mut calendar = calendar(1, settings());
    active(&mut calendar, fixed(100, 500), 0);
    let head = calendar.request(fixed(100, 10).spontaneous(), at(0)).unwrap();
    let second = calendar.request(fixed(100, 10).spontaneous(), at(1)).unwrap();
    events(&mut calendar);
    calendar.advance(at(101));
    assert_eq!(calendar.status(second).guaranteed, Some(at(510)));
    assert!(events(&mut calendar).contains(&(second.0, CalendarChange::Aged { start: at(510) })));
    let later = calendar.request(fixed(100, 10), at(101)).unwrap();
    assert_eq!((start(&calendar, head), start(&calendar, later)), (at(500), at(520)));
}

#[test]
fn waiting_reservation_that_misses_its_deadline_is_rejected() {
    let mut calendar = calendar(1, settings());
    let running = active(&mut calendar, fixed(100, 30), 0);
    let head = calendar.request(fixed(100, 30).spontaneous(), at(0)).unwrap();
    let second = fixed(100, 10).spontaneous().ending_by(at(70));
    let second = calendar.request(second, at(0)).unwrap();
    calendar.remove(running, at(1));
    assert_eq!(start(&calendar, head), at(1));
    let fixed = calendar.request(fixed(100, 5), at(1)).unwrap();
    assert_eq!(start(&calendar, fixed), at(41), "the second is the head now");
    assert_eq!(start(&calendar, second), at(31));
}

#[test]
fn early_end_lets_scheduled_ones_start_earlier_in_order() {
    let mut calendar = calendar(2, settings());
    let running = active(&mut calendar, fixed(100, 50), 0);
    let [a, b] = [(0, 50), (0, 50)].map(|(_, rate)| calendar.request(fixed(rate, 20), at(0)));
    let [a, b] = [a.unwrap(), b.unwrap()];
    let both = ReservationRequest::new(owner(1), reads(&[(0, 100), (1, 100)]), secs(5));
    let both = calendar.request(both, at(0)).unwrap();
    let other = ReservationRequest::new(owner(1), reads(&[(1, 10)]), secs(5));
    let other = calendar.request(other.starting_from(at(60)), at(0)).unwrap();
    assert_eq!([a, b, both].map(|id| start(&calendar, id)), [at(50), at(50), at(70)]);
    calendar.finish(running, Bytes::ZERO, at(10));
    assert_eq!([a, b, both].map(|id| start(&calendar, id)), [at(10), at(10), at(30)]);
    assert_eq!(start(&calendar, other), at(60), "not before its release");
}

#[test]
fn refusal_names_the_bottleneck_the_next_start_and_what_fits_now() {
    let mut calendar = calendar(2, settings());
    active(&mut calendar, ReservationRequest::new(owner(1), reads(&[(1, 70)]), secs(90)), 0);
    let wide = ReservationRequest::new(owner(1), reads(&[(0, 60), (1, 60)]), secs(10));
    let error = calendar.request(wide.clone().ending_by(at(50)), at(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the reservation does not fit in time: target \"ost1\" is the bottleneck, 50 % of the \
         demand fits at its earliest start, all of it fits 90s later"
    );
    let error = calendar.request(wide.ending_by(at(9)), at(0)).unwrap_err();
    assert!(matches!(error, ReservationError::NoFit(_)), "a deadline before its length");
    let never = ReservationRequest::new(owner(1), reads(&[(0, 101)]), secs(10));
    let Err(ReservationError::NoFit(refusal)) = calendar.request(never, at(0)) else {
        panic!("it is more than the capacity");
    };
    assert_eq!((refusal.next_start, &*refusal.bottleneck), (None, "ost0"));
}

#[test]
fn lost_capacity_scales_active_ones_plans_others_again_and_is_restored() {
    let mut calendar = calendar(1, settings());
    let a = active(&mut calendar, fixed(60, 100), 0);
    let b = active(&mut calendar, fixed(20, 100), 0);
    let later = calendar.request(fixed(60, 10).starting_from(at(20)), at(0)).unwrap();
    assert_eq!(start(&calendar, later), at(100));
    let soon = calendar.request(fixed(20, 10).starting_from(at(20)), at(0)).unwrap();
    events(&mut calendar);
    let half = Capacity::per_sec(40, 40).unwrap();
    let span = Span { from: at(10), until: at(90) };
    calendar.set_capacity(ResourceId::new(0), span, half, at(5)).unwrap();
    let scaled = |rate| CalendarChange::Scaled {
        resource: ResourceId::new(0),
        load: Load::per_sec(rate, 0).unwrap(),
        span,
    };
    let slipped = CalendarChange::Slipped { guaranteed: at(20), to: at(90) };
    assert_eq!(events(&mut calendar), [(a.0, scaled(30)), (b.0, scaled(10)), (soon.0, slipped)]);
    let used = |calendar: &Calendar, time| calendar.resources().used(ResourceId::new(0), at(time));
    assert_eq!(used(&calendar, 9).0.read_per_sec(), 80);
    assert_eq!(used(&calendar, 10).0.read_per_sec(), 40);
    // the loss ends earlier than was known: everything is whole again
    let full = Capacity::per_sec(100, 100).unwrap();
    calendar.set_capacity(ResourceId::new(0), span, full, at(30)).unwrap();
    let resource = ResourceId::new(0);
    let span = Span { from: at(30), until: at(90) };
    let restored = CalendarChange::Restored { resource, span };
    let moved = CalendarChange::Moved { from: at(90), to: at(30) };
    let events = events(&mut calendar);
    assert_eq!(used(&calendar, 31).0.read_per_sec(), 100, "{events:?}");
    for event in [(a.0, restored), (b.0, restored), (soon.0, moved)] {
        assert!(events.contains(&event), "{event:?} in {events:?}");
    }
    calendar.advance(at(1_000));
    assert_eq!(calendar.count(), 0);
}

#[test]
fn capacity_lost_for_good_leaves_what_has_no_place_where_it_is() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(60, 10).starting_from(at(20)), at(0)).unwrap();
    let forever = Span { from: at(1), until: Time::MAX };
    calendar.set_capacity(ResourceId::new(0), forever, Capacity::CLOSED, at(1)).unwrap();
    assert_eq!((calendar.status(id).ended, start(&calendar, id)), (None, at(20)));
    calendar.advance(at(20));
    assert!(calendar.installed(id, at(20)));
    assert!(calendar.progress(id).unwrap().rows.unwrap().loads[0].1.is_none());
}

#[test]
fn extension_is_given_if_it_is_free_at_once() {
    let mut calendar = calendar(1, settings());
    let id = active(&mut calendar, fixed(60, 10), 0);
    let next = calendar.request(fixed(60, 10).starting_from(at(15)), at(0)).unwrap();
    assert_eq!(calendar.extend(id, secs(5), at(9)), Ok(at(15)));
    let error = calendar.extend(id, secs(1), at(9)).unwrap_err();
    assert!(error.to_string().contains("ost0"), "{error}");
    assert_eq!(calendar.extend(next, secs(1), at(9)), Err(ReservationError::NotActive));
    assert!(calendar.remove(next, at(10)) && !calendar.remove(next, at(10)));
    assert_eq!(calendar.extend(id, secs(1), at(10)), Ok(at(16)));
}

#[test]
fn credit_needs_a_claim_and_use_and_buys_a_place_in_the_queue() {
    let mut calendar = calendar(1, settings());
    let user = CeilingSubject::User(1);
    let unclaimed = active(&mut calendar, fixed(100, 100).claimed_within(secs(5)), 0);
    assert_eq!(calendar.finish(unclaimed, Bytes::new(9_999), at(1)), Some(Bytes::ZERO));
    let unused = active(&mut calendar, fixed(100, 100), 1);
    assert_eq!(calendar.finish(unused, Bytes::new(499), at(11)), Some(Bytes::ZERO));
    let used = active(&mut calendar, fixed(100, 200), 11);
    assert_eq!(calendar.finish(used, Bytes::new(9_000), at(101)), Some(Bytes::new(4_500)));
    assert_eq!(calendar.finish(used, Bytes::new(9_000), at(101)), None);
    // three wait: the one that pays is before the one that came earlier
    active(&mut calendar, fixed(100, 50), 101);
    let [head, second] =
        [1, 2].map(|uid| ReservationRequest::new(owner(uid), reads(&[(0, 100)]), secs(20)));
    let head = calendar.request(head.spontaneous(), at(101)).unwrap();
    let second = calendar.request(second.spontaneous(), at(101)).unwrap();
    let paid = calendar.request(fixed(100, 20).spontaneous().spending_credit(), at(102)).unwrap();
    assert!(calendar.credit(&user) < Bytes::new(2_501), "{:?}", calendar.credit(&user));
    calendar.advance(at(151));
    assert_eq!([head, paid].map(|id| start(&calendar, id)), [at(151), at(171)]);
    assert_eq!(calendar.status(second).guaranteed, None);
    let error = calendar.request(fixed(100, 90).spontaneous().spending_credit(), at(152));
    assert!(matches!(error, Err(ReservationError::Credit { .. })), "{error:?}");
}

#[test]
fn extension_earns_no_credit() {
    let mut calendar = calendar(1, settings());
    let id = active(&mut calendar, fixed(100, 10), 0);
    calendar.extend(id, secs(100), at(9)).unwrap();
    assert_eq!(calendar.finish(id, Bytes::new(1_000), at(9)), Some(Bytes::new(50)));
}

#[test]
fn ceilings_bound_what_is_outstanding_and_name_who_has_it() {
    let mut calendar = calendar(1, settings());
    let ceiling = Ceiling { bytes: Some(Bytes::new(1_000)), count: Some(2), ..Ceiling::default() };
    calendar.set_ceiling(CeilingSubject::Group(100), Some(ceiling));
    let first = calendar.request(fixed(50, 10), at(0)).unwrap();
    let error = calendar.request(fixed(51, 10), at(0)).unwrap_err();
    let (subject, unit) = (CeilingSubject::Group(100), "bytes");
    let ceiling = ReservationError::Ceiling { subject, unit, has: 500, more: 510, most: 1_000 };
    assert_eq!(error, ceiling);
    calendar.request(fixed(10, 10), at(0)).unwrap();
    assert!(calendar.request(fixed(1, 10), at(0)).is_err(), "two are the most");
    calendar.remove(first, at(0));
    assert_eq!(calendar.outstanding(&CeilingSubject::User(1)).bytes, Bytes::new(100));
    assert!(calendar.request(fixed(51, 10), at(0)).is_ok());
}

#[test]
fn phase_books_the_difference_within_its_tolerance_and_ends_with_its_reservation() {
    let mut calendar = calendar(1, settings());
    let job = active(&mut calendar, fixed(20, 100), 0);
    calendar.request(fixed(50, 10).starting_from(at(30)), at(0)).unwrap();
    let phase = |rate, tolerance| PhaseRequest {
        demand: reads(&[(0, rate)]),
        start: at(35),
        tolerance: secs(tolerance),
        duration: secs(10),
    };
    let planned = calendar.request_phase(job, phase(50, 0), at(1)).unwrap();
    assert_eq!(start(&calendar, planned), at(35), "30 more beside 20 and 50");
    let late = calendar.request_phase(job, phase(60, 4), at(1)).unwrap_err().to_string();
    assert!(late.contains("fits 5s later"), "{late}");
    // Its last start is 90, and until 95 another one has the rest.
    calendar.request(fixed(50, 30).starting_from(at(65)), at(1)).unwrap();
    let at_end = PhaseRequest { start: at(70), ..phase(60, 5) };
    let refused = calendar.request_phase(job, at_end, at(1)).unwrap_err();
    let ReservationError::NoFit(refusal) = refused else { panic!("{refused}") };
    assert_eq!(refusal.next_start, None, "it would outlive its reservation");
    let slid = calendar.request_phase(job, phase(60, 5), at(1)).unwrap();
    assert_eq!(start(&calendar, slid), at(40));
    assert_eq!(calendar.request_phase(job, phase(20, 9), at(1)), Err(ReservationError::Needless));
    calendar.finish(job, Bytes::ZERO, at(2));
    assert_eq!(calendar.status(slid).ended, Some(EndReason::ParentEnded));
    assert_eq!(calendar.count(), 2);
}

#[test]
fn phase_after_the_end_of_its_reservation_is_refused() {
    let mut calendar = calendar(1, settings());
    let job = active(&mut calendar, fixed(20, 100), 0);
    let phase = PhaseRequest {
        demand: reads(&[(0, 50)]),
        start: at(95),
        tolerance: secs(50),
        duration: secs(10),
    };
    let error = calendar.request_phase(job, phase, at(1)).unwrap_err();
    assert_eq!(error, ReservationError::BeyondParent(secs(5)));
}

#[test]
fn group_interleaves_on_shared_targets_or_is_refused_as_a_whole() {
    let mut calendar = calendar(2, settings());
    let of = |loads: &[(u32, u64)], duration: u64, deadline: u64| {
        ReservationRequest::new(owner(1), reads(loads), secs(duration)).ending_by(at(deadline))
    };
    // as given the last one ends at 30; by bytes at 20
    let group = |deadline| {
        vec![
            of(&[(0, 60)], 10, deadline),
            of(&[(1, 60)], 10, deadline),
            of(&[(0, 50), (1, 50)], 20, deadline),
        ]
    };
    let error = calendar.request_group(group(29), at(0)).unwrap_err();
    assert!(matches!(error, ReservationError::NoFit(_)));
    assert_eq!((calendar.count(), calendar.outstanding(&CeilingSubject::User(1)).count), (0, 0));
    let ids = calendar.request_group(group(30), at(0)).unwrap();
    let starts: Vec<Time> = ids.iter().map(|id| start(&calendar, *id)).collect();
    assert_eq!(starts, [at(0), at(0), at(10)]);
    let error = calendar.request_group(Vec::new(), at(0)).unwrap_err();
    assert_eq!(error, ReservationError::GroupSize(0, 256));
}

#[test]
fn least_used_targets_are_chosen_for_new_files() {
    let mut calendar = calendar(4, settings());
    for (target, rate) in [(0, 30), (1, 10), (2, 20)] {
        let request = ReservationRequest::new(owner(1), reads(&[(target, rate)]), secs(10));
        calendar.request(request, at(0)).unwrap();
    }
    let all: Vec<ResourceId> = (0..5).map(ResourceId::new).collect();
    let chosen = calendar.least_loaded(&all, 3, Span { from: at(0), until: at(5) });
    assert_eq!(chosen, [3, 1, 2].map(ResourceId::new), "the fifth does not exist");
    let later = calendar.least_loaded(&all, 2, Span { from: at(10), until: at(15) });
    assert_eq!(later, [0, 1].map(ResourceId::new));
}

#[test]
fn best_effort_share_is_never_reserved_and_bounds_are_named() {
    let settings =
        CalendarSettings { best_effort: Share::ratio(15, 100), reservations_max: 1, ..settings() };
    let mut calendar = calendar(1, settings);
    assert!(calendar.request(fixed(86, 10), at(0)).is_err());
    calendar.request(fixed(85, 10), at(0)).unwrap();
    let full = calendar.request(fixed(1, 10), at(0)).unwrap_err();
    assert_eq!(full, ReservationError::Full(1));
    calendar.advance(at(10));
    let errors = [fixed(1, 0), fixed(1, 5_001)].map(|request| calendar.request(request, at(10)));
    assert!(errors.iter().all(|e| matches!(e, Err(ReservationError::Duration(..)))), "{errors:?}");
    let unknown = ReservationRequest::new(owner(1), reads(&[(9, 1)]), secs(1));
    assert!(calendar.request(unknown, at(10)).is_err());
}
