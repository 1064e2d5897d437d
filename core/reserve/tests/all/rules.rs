//! What rules reserve of a resource, and what no proxy sees of it.

use model::Share;
use sluice_reserve::{
    CalendarSettings, Capacity, Load, ReservationId, ReservationRequest, ResourceId, ResourceKind,
    RulesError, Span, Unreserved,
};

use crate::life::{active, at, calendar, events, fixed, owner, reads, secs, settings, start};

const OST0: ResourceId = ResourceId::new(0);

fn load(read: u64) -> Load {
    Load::per_sec(read, 0).unwrap()
}

#[test]
fn rules_that_promised_reservations_leave_no_room_for_are_refused_by_number() {
    let mut calendar = calendar(2, settings());
    let now = active(&mut calendar, fixed(40, 20), 0);
    let later: Vec<ReservationId> = (0..9)
        .map(|_| calendar.request(fixed(10, 10).starting_from(at(50)), at(0)).unwrap())
        .collect();
    // both or none: the second target has nothing promised
    let both = [(ResourceId::new(1), load(90)), (OST0, load(11))];
    let error = calendar.set_rules(&both, at(0)).unwrap_err();
    let reservations = later[..8].to_vec();
    let (kind, name) = (ResourceKind::Target, "ost0".into());
    assert_eq!(error, RulesError::Promised { kind, name, at: at(50), reservations });
    assert_eq!(calendar.resources().unreserved(ResourceId::new(1)), Unreserved::default());
    let Err(RulesError::Promised { at: first, reservations, .. }) =
        calendar.check_rules(OST0, load(61))
    else {
        panic!("40 of 100 are promised now");
    };
    assert_eq!((first, reservations), (at(0), vec![now]));
    assert_eq!(calendar.set_rules(&[(OST0, load(10))], at(0)), Ok(()));
    assert!(calendar.request(fixed(1, 5).starting_from(at(50)).ending_by(at(55)), at(0)).is_err());
}

#[test]
fn rules_that_reserve_less_free_capacity_at_once() {
    let mut calendar = calendar(1, settings());
    calendar.set_rules(&[(OST0, load(50))], at(0)).unwrap();
    active(&mut calendar, fixed(50, 20), 0);
    let next = calendar.request(fixed(50, 20), at(0)).unwrap();
    let head = calendar.request(fixed(20, 20).spontaneous(), at(0)).unwrap();
    assert_eq!([next, head].map(|id| start(&calendar, id)), [at(20), at(40)]);
    events(&mut calendar);
    calendar.set_rules(&[(OST0, Load::NONE)], at(5)).unwrap();
    assert_eq!([next, head].map(|id| start(&calendar, id)), [at(5), at(20)]);
}

#[test]
fn what_no_proxy_sees_is_taken_before_best_effort_and_rules_and_each_is_told_apart() {
    let mut calendar =
        calendar(0, CalendarSettings { best_effort: Share::ratio(1, 10), ..settings() });
    let whole = Capacity::per_sec(1_000, 500).unwrap();
    let target =
        calendar.add_resource("scratch".into(), ResourceKind::Target, whole, at(0)).unwrap();
    // a name is one of its kind
    let ops =
        calendar.add_resource("scratch".into(), ResourceKind::Metadata, whole, at(0)).unwrap();
    assert_eq!(calendar.resources().find(ResourceKind::Metadata, "scratch"), Some(ops));
    calendar.set_unseen(target, Share::ratio(1, 5), at(0)).unwrap();
    calendar.set_rules(&[(target, load(100))], at(0)).unwrap();
    let (_, usable) = calendar.resources().used(target, at(0));
    assert_eq!(usable, Capacity::per_sec(620, 310).unwrap(), "720 less the cost of 100 reads");
    assert_eq!(calendar.resources().whole(target, at(0)), whole);
    let [unseen, best_effort] = [Share::ratio(1, 5), Share::ratio(1, 10)];
    let unreserved = Unreserved { unseen, best_effort, rules: load(100) };
    assert_eq!(calendar.resources().unreserved(target), unreserved);
    // more is unseen: what was promised is moved as in a loss
    let id = ReservationRequest::new(owner(1), reads(&[(0, 620)]), secs(10)).starting_from(at(10));
    let id = calendar.request(id, at(0)).unwrap();
    calendar.set_unseen(target, Share::ratio(1, 2), at(0)).unwrap();
    let place = Span { from: at(10), until: at(20) };
    assert_eq!(calendar.status(id).span, Some(place), "with 350 of its 620");
}
