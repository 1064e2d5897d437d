//! `sluice run`: a command as a job of its own, without a batch system.
//!
//! ```text
//!   register job run.NAME ─► its token ─► DIR/token, 0400 ─► COMMAND with SLUICE_JOB_ID, SLUICE_TOKEN_FILE
//!                                                               └─ ends ─► end the job, remove DIR
//! ```
//!
//! The token is in a file that only the user can read, and never in an argument or a variable.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use anyhow::Context as _;
use api::{JobToken, NewJob};
use http::ApiClient;
use model::Nanos;
use rustix::process::{Pid, Signal, getuid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::credentials::ControllerArgs;
use crate::failure::CommandError;
use crate::log;
use crate::reserve::{for_caller, random_key};
use crate::when;

/// Run a command as a job of its own, with a token for its reservations
///
/// Requests of the command through a mount are of job run.NAME (`SLUICE_JOB_ID`), and it may reserve
/// for that job, and no other, with the token in `SLUICE_TOKEN_FILE`. Both end with the command, and
/// after 30 days.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is that of the command, or 128 and the number of the signal that ended it.

Example:
  sluice run --name dump -- sh -c 'sluice reserve add --bandwidth 100MB/s --direction write \\
      --for 60s --wait && ./dump'")]
pub(crate) struct Args {
    /// Name of the job after `run.` [default: a random one]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    #[command(flatten)]
    controller: ControllerArgs,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A registered job with its files; both end when it is dropped.
struct RunningJob {
    client: ApiClient,
    job: String,
    attempt: u32,
    dir: PathBuf,
}

/// Runs `sluice run`; the exit status is that of the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // First, so that no signal ends this process before the job has ended.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot wait for signals")?;
    let client = args.controller.client()?;
    let name = match args.name {
        Some(name) => name,
        None => random_key()?[..16].to_owned(),
    };
    let running = RunningJob::register(client, format!("run.{name}"))?;
    let token = running.client.job_token(&running.job)?;
    running.write(&token).with_context(|| {
        format!("cannot write the token of {} to {}", running.job, running.dir.display())
    })?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("SLUICE_JOB_ID", &running.job);
    command.env("SLUICE_TOKEN_FILE", running.dir.join("token")).env_remove("SLUICE_TOKEN");
    command.envs(args.controller.environment()?);
    let mut child = command.spawn().with_context(|| format!("cannot run {:?}", args.command[0]))?;
    let ends = signals.handle();
    let forwarded = Pid::from_child(&child);
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever() {
            // The terminal has sent SIGINT to the command, too.
            if signal != SIGINT
                && let Some(signal) = Signal::from_named_raw(signal)
            {
                let _ = rustix::process::kill_process(forwarded, signal);
            }
        }
    });
    let status = wait(&mut child);
    ends.close();
    let _ = forwarder.join();
    status
}

fn wait(child: &mut Child) -> anyhow::Result<ExitCode> {
    let status = child.wait().context("cannot wait for the command")?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)))
}

impl RunningJob {
    /// Registers a job that does not run yet.
    fn register(client: ApiClient, job: String) -> anyhow::Result<RunningJob> {
        if client.job(&job).is_ok() {
            let message = format!("{job} runs already; give it another name");
            return Err(CommandError::argument("--name", message).into());
        }
        let now = when::now();
        let attempt = (now.as_nanos() / 1_000_000_000) as u32;
        // If this process is killed the controller forgets the job then.
        let ends_ns = Some((now + LONGEST).as_nanos());
        let new = NewJob { attempt, ends_ns, ..NewJob::default() };
        let register = |user| client.register_job(&job, &NewJob { user, ..new.clone() });
        for_caller(None, register).with_context(|| format!("cannot register {job}"))?;
        let dir = directory(&job);
        Ok(RunningJob { client, job, attempt, dir })
    }

    /// Writes the token to a file that only this user can read.
    fn write(&self, token: &JobToken) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.dir)?;
        let mut options = File::options();
        let mut file =
            options.write(true).create_new(true).mode(0o400).open(self.dir.join("token"))?;
        file.write_all(format!("{}\n", token.token).as_bytes())
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if let Err(error) = self.client.end_job(&self.job, Some(self.attempt)) {
            log::print_line(&format!("sluice: cannot end job {}: {error}", self.job));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns the directory for a job's token: below that of the user's session, else below the one
/// for temporary files, with a name that cannot be guessed.
fn directory(job: &str) -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|dir| is_mine(dir));
    let name = format!("sluice-{job}-{}", std::process::id());
    session.unwrap_or_else(std::env::temp_dir).join(name)
}

fn is_mine(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == getuid().as_raw())
}

/// Parses the name of a job after `run.`.
fn name(text: &str) -> Result<String, CommandError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match (1..=60).contains(&text.len()) && text.chars().all(is_plain) {
        true => Ok(text.into()),
        false => {
            Err(CommandError::argument("--name", "use 1 to 60 letters, digits, '_', '-' and '.'"))
        }
    }
}

/// After that a job whose `sluice run` was killed is forgotten, and the token of one that still runs
/// is invalid.
const LONGEST: Nanos = Nanos::from_secs(30 * 86_400);
