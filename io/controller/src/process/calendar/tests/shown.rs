//! Who sees which reservations, and what rules reserve beside them.

use super::*;

#[test]
fn an_old_reservation_that_ends_last_is_read_when_many_newer_ones_have_ended() {
    let mut room = Room::new();
    let old = room.request(reads(1)).unwrap().id;
    let remove = |room: &mut Room, id| {
        let (answer, mut outcome) = oneshot::channel();
        let change = ReservationChange::Remove;
        room.say(CalendarMsg::Change { id, change, by: by(), answer });
        outcome.try_recv().unwrap().unwrap()
    };
    for _ in 0..ENDED_MAX {
        let id = room.request(reads(1)).unwrap().id;
        room.rows();
        remove(&mut room, id);
        room.rows();
    }
    assert_eq!(remove(&mut room, old).ended.as_deref(), Some("removed"));
    assert_eq!(room.get(old).unwrap().ended.as_deref(), Some("removed"));
    assert_eq!(room.get(old + 1).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn role_user_names_no_account_and_sees_no_rule() {
    let mut room = Room::new();
    for (field, new) in [
        ("account", NewReservation { account: Some("a".into()), ..reads(1) }),
        ("group", NewReservation { group: Some(7), ..reads(1) }),
        ("project", NewReservation { project: Some(7), ..reads(1) }),
    ] {
        let error = room.request_by(user(5), new).unwrap_err();
        let refused = (error.code, error.at.as_deref());
        assert_eq!(refused, (ErrorCode::PermissionDenied, Some(field)));
    }
    room.request_by(user(5), reads(1)).unwrap();
    let text = "[[rule]]\nname = \"secret\"\nreservation = \"20MB/s\"\n\
                [[rule]]\nname = \"other\"\nreservation = \"10MB/s\"\n";
    room.actor.rules = RuleReservations::of(&RuleSet::parse(text).unwrap());
    let now = room.actor.now();
    room.actor.apply_rules(now);
    let exact = || NewReservation { exact: true, ..reads(80) };
    let taken_by = |room: &mut Room, by| {
        let refused = room.request_by(by, NewReservation { user: Some(5), ..exact() }).unwrap_err();
        refused.refusal.unwrap().taken_by
    };
    assert_eq!(taken_by(&mut room, user(5))[0], "rules: 30MB/s");
    assert_eq!(taken_by(&mut room, by())[0], "rule secret: 20MB/s");
    let shown = |room: &mut Room, by| room.promised(by).calendar.resources[0].rules.clone();
    assert_eq!(shown(&mut room, user(5)), ["rules: 30MB/s"]);
    assert_eq!(shown(&mut room, by()).len(), 2);
}

#[test]
fn lists_are_pages_and_what_ended_is_in_the_last_one() {
    let mut room = Room::new();
    let ids: Vec<u64> = (0..1_003)
        .map(|nth| {
            let job = Some(if nth % 2 == 0 { "even" } else { "odd" }.to_owned());
            let id = room.request(NewReservation { job, ..reads(1) }).unwrap().id;
            room.rows();
            id
        })
        .collect();
    room.change(ids[0], ReservationChange::Remove, by()).unwrap();
    let all = WantedReservations { with_ended: true, ..WantedReservations::default() };
    let page = room.list(all.clone());
    assert_eq!((page.reservations.len(), page.omitted, page.next), (1_000, 2, Some(ids[1_000])));
    let last = room.list(WantedReservations { after: ids[1_000], ..all.clone() });
    let shown: Vec<u64> = last.reservations.iter().map(|one| one.id).collect();
    assert_eq!((shown, last.next), (vec![ids[0], ids[1_001], ids[1_002]], None));
    let job = |job: &str| WantedReservations { job: Some(job.into()), ..all.clone() };
    assert_eq!(room.list(job("odd")).reservations.len(), 501);
    assert_eq!(room.list(job("even")).reservations.len(), 502);
    let of = WantedReservations { user: Some(6), ..job("even") };
    assert_eq!(room.list(of).reservations.len(), 0);
}

#[test]
fn rules_that_the_store_refuses_reserve_nothing() {
    let mut room = Room::new();
    let set = |room: &mut Room, rate: &str| {
        let text = format!("[[rule]]\nname = \"a\"\nreservation = \"{rate}\"\n");
        let (answer, mut outcome) = oneshot::channel();
        room.say(CalendarMsg::SetRules { text, over: None, by: by(), answer });
        outcome.try_recv().unwrap().unwrap_err()
    };
    assert!(matches!(set(&mut room, "80MB/s"), RulePublishError::Stale { .. }));
    room.request(NewReservation { exact: true, ..reads(85) }).unwrap();
    assert!(matches!(set(&mut room, "1MB/s"), RulePublishError::Promised(_)));
}

#[test]
fn rules_that_do_not_parse_are_refused_as_such_whatever_is_promised() {
    let mut room = Room::new();
    let (answer, mut outcome) = oneshot::channel();
    let text = "[[rule]]\nname = 7\n".into();
    room.say(CalendarMsg::SetRules { text, over: None, by: by(), answer });
    assert!(matches!(outcome.try_recv().unwrap(), Err(RulePublishError::Wrong(_))));
}

#[test]
fn rules_in_force_count_at_each_target_where_they_fit() {
    let mut room = Room::new();
    room.request(reads(85)).unwrap();
    let text = "[[rule]]\nname = \"a\"\nreservation = \"50MB/s\"\n";
    let rules = RuleSet::parse(text).unwrap();
    let settings = ReservationSettings::default();
    let mut next = Room::on(room.stored.clone(), room.clock.clone(), &rules, settings);
    next.say(CalendarMsg::Describe("b".into(), description("other", 100_000_000)));
    let rules_of = |name| {
        let resources = next.actor.calendar.resources();
        let target = resources.find(reserve::ResourceKind::Target, name).unwrap();
        resources.unreserved(target).rules.read_per_sec()
    };
    assert_eq!((rules_of("fs"), rules_of("other")), (0, 50_000_000));
}
