//! The demo as figures: what `make demo` shows, several times.

use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::programs;

/// The demo, which README.md shows.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "demo",
    title: "The demo",
    what: "What `make demo` shows: two jobs on one mount, a bully that writes and a victim with small \
           operations, without rules and then with them.",
    sources: &["bench/src/demo/rows.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount],
    rows: || vec![row()],
    measure,
};

fn row() -> FigureRow {
    FigureRow::new("demo/bully", "a bully and a victim on one mount", &[WITH, WITHOUT, ALONE])
        .rounds(3, 20.0)
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let row = row();
    if !sink.wants(&row.id) {
        return Ok(());
    }
    let seconds = (run.time(&row).as_secs_f64().round() as u64).max(1).to_string();
    let mut command = Command::new(programs::own()?);
    command.arg("demo").arg("--json").arg("--sluice").arg(run.sluice).arg("--dir").arg(run.dir);
    match run.is_quick {
        true => command.arg("--quick"),
        false => command.args(["--seconds", &seconds]),
    };
    let mut round = sink.begin(&row.id);
    let output = command.output().context("cannot start the demo")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the demo: {}", errors.trim());
    let found: Value = serde_json::from_slice(&output.stdout).context("the demo's output")?;
    for (who, sample) in samples(&found)? {
        round.sample(who, sample);
    }
    round.end()
}

/// Each phase's jobs, as measures of the phase.
fn samples(found: &Value) -> anyhow::Result<Vec<(&'static str, FigureSample)>> {
    let mut samples = Vec::new();
    for phase in found["phases"].as_array().context("a demo has phases")? {
        let who = match phase["phase"].as_str() {
            Some("with rules") => WITH,
            Some("without rules") => WITHOUT,
            _ => ALONE,
        };
        let mut sample = FigureSample::new();
        for job in phase["jobs"].as_array().into_iter().flatten() {
            let name = job["job"].as_str().context("a job has a name")?;
            for (key, measure) in [
                ("ops_per_sec", "ops_per_s"),
                ("mb_per_sec", "mb_per_s"),
                ("p50_us", "p50_us"),
                ("p99_us", "p99_us"),
            ] {
                if let Some(value) = job[key].as_f64() {
                    sample.insert(format!("{name}_{measure}"), value);
                }
            }
        }
        samples.push((who, sample));
    }
    Ok(samples)
}

const WITH: &str = "with-rules";
const WITHOUT: &str = "without-rules";
const ALONE: &str = "alone";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_a_contender_with_the_measures_of_its_jobs() {
        let found = serde_json::json!({ "phases": [
            { "phase": "alone", "jobs": [] },
            { "phase": "with rules", "jobs": [{ "job": "victim", "p99_us": 5.0, "ops_per_sec": 2 }] },
        ]});
        let samples = samples(&found).unwrap();
        assert_eq!(samples[0], (ALONE, FigureSample::new()));
        let with = [("victim_ops_per_s".into(), 2.0), ("victim_p99_us".into(), 5.0)];
        assert_eq!(samples[1], (WITH, FigureSample::from(with)));
    }
}
