//! Capacity is lost and comes back: what is scaled, until when, and what keeps its place.

use model::Time;
use sluice_reserve::{
    Calendar, CalendarChange, Capacity, EndReason, ReservationId, ReservationRequest, ResourceId,
    Span,
};

use crate::life::{active, at, calendar, events, fixed, owner, reads, secs, settings, start};

fn lose(calendar: &mut Calendar, from: u64, until: u64, left: u64, now: u64) {
    let span = Span { from: at(from), until: at(until) };
    let left = Capacity::per_sec(left, left).unwrap();
    calendar.set_capacity(ResourceId::new(0), span, left, at(now)).unwrap();
}

fn lose_for_good(calendar: &mut Calendar, left: u64, now: u64) {
    let span = Span { from: at(now), until: Time::MAX };
    let left = Capacity::per_sec(left, left).unwrap();
    calendar.set_capacity(ResourceId::new(0), span, left, at(now)).unwrap();
}

fn used(calendar: &Calendar, time: u64) -> u64 {
    calendar.resources().used(ResourceId::new(0), at(time)).0.read_per_sec()
}

fn booked_of(calendar: &Calendar, id: ReservationId) -> Vec<(u64, Span)> {
    let booked = calendar.booked().filter(|(of, ..)| *of == id);
    booked.map(|(_, _, load, span)| (load.read_per_sec(), span)).collect()
}

fn span(from: u64, until: u64) -> Span {
    Span { from: at(from), until: at(until) }
}

#[test]
fn scaled_load_ends_with_the_loss_and_nobody_is_booked_into_its_place() {
    let mut calendar = calendar(1, settings());
    let scaled = active(&mut calendar, fixed(80, 100), 0);
    lose(&mut calendar, 10, 30, 40, 5);
    let pieces = [(80, span(5, 10)), (40, span(10, 30)), (80, span(30, 100))];
    assert_eq!(booked_of(&calendar, scaled), pieces);
    let other = calendar.request(fixed(40, 10).starting_from(at(40)), at(6)).unwrap();
    assert_eq!(start(&calendar, other), at(100), "20 are free after the loss");
    calendar.advance(at(30));
    assert_eq!(booked_of(&calendar, scaled), [(80, span(30, 100))]);
}

#[test]
fn second_loss_lowers_only_what_it_covers() {
    let mut calendar = calendar(1, settings());
    let scaled = active(&mut calendar, fixed(80, 100), 0);
    lose(&mut calendar, 10, 50, 40, 5);
    lose(&mut calendar, 30, 70, 20, 5);
    let pieces = [(80, 5, 10), (40, 10, 30), (20, 30, 50), (20, 50, 70), (80, 70, 100)];
    let loads: Vec<u64> = [5, 10, 29, 30, 49, 50, 69, 70].map(|at| used(&calendar, at)).into();
    assert_eq!(loads, [80, 40, 40, 20, 20, 20, 20, 80], "{pieces:?}");
    // the second loss is over before it begins: the first one still holds
    lose(&mut calendar, 30, 50, 40, 20);
    lose(&mut calendar, 50, 70, 100, 20);
    assert_eq!([29, 49, 50, 69].map(|at| used(&calendar, at)), [40, 20, 80, 80]);
    calendar.advance(at(1_000));
    assert_eq!((calendar.count(), scaled.0), (0, 1));
}

#[test]
fn place_that_still_fits_is_kept_in_a_loss() {
    let mut calendar = calendar(1, settings());
    // 60 and 40 fill the span; with 50 left only the second one fits where it is
    let wide = calendar.request(fixed(60, 10).starting_from(at(20)), at(0)).unwrap();
    let narrow = calendar.request(fixed(40, 10).starting_from(at(20)), at(0)).unwrap();
    let early = calendar.request(fixed(30, 10).starting_from(at(40)), at(0)).unwrap();
    events(&mut calendar);
    lose(&mut calendar, 15, 38, 50, 1);
    assert_eq!([narrow, early].map(|id| start(&calendar, id)), [at(20), at(40)]);
    let (guaranteed, to) = (at(20), at(38));
    let slipped = CalendarChange::Slipped { guaranteed, to };
    assert_eq!(events(&mut calendar), [(wide.0, slipped)]);
}

#[test]
fn place_before_a_guaranteed_one_is_not_taken_by_one_that_moves() {
    let mut calendar = calendar(1, settings());
    let first = calendar.request(fixed(60, 20).starting_from(at(20)), at(0)).unwrap();
    let second = calendar.request(fixed(50, 20).starting_from(at(30)), at(0)).unwrap();
    assert_eq!(start(&calendar, second), at(40));
    events(&mut calendar);
    // the first one no longer fits before 40; the second one does, and is even earlier without it
    lose(&mut calendar, 15, 41, 50, 1);
    assert_eq!([first, second].map(|id| start(&calendar, id)), [at(50), at(30)]);
}

#[test]
fn head_of_the_queue_has_no_place_before_one_with_a_guarantee() {
    let mut calendar = calendar(2, settings());
    active(&mut calendar, fixed(100, 10), 0);
    let promised = calendar.request(fixed(60, 10).starting_from(at(10)), at(0)).unwrap();
    let head = calendar.request(fixed(60, 10).spontaneous(), at(0)).unwrap();
    assert_eq!([promised, head].map(|id| start(&calendar, id)), [at(10), at(20)]);
    // the head does not overlap the loss, and the other one needs its place
    lose(&mut calendar, 10, 20, 50, 1);
    assert_eq!([promised, head].map(|id| start(&calendar, id)), [at(20), at(30)]);
    // nor does one that overlaps it keep what fits
    let mut calendar = crate::life::calendar(2, settings());
    active(&mut calendar, fixed(100, 10), 0);
    let promised = calendar.request(fixed(60, 30).starting_from(at(10)), at(0)).unwrap();
    let head = calendar.request(fixed(50, 10).spontaneous(), at(0)).unwrap();
    lose(&mut calendar, 40, 50, 50, 1);
    assert_eq!(start(&calendar, head), at(40), "it fits beside nothing else");
    lose(&mut calendar, 10, 20, 50, 1);
    assert_eq!([promised, head].map(|id| start(&calendar, id)), [at(50), at(10)]);
}

#[test]
fn failed_installing_without_another_place_ends_as_not_installed() {
    let mut calendar = calendar(1, settings());
    let id = calendar.request(fixed(60, 10).ending_by(at(12)), at(0)).unwrap();
    calendar.install_failed(id, at(1));
    assert_eq!(calendar.status(id).ended, Some(EndReason::NotInstalled));
}

#[test]
fn installing_is_tried_again_after_its_retry_and_a_place_that_stays_is_not_reported() {
    let ahead = sluice_reserve::CalendarSettings { install_lead: secs(5), ..settings() };
    let mut calendar = calendar(1, ahead);
    let id = calendar.request(fixed(100, 10).starting_from(at(5)), at(0)).unwrap();
    calendar.install_failed(id, at(0));
    assert_eq!(start(&calendar, id), at(15), "installed again at 10, 5 ahead");
    let ahead = sluice_reserve::CalendarSettings { install_lead: secs(60), ..settings() };
    let mut calendar = crate::life::calendar(1, ahead);
    let late = ReservationRequest::new(owner(1), reads(&[(0, 100)]), secs(10));
    let late = calendar.request(late.starting_from(at(30)), at(0)).unwrap();
    calendar.install_failed(late, at(0));
    events(&mut calendar);
    assert_eq!(start(&calendar, late), at(70));
    // again at 10: 80 at the earliest
    calendar.advance(at(10));
    calendar.install_failed(late, at(10));
    let slipped = CalendarChange::Slipped { guaranteed: at(30), to: at(80) };
    assert_eq!(events(&mut calendar)[1..], [(late.0, slipped)]);
}

#[test]
fn no_promise_is_lost_by_a_capacity_that_is_corrected() {
    let mut calendar = calendar(1, settings());
    let running = active(&mut calendar, fixed(60, 1_000), 0);
    let exact = calendar.request(fixed(40, 10).starting_from(at(50)).ending_by(at(60)), at(0));
    let long = calendar.request(fixed(40, 100).starting_from(at(200)), at(0)).unwrap();
    let waiting = calendar.request(fixed(40, 4_000).spontaneous(), at(0)).unwrap();
    let queued = calendar.request(fixed(90, 10).spontaneous(), at(0)).unwrap();
    let exact = exact.unwrap();
    let before: Vec<_> = [exact, long].map(|id| start(&calendar, id)).into();
    events(&mut calendar);
    // one byte a second instead of a hundred
    lose_for_good(&mut calendar, 1, 5);
    assert_eq!(calendar.count(), 5);
    assert_eq!([exact, long].map(|id| start(&calendar, id))[..], before);
    let told: Vec<u64> = events(&mut calendar)
        .into_iter()
        .filter(|(_, change)| matches!(change, CalendarChange::Scaled { .. }))
        .map(|(id, _)| id)
        .collect();
    for id in [running, exact, long] {
        assert!(told.contains(&id.0), "{id}: {told:?}");
    }
    assert!(calendar.resources().used(ResourceId::new(0), at(55)).0.read_per_sec() <= 1);
    // what is new counts with what there is
    assert!(calendar.request(fixed(2, 1), at(6)).is_err());
    lose_for_good(&mut calendar, 100, 10);
    let restored: Vec<u64> = events(&mut calendar)
        .into_iter()
        .filter(|(_, change)| matches!(change, CalendarChange::Restored { .. }))
        .map(|(id, _)| id)
        .collect();
    for id in [running, exact, long] {
        assert!(restored.contains(&id.0), "{id}: {restored:?}");
    }
    assert_eq!([49, 55, 250].map(|at| used(&calendar, at)), [60, 100, 100]);
    assert_eq!([exact, long].map(|id| start(&calendar, id))[..], before);
    assert!([waiting, queued].iter().all(|id| calendar.status(*id).ended.is_none()));
}

#[test]
fn what_was_kept_in_a_loss_moves_where_all_of_it_fits_when_some_capacity_is_back() {
    let mut calendar = calendar(1, settings());
    let [first, second] =
        [1, 2].map(|_| calendar.request(fixed(50, 10).starting_from(at(20)), at(0)).unwrap());
    lose_for_good(&mut calendar, 10, 1);
    assert_eq!([first, second].map(|id| start(&calendar, id)), [at(20), at(20)]);
    assert_eq!([used(&calendar, 20), used(&calendar, 30)], [10, 0]);
    lose_for_good(&mut calendar, 60, 2);
    assert_eq!([first, second].map(|id| start(&calendar, id)), [at(20), at(30)]);
    assert_eq!([20, 30, 40].map(|at| used(&calendar, at)), [50, 50, 0]);
}
