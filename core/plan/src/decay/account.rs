//! One key's past usage, as its decay counts it.
//!
//! ```text
//!   use ─► sum of this minute ── the minute is over ─► past
//!                                                       ├ half-life: what was before, decayed, and it
//!                                                       ├ period:    what was in this period, and it
//!                                                       └ sliding:   a bucket of the last period
//! ```
//!
//! Past usage changes only when a minute with usage is over. So an account is the same whether it
//! was kept all the time or restored from a ledger of minutes, whenever it was read in between.

use std::collections::VecDeque;

use model::{Nanos, Time};
use rules::{DecayMode, DecayWindow};

use super::exp2::Fraction;

/// One key's account of a decay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecayAccount {
    /// The minute that is summed up, since 1970.
    minute: u64,
    sum: u64,
    past: PastUsage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PastUsage {
    /// An amount at the end of a minute.
    HalfLife { used: u64, minute: u64 },
    /// An amount in the period of this number.
    Period { used: u64, number: u64 },
    /// An amount in each bucket of some minutes, the latest first.
    Sliding { buckets: VecDeque<(u64, u64)> },
}

impl DecayAccount {
    /// An empty account for a mode.
    pub(crate) fn new(mode: &DecayMode) -> DecayAccount {
        let past = match mode {
            DecayMode::HalfLife { .. } => PastUsage::HalfLife { used: 0, minute: 0 },
            DecayMode::Period { window: DecayWindow::Fixed, .. } => {
                PastUsage::Period { used: 0, number: 0 }
            }
            DecayMode::Period { window: DecayWindow::Sliding, .. } => {
                PastUsage::Sliding { buckets: VecDeque::new() }
            }
        };
        DecayAccount { minute: 0, sum: 0, past }
    }

    /// Counts usage. Returns the minute that it ended and its sum, if that had one.
    pub(crate) fn record(
        &mut self,
        amount: u64,
        mode: &DecayMode,
        now: Time,
    ) -> Option<(u64, u64)> {
        let closed = self.close(mode, now);
        self.sum = self.sum.saturating_add(amount);
        closed
    }

    /// Ends the minute that is summed up, if it is over.
    pub(crate) fn close(&mut self, mode: &DecayMode, now: Time) -> Option<(u64, u64)> {
        let minute = now.as_nanos() / MINUTE;
        if minute <= self.minute {
            return None;
        }
        let (closed, sum) = (self.minute, std::mem::take(&mut self.sum));
        self.minute = minute;
        (sum > 0).then(|| {
            self.fold(closed, sum, mode);
            (closed, sum)
        })
    }

    /// Adds a minute of the ledger, later than all before.
    pub(crate) fn restore(&mut self, minute: u64, sum: u64, mode: &DecayMode) {
        if minute >= self.minute && sum > 0 {
            self.fold(minute, sum, mode);
            self.minute = minute + 1;
        }
    }

    /// The past usage, as the mode counts it.
    pub(crate) fn used(&self, mode: &DecayMode, now: Time) -> u64 {
        let now_ns = now.as_nanos();
        match (&self.past, mode) {
            (PastUsage::HalfLife { used, minute }, DecayMode::HalfLife { half_life, .. }) => {
                let past = decayed(*used, now_ns.saturating_sub(minute * MINUTE), *half_life);
                let age = now_ns.saturating_sub(self.minute * MINUTE);
                let age = if age <= MINUTE { age / 2 } else { age - MINUTE / 2 };
                past.saturating_add(decayed(self.sum, age, *half_life))
            }
            (PastUsage::Period { used, number }, DecayMode::Period { period, .. }) => {
                let now_is = now_ns / period.get();
                let past = if *number == now_is { *used } else { 0 };
                let current = self.minute * MINUTE / period.get() == now_is;
                past.saturating_add(if current { self.sum } else { 0 })
            }
            (PastUsage::Sliding { buckets }, DecayMode::Period { period, .. }) => {
                let since = now_ns.saturating_sub(period.get());
                let width = bucket_minutes(*period) * MINUTE;
                let recent = buckets.iter().filter(|(number, _)| (number + 1) * width > since);
                let past = recent.fold(0u64, |all, (_, used)| all.saturating_add(*used));
                past.saturating_add(self.sum)
            }
            _ => unreachable!("an account is made for its mode"),
        }
    }

    /// Whether dropping the account would lose nothing.
    pub(crate) fn is_empty(&self, mode: &DecayMode, now: Time) -> bool {
        self.sum == 0 && self.used(mode, now) == 0
    }

    fn fold(&mut self, minute: u64, sum: u64, mode: &DecayMode) {
        match (&mut self.past, mode) {
            (PastUsage::HalfLife { used, minute: at }, DecayMode::HalfLife { half_life, .. }) => {
                let past = decayed(*used, (minute + 1 - *at).saturating_mul(MINUTE), *half_life);
                // Usage within a minute counts as usage in its middle.
                *used = past.saturating_add(decayed(sum, MINUTE / 2, *half_life));
                *at = minute + 1;
            }
            (PastUsage::Period { used, number }, DecayMode::Period { period, .. }) => {
                let of = minute * MINUTE / period.get();
                let before = if *number == of { *used } else { 0 };
                (*used, *number) = (before.saturating_add(sum), of);
            }
            (PastUsage::Sliding { buckets }, DecayMode::Period { period, .. }) => {
                let number = minute / bucket_minutes(*period);
                match buckets.back_mut() {
                    Some((last, used)) if *last == number => *used = used.saturating_add(sum),
                    _ => buckets.push_back((number, sum)),
                }
                if buckets.len() > BUCKETS + 1 {
                    buckets.pop_front();
                }
            }
            _ => unreachable!("an account is made for its mode"),
        }
    }
}

fn decayed(used: u64, age_ns: u64, half_life: Nanos) -> u64 {
    if used == 0 { 0 } else { Fraction::half_to(age_ns, half_life.get()).of(used) }
}

/// A sliding period is kept in 60 buckets at most.
fn bucket_minutes(period: Nanos) -> u64 {
    (period.get() / MINUTE).div_ceil(BUCKETS as u64).max(1)
}

const MINUTE: u64 = 60_000_000_000;
const BUCKETS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(count: u64) -> Time {
        Time::from_nanos(count * 1_000_000_000)
    }

    fn half_life(secs: u64) -> DecayMode {
        DecayMode::HalfLife { half_life: Nanos::from_secs(secs), steepness_milli: 2000 }
    }

    fn step(secs: u64, window: DecayWindow) -> DecayMode {
        DecayMode::Period { period: Nanos::from_secs(secs), window, steps: vec![(1_000_000, None)] }
    }

    #[test]
    fn use_counts_half_after_the_half_life() {
        let mode = half_life(3_600);
        let mut account = DecayAccount::new(&mode);
        account.record(1_000_000, &mode, secs(600_000));
        assert_eq!(account.used(&mode, secs(600_000)), 1_000_000);
        let later = account.used(&mode, secs(600_000 + 3_600 + 30));
        assert!(later.abs_diff(500_000) < 10, "{later}");
        let much_later = account.used(&mode, secs(600_000 + 36_000 + 30));
        assert!(much_later.abs_diff(977) < 3, "{much_later}");
    }

    #[test]
    fn steady_use_settles_at_rate_times_half_life_by_ln_2() {
        let mode = half_life(3_600);
        let mut account = DecayAccount::new(&mode);
        for second in 0..20 * 3_600 {
            account.record(1_000, &mode, secs(second));
        }
        let used = account.used(&mode, secs(20 * 3_600));
        let wanted = 1_000 * 3_600 * 1_442_695 / 1_000_000;
        assert!(used.abs_diff(wanted) < wanted / 1_000, "{used}, not {wanted}");
    }

    #[test]
    fn a_period_counts_from_its_boundary_and_a_rolling_one_from_now() {
        let (fixed, sliding) = (step(600, DecayWindow::Fixed), step(600, DecayWindow::Sliding));
        for (mode, at_boundary, later) in [(&fixed, 0, 0), (&sliding, 7, 0)] {
            let mut account = DecayAccount::new(mode);
            account.record(7, mode, secs(6_590));
            assert_eq!(account.used(mode, secs(6_599)), 7);
            account.close(mode, secs(6_600));
            assert_eq!(account.used(mode, secs(6_600)), at_boundary);
            assert_eq!(account.used(mode, secs(7_260)), later);
        }
    }

    #[test]
    fn an_account_made_again_from_its_minutes_is_the_same_to_the_byte() {
        for mode in
            [half_life(3_600), step(86_400, DecayWindow::Fixed), step(86_400, DecayWindow::Sliding)]
        {
            let mut account = DecayAccount::new(&mode);
            let mut ledger = Vec::new();
            for at in (0..200_000u64).step_by(37).filter(|at| at % 5_000 < 3_000) {
                ledger.extend(account.record(at % 977, &mode, secs(at)));
                account.used(&mode, secs(at));
            }
            ledger.extend(account.close(&mode, secs(200_100)));
            let mut again = DecayAccount::new(&mode);
            ledger.iter().for_each(|(minute, sum)| again.restore(*minute, *sum, &mode));
            again.close(&mode, secs(200_100));
            assert_eq!(again, account);
        }
    }
}
