//! The rows of reservations: what is sent, which of it is awaited, and when loads change.

use model::Time;
use rules::EntitlementId;
use sluice_reserve::{
    Calendar, Capacity, ReservationId, ReservationRows, ResourceId, SentRows, Span, WantedRows,
};

use crate::life::{at, calendar, fixed, owner, settings};

fn sent(rows: &mut SentRows, calendar: &Calendar, now: u64) -> Option<ReservationRows> {
    let id = ReservationId(1);
    let loads = calendar.progress(id).and_then(|progress| progress.rows);
    let owner = owner(1);
    let wanted = |loads| WantedRows { loads, owner: &owner, target: "t", directory: None };
    rows.update(id, loads.as_ref().map(wanted), calendar.resources(), at(now))
}

/// The numbers of changed rows with their rates; `None` of one that is removed.
fn changes(of: &ReservationRows) -> Vec<(u64, Option<u64>)> {
    let rate = |row: &rules::TimedEntitlement| row.row.reservation().unwrap().per_sec();
    of.changes.iter().map(|(id, row)| (id.0, row.as_ref().map(rate))).collect()
}

#[test]
fn rows_are_sent_when_they_change_and_each_change_has_a_version() {
    let (mut calendar, mut rows) = (calendar(1, settings()), SentRows::default());
    let id = calendar.request(fixed(60, 100), at(0)).unwrap();
    let row = EntitlementId::of_reservation(id.0, 0).0;
    let first = sent(&mut rows, &calendar, 0).unwrap();
    assert_eq!(changes(&first), [(row, Some(60))]);
    let (_, version) = first.awaited.unwrap();
    assert!(rows.is_latest(id, version) && sent(&mut rows, &calendar, 1).is_none());
    // It loses capacity before it is in force: it is awaited again, with another version.
    let (span, half) = (Span { from: at(2), until: at(50) }, Capacity::per_sec(30, 30).unwrap());
    calendar.set_capacity(ResourceId::new(0), span, half, at(2)).unwrap();
    let second = sent(&mut rows, &calendar, 2).unwrap();
    assert_eq!(changes(&second), [(row, Some(30))]);
    assert!(!rows.is_latest(id, version) && rows.is_latest(id, second.awaited.unwrap().1));
    calendar.installed(id, at(3));
    assert!(sent(&mut rows, &calendar, 3).is_none(), "nothing changes but that it is active");
    calendar.remove(id, at(4));
    let removed = sent(&mut rows, &calendar, 4).unwrap();
    assert_eq!((changes(&removed), removed.awaited), (vec![(row, None)], None));
    assert!(!rows.is_latest(id, second.awaited.unwrap().1));
}

#[test]
fn of_a_reservation_one_time_is_kept_at_which_its_loads_change() {
    let (mut calendar, mut rows) = (calendar(1, settings()), SentRows::default());
    let id = calendar.request(fixed(60, 1_000), at(0)).unwrap();
    calendar.installed(id, at(0));
    let less = Capacity::per_sec(30, 30).unwrap();
    let lose = |calendar: &mut Calendar, from, until, now| {
        let span = Span { from: at(from), until: at(until) };
        calendar.set_capacity(ResourceId::new(0), span, less, at(now)).unwrap();
    };
    lose(&mut calendar, 100, 200, 0);
    sent(&mut rows, &calendar, 0).unwrap();
    assert_eq!(rows.next_due(), Some(at(100)));
    lose(&mut calendar, 50, 100, 1);
    sent(&mut rows, &calendar, 1);
    assert_eq!(rows.next_due(), Some(at(50)));
    assert_eq!(rows.take_due(at(49)), []);
    assert_eq!(rows.take_due(at(100)), [id], "the former time is forgotten");
    calendar.advance(at(50));
    assert_eq!(changes(&sent(&mut rows, &calendar, 50).unwrap()).len(), 1);
    calendar.remove(id, at(60));
    sent(&mut rows, &calendar, 60).unwrap();
    assert_eq!(rows.next_due(), None::<Time>);
}
