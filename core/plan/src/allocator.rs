//! The share allocator: reports of proxies in, assignments out.
//!
//! ```text
//!   report ─► proxy ─► acknowledged: what may be raised is raised at once
//!                  └──► usage ─► each 100 ms: targets of shares ─► poll_order, until None
//! ```
//!
//! One allocator is for one target and the proxies that serve it. After any call that takes `now`,
//! drain [`ShareAllocator::poll_order`]. An assignment for a proxy that cannot be reached may be
//! dropped: the reply to the proxy's next report repeats its content.
//!
//! What is unknown is assumed to be in use. A proxy that registers first reports what it holds.
//! While an expected proxy has not reported that, no share is raised.

use std::sync::Arc;

use model::{Nanos, Rate, RuleSet, Scope, ScopeUsage, Time};

use crate::messages::{Assignment, Holdings, ShareReport};
use crate::proxies::{ProxyEntry, ProxySnapshot, ProxyTable};
use crate::shares::{ShareBounds, ShareTable};
use crate::total_service::TotalService;

/// Settings of a share allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorSettings {
    /// The shortest time between two divisions.
    pub tick: Nanos,
    /// A proxy that has not received an assignment for this time is unreachable. It is at most half
    /// of `hold`: others must make room for the proxy's fallback before it takes effect.
    pub silent: Nanos,
    /// The share lease: how long proxies keep their assignments without receiving anything.
    pub hold: Nanos,
    /// A proxy that is unreachable for this time is forgotten.
    pub forget: Nanos,
    /// A proxy that does not use a scope for this time is idle there.
    pub idle: Nanos,
    /// A scope that no proxy uses for this time leaves the list.
    pub keep: Nanos,
    /// The most scopes that are listed. Of each scope beyond it every proxy has an equal share.
    pub scopes_max: usize,
}

/// Divides limits, reservations and weights over the proxies of one target.
#[derive(Debug)]
pub struct ShareAllocator {
    settings: AllocatorSettings,
    term: u64,
    now: Time,
    rules: Arc<RuleSet>,
    members: ProxyTable,
    parts: ShareTable,
    metadata: TotalService,
    /// When shares may be divided next.
    next_division: Time,
    /// When unused scopes are searched for next.
    next_sweep: Time,
    /// When a proxy may have become unreachable, at the earliest; `None`: search now.
    next_look: Option<Time>,
}

impl Default for AllocatorSettings {
    fn default() -> AllocatorSettings {
        AllocatorSettings {
            tick: Nanos::from_millis(100),
            silent: Nanos::from_secs(5),
            hold: Nanos::from_secs(10),
            forget: Nanos::from_secs(300),
            idle: Nanos::from_secs(1),
            keep: Nanos::from_secs(60),
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
        let mut members = ProxyTable::default();
        for member in known {
            members.restore(member, term, now);
        }
        ShareAllocator {
            settings,
            term,
            now,
            rules,
            members,
            parts: ShareTable::default(),
            metadata: TotalService::default(),
            next_division: now,
            next_sweep: now + SWEEP,
            next_look: None,
        }
    }

    /// Handles a report of a proxy.
    pub fn report(&mut self, report: &ShareReport, now: Time) {
        self.advance(now);
        let (id, new) = match self.members.enter(report, self.term, self.now) {
            ProxyEntry::Stale => return,
            ProxyEntry::Known(id) => (id, false),
            ProxyEntry::New(id) => (id, true),
        };
        if new || report.lapsed || report.holdings.is_some() {
            self.next_look = None;
        }
        if new {
            self.parts.leave(id, false, self.now);
            self.metadata.leave(id);
        }
        let member = self.members.get_mut(id);
        member.due = true;
        if report.term != member.term {
            return;
        }
        if report.lapsed {
            self.members.lapse(id, self.term, self.now);
            self.parts.all_stale();
            return;
        }
        member.echo(report.heard);
        let heard = member.has_heard(self.settings.silent, self.now);
        match &report.holdings {
            _ if !member.is_to_tell() => self.listen(id, report.revision, heard),
            Some(held) if heard && report.revision == 0 => self.adopt(id, held),
            _ => {}
        }
        if self.members.get(id).is_present() {
            if let Some(uses) = &report.uses {
                self.take_uses(id, uses);
            }
            self.metadata.take(id, &report.served, self.now);
        }
        self.divide();
    }

    /// Forgets a proxy at once, whatever it may be using: an administrator has decided that it is
    /// gone. Returns false if no proxy has that name.
    pub fn forget(&mut self, name: &str, now: Time) -> bool {
        self.advance(now);
        let known = self.drop_member(name);
        self.divide();
        known
    }

    /// Replaces the rules. Shares stay: they are fractions of whatever the rules grant.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>, now: Time) {
        self.advance(now);
        self.rules = rules;
        self.parts.set_rules(&self.rules);
        self.divide();
    }

    /// Sets the rate that a decay limits a scope to over all proxies; `None`: as the rule file
    /// says.
    pub fn set_rate(&mut self, scope: &Scope, rate: Option<Rate>, now: Time) {
        self.advance(now);
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        self.parts.set_rate(scope, rate, &mut self.members, bounds, self.now);
        self.divide();
    }

    /// The next assignment to be sent; poll until there is none.
    pub fn poll_order(&mut self, now: Time) -> Option<Assignment> {
        self.advance(now);
        self.divide();
        let (id, _) = self.members.iter().find(|(_, member)| member.due)?;
        let members = self.members.count();
        let barred = self.bars_division().is_some();
        let member = self.members.get_mut(id);
        if member.is_to_tell() {
            return Some(member.stay(members, self.now));
        }
        member.seal();
        let number = member.number_order(self.now);
        let grants = member.unacknowledged.keys();
        let grants = grants.map(|scope| (scope.clone(), self.parts.grant_of(id, scope)));
        Some(Assignment {
            to: member.name.clone(),
            epoch: member.epoch,
            answers: member.sequence,
            term: member.term,
            number,
            stay: barred,
            base: member.acknowledged,
            revision: member.revision,
            members,
            unlisted: member.unlisted.sent(),
            fallback: member.fallback.sent(),
            grants: grants.collect(),
            elsewhere: self.metadata.told(id),
        })
    }

    /// When to poll again even though no report arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        let AllocatorSettings { silent, hold, forget, .. } = self.settings;
        let barred = self.bars_division().unwrap_or(self.next_division);
        let division = self.parts.is_stale().then_some(self.next_division);
        let sweep = (self.parts.count() > 0).then_some(self.next_sweep);
        let look = self.members.next_look(silent, hold, forget, self.now);
        let division = division.map(|at| at.max(barred));
        [division, sweep, look].into_iter().flatten().min()
    }

    /// The proxies, in the order of their numbers.
    pub fn members(&self) -> impl Iterator<Item = ProxySnapshot> {
        self.members.reports()
    }

    /// How many scopes are listed: those in use, and some that were.
    pub fn scopes(&self) -> usize {
        self.parts.count()
    }

    // ---- the steps that calls share ----

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        let AllocatorSettings { silent, hold, forget, keep, .. } = self.settings;
        if self.next_look.is_none_or(|at| self.now >= at) {
            if self.members.mark_silent(silent, hold, self.now) {
                self.parts.all_stale();
            }
            for name in self.members.unheard(forget, self.now) {
                self.drop_member(&name);
            }
            // A proxy with a fresh lease is searched for later than this.
            self.next_look = self.members.next_look(silent, hold, forget, self.now);
        }
        if self.now >= self.next_sweep {
            self.next_sweep = self.now + SWEEP;
            self.parts.drop_unused(&mut self.members, keep, self.now);
            self.metadata.drop_unused(keep, self.now);
        }
    }

    fn drop_member(&mut self, name: &str) -> bool {
        let Some(id) = self.members.forget(name) else { return false };
        self.parts.leave(id, true, self.now);
        self.metadata.leave(id);
        true
    }

    /// Handles a report in which a proxy names what it holds.
    fn adopt(&mut self, id: u32, held: &Holdings) {
        self.members.get_mut(id).adopt(held.unlisted, held.fallback);
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        self.parts.adopt(id, &held.listed, &mut self.members, bounds, self.now);
    }

    /// Handles a report in which a proxy acknowledges a revision.
    fn listen(&mut self, id: u32, revision: u64, heard: bool) {
        if heard && self.members.get_mut(id).come_back() {
            self.next_look = None;
            self.parts.all_stale();
        }
        let freed = self.parts.acknowledge(id, &mut self.members, revision);
        let may_raise = !self.members.bars_raising();
        self.parts.go_on(&freed, &mut self.members, may_raise);
    }

    fn take_uses(&mut self, id: u32, uses: &[(Scope, ScopeUsage)]) {
        let bounds = ShareBounds { rules: &self.rules, scopes_max: self.settings.scopes_max };
        let idle = self.settings.idle;
        self.parts.take_uses(id, uses, &mut self.members, bounds, idle, self.now);
    }

    /// Until when nothing is divided. Proxies report each second, and three of their reports are
    /// enough.
    fn bars_division(&self) -> Option<Time> {
        let span = Nanos::new(self.settings.silent.get() / 2);
        self.members.bars_division(span, self.now)
    }

    /// Divides what changed, at most once a tick.
    fn divide(&mut self) {
        let bars = self.bars_division().is_some();
        if bars || !self.parts.is_stale() || self.now < self.next_division {
            return;
        }
        self.next_division = self.now + self.settings.tick;
        let may_raise = !self.members.bars_raising();
        self.parts.divide(&mut self.members, may_raise);
    }
}

/// How often unused scopes are searched for.
const SWEEP: Nanos = Nanos::from_secs(1);
