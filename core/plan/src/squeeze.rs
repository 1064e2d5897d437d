//! What the requests without a reservation keep of a target's slots while a reservation lags.
//!
//! ```text
//!   a proxy's claim: the lag grows ─► the half, each tick, down to 1/256
//!                    it catches up ─► as it is
//!                    none lags     ─► twice as much each tick up to half of where the trouble began,
//!                                     then a quarter more each 300 ms, up to all
//! ```
//!
//! Shares count slots, and slots in flight are not service. Where D is more than the target serves at
//! once, or the target is slower than it was calibrated, requests that have no more than their slots
//! take from a reservation what the target queues. What a target really does shows in what the
//! reservation is served. So this is congestion control: slow start and multiplicative decrease as in
//! TCP (Jacobson 1988). All proxies are squeezed alike, so their shares stay in proportion.

use std::collections::BTreeMap;

use model::{Nanos, ReservationLag, Share, Time};

/// The squeeze of one target.
#[derive(Debug)]
pub(crate) struct Squeeze {
    /// The part of what goes by weight that is given out.
    part: Share,
    /// Above this part it is raised slowly.
    slow_from: Share,
    /// When the part changed last.
    changed: Time,
    /// Whether the lag grew in the last step.
    grew: bool,
    /// The proxies with a reservation that lags, by number.
    lags: BTreeMap<u32, ReservationLag>,
}

impl Default for Squeeze {
    fn default() -> Squeeze {
        Squeeze {
            part: Share::WHOLE,
            slow_from: Share::WHOLE,
            changed: Time::ZERO,
            grew: false,
            lags: BTreeMap::new(),
        }
    }
}

impl Squeeze {
    /// The part of what goes by weight that is given out.
    pub(crate) fn part(&self) -> Share {
        self.part
    }

    /// Handles what a proxy reports of its reservations.
    pub(crate) fn record(&mut self, id: u32, lag: ReservationLag) {
        match lag {
            ReservationLag::None => self.lags.remove(&id),
            lag => self.lags.insert(id, lag),
        };
    }

    /// Whether there is a step to do each tick.
    pub(crate) fn is_active(&self) -> bool {
        !self.part.is_whole() || !self.lags.is_empty()
    }

    /// Does the step of a tick; returns whether the part changed. `counts` says which proxies count:
    /// one that is unreachable reports nothing.
    pub(crate) fn step(&mut self, counts: impl Fn(u32) -> bool, now: Time) -> bool {
        let lags = self.lags.iter().filter(|(id, _)| counts(**id));
        let lag = lags.map(|(_, lag)| *lag).max().unwrap_or_default();
        let grows = lag == ReservationLag::Growing;
        let begins = grows && !std::mem::replace(&mut self.grew, grows);
        let half = self.part.shared_by(2).max(LEAST);
        if begins {
            self.slow_from = half;
        }
        let part = match lag {
            ReservationLag::Growing => half,
            ReservationLag::CatchingUp => self.part,
            ReservationLag::None if self.part < self.slow_from => {
                self.part.times(2).min(self.slow_from)
            }
            ReservationLag::None if now.since(self.changed) < RAISED_EVERY => self.part,
            ReservationLag::None => self.part.plus(self.part.shared_by(4)),
        };
        let has_changed = part != self.part;
        if has_changed {
            (self.part, self.changed) = (part, now);
        }
        has_changed
    }
}

/// The least part: 1/256.
const LEAST: Share = Share::ratio(1, 256);
/// How often the part is raised slowly.
const RAISED_EVERY: Nanos = Nanos::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = 1_000_000_000;

    /// The part after each of some ticks, in parts of 256.
    fn ticks(squeeze: &mut Squeeze, from: u64, count: u64) -> Vec<u64> {
        let step = |at: u64| {
            squeeze.step(|_| true, Time::from_nanos((from + at) * 100_000_000));
            (u64::from(squeeze.part().billionths()) * 256).div_ceil(ALL.into())
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn a_lag_that_grows_halves_the_part_and_one_that_shrinks_keeps_it() {
        let mut squeeze = Squeeze::default();
        squeeze.record(7, ReservationLag::Growing);
        squeeze.record(8, ReservationLag::CatchingUp);
        assert_eq!(ticks(&mut squeeze, 10, 3), [128, 64, 32]);
        squeeze.record(7, ReservationLag::CatchingUp);
        assert_eq!(ticks(&mut squeeze, 13, 2), [32, 32]);
        squeeze.record(7, ReservationLag::Growing);
        assert_eq!(ticks(&mut squeeze, 15, 7), [16, 8, 4, 2, 1, 1, 1]);
    }

    #[test]
    fn without_a_lag_the_part_doubles_up_to_where_the_trouble_began_and_then_grows_slowly() {
        let mut squeeze = Squeeze::default();
        squeeze.record(7, ReservationLag::Growing);
        ticks(&mut squeeze, 10, 5);
        squeeze.record(7, ReservationLag::None);
        assert_eq!(ticks(&mut squeeze, 15, 5), [16, 32, 64, 128, 128]);
        assert_eq!(ticks(&mut squeeze, 20, 5), [128, 160, 160, 160, 200]);
        ticks(&mut squeeze, 25, 20);
        assert!(squeeze.part().is_whole() && !squeeze.is_active());
    }

    #[test]
    fn a_proxy_that_is_unreachable_squeezes_no_others() {
        let mut squeeze = Squeeze::default();
        squeeze.record(7, ReservationLag::Growing);
        assert!(!squeeze.step(|id| id != 7, Time::ZERO));
        assert!(squeeze.part().is_whole());
    }
}
