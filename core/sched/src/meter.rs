//! Meters: rates that requests must pay, kept as the time at which the debt is paid off.
//!
//! ```text
//!   due ≤ now: one more may go        due += units / rate   (exact: the rest is carried)
//!   ────────┬───────────┬──────────────┬───────► time
//!        now − burst   now            due
//!           └ burst: what idleness saves is at most this
//! ```
//!
//! A debt, not a bucket: a request larger than the burst goes as soon as nothing is owed and its
//! cost is paid off afterwards. So no limit ever blocks a request forever that is larger than what
//! it lets through at once.
//!
//! Waiters are in one heap for each lane, ordered by start-time fair queueing of the meter's own.
//! Its virtual time counts the cost of what *it* let through. So weights hold among classes that
//! share a meter, whatever happens beside it.

use std::cmp::Ordering;

use model::{
    DecayRule, KeyValue, KindSet, Limit, LimitMode, Nanos, Rate, Rule, RuleSet, Scope, Share, Time,
};

use crate::classify::ClassKey;
use crate::deferred::{self, DeferredCharge};
use crate::grant::MeterGrant;
use crate::heap::Heap;
use crate::reservation_clock;
use crate::slab::NONE;
use crate::tags::{EffectiveWeight, VirtualTime};

/// How long a meter's idleness may be made up for where its limit names no burst. It is the longest
/// usual gap between two chances to dispatch on a busy device; longer gaps lose the rest. The burst
/// is then 100 ms of the rate, or the current request if that is more: over 10 s at most 1 % and a
/// request.
pub(crate) const CATCH_UP_NS: u64 = 100_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// The most waiters that may try at once when a meter has saved its burst; one more follows each 10
/// µs. So the work of a call stays bounded, and all tries cost a few percent of a processor.
const TRIES_MAX: u64 = 64;
const TRY_EVERY_NS: u64 = 10_000;
/// The least burst that decides whether others may try. A head that was let go in its turn needs
/// time to go, and a wake-up alone can take most of it.
const TRY_AFTER_NS: u64 = 1_000_000;

/// A rate and the time at which its charges are paid off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    rate: Rate,
    /// The share of the rate that it lets through.
    part: Share,
    /// The thousandths of a unit that it lets through in a second, if that is not all of the rate.
    milli: u64,
    due_ns: u64,
    /// Part of a nanosecond that `due_ns` lacks, in units of 1 ns / rate; below the rate.
    carry: u64,
}

/// One meter and its waiters. Fields in the order of cache lines: when it lets the next head go,
/// who waits, and what a charge adds up.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Meter {
    pub(crate) pacer: Pacer,
    /// When the next waiter may try.
    next_try: Time,
    /// Ready heads that it let go in their turn, by lane.
    passed_heads: [u32; 2],
    /// Queues (class × 4 + direction) whose head waits here, by lane.
    pub(crate) waiting: [Heap; 2],
    /// Start tag of the head that it last let go in turn.
    pub(crate) v: VirtualTime,
    /// As the limit says, in the rate's unit.
    burst: Option<u64>,
    /// Units charged since its usage was taken last.
    pub(crate) moved: u64,
    /// Units a second of the last complete second, units of the current second, and its begin.
    passed: (u64, u64, Time),
    /// Meter chains and class meters that refer to it.
    pub(crate) refs: u32,
    /// Its number among the idle; 0 while it is referenced.
    pub(crate) idle: u64,
    pub(crate) key: MeterKey,
}

/// The key that identifies a meter across changes of rules and reuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MeterKey {
    pub(crate) owner: MeterOwner,
    pub(crate) in_bytes: bool,
    pub(crate) key: Vec<KeyValue>,
}

/// The section whose limit a meter enforces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeterOwner {
    /// The n-th limit of a rule with these kinds and this unit.
    Rule { name: String, kinds: Vec<model::OpKind>, nth: usize },
    /// A `[[meter]]` section of the rules.
    Meter { name: String },
    /// A `[[decay]]` section of the rules.
    Decay { name: String },
}

/// A class's state at a meter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassMeter {
    pub(crate) class: u32,
    pub(crate) meter: u32,
    /// Finish tag of its last passage, in the meter's virtual time.
    pub(crate) finish: VirtualTime,
    /// Units of its requests that were never delayed.
    pub(crate) deferred: DeferredCharge,
    /// Meter chains that use it.
    pub(crate) refs: u32,
}

/// The meters that one subject's requests of one kind pay, in rule order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeterChain {
    pub(crate) links: [u32; RuleSet::METERS_MAX],
    pub(crate) len: u8,
    /// References by kinds of subjects, and by requests that outlived a change of rules.
    pub(crate) refs: u32,
}

impl Pacer {
    /// A pacer with nothing owed.
    pub(crate) fn new(rate: Rate, part: Share) -> Pacer {
        Pacer { rate, part, milli: milli(rate, part), due_ns: 0, carry: 0 }
    }

    pub(crate) fn part(&self) -> Share {
        self.part
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// When nothing is owed, rounded up: no head goes early.
    pub(crate) fn due(&self) -> Time {
        Time::from_nanos(self.due_ns.saturating_add(u64::from(self.carry > 0)))
    }

    /// Charges `units`; credit from before `now` counts up to `span_ns`, or, where that is
    /// `None`, up to `CATCH_UP_NS` or the time of these units, whichever is longer.
    pub(crate) fn charge(&mut self, units: u64, span_ns: Option<u64>, now: Time) {
        let (whole, rest) = self.time_of(units);
        let span_ns = span_ns.unwrap_or(CATCH_UP_NS.max(whole));
        let floor = now.as_nanos().saturating_sub(span_ns);
        if self.due_ns < floor {
            (self.due_ns, self.carry) = (floor, 0);
        }
        self.due_ns = self.due_ns.saturating_add(whole);
        self.carry += rest;
        let (speed, _) = self.pace();
        if self.carry >= speed {
            self.carry -= speed;
            self.due_ns = self.due_ns.saturating_add(1);
        }
    }

    /// Charges `units` to a reservation: credit from before `now` counts up to `span_ns` and the
    /// time of these units.
    pub(crate) fn charge_late(&mut self, units: u64, span_ns: u64, now: Time) {
        let (whole, _) = self.time_of(units);
        self.charge(units, Some(span_ns.saturating_add(whole)), now);
    }

    /// Takes back a charge of `units`.
    pub(crate) fn refund(&mut self, units: u64) {
        let (mut whole, rest) = self.time_of(units);
        if self.carry < rest {
            self.carry += self.pace().0;
            whole += 1;
        }
        self.carry -= rest;
        self.due_ns = self.due_ns.saturating_sub(whole);
    }

    /// Changes the rate: what is owed stays owed and what is saved stays saved, in units.
    pub(crate) fn set_rate(&mut self, rate: Rate, now: Time) {
        self.set_pace(rate, self.part, now);
    }

    /// Changes the rate and the share of it; what is owed and what is saved stays, in units.
    pub(crate) fn set_pace(&mut self, rate: Rate, part: Share, now: Time) {
        let (old, old_units) = self.pace();
        (self.rate, self.part, self.milli) = (rate, part, milli(rate, part));
        let (new, new_units) = self.pace();
        let (old, new) = (u128::from(old), u128::from(new));
        let fine = |amount: u128| match old_units.cmp(&new_units) {
            Ordering::Less => amount.saturating_mul((new_units / old_units).into()),
            Ordering::Equal => amount,
            Ordering::Greater => amount.div_ceil((old_units / new_units).into()),
        };
        let now_ns = now.as_nanos();
        if self.due_ns >= now_ns {
            let owed = fine(u128::from(self.due_ns - now_ns) * old + u128::from(self.carry));
            let wait = u64::try_from(owed / new).unwrap_or(u64::MAX);
            self.due_ns = now_ns.saturating_add(wait);
            self.carry = (owed % new) as u64;
        } else {
            let saved = fine(u128::from(now_ns - self.due_ns) * old - u128::from(self.carry));
            let span = u64::try_from(saved / new).unwrap_or(u64::MAX);
            (self.due_ns, self.carry) = (now_ns.saturating_sub(span), 0);
        }
    }

    /// Whole nanoseconds and the rest that `units` take.
    pub(crate) fn time_of(&self, units: u64) -> (u64, u64) {
        let (speed, per) = self.pace();
        if let Some(scaled) = units.checked_mul(per) {
            return (scaled / speed, scaled % speed);
        }
        let scaled = u128::from(units) * u128::from(per);
        let whole = u64::try_from(scaled / u128::from(speed)).unwrap_or(u64::MAX);
        (whole, (scaled % u128::from(speed)) as u64)
    }

    /// The whole units that pass in a span.
    fn units_in(&self, span_ns: u64) -> u64 {
        let (speed, per) = self.pace();
        let units = u128::from(speed) * u128::from(span_ns) / u128::from(per);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Units, or thousandths of them, that pass in a number of nanoseconds.
    fn pace(&self) -> (u64, u64) {
        match self.part.is_whole() {
            true => (self.rate.per_sec(), 1_000_000_000),
            false => (self.milli, 1_000_000_000_000),
        }
    }
}

/// Units in a span, which is above zero, as a rate.
fn per_sec(units: u64, span_ns: u64) -> u64 {
    let rate = u128::from(units) * u128::from(SECOND_NS) / u128::from(span_ns);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A share of a rate in thousandths of a unit a second, rounded down but at least one.
fn milli(rate: Rate, part: Share) -> u64 {
    let fine = u128::from(rate.per_sec()) * 1000 * u128::from(part.billionths());
    let milli = fine / u128::from(Share::WHOLE.billionths());
    u64::try_from(milli).unwrap_or(u64::MAX).max(1)
}

impl Meter {
    pub(crate) fn new(limit: &Limit, part: Share, key: MeterKey) -> Meter {
        Meter {
            pacer: Pacer::new(limit.rate, part),
            burst: limit.burst,
            v: VirtualTime::default(),
            waiting: [Heap::default(), Heap::default()],
            passed_heads: [0; 2],
            moved: 0,
            passed: (0, 0, Time::ZERO),
            next_try: Time::ZERO,
            refs: 0,
            idle: 0,
            key,
        }
    }

    /// Creates a meter with the grant of a controller for its limit.
    pub(crate) fn granted(limit: &Limit, grant: MeterGrant, key: MeterKey) -> Meter {
        let limit = Limit { rate: grant.rate.unwrap_or(limit.rate), ..*limit };
        Meter::new(&limit, grant.part, key)
    }

    /// Changes rate and burst, in the same unit.
    pub(crate) fn set_limit(&mut self, limit: &Limit, now: Time) {
        if limit.rate != self.pacer.rate {
            self.pacer.set_rate(limit.rate, now);
        }
        self.burst = limit.burst;
    }

    /// Whether a head that arrives now need not wait in line.
    pub(crate) fn has_no_waiters(&self) -> bool {
        self.waiting.iter().all(Heap::is_empty) && self.passed_heads == [0; 2]
    }

    /// Whether no ready head of that lane passed it in turn.
    pub(crate) fn no_passed_heads(&self, lane: usize) -> bool {
        self.passed_heads[lane] == 0
    }

    /// When it lets the next waiter of that lane go: as soon as nothing is owed. While a head that
    /// it let go is still to be dispatched, it waits until the whole burst is saved.
    pub(crate) fn release_at(&self, lane: usize) -> Time {
        let due = self.pacer.due();
        if self.no_passed_heads(lane) {
            return due;
        }
        let saved = due + Nanos::new(self.burst_span().max(TRY_AFTER_NS));
        saved.max(self.next_try)
    }

    /// Counts a waiter that may try.
    pub(crate) fn count_try(&mut self, now: Time) {
        let since = now.before(Nanos::new((TRIES_MAX - 1) * TRY_EVERY_NS));
        self.next_try = self.next_try.max(since) + Nanos::new(TRY_EVERY_NS);
    }

    /// Charges `units`, at once and whatever is owed.
    pub(crate) fn charge(&mut self, units: u64, now: Time) {
        self.count(0, units, now);
        self.charge_deferred(units, now);
    }

    /// Takes back a charge of `units`.
    pub(crate) fn refund(&mut self, units: u64) {
        self.moved = self.moved.saturating_sub(units);
        self.passed.1 = self.passed.1.saturating_sub(units);
        self.pacer.refund(units);
    }

    /// Counts `new` units as usage in place of `old`, and charges nothing.
    pub(crate) fn count(&mut self, old: u64, new: u64, now: Time) {
        self.count_passed(new, now);
        self.passed.1 = self.passed.1.saturating_sub(old);
        self.moved = self.moved.saturating_add(new).saturating_sub(old);
    }

    /// Charges `units` that were counted as usage before.
    pub(crate) fn charge_deferred(&mut self, units: u64, now: Time) {
        self.pacer.charge(units, self.burst.map(|burst| self.span_of(burst)), now);
    }

    /// The most that a class may defer here.
    pub(crate) fn deferred_max(&self) -> u64 {
        self.pacer.units_in(deferred::SPAN_MAX_NS).max(1)
    }

    fn count_passed(&mut self, units: u64, now: Time) {
        let (_, units_now, since) = &mut self.passed;
        let span = now.since(*since).get();
        if span >= SECOND_NS {
            self.passed = (per_sec(*units_now, span), 0, now);
        }
        self.passed.1 = self.passed.1.saturating_add(units);
    }

    /// Units a second that it let through over the last second or two.
    pub(crate) fn used_per_sec(&self, now: Time) -> u64 {
        let (before, units, since) = self.passed;
        let span = now.since(since).get();
        if span >= SECOND_NS {
            return per_sec(units, span);
        }
        let rest = u128::from(before) * u128::from(SECOND_NS - span) / u128::from(SECOND_NS);
        units.saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    /// Heads that wait here, in both lanes.
    pub(crate) fn waiting_heads(&self) -> usize {
        self.waiting.iter().map(Heap::len).sum()
    }

    /// Counts a ready head in (1) or out (-1).
    pub(crate) fn count_passed_head(&mut self, lane: usize, change: i32) {
        let held = self.passed_heads[lane].checked_add_signed(change);
        self.passed_heads[lane] = held.expect("a head is counted out after it was counted in");
    }

    /// Whether it differs from a new one: it owes something, or has not regained its burst.
    pub(crate) fn has_state(&self, now: Time) -> bool {
        self.pacer.due().as_nanos() > now.as_nanos().saturating_sub(self.burst_span())
    }

    /// Ready heads that it let go in their turn, by lane.
    pub(crate) fn passed_heads(&self) -> [u32; 2] {
        self.passed_heads
    }

    /// The time in which it saves its burst.
    fn burst_span(&self) -> u64 {
        self.burst.map_or(CATCH_UP_NS, |burst| self.span_of(burst))
    }

    /// A share of the rate saves the same share of the burst in the same time.
    fn span_of(&self, units: u64) -> u64 {
        let span = u128::from(units) * 1_000_000_000 / u128::from(self.pacer.rate.per_sec());
        u64::try_from(span).unwrap_or(u64::MAX)
    }
}

impl MeterKey {
    /// The key of a rule's limit: of its kinds and unit the `nth`.
    pub(crate) fn of_rule(class: &ClassKey, kinds: KindSet, rate: Rate, nth: usize) -> MeterKey {
        let name = class.rule.to_string();
        let owner = MeterOwner::Rule { name, kinds: kinds.iter().collect(), nth };
        MeterKey { owner, in_bytes: rate.is_bytes(), key: class.values.to_vec() }
    }

    /// The key of a `[[meter]]`.
    pub(crate) fn of_meter(name: &str, rate: Rate, key: Vec<KeyValue>) -> MeterKey {
        MeterKey { owner: MeterOwner::Meter { name: name.into() }, in_bytes: rate.is_bytes(), key }
    }

    /// The key of the meter of a `[[decay]]`.
    pub(crate) fn of_decay(decay: &DecayRule, key: Vec<KeyValue>) -> MeterKey {
        let owner = MeterOwner::Decay { name: decay.name.clone() };
        MeterKey { owner, in_bytes: decay.resource.is_bytes(), key }
    }

    /// The scope of the meter.
    pub(crate) fn scope(&self) -> Scope {
        match &self.owner {
            MeterOwner::Rule { name, .. } => Scope::rule(name, &self.key),
            MeterOwner::Meter { name } => Scope::meter(name, &self.key),
            MeterOwner::Decay { name } => Scope::decay(name, &self.key),
        }
    }

    /// The rule whose limit it is.
    pub(crate) fn rule(&self) -> Option<&str> {
        match &self.owner {
            MeterOwner::Rule { name, .. } => Some(name),
            MeterOwner::Meter { .. } | MeterOwner::Decay { .. } => None,
        }
    }

    /// The limit of this key in `rules`, if there still is one.
    pub(crate) fn limit_in(&self, rules: &RuleSet) -> Option<Limit> {
        let same_unit = |limit: &Limit| limit.rate.is_bytes() == self.in_bytes;
        match &self.owner {
            MeterOwner::Rule { name, kinds, nth } => {
                let rule = rules.rule(name)?;
                let set: KindSet = kinds.iter().copied().collect();
                ceilings(rule).filter(same_unit).filter(|l| l.kinds == set).nth(*nth)
            }
            MeterOwner::Meter { name } => {
                let meter = rules.meters.iter().find(|meter| meter.name == *name)?;
                Some(meter.limit).filter(same_unit)
            }
            MeterOwner::Decay { name } => {
                let decay = rules.decays.iter().find(|decay| decay.name == *name)?;
                Some(decay_ceiling(decay)).filter(same_unit)
            }
        }
    }
}

/// The ceilings of a rule. One that is also a reservation lets as much through after a pause as the
/// reservation makes up for.
pub(crate) fn ceilings(rule: &Rule) -> impl Iterator<Item = Limit> {
    let promised = rule.limit_mode == LimitMode::Realtime;
    rule.ceilings().iter().map(move |limit| {
        let made_up =
            || limit.rate.amount_in(Nanos::new(reservation_clock::CATCH_UP_NS), 0).0.max(1);
        Limit { burst: limit.burst.or_else(|| promised.then(made_up)), ..*limit }
    })
}

/// The rate below which a decay never limits a key.
pub(crate) fn decay_ceiling(decay: &DecayRule) -> Limit {
    let free = decay.entitlement.with_per_sec(u64::MAX).expect("it is above zero");
    Limit { kinds: decay.resource.kinds(), rate: decay.max.unwrap_or(free), burst: None }
}

impl ClassMeter {
    /// A class that has not passed the meter yet.
    pub(crate) fn new(class: u32, meter: u32) -> ClassMeter {
        let (finish, deferred) = (VirtualTime::ZERO, DeferredCharge::NONE);
        ClassMeter { class, meter, finish, deferred, refs: 0 }
    }

    /// Takes the next turn at a meter whose virtual time is `v`: the start tag of a request
    /// of that cost.
    pub(crate) fn reserve_turn(
        &mut self,
        v: VirtualTime,
        cost: u64,
        weight: EffectiveWeight,
    ) -> VirtualTime {
        let start = self.finish.max(v);
        self.finish = start.after(cost, weight);
        start
    }

    /// Gives a turn back, if no later one was taken.
    pub(crate) fn refund_turn(&mut self, start: VirtualTime, cost: u64, weight: EffectiveWeight) {
        if self.finish == start.after(cost, weight) {
            self.finish = start;
        }
    }
}

impl MeterChain {
    /// Creates a chain of these meters; more than the model's bound cannot be configured.
    pub(crate) fn new(links: &[u32]) -> MeterChain {
        let mut route =
            MeterChain { links: [NONE; RuleSet::METERS_MAX], len: links.len() as u8, refs: 0 };
        route.links[..links.len()].copy_from_slice(links);
        route
    }

    pub(crate) fn links(&self) -> &[u32] {
        &self.links[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn a_rate_that_divides_no_second_loses_nothing_to_rounding() {
        let mut pacer = Pacer::new(Rate::ops_per_sec(3).unwrap(), Share::WHOLE);
        let mut now = at(0);
        let mut times = Vec::new();
        for _ in 0..7 {
            times.push(now.as_nanos());
            pacer.charge(1, Some(0), now);
            now = pacer.due();
        }
        // Charged at the rounded-up time with no burst, the lost part of a nanosecond stays lost.
        assert_eq!(times[..4], [0, 333_333_334, 666_666_668, 1_000_000_002]);
        let mut pacer = Pacer::new(Rate::ops_per_sec(3).unwrap(), Share::WHOLE);
        let mut now = at(1_000_000_000);
        for _ in 0..4 + 300 {
            pacer.charge(1, Some(333_333_334), now);
            now = pacer.due().max(now);
        }
        assert_eq!(now, at(1_000_000_000 - 333_333_334 + 101_333_333_334));
    }

    #[test]
    fn a_refund_undoes_a_charge_exactly() {
        let mut pacer = Pacer::new(Rate::bytes_per_sec(7_000_000).unwrap(), Share::WHOLE);
        pacer.charge(4096, Some(0), at(1_000));
        let before = (pacer.due_ns, pacer.carry);
        pacer.charge(65_537, Some(0), at(1_000));
        pacer.refund(65_537);
        assert_eq!((pacer.due_ns, pacer.carry), before);
    }

    #[test]
    fn a_new_rate_keeps_the_debt_in_units_and_refills_nothing() {
        let now = at(10_000_000_000);
        let mut pacer = Pacer::new(Rate::ops_per_sec(1).unwrap(), Share::WHOLE);
        pacer.charge(1, Some(0), now);
        assert_eq!(pacer.due(), at(11_000_000_000));
        pacer.set_rate(Rate::ops_per_sec(1_000).unwrap(), now);
        assert_eq!(pacer.due(), at(10_001_000_000));
        pacer.set_rate(Rate::ops_per_sec(10).unwrap(), at(10_003_000_000));
        // Two operations saved at 1000/s are two operations at 10/s.
        assert_eq!(pacer.due(), at(10_003_000_000 - 200_000_000));
    }

    #[test]
    fn idleness_is_made_up_for_by_the_burst_and_no_more() {
        let mut pacer = Pacer::new(Rate::bytes_per_sec(1_000_000).unwrap(), Share::WHOLE);
        pacer.charge(1_000, None, at(60_000_000_000));
        assert_eq!(pacer.due(), at(60_000_000_000 - 100_000_000 + 1_000_000));
        let mut large = Pacer::new(Rate::bytes_per_sec(1_000_000).unwrap(), Share::WHOLE);
        large.charge(1_000_000, None, at(60_000_000_000));
        assert_eq!(large.due(), at(60_000_000_000));
    }

    #[test]
    fn a_part_lets_through_exactly_its_part_of_the_rate() {
        // A third of 10 a second is 3.333, not 3.
        let mut pacer = Pacer::new(Rate::ops_per_sec(10).unwrap(), Share::ratio(1, 3));
        for _ in 0..10_000 {
            let now = pacer.due();
            pacer.charge(1, Some(1_000_000_000), now);
        }
        assert_eq!(pacer.due().as_nanos() / 1_000_000_000, 3_000);
        let mut none = Pacer::new(Rate::bytes_per_sec(100).unwrap(), Share::ZERO);
        none.charge(1, Some(0), at(0));
        assert_eq!(none.due(), at(1_000_000_000_000));
    }

    #[test]
    fn another_part_keeps_the_debt_in_units_and_refills_nothing() {
        let (now, rate) = (at(10_000_000_000), Rate::ops_per_sec(200).unwrap());
        let mut pacer = Pacer::new(rate, Share::WHOLE);
        pacer.charge(200, Some(0), now);
        pacer.set_pace(rate, Share::ratio(1, 200), now);
        assert_eq!(pacer.due(), at(210_000_000_000));
        pacer.set_pace(rate, Share::ratio(1, 2), at(10_000_000_000));
        assert_eq!(pacer.due(), at(12_000_000_000));
        // Ten saved at 100/s are ten saved at 1/s.
        pacer.set_pace(rate, Share::ratio(1, 200), at(12_100_000_000));
        assert_eq!(pacer.due(), at(2_100_000_000));
        pacer.set_pace(rate, Share::WHOLE, at(12_100_000_000));
        assert_eq!(pacer.due(), at(12_050_000_000));
    }

    #[test]
    fn a_part_of_the_rate_has_the_same_part_of_the_burst() {
        let rate = Rate::bytes_per_sec(1_000).unwrap();
        let limit = Limit { kinds: KindSet::ALL, rate, burst: Some(500) };
        let key = MeterKey::of_meter("m", rate, vec![]);
        let mut meter = Meter::new(&limit, Share::ratio(1, 10), key);
        meter.charge(0, at(100_000_000_000));
        assert_eq!(meter.pacer.due(), at(99_500_000_000), "half a second: 50 of 100 a second");
    }
}
