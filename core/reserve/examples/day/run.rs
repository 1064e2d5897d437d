//! Runs jobs under a scheduler in invented time, and what came of it.
//!
//! ```text
//!   job comes ─► submit ─┐
//!   job ends ──► end ────┴─► starts ─► it runs for its runtime
//! ```

use std::collections::BTreeSet;

use model::{Nanos, Time};

use super::jobs::{CAPACITY, Job, TARGETS};
use super::schedulers::Scheduler;

/// What became of all jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DayReport {
    /// The part of all targets that was used until the last job came, in millionths.
    pub(crate) used_ppm: u64,
    pub(crate) mean_wait_s: f64,
    /// The mean of (wait + runtime) / max(runtime, 10 s), at least 1.
    pub(crate) slowdown: f64,
    /// 95 % have at most this slowdown.
    pub(crate) slowdown_95: f64,
    /// How many starts were promised.
    pub(crate) promised: usize,
    /// How many of these were later.
    pub(crate) slips: usize,
}

/// Runs all jobs to their ends.
///
/// # Panics
/// If a scheduler never starts a job.
pub(crate) fn simulate(jobs: &[Job], scheduler: &mut dyn Scheduler) -> DayReport {
    let mut started: Vec<Option<Time>> = vec![None; jobs.len()];
    let mut ends: BTreeSet<(Time, usize)> = BTreeSet::new();
    let mut next_submitted = 0;
    loop {
        let submitted = jobs.get(next_submitted).map(|job| job.submitted);
        let ended = ends.first().map(|(at, _)| *at);
        let times = [submitted, ended, scheduler.next_time()];
        let Some(now) = times.into_iter().flatten().min() else { break };
        while let Some((_, job)) = ends.first().copied().filter(|(at, _)| *at <= now) {
            ends.pop_first();
            scheduler.end(job, now);
        }
        while let Some(job) = jobs.get(next_submitted).filter(|job| job.submitted <= now) {
            scheduler.submit(next_submitted, job, now);
            next_submitted += 1;
        }
        for job in scheduler.starts(now) {
            started[job] = Some(now);
            ends.insert((now + jobs[job].runtime, job));
        }
    }
    report(jobs, &started, scheduler)
}

fn report(jobs: &[Job], started: &[Option<Time>], scheduler: &dyn Scheduler) -> DayReport {
    let last = jobs.last().map_or(Time::ZERO, |job| job.submitted);
    let (mut used, mut waits, mut slowdowns) = (0u128, 0.0, Vec::with_capacity(jobs.len()));
    let (mut promised, mut slips) = (0, 0);
    for (number, job) in jobs.iter().enumerate() {
        let start = started[number].expect("each job has started");
        let within = (start + job.runtime).min(last).since(start);
        used += u128::from(job.per_sec()) * u128::from(within.get());
        let wait = seconds(start.since(job.submitted));
        let runtime = seconds(job.runtime);
        waits += wait;
        slowdowns.push(((wait + runtime) / runtime.max(10.0)).max(1.0));
        if let Some(promise) = scheduler.promised(number) {
            promised += 1;
            slips += usize::from(start > promise);
        }
    }
    slowdowns.sort_by(f64::total_cmp);
    let all = u128::from(TARGETS * CAPACITY) * u128::from(last.since(Time::ZERO).get());
    DayReport {
        used_ppm: (used * 1_000_000 / all) as u64,
        mean_wait_s: waits / jobs.len() as f64,
        slowdown: slowdowns.iter().sum::<f64>() / jobs.len() as f64,
        slowdown_95: slowdowns[(jobs.len() - 1) * 95 / 100],
        promised,
        slips,
    }
}

fn seconds(span: Nanos) -> f64 {
    span.get() as f64 / 1e9
}
