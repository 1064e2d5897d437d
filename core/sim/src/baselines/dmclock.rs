//! dmClock as Ceph implements it: tags in real time, delayed, one resource.
//!
//! ```text
//!   head of a class:  R = max(t, R' + (ρ + c)/r)   t: its arrival
//!                     P = max(t, P' + (δ + c)/w)   L = max(t, L' + (δ + c)/l)
//!   poll:  1. smallest R, if R ≤ now ─► reservation
//!          2. smallest P + prop_delta among L ≤ now ─► share; R and R' back by (ρ + c)/r
//!          3. wait for the smallest L
//! ```
//!
//! ceph/dmclock at d9204e2; A. Gulati et al., OSDI 2010; shared/reference/sfqd.md section 9. A
//! request costs one. Only the head of a class has tags, made when it becomes the head; who was
//! idle gets a prop_delta that puts its P beside the lowest of the others. The current request's
//! cost is in its own R and L. At most D requests are outstanding.
//!
//! A weight stands for so many requests a second: weights of more than the device gives make P
//! follow the clock, and sharing is lost. That is the published behaviour, not a fault of ours.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Amount, Identity, Kind, Lane, PathSet, Rate, RuleSet, Time};
use sched::Target;

use super::classes::{Classes, Grant};
use crate::scheduler::{Chosen, Elsewhere, Incoming, Scheduler};

/// dmClock.
#[derive(Debug)]
pub(crate) struct DmClock {
    slots_max: u32,
    classes: Classes,
    clients: Vec<Client>,
    /// Those with requests.
    active: Vec<usize>,
    queued: usize,
    outstanding: u32,
    wait: Option<Time>,
}

#[derive(Debug, Default)]
struct Client {
    fifo: VecDeque<Item>,
    grant: Option<Grant>,
    /// The tags of the last request that had any, and of the head.
    last: Tags,
    head: Tags,
    prop_delta: i128,
    idle: bool,
    /// Served elsewhere since its last request here.
    delta: u64,
    rho: u64,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    token: u32,
    lane: Lane,
    units: u64,
    arrived: i128,
    rho: u64,
    delta: u64,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Tags {
    r: i128,
    p: i128,
    l: i128,
}

const SECOND: u128 = 1_000_000_000;
/// Far enough from the end of numbers for a few tags to be added to it.
const NEVER: i128 = i128::MAX / 4;

impl DmClock {
    pub(crate) fn new(target: Target, rules: Arc<RuleSet>) -> DmClock {
        DmClock {
            slots_max: target.slots_max,
            classes: Classes::new(rules),
            clients: Vec::new(),
            active: Vec::new(),
            queued: 0,
            outstanding: 0,
            wait: None,
        }
    }

    /// A request takes its class out of idleness: its P joins the lowest of the others.
    fn wake(&mut self, class: usize, now: i128) {
        let others = self.active.iter().map(|other| &self.clients[*other]);
        let lowest = others.map(|other| other.head.p + other.prop_delta).min();
        let own = &mut self.clients[class];
        own.prop_delta = lowest.map_or(0, |lowest| lowest - now);
        own.idle = false;
        self.active.push(class);
    }

    fn take(&mut self, class: usize, reserved: bool) -> Chosen {
        let own = &mut self.clients[class];
        let item = own.fifo.pop_front().expect("an active class has a request");
        own.last = own.head;
        if !reserved {
            // What a share paid for is not taken out of the reservation.
            own.last.r -= own.reserve_ns(&item);
        }
        match own.fifo.is_empty() {
            true => {
                own.idle = true;
                self.active.retain(|other| *other != class);
            }
            false => own.tag_head(),
        }
        self.queued -= 1;
        self.outstanding += 1;
        let Item { token, lane, .. } = item;
        Chosen { id: 0, token, lane, slots: 1, reserved }
    }
}

impl Client {
    fn tag_head(&mut self) {
        let Some(item) = self.fifo.front().copied() else { return };
        let t = item.arrived;
        let grant = self.grant.as_ref().expect("set with the first request");
        let spent = |units: u64, rate: u64| (u128::from(units) * SECOND / u128::from(rate)) as i128;
        self.head.r = match grant.reserve {
            // It may have had none until the rules changed.
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

    fn reserve_ns(&self, item: &Item) -> i128 {
        let reserve = self.grant.as_ref().and_then(|grant| grant.reserve);
        reserve.map_or(0, |rate| rate.time_for(units(rate, item, item.rho)).get().into())
    }
}

/// What a request and those elsewhere cost by a rate: each is one, or its bytes.
fn units(rate: Rate, item: &Item, elsewhere: u64) -> u64 {
    match rate {
        Rate::Ops(_) => 1 + elsewhere,
        Rate::Bytes(_) => item.units * (1 + elsewhere),
    }
}

impl Scheduler for DmClock {
    fn subject(&mut self, who: &Identity, paths: PathSet) -> u64 {
        self.classes.subject(who, paths)
    }

    fn enqueue(&mut self, incoming: Incoming, now: Time) -> u64 {
        let class = self.classes.class(incoming.subject, incoming.kind);
        let now = i128::from(now.as_nanos());
        while self.clients.len() <= class {
            self.clients.push(Client { idle: true, ..Client::default() });
        }
        let own = &mut self.clients[class];
        own.grant = Some(self.classes.grants[class].clone());
        let (rho, delta) = (std::mem::take(&mut own.rho), std::mem::take(&mut own.delta));
        let units = incoming.amount.bytes.get().max(1);
        let Incoming { token, lane, .. } = incoming;
        own.fifo.push_back(Item { token, lane, units, arrived: now, rho, delta });
        self.queued += 1;
        if own.idle {
            own.tag_head();
            self.wake(class, now);
        }
        0
    }

    fn poll(&mut self, now: Time) -> Option<Chosen> {
        self.wait = None;
        if self.outstanding >= self.slots_max {
            return None;
        }
        let now = i128::from(now.as_nanos());
        let least = |key: &dyn Fn(&Client) -> Option<i128>| {
            let keyed = self.active.iter().filter_map(|class| {
                let own = &self.clients[*class];
                key(own).map(|key| (key, *class))
            });
            keyed.min()
        };
        let due = least(&|own: &Client| (own.head.r <= now).then_some(own.head.r));
        if let Some((_, class)) = due {
            return Some(self.take(class, true));
        }
        let ready = |own: &Client| (own.head.l <= now).then_some(own.head.p + own.prop_delta);
        if let Some((_, class)) = least(&ready) {
            return Some(self.take(class, false));
        }
        let next = least(&|own: &Client| Some(own.head.l.min(own.head.r)));
        self.wait = next.map(|(at, _)| Time::from_nanos(u64::try_from(at).unwrap_or(u64::MAX)));
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

    fn served_elsewhere(&mut self, subject: u64, kind: Kind, what: Elsewhere, _now: Time) {
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
