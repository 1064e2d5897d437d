//! The outcome of a scenario: its tables, failures, and the commands that repeat them.
//!
//! ```text
//!   reports, one a scheduler ─► jobs: a row for each scheduler and job
//!   verdicts ─────────────────► expected, got, published, kind, verdict, source
//!                     └─ failed ─► one line each with the command that repeats it
//! ```

use std::fmt;

use ::sim::{RunResult, Scenario, ScenarioVerdict, judge};
use serde::Serialize;

use crate::top::table::aligned;
use crate::trace::lines::span;
use chart::short;

/// A scenario that was run under all its schedulers.
#[derive(Debug, Serialize)]
pub(super) struct SimOutcome {
    pub(super) scenario: String,
    from: String,
    description: String,
    seed: u64,
    duration_ns: u64,
    warmup_ns: u64,
    /// All expectations are met and no check failed.
    passed: bool,
    verdicts: Vec<ScenarioVerdict>,
    pub(super) reports: Vec<RunResult>,
    /// The command that repeats it, without seed and scheduler.
    command: String,
}

/// The totals of all scenarios.
#[derive(Debug, Default)]
pub(super) struct SimTotals {
    scenarios: usize,
    runs: usize,
    expectations: usize,
    /// Number of expectations that are not met.
    failed: usize,
    violations: usize,
    /// Number of runs in which a decay throttled a key.
    pub(super) throttled: usize,
}

impl SimOutcome {
    pub(super) fn of(scenario: &Scenario, command: &str, reports: Vec<RunResult>) -> SimOutcome {
        let ran = |policy: &str| reports.iter().any(|report| report.policy == policy);
        // Expectations of schedulers that --policy excludes are not judged.
        let mut verdicts = judge(scenario, &reports);
        verdicts.retain(|verdict| verdict.policy.split(" / ").all(ran));
        let kept = reports.iter().all(|report| report.violations.is_empty());
        SimOutcome {
            scenario: scenario.name.clone(),
            from: scenario.from.clone(),
            description: scenario.description.split_whitespace().collect::<Vec<_>>().join(" "),
            seed: reports.first().map_or(scenario.seed, |report| report.seed),
            duration_ns: scenario.duration.get(),
            warmup_ns: scenario.warmup.get(),
            passed: kept && verdicts.iter().all(|verdict| verdict.met),
            verdicts,
            reports,
            command: command.into(),
        }
    }

    /// Formats the description, the service of each job, and the expectations.
    pub(super) fn tables(&self) -> String {
        let SimOutcome { scenario, from, description: about, seed, .. } = self;
        let (duration, warmup) = (span(self.duration_ns as f64), span(self.warmup_ns as f64));
        let mut text = format!("{scenario}: {from}\n{about}\n");
        text += &format!("{duration}, the first {warmup} not measured; seed {seed}\n\n");
        text += &aligned(&JOB_COLUMNS, &[2, 3, 4, 5, 6, 7, 8, 9], self.job_rows());
        if !self.verdicts.is_empty() {
            text.push('\n');
            text += &aligned(&VERDICT_COLUMNS, &[3, 4], self.verdicts.iter().map(verdict_row));
        }
        text
    }

    fn job_rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.reports.iter().flat_map(|report| {
            report.jobs.iter().map(|job| {
                let latency = job.latency_ns;
                let ns = |ns: u64| span(ns as f64);
                vec![
                    report.policy.clone(),
                    job.job.clone(),
                    short(job.requests_per_sec),
                    short(job.bytes_per_sec),
                    format!("{:.1}%", job.share * 100.0),
                    ns(job.queued_ns_mean),
                    ns(latency.median),
                    ns(latency.p99),
                    ns(latency.max),
                    job.finished_ns.map_or("-".into(), ns),
                ]
            })
        })
    }

    /// Formats one or two lines for each failure; empty if there is none.
    pub(super) fn failures(&self) -> String {
        let (scenario, command, seed) = (&self.scenario, &self.command, self.seed);
        let mut text = String::new();
        for verdict in self.verdicts.iter().filter(|verdict| !verdict.met) {
            let ScenarioVerdict { what, policy, wanted, .. } = verdict;
            let found = found(verdict);
            text += &format!("FAILED {scenario}: {what} ({policy}) is {found}, not {wanted}\n");
            text += &format!("  again: {command} --seed {seed}\n");
        }
        for violation in self.reports.iter().flat_map(|report| &report.violations) {
            let (policy, at) = (&violation.policy, span(violation.at.as_nanos() as f64));
            text += &format!("FAILED {scenario}: {policy} at {at}: {}\n", violation.what);
            text += &format!("  again: {command} --seed {seed} --policy {policy}\n");
        }
        text
    }
}

const JOB_COLUMNS: [&str; 10] =
    ["SCHEDULER", "JOB", "REQ/S", "B/S", "SHARE", "QUEUED", "MEDIAN", "P99", "MAX", "FINISHED"];

const VERDICT_COLUMNS: [&str; 8] =
    ["EXPECTED", "SCHEDULER", "WANTED", "GOT", "PUBLISHED", "KIND", "VERDICT", "SOURCE"];

fn verdict_row(verdict: &ScenarioVerdict) -> Vec<String> {
    vec![
        verdict.what.clone(),
        verdict.policy.clone(),
        verdict.wanted.clone(),
        found(verdict),
        verdict.published.map_or("-".into(), |number| number.to_string()),
        verdict.kind.name().into(),
        if verdict.met { "ok" } else { "FAILED" }.into(),
        match &verdict.unknown {
            None => verdict.source.clone(),
            Some(unknown) => format!("{}; unknown: {unknown}", verdict.source),
        },
    ]
}

/// Formats a number with about four significant digits.
fn found(verdict: &ScenarioVerdict) -> String {
    match verdict.found {
        None => "nothing".into(),
        Some(found) if found.abs() >= 1000.0 => format!("{found:.0}"),
        Some(found) if found.abs() >= 10.0 => format!("{found:.2}"),
        Some(found) => format!("{found:.4}"),
    }
}

impl SimTotals {
    pub(super) fn add(&mut self, outcome: &SimOutcome) {
        self.scenarios += 1;
        self.runs += outcome.reports.len();
        let throttled = outcome.reports.iter().filter(|report| report.throttlings > 0);
        self.throttled += throttled.count();
        self.expectations += outcome.verdicts.len();
        self.failed += outcome.verdicts.iter().filter(|verdict| !verdict.met).count();
        self.violations += outcome.reports.iter().map(|r| r.violations.len()).sum::<usize>();
    }

    pub(super) fn has_passed(&self) -> bool {
        self.failed == 0 && self.violations == 0
    }
}

impl fmt::Display for SimTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimTotals { scenarios, runs, expectations, failed, violations, .. } = self;
        let plural = |count: usize, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        write!(
            f,
            "{}, {}, {}: {failed} not met, {} failed",
            plural(*scenarios, "scenario"),
            plural(*runs, "run"),
            plural(*expectations, "expectation"),
            plural(*violations, "check"),
        )
    }
}
