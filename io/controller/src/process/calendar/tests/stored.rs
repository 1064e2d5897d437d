//! What is on record, and what of claims is in time.

use super::*;

#[test]
fn what_the_store_does_not_take_has_not_happened() {
    let mut room = Room::new();
    let kept = room.request(reads(40)).unwrap();
    assert_eq!(room.rows(), [(kept.id * 4, true)]);
    room.fails.store(true, Ordering::Relaxed);
    assert_eq!(room.request(reads(40)).unwrap_err().code, ErrorCode::StoreFailed);
    assert_eq!(room.get(kept.id + 1).unwrap_err().code, ErrorCode::NotFound);
    let (answer, mut outcome) = oneshot::channel();
    let change = ReservationChange::Remove;
    room.say(CalendarMsg::Change { id: kept.id, change, by: by(), answer });
    assert_eq!(outcome.try_recv().unwrap().unwrap_err().code, ErrorCode::StoreFailed);
    room.fails.store(false, Ordering::Relaxed);
    assert_eq!(room.get(kept.id).unwrap().state, WireReservationState::Scheduled);
    room.rows();
    // It has room again, and the rows are as they were.
    room.request(reads(45)).unwrap();
    assert!(room.rows().iter().all(|(_, is_put)| *is_put));
    assert_eq!(
        room.request(NewReservation { exact: true, ..reads(1) }).unwrap_err().code,
        ErrorCode::DoesNotFit
    );
}

#[test]
fn what_has_not_ended_by_the_records_is_not_listed_as_ended() {
    let mut room = Room::new();
    let kept = room.request(reads(1)).unwrap().id;
    room.fails.store(true, Ordering::Relaxed);
    room.change(kept, ReservationChange::Remove, by()).unwrap_err();
    room.fails.store(false, Ordering::Relaxed);
    let listed =
        room.list(WantedReservations { with_ended: true, ..WantedReservations::default() });
    let shown: Vec<_> = listed.reservations.iter().map(|one| (one.id, one.ended.clone())).collect();
    assert_eq!(shown, [(kept, None)]);
}

#[test]
fn rows_of_what_was_restored_are_sent_whether_the_store_answers_or_not() {
    let mut first = Room::new();
    let id = first.request(reads(40)).unwrap().id;
    first.in_force(id);
    let mut next = first.followed(Duration::from_secs(3));
    next.fails.store(true, Ordering::Relaxed);
    next.actor.send_restored_rows();
    assert_eq!(next.rows(), [(id * 4, true)]);
    assert_eq!(next.get(id).unwrap().state, WireReservationState::Active);
}

#[test]
fn directories_that_make_large_records_are_refused() {
    let mut room = Room::new();
    for directory in ["a".repeat(2_000), "a\u{7}".into()] {
        let asked = NewReservation { directory: Some(directory), ..reads(1) };
        let error = room.request(asked).unwrap_err();
        assert_eq!(
            (error.code, error.at.as_deref()),
            (ErrorCode::InvalidArgument, Some("directory"))
        );
    }
}

#[test]
fn clock_behind_the_last_record_begins_there() {
    let mut first = Room::new();
    let id = first.request(reads(40)).unwrap().id;
    first.in_force(id);
    let at = first.actor.now();
    first.clock.fetch_sub(900_000_000_000, Ordering::Relaxed);
    assert_eq!(first.actor.now(), at, "it is not set back");
    let mut next = first.followed(Duration::ZERO);
    assert_eq!(next.actor.now(), at);
    next.actor.send_restored_rows();
    let rows = next.plan.try_iter().find_map(|msg| match msg {
        PlanMsg::Rows(rows) => Some(rows),
        _ => None,
    });
    let rows = &rows.unwrap()[0];
    let from = rows.changes[0].1.as_ref().unwrap().from;
    assert!(from <= rows.at, "it does not begin again later");
}

#[test]
fn request_that_was_stored_and_reported_as_failed_is_found_by_its_key() {
    let mut room = Room::new();
    let asked = |key: &str| NewReservation { idempotency_key: Some(key.into()), ..reads(40) };
    room.is_uncertain.store(true, Ordering::Relaxed);
    assert_eq!(room.request(asked("k1")).unwrap_err().code, ErrorCode::StoreFailed);
    room.is_uncertain.store(false, Ordering::Relaxed);
    let made = room.request(asked("k1")).unwrap();
    assert_eq!(room.request(asked("k1")).unwrap().id, made.id);
    assert_eq!(room.actor.known.ids().count(), 1, "one was reserved");
    assert_ne!(room.request(asked("k2")).unwrap().id, made.id);
    let mut next = room.followed(Duration::from_secs(1));
    assert_eq!(next.request(asked("k1")).unwrap().id, made.id);
    // The key is its user's, and free again with the end.
    let (answer, mut outcome) = oneshot::channel();
    let new = NewReservation { user: Some(6), duration_ns: 1, ..asked("k1") };
    next.say(CalendarMsg::Request { new: Box::new(new), by: by(), peer: None, answer });
    assert_ne!(outcome.try_recv().unwrap().unwrap().id, made.id);
    let change = ReservationChange::Remove;
    next.say(CalendarMsg::Change { id: made.id, change, by: by(), answer: oneshot::channel().0 });
    assert_ne!(next.request(asked("k1")).unwrap().id, made.id);
    for key in ["", "a b", &"k".repeat(65)] {
        let error = next.request(asked(key)).unwrap_err();
        assert_eq!(error.at.as_deref(), Some("idempotency_key"), "{key:?}");
    }
}

#[test]
fn a_claim_that_claims_nothing_is_not_in_the_audit_log() {
    let mut room = Room::new();
    let id = room.request(NewReservation { claim_window_ns: 1_000_000_000_000, ..reads(1) });
    let id = id.unwrap().id;
    let claim = |room: &mut Room| room.change(id, ReservationChange::Claim, by()).unwrap();
    claim(&mut room);
    assert_eq!(room.audit_lines(), 1);
    room.in_force(id);
    assert!(claim(&mut room).claimed_ns.is_some());
    claim(&mut room);
    assert_eq!(room.audit_lines(), 2);
}

#[test]
fn claim_that_waits_is_in_time_and_one_that_nobody_made_lapses() {
    let mut room = Room::new();
    let ids = [0; 4].map(|_| room.unclaimed());
    let (answer, mut outcome) = oneshot::channel();
    let of_another = ApiCaller { name: "another".into(), role: Role::User, user: Some(6), ..by() };
    let refused = oneshot::channel().0;
    let change = ReservationChange::Claim;
    let other = oneshot::channel().0;
    // The time moves on with the first of the batch.
    let request = Box::new(NewReservation { user: Some(5), duration_ns: 1, ..reads(1) });
    let batch = vec![
        CalendarMsg::Request { new: request, by: by(), peer: None, answer: other },
        CalendarMsg::Used(vec![ids[0]]),
        CalendarMsg::Change { id: ids[1], change, by: by(), answer },
        CalendarMsg::Change { id: ids[2], change, by: of_another, answer: refused },
    ];
    room.pass(Duration::from_secs(101));
    room.actor.take(batch, Duration::ZERO);
    let claimed = outcome.try_recv().unwrap().unwrap();
    assert_eq!((claimed.state, claimed.claim_by_ns), (WireReservationState::Active, None));
    assert_eq!(room.get(ids[0]).unwrap().state, WireReservationState::Active);
    for id in &ids[2..] {
        assert_eq!(room.get(*id).unwrap().ended.as_deref(), Some("lapsed"));
    }
}

#[test]
fn window_that_went_by_while_nobody_took_claims_does_not_lapse() {
    let is_active = |room: &mut Room, id| {
        let shown = room.get(id).unwrap();
        (shown.state, shown.claim_by_ns) == (WireReservationState::Active, None)
    };
    // The leader died.
    let mut room = Room::new();
    let id = room.unclaimed();
    let mut next = room.followed(Duration::from_secs(150));
    assert!(is_active(&mut next, id));
    // Its time is over then, not later.
    next.pass(Duration::from_secs(951));
    next.actor.take(Vec::new(), Duration::ZERO);
    assert_eq!(next.get(id).unwrap().ended.as_deref(), Some("expired"));
    // The store failed.
    let mut room = Room::new();
    let id = room.unclaimed();
    room.fails.store(true, Ordering::Relaxed);
    room.pass(Duration::from_secs(50));
    assert!(room.request(reads(1)).is_err());
    room.fails.store(false, Ordering::Relaxed);
    room.pass(Duration::from_secs(51));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert!(is_active(&mut room, id));
    // The store was slow.
    let mut room = Room::new();
    let id = room.unclaimed();
    room.pass(Duration::from_secs(101));
    room.actor.take(Vec::new(), STALL);
    assert!(is_active(&mut room, id));
}
