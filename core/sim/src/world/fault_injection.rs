//! Fault injection, and changes of rules.
//!
//! ```text
//!   crash ─► queue and running requests are lost ─► clients retry until it is back
//!   leader ─► messages to it are lost ─► a new one begins with the proxies that it knew
//!   clock ─► the time that the proxy passes to its scheduler jumps, the events do not
//!   change ─► other rules at every proxy, in one instant
//! ```

use model::{Nanos, Time};

use super::proxies::NONE;
use super::{World, WorldState};
use crate::events::SimEvent;
use crate::faults::{FaultKind, SimFault};

impl World {
    pub(super) fn schedule_faults(&mut self) {
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            let number = number as u32;
            self.events.push(fault.at, SimEvent::Fault { fault: number });
            self.events.push(fault.at + fault.span, SimEvent::FaultEnd { fault: number });
        }
        for (number, (at, _)) in self.scenario.changes.iter().enumerate() {
            self.events.push(*at, SimEvent::Change { change: number as u32 });
        }
        for (number, change) in self.scenario.rows.iter().enumerate() {
            self.events.push(change.at, SimEvent::Rows { change: number as u32 });
        }
    }

    fn affected_proxies(&self, fault: SimFault) -> std::ops::Range<usize> {
        match fault.proxy {
            Some(proxy) => proxy as usize..proxy as usize + 1,
            None => 0..self.proxies.len(),
        }
    }

    pub(super) fn begin_fault(&mut self, number: u32) {
        let fault = self.scenario.faults[number as usize];
        if fault.what == FaultKind::Leader {
            self.crash_leader();
        }
        for proxy in self.affected_proxies(fault) {
            match fault.what {
                FaultKind::Crash => {
                    self.crash(proxy);
                    if let Some(checks) = &mut self.checks {
                        checks.crashed(proxy as u32, self.now);
                    }
                }
                FaultKind::Slow { thousandths } => {
                    self.device_of(proxy).0.set_slowness(thousandths);
                }
                FaultKind::Clock { ahead, by } => {
                    let by = i64::try_from(by.get()).unwrap_or(i64::MAX);
                    let own = &mut self.proxies[proxy];
                    own.ahead = own.ahead.saturating_add(if ahead { by } else { -by });
                    if let Some(checks) = &mut self.checks {
                        // A scheduler's time never goes back.
                        let stands =
                            if ahead { Nanos::ZERO } else { Nanos::new(by.unsigned_abs()) };
                        checks.clock_jumped(proxy as u32, self.now + stands, self.now);
                    }
                    // The deadline that it is armed for may be due now.
                    self.touch(proxy as u32);
                }
                FaultKind::Leader
                | FaultKind::Partition { .. }
                | FaultKind::Drop { .. }
                | FaultKind::Delay { .. }
                | FaultKind::Duplicate { .. }
                | FaultKind::Forget { .. } => {}
            }
        }
        self.network_faults.begin(number, fault.what);
        self.disturbances.0 += u32::from(disturbs(fault.what).is_some());
        self.disturb_reserved();
    }

    /// Since when nothing keeps control messages and assignments from the proxies; `None` while
    /// something does.
    pub(super) fn undisturbed_since(&self) -> Option<Time> {
        let (faults, until) = self.disturbances;
        (faults == 0 && until <= self.now).then_some(until)
    }

    /// Measures what rows reserve only when all faults are over.
    fn disturb_reserved(&mut self) {
        let (faults, until) = self.disturbances;
        let until = if faults > 0 { Time::MAX } else { until };
        if let Some(checks) = &mut self.checks {
            checks.disturb_reserved(until);
        }
    }

    pub(super) fn end_fault(&mut self, number: u32) {
        let fault = self.scenario.faults[number as usize];
        self.network_faults.end(number);
        if let Some(after) = disturbs(fault.what) {
            let (faults, until) = self.disturbances;
            self.disturbances = (faults - 1, until.max(self.now + after));
        }
        if fault.what == FaultKind::Leader {
            self.start_leader();
        }
        for proxy in self.affected_proxies(fault) {
            match fault.what {
                FaultKind::Crash => {
                    let own = &mut self.proxies[proxy];
                    own.crashes -= 1;
                    // It is back when the last of its crashes is over.
                    own.up = own.crashes == 0;
                    if own.up {
                        self.restart_session(proxy as u32);
                        self.restore_rows(proxy as u32);
                    }
                }
                FaultKind::Slow { .. } => self.device_of(proxy).0.set_slowness(1000),
                _ => {}
            }
        }
        self.disturb_reserved();
    }

    /// Crashes a proxy with its memory; it starts empty when it is back. A device that other proxies use
    /// goes on with what it serves.
    fn crash(&mut self, proxy: usize) {
        let own = &mut self.proxies[proxy];
        own.up = false;
        own.crashes += 1;
        own.sched = self.policy.scheduler(own.spec.scheduled(), self.rules.clone());
        own.subjects.clear();
        own.armed = model::Time::MAX;
        let is_shared = own.spec.one_device;
        if !is_shared {
            self.device_of(proxy).0.crash();
        }
        for request in 0..self.requests.len() as u32 {
            let r = &mut self.requests[request as usize];
            if r.proxy as usize != proxy {
                continue;
            }
            match r.state {
                WorldState::Running if is_shared => {
                    r.state = WorldState::Orphaned;
                    let (state, slots, returned) = (WorldState::Sent, 0, false);
                    let again = super::SimRequest { state, slots, returned, stamp: 0, ..*r };
                    let again = self.add_request(again);
                    self.resend_later(again);
                }
                WorldState::Queued | WorldState::Running => {
                    // Every later event of the crashed proxy is void.
                    r.stamp = r.stamp.wrapping_add(1);
                    (r.state, r.slots, r.returned) = (WorldState::Sent, 0, false);
                    self.resend_later(request);
                }
                // The reply cache is lost: if the reply is lost, the request is served again.
                WorldState::Answered => r.state = WorldState::Sent,
                WorldState::Sent | WorldState::Orphaned | WorldState::Free => {}
            }
        }
    }

    pub(super) fn change_rules(&mut self, number: u32) {
        let (_, rules) = &self.scenario.changes[number as usize];
        let repath = rules.has_paths() || self.rules.has_paths();
        self.rules = rules.clone();
        self.usage_checks.forget_limits();
        self.change_rules_of_controllers();
        for proxy in 0..self.proxies.len() {
            let own = &mut self.proxies[proxy];
            let now = own.clock(self.now);
            own.sched.set_rules(self.rules.clone(), now);
            if repath {
                for subject in &mut own.subjects {
                    let subject = std::mem::replace(subject, NONE);
                    if subject != NONE {
                        own.sched.release(subject);
                    }
                }
            }
            self.touch(proxy as u32);
        }
        if let Some(checks) = &mut self.checks {
            let spreading = self.proxies.iter().map(|own| own.sched.is_spreading());
            checks.rules_changed(self.rules.clone(), spreading, self.now);
            let (requests, clients) = (&self.requests, &self.clients);
            let waiting = super::waiting_of(requests, clients, &self.identities, None);
            for (r, identity, owner) in waiting {
                checks.arrived(r, identity, owner, self.now);
            }
        }
    }
}

/// How long after its end a fault delays what controllers and proxies do together; `None` if it does
/// not at all.
fn disturbs(fault: FaultKind) -> Option<Nanos> {
    match fault {
        // A proxy is taken for unreachable after 5 s. What it held may be unknown for 15 s.
        FaultKind::Crash | FaultKind::Leader | FaultKind::Partition { .. } => {
            Some(Nanos::from_secs(20))
        }
        // The device has to make up for it.
        FaultKind::Slow { .. } => Some(Nanos::from_secs(5)),
        FaultKind::Clock { by, .. } => Some(by + Nanos::from_secs(5)),
        FaultKind::Drop { .. } | FaultKind::Delay { .. } => Some(Nanos::from_secs(3)),
        FaultKind::Duplicate { .. } | FaultKind::Forget { .. } => None,
    }
}
