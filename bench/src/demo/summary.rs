//! What a demo brought: the figures of its phases, and how far the rules moved them.

use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use super::DemoPhase;
use super::figures::{DemoFigures, DemoSamples, DemoSpan};
use super::job::DemoJob;

/// A demo that has ended.
pub(super) struct DemoSummary {
    /// By phase, each job that worked in it.
    pub(super) figures: Vec<(DemoPhase, DemoFigures)>,
    pub(super) record: DemoSamples,
    /// When each phase was.
    pub(super) phases: Vec<(DemoPhase, DemoSpan)>,
    /// From the first interval to the end.
    pub(super) span: DemoSpan,
    /// When something changed, in seconds, and what.
    pub(super) marks: Vec<(f64, String)>,
    /// How the proxy wrote.
    pub(super) write_mode: String,
    /// The rule file that was put in force.
    pub(super) rules: String,
    /// The part of the processors that other programs took, 0 to 1; none if not known.
    pub(super) others: Option<f64>,
}

/// What the rules changed, as quotients: above 1 is better for that job.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Factors {
    /// The victim's operations per second, with rules by without.
    pub(super) victim_ops: f64,
    /// The victim's median latency, without rules by with.
    pub(super) victim_p50: f64,
    /// The victim's 99th percentile, without rules by with.
    pub(super) victim_p99: f64,
    /// The bully's bytes per second, with rules by without.
    pub(super) bully_mb: f64,
}

impl DemoSummary {
    /// What `job` got in `phase`.
    pub(super) fn of(&self, phase: DemoPhase, job: DemoJob) -> Option<&DemoFigures> {
        let found = self.figures.iter().find(|(of, figures)| *of == phase && figures.job == job);
        found.map(|(_, figures)| figures)
    }

    /// What the rules changed; none if a phase is missing.
    pub(super) fn factors(&self) -> Option<Factors> {
        let before = |job| self.of(DemoPhase::WithoutRules, job);
        let after = |job| self.of(DemoPhase::WithRules, job);
        let (victim_before, victim_after) = (before(DemoJob::Victim)?, after(DemoJob::Victim)?);
        let (bully_before, bully_after) = (before(DemoJob::Bully)?, after(DemoJob::Bully)?);
        Some(Factors {
            victim_ops: quotient(victim_after.ops_per_sec, victim_before.ops_per_sec),
            victim_p50: quotient(victim_before.p50_us, victim_after.p50_us),
            victim_p99: quotient(victim_before.p99_us, victim_after.p99_us),
            bully_mb: quotient(bully_after.mb_per_sec, bully_before.mb_per_sec),
        })
    }

    /// One line of JSON.
    pub(super) fn to_json(&self, picture: Option<&Path>) -> anyhow::Result<String> {
        let mut phases: Vec<serde_json::Value> = Vec::new();
        for phase in [DemoPhase::Alone, DemoPhase::WithoutRules, DemoPhase::WithRules] {
            let jobs = self.figures.iter().filter(|(of, _)| *of == phase);
            let jobs: Vec<&DemoFigures> = jobs.map(|(_, figures)| figures).collect();
            phases.push(json!({ "phase": phase, "jobs": jobs }));
        }
        let whole = json!({
            "phases": phases,
            "factors": self.factors(),
            "rules": self.rules,
            "others": self.others,
            "write_mode": self.write_mode,
            "picture": picture,
        });
        serde_json::to_string(&whole).context("cannot print the figures")
    }
}

fn quotient(above: f64, below: f64) -> f64 {
    if below > 0.0 { above / below } else { 0.0 }
}
