//! Compares a trace with its replays: a table of each job's service, and one of its delays.
//!
//! ```text
//!   JOB  RULES     REQ/S … MEDIAN  P99  QUEUED  DELAYED      JOB  RULES   RULE  THROTTLED BY
//!   a    recorded                                            a    A.toml  slow  limit 10ops/s
//!   a    A.toml
//! ```

use std::collections::BTreeMap;

use ::sim::{JobOutcome, RecordedTarget, Recording, RunResult};
use chart::{JobSeries, short};
use serde::Serialize;

use super::replay::ReplayRuleFile;
use crate::top::table::aligned;
use crate::trace::lines::span;

/// The result of a replay.
#[derive(Debug, Serialize)]
pub(super) struct SimComparison {
    trace: String,
    /// The method of the replay.
    method: &'static str,
    /// Remarks for the reader.
    notes: Vec<String>,
    pub(super) targets: Vec<TargetComparison>,
}

/// The result at one target.
#[derive(Debug, Serialize)]
pub(super) struct TargetComparison {
    pub(super) target: String,
    requests: u64,
    /// Closed loops.
    loops: u64,
    span_ns: u64,
    slots: u32,
    parallelism: u32,
    /// The recorded one first, then one for each rule file.
    runs: Vec<RunOf>,
}

/// The jobs as recorded, or under one rule file.
#[derive(Debug, Serialize)]
pub(super) struct RunOf {
    rules: String,
    jobs: BTreeMap<String, JobOutcome>,
    violations: Vec<String>,
}

/// The method, part of every report: a longer wait delays later requests, which affects other jobs.
const METHOD: &str = "a closed-loop replay: each request follows the same reply as in the trace, \
                   after the same pause";

const OUTCOME_COLUMNS: [&str; 12] = [
    "JOB",
    "RULES",
    "REQUESTS",
    "REQ/S",
    "OPS/S",
    "B/S",
    "MEDIAN",
    "P99",
    "QUEUED",
    "DELAYED",
    "BY LIMITS",
    "TOOK",
];
const RULE_COLUMNS: [&str; 7] =
    ["JOB", "RULES", "RULE", "REQUESTS", "DELAYED", "WAITED", "CAN BE THROTTLED BY"];

impl SimComparison {
    pub(super) fn new(
        trace: String,
        notes: Vec<String>,
        targets: Vec<TargetComparison>,
    ) -> SimComparison {
        SimComparison { trace, method: METHOD, notes, targets }
    }

    /// Returns whether no check failed.
    pub(super) fn has_passed(&self) -> bool {
        let mut runs = self.targets.iter().flat_map(|target| &target.runs);
        runs.all(|run| run.violations.is_empty())
    }

    /// Formats everything for people.
    pub(super) fn tables(&self) -> String {
        let mut text = format!("{}: {}\n", self.trace, self.method);
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        for target in &self.targets {
            text += &target.tables();
        }
        text
    }

    /// Formats a line for each failed check and each unfinished job.
    pub(super) fn failures(&self) -> String {
        let mut text = String::new();
        for target in &self.targets {
            for RunOf { rules, jobs, violations } in &target.runs {
                let name = &target.target;
                for what in violations {
                    text += &format!("FAILED {name}, {rules}: {what}\n");
                }
                for (job, _) in jobs.iter().filter(|(_, had)| had.unfinished) {
                    text += &format!(
                        "{name}, {rules}: {job} was unfinished at the end of the replay; its \
                         figures cover the part until then\n"
                    );
                }
            }
        }
        text
    }
}

impl TargetComparison {
    pub(super) fn recorded(
        name: &str,
        recording: &Recording,
        target: &RecordedTarget,
    ) -> TargetComparison {
        let recorded = RunOf {
            rules: "recorded".into(),
            jobs: recording.recorded_outcomes(),
            violations: Vec::new(),
        };
        TargetComparison {
            target: name.into(),
            requests: recording.len() as u64,
            loops: recording.clients().len() as u64,
            span_ns: recording.end().as_nanos(),
            slots: target.slots,
            parallelism: target.parallelism,
            runs: vec![recorded],
        }
    }

    pub(super) fn add(&mut self, run: RunOf) {
        self.runs.push(run);
    }

    /// Returns the panels of the figure: the service of each job over time, run by run.
    pub(super) fn panels(&self) -> Vec<(String, Vec<JobSeries>)> {
        let series = |(job, had): (&String, &JobOutcome)| (job.clone(), had.series.clone());
        let panel = |run: &RunOf| (run.rules.clone(), run.jobs.iter().map(series).collect());
        self.runs.iter().map(panel).collect()
    }

    fn tables(&self) -> String {
        let TargetComparison { target, requests, loops, slots, parallelism, .. } = self;
        let took = span(self.span_ns as f64);
        let mut text = format!(
            "\ntarget {target}: {requests} requests of {loops} closed loops, {took}; the device as \
             recorded (medians by kind, size and lane), {parallelism} at once; {slots} slots\n\n"
        );
        text += &aligned(&OUTCOME_COLUMNS, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11], self.outcome_rows());
        let taken = self.rule_rows();
        if !taken.is_empty() {
            text.push('\n');
            text += &aligned(&RULE_COLUMNS, &[3, 4, 5], taken);
        }
        text
    }

    /// Iterates over the jobs by name, each as recorded and then under each rule file.
    fn by_job(&self) -> impl Iterator<Item = (&str, &str, &JobOutcome)> {
        let recorded = self.runs.first().into_iter().flat_map(|run| run.jobs.keys());
        recorded.flat_map(move |job| {
            self.runs.iter().filter_map(move |run| {
                let had = run.jobs.get(job)?;
                Some((job.as_str(), run.rules.as_str(), had))
            })
        })
    }

    fn outcome_rows(&self) -> Vec<Vec<String>> {
        let row = |(job, rules, had): (&str, &str, &JobOutcome)| {
            let ns = |ns: u64| span(ns as f64);
            let more = if had.unfinished { "+" } else { "" };
            vec![
                job.into(),
                rules.into(),
                had.requests.to_string(),
                short(had.requests_per_sec),
                short(had.ops_per_sec),
                short(had.bytes_per_sec),
                ns(had.latency_ns_median),
                ns(had.latency_ns_p99),
                ns(had.queued_ns_mean),
                had.delayed.to_string(),
                had.throttled_percent.map_or("-".into(), |percent| format!("{percent:.0}%")),
                format!("{}{more}", ns(had.span_ns)),
            ]
        };
        self.by_job().map(row).collect()
    }

    fn rule_rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (job, rules, had) in self.by_job() {
            rows.extend(had.rules.iter().map(|taken| {
                vec![
                    job.into(),
                    rules.into(),
                    taken.rule.clone(),
                    taken.requests.to_string(),
                    taken.delayed.to_string(),
                    span(taken.queued_ns as f64),
                    taken.by.clone(),
                ]
            }));
        }
        rows
    }
}

impl RunOf {
    pub(super) fn replayed(
        rules: &ReplayRuleFile,
        recording: &Recording,
        report: &RunResult,
    ) -> RunOf {
        let jobs = recording.replayed_outcomes(report, &rules.set);
        let violations = report.violations.iter().map(|violation| violation.what.clone());
        RunOf { rules: rules.name.clone(), jobs, violations: violations.collect() }
    }
}
