//! What bounds a reservation beside its target: the network of the proxies, and the nodes of the job.

use model::Rate;

use super::*;

/// A proxy of these targets, of which each reads or writes 100 MB/s, with a network.
fn proxy(targets: &[&str], megabytes: Option<u64>) -> Arc<ProxyDescription> {
    let mut all = targets.iter().map(|name| (*description(name, 100_000_000)).clone());
    let mut one = all.next().unwrap();
    one.targets.extend(all.flat_map(|other| other.targets));
    let network_per_sec = megabytes.map(|megabytes| megabytes * 1_000_000);
    Arc::new(ProxyDescription { network_per_sec, ..one })
}

/// One with an export of the name of each of its targets.
fn with_exports(targets: &[&str], megabytes: u64) -> Arc<ProxyDescription> {
    let export = |name: &&str| ExportDescription { name: (*name).into(), target: (*name).into() };
    let exports = targets.iter().map(export).collect();
    Arc::new(ProxyDescription { exports, ..(*proxy(targets, Some(megabytes))).clone() })
}

/// Reads of the export with the name of a target.
fn at(target: &str, megabytes: u64) -> NewReservation {
    NewReservation { export: Some(target.into()), ..reads(megabytes) }
}

/// What is refused, by the kind and name of its bound.
fn refused(room: &mut Room, new: NewReservation) -> (String, String) {
    let refused = room.request(NewReservation { exact: true, ..new }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::DoesNotFit);
    let refusal = refused.refusal.unwrap();
    assert!(refused.message.contains(&refusal.bottleneck), "{}", refused.message);
    (refusal.kind, refusal.bottleneck)
}

#[test]
fn the_networks_of_a_targets_proxies_bound_what_is_reserved_there() {
    let mut room = Room::new();
    let describe = |room: &mut Room, name: &str, of: Arc<ProxyDescription>| {
        room.say(CalendarMsg::Describe(name.into(), of));
    };
    describe(&mut room, "a", proxy(&["fs"], Some(20)));
    let network = ("proxy network".to_owned(), "fs".to_owned());
    assert_eq!(refused(&mut room, reads(18)), network, "15 % are for other requests");
    describe(&mut room, "b", proxy(&["fs"], Some(20)));
    let id = room.request(reads(30)).unwrap().id;
    room.in_force(id);
    let write = Some(WireRate::Bytes(5_000_000));
    let writes = || NewReservation { write, ..NewReservation::default() };
    assert_eq!(refused(&mut room, writes()), network, "reads and writes share it");
    // A proxy of another target, too: what is reserved there counts here, as it takes the same way.
    describe(&mut room, "a", proxy(&["fs", "other"], Some(20)));
    describe(&mut room, "b", proxy(&["fs", "other"], Some(20)));
    assert_eq!(room.get(id).unwrap().reduced, None);
    // One without a network: what is known is not all.
    describe(&mut room, "c", proxy(&["fs"], None));
    room.request(reads(50)).unwrap();
    room.say(CalendarMsg::Forget("c".into()));
    let reduced = room.get(id).unwrap().reduced.unwrap();
    assert!(reduced.because.contains("proxy network fs"), "{}", reduced.because);
}

#[test]
fn networks_of_targets_that_have_some_proxies_in_common_are_one_bound() {
    let mut room = Room::new();
    let of = [("a", &["fs"][..]), ("b", &["fs", "other"]), ("c", &["other"])];
    for (name, targets) in of {
        room.say(CalendarMsg::Describe(name.into(), with_exports(targets, 20)));
    }
    // All that the proxies of one target move, of which half is that of b.
    let id = room.request(at("fs", 30)).unwrap().id;
    room.in_force(id);
    assert_eq!(room.get(id).unwrap().reduced, None);
    let network = |name: &str| ("proxy network".to_owned(), name.to_owned());
    assert_eq!(refused(&mut room, at("other", 10)), network("fs"));
    let other = room.request(at("other", 8)).unwrap().id;
    assert_eq!(refused(&mut room, at("other", 1)), network("fs"));
    // It is the whole rate at the target, of which its own network has all.
    room.in_force(other);
    assert_eq!(room.get(other).unwrap().reduced, None);
    // A loss of what a half of it passes reduces the whole in proportion.
    room.say(CalendarMsg::Describe("a".into(), with_exports(&["fs"], 2)));
    let reduced = room.get(other).unwrap().reduced.unwrap();
    assert!(reduced.because.contains("proxy network fs") && reduced.ppm > 0, "{reduced:?}");
}

#[test]
fn a_phase_counts_what_it_adds_though_other_proxies_have_come_since_its_reservation_was_made() {
    let mut room = Room::new();
    room.say(CalendarMsg::Describe("a".into(), with_exports(&["fs"], 20)));
    let id = room.request(at("fs", 16)).unwrap().id;
    room.in_force(id);
    // Now half of what is reserved at fs counts at the network of the other target, too.
    room.say(CalendarMsg::Describe("b".into(), with_exports(&["fs", "other"], 20)));
    room.request(NewReservation { exact: true, ..at("other", 12) }).unwrap();
    let phase = |megabytes: u64| api::AddedPhase {
        duration_ns: 1_000_000_000,
        read: Some(WireRate::Bytes(megabytes * 1_000_000)),
        ..api::AddedPhase::default()
    };
    let needless = room.add_phase(id, phase(16), by()).unwrap_err();
    assert_eq!(needless.code, ErrorCode::InvalidArgument, "{}", needless.message);
    // 12 and half of 4 are less than 17, and half of 20 is not that much.
    let added = room.add_phase(id, phase(20), by()).unwrap().id;
    room.in_force(added);
    assert_eq!(room.get(added).unwrap().reduced, None, "nothing has lost capacity");
}

#[test]
fn nodes_move_no_more_than_they_can() {
    let node = Rate::bytes_per_sec(10_000_000);
    let mut room = Room::of(ReservationSettings { node, ..ReservationSettings::default() });
    let of = |nodes, megabytes| NewReservation { nodes: Some(nodes), ..reads(megabytes) };
    assert_eq!(refused(&mut room, of(3, 31)), ("node".into(), "3 nodes".into()));
    let refusal = room.request(of(3, 60)).unwrap_err();
    assert!(
        refusal.message.contains("60MB/s") && refusal.message.contains("10MB/s"),
        "{refusal:?}"
    );
    assert_eq!(refusal.refusal.unwrap().fits_now_ppm, 500_000);
    // Each direction has all of it.
    let write = Some(WireRate::Bytes(30_000_000));
    room.request(NewReservation { write, ..of(3, 30) }).unwrap();
    for nodes in [0, 65_537, u32::MAX] {
        let error = room.request(of(nodes, 1)).unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), (ErrorCode::InvalidArgument, Some("nodes")));
        assert!(error.message.contains(&nodes.to_string()), "{}", error.message);
    }
    let phase = |megabytes: u64| api::NewPhase {
        start_ns: 1,
        duration_ns: 1_000_000_000,
        read: Some(WireRate::Bytes(megabytes * 1_000_000)),
        ..api::NewPhase::default()
    };
    let phased = |megabytes| NewReservation { phases: vec![phase(megabytes)], ..of(1, 1) };
    assert_eq!(refused(&mut room, phased(11)), ("node".into(), "1 node".into()));
    room.request(NewReservation { exact: true, ..phased(2) }).unwrap();
}
