//! The figure of a scenario: the service of each job over time, one panel for each scheduler.

use std::path::Path;

use ::sim::{RunResult, Scenario};
use chart::{JobSeries, job_chart};

use super::outcome::SimOutcome;

/// Draws the figure of a scenario.
pub(super) fn of_scenario(
    path: &Path,
    scenario: &Scenario,
    outcome: &SimOutcome,
) -> anyhow::Result<()> {
    // A scenario with expectations of bytes is drawn in bytes.
    let bytes = scenario.expected().iter().any(|what| what.starts_with("bytes"));
    let panel = |report: &RunResult| (report.policy.clone(), series_of(report));
    let panels: Vec<_> = outcome.reports.iter().map(panel).collect();
    Ok(job_chart(path, &outcome.scenario, &scenario.from, &panels, bytes)?)
}

fn series_of(report: &RunResult) -> Vec<JobSeries> {
    report.jobs.iter().map(|job| (job.job.clone(), job.series.clone())).collect()
}
