//! Moves of reservations that have not begun: where they go, what they free, and what they keep.

use sluice_reserve::{
    Calendar, CalendarChange, Demand, EndReason, MoveRequest, PhaseRequest, PlannedPhase,
    ReservationError, ReservationId, ReservationRequest, ReservationState,
};

use crate::life::{at, calendar, fixed, reads, secs, settings, start};

fn from(read: u64, from: u64, length: u64) -> ReservationRequest {
    fixed(read, length).starting_from(at(from))
}

fn target() -> Calendar {
    calendar(1, settings())
}

fn demand(rate: u64) -> Demand {
    reads(&[(0, rate)])
}

fn not_before(secs: u64) -> MoveRequest {
    MoveRequest { not_before: at(secs), is_exact: false, deadline: None }
}

fn exactly(secs: u64) -> MoveRequest {
    MoveRequest { is_exact: true, ..not_before(secs) }
}

#[test]
fn moved_reservation_is_guaranteed_where_it_goes_and_what_follows_starts_earlier() {
    let mut calendar = target();
    let first = calendar.request(from(100, 100, 50), at(0)).unwrap();
    let second = calendar.request(from(100, 100, 50), at(0)).unwrap();
    assert_eq!((start(&calendar, first), start(&calendar, second)), (at(100), at(150)));
    while calendar.poll_event().is_some() {}
    assert_eq!(calendar.move_start(first, not_before(120), at(1)), Ok(at(200)));
    let status = calendar.status(first);
    // the place that it left goes to the other one, whose place goes to it
    assert_eq!((start(&calendar, second), start(&calendar, first)), (at(100), at(150)));
    assert_eq!(status.guaranteed, Some(at(200)));
    let events: Vec<_> = std::iter::from_fn(|| calendar.poll_event()).collect();
    let of = |id| events.iter().filter(move |event| event.id == id).map(|event| event.change);
    assert!(matches!(
        of(first).collect::<Vec<_>>()[..],
        [CalendarChange::Scheduled { is_guaranteed: true, .. }, CalendarChange::Moved { .. }]
    ));
    assert_eq!(
        of(second).collect::<Vec<_>>(),
        [CalendarChange::Moved { from: at(150), to: at(100) }]
    );
}

#[test]
fn own_place_counts_as_free_for_a_move_within_it() {
    let mut calendar = target();
    let id = calendar.request(from(100, 100, 50), at(0)).unwrap();
    assert_eq!(calendar.move_start(id, exactly(120), at(1)), Ok(at(120)));
    // compression does not have it earlier than was wished
    calendar.advance(at(2));
    assert_eq!(start(&calendar, id), at(120));
}

#[test]
fn refused_move_leaves_the_place_and_names_the_next_start() {
    let mut calendar = target();
    let first = calendar.request(from(60, 100, 50), at(0)).unwrap();
    let second = calendar.request(from(60, 200, 50), at(0)).unwrap();
    let booked: Vec<_> = calendar.booked().collect();
    let Err(ReservationError::NoFit(refusal)) = calendar.move_start(first, exactly(210), at(1))
    else {
        panic!("it does not fit there")
    };
    assert_eq!(refusal.next_start, Some(at(250)));
    let late = MoveRequest { deadline: Some(at(260)), ..not_before(210) };
    assert!(matches!(calendar.move_start(first, late, at(1)), Err(ReservationError::NoFit(_))));
    assert_eq!(calendar.booked().collect::<Vec<_>>(), booked);
    assert_eq!((start(&calendar, first), start(&calendar, second)), (at(100), at(200)));
}

#[test]
fn only_what_has_not_begun_is_moved() {
    let mut calendar = target();
    assert_eq!(
        calendar.move_start(ReservationId(7), not_before(9), at(0)),
        Err(ReservationError::Unknown)
    );
    let id = calendar.request(from(50, 0, 50), at(0)).unwrap();
    // its rows are on their way
    assert_eq!(calendar.move_start(id, not_before(9), at(0)), Err(ReservationError::HasBegun));
    calendar.installed(id, at(0));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    assert_eq!(calendar.move_start(id, not_before(9), at(1)), Err(ReservationError::HasBegun));
    calendar.remove(id, at(2));
    assert_eq!(calendar.status(id).ended, Some(EndReason::Removed));
    assert_eq!(calendar.move_start(id, not_before(9), at(3)), Err(ReservationError::Unknown));
}

#[test]
fn phases_keep_their_distance_from_the_start_that_moves() {
    let mut calendar = target();
    let phase = PlannedPhase {
        demand: demand(80),
        after: secs(20),
        tolerance: secs(5),
        duration: secs(10),
    };
    let id = calendar.request_with_phases(from(20, 100, 50), &[phase], at(0)).unwrap();
    let planned = calendar.progress(id).unwrap().phases[0];
    let added =
        PhaseRequest { demand: demand(90), start: at(140), tolerance: secs(0), duration: secs(10) };
    let added = calendar.request_phase(id, added, at(0)).unwrap();
    // another one leaves room for the planned phase within its tolerance only
    calendar.request(from(30, 215, 8), at(0)).unwrap();
    assert_eq!(calendar.move_start(id, exactly(200), at(1)), Ok(at(200)));
    assert_eq!((start(&calendar, planned), start(&calendar, added)), (at(223), at(240)));
    assert_eq!(
        calendar.move_start(planned, exactly(230), at(1)),
        Err(ReservationError::MovedPhase)
    );
    // where the phase has no room the whole of it stays
    calendar.request(from(50, 300, 50), at(1)).unwrap();
    let refused = calendar.move_start(id, exactly(300), at(1));
    assert!(matches!(refused, Err(ReservationError::NoFit(_))), "{refused:?}");
    assert_eq!((start(&calendar, id), start(&calendar, planned)), (at(200), at(223)));
}

#[test]
fn phases_that_overlap_are_not_moved_where_only_each_of_them_fits() {
    let mut calendar = target();
    let id = calendar.request(from(10, 100, 50), at(0)).unwrap();
    let phase = |read| PhaseRequest {
        demand: demand(read),
        start: at(110),
        tolerance: secs(0),
        duration: secs(10),
    };
    for read in [50, 40] {
        calendar.request_phase(id, phase(read), at(0)).unwrap();
    }
    // 10 + 40 + 30 beside 40 are more than 100, and each phase alone fits
    calendar.request(from(40, 200, 50), at(0)).unwrap();
    let refused = calendar.move_start(id, exactly(200), at(1));
    assert!(matches!(refused, Err(ReservationError::NoFit(_))), "{refused:?}");
    assert_eq!(calendar.move_start(id, exactly(300), at(1)), Ok(at(300)));
}

#[test]
fn one_of_the_queue_gets_a_guaranteed_place_by_a_move() {
    let mut calendar = target();
    calendar.request(from(100, 0, 100), at(0)).unwrap();
    let spontaneous = |length| from(100, 0, length).spontaneous();
    let head = calendar.request(spontaneous(10), at(0)).unwrap();
    let behind = calendar.request(spontaneous(10), at(0)).unwrap();
    assert_eq!(calendar.status(head).guaranteed, None);
    assert_eq!(calendar.move_start(behind, not_before(100), at(1)), Ok(at(110)));
    assert_eq!(calendar.status(behind).guaranteed, Some(at(110)));
    assert_eq!(calendar.move_start(head, not_before(200), at(1)), Ok(at(200)));
    // it is no longer behind anything
    assert_eq!(start(&calendar, behind), at(100));
}
