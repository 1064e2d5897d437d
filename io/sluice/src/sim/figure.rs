//! The figure of a scenario: what each job had over time, a panel for each scheduler.

use std::path::Path;

use ::sim::{RunResult, Scenario};
use chart::{JobSeries, job_chart};

use super::outcome::SimOutcome;

/// Draws it.
pub(super) fn of_scenario(
    path: &Path,
    scenario: &Scenario,
    outcome: &SimOutcome,
) -> anyhow::Result<()> {
    // What a scenario says of bytes is to be seen in bytes.
    let bytes = scenario.expected().iter().any(|what| what.starts_with("bytes"));
    let panel = |report: &RunResult| (report.policy.clone(), series_of(report));
    let panels: Vec<_> = outcome.reports.iter().map(panel).collect();
    Ok(job_chart(path, &outcome.scenario, &scenario.from, &panels, bytes)?)
}

fn series_of(report: &RunResult) -> Vec<JobSeries> {
    report.jobs.iter().map(|job| (job.job.clone(), job.series.clone())).collect()
}
