//! Phases of phases, phases that are extended, and reservations that are installed late.

use model::Nanos;
use sluice_reserve::{EndReason, PhaseRequest, ReservationError, ReservationState};

use crate::life::{active, at, calendar, fixed, reads, secs, settings};

#[test]
fn phase_has_no_phases_and_does_not_outlive_its_reservation() {
    let mut calendar = calendar(1, settings());
    let job = active(&mut calendar, fixed(20, 20), 0);
    let phase = |rate| PhaseRequest {
        demand: reads(&[(0, rate)]),
        start: at(0),
        tolerance: Nanos::ZERO,
        duration: secs(10),
    };
    let first = calendar.request_phase(job, phase(40), at(0)).unwrap();
    assert!(calendar.installed(first, at(0)));
    let nested = calendar.request_phase(first, phase(60), at(0));
    assert_eq!(nested, Err(ReservationError::NestedPhase));
    let error = calendar.extend(first, secs(11), at(1));
    assert_eq!(error, Err(ReservationError::BeyondParent(secs(1))));
    assert_eq!(calendar.extend(first, secs(10), at(1)), Ok(at(20)));
}

#[test]
fn clock_starts_at_the_end_of_a_claim_window_that_late_installing_has_shortened() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(100, 10).claimed_within(secs(5)), at(0)).unwrap();
    calendar.installed(id, at(4));
    calendar.advance(at(5));
    assert_eq!(calendar.status(id).state, ReservationState::Active);
    calendar.advance(at(15));
    assert_eq!(calendar.status(id).ended, Some(EndReason::Expired));
    // installed in time: the owner had its window, although the calendar was told of the start late
    let id = calendar.request(fixed(100, 10).starting_from(at(20)).claimed_within(secs(5)), at(15));
    let id = id.unwrap();
    calendar.advance(at(20));
    calendar.installed(id, at(20));
    calendar.advance(at(21));
    calendar.advance(at(25));
    assert_eq!(calendar.status(id).ended, Some(EndReason::Lapsed));
}
