//! The clock of the minutes of the ledger, the periods of decays and events.
//!
//! ```text
//!   Clock::System ─► the system's, since 1970
//!   Clock::Moved  ─► moved by a test, which decides when a period ends
//! ```
//!
//! Expiry of tokens and certificates always uses the clock of the system. So do time limits, which
//! a moved clock must not shorten. The calendar of reservations has a [`SteadyClock`]: the clock of
//! the system may be set, and what was promised is not to end or begin with that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use model::{Nanos, Time};

/// The clock of a controller's accounts.
#[derive(Clone, Debug, Default)]
pub enum WallClock {
    /// The clock of the system.
    #[default]
    System,
    /// Nanoseconds since 1970, moved by another holder; never back.
    Moved(Arc<AtomicU64>),
}

impl WallClock {
    /// Returns the time since 1970.
    pub fn now(&self) -> Time {
        match self {
            WallClock::System => system_time(),
            WallClock::Moved(nanos) => Time::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// A clock that begins with the time of day and is not set after that.
#[derive(Debug)]
pub(crate) struct SteadyClock {
    wall: WallClock,
    begins: Time,
    began: Instant,
}

impl SteadyClock {
    /// Begins a clock now, not before a time: the last one that was recorded, maybe by a machine
    /// whose clock is ahead.
    pub(crate) fn begin(wall: WallClock, not_before: Time) -> SteadyClock {
        SteadyClock { begins: wall.now().max(not_before), wall, began: Instant::now() }
    }

    /// Returns the time since 1970; never earlier than before.
    pub(crate) fn now(&self) -> Time {
        match &self.wall {
            WallClock::System => {
                let span = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.begins + Nanos::new(span)
            }
            WallClock::Moved(_) => self.wall.now().max(self.begins),
        }
    }

    /// How far the time of day is from this clock.
    pub(crate) fn offset(&self) -> Duration {
        let (wall, steady) = (self.wall.now(), self.now());
        wall.since(steady).max(steady.since(wall)).to_duration()
    }
}

/// The system's time, since 1970.
pub(crate) fn system_time() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_clock_begins_at_what_was_recorded_and_goes_on_from_there() {
        let hour = Nanos::from_secs(3_600);
        let ahead = system_time() + hour;
        let clock = SteadyClock::begin(WallClock::System, ahead);
        let first = clock.now();
        assert!(first >= ahead && clock.now() >= first);
        assert!(clock.offset() > Duration::from_secs(3_000));
        let moved = Arc::new(AtomicU64::new(5));
        let clock = SteadyClock::begin(WallClock::Moved(moved.clone()), Time::from_nanos(9));
        assert_eq!(clock.now(), Time::from_nanos(9));
        moved.store(12, Ordering::Relaxed);
        assert_eq!(clock.now(), Time::from_nanos(12));
    }
}
