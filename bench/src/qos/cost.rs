//! What scheduling costs: processor time of the server per operation, with 100 busy
//! classes against `--no-schedule`.
//!
//! Short runs alternate, and each ratio is of two neighbours, so that a machine whose
//! processors slow down for a minute slows both. The server's CPU clock counts all of
//! its threads to the nanosecond.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::groups::FigureRun;
use super::super::figures::judge::median;
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::work::WorkOp;
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};

struct CostCase {
    name: &'static str,
    what: &'static str,
    size: Bytes,
    depth: usize,
    cold: bool,
    percent_max: f64,
}

#[rustfmt::skip]
const CASES: [CostCase; 4] = [
    CostCase { name: "4k-cached", what: "cached 4 KiB reads", size: Bytes::kib(4), depth: 64, cold: false, percent_max: 10.0 },
    CostCase { name: "64k-cached", what: "cached 64 KiB reads", size: Bytes::kib(64), depth: 16, cold: false, percent_max: 1.0 },
    CostCase { name: "1m-cached", what: "cached 1 MiB reads", size: Bytes::mib(1), depth: 4, cold: false, percent_max: 1.0 },
    CostCase { name: "4k-uncached", what: "4 KiB reads from the disk", size: Bytes::kib(4), depth: 64, cold: true, percent_max: 1.0 },
];

impl CostCase {
    fn row(&self) -> FigureRow {
        let what = format!("scheduling {} of 100 jobs, against --no-schedule", self.what);
        FigureRow::new(&format!("cost/schedule-{}", self.name), &what, &[RULED, FREE])
            .rounds(5, PAIRS as f64)
            .goal(RULED, "more_percent", FigureBound::Most(self.percent_max))
    }
}

/// One row for each size.
pub(super) fn rows() -> Vec<FigureRow> {
    CASES.iter().map(CostCase::row).collect()
}

/// Measures every case in alternating runs.
pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    if !sink.wants_any(&rows()) {
        return Ok(());
    }
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let warm = bed.file("warm", WARM_LEN)?;
    let cold = bed.file("cold", COLD_LEN)?;
    let ruled = bed.proxy("ruled", &QosSetup { rules: RULES, ..QosSetup::default() })?;
    let free = bed.proxy("free", &QosSetup { no_schedule: true, ..QosSetup::default() })?;
    for case in CASES.iter() {
        let row = case.row();
        if !sink.wants(&row.id) {
            continue;
        }
        let mut round = sink.begin(&row.id);
        let _kept_cold = if case.cold { Some(KeepCold::start(&cold)?) } else { None };
        let pairs = if run.is_quick { 2 } else { PAIRS };
        let time = run.time(&row) / (2 * pairs as u32);
        let mut found = Vec::new();
        for pair in 0..pairs {
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            let of = |proxy| cpu_us(&bed, case, proxy, time);
            found.push(match pair % 2 {
                0 => {
                    let first = of(&ruled)?;
                    (first, of(&free)?)
                }
                _ => {
                    let first = of(&free)?;
                    (of(&ruled)?, first)
                }
            });
        }
        let [with, without] = samples(&found);
        round.sample(RULED, with);
        round.sample(FREE, without);
        round.end()?;
    }
    Ok(())
}

/// Processor time of the server per operation in microseconds.
fn cpu_us(
    bed: &QosTestBed,
    case: &CostCase,
    proxy: &QosProxy,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut plan = proxy.plan("x", "", WorkOp::Randread, case.size);
    let (data, len) = if case.cold { ("cold", COLD_LEN) } else { ("warm", WARM_LEN) };
    plan.aname = "x".into();
    (plan.jobs, plan.depth, plan.file_size) = (CLASSES, case.depth, len);
    let mut job = QosJob::start(&[QosJobPart { plan, dir: String::new(), data: data.into() }])?;
    bed.wait(SETTLE)?;
    let (before, _) = (proxy.process.cpu()?, job.cut()?);
    bed.wait(time)?;
    let (after, cut) = (proxy.process.cpu()?, job.cut()?);
    cut.check()?;
    Ok((after - before).as_secs_f64() * 1e6 / cut.score.ops.max(1) as f64)
}

/// Of pairs (with, without): the medians, and the median of the pairs' ratios.
fn samples(pairs: &[(f64, f64)]) -> [FigureSample; 2] {
    let middle = |values: Vec<f64>| median(values).unwrap_or(f64::NAN);
    let with = middle(pairs.iter().map(|pair| pair.0).collect());
    let without = middle(pairs.iter().map(|pair| pair.1).collect());
    let more = middle(pairs.iter().map(|pair| (pair.0 / pair.1 - 1.0) * 100.0).collect());
    [
        FigureSample::from([("server_us".into(), with), ("more_percent".into(), more)]),
        FigureSample::from([("server_us".into(), without)]),
    ]
}

const RULED: &str = "sluice";
const FREE: &str = "sluice-no-schedule";
const RULES: &str = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={bench*}\"\nper = [\"jobid\"]\n";
const CLASSES: usize = 100;
const WARM_LEN: Bytes = Bytes::mib(256);
const COLD_LEN: Bytes = Bytes::mib(2048);
const SETTLE: Duration = Duration::from_millis(150);

/// Pairs of half a second each in a round.
const PAIRS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_median_of_neighbours_ratios() {
        let pairs = [(11.0, 10.0), (21.0, 20.0), (5.0, 50.0), (42.0, 40.0), (90.0, 80.0)];
        let [with, without] = samples(&pairs);
        assert!((with["more_percent"] - 5.0).abs() < 1e-9, "{with:?}");
        assert_eq!((with["server_us"], without["server_us"]), (21.0, 40.0));
    }
}
