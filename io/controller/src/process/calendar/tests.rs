//! The calendar's thread without threads around it but a store that may fail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::{
    DescribedCapacity, ErrorCode, ExportDescription, Role, TargetDescription, WireRate,
    WireReservationState,
};
use model::Share;
use reserve::Capacity;
use testkit::TestFolder;

use super::ended::ENDED_MAX;
use super::*;
use crate::audit::Audit;
use crate::process::events::EventMsg;
use crate::process::queue::queue;
use crate::store::StoreError;
use crate::token::TokenSet;

mod bounds;
mod late;
mod phases;

struct Room {
    actor: CalendarActor,
    plan: MsgInbox<PlanMsg>,
    published: MsgInbox<EventMsg>,
    /// The versions of the rows that are awaited to be in force.
    awaited: BTreeMap<ReservationId, u64>,
    /// What is on record.
    stored: Arc<Mutex<CalendarState>>,
    /// Whether decisions fail.
    fails: Arc<AtomicBool>,
    /// Whether a decision is stored and reported as failed.
    is_uncertain: Arc<AtomicBool>,
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
        let clock = Arc::new(AtomicU64::new(1_000_000_000_000));
        let mut room = Room::on(Arc::default(), clock, &RuleSet::default(), settings);
        room.describe(100_000_000);
        room
    }

    /// Another controller on what this one has stored, after a time.
    fn followed(&self, after: Duration) -> Room {
        let nanos = self.clock.load(Ordering::Relaxed) + after.as_nanos() as u64;
        let clock = Arc::new(AtomicU64::new(nanos));
        let settings = ReservationSettings::default();
        Room::on(self.stored.clone(), clock, &RuleSet::default(), settings)
    }

    fn on(
        stored: Arc<Mutex<CalendarState>>,
        clock: Arc<AtomicU64>,
        rules: &RuleSet,
        settings: ReservationSettings,
    ) -> Room {
        let folder = TestFolder::new();
        let (store, to_store) = queue(4);
        let fails = Arc::new(AtomicBool::new(false));
        let (failing, state) = (fails.clone(), stored.clone());
        let is_uncertain = Arc::new(AtomicBool::new(false));
        let uncertain = is_uncertain.clone();
        // It ends when the actor has gone.
        std::thread::spawn(move || {
            while let Ok(msg) = to_store.recv() {
                match msg {
                    StoreMsg::Calendar { decision, answer }
                        if failing.load(Ordering::Relaxed) || uncertain.load(Ordering::Relaxed) =>
                    {
                        if uncertain.load(Ordering::Relaxed) {
                            state.lock().unwrap().apply(*decision);
                        }
                        let (location, problem) = ("the store".into(), "full".into());
                        let error = StoreError::Damaged { location, problem };
                        let _ = answer.send(Err((error, Box::new(state.lock().unwrap().clone()))));
                    }
                    StoreMsg::Calendar { decision, answer } => {
                        state.lock().unwrap().apply(*decision);
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
        let (to_events, published) = queue(64);
        let wall = WallClock::Moved(clock.clone());
        let counts: Arc<Counts> = Arc::default();
        let audit = Audit::open(folder.path()).unwrap();
        let to = CalendarOutputs {
            store,
            plan: to_plan,
            publisher: EventPublisher::new(to_events, counts.clone(), wall.clone()),
            access: Arc::new(AccessControl::new(TokenSet::of(&[]), audit, false)),
            counts,
            clock: wall,
        };
        let state = stored.lock().unwrap().clone();
        let actor = CalendarActor::new(state, rules, settings, to);
        let awaited = BTreeMap::new();
        Room {
            actor,
            plan,
            published,
            awaited,
            stored,
            fails,
            is_uncertain,
            clock,
            _folder: folder,
        }
    }

    fn pass(&self, span: Duration) {
        self.clock.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }

    /// An active reservation to be claimed within 100 s.
    fn unclaimed(&mut self) -> u64 {
        let window = NewReservation { claim_window_ns: 100_000_000_000, ..reads(1) };
        let id = self.request(window).unwrap().id;
        self.in_force(id);
        assert!(self.get(id).unwrap().claim_by_ns.is_some());
        id
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

    fn change(
        &mut self,
        id: u64,
        change: ReservationChange,
        by: ApiCaller,
    ) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::Change { id, change, by, answer });
        outcome.try_recv().unwrap()
    }

    fn request_by(
        &mut self,
        by: ApiCaller,
        new: NewReservation,
    ) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        let new = Box::new(NewReservation { duration_ns: 1_000_000_000_000, ..new });
        self.say(CalendarMsg::Request { new, by, peer: None, answer });
        outcome.try_recv().unwrap()
    }

    fn list(&mut self, wanted: WantedReservations) -> WireReservations {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::List { wanted, answer });
        outcome.try_recv().unwrap()
    }

    fn promised(&mut self, by: ApiCaller) -> PromisedCalendar {
        let (answer, mut outcome) = oneshot::channel();
        let now = self.actor.now();
        let span = (now.before(Nanos::from_secs(1)), now + Nanos::from_secs(86_400));
        self.say(CalendarMsg::Promised { span, target: Some("fs".into()), by, answer });
        outcome.try_recv().unwrap()
    }

    fn audit_lines(&self) -> usize {
        self.actor.to.access.audit.read(0, 100).unwrap().lines.len()
    }

    fn get(&mut self, id: u64) -> Result<WireReservation, Refused> {
        let (answer, mut outcome) = oneshot::channel();
        self.say(CalendarMsg::Get { id, by: by(), answer });
        outcome.try_recv().unwrap()
    }

    fn step(&mut self) {
        let now = self.actor.now();
        self.actor.calendar.advance(now);
        self.actor.drain_events();
        self.actor.commit();
    }

    /// The rows that the plan was sent, with their rates.
    fn rates(&mut self) -> Vec<(u64, Option<u64>)> {
        let mut rates = Vec::new();
        for msg in self.plan.try_iter() {
            let PlanMsg::Rows(all) = msg else { continue };
            for rows in all {
                self.awaited.extend(rows.awaited);
                rates.extend(rows.changes.into_iter().map(|(id, timed)| {
                    let rate = timed.and_then(|timed| timed.row.reservation());
                    (id.0, rate.map(|rate| rate.per_sec()))
                }));
            }
        }
        rates
    }

    /// The numbers of the rows that the plan was sent, and whether each is put or removed.
    fn rows(&mut self) -> Vec<(u64, bool)> {
        self.rates().into_iter().map(|(id, rate)| (id, rate.is_some())).collect()
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

    /// The plan reports that there is no room for the last rows of a reservation.
    fn no_room(&mut self, id: u64) {
        let version = self.awaited(id);
        self.say(CalendarMsg::NoRoom { id, version });
    }

    /// A proxy describes a target of this capacity, in bytes of reads or writes per second.
    fn describe(&mut self, per_sec: u64) {
        self.say(CalendarMsg::Describe("a".into(), description("fs", per_sec)));
    }
}

/// What a proxy says of its target, which reads or writes that much, and its export `x`.
fn description(target: &str, per_sec: u64) -> Arc<ProxyDescription> {
    let of = |per_sec| {
        let (read_per_sec, write_per_sec) = (per_sec, per_sec);
        Some(DescribedCapacity { read_per_sec, write_per_sec, is_configured: true })
    };
    let (bytes, metadata) = (of(per_sec), of(1_000));
    let export = ExportDescription { name: "x".into(), target: target.into() };
    let target = TargetDescription { name: target.into(), bytes, metadata, unseen_ppm: 0 };
    Arc::new(ProxyDescription {
        targets: vec![target],
        exports: vec![export],
        ..ProxyDescription::default()
    })
}

fn user(uid: u32) -> ApiCaller {
    ApiCaller { role: Role::User, user: Some(uid), ..by() }
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

#[test]
fn phases_are_reservations_of_their_own_with_rows_of_what_they_add() {
    let mut room = Room::new();
    let second = 1_000_000_000;
    let phase = api::NewPhase {
        start_ns: 100 * second,
        tolerance_ns: 10 * second,
        duration_ns: 50 * second,
        read: Some(WireRate::Bytes(60_000_000)),
        ..api::NewPhase::default()
    };
    let asked = NewReservation { phases: vec![phase.clone()], ..reads(20) };
    let made = room.request(asked.clone()).unwrap();
    let id = made.phases[0].id;
    assert_eq!(made.phases[0].start_ns, made.start_ns.unwrap() + 100 * second);
    assert_eq!(made.phases[0].last_start_ns, made.phases[0].start_ns + 10 * second);
    let of_phase = room.get(id).unwrap();
    assert_eq!((of_phase.phase_of, of_phase.read), (Some(made.id), phase.read));
    room.rows();
    room.clock.fetch_add(100 * second, Ordering::Relaxed);
    room.step();
    assert_eq!(room.rates(), [(id * 4, Some(40_000_000))]);
    room.in_force(id);
    assert_eq!(room.get(made.id).unwrap().phases[0].state, WireReservationState::Active);
    assert_eq!(room.get(id).unwrap().reduced, None);
    // A failure of the store brings back what it is a phase of.
    room.fails.store(true, Ordering::Relaxed);
    room.change(made.id, ReservationChange::Remove, by()).unwrap_err();
    room.fails.store(false, Ordering::Relaxed);
    assert_eq!(room.get(id).unwrap().phase_of, Some(made.id));
    room.change(made.id, ReservationChange::Remove, by()).unwrap();
    let ended = room.get(id).unwrap();
    assert_eq!((ended.ended.as_deref(), ended.phase_of), (Some("parent_ended"), Some(made.id)));

    let wrong = |change: fn(&mut api::NewPhase)| {
        let mut phase = phase.clone();
        change(&mut phase);
        NewReservation { phases: vec![phase], ..reads(20) }
    };
    let many = NewReservation { phases: vec![phase.clone(); 65], ..reads(20) };
    for (asked, part) in [
        (wrong(|phase| phase.read = Some(WireRate::Ops(1))), "phase 1: read"),
        (wrong(|phase| phase.read = Some(WireRate::Bytes(1))), "less than 20000000"),
        (wrong(|phase| phase.read = None), "phase 1: "),
        (wrong(|phase| phase.start_ns = 960_000_000_000), "phase 1: "),
        (NewReservation { spontaneous: true, ..asked.clone() }, "phases"),
        (NewReservation { claim_window_ns: 1, ..asked }, "phases"),
        (many, "65 phases"),
    ] {
        let error = room.request(asked).unwrap_err();
        let refused = (error.code, error.at.as_deref());
        assert_eq!(refused, (ErrorCode::InvalidArgument, Some("phases")), "{}", error.message);
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
}

#[test]
fn what_has_not_ended_by_the_records_is_not_listed_as_ended() {
    let mut room = Room::new();
    let kept = room.request(reads(1)).unwrap().id;
    room.fails.store(true, Ordering::Relaxed);
    room.change(kept, ReservationChange::Remove, by()).unwrap_err();
    room.fails.store(false, Ordering::Relaxed);
    let listed =
        room.list(WantedReservations { with_ended: true, ..WantedReservations::default() });
    let shown: Vec<_> = listed.reservations.iter().map(|one| (one.id, one.ended.clone())).collect();
    assert_eq!(shown, [(kept, None)]);
}

#[test]
fn a_claim_that_claims_nothing_is_not_in_the_audit_log() {
    let mut room = Room::new();
    let id = room.request(NewReservation { claim_window_ns: 1_000_000_000_000, ..reads(1) });
    let id = id.unwrap().id;
    let claim = |room: &mut Room| room.change(id, ReservationChange::Claim, by()).unwrap();
    claim(&mut room);
    assert_eq!(room.audit_lines(), 1);
    room.in_force(id);
    assert!(claim(&mut room).claimed_ns.is_some());
    claim(&mut room);
    assert_eq!(room.audit_lines(), 2);
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
fn a_mistyped_capacity_ends_no_promise() {
    let mut room = Room::new();
    let active = room.request(reads(40)).unwrap().id;
    room.in_force(active);
    let later = Some((room.actor.now() + Nanos::from_secs(2_000)).as_nanos());
    let exact = NewReservation { not_before_ns: later, exact: true, ..reads(80) };
    let exact = room.request(exact).unwrap();
    room.describe(1_000_000);
    assert!(room.get(active).unwrap().reduced.unwrap().ppm < 30_000);
    assert_eq!(room.get(exact.id).unwrap(), exact);
    room.describe(100_000_000);
    assert_eq!(room.get(active).unwrap().reduced, None);
    assert_eq!(room.get(exact.id).unwrap(), exact);
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
fn rows_of_many_reservations_are_one_message() {
    let mut room = Room::new();
    for _ in 0..20 {
        room.request(reads(1)).unwrap();
    }
    room.rows();
    room.actor.rows.resend();
    room.actor.changed = room.actor.known.ids().collect();
    room.actor.commit();
    let sent: Vec<usize> = room
        .plan
        .try_iter()
        .map(|msg| match msg {
            PlanMsg::Rows(all) => all.len(),
            _ => 0,
        })
        .collect();
    assert_eq!(sent, [20]);
}

#[test]
fn rows_of_what_was_restored_are_sent_whether_the_store_answers_or_not() {
    let mut first = Room::new();
    let id = first.request(reads(40)).unwrap().id;
    first.in_force(id);
    let mut next = first.followed(Duration::from_secs(3));
    next.fails.store(true, Ordering::Relaxed);
    next.actor.send_restored_rows();
    assert_eq!(next.rows(), [(id * 4, true)]);
    assert_eq!(next.get(id).unwrap().state, WireReservationState::Active);
}

#[test]
fn claim_that_waits_is_in_time_and_one_that_nobody_made_lapses() {
    let mut room = Room::new();
    let ids = [0; 4].map(|_| room.unclaimed());
    let (answer, mut outcome) = oneshot::channel();
    let of_another = ApiCaller { name: "another".into(), role: Role::User, user: Some(6), ..by() };
    let refused = oneshot::channel().0;
    let change = ReservationChange::Claim;
    let other = oneshot::channel().0;
    // The time moves on with the first of the batch.
    let request = Box::new(NewReservation { user: Some(5), duration_ns: 1, ..reads(1) });
    let batch = vec![
        CalendarMsg::Request { new: request, by: by(), peer: None, answer: other },
        CalendarMsg::Used(vec![ids[0]]),
        CalendarMsg::Change { id: ids[1], change, by: by(), answer },
        CalendarMsg::Change { id: ids[2], change, by: of_another, answer: refused },
    ];
    room.pass(Duration::from_secs(101));
    room.actor.take(batch, Duration::ZERO);
    let claimed = outcome.try_recv().unwrap().unwrap();
    assert_eq!((claimed.state, claimed.claim_by_ns), (WireReservationState::Active, None));
    assert_eq!(room.get(ids[0]).unwrap().state, WireReservationState::Active);
    for id in &ids[2..] {
        assert_eq!(room.get(*id).unwrap().ended.as_deref(), Some("lapsed"));
    }
}

#[test]
fn window_that_went_by_while_nobody_took_claims_does_not_lapse() {
    let is_active = |room: &mut Room, id| {
        let shown = room.get(id).unwrap();
        (shown.state, shown.claim_by_ns) == (WireReservationState::Active, None)
    };
    // The leader died.
    let mut room = Room::new();
    let id = room.unclaimed();
    let mut next = room.followed(Duration::from_secs(150));
    assert!(is_active(&mut next, id));
    // Its time is over then, not later.
    next.pass(Duration::from_secs(951));
    next.actor.take(Vec::new(), Duration::ZERO);
    assert_eq!(next.get(id).unwrap().ended.as_deref(), Some("expired"));
    // The store failed.
    let mut room = Room::new();
    let id = room.unclaimed();
    room.fails.store(true, Ordering::Relaxed);
    room.pass(Duration::from_secs(50));
    assert!(room.request(reads(1)).is_err());
    room.fails.store(false, Ordering::Relaxed);
    room.pass(Duration::from_secs(51));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert!(is_active(&mut room, id));
    // The store was slow.
    let mut room = Room::new();
    let id = room.unclaimed();
    room.pass(Duration::from_secs(101));
    room.actor.take(Vec::new(), STALL);
    assert!(is_active(&mut room, id));
}

#[test]
fn reservation_whose_rows_have_no_room_is_not_active_and_is_planned_again() {
    let mut room = Room::new();
    let made = room.request(reads(40)).unwrap();
    assert_eq!(room.rows(), [(made.id * 4, true)]);
    room.no_room(made.id);
    assert_eq!(room.rows(), [(made.id * 4, false)]);
    let again = room.get(made.id).unwrap();
    assert_eq!(again.state, WireReservationState::Scheduled);
    assert!(again.start_ns > made.start_ns && again.guaranteed_ns == made.guaranteed_ns);
    room.no_room(made.id);
    room.pass(Duration::from_secs(20));
    room.actor.take(Vec::new(), Duration::ZERO);
    assert_eq!(room.rows(), [(made.id * 4, true)]);
    room.in_force(made.id);
    assert_eq!(room.get(made.id).unwrap().state, WireReservationState::Active);
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

#[test]
fn clock_behind_the_last_record_begins_there() {
    let mut first = Room::new();
    let id = first.request(reads(40)).unwrap().id;
    first.in_force(id);
    let at = first.actor.now();
    first.clock.fetch_sub(900_000_000_000, Ordering::Relaxed);
    assert_eq!(first.actor.now(), at, "it is not set back");
    let mut next = first.followed(Duration::ZERO);
    assert_eq!(next.actor.now(), at);
    next.actor.send_restored_rows();
    let rows = next.plan.try_iter().find_map(|msg| match msg {
        PlanMsg::Rows(rows) => Some(rows),
        _ => None,
    });
    let rows = &rows.unwrap()[0];
    let from = rows.changes[0].1.as_ref().unwrap().from;
    assert!(from <= rows.at, "it does not begin again later");
}

#[test]
fn request_that_was_stored_and_reported_as_failed_is_found_by_its_key() {
    let mut room = Room::new();
    let asked = |key: &str| NewReservation { idempotency_key: Some(key.into()), ..reads(40) };
    room.is_uncertain.store(true, Ordering::Relaxed);
    assert_eq!(room.request(asked("k1")).unwrap_err().code, ErrorCode::StoreFailed);
    room.is_uncertain.store(false, Ordering::Relaxed);
    let made = room.request(asked("k1")).unwrap();
    assert_eq!(room.request(asked("k1")).unwrap().id, made.id);
    assert_eq!(room.actor.known.ids().count(), 1, "one was reserved");
    assert_ne!(room.request(asked("k2")).unwrap().id, made.id);
    let mut next = room.followed(Duration::from_secs(1));
    assert_eq!(next.request(asked("k1")).unwrap().id, made.id);
    // The key is its user's, and free again with the end.
    let (answer, mut outcome) = oneshot::channel();
    let new = NewReservation { user: Some(6), duration_ns: 1, ..asked("k1") };
    next.say(CalendarMsg::Request { new: Box::new(new), by: by(), peer: None, answer });
    assert_ne!(outcome.try_recv().unwrap().unwrap().id, made.id);
    let change = ReservationChange::Remove;
    next.say(CalendarMsg::Change { id: made.id, change, by: by(), answer: oneshot::channel().0 });
    assert_ne!(next.request(asked("k1")).unwrap().id, made.id);
    for key in ["", "a b", &"k".repeat(65)] {
        let error = next.request(asked(key)).unwrap_err();
        assert_eq!(error.at.as_deref(), Some("idempotency_key"), "{key:?}");
    }
}
