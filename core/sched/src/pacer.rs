//! A pacer: a rate, kept as the time at which its charges are paid off.
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

use std::cmp::Ordering;

use model::{Rate, Share, Time};

/// How long a meter's idleness may be made up for where its limit names no burst. It is the longest
/// usual gap between two chances to dispatch on a busy device; longer gaps lose the rest. The burst
/// is then 100 ms of the rate, or the current request if that is more: over 10 s at most 1 % and a
/// request.
pub(crate) const CATCH_UP_NS: u64 = 100_000_000;

/// How far a reservation may lag and still be made up for. It must exceed the longest gap between
/// two chances to dispatch, or the class gets less than its reservation. The price is that this
/// much of its rate may come at once after a pause.
pub(crate) const RESERVATION_CATCH_UP_NS: u64 = 500_000_000;

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

    /// Brings forward when nothing is owed by `span_ns`, down to `now` at most.
    pub(crate) fn pull(&mut self, span_ns: u64, now: Time) {
        let due_ns = self.due_ns.saturating_sub(span_ns).max(now.as_nanos());
        self.due_ns = self.due_ns.min(due_ns);
    }

    /// Forgets what was saved before a time.
    pub(crate) fn save_from(&mut self, since: Time) {
        if self.due_ns < since.as_nanos() {
            (self.due_ns, self.carry) = (since.as_nanos(), 0);
        }
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
    pub(crate) fn units_in(&self, span_ns: u64) -> u64 {
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

/// A share of a rate in thousandths of a unit a second, rounded down but at least one.
fn milli(rate: Rate, part: Share) -> u64 {
    let fine = u128::from(rate.per_sec()) * 1000 * u128::from(part.billionths());
    let milli = fine / u128::from(Share::WHOLE.billionths());
    u64::try_from(milli).unwrap_or(u64::MAX).max(1)
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
}
