//! `sluice-bench p9`: puts one load on one 9P2000.L server and says what it gets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::link::Score;
use super::load::{self, LoadOutcome, LoadWatch};
use super::plan::PeerPlan;
use super::session::errno_text;
use super::work::WorkOp;
use chart::{ChartLine, ChartPanel, LineChart, line_chart};

/// Put a load on any 9P2000.L server and report what it gets
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PeerPlan,
    /// Print one JSON object per line: each interval, then the total
    #[arg(long)]
    json: bool,
    /// Draw the intervals of --every into this SVG file
    #[arg(long, value_name = "FILE", requires = "every")]
    chart: Option<PathBuf>,
}

/// Runs the load and prints its result.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let stop = super::stop_on_signals()?;
    let mut printer = NinepPrinter { json: args.json, plan: &args.plan, intervals: Vec::new() };
    let outcome = load::run(&args.plan, &stop, &mut printer)?;
    printer.total(&outcome);
    match &args.chart {
        Some(path) => Ok(line_chart(path, &printer.chart())?),
        None => Ok(()),
    }
}

/// One span's figures, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NinepFigures {
    /// Number of the interval, absent for the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<u64>,
    pub(crate) op: WorkOp,
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) ops_per_sec: f64,
    pub(crate) mb_per_sec: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generator_cpu_us_per_op: Option<f64>,
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
}

impl NinepFigures {
    pub(crate) fn new(op: WorkOp, score: &Score, span: Duration) -> NinepFigures {
        let seconds = span.as_secs_f64();
        let micros = |ns: u64| ns as f64 / 1e3;
        let latency = &score.latency_ns;
        NinepFigures {
            interval: None,
            op,
            seconds,
            ops: score.ops,
            ops_per_sec: score.ops as f64 / seconds,
            mb_per_sec: score.bytes as f64 / seconds / 1e6,
            p50_us: micros(latency.value_at_quantile(0.5)),
            p99_us: micros(latency.value_at_quantile(0.99)),
            max_us: micros(latency.max()),
            generator_cpu_us_per_op: None,
            errors: score.errors.values().sum(),
            wrong: score.wrong,
        }
    }

    /// The figures of a whole load.
    pub(crate) fn of(op: WorkOp, outcome: &LoadOutcome) -> NinepFigures {
        let cpu = outcome.generator_cpu.as_secs_f64() * 1e6 / outcome.score.ops.max(1) as f64;
        let figures = NinepFigures::new(op, &outcome.score, outcome.span);
        NinepFigures { generator_cpu_us_per_op: Some(cpu), ..figures }
    }
}

struct NinepPrinter<'p> {
    json: bool,
    plan: &'p PeerPlan,
    intervals: Vec<NinepFigures>,
}

impl LoadWatch for NinepPrinter<'_> {
    fn interval(&mut self, index: u64, score: &Score, span: Duration) {
        if self.plan.every.is_none() {
            return;
        }
        let figures =
            NinepFigures { interval: Some(index), ..NinepFigures::new(self.plan.op, score, span) };
        self.print(&figures);
        self.intervals.push(figures);
    }
}

impl NinepPrinter<'_> {
    fn chart(&self) -> LineChart {
        let mut ends = 0.0;
        let mut line = |series, figure: fn(&NinepFigures) -> f64| {
            ends = 0.0;
            let point = |figures: &NinepFigures| {
                ends += figures.seconds;
                (ends, figure(figures))
            };
            ChartLine { series, points: self.intervals.iter().map(point).collect() }
        };
        let moves = self.intervals.iter().any(|figures| figures.mb_per_sec > 0.0);
        let rate = match moves {
            true => (String::from("MB/s"), line(0, |figures| figures.mb_per_sec)),
            false => (String::from("operations/s"), line(0, |figures| figures.ops_per_sec)),
        };
        let latency = vec![line(1, |figures| figures.p50_us), line(2, |figures| figures.p99_us)];
        let PeerPlan { op, connections, depth, server, .. } = self.plan;
        LineChart {
            title: format!("{op:?}, {connections} × {depth}").to_lowercase(),
            subtitle: server.to_string(),
            series: vec!["rate".into(), "median latency".into(), "p99 latency".into()],
            panels: vec![
                ChartPanel { title: rate.0, logarithmic: false, lines: vec![rate.1] },
                ChartPanel { title: "latency, µs".into(), logarithmic: true, lines: latency },
            ],
            marks: Vec::new(),
        }
    }

    fn total(&self, outcome: &LoadOutcome) {
        let figures = NinepFigures::of(self.plan.op, outcome);
        self.print(&figures);
        if self.json {
            return;
        }
        for (errno, count) in &outcome.score.errors {
            println!("  {count} × {}", errno_text(*errno));
        }
        if figures.wrong > 0 {
            println!("  {} replies with another count or other data than asked for", figures.wrong);
        }
    }

    fn print(&self, figures: &NinepFigures) {
        if self.json {
            match serde_json::to_string(figures) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("sluice-bench: cannot print: {error}"),
            }
            return;
        }
        let NinepFigures { ops_per_sec, mb_per_sec, p50_us, p99_us, max_us, errors, .. } = figures;
        let cpu = match figures.generator_cpu_us_per_op {
            Some(cpu) => format!("  generator {cpu:.2} µs/op"),
            None => String::new(),
        };
        println!(
            "{ops_per_sec:>9.0} ops/s  {mb_per_sec:>8.1} MB/s  p50 {p50_us:.0} µs  p99 {p99_us:.0} µs  \
             max {max_us:.0} µs{cpu}  errors {errors}"
        );
    }
}
