//! Ceilings and credits: what an owner cannot get around.

use model::{Bytes, Ops};
use sluice_reserve::{
    CalendarSettings, Capacity, Ceiling, CeilingSubject, Outstanding, ReservationError,
    ReservationId, ReservationRequest, ResourceKind,
};

use crate::life::{active, at, calendar, fixed, owner, reads, secs, settings};

#[test]
fn claim_window_counts_for_the_ceiling() {
    let mut calendar = calendar(1, settings());
    let ceiling = Ceiling { bytes: Some(Bytes::new(1_000)), ..Ceiling::default() };
    calendar.set_ceiling(CeilingSubject::User(1), Some(ceiling));
    let error = calendar.request(fixed(10, 1).claimed_within(secs(1_000)), at(0));
    assert!(matches!(error, Err(ReservationError::Ceiling { .. })), "{error:?}");
    calendar.request(fixed(10, 60).claimed_within(secs(40)), at(0)).unwrap();
    assert_eq!(calendar.outstanding(&CeilingSubject::User(1)).bytes, Bytes::new(1_000));
}

#[test]
fn operations_have_a_ceiling_beside_bytes_and_extensions_count() {
    let mut calendar = calendar(0, settings());
    let capacity = Capacity::per_sec(100, 100).unwrap();
    calendar.add_resource("mdt".into(), ResourceKind::Metadata, capacity, at(0)).unwrap();
    let user = CeilingSubject::User(1);
    let ceiling = Ceiling { ops: Some(Ops::new(1_000)), ..Ceiling::default() };
    calendar.set_ceiling(user.clone(), Some(ceiling));
    let error = calendar.request(fixed(50, 21), at(0)).unwrap_err();
    let unit = "operations";
    let subject = user.clone();
    assert_eq!(
        error,
        ReservationError::Ceiling { subject, unit, has: 0, more: 1_050, most: 1_000 }
    );
    let id = active(&mut calendar, fixed(50, 10), 0);
    let has = calendar.outstanding(&user);
    assert_eq!((has.bytes, has.ops, has.count), (Bytes::ZERO, Ops::new(500), 1));
    assert!(calendar.extend(id, secs(11), at(1)).is_err());
    assert_eq!(calendar.extend(id, secs(10), at(1)), Ok(at(20)));
    assert!(calendar.request(fixed(1, 1), at(1)).is_err());
    calendar.remove(id, at(2));
    assert_eq!(calendar.outstanding(&user), Outstanding::default());
}

#[test]
fn no_user_fills_the_calendar_unless_a_site_allows_it() {
    let count = CalendarSettings::default().ceilings.user.count.unwrap() as usize;
    assert!(count * 8 < CalendarSettings::default().reservations_max);
    let mut calendar = calendar(1, settings());
    for _ in 0..count {
        calendar.request(fixed(1, 1), at(0)).unwrap();
    }
    let error = calendar.request(fixed(1, 1), at(0));
    assert!(matches!(error, Err(ReservationError::Ceiling { .. })), "{error:?}");
    calendar.set_ceiling(CeilingSubject::User(1), Some(Ceiling::default()));
    assert!(calendar.request(fixed(1, 1), at(0)).is_ok(), "none of its own");
}

#[test]
fn end_just_after_the_claim_earns_no_more_than_was_used() {
    let mut calendar = calendar(1, settings());
    let id = active(&mut calendar, fixed(100, 1_000), 0);
    assert_eq!(calendar.finish(id, Bytes::ZERO, at(0)), Some(Bytes::ZERO));
    let id = active(&mut calendar, fixed(100, 1_000), 1);
    assert_eq!(calendar.finish(id, Bytes::new(80), at(2)), Some(Bytes::new(40)));
}

#[test]
fn all_bytes_count_whatever_the_kinds_of_resources() {
    let mut calendar = calendar(1, settings());
    let capacity = Capacity::per_sec(100, 100).unwrap();
    calendar.add_resource("pool".into(), ResourceKind::Pool, capacity, at(0)).unwrap();
    calendar.add_resource("mdt".into(), ResourceKind::Metadata, capacity, at(0)).unwrap();
    let of = |loads| ReservationRequest::new(owner(1), reads(loads), secs(10));
    calendar.request(of(&[(0, 1), (1, 90)]), at(0)).unwrap();
    assert_eq!(calendar.outstanding(&CeilingSubject::User(1)).bytes, Bytes::new(900));
    let free = of(&[(2, 50)]).spontaneous().spending_credit();
    assert!(calendar.request(free, at(0)).is_err(), "no bytes, so no credit pays for it");
}

#[test]
fn outstanding_bytes_are_exact_beyond_64_bits() {
    let mut calendar = calendar(0, settings());
    let most = Capacity::per_sec(1 << 60, 1 << 60).unwrap();
    calendar.add_resource("pool".into(), ResourceKind::Target, most, at(0)).unwrap();
    let user = CeilingSubject::User(1);
    let ids: Vec<ReservationId> =
        (0..3).map(|_| calendar.request(fixed(1 << 60, 10), at(0)).unwrap()).collect();
    calendar.remove(ids[2], at(0));
    assert_eq!(calendar.outstanding(&user).bytes, Bytes::new(u64::MAX));
    calendar.remove(ids[1], at(0));
    assert_eq!(calendar.outstanding(&user).bytes, Bytes::new(10 << 60));
}

#[test]
fn credit_is_paid_back_for_what_could_not_be_installed() {
    let mut calendar = calendar(1, settings());
    let used = active(&mut calendar, fixed(100, 100), 0);
    calendar.finish(used, Bytes::new(4_000), at(40)).unwrap();
    let user = CeilingSubject::User(1);
    let before = calendar.credit(&user);
    let paid = fixed(100, 10).spontaneous().spending_credit();
    calendar.request(paid, at(40)).unwrap();
    assert_eq!(before, Bytes::new(2_000));
    assert_eq!(calendar.credit(&user), Bytes::new(1_000));
    calendar.advance(at(50));
    let back = calendar.credit(&user);
    assert!(back > Bytes::new(1_900), "never in force until its end: {back:?}");
}
