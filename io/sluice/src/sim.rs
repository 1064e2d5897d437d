//! `sluice sim`: the scheduler under invented time, held to what scenarios expect, or asked
//! again for what a real proxy recorded.
//!
//! ```text
//!   FILE, DIR ─► scenarios ─┐ all are read first: a wrong one ends it with status 2
//!   --seeds N ─► by chance ─┴─► runs: one for each scheduler ─► tables, JSON, SVG ─► status 0
//!                                                                    └─ not as expected: 1
//!   --trace, --rules ─► recording ─► runs: one for each rule file ─► replay: job by job
//! ```
//!
//! Progress goes to stderr, in place where that is a terminal; results go to stdout in the
//! order of the files, whichever run was done first.

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

use crate::log;
use replay::SimReplay;
use runs::SimProgress;
use scenarios::Planned;

/// Runs scenarios under invented time and compares what comes of them with what is expected.
///
/// A scenario says which jobs, targets, rules and faults there are, and what is expected of
/// them and from which publication (docs/SCENARIOS.md). The scheduler is the one that the
/// proxy runs. A run repeats bit for bit on any machine.
///
/// With --trace it asks again for what a proxy recorded, under other rules: a dry run
/// (docs/SIM.md).
///
/// The exit status is 0 if everything was as expected, 1 if something was not, and 2 if a file
/// is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Scenario files, and directories of them.
    #[arg(value_name = "FILE|DIR", required_unless_present_any = ["seeds", "trace"])]
    paths: Vec<PathBuf>,
    /// Run only this scheduler: ours, fifo, sfqd, sfqd-slots, tbf or dmclock.
    #[arg(long, value_name = "NAME")]
    policy: Option<Policy>,
    /// Draw chance from this number in place of the scenario's own.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run so many scenarios by chance, with faults, from --seed (or 1) on, under every
    /// scheduler; nothing is expected of them but that no check fails.
    #[arg(long, value_name = "N", conflicts_with_all = ["paths", "out"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: Option<u64>,
    /// Ask again for what `sluice proxy --record` recorded, under each of --rules: what each
    /// job would have had of the recorded device. Each request follows the answer that it
    /// followed, as long after it as then (a closed loop).
    #[arg(long, value_name = "FILE", requires = "rules")]
    #[arg(conflicts_with_all = ["paths", "seeds", "seed", "policy"])]
    trace: Option<PathBuf>,
    /// A rule file to replay under; more than once to compare.
    #[arg(long, value_name = "FILE", requires = "trace")]
    rules: Vec<PathBuf>,
    /// The costs and slots that the replayed scheduler believes: what `sluice calibrate --out`
    /// wrote. Without it: the recorded times, and as many slots as were in use at most.
    #[arg(long, value_name = "COSTS", requires = "trace")]
    target: Option<PathBuf>,
    /// Write figures into this directory, rates over time: NAME.svg for each scenario, or one
    /// named as the trace.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON: an object for each scenario, one to a line; one object of a replay.
    #[arg(long)]
    json: bool,
    /// Print only what is not as expected, and no progress.
    #[arg(long)]
    quiet: bool,
}

const AFTER_HELP: &str = "\
Examples:
  sluice sim scenarios/
  sluice sim scenarios/wrf.toml --out figures
  sluice sim scenarios/ --json | jq 'select(.holds | not)'
  sluice sim --seeds 1000
  sluice sim --trace t.slt --rules now.toml --rules planned.toml";

/// All of them are planned at once; more by a --seed further on.
const SEEDS_MAX: u64 = 10_000;

/// The exit status for files that are wrong, as for arguments that are.
const WRONG_INPUT: u8 = 2;

/// What is to be run, read and found right.
enum SimInput {
    Scenarios(Vec<Planned>),
    Replay(Box<SimReplay>),
}

/// Runs `sluice sim`.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let input = match SimInput::read(&args) {
        Ok(input) => input,
        Err(wrong) => {
            wrong.iter().for_each(|error| log::say(&format!("sluice: {error:#}")));
            return Ok(ExitCode::from(WRONG_INPUT));
        }
    };
    if let Some(out) = &args.out
        && let Err(error) = std::fs::create_dir_all(out)
    {
        log::say(&format!("sluice: cannot make {}: {error}", out.display()));
        return Ok(ExitCode::from(WRONG_INPUT));
    }
    let holds = match input {
        SimInput::Scenarios(planned) => scenarios::run(&planned, &args)?,
        SimInput::Replay(replay) => replay.run(&args)?,
    };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl SimInput {
    /// What the arguments name, or everything that is wrong with it.
    fn read(args: &Args) -> Result<SimInput, Vec<anyhow::Error>> {
        if let Some(trace) = &args.trace {
            let replay = SimReplay::read(trace, &args.rules, args.target.as_deref());
            return replay
                .map(|read| SimInput::Replay(Box::new(read)))
                .map_err(|wrong| vec![wrong]);
        }
        match args.seeds {
            Some(seeds) => Ok(SimInput::Scenarios(scenarios::by_chance(seeds, args))),
            None => scenarios::from_files(args).map(SimInput::Scenarios),
        }
    }
}

impl Args {
    /// The progress that is shown: as wanted where somebody may look at it.
    fn progress(&self, wanted: SimProgress) -> SimProgress {
        let seen = !self.quiet && io::stderr().is_terminal();
        if seen { wanted } else { SimProgress::Hidden }
    }
}
