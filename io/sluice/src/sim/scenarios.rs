//! Finds and reads scenarios, runs them under each of their schedulers, and shows the outcomes.
//!
//! ```text
//!   FILE, DIR ─► every file read ─► Planned ─► a run for each scheduler ─► SimOutcome ─► shown
//!   seeds ─────► random ──────────────┘
//! ```

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::sim::{Policy, RunResult, Scenario, random_scenario};
use anyhow::{Context, anyhow};

use super::Args;
use super::figure;
use super::outcome::{SimOutcome, SimTotals};
use super::runs::{self, SimProgress, SimRun};

/// A scenario to run, and its origin.
pub(super) struct Planned {
    /// The command that repeats it, without seed and scheduler.
    command: String,
    scenario: Arc<Scenario>,
    policies: Vec<Policy>,
    seed: u64,
}

/// Runs scenarios and shows their outcomes; returns whether all expectations are met.
pub(super) fn run(planned: &[Planned], args: &Args) -> anyhow::Result<bool> {
    let totals = simulate(planned, args)?;
    let silent = args.json || (args.quiet && totals.has_passed());
    if !silent {
        if args.seeds.is_some() {
            let (features, throttled) = (features_of(planned), totals.throttled);
            writeln!(
                io::stdout(),
                "took part: {features}, runs that a decay throttled {throttled}"
            )?;
        }
        writeln!(io::stdout(), "{totals}")?;
    }
    Ok(totals.has_passed())
}

/// Formats in how many scenarios each feature took part, also those in none.
fn features_of(planned: &[Planned]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for plan in planned {
        for (at, (name, takes_part)) in plan.scenario.features().into_iter().enumerate() {
            if at == counts.len() {
                counts.push((name, 0));
            }
            counts[at].1 += usize::from(takes_part);
        }
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    counts.join(", ")
}

/// Runs all scenarios and shows each when all its schedulers are done.
fn simulate(planned: &[Planned], args: &Args) -> anyhow::Result<SimTotals> {
    let mut all = Vec::new();
    for plan in planned {
        all.extend(plan.policies.iter().map(|policy| SimRun {
            scenario: plan.scenario.clone(),
            policy: *policy,
            seed: plan.seed,
        }));
    }
    let mut totals = SimTotals::default();
    let mut plans = planned.iter();
    let mut plan = plans.next();
    let mut reports: Vec<RunResult> = Vec::new();
    runs::run_all(&all, args.progress(SimProgress::OfTime), |report| {
        let Some(current) = plan else { return Ok(()) };
        reports.push(report);
        if reports.len() < current.policies.len() {
            return Ok(());
        }
        plan = plans.next();
        let outcome =
            SimOutcome::of(&current.scenario, &current.command, std::mem::take(&mut reports));
        totals.add(&outcome);
        show(&outcome, &current.scenario, args)
    })?;
    Ok(totals)
}

fn show(outcome: &SimOutcome, scenario: &Scenario, args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        let line = serde_json::to_string(outcome).context("cannot write JSON")?;
        writeln!(out, "{line}")?;
    } else if args.quiet || args.seeds.is_some() {
        write!(out, "{}", outcome.failures())?;
    } else {
        writeln!(out, "{}{}", outcome.tables(), outcome.failures())?;
    }
    if let Some(dir) = &args.out {
        let path = dir.join(format!("{}.svg", outcome.scenario));
        figure::of_scenario(&path, scenario, outcome)?;
        if !args.json && !args.quiet {
            writeln!(out, "figure: {}\n", path.display())?;
        }
    }
    Ok(())
}

// ---- planning ----

pub(super) fn random_scenarios(seeds: u64, args: &Args) -> Vec<Planned> {
    let first = args.seed.unwrap_or(1);
    let policies = args.policy.map_or(Policy::ALL.to_vec(), |policy| vec![policy]);
    let plan = |seed| Planned {
        command: "sluice sim --seeds 1".into(),
        scenario: Arc::new(random_scenario(seed)),
        policies: policies.clone(),
        seed,
    };
    (first..first.saturating_add(seeds)).map(plan).collect()
}

/// Reads all named scenarios, or returns all errors.
pub(super) fn from_files(args: &Args) -> Result<Vec<Planned>, Vec<anyhow::Error>> {
    let (mut planned, mut wrong) = (Vec::new(), Vec::new());
    for path in &args.paths {
        let files = match files_of(path) {
            Ok(files) => files,
            Err(error) => {
                wrong.push(error);
                continue;
            }
        };
        for file in files {
            match read(&file, args) {
                Ok(plan) => planned.push(plan),
                Err(error) => wrong.push(error),
            }
        }
    }
    if wrong.is_empty() { Ok(planned) } else { Err(wrong) }
}

/// Returns a file itself, or the scenarios directly in a directory, sorted by name.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unreadable = || format!("cannot read {}", path.display());
    if !std::fs::metadata(path).with_context(unreadable)?.is_dir() {
        return Ok(vec![path.into()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(unreadable)? {
        let file = entry.with_context(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(anyhow!("{} contains no scenario, a file NAME.toml", path.display())),
        false => Ok(files),
    }
}

fn read(file: &Path, args: &Args) -> anyhow::Result<Planned> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut scenario = Scenario::parse(&text, &file.display().to_string())?;
    // Messages show the whole path, figures and reports only the file name.
    if let Some(name) = file.file_stem() {
        scenario.name = name.to_string_lossy().into_owned();
    }
    Ok(Planned {
        command: format!("sluice sim {}", file.display()),
        policies: args.policy.map_or(scenario.policies.clone(), |policy| vec![policy]),
        seed: args.seed.unwrap_or(scenario.seed),
        scenario: Arc::new(scenario),
    })
}
