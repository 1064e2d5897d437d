//! `sluice slurm`: the reservations of Slurm's jobs.
//!
//! ```text
//!   submission   job_submit.lua: licences, GRES, admin comment          (native/slurm)
//!   waiting      follow ─► a planned reservation, which follows the start that Slurm expects
//!   start        start, prolog-slurmctld, prolog ─► the reservation is ACTIVE, the job has a token
//!   end          epilog, epilog-slurmctld ─► credit, token invalid; follow: what they did not do
//! ```
//!
//! Slurm is asked by its own commands, and the controller by its API. Nothing that runs in
//! slurmstepd calls the controller.

mod begin;
mod check;
mod command;
mod config;
mod follow;
mod hooks;
mod plan;
mod pool;
mod queue;
mod request;
mod set_aside;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};

use anyhow::Context as _;
use clap::Subcommand;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use check::SlurmCheck;
use config::SlurmConfig;
use follow::SlurmFollower;
use hooks::SlurmHook;

/// Reserve bandwidth for Slurm's jobs: hooks, a service, and a check of the configuration
///
/// docs/SLURM.md has the installation. The settings are in /etc/sluice/slurm.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: SlurmAction,
}

#[derive(Debug, Subcommand)]
enum SlurmAction {
    /// Find mistakes in the configuration of Slurm and in slurm.toml
    ///
    /// The status is 1 if there is an error; warnings alone are 0.
    Check {
        /// JSON output.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Plan the reservations of waiting jobs and clean up, until SIGTERM; beside slurmctld, as SlurmUser
    Follow {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Begin the reservation of a job, if it fits now: for slurm_bb_pre_run
    ///
    /// The status is 0 if the job may start, 3 if it has to wait, and 4 if its bandwidth fits at no
    /// time. A job of srun or salloc waits here, as long as `wait` in slurm.toml.
    Start {
        /// Number of the job.
        job: String,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Register a job and begin its reservation: for PrologSlurmctld
    PrologSlurmctld {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Give a job its token: for Prolog
    Prolog {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Remove the token of a job: for Epilog
    Epilog {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// End a job and its reservations, with their credit: for EpilogSlurmctld
    EpilogSlurmctld {
        #[command(flatten)]
        config: ConfigArgs,
    },
}

/// Where the settings are.
#[derive(Debug, clap::Args)]
struct ConfigArgs {
    /// Settings [default: $SLUICE_SLURM_CONFIG, or /etc/sluice/slurm.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs `sluice slurm` and its subcommands.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        SlurmAction::Check { json, config } => {
            let check = SlurmCheck::run(&config.read()?);
            let text = match json {
                true => serde_json::to_string_pretty(&check).context("cannot write JSON")? + "\n",
                false => check.text(),
            };
            std::io::stdout().write_all(text.as_bytes())?;
            Ok(if check.has_errors() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        SlurmAction::Follow { config } => follow(config.read()?),
        SlurmAction::Start { job, config } => begin::start(&config.read()?, &job),
        SlurmAction::PrologSlurmctld { config } => hook(SlurmHook::PrologSlurmctld, &config),
        SlurmAction::Prolog { config } => hook(SlurmHook::Prolog, &config),
        SlurmAction::Epilog { config } => hook(SlurmHook::Epilog, &config),
        SlurmAction::EpilogSlurmctld { config } => hook(SlurmHook::EpilogSlurmctld, &config),
    }
}

fn hook(hook: SlurmHook, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    Ok(hooks::run(hook, &config.read()?))
}

/// Follows the queue until SIGTERM or SIGINT.
fn follow(config: SlurmConfig) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot wait for signals")?;
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        signals.forever().next();
        drop(ended);
    });
    let mut follower = SlurmFollower::new(config)?;
    tracing::info!("following the queue of Slurm");
    follower.run(|interval| {
        matches!(ends.recv_timeout(interval), Err::<(), _>(RecvTimeoutError::Disconnected))
    });
    Ok(ExitCode::SUCCESS)
}

impl ConfigArgs {
    fn read(&self) -> anyhow::Result<SlurmConfig> {
        let named = self.config.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
        SlurmConfig::read(&named.unwrap_or_else(|| DEFAULT.into()))
    }
}

/// The variable with the path of the settings, and the path without it.
const VARIABLE: &str = "SLUICE_SLURM_CONFIG";
const DEFAULT: &str = "/etc/sluice/slurm.toml";
