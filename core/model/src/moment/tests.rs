//! The grammar of points of time: what each form means, and what is refused.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// 2026-11-24T02:30:00Z.
const NOW: Time = Time::from_nanos(1_795_487_400 * SECOND);

/// Two hours ahead of Greenwich: it is half past four there.
fn helsinki() -> FixedZone {
    FixedZone::east_of_utc(7_200).unwrap()
}

fn back(text: &str) -> Result<String, MomentError> {
    let at = text.parse::<Moment>()?.resolve_past(&helsinki(), NOW)?;
    Ok(FixedZone::UTC.civil_time_at(at).to_string())
}

#[test]
fn every_form_of_the_grammar_means_its_point() {
    for (text, utc) in [
        ("90s", "2026-11-24T02:28:30"),
        ("15m", "2026-11-24T02:15:00"),
        ("15min", "2026-11-24T02:15:00"),
        ("1h", "2026-11-24T01:30:00"),
        ("-1h", "2026-11-24T01:30:00"),
        ("7d", "2026-11-17T02:30:00"),
        ("1w", "2026-11-17T02:30:00"),
        ("-1w", "2026-11-17T02:30:00"),
        ("30d", "2026-10-25T02:30:00"),
        ("0s", "2026-11-24T02:30:00"),
        ("now", "2026-11-24T02:30:00"),
        ("today", "2026-11-23T22:00:00"),
        ("yesterday", "2026-11-22T22:00:00"),
        ("2026-11-23", "2026-11-22T22:00:00"),
        ("2026-11-23T14:00", "2026-11-23T12:00:00"),
        ("2026-11-23T14:00:05", "2026-11-23T12:00:05"),
        ("2026-11-23T14:00Z", "2026-11-23T14:00:00"),
        ("2026-11-23T14:00:05Z", "2026-11-23T14:00:05"),
        ("2026-11-23T14:00+01:00", "2026-11-23T13:00:00"),
        ("2026-11-23T14:00:05-0530", "2026-11-23T19:30:05"),
        ("2026-11-23T14:00+01", "2026-11-23T13:00:00"),
        ("1767225600", "2026-01-01T00:00:00"),
        ("0", "1970-01-01T00:00:00"),
        ("100000d", "1970-01-01T00:00:00"),
    ] {
        assert_eq!(back(text).as_deref(), Ok(utc), "{text}");
    }
}

#[test]
fn what_is_no_point_of_time_is_refused() {
    for text in [
        "",
        "-",
        "30x",
        "x",
        "h",
        "--1h",
        "+1h",
        "1h30",
        "tomorrow",
        "Now",
        "-5",
        "2026-11",
        "2026-1-3",
        "2026-11-23 14:00",
        "2026-11-23T",
        "2026-11-23T14",
        "2026-11-23T1:00",
        "2026-11-23T14:00X",
        "2026-11-23T14:00+1",
        "2026-11-23T14:00+01:60",
        "2026-11-23T14:00+24:00",
        "2026-11-23Z",
        "2026-11-2é",
        "2026-11-23T14:00:00.5",
        "36500000d",
        "99999999999999999999d",
    ] {
        assert_eq!(text.parse::<Moment>(), Err(MomentError::NotAMoment), "{text:?}");
    }
    for text in ["2026-02-30", "2026-13-01", "2026-11-23T24:00", "2026-11-23T14:60Z"] {
        assert_eq!(text.parse::<Moment>(), Err(MomentError::NotInCalendar), "{text:?}");
    }
    for text in ["99999999999999999999", "18446744074"] {
        assert_eq!(text.parse::<Moment>(), Err(MomentError::OutOfRange), "{text:?}");
    }
    for text in ["1969-12-31", "1970-01-01T01:59", "2555-01-01", "9999-12-31T23:59:59Z"] {
        assert_eq!(back(text), Err(MomentError::OutOfRange), "{text:?}");
    }
}

#[test]
fn what_is_to_come_is_no_beginning_of_a_span_but_may_be_its_end() {
    for text in ["2026-11-24T04:30:01", "2026-11-24T02:30:01Z", "1795487401", "2027-01-01"] {
        assert_eq!(back(text), Err(MomentError::Future), "{text}");
        assert!(text.parse::<Moment>().unwrap().resolve_any(&helsinki(), NOW).unwrap() > NOW);
    }
}

#[test]
fn where_something_ends_a_span_is_from_now_on() {
    let ahead = |text: &str| text.parse::<Moment>()?.resolve_future(&helsinki(), NOW);
    let after = |seconds: u64| Ok(NOW + Nanos::from_secs(seconds));
    assert_eq!(ahead("12h"), after(12 * 3_600));
    assert_eq!(ahead("90d"), after(90 * 86_400));
    assert_eq!(ahead("2026-11-24T04:30:01"), after(1));
    for text in ["-1h", "0s", "now", "today", "yesterday", "2026-11-24T04:30", "0"] {
        assert_eq!(ahead(text), Err(MomentError::Past), "{text}");
    }
    assert_eq!(ahead("213000d"), Err(MomentError::OutOfRange));
}

#[test]
fn without_a_zone_only_what_needs_none_is_a_point() {
    let point = |text: &str| text.parse::<Moment>()?.resolve_without_zone(NOW);
    for text in ["now", "1h", "-1h", "1767225600", "2026-11-23T14:00Z", "2026-11-23T14:00+01:00"] {
        assert!(point(text).is_ok(), "{text}");
    }
    for text in ["today", "yesterday", "2026-11-23", "2026-11-23T14:00"] {
        assert_eq!(point(text), Err(MomentError::NoZone), "{text}");
    }
}

#[test]
fn yesterday_on_the_first_of_january_1970_is_out_of_range() {
    let text = "yesterday".parse::<Moment>().unwrap();
    assert_eq!(text.resolve_past(&FixedZone::UTC, Time::ZERO), Err(MomentError::OutOfRange));
}

proptest! {
    #[test]
    fn whatever_is_written_nothing_panics(text in "\\PC*", now in any::<u64>(), east in -86_399..86_400) {
        if let Ok(moment) = text.parse::<Moment>() {
            let (zone, now) = (FixedZone::east_of_utc(east).unwrap(), Time::from_nanos(now));
            let _ = (moment.resolve_past(&zone, now), moment.resolve_any(&zone, now), moment.resolve_future(&zone, now));
        }
    }

    #[test]
    fn what_looks_like_a_point_of_time_does_not_panic_either(
        text in "-?[0-9]{1,22}(ns|us|ms|s|m|min|h|d|w)?|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:?[0-9]{2})?)?",
        now in any::<u64>(),
        east in -86_399..86_400,
    ) {
        if let Ok(moment) = text.parse::<Moment>() {
            let (zone, now) = (FixedZone::east_of_utc(east).unwrap(), Time::from_nanos(now));
            if let Ok(at) = moment.resolve_past(&zone, now) {
                prop_assert!(at <= now);
            }
            if let Ok(at) = moment.resolve_future(&zone, now) {
                prop_assert!(at > now);
            }
            let _ = (Moment::Today.resolve_any(&zone, now), Moment::Yesterday.resolve_any(&zone, now));
        }
    }

    #[test]
    fn a_point_that_is_printed_is_the_point_that_is_read(
        seconds in 0..u64::MAX / SECOND,
        quarters in -56..57_i32,
    ) {
        let at = Time::from_nanos(seconds * SECOND);
        let zone = FixedZone::east_of_utc(quarters * 900).unwrap();
        let shown = zone.civil_time_at(at);
        if let Some(point) = zone.time_of(shown) {
            prop_assert_eq!(point, at);
        }
        let (sign, minutes) = (if quarters < 0 { '-' } else { '+' }, quarters.abs() * 15);
        let text = format!("{shown}{sign}{:02}:{:02}", minutes / 60, minutes % 60);
        prop_assert_eq!(text.parse::<Moment>().unwrap().resolve_without_zone(Time::ZERO), Ok(at));
    }

    #[test]
    fn a_day_is_followed_by_the_next(days in 1..200_000_u64) {
        let noon = |days: u64| FixedZone::UTC.civil_time_at(Time::from_nanos((days * 86_400 + 43_200) * SECOND));
        prop_assert_eq!(noon(days).day_before(), noon(days - 1));
        prop_assert!(noon(days) > noon(days - 1));
    }
}
