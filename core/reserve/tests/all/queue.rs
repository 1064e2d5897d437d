//! Compression and the queue while more is freed than one call uses.

use model::Bytes;
use sluice_reserve::{
    Calendar, CalendarChange, Capacity, ReservationId, ReservationRequest, ResourceId, Span,
};

use crate::life::{active, at, calendar, events, fixed, owner, reads, secs, settings, start};

fn settle_now(calendar: &mut Calendar, now: u64) -> usize {
    let mut calls = 0;
    while calendar.next_deadline().is_some_and(|next| next <= at(now)) {
        calendar.advance(at(now));
        calls += 1;
        assert!(calls < 100, "it never ends");
    }
    calls
}

/// Many scheduled ones behind a running one, so that a compression takes several calls.
fn crowd(calendar: &mut Calendar, count: u64) -> ReservationId {
    let running = active(calendar, fixed(100, 10), 0);
    for number in 0..count {
        let id = calendar.request(fixed(100, 1), at(0)).unwrap();
        assert_eq!(start(calendar, id), at(10 + number));
    }
    running
}

#[test]
fn end_that_frees_nothing_starts_no_compression() {
    let mut calendar = calendar(1, settings());
    crowd(&mut calendar, 600);
    calendar.advance(at(10));
    assert!(calendar.next_deadline() > Some(at(10)), "the end of the first one was planned");
    let span = Span { from: at(2_000), until: at(3_000) };
    let less = Capacity::per_sec(50, 50).unwrap();
    calendar.set_capacity(ResourceId::new(0), span, less, at(10)).unwrap();
    assert!(calendar.next_deadline() > Some(at(10)), "less capacity frees nothing");
}

#[test]
fn compression_ends_although_each_call_frees_something() {
    let mut calendar = calendar(2, settings());
    let of = || ReservationRequest::new(owner(1), reads(&[(1, 5)]), secs(100));
    let short: Vec<ReservationId> = (0..20).map(|_| active(&mut calendar, of(), 0)).collect();
    let running = crowd(&mut calendar, 2_000);
    calendar.finish(running, Bytes::ZERO, at(1));
    for id in short {
        calendar.finish(id, Bytes::ZERO, at(1));
    }
    for number in 0..2_000 {
        let id = ReservationId(running.0 + 1 + number);
        assert_eq!(start(&calendar, id), at(1 + number), "{id}");
    }
}

#[test]
fn newcomer_does_not_lead_the_queue_before_those_that_wait() {
    let mut calendar = calendar(1, settings());
    let running = crowd(&mut calendar, 2_000);
    let of = |uid| ReservationRequest::new(owner(uid), reads(&[(0, 100)]), secs(20)).spontaneous();
    let head = calendar.request(of(1), at(0)).unwrap();
    let waits = calendar.request(of(2), at(0)).unwrap();
    calendar.finish(running, Bytes::ZERO, at(1));
    assert_eq!(calendar.next_deadline(), Some(at(1)), "compression goes on");
    calendar.remove(head, at(1));
    events(&mut calendar);
    let newcomer = calendar.request(of(3), at(1)).unwrap();
    settle_now(&mut calendar, 1);
    let placed: Vec<u64> = events(&mut calendar)
        .into_iter()
        .filter(|(_, change)| matches!(change, CalendarChange::Scheduled { .. }))
        .map(|(id, _)| id)
        .collect();
    assert_eq!(placed, [waits.0], "and not {newcomer}");
}
