//! Points of time as people write them: one grammar for every command and the HTTP API.
//!
//! ```text
//!   text ─► Moment ─┬─ now, a zone ─► resolve_past, _future, _any ─► Time, counted from 1970
//!                   └─ now ─────────► resolve_without_zone ───────► Time, or an error: it needs a zone
//! ```
//!
//! The core knows neither what time it is nor where: both are passed in.

use std::str::FromStr;

use crate::civil::{CivilTime, FixedZone, Zone};
use crate::time::{Nanos, Time};

/// A point of time as it is written, before it is resolved.
///
/// `90s`, `15m`, `1h`, `7d`, `1w`, each also with a `-`; `now`, `today`, `yesterday`;
/// `2026-11-23`, `2026-11-23T14:00`, with seconds, with `Z` or an offset; seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A span before or after now.
    Span {
        /// The length of the span.
        span: Nanos,
        /// Whether it is written with a `-`: then it is never in the future.
        minus: bool,
    },
    /// The current time, `now`.
    Now,
    /// The midnight that this day began with.
    Today,
    /// The midnight that the day before began with.
    Yesterday,
    /// A date and time of a clock, of a zone if one is named.
    Civil(CivilTime, Option<FixedZone>),
    /// The seconds since 1970.
    Unix(Time),
}

/// The reason why a text does not name an allowed point of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// The text does not follow the grammar.
    #[error("not a time such as 30d, 1w, yesterday, 2026-11-23, 2026-11-23T14:00 or 1767225600")]
    NotAMoment,
    /// The text is a date, and the calendar has no such day or the day no such time.
    #[error("the calendar has no such date or time of day")]
    NotInCalendar,
    /// The point is before 1970, or so late that nanoseconds since then do not fit.
    #[error("not a time from 1970 to 2553")]
    OutOfRange,
    /// The point must be in the past.
    #[error("this time is in the future; use a past one")]
    Future,
    /// The point must be in the future.
    #[error("this time is in the past; use a future one")]
    Past,
    /// The text means a different point in each zone.
    #[error("no time zone; add Z or an offset, as in 2026-11-23T14:00Z or 2026-11-23T14:00+01:00")]
    NoZone,
}

impl Moment {
    /// Resolves the point in the past: a span counts back from now. A span that reaches behind 1970
    /// ends there.
    ///
    /// # Errors
    /// If it is later than `now`, or earlier than 1970.
    pub fn resolve_past(self, zone: &impl Zone, now: Time) -> Result<Time, MomentError> {
        let at = self.resolve(Some(zone), now)?;
        if at > now { Err(MomentError::Future) } else { Ok(at) }
    }

    /// Resolves the point in the past or the future, for the end of a span of time.
    ///
    /// # Errors
    /// If it is earlier than 1970, or too late for [`Time`].
    pub fn resolve_any(self, zone: &impl Zone, now: Time) -> Result<Time, MomentError> {
        self.resolve(Some(zone), now)
    }

    /// Resolves the point in the future: a span counts from now on.
    ///
    /// # Errors
    /// If it is not later than `now`, or too late for [`Time`].
    pub fn resolve_future(self, zone: &impl Zone, now: Time) -> Result<Time, MomentError> {
        let at = match self {
            Moment::Span { span, minus: false } => {
                let nanos = now.as_nanos().checked_add(span.get());
                nanos.map(Time::from_nanos).ok_or(MomentError::OutOfRange)?
            }
            moment => moment.resolve(Some(zone), now)?,
        };
        if at <= now { Err(MomentError::Past) } else { Ok(at) }
    }

    /// Resolves the point for a caller whose zone is unknown: a span counts back from now.
    ///
    /// # Errors
    /// If it means a different point in each zone, as a date without a zone does.
    pub fn resolve_without_zone(self, now: Time) -> Result<Time, MomentError> {
        self.resolve(None::<&FixedZone>, now)
    }

    fn resolve(self, zone: Option<&impl Zone>, now: Time) -> Result<Time, MomentError> {
        let zone = zone.ok_or(MomentError::NoZone);
        let point = match self {
            Moment::Now => return Ok(now),
            Moment::Unix(at) => return Ok(at),
            Moment::Span { span, .. } => return Ok(now.before(span)),
            Moment::Civil(shown, Some(zone)) => zone.time_of(shown),
            Moment::Civil(shown, None) => zone?.time_of(shown),
            Moment::Today => {
                let zone = zone?;
                zone.time_of(zone.civil_time_at(now).midnight())
            }
            Moment::Yesterday => {
                let zone = zone?;
                zone.time_of(zone.civil_time_at(now).midnight().day_before())
            }
        };
        point.ok_or(MomentError::OutOfRange)
    }
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Moment, MomentError> {
        match text {
            "now" => return Ok(Moment::Now),
            "today" => return Ok(Moment::Today),
            "yesterday" => return Ok(Moment::Yesterday),
            _ => {}
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let nanos = text.parse::<u64>().ok().and_then(|s| s.checked_mul(1_000_000_000));
            return nanos.map(|n| Moment::Unix(Time::from_nanos(n))).ok_or(MomentError::OutOfRange);
        }
        if let Some(civil) = civil(text) {
            return civil;
        }
        let (minus, span) = match text.strip_prefix('-') {
            Some(span) => (true, span),
            None => (false, text),
        };
        let span = span.parse().map_err(|_| MomentError::NotAMoment)?;
        Ok(Moment::Span { span, minus })
    }
}

/// Reads a date as ISO 8601 writes it, perhaps with a time of day and a zone; `None` if the text
/// does not begin as one.
fn civil(text: &str) -> Option<Result<Moment, MomentError>> {
    let [year, month, day] = numbers(text.get(..10)?, '-', [4, 2, 2])?;
    let date = [year, month, day];
    let Some(clock_and_zone) = text[10..].strip_prefix('T') else {
        let moment = CivilTime::new(date, [0; 3]).map(|shown| Moment::Civil(shown, None));
        let end = text.len() == 10;
        return Some(if end {
            moment.ok_or(MomentError::NotInCalendar)
        } else {
            Err(MomentError::NotAMoment)
        });
    };
    let zone_at = clock_and_zone.find(['Z', '+', '-']).unwrap_or(clock_and_zone.len());
    let (clock, zone) = clock_and_zone.split_at(zone_at);
    let with_seconds = numbers(clock, ':', [2, 2, 2]);
    let clock = with_seconds.or_else(|| numbers(clock, ':', [2, 2]).map(|[h, m]| [h, m, 0]));
    let zone = if zone.is_empty() { Some(None) } else { offset(zone).map(Some) };
    let (Some(clock), Some(zone)) = (clock, zone) else {
        return Some(Err(MomentError::NotAMoment));
    };
    let shown = CivilTime::new(date, clock).map(|shown| Moment::Civil(shown, zone));
    Some(shown.ok_or(MomentError::NotInCalendar))
}

/// Reads a zone: `Z`, `+01:00`, `+0100` or `+01`.
fn offset(text: &str) -> Option<FixedZone> {
    if text == "Z" {
        return Some(FixedZone::UTC);
    }
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let [hours, minutes] = match digits.len() {
        2 => numbers(digits, ':', [2]).map(|[hours]| [hours, 0])?,
        4 => [numbers(digits.get(..2)?, ':', [2])?[0], numbers(digits.get(2..)?, ':', [2])?[0]],
        _ => numbers(digits, ':', [2, 2])?,
    };
    let seconds = i32::from(hours) * 3_600 + i32::from(minutes) * 60;
    FixedZone::east_of_utc(sign * seconds).filter(|_| minutes < 60)
}

/// Reads numbers of a given number of digits each, with a mark between them.
fn numbers<const N: usize>(text: &str, mark: char, digits: [usize; N]) -> Option<[u16; N]> {
    let mut words = text.split(mark);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let word = words.next()?;
        let is_number = word.len() == digits && word.bytes().all(|byte| byte.is_ascii_digit());
        *number = is_number.then(|| word.parse().ok())??;
    }
    words.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests;
