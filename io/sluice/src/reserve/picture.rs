//! Draws the calendar as an SVG file: what is promised of each resource, and its capacity.

use std::path::Path;

use api::{CalendarResource, CalendarStep, WireCalendar};
use chart::{ChartLine, ChartPanel, LineChart, line_chart};

use super::calendar::name;
use super::show::SECOND_NS;
use crate::when::utc;

/// Draws the picture into an SVG file.
pub(super) fn draw(file: &Path, found: &WireCalendar) -> anyhow::Result<()> {
    Ok(line_chart(file, &chart(found))?)
}

fn chart(found: &WireCalendar) -> LineChart {
    let shown = found.resources.len().min(PANELS_MAX);
    let left = match found.resources.len() - shown {
        0 => String::new(),
        left => format!("; {left} more resources are not shown, choose with --target"),
    };
    let from = utc(found.from_ns / SECOND_NS);
    let now = found.at_ns.checked_sub(found.from_ns).filter(|_| found.at_ns < found.until_ns);
    LineChart {
        title: "Reservations".into(),
        subtitle: format!("from {from}, in seconds since then{left}"),
        series: [
            "promised reads",
            "promised writes",
            "capacity of reads",
            "capacity of writes",
            "used by reads",
            "used by writes",
        ]
        .map(String::from)
        .into(),
        panels: found.resources[..shown].iter().map(|one| panel(one, found)).collect(),
        marks: now.into_iter().map(|at| (seconds(at), "now".into())).collect(),
    }
}

fn panel(resource: &CalendarResource, found: &WireCalendar) -> ChartPanel {
    let (unit, size) = match resource.kind == "metadata" {
        true => ("operations per second", 1.0),
        false => ("MB/s", 1e6),
    };
    let end = seconds(found.until_ns.saturating_sub(found.from_ns));
    let line = |series, points| ChartLine { series, points };
    let level = |per_sec: u64| vec![(0.0, per_sec as f64 / size), (end, per_sec as f64 / size)];
    let shown = |steps: &[CalendarStep], until_ns: u64, value: fn(&CalendarStep) -> u64| match steps
    {
        [] => Vec::new(),
        steps => points(steps, until_ns.min(found.until_ns), found, size, value),
    };
    let promised = |value| shown(&resource.steps, found.until_ns, value);
    let used = |value| shown(&resource.used, found.at_ns, value);
    ChartPanel {
        title: format!("{}, {unit}", name(resource)),
        logarithmic: false,
        lines: vec![
            line(0, promised(|step| step.read_per_sec)),
            line(1, promised(|step| step.write_per_sec)),
            line(2, level(resource.read_per_sec)),
            line(3, level(resource.write_per_sec)),
            line(4, used(|step| step.read_per_sec)),
            line(5, used(|step| step.write_per_sec)),
        ],
    }
}

/// Returns the corners of steps within the time that is shown; the last one ends at `until_ns`.
fn points(
    steps: &[CalendarStep],
    until_ns: u64,
    found: &WireCalendar,
    size: f64,
    value: fn(&CalendarStep) -> u64,
) -> Vec<(f64, f64)> {
    let at = |ns: u64| seconds(ns.clamp(found.from_ns, found.until_ns) - found.from_ns);
    let (mut points, mut level) = (vec![(0.0, 0.0)], 0.0);
    for step in steps {
        if step.from_ns >= until_ns {
            break;
        }
        points.push((at(step.from_ns), level));
        level = value(step) as f64 / size;
        points.push((at(step.from_ns), level));
    }
    points.push((at(until_ns), level));
    points
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND_NS as f64
}

/// Panels of one picture.
const PANELS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_rates_are_steps_between_the_ends() {
        let step = |from_s: u64, mb: u64| CalendarStep {
            from_ns: from_s * SECOND_NS,
            read_per_sec: mb * 1_000_000,
            write_per_sec: 0,
        };
        let resource = CalendarResource {
            kind: "target".into(),
            steps: vec![step(5, 1), step(20, 3), step(30, 0), step(99, 7)],
            used: vec![step(5, 2)],
            ..CalendarResource::default()
        };
        let found = WireCalendar {
            at_ns: 12 * SECOND_NS,
            from_ns: 10 * SECOND_NS,
            until_ns: 40 * SECOND_NS,
            resources: vec![resource; 21],
            omitted: 0,
        };
        let chart = chart(&found);
        let reads = &chart.panels[0].lines[0].points;
        let corners = [
            (0.0, 0.0),
            (0.0, 0.0),
            (0.0, 1.0),
            (10.0, 1.0),
            (10.0, 3.0),
            (20.0, 3.0),
            (20.0, 0.0),
            (30.0, 0.0),
        ];
        assert_eq!(reads[..], corners);
        let used = &chart.panels[0].lines[4].points;
        assert_eq!(used[..], [(0.0, 0.0), (0.0, 0.0), (0.0, 2.0), (2.0, 2.0)], "until now");
        assert_eq!((chart.panels.len(), chart.marks[0].0), (20, 2.0));
        assert!(chart.subtitle.contains("1 more"));
    }
}
