//! The one binary: each subcommand is a module, and this is the door to them.
//!
//! Errors go to stderr as `sluice: what: why`, with exit status 1 (`sluice sim` has 2 for
//! input that is wrong); a reader that closes our stdout early (`| head`) is no error.

// They panic where the stream cannot be written.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod audit;
mod calibrate;
mod cert;
mod controller;
mod credentials;
mod decay;
mod docs;
mod events;
mod log;
mod metrics;
mod mount;
mod place;
mod proxy;
mod report;
mod rule;
mod sim;
mod status;
mod token;
mod top;
mod trace;
mod usage;
mod when;
mod why;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides whose I/O goes next on shared storage, and keeps the promises made to each job.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, arg_required_else_help = true)]
#[command(after_help = "SLUICE_LOG sets what is logged to stderr: error, warn, info (the \
                        default), debug, or a list such as info,sluice_proxy=debug.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    Events(events::Args),
    Calibrate(calibrate::Args),
    Trace(trace::Args),
    Sim(sim::Args),
    #[command(hide = true)]
    Docs(docs::Args),
}

fn main() -> ExitCode {
    if mount::is_called_by_mount8() {
        log::start();
        return mount::run_for_mount8();
    }
    let cli = Cli::parse();
    log::start();
    let status = match run(cli.command) {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(&format!("sluice: {error:#}"));
            ExitCode::FAILURE
        }
    };
    log::finish();
    status
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Proxy(args) => proxy::run(args),
        Command::Controller(args) => controller::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => mount::run_umount(args),
        Command::Status(args) => return status::run(args),
        Command::Top(args) => top::run(args),
        Command::Why(args) => why::run(args),
        Command::Report(args) => report::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Metrics(args) => metrics::run(args),
        Command::Rule(args) => rule::run(*args),
        Command::Token(args) => token::run(*args),
        Command::Cert(args) => cert::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Decay(args) => decay::run(args),
        Command::Events(args) => events::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Sim(args) => return sim::run(args),
        Command::Docs(args) => docs::run(args),
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
