//! One meter: its rate, and who waits at it.
//!
//! Waiters are in one heap for each lane of a target, ordered by start-time fair queueing of the meter's own.
//! Its virtual time counts the cost of what *it* let through. So weights hold among classes that
//! share a meter, whatever happens beside it.

use model::{Nanos, Share, Time};
use rules::Limit;

use super::deferred;
use crate::heap::Heap;
use crate::index::LanePlace;
use crate::keys::MeterKey;
use crate::pacer::{CATCH_UP_NS, Pacer};
use crate::tags::VirtualTime;

const SECOND_NS: u64 = 1_000_000_000;

/// The most waiters that may try at once when a meter has saved its burst; one more follows each 10
/// µs. So the work of a call stays bounded, and all tries cost a few percent of a processor.
const TRIES_MAX: u64 = 64;
const TRY_EVERY_NS: u64 = 10_000;
/// The least burst that decides whether others may try. A head that was let go in its turn needs
/// time to go, and a wake-up alone can take most of it.
const TRY_AFTER_NS: u64 = 1_000_000;

/// How long other lines wait at most for a head that was let go to be charged; no longer than what
/// is caught up, or the rate would not be reached.
const TURN_NS: u64 = 1_000_000;

/// One meter and its waiters. In the order of cache lines: whether a head may pass, what a charge
/// adds up, and who waits.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Meter {
    pub(crate) pacer: Pacer,
    /// When what rows reserve may be charged again, of which there is a bound.
    pub(crate) reserved_until: Time,
    /// Of all lines.
    passed_heads: u32,
    pub(crate) waiting: u32,
    /// When the next waiter may try.
    next_try: Time,
    /// As the limit says, in the rate's unit.
    burst: Option<u64>,
    /// Units charged since its usage was taken last.
    pub(crate) moved: u64,
    /// Units a second of the last complete second, units of the current second, and its begin.
    passed: (u64, u64, Time),
    /// Start tag of the head that it last let go in turn.
    pub(crate) v: VirtualTime,
    /// By lane: those of the first target, which are with the rest of the meter in memory.
    lines: [MeterLine; 2],
    /// By target and lane: those of further targets.
    more_lines: Vec<[MeterLine; 2]>,
    /// Meter chains and class meters that refer to it.
    pub(crate) refs: u32,
    /// Its number among the idle; 0 while it is referenced.
    pub(crate) idle: u64,
    pub(crate) key: MeterKey,
}

/// Who waits at a meter for one lane of a target.
#[derive(Debug, Default)]
pub(crate) struct MeterLine {
    /// Queues (class × 4 + direction) whose head waits here.
    pub(crate) waiting: Heap,
    /// Ready heads that the meter let go in their turn.
    pub(crate) passed_heads: u32,
}

impl Meter {
    pub(crate) fn new(limit: &Limit, part: Share, key: MeterKey, targets: usize) -> Meter {
        Meter {
            pacer: Pacer::new(limit.rate, part),
            burst: limit.burst,
            reserved_until: Time::ZERO,
            v: VirtualTime::default(),
            lines: Default::default(),
            more_lines: (1..targets).map(|_| Default::default()).collect(),
            passed_heads: 0,
            waiting: 0,
            moved: 0,
            passed: (0, 0, Time::ZERO),
            next_try: Time::ZERO,
            refs: 0,
            idle: 0,
            key,
        }
    }

    /// Changes rate and burst, in the same unit.
    pub(crate) fn set_limit(&mut self, limit: &Limit, now: Time) {
        if limit.rate != self.pacer.rate() {
            self.pacer.set_rate(limit.rate, now);
        }
        self.burst = limit.burst;
    }

    /// Whether a head that arrives now need not wait in line.
    pub(crate) fn has_no_waiters(&self) -> bool {
        self.passed_heads == 0 && self.waiting == 0
    }

    /// Makes the lines of a further target.
    pub(crate) fn add_target(&mut self) {
        self.more_lines.push(Default::default());
    }

    /// How many targets it has lines of.
    #[inline]
    pub(crate) fn targets(&self) -> usize {
        1 + self.more_lines.len()
    }

    /// Its lines of a target.
    #[inline]
    pub(crate) fn lines_of(&self, target: usize) -> &[MeterLine; 2] {
        match target.checked_sub(1) {
            None => &self.lines,
            Some(more) => &self.more_lines[more],
        }
    }

    #[inline]
    pub(crate) fn line(&self, at: LanePlace) -> &MeterLine {
        &self.lines_of(at.target.index())[at.lane]
    }

    #[inline]
    pub(crate) fn line_mut(&mut self, at: LanePlace) -> &mut MeterLine {
        match at.target.index().checked_sub(1) {
            None => &mut self.lines[at.lane],
            Some(more) => &mut self.more_lines[more][at.lane],
        }
    }

    /// When it lets the next waiter of a line go: as soon as nothing is owed. While a head that it
    /// let go there is still to be dispatched, it waits until the whole burst is saved; while one
    /// that it let go in another line is, it waits a moment for that one to be charged. So lines
    /// are divided by the order of their tags, and a line that is stuck keeps nothing from others.
    pub(crate) fn release_at(&self, line: &MeterLine) -> Time {
        let due = self.pacer.due();
        if line.passed_heads == 0 {
            let waits = if self.passed_heads == 0 { 0 } else { self.burst_span().min(TURN_NS) };
            return due + Nanos::new(waits);
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

    /// Heads that wait here, in all lines.
    pub(crate) fn waiting_heads(&self) -> usize {
        self.waiting as usize
    }

    /// Counts a ready head in (1) or out (-1).
    pub(crate) fn count_passed_head(&mut self, at: LanePlace, change: i32) {
        let line = self.line_mut(at);
        let held = line.passed_heads.checked_add_signed(change);
        line.passed_heads = held.expect("a head is counted out after it was counted in");
        self.passed_heads = self.passed_heads.wrapping_add_signed(change);
    }

    /// Whether it differs from a new one: it owes something, or has not regained its burst.
    pub(crate) fn has_state(&self, now: Time) -> bool {
        self.pacer.due().as_nanos() > now.as_nanos().saturating_sub(self.burst_span())
    }

    /// The time in which it saves its burst.
    fn burst_span(&self) -> u64 {
        self.burst.map_or(CATCH_UP_NS, |burst| self.span_of(burst))
    }

    /// A share of the rate saves the same share of the burst in the same time.
    fn span_of(&self, units: u64) -> u64 {
        let span = u128::from(units) * 1_000_000_000 / u128::from(self.pacer.rate().per_sec());
        u64::try_from(span).unwrap_or(u64::MAX)
    }
}

/// Units in a span, which is above zero, as a rate.
fn per_sec(units: u64, span_ns: u64) -> u64 {
    let rate = u128::from(units) * u128::from(SECOND_NS) / u128::from(span_ns);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use model::{KindSet, Rate};

    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn a_part_of_the_rate_has_the_same_part_of_the_burst() {
        let rate = Rate::bytes_per_sec(1_000).unwrap();
        let limit = Limit { kinds: KindSet::ALL, rate, burst: Some(500) };
        let key = MeterKey::of_meter("m", rate, vec![]);
        let mut meter = Meter::new(&limit, Share::ratio(1, 10), key, 1);
        meter.charge(0, at(100_000_000_000));
        assert_eq!(meter.pacer.due(), at(99_500_000_000), "half a second: 50 of 100 a second");
    }
}
