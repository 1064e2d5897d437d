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

use super::super::bed::{QosProxy, QosSetup};
use super::super::mounted::QosMount;
use super::super::table::{QosRow, QosTable, figures};
use super::super::{QosRun, quantile};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    if !run.wants(NAME) {
        return Ok(());
    }
    let mut proxy = Some(run.bed.proxy("returns", &QosSetup::default())?);
    let begun = proxy.as_ref().context("it was started")?;
    let mount = QosMount::start(&run.bed, begun, "hard", "allow_other,attr_timeout=0")?;
    let callers = Callers::start(&mount);
    let kills = run.rounds(10, 3);
    let mut took = Vec::new();
    for kill in 0..kills {
        table.progress(&format!("{NAME}: {kill} of {kills}"));
        let before = callers.count();
        callers.wait_until(run, || callers.count() > before + 100).context("before a kill")?;
        let killed = proxy.take().context("it is there")?;
        let address = killed.address.clone();
        kill_now(killed)?;
        // Long enough that nothing of the old one is on its way, and different each time: the
        // mount tries again in growing steps.
        run.bed.wait(Duration::from_millis(300 + 170 * kill as u64))?;
        let before = callers.count();
        let watcher = std::thread::spawn(move || {
            let deadline = Instant::now() + RETURN_MAX;
            while address.connect().is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            Instant::now()
        });
        let first = callers.first_after(before);
        proxy = Some(run.bed.proxy("returns", &QosSetup::default())?);
        let accepts = watcher.join().expect("it does not panic");
        callers.wait_until(run, || first.get().is_some()).context("after a return")?;
        let served = first.get().context("a call has ended")?;
        took.push(served.saturating_duration_since(accepts).as_secs_f64());
    }
    let errors = callers.end()?;
    drop(mount);
    table.add(row(&took, errors));
    Ok(())
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

    fn wait_until(&self, run: &QosRun<'_>, is: impl Fn() -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + RETURN_MAX;
        while !is() {
            ensure!(Instant::now() < deadline, "no call has ended for {RETURN_MAX:?}");
            run.bed.wait(Duration::from_millis(5))?;
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

fn row(took: &[f64], errors: u64) -> QosRow {
    let worst = took.iter().copied().fold(0.0, f64::max);
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|part| quantile(took, part));
    QosRow {
        case: NAME.into(),
        target: "within 1 s, no error".into(),
        reached: format!("{:.0} ms at most, {errors} errors", worst * 1e3),
        met: Some(worst <= 1.0 && errors == 0),
        beside: format!(
            "median {:.0} ms, quartiles {:.0} and {:.0}; {} kills",
            middle * 1e3,
            low * 1e3,
            high * 1e3,
            took.len()
        ),
        figures: figures([
            ("worst_s", worst),
            ("median_s", middle),
            ("quartile_low_s", low),
            ("quartile_high_s", high),
            ("errors", errors as f64),
            ("kills", took.len() as f64),
        ]),
    }
}

const NAME: &str = "hard mount, from the proxy's return to the first call that ends";
const CALLERS: usize = 4;
/// Only a failure takes so long.
const RETURN_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_return_counts_and_so_does_any_error() {
        assert_eq!(row(&[0.2, 0.9, 0.4], 0).met, Some(true));
        assert_eq!(row(&[0.2, 1.1, 0.4], 0).met, Some(false));
        assert_eq!(row(&[0.2], 1).met, Some(false));
    }
}
