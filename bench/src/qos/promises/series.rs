//! What every job of a phase was served, sampled with the proxy's clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::super::figures::row::{FigureBound, FigureSample};
use super::super::bed::{QosProxy, QosTestBed};
use super::{FIRST_SECOND, PromiseExpect, SHORTFALL, WORST};

/// Counters of all jobs at some moments.
#[derive(Debug, Default)]
pub(super) struct PromiseSeries {
    /// In seconds since the proxy's start, and by job.
    moments: Vec<(f64, BTreeMap<String, PromiseCount>)>,
    /// In MB/s; what percentages are of.
    capacity: f64,
}

/// What a job was served until then, and what it had queued.
#[derive(Clone, Copy, Debug, Default)]
struct PromiseCount {
    mb: f64,
    requests: f64,
    queued: u64,
}

impl PromiseSeries {
    /// Samples the proxy's classes for `span`.
    pub(super) fn take(
        bed: &QosTestBed,
        proxy: &QosProxy,
        span: Duration,
        capacity: f64,
    ) -> anyhow::Result<PromiseSeries> {
        let mut series = PromiseSeries { moments: Vec::new(), capacity };
        let end = Instant::now() + span;
        loop {
            let answer = proxy.api.classes()?;
            let mut counts = BTreeMap::<String, PromiseCount>::new();
            for class in answer.classes {
                // A rule without `per` has the name of its job.
                let job = class.key.strip_prefix("jobid=").unwrap_or(&class.rule);
                if job == "default" {
                    continue;
                }
                let count = counts.entry(job.into()).or_default();
                count.mb += (class.usage.read_bytes + class.usage.written_bytes) as f64 / 1e6;
                count.requests += class.usage.requests as f64;
                count.queued += class.usage.queued;
            }
            series.moments.push((answer.t_ns as f64 / 1e9, counts));
            if Instant::now() >= end {
                return Ok(series);
            }
            bed.wait(EVERY)?;
        }
    }

    /// Why nothing follows from it, if one of these jobs ever had nothing queued.
    pub(super) fn dry(&self, jobs: impl Iterator<Item = String>) -> Option<String> {
        let is_dry = |job: &String| {
            let of = |counts: &BTreeMap<String, PromiseCount>| counts.get(job).map(|c| c.queued);
            self.moments.iter().any(|(_, counts)| of(counts).unwrap_or(0) == 0)
        };
        let mut jobs = jobs;
        jobs.find(is_dry).map(|job| format!("generator dry: job {job} had nothing queued"))
    }

    /// Adds the measures that are expected of this phase, and the worst 10 s.
    pub(super) fn figures(&self, expects: &[PromiseExpect], figures: &mut FigureSample) {
        let (Some((first, _)), Some((last, _))) = (self.moments.first(), self.moments.last())
        else {
            return;
        };
        for expect in expects.iter().filter(|expect| expect.measure != SHORTFALL) {
            let whole = self.jobs(expect.of).map(|job| self.rate(&job, expect, *first, *last));
            let value = if let Some(ratio) = expect.measure.strip_suffix("_ratio") {
                let of = |job: &str| self.rate(job, expect, *first, *last);
                ratio.split_once("_to_").map_or(f64::NAN, |(one, other)| of(one) / of(other))
            } else if expect.measure == FIRST_SECOND {
                self.jobs(expect.of).map(|job| self.rate(&job, expect, *first, first + 1.0)).sum()
            } else if expect.measure.contains("_least_") {
                whole.fold(f64::INFINITY, f64::min)
            } else if expect.measure.contains("_most_") {
                whole.fold(0.0, f64::max)
            } else {
                whole.sum()
            };
            figures.insert(expect.measure.into(), value);
            if let Some(worst) = self.worst(expect) {
                let before = figures.get(WORST).copied().unwrap_or(0.0);
                figures.insert(WORST.into(), worst.max(before));
            }
        }
    }

    /// How far the worst 10 s of one of its jobs are from what is expected, in percent.
    fn worst(&self, expect: &PromiseExpect) -> Option<f64> {
        let Some(FigureBound::Near { value, .. }) = expect.bound else { return None };
        if expect.measure.ends_with("_ratio") {
            return None;
        }
        let mut worst: Option<f64> = None;
        let mut from = 0;
        for (to, _) in &self.moments {
            while self.moments.get(from + 1).is_some_and(|(next, _)| to - next >= WINDOW_S) {
                from += 1;
            }
            let (began, _) = self.moments[from];
            if to - began >= WINDOW_S {
                let all = self.jobs(expect.of).map(|job| self.rate(&job, expect, began, *to));
                let rate = match expect.measure.contains("_least_") {
                    true => all.fold(f64::INFINITY, f64::min),
                    false if expect.measure.contains("_most_") => all.fold(0.0, f64::max),
                    false => all.sum(),
                };
                let error = (rate / value - 1.0).abs() * 100.0;
                worst = Some(worst.map_or(error, |worst| worst.max(error)));
            }
        }
        worst
    }

    fn jobs<'a>(&'a self, of: &'a str) -> impl Iterator<Item = String> + 'a {
        let last = self.moments.last().into_iter().flat_map(|(_, counts)| counts.keys());
        last.filter(move |job| job.starts_with(of)).cloned()
    }

    /// A job's rate between two moments, in the unit of the measure: a percentage is of the capacity.
    fn rate(&self, job: &str, expect: &PromiseExpect, from: f64, to: f64) -> f64 {
        let at = |when: f64| self.moments.iter().find(|(t, _)| *t >= when - 1e-9);
        let (Some((began, before)), Some((ended, after))) = (at(from), at(to)) else {
            return f64::NAN;
        };
        let of =
            |counts: &BTreeMap<String, PromiseCount>| counts.get(job).copied().unwrap_or_default();
        let (before_job, after_job) = (of(before), of(after));
        let mb = after_job.mb - before_job.mb;
        let requests = after_job.requests - before_job.requests;
        match expect.measure {
            measure if measure.ends_with("percent") => mb / (ended - began) / self.capacity * 100.0,
            measure if measure.ends_with("mb_per_s") || measure.ends_with("ratio") => {
                mb / (ended - began)
            }
            measure if measure.ends_with("ops_per_s") => requests / (ended - began),
            _ => requests,
        }
    }
}

const EVERY: Duration = Duration::from_millis(100);
const WINDOW_S: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn series(mb: impl Fn(usize) -> [f64; 2], moments: usize) -> PromiseSeries {
        let moment = |at: usize| {
            let count = |mb: f64| PromiseCount { mb, requests: mb * 2.0, queued: 5 };
            let [a, b] = mb(at).map(count);
            (at as f64, BTreeMap::from([("a".to_owned(), a), ("b1".to_owned(), b)]))
        };
        PromiseSeries { moments: (0..moments).map(moment).collect(), capacity: 200.0 }
    }

    fn expect(measure: &'static str, of: &'static str) -> PromiseExpect {
        let bound = Some(FigureBound::Near { value: 100.0, percent: 2.0 });
        PromiseExpect { measure, of, bound }
    }

    #[test]
    fn rates_are_means_of_the_phase_and_the_worst_window_is_found() {
        // 100 MB/s but for one second without any.
        let series =
            series(|at| [if at > 5 { at as f64 - 1.0 } else { at as f64 } * 100.0, 0.0], 31);
        let mut figures = FigureSample::new();
        let expects =
            [expect("a_mb_per_s", "a"), expect("a_ops_per_s", "a"), expect("a_percent", "a")];
        series.figures(&expects[..1], &mut figures);
        assert!((figures["a_mb_per_s"] - 29.0 / 30.0 * 100.0).abs() < 1e-9);
        assert!((figures[WORST] - 10.0).abs() < 1e-9);
        series.figures(&expects[1..], &mut figures);
        assert!((figures["a_percent"] - figures["a_mb_per_s"] / 2.0).abs() < 1e-9);
        assert!((figures["a_ops_per_s"] - 2.0 * figures["a_mb_per_s"]).abs() < 1e-9);
    }

    #[test]
    fn a_job_that_had_nothing_queued_makes_the_series_say_nothing() {
        let mut series = series(|at| [at as f64, 0.0], 3);
        let jobs = || ["a".to_owned(), "b1".to_owned()].into_iter();
        assert_eq!(series.dry(jobs()), None);
        series.moments[1].1.get_mut("b1").unwrap().queued = 0;
        assert!(series.dry(jobs()).unwrap().contains("b1"));
        assert!(series.dry(std::iter::once("c".to_owned())).is_some());
    }
}
