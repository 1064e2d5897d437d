//! Patterns of the publications beside a large job: small writes, large writes and many small files,
//! and how much the large job is slowed down by what the small one gains.
//!
//! ```text
//!   small job  btio-a: 320 B writes │ btio-c: 4 MiB pieces │ wrf: create, write, read, remove
//!   IOR        8 connections × 16 × 1 MiB writes in flight
//!   way        no-schedule │ no-rules │ equal │ weight-4: of the small job
//! ```
//!
//! The publications compared SFQ(D)+ with requests in the order of arrival: 8.25 times the rate for
//! 320 B beside IOR, and a run of WRF that ended 1.80 times sooner. Their machines are not known well
//! enough to be rebuilt, so what is reached here is our own, without a target.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::backend::{BackendKind, QosBackend};
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::job::{Cut, QosJob, QosJobPart};

/// Small jobs beside a large one.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "patterns",
    title: "Patterns of the publications",
    what: "A small job beside IOR, which keeps 128 writes of 1 MiB under way. `no-schedule`: requests \
           as they come. `no-rules`: one class. `equal`, `weight-4`: a class for each job. `times` is \
           the small job's rate in parts of that without scheduling, `ior slowdown` what IOR loses \
           against it. `slow-four` is four stores of 37.5 \
           MB/s each, with a file in one of them. Published: 8.25 × for 320 B, 1.80 × for WRF.",
    sources: &["bench/src/qos/patterns.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Calibrate],
    rows: || CASES.iter().map(PatternCase::row).collect(),
    measure,
};

struct PatternCase {
    name: &'static str,
    what: &'static str,
    backend: BackendKind,
    op: WorkOp,
    size: Bytes,
    connections: usize,
    depth: usize,
}

const fn btio_a(backend: BackendKind, name: &'static str) -> PatternCase {
    let (op, size) = (WorkOp::Write, Bytes::new(320));
    let what = "16 writers of 320 B, one write in flight each";
    PatternCase { name, what, backend, op, size, connections: 16, depth: 1 }
}

const fn btio_c(backend: BackendKind, name: &'static str) -> PatternCase {
    let (op, size) = (WorkOp::Write, Bytes::mib(1));
    let what = "4 writers with pieces of 4 MiB";
    PatternCase { name, what, backend, op, size, connections: 4, depth: 4 }
}

const fn wrf(backend: BackendKind, name: &'static str) -> PatternCase {
    let (op, size) = (WorkOp::Smallfile, Bytes::kib(16));
    let what = "8 processes that create, write, read and remove files of 16 KiB";
    PatternCase { name, what, backend, op, size, connections: 8, depth: 1 }
}

const CASES: &[PatternCase] = &[
    btio_a(BackendKind::Slow, "slow-btio-a"),
    btio_c(BackendKind::Slow, "slow-btio-c"),
    wrf(BackendKind::Slow, "slow-wrf"),
    btio_a(BackendKind::SlowFour, "slow-four-btio-a"),
    btio_c(BackendKind::SlowFour, "slow-four-btio-c"),
    wrf(BackendKind::SlowFour, "slow-four-wrf"),
    btio_a(BackendKind::Disk, "disk-btio-a"),
    btio_c(BackendKind::Disk, "disk-btio-c"),
    wrf(BackendKind::Disk, "disk-wrf"),
];

const NO_SCHEDULE: &str = "no-schedule";
const WAYS: [&str; 4] = ["weight-4", "equal", "no-rules", NO_SCHEDULE];

impl PatternCase {
    fn id(&self) -> String {
        format!("patterns/{}", self.name)
    }

    fn row(&self) -> FigureRow {
        let what = format!("{}: {}, beside IOR", self.backend.name(), self.what);
        FigureRow::new(&self.id(), &what, &WAYS).rounds(2, 6.0)
    }
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    for kind in [BackendKind::Slow, BackendKind::SlowFour, BackendKind::Disk] {
        let of_kind = CASES.iter().filter(|case| case.backend == kind);
        let wanted: Vec<_> = of_kind.filter(|case| sink.wants(&case.id())).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut backend = QosBackend::start(&bed, kind)?;
        backend.calibrate(run)?;
        for at in 0..16 {
            backend.file(&format!("small/written{at}"), SMALL_LEN)?;
        }
        for at in 0..IOR_CONNECTIONS {
            backend.file(&format!("ior/written{at}"), IOR_LEN)?;
        }
        let start = |no_schedule: bool| {
            let name = format!("{}-{no_schedule}", kind.name());
            backend.proxy(&name, &QosSetup { no_schedule, ..QosSetup::default() })
        };
        let (scheduled, unscheduled) = (start(false)?, start(true)?);
        for case in wanted {
            let row = case.row();
            let mut round = sink.begin(&row.id);
            let order: Vec<String> = row.in_turn(round.number()).map(String::from).collect();
            let mut samples = Vec::new();
            for way in order {
                round.shows(&way);
                let proxy = if way == NO_SCHEDULE { &unscheduled } else { &scheduled };
                let sample = one(&bed, case, &way, proxy, run.time(&row)).context(case.name)?;
                samples.push((way, sample));
            }
            let plain = samples.iter().find(|(way, _)| way == NO_SCHEDULE);
            let plain =
                plain.map(|(_, sample)| sample.clone()).context("every way was measured")?;
            for (way, mut sample) in samples {
                let (times, slowdown) = beside(&sample, &plain);
                sample.insert("times_ratio".into(), times);
                sample.insert("ior_slowdown_percent".into(), slowdown);
                round.sample(&way, sample);
            }
            round.end()?;
        }
    }
    Ok(())
}

fn one(
    bed: &QosTestBed,
    case: &PatternCase,
    way: &str,
    proxy: &QosProxy,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    if way != NO_SCHEDULE {
        proxy.api.set_rules(&rules(way))?;
    }
    let mut plan = proxy.plan("x", "ior", WorkOp::Write, Bytes::mib(1));
    (plan.connections, plan.depth, plan.file_size) = (IOR_CONNECTIONS, 16, IOR_LEN);
    let part = QosJobPart { plan, dir: "ior".into(), data: String::new() };
    let mut ior = QosJob::start_behind(&[part])?;
    let mut plan = proxy.plan("x", "small", case.op, case.size);
    (plan.connections, plan.depth) = (case.connections, case.depth);
    plan.file_size = SMALL_LEN;
    let part = QosJobPart { plan, dir: "small".into(), data: String::new() };
    let mut small = QosJob::start(&[part])?;
    bed.wait(SETTLE)?;
    ior.cut()?;
    small.cut()?;
    bed.wait(time)?;
    let (ior, small) = (ior.cut()?, small.cut()?);
    ior.check().context("IOR")?;
    small.check().context("the small job")?;
    Ok(figures(&small, &ior))
}

fn figures(small: &Cut, ior: &Cut) -> FigureSample {
    let values = [
        ("ops_per_s", small.score.ops as f64 / small.span.as_secs_f64()),
        ("mb_per_s", small.mb_per_sec()),
        ("p99_us", small.latency_us(0.99)),
        ("ior_mb_per_s", ior.mb_per_sec()),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// How many times the rate without scheduling, and what IOR loses against it in percent.
fn beside(sample: &FigureSample, plain: &FigureSample) -> (f64, f64) {
    let of =
        |sample: &FigureSample, measure: &str| sample.get(measure).copied().unwrap_or(f64::NAN);
    let times = of(sample, "ops_per_s") / of(plain, "ops_per_s");
    let slowdown = of(plain, "ior_mb_per_s") / of(sample, "ior_mb_per_s") - 1.0;
    (times, slowdown * 100.0)
}

fn rules(way: &str) -> String {
    let weight = match way {
        "weight-4" => 4,
        "equal" => 1,
        _ => return String::new(),
    };
    format!(
        "[[rule]]\nname = \"small\"\nmatch = \"jobid={{small}}\"\nweight = {weight}\n\n\
         [[rule]]\nname = \"ior\"\nmatch = \"jobid={{ior}}\"\n"
    )
}

const IOR_CONNECTIONS: usize = 8;
const IOR_LEN: Bytes = Bytes::mib(256);
const SMALL_LEN: Bytes = Bytes::mib(64);
const SETTLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gain_and_loss_are_against_no_scheduling() {
        let sample = |ops: f64, ior: f64| {
            FigureSample::from([("ops_per_s".into(), ops), ("ior_mb_per_s".into(), ior)])
        };
        assert_eq!(beside(&sample(825.0, 100.0), &sample(100.0, 150.0)), (8.25, 50.0));
        assert_eq!(beside(&sample(100.0, 150.0), &sample(100.0, 150.0)), (1.0, 0.0));
    }

    #[test]
    fn the_rules_are_rules() {
        let weights = |way| {
            let parsed = rules::RuleSet::parse(&rules(way)).unwrap();
            parsed.rules.iter().map(|rule| rule.weight.get()).collect::<Vec<_>>()
        };
        assert_eq!(weights("weight-4"), [4, 1]);
        assert_eq!(weights("equal"), [1, 1]);
        assert!(weights("no-rules").is_empty());
    }
}
