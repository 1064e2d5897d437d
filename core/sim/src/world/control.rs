//! Controllers of the world: one of limits, one for each target, and sessions at the proxies with
//! both.
//!
//! ```text
//!   proxy: scheduler ─ usage, each 100 ms ─► ControllerSession ─ message ─► ShareAllocator
//!             ▲    └─ totals ─► accounting.rs      │  ▲                           │
//!             └──────── grants, rows ◄─────────────┘  └──── message ◄─────────────┘
//! ```
//!
//! Control messages are like others: they are lost, late and duplicated where the scenario says so.
//! A proxy that is restarted after a crash has a new epoch. Allocators and sessions are of
//! `core/plan`, the very structs of production.

use std::collections::BTreeMap;
use std::sync::Arc;

use plan::{
    AllocatorSettings, Assignment, ControllerSession, ProxyScopes, SessionSettings, ShareAllocator,
    ShareReport,
};

use model::{Nanos, SectionKind, Share, SharePool, TargetId, Time};

use super::World;
use super::accounting::{SimAccounting, SimReporter, SimUsageReport};
use crate::events::SimEvent;
use crate::faults::MessageFate;
use crate::scheduler::Policy;

/// The controller of limits, or of one target.
#[derive(Debug)]
pub(super) struct SimController {
    pub(super) controller: ShareAllocator,
    pub(super) term: u64,
    /// Active faults that stop it.
    faults: u32,
    /// When it is to be polled next.
    armed: Time,
}

/// A proxy's sessions with its controllers.
#[derive(Debug)]
pub(super) struct SimProxyControl {
    /// In the order of [`SimPool::ALL`].
    sessions: [ControllerSession; 2],
    /// The proxy's scopes, with the changes that they are made of, and since when they are these.
    scopes: Option<(u64, Arc<ProxyScopes>)>,
    scopes_since: Time,
    pub(super) usage: SimReporter,
    pub(super) epoch: u64,
}

/// What one of a proxy's sessions is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimPool {
    Limits,
    Target,
}

/// A message in transit between a proxy and a controller.
#[derive(Clone, Debug)]
pub(super) enum ControlMsg {
    Report(SimPool, Box<ShareReport>),
    Usage(Box<SimUsageReport>),
    Order(SimPool, Box<Assignment>),
    /// The last usage report of an epoch that was counted.
    UsageCounted {
        term: u64,
        epoch: u64,
        sequence: u64,
    },
}

/// Control messages in transit, by number.
#[derive(Debug, Default)]
pub(super) struct MessagesInTransit {
    messages: BTreeMap<u32, (u32, ControlMsg)>,
    last: u32,
}

impl MessagesInTransit {
    fn insert(&mut self, proxy: u32, message: ControlMsg) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.messages.insert(self.last, (proxy, message));
        self.last
    }

    fn remove(&mut self, number: u32) -> Option<(u32, ControlMsg)> {
        self.messages.remove(&number)
    }
}

impl SimController {
    /// Whether a controller runs here.
    pub(super) fn has_leader(&self) -> bool {
        self.faults == 0
    }
}

impl SimPool {
    const ALL: [SimPool; 2] = [SimPool::Limits, SimPool::Target];

    /// The pool of the proxy's dispatcher, which has one target.
    fn pool(self) -> SharePool {
        match self {
            SimPool::Limits => SharePool::Limits,
            SimPool::Target => SharePool::Target(TargetId::FIRST),
        }
    }
}

impl World {
    /// Creates the controllers, if the scenario has them and the scheduler supports shares.
    pub(super) fn make_controls(&mut self) {
        if !self.scenario.controller || self.policy != Policy::Dispatcher {
            return;
        }
        self.accounting = Some(SimAccounting::new(self.rules.clone(), self.now));
        for _ in 0..=self.scenario.targets.len() {
            let settings = AllocatorSettings::default();
            let controller = ShareAllocator::new(settings, 1, &[], self.rules.clone(), self.now);
            self.controls.push(SimController { controller, term: 1, faults: 0, armed: Time::MAX });
        }
        for proxy in 0..self.proxies.len() as u32 {
            let sessions = SimPool::ALL.map(|_| self.new_session(proxy, 1));
            self.proxy_controls.push(SimProxyControl {
                sessions,
                scopes: None,
                scopes_since: self.now,
                usage: SimReporter::default(),
                epoch: 1,
            });
            self.apply_grants(proxy);
            self.events.push(self.now, SimEvent::Account { proxy });
        }
    }

    /// Sends a proxy's report of usage, each 100 ms.
    pub(super) fn account(&mut self, proxy: u32) {
        self.events.push(self.now + TICK, SimEvent::Account { proxy });
        let own = &mut self.proxies[proxy as usize];
        if !own.up {
            return;
        }
        let clock = own.clock(self.now);
        let control = &mut self.proxy_controls[proxy as usize];
        let changes = own.sched.scope_changes();
        let known = control.scopes.take().filter(|(of, _)| *of == changes);
        if known.is_none() {
            control.scopes_since = self.now;
        }
        let (_, scopes) =
            control.scopes.insert(known.unwrap_or_else(|| (changes, own.scopes().into())));
        let mut reports = Vec::new();
        for (pool, session) in SimPool::ALL.into_iter().zip(&mut control.sessions) {
            let uses = own.sched.take_usage(pool.pool(), clock);
            if pool == SimPool::Limits {
                session.set_parents(own.sched.parent_activity(clock));
            }
            if pool == SimPool::Target {
                session.set_slots_claim(own.sched.slots_claim());
            }
            session.set_scopes(scopes);
            let report = session.report(Some(uses), clock);
            reports.extend(report.map(|report| ControlMsg::Report(pool, Box::new(report))));
        }
        reports.into_iter().for_each(|report| self.send_control_msg(proxy, report));
        self.report_usage(proxy);
        self.apply_grants(proxy);
    }

    /// Handles a control message that arrives.
    pub(super) fn deliver_control_msg(&mut self, number: u32) {
        let Some((proxy, message)) = self.control_msgs.remove(number) else { return };
        match message {
            ControlMsg::Report(pool, report) => {
                let at = self.control_of(proxy, pool);
                if self.controls[at].faults == 0 {
                    self.controls[at].controller.report(&report, self.now);
                    self.send_assignments(at);
                }
            }
            ControlMsg::Usage(report) => {
                if self.controls[self.control_of(proxy, SimPool::Limits)].faults == 0 {
                    self.receive_usage(proxy, &report);
                }
            }
            ControlMsg::UsageCounted { term, epoch, sequence } => {
                self.usage_counted(proxy, term, epoch, sequence);
            }
            ControlMsg::Order(pool, order) if self.proxies[proxy as usize].up => {
                self.receive_assignment(proxy, pool, &order)
            }
            ControlMsg::Order(..) => {}
        }
    }

    /// Polls a controller that has work without a report.
    pub(super) fn decide(&mut self, at: u32) {
        let control = &mut self.controls[at as usize];
        control.armed = Time::MAX;
        if control.faults == 0 {
            self.send_assignments(at as usize);
        }
    }

    /// The index of a controller of a proxy.
    pub(super) fn control_of(&self, proxy: u32, pool: SimPool) -> usize {
        match pool {
            SimPool::Limits => self.scenario.targets.len(),
            SimPool::Target => self.proxies[proxy as usize].target,
        }
    }

    /// Crashes the controllers of all pools.
    pub(super) fn crash_leader(&mut self) {
        self.controls.iter_mut().for_each(|control| control.faults += 1);
        self.crash_calendar();
    }

    /// Starts new controllers, which know the proxies from the records of the last ones.
    pub(super) fn start_leader(&mut self) {
        for at in 0..self.controls.len() {
            let control = &mut self.controls[at];
            control.faults -= 1;
            if control.faults > 0 {
                continue;
            }
            control.term += 1;
            let known: Vec<_> = control.controller.proxies().collect();
            let settings = AllocatorSettings::default();
            let rules = self.rules.clone();
            control.controller =
                ShareAllocator::new(settings, control.term, &known, rules, self.now);
            if at == self.scenario.targets.len()
                && let Some(accounting) = &mut self.accounting
            {
                accounting.restart(&self.rules, self.now);
            }
            self.put_rows_again(at);
        }
        if self.controls.iter().all(SimController::has_leader) {
            self.restore_calendar();
            (0..self.controls.len()).for_each(|at| self.send_assignments(at));
        }
    }

    /// Restarts a proxy's session after a crash, with an empty memory.
    pub(super) fn restart_session(&mut self, proxy: u32) {
        let Some(member) = self.proxy_controls.get_mut(proxy as usize) else { return };
        member.epoch += 1;
        member.scopes = None;
        member.usage.restart();
        let epoch = member.epoch;
        let sessions = SimPool::ALL.map(|_| self.new_session(proxy, epoch));
        self.proxy_controls[proxy as usize].sessions = sessions;
        self.apply_grants(proxy);
    }

    pub(super) fn change_rules_of_controllers(&mut self) {
        for control in &mut self.controls {
            control.controller.set_rules(self.rules.clone(), self.now);
        }
        if let Some(accounting) = &mut self.accounting {
            accounting.decays.set_rules(self.rules.clone(), self.now);
        }
    }

    /// Whether the assignments of its target's controller are in force at a proxy, and its scopes have
    /// been the same for a span.
    pub(super) fn is_settled(&self, proxy: u32, span: Nanos) -> bool {
        let changes = self.proxies[proxy as usize].sched.scope_changes();
        let control = self.proxy_controls.get(proxy as usize);
        control.is_some_and(|control| {
            control.sessions[SimPool::Target as usize].is_assigned()
                && control.scopes.as_ref().is_some_and(|(known, _)| *known == changes)
                && self.now.since(control.scopes_since) > span
        })
    }

    fn new_session(&self, proxy: u32, epoch: u64) -> ControllerSession {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let settings =
            SessionSettings { share_without_controller: Share::ZERO, ..SessionSettings::default() };
        ControllerSession::new(&format!("proxy{proxy}"), epoch, settings, clock)
    }

    fn receive_assignment(&mut self, proxy: u32, pool: SimPool, order: &Assignment) {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let control = &mut self.proxy_controls[proxy as usize];
        control.usage.handle_term(order.term.controller);
        let session = &mut control.sessions[pool as usize];
        if session.receive(order, clock)
            && let Some(report) = session.report(None, clock)
        {
            self.send_control_msg(proxy, ControlMsg::Report(pool, Box::new(report)));
        }
        self.apply_grants(proxy);
        for (scope, _) in &order.grants {
            let at = self.control_of(proxy, pool);
            let is_divided = |(of, _): &(usize, &SimProxyControl)| {
                self.control_of(*of as u32, pool) == at && self.proxies[*of].up
            };
            let members = self.proxy_controls.iter().enumerate().filter(is_divided);
            let part = |member: &SimProxyControl| match scope.section {
                SectionKind::Slots => {
                    member.sessions[pool as usize].slots_part().unwrap_or_default()
                }
                _ => member.sessions[pool as usize].part_of(scope),
            };
            let sum: u64 = members.map(|(_, member)| u64::from(part(member).billionths())).sum();
            if sum > u64::from(Share::WHOLE.billionths()) {
                return self.violate(format!("the shares of {scope} add up to {sum} ppb"));
            }
        }
    }

    fn apply_grants(&mut self, proxy: u32) {
        let own = &mut self.proxies[proxy as usize];
        let clock = own.clock(self.now);
        let control = &mut self.proxy_controls[proxy as usize];
        let (mut is_changed, mut rows) = (false, Vec::new());
        for (pool, session) in SimPool::ALL.into_iter().zip(&mut control.sessions) {
            if let Some(grants) = session.poll_grants(clock) {
                own.sched.set_grants(pool.pool(), &grants, clock);
                is_changed = true;
            }
            rows.extend(session.poll_rows(clock));
            let remote = (pool == SimPool::Limits).then(|| session.poll_remote_parents(clock));
            if let Some(remote) = remote.flatten() {
                own.sched.set_remote_activity(&remote, clock);
                is_changed = true;
            }
        }
        if is_changed {
            self.touch(proxy);
        }
        rows.into_iter().for_each(|rows| self.give_rows(proxy, rows, Time::ZERO));
    }

    /// Sends what one of the controllers assigns.
    pub(super) fn send_assignments(&mut self, at: usize) {
        let is_of_limits = at == self.scenario.targets.len();
        let (pool, proxies) = match is_of_limits {
            true => (SimPool::Limits, 0..self.proxies.len() as u32),
            false => {
                let first = self.first_proxy[at];
                (SimPool::Target, first..first + self.scenario.targets[at].count)
            }
        };
        if is_of_limits {
            self.advance_decays();
        }
        while let Some(order) = self.controls[at].controller.poll_assignment(self.now) {
            let named = |proxy: &u32| *order.to == *format!("proxy{proxy}");
            if let Some(proxy) = proxies.clone().find(named) {
                self.send_control_msg(proxy, ControlMsg::Order(pool, Box::new(order)));
            }
        }
        let decays = self.accounting.as_ref().filter(|_| is_of_limits);
        let control = &mut self.controls[at];
        let decays = decays.and_then(|accounting| accounting.decays.next_deadline());
        let times = [control.controller.next_deadline(), decays];
        let next = times.into_iter().flatten().min().map(|at| at.max(self.now + LATENCY));
        if let Some(next) = next.filter(|next| *next < control.armed) {
            control.armed = next;
            self.events.push(next, SimEvent::Decide { control: at as u32 });
        }
    }

    pub(super) fn send_control_msg(&mut self, proxy: u32, message: ControlMsg) {
        let is_report = matches!(message, ControlMsg::Report(..) | ControlMsg::Usage(_));
        if self.network_faults.is_cut(&self.scenario.faults, proxy, is_report) {
            return;
        }
        let at = self.now + LATENCY;
        let (at, copies) = match self.network_faults.fate() {
            MessageFate::Dropped => return,
            MessageFate::Arrives => (at, 1),
            MessageFate::Late(by) => (at + by, 1),
            MessageFate::Duplicated => (at, 2),
        };
        for _ in 0..copies {
            let number = self.control_msgs.insert(proxy, message.clone());
            self.events.push(at, SimEvent::ControlMsg { message: number });
        }
    }
}

/// How often a proxy reports its usage.
const TICK: Nanos = Nanos::from_millis(100);
/// The latency of a control message.
const LATENCY: Nanos = Nanos::from_millis(1);
