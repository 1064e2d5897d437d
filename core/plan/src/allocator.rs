//! The share allocator: reports of proxies in, assignments out.
//!
//! ```text
//!   report ─► proxy ─► acknowledged: what may be raised is raised at once
//!                  └──► usage ─► each 100 ms: targets of shares ─► poll_assignment, until None
//! ```
//!
//! One allocator is for one target and the proxies that serve it. After any call that takes `now`,
//! drain [`ShareAllocator::poll_assignment`]. An assignment for a proxy that cannot be reached may
//! be dropped: the reply to the proxy's next report repeats its content.
//!
//! What is unknown is assumed to be in use. A proxy that registers first reports what it holds.
//! While an expected proxy has not reported that, no share is raised.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Nanos, Rate, Scope, ScopeUsage, SectionKind, Share, SlotsClaim, Time};
use rules::{Entitlement, EntitlementId, LimitMode, RuleSet};

use crate::activity::ParentActivity;
use crate::lateness::{LateReservation, ServiceWindows};
use crate::messages::{Assignment, Holdings, ShareReport};
use crate::proxies::{Liveness, ProxyEntry, ProxySnapshot, ProxyTable};
use crate::rows::{ChangedRow, RowTable};
use crate::shares::{ShareBounds, ShareTable};
use crate::total_service::TotalService;

/// Settings of a share allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// The shortest time between two divisions.
    pub tick: Nanos,
    /// A proxy that has not received an assignment for this time is unreachable. It is at most half
    /// of `lease`: others must make room for the proxy's fallback before it takes effect.
    pub unreachable_after: Nanos,
    /// The share lease: how long proxies keep their assignments without receiving anything.
    pub lease: Nanos,
    /// A proxy that is unreachable for this time is forgotten.
    pub forget_after: Nanos,
    /// A proxy that does not use a scope for this time is idle there.
    pub idle: Nanos,
    /// A scope that no proxy uses for this time leaves the list.
    pub scope_idle_timeout: Nanos,
    /// The most scopes that are listed. Of each scope beyond it every proxy has an equal share.
    pub scopes_max: usize,
}

/// How far rows of entitlements have come to the proxies, and what others may still give out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsState {
    /// How many reachable proxies have such a row to get, or to lose, and have not acknowledged it.
    /// A proxy that has not yet reported what it has counts.
    pub unacknowledged: u32,
    /// The names of unreachable proxies, which count with what they may still give out.
    pub unreachable: Vec<Arc<str>>,
    /// The part of the target's slots that unreachable proxies may still be using in sum.
    pub given_out: Share,
}

/// Divides limits, reservations and weights over the proxies of one target.
#[derive(Debug)]
pub struct ShareAllocator {
    settings: AllocatorSettings,
    term: u64,
    now: Time,
    rules: Arc<RuleSet>,
    proxies: ProxyTable,
    shares: ShareTable,
    rows: RowTable,
    /// Rows that were used since they were taken last: some of `rows`.
    used_rows: BTreeSet<EntitlementId>,
    service: ServiceWindows,
    /// How much of reports was ignored since that was taken last.
    ignored: usize,
    metadata: TotalService,
    parents: ParentActivity,
    /// When shares may be divided next.
    next_division: Time,
    /// When unused scopes are searched for next.
    next_sweep: Time,
    /// When a proxy may have become unreachable, at the earliest; `None`: search now.
    next_liveness_check: Option<Time>,
}

impl Default for AllocatorSettings {
    fn default() -> AllocatorSettings {
        AllocatorSettings {
            tick: Nanos::from_millis(100),
            unreachable_after: Nanos::from_secs(5),
            lease: Nanos::from_secs(10),
            forget_after: Nanos::from_secs(300),
            idle: Nanos::from_secs(1),
            scope_idle_timeout: Nanos::from_secs(60),
            scopes_max: 65_536,
        }
    }
}

impl ShareAllocator {
    /// Creates an allocator for the proxies of one target. `term` is above 0 and greater than that
    /// of every controller before it. `known` are the proxies that the last controller knew. No
    /// share is raised until they have reported what they hold, or would have fallen back without
    /// it.
    pub fn new(
        settings: AllocatorSettings,
        term: u64,
        known: &[ProxySnapshot],
        rules: Arc<RuleSet>,
        now: Time,
    ) -> ShareAllocator {
        let mut proxies = ProxyTable::default();
        for member in known {
            proxies.restore(member, term, now);
        }
        let mut parents = ParentActivity::default();
        parents.set_rules(&rules);
        ShareAllocator {
            settings,
            term,
            now,
            rules,
            proxies,
            shares: ShareTable::default(),
            rows: RowTable::default(),
            used_rows: BTreeSet::new(),
            service: ServiceWindows::default(),
            ignored: 0,
            metadata: TotalService::default(),
            parents,
            next_division: now,
            next_sweep: now + SWEEP,
            next_liveness_check: None,
        }
    }

    /// Handles a report of a proxy.
    pub fn report(&mut self, report: &ShareReport, now: Time) {
        self.advance(now);
        let (id, new) = match self.proxies.register(report, self.term, self.now) {
            ProxyEntry::Stale => return,
            ProxyEntry::Known(id) => (id, false),
            ProxyEntry::New(id) => (id, true),
        };
        if new || report.lease_expired || report.holdings.is_some() {
            self.next_liveness_check = None;
        }
        if new {
            self.shares.remove_proxy(id, false, self.now);
            self.metadata.remove_proxy(id);
            self.parents.remove_proxy(id);
        }
        let member = self.proxies.get_mut(id);
        member.due = true;
        if report.term != member.term {
            return;
        }
        if report.lease_expired {
            self.proxies.register_expired(id, self.term, self.now);
            self.shares.all_stale();
            return;
        }
        member.acknowledge_assignment(report.last_assignment);
        // Before it acknowledges: it may have used what it acknowledges to be over.
        let may_have = |scope: &Scope| {
            let row = scope.name.parse().map(EntitlementId);
            scope.section != SectionKind::Entitlement
                || row.is_ok_and(|row| self.rows.may_have(row, &member.rows, &member.scopes))
        };
        let (uses, unknown_uses) = only(report.uses.as_deref().unwrap_or_default(), may_have);
        let (waited, unknown_waited) = only(&report.waited, may_have);
        self.ignored += unknown_uses + unknown_waited;
        if let Some(scopes) = &report.scopes {
            let before = std::mem::replace(&mut member.scopes, scopes.clone());
            member.change_rows(self.rows.between(&before, scopes));
        }
        let heard = member.has_received(self.settings.unreachable_after, self.now);
        match &report.holdings {
            _ if !member.must_report() => self.acknowledge(id, report.revision, heard),
            Some(held) if heard && report.revision == 0 => self.adopt(id, held),
            _ => {}
        }
        if self.proxies.get(id).is_present() {
            if report.uses.is_some() {
                self.record_usage(id, &uses, report.slots);
            }
            let member = self.proxies.get(id);
            let given = |scope: &Scope| {
                let rate = reserved_rate(&self.rules, &self.rows, scope)?;
                let part = self.shares.grant_of(id, scope).unwrap_or(member.unlisted.sent());
                rate.with_per_sec(part.of(rate.per_sec()))
            };
            self.service.record(id, &waited, given);
            self.metadata.receive(id, &report.served, self.now);
            self.parents.receive(id, &report.parents, self.now);
        }
        self.divide();
    }

    /// Forgets a proxy at once, whatever it may be using: an administrator has decided that it is
    /// gone. Returns false if no proxy has that name.
    pub fn forget(&mut self, name: &str, now: Time) -> bool {
        self.advance(now);
        let known = self.drop_proxy(name);
        self.divide();
        known
    }

    /// Replaces the rules. Shares stay: they are fractions of whatever the rules grant.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        self.rules = rules;
        self.shares.set_rules(&self.rules);
        self.parents.set_rules(&self.rules);
        self.divide();
    }

    /// Puts, replaces or (`None`) removes rows of entitlements, whose spans count from `now`. A proxy
    /// gets those whose scope it has, also when it reports the scope later. Returns how many were
    /// refused: 65,536 are kept, and numbers from 2^63 on are of the rows that decays make here. A
    /// row is in one allocator only: that of limits, or that of its target.
    pub fn set_rows(
        &mut self,
        changes: Vec<(EntitlementId, Option<Entitlement>)>,
        now: Time,
    ) -> usize {
        self.advance(now);
        let (changed, refused) = self.rows.change(changes, self.now);
        self.change_rows(&changed);
        self.divide();
        refused
    }

    /// Sets the rate that a decay limits a key to over all proxies, by a row; `None`: as the rule
    /// file says. Where 65,536 rows are kept already, a further key is not limited.
    pub fn set_rate(&mut self, key: &Scope, rate: Option<Rate>, now: Time) {
        self.advance(now);
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        self.shares.keep(key, rate.is_some(), &self.proxies, bounds, self.now);
        let changed = self.rows.set_decay(key, rate, self.now);
        self.change_rows(changed.as_slice());
        self.divide();
    }

    /// Takes the rows that a proxy reported as used since the last call, in order. Rows that are over
    /// by then are left out.
    pub fn take_used_rows(&mut self) -> Vec<EntitlementId> {
        let used = std::mem::take(&mut self.used_rows);
        used.into_iter().filter(|id| self.rows.contains(*id)).collect()
    }

    /// Takes how many rows proxies named in reports since the last call though they do not have them.
    /// What is said of these is ignored.
    pub fn take_ignored(&mut self) -> usize {
        std::mem::take(&mut self.ignored)
    }

    /// The next assignment to be sent; poll until there is none.
    pub fn poll_assignment(&mut self, now: Time) -> Option<Assignment> {
        self.advance(now);
        self.divide();
        let (id, _) = self.proxies.iter().find(|(_, member)| member.due)?;
        let proxies = self.proxies.count();
        let barred = self.division_barred_until().is_some();
        let member = self.proxies.get_mut(id);
        if member.must_report() {
            return Some(member.learning_assignment(proxies, self.now));
        }
        member.seal();
        let number = member.next_assignment_number(self.now);
        let grants = member.unacknowledged.keys();
        let grants = grants.map(|scope| (scope.clone(), self.shares.grant_of(id, scope)));
        let (all_rows, rows) = self.rows.update(&member.rows, &member.scopes, member.last_report);
        Some(Assignment {
            to: member.name.clone(),
            epoch: member.epoch,
            in_reply_to: member.sequence,
            term: member.term,
            number,
            learning: barred,
            base: member.acknowledged,
            revision: member.revision,
            proxies,
            unlisted: member.unlisted.sent(),
            fallback: member.fallback.sent(),
            grants: grants.collect(),
            all_rows,
            rows,
            remote_service: self.metadata.remote_service(id),
            parents: self.parents.elsewhere(id, self.now),
        })
    }

    /// When to poll again even though no report arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        let AllocatorSettings { unreachable_after, lease, forget_after, .. } = self.settings;
        let barred = self.division_barred_until().unwrap_or(self.next_division);
        let division = self.shares.is_stale().then_some(self.next_division);
        let sweep = (self.shares.count() > 0).then_some(self.next_sweep);
        let look =
            self.proxies.next_liveness_check(unreachable_after, lease, forget_after, self.now);
        let division = division.map(|at| at.max(barred));
        [division, sweep, look, self.rows.next_end()].into_iter().flatten().min()
    }

    /// The proxies, in the order of their numbers.
    pub fn proxies(&self) -> impl Iterator<Item = ProxySnapshot> {
        self.proxies.reports()
    }

    /// How far these rows have come to the proxies, as of the last call. O(rows × proxies).
    pub fn rows_state(&self, rows: &[EntitlementId]) -> RowsState {
        let mut state = RowsState::default();
        for (id, member) in self.proxies.iter() {
            if member.liveness == Liveness::Unreachable {
                state.unreachable.push(member.name.clone());
                state.given_out = state.given_out.plus(self.shares.slots_in_use(id, member));
            } else if member.must_report()
                || self.rows.are_unacknowledged(rows, &member.rows, &member.scopes)
            {
                state.unacknowledged += 1;
            }
        }
        state
    }

    /// Whether there is a row of that number: it was put, was not refused, and has not ended.
    pub fn has_row(&self, id: EntitlementId) -> bool {
        self.rows.contains(id)
    }

    /// The reservations of rows and rules that are not served their rates while their requests wait, as
    /// of the last second, by scope.
    pub fn late_reservations(&self) -> impl Iterator<Item = LateReservation> {
        self.service.late()
    }

    /// How many scopes are listed: those in use, and some that were.
    pub fn scopes(&self) -> usize {
        self.shares.count()
    }

    // ---- the steps that calls share ----

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        let AllocatorSettings {
            unreachable_after, lease, forget_after, scope_idle_timeout, ..
        } = self.settings;
        if self.next_liveness_check.is_none_or(|at| self.now >= at) {
            if self.proxies.mark_unreachable(unreachable_after, lease, self.now) {
                self.shares.all_stale();
            }
            for name in self.proxies.without_report(forget_after, self.now) {
                self.drop_proxy(&name);
            }
            // A proxy with a fresh lease is searched for later than this.
            self.next_liveness_check =
                self.proxies.next_liveness_check(unreachable_after, lease, forget_after, self.now);
        }
        if self.now >= self.next_sweep {
            self.next_sweep = self.now + SWEEP;
            self.shares.drop_unused(&mut self.proxies, scope_idle_timeout, self.now);
            self.metadata.drop_unused(scope_idle_timeout, self.now);
            let rate = |scope: &Scope| reserved_rate(&self.rules, &self.rows, scope);
            self.service.step(|scope| rate(scope).is_some(), self.now);
        }
        let ended = self.rows.expire(self.now);
        self.change_rows(&ended);
    }

    fn change_rows(&mut self, changed: &[ChangedRow]) {
        if changed.is_empty() {
            return;
        }
        for (_, member) in self.proxies.iter_mut() {
            let scopes = member.scopes.clone();
            let own = changed.iter().filter(|changed| self.rows.concerns(changed, &scopes));
            member.change_rows(Some(own.map(|changed| changed.id)));
        }
    }

    fn drop_proxy(&mut self, name: &str) -> bool {
        let Some(id) = self.proxies.forget(name) else { return false };
        self.shares.remove_proxy(id, true, self.now);
        self.metadata.remove_proxy(id);
        self.parents.remove_proxy(id);
        true
    }

    /// Handles a report in which a proxy names what it holds.
    fn adopt(&mut self, id: u32, held: &Holdings) {
        self.proxies.get_mut(id).adopt(held.unlisted, held.fallback);
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        self.shares.adopt(id, &held.listed, &mut self.proxies, bounds, self.now);
    }

    /// Handles a report in which a proxy acknowledges a revision.
    fn acknowledge(&mut self, id: u32, revision: u64, heard: bool) {
        if heard && self.proxies.get_mut(id).mark_reachable() {
            self.next_liveness_check = None;
            self.shares.all_stale();
        }
        let freed = self.shares.acknowledge(id, &mut self.proxies, revision);
        let may_raise = !self.proxies.is_learning();
        self.shares.raise_waiting(&freed, &mut self.proxies, may_raise);
    }

    fn record_usage(&mut self, id: u32, uses: &[(Scope, ScopeUsage)], slots: Option<SlotsClaim>) {
        let of_rows = uses.iter().filter(|(scope, _)| scope.section == SectionKind::Entitlement);
        let rows = of_rows.filter_map(|(scope, _)| scope.name.parse().ok().map(EntitlementId));
        self.used_rows.extend(rows.filter(|row| self.rows.contains(*row)));
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        let idle = self.settings.idle;
        self.shares.record_claim(id, slots, &mut self.proxies, bounds, idle, self.now);
        self.shares.record_usage(id, uses, &mut self.proxies, bounds, idle, self.now);
    }

    /// Until when nothing is divided. Proxies report each second, and three of their reports are
    /// enough.
    fn division_barred_until(&self) -> Option<Time> {
        let span = Nanos::new(self.settings.unreachable_after.get() / 2);
        self.proxies.division_barred_until(span, self.now)
    }

    /// Divides what changed, at most once a tick.
    fn divide(&mut self) {
        let bars = self.division_barred_until().is_some();
        if bars || !self.shares.is_stale() || self.now < self.next_division {
            return;
        }
        self.next_division = self.now + self.settings.tick;
        let may_raise = !self.proxies.is_learning();
        self.shares.squeeze(&self.proxies, self.now);
        self.shares.divide(&mut self.proxies, may_raise);
    }
}

/// What is said of scopes that meet a condition, and of how many others something is said.
fn only<T: Clone>(
    all: &[(Scope, T)],
    keeps: impl Fn(&Scope) -> bool,
) -> (Cow<'_, [(Scope, T)]>, usize) {
    let count = all.iter().filter(|(scope, _)| !keeps(scope)).count();
    match count {
        0 => (all.into(), 0),
        _ => (all.iter().filter(|(scope, _)| keeps(scope)).cloned().collect(), count),
    }
}

/// The whole rate that a row or the class of a rule reserves. A limit that is a reservation and depends
/// on another rule has a rate that each proxy computes: it is not known here.
fn reserved_rate(rules: &RuleSet, rows: &RowTable, scope: &Scope) -> Option<Rate> {
    match scope.section {
        SectionKind::Entitlement => rows.reserved_rate(EntitlementId(scope.name.parse().ok()?)),
        SectionKind::Rule => {
            let rule = rules.rule(&scope.name)?;
            let is_fixed = rule.depends_on.is_none() || rule.limit_mode != LimitMode::Realtime;
            rule.reserved_rate().filter(|_| is_fixed)
        }
        SectionKind::Meter | SectionKind::Decay | SectionKind::Slots => None,
    }
}

/// How often unused scopes are searched for, and reservations are judged.
const SWEEP: Nanos = Nanos::from_secs(1);
