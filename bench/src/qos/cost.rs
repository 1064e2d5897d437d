//! What scheduling and recording cost: processor time of the server per operation, with 100
//! busy classes, against `--no-schedule` and without a trace.
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
    /// Who pays more, and beside whom.
    both: [&'static str; 2],
    percent_max: Option<f64>,
}

#[rustfmt::skip]
const CASES: [CostCase; 5] = [
    CostCase { name: "schedule-4k-cached", what: "scheduling cached 4 KiB reads of 100 jobs", size: Bytes::kib(4), depth: 64, cold: false, both: SCHEDULING, percent_max: Some(10.0) },
    CostCase { name: "schedule-64k-cached", what: "scheduling cached 64 KiB reads of 100 jobs", size: Bytes::kib(64), depth: 16, cold: false, both: SCHEDULING, percent_max: Some(1.0) },
    CostCase { name: "schedule-1m-cached", what: "scheduling cached 1 MiB reads of 100 jobs", size: Bytes::mib(1), depth: 4, cold: false, both: SCHEDULING, percent_max: Some(1.0) },
    CostCase { name: "schedule-4k-uncached", what: "scheduling 4 KiB reads of 100 jobs from the disk", size: Bytes::kib(4), depth: 64, cold: true, both: SCHEDULING, percent_max: Some(1.0) },
    CostCase { name: "trace-4k-cached", what: "recording a trace of cached 4 KiB reads of 100 jobs", size: Bytes::kib(4), depth: 64, cold: false, both: TRACE, percent_max: None },
];
const SCHEDULING: [&str; 2] = ["sluice", "sluice-no-schedule"];
const TRACE: [&str; 2] = ["sluice-trace", "sluice"];

impl CostCase {
    fn row(&self) -> FigureRow {
        let id = format!("cost/{}", self.name);
        let row = FigureRow::new(&id, self.what, &self.both).rounds(5, PAIRS as f64 / 2.0);
        match self.percent_max {
            Some(most) => row.goal(self.both[0], "more_percent", FigureBound::Most(most)),
            None => row,
        }
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
    let trace = format!("trace = {:?}", bed.dir().join("trace.slt"));
    let ruled = QosSetup { rules: RULES, ..QosSetup::default() };
    let proxies = [
        ("sluice", bed.proxy("ruled", &ruled)?),
        (
            "sluice-no-schedule",
            bed.proxy("free", &QosSetup { no_schedule: true, ..ruled.clone() })?,
        ),
        ("sluice-trace", bed.proxy("trace", &QosSetup { top: &trace, ..ruled })?),
    ];
    let named = |name: &str| {
        let found = proxies.iter().find(|(own, _)| *own == name);
        found.map(|(_, proxy)| proxy).with_context(|| format!("no proxy is named {name}"))
    };
    for case in CASES.iter() {
        let row = case.row();
        if !sink.wants(&row.id) {
            continue;
        }
        let mut round = sink.begin(&row.id);
        let _kept_cold = if case.cold { Some(KeepCold::start(&cold)?) } else { None };
        let pairs = if run.is_quick { 2 } else { PAIRS };
        let time = run.time(&row) / pairs as u32;
        let (subject, other) = (named(case.both[0])?, named(case.both[1])?);
        let mut found = Vec::new();
        for pair in 0..pairs {
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            let of = |proxy| cpu_us(&bed, case, proxy, time);
            found.push(match pair % 2 {
                0 => {
                    let first = of(subject)?;
                    (first, of(other)?)
                }
                _ => {
                    let first = of(other)?;
                    (of(subject)?, first)
                }
            });
        }
        let [with, without] = samples(&found);
        round.sample(case.both[0], with);
        round.sample(case.both[1], without);
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
