//! The calendar's thread without threads around it but a store that may fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::{
    DescribedCapacity, ExportDescription, Role, TargetDescription, WireRate, WireReservationState,
};
use model::Share;
use reserve::Capacity;
use testkit::TestFolder;

use super::*;
use crate::audit::Audit;
use crate::process::queue::queue;
use crate::store::StoreError;
use crate::token::TokenSet;

struct Room {
    actor: CalendarActor,
    plan: MsgInbox<PlanMsg>,
    /// The versions of the rows that are awaited to be in force.
    awaited: BTreeMap<ReservationId, u64>,
    fails: Arc<AtomicBool>,
    clock: Arc<AtomicU64>,
    _folder: TestFolder,
}

fn by() -> ApiCaller {
    ApiCaller {
        name: "anybody".into(),
        role: Role::Admin,
        user: None,
        node: None,
        from: "127.0.0.1:1".into(),
    }
}

impl Room {
    fn new() -> Room {
        Room::of(ReservationSettings::default())
    }

    fn of(settings: ReservationSettings) -> Room {
        let folder = TestFolder::new();
        let (store, to_store) = queue(4);
        let fails = Arc::new(AtomicBool::new(false));
        let failing = fails.clone();
        // It ends when the actor has gone.
        std::thread::spawn(move || {
            let mut state = CalendarState::default();
            while let Ok(msg) = to_store.recv() {
                match msg {
                    StoreMsg::Calendar { answer, .. } if failing.load(Ordering::Relaxed) => {
                        let (location, problem) = ("the store".into(), "full".into());
                        let error = StoreError::Damaged { location, problem };
                        let _ = answer.send(Err((error, Box::new(state.clone()))));
                    }
                    StoreMsg::Calendar { decision, answer } => {
                        state.apply(*decision);
                        let _ = answer.send(Ok(()));
                    }
                    StoreMsg::SetRules { answer, .. } => {
                        let over = "v0".into();
                        let _ = answer.send(Err(RulePublishError::Stale { over }));
                    }
                    _ => {}
                }
            }
        });
        let (to_plan, plan) = queue(64);
        let clock = Arc::new(AtomicU64::new(1_000_000_000_000));
        let wall = WallClock::Moved(clock.clone());
        let counts: Arc<Counts> = Arc::default();
        let audit = Audit::open(folder.path()).unwrap();
        let to = CalendarOutputs {
            store,
            plan: to_plan,
            publisher: EventPublisher::new(queue(64).0, counts.clone(), wall.clone()),
            access: Arc::new(AccessControl::new(TokenSet::of(&[]), audit, false)),
            counts,
            clock: wall,
        };
        let actor = CalendarActor::new(CalendarState::default(), &RuleSet::default(), settings, to);
        let actor = actor.unwrap();
        let awaited = BTreeMap::new();
        let mut room = Room { actor, plan, awaited, fails, clock, _folder: folder };
        room.describe(100_000_000);
        room
    }

    fn say(&mut self, msg: CalendarMsg) {
        let read = self.actor.handle(msg);
        self.actor.commit();
        read.into_iter().for_each(|read| self.actor.answer(read));
    }

    fn request(&mut self, new: NewReservation) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        let new = Box::new(NewReservation { user: Some(5), duration_ns: 1_000_000_000_000, ..new });
        self.say(CalendarMsg::Request { new, by: by(), peer: None, answer });
        outcome.try_recv().unwrap()
    }

    fn get(&mut self, id: u64) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::Get { id, by: by(), answer });
        outcome.try_recv().unwrap()
    }

    /// The numbers of the rows that the plan was sent, and whether each is put or removed.
    fn rows(&mut self) -> Vec<(u64, bool)> {
        let mut changes = Vec::new();
        for msg in self.plan.try_iter() {
            let PlanMsg::Rows(rows) = msg else { continue };
            self.awaited.extend(rows.awaited);
            changes.extend(rows.changes.into_iter().map(|(id, row)| (id.0, row.is_some())));
        }
        changes
    }

    /// The version of the rows of a reservation that are awaited.
    fn awaited(&mut self, id: u64) -> u64 {
        self.rows();
        self.awaited[&ReservationId(id)]
    }

    /// The plan reports that the last rows of a reservation are in force.
    fn in_force(&mut self, id: u64) {
        let version = self.awaited(id);
        self.say(CalendarMsg::InForce { id, version });
    }

    /// A proxy describes a target of this capacity, in bytes of reads or writes per second.
    fn describe(&mut self, per_sec: u64) {
        let capacity = |per_sec| DescribedCapacity {
            read_per_sec: per_sec,
            write_per_sec: per_sec,
            is_configured: true,
        };
        let target = TargetDescription {
            name: "fs".into(),
            bytes: Some(capacity(per_sec)),
            metadata: Some(capacity(1_000)),
            unseen_ppm: 0,
        };
        let export = ExportDescription { name: "x".into(), target: "fs".into() };
        let description = ProxyDescription { targets: vec![target], exports: vec![export] };
        self.say(CalendarMsg::Describe("a".into(), Arc::new(description)));
    }
}

fn reads(megabytes: u64) -> NewReservation {
    let read = Some(WireRate::Bytes(megabytes * 1_000_000));
    NewReservation { read, ..NewReservation::default() }
}

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
fn what_the_store_does_not_take_has_not_happened() {
    let mut room = Room::new();
    let kept = room.request(reads(40)).unwrap();
    assert_eq!(room.rows(), [(kept.id * 4, true)]);
    room.fails.store(true, Ordering::Relaxed);
    assert_eq!(room.request(reads(40)).unwrap_err().code, ErrorCode::StoreFailed);
    assert_eq!(room.get(kept.id + 1).unwrap_err().code, ErrorCode::NotFound);
    let (answer, mut outcome) = oneshot::channel();
    let change = ReservationChange::Remove;
    room.say(CalendarMsg::Change { id: kept.id, change, by: by(), answer });
    assert_eq!(outcome.try_recv().unwrap().unwrap_err().code, ErrorCode::StoreFailed);
    room.fails.store(false, Ordering::Relaxed);
    assert_eq!(room.get(kept.id).unwrap().state, WireReservationState::Scheduled);
    room.rows();
    // It has room again, and the rows are as they were.
    room.request(reads(45)).unwrap();
    assert!(room.rows().iter().all(|(_, is_put)| *is_put));
    assert_eq!(
        room.request(NewReservation { exact: true, ..reads(1) }).unwrap_err().code,
        ErrorCode::DoesNotFit
    );
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
fn directories_that_make_large_records_are_refused() {
    let mut room = Room::new();
    for directory in ["a".repeat(2_000), "a\u{7}".into()] {
        let asked = NewReservation { directory: Some(directory), ..reads(1) };
        let error = room.request(asked).unwrap_err();
        assert_eq!(
            (error.code, error.at.as_deref()),
            (ErrorCode::InvalidArgument, Some("directory"))
        );
    }
}
