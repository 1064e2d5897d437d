//! Limits repeated log lines: each call site passes a burst per window, the rest is counted.
//!
//! The kernel's printk uses the same figures. Levels `debug` and `trace` are not limited. A thread
//! reports the counts at the end of each window and ends when there are none.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The layer that passes or counts each line.
pub(super) struct RepeatLimiter;

impl<S: Subscriber> Layer<S> for RepeatLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO || about.target() == TARGET {
            return true;
        }
        let place = LogCallsite { target: about.target(), line: about.line().unwrap_or_default() };
        let verdict = with_repeats(|repeats| repeats.count(place, Instant::now()));
        if verdict == LineVerdict::FirstLeftOut {
            report_later();
        }
        verdict == LineVerdict::Passes
    }
}

/// Logs the number of lines omitted since the last report; returns whether there were any.
pub(super) fn report() -> bool {
    let left_out = with_repeats(RepeatCount::take_omitted);
    for (place, count) in &left_out {
        tracing::warn!(
            target: TARGET, count, of = place.target, line = place.line, "omitted repeated lines"
        );
    }
    !left_out.is_empty()
}

/// Starts the reporting thread unless it runs.
fn report_later() {
    if with_repeats(|repeats| std::mem::replace(&mut repeats.has_reporter, true)) {
        return;
    }
    let run = || loop {
        std::thread::sleep(WINDOW);
        if !report() && with_repeats(RepeatCount::may_end) {
            return;
        }
    };
    if std::thread::Builder::new().name("log".into()).spawn(run).is_err() {
        // The next window retries, and the end of the process reports in any case.
        with_repeats(|repeats| repeats.has_reporter = false);
    }
}

/// The outcome for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineVerdict {
    Passes,
    FirstLeftOut,
    LeftOut,
}

/// The place in the code that logs a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogCallsite {
    target: &'static str,
    line: u32,
}

/// Counts of recent lines by call site; one entry per call site in the code.
struct RepeatCount {
    windows: BTreeMap<LogCallsite, RepeatWindow>,
    has_reporter: bool,
}

struct RepeatWindow {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl RepeatCount {
    const fn new() -> RepeatCount {
        RepeatCount { windows: BTreeMap::new(), has_reporter: false }
    }

    fn count(&mut self, place: LogCallsite, now: Instant) -> LineVerdict {
        let fresh = RepeatWindow { since: now, passed: 0, left_out: 0 };
        let window = self.windows.entry(place).or_insert(fresh);
        if now.saturating_duration_since(window.since) >= WINDOW {
            (window.since, window.passed) = (now, 0);
        }
        if window.passed < BURST {
            window.passed += 1;
            return LineVerdict::Passes;
        }
        window.left_out += 1;
        if window.left_out == 1 { LineVerdict::FirstLeftOut } else { LineVerdict::LeftOut }
    }

    fn take_omitted(&mut self) -> Vec<(LogCallsite, u64)> {
        let left_out = self.windows.iter_mut().filter(|(_, window)| window.left_out > 0);
        left_out.map(|(place, window)| (*place, std::mem::take(&mut window.left_out))).collect()
    }

    /// Returns whether the reporter may end: no line was omitted since its last report.
    fn may_end(&mut self) -> bool {
        self.has_reporter = self.windows.values().any(|window| window.left_out > 0);
        !self.has_reporter
    }
}

fn with_repeats<T>(act: impl FnOnce(&mut RepeatCount) -> T) -> T {
    act(&mut REPEATS.lock().unwrap_or_else(PoisonError::into_inner))
}

static REPEATS: Mutex<RepeatCount> = Mutex::new(RepeatCount::new());

/// Log target of the counts, which passes every filter in SLUICE_LOG.
const TARGET: &str = "sluice::repeats";
pub(super) const DIRECTIVE: &str = "sluice::repeats=warn";
/// Number of lines of one call site that pass in each window, as in printk.
const BURST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_flood_a_burst_passes_in_each_window_and_the_rest_is_a_number() {
        let (flood, other) =
            (LogCallsite { target: "a", line: 1 }, LogCallsite { target: "a", line: 2 });
        let (mut repeats, begin, mut passed) = (RepeatCount::new(), Instant::now(), 0);
        for at in 0..1000 {
            let verdict = repeats.count(flood, begin);
            assert_eq!(verdict == LineVerdict::FirstLeftOut, at == BURST);
            passed += u32::from(verdict == LineVerdict::Passes);
        }
        assert_eq!(passed, BURST);
        // Another call site is not limited by it.
        assert_eq!(repeats.count(other, begin), LineVerdict::Passes);
        assert!(!repeats.may_end());
        assert_eq!(repeats.take_omitted(), [(flood, u64::from(1000 - BURST))]);
        assert!(repeats.may_end() && repeats.take_omitted().is_empty());
        assert_eq!(repeats.count(flood, begin + WINDOW), LineVerdict::Passes);
    }
}
