//! The thread that keeps the calendar of reservations, and has the proxies honour it.
//!
//! ```text
//!   requests, claims, … ─► all that wait ─► reserve::Calendar ─► one record ─► store
//!   proxies' descriptions, rows in force, the clock ─┘                           │ durable
//!                            answers, events, rows for the plan ◄────────────────┘
//! ```
//!
//! Requests that wait together are one record (group commit): while a record is written, others
//! wait. What is not on record has not happened: if the store fails, the calendar is built again from
//! the records, and the callers get the error. Reads are answered after the record.
//!
//! This thread waits for the store and for room at the plan, and neither ever waits for it. While it
//! waits nobody takes claims, and before it runs nobody did: a reservation whose window went by then
//! does not lapse. Its time is that of its own clock, which is not set while it runs.

mod answers;
mod claims;
mod commit;
mod ended;
mod fleet;
mod jobs;
mod late;
mod messages;
mod phases;
mod publish;
mod requests;
mod rules;
mod settings;
mod shown;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use ::rules::RuleSet;
use api::{AuditLine, ErrorReport, EventKind, NewReservation, WireReservation};
use model::{Bytes, Time};
use reserve::{
    Calendar, CalendarChange, CalendarEvent, EndReason, JobRegistry, ReservationId, SentRows,
};
use tokio::sync::oneshot;

use super::access::{AccessControl, ApiCaller};
use super::counts::Counts;
use super::events::EventPublisher;
use super::plan_actor::PlanMsg;
use super::queue::{MsgInbox, MsgQueue};
use super::records::{RulePublishError, StoreMsg};
use crate::clock::{SteadyClock, WallClock};
use answers::{not_found, not_visible};
use ended::EndedReservations;
use fleet::Fleet;
use jobs::PendingToken;
use late::LateTargets;
use requests::{Refused, RequestContext, check_key, may_act, may_charge, report_of, user_of};
use rules::RuleReservations;
use shown::{KnownReservation, KnownReservations};

pub(crate) use jobs::JobMsg;
pub(crate) use messages::{
    CalendarFigures, CalendarMsg, CalendarReply, ReservationChange, ResourceFigures,
    WantedReservations,
};
pub use settings::ReservationSettings;
pub(crate) use shown::{PromisedCalendar, UnreachableProxies};
#[cfg(test)]
pub(crate) use state::ReservationDetails;
pub(crate) use state::{CalendarDecision, CalendarState};

/// The receivers of what this thread decides.
pub(crate) struct CalendarOutputs {
    pub(crate) store: MsgQueue<StoreMsg>,
    pub(crate) plan: MsgQueue<PlanMsg>,
    pub(crate) publisher: EventPublisher,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) clock: WallClock,
}

/// The state of the thread.
pub(crate) struct CalendarActor {
    to: CalendarOutputs,
    settings: ReservationSettings,
    clock: SteadyClock,
    /// Whether the time of day differs from that clock, which was logged.
    is_clock_off: bool,
    /// Since when calls wait.
    taken: Instant,
    calendar: Calendar,
    jobs: JobRegistry,
    known: KnownReservations,
    ended: EndedReservations,
    fleet: Fleet,
    rules: RuleReservations,
    rows: SentRows,
    unreachable: BTreeMap<Arc<str>, UnreachableProxies>,
    late: LateTargets,
    /// What is not on record yet: details and descriptions.
    unstored: CalendarDecision,
    /// What follows once it is: answers, events, reservations that have changed.
    replies: Vec<PendingReply>,
    events: Vec<CalendarEvent>,
    changed: BTreeSet<ReservationId>,
    waiting: BTreeMap<u64, Vec<CalendarReply<WireReservation>>>,
    /// The tokens of jobs that were asked for together.
    tokens: Vec<PendingToken>,
}

/// An answer that waits for the store.
struct PendingReply {
    /// Sends what was decided, or the error of the store.
    send: Box<dyn FnOnce(Result<(), Refused>) + Send>,
    audit: Option<AuditLine>,
}

impl CalendarActor {
    /// Builds the calendar from its records.
    pub(crate) fn new(
        state: CalendarState,
        rules: &RuleSet,
        settings: ReservationSettings,
        to: CalendarOutputs,
    ) -> CalendarActor {
        let mut actor = CalendarActor {
            clock: SteadyClock::begin(to.clock.clone(), state.records.at),
            is_clock_off: false,
            taken: Instant::now(),
            calendar: Calendar::new(settings.calendar()),
            settings,
            jobs: JobRegistry::default(),
            known: KnownReservations::default(),
            ended: EndedReservations::default(),
            fleet: Fleet::default(),
            rules: RuleReservations::of(rules),
            rows: SentRows::default(),
            unreachable: BTreeMap::new(),
            late: LateTargets::default(),
            unstored: CalendarDecision::default(),
            replies: Vec::new(),
            events: Vec::new(),
            changed: BTreeSet::new(),
            waiting: BTreeMap::new(),
            tokens: Vec::new(),
            to,
        };
        actor.restore(state);
        actor
    }

    /// Runs the thread until it is stopped.
    pub(crate) fn run(mut self, asked: &MsgInbox<CalendarMsg>) {
        self.commit();
        loop {
            let batch: Vec<CalendarMsg> = match asked.recv_timeout(self.patience()) {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Ok(first) => {
                    std::iter::once(first).chain(asked.try_iter().take(BATCH - 1)).collect()
                }
            };
            if batch.iter().any(|msg| matches!(msg, CalendarMsg::Stop)) {
                return;
            }
            let waited = self.taken.elapsed();
            self.taken = Instant::now();
            self.take(batch, waited);
            self.check_clock();
        }
    }

    /// Does what messages say that have waited for at most that time.
    fn take(&mut self, batch: Vec<CalendarMsg>, waited: Duration) {
        if waited >= STALL {
            self.excuse_claims();
        }
        // A claim that waits is in time, whatever of the batch moves the time on before it.
        batch.iter().for_each(|msg| self.excuse_claims_of(msg));
        let reads: Vec<_> = batch.into_iter().filter_map(|msg| self.handle(msg)).collect();
        let now = self.now();
        self.calendar.advance(now);
        self.drain_events();
        self.changed.extend(self.rows.take_due(now));
        self.expire_jobs(now);
        self.commit();
        reads.into_iter().for_each(|read| self.answer(read));
        self.send_tokens();
    }

    /// How long to wait for messages. The clock may be moved, so it is read often.
    fn patience(&self) -> Duration {
        let due = self.calendar.next_deadline().map(|at| at.since(self.now()).to_duration());
        due.map_or(TICK, |due| due.min(TICK))
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Does what a message says, or returns it if it only reads.
    fn handle(&mut self, msg: CalendarMsg) -> Option<CalendarMsg> {
        let now = self.now();
        match msg {
            CalendarMsg::Request { new, by, peer, answer } => {
                let outcome = self.request(&new, &by, peer, now);
                self.reply(outcome, answer, &by, Some("requested"));
            }
            CalendarMsg::AddPhase { id, phase, by, answer } => {
                let outcome = self.add_phase(ReservationId(id), &phase, &by, now);
                let word = format!("requested as a phase of {id}");
                self.reply(outcome, answer, &by, Some(&word));
            }
            CalendarMsg::Change { id, change, by, answer } => {
                let id = ReservationId(id);
                let word = match change {
                    // A test that finds nothing to claim changes nothing.
                    ReservationChange::Claim => self.is_claimable(id).then_some("claimed"),
                    ReservationChange::Extend(_) => Some("extended"),
                    ReservationChange::Move(_) => Some("moved"),
                    ReservationChange::Finish(_) => Some("finished"),
                    ReservationChange::Remove => Some("removed"),
                };
                let outcome = self.change(id, change, &by, now);
                self.reply(outcome, answer, &by, word);
            }
            CalendarMsg::Job(msg) => {
                let read = self.handle_job(msg, now);
                self.drain_events();
                return read.map(CalendarMsg::Job);
            }
            CalendarMsg::Describe(proxy, description) => {
                if self.fleet.describe(&proxy, &description) {
                    let stored = (proxy.to_string(), Some((*description).clone()));
                    self.unstored.proxies.push(stored);
                    self.apply_fleet(now);
                }
            }
            CalendarMsg::Forget(proxy) => {
                if self.fleet.forget(&proxy) {
                    self.unstored.proxies.push((proxy, None));
                    self.apply_fleet(now);
                }
            }
            CalendarMsg::InForce { id, version } => {
                let id = ReservationId(id);
                // Other rows may have been sent since.
                if self.rows.is_latest(id, version) {
                    self.calendar.installed(id, now);
                    self.changed.insert(id);
                }
            }
            CalendarMsg::NoRoom { id, version } => {
                let id = ReservationId(id);
                if self.rows.is_latest(id, version) {
                    self.install_failed(id, now);
                }
            }
            CalendarMsg::Used(ids) => {
                for id in ids {
                    self.calendar.claim(ReservationId(id), now);
                }
            }
            CalendarMsg::Unreachable(target, proxies) => {
                match proxies.names.is_empty() {
                    true => drop(self.unreachable.remove(&target)),
                    false => drop(self.unreachable.insert(target, proxies)),
                };
            }
            CalendarMsg::Late(target, late) => self.set_late(&target, late, now),
            CalendarMsg::SetRules { text, over, by, answer } => {
                // The caller may have gone.
                let _ = answer.send(self.set_rules(text, over, by, now));
            }
            read => return Some(read),
        }
        self.drain_events();
        None
    }

    fn install_failed(&mut self, id: ReservationId, now: Time) {
        if !self.calendar.install_failed(id, now) {
            return;
        }
        self.changed.insert(id);
        let Some(known) = self.known.get(id) else { return };
        let (user, target) = (known.owner.uid, &known.details.target);
        tracing::error!(%id, target, "the rows of a reservation have no room at its target");
        let text = format!(
            "reservation {id} of user {user} cannot be in force: target {target} has as many rows \
             of reservations and limits as its proxies keep; it is planned again"
        );
        self.to.publisher.publish_now(EventKind::Reservation, format!("reservation={id}"), text);
    }

    fn request(
        &mut self,
        new: &NewReservation,
        by: &ApiCaller,
        peer: Option<u32>,
        now: Time,
    ) -> Result<WireReservation, Refused> {
        let user = user_of(by, peer, new.user)?;
        may_charge(by, new)?;
        self.calendar.advance(now);
        self.drain_events();
        if let Some(key) = new.idempotency_key.as_deref() {
            check_key(key)?;
            if let Some(id) = self.requested_with(user, key, None) {
                // its key may be that of another job of its user
                self.find(id, by)?;
                return Ok(self.show(id).expect("it has not ended"));
            }
        }
        let after = new.after.map(|after| self.end_of(after, by, now)).transpose()?;
        let (calendar, fleet, node) = (&self.calendar, &self.fleet, self.settings.node);
        let context = RequestContext { calendar, fleet, node, now };
        let mut owner = requests::owner(new, user)?;
        self.check_job(by, user, &mut owner)?;
        let (request, known) = context.request(new, owner, after)?;
        let phases = context.phases(new, &known.details)?;
        let (planned, of_phases): (Vec<_>, Vec<_>) = phases.into_iter().unzip();
        let id = self.calendar.request_with_phases(request, &planned, now);
        let id =
            id.map_err(|error| report_of(&error, &self.calendar, &self.rules.visible_to(by)))?;
        let made = self.calendar.progress(id).map(|progress| progress.phases).unwrap_or_default();
        for (phase, details) in made.into_iter().zip(of_phases) {
            let owner = known.owner.clone();
            self.keep(phase, KnownReservation { owner, details, phase_of: Some(id) });
        }
        self.keep(id, known);
        self.drain_events();
        Ok(self.show(id).expect("it was just made"))
    }

    /// Keeps what the calendar does not know of a new reservation.
    fn keep(&mut self, id: ReservationId, known: KnownReservation) {
        self.unstored.details.push((id, known.details.clone()));
        self.known.insert(id, known);
        self.changed.insert(id);
    }

    fn is_claimable(&self, id: ReservationId) -> bool {
        self.calendar.progress(id).is_some_and(|progress| progress.claim_by.is_some())
    }

    /// The reservation of a user that was requested with this key, or the phase of one, and has not
    /// ended. O(those of the user).
    fn requested_with(
        &self,
        user: u32,
        key: &str,
        phase_of: Option<ReservationId>,
    ) -> Option<ReservationId> {
        let is_same = |of: &KnownReservation| {
            of.phase_of == phase_of && of.details.idempotency_key.as_deref() == Some(key)
        };
        self.known
            .of(Some(user), None, ReservationId(0))
            .find(|id| self.known.get(*id).is_some_and(is_same))
    }

    /// The end of the reservation after which another one may begin.
    fn end_of(&self, id: u64, by: &ApiCaller, now: Time) -> Result<Time, Refused> {
        let may_see = |of: &WireReservation| {
            by.may_see_job(Some(of.user), of.job.as_deref().unwrap_or_default())
        };
        if self.ended.get(id).is_some_and(may_see) {
            return Ok(now);
        }
        let id = ReservationId(id);
        self.find(id, by).map_err(|mut report| {
            report.at = Some("after".into());
            report
        })?;
        let is_placed = self.calendar.progress(id).is_some_and(|progress| !progress.is_waiting);
        let span = self.calendar.status(id).span.filter(|_| is_placed);
        let message = format!("reservation {id} waits in the queue and has no end yet");
        span.map(|span| span.until).ok_or_else(|| requests::at("after", message))
    }

    fn change(
        &mut self,
        id: ReservationId,
        change: ReservationChange,
        by: &ApiCaller,
        now: Time,
    ) -> Result<WireReservation, Refused> {
        let owner = self.find(id, by)?.owner.clone();
        may_act(by, Some(owner.uid))?;
        let mut credit = None;
        match change {
            ReservationChange::Claim => drop(self.calendar.test(id, now)),
            ReservationChange::Remove => drop(self.calendar.remove(id, now)),
            ReservationChange::Finish(used) => credit = self.calendar.finish(id, used, now),
            ReservationChange::Move(to) => {
                let outcome = self.calendar.move_start(id, to, now);
                outcome.map_err(|error| {
                    report_of(&error, &self.calendar, &self.rules.visible_to(by))
                })?;
            }
            ReservationChange::Extend(more) => {
                let outcome = self.calendar.extend(id, more, now);
                outcome.map_err(|error| {
                    let rules = self.rules.visible_to(by);
                    let mut report = report_of(&error, &self.calendar, &rules);
                    if report.at.as_deref() == Some("duration_ns") {
                        report.at = Some("more_ns".into());
                    }
                    report
                })?;
            }
        }
        self.changed.insert(id);
        self.drain_events();
        if let Some(ended) = self.ended.get_mut(id.0) {
            ended.credit = credit.map(Bytes::get);
        }
        self.show(id).ok_or_else(|| not_found(id.0))
    }

    /// The reservation of that number, if it has not ended and the caller may see it.
    fn find(&self, id: ReservationId, by: &ApiCaller) -> Result<&KnownReservation, Refused> {
        let known = self.known.get(id);
        let known = known.ok_or_else(|| not_found(id.0))?;
        match by.may_see_job(Some(known.owner.uid), known.owner.job.as_str()) {
            true => Ok(known),
            false => Err(not_visible(id.0, by)),
        }
    }

    fn reply(
        &mut self,
        outcome: Result<WireReservation, Refused>,
        answer: CalendarReply<WireReservation>,
        by: &ApiCaller,
        word: Option<&str>,
    ) {
        let outcome = outcome.map(|value| {
            let what = format!("reservation {}", value.id);
            let audit = word.map(|word| {
                let after = format!("{word} for user {} at {}", value.user, value.target);
                by.audit_line(what, None, Some(after))
            });
            (value, audit)
        });
        self.reply_later(outcome, answer);
    }

    /// Sends what was decided once it is on record, after its line of the audit log.
    fn reply_later<T: Send + 'static>(
        &mut self,
        outcome: Result<(T, Option<AuditLine>), Refused>,
        answer: CalendarReply<T>,
    ) {
        match outcome {
            Ok((value, audit)) => {
                // The caller may have gone.
                let send = Box::new(|stored: Result<(), Box<ErrorReport>>| {
                    drop(answer.send(stored.map(|()| value)));
                });
                self.replies.push(PendingReply { send, audit });
            }
            Err(refused) => drop(answer.send(Err(refused))),
        }
    }

    fn set_rules(
        &mut self,
        text: String,
        over: Option<String>,
        by: ApiCaller,
        now: Time,
    ) -> Result<(), RulePublishError> {
        let new = RuleReservations::of(&RuleSet::parse(&text).map_err(RulePublishError::Wrong)?);
        self.calendar.advance(now);
        for (resource, load) in new.loads(&self.calendar, &self.fleet, now) {
            let fits = self.calendar.check_rules(resource, load);
            fits.map_err(RulePublishError::Promised)?;
        }
        let (answer, outcome) = oneshot::channel();
        let sent = self.to.store.send(StoreMsg::SetRules { text, over, by, answer });
        let outcome = sent.ok().and_then(|()| outcome.blocking_recv().ok());
        outcome.unwrap_or(Err(RulePublishError::ShuttingDown))?;
        self.rules = new;
        self.apply_rules(now);
        Ok(())
    }

    /// Takes what the rules in force reserve out of what can be reserved: of each resource by itself,
    /// as they are in force also where they do not fit.
    fn apply_rules(&mut self, now: Time) {
        for load in self.rules.loads(&self.calendar, &self.fleet, now) {
            if let Err(error) = self.calendar.set_rules(&[load], now) {
                tracing::error!(%error, "the rules reserve what is promised to reservations");
            }
        }
    }

    /// Takes the capacities from what proxies describe, and what the rules reserve of new targets.
    fn apply_fleet(&mut self, now: Time) {
        self.fleet.apply(&mut self.calendar, now);
        self.apply_rules(now);
    }

    /// Takes the events of the calendar, and moves what has ended to the ended ones.
    fn drain_events(&mut self) {
        while let Some(event) = self.calendar.poll_event() {
            self.changed.insert(event.id);
            if let CalendarChange::Ended { reason } = event.change {
                if reason == EndReason::Lapsed {
                    self.to.counts.lapsed.add(1);
                }
                if let Some(known) = self.known.remove(event.id) {
                    let ended = Some(reason.name().to_owned());
                    self.ended.note(WireReservation { ended, ..known.shown(event.id) });
                }
            }
            self.events.push(event);
        }
    }
}

/// The most messages that are one record.
const BATCH: usize = 256;
/// Calls that wait longer make it count as a time in which nobody took claims.
const STALL: Duration = Duration::from_secs(1);
/// How often the clock is read.
const TICK: Duration = Duration::from_millis(100);
/// The most events of one record: a loss may change thousands of reservations.
const EVENTS_MAX: usize = 256;

#[cfg(test)]
mod tests;
