//! Two jobs on one mount: one with a limit of 1 MB/s and 64 writers that ask for far more, and
//! another that reads.
//!
//!   alone ─ beside ─ alone ─ beside ─ … ─ alone     a slice of some seconds each
//!     └───────┴────────┘ a slice beside is held against the mean of its neighbours
//!
//! What the other reads is in the proxy's memory: with it the device and the 1 MB/s of the
//! first one do not matter. Between two slices the writers are killed, the limit is lifted
//! until nothing of theirs is queued, and what they wrote is flushed.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use model::Bytes;

use super::super::QosRun;
use super::super::bed::{QosProxy, QosSetup};
use super::super::mounted::{QosFio, QosMount, for_time, on};
use super::super::table::{QosRow, QosTable, figures};
use super::quantile;

struct NeighbourCase {
    name: &'static str,
    load: &'static str,
}

const CASES: [NeighbourCase; 2] = [
    NeighbourCase {
        name: "one mount, 64 KiB reads beside a job of 1 MB/s",
        load: "--bs=64k --numjobs=2 --rw=read",
    },
    NeighbourCase {
        name: "one mount, 4 KiB random reads beside a job of 1 MB/s",
        load: "--bs=4k --numjobs=2 --rw=randread",
    },
];

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    if !CASES.iter().any(|case| run.wants(case.name)) {
        return Ok(());
    }
    table.progress("making files");
    let warm = run.bed.file("warm", WARM_LEN)?;
    std::fs::create_dir_all(run.bed.export().join("slow")).context("cannot make a directory")?;
    let setup = QosSetup { rules: LIMITED, ..QosSetup::default() };
    let proxy = run.bed.proxy("neighbour", &setup)?;
    let mount = QosMount::start(&run.bed, &proxy, "shared", "allow_other,job=env:SLURM_JOB_ID")?;
    for case in CASES.iter().filter(|case| run.wants(case.name)) {
        let rounds = run.rounds(12, 2);
        let (mut alone, mut beside, mut under_way) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            table.progress(&format!("{}: {round} of {rounds}", case.name));
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            alone.push(slice(run, case, &mount)?);
            if round == rounds {
                break;
            }
            let slow = Slow::start(run, &proxy, &mount)?;
            beside.push(slice(run, case, &mount)?);
            under_way.push(slow.end(run)?);
        }
        table.add(row(case, &alone, &beside, &under_way));
    }
    Ok(())
}

/// What the other job does in one slice, in MB/s.
fn slice(run: &QosRun<'_>, case: &NeighbourCase, mount: &QosMount) -> anyhow::Result<f64> {
    let (file, span) = (on(&mount.join("warm")), for_time(RAMP, run.time(3, 1)));
    let words = format!(
        "--ioengine=psync --direct=1 --size={} {} {file} {span}",
        WARM_LEN.get(),
        case.load
    );
    Ok(QosFio::start(&run.bed, "other", 0, &words)?.finish(&run.bed)?.mb_per_sec())
}

/// The throttled job at work: 64 processes of dd, which take no time of a processor while they
/// wait. Killed when dropped.
struct Slow<'a> {
    writers: Vec<Child>,
    proxy: &'a QosProxy,
}

impl<'a> Slow<'a> {
    /// Begins it, and waits until it has more under way than it is allowed.
    fn start(run: &QosRun<'_>, proxy: &'a QosProxy, mount: &QosMount) -> anyhow::Result<Slow<'a>> {
        proxy.api.set_rules(LIMITED)?;
        let mut slow = Slow { writers: Vec::new(), proxy };
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
            run.bed.wait(LOOK_EVERY)?;
        }
        run.bed.wait(RAMP)?;
        Ok(slow)
    }

    /// Ends it with all that it has under way; says how many requests were queued until then.
    fn end(self, run: &QosRun<'_>) -> anyhow::Result<f64> {
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
            run.bed.wait(LOOK_EVERY)?;
        }
        let export = File::open(run.bed.export()).context("cannot open the export")?;
        rustix::fs::syncfs(&export).context("cannot flush")?;
        Ok(queued as f64)
    }
}

impl Drop for Slow<'_> {
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

fn row(case: &NeighbourCase, alone: &[f64], beside: &[f64], under_way: &[f64]) -> QosRow {
    let around = alone.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let losses: Vec<f64> =
        around.zip(beside).map(|(alone, beside)| (1.0 - beside / alone) * 100.0).collect();
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(&losses, part));
    let rates = [alone, beside].map(|rates| quantile(rates, 0.5));
    let least = under_way.iter().copied().fold(f64::INFINITY, f64::min);
    QosRow {
        case: case.name.into(),
        target: format!("loses at most {LOSS_MAX} %"),
        reached: format!("{middle:+.1} %, quartiles {low:+.1} and {high:+.1}"),
        met: Some(middle <= LOSS_MAX),
        beside: format!(
            "{:.0} MB/s alone, {:.0} beside; {} slices; least queued of the other {least:.0}",
            rates[0],
            rates[1],
            losses.len()
        ),
        figures: figures([
            ("loss_percent", middle),
            ("loss_percent_quartile_low", low),
            ("loss_percent_quartile_high", high),
            ("alone_mb_per_sec", rates[0]),
            ("beside_mb_per_sec", rates[1]),
            ("slices", losses.len() as f64),
            ("queued_min", least),
        ]),
    }
}

const LIMITED: &str = "\
[[rule]]
name = \"slow\"
match = \"jobid={slow}\"
per = [\"jobid\"]
limit = \"1MB/s\"
";
const UNLIMITED: &str = "\
[[rule]]
name = \"slow\"
match = \"jobid={slow}\"
per = [\"jobid\"]
";
/// Each writes 64 MiB in a file of its own: a minute's worth of the limit.
const WRITERS: usize = 64;
/// Requests that the throttled job has queued at the proxy at least before it counts as busy.
const QUEUED_MIN: u64 = 4;
const WARM_LEN: Bytes = Bytes::mib(64);
const LOSS_MAX: f64 = 2.0;
const RAMP: Duration = Duration::from_millis(500);
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_measured_against_the_slices_around_it() {
        // The machine gets slower all the time, and nobody loses anything.
        let row = row(&CASES[0], &[100.0, 80.0, 60.0], &[90.0, 70.0], &[9.0, 7.0]);
        assert_eq!(
            (row.reached.as_str(), row.met),
            ("+0.0 %, quartiles +0.0 and +0.0", Some(true))
        );
        let row = super::row(&CASES[0], &[100.0, 100.0], &[97.0], &[9.0]);
        assert_eq!(row.met, Some(false));
    }

    #[test]
    fn the_rules_are_rules() {
        assert_eq!(model::RuleSet::parse(LIMITED).unwrap().rules.len(), 1);
        assert_eq!(model::RuleSet::parse(UNLIMITED).unwrap().rules.len(), 1);
    }
}
