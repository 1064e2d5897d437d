//! The demo's picture: both jobs over time, with the moments when something changed.

use std::path::Path;

use super::DemoPhase;
use super::figures::{DemoFigures, DemoSpan};
use super::job::DemoJob;
use super::screen::span_text;
use super::summary::DemoSummary;
use chart::{ChartLine, ChartPanel, LineChart, line_chart};

/// Draws `summary` into the SVG file `path`.
pub(super) fn draw(path: &Path, summary: &DemoSummary) -> anyhow::Result<()> {
    let zero = summary.span.from;
    let line = |series, job, figure: fn(&DemoFigures) -> f64| {
        let points = summary.record.line(job, summary.span, POINT_S, figure);
        ChartLine {
            series,
            points: points.into_iter().map(|(at, value)| (at - zero, value)).collect(),
        }
    };
    let mut latency = vec![
        line(1, DemoJob::Victim, |figures| figures.p99_us / 1e3),
        line(0, DemoJob::Victim, |figures| figures.p50_us / 1e3),
    ];
    latency.extend(levels(summary));
    let panels = vec![
        ChartPanel {
            title: "victim: latency of its requests, ms".into(),
            logarithmic: true,
            lines: latency,
        },
        ChartPanel {
            title: "bully: what it writes, MB/s".into(),
            logarithmic: false,
            lines: vec![line(2, DemoJob::Bully, |figures| figures.mb_per_sec)],
        },
    ];
    let chart = LineChart {
        title: title(summary),
        subtitle: format!(
            "Bully: fio, 16 writers of 1 MiB. Victim: fio, random reads of 4 KiB and 20 small writes \
             with fdatasync a second; shell tools beside. Write mode {}.",
            summary.write_mode
        ),
        series: ["victim, median", "victim, p99", "bully", "victim, p99 of the phase"]
            .map(String::from)
            .into(),
        panels,
        marks: summary.marks.iter().map(|(at, what)| (at - zero, what.clone())).collect(),
    };
    Ok(line_chart(path, &chart)?)
}

/// The victim's p99 of each whole phase: what the eye would have to guess from half seconds.
fn levels(summary: &DemoSummary) -> Vec<ChartLine> {
    let level = |(phase, span): &(DemoPhase, DemoSpan)| {
        let p99_ms = summary.of(*phase, DemoJob::Victim)?.p99_us / 1e3;
        let at = |second: f64| (second - summary.span.from, p99_ms);
        Some(ChartLine { series: 3, points: vec![at(span.from), at(span.to)] })
    };
    summary.phases.iter().filter_map(level).collect()
}

fn title(summary: &DemoSummary) -> String {
    let p99 = |phase| match summary.of(phase, DemoJob::Victim) {
        Some(figures) => span_text(figures.p99_us),
        None => "?".into(),
    };
    format!(
        "The victim's p99: {} alone, {} beside the bully, {} with rules",
        p99(DemoPhase::Alone),
        p99(DemoPhase::WithoutRules),
        p99(DemoPhase::WithRules)
    )
}

/// Wide enough that a point's p99 is more than the slowest request of a few.
const POINT_S: f64 = 0.5;
