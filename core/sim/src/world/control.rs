//! Controllers of the world: one for each target, and a session at each of its proxies.
//!
//! ```text
//!   proxy: scheduler ─ usage, each 100 ms ─► ControllerSession ─ message ─► ShareAllocator
//!             ▲    └─ totals ─► accounting.rs      │  ▲                           │
//!             └──────────── grants ◄───────────────┘  └──── message ◄─────────────┘
//! ```
//!
//! Control messages are like others: they are lost, late and duplicated where the scenario says so.
//! A proxy that is restarted after a crash has a new epoch. Allocators and sessions are of
//! `core/plan`, the very structs of production.

use std::collections::BTreeMap;

use plan::{
    AllocatorSettings, Assignment, ControllerSession, SessionSettings, ShareAllocator, ShareReport,
};

use model::{Nanos, Share, Time};

use super::World;
use super::accounting::{SimAccounting, SimReporter, SimUsageReport};
use crate::events::SimEvent;
use crate::faults::MessageFate;
use crate::scheduler::Policy;

/// The controller of one target.
#[derive(Debug)]
pub(super) struct SimController {
    pub(super) controller: ShareAllocator,
    pub(super) accounting: SimAccounting,
    pub(super) term: u64,
    /// Active faults that stop it.
    faults: u32,
    /// When it is to be polled next.
    armed: Time,
}

/// A proxy's session with its controller.
#[derive(Debug)]
pub(super) struct SimProxyControl {
    session: ControllerSession,
    pub(super) usage: SimReporter,
    pub(super) epoch: u64,
}

/// A message in transit between a proxy and its target's controller.
#[derive(Clone, Debug)]
pub(super) enum ControlMsg {
    Report(Box<ShareReport>),
    Usage(Box<SimUsageReport>),
    Order(Box<Assignment>),
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

impl World {
    /// Creates the controllers, if the scenario has them and the scheduler supports shares.
    pub(super) fn make_controls(&mut self) {
        if !self.scenario.controller || self.policy != Policy::Dispatcher {
            return;
        }
        for _ in 0..self.scenario.targets.len() {
            let settings = AllocatorSettings::default();
            let controller = ShareAllocator::new(settings, 1, &[], self.rules.clone(), self.now);
            self.controls.push(SimController {
                controller,
                accounting: SimAccounting::new(self.rules.clone(), self.now),
                term: 1,
                faults: 0,
                armed: Time::MAX,
            });
        }
        for proxy in 0..self.proxies.len() as u32 {
            let standing = self.new_session(proxy, 1);
            self.proxy_controls.push(SimProxyControl {
                session: standing,
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
        let uses = own.sched.take_usage(clock);
        let report = self.proxy_controls[proxy as usize].session.report(Some(uses), clock);
        if let Some(report) = report {
            self.send_control_msg(proxy, ControlMsg::Report(Box::new(report)));
        }
        self.report_usage(proxy);
        self.apply_grants(proxy);
    }

    /// Handles a control message that arrives.
    pub(super) fn deliver_control_msg(&mut self, number: u32) {
        let Some((proxy, message)) = self.control_msgs.remove(number) else { return };
        match message {
            ControlMsg::Report(report) => {
                let target = self.proxies[proxy as usize].target;
                if self.controls[target].faults == 0 {
                    self.controls[target].controller.report(&report, self.now);
                    self.send_assignments(target);
                }
            }
            ControlMsg::Usage(report) => {
                if self.controls[self.proxies[proxy as usize].target].faults == 0 {
                    self.receive_usage(proxy, &report);
                }
            }
            ControlMsg::UsageCounted { term, epoch, sequence } => {
                self.usage_counted(proxy, term, epoch, sequence);
            }
            ControlMsg::Order(order) if self.proxies[proxy as usize].up => {
                self.receive_assignment(proxy, &order)
            }
            ControlMsg::Order(_) => {}
        }
    }

    /// Polls a controller that has work without a report.
    pub(super) fn decide(&mut self, target: u32) {
        let control = &mut self.controls[target as usize];
        control.armed = Time::MAX;
        if control.faults == 0 {
            self.send_assignments(target as usize);
        }
    }

    /// Crashes the controllers of all targets.
    pub(super) fn crash_leader(&mut self) {
        self.controls.iter_mut().for_each(|control| control.faults += 1);
    }

    /// Starts new controllers, which know the proxies from the records of the last ones.
    pub(super) fn start_leader(&mut self) {
        for target in 0..self.controls.len() {
            let control = &mut self.controls[target];
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
            control.accounting.restart(&self.rules, self.now);
            self.send_assignments(target);
        }
    }

    /// Restarts a proxy's session after a crash, with an empty memory.
    pub(super) fn restart_session(&mut self, proxy: u32) {
        let Some(member) = self.proxy_controls.get_mut(proxy as usize) else { return };
        member.epoch += 1;
        member.usage.restart();
        let epoch = member.epoch;
        self.proxy_controls[proxy as usize].session = self.new_session(proxy, epoch);
        self.apply_grants(proxy);
    }

    pub(super) fn change_rules_of_controllers(&mut self) {
        for control in &mut self.controls {
            control.controller.set_rules(self.rules.clone(), self.now);
            control.accounting.decays.set_rules(self.rules.clone(), self.now);
        }
    }

    fn new_session(&self, proxy: u32, epoch: u64) -> ControllerSession {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let settings =
            SessionSettings { share_without_controller: Share::ZERO, ..SessionSettings::default() };
        ControllerSession::new(&format!("proxy{proxy}"), epoch, settings, clock)
    }

    fn receive_assignment(&mut self, proxy: u32, order: &Assignment) {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let control = &mut self.proxy_controls[proxy as usize];
        control.usage.handle_term(order.term.controller);
        let standing = &mut control.session;
        if standing.receive(order, clock)
            && let Some(report) = standing.report(None, clock)
        {
            self.send_control_msg(proxy, ControlMsg::Report(Box::new(report)));
        }
        self.apply_grants(proxy);
        for (scope, _) in &order.grants {
            let target = self.proxies[proxy as usize].target;
            let of_target = |(at, _): &(usize, &SimProxyControl)| {
                self.proxies[*at].target == target && self.proxies[*at].up
            };
            let members = self.proxy_controls.iter().enumerate().filter(of_target);
            let sum: u64 = members
                .map(|(_, member)| u64::from(member.session.part_of(scope).billionths()))
                .sum();
            if sum > u64::from(Share::WHOLE.billionths()) {
                return self.violate(format!("the shares of {scope} add up to {sum} ppb"));
            }
        }
    }

    fn apply_grants(&mut self, proxy: u32) {
        let own = &mut self.proxies[proxy as usize];
        let clock = own.clock(self.now);
        if let Some(grants) = self.proxy_controls[proxy as usize].session.poll_grants(clock) {
            own.sched.set_grants(&grants, clock);
            self.touch(proxy);
        }
    }

    pub(super) fn send_assignments(&mut self, target: usize) {
        self.advance_decays(target);
        let first = self.first_proxy[target];
        let count = self.scenario.targets[target].count;
        while let Some(order) = self.controls[target].controller.poll_assignment(self.now) {
            let named = |proxy: &u32| *order.to == *format!("proxy{proxy}");
            if let Some(proxy) = (first..first + count).find(named) {
                self.send_control_msg(proxy, ControlMsg::Order(Box::new(order)));
            }
        }
        let control = &mut self.controls[target];
        let times = [control.controller.next_deadline(), control.accounting.decays.next_deadline()];
        let next = times.into_iter().flatten().min().map(|at| at.max(self.now + LATENCY));
        if let Some(at) = next.filter(|at| *at < control.armed) {
            control.armed = at;
            self.events.push(at, SimEvent::Decide { target: target as u32 });
        }
    }

    pub(super) fn send_control_msg(&mut self, proxy: u32, message: ControlMsg) {
        let is_report = matches!(message, ControlMsg::Report(_) | ControlMsg::Usage(_));
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
