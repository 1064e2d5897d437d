//! Replays a trace under rules: each job's service as recorded and as it would have been.
//!
//! ```text
//!   Recordings ─┬─ as recorded ─────────────────────────► JobOutcome ─┐
//!               ├─ Scenario of A.toml ─► run ─► report ─► JobOutcome ─┼─► rates, latencies and
//!               └─ Scenario of B.toml ─► run ─► report ─► JobOutcome ─┘   waits of each job
//! ```
//!
//! Each target of a proxy has its own scheduler, so each is replayed separately.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::proxy::{CostsFile, TraceReader};
use ::sim::{Policy, Recording, Recordings, RunResult};
use anyhow::{Context, anyhow, ensure};
use chart::job_chart;
use rules::RuleSet;

use super::Args;
use super::compare::{RunOf, SimComparison, TargetComparison};
use super::runs::{self, SimProgress, SimRun};
use crate::failure::CommandError;

/// A trace and the rules for its replay.
pub(super) struct SimReplay {
    trace: PathBuf,
    recordings: Recordings,
    /// Number of requests that the proxy could not record.
    dropped: u64,
    /// The end of the trace is missing.
    cut: bool,
    rules: Vec<ReplayRuleFile>,
    costs: Option<CostsFile>,
}

/// A rule file and its rules.
pub(super) struct ReplayRuleFile {
    pub(super) name: String,
    pub(super) set: Arc<RuleSet>,
}

impl SimReplay {
    /// Reads the files of a replay.
    ///
    /// # Errors
    /// The first file that is wrong, with its line where it has lines.
    pub(super) fn read(
        trace: &Path,
        rules: &[PathBuf],
        costs: Option<&Path>,
    ) -> anyhow::Result<SimReplay> {
        // The text of this error includes its cause.
        let load = |file| CostsFile::load(file).map_err(|error| anyhow!("{error}"));
        let costs = costs.map(load).transpose()?;
        let rules =
            rules.iter().map(|file| ReplayRuleFile::read(file)).collect::<Result<_, _>>()?;
        let name = || trace.display().to_string();
        let mut reader = TraceReader::open(trace).with_context(name)?;
        let recordings = Recordings::new(reader.by_ref()).with_context(name)?;
        let empty = recordings.targets.is_empty();
        ensure!(!empty, "{} contains no request that can be replayed", name());
        let (lost, cut) = (reader.dropped(), reader.cut());
        Ok(SimReplay { trace: trace.into(), recordings, dropped: lost, cut, rules, costs })
    }

    /// Replays and shows the result; returns whether every check held.
    pub(super) fn run(&self, args: &Args) -> anyhow::Result<bool> {
        let (mut all, mut targets) = (Vec::new(), Vec::new());
        for (name, recording) in &self.recordings.targets {
            let believed = self.costs.as_ref().map(|file| (file.costs.clone(), file.slots_max));
            let target = recording.target(name, believed);
            targets.push(TargetComparison::recorded(name, recording, &target));
            all.extend(self.rules.iter().map(|rules| {
                let scenario = Arc::new(recording.scenario(&target, rules.set.clone()));
                SimRun { scenario, policy: Policy::Dispatcher, seed: 1 }
            }));
        }
        let mut reports: Vec<RunResult> = Vec::new();
        let requests: usize = self.recordings.targets.values().map(Recording::len).sum();
        let requests = SimProgress::OfRequests((requests * self.rules.len()) as u64);
        runs::run_all(&all, args.progress(requests), |report| {
            reports.push(report);
            Ok(())
        })?;
        // Run by run in the order of `all`: every rule file at a target, then the next target.
        let recordings = self.recordings.targets.values();
        for ((target, recording), reports) in
            targets.iter_mut().zip(recordings).zip(reports.chunks(self.rules.len()))
        {
            for (rules, report) in self.rules.iter().zip(reports) {
                target.add(RunOf::replayed(rules, recording, report));
            }
        }
        let trace = self.trace.display().to_string();
        let comparison = SimComparison::new(trace, self.notes(), targets);
        self.show(&comparison, args)?;
        Ok(comparison.has_passed())
    }

    fn notes(&self) -> Vec<String> {
        let SimReplay { dropped: lost, cut, .. } = self;
        let Recordings { left_out, shortened, .. } = &self.recordings;
        let mut notes = Vec::new();
        if *left_out > 0 {
            notes.push(format!(
                "{left_out} requests were cancelled or have no identity: not replayed"
            ));
        }
        if *lost > 0 {
            notes.push(format!("{lost} requests were not recorded"));
        }
        if *cut {
            notes.push(
                "the end of the trace is missing: the proxy was killed, or is still writing it"
                    .into(),
            );
        }
        if *shortened {
            notes.push("the trace is longer than the replay: its end was not replayed".into());
        }
        for ReplayRuleFile { name, set } in &self.rules {
            if set.has_paths() {
                notes.push(format!("{name}: a trace has no paths, so path={{…}} never matches"));
            }
        }
        notes
    }

    fn show(&self, comparison: &SimComparison, args: &Args) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if args.json {
            let line = serde_json::to_string(comparison).context("cannot write JSON")?;
            writeln!(out, "{line}")?;
        } else {
            let tables = if args.quiet { String::new() } else { comparison.tables() };
            write!(out, "{tables}{}", comparison.failures())?;
        }
        let Some(dir) = &args.out else { return Ok(()) };
        let stem = self.trace.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let stem = stem.unwrap_or_else(|| "trace".into());
        for (number, target) in comparison.targets.iter().enumerate() {
            // A target's name may not be valid as a file name.
            let more = if number == 0 { String::new() } else { format!("-{}", number + 1) };
            let path = dir.join(format!("{stem}{more}.svg"));
            let title = format!("{stem}, target {}", target.target);
            job_chart(&path, &title, "as recorded, and replayed", &target.panels(), true)?;
            if !args.json && !args.quiet {
                writeln!(out, "figure: {}", path.display())?;
            }
        }
        Ok(())
    }
}

impl ReplayRuleFile {
    fn read(file: &Path) -> anyhow::Result<ReplayRuleFile> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        let set = RuleSet::parse(&text).map_err(|error| CommandError::rules(&error, &name))?;
        Ok(ReplayRuleFile { name, set: Arc::new(set) })
    }
}
