//! Phases that are requested with their reservation: planned with it, all or none.

use model::Time;
use sluice_reserve::{
    Calendar, CalendarChange, Capacity, Demand, EndReason, Load, PhaseRequest, PlannedPhase,
    ReservationError, ReservationId, ReservationRequest, ResourceId, Span,
};

use crate::life::{at, calendar, events, fixed, owner, reads, secs, settings, start};

fn phase(rate: u64, after: u64, tolerance: u64, duration: u64) -> PlannedPhase {
    PlannedPhase {
        demand: reads(&[(0, rate)]),
        after: secs(after),
        tolerance: secs(tolerance),
        duration: secs(duration),
    }
}

fn used(calendar: &Calendar, time: u64) -> u64 {
    calendar.resources().used(ResourceId::new(0), at(time)).0.read_per_sec()
}

fn phases(calendar: &Calendar, id: ReservationId) -> Vec<ReservationId> {
    calendar.progress(id).unwrap().phases
}

#[test]
fn reservation_starts_where_its_phases_fit_within_their_tolerances() {
    let mut calendar = calendar(1, settings());
    // free for the basic 30 at once, and for the phase of 80 from 50 on
    calendar.request(fixed(40, 50), at(0)).unwrap();
    let wanted = [phase(80, 10, 5, 10), phase(60, 40, 0, 10)];
    let id = calendar.request_with_phases(fixed(30, 60), &wanted, at(0)).unwrap();
    assert_eq!(start(&calendar, id), at(35), "15 s before the first time at which the phase fits");
    let starts: Vec<Time> = phases(&calendar, id).iter().map(|id| start(&calendar, *id)).collect();
    assert_eq!(starts, [at(50), at(75)]);
    let levels = [34, 35, 49, 50, 59, 60, 75, 85, 95].map(|at| used(&calendar, at));
    assert_eq!(levels, [40, 70, 70, 80, 80, 30, 60, 30, 0]);
}

#[test]
fn a_phase_is_added_to_a_reservation_that_has_a_start_and_moves_with_it() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(30, 60).starting_from(at(100)), at(0)).unwrap();
    let more = |start, rate| PhaseRequest {
        demand: reads(&[(0, rate)]),
        start: at(start),
        tolerance: secs(10),
        duration: secs(20),
    };
    let early = calendar.request_phase(id, more(50, 40), at(1)).unwrap();
    assert_eq!(start(&calendar, early), at(100), "with its reservation");
    let added = calendar.request_phase(id, more(130, 80), at(1)).unwrap();
    assert_eq!(start(&calendar, added), at(130));
    assert_eq!(phases(&calendar, id), [early, added]);
    // What is reserved beside it leaves the rest.
    assert!(
        calendar.request(fixed(60, 5).starting_from(at(135)).ending_by(at(140)), at(1)).is_err()
    );
    let zero = PhaseRequest { duration: secs(0), ..more(130, 80) };
    assert_eq!(calendar.request_phase(id, zero, at(1)), Err(ReservationError::NoDuration));
    let claimed = fixed(10, 60).starting_from(at(300)).claimed_within(secs(5));
    let spontaneous = fixed(10, 60).starting_from(at(300)).spontaneous();
    for request in [claimed, spontaneous] {
        let other = calendar.request(request, at(1)).unwrap();
        let error = calendar.request_phase(other, more(310, 80), at(1));
        assert_eq!(error, Err(ReservationError::PhasesNeedStart));
    }
}

#[test]
fn rows_of_a_phase_have_what_it_adds_and_it_ends_with_its_reservation() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request_with_phases(fixed(30, 60), &[phase(80, 10, 0, 20)], at(0)).unwrap();
    let of_phase = phases(&calendar, id)[0];
    assert!(calendar.installed(id, at(0)));
    calendar.advance(at(10));
    assert!(calendar.installed(of_phase, at(10)));
    let rate = |id| calendar.progress(id).unwrap().rows.unwrap().loads[0].1.read_per_sec();
    assert_eq!([id, of_phase].map(rate), [30, 50]);
    assert_eq!(calendar.progress(of_phase).unwrap().parent, Some(id));
    calendar.remove(id, at(15));
    assert_eq!(calendar.status(of_phase).ended, Some(EndReason::ParentEnded));
    assert_eq!((used(&calendar, 15), calendar.count()), (0, 0));
}

#[test]
fn rows_of_a_phase_are_of_the_directions_in_which_it_adds_something() {
    let mut calendar = calendar(2, settings());
    let of = |at: u32, read, write| (ResourceId::new(at), Load::per_sec(read, write).unwrap());
    let demand = |loads: &[_]| Demand::new(loads).unwrap();
    // Reads of the first resource; the phase has as many, writes beside them, and reads of the other.
    let basic = ReservationRequest::new(owner(1), demand(&[of(0, 30, 0)]), secs(60));
    let phases =
        [PlannedPhase { demand: demand(&[of(0, 30, 20), of(1, 10, 0)]), ..phase(1, 10, 0, 20) }];
    let id = calendar.request_with_phases(basic, &phases, at(0)).unwrap();
    let of_phase = self::phases(&calendar, id)[0];
    calendar.advance(at(10));
    let loads = |id| calendar.progress(id).unwrap().rows.unwrap().loads;
    assert_eq!(loads(id), [of(0, 30, 0)]);
    assert_eq!(loads(of_phase), [of(0, 0, 20), of(1, 10, 0)]);
}

#[test]
fn a_refusal_leaves_nothing_and_names_the_next_start_of_all() {
    let mut calendar = calendar(1, settings());
    calendar.request(fixed(40, 50), at(0)).unwrap();
    let request = fixed(30, 60).ending_by(at(60));
    let error = calendar.request_with_phases(request, &[phase(80, 10, 5, 10)], at(0)).unwrap_err();
    let ReservationError::NoFit(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.next_start, Some(at(35)));
    assert_eq!(refusal.fits_now.billionths(), 750_000_000, "60 of the 80 of the phase");
    assert_eq!((calendar.count(), used(&calendar, 20)), (1, 40));
    // one that fits at no time
    let error = calendar.request_with_phases(fixed(30, 60), &[phase(101, 10, 5, 10)], at(0));
    assert!(matches!(error, Err(ReservationError::NoFit(of)) if of.next_start.is_none()));
}

#[test]
fn wrong_phases_are_refused_by_number() {
    let mut calendar = calendar(1, settings());
    let mut refused = |request, phases: &[PlannedPhase]| {
        let error = calendar.request_with_phases(request, phases, at(0)).unwrap_err();
        assert_eq!(calendar.count(), 0);
        error
    };
    let first = phase(80, 10, 5, 10);
    let wrong = [
        (phase(80, 24, 0, 10), ReservationError::PhaseOverlap(secs(25))),
        (phase(80, 51, 0, 10), ReservationError::BeyondParent(secs(1))),
        (phase(80, 50, 1, 10), ReservationError::BeyondParent(secs(1))),
        (phase(30, 30, 0, 10), ReservationError::Needless),
        (phase(80, 30, 0, 0), ReservationError::NoDuration),
    ];
    for (second, why) in wrong {
        let error = refused(fixed(30, 60), &[first.clone(), second]);
        assert_eq!(error, ReservationError::Phase(2, Box::new(why)));
    }
    for request in [fixed(30, 60).spontaneous(), fixed(30, 60).claimed_within(secs(1))] {
        assert_eq!(
            refused(request, std::slice::from_ref(&first)),
            ReservationError::PhasesNeedStart
        );
    }
    let many = vec![phase(80, 0, 0, 1); 65];
    assert_eq!(refused(fixed(30, 100), &many), ReservationError::Phases(65));
}

#[test]
fn phases_move_with_their_reservation_and_it_starts_no_earlier_by_itself() {
    let mut calendar = calendar(1, settings());
    let blocker = calendar.request(fixed(100, 20), at(0)).unwrap();
    let id = calendar.request_with_phases(fixed(30, 60), &[phase(80, 10, 5, 10)], at(0)).unwrap();
    let of_phase = phases(&calendar, id)[0];
    assert_eq!([id, of_phase].map(|id| start(&calendar, id)), [at(20), at(30)]);
    calendar.remove(blocker, at(1));
    assert_eq!(start(&calendar, id), at(20), "its phases are planned by its start");
    events(&mut calendar);
    let span = Span { from: at(15), until: at(40) };
    let none = Capacity::CLOSED;
    calendar.set_capacity(ResourceId::new(0), span, none, at(1)).unwrap();
    assert_eq!([id, of_phase].map(|id| start(&calendar, id)), [at(40), at(50)]);
    let slipped = |guaranteed, to| CalendarChange::Slipped { guaranteed, to };
    let expected = [(id.0, slipped(at(20), at(40))), (of_phase.0, slipped(at(30), at(50)))];
    let events = events(&mut calendar);
    for event in expected {
        assert!(events.contains(&event), "{events:?}");
    }
    assert_eq!([40, 49, 50, 59, 60].map(|at| used(&calendar, at)), [30, 30, 80, 80, 30]);
}

#[test]
fn phases_are_restored_with_their_reservation() {
    let mut first = calendar(1, settings());
    let id = first.request_with_phases(fixed(30, 60), &[phase(80, 10, 5, 10)], at(0)).unwrap();
    let records = first.records();
    let (mut again, repairs) = Calendar::restore(settings(), records, at(1));
    assert!(repairs.is_empty());
    assert_eq!(phases(&again, id), phases(&first, id));
    assert_eq!(used(&again, 15), 80);
    assert!(again.remove(id, at(2)) && again.count() == 0);
    assert_eq!(used(&again, 15), 0);
}
