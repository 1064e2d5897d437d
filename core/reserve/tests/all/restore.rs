//! A calendar that is built again from its records goes on as if nothing had happened.

use model::{Share, Time};
use proptest::prelude::*;
use sluice_reserve::{
    Calendar, CalendarChange, CalendarRecords, CalendarSettings, Capacity, CeilingSubject,
    EndReason, ReservationId, ReservationRecord, ReservationRequest, ReservationState,
    ResourceKind, RestoreRepair,
};

use crate::life::{active, at, calendar, events, fixed, owner, reads, secs, settings, start};
use crate::props::{Call, Watched, call};

/// What a caller stores: the last record of each, merged from what has changed, as JSON.
#[derive(Default)]
pub(crate) struct Stored(CalendarRecords);

impl Stored {
    pub(crate) fn keep(&mut self, changed: CalendarRecords) {
        let text = serde_json::to_string(&changed).unwrap();
        self.0.merge(serde_json::from_str(&text).unwrap());
    }

    pub(crate) fn records(&self) -> CalendarRecords {
        self.0.clone()
    }

    pub(crate) fn restored(&self, settings: CalendarSettings, now: Time) -> Calendar {
        sound(Calendar::restore(settings, self.records(), now))
    }
}

fn restored(calendar: &mut Calendar, settings: CalendarSettings, now: u64) -> Calendar {
    let text = serde_json::to_string(&calendar.records()).unwrap();
    let records = serde_json::from_str(&text).unwrap();
    sound(Calendar::restore(settings, records, at(now)))
}

/// The calendar of records that needed no repair.
fn sound((calendar, repairs): (Calendar, Vec<RestoreRepair>)) -> Calendar {
    assert_eq!(repairs, []);
    calendar
}

/// Whether both have the same reservations, loads, credits and ceilings.
fn assert_same(one: &Watched, other: &Watched, number: usize) {
    let booked = |of: &Watched| of.calendar.booked().collect::<Vec<_>>();
    assert_eq!(booked(one), booked(other), "after call {number}");
    let user = CeilingSubject::User(1);
    let accounts = |of: &Watched| (of.calendar.credit(&user), of.calendar.outstanding(&user));
    assert_eq!(accounts(one), accounts(other), "after call {number}");
    for id in one.known() {
        let status = |of: &Watched| of.calendar.status(*id);
        let (one, other) = (status(one), status(other));
        let same = (one.state, one.span, one.guaranteed);
        assert_eq!(same, (other.state, other.span, other.guaranteed), "{id} after call {number}");
    }
}

fn run(calls: &[Call], with_losses: bool) {
    let (mut one, mut other) = (Watched::new(with_losses), Watched::new(with_losses));
    let mut stored = Stored::default();
    stored.keep(other.calendar.records());
    other.stored = Some(stored);
    for (number, call) in calls.iter().enumerate() {
        let seen = one.seen.len();
        one.apply(call);
        other.apply(call);
        assert_eq!(one.seen[seen..], other.seen[seen..], "events of call {number}");
        assert_same(&one, &other, number);
        let (all, stored) = (other.calendar.records(), other.stored.as_ref().unwrap().records());
        let recorded = (all.reservations, all.credits, all.last);
        let merged = (stored.reservations, stored.credits, stored.last);
        assert_eq!(recorded, merged, "what has changed was recorded with call {number}");
    }
    one.finish();
    other.finish();
    assert_eq!(one.seen, other.seen);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn restored_calendar_answers_and_reports_as_the_one_that_was_recorded(
        calls in prop::collection::vec(call(), 1..100)
    ) {
        run(&calls, false);
    }

    #[test]
    fn restored_calendar_goes_on_in_losses(calls in prop::collection::vec(call(), 1..100)) {
        run(&calls, true);
    }
}

#[test]
fn all_stages_are_where_they_were_and_what_is_due_happens() {
    let mut first = calendar(2, settings());
    let claimed = active(&mut first, fixed(40, 50), 0);
    let waits = active(&mut first, fixed(20, 10).claimed_within(secs(30)), 0);
    let later = first.request(fixed(80, 10).starting_from(at(20)), at(0)).unwrap();
    let second = ReservationRequest::new(owner(2), reads(&[(1, 100)]), secs(30)).spontaneous();
    let running = first.request(second.clone(), at(0)).unwrap();
    let head = first.request(second.clone(), at(0)).unwrap();
    let queued = first.request(second, at(1)).unwrap();
    let mut again = restored(&mut first, settings(), 1);
    assert_eq!(events(&mut again), []);
    for id in [claimed, waits, later, running, head, queued] {
        assert_eq!(again.status(id), first.status(id));
    }
    let mut late = restored(&mut first, settings(), 40);
    first.advance(at(40));
    events(&mut first);
    assert!(
        events(&mut late).contains(&(waits.0, CalendarChange::Ended { reason: EndReason::Lapsed }))
    );
    assert_eq!(late.booked().collect::<Vec<_>>(), first.booked().collect::<Vec<_>>());
    assert_eq!(late.request(fixed(1, 1), at(40)), first.request(fixed(1, 1), at(40)));
    assert_eq!(late.status(ReservationId(7)).state, ReservationState::Scheduled);
}

#[test]
fn numbers_go_on_above_the_greatest_one_that_has_ended() {
    let mut first = calendar(1, settings());
    let id = first.request(fixed(10, 10), at(0)).unwrap();
    first.remove(id, at(0));
    let mut again = restored(&mut first, settings(), 0);
    assert_eq!(again.request(fixed(10, 10), at(0)), Ok(ReservationId(id.0 + 1)));
    assert_eq!(again.status(id).ended, None, "reasons are not recorded");
}

#[test]
fn resource_that_is_recorded_no_more_is_a_loss_of_all_its_capacity() {
    let mut first = calendar(2, settings());
    let begun = active(&mut first, fixed(40, 50), 0);
    let later = first.request(fixed(80, 10).starting_from(at(20)), at(0)).unwrap();
    let other = ReservationRequest::new(owner(2), reads(&[(1, 100)]), secs(30));
    let other = first.request(other, at(0)).unwrap();
    let mut records = first.records();
    records.resources.remove(0);
    let mut again = sound(Calendar::restore(settings(), records, at(5)));
    assert_eq!(again.status(later).state, ReservationState::Scheduled);
    assert_eq!(again.status(begun).state, ReservationState::Active);
    let scaled = again.resources().find(ResourceKind::Target, "ost0").unwrap();
    assert!(again.resources().used(scaled, at(5)).0.is_none());
    assert_eq!(start(&again, other), at(0));
    let changed: Vec<u64> =
        again.take_changed().reservations.iter().map(|one| one.id().0).collect();
    assert_eq!(changed, [begun.0, later.0], "both have less, which is to be recorded");
}

#[test]
fn greater_share_of_best_effort_is_a_loss() {
    let mut first = calendar(1, settings());
    let ids =
        [0, 0].map(|now| first.request(fixed(50, 10).starting_from(at(10)), at(now)).unwrap());
    let settings = CalendarSettings { best_effort: Share::ratio(1, 2), ..settings() };
    let again = restored(&mut first, settings, 0);
    assert_eq!(ids.map(|id| start(&again, id)), [at(10), at(20)]);
    let text = serde_json::to_string(&first.records()).unwrap();
    let bad = text.replace("\"read\":50", "\"read\":2000000000000000000");
    assert!(serde_json::from_str::<CalendarRecords>(&bad).is_err(), "more than a load may be");
}

#[test]
fn records_that_no_calendar_makes_are_left_out_and_named() {
    let mut first = calendar(2, settings());
    let [bad, good] = [0, 1].map(|of| {
        let request = ReservationRequest::new(owner(1), reads(&[(of, 50)]), secs(10));
        first.request(request.starting_from(at(10)), at(0)).unwrap()
    });
    let records = first.records();
    let mut twice = records.clone();
    twice.reservations.push(twice.reservations[0].clone());
    let (mut again, repairs) = Calendar::restore(settings(), twice, at(0));
    assert_eq!(repairs, [RestoreRepair::Duplicate(bad)]);
    assert_eq!(again.count(), 2);
    assert_eq!(again.take_changed().reservations[0].id(), bad, "stored as it is");
    let text = serde_json::to_string(&records).unwrap();
    let text = text.replacen("\"duration\":\"10s\"", "\"duration\":\"0s\"", 1);
    let (mut again, repairs) =
        Calendar::restore(settings(), serde_json::from_str(&text).unwrap(), at(0));
    assert!(matches!(repairs[..], [RestoreRepair::Value(id, _)] if id == bad), "{repairs:?}");
    assert_eq!(again.take_changed().ended, [bad]);
    assert_eq!(start(&again, good), at(10));
    assert_eq!(again.booked().count(), 1);
}

#[test]
fn second_head_of_the_queue_waits_in_it() {
    let mut first = calendar(1, settings());
    let spontaneous = |read, duration| {
        ReservationRequest::new(owner(2), reads(&[(0, read)]), secs(duration)).spontaneous()
    };
    let running = first.request(spontaneous(100, 30), at(0)).unwrap();
    let head = first.request(spontaneous(60, 10), at(0)).unwrap();
    let next = first.request(spontaneous(60, 10), at(0)).unwrap();
    // Half of a decision: the first head has begun, and is still recorded as the head.
    let old: Vec<_> = first.records().reservations;
    first.remove(head, at(1));
    let mut records = first.records();
    records.reservations.push(old.into_iter().find(|one| one.id() == head).unwrap());
    records.reservations.sort_by_key(ReservationRecord::id);
    let (mut again, repairs) = Calendar::restore(settings(), records, at(1));
    assert_eq!(repairs, [RestoreRepair::Head(next)]);
    again.advance(at(30));
    assert_eq!(again.status(running).state, ReservationState::Undefined);
    assert_eq!([head, next].map(|id| start(&again, id)), [at(30), at(40)]);
}

#[test]
fn excused_reservation_keeps_its_time_and_others_lapse() {
    let mut first = calendar(1, settings());
    let [excused, lapses] =
        [0, 0].map(|now| active(&mut first, fixed(40, 20).claimed_within(secs(10)), now));
    first.excuse_claim(excused);
    let mut again = restored(&mut first, settings(), 15);
    assert_eq!(again.status(lapses).ended, Some(EndReason::Lapsed));
    assert_eq!(again.status(excused).state, ReservationState::Active);
    again.advance(at(29));
    assert_eq!(again.status(excused).state, ReservationState::Active, "its clock began at 10");
    again.advance(at(30));
    assert_eq!(again.status(excused).ended, Some(EndReason::Expired));
}

#[test]
fn capacities_ahead_and_what_rules_reserve_are_recorded() {
    let mut first = calendar(1, settings());
    let resource = first.resources().find(ResourceKind::Target, "ost0").unwrap();
    let less = Capacity::per_sec(60, 60).unwrap();
    let span = sluice_reserve::Span { from: at(10), until: at(20) };
    first.set_capacity(resource, span, less, at(0)).unwrap();
    first.set_rules(&[(resource, sluice_reserve::Load::per_sec(10, 0).unwrap())], at(0)).unwrap();
    first.set_unseen(resource, Share::ratio(1, 10), at(0)).unwrap();
    let again = restored(&mut first, settings(), 5);
    for time in [5, 10, 19, 20] {
        let used = |of: &Calendar| of.resources().used(resource, at(time));
        assert_eq!(used(&again), used(&first));
    }
    assert_eq!(again.resources().used(resource, at(10)).1, Capacity::per_sec(44, 44).unwrap());
    assert_eq!(again.next_deadline(), Some(at(10)));
}
