//! Whether a reservation is served its rate, as the controller of the slots is to know it.
//!
//! ```text
//!   tick: the class had requests all the time ─► lacks += span − what it was served / rate
//!                                                │ from 30 ms on it lags, until 10 ms
//!                                                ▼
//!        served less than its rate: Growing    served as much or more: CatchingUp
//!                 └─ for 1.2 s, and hardly more than before: others are not the reason ─► None, 60 s
//! ```
//!
//! The tag R does not show it: a head lags only while it waits here, and with more slots than the
//! target serves at once all requests are in flight. Nor does R alone: a job that asks for less than
//! its rate is always behind it, too. Which of both it is shows in what helps. While a reservation
//! lags, others get less of the slots. If the class is served no more for that, it waits for its own
//! client, or for something that no other request delays.

use model::{Nanos, ReservationLag, Time};

use crate::pacer::RESERVATION_CATCH_UP_NS;

/// The service of one reservation, tick by tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceLag {
    /// What it was not served, as the time of its rate.
    lacks_ns: u64,
    /// Units a second when the lag began, or when it was not reported any more; and lately.
    before: u64,
    lately: u64,
    /// Ticks since the lag began; 0 without one.
    ticks: u8,
    /// Whether its class was without requests since the last tick.
    had_gap: bool,
    /// Until then no lag is reported, unless it is served much more or less for that.
    pause: Time,
}

/// What a reservation was served in a tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedTick {
    /// Units of its rate.
    pub(super) units: u64,
    /// The units of a second, of the share here.
    pub(super) per_sec: u64,
    /// The length of the tick.
    pub(super) span: Nanos,
    /// How far its tag R is behind: it is owed no more.
    pub(super) overdue: Nanos,
}

impl ServiceLag {
    /// Notes that the class has no requests.
    pub(super) fn note_gap(&mut self) {
        self.had_gap = true;
    }

    /// Whether its class was without requests since the last tick.
    pub(super) fn had_gap(&self) -> bool {
        self.had_gap
    }

    /// Whether the reservation lags now.
    pub(super) fn is_late(&self) -> bool {
        self.ticks > 0
    }

    /// Counts a tick; `None`: the class has no requests, or a limit delays them.
    pub(super) fn tick(&mut self, served: Option<ServedTick>, now: Time) -> ReservationLag {
        let had_gap = std::mem::take(&mut self.had_gap);
        let served = served.filter(|of| !had_gap && of.per_sec > 0 && of.span > Nanos::ZERO);
        let Some(ServedTick { units, per_sec, span, overdue }) = served else {
            (self.lacks_ns, self.ticks) = (0, 0);
            return ReservationLag::None;
        };
        let service = ratio(units, 1_000_000_000, span.get());
        self.lately = match self.lately {
            0 => service,
            lately => lately - lately / 8 + service / 8,
        };
        // Without the lag that it reported it was served as much: others are not the reason.
        let alike = self.before / 8 * 5..=self.before.saturating_add(self.before / 2);
        if now < self.pause && alike.contains(&self.lately) {
            return ReservationLag::None;
        }
        self.pause = Time::ZERO;
        let served_ns = ratio(units, 1_000_000_000, per_sec);
        let lacks = self.lacks_ns.saturating_add(span.get()).saturating_sub(served_ns);
        self.lacks_ns = lacks.min(overdue.get()).min(RESERVATION_CATCH_UP_NS);
        match self.ticks {
            0 if self.lacks_ns < BEGINS_NS => return ReservationLag::None,
            // A tick may have no request of a slow class.
            0 => self.before = service.max(self.lately.min(per_sec) / 4),
            _ if self.lacks_ns < ENDS_NS => {
                self.ticks = 0;
                return ReservationLag::None;
            }
            _ => {}
        }
        self.ticks = self.ticks.saturating_add(1);
        let helped = (per_sec - per_sec / 32).min(self.before.saturating_add(self.before / 4));
        let pause = match self.ticks {
            JUDGED_FROM.. if self.lately < helped => HOPELESS,
            u8::MAX => MEASURED_AGAIN,
            _ if served_ns < span.get() => return ReservationLag::Growing,
            _ => return ReservationLag::CatchingUp,
        };
        (self.pause, self.before) = (now + pause, self.lately);
        (self.ticks, self.lacks_ns) = (0, 0);
        ReservationLag::None
    }
}

fn ratio(of: u64, times: u64, by: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(times) / u128::from(by)).unwrap_or(u64::MAX)
}

/// From when on a reservation lags, and until when. With a lag of at most this much a span of 5 s has
/// 99 % of the rate.
const BEGINS_NS: u64 = 30_000_000;
const ENDS_NS: u64 = 10_000_000;
/// Ticks after which others have so little that it shows whether that helps.
const JUDGED_FROM: u8 = 12;
/// How long nothing is reported of a reservation that others do not delay.
const HOPELESS: Nanos = Nanos::from_secs(60);
/// After 25 s of lag others get their slots back for so long, and what is served then is the measure.
const MEASURED_AGAIN: Nanos = Nanos::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Nanos = Nanos::from_millis(100);

    /// A reservation of 1000 units a second.
    struct Ticks {
        lag: ServiceLag,
        at: u64,
    }

    impl Ticks {
        fn new() -> Ticks {
            Ticks { lag: ServiceLag::default(), at: 0 }
        }

        fn tick(&mut self, units: u64) -> ReservationLag {
            self.at += 1;
            let overdue = Nanos::from_secs(1);
            let served = ServedTick { units, per_sec: 1_000, span: TICK, overdue };
            self.lag.tick(Some(served), Time::from_nanos(self.at * TICK.get()))
        }
    }

    #[test]
    fn a_class_that_is_served_less_lags_until_it_has_caught_up() {
        use ReservationLag::{CatchingUp, Growing, None};
        let mut of = Ticks::new();
        let lags = [100, 90, 90, 30, 30, 150, 140, 100, 130].map(|units| of.tick(units));
        let growing = [None, None, None, Growing, Growing];
        assert_eq!((&lags[..5], &lags[5..]), (&growing[..], &[CatchingUp; 4][..]));
        assert_eq!(of.tick(140), None, "160 ms were lacking");
    }

    #[test]
    fn a_class_that_no_other_delays_is_left_alone() {
        let mut of = Ticks::new();
        let lags: Vec<_> = (0..600).map(|at| of.tick(10 + at % 2)).collect();
        let growing = lags.iter().filter(|lag| **lag == ReservationLag::Growing).count();
        assert_eq!(growing, usize::from(JUDGED_FROM) - 1);
        assert!((0..50).any(|_| of.tick(10) == ReservationLag::Growing), "it is tried again");
    }

    #[test]
    fn a_class_that_is_served_more_for_it_lags_for_as_long_as_it_lacks_something() {
        let mut of = Ticks::new();
        let lags: Vec<_> = (0..200).map(|at| of.tick(20 + 6 * at.min(10))).collect();
        assert!(lags.iter().all(|lag| *lag == ReservationLag::Growing), "{lags:?}");
    }

    #[test]
    fn a_class_that_is_served_less_when_it_reports_nothing_lags_again() {
        let mut of = Ticks::new();
        (0..20).for_each(|_| _ = of.tick(50));
        assert!(!of.lag.is_late(), "50 of 100 whatever others have");
        let again = (0..20).position(|_| of.tick(15) == ReservationLag::Growing);
        assert!(again.is_some_and(|ticks| ticks < 10), "{again:?}");
    }

    #[test]
    fn a_pause_of_its_client_is_no_lag() {
        let mut of = Ticks::new();
        of.lag.note_gap();
        assert_eq!(of.tick(0), ReservationLag::None);
        assert_eq!(of.tick(0), ReservationLag::Growing);
        of.lag.note_gap();
        assert_eq!((of.tick(0), of.lag.is_late()), (ReservationLag::None, false));
    }
}
