//! The `sluice` binary: parses the command line and runs the module of the subcommand.
//!
//! Errors go to stderr as `sluice: what: why`, or with `--json` as a line of JSON with a code, with
//! exit status 1 (`sluice sim`: 2 for wrong input; `sluice reserve`: 3 and 4 for what does not fit);
//! a reader that closes stdout early (`| head`) is
//! not an error.

// They panic if the stream cannot be written.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod audit;
mod calibrate;
mod cert;
mod controller;
mod credentials;
mod decay;
mod docs;
mod events;
mod failure;
mod log;
mod metrics;
mod mount;
mod proxy;
mod report;
mod reserve;
mod rule;
mod run;
mod server_args;
mod sim;
mod slurm;
mod status;
mod token;
mod top;
mod trace;
mod usage;
mod when;
mod why;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// I/O quality of service for shared storage: weights, limits and reservations per job
#[derive(Debug, Parser)]
#[command(name = "sluice", version, arg_required_else_help = true)]
#[command(after_help = "SLUICE_LOG is the log level on stderr: error, warn, info (default), \
                        debug, or a list such as info,sluice_proxy=debug.")]
struct Cli {
    #[command(subcommand)]
    command: SluiceCommand,
}

#[derive(Debug, Subcommand)]
enum SluiceCommand {
    Proxy(proxy::Args),
    Controller(controller::Args),
    Mount(mount::Args),
    Umount(mount::UmountArgs),
    Status(status::Args),
    Top(top::Args),
    Why(why::Args),
    Report(report::Args),
    Usage(usage::Args),
    Metrics(metrics::Args),
    Rule(Box<rule::Args>),
    Token(Box<token::Args>),
    Cert(cert::Args),
    Audit(audit::Args),
    Decay(decay::Args),
    Reserve(reserve::Args),
    Run(run::Args),
    Events(events::Args),
    Calibrate(calibrate::Args),
    Trace(trace::Args),
    Sim(sim::Args),
    Slurm(slurm::Args),
    #[command(hide = true)]
    Docs(docs::Args),
}

fn main() -> ExitCode {
    if mount::is_called_by_mount8() {
        log::start();
        return mount::run_for_mount8();
    }
    if reserve::qosp::is_called() {
        return reserve::qosp::main();
    }
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches);
    let cli = cli.unwrap_or_else(|error| error.format(&mut Cli::command()).exit());
    log::start();
    let status = status(run(cli.command), &matches);
    log::finish();
    status
}

/// Returns the exit status of a command, and writes its failure to stderr.
fn status(outcome: anyhow::Result<ExitCode>, matches: &ArgMatches) -> ExitCode {
    match outcome {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::say(&error, failure::wants_json(matches));
            failure::status(&error)
        }
    }
}

/// Returns whether the program was called by this name.
fn is_called(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|called| Path::new(&called).file_name() == Some(name.as_ref()))
}

fn run(command: SluiceCommand) -> anyhow::Result<ExitCode> {
    match command {
        SluiceCommand::Proxy(args) => proxy::run(args),
        SluiceCommand::Controller(args) => controller::run(args),
        SluiceCommand::Mount(args) => mount::run(args),
        SluiceCommand::Umount(args) => mount::run_umount(args),
        SluiceCommand::Status(args) => return status::run(args),
        SluiceCommand::Top(args) => top::run(args),
        SluiceCommand::Why(args) => why::run(args),
        SluiceCommand::Report(args) => report::run(args),
        SluiceCommand::Usage(args) => usage::run(args),
        SluiceCommand::Metrics(args) => metrics::run(args),
        SluiceCommand::Rule(args) => rule::run(*args),
        SluiceCommand::Token(args) => token::run(*args),
        SluiceCommand::Cert(args) => cert::run(args),
        SluiceCommand::Audit(args) => audit::run(args),
        SluiceCommand::Decay(args) => decay::run(args),
        SluiceCommand::Reserve(args) => return reserve::run(args),
        SluiceCommand::Run(args) => return run::run(args),
        SluiceCommand::Events(args) => events::run(args),
        SluiceCommand::Calibrate(args) => calibrate::run(args),
        SluiceCommand::Trace(args) => trace::run(args),
        SluiceCommand::Sim(args) => return sim::run(args),
        SluiceCommand::Slurm(args) => return slurm::run(args),
        SluiceCommand::Docs(args) => docs::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
