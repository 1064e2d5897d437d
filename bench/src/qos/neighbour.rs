//! Two jobs on one mount: one with a limit of 1 MB/s and 64 writers that ask for far more, and
//! another that uses the backend.
//!
//! ```text
//!   alone ─ beside ─ alone ─ beside ─ … ─ alone     a slice of some seconds each
//!     └───────┴────────┘ a slice beside is held against the mean of its neighbours
//! ```
//!
//! On the slow backend the other loses 1 of 150 MB/s by arithmetic. Between two slices the writers
//! are killed, the limit is lifted until nothing of theirs is queued, and the backend is flushed.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use model::Bytes;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::backend::{BackendKind, ColdFile, QosBackend};
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::mounted::{QosFio, QosMount, for_time, on};
use super::quantile::quantile;

/// A throttled job's neighbour on its mount.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "neighbour",
    title: "A throttled job's neighbour on one mount",
    what: "One mount, two jobs: 64 writers with a limit of 1 MB/s together, and a neighbour, alone \
           and beside them in turn. The loss of a slice beside is against the mean of the slices \
           around it; the median of a round counts.",
    sources: &["bench/src/qos/neighbour.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount],
    rows: || CASES.iter().map(NeighbourCase::row).collect(),
    measure,
};

struct NeighbourCase {
    name: &'static str,
    what: &'static str,
    backend: BackendKind,
    load: &'static str,
    file: &'static str,
}

#[rustfmt::skip]
const CASES: &[NeighbourCase] = &[
    NeighbourCase { name: "read-slow", what: "64 KiB random reads", backend: BackendKind::Slow, load: READ, file: COLD },
    NeighbourCase { name: "write-slow", what: "64 KiB random writes", backend: BackendKind::Slow, load: WRITE, file: OWN },
    NeighbourCase { name: "mixed-slow", what: "64 KiB random reads and writes", backend: BackendKind::Slow, load: MIXED, file: COLD },
    NeighbourCase { name: "read-disk", what: "64 KiB random reads", backend: BackendKind::Disk, load: READ, file: COLD },
    NeighbourCase { name: "write-disk", what: "64 KiB random writes", backend: BackendKind::Disk, load: WRITE, file: OWN },
    NeighbourCase { name: "mixed-disk", what: "64 KiB random reads and writes", backend: BackendKind::Disk, load: MIXED, file: COLD },
    NeighbourCase { name: "cached-large", what: "64 KiB sequential reads that the proxy has in memory", backend: BackendKind::Disk, load: "--bs=64k --numjobs=2 --rw=read", file: WARM },
    NeighbourCase { name: "cached-small", what: "4 KiB random reads that the proxy has in memory", backend: BackendKind::Disk, load: "--bs=4k --numjobs=2 --rw=randread", file: WARM },
];
const READ: &str = "--bs=64k --numjobs=16 --rw=randread";
const WRITE: &str = "--bs=64k --numjobs=16 --rw=randwrite";
const MIXED: &str = "--bs=64k --numjobs=16 --rw=randrw";
const COLD: &str = "cold";
const OWN: &str = "own";
const WARM: &str = "warm";

impl NeighbourCase {
    fn id(&self) -> String {
        format!("neighbour/{}", self.name)
    }

    fn row(&self) -> FigureRow {
        let what = format!("{}: {}", self.backend.name(), self.what);
        FigureRow::new(&self.id(), &what, &["sluice"]).rounds(2, SLICES as f64 * 2.0 * 3.0).goal(
            "sluice",
            "loss_percent",
            FigureBound::Most(2.0),
        )
    }
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    for kind in [BackendKind::Slow, BackendKind::Disk] {
        let wanted: Vec<_> =
            CASES.iter().filter(|case| case.backend == kind && sink.wants(&case.id())).collect();
        if wanted.is_empty() {
            continue;
        }
        let backend = QosBackend::start(&bed, kind)?;
        for (name, len) in [(COLD, backend.cold_len()), (OWN, WARM_LEN), (WARM, WARM_LEN)] {
            backend.file(name, len)?;
        }
        let _kept_cold = backend.keep_cold(COLD, ColdFile::Random)?;
        std::fs::create_dir_all(backend.dir().join("slow")).context("cannot make a directory")?;
        let setup = QosSetup { rules: LIMITED, ..QosSetup::default() };
        let proxy = backend.proxy("neighbour", &setup)?;
        let options = "allow_other,job=env:SLURM_JOB_ID";
        let mount = QosMount::start(&bed, &proxy, &format!("shared-{}", kind.name()), options)?;
        for case in wanted {
            measure_case(run, &backend, case, &proxy, &mount, sink).context(case.name)?;
        }
    }
    Ok(())
}

fn measure_case(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    case: &NeighbourCase,
    proxy: &QosProxy,
    mount: &QosMount,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let slices = if run.is_quick { 2 } else { SLICES };
    let span = run.time(&case.row()) / (2 * slices as u32);
    let round = sink.begin(&case.id());
    let (mut alone, mut beside, mut queued) = (Vec::new(), Vec::new(), Vec::new());
    let mut void = None;
    for at in 0..=slices {
        if case.file == WARM {
            let mut warm = File::open(backend.dir().join(WARM)).context("cannot open a file")?;
            std::io::copy(&mut warm, &mut std::io::sink()).context("warming")?;
        }
        let below = backend.watch(proxy)?;
        alone.push(slice(backend, case, mount, span)?);
        // In the proxy's memory nothing is served below, and of the disk nothing is known.
        void = void.or(below.end(proxy)?.1);
        if at == slices {
            break;
        }
        let slow = ThrottledJob::start(backend, proxy, mount)?;
        beside.push(slice(backend, case, mount, span)?);
        queued.push(slow.end(backend)?);
    }
    match void {
        Some(why) => round.void(&why),
        None => {
            let mut round = round;
            round.sample("sluice", figures(&alone, &beside, &queued));
            round.end()
        }
    }
}

/// What the neighbour moves in one slice, in MB/s.
fn slice(
    backend: &QosBackend<'_>,
    case: &NeighbourCase,
    mount: &QosMount,
    span: Duration,
) -> anyhow::Result<f64> {
    let len = if case.file == COLD { backend.cold_len() } else { WARM_LEN };
    let words = format!(
        "--ioengine=psync --direct=1 --size={} {} {} {}",
        len.get(),
        case.load,
        on(&mount.join(case.file)),
        for_time(RAMP, span)
    );
    let bed = backend.bed();
    Ok(QosFio::start(bed, "other", 0, &words)?.finish(bed)?.mb_per_sec())
}

/// The throttled job at work: 64 processes of dd, which take no time of a processor while they
/// wait. Killed when dropped.
struct ThrottledJob<'a> {
    writers: Vec<Child>,
    proxy: &'a QosProxy,
}

impl<'a> ThrottledJob<'a> {
    /// Begins it, and waits until it has more under way than it is allowed.
    fn start(
        backend: &QosBackend<'_>,
        proxy: &'a QosProxy,
        mount: &QosMount,
    ) -> anyhow::Result<ThrottledJob<'a>> {
        proxy.api.set_rules(LIMITED)?;
        let mut slow = ThrottledJob { writers: Vec::new(), proxy };
        for number in 0..WRITERS {
            let to = format!("of={}", mount.join(&format!("slow/{number}")).display());
            let writer = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--", "dd", "if=/dev/zero", "bs=1M", "count=64"])
                .arg(to)
                .env("SLURM_JOB_ID", "slow")
                .stderr(Stdio::null())
                .spawn();
            slow.writers.push(writer.context("cannot start dd through setpriv")?);
        }
        let deadline = Instant::now() + START_MAX;
        while proxy.class("slow").map_or(0, |(_, class)| class.usage.queued) < QUEUED_MIN {
            ensure!(Instant::now() < deadline, "the throttled job does not get to work");
            backend.bed().wait(CHECK_EVERY)?;
        }
        backend.bed().wait(RAMP)?;
        Ok(slow)
    }

    /// Ends it with all that it has under way; returns how many requests were queued until then.
    fn end(self, backend: &QosBackend<'_>) -> anyhow::Result<f64> {
        let proxy = self.proxy;
        let queued = proxy.class("slow")?.1.usage.queued;
        drop(self);
        proxy.api.set_rules(UNLIMITED)?;
        let deadline = Instant::now() + START_MAX;
        let busy = || -> anyhow::Result<bool> {
            let usage = proxy.class("slow").map(|(_, class)| class.usage)?;
            Ok(usage.queued + usage.running > 0)
        };
        while busy()? {
            ensure!(Instant::now() < deadline, "what is under way does not end");
            backend.bed().wait(CHECK_EVERY)?;
        }
        let export = File::open(backend.dir()).context("cannot open the export")?;
        rustix::fs::syncfs(&export).context("cannot flush")?;
        Ok(queued as f64)
    }
}

impl Drop for ThrottledJob<'_> {
    fn drop(&mut self) {
        // It fails only for those that have ended.
        for writer in &mut self.writers {
            let _ = writer.kill();
        }
        for writer in &mut self.writers {
            let _ = writer.wait();
        }
    }
}

fn figures(alone: &[f64], beside: &[f64], queued: &[f64]) -> FigureSample {
    let around = alone.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let losses: Vec<f64> =
        around.zip(beside).map(|(alone, beside)| (1.0 - beside / alone) * 100.0).collect();
    let values = [
        ("loss_percent", quantile(&losses, 0.5)),
        ("loss_low_quartile_percent", quantile(&losses, 0.25)),
        ("loss_high_quartile_percent", quantile(&losses, 0.75)),
        ("alone_mb_per_s", quantile(alone, 0.5)),
        ("beside_mb_per_s", quantile(beside, 0.5)),
        ("throttled_queued_min_requests", quantile(queued, 0.0)),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

const LIMITED: &str = "\
[[rule]]
name = \"slow\"
match = \"jobid={slow}\"
per = [\"jobid\"]
limit = \"1MB/s\"

[[rule]]
name = \"other\"
match = \"jobid={other}\"
";
const UNLIMITED: &str = "\
[[rule]]
name = \"slow\"
match = \"jobid={slow}\"
per = [\"jobid\"]

[[rule]]
name = \"other\"
match = \"jobid={other}\"
";
/// Beside the throttled job, in one round.
const SLICES: usize = 6;
/// Each writes 64 MiB in a file of its own: a minute's worth of the limit.
const WRITERS: usize = 64;
/// Requests that the throttled job has queued at the proxy at least before it counts as busy.
const QUEUED_MIN: u64 = 4;
const WARM_LEN: Bytes = Bytes::mib(64);
const RAMP: Duration = Duration::from_millis(500);
const START_MAX: Duration = Duration::from_secs(60);
const CHECK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_measured_against_the_slices_around_it() {
        // The machine gets slower all the time, and nobody loses anything.
        let found = figures(&[100.0, 80.0, 60.0], &[90.0, 70.0], &[9.0, 7.0]);
        assert_eq!(found["loss_percent"], 0.0);
        assert_eq!(found["throttled_queued_min_requests"], 7.0);
        let lost = figures(&[100.0, 100.0], &[97.0], &[9.0])["loss_percent"];
        assert!((lost - 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_rules_are_rules() {
        for rules in [LIMITED, UNLIMITED] {
            assert_eq!(rules::RuleSet::parse(rules).unwrap().rules.len(), 2);
        }
    }
}
