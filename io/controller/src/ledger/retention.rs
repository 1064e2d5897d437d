//! Retention: how long sums are kept, and how finely.
//!
//! ```text
//!   now ◄── 2 days ──►◄──── 30 days ────►◄──────── 2 years ────────► dropped
//!          points of 1 min    of 10 min          of 1 h
//! ```
//!
//! A point is named by its first minute, counted from 1970. A coarser point contains whole finer
//! ones, so ageing moves sums and never splits them.

use std::fmt;

use model::{Nanos, Time};

/// One retention tier: points of `resolution` until they are `max_age` old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionTier {
    /// The span of a point: whole minutes, and a multiple of that of the tier before.
    pub resolution: Nanos,
    /// The age up to which points are kept in this tier.
    pub max_age: Nanos,
}

/// The tiers in order, the finest first: at least one, of one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention(Vec<RetentionTier>);

/// Tiers that are not valid for a ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a retention tier: {want}", age.map_or("nothing".into(), |age| age.to_string()))]
pub struct RetentionError {
    age: Option<RetentionTier>,
    want: &'static str,
}

/// A minute since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(u32);

impl Retention {
    /// Checks that each tier is coarser than the one before, holds its points whole, and keeps them
    /// longer.
    pub fn new(ages: Vec<RetentionTier>) -> Result<Retention, RetentionError> {
        let wrong = |age: &RetentionTier, want| Err(RetentionError { age: Some(*age), want });
        let Some(first) = ages.first() else {
            return Err(RetentionError { age: None, want: "the first one has points of 1min" });
        };
        if first.resolution != MINUTE {
            return wrong(first, "the first one has points of 1min");
        }
        for age in &ages {
            if age.max_age < age.resolution.times(POINTS.into()) {
                return wrong(age, "points are kept for at least 60 times their span");
            }
            if age.max_age.get() > CENTURY.get() || age.resolution.get() % MINUTE.get() != 0 {
                return wrong(age, "points span whole minutes and are kept for at most 100 years");
            }
        }
        for pair in ages.windows(2) {
            let (finer, coarser) = (&pair[0], &pair[1]);
            if coarser.resolution <= finer.resolution
                || coarser.resolution.get() % finer.resolution.get() != 0
            {
                return wrong(coarser, "its span is a multiple of the one before");
            }
            if coarser.max_age <= finer.max_age {
                return wrong(coarser, "it is kept longer than the one before");
            }
        }
        Ok(Retention(ages))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the minutes of a point.
    pub(crate) fn span(&self, age: usize) -> u32 {
        (self.0[age].resolution.get() / MINUTE.get()) as u32
    }

    /// Returns the minutes that the points of one chunk cover.
    pub(crate) fn chunk_span(&self, age: usize) -> u32 {
        self.span(age) * POINTS
    }

    /// Returns the point of that tier that contains a minute.
    pub(crate) fn point(&self, age: usize, minute: Minute) -> Minute {
        Minute(minute.0 - minute.0 % self.span(age))
    }

    /// Returns the first minute of the chunk of that tier that contains a minute.
    pub(crate) fn chunk(&self, age: usize, minute: Minute) -> Minute {
        Minute(minute.0 - minute.0 % self.chunk_span(age))
    }

    /// Returns the oldest minute of the tier.
    pub(crate) fn oldest(&self, age: usize, now: Minute) -> Minute {
        let minutes = (self.0[age].max_age.get() / MINUTE.get()) as u32;
        Minute(now.0.saturating_sub(minutes))
    }
}

impl Default for Retention {
    /// 1 minute for 2 days, 10 minutes for 30 days, 1 hour for 2 years.
    fn default() -> Retention {
        let age = |resolution_s, days: u64| RetentionTier {
            resolution: Nanos::from_secs(resolution_s),
            max_age: Nanos::from_secs(days * 86_400),
        };
        Retention::new(vec![age(60, 2), age(600, 30), age(3_600, 730)]).expect("each is coarser")
    }
}

impl fmt::Display for RetentionTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"points of {} for {}\"", self.resolution, self.max_age)
    }
}

impl Minute {
    /// Returns the minute of a point in time, counted from 1970.
    pub fn of(time: Time) -> Minute {
        let minutes = time.as_nanos() / MINUTE.get();
        Minute(u32::try_from(minutes).expect("u64 nanoseconds hold 307 million minutes"))
    }

    /// Returns its number since 1970.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Makes the minute of that number since 1970.
    pub const fn new(number: u32) -> Minute {
        Minute(number)
    }

    /// Returns the minute that is `minutes` later.
    pub const fn plus(self, minutes: u32) -> Minute {
        Minute(self.0.saturating_add(minutes))
    }
}

/// The most points of a chunk.
pub(crate) const POINTS: u32 = 60;
const MINUTE: Nanos = Nanos::from_secs(60);
const CENTURY: Nanos = Nanos::from_secs(100 * 366 * 86_400);

trait TierTimes {
    fn times(self, count: u64) -> Nanos;
}

impl TierTimes for Nanos {
    fn times(self, count: u64) -> Nanos {
        Nanos::new(self.get().saturating_mul(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(resolution: &str, keep: &str) -> RetentionTier {
        RetentionTier { resolution: resolution.parse().unwrap(), max_age: keep.parse().unwrap() }
    }

    #[test]
    fn ages_that_would_split_a_point_or_lose_one_are_refused_and_named() {
        for (ages, told) in [
            (vec![], "nothing"),
            (vec![age("10min", "48h")], "10min"),
            (vec![age("1min", "48h"), age("90s", "96h")], "90s"),
            (vec![age("1min", "48h"), age("10min", "96h"), age("15min", "192h")], "15min"),
            (vec![age("1min", "48h"), age("10min", "48h")], "10min"),
            (vec![age("1min", "5min")], "60 times"),
        ] {
            let error = Retention::new(ages).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_point_lies_where_its_first_minute_does() {
        let ages = Retention::default();
        let minute = Minute::of(Time::from_nanos(3_600_000_000_000 * 25 + 59));
        assert_eq!(minute.number(), 1_500);
        assert_eq!(ages.point(1, Minute(1_509)), Minute(1_500));
        assert_eq!(ages.chunk(0, Minute(1_509)), Minute(1_500));
        assert_eq!(ages.chunk(1, Minute(1_509)), Minute(1_200));
        assert_eq!(ages.oldest(0, Minute(10_000)), Minute(10_000 - 2_880));
    }
}
