//! Points and spans of time, in nanoseconds.
//!
//! The core never reads a clock: callers pass a [`Time`], counted from an origin of their own (the
//! proxy's start, the simulation's zero).

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{ParseUnitError, split_number};

/// A point in time: nanoseconds since the caller's origin.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(u64);

/// A span of time in nanoseconds; the text form is `250ns`, `10us`, `1.5ms`, `2s`, `5min`, `1h`.
///
/// Parsing accepts `5m`, `7d` and `1w` as well; they are printed as minutes and hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Time {
    /// The origin of the caller.
    pub const ZERO: Time = Time(0);
    /// Later than every other point.
    pub const MAX: Time = Time(u64::MAX);

    /// A point `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` before this one; the origin if there is none.
    pub const fn before(self, span: Nanos) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Add<Nanos> for Time {
    type Output = Time;
    fn add(self, span: Nanos) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Nanos {
    /// The empty span of time.
    pub const ZERO: Nanos = Nanos(0);

    /// A span of `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Nanos {
        Nanos(nanos)
    }

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros * 1_000)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs * 1_000_000_000)
    }

    /// The span as a plain count of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span as the standard library's type, for the shells that wait.
    pub const fn to_duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

/// The units that are printed.
const SPANS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Additional units that are read.
const SPANS_READ: [(&str, u64); 3] =
    [("m", 60_000_000_000), ("d", 86_400_000_000_000), ("w", 604_800_000_000_000)];

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        for (name, size) in SPANS {
            if self.0.is_multiple_of(size) {
                return write!(f, "{}{name}", self.0 / size);
            }
        }
        unreachable!("every count is a multiple of one nanosecond")
    }
}

impl FromStr for Nanos {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Nanos, ParseUnitError> {
        const WANT: &str = "a span of time such as 10ms, 2s or 5min";
        let (number, unit) = split_number(text, WANT)?;
        let unit = if unit == "µs" { "us" } else { unit };
        let size =
            SPANS.iter().chain(&SPANS_READ).find(|(name, _)| *name == unit).map(|(_, size)| *size);
        match size {
            Some(size) => number.times(size, text, WANT).map(Nanos),
            None if unit.is_empty() && number.is_zero() => Ok(Nanos(0)),
            None => Err(ParseUnitError::new(text, WANT)),
        }
    }
}

crate::serde_as_text!(Nanos, "a span of time such as 10ms, 2s or 5min");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_parse_and_print_both_ways() {
        for text in ["0s", "1ns", "250ns", "10us", "15ms", "2s", "5min", "3h"] {
            assert_eq!(text.parse::<Nanos>().unwrap().to_string(), text);
        }
        assert_eq!("1.5ms".parse::<Nanos>().unwrap(), Nanos::from_micros(1500));
        assert_eq!("90s".parse::<Nanos>().unwrap().to_string(), "90s");
        for (text, printed) in [("15m", "15min"), ("7d", "168h"), ("1w", "168h"), ("0.5d", "12h")] {
            assert_eq!(text.parse::<Nanos>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn a_span_that_does_not_fit_is_refused() {
        for text in ["36500000d", "213504d", "30501w", "99999999999999999999d"] {
            assert!(text.parse::<Nanos>().is_err(), "{text}");
        }
        assert!("213503d".parse::<Nanos>().is_ok());
    }

    #[test]
    fn a_span_without_a_unit_is_refused_and_named() {
        let error = "10".parse::<Nanos>().unwrap_err().to_string();
        assert_eq!(error, "\"10\" is not a span of time such as 10ms, 2s or 5min");
    }
}
