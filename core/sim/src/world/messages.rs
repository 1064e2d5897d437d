//! Messages between clients and proxies: sent, lost, late, duplicated, and sent again.
//!
//! ```text
//!   issue ─► send ─► arrive ─► (queued, running) ─► reply ─► answer ─► the client goes on
//!              ▲       │ the proxy is down              │ lost
//!              └───────┴──────── resend ◄───────────────┘
//! ```
//!
//! A request that arrives again while it waits or runs is dropped. One that was served is answered
//! from the proxy's reply cache: exactly once, as the protocol's sessions have it.

use model::{Lane, OpKind, PathSet, Time};

use super::{SimRequest, World, WorldState};
use crate::events::SimEvent;
use crate::faults::{MessageFate, RESEND};
use crate::network::NicDirection;
use crate::workloads::{RequestShape, SimClient};

impl World {
    /// Sends a client's request.
    pub(super) fn issue(&mut self, client: u32, proxy: u32, ask: RequestShape, lane: Option<Lane>) {
        let spec = &self.proxies[proxy as usize].spec;
        let tries_cache = ask.kind == OpKind::Read && spec.hit_percent > 0;
        let usual = if tries_cache { Lane::Cached } else { Lane::Device };
        let fresh = SimRequest {
            client,
            proxy,
            stamp: 0,
            slots: 0,
            id: 0,
            number: 0,
            issued: self.now,
            arrived: self.now,
            started: self.now,
            amount: ask.amount,
            kind: ask.kind,
            lane: lane.unwrap_or(usual),
            state: WorldState::Sent,
            returned: false,
            recorded: lane.is_some(),
            occupies: false,
            reserved: false,
        };
        let request = self.add_request(fresh);
        self.outstanding += 1;
        self.send(request);
    }

    /// Gives a request a place in the table.
    pub(super) fn add_request(&mut self, fresh: SimRequest) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let stamp = self.requests[index as usize].stamp;
                self.requests[index as usize] = SimRequest { stamp, ..fresh };
                index
            }
            None => {
                self.requests.push(fresh);
                (self.requests.len() - 1) as u32
            }
        }
    }

    fn send(&mut self, request: u32) {
        let fate = self.network_faults.fate();
        let at = self.arrival_time(request, NicDirection::ToProxy);
        if at == self.now && fate == MessageFate::Arrives {
            return self.arrive(request);
        }
        let stamp = self.requests[request as usize].stamp;
        self.deliver(fate, at, request, SimEvent::Arrive { request, stamp });
    }

    pub(super) fn reply(&mut self, request: u32) {
        let fate = self.network_faults.fate();
        let at = self.arrival_time(request, NicDirection::ToClient);
        if at == self.now && fate == MessageFate::Arrives {
            return self.answer(request);
        }
        let stamp = self.requests[request as usize].stamp;
        self.deliver(fate, at, request, SimEvent::Reply { request, stamp });
    }

    fn deliver(&mut self, fate: MessageFate, at: Time, request: u32, event: SimEvent) {
        match fate {
            MessageFate::Arrives => self.events.push(at, event),
            MessageFate::Late(by) => self.events.push(at + by, event),
            MessageFate::Duplicated => {
                self.events.push(at, event);
                self.events.push(at, event);
            }
            MessageFate::Dropped => self.resend_later(request),
        }
    }

    pub(super) fn resend_later(&mut self, request: u32) {
        let stamp = self.requests[request as usize].stamp;
        self.events.push(self.now + RESEND, SimEvent::Resend { request, stamp });
    }

    pub(super) fn resend(&mut self, request: u32) {
        let job = self.clients[self.requests[request as usize].client as usize].job;
        self.tally.count_resent(job);
        self.send(request);
    }

    pub(super) fn arrive(&mut self, request: u32) {
        let r = &self.requests[request as usize];
        if !self.proxies[r.proxy as usize].up {
            return self.resend_later(request);
        }
        match r.state {
            WorldState::Sent => self.enqueue(request),
            WorldState::Answered => self.reply(request),
            WorldState::Queued | WorldState::Running | WorldState::Orphaned | WorldState::Free => {}
        }
    }

    /// Handles the reply at the client.
    pub(super) fn answer(&mut self, request: u32) {
        let r = self.requests[request as usize];
        if matches!(r.state, WorldState::Queued | WorldState::Running) {
            // An old reply after a crash, and the request is in transit again: the client accepts
            // the second one, which costs nothing but time.
            return;
        }
        let own = &mut self.requests[request as usize];
        own.stamp = own.stamp.wrapping_add(1);
        own.state = WorldState::Free;
        self.free.push(request);
        self.outstanding -= 1;
        let latency = self.now.since(r.issued);
        let queued = r.started.since(r.arrived);
        let SimClient { job, identity, .. } = self.clients[r.client as usize];
        // The instant of the start belongs to the warm-up: what ends then was served in it.
        let measured = self.now > self.measured.0 && self.now <= self.measured.1;
        self.tally.answered(job, r.amount, latency, queued, measured);
        if r.recorded && measured {
            let who = &self.identities[identity as usize].identity;
            // A recording has no paths.
            let rule = self.rules.rule_for(who, r.kind, PathSet::default());
            self.tally.count_rule(job, rule, queued);
        }
        self.reply_reached(r.client);
    }
}
