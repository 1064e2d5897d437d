//! The calendar on a terminal: a line of blocks for each resource.
//!
//! ```text
//!   RESOURCE    14:00     14:30         MOST  READ        WRITE
//!   target fs  │▃▃▃▃▃████▃▃           │  98 %  2.00 GB/s  1.00 GB/s
//!     used     │▂▂▁▃                  │  37 %
//! ```
//!
//! A column shows the greatest part of the capacity that is promised within its time, so that a
//! short reservation is not lost between columns.

use std::fmt::Write as _;

use api::{CalendarResource, CalendarStep, WireCalendar};
use explain::{per_second, span};

use super::show::{SECOND_NS, late_rates};
use crate::top::table;
use crate::when::utc;

/// Formats a calendar as lines of blocks.
pub(super) fn text(found: &WireCalendar) -> String {
    if found.resources.is_empty() {
        return "no resources: no proxy has reported a target with a known capacity\n".into();
    }
    let axis = axis(found);
    let head = ["RESOURCE", &axis, "MOST", "READ", "WRITE"];
    let rows = found.resources.iter().flat_map(|resource| {
        let in_bytes = resource.kind != "metadata";
        let bars = |steps, until_ns| {
            let parts = columns(resource, steps, until_ns, found);
            let most = parts.iter().max().copied().unwrap_or(0);
            let bars: String = parts.into_iter().map(block).collect();
            (format!("│{bars}│"), format!("{} %", most / 10_000))
        };
        let (promised, most) = bars(&resource.steps, found.until_ns);
        let capacity = [resource.read_per_sec, resource.write_per_sec];
        let [read, write] = capacity.map(|rate| per_second(rate, in_bytes));
        let mut rows = vec![vec![name(resource), promised, most, read, write]];
        if !resource.used.is_empty() {
            let (used, most) = bars(&resource.used, found.at_ns);
            rows.push(vec!["  used".into(), used, most, String::new(), String::new()]);
        }
        rows
    });
    let mut text = table::aligned(&head, &[2, 3, 4], rows);
    let column = found.until_ns.saturating_sub(found.from_ns) / COLUMNS;
    let _ = writeln!(
        text,
        "{} to {}, {} a column",
        utc(found.from_ns / SECOND_NS),
        utc(found.until_ns / SECOND_NS),
        span(column)
    );
    for resource in &found.resources {
        let _ = writeln!(text, "{}: {}", name(resource), not_reserved(resource));
        if !resource.late.is_empty() {
            let _ = writeln!(text, "  late: {}", late_rates(&resource.late));
        }
    }
    if found.omitted > 0 {
        let _ = writeln!(text, "({} more resources omitted; choose with --target)", found.omitted);
    }
    text
}

/// Ends a calendar where its last reservation does, but not within its first ten minutes.
pub(super) fn trim(found: &mut WireCalendar) {
    let ends = found.resources.iter().filter_map(|resource| resource.steps.last());
    let last = ends.map(|step| step.from_ns).max().unwrap_or(0);
    let shown = last.saturating_sub(found.from_ns).max(SHOWN_MIN_NS);
    // Space behind the last end, so that it shows as one.
    let until = found.from_ns.saturating_add(shown).saturating_add(shown / 16);
    found.until_ns = found.until_ns.min(until);
}

/// Returns kind and name of a resource.
pub(super) fn name(resource: &CalendarResource) -> String {
    format!("{} {}", resource.kind, resource.name)
}

/// Returns the part of a capacity that a level takes, in millionths: r/R + w/W.
fn part(resource: &CalendarResource, level: &CalendarStep) -> u64 {
    let of = |level: u64, capacity: u64| match capacity {
        0 => u64::from(level > 0) * 1_000_000,
        capacity => (u128::from(level) * 1_000_000).div_ceil(u128::from(capacity)) as u64,
    };
    let read = of(level.read_per_sec, resource.read_per_sec);
    read.saturating_add(of(level.write_per_sec, resource.write_per_sec))
}

/// Returns the greatest part that steps take in each column, in millionths. The last one ends at
/// `until_ns`.
fn columns(
    resource: &CalendarResource,
    steps: &[CalendarStep],
    until_ns: u64,
    found: &WireCalendar,
) -> Vec<u64> {
    let width = u128::from(found.until_ns.saturating_sub(found.from_ns));
    let mut parts = vec![0; COLUMNS as usize];
    for (nth, step) in steps.iter().enumerate() {
        let end = steps.get(nth + 1).map_or(until_ns, |next| next.from_ns);
        let from = step.from_ns.max(found.from_ns) - found.from_ns;
        let end = end.min(found.until_ns).saturating_sub(found.from_ns);
        if width == 0 || from >= end {
            continue;
        }
        let first = u128::from(from) * u128::from(COLUMNS) / width;
        let behind = (u128::from(end) * u128::from(COLUMNS)).div_ceil(width);
        let part = part(resource, step);
        for column in &mut parts[first as usize..behind as usize] {
            *column = part.max(*column);
        }
    }
    parts
}

fn block(part: u64) -> char {
    match part.saturating_mul(8).div_ceil(1_000_000).min(8) {
        0 => ' ',
        eighths => char::from_u32(0x2580 + eighths as u32).expect("eight blocks follow U+2580"),
    }
}

/// Returns the times above the columns, at each quarter.
fn axis(found: &WireCalendar) -> String {
    let width = found.until_ns.saturating_sub(found.from_ns);
    let label = |quarter: u64| {
        let text = utc((found.from_ns + width / 4 * quarter) / SECOND_NS);
        match width / SECOND_NS {
            0..3_600 => text[11..19].to_owned(),
            3_600..86_400 => text[11..16].to_owned(),
            _ => text[5..16].replace('T', " "),
        }
    };
    let quarter = COLUMNS as usize / 4;
    let labels: String = (0..4).map(|nth| format!("{:<quarter$}", label(nth))).collect();
    format!(" {labels} ")
}

/// Lists what is not reserved in the calendar: best effort, what no proxy sees, and rules.
fn not_reserved(resource: &CalendarResource) -> String {
    let mut parts = Vec::new();
    for (ppm, what) in [(resource.best_effort_ppm, "best effort"), (resource.unseen_ppm, "unseen")]
    {
        if ppm > 0 {
            parts.push(format!("{} % {what}", ppm / 10_000));
        }
    }
    parts.extend(resource.rules.iter().cloned());
    match parts[..] {
        [] => "all of it can be reserved".into(),
        _ => format!("not for reservations: {}", parts.join(", ")),
    }
}

/// Columns of a line.
const COLUMNS: u64 = 64;
/// The least time that is shown without `--to`.
const SHOWN_MIN_NS: u64 = 600 * SECOND_NS;

#[cfg(test)]
mod tests {
    use api::{LateRate, WireRate};

    use super::*;

    fn step(from_s: u64, read_per_sec: u64, write_per_sec: u64) -> CalendarStep {
        CalendarStep { from_ns: from_s * SECOND_NS, read_per_sec, write_per_sec }
    }

    fn calendar(steps: Vec<CalendarStep>) -> WireCalendar {
        let resource = CalendarResource {
            kind: "target".into(),
            name: "fs".into(),
            read_per_sec: 2_000,
            write_per_sec: 1_000,
            best_effort_ppm: 150_000,
            rules: vec!["rule jobs: 100B/s".into()],
            steps,
            ..CalendarResource::default()
        };
        WireCalendar {
            at_ns: 0,
            from_ns: 64 * SECOND_NS,
            until_ns: 128 * SECOND_NS,
            resources: vec![resource],
            omitted: 0,
        }
    }

    /// What of the first resource is promised in each column.
    fn promised(found: &WireCalendar) -> Vec<u64> {
        columns(&found.resources[0], &found.resources[0].steps, found.until_ns, found)
    }

    #[test]
    fn a_column_shows_the_most_that_is_promised_in_it() {
        // Half of the reads and a quarter of the writes; then a moment of everything.
        let steps = vec![step(0, 0, 0), step(66, 1_000, 250), step(70, 0, 0)];
        let mut found = calendar(steps);
        let parts = promised(&found);
        assert_eq!(parts[..7], [0, 0, 750_000, 750_000, 750_000, 750_000, 0]);
        let moment = CalendarStep { from_ns: 100 * SECOND_NS + 5, ..step(0, 2_000, 0) };
        let over = CalendarStep { from_ns: 100 * SECOND_NS + 6, ..step(0, 0, 0) };
        found.resources[0].steps.extend([moment, over]);
        let parts = promised(&found);
        assert_eq!(parts[35..38], [0, 1_000_000, 0]);
        let all: String = parts.into_iter().map(block).collect();
        assert_eq!(all.trim_end(), format!("  ▆▆▆▆{}█", " ".repeat(30)));
        // What is before and behind the span is left out.
        let early = calendar(vec![step(0, 2_000, 0), step(60, 0, 0), step(500, 2_000, 0)]);
        assert_eq!(promised(&early), vec![0; 64]);
    }

    #[test]
    fn the_text_has_the_axis_the_capacity_and_what_is_not_reserved() {
        let mut found = calendar(vec![step(64, 500, 0)]);
        let (direction, span_ns) = ("read".into(), 5 * SECOND_NS);
        let (served, reserved) = (WireRate::Bytes(50), WireRate::Bytes(500));
        found.resources[0].late = vec![LateRate { direction, served, reserved, span_ns }];
        let text = text(&found);
        for part in [
            "  late: 50 B/s of 500 B/s of reads were served",
            "00:01:04        00:01:20",
            "target fs",
            "│▂▂▂",
            "25 %",
            "2.00 kB/s",
            "15 % best effort, rule jobs: 100B/s",
            "1.00 s a column",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_was_used_is_a_line_that_ends_now() {
        let mut found = calendar(vec![step(64, 500, 0)]);
        found.at_ns = 96 * SECOND_NS;
        found.resources[0].used = vec![step(64, 2_000, 0), step(80, 0, 500)];
        let text = text(&found);
        let line = text.lines().find(|line| line.contains("  used")).unwrap();
        let bars: String = line.chars().filter(|one| "█▄".contains(*one)).collect();
        assert_eq!(bars, format!("{}{}", "█".repeat(16), "▄".repeat(16)));
        assert!(line.contains("100 %"), "{line}");
    }

    #[test]
    fn a_calendar_ends_with_its_last_reservation() {
        let mut found = WireCalendar { until_ns: 86_400 * SECOND_NS, ..calendar(vec![]) };
        trim(&mut found);
        assert_eq!(found.until_ns, (64 + 637) * SECOND_NS + SECOND_NS / 2);
        let mut found =
            WireCalendar { until_ns: 86_400 * SECOND_NS, ..calendar(vec![step(1_664, 0, 0)]) };
        trim(&mut found);
        assert_eq!(found.until_ns, 1_764 * SECOND_NS);
    }
}
