//! A proxy's session with its controller: assignments, acknowledgements and the expiry of the
//! lease.
//!
//! ```text
//!   assignment ─► newer than what is in force? ─► grants for the dispatcher, acknowledged by the next report
//!   lease expired ──────────────► lower what is above the fallback
//!   … for twice as long ────────► raise what is below it
//!   received again ─────────────► keep that, report it, and be registered again
//! ```
//!
//! An assignment counts as received when the report that it answers was sent. So one that travelled
//! for long renews no lease. Raising follows lowering after another `lease`. By then every other
//! proxy has an assignment that accounts for this one's expiry, or has lowered its own share. A
//! clock that jumps lowers at once and raises nothing. For raising, the time between two polls
//! counts for a quarter of `lease` at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{Grants, Nanos, RuleActivity, Scope, ScopeUsage, SectionKind, Share, SlotsClaim, Time};
use rules::{Entitlement, EntitlementId, EntitlementSource};

use crate::messages::{Assignment, Holdings, Membership, ShareReport};
use crate::scopes::{ProxyScopes, ScopeReport};
use crate::session_rows::SessionRows;
use crate::total_service::LocalService;
use crate::unreported::UnreportedUsage;

/// The behaviour of a proxy whose share lease has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseExpiry {
    /// Everything is at the fallback that the controller named, 1/N.
    #[default]
    Equal,
    /// The last assignments stay in force.
    KeepLast,
    /// Nothing is divided: each limit is this proxy's alone, and no decay throttles.
    Full,
}

/// Settings of a controller session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// The share lease: how long assignments hold without renewal; the same as the controller's.
    pub lease: Nanos,
    /// The behaviour after the lease has expired.
    pub lease_expiry: LeaseExpiry,
    /// How often an idle proxy reports; well below the controller's
    /// `unreachable_after`.
    pub idle_report_interval: Nanos,
    /// The most of everything if no controller assigned a share within `lease` of the start; an
    /// equal share if one said how many proxies there are. Until then limited requests wait, since
    /// other proxies may be giving all of it.
    pub share_without_controller: Share,
}

/// A proxy's session with its controller.
#[derive(Debug)]
pub struct ControllerSession {
    name: Arc<str>,
    epoch: u64,
    settings: SessionSettings,
    now: Time,
    term: Membership,
    /// The number of the last assignment that was received in this term.
    order: u64,
    revision: u64,
    /// What was assigned.
    proxies: u32,
    unlisted: Share,
    fallback: Option<Share>,
    listed: BTreeMap<Scope, Share>,
    rows: SessionRows,
    scopes: ScopeReport,
    /// Reports that may be answered, with when they were sent by either clock.
    sent: VecDeque<(u64, Time, Nanos)>,
    sequence: u64,
    /// When the last report was sent.
    reported: Time,
    /// When there was usage to report last.
    busy: Time,
    /// Whether the lease expired, so that its assignments are no longer in force.
    lease_expired: bool,
    /// Whether there is something to acknowledge.
    ack_due: bool,
    /// When the report was sent that was answered last.
    last_answered_sent: Time,
    /// The clock that does not jump, and its value at that time: raising follows this clock.
    steady: Nanos,
    last_answered_steady: Nanos,
    mode: SessionMode,
    /// What the dispatcher has not received yet.
    due: BTreeSet<Scope>,
    due_all: bool,
    service: LocalService,
    uses: UnreportedUsage,
    /// The activity of parents here, and at all other proxies.
    parents: Vec<(Arc<str>, RuleActivity)>,
    remote_parents: Vec<(Arc<str>, RuleActivity)>,
    /// Whether the dispatcher has not received the latter yet.
    parents_due: bool,
}

/// What determines the shares of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionMode {
    /// The assignments. Before the first one nothing is granted.
    Assigned,
    /// The assignments, but nothing above the fallback.
    Lowered,
    /// The fallback.
    Fallback,
    /// Nothing: each limit is given whole.
    Lifted,
}

impl SessionMode {
    /// Whether a row of a controller is in force.
    fn has_in_force(self, row: &Entitlement) -> bool {
        match row.source() {
            EntitlementSource::Decay => self != SessionMode::Lifted,
            EntitlementSource::Reservation | EntitlementSource::Operator => {
                self == SessionMode::Assigned
            }
        }
    }
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings {
            lease: Nanos::from_secs(10),
            lease_expiry: LeaseExpiry::Equal,
            idle_report_interval: Nanos::from_secs(1),
            share_without_controller: Share::WHOLE,
        }
    }
}

impl ControllerSession {
    /// Creates a session without assignments. `epoch` is greater than at every start before.
    pub fn new(name: &str, epoch: u64, settings: SessionSettings, now: Time) -> ControllerSession {
        ControllerSession {
            name: name.into(),
            epoch,
            settings,
            now,
            term: Membership::default(),
            order: 0,
            revision: 0,
            proxies: 1,
            unlisted: Share::ZERO,
            fallback: None,
            listed: BTreeMap::new(),
            rows: SessionRows::default(),
            scopes: ScopeReport::default(),
            sent: VecDeque::new(),
            sequence: 0,
            reported: Time::ZERO,
            busy: Time::ZERO,
            lease_expired: false,
            ack_due: true,
            last_answered_sent: now,
            steady: Nanos::ZERO,
            last_answered_steady: Nanos::ZERO,
            mode: SessionMode::Assigned,
            due: BTreeSet::new(),
            due_all: true,
            service: LocalService::default(),
            uses: UnreportedUsage::default(),
            parents: Vec::new(),
            remote_parents: Vec::new(),
            parents_due: false,
        }
    }

    /// Sets the activity here of the rules on which others depend, for the next report. While there
    /// are such rules and requests, the proxy reports each tick.
    pub fn set_parents(&mut self, parents: Vec<(Arc<str>, RuleActivity)>) {
        self.parents = parents;
    }

    /// Sets what the proxy needs of the target's slots in this tick; `None`: no class has requests. To
    /// be called before [`ControllerSession::report`] with the usage of the tick.
    pub fn set_slots_claim(&mut self, claim: Option<SlotsClaim>) {
        self.uses.claim(claim);
    }

    /// Sets what the proxy has of that which rows name: the next report says so. Until it is set it
    /// gets all rows.
    pub fn set_scopes(&mut self, scopes: &Arc<ProxyScopes>) {
        self.ack_due |= self.scopes.set(scopes);
    }

    /// The report to be sent now; `None` if there is nothing to report yet. To be polled each tick
    /// of the controller's (100 ms) with what the dispatcher used since the last one. To be polled
    /// with `None` at once when [`ControllerSession::receive`] returns true.
    pub fn report(
        &mut self,
        uses: Option<Vec<(Scope, ScopeUsage)>>,
        now: Time,
    ) -> Option<ShareReport> {
        self.advance(now);
        if let Some(uses) = uses {
            self.uses.add(uses, self.now);
        }
        let served = self.service.report(self.now);
        if !self.uses.is_idle() || !served.is_empty() {
            self.busy = self.now;
        }
        let rest = self.settings.idle_report_interval;
        // A little longer than that, so that it is seen to be idle.
        let idle = self.busy == Time::ZERO || self.now.since(self.busy) > rest + rest;
        let steady = served.is_empty() && self.uses.is_steady(rest, self.now);
        // What is not answered soon may be lost.
        let lost = self.sent.front().is_some_and(|(_, at, _)| self.now.since(*at) > rest);
        let wait = if lost { rest.get() / 4 } else { rest.get() };
        let is_fresh = |idle: Nanos| idle <= rest + rest;
        // A parent need not have a limit, and its children are to hear of it.
        let is_followed = self.parents.iter().any(|(_, of)| of.idle.is_none_or(is_fresh));
        let follows = is_followed || (!self.parents.is_empty() && !idle);
        let can_wait = (idle || steady) && !self.ack_due && !follows;
        if can_wait && self.now.since(self.reported).get() < wait {
            return None;
        }
        self.ack_due = false;
        self.reported = self.now;
        self.sequence += 1;
        self.sent.push_back((self.sequence, self.now, self.steady));
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
        Some(ShareReport {
            from: self.name.clone(),
            epoch: self.epoch,
            sequence: self.sequence,
            term: self.term,
            last_assignment: self.order,
            revision: self.revision,
            lease_expired: self.lease_expired,
            holdings: (self.revision == 0 && !self.lease_expired).then(|| self.holdings()),
            slots: self.uses.report_claim(),
            uses: self.uses.report(),
            served,
            parents: self.parents.clone(),
            scopes: self.scopes.report(self.sequence),
        })
    }

    /// Handles an assignment. Returns true if it asks for a report at once. Poll for grants
    /// afterwards.
    pub fn receive(&mut self, order: &Assignment, now: Time) -> bool {
        self.advance(now);
        if *order.to != *self.name || order.epoch != self.epoch || order.term < self.term {
            return false;
        }
        if self.fallback.is_none() {
            // The first share is to come; how many proxies there are is said before.
            self.due_all |= self.proxies != order.proxies.max(1);
            self.proxies = order.proxies.max(1);
        }
        let joins = order.term > self.term;
        if joins {
            // The proxy keeps what it holds, and names it in its next report.
            self.adopt_effective_grants();
            (self.term, self.order, self.revision) = (order.term, 0, 0);
            self.service.reset();
            self.scopes.reset();
        } else {
            self.scopes.receive(order);
            if !self.lease_expired && order.base <= self.revision && order.revision > self.revision
            {
                self.apply_assignment(order);
                self.ack_due = true;
            }
        }
        // Until the first revision, each assignment is answered at once.
        self.ack_due |= self.revision == 0 && order.number > self.order;
        if order.number > self.order && !order.learning {
            self.remote_parents.clone_from(&order.parents);
            self.parents_due = true;
        }
        self.order = self.order.max(order.number);
        self.service.receive(&order.remote_service);
        self.note_reply(order);
        self.update_mode();
        self.ack_due
    }

    /// Takes what changed for the dispatcher since the last call; `None` if nothing did.
    pub fn poll_grants(&mut self, now: Time) -> Option<Grants> {
        self.advance(now);
        if self.due_all {
            self.due.extend(self.listed.keys().cloned());
        }
        if !std::mem::take(&mut self.due_all) && self.due.is_empty() {
            return None;
        }
        let changed = std::mem::take(&mut self.due);
        let listed = changed.into_iter().map(|scope| {
            let part = self.listed.get(&scope).map(|part| self.effective_part(*part));
            (scope, part)
        });
        let listed = listed.collect();
        let unlisted = self.effective_part(self.unlisted);
        Some(Grants { proxies: self.proxies, unlisted, listed })
    }

    /// Takes the rows of entitlements that changed for the dispatcher since the last call, `None` for
    /// those that are no longer in force; their spans count from [`Time::ZERO`] of the clock here.
    /// After the lease only limits of decays are in force, and with [`LeaseExpiry::Full`] none is.
    pub fn poll_rows(&mut self, now: Time) -> Option<Vec<(EntitlementId, Option<Entitlement>)>> {
        self.advance(now);
        let mode = self.mode;
        self.rows.poll(|row| mode.has_in_force(row))
    }

    /// Ends the session: what its dispatcher is to be given.
    pub fn end(mut self) -> Vec<(EntitlementId, Option<Entitlement>)> {
        self.rows.all_due();
        self.rows.poll(|_| false).unwrap_or_default()
    }

    /// Takes the activity of parents at all other proxies (the session of limits knows it), if
    /// something came since the last call;
    /// while the controller's assignments are not in force there is none.
    pub fn poll_remote_parents(&mut self, now: Time) -> Option<Vec<(Arc<str>, RuleActivity)>> {
        self.advance(now);
        let known = match self.mode {
            SessionMode::Assigned => self.remote_parents.clone(),
            SessionMode::Lowered | SessionMode::Fallback | SessionMode::Lifted => Vec::new(),
        };
        std::mem::take(&mut self.parents_due).then_some(known)
    }

    /// Counts metadata service of this cost to a class, for a client that is not a mount.
    pub fn serve(&mut self, class: &Scope, cost: Nanos, now: Time) {
        self.advance(now);
        self.service.serve(class, cost, self.now);
    }

    /// Takes remote service of a class that was not given to the dispatcher yet.
    pub fn poll_remote_service(&mut self) -> Option<(Scope, Nanos)> {
        self.service.poll()
    }

    /// When to poll again even though nothing is received.
    pub fn next_deadline(&self) -> Time {
        let report = self.reported + self.settings.idle_report_interval;
        let lower = self.last_answered_sent + self.settings.lease;
        let fall = self.now + self.step();
        report.min(if lower > self.now { lower } else { fall })
    }

    /// Whether the controller's assignments are in force.
    pub fn is_assigned(&self) -> bool {
        self.mode == SessionMode::Assigned && self.revision > 0
    }

    /// The share of the target's slots that the proxy gives now; `None`: they are not divided.
    pub fn slots_part(&self) -> Option<Share> {
        self.listed.get(&Scope::slots()).map(|part| self.effective_part(*part))
    }

    /// The share of a scope that the proxy gives now; nothing of a row, while none is in force.
    pub fn part_of(&self, scope: &Scope) -> Share {
        if scope.section == SectionKind::Entitlement && self.mode != SessionMode::Assigned {
            return Share::ZERO;
        }
        self.effective_part(self.listed.get(scope).copied().unwrap_or(self.unlisted))
    }

    // ---- the steps that calls share ----

    fn advance(&mut self, now: Time) {
        let passed = now.since(self.now).min(self.step());
        self.now = self.now.max(now);
        self.steady += passed;
        self.update_mode();
    }

    /// How much of the time between two polls counts for raising.
    fn step(&self) -> Nanos {
        Nanos::new(self.settings.lease.get() / 4)
    }

    /// Updates the mode from the age of the last assignment.
    fn update_mode(&mut self) {
        let SessionSettings { lease, lease_expiry, .. } = self.settings;
        let silent = self.now.since(self.last_answered_sent) >= lease;
        // Without any assignment there is nothing to lower, and no other proxy makes room.
        let patience = if self.fallback.is_none() { lease } else { lease + lease };
        let mode = match lease_expiry {
            // Others may not have made room yet for an earlier assignment.
            _ if !silent && self.lease_expired => self.mode,
            _ if !silent => SessionMode::Assigned,
            LeaseExpiry::KeepLast if self.fallback.is_some() => SessionMode::Assigned,
            LeaseExpiry::Full => SessionMode::Lifted,
            _ if self.steady - self.last_answered_steady >= patience => SessionMode::Fallback,
            _ => SessionMode::Lowered,
        };
        if self.mode != mode {
            if self.mode == SessionMode::Assigned {
                // The controller may forget its sums before it answers again.
                self.service.reset();
            }
            self.ack_due |= mode == SessionMode::Assigned;
            self.mode = mode;
            // While the proxy is being registered, its reported holdings are the most that it has,
            // until it raises.
            let leaves = mode == SessionMode::Lowered && self.revision > 0;
            self.lease_expired |=
                leaves || (mode == SessionMode::Fallback && self.fallback.is_some());
            self.due_all = true;
            self.parents_due = true;
            self.rows.all_due();
        }
    }

    fn apply_assignment(&mut self, order: &Assignment) {
        self.revision = order.revision;
        let base = (order.proxies.max(1), order.unlisted, Some(order.fallback));
        if (self.proxies, self.unlisted, self.fallback) != base {
            (self.proxies, self.unlisted, self.fallback) = base;
            self.due_all = true;
        }
        for (scope, part) in &order.grants {
            match part {
                None => self.listed.remove(scope),
                Some(part) => self.listed.insert(scope.clone(), *part),
            };
            self.due.insert(scope.clone());
        }
        // A report that is no longer known was sent after the one that was answered last: spans end
        // sooner then, never later.
        let answered = self.sent.iter().find(|(of, ..)| *of == order.in_reply_to);
        let since = answered.map_or(self.last_answered_sent, |(_, sent, _)| *sent);
        self.rows.apply(order.all_rows, &order.rows, since);
    }

    /// Makes what is in force the holdings.
    fn adopt_effective_grants(&mut self) {
        if !std::mem::take(&mut self.lease_expired) {
            return;
        }
        self.due.extend(self.listed.keys().cloned());
        match self.mode {
            SessionMode::Fallback => {
                // Slots that are not listed are not divided.
                let fallback = self.fallback();
                self.listed.retain(|scope, _| scope.section == SectionKind::Slots);
                self.listed.values_mut().for_each(|part| *part = fallback);
            }
            _ => {
                let fallback = self.fallback();
                self.listed.values_mut().for_each(|part| *part = (*part).min(fallback));
            }
        }
        let mode = self.mode;
        self.rows.retain(|_, row| mode.has_in_force(row));
        // None of these is in force until the controller has given shares again.
        self.listed
            .iter_mut()
            .filter(|(scope, _)| scope.section == SectionKind::Entitlement)
            .for_each(|(_, part)| *part = Share::ZERO);
        self.unlisted = self.effective_part(self.unlisted);
        self.mode = SessionMode::Assigned;
        self.due_all = true;
        self.parents_due = true;
    }

    fn note_reply(&mut self, order: &Assignment) {
        let answered = self.sent.iter().find(|(of, ..)| *of == order.in_reply_to).copied();
        let Some((_, sent, steady)) = answered else { return };
        self.last_answered_steady = self.last_answered_steady.max(steady);
        if !order.learning {
            self.sent.retain(|(of, ..)| *of > order.in_reply_to);
            self.last_answered_sent = self.last_answered_sent.max(sent);
        }
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            unlisted: self.unlisted,
            fallback: self.fallback(),
            listed: self.listed.iter().map(|(scope, part)| (scope.clone(), *part)).collect(),
        }
    }

    fn fallback(&self) -> Share {
        let equal = Share::equal(self.proxies);
        self.fallback.unwrap_or(self.settings.share_without_controller.min(equal))
    }

    fn effective_part(&self, ordered: Share) -> Share {
        match self.mode {
            SessionMode::Assigned => ordered,
            SessionMode::Lowered => ordered.min(self.fallback()),
            SessionMode::Fallback => self.fallback(),
            SessionMode::Lifted => Share::WHOLE,
        }
    }
}

/// How many reports may be unanswered; an answer to an older one renews no lease.
const SENT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use model::{KindSet, Rate};
    use rules::{EntitlementScope, Grantable};

    use super::*;

    fn secs(count: u64) -> Time {
        Time::ZERO + Nanos::from_secs(count)
    }

    fn scope() -> Scope {
        Scope::rule("jobs", &[])
    }

    fn order(
        standing: &ControllerSession,
        base: u64,
        revision: u64,
        parts: (u64, u64),
    ) -> Assignment {
        let part = |percent| Share::ratio(percent, 100);
        Assignment {
            to: standing.name.clone(),
            epoch: 1,
            term: Membership { controller: 1, joined: 1 },
            number: revision + 1,
            in_reply_to: standing.sequence,
            learning: false,
            base,
            revision,
            proxies: 2,
            unlisted: part(parts.0),
            fallback: part(50),
            grants: vec![(scope(), Some(part(parts.1)))],
            all_rows: false,
            rows: vec![],
            remote_service: vec![],
            parents: vec![],
        }
    }

    /// A proxy that is granted 50 % of everything and a share of one scope.
    fn ordered(percent: u64, settings: SessionSettings) -> ControllerSession {
        let mut standing = ControllerSession::new("a", 1, settings, Time::ZERO);
        standing.report(Some(vec![]), Time::ZERO);
        standing.receive(&order(&standing, 0, 0, (0, 0)), Time::ZERO);
        standing.report(Some(vec![]), Time::ZERO);
        assert!(standing.receive(&order(&standing, 0, 1, (50, percent)), Time::ZERO));
        standing
    }

    #[test]
    fn a_new_member_gives_nothing_until_it_is_ordered_and_all_when_there_is_no_controller() {
        let mut standing = ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO);
        assert_eq!(standing.poll_grants(Time::ZERO).unwrap().unlisted, Share::ZERO);
        for second in 1..10 {
            assert_eq!(standing.poll_grants(secs(second)), None);
        }
        let grants = (10..13).find_map(|second| standing.poll_grants(secs(second)));
        assert_eq!(grants.unwrap().unlisted, Share::WHOLE);
    }

    #[test]
    fn a_new_member_that_only_heard_of_others_gives_an_equal_share_when_the_controller_is_gone() {
        let mut standing = ControllerSession::new("a", 1, SessionSettings::default(), Time::ZERO);
        standing.report(Some(vec![]), Time::ZERO);
        let learning = Assignment {
            learning: true,
            revision: 0,
            proxies: 4,
            ..order(&standing, 0, 0, (0, 0))
        };
        standing.receive(&learning, Time::ZERO);
        assert_eq!(standing.poll_grants(Time::ZERO).unwrap().unlisted, Share::ZERO);
        let grants = (1..13).find_map(|second| standing.poll_grants(secs(second)));
        assert_eq!(grants.unwrap().unlisted, Share::ratio(1, 4));
    }

    /// A row of that source for a span in milliseconds.
    fn row(source: EntitlementSource, from: u64, until: Option<u64>) -> Entitlement {
        let rate = Rate::ops_per_sec(5).unwrap();
        let (scope, grants) = (EntitlementScope::default(), Grantable::Limit(rate, None));
        let row = Entitlement::new(scope, grants, KindSet::ALL, source).unwrap();
        row.during(Nanos::from_millis(from), until.map(Nanos::from_millis)).unwrap()
    }

    /// A session with rows 1 of a decay, 2 of an operator; the last assignment was at 0 s.
    fn with_rows(lease_expiry: LeaseExpiry) -> ControllerSession {
        let settings = SessionSettings { lease_expiry, ..SessionSettings::default() };
        let mut session = ordered(30, settings);
        let rows = vec![
            (EntitlementId(1), Some(row(EntitlementSource::Decay, 0, None))),
            (EntitlementId(2), Some(row(EntitlementSource::Operator, 0, None))),
        ];
        let order = Assignment { all_rows: true, rows, ..order(&session, 1, 2, (50, 30)) };
        assert!(session.receive(&order, Time::ZERO));
        assert_eq!(in_force(&mut session, Time::ZERO), [(1, true), (2, true)]);
        session
    }

    fn in_force(session: &mut ControllerSession, now: Time) -> Vec<(u64, bool)> {
        let rows = session.poll_rows(now).unwrap_or_default();
        rows.into_iter().map(|(id, row)| (id.0, row.is_some())).collect()
    }

    #[test]
    fn a_row_has_its_span_from_the_report_that_was_answered() {
        let mut session = ordered(30, SessionSettings::default());
        session.report(Some(vec![]), secs(2));
        let later = row(EntitlementSource::Reservation, 500, Some(3_000));
        let rows = vec![(EntitlementId(1), Some(later))];
        let order = Assignment { rows, ..order(&session, 1, 2, (50, 30)) };
        session.receive(&order, secs(4));
        let rows = session.poll_rows(secs(4)).unwrap();
        let here = rows[0].1.as_ref().unwrap();
        let ms = Nanos::from_millis;
        assert_eq!((here.from(), here.until()), (ms(2_500), Some(ms(5_000))));
        assert_eq!(session.poll_rows(secs(4)), None);
        assert_eq!(session.end(), [(EntitlementId(1), None)]);
    }

    #[test]
    fn after_the_lease_decays_limit_and_other_rows_end_unless_all_is_kept_or_lifted() {
        let quiet = |lease_expiry| {
            let mut session = with_rows(lease_expiry);
            let changes = in_force(&mut session, secs(10));
            (session, changes)
        };
        assert_eq!(quiet(LeaseExpiry::KeepLast).1, []);
        let (mut lifted, changes) = quiet(LeaseExpiry::Full);
        assert_eq!(changes, [(1, false), (2, false)]);
        lifted.report(Some(vec![]), secs(11));
        let answer = order(&lifted, 2, 2, (50, 30));
        lifted.receive(&answer, secs(11));
        assert_eq!(in_force(&mut lifted, secs(11)), [(1, true), (2, true)]);
        let (mut lowered, changes) = quiet(LeaseExpiry::Equal);
        assert_eq!(changes, [(1, true), (2, false)]);
        // It is registered again, and keeps what is in force until it has all rows.
        let term = Membership { controller: 1, joined: 2 };
        lowered.receive(&Assignment { term, ..order(&lowered, 0, 0, (0, 0)) }, secs(60));
        assert!(!in_force(&mut lowered, secs(60)).contains(&(2, true)));
        lowered.report(Some(vec![]), secs(60));
        let rows = vec![(EntitlementId(3), Some(row(EntitlementSource::Operator, 0, None)))];
        let order = Assignment { term, all_rows: true, rows, ..order(&lowered, 0, 1, (50, 30)) };
        lowered.receive(&order, secs(60));
        assert_eq!(in_force(&mut lowered, secs(60)), [(1, false), (3, true)]);
    }

    #[test]
    fn rows_beyond_the_bound_and_beyond_all_time_are_dropped() {
        let mut session = ordered(30, SessionSettings::default());
        let endless = row(EntitlementSource::Operator, u64::MAX / 1_000_000 - 1, None);
        let never = endless.clone().during(Nanos::new(u64::MAX - 1), Some(Nanos::new(u64::MAX)));
        session.report(Some(vec![]), secs(1));
        let many = (0..70_000).map(|id| (EntitlementId(id), Some(endless.clone())));
        let rows =
            [(EntitlementId(70_000), Some(never.unwrap()))].into_iter().chain(many).collect();
        let order = Assignment { rows, ..order(&session, 1, 2, (50, 30)) };
        session.receive(&order, secs(1));
        let rows = session.poll_rows(secs(1)).unwrap();
        assert_eq!(rows.len(), 65_536);
        assert!(rows.iter().all(|(id, _)| id.0 < 65_536));
    }

    #[test]
    fn an_older_order_and_one_of_another_life_change_nothing() {
        let mut standing = ordered(30, SessionSettings::default());
        standing.poll_grants(Time::ZERO);
        assert!(standing.receive(&order(&standing, 1, 3, (50, 20)), Time::ZERO));
        standing.report(Some(vec![]), Time::ZERO);
        let gap = Assignment { base: 4, ..order(&standing, 4, 5, (50, 90)) };
        let other = Assignment { epoch: 2, ..order(&standing, 1, 9, (50, 90)) };
        for late in [order(&standing, 1, 2, (50, 70)), gap, other] {
            assert!(!standing.receive(&late, Time::ZERO));
        }
        let listed = vec![(scope(), Some(Share::ratio(20, 100)))];
        let unlisted = Share::ratio(50, 100);
        assert_eq!(standing.poll_grants(Time::ZERO), Some(Grants { proxies: 2, unlisted, listed }));
        assert_eq!(standing.poll_grants(Time::ZERO), None);
    }

    #[test]
    fn a_member_that_hears_nothing_lowers_after_the_hold_and_raises_after_two() {
        for (percent, lowered) in [(99, 50), (1, 1)] {
            let mut standing = ordered(percent, SessionSettings::default());
            let part = |standing: &mut ControllerSession, second| {
                standing.poll_grants(secs(second));
                standing.part_of(&scope())
            };
            assert_eq!(part(&mut standing, 9), Share::ratio(percent, 100));
            assert_eq!(part(&mut standing, 10), Share::ratio(lowered, 100));
            let fell = (11..60).find(|at| part(&mut standing, *at) == Share::ratio(50, 100));
            assert!((11..30).contains(&fell.unwrap()), "{fell:?}");
            (40..60)
                .for_each(|second| assert!(part(&mut standing, second) == Share::ratio(50, 100)));
            let again = standing.report(Some(vec![]), secs(60)).unwrap();
            assert!(again.lease_expired);
            let late = order(&standing, 0, 9, (90, 90));
            standing.receive(&late, secs(60));
            assert_eq!(part(&mut standing, 60), Share::ratio(50, 100), "others may not know");
            let term = Membership { controller: 1, joined: 2 };
            standing.receive(&Assignment { term, ..order(&standing, 0, 0, (0, 0)) }, secs(60));
            assert_eq!(part(&mut standing, 60), Share::ratio(50, 100), "it keeps what it has");
            let told = standing.report(Some(vec![]), secs(60)).unwrap().holdings.unwrap();
            assert_eq!((told.unlisted, told.listed), (Share::ratio(50, 100), vec![]));
            standing
                .receive(&Assignment { term, ..order(&standing, 0, 1, (50, percent)) }, secs(60));
            assert_eq!(part(&mut standing, 60), Share::ratio(percent, 100));
        }
    }

    #[test]
    fn a_clock_that_jumps_ahead_raises_nothing() {
        let mut standing = ordered(1, SessionSettings::default());
        standing.poll_grants(secs(100_000));
        assert_eq!(standing.part_of(&scope()), Share::ratio(1, 100));
        let mut high = ordered(99, SessionSettings::default());
        high.poll_grants(secs(100_000));
        assert_eq!(high.part_of(&scope()), Share::ratio(50, 100));
    }

    #[test]
    fn an_order_that_was_long_on_its_way_keeps_nothing_alive() {
        let mut standing = ordered(99, SessionSettings::default());
        standing.report(Some(vec![]), secs(2));
        let late = order(&standing, 1, 1, (50, 99));
        standing.receive(&late, secs(9));
        standing.poll_grants(secs(11));
        assert_eq!(standing.part_of(&scope()), Share::ratio(99, 100), "2 s + 10 s");
        standing.poll_grants(secs(12));
        assert_eq!(standing.part_of(&scope()), Share::ratio(50, 100));
        standing.receive(&late, secs(13));
        assert_eq!(standing.part_of(&scope()), Share::ratio(50, 100));
    }

    #[test]
    fn a_controller_that_does_not_know_yet_what_there_is_keeps_nothing_alive() {
        let mut standing = ordered(99, SessionSettings::default());
        let term = Membership { controller: 2, joined: 1 };
        let part = |standing: &mut ControllerSession, second| {
            standing.report(Some(vec![]), secs(second));
            let stay = Assignment { term, learning: true, ..order(standing, 0, 0, (0, 0)) };
            standing.receive(&stay, secs(second));
            standing.part_of(&scope())
        };
        assert_eq!(part(&mut standing, 9), Share::ratio(99, 100));
        assert_eq!(part(&mut standing, 10), Share::ratio(50, 100));
        let mut low = ordered(1, SessionSettings::default());
        for second in 1..60 {
            assert_eq!(part(&mut low, second), Share::ratio(1, 100), "but no share is raised");
        }
    }

    #[test]
    fn silence_may_keep_the_orders_or_lift_them() {
        let with =
            |silence| SessionSettings { lease_expiry: silence, ..SessionSettings::default() };
        for (silence, part) in [(LeaseExpiry::KeepLast, 99), (LeaseExpiry::Full, 100)] {
            let mut standing = ordered(99, with(silence));
            for second in 1..60 {
                standing.poll_grants(secs(second));
            }
            assert_eq!(standing.part_of(&scope()), Share::ratio(part, 100));
        }
    }

    #[test]
    fn who_has_nothing_to_say_reports_once_a_second_and_sooner_when_it_had_no_answer_for_one() {
        let tick = |at: u64| Time::ZERO + Nanos::from_millis(100 * at);
        for (answers, expected) in [(true, vec![1, 11, 21]), (false, vec![1, 11, 14, 17])] {
            let mut standing = ordered(50, SessionSettings::default());
            let mut reports = Vec::new();
            for at in 1..if answers { 25 } else { 18 } {
                if standing.report(Some(vec![]), tick(at)).is_some() {
                    reports.push(at);
                    let order = order(&standing, 1, 1, (50, 50));
                    assert!(!answers || !standing.receive(&order, tick(at)));
                }
            }
            assert_eq!(reports, expected, "the first acknowledges");
        }
    }

    #[test]
    fn who_goes_on_as_before_reports_each_second_and_each_tick_while_that_changes() {
        let tick = |at: u64| Time::ZERO + Nanos::from_millis(100 * at);
        let mut standing = ordered(50, SessionSettings::default());
        let mut reports = Vec::new();
        for at in 1..60 {
            // The usage begins to grow, and the share follows.
            let waiting = (30..33).contains(&at);
            let uses = vec![(scope(), ScopeUsage { used: Some(Share::ratio(at, 100)), waiting })];
            if let Some(report) = standing.report(Some(uses), tick(at)) {
                reports.push((at, report.uses));
                let order = order(&standing, 1, 1, (50, 50));
                standing.receive(&order, tick(at));
            }
        }
        let at: Vec<_> = reports.iter().map(|(at, _)| *at).collect();
        let ticks = |from, to| (from..=to).collect::<Vec<u64>>();
        assert_eq!(at, [ticks(1, 11), vec![21], ticks(30, 43), vec![53]].concat());
        let told =
            |at: u64| &reports.iter().find(|(of, _)| *of == at).unwrap().1.as_ref().unwrap()[0].1;
        assert_eq!(told(21).used, Some(Share::ratio(165, 1000)), "the mean of ten ticks");
        assert_eq!(told(30), &ScopeUsage { used: Some(Share::ratio(26, 100)), waiting: true });
    }
}
