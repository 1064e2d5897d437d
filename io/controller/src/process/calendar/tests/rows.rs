//! Rows of reservations: when they are in force, and what they grant.

use super::*;

#[test]
fn pool_bounds_reservations_of_bytes_and_its_loss_scales_their_rows() {
    let pool = |per_sec| Capacity::per_sec(per_sec, per_sec);
    let settings = |pool| ReservationSettings { pool, ..ReservationSettings::default() };
    let mut room = Room::of(settings(pool(50_000_000)));
    let refused = room.request(NewReservation { exact: true, ..reads(60) }).unwrap_err();
    assert_eq!(refused.refusal.unwrap().kind, "pool");
    let id = room.request(reads(40)).unwrap().id;
    room.in_force(id);
    // The calendar is built again from its records, with other settings.
    let mut reduced = |settings| {
        room.actor.settings = settings;
        room.fails.store(true, Ordering::Relaxed);
        assert!(room.request(reads(1)).is_err());
        room.fails.store(false, Ordering::Relaxed);
        room.get(id).unwrap().reduced.map(|reduced| reduced.ppm)
    };
    assert_eq!(reduced(settings(pool(20_000_000))), Some(500_000));
    assert_eq!(reduced(settings(None)), None);
}

#[test]
fn a_waiting_call_is_answered_when_the_rows_are_in_force_and_the_end_removes_them() {
    let mut room = Room::new();
    let asked = NewReservation { metadata: Some(WireRate::Ops(10)), ..reads(1) };
    let id = room.request(asked).unwrap().id;
    assert_eq!(room.rows(), [(id * 4, true), (id * 4 + 2, true)]);
    let (answer, mut outcome) = oneshot::channel();
    room.say(CalendarMsg::Watch { id, by: by(), answer });
    assert!(outcome.try_recv().is_err());
    room.in_force(id);
    assert_eq!(outcome.try_recv().unwrap().unwrap().state, WireReservationState::Active);
    room.clock.fetch_add(1_001_000_000_000, Ordering::Relaxed);
    let now = room.actor.now();
    room.actor.calendar.advance(now);
    room.actor.drain_events();
    room.actor.commit();
    assert_eq!(room.rows(), [(id * 4, false), (id * 4 + 2, false)]);
    assert_eq!(room.get(id).unwrap().ended.as_deref(), Some("expired"));
}

#[test]
fn rows_in_force_that_were_changed_since_are_not_those_of_the_reservation() {
    let mut room = Room::new();
    let id = room.request(reads(40)).unwrap().id;
    let version = room.awaited(id);
    // Its target loses capacity, so it has a lower rate.
    room.describe(30_000_000);
    assert_eq!(room.rows(), [(id * 4, true)]);
    room.say(CalendarMsg::InForce { id, version });
    assert_eq!(room.get(id).unwrap().state, WireReservationState::Scheduled);
    room.in_force(id);
    assert_eq!(room.get(id).unwrap().state, WireReservationState::Active);
}

#[test]
fn a_reservation_is_reduced_by_what_unreachable_proxies_may_use() {
    let mut room = Room::new();
    let asked = NewReservation { metadata: Some(WireRate::Ops(10)), ..reads(80) };
    let id = room.request(asked).unwrap().id;
    room.in_force(id);
    assert_eq!(room.get(id).unwrap().reduced, None);
    let target = || Arc::from("fs");
    let names = vec!["b".into()];
    let proxies = UnreachableProxies { names, given_out: Share::ratio(1, 2) };
    room.say(CalendarMsg::Unreachable(target(), proxies));
    let reduced = room.get(id).unwrap().reduced.unwrap();
    assert_eq!(reduced.ppm, 625_000);
    assert!(reduced.because.contains("unreachable: b"), "{}", reduced.because);
    room.say(CalendarMsg::Unreachable(target(), UnreachableProxies::default()));
    assert_eq!(room.get(id).unwrap().reduced, None);
}

#[test]
fn a_mistyped_capacity_ends_no_promise() {
    let mut room = Room::new();
    let active = room.request(reads(40)).unwrap().id;
    room.in_force(active);
    let later = Some((room.actor.now() + Nanos::from_secs(2_000)).as_nanos());
    let exact = NewReservation { not_before_ns: later, exact: true, ..reads(80) };
    let exact = room.request(exact).unwrap();
    room.describe(1_000_000);
    assert!(room.get(active).unwrap().reduced.unwrap().ppm < 30_000);
    assert_eq!(room.get(exact.id).unwrap(), exact);
    room.describe(100_000_000);
    assert_eq!(room.get(active).unwrap().reduced, None);
    assert_eq!(room.get(exact.id).unwrap(), exact);
}

#[test]
fn rows_of_many_reservations_are_one_message() {
    let mut room = Room::new();
    for _ in 0..20 {
        room.request(reads(1)).unwrap();
    }
    room.rows();
    room.actor.rows.resend();
    room.actor.changed = room.actor.known.ids().collect();
    room.actor.commit();
    let sent: Vec<usize> = room
        .plan
        .try_iter()
        .map(|msg| match msg {
            PlanMsg::Rows(all) => all.len(),
            _ => 0,
        })
        .collect();
    assert_eq!(sent, [20]);
}

#[test]
fn reservation_whose_rows_have_no_room_is_not_active_and_is_planned_again() {
    let mut room = Room::new();
    let made = room.request(reads(40)).unwrap();
    assert_eq!(room.rows(), [(made.id * 4, true)]);
    room.no_room(made.id);
    assert_eq!(room.rows(), [(made.id * 4, false)]);
    let again = room.get(made.id).unwrap();
    assert_eq!(again.state, WireReservationState::Scheduled);
    assert!(again.start_ns > made.start_ns && again.guaranteed_ns == made.guaranteed_ns);
    room.no_room(made.id);
    room.pass(Duration::from_secs(20));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert_eq!(room.rows(), [(made.id * 4, true)]);
    room.in_force(made.id);
    assert_eq!(room.get(made.id).unwrap().state, WireReservationState::Active);
}
