//! The clock that reservations are due by.
//!
//! ```text
//!   real time ───────────────────────────────────────────►
//!   reserved  ────────────────╱‾‾ slower: the most overdue head may lag by 500 ms
//!             all are kept     more is reserved than the device gives: every reservation is
//!                              kept to the same part, C / Σr
//! ```
//!
//! With each reservation in real time, those that cannot all be kept depend on which is more
//! overdue. With an unbounded lag some get all and others nothing, with a bounded one each gets the
//! same number of requests (docs/algorithms/baselines.md). With one clock that slows down, each
//! gets the same part of its reservation. The capacity of the device need not be known.
//!
//! The shortfall follows from the time that was lost at dispatches and from what is overdue now: a
//! device that is stuck dispatches nothing.
//!
//! Each time that it has lost the bound, each R goes back by what was lost, as far as R went without
//! service of the device: by what the cache served, by credit that was forgotten, or since its
//! reservation began ([`ReservationClock::take_lost`]). Else such a class would wait as long as a
//! device was stuck. What the device served stays, so that each has the same part of its reservation.

use model::{Nanos, Time};

use crate::pacer::RESERVATION_CATCH_UP_NS;

/// The window over which the shortfall of reservations is computed.
const WINDOW_NS: u64 = 1_000_000_000;

/// The whole, in parts per million.
const WHOLE: u64 = 1_000_000;

/// How far the reservations' time is behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservationClock {
    lost_ns: u64,
    /// What single reservations lost, by which the clock is not slower.
    own_lost_ns: u64,
    /// What was lost when all followed last.
    taken_ns: u64,
    /// When the window began, and what was lost by then.
    window: (Time, u64),
    cut_ppm: u64,
}

impl ReservationClock {
    pub(super) fn new() -> ReservationClock {
        let window = (Time::ZERO, 0);
        ReservationClock { lost_ns: 0, own_lost_ns: 0, taken_ns: 0, window, cut_ppm: 0 }
    }

    /// The reservations' time at a time.
    pub(super) fn at(&self, now: Time) -> Time {
        Time::from_nanos(now.as_nanos().saturating_sub(self.lost_ns))
    }

    /// When it will be this time for reservations, if nothing slows them down.
    pub(super) fn when(&self, due: Time) -> Time {
        Time::from_nanos(due.as_nanos().saturating_add(self.lost_ns))
    }

    /// Handles how far the most overdue head lags, since it could have gone: what is beyond the
    /// bound is lost for all. (A head that arrived after its due time counts from its arrival. A class
    /// that has not used all of its reservation has credit, but no head of it is late.) If it waited
    /// for slots that its own reservation had in use (`for_own`), no other one is the slower for that.
    pub(super) fn lose(&mut self, lag_ns: u64, for_own: bool) {
        let lost = if for_own { &mut self.own_lost_ns } else { &mut self.lost_ns };
        *lost += lag_ns.saturating_sub(RESERVATION_CATCH_UP_NS);
    }

    /// Whether all have lost as much as the bound since this was so last.
    pub(super) fn take_lost(&mut self) -> bool {
        let is_much = self.lost_ns - self.taken_ns >= RESERVATION_CATCH_UP_NS;
        if is_much {
            self.taken_ns = self.lost_ns;
        }
        is_much
    }

    /// Ends a window that is over. Returns when the next one is.
    pub(super) fn advance(&mut self, now: Time) -> Time {
        let (since, lost) = self.window;
        let span = now.since(since).get();
        if span >= WINDOW_NS {
            self.cut_ppm = part(self.all_lost() - lost, span);
            self.window = (now, self.all_lost());
        }
        self.window.0 + Nanos::new(WINDOW_NS)
    }

    /// The part of the reservations that could not be kept in the last second, in parts per
    /// million, where the most overdue head lags by `lag_ns`. Lag beyond the bound is lost when the
    /// head is dispatched; with a device that dispatches nothing it must be counted before.
    pub(super) fn cut_ppm(&self, lag_ns: u64, now: Time) -> u64 {
        let (since, before) = self.window;
        let (lost, span) = (self.all_lost() - before, now.since(since).get());
        let (told, running) = match span >= WINDOW_NS {
            true => (part(lost, span), 0),
            false => (self.cut_ppm, lost),
        };
        let overdue = lag_ns.saturating_sub(RESERVATION_CATCH_UP_NS);
        told.max(part(running.saturating_add(overdue), WINDOW_NS))
    }

    fn all_lost(&self) -> u64 {
        self.lost_ns.saturating_add(self.own_lost_ns)
    }
}

/// What `lost` is of `span`, in parts per million and at most all of it.
fn part(lost: u64, span: u64) -> u64 {
    WHOLE.min((u128::from(lost) * u128::from(WHOLE) / u128::from(span)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Time {
        Time::from_nanos(count * 1_000_000)
    }

    fn dispatch(clock: &mut ReservationClock, due: Time, for_own: bool, now: Time) {
        clock.lose(clock.at(now).since(due).get(), for_own);
    }

    #[test]
    fn a_lag_within_the_bound_costs_nothing_and_what_is_beyond_it_is_lost_for_all() {
        let mut clock = ReservationClock::new();
        dispatch(&mut clock, ms(1000), false, ms(1500));
        assert_eq!((clock.at(ms(1500)), clock.when(ms(1600))), (ms(1500), ms(1600)));
        dispatch(&mut clock, ms(1000), false, ms(1700));
        assert_eq!((clock.at(ms(1700)), clock.when(ms(1600))), (ms(1500), ms(1800)));
    }

    #[test]
    fn what_a_reservation_waits_for_its_own_slots_is_cut_and_lost_for_no_other() {
        let mut clock = ReservationClock::new();
        dispatch(&mut clock, ms(0), true, ms(700));
        assert_eq!((clock.at(ms(700)), clock.cut_ppm(0, ms(700))), (ms(700), 200_000));
    }

    #[test]
    fn the_part_that_is_cut_is_told_for_each_second() {
        let mut clock = ReservationClock::new();
        dispatch(&mut clock, ms(0), false, ms(900));
        clock.advance(ms(900));
        assert_eq!(clock.cut_ppm(0, ms(900)), 400_000, "at least, of a second that is not over");
        clock.advance(ms(1000));
        assert_eq!(clock.cut_ppm(0, ms(1000)), 400_000);
        assert_eq!(clock.cut_ppm(0, ms(1999)), 400_000);
        clock.advance(ms(2000));
        assert_eq!(clock.cut_ppm(0, ms(2000)), 0);
    }

    #[test]
    fn what_is_overdue_beyond_the_bound_counts_before_it_is_dispatched() {
        let mut clock = ReservationClock::new();
        clock.advance(ms(1000));
        let lag = |ms: u64| ms * 1_000_000;
        assert_eq!(clock.cut_ppm(lag(500), ms(1500)), 0);
        assert_eq!(clock.cut_ppm(lag(750), ms(1750)), 250_000);
        // No call for ten seconds, or arrivals that ended a second each: the result is the same.
        assert_eq!(clock.cut_ppm(lag(10_000), ms(11_000)), 1_000_000);
        clock.advance(ms(10_900));
        assert_eq!(clock.cut_ppm(lag(10_000), ms(11_000)), 1_000_000);
        // It goes at last: nothing is overdue, but until now it was.
        dispatch(&mut clock, ms(1000), false, ms(11_000));
        assert_eq!(clock.cut_ppm(0, ms(11_100)), 1_000_000);
        clock.advance(ms(11_900));
        clock.advance(ms(12_900));
        assert_eq!(clock.cut_ppm(0, ms(12_900)), 0);
    }
}
