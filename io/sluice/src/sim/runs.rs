//! Runs simulations on all processors and passes their reports on in order.
//!
//! ```text
//!   runs ─► the next for each thread ─► World ─► (number, report) ─► in order ─► done
//!                    └─ simulated time, events ─► progress line
//! ```
//!
//! A run that panics becomes a report with a violation, so that its seed is reported and the other
//! runs continue.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ::sim::{InvariantViolation, Policy, RunResult, Scenario, World};
use model::Time;

/// A scenario under one scheduler and seed.
pub(super) struct SimRun {
    pub(super) scenario: Arc<Scenario>,
    pub(super) policy: Policy,
    pub(super) seed: u64,
}

/// The unit of the progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimProgress {
    Hidden,
    /// Simulated seconds, of all runs together.
    OfTime,
    /// Requests of all runs together, since the duration of a replay is unknown.
    OfRequests(u64),
}

/// The work that all threads have done.
#[derive(Default)]
struct SimWork {
    next: AtomicUsize,
    simulated_ns: AtomicU64,
    events: AtomicU64,
    stop: AtomicBool,
}

/// Runs all simulations and calls `done` with each report, in the order of the runs.
///
/// # Errors
/// The first error of `done`; the remaining runs are skipped.
pub(super) fn run_all(
    runs: &[SimRun],
    progress: SimProgress,
    mut done: impl FnMut(RunResult) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let work = SimWork::default();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, work) = (sender.clone(), &work);
            scope.spawn(move || {
                while let Some((number, run)) = work.next_run(runs) {
                    if sender.send((number, run_catching_panics(run, work))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let line = ProgressLine::new(runs, progress);
        let mut early: BTreeMap<usize, RunResult> = BTreeMap::new();
        let mut next = 0;
        loop {
            match receiver.recv_timeout(REDRAW) {
                Ok((number, report)) => early.insert(number, report),
                Err(RecvTimeoutError::Timeout) => {
                    line.draw(&work, next);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(report) = early.remove(&next) {
                next += 1;
                line.clear();
                if let Err(error) = done(report) {
                    work.stop.store(true, Relaxed);
                    return Err(error);
                }
            }
            line.draw(&work, next);
        }
        line.clear();
        Ok(())
    })
}

impl SimWork {
    fn next_run<'a>(&self, runs: &'a [SimRun]) -> Option<(usize, &'a SimRun)> {
        if self.stop.load(Relaxed) {
            return None;
        }
        let number = self.next.fetch_add(1, Relaxed);
        runs.get(number).map(|run| (number, run))
    }
}

fn run_catching_panics(run: &SimRun, work: &SimWork) -> RunResult {
    catch_unwind(AssertUnwindSafe(|| run_one(run, work))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let (scenario, policy) = (run.scenario.name.clone(), run.policy.name().to_string());
        let what = format!("the run panicked: {words}");
        let seed = run.seed;
        let violation =
            InvariantViolation { at: Time::ZERO, what, scenario: scenario.clone(), policy, seed };
        let policy = violation.policy.clone();
        RunResult { scenario, policy, seed, violations: vec![violation], ..RunResult::default() }
    })
}

fn run_one(run: &SimRun, work: &SimWork) -> RunResult {
    let mut world = World::new(&run.scenario, run.policy, run.seed);
    let part = world.end().as_nanos() / PARTS + 1;
    let (mut at, mut events) = (0, 0);
    // A replay may end before its time limit.
    while at < world.end().as_nanos() {
        if work.stop.load(Relaxed) {
            return world.report();
        }
        let until = (at + part).min(world.end().as_nanos());
        world.run_until(Time::from_nanos(until));
        work.simulated_ns.fetch_add(until - at, Relaxed);
        work.events.fetch_add(world.request_events() - events, Relaxed);
        (at, events) = (until, world.request_events());
    }
    world.run()
}

/// Number of parts of a run, after each of which progress is updated.
const PARTS: u64 = 200;
const REDRAW: Duration = Duration::from_millis(200);
/// Events of a request: arrival, dispatch and completion.
const EVENTS_OF_REQUEST: u64 = 3;

/// The progress line on stderr.
struct ProgressLine {
    progress: SimProgress,
    begun: Instant,
    runs: usize,
    total_ns: u64,
}

impl ProgressLine {
    fn new(runs: &[SimRun], progress: SimProgress) -> ProgressLine {
        let total_ns = runs.iter().map(|run| run.scenario.duration.get()).sum();
        ProgressLine { progress, begun: Instant::now(), runs: runs.len(), total_ns }
    }

    fn draw(&self, work: &SimWork, done: usize) {
        let events = work.events.load(Relaxed);
        let far = match self.progress {
            SimProgress::Hidden => return,
            SimProgress::OfTime => {
                let second = |ns: u64| ns / 1_000_000_000;
                let simulated = second(work.simulated_ns.load(Relaxed));
                format!("{simulated} of {} s simulated", second(self.total_ns))
            }
            SimProgress::OfRequests(all) => {
                format!("{} of {all} requests replayed", events / EVENTS_OF_REQUEST)
            }
        };
        let spent = self.begun.elapsed().as_secs_f64().max(1e-3);
        let speed = chart::short(events as f64 / spent);
        // A closed terminal does not end the runs.
        let _ =
            write!(io::stderr(), "\r\x1b[K{far}, {done} of {} runs, {speed} events/s", self.runs);
    }

    fn clear(&self) {
        if self.progress != SimProgress::Hidden {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
