//! Reservations that are not served their rates while their requests wait.
//!
//! ```text
//!   proxy a: owed, served ─► sums of 5 s ─► waits half of the time? ─┐
//!   proxy b: owed, served ─► sums of 5 s ─► waits half of the time? ─┴─ sum ─┬─ below nine tenths for 5 s: late
//!                                                                           └─ late, and 95 % or hardly anything waits: no longer
//! ```
//!
//! A proxy is owed the share of the rate that it was given, so how long its requests wait follows from
//! that share: what the others have of the rate says nothing about it. Only what proxies report of the
//! time in which requests waited counts. So a job that asks for less than it has reserved, a proxy that
//! reports nothing, and a row that has ended are not late. The first seconds of a job, in which slots
//! are divided again, are within the grace.

use std::collections::BTreeMap;

use model::{Nanos, Rate, Scope, Time, WaitedService};

/// A reservation that is late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateReservation {
    /// The row, or the class of a rule, that reserves.
    pub scope: Scope,
    /// What those proxies have of its rate at which its requests wait.
    pub reserved: Rate,
    /// What it was served a second there, in the last [`LateReservation::SPAN`], while they waited.
    pub served_per_sec: u64,
}

/// What the reservations of one target were served lately, by row or class.
#[derive(Debug, Default)]
pub(crate) struct ServiceWindows {
    proxies: BTreeMap<u32, BTreeMap<Scope, ServiceWindow>>,
    /// How many there are of all proxies.
    count: usize,
    short: BTreeMap<Scope, Shortfall>,
}

/// What one proxy served of a reservation.
#[derive(Debug)]
struct ServiceWindow {
    /// The part of the rate that the proxy was given last.
    given: Rate,
    /// By seconds, the present one first.
    seconds: [WaitedService; SECONDS],
}

/// What proxies served of a reservation in sum.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceSum {
    of: WaitedService,
    given: Option<Rate>,
}

/// A reservation that is served too little.
#[derive(Debug)]
enum Shortfall {
    /// Since a time, which is within the grace.
    Since(Time),
    /// It is late: what it is served a second, of what it has reserved.
    Late(u64, Rate),
}

impl LateReservation {
    /// The span of the figures.
    pub const SPAN: Nanos = Nanos::from_secs(SECONDS as u64);
}

impl ServiceWindows {
    /// Adds what a report of a proxy says. `given` is the part of the rate of a reservation that the
    /// proxy has; others are ignored.
    pub(crate) fn record(
        &mut self,
        proxy: u32,
        waited: &[(Scope, WaitedService)],
        given: impl Fn(&Scope) -> Option<Rate>,
    ) {
        for (scope, of) in waited {
            let Some(given) = given(scope) else { continue };
            let own = self.proxies.entry(proxy).or_default();
            if !own.contains_key(scope) {
                if self.count >= WINDOWS_MAX || own.len() >= PROXY_WINDOWS_MAX {
                    continue;
                }
                self.count += 1;
            }
            let window = own
                .entry(scope.clone())
                .or_insert_with(|| ServiceWindow { given, seconds: Default::default() });
            (window.given, window.seconds[0]) = (given, window.seconds[0].plus(*of));
        }
    }

    /// Ends a second. Reservations that are none any more have ended.
    pub(crate) fn step(&mut self, is_reserved: impl Fn(&Scope) -> bool, now: Time) {
        let mut sums: BTreeMap<&Scope, ServiceSum> = BTreeMap::new();
        for (scope, window) in self.proxies.values().flatten() {
            let is_late = matches!(self.short.get(scope), Some(Shortfall::Late(..)));
            let (of, per_sec) = (window.sum(), u128::from(window.given.per_sec()));
            // Half of the time, or once it is late a fifth.
            let counts = match is_late {
                true => u128::from(of.owed) >= per_sec,
                false => 2 * u128::from(of.owed) >= SECONDS as u128 * per_sec,
            };
            if counts && is_reserved(scope) {
                sums.entry(scope).or_default().add(of, window.given);
            }
        }
        let judged = sums.into_iter().filter_map(|(scope, sum)| {
            let shortfall = sum.judge(self.short.get(scope), now)?;
            Some((scope.clone(), shortfall))
        });
        self.short = judged.collect();
        self.proxies.retain(|_, own| {
            own.retain(|scope, window| {
                window.seconds.rotate_right(1);
                window.seconds[0] = WaitedService::default();
                window.sum().owed > 0 && is_reserved(scope)
            });
            !own.is_empty()
        });
        self.count = self.proxies.values().map(BTreeMap::len).sum();
    }

    /// Those that are late now, by scope.
    pub(crate) fn late(&self) -> impl Iterator<Item = LateReservation> {
        self.short.iter().filter_map(|(scope, short)| {
            let Shortfall::Late(served_per_sec, reserved) = *short else { return None };
            Some(LateReservation { scope: scope.clone(), reserved, served_per_sec })
        })
    }
}

impl ServiceWindow {
    fn sum(&self) -> WaitedService {
        self.seconds.iter().fold(WaitedService::default(), |sum, of| sum.plus(*of))
    }
}

impl ServiceSum {
    fn add(&mut self, of: WaitedService, given: Rate) {
        self.of = self.of.plus(of);
        let sum = self.given.map_or(0, Rate::per_sec).saturating_add(given.per_sec());
        self.given = given.with_per_sec(sum).or(self.given);
    }

    /// What it is now, after what it was a second ago.
    fn judge(self, before: Option<&Shortfall>, now: Time) -> Option<Shortfall> {
        let given = self.given?;
        let (owed, served) = (u128::from(self.of.owed), u128::from(self.of.served));
        let was_late = matches!(before, Some(Shortfall::Late(..)));
        let is_short = if was_late { served * 20 < owed * 19 } else { served * 10 < owed * 9 };
        if !is_short {
            return None;
        }
        let since = match before {
            Some(Shortfall::Since(since)) => *since,
            _ => now,
        };
        // Less than the rate, as less was served than owed.
        let per_sec = (u128::from(given.per_sec()) * served / owed) as u64;
        let is_late = was_late || now.since(since) >= GRACE;
        Some(if is_late { Shortfall::Late(per_sec, given) } else { Shortfall::Since(since) })
    }
}

const SECONDS: usize = 5;
/// How long less is served before it is late: slots and shares are divided in less.
const GRACE: Nanos = Nanos::from_secs(5);
/// As many as a dispatcher keeps rows.
const WINDOWS_MAX: usize = 65_536;
/// The most of one proxy: its requests wait at each of them.
const PROXY_WINDOWS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The reservation `a` has 100 a second.
    fn rate(scope: &Scope) -> Option<Rate> {
        (*scope == Scope::entitlement(1)).then(|| Rate::ops_per_sec(100).unwrap())
    }

    fn time(second: u64) -> Time {
        Time::from_nanos(second * 1_000_000_000)
    }

    /// Second by second, what is late, as what is served.
    fn seconds(windows: &mut ServiceWindows, from: u64, all: &[(u64, u64)]) -> Vec<Option<u64>> {
        let second = |(at, (owed, served)): (u64, &(u64, u64))| {
            let of = WaitedService { owed: *owed, served: *served };
            windows.record(7, &[(Scope::entitlement(1), of), (Scope::entitlement(2), of)], rate);
            windows.step(|scope| rate(scope).is_some(), time(from + at));
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
        windows.step(|_| false, Time::from_nanos(1 << 40));
        assert_eq!((windows.late().next(), windows.count), (None, 0));
    }

    #[test]
    fn a_proxy_is_judged_by_what_it_has_of_the_rate_and_the_sum_of_those_that_wait_is_late() {
        let part = |per_sec| move |_: &Scope| Rate::ops_per_sec(per_sec);
        let waited = |owed, served| [(Scope::entitlement(1), WaitedService { owed, served })];
        let late = |all: &[(u64, u64, u64)]| {
            let mut windows = ServiceWindows::default();
            for second in 0..12 {
                for (proxy, (given, owed, served)) in (0..).zip(all) {
                    windows.record(proxy, &waited(*owed, *served), part(*given));
                }
                windows.step(|_| true, time(second));
            }
            windows.late().next().map(|late| (late.served_per_sec, late.reserved.per_sec()))
        };
        // A quarter of the rate, of which a fifth is served; at the other one hardly anything waits.
        assert_eq!(late(&[(25, 25, 5)]), Some((5, 25)));
        assert_eq!(late(&[(25, 25, 5), (75, 3, 3)]), Some((5, 25)));
        // What others are served counts while they wait, too: the job has 19 of 20.
        assert_eq!(late(&[(25, 25, 20), (75, 75, 75)]), None);
        assert_eq!(late(&[(25, 25, 5), (75, 75, 55)]), Some((60, 100)));
    }

    #[test]
    fn what_one_proxy_reports_is_bounded() {
        let mut windows = ServiceWindows::default();
        let of = WaitedService { owed: 100, served: 0 };
        let many: Vec<_> = (0..10_000).map(|row| (Scope::entitlement(row), of)).collect();
        (0..40).for_each(|proxy| windows.record(proxy, &many, |_| Rate::ops_per_sec(100)));
        assert_eq!((windows.proxies[&0].len(), windows.count), (PROXY_WINDOWS_MAX, WINDOWS_MAX));
        (0..6).for_each(|second| windows.step(|_| true, time(second)));
        assert_eq!((windows.proxies.len(), windows.count), (0, 0));
    }
}
