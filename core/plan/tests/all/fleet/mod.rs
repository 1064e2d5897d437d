//! A share allocator and its proxies under simulated time, with a network that may fail.
//!
//! ```text
//!   proxies ── demand ──► ControllerSession ─ report ─┐ lost, late, twice, in another order
//!      ▲                     │                        ▼
//!      └── gives its share ◄─┘  assignment ◄── ShareAllocator
//! ```
//!
//! Each step is 10 ms. A proxy gives of each scope what is requested, up to its share; requests
//! wait where more is requested.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Nanos, Rate, Scope, ScopeUsage, Share, SlotsClaim, Time};
use rules::{Entitlement, EntitlementId, Grantable, RuleSet};
use sluice_plan::{
    AllocatorSettings, Assignment, ControllerSession, ProxyScopes, ProxySnapshot, SessionSettings,
    ShareAllocator, ShareReport,
};

pub(crate) const STEP: Nanos = Nanos::from_millis(10);

/// A random number generator that needs no crate.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the network does, in percent of messages and in steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) late_max: u64,
}

enum Message {
    Report(Box<ShareReport>),
    Order(Box<Assignment>),
}

/// One member.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) standing: ControllerSession,
    /// Whether its process runs.
    pub(crate) up: bool,
    /// Reports of its are lost, and orders for it.
    pub(crate) deaf: bool,
    pub(crate) mute: bool,
    /// How far its clock is ahead, in steps.
    pub(crate) ahead: i64,
    /// What is asked for of each scope, as a part of the whole.
    pub(crate) demand: BTreeMap<Scope, Share>,
    /// What it has of that which rows name.
    pub(crate) scopes: Arc<ProxyScopes>,
    /// What its dispatcher has of rows, with spans from the origin of its clock.
    pub(crate) rows: BTreeMap<EntitlementId, Entitlement>,
    /// What it needs of the target's slots.
    pub(crate) claim: Option<SlotsClaim>,
    /// The most of it that was asked for since its last report.
    asked: BTreeMap<Scope, bool>,
}

pub(crate) struct Fleet {
    pub(crate) controller: Option<ShareAllocator>,
    pub(crate) term: u64,
    pub(crate) known: Vec<ProxySnapshot>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) chance: Chance,
    pub(crate) weather: Weather,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) standing: SessionSettings,
    /// Steps since the beginning.
    pub(crate) at: u64,
    /// The rows that any controller has, with their begins and ends.
    planned: BTreeMap<EntitlementId, (Entitlement, Time, Option<Time>)>,
    /// The ends of all rows that there were, by their rates.
    pub(crate) ends: BTreeMap<u64, Option<Time>>,
    /// The rates of keys that decays limit.
    pub(crate) rates: BTreeMap<Scope, Rate>,
    wires: BTreeMap<(u64, u64), (usize, Message)>,
    sent: u64,
}

pub(crate) fn scope(name: &str) -> Scope {
    Scope::rule(name, &[])
}

/// One class with a limit of 200 operations a second.
pub(crate) fn rules() -> Arc<RuleSet> {
    let text = "[[rule]]\nname = \"jobs\"\nlimit = \"200ops/s\"\n\n[[rule]]\nname = \"more\"\n";
    Arc::new(RuleSet::parse(text).expect("a valid file"))
}

impl Fleet {
    pub(crate) fn new(members: usize, seed: u64) -> Fleet {
        // A member without a controller gives nothing: what it would give is its configuration's.
        let standing =
            SessionSettings { share_without_controller: Share::ZERO, ..SessionSettings::default() };
        let mut fleet = Fleet {
            controller: None,
            term: 0,
            known: Vec::new(),
            nodes: Vec::new(),
            chance: Chance(seed | 1),
            weather: Weather::default(),
            rules: rules(),
            standing,
            at: 1_000,
            planned: BTreeMap::new(),
            ends: BTreeMap::new(),
            rates: BTreeMap::new(),
            wires: BTreeMap::new(),
            sent: 0,
        };
        fleet.begin_controller();
        (0..members).for_each(|_| fleet.add());
        fleet
    }

    /// One more member.
    pub(crate) fn add(&mut self) {
        let name = format!("proxy{}", self.nodes.len());
        let standing = ControllerSession::new(&name, 1, self.standing, self.now());
        self.nodes.push(Node {
            name,
            epoch: 1,
            standing,
            up: true,
            deaf: false,
            mute: false,
            ahead: 0,
            demand: BTreeMap::new(),
            scopes: Arc::default(),
            rows: BTreeMap::new(),
            claim: None,
            asked: BTreeMap::new(),
        });
    }

    pub(crate) fn restart(&mut self, node: usize) {
        let now = self.clock(node);
        let node = &mut self.nodes[node];
        node.epoch += 1;
        node.standing = ControllerSession::new(&node.name, node.epoch, self.standing, now);
        node.asked.clear();
        node.rows.clear();
        node.up = true;
    }

    pub(crate) fn begin_controller(&mut self) {
        self.term += 1;
        let settings = AllocatorSettings::default();
        let new =
            ShareAllocator::new(settings, self.term, &self.known, self.rules.clone(), self.now());
        let controller = self.controller.insert(new);
        let now = Time::ZERO + Nanos::new(STEP.get() * self.at);
        let left = |(row, begins, ends): &(Entitlement, Time, Option<Time>)| {
            row.clone().during(begins.since(now), ends.map(|ends| ends.since(now))).ok()
        };
        let rows = self.planned.iter().map(|(id, planned)| (*id, left(planned)));
        controller.set_rows(rows.collect(), now);
        for (key, rate) in &self.rates {
            controller.set_rate(key, Some(*rate), now);
        }
    }

    /// Changes rows, also of later controllers.
    pub(crate) fn set_rows(&mut self, changes: Vec<(EntitlementId, Option<Entitlement>)>) {
        let now = self.now();
        for (id, row) in &changes {
            self.planned.remove(id);
            let Some(row) = row else { continue };
            let ends = row.until().map(|until| now + until);
            self.planned.insert(*id, (row.clone(), now + row.from(), ends));
            if let Grantable::Reservation(rate) = row.grants() {
                self.ends.insert(rate.per_sec(), ends);
            }
        }
        if let Some(controller) = &mut self.controller {
            assert_eq!(controller.set_rows(changes, now), 0);
        }
    }

    /// Limits a key of a decay, also at later controllers.
    pub(crate) fn set_rate(&mut self, key: &Scope, rate: Option<Rate>) {
        match rate {
            Some(rate) => self.rates.insert(key.clone(), rate),
            None => self.rates.remove(key),
        };
        let now = self.now();
        if let Some(controller) = &mut self.controller {
            controller.set_rate(key, rate, now);
        }
    }

    /// The rows that have not ended, with their begins and ends.
    pub(crate) fn live_rows(
        &self,
    ) -> impl Iterator<Item = (EntitlementId, &(Entitlement, Time, Option<Time>))> {
        let now = self.now();
        let live = move |ends: Option<Time>| ends.is_none_or(|ends| now < ends);
        let rows = self.planned.iter().filter(move |(_, (_, _, ends))| live(*ends));
        rows.map(|(id, row)| (*id, row))
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + Nanos::new(STEP.get() * self.at)
    }

    fn clock(&self, node: usize) -> Time {
        let at = self.at.saturating_add_signed(self.nodes[node].ahead);
        Time::ZERO + Nanos::new(STEP.get() * at)
    }

    /// Asks a member for so many percent of the whole; 0 for nothing.
    pub(crate) fn ask(&mut self, node: usize, name: &str, percent: u64) {
        let demand = &mut self.nodes[node].demand;
        match percent {
            0 => demand.remove(&scope(name)),
            _ => demand.insert(scope(name), Share::ratio(percent, 100)),
        };
    }

    /// Lets so many steps pass, with a check after each.
    pub(crate) fn run(&mut self, steps: u64, mut check: impl FnMut(&Fleet)) {
        for _ in 0..steps {
            self.at += 1;
            self.deliver();
            self.members_act();
            self.controller_acts();
            check(self);
        }
    }

    pub(crate) fn secs(&mut self, count: u64) {
        self.run(count * 100, |_| {});
    }

    fn members_act(&mut self) {
        for node in 0..self.nodes.len() {
            let now = self.clock(node);
            let own = &mut self.nodes[node];
            if !own.up {
                continue;
            }
            own.standing.set_scopes(&own.scopes);
            own.standing.poll_grants(now);
            for (id, row) in own.standing.poll_rows(now).unwrap_or_default() {
                match row {
                    Some(row) => own.rows.insert(id, row),
                    None => own.rows.remove(&id),
                };
            }
            for (scope, demand) in &own.demand {
                *own.asked.entry(scope.clone()).or_default() |=
                    own.standing.part_of(scope) < *demand;
            }
            if self.at.is_multiple_of(10) {
                self.report(node, true);
            }
        }
    }

    fn report(&mut self, node: usize, with_uses: bool) {
        let now = self.clock(node);
        let own = &mut self.nodes[node];
        let asked = with_uses.then(|| std::mem::take(&mut own.asked));
        let used = |(scope, waiting): (Scope, bool)| {
            let demand = own.demand.get(&scope).copied().unwrap_or(Share::ZERO);
            let used = Some(demand.min(own.standing.part_of(&scope)));
            (scope, ScopeUsage { used, waiting })
        };
        let uses = asked.map(|asked| asked.into_iter().map(used).collect());
        if with_uses {
            own.standing.set_slots_claim(own.claim);
        }
        if let Some(report) = own.standing.report(uses, now) {
            self.send(node, Message::Report(Box::new(report)));
        }
    }

    fn controller_acts(&mut self) {
        let now = self.now();
        let Some(controller) = &mut self.controller else { return };
        let orders: Vec<Assignment> =
            std::iter::from_fn(|| controller.poll_assignment(now)).collect();
        self.known = controller.proxies().collect();
        for order in orders {
            let node = self.nodes.iter().position(|node| *node.name == *order.to);
            self.send(node.expect("an order is for a member"), Message::Order(Box::new(order)));
        }
    }

    fn send(&mut self, node: usize, message: Message) {
        let Weather { lost, twice, late_max } = self.weather;
        let cut = match &message {
            Message::Report(_) => self.nodes[node].mute,
            Message::Order(_) => self.nodes[node].deaf,
        };
        if cut || self.chance.percent(lost) {
            return;
        }
        if self.chance.percent(twice) {
            let again = match &message {
                Message::Report(report) => Message::Report(report.clone()),
                Message::Order(order) => Message::Order(order.clone()),
            };
            self.put(node, again, late_max);
        }
        self.put(node, message, late_max);
    }

    fn put(&mut self, node: usize, message: Message, late_max: u64) {
        let late = if self.chance.percent(20) { self.chance.below(late_max + 1) } else { 0 };
        self.sent += 1;
        self.wires.insert((self.at + 1 + late, self.sent), (node, message));
    }

    fn deliver(&mut self) {
        let later = self.wires.split_off(&(self.at + 1, 0));
        for (_, (node, message)) in std::mem::replace(&mut self.wires, later) {
            match message {
                Message::Report(report) => {
                    let now = self.now();
                    if let Some(controller) = &mut self.controller {
                        controller.report(&report, now);
                    }
                }
                Message::Order(order) => {
                    let now = self.clock(node);
                    let own = &mut self.nodes[node];
                    if own.up && own.standing.receive(&order, now) {
                        self.report(node, false);
                    }
                }
            }
        }
    }

    // ---- what is looked at ----

    pub(crate) fn part(&self, node: usize, name: &str) -> Share {
        self.nodes[node].standing.part_of(&scope(name))
    }

    /// The rate of each member of a limit of 200 a second.
    pub(crate) fn rates(&self, name: &str) -> Vec<u64> {
        (0..self.nodes.len()).map(|node| self.part(node, name).of(200)).collect()
    }

    /// What all members that run may give together, in billionths.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let up = self.nodes.iter().filter(|node| node.up);
        up.map(|node| u64::from(node.standing.part_of(&scope(name)).billionths())).sum()
    }

    /// The share of the slots that each member gives that has one.
    pub(crate) fn slots(&self) -> Vec<Option<Share>> {
        let part = |node: &Node| node.standing.slots_part().filter(|_| node.up);
        self.nodes.iter().map(part).collect()
    }

    /// Panics if members may give more than the whole of anything.
    pub(crate) fn check(&self) {
        let slots = self.slots();
        let sum: u64 = slots.iter().flatten().map(|part| u64::from(part.billionths())).sum();
        assert!(sum <= 1_000_000_000, "slots at {}: {slots:?} is more than all", self.at);
        for name in ["jobs", "more", "never used"] {
            let sum = self.sum(name);
            let parts: Vec<String> =
                (0..self.nodes.len()).map(|node| self.part(node, name).to_string()).collect();
            assert!(sum <= 1_000_000_000, "{name} at {}: {parts:?} is more than all", self.at);
        }
    }
}
