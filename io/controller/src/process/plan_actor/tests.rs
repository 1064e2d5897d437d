//! The plan's thread without threads around it.

use ::rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, RuleSet,
    TimedEntitlement,
};
use model::{KindSet, Scope};
use plan::{ControllerSession, SessionSettings};
use reserve::ReservationId;

use super::*;
use crate::process::queue::queue;

/// A desk without threads, and the queue of its store.
struct QueueRoom {
    desk: PlanActor,
    store: MsgInbox<records::StoreMsg>,
    calendar: MsgInbox<CalendarMsg>,
}

impl QueueRoom {
    fn new(known: KnownProxies) -> QueueRoom {
        let (to_store, store) = queue(4);
        let text = "[[rule]]\nname = \"all\"\nlimit = \"1MB/s\"\n";
        let rules = PublishedRules {
            text: text.into(),
            version: "v1".into(),
            set: Arc::new(RuleSet::parse(text).unwrap()),
            is_stored: true,
        };
        let teller = EventPublisher::new(queue(4).0, Arc::default(), crate::WallClock::default());
        let (rules, counts) = (Arc::new(rules), Arc::default());
        let (to_calendar, calendar) = queue(4);
        let desk = PlanActor::new(1, rules, known, to_store, teller, counts, to_calendar);
        QueueRoom { desk, store, calendar }
    }

    /// Hands a report in; returns the replies given at once, and a receiver of later ones.
    fn say(
        &mut self,
        of: &mut ControllerSession,
        name: &str,
    ) -> oneshot::Receiver<Result<ControllerReply, Superseded>> {
        let report = of.report(Some(vec![]), self.desk.now()).expect("there is something to say");
        let (answer, order) = oneshot::channel();
        let (rules, reports) = (Some("v1".into()), vec![("t".into(), report)]);
        let answers = vec![];
        let (name, description) = (name.into(), None);
        let said = ReportMsg { name, epoch: 1, rules, reports, answers, description, answer };
        self.desk.handle(PlanMsg::Report(Box::new(said)));
        self.settle();
        order
    }

    fn settle(&mut self) {
        self.desk.decide();
        self.desk.answer_ready();
    }

    /// The store does what it was asked.
    fn store(&mut self) -> Vec<ProxyRecord> {
        let Some(records::StoreMsg::Proxies(members)) = self.store.try_iter().next() else {
            return vec![];
        };
        self.desk.handle(PlanMsg::Stored(members.clone()));
        self.settle();
        members
    }

    /// Registers a member up to its first orders.
    fn join(&mut self, name: &str) -> ControllerSession {
        let mut standing =
            ControllerSession::new(name, 1, SessionSettings::default(), self.desk.now());
        for _ in 0..8 {
            // Shares move each tick.
            self.desk.began -= TICK / 2;
            let mut order = self.say(&mut standing, name);
            self.store();
            let Ok(order) = order.try_recv().map(Result::unwrap) else { break };
            let (_, order) = &order.targets[0];
            if !standing.receive(order, self.desk.now()) {
                break;
            }
        }
        standing
    }
}

#[test]
fn nobody_is_ordered_anything_before_he_is_on_record() {
    let mut room = QueueRoom::new(KnownProxies::new());
    let mut standing = ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO);
    let mut order = room.say(&mut standing, "a");
    assert!(order.try_recv().is_err(), "the store was not asked yet, or has not answered");
    let stored = room.store();
    assert_eq!((&*stored[0].name, stored[0].epoch), ("a", 1));
    assert_eq!(&*order.try_recv().unwrap().unwrap().targets[0].0, "t");
}

#[test]
fn a_call_waits_until_there_is_news_or_the_next_one_comes() {
    let mut room = QueueRoom::new(KnownProxies::new());
    let mut standing = room.join("a");
    assert!(standing.is_assigned());
    assert!(standing.part_of(&Scope::rule("all", &[])).is_whole(), "it is alone");
    // A second later it has something to report; what it has acknowledged is not a change.
    room.desk.began -= Duration::from_secs(1);
    let mut first = room.say(&mut standing, "a");
    assert!(first.try_recv().is_err());
    room.desk.began -= Duration::from_secs(1);
    let mut second = room.say(&mut standing, "a");
    assert!(first.try_recv().is_ok(), "the next call has come");
    assert!(second.try_recv().is_err());
    let rules =
        PublishedRules { version: "v2".into(), is_stored: true, ..PublishedRules::default() };
    room.desk.handle(PlanMsg::Rules(Arc::new(rules)));
    room.settle();
    assert_eq!(second.try_recv().unwrap().unwrap().rules.unwrap().version, "v2");
}

#[test]
fn description_of_an_ended_epoch_does_not_reach_the_calendar() {
    let mut room = QueueRoom::new(KnownProxies::new());
    let describes = |room: &mut QueueRoom, epoch| {
        let said = ReportMsg {
            name: "a".into(),
            epoch,
            rules: None,
            reports: vec![],
            answers: vec![],
            description: Some(Arc::default()),
            answer: oneshot::channel().0,
        };
        room.desk.handle(PlanMsg::Report(Box::new(said)));
        room.calendar.try_iter().any(|msg| matches!(msg, CalendarMsg::Describe(..)))
    };
    assert!(describes(&mut room, 2));
    assert!(!describes(&mut room, 1), "another process has the name");
    assert!(describes(&mut room, 2));
}

#[test]
fn rows_beyond_the_table_are_reported_and_never_in_force() {
    let mut room = QueueRoom::new(KnownProxies::new());
    room.join("a");
    let row = || {
        let scope = EntitlementScope { uid: Some(5), ..EntitlementScope::default() };
        let grants = Grantable::Reservation(Rate::bytes_per_sec(1).unwrap());
        let source = EntitlementSource::Reservation;
        let row = Entitlement::new(scope, grants, KindSet::ALL, source).unwrap();
        TimedEntitlement { row, from: Time::from_nanos(1), until: Time::from_nanos(1 << 60) }
    };
    let rows = |changes, awaited| {
        let at = Time::from_nanos(1);
        PlanMsg::Rows(vec![ReservationRows { target: "t".into(), at, changes, awaited }])
    };
    let changes = (4..65_540).map(|id| (EntitlementId(id), Some(row()))).collect();
    room.desk.handle(rows(changes, None));
    room.desk.handle(rows(
        vec![(EntitlementId(400_000), Some(row()))],
        Some((ReservationId(100_000), 7)),
    ));
    room.desk.follow_rows();
    let news: Vec<_> = room.calendar.try_iter().collect();
    assert!(matches!(news[..], [CalendarMsg::NoRoom { id: 100_000, version: 7 }]));
    room.desk.follow_rows();
    assert_eq!(room.calendar.try_iter().count(), 0, "it is reported once");
}

#[test]
fn who_was_known_before_counts_until_he_is_heard_or_forgotten() {
    let place = ("t".into(), "gone".into());
    let mut room = QueueRoom::new(KnownProxies::from([(place, (1, model::Share::ratio(1, 2)))]));
    assert_eq!(room.desk.view().proxies[0].1.fallback, model::Share::ratio(1, 2));
    let (answer, mut outcome) = oneshot::channel();
    room.desk.handle(PlanMsg::Forget("gone".into(), answer));
    assert_eq!(outcome.try_recv(), Ok(true));
    room.desk.store_proxies();
    assert_eq!(room.store()[0].fallback, None, "it is off the record");
    assert!(room.desk.known.is_empty());
}

#[test]
fn names_of_proxies_that_no_target_has_any_more_are_not_kept() {
    let mut room = QueueRoom::new(KnownProxies::new());
    room.join("a");
    room.desk.ignored.extend(["a".into(), "expired".into()]);
    room.desk.run_due(Instant::now());
    assert_eq!(room.desk.ignored, ["a".into()].into());
}
