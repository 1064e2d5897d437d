//! Phases of reservations: requested with them, and added to them.

use api::AddedPhase;

use super::*;

const SECOND: u64 = 1_000_000_000;

impl Room {
    pub(super) fn add_phase(
        &mut self,
        id: u64,
        phase: AddedPhase,
        by: ApiCaller,
    ) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::AddPhase { id, phase: Box::new(phase), by, answer });
        outcome.try_recv().unwrap()
    }
}

#[test]
fn a_phase_is_added_to_an_active_reservation_where_it_fits_and_its_owner_alone_adds_it() {
    let mut room = Room::new();
    let made = room.request(reads(20)).unwrap();
    room.in_force(made.id);
    let start = made.start_ns.unwrap();
    let megabytes = |count: u64| Some(WireRate::Bytes(count * 1_000_000));
    let wanted = |after: u64, count| AddedPhase {
        not_before_ns: Some(start + after * SECOND),
        tolerance_ns: 10 * SECOND,
        duration_ns: 50 * SECOND,
        read: megabytes(count),
        idempotency_key: Some("k1".into()),
        ..AddedPhase::default()
    };
    assert!(room.add_phase(made.id, wanted(100, 60), user(6)).is_err());
    let lines = room.audit_lines();
    let phase = room.add_phase(made.id, wanted(100, 60), user(5)).unwrap();
    assert_eq!((phase.phase_of, phase.read), (Some(made.id), megabytes(60)));
    assert_eq!(phase.start_ns, Some(start + 100 * SECOND));
    assert_eq!(room.audit_lines(), lines + 1);
    let shown = room.get(made.id).unwrap().phases;
    assert_eq!((shown.len(), shown[0].id), (1, phase.id));
    assert_eq!(shown[0].last_start_ns, start + 110 * SECOND);
    // Once more, as its reply was lost; the key of a reservation is another one.
    assert_eq!(room.add_phase(made.id, wanted(100, 60), by()).unwrap().id, phase.id);
    let same_key = NewReservation { idempotency_key: Some("k1".into()), ..reads(1) };
    assert_ne!(room.request(same_key).unwrap().id, phase.id);

    let other = |after, count| AddedPhase { idempotency_key: None, ..wanted(after, count) };
    let wrong = [
        (other(155, 60), "not_before_ns"),
        (other(50, 60), "not_before_ns"),
        (other(960, 60), "duration_ns"),
        (AddedPhase { duration_ns: 0, ..other(200, 60) }, "duration_ns"),
        (other(200, 1), "read"),
        (other(200, 20), "read"),
        (AddedPhase { read: Some(WireRate::Ops(1)), ..other(200, 60) }, "read"),
        (AddedPhase { nodes: Some(0), ..other(200, 60) }, "nodes"),
        (AddedPhase { idempotency_key: Some(" ".into()), ..other(200, 60) }, "idempotency_key"),
    ];
    for (wrong, at) in wrong {
        let error = room.add_phase(made.id, wrong, by()).unwrap_err();
        let refused = (error.code, error.at.as_deref());
        assert_eq!(refused, (ErrorCode::InvalidArgument, Some(at)), "{}", error.message);
    }
    let nested = room.add_phase(phase.id, other(100, 70), by()).unwrap_err();
    assert_eq!((nested.code, nested.at.as_deref()), (ErrorCode::InvalidArgument, Some("id")));
    let unknown = room.add_phase(77, other(100, 70), by()).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);

    // Beside 50 of another one there is no room for 60 until its reservation has ended.
    let beside =
        NewReservation { not_before_ns: Some(start + 200 * SECOND), exact: true, ..reads(50) };
    room.request(beside).unwrap();
    let refused = room.add_phase(made.id, other(220, 60), by()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::DoesNotFit);
    let refusal = refused.refusal.unwrap();
    assert_eq!((refusal.next_start_ns, refusal.fits_now_ppm), (None, 350_000));
    // One that begins later has a start, too.
    let later = NewReservation { not_before_ns: Some(start + 2_000 * SECOND), ..reads(10) };
    let later = room.request(later).unwrap().id;
    let early = room.add_phase(later, other(300, 20), by()).unwrap();
    assert_eq!(early.start_ns, Some(start + 2_000 * SECOND));
    assert!(room.add_phase(later, other(2_010, 20), by()).is_err(), "they overlap");
}

#[test]
fn a_phase_that_has_begun_leaves_its_tolerance_to_the_next_one() {
    let mut room = Room::new();
    let made = room.request(reads(20)).unwrap();
    room.in_force(made.id);
    let start = made.start_ns.unwrap();
    let from = |after: u64| AddedPhase {
        not_before_ns: Some(start + after * SECOND),
        tolerance_ns: 10 * SECOND,
        duration_ns: 50 * SECOND,
        read: Some(WireRate::Bytes(60_000_000)),
        ..AddedPhase::default()
    };
    let first = room.add_phase(made.id, from(0), by()).unwrap().id;
    let refused = room.add_phase(made.id, from(50), by()).unwrap_err();
    assert_eq!(refused.at.as_deref(), Some("not_before_ns"), "{}", refused.message);
    room.in_force(first);
    let shown = room.get(made.id).unwrap().phases;
    assert_eq!((shown[0].state, shown[0].last_start_ns), (WireReservationState::Active, start));
    room.add_phase(made.id, from(50), by()).unwrap();
}

#[test]
fn phases_are_reservations_of_their_own_with_rows_of_what_they_add() {
    let mut room = Room::new();
    let second = 1_000_000_000;
    let phase = api::NewPhase {
        start_ns: 100 * second,
        tolerance_ns: 10 * second,
        duration_ns: 50 * second,
        read: Some(WireRate::Bytes(60_000_000)),
        ..api::NewPhase::default()
    };
    let asked = NewReservation { phases: vec![phase.clone()], ..reads(20) };
    let made = room.request(asked.clone()).unwrap();
    let id = made.phases[0].id;
    assert_eq!(made.phases[0].start_ns, made.start_ns.unwrap() + 100 * second);
    assert_eq!(made.phases[0].last_start_ns, made.phases[0].start_ns + 10 * second);
    let of_phase = room.get(id).unwrap();
    assert_eq!((of_phase.phase_of, of_phase.read), (Some(made.id), phase.read));
    room.rows();
    room.clock.fetch_add(100 * second, Ordering::Relaxed);
    room.step();
    assert_eq!(room.rates(), [(id * 4, Some(40_000_000))]);
    room.in_force(id);
    assert_eq!(room.get(made.id).unwrap().phases[0].state, WireReservationState::Active);
    assert_eq!(room.get(id).unwrap().reduced, None);
    // A failure of the store brings back what it is a phase of.
    room.fails.store(true, Ordering::Relaxed);
    room.change(made.id, ReservationChange::Remove, by()).unwrap_err();
    room.fails.store(false, Ordering::Relaxed);
    assert_eq!(room.get(id).unwrap().phase_of, Some(made.id));
    room.change(made.id, ReservationChange::Remove, by()).unwrap();
    let ended = room.get(id).unwrap();
    assert_eq!((ended.ended.as_deref(), ended.phase_of), (Some("parent_ended"), Some(made.id)));

    let wrong = |change: fn(&mut api::NewPhase)| {
        let mut phase = phase.clone();
        change(&mut phase);
        NewReservation { phases: vec![phase], ..reads(20) }
    };
    let many = NewReservation { phases: vec![phase.clone(); 65], ..reads(20) };
    for (asked, part) in [
        (wrong(|phase| phase.read = Some(WireRate::Ops(1))), "phase 1: read"),
        (wrong(|phase| phase.read = Some(WireRate::Bytes(1))), "less than 20000000"),
        (wrong(|phase| phase.read = None), "phase 1: "),
        (wrong(|phase| phase.start_ns = 960_000_000_000), "phase 1: "),
        (NewReservation { spontaneous: true, ..asked.clone() }, "phases"),
        (NewReservation { claim_window_ns: 1, ..asked }, "phases"),
        (many, "65 phases"),
    ] {
        let error = room.request(asked).unwrap_err();
        let refused = (error.code, error.at.as_deref());
        assert_eq!(refused, (ErrorCode::InvalidArgument, Some("phases")), "{}", error.message);
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
}
