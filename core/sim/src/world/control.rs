//! Controllers of the world: one for each target, and a session at each of its proxies.
//!
//! ```text
//!   proxy: scheduler ─ usage, each 100 ms ─► ControllerSession ─ message ─► ShareAllocator
//!             ▲                                │  ▲                           │
//!             └──────────── grants ◄───────────┘  └──── message ◄─────────────┘
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
use crate::events::SimEvent;
use crate::faults::MessageFate;
use crate::scheduler::Policy;

/// The controller of one target.
#[derive(Debug)]
pub(super) struct SimController {
    controller: ShareAllocator,
    term: u64,
    /// Active faults that stop it.
    away: u32,
    /// When it is to be polled next.
    armed: Time,
}

/// A proxy's session with its controller.
#[derive(Debug)]
pub(super) struct SimProxyControl {
    standing: ControllerSession,
    epoch: u64,
}

/// A message in transit between a proxy and its target's controller.
#[derive(Clone, Debug)]
pub(super) enum ControlMsg {
    Report(Box<ShareReport>),
    Order(Box<Assignment>),
}

/// Control messages in transit, by number.
#[derive(Debug, Default)]
pub(super) struct MessagesInTransit {
    under_way: BTreeMap<u32, (u32, ControlMsg)>,
    last: u32,
}

impl MessagesInTransit {
    fn seal(&mut self, proxy: u32, letter: ControlMsg) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.under_way.insert(self.last, (proxy, letter));
        self.last
    }

    fn open(&mut self, number: u32) -> Option<(u32, ControlMsg)> {
        self.under_way.remove(&number)
    }
}

impl World {
    /// Creates the controllers, if the scenario has them and the scheduler supports shares.
    pub(super) fn make_controls(&mut self) {
        if !self.scenario.controller || self.policy != Policy::Ours {
            return;
        }
        for _ in 0..self.scenario.targets.len() {
            let settings = AllocatorSettings::default();
            let controller = ShareAllocator::new(settings, 1, &[], self.rules.clone(), self.now);
            self.controls.push(SimController { controller, term: 1, away: 0, armed: Time::MAX });
        }
        for proxy in 0..self.proxies.len() as u32 {
            let standing = self.new_standing(proxy, 1);
            self.members.push(SimProxyControl { standing, epoch: 1 });
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
        let uses = own.sched.take_uses(clock);
        let report = self.members[proxy as usize].standing.report(Some(uses), clock);
        if let Some(report) = report {
            self.post(proxy, ControlMsg::Report(Box::new(report)));
        }
        self.apply_grants(proxy);
    }

    /// Handles a control message that arrives.
    pub(super) fn read_letter(&mut self, number: u32) {
        let Some((proxy, letter)) = self.letters.open(number) else { return };
        match letter {
            ControlMsg::Report(report) => {
                let target = self.proxies[proxy as usize].target;
                if self.controls[target].away == 0 {
                    self.controls[target].controller.report(&report, self.now);
                    self.send_orders(target);
                }
            }
            ControlMsg::Order(order) if self.proxies[proxy as usize].up => self.hear(proxy, &order),
            ControlMsg::Order(_) => {}
        }
    }

    /// Polls a controller that has work without a report.
    pub(super) fn decide(&mut self, target: u32) {
        let control = &mut self.controls[target as usize];
        control.armed = Time::MAX;
        if control.away == 0 {
            self.send_orders(target as usize);
        }
    }

    /// Crashes the controllers of all targets.
    pub(super) fn lose_leader(&mut self) {
        self.controls.iter_mut().for_each(|control| control.away += 1);
    }

    /// Starts new controllers, which know the proxies from the records of the last ones.
    pub(super) fn begin_leader(&mut self) {
        for target in 0..self.controls.len() {
            let control = &mut self.controls[target];
            control.away -= 1;
            if control.away > 0 {
                continue;
            }
            control.term += 1;
            let known: Vec<_> = control.controller.members().collect();
            let settings = AllocatorSettings::default();
            let rules = self.rules.clone();
            control.controller =
                ShareAllocator::new(settings, control.term, &known, rules, self.now);
            self.send_orders(target);
        }
    }

    /// Restarts a proxy's session after a crash, with an empty memory.
    pub(super) fn join_anew(&mut self, proxy: u32) {
        let Some(member) = self.members.get_mut(proxy as usize) else { return };
        member.epoch += 1;
        let epoch = member.epoch;
        self.members[proxy as usize].standing = self.new_standing(proxy, epoch);
        self.apply_grants(proxy);
    }

    pub(super) fn change_rules_of_controllers(&mut self) {
        for control in &mut self.controls {
            control.controller.set_rules(self.rules.clone(), self.now);
        }
    }

    fn new_standing(&self, proxy: u32, epoch: u64) -> ControllerSession {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let settings = SessionSettings { alone: Share::ZERO, ..SessionSettings::default() };
        ControllerSession::new(&format!("proxy{proxy}"), epoch, settings, clock)
    }

    fn hear(&mut self, proxy: u32, order: &Assignment) {
        let clock = self.proxies[proxy as usize].clock(self.now);
        let standing = &mut self.members[proxy as usize].standing;
        if standing.hear(order, clock)
            && let Some(report) = standing.report(None, clock)
        {
            self.post(proxy, ControlMsg::Report(Box::new(report)));
        }
        self.apply_grants(proxy);
        for (scope, _) in &order.grants {
            let target = self.proxies[proxy as usize].target;
            let of_target = |(at, _): &(usize, &SimProxyControl)| {
                self.proxies[*at].target == target && self.proxies[*at].up
            };
            let members = self.members.iter().enumerate().filter(of_target);
            let sum: u64 = members
                .map(|(_, member)| u64::from(member.standing.part_of(scope).billionths()))
                .sum();
            if sum > u64::from(Share::WHOLE.billionths()) {
                return self.violate(format!("the shares of {scope} add up to {sum} ppb"));
            }
        }
    }

    fn apply_grants(&mut self, proxy: u32) {
        let own = &mut self.proxies[proxy as usize];
        let clock = own.clock(self.now);
        if let Some(grants) = self.members[proxy as usize].standing.poll_grants(clock) {
            own.sched.set_grants(&grants, clock);
            self.touch(proxy);
        }
    }

    fn send_orders(&mut self, target: usize) {
        let first = self.first_proxy[target];
        let count = self.scenario.targets[target].count;
        while let Some(order) = self.controls[target].controller.poll_order(self.now) {
            let named = |proxy: &u32| *order.to == *format!("proxy{proxy}");
            if let Some(proxy) = (first..first + count).find(named) {
                self.post(proxy, ControlMsg::Order(Box::new(order)));
            }
        }
        let control = &mut self.controls[target];
        let next = control.controller.next_deadline().map(|at| at.max(self.now + LATENCY));
        if let Some(at) = next.filter(|at| *at < control.armed) {
            control.armed = at;
            self.events.push(at, SimEvent::Decide { target: target as u32 });
        }
    }

    fn post(&mut self, proxy: u32, letter: ControlMsg) {
        let at = self.now + LATENCY;
        let (at, copies) = match self.weather.fate() {
            MessageFate::Lost => return,
            MessageFate::Arrives => (at, 1),
            MessageFate::Late(by) => (at + by, 1),
            MessageFate::Twice => (at, 2),
        };
        for _ in 0..copies {
            let number = self.letters.seal(proxy, letter.clone());
            self.events.push(at, SimEvent::Letter { letter: number });
        }
    }
}

/// How often a proxy reports its usage.
const TICK: Nanos = Nanos::from_millis(100);
/// The latency of a control message.
const LATENCY: Nanos = Nanos::from_millis(1);
