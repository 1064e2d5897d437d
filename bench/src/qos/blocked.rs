//! A call to the backend that sleeps for 5 s must delay nobody else.
//!
//!   export y  a file system of its own in a file (loop, ext4): frozen by fsfreeze,
//!             every write in it sleeps in the kernel until it is thawed
//!   export x  4 KiB reads at depth 1 on another connection, cached; then the same in y
//!
//! The delay is what the reads' latencies gained over those just before the freeze: this
//! machine's own pauses are in both. Needs root for loop and freeze.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use model::Bytes;

use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{QosSetup, QosTestBed};
use super::job::{Cut, QosJob, QosJobPart};
use super::table::{QosRow, QosTable, figures};

/// Measures one sleeping call and 16, beside reads of another export and of the same.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    table.progress("making files");
    let bed = &run.bed;
    let warm = bed.file("warm", WARM_LEN)?;
    let sleepy = match Sleepy::make(bed) {
        Ok(sleepy) => sleepy,
        Err(error) => {
            table.note(format!("not measured: {error:#}"));
            return Ok(());
        }
    };
    let second = Some(sleepy.dir.clone());
    let proxy = bed.proxy("blocked", &QosSetup { second, ..QosSetup::default() })?;
    for export in ["x", "y"] {
        for calls in [1, 16] {
            let name = format!("{calls} sleeping, reads of {}", where_is(export));
            if !run.wants(&name) {
                continue;
            }
            table.progress(&name);
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            let mut plan = proxy.plan(export, "reader", WorkOp::Randread, Bytes::kib(4));
            plan.file_size = WARM_LEN;
            let mut reader =
                QosJob::start(&[QosJobPart { plan, dir: String::new(), data: "warm".into() }])?;
            run.bed.wait(Duration::from_millis(200))?;
            reader.cut()?;
            run.bed.wait(run.time(5, 2))?;
            let before = reader.cut()?;
            let mut plan = proxy.plan("y", "sleeper", WorkOp::Write, Bytes::kib(64));
            (plan.file_size, plan.depth) = (WRITTEN_LEN, calls);
            let frozen = sleepy.freeze()?;
            reader.cut()?;
            let mut sleeper =
                QosJob::start(&[QosJobPart { plan, dir: "sleeper".into(), data: String::new() }])?;
            // The guarantee is for 5 s; the freeze lasts as long as the span.
            run.bed.wait(run.time(5, 2).max(Duration::from_secs(2)))?;
            let (during, slept) = (reader.cut()?, sleeper.cut()?);
            drop(frozen);
            before.check()?;
            during.check()?;
            if slept.score.ops > 0 {
                bail!("{} writes went through a frozen file system", slept.score.ops);
            }
            table.add(row(&name, &before, &during));
        }
    }
    Ok(())
}

fn row(name: &str, before: &Cut, during: &Cut) -> QosRow {
    let max_ms = |cut: &Cut| cut.score.latency_ns.max() as f64 / 1e6;
    // A read that never came back is not in the histogram, but it is a gap.
    let (was, is) = (max_ms(before), max_ms(during).max(during.gap.as_secs_f64() * 1e3));
    let delay = (is - was).max(0.0);
    let rate = |cut: &Cut| cut.score.ops as f64 / cut.span.as_secs_f64();
    QosRow {
        case: name.into(),
        target: format!("delays others by at most {DELAY_MS_MAX} ms"),
        reached: format!("longest read {is:.1} ms, {was:.1} ms before"),
        met: Some(delay <= DELAY_MS_MAX),
        beside: format!(
            "p99.9 {:.0} µs, {:.0} before; {:.0} reads/s, {:.0} before",
            during.latency_us(0.999),
            before.latency_us(0.999),
            rate(during),
            rate(before)
        ),
        figures: figures([
            ("delay_ms", delay),
            ("longest_ms", is),
            ("longest_before_ms", was),
            ("p999_us", during.latency_us(0.999)),
            ("p999_before_us", before.latency_us(0.999)),
            ("over_5_ms", over(during)),
            ("over_5_ms_before", over(before)),
        ]),
    }
}

/// How many reads took longer than 5 ms.
fn over(cut: &Cut) -> f64 {
    cut.score.latency_ns.count_between(5_000_000, u64::MAX) as f64
}

fn where_is(export: &str) -> &'static str {
    if export == "x" { "another file system" } else { "the same one" }
}

/// A file system in a file, mounted; unmounted when dropped.
struct Sleepy {
    dir: PathBuf,
}

impl Sleepy {
    fn make(bed: &QosTestBed) -> anyhow::Result<Sleepy> {
        let image = bed.dir().join("sleepy.img");
        let dir = bed.dir().join("y");
        std::fs::create_dir(&dir).context("cannot make a mount point")?;
        let file = std::fs::File::create(&image).context("cannot make an image")?;
        file.set_len(IMAGE_LEN.get()).context("cannot make an image")?;
        command("mkfs.ext4", &["-q", "-F", &text(&image)])?;
        command("mount", &["-o", "loop,noatime", &text(&image), &text(&dir)])?;
        let sleepy = Sleepy { dir };
        std::fs::create_dir(sleepy.dir.join("sleeper")).context("cannot make a directory")?;
        super::super::files::make_file(&sleepy.dir.join("warm"), WARM_LEN)?;
        super::super::files::make_file(&sleepy.dir.join("sleeper/written0"), WRITTEN_LEN)?;
        Ok(sleepy)
    }

    /// Lets every write in it sleep until the guard is dropped.
    fn freeze(&self) -> anyhow::Result<FrozenBackend<'_>> {
        command("fsfreeze", &["--freeze", &text(&self.dir)])?;
        Ok(FrozenBackend(&self.dir))
    }
}

impl Drop for Sleepy {
    fn drop(&mut self) {
        // The proxy may close its last file a moment after its end.
        for _ in 0..50 {
            if command("umount", &[&text(&self.dir)]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("sluice-bench: cannot unmount {}", self.dir.display());
    }
}

/// A frozen file system.
struct FrozenBackend<'a>(&'a Path);

impl Drop for FrozenBackend<'_> {
    fn drop(&mut self) {
        if let Err(error) = command("fsfreeze", &["--unfreeze", &text(self.0)]) {
            eprintln!("sluice-bench: {error:#}");
        }
    }
}

fn command(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

const DELAY_MS_MAX: f64 = 5.0;
const WARM_LEN: Bytes = Bytes::mib(32);
const WRITTEN_LEN: Bytes = Bytes::mib(16);
const IMAGE_LEN: Bytes = Bytes::mib(128);
