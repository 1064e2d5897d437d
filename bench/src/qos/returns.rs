//! How long a hard mount takes to serve again once its killed proxy is back.
//!
//!   kill ─ the mount has noticed ─ start ─ the proxy accepts ─► first call that ends ─► …
//!                                             └──── measured ────┘
//!
//! Processes call all the time: each looks at a name that nothing caches, writes and syncs. None
//! may ever see an error.

use std::fs::OpenOptions;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::judge::median;
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::mounted::QosMount;

/// A killed proxy's return.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "returns",
    title: "A proxy that returns",
    what: "A hard mount whose proxy is killed and started again while four programs write, sync and \
           stat. `took` is from the moment at which the new proxy accepts connections to the end of \
           the first call.",
    sources: &["bench/src/qos/returns.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount],
    rows: || vec![row()],
    measure,
};

fn row() -> FigureRow {
    FigureRow::new(
        "returns/hard-mount",
        "until a mount serves again, the slowest of ten",
        &[SLUICE],
    )
    .rounds(3, KILLS as f64)
    .goal(SLUICE, "took_most_s", FigureBound::Most(1.0))
    .goal(SLUICE, "errors_count", FigureBound::Most(0.0))
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let kills = if run.is_quick { 2 } else { KILLS };
    sink.round_of(&row(), |_| {
        let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
        killed_and_started(&bed, kills)
    })
}

fn killed_and_started(bed: &QosTestBed, kills: usize) -> anyhow::Result<FigureSample> {
    let mut proxy = Some(bed.proxy("returns", &QosSetup::default())?);
    let begun = proxy.as_ref().context("it was started")?;
    let mount = QosMount::start(bed, begun, "hard", "allow_other,attr_timeout=0")?;
    let callers = Callers::start(&mount);
    let mut took = Vec::new();
    for kill in 0..kills {
        let before = callers.count();
        callers.wait_until(bed, || callers.count() > before + 100).context("before a kill")?;
        let killed = proxy.take().context("it is there")?;
        let address = killed.address.clone();
        kill_now(killed)?;
        // Long enough that nothing of the old one is on its way, and different each time: the
        // mount tries again in growing steps.
        bed.wait(Duration::from_millis(300 + 170 * kill as u64))?;
        let before = callers.count();
        let watcher = std::thread::spawn(move || {
            let deadline = Instant::now() + RETURN_MAX;
            while address.connect().is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            Instant::now()
        });
        let first = callers.first_after(before);
        proxy = Some(bed.proxy("returns", &QosSetup::default())?);
        let accepts = watcher.join().expect("it does not panic");
        callers.wait_until(bed, || first.get().is_some()).context("after a return")?;
        let served = first.get().context("a call has ended")?;
        took.push(served.saturating_duration_since(accepts).as_secs_f64());
    }
    let errors = callers.end()?;
    drop(mount);
    Ok(FigureSample::from([
        ("took_most_s".into(), took.iter().copied().fold(0.0, f64::max)),
        ("took_median_s".into(), median(took).unwrap_or(f64::NAN)),
        ("errors_count".into(), errors as f64),
    ]))
}

/// As a machine's fault would, with no word to anybody.
fn kill_now(proxy: QosProxy) -> anyhow::Result<()> {
    proxy.process.kill().context("cannot kill the proxy")
}

/// Processor threads that call, and count what ended well and what did not.
struct Callers {
    shared: Arc<ReturnsState>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct ReturnsState {
    stop: AtomicBool,
    done: AtomicU64,
    errors: AtomicU64,
}

/// When the first call of those that are waited for ended.
struct First(Arc<std::sync::OnceLock<Instant>>);

impl First {
    fn get(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

impl Callers {
    fn start(mount: &QosMount) -> Callers {
        let shared: Arc<ReturnsState> = Arc::default();
        let threads = (0..CALLERS).map(|n| {
            let (path, shared) = (mount.join(&format!("called{n}")), shared.clone());
            std::thread::spawn(move || call(path, &shared))
        });
        Callers { threads: threads.collect(), shared }
    }

    fn count(&self) -> u64 {
        self.shared.done.load(Ordering::SeqCst)
    }

    /// Notes when one more than `before` have ended.
    fn first_after(&self, before: u64) -> First {
        let (shared, first) = (self.shared.clone(), First(Arc::default()));
        let told = first.0.clone();
        std::thread::spawn(move || {
            let deadline = Instant::now() + RETURN_MAX;
            while shared.done.load(Ordering::SeqCst) <= before && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if shared.done.load(Ordering::SeqCst) > before {
                // Nobody else sets it.
                let _ = told.set(Instant::now());
            }
        });
        first
    }

    fn wait_until(&self, bed: &QosTestBed, is: impl Fn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + RETURN_MAX;
        while !is() {
            ensure!(Instant::now() < deadline, "no call has ended for {RETURN_MAX:?}");
            bed.wait(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// How many calls failed.
    fn end(self) -> anyhow::Result<u64> {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            ensure!(thread.join().is_ok(), "a caller panicked");
        }
        Ok(self.shared.errors.load(Ordering::SeqCst))
    }
}

fn call(path: PathBuf, shared: &ReturnsState) {
    let step = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        file.rewind()?;
        file.write_all(b"written")?;
        file.sync_all()?;
        std::fs::metadata(&path).map(|_| ())
    };
    while !shared.stop.load(Ordering::SeqCst) {
        match step() {
            Ok(()) => shared.done.fetch_add(1, Ordering::SeqCst),
            Err(error) => {
                eprintln!("sluice-bench: {}: {error}", path.display());
                shared.errors.fetch_add(1, Ordering::SeqCst)
            }
        };
    }
}

const SLUICE: &str = "sluice";
/// Kills in a round.
const KILLS: usize = 10;
const CALLERS: usize = 4;
/// Only a failure takes so long.
const RETURN_MAX: Duration = Duration::from_secs(60);
