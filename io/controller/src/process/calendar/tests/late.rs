//! What the plan reports to be late, as it is shown.

use ::rules::EntitlementId;
use api::LateRate;
use model::{Rate, Scope};

use super::*;

/// The plan reports that a row of a reservation is served a third of 30,000,000 a second.
fn late(row: EntitlementId) -> LateReservation {
    LateReservation {
        scope: Scope::entitlement(row.0),
        reserved: Rate::bytes_per_sec(30_000_000).unwrap(),
        served_per_sec: 10_000_000,
    }
}

#[test]
fn what_is_late_is_shown_published_and_measured_until_nothing_is() {
    let mut room = Room::new();
    let id = room.request(reads(30)).unwrap().id;
    room.in_force(id);
    let events = |room: &mut Room| {
        let of = |msg| match msg {
            EventMsg::Publish(event) => Some((event.subject, event.text)),
            _ => None,
        };
        room.published.try_iter().filter_map(of).collect::<Vec<_>>()
    };
    events(&mut room);
    let row = EntitlementId::of_reservation(id, 0);
    let rule = LateReservation { scope: Scope::rule("jobs", &[]), ..late(row) };
    room.say(CalendarMsg::Late("fs".into(), vec![late(row)]));
    room.say(CalendarMsg::Late("fs".into(), vec![late(row), rule]));
    let (served, reserved) = (WireRate::Bytes(10_000_000), WireRate::Bytes(30_000_000));
    let (direction, span_ns) = ("read".into(), LateReservation::SPAN.get());
    let expected = LateRate { direction, served, reserved, span_ns };
    assert_eq!(room.get(id).unwrap().late, std::slice::from_ref(&expected));
    let of_target = room.promised(by()).calendar.resources;
    let late_of = |kind: &str| of_target.iter().find(|of| of.kind == kind).unwrap().late.clone();
    let of_rules = LateRate { direction: "all".into(), ..expected.clone() };
    assert_eq!((late_of("target"), late_of("metadata")), (vec![of_rules, expected], vec![]));
    let published = events(&mut room);
    let [(subject, text)] = &published[..] else { panic!("{published:?}") };
    assert_eq!(subject, "target=fs");
    let wanted = "10.0 MB/s of 30.0 MB/s of reads were served";
    assert!(text.contains(wanted) && text.contains(&format!("reservation {id}")), "{text}");
    room.pass(Duration::from_secs(7));
    let figures = |room: &Room| room.actor.late.figures(std::iter::empty(), room.actor.now());
    assert_eq!((figures(&room)[0].late, figures(&room)[0].span), (2, Nanos::from_secs(7)));
    room.say(CalendarMsg::Late("fs".into(), vec![]));
    room.pass(Duration::from_secs(7));
    assert_eq!((figures(&room)[0].late, figures(&room)[0].span), (0, Nanos::from_secs(7)));
    assert_eq!(room.get(id).unwrap().late, []);
    let published = events(&mut room);
    assert!(matches!(&published[..], [(_, text)] if text.contains("7.00 s")), "{published:?}");
}
