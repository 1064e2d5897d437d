//! A load: threads that repeat one operation over a window of time.
//!
//! ```text
//!   thread 1   ──op──┼─op─┼──op──┼─op─┼──
//!   thread 2   ────op────┼─op─┼──op──┼──
//!                        ├─ the window ─┤      an operation counts by its part inside
//! ```
//!
//! Counting parts rather than completions keeps a window of 40 ms exact even for
//! operations of 10 ms. The window opens when every thread has finished an
//! operation: before that the first ones, which had the device almost to
//! themselves, would count for more than their share.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::CalibrateError;

/// Duration of each measurement, and the flag that ends all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadWindow<'a> {
    /// Before anything counts, at least.
    pub(super) warm: Duration,
    /// Duration of the measurement, after the warm-up.
    pub(super) span: Duration,
    /// Set from outside, on Ctrl-C.
    pub(super) stop: &'a AtomicBool,
}

impl<'a> LoadWindow<'a> {
    /// A window of `total`, a fifth of it to warm up.
    pub(super) fn of(total: Duration, stop: &'a AtomicBool) -> LoadWindow<'a> {
        LoadWindow { warm: total / 5, span: total * 4 / 5, stop }
    }

    /// Runs every worker in a thread of its own, again and again, and returns how many
    /// operations per second they did together. A worker returns how many operations
    /// one call of it was; `None` ends that worker early.
    pub(super) fn rate<W>(&self, workers: &mut [W]) -> Result<f64, CalibrateError>
    where
        W: FnMut() -> io::Result<Option<u64>> + Send,
    {
        let run = LoadRun::new(*self, workers.len());
        let parts = thread::scope(|scope| {
            let spawn = |worker| thread::Builder::new().spawn_scoped(scope, || run.repeat(worker));
            // Collected first: all threads must run before the first is waited for.
            let threads: Vec<_> = workers.iter_mut().map(spawn).collect();
            let join = |thread: io::Result<thread::ScopedJoinHandle<'_, io::Result<LoadDone>>>| {
                thread?.join().expect("a worker returns its errors")
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        if self.stop.load(Ordering::Relaxed) {
            return Err(CalibrateError::Stopped);
        }
        let done: io::Result<Vec<LoadDone>> = parts.into_iter().collect();
        Ok(run.rate(&done.map_err(CalibrateError::Backend)?))
    }
}

/// Work of one thread inside the window, and the time of its end.
struct LoadDone {
    count: f64,
    left: Instant,
}

struct LoadRun<'a> {
    window: LoadWindow<'a>,
    origin: Instant,
    failed: AtomicBool,
    /// How many threads have not finished their first operation.
    cold: AtomicUsize,
    /// When the window opens and closes; set once `cold` is zero.
    times: OnceLock<(Instant, Instant)>,
}

impl<'a> LoadRun<'a> {
    fn new(window: LoadWindow<'a>, threads: usize) -> LoadRun<'a> {
        let (failed, cold) = (AtomicBool::new(false), AtomicUsize::new(threads));
        LoadRun { window, origin: Instant::now(), failed, cold, times: OnceLock::new() }
    }

    /// Operations per second of all threads together, until the last of them had left:
    /// that is before the window closes if there was nothing left to do.
    fn rate(&self, done: &[LoadDone]) -> f64 {
        let last = done.iter().map(|done| done.left).max();
        let (Some((opens, closes)), Some(last)) = (self.times.get(), last) else { return 0.0 };
        let span = last.min(*closes).saturating_duration_since(*opens);
        let count: f64 = done.iter().map(|done| done.count).sum();
        if span.is_zero() { 0.0 } else { count / span.as_secs_f64() }
    }

    fn repeat<W>(&self, worker: &mut W) -> io::Result<LoadDone>
    where
        W: FnMut() -> io::Result<Option<u64>>,
    {
        let (mut all, mut started, mut first) = (0.0, Instant::now(), true);
        while !self.ended(started) {
            let answer = worker();
            let ended = Instant::now();
            if std::mem::take(&mut first) {
                self.warmed(ended);
            }
            match answer {
                Ok(Some(count)) => all += count as f64 * self.part_inside(started, ended),
                Ok(None) => break,
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            started = ended;
        }
        Ok(LoadDone { count: all, left: started })
    }

    /// One thread has finished its first operation; the last of them opens the window.
    fn warmed(&self, now: Instant) {
        if self.cold.fetch_sub(1, Ordering::Relaxed) == 1 {
            let opens = now.max(self.origin + self.window.warm);
            self.times.get_or_init(|| (opens, opens + self.window.span));
        }
    }

    fn part_inside(&self, started: Instant, ended: Instant) -> f64 {
        let Some((opens, closes)) = self.times.get() else { return 0.0 };
        let inside = ended.min(*closes).saturating_duration_since(started.max(*opens));
        let whole = ended.saturating_duration_since(started);
        if whole.is_zero() { 0.0 } else { inside.as_secs_f64() / whole.as_secs_f64() }
    }

    fn ended(&self, now: Instant) -> bool {
        let closed = self.times.get().is_some_and(|(_, closes)| now >= *closes);
        closed || self.window.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_by_its_part_inside_the_window() {
        let stop = AtomicBool::new(false);
        let window = LoadWindow::of(Duration::from_millis(125), &stop);
        let run = LoadRun::new(window, 2);
        let at = |ms| run.origin + Duration::from_millis(ms);
        run.warmed(at(10));
        assert_eq!(run.part_inside(at(0), at(10)), 0.0);
        // The second thread is slower than the time to warm up, 25 ms.
        run.warmed(at(100));
        assert_eq!(run.part_inside(at(120), at(140)), 1.0);
        assert_eq!(run.part_inside(at(80), at(120)), 0.5);
        assert_eq!(run.part_inside(at(50), at(450)), 0.25);
        assert_eq!(run.part_inside(at(10), at(90)), 0.0);
    }

    #[test]
    fn threads_that_run_out_of_work_are_measured_until_they_did() {
        let stop = AtomicBool::new(false);
        let run = LoadRun::new(LoadWindow::of(Duration::from_millis(125), &stop), 1);
        let at = |ms| run.origin + Duration::from_millis(ms);
        run.warmed(at(100));
        let done = |count, left| LoadDone { count, left: at(left) };
        assert_eq!(run.rate(&[done(30.0, 140), done(20.0, 150)]), 1000.0);
        assert_eq!(run.rate(&[done(100.0, 260)]), 1000.0);
        assert_eq!(run.rate(&[done(0.0, 90)]), 0.0);
    }

    #[test]
    fn an_error_ends_every_worker_and_a_stop_is_told_apart() {
        let stop = AtomicBool::new(false);
        let window = LoadWindow::of(Duration::from_secs(3600), &stop);
        let mut count = 0;
        let mut workers = [|| {
            count += 1;
            if count > 5 { Err(io::Error::from_raw_os_error(5)) } else { Ok(Some(1)) }
        }];
        assert!(matches!(window.rate(&mut workers), Err(CalibrateError::Backend(_))));
        stop.store(true, Ordering::Relaxed);
        let mut idle = [|| Ok(Some(1))];
        assert!(matches!(window.rate(&mut idle), Err(CalibrateError::Stopped)));
    }
}
