//! dmClock as Ceph implements it: tags in real time, delayed, one resource.
//!
//! ```text
//!   head of a class:  R = max(t, R' + (ρ + c)/r)   t: its arrival
//!                     P = max(t, P' + (δ + c)/w)   L = max(t, L' + (δ + c)/l)
//!   poll:  1. smallest R, if R ≤ now ─► reservation                           heap by R
//!          2. L ≤ now ─► may have a share                                     heap by L, others
//!             smallest P + prop_delta of these ─► share; R and R' back by (ρ + c)/r    heap by P
//!          3. wait for the smallest R or L
//! ```
//!
//! ceph/dmclock at d9204e2; A. Gulati et al., OSDI 2010; docs/algorithms/baselines.md. A request
//! costs one. Only the head of a class has tags, made when it becomes the head. A class that was
//! idle gets a prop_delta that puts its P beside the lowest of the others. The current request's
//! cost is in its own R and L. At most D requests are in flight. A class that becomes active is
//! compared with all that wait for L, in O(n), as in Ceph.
//!
//! A weight is a rate in requests per second: weights of more than the device gives make P follow
//! the clock, and sharing is lost. That is the published behaviour, not a fault of this
//! implementation.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Amount, Identity, Lane, OpKind, PathSet, Rate, Time};
use rules::RuleSet;
use sched::TargetParams;

use super::classes::{BaselineClasses, BaselineGrant};
use super::heap::TagHeap;
use crate::scheduler::{Scheduler, SimArrival, SimDispatch, SimRemoteService};

/// The dmClock scheduler as Ceph implements it.
#[derive(Debug)]
pub(crate) struct DmClock {
    slots_max: u32,
    classes: BaselineClasses,
    clients: Vec<DmClockClient>,
    /// Classes with requests, by R.
    reservation: TagHeap<i64>,
    /// Of these, classes whose L is in the future, by L.
    limit: TagHeap<i64>,
    /// The other classes, by P + prop_delta.
    proportion: TagHeap<i64>,
    queued: usize,
    outstanding: u32,
    wait: Option<Time>,
}

#[derive(Debug, Default)]
struct DmClockClient {
    fifo: VecDeque<DmClockItem>,
    grant: Option<BaselineGrant>,
    /// The tags of the last request that had any, and of the head.
    last: DmClockTags,
    head: DmClockTags,
    prop_delta: i64,
    idle: bool,
    /// Remote service since its last request here.
    delta: u64,
    rho: u64,
}

#[derive(Clone, Copy, Debug)]
struct DmClockItem {
    token: u32,
    lane: Lane,
    units: u64,
    arrived: i64,
    rho: u64,
    delta: u64,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct DmClockTags {
    r: i64,
    p: i64,
    l: i64,
}

const SECOND: u64 = 1_000_000_000;
/// Far enough from the end of numbers for a few tags to be added to it.
const NEVER: i64 = i64::MAX / 4;

impl DmClock {
    pub(crate) fn new(target: TargetParams, rules: Arc<RuleSet>) -> DmClock {
        DmClock {
            slots_max: target.slots_max,
            classes: BaselineClasses::new(rules),
            clients: Vec::new(),
            reservation: TagHeap::default(),
            limit: TagHeap::default(),
            proportion: TagHeap::default(),
            queued: 0,
            outstanding: 0,
            wait: None,
        }
    }

    /// A request takes its class out of idleness: its P joins the lowest of the others.
    fn activate(&mut self, class: usize, now: i64) {
        let limited = self.limit.classes().map(|other| self.clients[other].proportional());
        let ready = self.proportion.first().map(|(lowest, _)| lowest);
        let lowest = limited.chain(ready).min();
        let own = &mut self.clients[class];
        own.prop_delta = lowest.map_or(0, |lowest| lowest - now);
        own.idle = false;
        own.tag_head();
        self.update_position(class, now);
    }

    /// Updates the position of a class with a new head.
    fn update_position(&mut self, class: usize, now: i64) {
        let own = &self.clients[class];
        self.reservation.put(own.head.r, class);
        if own.head.l <= now {
            self.limit.remove(class);
            self.proportion.put(own.proportional(), class);
        } else {
            self.proportion.remove(class);
            self.limit.put(own.head.l, class);
        }
    }

    fn pop(&mut self, class: usize, reserved: bool, now: i64) -> SimDispatch {
        let own = &mut self.clients[class];
        let item = own.fifo.pop_front().expect("an active class has a request");
        own.last = own.head;
        if !reserved {
            // Service that a share paid for is not taken out of the reservation.
            own.last.r -= own.reserve_ns(&item);
        }
        if own.fifo.is_empty() {
            own.idle = true;
            self.reservation.remove(class);
            self.limit.remove(class);
            self.proportion.remove(class);
        } else {
            own.tag_head();
            self.update_position(class, now);
        }
        self.queued -= 1;
        self.outstanding += 1;
        let DmClockItem { token, lane, .. } = item;
        SimDispatch { id: 0, token, lane, slots: 1, reserved }
    }
}

impl DmClockClient {
    fn tag_head(&mut self) {
        let Some(item) = self.fifo.front().copied() else { return };
        let t = item.arrived;
        let grant = self.grant.expect("set with the first request");
        self.head.r = match grant.reservation {
            // The class may have had none until the rules changed.
            Some(_) if self.last.r > NEVER / 2 => t,
            Some(_) => t.max(self.last.r + self.reserve_ns(&item)),
            None => NEVER,
        };
        self.head.p = t.max(self.last.p + spent(item.delta + 1, grant.weight));
        self.head.l = match grant.limit {
            Some(rate) => {
                let units = units(rate, &item, item.delta);
                t.max(self.last.l + spent(units, rate.per_sec()))
            }
            None => 0,
        };
    }

    /// P as it is compared with that of others.
    fn proportional(&self) -> i64 {
        self.head.p + self.prop_delta
    }

    fn reserve_ns(&self, item: &DmClockItem) -> i64 {
        let reservation = self.grant.and_then(|grant| grant.reservation);
        reservation.map_or(0, |rate| {
            let units = units(rate, item, item.rho);
            let scaled = units.checked_mul(SECOND);
            // Rounded up, in 64 bits where that is enough.
            scaled.map_or_else(
                || whole(rate.time_for(units).get()),
                |scaled| whole(scaled.div_ceil(rate.per_sec())),
            )
        })
    }
}

/// The time of an amount at a rate.
fn spent(units: u64, rate: u64) -> i64 {
    match units.checked_mul(SECOND) {
        Some(scaled) => whole(scaled / rate),
        None => {
            (u128::from(units) * u128::from(SECOND) / u128::from(rate)).min(NEVER as u128) as i64
        }
    }
}

fn whole(ns: u64) -> i64 {
    i64::try_from(ns).map_or(NEVER, |ns| ns.min(NEVER))
}

/// The cost of a request and of remote ones by a rate: each is one, or its bytes.
fn units(rate: Rate, item: &DmClockItem, elsewhere: u64) -> u64 {
    match rate {
        Rate::Ops(_) => 1 + elsewhere,
        Rate::Bytes(_) => item.units * (1 + elsewhere),
    }
}

impl Scheduler for DmClock {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        self.classes.subject(who, paths)
    }

    fn enqueue(&mut self, incoming: SimArrival, now: Time) -> u64 {
        let class = self.classes.class(incoming.subject, incoming.kind);
        let now = whole(now.as_nanos());
        while self.clients.len() <= class {
            self.clients.push(DmClockClient { idle: true, ..DmClockClient::default() });
        }
        let own = &mut self.clients[class];
        own.grant = Some(self.classes.grants[class]);
        let (rho, delta) = (std::mem::take(&mut own.rho), std::mem::take(&mut own.delta));
        let units = incoming.amount.bytes.get().max(1);
        let SimArrival { token, lane, .. } = incoming;
        own.fifo.push_back(DmClockItem { token, lane, units, arrived: now, rho, delta });
        self.queued += 1;
        if own.idle {
            self.activate(class, now);
        }
        0
    }

    fn poll(&mut self, now: Time) -> Option<SimDispatch> {
        self.wait = None;
        if self.outstanding >= self.slots_max {
            return None;
        }
        let now = whole(now.as_nanos());
        let reserved = self.reservation.first();
        if let Some((due, class)) = reserved
            && due <= now
        {
            return Some(self.pop(class, true, now));
        }
        while let Some((until, class)) = self.limit.first()
            && until <= now
        {
            self.limit.remove(class);
            self.proportion.put(self.clients[class].proportional(), class);
        }
        if let Some((_, class)) = self.proportion.first() {
            return Some(self.pop(class, false, now));
        }
        let next = [reserved, self.limit.first()].into_iter().flatten().map(|(at, _)| at).min();
        self.wait = next.map(|at| Time::from_nanos(at as u64));
        None
    }

    fn complete(&mut self, _id: u64, _served: Amount, _now: Time) {
        self.outstanding -= 1;
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.outstanding < self.slots_max { self.wait } else { None }
    }

    fn set_rules(&mut self, rules: Arc<RuleSet>, _now: Time) {
        self.classes.set_rules(rules);
    }

    fn charge_remote_service(
        &mut self,
        subject: u64,
        kind: OpKind,
        what: SimRemoteService,
        _now: Time,
    ) {
        let class = self.classes.class(subject, kind);
        if let Some(own) = self.clients.get_mut(class) {
            own.delta += what.requests;
            own.rho += what.reserved;
        }
    }

    fn queued(&self) -> usize {
        self.queued
    }
}
