//! Draws a job's rate over time and the times when limits delayed it.
//!
//! ```text
//!   points ─► achieved rate ▁▃▇▇▃                  marks where a time of delays begins
//!          └► part of the active time in which limits delayed requests, from 0 to 1
//! ```

use std::path::Path;

use api::{JobPoint, WireJobReport};

use super::utc;
use chart::{ChartLine, ChartPanel, LineChart, line_chart};

/// Draws the picture into an SVG file.
pub(super) fn draw(file: &Path, report: &WireJobReport) -> anyhow::Result<()> {
    Ok(line_chart(file, &chart(report))?)
}

fn chart(report: &WireJobReport) -> LineChart {
    let panel = |title: &str, series, value: &dyn Fn(&JobPoint) -> f64| ChartPanel {
        title: title.into(),
        logarithmic: false,
        lines: vec![ChartLine { series, points: steps(report, value) }],
    };
    let bytes = |point: &JobPoint| (point.read_bytes + point.written_bytes) as f64;
    let rates = match report.points.iter().any(|point| bytes(point) > 0.0) {
        true => panel("MB/s while active", 0, &|point| bytes(point) * 1e3),
        false => panel("operations per second while active", 0, &|point| point.ops as f64 * 1e9),
    };
    let title = "part of the active time in which limits delayed requests, from 0 to 1";
    let delayed = panel(title, 1, &|point| point.delayed_span_ns as f64);
    LineChart {
        title: format!("Job {}", report.job),
        subtitle: format!("from {}, in seconds since then", utc(report.from_s)),
        series: ["achieved", "delayed by limits"].map(String::from).into(),
        panels: vec![rates, delayed],
        marks: marks(report),
    }
}

/// Converts points to a value per nanosecond of active time: constant within a point, 0 between
/// points.
fn steps(report: &WireJobReport, value: &dyn Fn(&JobPoint) -> f64) -> Vec<(f64, f64)> {
    let mut steps = Vec::new();
    let mut last = report.from_s;
    let at = |second: u64| second.saturating_sub(report.from_s) as f64;
    for point in &report.points {
        if point.at_s > last {
            steps.extend([(at(last), 0.0), (at(point.at_s), 0.0)]);
        }
        let level = match point.active_ns {
            0 => 0.0,
            active => value(point) / active as f64,
        };
        last = point.at_s + point.span_s;
        steps.extend([(at(point.at_s), level), (at(last), level)]);
    }
    steps
}

/// Returns the beginnings of times of delays.
fn marks(report: &WireJobReport) -> Vec<(f64, String)> {
    let begins = |nth: usize| {
        let delayed = |point: &JobPoint| point.delayed > 0;
        delayed(&report.points[nth]) && (nth == 0 || !delayed(&report.points[nth - 1]))
    };
    let begun = (0..report.points.len()).filter(|nth| begins(*nth)).take(MARKS_MAX);
    let at = |nth: usize| report.points[nth].at_s.saturating_sub(report.from_s) as f64;
    begun.map(|nth| (at(nth), "delayed".into())).collect()
}

/// Maximum number of marks; more would cover the lines.
const MARKS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> WireJobReport {
        let point = |minute: u64, delayed| JobPoint {
            at_s: minute * 60,
            span_s: 60,
            active_ns: 30_000_000_000,
            read_bytes: 120_000_000,
            delayed,
            delayed_span_ns: delayed * 15_000_000_000,
            ..JobPoint::default()
        };
        let points = vec![point(10, 0), point(11, 1), point(12, 1), point(14, 1)];
        WireJobReport { job: "j".into(), from_s: 600, points, ..WireJobReport::default() }
    }

    #[test]
    fn rates_are_level_in_a_point_and_nothing_between_points() {
        let chart = chart(&report());
        let rates = &chart.panels[0].lines[0].points;
        assert_eq!(rates[..4], [(0.0, 4.0), (60.0, 4.0), (60.0, 4.0), (120.0, 4.0)]);
        assert_eq!(rates[6..], [(180.0, 0.0), (240.0, 0.0), (240.0, 4.0), (300.0, 4.0)]);
        let delayed = &chart.panels[1].lines[0].points;
        assert_eq!(delayed[..3], [(0.0, 0.0), (60.0, 0.0), (60.0, 0.5)], "half of the time");
    }

    #[test]
    fn a_time_of_delays_is_marked_once_where_it_begins() {
        let marks: Vec<_> = marks(&report()).into_iter().map(|(at, _)| at).collect();
        assert_eq!(marks, [60.0], "a gap in the time does not end it");
        let mut broken = report();
        broken.points[2].delayed = 0;
        let marks: Vec<_> = super::marks(&broken).into_iter().map(|(at, _)| at).collect();
        assert_eq!(marks, [60.0, 240.0]);
    }
}
