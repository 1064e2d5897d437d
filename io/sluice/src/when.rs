//! Points of time on the command line: `--since`, `--until`, `--expires`, `--at`.
//!
//! ```text
//!   text ─► model::Moment ─ now, the zone of this machine ─► Time ─┬─► a time: tokens, certificates
//!                                                                  └─► a parameter of the HTTP API
//! ```
//!
//! The zone is that of the variable `TZ`, else of `/etc/localtime`. A local time that occurs twice
//! in autumn is the first; one that is skipped in spring is read with the offset before the change.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use model::{CivilTime, FixedZone, Moment, MomentError, Nanos, Time, Zone};

/// A point of time as typed and as resolved.
#[derive(Clone, Debug)]
pub(crate) struct MomentArg {
    moment: Moment,
    at: Time,
    text: String,
}

/// Parses `--since`: a point that is not in the future.
pub(crate) fn since(text: &str) -> Result<MomentArg, MomentError> {
    read(text, |moment, now| moment.resolve_past(&LocalZone::of_this_machine(), now))
}

/// Parses `--until`: any point, as the end of a span may be in the future.
pub(crate) fn until(text: &str) -> Result<MomentArg, MomentError> {
    read(text, |moment, now| moment.resolve_any(&LocalZone::of_this_machine(), now))
}

/// Parses `--expires`: a point 1 s to 36500 d ahead; a span counts from now.
pub(crate) fn expiry(text: &str) -> Result<MomentArg, String> {
    let read = read(text, |moment, now| {
        let at = moment.resolve_future(&LocalZone::of_this_machine(), now)?;
        if at < now + Nanos::from_secs(1) { Err(MomentError::Past) } else { Ok(at) }
    });
    let point = read.map_err(|error| match error {
        MomentError::NotAMoment => "not a time such as 12h, 90d or 2027-01-01".into(),
        error => error.to_string(),
    })?;
    let latest = now() + EXPIRY_MAX;
    if point.at > latest { Err("later than 36500d from now".into()) } else { Ok(point) }
}

/// Parses `--at`: a point ahead; a span counts from now, and a time of day is the next such one.
pub(crate) fn ahead(text: &str) -> Result<MomentArg, String> {
    let zone = LocalZone::of_this_machine();
    if let Some(clock) = clock(text) {
        let at = zone.next(clock, now()).ok_or("no day has this time of day")?;
        return Ok(MomentArg { moment: Moment::Unix(at), at, text: text.into() });
    }
    read(text, |moment, now| moment.resolve_future(&zone, now)).map_err(|error| match error {
        MomentError::NotAMoment => {
            "not a time such as 14:00, 90s, 2026-11-28T14:00 or 1767225600".into()
        }
        error => error.to_string(),
    })
}

/// Reads `14:00` or `14:00:30`.
fn clock(text: &str) -> Option<[u16; 3]> {
    let parts: Vec<_> = text.split(':').collect();
    let is_pair = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !(2..=3).contains(&parts.len()) || !parts.iter().all(is_pair) {
        return None;
    }
    let number = |nth: usize| parts.get(nth).map_or(Some(0), |part| part.parse().ok());
    Some([number(0)?, number(1)?, number(2)?])
}

fn read(
    text: &str,
    resolve: impl Fn(Moment, Time) -> Result<Time, MomentError>,
) -> Result<MomentArg, MomentError> {
    let moment: Moment = text.parse()?;
    Ok(MomentArg { moment, at: resolve(moment, now())?, text: text.into() })
}

impl MomentArg {
    /// Formats a parameter of the HTTP API. A time relative to now stays relative, since the
    /// controller's clock is used.
    pub(crate) fn parameter(&self) -> String {
        match self.moment {
            Moment::Now => "now".into(),
            Moment::Span { span, .. } => format!("-{span}"),
            _ => utc(self.seconds()),
        }
    }

    /// Returns whole seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        self.at.as_nanos() / 1_000_000_000
    }

    /// Returns nanoseconds since 1970.
    pub(crate) fn nanos(&self) -> u64 {
        self.at.as_nanos()
    }

    /// Converts to the type of the system's clock.
    pub(crate) fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.at.as_nanos())
    }

    /// Returns whether it is earlier than another.
    pub(crate) fn is_before(&self, other: &MomentArg) -> bool {
        self.at < other.at
    }

    /// Returns the text as typed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Formats a time in UTC: `2026-11-22T23:05:20Z`.
pub(crate) fn utc(seconds: u64) -> String {
    let at = Time::from_nanos(seconds.saturating_mul(1_000_000_000));
    format!("{}Z", FixedZone::UTC.civil_time_at(at))
}

/// The time zone of this machine.
struct LocalZone(TimeZone);

impl LocalZone {
    fn of_this_machine() -> LocalZone {
        LocalZone(TimeZone::system())
    }

    /// Returns the next point at which clocks show this time of day; `None` if they never do.
    fn next(&self, clock: [u16; 3], now: Time) -> Option<Time> {
        let today = self.civil_time_at(now);
        let noon = self.time_of(CivilTime::new(today.date(), [12, 0, 0])?)?;
        let tomorrow = self.civil_time_at(noon + Nanos::from_secs(86_400));
        let days = [today, tomorrow].into_iter();
        let mut points = days.filter_map(|day| self.time_of(CivilTime::new(day.date(), clock)?));
        points.find(|at| *at > now)
    }
}

impl Zone for LocalZone {
    fn civil_time_at(&self, at: Time) -> CivilTime {
        let shown = i64::try_from(at.as_nanos() / 1_000_000_000).ok();
        let shown = shown.and_then(|seconds| Timestamp::from_second(seconds).ok());
        let shown = shown.map(|at| self.0.to_datetime(at)).and_then(|shown| {
            let [year, month, day] = [shown.year(), shown.month().into(), shown.day().into()];
            let clock = [shown.hour(), shown.minute(), shown.second()];
            let number = |number: i16| u16::try_from(number).ok();
            let date = [number(year)?, number(month)?, number(day)?];
            let [hour, minute, second] = clock.map(|number| u16::try_from(number).ok());
            CivilTime::new(date, [hour?, minute?, second?])
        });
        shown.expect("every Time is within the calendar of jiff, which goes to the year 9999")
    }

    fn time_of(&self, shown: CivilTime) -> Option<Time> {
        let ([year, month, day], [hour, minute, second]) = (shown.date(), shown.clock());
        let small = |number: u16| i8::try_from(number).ok();
        let shown = DateTime::new(
            i16::try_from(year).ok()?,
            small(month)?,
            small(day)?,
            small(hour)?,
            small(minute)?,
            small(second)?,
            0,
        );
        let seconds = u64::try_from(self.0.to_timestamp(shown.ok()?).ok()?.as_second()).ok()?;
        seconds.checked_mul(1_000_000_000).map(Time::from_nanos)
    }
}

pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Describes points of time for --help.
macro_rules! forms_of_time {
    () => {
        "\
TIME is a span before now (90s, 15m, 1h, 7d, 1w), now, today, yesterday, a date (2026-11-23,
2026-11-23T14:00), or seconds since 1970. A date is in this machine's time zone (TZ, or
/etc/localtime), unless Z or an offset follows: 2026-11-23T14:00Z, 2026-11-23T14:00+01:00."
    };
}
pub(crate) use forms_of_time;

/// Describes points of time ahead for --help.
macro_rules! forms_of_time_ahead {
    () => {
        "\
TIME is a span from now (90s, 2h), a time of day (14:00, the next one), a date (2026-11-28,
2026-11-28T14:00), or seconds since 1970. A time of day or date is in this machine's time zone (TZ,
or /etc/localtime), unless Z or an offset follows a date: 2026-11-28T14:00Z."
    };
}
pub(crate) use forms_of_time_ahead;

/// Describes points of time of an expiry for --help.
macro_rules! forms_of_expiry {
    () => {
        "\
TIME is a span from now (12h, 90d, 52w), a date (2027-01-01, 2027-01-01T14:00), or seconds
since 1970. A date is in this machine's time zone (TZ, or /etc/localtime), unless Z or an offset
follows: 2027-01-01T14:00Z, 2027-01-01T14:00+01:00."
    };
}
pub(crate) use forms_of_expiry;

/// A hundred years.
const EXPIRY_MAX: Nanos = Nanos::from_secs(36_500 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> LocalZone {
        // The rule of the zone as TZ may have it, so that no database is needed.
        LocalZone(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap())
    }

    fn in_berlin(text: &str) -> String {
        let now = Time::from_nanos(1_795_487_400_000_000_000);
        let at = text.parse::<Moment>().unwrap().resolve_past(&berlin(), now).unwrap();
        utc(at.as_nanos() / 1_000_000_000)
    }

    #[test]
    fn dates_are_of_the_zone_in_summer_and_in_winter() {
        for (text, at) in [
            ("2026-07-01", "2026-06-30T22:00:00Z"),
            ("2026-11-23T14:00", "2026-11-23T13:00:00Z"),
            ("yesterday", "2026-11-22T23:00:00Z"),
            ("today", "2026-11-23T23:00:00Z"),
            // Twice on this day: the first one.
            ("2026-10-25T02:30", "2026-10-25T00:30:00Z"),
            // Not on this day at all.
            ("2026-03-29T02:30", "2026-03-29T01:30:00Z"),
            ("2026-07-01T00:00Z", "2026-07-01T00:00:00Z"),
        ] {
            assert_eq!(in_berlin(text), at, "{text}");
        }
    }

    #[test]
    fn a_time_of_day_is_the_next_one() {
        // 2026-11-24T03:30 in Berlin.
        let now = Time::from_nanos(1_795_487_400_000_000_000);
        let next = |text: &str| {
            clock(text)
                .and_then(|clock| Some(utc(berlin().next(clock, now)?.as_nanos() / 1_000_000_000)))
        };
        for (text, at) in [
            ("14:00", Some("2026-11-24T13:00:00Z")),
            ("03:30:01", Some("2026-11-24T02:30:01Z")),
            ("03:30", Some("2026-11-25T02:30:00Z")),
            ("00:00", Some("2026-11-24T23:00:00Z")),
            ("24:00", None),
            ("4:00", None),
            ("14", None),
            ("14:00:00:00", None),
        ] {
            assert_eq!(next(text).as_deref(), at, "{text}");
        }
        assert!(ahead("2h").unwrap().nanos() > now.as_nanos() && ahead("1990-01-01").is_err());
    }

    #[test]
    fn every_time_can_be_shown() {
        for at in [Time::ZERO, Time::MAX] {
            berlin().civil_time_at(at);
        }
    }

    #[test]
    fn what_is_relative_is_asked_for_as_such_and_a_date_in_utc() {
        for (text, parameter) in [
            ("90s", "-90s"),
            ("-1h", "-1h"),
            ("30d", "-720h"),
            ("now", "now"),
            ("1767225600", "2026-01-01T00:00:00Z"),
            ("2026-11-23T14:00+01:00", "2026-11-23T13:00:00Z"),
        ] {
            assert_eq!(until(text).unwrap().parameter(), parameter);
        }
    }

    #[test]
    fn what_expires_does_so_within_a_hundred_years_and_not_before_now() {
        assert!(expiry("90d").is_ok() && expiry("36500d").is_ok() && expiry("1s").is_ok());
        for text in ["", "d", "-1d", "0d", "1ms", "36501d", "36500000d", "today", "2020-01-01"] {
            assert!(expiry(text).is_err(), "{text}");
        }
    }
}
