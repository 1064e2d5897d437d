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

mod reports;
mod reservations;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use api::{
    ALL_TARGETS, ControllerReply, EventKind, ProxyDescription, ProxyReply, QueryKind, RulesText,
};
use model::{Rate, Scope, Time};
use plan::{
    AllocatorSettings, Assignment, LateReservation, ProxyEpochs, ProxySnapshot, ShareAllocator,
    ShareReport,
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

    /// Publishes which proxies are unreachable, and which have recovered. Forgets which of those that
    /// have expired had something ignored.
    fn publish_unreachable(&mut self) {
        let mut silent: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        for member in self.targets.values().flat_map(ShareAllocator::proxies) {
            *silent.entry(member.name).or_insert(true) &= member.unreachable;
        }
        self.ignored.retain(|name| silent.contains_key(name));
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
mod tests;
