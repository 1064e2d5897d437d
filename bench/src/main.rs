//! The laboratory: a 9P load generator, comparisons with the peers, the ceilings beside
//! every figure, the guarantees of scheduling, and the demo.
//!
//!   p9     ─► load ─► link (one connection) ─► work (what to ask next)
//!   peers  ─► servers (sluice, diod, ganesha, bare) + load + ceilings ─► report
//!   mount  ─► mounts (sluice, bare, sshfs, glusterfs) + fio, find, tar … ─► report
//!   qos    ─► one proxy for each guarantee, jobs that compete ─► target, reached
//!   demo   ─► one proxy, one mount, a bully and a victim ─► without rules, and with them
//!   bare   the least a server can do: request → splice → reply
//!
//! The generator must cost less than what it measures, so requests leave and
//! replies are taken in batches, nothing is allocated per request, and of a reply
//! only the first bytes are read.
//!
//! No part of the product: it starts the product's program, [`programs::find_sluice`], as a
//! user would. Errors go to stderr as `sluice-bench: what: why`, with exit status 1.

mod bare;
mod ceilings;
mod demo;
mod figures;
mod files;
mod inside;
mod link;
mod load;
mod mount;
mod neighbours;
mod p9;
mod peers;
mod place;
mod plan;
mod process;
mod programs;
mod qos;
mod rows;
mod scheduler_costs;
mod servers;
mod session;
mod socket;
mod work;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::Parser as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Measure any 9P server, the proxy and the mount beside their peers, and the guarantees
#[derive(Debug, clap::Parser)]
#[command(name = "sluice-bench", version, arg_required_else_help = true)]
struct BenchCli {
    /// The sluice that is measured [default: the one beside this program]
    #[arg(long, value_name = "PATH", global = true)]
    sluice: Option<PathBuf>,
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    P9(p9::Args),
    Figures(figures::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    Bare(bare::Args),
    #[command(hide = true)]
    MountBare(mount::BareArgs),
    #[command(hide = true)]
    ClassMemory(scheduler_costs::ClassMemoryArgs),
    #[command(hide = true)]
    Simulate(scheduler_costs::SimulateArgs),
}

fn main() -> ExitCode {
    match run(BenchCli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: BenchCli) -> anyhow::Result<()> {
    let sluice = || programs::find_sluice(cli.sluice.as_deref());
    match cli.what {
        BenchCommand::P9(args) => p9::run(args),
        BenchCommand::Figures(args) => figures::run(args, &sluice),
        BenchCommand::Demo(args) => demo::run(args, &sluice()?),
        BenchCommand::Bare(args) => bare::run(args),
        BenchCommand::MountBare(args) => mount::run_bare(args),
        BenchCommand::ClassMemory(args) => scheduler_costs::class_memory(&args),
        BenchCommand::Simulate(args) => scheduler_costs::simulate(&args),
    }
}

/// Prints a text; a reader that has read enough, such as `head`, ends the program.
fn print(text: impl Display) -> anyhow::Result<()> {
    Ok(write!(io::stdout(), "{text}")?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A flag that SIGINT, SIGTERM and SIGHUP raise, so that a run ends through its guards
/// and leaves neither servers nor files behind.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        BenchCli::command().debug_assert();
    }
}
