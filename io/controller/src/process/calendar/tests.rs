//! The calendar's thread without threads around it but a store that may fail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::{
    DescribedCapacity, ErrorCode, ExportDescription, ProxyDescription, Role, TargetDescription,
    WireRate, WireReservationState, WireReservations,
};
use model::{Nanos, Share};
use plan::LateReservation;
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
mod jobs;
mod late;
mod phases;
mod rows;
mod shown;
mod stored;

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
        job: None,
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
        self.actor.send_tokens();
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
