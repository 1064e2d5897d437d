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

use model::{
    Grants, Nanos, RuleActivity, Scope, ScopeUsage, SectionKind, Share, SlotsClaim, Time,
    WaitedService,
};
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

    /// Adds what reservations were served in this tick while their requests waited.
    pub fn add_waited(&mut self, waited: Vec<(Scope, WaitedService)>) {
        self.uses.add_waited(waited);
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
            waited: self.uses.report_waited(),
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
mod tests;
