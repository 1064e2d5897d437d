//! Reservations that are not served their rates while their requests wait.
//!
//! ```text
//!   reports: owed, served ─► sums of 5 s ─┬─ below nine tenths for 5 s: late
//!                                         └─ late, and 95 % or hardly anything waits: no longer
//! ```
//!
//! Only what proxies report of the time in which requests waited counts. So a job that asks for less
//! than it has reserved, a proxy that reports nothing, and a row that has ended are not late. The first
//! seconds of a job, in which slots are divided again, are within the grace.

use std::collections::BTreeMap;

use model::{Nanos, Rate, Scope, Time, WaitedService};

/// A reservation that is late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateReservation {
    /// The row, or the class of a rule, that reserves.
    pub scope: Scope,
    /// The rate that is reserved for it.
    pub reserved: Rate,
    /// What it was served a second, in the last [`LateReservation::SPAN`], while its requests waited.
    pub served_per_sec: u64,
}

/// What the reservations of one target were served lately, by row or class.
#[derive(Debug, Default)]
pub(crate) struct ServiceWindows(BTreeMap<Scope, ServiceWindow>);

#[derive(Debug)]
struct ServiceWindow {
    reserved: Rate,
    /// By seconds, the present one first.
    seconds: [WaitedService; SECONDS],
    /// Since when the sum is too small.
    short_since: Option<Time>,
    /// What it was served a second, if it is late.
    late: Option<u64>,
}

impl LateReservation {
    /// The span of the figures.
    pub const SPAN: Nanos = Nanos::from_secs(SECONDS as u64);
}

impl ServiceWindows {
    /// Adds what a report says. `rate` is the whole rate of a reservation; others are ignored.
    pub(crate) fn record(
        &mut self,
        waited: &[(Scope, WaitedService)],
        rate: impl Fn(&Scope) -> Option<Rate>,
    ) {
        for (scope, of) in waited {
            let Some(reserved) = rate(scope) else { continue };
            if !self.0.contains_key(scope) && self.0.len() >= WINDOWS_MAX {
                continue;
            }
            let window = self.0.entry(scope.clone()).or_insert_with(|| ServiceWindow {
                reserved,
                seconds: Default::default(),
                short_since: None,
                late: None,
            });
            (window.reserved, window.seconds[0]) = (reserved, window.seconds[0].plus(*of));
        }
    }

    /// Ends a second. Reservations without a rate have ended.
    pub(crate) fn step(&mut self, rate: impl Fn(&Scope) -> Option<Rate>, now: Time) {
        self.0.retain(|scope, window| {
            window.judge(now);
            window.seconds.rotate_right(1);
            window.seconds[0] = WaitedService::default();
            (window.late.is_some() || window.sum().owed > 0) && rate(scope).is_some()
        });
    }

    /// Those that are late now, by scope.
    pub(crate) fn late(&self) -> impl Iterator<Item = LateReservation> {
        self.0.iter().filter_map(|(scope, window)| {
            let (scope, reserved) = (scope.clone(), window.reserved);
            window.late.map(|served_per_sec| LateReservation { scope, reserved, served_per_sec })
        })
    }
}

impl ServiceWindow {
    fn sum(&self) -> WaitedService {
        self.seconds.iter().fold(WaitedService::default(), |sum, of| sum.plus(*of))
    }

    fn judge(&mut self, now: Time) {
        let WaitedService { owed, served } = self.sum();
        let (owed, served) = (u128::from(owed), u128::from(served));
        let per_sec = u128::from(self.reserved.per_sec());
        let is_late = if self.late.is_some() {
            owed >= per_sec && served * 20 < owed * 19
        } else {
            let is_short = 2 * owed >= SECONDS as u128 * per_sec && served * 10 < owed * 9;
            let since = is_short.then(|| self.short_since.unwrap_or(now));
            self.short_since = since;
            since.is_some_and(|since| now.since(since) >= GRACE)
        };
        // Less than the rate, as less was served than owed.
        self.late = is_late.then(|| (per_sec * served / owed) as u64);
        if is_late {
            self.short_since = None;
        }
    }
}

const SECONDS: usize = 5;
/// How long less is served before it is late: slots and shares are divided in less.
const GRACE: Nanos = Nanos::from_secs(5);
/// As many as a dispatcher keeps rows.
const WINDOWS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// The reservation `a` has 100 a second.
    fn rate(scope: &Scope) -> Option<Rate> {
        (*scope == Scope::entitlement(1)).then(|| Rate::ops_per_sec(100).unwrap())
    }

    /// Second by second, what is late, as what is served.
    fn seconds(windows: &mut ServiceWindows, from: u64, all: &[(u64, u64)]) -> Vec<Option<u64>> {
        let second = |(at, (owed, served)): (u64, &(u64, u64))| {
            let of = WaitedService { owed: *owed, served: *served };
            windows.record(&[(Scope::entitlement(1), of), (Scope::entitlement(2), of)], rate);
            windows.step(rate, Time::from_nanos((from + at) * 1_000_000_000));
            windows.late().next().map(|late| late.served_per_sec)
        };
        (0..).zip(all).map(second).collect()
    }

    #[test]
    fn what_is_served_less_for_longer_than_the_grace_is_late_until_it_is_served_again() {
        let mut windows = ServiceWindows::default();
        let late = seconds(&mut windows, 0, &[(100, 60); 10]);
        assert_eq!(late.iter().position(Option::is_some), Some(7), "{late:?}");
        assert_eq!(late[9], Some(60));
        let late = seconds(&mut windows, 10, &[(100, 100); 6]);
        assert_eq!(late.iter().position(Option::is_none), Some(4), "{late:?}");
    }

    #[test]
    fn the_first_seconds_of_a_job_are_no_shortfall() {
        let mut windows = ServiceWindows::default();
        let late = seconds(&mut windows, 0, &[(100, 0), (100, 50)]);
        let then = seconds(&mut windows, 2, &[(100, 100); 20]);
        assert!(late.iter().chain(&then).all(Option::is_none), "{late:?} {then:?}");
    }

    #[test]
    fn a_job_that_asks_for_less_or_rarely_waits_is_not_late() {
        let mut windows = ServiceWindows::default();
        assert!(seconds(&mut windows, 0, &[(0, 0); 20]).iter().all(Option::is_none));
        // Once a minute it is measured for 1.2 s whether others delay it.
        let measured: Vec<_> =
            (0..60).map(|at| if at % 30 < 2 { (60, 10) } else { (0, 0) }).collect();
        assert!(seconds(&mut windows, 20, &measured).iter().all(Option::is_none));
    }

    #[test]
    fn what_is_late_is_no_longer_when_nothing_waits_or_the_row_ends() {
        let mut windows = ServiceWindows::default();
        seconds(&mut windows, 0, &[(100, 20); 9]);
        let late = seconds(&mut windows, 9, &[(0, 0); 6]);
        assert_eq!(late.iter().position(Option::is_none), Some(4), "{late:?}");
        seconds(&mut windows, 20, &[(100, 20); 9]);
        windows.step(|_| None, Time::from_nanos(1 << 40));
        assert_eq!((windows.late().next(), windows.0.len()), (None, 0));
    }
}
