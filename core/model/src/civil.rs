//! Dates and times of day as clocks show them, in the Gregorian calendar.
//!
//! ```text
//!   seconds since 1970 + a zone's offset ◄─► days since 1970 ◄─► year, month, day
//! ```
//!
//! Days are counted after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms". The offset
//! of a zone at a time is left to a [`Zone`].

use std::fmt;

use crate::time::Time;

/// A date and a time of day that exist in the calendar; the text form is `2026-11-23T14:00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CivilTime {
    year: u16,
    month: u8,
    day: u8,
    /// The seconds since midnight.
    second: u32,
}

/// The clocks of a place.
pub trait Zone {
    /// The date and time that they show at a point of time, counted from 1970.
    fn civil_time_at(&self, at: Time) -> CivilTime;

    /// The point of time, counted from 1970, at which they show this; `None` before 1970 and where
    /// [`Time`] ends.
    fn time_of(&self, shown: CivilTime) -> Option<Time>;
}

/// A zone with a constant offset to Greenwich's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedZone {
    seconds_east: i32,
}

impl CivilTime {
    /// A time of a day from the year 0 to 9999; `None` if the day or the time of day does not
    /// exist.
    pub fn new(date: [u16; 3], clock: [u16; 3]) -> Option<CivilTime> {
        let ([year, month, day], [hour, minute, second]) = (date, clock);
        let is_date = year <= 9_999 && day >= 1 && day <= days_of_month(year, month)?;
        if !is_date || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let second = u32::from(hour) * 3_600 + u32::from(minute) * 60 + u32::from(second);
        Some(CivilTime { year, month: month as u8, day: day as u8, second })
    }

    /// Year, month and day.
    pub const fn date(self) -> [u16; 3] {
        [self.year, self.month as u16, self.day as u16]
    }

    /// Hour, minute and second.
    pub const fn clock(self) -> [u16; 3] {
        let minutes = self.second / 60;
        [(minutes / 60) as u16, (minutes % 60) as u16, (self.second % 60) as u16]
    }

    /// The midnight that this day began with.
    pub const fn midnight(self) -> CivilTime {
        CivilTime { second: 0, ..self }
    }

    /// The same time of day on the day before; the first day has none before it.
    pub fn day_before(self) -> CivilTime {
        let days = days_since_1970(self.date()).saturating_sub(1);
        if self.date() == [0, 1, 1] { self } else { on_day(days, self.second) }
    }

    /// Seconds since 1970 at which clocks without an offset show this.
    fn seconds(self) -> i64 {
        days_since_1970(self.date()) * DAY_S + i64::from(self.second)
    }
}

impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [hour, minute, second] = self.clock();
        let CivilTime { year, month, day, .. } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

impl FixedZone {
    /// Greenwich's time, written `Z`.
    pub const UTC: FixedZone = FixedZone { seconds_east: 0 };

    /// A zone `seconds` east of Greenwich, less than a day; `None` if it is more.
    pub const fn east_of_utc(seconds: i32) -> Option<FixedZone> {
        let within_a_day = seconds > -(DAY_S as i32) && seconds < DAY_S as i32;
        if within_a_day { Some(FixedZone { seconds_east: seconds }) } else { None }
    }
}

impl Zone for FixedZone {
    fn civil_time_at(&self, at: Time) -> CivilTime {
        // Whole seconds of 64-bit nanoseconds are far below what an i64 holds.
        let seconds = (at.as_nanos() / SECOND_NS) as i64 + i64::from(self.seconds_east);
        on_day(seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S) as u32)
    }

    fn time_of(&self, shown: CivilTime) -> Option<Time> {
        let seconds = u64::try_from(shown.seconds() - i64::from(self.seconds_east)).ok()?;
        seconds.checked_mul(SECOND_NS).map(Time::from_nanos)
    }
}

/// The time of day on a day counted from the first of 1970.
fn on_day(days: i64, second: u32) -> CivilTime {
    // The calendar repeats every 400 years; a year begins with March, so that a leap day is its last.
    let shifted = days + DAYS_TO_1970;
    let (era, of_era) = (shifted.div_euclid(DAYS_OF_ERA), shifted.rem_euclid(DAYS_OF_ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    CivilTime { year: year as u16, month: month as u8, day: day as u8, second }
}

fn days_since_1970([year, month, day]: [u16; 3]) -> i64 {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = i64::from(year) - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * DAYS_OF_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - DAYS_TO_1970
}

fn days_of_month(year: u16, month: u16) -> Option<u16> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => Some(29),
        2 => Some(28),
        4 | 6 | 9 | 11 => Some(30),
        1..=12 => Some(31),
        _ => None,
    }
}

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: i64 = 86_400;
/// The days of 400 years.
const DAYS_OF_ERA: i64 = 146_097;
/// From the first of March of the year 0 to the first of January 1970.
const DAYS_TO_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_what_clocks_show_belong_together() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_767_225_599, "2025-12-31T23:59:59"),
            (1_767_225_600, "2026-01-01T00:00:00"),
            (u64::MAX / SECOND_NS, "2554-07-21T23:34:33"),
        ] {
            let at = Time::from_nanos(seconds * SECOND_NS);
            let shown = FixedZone::UTC.civil_time_at(at);
            assert_eq!(shown.to_string(), text);
            assert_eq!(FixedZone::UTC.time_of(shown), Some(at));
        }
    }

    #[test]
    fn a_zone_in_the_east_shows_a_time_earlier() {
        let tokyo = FixedZone::east_of_utc(9 * 3_600).unwrap();
        let new_year = CivilTime::new([2026, 1, 1], [0, 0, 0]).unwrap();
        let at = tokyo.time_of(new_year).unwrap();
        assert_eq!(FixedZone::UTC.civil_time_at(at).to_string(), "2025-12-31T15:00:00");
        assert_eq!(tokyo.civil_time_at(at), new_year);
        assert_eq!(tokyo.time_of(CivilTime::new([1970, 1, 1], [8, 59, 59]).unwrap()), None);
        assert_eq!(FixedZone::east_of_utc(86_400), None);
    }

    #[test]
    fn days_that_are_not_in_the_calendar_cannot_be_made() {
        for (date, clock, there_is) in [
            ([2024, 2, 29], [0, 0, 0], true),
            ([2026, 2, 29], [0, 0, 0], false),
            ([2100, 2, 29], [0, 0, 0], false),
            ([2026, 4, 31], [0, 0, 0], false),
            ([2026, 13, 1], [0, 0, 0], false),
            ([2026, 0, 1], [0, 0, 0], false),
            ([2026, 1, 0], [0, 0, 0], false),
            ([2026, 1, 1], [24, 0, 0], false),
            ([2026, 1, 1], [23, 60, 0], false),
            ([2026, 1, 1], [23, 59, 60], false),
        ] {
            assert_eq!(CivilTime::new(date, clock).is_some(), there_is, "{date:?} {clock:?}");
        }
    }

    #[test]
    fn the_day_before_the_first_of_march_is_the_last_of_february() {
        let day = CivilTime::new([2024, 3, 1], [14, 0, 0]).unwrap();
        assert_eq!(day.day_before().to_string(), "2024-02-29T14:00:00");
        assert_eq!(day.day_before().midnight().to_string(), "2024-02-29T00:00:00");
        let first = CivilTime::new([0, 1, 1], [0, 0, 0]).unwrap();
        assert_eq!(first.day_before(), first);
    }
}
