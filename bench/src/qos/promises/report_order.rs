//! What `sluice report` says of the order of reads that programs made through a mount.
//!
//! ```text
//!   four sequential readers ─┐
//!   one random reader ───────┴► kernel ─► sluice mount ─► proxy ─► controller ─► sluice report
//! ```

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api::WireJobReport;
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::bed::{QosSetup, QosTestBed};
use super::super::controllers::QosController;
use super::super::mounted::{QosFio, QosMount, for_time};

pub(super) fn row() -> FigureRow {
    let what = "disk: what `sluice report` says of four sequential readers and of a random one on a mount: \
                reads that began where one ended";
    FigureRow::new("live/report-order", what, &["sluice"])
        .rounds(2, 6.0)
        .goal("sluice", "sequential_percent", FigureBound::Least(95.0))
        .goal("sluice", "random_percent", FigureBound::Most(5.0))
}

pub(super) fn measure(
    run: &FigureRun<'_>,
    bed: &QosTestBed,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let row = row();
    if !sink.wants(&row.id) {
        return Ok(());
    }
    for number in 0..READERS {
        bed.file(&format!("order{number}"), FILE_LEN)?;
    }
    let controller = QosController::start(bed, "ledger")?;
    let top = format!("controller = \"{}\"\nproxy_name = \"order\"", controller.url);
    let proxy = bed.proxy("order", &QosSetup { top: &top, ..QosSetup::default() })?;
    let options = "allow_other,job=env:SLURM_JOB_ID";
    let mount = QosMount::start(bed, &proxy, "order-mount", options)?;
    let time = for_time(Duration::ZERO, run.time(&row) / 2);
    let place = format!("--directory={}", mount.root().display());
    sink.round_of(&row, |_| {
        let mut figures = FigureSample::new();
        for (job, measure, words) in
            [("sequential", "sequential_percent", SEQUENTIAL), ("random", "random_percent", RANDOM)]
        {
            let words = format!("--size={} {place} {words} {time}", FILE_LEN.get());
            QosFio::start(bed, job, 0, &words)?.finish(bed)?;
            let (reads, percent) = reported(bed, &controller, job)?;
            figures.extend(sample([(measure, percent)]));
            figures.insert(format!("{job}_requests"), reads);
        }
        Ok(figures)
    })
}

/// The number of reads in a job's report, and how many of a hundred began where one ended; once
/// all of them are in it.
fn reported(bed: &QosTestBed, controller: &QosController, job: &str) -> anyhow::Result<(f64, f64)> {
    let (mut before, deadline) = (0, Instant::now() + PATIENCE);
    loop {
        bed.wait(REPORTED_WITHIN)?;
        let words = ["report", "--json", "--since", "1h", "--job", job, "--controller"];
        let output = Command::new(bed.sluice()).args(words).arg(&controller.url).output();
        let output = output.context("cannot run sluice report")?;
        if output.status.success() {
            let report: WireJobReport =
                serde_json::from_slice(&output.stdout).context("not a report")?;
            let reads = report.counters.reads;
            let all: u64 = reads.sizes.iter().sum();
            if all > 0 && all == before {
                let random = reads.random as f64 / all as f64;
                return Ok((all as f64, (1.0 - random) * 100.0));
            }
            before = all;
        }
        if Instant::now() > deadline {
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "sluice report: {}", said.trim());
            bail!("the report of {job} has {before} reads, and not yet all");
        }
    }
}

const READERS: usize = 4;
const SEQUENTIAL: &str =
    "--filename_format=order$jobnum --rw=read --bs=128k --numjobs=4 --ioengine=psync";
const RANDOM: &str = "--filename_format=order0 --rw=randread --bs=4k --direct=1 --ioengine=psync";
const FILE_LEN: Bytes = Bytes::mib(256);
/// A proxy reports to its controller more often than this.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
