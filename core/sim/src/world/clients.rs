//! The world's clients: nodes of jobs that perform their steps.
//!
//! ```text
//!   begin ─► step ─► its loops: send ─► reply ─► think ─► send …   busy: loops that are active
//!              ▲                            └─ nothing left: busy - 1
//!              └── next step, or the client is done ◄── busy = 0
//! ```
//!
//! A closed loop of depth n is n loops. An open loop is one for its timer, and one for each request
//! without a reply; requests beyond [`WINDOW`] are rejected and counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Identity, JobId, Nanos, Nid, Time};

use super::proxies::NONE;
use super::{AdvertisedService, JobCopy, SECOND, SimOwner, World};
use crate::events::SimEvent;
use crate::network::{Nic, NicSpec};
use crate::prng::Prng;
use crate::scheduler::{Policy, SimRemoteService};
use crate::workloads::{JobRoute, JobSpec, JobStep, LoadModel, SimClient, StepProgress, StepWork};

/// The most requests in flight of an open loop.
const WINDOW: u32 = 1024;

impl World {
    pub(super) fn make_clients(&mut self) {
        let scenario = self.scenario.clone();
        for (job, spec) in scenario.jobs.iter().enumerate() {
            for copy in 0..spec.copies {
                self.make_copy(job as u32, spec, copy);
            }
        }
        if scenario.jobs.iter().any(|job| job.nic != NicSpec::default()) {
            let wire_of = |client: &SimClient| Nic::new(scenario.jobs[client.job as usize].nic);
            self.wires = self.clients.iter().map(wire_of).collect();
        }
        if scenario.delay && self.policy != Policy::LocalDispatcher {
            self.advertised =
                vec![AdvertisedService::default(); self.copies.len() * self.proxies.len()];
        }
        self.events.push(Time::from_nanos(1_000_000_000), SimEvent::Second);
    }

    fn make_copy(&mut self, job: u32, spec: &JobSpec, number: u32) {
        let copy = self.copies.len() as u32;
        let clients = (self.clients.len() as u32, self.clients.len() as u32 + spec.nodes);
        let identities = self.identities.len() as u32;
        let mut who = spec.identity.clone();
        if spec.copies > 1 {
            let name = format!("{}.{number}", who.job);
            who.job = JobId::new(&name).expect("checked when the scenario was read");
        }
        for node in 0..spec.nodes {
            if node == 0 || spec.first_address.is_some() {
                let path = spec.path.clone();
                self.identities.push(SimOwner { identity: at_node(&who, spec, node), path });
            }
            self.clients.push(SimClient {
                job,
                copy,
                identity: self.identities.len() as u32 - 1,
                node,
                active: false,
                step: 0,
                next: 0,
                left: 0,
                until: Time::MAX,
                busy: 0,
                rounds: 0,
                requests_sent: 0,
                remaining: None,
                prng: Prng::of(self.seed, 0xc11e_0000_0000 + self.clients.len() as u64),
            });
        }
        let identities = (identities, self.identities.len() as u32);
        let served = SimRemoteService::default();
        self.copies.push(JobCopy { clients, identities, running: 0, served });
        self.copies_left += 1;
        let begins = spec.start + Nanos::new(spec.every.get() * u64::from(number));
        self.events.push(begins, SimEvent::Begin { copy });
        if let Some(lifetime) = spec.lifetime {
            self.events.push(begins + lifetime, SimEvent::End { copy });
        }
    }

    pub(super) fn begin_copy(&mut self, copy: u32) {
        let (first, end) = self.copies[copy as usize].clients;
        if self.now >= self.measured.1 {
            return;
        }
        self.copies[copy as usize].running = end - first;
        for client in first..end {
            self.clients[client as usize].active = true;
            self.begin_step(client);
        }
    }

    pub(super) fn end_copy(&mut self, copy: u32) {
        let (first, end) = self.copies[copy as usize].clients;
        for client in first..end {
            self.clients[client as usize].active = false;
        }
    }

    fn begin_step(&mut self, client: u32) {
        let now = self.now;
        let own = &mut self.clients[client as usize];
        let steps = self.scenario.jobs[own.job as usize].steps.clone();
        let step = &steps[own.step as usize];
        own.begin(step, now);
        own.busy = 1;
        match step {
            JobStep::Pause(span) => self.events.push(now + *span, SimEvent::Next { client }),
            JobStep::Trace(_) => {
                let think = own.think(step);
                self.events.push(now + think, SimEvent::Loop { client });
            }
            JobStep::Work(StepWork { pace: LoadModel::Closed { depth, .. }, .. }) => {
                own.busy = *depth;
                (0..*depth).for_each(|_| self.send_next(client));
            }
            JobStep::Work(StepWork { pace: LoadModel::Open { gap, .. }, .. }) => {
                // Nodes of one job do not send all at once.
                let nodes = self.scenario.jobs[own.job as usize].nodes;
                let late = u128::from(gap.get()) * u128::from(own.node) / u128::from(nodes);
                self.events.push(now + Nanos::new(late as u64), SimEvent::Timer { client });
            }
        }
    }

    /// Sends the next request of one of a client's loops.
    pub(super) fn send_next(&mut self, client: u32) {
        match self.next_step_request(client) {
            StepProgress::Send(ask, lane) => {
                let proxy = self.proxy_for(client);
                self.issue(client, proxy, ask, lane);
            }
            StepProgress::End => self.end_loop(client),
        }
    }

    fn next_step_request(&mut self, client: u32) -> StepProgress {
        let own = &mut self.clients[client as usize];
        let spec = &self.scenario.jobs[own.job as usize];
        match spec.route {
            JobRoute::Stripe(piece) => own.piece(&spec.steps[own.step as usize], piece, self.now),
            _ => own.next_request(&spec.steps[own.step as usize], self.now),
        }
    }

    fn proxy_for(&self, client: u32) -> u32 {
        let own = &self.clients[client as usize];
        let spec = &self.scenario.jobs[own.job as usize];
        let count = u64::from(self.scenario.targets[spec.target].count);
        let number = match &spec.route {
            JobRoute::Nodes(proxies) => proxies[own.node as usize % proxies.len()].into(),
            JobRoute::Round | JobRoute::Stripe(_) => u64::from(own.node) + own.requests_sent,
            JobRoute::Hash => Prng::of(u64::from(client), own.requests_sent).next(),
        };
        self.first_proxy[spec.target] + (number % count) as u32
    }

    /// Handles the timer of an open loop.
    pub(super) fn timer(&mut self, client: u32) {
        let own = &mut self.clients[client as usize];
        let step = &self.scenario.jobs[own.job as usize].steps[own.step as usize];
        let JobStep::Work(StepWork { pace: LoadModel::Open { gap, spacing, group }, .. }) = *step
        else {
            return;
        };
        let next = self.now + own.gap(gap, spacing);
        for _ in 0..group {
            if self.clients[client as usize].busy > WINDOW {
                self.tally.count_rejected(self.clients[client as usize].job);
                continue;
            }
            match self.next_step_request(client) {
                StepProgress::End => return self.end_loop(client),
                StepProgress::Send(ask, lane) => {
                    self.clients[client as usize].busy += 1;
                    let proxy = self.proxy_for(client);
                    self.issue(client, proxy, ask, lane);
                }
            }
        }
        self.events.push(next, SimEvent::Timer { client });
    }

    /// Handles a reply: the loop continues, or ends where the load model is open.
    pub(super) fn reply_reached(&mut self, client: u32) {
        let own = &self.clients[client as usize];
        let step = &self.scenario.jobs[own.job as usize].steps[own.step as usize];
        if let JobStep::Work(StepWork { pace: LoadModel::Open { .. }, .. }) = step {
            return self.end_loop(client);
        }
        let think = own.think(step);
        match think {
            Nanos::ZERO => self.send_next(client),
            _ => self.events.push(self.now + think, SimEvent::Loop { client }),
        }
    }

    fn end_loop(&mut self, client: u32) {
        let own = &mut self.clients[client as usize];
        own.busy -= 1;
        if own.busy == 0 {
            self.next_step(client);
        }
    }

    pub(super) fn next_step(&mut self, client: u32) {
        let own = &mut self.clients[client as usize];
        let spec = &self.scenario.jobs[own.job as usize];
        own.step += 1;
        if own.step as usize == spec.steps.len() {
            own.step = 0;
            own.rounds += 1;
        }
        let done = spec.repeat.is_some_and(|rounds| own.rounds >= rounds);
        if done || !own.active {
            return self.client_done(client);
        }
        self.begin_step(client);
    }

    fn client_done(&mut self, client: u32) {
        let own = &mut self.clients[client as usize];
        own.active = false;
        let copy = own.copy;
        self.tally.finished(own.job, self.now);
        self.copies[copy as usize].running -= 1;
        if self.copies[copy as usize].running == 0 {
            self.copies_left -= 1;
            self.forget_copy(copy);
            if self.copies_left == 0 && self.scenario.is_replay() {
                self.end_replay();
            }
        }
    }

    /// Stops recording: the measured span ends with this second, which is kept whole for the
    /// series.
    fn end_replay(&mut self) {
        let second = SECOND.get();
        let over = Time::from_nanos((self.now.as_nanos() / second + 1) * second);
        self.measured.1 = self.measured.1.min(over);
    }

    /// No client will use a copy's identities any more.
    fn forget_copy(&mut self, copy: u32) {
        let (first, end) = self.copies[copy as usize].identities;
        for proxy in &mut self.proxies {
            for identity in first as usize..end as usize {
                let Some(subject) = proxy.subjects.get_mut(identity) else { break };
                let subject = std::mem::replace(subject, NONE);
                if subject != NONE {
                    proxy.sched.release(subject);
                }
            }
        }
    }
}

/// The identity of one of a job's nodes.
fn at_node(who: &Identity, spec: &JobSpec, node: u32) -> Identity {
    let nid = spec.first_address.map(|first| match first {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).wrapping_add(node)).into(),
        IpAddr::V6(first) => {
            IpAddr::from(Ipv6Addr::from(u128::from(first).wrapping_add(node.into())))
        }
    });
    Identity { nid: nid.map_or_else(|| who.nid.clone(), Nid::tcp), ..who.clone() }
}
