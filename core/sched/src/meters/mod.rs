//! Meters: whether the head of a queue may pass, and what it pays.
//!
//! ```text
//!   subject, kind ─► chain ─► links (class at meter) ─► meters (section, key)
//!                                                          │ due ≤ now, or the whole burst saved
//!   head that must wait ─► its target's and lane's line at one meter ─► deadlines ─► next_waiter
//! ```
//!
//! The dispatcher moves heads (dispatcher/admission.rs); here is what meters are owed, who waits at
//! them and which is next. Unreferenced meters stay for a while: a key that returns would find a
//! full burst otherwise.

mod chain;
mod check;
mod deferred;
mod meter;

use std::collections::BTreeMap;

use model::{Amount, Nanos, OpKind, Rate, Scope, ScopeUsage, Share, TargetId, Time};
use rules::Limit;

use crate::deadline::Deadline;
use crate::heap::{Heap, HeapPositions};
use crate::idle::IdleList;
use crate::index::{
    ChainIndex, ClassIndex, LanePlace, LinkIndex, MeterBits, MeterIndex, TableIndex as _,
};
use crate::keys::{MeterKey, MeterOwner};
use crate::slab::Slab;
use crate::tags::{EffectiveWeight, VirtualTime, time_key, time_of_key};
use chain::{ClassMeter, MeterChain};
use deferred::DeferredCharge;
use meter::{Meter, MeterLine};

/// All meters, and who waits at them. A meter is one over all targets; at each of them heads wait
/// in lines of their own, since a head that may go can wait for a slot there.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    meters: Slab<MeterIndex, Meter>,
    links: Slab<LinkIndex, ClassMeter>,
    chains: Slab<ChainIndex, MeterChain>,
    by_key: BTreeMap<MeterKey, MeterIndex>,
    by_class: BTreeMap<(ClassIndex, MeterIndex), LinkIndex>,
    idle: IdleList<MeterIndex>,
    /// Meters with waiters, by target and lane.
    deadlines: Vec<[MeterDeadlines; 2]>,
    /// The earliest of them, if there is one.
    earliest: Deadline,
    /// By lane: the position of each queue (class × 4 + direction) among its meter's waiters. A
    /// class is at one target.
    waiting_positions: [HeapPositions; 2],
}

/// The meters with waiters in one lane of a target.
#[derive(Debug, Default)]
struct MeterDeadlines {
    /// By the time at which the next waiter may go.
    meters: Heap,
    positions: HeapPositions,
}

/// What the rules and a controller grant at one meter.
#[derive(Clone, Debug)]
pub(crate) struct MeterTerms {
    pub(crate) key: MeterKey,
    /// The limit, its rate as a parent or a decay leaves it.
    pub(crate) limit: Limit,
    /// The share of it that is let through here.
    pub(crate) part: Share,
}

/// What a head pays and how it stands in line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeterPayer {
    pub(crate) chain: ChainIndex,
    /// The position in the chain of the meter at which it waits.
    pub(crate) at: u8,
    pub(crate) line: LanePlace,
    /// The number of its queue among waiters.
    pub(crate) waiter: u32,
    pub(crate) cost: u64,
    /// Number of its arrival.
    pub(crate) number: u64,
    pub(crate) weight: EffectiveWeight,
}

/// A waiter whose meter lets it go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueWaiter {
    pub(crate) line: LanePlace,
    pub(crate) waiter: u32,
    /// It is its turn; otherwise it may try, since the meter has its whole burst.
    pub(crate) is_in_turn: bool,
}

/// The state of a meter for reports.
#[derive(Debug)]
pub(crate) struct MeterFigures<'a> {
    pub(crate) key: &'a MeterKey,
    pub(crate) rate: Rate,
    pub(crate) part: Share,
    pub(crate) used_per_sec: u64,
    pub(crate) due: Time,
    pub(crate) waiting: usize,
}

/// How far what rows reserve may be charged ahead: the others at a meter wait 20 times that at first.
const RESERVED_AHEAD_MAX: Nanos = Nanos::from_millis(100);
/// Of twenty units of a limit, those that rows are charged at most.
const RESERVED_OF_TWENTY: u64 = 19;

impl Meters {
    /// Makes the lines of a new target at all meters.
    pub(crate) fn add_target(&mut self) {
        for index in self.meters.indices().collect::<Vec<_>>() {
            self.meters[index].add_target();
        }
        let mut deadlines: [MeterDeadlines; 2] = Default::default();
        deadlines.iter_mut().for_each(|of| of.positions.grow(self.meters.span()));
        self.deadlines.push(deadlines);
    }

    // ---- passing ----

    /// Of the meters of a chain that an amount pays and that are not in `visited`, the position of
    /// the one that is due last among those where its head must wait: something is owed, or others
    /// wait. The others are likely to be due by then.
    pub(crate) fn line_for(
        &self,
        chain: ChainIndex,
        amount: Amount,
        visited: MeterBits,
        now: Time,
    ) -> Option<u8> {
        let blocks = |meter: &Meter| meter.pacer.due() > now || !meter.has_no_waiters();
        self.last_due(chain, amount, visited, blocks)
    }

    /// Of those meters the one due last that is in debt.
    pub(crate) fn debtor_of(
        &self,
        chain: ChainIndex,
        amount: Amount,
        passed: MeterBits,
        now: Time,
    ) -> Option<u8> {
        self.last_due(chain, amount, passed, |meter| meter.pacer.due() > now)
    }

    #[inline]
    fn last_due(
        &self,
        chain: ChainIndex,
        amount: Amount,
        visited: MeterBits,
        blocks: impl Fn(&Meter) -> bool,
    ) -> Option<u8> {
        let links = self.chains[chain].links().iter().enumerate();
        let left = links.filter(|(at, _)| visited >> at & 1 == 0);
        let meters = left.map(|(at, link)| (at, &self.meters[self.links[*link].meter]));
        let paid = meters.filter(|(_, meter)| meter.pacer.rate().units_of(amount) > 0);
        let blocking = paid.filter(|(_, meter)| blocks(meter));
        let last = blocking.max_by_key(|(at, meter)| (meter.pacer.due(), usize::MAX - at));
        last.map(|(at, _)| at as u8)
    }

    /// Puts a head in line at a meter of its chain.
    pub(crate) fn enter(&mut self, payer: &MeterPayer) {
        let link = self.chains[payer.chain].links()[usize::from(payer.at)];
        let link = &mut self.links[link];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let start = link.reserve_turn(meter.v, payer.cost, payer.weight);
        let places = &mut self.waiting_positions[payer.line.lane];
        meter.waiting += 1;
        let waiting = &mut meter.line_mut(payer.line).waiting;
        waiting.put(start.key(payer.number), payer.waiter, places);
        self.sync(index);
    }

    /// Takes a head out of the line; `unserved` gives its turn back.
    pub(crate) fn leave(&mut self, payer: &MeterPayer, unserved: bool) {
        let link = self.chains[payer.chain].links()[usize::from(payer.at)];
        let link = &mut self.links[link];
        let index = link.meter;
        let meter = &mut self.meters[index];
        let places = &mut self.waiting_positions[payer.line.lane];
        meter.waiting -= 1;
        let waiting = &mut meter.line_mut(payer.line).waiting;
        let start = VirtualTime::of_key(waiting.key_of(payer.waiter, places));
        waiting.remove(payer.waiter, places);
        match unserved {
            true => link.refund_turn(start, payer.cost, payer.weight),
            false => meter.v = meter.v.max(start),
        }
        self.sync(index);
    }

    /// Whether a meter lets a waiter go.
    #[inline]
    pub(crate) fn has_due(&self, now: Time) -> bool {
        self.earliest.is_due(now)
    }

    /// The next waiter that its meter lets go. It stays in line until [`Meters::leave`].
    pub(crate) fn next_waiter(&mut self, now: Time) -> Option<DueWaiter> {
        let (index, due) = self.due_line(now)?;
        let meter = &mut self.meters[index];
        let first = meter.line(due).waiting.first().expect("a line with a deadline has a waiter");
        let (mut line, mut waiter) = (due, first.1);
        if meter.line(due).waiting.len() != meter.waiting_heads() {
            let places = (0..meter.targets()).flat_map(|target| {
                let target = TargetId::new(target);
                [0, 1].map(|lane| LanePlace { target, lane })
            });
            let others = places.filter(|at| meter.release_at(meter.line(*at)) <= now);
            let firsts = others.filter_map(|at| Some((meter.line(at).waiting.first()?, at)));
            if let Some(((_, least), at)) = firsts.min() {
                (line, waiter) = (at, least);
            }
        }
        let is_in_turn = meter.line(line).passed_heads == 0;
        if !is_in_turn {
            meter.count_try(now);
        }
        Some(DueWaiter { line, waiter, is_in_turn })
    }

    /// When a waiter of that lane of a target may go next.
    pub(crate) fn deadline(&self, line: LanePlace) -> Option<Time> {
        self.deadlines[line.target.index()][line.lane].first()
    }

    /// Counts a ready head in (1) or out (-1) at the meters that let it go in its turn.
    pub(crate) fn count_passed_heads(
        &mut self,
        chain: ChainIndex,
        passed: MeterBits,
        line: LanePlace,
        change: i32,
    ) {
        for at in 0..self.chains[chain].links().len() {
            if passed >> at & 1 == 1 {
                let meter = self.links[self.chains[chain].links()[at]].meter;
                self.meters[meter].count_passed_head(line, change);
                self.sync_waiters(meter);
            }
        }
    }

    /// Counts a ready head out that is about to be charged, which is when others may follow it.
    #[inline]
    pub(crate) fn forget_passed(&mut self, chain: ChainIndex, passed: MeterBits, line: LanePlace) {
        for (at, link) in self.chains[chain].links().iter().enumerate() {
            if passed >> at & 1 == 1 {
                self.meters[self.links[*link].meter].count_passed_head(line, -1);
            }
        }
    }

    // ---- paying ----

    /// Moves the charge for `old` at the meters of a chain to the charge for `new`. For a kind that
    /// is never delayed, the charge is deferred. Returns whether anything is deferred there.
    pub(crate) fn charge(
        &mut self,
        chain: ChainIndex,
        kind: OpKind,
        old: Amount,
        new: Amount,
        now: Time,
    ) -> bool {
        let mut is_deferred = false;
        for at in 0..self.chains[chain].links().len() {
            let link = &mut self.links[self.chains[chain].links()[at]];
            let index = link.meter;
            let meter = &mut self.meters[index];
            is_deferred |= link.deferred != DeferredCharge::NONE;
            let rate = meter.pacer.rate();
            let (old, new) = (rate.units_of(old), rate.units_of(new));
            if kind.never_delayed() {
                meter.count(old, new, now);
                link.deferred.replace(old, new, meter.deferred_max());
                continue;
            }
            match new >= old {
                true => meter.charge(new - old, now),
                false => meter.refund(old - new),
            }
            self.sync_waiters(index);
        }
        is_deferred
    }

    /// Charges the meters of a chain for what the reservation of a row was served: at most 95 % of
    /// what the limit gives, and one request. The rest is usage of the limit and is charged
    /// nothing. What is reserved beyond a limit would be owed for as long as it lasts, and nobody else
    /// at the meter would have anything meanwhile.
    pub(crate) fn charge_reserved(&mut self, chain: ChainIndex, served: Amount, now: Time) {
        for at in 0..self.chains[chain].links().len() {
            let index = self.links[self.chains[chain].links()[at]].meter;
            let meter = &mut self.meters[index];
            let units = meter.pacer.rate().units_of(served);
            if meter.reserved_until.since(now) < RESERVED_AHEAD_MAX {
                let takes = meter.pacer.time_of(units).0 / RESERVED_OF_TWENTY;
                let takes = Nanos::new(takes.saturating_mul(20));
                meter.reserved_until = meter.reserved_until.max(now) + takes;
                meter.charge(units, now);
            } else {
                meter.count(0, units, now);
            }
            self.sync_waiters(index);
        }
    }

    /// Pays what a class has deferred at the meters of a request that is dispatched: of each at most
    /// as much as the request itself. Its turn among the waiters counts for more accordingly.
    pub(crate) fn pay_deferred(
        &mut self,
        chain: ChainIndex,
        amount: Amount,
        cost: u64,
        weight: EffectiveWeight,
        now: Time,
    ) {
        for at in 0..self.chains[chain].links().len() {
            let link = &mut self.links[self.chains[chain].links()[at]];
            if link.deferred == DeferredCharge::NONE {
                continue;
            }
            let index = link.meter;
            let meter = &mut self.meters[index];
            let own = meter.pacer.rate().units_of(amount);
            let paid = link.deferred.take(own, meter.deferred_max());
            if paid > 0 {
                meter.charge_deferred(paid, now);
                let more = u128::from(cost) * u128::from(paid) / u128::from(own);
                link.finish = link.finish.after(more as u64, weight);
                self.sync_waiters(index);
            }
        }
    }

    /// How long the slowest of a chain's meters takes for an amount, in ns and at least 1, among
    /// those where it would have to wait.
    pub(crate) fn slowest(
        &self,
        chain: ChainIndex,
        amount: Amount,
        now: Time,
    ) -> Option<(u64, &MeterKey)> {
        let links = self.chains[chain].links().iter();
        let meters = links.map(|link| &self.meters[self.links[*link].meter]);
        let takes = meters.filter_map(|meter| {
            let units = meter.pacer.rate().units_of(amount);
            let holds = units > 0 && (meter.pacer.due() > now || !meter.has_no_waiters());
            holds.then(|| (meter.pacer.time_of(units).0.max(1), &meter.key))
        });
        takes.max_by_key(|(takes, _)| *takes)
    }

    // ---- terms ----

    /// Forgives the deferred charges of the class at a meter that has a place. Returns the units of
    /// work; `None` behind the last place.
    pub(crate) fn forgive_deferred_at(&mut self, place: usize) -> Option<usize> {
        if place >= self.links.span() {
            return None;
        }
        if let Some(link) = self.links.at(place) {
            self.links[link].deferred = DeferredCharge::NONE;
        }
        Some(1)
    }

    /// Puts another limit in force at the meter of a place: what is owed stays, in units. A meter
    /// without one keeps its own. Returns the units of work; `None` behind the last place.
    pub(crate) fn set_limit_at(
        &mut self,
        place: usize,
        now: Time,
        limit_of: impl FnOnce(&MeterKey) -> Option<Limit>,
    ) -> Option<usize> {
        if place >= self.meters.span() {
            return None;
        }
        if let Some(index) = self.meters.at(place)
            && let Some(limit) = limit_of(&self.meters[index].key)
        {
            self.set_limit(index, &limit, now);
        }
        Some(1)
    }

    /// Puts another limit of the same unit in force at a meter.
    pub(crate) fn set_limit(&mut self, index: MeterIndex, limit: &Limit, now: Time) {
        self.meters[index].set_limit(limit, now);
        self.sync_waiters(index);
    }

    /// Sets the rates of all limits of rules, by the name of the rule.
    pub(crate) fn set_rates(&mut self, changed: &[(String, Rate)], now: Time) {
        for index in self.meters.indices().collect::<Vec<_>>() {
            let meter = &mut self.meters[index];
            let MeterOwner::Rule { name, .. } = &meter.key.owner else { continue };
            if let Some((_, rate)) = changed.iter().find(|(rule, _)| rule == name) {
                meter.pacer.set_rate(*rate, now);
                self.sync_waiters(index);
            }
        }
    }

    /// The indices of all meters.
    pub(crate) fn indices(&self) -> Vec<MeterIndex> {
        self.meters.indices().collect()
    }

    /// The meter of a key.
    pub(crate) fn find(&self, key: &MeterKey) -> Option<MeterIndex> {
        self.by_key.get(key).copied()
    }

    /// The key and the rate of a meter.
    pub(crate) fn key_and_rate(&self, index: MeterIndex) -> (&MeterKey, Rate) {
        let meter = &self.meters[index];
        (&meter.key, meter.pacer.rate())
    }

    /// Sets the rate of a meter and the share of it: what is owed and saved stays, in units.
    pub(crate) fn set_pace(&mut self, index: MeterIndex, rate: Rate, part: Share, now: Time) {
        let pacer = &mut self.meters[index].pacer;
        if (pacer.rate(), pacer.part()) != (rate, part) {
            pacer.set_pace(rate, part, now);
            self.sync_waiters(index);
        }
    }

    // ---- figures ----

    /// Takes what each meter let through in a span as a part of its limit, where something went or
    /// waits.
    pub(crate) fn take_usage(
        &mut self,
        part_used: impl Fn(u64, Rate) -> Share,
    ) -> Vec<(Scope, ScopeUsage)> {
        let mut uses = Vec::new();
        for index in self.meters.indices().collect::<Vec<_>>() {
            let meter = &mut self.meters[index];
            let (moved, waiting) = (std::mem::take(&mut meter.moved), !meter.has_no_waiters());
            let rate = meter.pacer.rate();
            if (moved > 0 || waiting) && rate.per_sec() < u64::MAX {
                let used = Some(part_used(moved, rate));
                uses.push((meter.key.scope(), ScopeUsage { used, waiting }));
            }
        }
        uses
    }

    /// The meters of a chain.
    pub(crate) fn of_chain(&self, chain: ChainIndex) -> impl Iterator<Item = MeterIndex> {
        self.chains[chain].links().iter().map(|link| self.links[*link].meter)
    }

    /// The meter at a position of a chain, and its generation and key.
    pub(crate) fn at(&self, chain: ChainIndex, at: u8) -> (MeterIndex, u32, &MeterKey) {
        let index = self.links[self.chains[chain].links()[usize::from(at)]].meter;
        (index, self.meters.generation(index), &self.meters[index].key)
    }

    /// Whether that meter is still here.
    pub(crate) fn has(&self, index: MeterIndex, generation: u32) -> bool {
        self.meters.has(index, generation)
    }

    /// The state of a meter.
    pub(crate) fn figures(&self, index: MeterIndex, now: Time) -> MeterFigures<'_> {
        MeterFigures::of(&self.meters[index], now)
    }

    // ---- inside ----

    /// A meter that lets one of its waiters go, and a line in which it does.
    fn due_line(&self, now: Time) -> Option<(MeterIndex, LanePlace)> {
        for (target, lanes) in self.deadlines.iter().enumerate() {
            for (lane, of) in lanes.iter().enumerate() {
                if let Some(meter) = of.due_meter(now) {
                    return Some((meter, LanePlace { target: TargetId::new(target), lane }));
                }
            }
        }
        None
    }

    /// Updates the position of a meter among the deadlines of its lines; for one without waiters
    /// only after one has left.
    #[inline]
    fn sync_waiters(&mut self, index: MeterIndex) {
        if self.meters[index].waiting > 0 {
            self.sync(index);
        }
    }

    /// Updates the position of a meter among the deadlines of its lines.
    fn sync(&mut self, index: MeterIndex) {
        let meter = &self.meters[index];
        let mut earliest = Deadline::default();
        for (target, deadlines) in self.deadlines.iter_mut().enumerate() {
            let lines = meter.lines_of(target);
            for lane in 0..2 {
                let of = &mut deadlines[lane];
                of.sync(index, meter, &lines[lane]);
                earliest.bring_forward(of.first());
            }
        }
        self.earliest = earliest;
    }
}

impl MeterDeadlines {
    /// When a meter lets the next waiter of this lane go.
    fn first(&self) -> Option<Time> {
        self.meters.first().map(|(key, _)| time_of_key(key))
    }

    /// Updates the position of a meter by its line here.
    #[inline]
    fn sync(&mut self, index: MeterIndex, meter: &Meter, line: &MeterLine) {
        let raw = index.raw();
        if !line.waiting.is_empty() {
            let key = time_key(meter.release_at(line), u64::from(raw));
            self.meters.put(key, raw, &mut self.positions);
        } else if self.positions.holds(raw) {
            self.meters.remove(raw, &mut self.positions);
        }
    }

    /// A meter with waiters of this lane that lets one of them go.
    #[inline]
    fn due_meter(&self, now: Time) -> Option<MeterIndex> {
        let (key, meter) = self.meters.first()?;
        (time_of_key(key) <= now).then(|| MeterIndex::new(meter))
    }
}

impl<'a> MeterFigures<'a> {
    fn of(meter: &'a Meter, now: Time) -> MeterFigures<'a> {
        MeterFigures {
            key: &meter.key,
            rate: meter.pacer.rate(),
            part: meter.pacer.part(),
            used_per_sec: meter.used_per_sec(now),
            due: meter.pacer.due(),
            waiting: meter.waiting_heads(),
        }
    }
}

impl MeterTerms {
    /// The figures of a meter that was not made yet.
    pub(crate) fn figures(&self) -> MeterFigures<'_> {
        MeterFigures {
            key: &self.key,
            rate: self.limit.rate,
            part: self.part,
            used_per_sec: 0,
            due: Time::ZERO,
            waiting: 0,
        }
    }
}
