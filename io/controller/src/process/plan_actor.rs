//! The thread that divides limits: takes reports, sends assignments, ten ticks a second.
//!
//! ```text
//!   report ─► the target's plan::ShareAllocator ─► assignments ─► a pending call?
//!     └ a call to reply to                 │                       ├ a change: now
//!       (the previous one is replied now)  └ not on record yet:    └ else after HOLD, or with the
//!                                            withheld, see store     proxy's next report
//! ```
//!
//! A proxy has one pending call: its next report releases the one before. So a proxy with many
//! changes gets a reply as often, and an idle one receives changes at once.
//!
//! An assignment that relies on an epoch or a fallback of its proxy is sent only when the store has
//! that: the next leader counts with what is on record.

mod reservations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::time::{Duration, Instant};

use api::{
    ALL_TARGETS, ControllerReply, EventKind, ProxyDescription, ProxyReply, QueryKind, RulesText,
};
use model::{Rate, Scope, Time};
use plan::{
    AllocatorSettings, Assignment, EpochCheck, LateReservation, ProxyEpochs, ProxySnapshot,
    ShareAllocator, ShareReport,
};
use reserve::ReservationRows;
use tokio::sync::oneshot;

use super::calendar::CalendarMsg;
use super::counts::Counts;
use super::events::EventPublisher;
use super::fan_out::{FanOut, QueryReplies};
use super::queue::{MsgInbox, MsgQueue};
use super::records::{self, KnownProxies, ProxyRecord, PublishedRules};
use reservations::TargetReservations;

/// A message to this thread.
pub(crate) enum PlanMsg {
    Report(Box<ReportMsg>),
    View(oneshot::Sender<PlanView>),
    /// The rules of all proxies.
    Query(QueryKind, oneshot::Sender<QueryReplies>),
    /// Removes a proxy; the answer says whether there was one.
    Forget(String, oneshot::Sender<bool>),
    Rules(Arc<PublishedRules>),
    /// The limits of keys by decays; `None`: no longer limited.
    Rates(BTreeMap<Scope, Option<Rate>>),
    /// The rows of a reservation.
    Rows(Vec<ReservationRows>),
    Stored(Vec<ProxyRecord>),
    Stop,
}

/// The report of one proxy.
pub(crate) struct ReportMsg {
    pub(crate) name: Arc<str>,
    pub(crate) epoch: u64,
    /// The version of its rules.
    pub(crate) rules: Option<String>,
    pub(crate) reports: Vec<(Arc<str>, ShareReport)>,
    pub(crate) answers: Vec<ProxyReply>,
    /// Of its targets and exports, if the proxy describes itself.
    pub(crate) description: Option<Arc<ProxyDescription>>,
    /// Dropped if the table of proxies is full.
    pub(crate) answer: oneshot::Sender<Result<ControllerReply, Superseded>>,
}

/// Another process has the name of the proxy, and started later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superseded {
    /// It is unreachable: this one may start a new epoch.
    pub(crate) may_restart: bool,
}

/// The state that the API shows.
pub(crate) struct PlanView {
    pub(crate) now: Time,
    pub(crate) proxies: Vec<(Arc<str>, ProxySnapshot)>,
    /// Names under which two proxies report.
    pub(crate) duplicates: BTreeSet<Arc<str>>,
    pub(crate) scopes: usize,
}

/// The state of the thread.
pub(crate) struct PlanActor {
    began: Instant,
    term: u64,
    rules: Arc<PublishedRules>,
    targets: BTreeMap<Arc<str>, ShareAllocator>,
    /// The limits of keys by decays.
    rates: BTreeMap<Scope, Rate>,
    known: KnownProxies,
    waiting: BTreeMap<Arc<str>, WaitingReport>,
    /// The calls to reply to now.
    ready: BTreeSet<Arc<str>>,
    /// Assignments whose proxies are not on record yet.
    withheld: BTreeMap<(Arc<str>, Arc<str>), Assignment>,
    store: MsgQueue<records::StoreMsg>,
    counts: Arc<Counts>,
    fan_out: FanOut,
    /// When the pending message was sent to the store.
    storing: Option<Instant>,
    stored: Instant,
    publisher: EventPublisher,
    /// Proxies that were published as unreachable.
    unreachable: BTreeSet<Arc<str>>,
    lives: ProxyEpochs,
    calendar: MsgQueue<CalendarMsg>,
    reservations: BTreeMap<Arc<str>, TargetReservations>,
    /// Proxies whose reports named rows that they do not have, which was logged.
    ignored: BTreeSet<Arc<str>>,
    /// What was reported to the calendar as late, by target.
    late: BTreeMap<Arc<str>, Vec<LateReservation>>,
}

/// A pending call of a proxy.
struct WaitingReport {
    answer: oneshot::Sender<Result<ControllerReply, Superseded>>,
    /// Another process reports under the same name.
    duplicate: bool,
    epoch: u64,
    rules: Option<String>,
    /// The membership and revision that the proxy reported, by target.
    reported: BTreeMap<Arc<str>, (plan::Membership, u64)>,
    assignments: BTreeMap<Arc<str>, Assignment>,
    until: Instant,
}

impl PlanActor {
    pub(crate) fn new(
        term: u64,
        rules: Arc<PublishedRules>,
        known: KnownProxies,
        store: MsgQueue<records::StoreMsg>,
        teller: EventPublisher,
        counts: Arc<Counts>,
        calendar: MsgQueue<CalendarMsg>,
    ) -> PlanActor {
        let began = Instant::now();
        let mut by_target: BTreeMap<Arc<str>, Vec<ProxySnapshot>> = BTreeMap::new();
        for ((target, name), (epoch, fallback)) in &known {
            by_target.entry(target.clone()).or_default().push(ProxySnapshot {
                name: name.clone(),
                epoch: *epoch,
                last_report: Time::ZERO,
                unreachable: false,
                fallback: *fallback,
                revisions: (0, 0),
            });
        }
        let controller = |members: &[ProxySnapshot]| {
            let settings = AllocatorSettings::default();
            ShareAllocator::new(settings, term, members, rules.set.clone(), Time::ZERO)
        };
        let targets =
            by_target.iter().map(|(target, members)| (target.clone(), controller(members)));
        let targets = targets.collect();
        PlanActor {
            began,
            term,
            rules,
            targets,
            rates: BTreeMap::new(),
            known,
            waiting: BTreeMap::new(),
            ready: BTreeSet::new(),
            withheld: BTreeMap::new(),
            store,
            counts,
            fan_out: FanOut::default(),
            storing: None,
            stored: began,
            publisher: teller,
            unreachable: BTreeSet::new(),
            lives: ProxyEpochs::new(MEMBERS_MAX),
            calendar,
            reservations: BTreeMap::new(),
            ignored: BTreeSet::new(),
            late: BTreeMap::new(),
        }
    }

    /// Runs the thread until it is stopped.
    pub(crate) fn run(mut self, asked: &MsgInbox<PlanMsg>) {
        let mut tick = Instant::now() + TICK;
        loop {
            match asked.recv_timeout(tick.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(first) => {
                    // Reports that came together are processed together.
                    for ask in std::iter::once(first).chain(asked.try_iter().take(BATCH - 1)) {
                        if matches!(ask, PlanMsg::Stop) {
                            return;
                        }
                        self.handle(ask);
                    }
                }
            }
            self.decide();
            let now = Instant::now();
            if now >= tick {
                tick = now + TICK;
                self.run_due(now);
            }
            self.answer_ready();
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn handle(&mut self, ask: PlanMsg) {
        match ask {
            PlanMsg::Report(said) => self.report(*said),
            PlanMsg::View(answer) => {
                // Here and below: the caller may have gone.
                let _ = answer.send(self.view());
            }
            PlanMsg::Query(what, answer) => self.begin_query(what, answer),
            PlanMsg::Forget(name, answer) => {
                let _ = answer.send(self.forget(&name));
            }
            PlanMsg::Rules(rules) => {
                let now = self.now();
                self.targets.values_mut().for_each(|c| c.set_rules(rules.set.clone(), now));
                self.rules = rules;
                self.ready.extend(self.waiting.keys().cloned());
            }
            PlanMsg::Rates(rates) => self.set_rates(rates),
            PlanMsg::Rows(all) => all.into_iter().for_each(|rows| self.set_rows(rows)),
            PlanMsg::Stored(members) => self.note_stored(members),
            PlanMsg::Stop => {}
        }
    }

    fn report(&mut self, said: ReportMsg) {
        let now = self.now();
        let is_new = |name: &Arc<str>| !self.known.keys().any(|(_, known)| known == name);
        let check = match self.known.len() >= MEMBERS_MAX && is_new(&said.name) {
            true => None,
            false => self.lives.check(&said.name, said.epoch, now),
        };
        let duplicate = match check {
            None => {
                tracing::warn!(
                    proxy = &*said.name,
                    MEMBERS_MAX,
                    "rejected a report: the table of proxies is full"
                );
                self.counts.refused.add(1);
                return;
            }
            Some(EpochCheck::Superseded { may_restart: again, first_sign: news }) => {
                if news {
                    self.publish_duplicate(&said.name);
                }
                self.counts.duplicate.add(1);
                // The caller may have gone.
                let _ = said.answer.send(Err(Superseded { may_restart: again }));
                return;
            }
            Some(EpochCheck::Current { duplicate }) => duplicate,
        };
        self.answer(&said.name);
        self.counts.reports.add(1);
        if let Some(description) = said.description {
            // Without room it is taken when the proxy describes itself again, within a minute: its
            // shares are not to wait for the calendar.
            let describe = CalendarMsg::Describe(said.name.clone(), description);
            if self.calendar.try_send(describe).is_err() {
                tracing::warn!(
                    proxy = &*said.name,
                    "the calendar is overloaded: a description is left out"
                );
            }
        }
        let mut targets = BTreeMap::new();
        for (target, report) in said.reports {
            if !self.targets.contains_key(&target) {
                let others = self.targets.keys().filter(|known| ***known != *ALL_TARGETS);
                if *target != *ALL_TARGETS && others.count() >= TARGETS_MAX {
                    tracing::warn!(
                        target = &*target,
                        TARGETS_MAX,
                        "ignored a target: the table of targets is full"
                    );
                    continue;
                }
                let settings = AllocatorSettings::default();
                let rules = self.rules.set.clone();
                let mut new = ShareAllocator::new(settings, self.term, &[], rules, now);
                // Decays limit, and limits are one over all targets.
                let rates = self.rates.iter().filter(|_| *target == *ALL_TARGETS);
                rates.for_each(|(scope, rate)| new.set_rate(scope, Some(*rate), now));
                if let Some(reservations) = self.reservations.get(&target) {
                    new.set_rows(reservations.rows.all(now), now);
                }
                self.targets.insert(target.clone(), new);
            }
            targets.insert(target.clone(), (report.term, report.revision));
            if let Some(controller) = self.targets.get_mut(&target) {
                controller.report(&report, now);
                let ignored = controller.take_ignored();
                if ignored > 0 && self.ignored.insert(said.name.clone()) {
                    tracing::warn!(
                        proxy = &*said.name,
                        target = &*target,
                        ignored,
                        "ignored what a proxy reports of rows that it does not have"
                    );
                }
            }
        }
        if self.rules.is_stored && said.rules.as_ref() != Some(&self.rules.version) {
            self.ready.insert(said.name.clone());
        }
        let ReportMsg { name, epoch, rules, answer, answers, .. } = said;
        self.fan_out.receive(&name, answers);
        self.fan_out.end(Instant::now());
        if self.fan_out.has_query_for(&name) {
            self.ready.insert(name.clone());
        }
        let until = Instant::now() + REPLY_DELAY_MAX;
        let orders = BTreeMap::new();
        let said = targets;
        self.waiting.insert(
            name,
            WaitingReport {
                answer,
                duplicate,
                epoch,
                rules,
                reported: said,
                assignments: orders,
                until,
            },
        );
    }

    fn set_rates(&mut self, rates: BTreeMap<Scope, Option<Rate>>) {
        let now = self.now();
        for (scope, rate) in rates {
            if let Some(limits) = self.targets.get_mut(ALL_TARGETS) {
                limits.set_rate(&scope, rate, now);
            }
            match rate {
                Some(rate) => self.rates.insert(scope, rate),
                None => self.rates.remove(&scope),
            };
        }
    }

    fn begin_query(&mut self, what: QueryKind, answer: oneshot::Sender<QueryReplies>) {
        let members = self.targets.values().flat_map(ShareAllocator::proxies);
        let members = members.map(|member| (member.name, member.unreachable));
        self.fan_out.begin(what, members, answer, Instant::now());
        let asked = self.waiting.keys().filter(|name| self.fan_out.has_query_for(name));
        self.ready.extend(asked.cloned());
        self.fan_out.end(Instant::now());
    }

    fn forget(&mut self, name: &str) -> bool {
        let now = self.now();
        let mut found = false;
        for controller in self.targets.values_mut() {
            found |= controller.forget(name, now);
        }
        self.withheld.retain(|(_, of), _| &**of != name);
        self.lives.forget(name);
        self.ignored.remove(name);
        self.stored = self.began;
        // If the queue is full, what it described stays until it is removed again.
        let _ = self.calendar.try_send(CalendarMsg::Forget(name.into()));
        found
    }

    /// Takes the assignments to send.
    fn decide(&mut self) {
        let now = self.now();
        let mut orders = Vec::new();
        for (target, controller) in &mut self.targets {
            while let Some(order) = controller.poll_assignment(now) {
                orders.push((target.clone(), order));
            }
        }
        for (target, order) in orders {
            self.route(target, order);
        }
        if !self.withheld.is_empty() {
            self.store_proxies();
        }
    }

    fn route(&mut self, target: Arc<str>, order: Assignment) {
        let place = (target, order.to.clone());
        let is_known = self.known.get(&place).is_some_and(|(epoch, fallback)| {
            *epoch == order.epoch && (order.learning || *fallback >= order.fallback)
        });
        if !is_known {
            self.withheld.insert(place, order);
            return;
        }
        // No call is pending: the reply to the next report repeats it.
        let Some(waiting) = self.waiting.get_mut(&order.to) else { return };
        if waiting.epoch != order.epoch {
            return;
        }
        let (term, revision) = waiting.reported.get(&place.0).copied().unwrap_or_default();
        // A proxy is registered by some calls, one right after the other.
        let registers = revision == 0 && order.number < REGISTERED;
        let has_changes = !order.grants.is_empty() || !order.rows.is_empty();
        let news = order.term != term || order.revision > revision || has_changes;
        if news || registers {
            self.ready.insert(order.to.clone());
        }
        waiting.assignments.insert(place.0, order);
    }

    /// Does what is due by the clock.
    fn run_due(&mut self, now: Instant) {
        self.fan_out.end(now);
        let due = self.waiting.iter().filter(|(_, waiting)| now >= waiting.until);
        self.ready.extend(due.map(|(name, _)| name.clone()));
        if self.stored + RESTORE <= now {
            self.store_proxies();
        }
        self.publish_unreachable();
        self.follow_rows();
        self.follow_late();
    }

    /// Publishes which proxies are unreachable, and which have recovered.
    fn publish_unreachable(&mut self) {
        let mut silent: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        for member in self.targets.values().flat_map(ShareAllocator::proxies) {
            *silent.entry(member.name).or_insert(true) &= member.unreachable;
        }
        for (name, silent) in silent {
            if silent && self.unreachable.insert(name.clone()) {
                let text = format!("proxy {name} is unreachable");
                self.publisher.publish_now(EventKind::Unreachable, &*name, text);
            } else if !silent && self.unreachable.remove(&name) {
                let text = format!("proxy {name} has recovered");
                self.publisher.publish_now(EventKind::Recovered, &*name, text);
            }
        }
    }

    fn publish_duplicate(&self, name: &Arc<str>) {
        let text = format!(
            "two proxies report as {name}: only the one that started last is accepted; rename the \
             other with --name"
        );
        tracing::error!("{text}");
        self.publisher.publish_now(EventKind::Duplicate, &**name, text);
    }

    fn answer_ready(&mut self) {
        while let Some(name) = self.ready.pop_first() {
            self.answer(&name);
        }
    }

    fn answer(&mut self, name: &Arc<str>) {
        let Some(waiting) = self.waiting.remove(name) else { return };
        let given = self.rules.is_stored && waiting.rules.as_ref() != Some(&self.rules.version);
        let rules =
            || RulesText { version: self.rules.version.clone(), text: self.rules.text.to_string() };
        self.counts.assignments.add(waiting.assignments.len() as u64);
        // The caller may have gone.
        let _ = waiting.answer.send(Ok(ControllerReply {
            term: self.term,
            targets: waiting.assignments.into_iter().collect(),
            rules: given.then(rules),
            usage_acknowledged: None,
            queries: self.fan_out.questions(name),
            duplicate: waiting.duplicate,
        }));
    }

    /// Sends changes of the proxies to the store, one at a time. Smaller shares may wait: a record
    /// of more than the current share is safe.
    fn store_proxies(&mut self) {
        let now = Instant::now();
        if self.storing.is_some_and(|since| now < since + RESTORE) {
            return;
        }
        let mut gone: BTreeSet<_> = self.known.keys().cloned().collect();
        let mut changed = Vec::new();
        for (target, controller) in &self.targets {
            for ProxySnapshot { name, epoch, fallback, .. } in controller.proxies() {
                let place = (target.clone(), name.clone());
                gone.remove(&place);
                if self.known.get(&place) != Some(&(epoch, fallback)) {
                    let fallback = Some(fallback.billionths());
                    let (target, name) = (target.to_string(), name.to_string());
                    changed.push(ProxyRecord { target, name, epoch, fallback });
                }
            }
        }
        let forgotten = |(target, name): (Arc<str>, Arc<str>)| ProxyRecord {
            target: target.to_string(),
            name: name.to_string(),
            epoch: 0,
            fallback: None,
        };
        changed.extend(gone.into_iter().map(forgotten));
        self.stored = now;
        if changed.is_empty() {
            return;
        }
        changed.truncate(RECORD_PROXIES_MAX);
        match self.store.try_send(records::StoreMsg::Proxies(changed)) {
            Ok(()) => self.storing = Some(now),
            // It is retried with the next tick, or the controller ends.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    fn note_stored(&mut self, members: Vec<ProxyRecord>) {
        self.storing = None;
        for ProxyRecord { target, name, epoch, fallback } in members {
            let place = (target.into(), name.into());
            match fallback.and_then(model::Share::from_billionths) {
                Some(part) => self.known.insert(place, (epoch, part)),
                None => self.known.remove(&place),
            };
        }
        for (place, order) in std::mem::take(&mut self.withheld) {
            // If a proxy is still not on record, its next report brings the assignment again.
            if self.known.contains_key(&place) {
                self.route(place.0, order);
            }
        }
    }

    fn view(&self) -> PlanView {
        let members = self.targets.iter().flat_map(|(target, controller)| {
            controller.proxies().map(|member| (target.clone(), member))
        });
        let members: Vec<_> = members.collect();
        let now = self.now();
        let names = members.iter().map(|(_, member)| &member.name);
        let duplicates =
            names.filter(|name| self.lives.has_duplicate(name, now)).cloned().collect();
        PlanView {
            now,
            proxies: members,
            duplicates,
            scopes: self.targets.values().map(ShareAllocator::scopes).sum(),
        }
    }
}

/// The interval of moves of shares and of checks of pending calls.
const TICK: Duration = Duration::from_millis(100);
/// The time that a call is held: less than the second between two reports. A report acknowledges
/// the assignment before it, so a longer hold would delay acknowledgements by two reports, and an
/// idle proxy would report too late to be present.
const REPLY_DELAY_MAX: Duration = Duration::from_millis(500);
/// The number of assignments after which a proxy has reported its holdings, if nothing is lost.
const REGISTERED: u64 = 8;
/// The time after which the store is asked again, and for which smaller shares may wait.
const RESTORE: Duration = Duration::from_secs(5);
/// The most messages that are taken at once before a decision.
const BATCH: usize = 256;
/// The most proxies of all targets; each is one of its targets and one of those with limits.
const MEMBERS_MAX: usize = 16_384;
const TARGETS_MAX: usize = 64;
/// The most proxies of one record, which is 1 MiB at most.
const RECORD_PROXIES_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
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
            let teller =
                EventPublisher::new(queue(4).0, Arc::default(), crate::WallClock::default());
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
            let report =
                of.report(Some(vec![]), self.desk.now()).expect("there is something to say");
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
        let mut room =
            QueueRoom::new(KnownProxies::from([(place, (1, model::Share::ratio(1, 2)))]));
        assert_eq!(room.desk.view().proxies[0].1.fallback, model::Share::ratio(1, 2));
        let (answer, mut outcome) = oneshot::channel();
        room.desk.handle(PlanMsg::Forget("gone".into(), answer));
        assert_eq!(outcome.try_recv(), Ok(true));
        room.desk.store_proxies();
        assert_eq!(room.store()[0].fallback, None, "it is off the record");
        assert!(room.desk.known.is_empty());
    }
}
