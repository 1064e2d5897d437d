//! `sluice sim`: runs the scheduler in simulated time on scenarios with expectations, or on the
//! requests in a trace of a real proxy.
//!
//! ```text
//!   FILE, DIR ─► scenarios ─┐ all are read first: after an error status 2
//!   --seeds N ─► random ────┴─► runs: one for each scheduler ─► tables, JSON, SVG ─► status 0
//!                                                                    └─ not as expected: 1
//!   --trace, --rules ─► recording ─► runs: one for each rule file ─► replay: job by job
//! ```
//!
//! Progress goes to stderr, on one line if that is a terminal; results go to stdout in the order
//! of the files.

mod compare;
mod figure;
mod outcome;
mod replay;
mod runs;
mod scenarios;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use ::sim::Policy;

use crate::failure;
use replay::SimReplay;
use runs::SimProgress;
use scenarios::Planned;

/// Run scenarios in simulated time and check their expectations
///
/// A scenario describes jobs, targets, rules and faults, and expected results with their source
/// (docs/SCENARIOS.md). The scheduler is that of the proxy. A run gives identical results on every
/// machine.
///
/// With --trace it replays the requests of a proxy's trace under other rules: a dry run
/// (docs/SIM.md).
///
/// The exit status is 0 if all expectations are met, 1 if one is not, and 2 if a file is invalid.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Scenario files, and directories of scenario files.
    #[arg(value_name = "FILE|DIR", required_unless_present_any = ["seeds", "trace"])]
    paths: Vec<PathBuf>,
    /// Scheduler to run instead of all: ours (that of the proxy), ours-local (without
    /// coordination of proxies), fifo, sfqd, sfqd-slots, tbf or dmclock.
    #[arg(long, value_name = "NAME")]
    policy: Option<Policy>,
    /// Seed of random numbers, instead of the scenario's.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of random scenarios with faults to run under every scheduler, from --seed (or 1) on;
    /// only invariants are checked.
    #[arg(long, value_name = "N", conflicts_with_all = ["paths", "out"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: Option<u64>,
    /// Trace of `sluice proxy --trace` to replay under each of --rules, to show the service of each
    /// job. Each request follows the same reply as in the trace, after the same pause (a closed
    /// loop).
    #[arg(long, value_name = "FILE", requires = "rules")]
    #[arg(conflicts_with_all = ["paths", "seeds", "seed", "policy"])]
    trace: Option<PathBuf>,
    /// Rule file for the replay; may be repeated to compare.
    #[arg(long, value_name = "FILE", requires = "trace")]
    rules: Vec<PathBuf>,
    /// File of `sluice calibrate --out` with costs and slots for the replay [default: the recorded
    /// times, and the largest recorded number of slots in use]
    #[arg(long, value_name = "FILE", requires = "trace")]
    target: Option<PathBuf>,
    /// Directory for figures of rates over time: NAME.svg for each scenario, or one named after
    /// the trace.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// JSON output: one line with an object for each scenario, or one object of a replay.
    #[arg(long)]
    json: bool,
    /// Failures only, without progress.
    #[arg(long)]
    quiet: bool,
}

const AFTER_HELP: &str = "\
Examples:
  sluice sim scenarios/
  sluice sim scenarios/wrf.toml --out figures
  sluice sim scenarios/ --json | jq 'select(.passed | not)'
  sluice sim --seeds 1000
  sluice sim --trace t.slt --rules now.toml --rules planned.toml";

/// Maximum of --seeds, as all are planned at once; a larger --seed gives others.
const SEEDS_MAX: u64 = 10_000;

/// The exit status for wrong files, as for wrong arguments.
const WRONG_INPUT: u8 = 2;

/// The validated input of a run.
enum SimInput {
    Scenarios(Vec<Planned>),
    Replay(Box<SimReplay>),
}

/// Runs `sluice sim`: simulates scenarios or a trace, and checks expectations.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let input = match SimInput::read(&args) {
        Ok(input) => input,
        Err(wrong) => {
            wrong.iter().for_each(|error| failure::say(error, args.json));
            return Ok(ExitCode::from(WRONG_INPUT));
        }
    };
    if let Some(out) = &args.out
        && let Err(error) = std::fs::create_dir_all(out)
    {
        let error = anyhow::Error::new(error).context(format!("cannot make {}", out.display()));
        failure::say(&error, args.json);
        return Ok(ExitCode::from(WRONG_INPUT));
    }
    let holds = match input {
        SimInput::Scenarios(planned) => scenarios::run(&planned, &args)?,
        SimInput::Replay(replay) => replay.run(&args)?,
    };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl SimInput {
    /// Reads the input that the arguments name, or returns all errors in it.
    fn read(args: &Args) -> Result<SimInput, Vec<anyhow::Error>> {
        if let Some(trace) = &args.trace {
            let replay = SimReplay::read(trace, &args.rules, args.target.as_deref());
            return replay
                .map(|read| SimInput::Replay(Box::new(read)))
                .map_err(|wrong| vec![wrong]);
        }
        match args.seeds {
            Some(seeds) => Ok(SimInput::Scenarios(scenarios::random_scenarios(seeds, args))),
            None => scenarios::from_files(args).map(SimInput::Scenarios),
        }
    }
}

impl Args {
    /// Returns the progress to show: hidden with --quiet or without a terminal.
    fn progress(&self, wanted: SimProgress) -> SimProgress {
        let seen = !self.quiet && io::stderr().is_terminal();
        if seen { wanted } else { SimProgress::Hidden }
    }
}
