//! The world's proxies: a scheduler, the target behind it, and a clock of its own.
//!
//! ```text
//!   arrive ─► scheduler ─ poll until nothing ─► device ─► served ─► complete ─► answer
//!                 ▲                                │ a try that missed the page cache
//!                 └────────────── miss ◄───────────┘
//! ```
//!
//! A proxy is armed for the earliest deadline that its scheduler named. An earlier one arms it
//! again, and the poll at the later one is in vain.

use std::sync::Arc;

use model::{Lane, Nanos, PathSet, Time};
use plan::{ProxyScopes, ScopeName};

use super::{AdvertisedService, SimOwner, World, WorldState};
use crate::checks::ProxyEpoch;
use crate::events::{SimEvent, SimEvents};
use crate::network::{Nic, NicDirection};
use crate::scheduler::{Scheduler, SimArrival, SimDispatch, SimRemoteService};
use crate::targets::{FLUSH, ServiceId, SimDevice, TargetSpec};

/// One proxy of the world.
#[derive(Debug)]
pub(super) struct SimProxy {
    pub(super) sched: Box<dyn Scheduler>,
    /// Where several proxies are in front of one device, it is the first one's.
    device: SimDevice,
    backend: usize,
    pub(super) spec: Arc<TargetSpec>,
    /// Its target's index in the scenario.
    pub(super) target: usize,
    /// The scheduler's id of each identity; `NONE` until it is needed.
    pub(super) subjects: Vec<u64>,
    pub(super) nic: Nic,
    pub(super) up: bool,
    /// Active faults that stop it.
    pub(super) crashes: u32,
    /// How far its clock is ahead, in nanoseconds.
    pub(super) ahead: i64,
    /// When it is to be polled next.
    pub(super) armed: Time,
    pub(super) touched: bool,
    /// How often it was polled in vain though its deadline was now.
    idle_polls: u32,
}

pub(super) const NONE: u64 = u64::MAX;

impl SimProxy {
    pub(super) fn clock(&self, now: Time) -> Time {
        Time::from_nanos(now.as_nanos().saturating_add_signed(self.ahead))
    }

    /// What it has of that which rows of entitlements name.
    pub(super) fn scopes(&self) -> ProxyScopes {
        let target = ScopeName::Target(self.spec.name.as_str().into());
        ProxyScopes::named(self.sched.scopes().into_iter().chain([target]))
    }

    /// When its clock will show a time.
    fn when(&self, shows: Time) -> Time {
        Time::from_nanos(shows.as_nanos().saturating_add_signed(-self.ahead))
    }
}

impl World {
    pub(super) fn make_proxies(&mut self) {
        let scenario = self.scenario.clone();
        for (target, spec) in scenario.targets.iter().enumerate() {
            self.first_proxy.push(self.proxies.len() as u32);
            let spec = Arc::new(spec.clone());
            let first = self.proxies.len();
            for _ in 0..spec.count {
                let number = self.proxies.len() as u32;
                let backend = if spec.one_device { first } else { number as usize };
                self.proxies.push(SimProxy {
                    sched: self.policy.scheduler(spec.scheduled(), self.rules.clone()),
                    device: SimDevice::new(spec.clone(), number, self.seed),
                    backend,
                    nic: Nic::new(spec.nic),
                    spec: spec.clone(),
                    target,
                    subjects: Vec::new(),
                    up: true,
                    crashes: 0,
                    ahead: 0,
                    armed: Time::MAX,
                    touched: false,
                    idle_polls: 0,
                });
            }
        }
    }

    /// The device behind a proxy, and the events that it makes.
    pub(super) fn device_of(&mut self, proxy: usize) -> (&mut SimDevice, &mut SimEvents) {
        let backend = self.proxies[proxy].backend;
        (&mut self.proxies[backend].device, &mut self.events)
    }

    /// The identification of a request at a proxy.
    fn subject(&mut self, proxy: u32, identity: u32) -> u64 {
        let own = &mut self.proxies[proxy as usize];
        if own.subjects.is_empty() {
            own.subjects = vec![NONE; self.identities.len()];
        }
        let known = own.subjects[identity as usize];
        if known != NONE {
            return known;
        }
        let SimOwner { identity: who, path } = &self.identities[identity as usize];
        let paths =
            path.as_ref().map_or(PathSet::default(), |path| self.rules.path_set(path.as_bytes()));
        let subject = own.sched.subject(who, paths);
        own.subjects[identity as usize] = subject;
        subject
    }

    /// Passes a request to its proxy's scheduler.
    pub(super) fn enqueue(&mut self, request: u32) {
        let r = self.requests[request as usize];
        let client = &self.clients[r.client as usize];
        let (identity, copy) = (client.identity, client.copy);
        let subject = self.subject(r.proxy, identity);
        let what = self.remote_service_since(copy, r.proxy);
        let now = self.proxies[r.proxy as usize].clock(self.now);
        let sched = &mut self.proxies[r.proxy as usize].sched;
        if what != SimRemoteService::default() {
            sched.charge_remote_service(subject, r.kind, what, now);
        }
        let incoming =
            SimArrival { subject, kind: r.kind, amount: r.amount, lane: r.lane, token: request };
        let id = sched.enqueue(incoming, now);
        self.sent += 1;
        let own = &mut self.requests[request as usize];
        (own.id, own.state, own.arrived, own.number) =
            (id, WorldState::Queued, self.now, self.sent);
        self.request_events += 1;
        if let Some(checks) = &mut self.checks {
            let owner = &self.identities[identity as usize];
            checks.arrived(&self.requests[request as usize], identity, owner, self.now);
        }
        self.touch(r.proxy);
    }

    /// Polls a proxy until it has nothing, and arms it for its next deadline.
    pub(super) fn poll_proxy(&mut self, proxy: u32) {
        let index = proxy as usize;
        if !self.proxies[index].up {
            return;
        }
        self.pass_row_edges(proxy);
        let now = self.proxies[index].clock(self.now);
        let mut dispatched = false;
        while let Some(chosen) = self.proxies[index].sched.poll(now) {
            dispatched = true;
            self.start(proxy, chosen, now);
        }
        if let Some(checks) = &mut self.checks {
            let own = &self.proxies[index];
            let found = checks.check_idle(proxy, &*own.sched, now, self.now);
            if let Some(what) = found {
                self.violate(what);
            }
        }
        self.arm(index, dispatched);
    }

    fn arm(&mut self, index: usize, dispatched: bool) {
        let own = &mut self.proxies[index];
        let Some(deadline) = own.sched.next_deadline() else { return };
        let mut at = own.when(deadline);
        if at > self.now {
            own.idle_polls = 0;
        } else {
            own.idle_polls = if dispatched { 0 } else { own.idle_polls + 1 };
            // The deadline may be now in vain once or twice; an endless loop would stop the world.
            at =
                if own.idle_polls < IDLE_POLLS_MAX { self.now } else { self.now + IDLE_POLL_PAUSE };
        }
        if at < own.armed {
            own.armed = at;
            self.events.push(at, SimEvent::Poll { proxy: index as u32 });
        }
    }

    /// Makes the target serve a dispatched request.
    fn start(&mut self, proxy: u32, chosen: SimDispatch, clock: Time) {
        let request = chosen.token;
        self.request_events += 1;
        let r = &mut self.requests[request as usize];
        (r.state, r.started, r.slots) = (WorldState::Running, self.now, chosen.slots);
        r.reserved |= chosen.reserved;
        let (r, client) = (*r, r.client);
        let identity = self.clients[client as usize].identity;
        if let Some(checks) = &mut self.checks {
            let owner = &self.identities[identity as usize];
            let spreading = self.proxies[proxy as usize].sched.is_spreading();
            let found = checks.dispatched(&r, identity, owner, chosen, spreading, self.now);
            if let Some(what) = found {
                self.violate(what);
            }
        }
        if !self.controls.is_empty() && !r.returned {
            let owner = &self.identities[identity as usize];
            self.usage_checks.dispatched(&self.rules, owner, r.kind, r.amount, self.now);
        }
        debug_assert_eq!(chosen.lane, r.lane);
        let now = self.now;
        let ticket = ServiceId { request, stamp: r.stamp };
        if r.lane == Lane::Cached {
            let (device, events) = self.device_of(proxy as usize);
            if r.recorded || device.hits() {
                return device.serve_cached(ticket, r.kind, r.amount, now, events);
            }
            let r = &mut self.requests[request as usize];
            r.lane = Lane::Device;
            if self.proxies[proxy as usize].sched.miss(chosen.id, clock) {
                (r.state, r.returned) = (WorldState::Queued, true);
                if let Some(checks) = &mut self.checks {
                    let owner = &self.identities[identity as usize];
                    checks.missed(r, identity, owner, self.now);
                }
                return;
            }
        }
        let (device, events) = self.device_of(proxy as usize);
        let occupies = device.serve(ticket, r.kind, r.amount, client, now, events);
        self.requests[request as usize].occupies = occupies;
    }

    /// Checks which requests that share the target are served.
    pub(super) fn tick(&mut self, proxy: u32, epoch: u32) {
        if !self.proxies[proxy as usize].device.is_current(epoch) {
            return;
        }
        while let Some(served) = self.proxies[proxy as usize].device.next_served(self.now) {
            let ServiceId { request, stamp } = served;
            if request == FLUSH {
                let device = &mut self.proxies[proxy as usize].device;
                device.flushed(stamp, self.now, &mut self.events);
            } else if self.is(request, stamp) {
                self.served(request);
            }
        }
        self.proxies[proxy as usize].device.arm(self.now, &mut self.events);
    }

    /// Handles that the target has served a request.
    pub(super) fn served(&mut self, request: u32) {
        let r = self.requests[request as usize];
        if r.state == WorldState::Orphaned {
            return self.end_orphan(request);
        }
        self.request_events += 1;
        if r.state != WorldState::Running {
            return self.violate(format!("request {} was served twice", r.number));
        }
        if r.occupies {
            let now = self.now;
            let (device, events) = self.device_of(r.proxy as usize);
            device.ended(now, events);
        }
        let own = &mut self.proxies[r.proxy as usize];
        let clock = own.clock(self.now);
        own.sched.complete(r.id, r.amount, clock);
        self.requests[request as usize].state = WorldState::Answered;
        if let Some(checks) = &mut self.checks {
            checks.completed(&r);
        }
        if !self.proxy_controls.is_empty() {
            let epoch = self.proxy_controls[r.proxy as usize].epoch;
            let identity = self.clients[r.client as usize].identity;
            let of = ProxyEpoch { proxy: r.proxy, epoch };
            self.usage_checks.served(of, identity, r.kind, r.amount);
        }
        self.count_service(&r);
        self.touch(r.proxy);
        self.reply(request);
    }

    /// Handles that the device has served what its proxy has forgotten.
    fn end_orphan(&mut self, request: u32) {
        let r = &mut self.requests[request as usize];
        (r.state, r.stamp) = (WorldState::Free, r.stamp.wrapping_add(1));
        let (proxy, occupies, now) = (r.proxy as usize, r.occupies, self.now);
        self.free.push(request);
        if occupies {
            let (device, events) = self.device_of(proxy);
            device.ended(now, events);
        }
    }

    fn count_service(&mut self, r: &super::SimRequest) {
        let target = self.proxies[r.proxy as usize].target;
        let cost = self.tally.cost(target, r.lane, r.kind, r.amount);
        let client = &self.clients[r.client as usize];
        if self.now > self.measured.0 && self.now <= self.measured.1 {
            self.tally.served(client.job, cost);
        }
        if self.advertised.is_empty() {
            return;
        }
        let what = SimRemoteService { cost, requests: 1, reserved: r.reserved.into() };
        let copy = client.copy as usize;
        add(&mut self.copies[copy].served, what);
        let proxies = self.proxies.len();
        add(&mut self.advertised[copy * proxies + r.proxy as usize].own, what);
    }

    /// Remote service of a copy since it was advertised to this proxy last.
    fn remote_service_since(&mut self, copy: u32, proxy: u32) -> SimRemoteService {
        if self.advertised.is_empty() {
            return SimRemoteService::default();
        }
        let all = self.copies[copy as usize].served;
        let AdvertisedService { own, advertised: told } =
            &mut self.advertised[copy as usize * self.proxies.len() + proxy as usize];
        let rest = SimRemoteService {
            cost: all.cost - own.cost - told.cost,
            requests: all.requests - own.requests - told.requests,
            reserved: all.reserved - own.reserved - told.reserved,
        };
        add(told, rest);
        rest
    }

    /// When a message from or to a proxy is at the other end.
    pub(super) fn arrival_time(&mut self, request: u32, way: NicDirection) -> Time {
        let r = &self.requests[request as usize];
        let carries = match way {
            NicDirection::ToProxy => model::OpKind::Write,
            NicDirection::ToClient => model::OpKind::Read,
        };
        let bytes = if r.kind == carries { r.amount.bytes } else { model::Bytes::ZERO };
        let (client, proxy) = (r.client as usize, r.proxy as usize);
        let first_is_client = way == NicDirection::ToProxy;
        let mut at = self.now;
        for is_client in [first_is_client, !first_is_client] {
            at = match is_client {
                true => self.wires.get_mut(client).map_or(at, |wire| wire.pass(way, bytes, at)),
                false => self.proxies[proxy].nic.pass(way, bytes, at),
            };
        }
        at
    }
}

fn add(sum: &mut SimRemoteService, what: SimRemoteService) {
    sum.cost += what.cost;
    sum.requests += what.requests;
    sum.reserved += what.reserved;
}

/// How often a scheduler's deadline may be now in vain.
const IDLE_POLLS_MAX: u32 = 3;
const IDLE_POLL_PAUSE: Nanos = Nanos::from_micros(1);
