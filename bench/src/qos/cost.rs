//! What scheduling costs: processor time of the server per operation, with 100 busy
//! classes against `--no-schedule`.
//!
//! Short runs alternate, and each ratio is of two neighbours, so that a machine whose
//! processors slow down for a minute slows both. The server's CPU clock counts all of
//! its threads to the nanosecond.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::judge::median;
use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{KeepCold, QosProxy, QosSetup};
use super::job::{QosJob, QosJobPart};
use super::table::{QosRow, QosTable, figures};

struct CostCase {
    name: &'static str,
    size: Bytes,
    depth: usize,
    cold: bool,
    percent_max: f64,
}

const CASES: [CostCase; 4] = [
    CostCase {
        name: "4 KiB, cached",
        size: Bytes::kib(4),
        depth: 64,
        cold: false,
        percent_max: 10.0,
    },
    CostCase {
        name: "64 KiB, cached",
        size: Bytes::kib(64),
        depth: 16,
        cold: false,
        percent_max: 1.0,
    },
    CostCase {
        name: "1 MiB, cached",
        size: Bytes::mib(1),
        depth: 4,
        cold: false,
        percent_max: 1.0,
    },
    CostCase {
        name: "4 KiB, uncached",
        size: Bytes::kib(4),
        depth: 64,
        cold: true,
        percent_max: 1.0,
    },
];

/// Measures every case in alternating runs.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    table.progress("making files");
    let bed = &run.bed;
    let warm = bed.file("warm", WARM_LEN)?;
    let cold = bed.file("cold", COLD_LEN)?;
    let ruled = bed.proxy("ruled", &QosSetup { rules: RULES, ..QosSetup::default() })?;
    let free = bed.proxy("free", &QosSetup { no_schedule: true, ..QosSetup::default() })?;
    for case in &CASES {
        if !run.wants(case.name) {
            continue;
        }
        let _kept_cold = if case.cold { Some(KeepCold::start(&cold)?) } else { None };
        let mut pairs = Vec::new();
        let rounds = run.rounds(20, 5);
        for round in 0..rounds {
            table.progress(&format!("{}, pair {} of {rounds}", case.name, round + 1));
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            let first = cpu_us(run, case, if round % 2 == 0 { &ruled } else { &free })?;
            let second = cpu_us(run, case, if round % 2 == 0 { &free } else { &ruled })?;
            pairs.push(if round % 2 == 0 { (first, second) } else { (second, first) });
        }
        table.add(row(case, &pairs));
    }
    Ok(())
}

/// Processor time of the server per operation in microseconds.
fn cpu_us(run: &QosRun<'_>, case: &CostCase, proxy: &QosProxy) -> anyhow::Result<f64> {
    let mut plan = proxy.plan("x", "", WorkOp::Randread, case.size);
    let (data, len) = if case.cold { ("cold", COLD_LEN) } else { ("warm", WARM_LEN) };
    plan.aname = "x".into();
    (plan.jobs, plan.depth, plan.file_size) = (CLASSES, case.depth, len);
    let mut job = QosJob::start(&[QosJobPart { plan, dir: String::new(), data: data.into() }])?;
    run.bed.wait(SETTLE)?;
    let (before, _) = (proxy.process.cpu()?, job.cut()?);
    run.bed.wait(run.time(1, 1) / 2)?;
    let (after, cut) = (proxy.process.cpu()?, job.cut()?);
    cut.check()?;
    Ok((after - before).as_secs_f64() * 1e6 / cut.score.ops.max(1) as f64)
}

fn row(case: &CostCase, pairs: &[(f64, f64)]) -> QosRow {
    let middle = |values: Vec<f64>| median(values).unwrap_or(f64::NAN);
    let ruled = middle(pairs.iter().map(|pair| pair.0).collect());
    let free = middle(pairs.iter().map(|pair| pair.1).collect());
    let mut ratios: Vec<f64> = pairs.iter().map(|pair| pair.0 / pair.1).collect();
    ratios.sort_by(f64::total_cmp);
    let percent = (middle(ratios.clone()) - 1.0) * 100.0;
    let at = |part: usize| (ratios[(ratios.len() - 1) * part / 4] - 1.0) * 100.0;
    let (low, high) = (at(1), at(3));
    QosRow {
        case: case.name.into(),
        target: format!("at most {:+.0} %", case.percent_max),
        reached: format!("{percent:+.1} %"),
        met: Some(percent <= case.percent_max),
        beside: format!(
            "{ruled:.2} against {free:.2} µs per operation; half of {} pairs between {low:+.1} and \
             {high:+.1} %",
            pairs.len()
        ),
        figures: figures([
            ("percent", percent),
            ("percent_quarter_low", low),
            ("percent_quarter_high", high),
            ("ruled_us", ruled),
            ("free_us", free),
            ("pairs", pairs.len() as f64),
        ]),
    }
}

const RULES: &str = "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={bench*}\"\nper = [\"jobid\"]\n";
const CLASSES: usize = 100;
const WARM_LEN: Bytes = Bytes::mib(256);
const COLD_LEN: Bytes = Bytes::mib(2048);
const SETTLE: Duration = Duration::from_millis(150);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_median_of_neighbours_ratios() {
        let pairs = [(10.9, 10.0), (21.0, 20.0), (5.0, 50.0), (42.0, 40.0), (90.0, 80.0)];
        let row = row(&CASES[0], &pairs);
        assert_eq!((row.reached.as_str(), row.met), ("+5.0 %", Some(true)));
        assert!(row.beside.contains("5 pairs between +5.0 and +9.0 %"), "{}", row.beside);
    }
}
