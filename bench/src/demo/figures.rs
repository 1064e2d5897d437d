//! What each job got in each phase, from the intervals that the jobs report.
//!
//! ```text
//!   intervals of both jobs ─► DemoSamples ─┬─ a span's DemoFigures ─► live view, table, JSON
//!                                          └─ a line of points ─► picture
//! ```
//!
//! An interval counts for a span if it lies wholly within it, so what a phase begins
//! and ends with (files being made, rules being put in force) is in no figure.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::job::{DemoJob, Interval, latencies};

/// All intervals that the jobs have reported so far.
#[derive(Debug, Default)]
pub(super) struct DemoSamples {
    intervals: Vec<(DemoJob, f64, Interval)>,
}

/// A stretch of the demo's time, in seconds from its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DemoSpan {
    pub(super) from: f64,
    pub(super) to: f64,
}

/// What one job got in one span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DemoFigures {
    pub(super) job: DemoJob,
    /// Length of the intervals that were counted.
    pub(super) seconds: f64,
    pub(super) ops: u64,
    pub(super) mb_per_sec: f64,
    pub(super) ops_per_sec: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
    pub(super) errors: u64,
}

impl DemoSamples {
    /// Adds the interval that `job` reported at second `at`.
    pub(super) fn add(&mut self, job: DemoJob, at: f64, interval: Interval) {
        self.intervals.push((job, at, interval));
    }

    /// What `job` got in `span`; none before the first whole interval.
    pub(super) fn figures(&self, job: DemoJob, span: DemoSpan) -> Option<DemoFigures> {
        let within = |(of, at, interval): &&(DemoJob, f64, Interval)| {
            *of == job && at - interval.seconds >= span.from && *at <= span.to
        };
        let mut whole = Interval::default();
        let mut latency = latencies();
        for (_, _, interval) in self.intervals.iter().filter(within) {
            whole.seconds += interval.seconds;
            whole.ops += interval.ops;
            whole.bytes += interval.bytes;
            whole.errors += interval.errors;
            for (ns, count) in &interval.latency_ns {
                latency.saturating_record_n(*ns, *count);
            }
        }
        (whole.seconds > 0.0).then(|| DemoFigures::new(job, &whole, &latency))
    }

    /// `figure` of `job` over time, each point for the `width` seconds before it; points
    /// in which nothing finished are left out.
    pub(super) fn line(
        &self,
        job: DemoJob,
        span: DemoSpan,
        width: f64,
        figure: fn(&DemoFigures) -> f64,
    ) -> Vec<(f64, f64)> {
        let count = ((span.to - span.from) / width).floor() as usize;
        let ends = (1..=count).map(|index| span.from + index as f64 * width);
        let point = |to: f64| {
            // By when it was told alone: intervals do not start where points do.
            let figures = self.figures_told(job, DemoSpan { from: to - width, to })?;
            (figures.ops > 0).then(|| (to, figure(&figures)))
        };
        ends.filter_map(point).collect()
    }

    /// As [`DemoSamples::figures`], of the intervals that were reported within `span`.
    fn figures_told(&self, job: DemoJob, span: DemoSpan) -> Option<DemoFigures> {
        let told = self.intervals.iter();
        let told = told.filter(|(of, at, _)| *of == job && *at > span.from && *at <= span.to);
        let mut part = DemoSamples::default();
        part.intervals.extend(told.cloned());
        part.figures(job, DemoSpan { from: f64::NEG_INFINITY, to: f64::INFINITY })
    }
}

impl DemoFigures {
    fn new(job: DemoJob, whole: &Interval, latency: &Histogram<u64>) -> DemoFigures {
        let micros = |ns: u64| ns as f64 / 1e3;
        DemoFigures {
            job,
            seconds: whole.seconds,
            ops: whole.ops,
            mb_per_sec: whole.bytes as f64 / whole.seconds / 1e6,
            ops_per_sec: whole.ops as f64 / whole.seconds,
            p50_us: micros(latency.value_at_quantile(0.5)),
            p99_us: micros(latency.value_at_quantile(0.99)),
            max_us: micros(latency.max()),
            errors: whole.errors,
        }
    }
}

impl DemoSpan {
    /// The last `seconds` up to `now`.
    pub(super) fn last(seconds: f64, now: f64) -> DemoSpan {
        DemoSpan { from: now - seconds, to: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: DemoJob, intervals: &[(f64, u64, u64)]) -> DemoSamples {
        let mut record = DemoSamples::default();
        for (at, ops, ns) in intervals {
            let latency_ns = vec![(*ns, *ops)];
            let interval =
                Interval { seconds: 0.25, ops: *ops, bytes: ops * 4096, errors: 1, latency_ns };
            record.add(job, *at, interval);
        }
        record
    }

    #[test]
    fn only_intervals_wholly_within_a_span_count_for_it() {
        let told = [(1.0, 900, 64_000), (1.25, 99, 1000), (1.5, 1, 128_000), (1.75, 500, 64_000)];
        let mut record = record(DemoJob::Victim, &told);
        let other = Interval { seconds: 0.25, ops: 7, ..Interval::default() };
        record.add(DemoJob::Bully, 1.25, other);
        let figures = record.figures(DemoJob::Victim, DemoSpan { from: 1.0, to: 1.6 }).unwrap();
        assert_eq!((figures.ops, figures.errors, figures.seconds), (100, 2, 0.5));
        assert_eq!((figures.ops_per_sec, figures.mb_per_sec), (200.0, 0.8192));
        // Within one percent, as the histogram keeps them.
        assert_eq!((figures.p50_us.round(), figures.p99_us.round()), (1.0, 1.0));
        assert!((127.0..130.0).contains(&figures.max_us), "{}", figures.max_us);
    }

    #[test]
    fn a_span_without_a_whole_interval_has_no_figures() {
        let record = record(DemoJob::Victim, &[(1.0, 900, 64_000)]);
        assert_eq!(record.figures(DemoJob::Victim, DemoSpan { from: 0.8, to: 2.0 }), None);
        assert_eq!(record.figures(DemoJob::Bully, DemoSpan { from: 0.0, to: 2.0 }), None);
    }

    #[test]
    fn each_interval_is_in_one_point_and_silence_is_in_none() {
        let told = [(0.25, 1, 1000), (0.51, 2, 1000), (1.49, 4, 1000)];
        let record = record(DemoJob::Victim, &told);
        let line = record.line(DemoJob::Victim, DemoSpan { from: 0.0, to: 1.6 }, 0.5, |figures| {
            figures.ops as f64
        });
        assert_eq!(line, [(0.5, 1.0), (1.0, 2.0), (1.5, 4.0)]);
        let silent = record.line(DemoJob::Bully, DemoSpan { from: 0.0, to: 1.6 }, 0.5, |figures| {
            figures.ops as f64
        });
        assert_eq!(silent, []);
    }
}
