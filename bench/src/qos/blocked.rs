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

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::job::{Cut, QosJob, QosJobPart};

/// Calls that sleep beside reads.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "blocked",
    title: "Calls that sleep",
    what: "4 KiB reads, one at a time, while calls of another connection sleep in the kernel for 5 s. \
           `delay` is by how much the longest read exceeds the longest of the 5 s before.",
    sources: &["bench/src/qos/blocked.rs"],
    programs: &[FigureProgram::Proxy],
    rows: || CASES.iter().map(|(export, calls)| row(export, *calls)).collect(),
    measure,
};

const CASES: [(&str, usize); 4] = [("x", 1), ("x", 16), ("y", 1), ("y", 16)];

fn row(export: &str, calls: usize) -> FigureRow {
    let (name, place) = match export {
        "x" => ("other", "another file system"),
        _ => ("same", "the same file system"),
    };
    let what = format!("{calls} sleeping writes, reads of {place}");
    FigureRow::new(&format!("blocked/{name}-{calls}"), &what, &["sluice"]).rounds(5, 5.0).goal(
        "sluice",
        "delay_ms",
        FigureBound::Most(DELAY_MS_MAX),
    )
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let warm = bed.file("warm", WARM_LEN)?;
    let sleepy = Sleepy::make(&bed)?;
    let second = Some(sleepy.dir.clone());
    let proxy = bed.proxy("blocked", &QosSetup { second, ..QosSetup::default() })?;
    for (export, calls) in CASES {
        sink.round_of(&row(export, calls), |_| {
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            let time = run.time(&row(export, calls));
            one(&bed, &proxy, &sleepy, export, calls, time)
        })?;
    }
    Ok(())
}

/// Reads of `export` for a span, and for as long while `calls` writes sleep.
fn one(
    bed: &QosTestBed,
    proxy: &QosProxy,
    sleepy: &Sleepy,
    export: &str,
    calls: usize,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    let mut plan = proxy.plan(export, "reader", WorkOp::Randread, Bytes::kib(4));
    plan.file_size = WARM_LEN;
    let mut reader =
        QosJob::start(&[QosJobPart { plan, dir: String::new(), data: "warm".into() }])?;
    bed.wait(Duration::from_millis(200))?;
    reader.cut()?;
    bed.wait(time)?;
    let before = reader.cut()?;
    let mut plan = proxy.plan("y", "sleeper", WorkOp::Write, Bytes::kib(64));
    (plan.file_size, plan.depth) = (WRITTEN_LEN, calls);
    let frozen = sleepy.freeze()?;
    reader.cut()?;
    let mut sleeper =
        QosJob::start(&[QosJobPart { plan, dir: "sleeper".into(), data: String::new() }])?;
    bed.wait(time)?;
    let (during, slept) = (reader.cut()?, sleeper.cut()?);
    drop(frozen);
    before.check()?;
    during.check()?;
    if slept.score.ops > 0 {
        bail!("{} writes went through a frozen file system", slept.score.ops);
    }
    let longest = |cut: &Cut| cut.score.latency_ns.max() as f64 / 1e6;
    // A read that never came back is not in the histogram, but it is a gap.
    let (was, is) = (longest(&before), longest(&during).max(during.gap.as_secs_f64() * 1e3));
    let all = [
        ("delay_ms", (is - was).max(0.0)),
        ("longest_ms", is),
        ("longest_before_ms", was),
        ("p999_us", during.latency_us(0.999)),
        ("p999_before_us", before.latency_us(0.999)),
        ("over_5_ms_count", over(&during)),
        ("over_5_ms_before_count", over(&before)),
    ];
    Ok(all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// How many reads took longer than 5 ms.
fn over(cut: &Cut) -> f64 {
    cut.score.latency_ns.count_between(5_000_000, u64::MAX) as f64
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
