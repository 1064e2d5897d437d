//! `sluice calibrate`: measures a backend directory and writes the file of costs.
//!
//! Progress goes to stderr, in place where that is a terminal; the tables or the
//! JSON go to stdout. Ctrl-C and SIGTERM end the measurement at its next operation,
//! and what was made in the directory is removed before the command returns.

use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use model::Nanos;
use proxy::{CalibrateError, Calibration};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Measures what requests cost a directory's file system.
///
/// Reads, writes and metadata operations of several sizes and kinds, with direct I/O where
/// the file system has it. The result is what a request of each size costs, the number of
/// slots (`slots_max`) that loses no throughput, and the write mode that treats neighbours
/// best. Needs some hundred MiB of free space; everything that is made is removed.
///
/// Run it on the machine of the proxy, while nothing else uses the file system.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory of the file system, writable.
    dir: PathBuf,
    /// Write the costs here, for `[[target]] costs = "FILE"` in the configuration.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// About how long to measure; more on a busy machine.
    #[arg(long, value_name = "SPAN", default_value = "20s")]
    time: Nanos,
    /// Print everything that was measured as JSON.
    #[arg(long)]
    json: bool,
}

const TIME_MIN: Nanos = Nanos::from_secs(1);
const TIME_MAX: Nanos = Nanos::from_secs(3600);

/// Runs `sluice calibrate`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, out, time, json } = args;
    ensure!((TIME_MIN..=TIME_MAX).contains(&time), "--time {time} is not between 1s and 1h");
    let out = out.map(CalibrateOutput::prepare).transpose()?;
    let found = measure(&dir, time)?;
    let written = out.map(|out| out.write(&found)).transpose()?;
    let text = if json {
        serde_json::to_string_pretty(&found.to_json())? + "\n"
    } else {
        found.to_string()
    };
    io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = written.filter(|_| !json) {
        let path = path.display();
        writeln!(io::stdout(), "\nwritten to {path}; use it with: costs = \"{path}\"")?;
    }
    Ok(())
}

fn measure(dir: &Path, time: Nanos) -> anyhow::Result<Calibration> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut handlers = Vec::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        handlers.push(signal_hook::flag::register(signal, stop.clone())?);
    }
    let mut line = CalibrateProgress { in_place: io::stderr().is_terminal() };
    let found = proxy::calibrate(dir, time.to_duration(), &stop, &mut |what| line.show(what));
    line.clear();
    for handler in handlers {
        signal_hook::low_level::unregister(handler);
    }
    found.map_err(|error| match error {
        CalibrateError::Stopped => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context("the calibration failed"),
    })
}

/// The file of costs: written beside its place and then renamed, so that a proxy
/// never reads half of it. What is not written is removed.
struct CalibrateOutput {
    path: PathBuf,
    beside: PathBuf,
}

impl CalibrateOutput {
    /// Makes the file beside its place at once: a wrong path should be told before
    /// twenty seconds of work rather than after them.
    fn prepare(path: PathBuf) -> anyhow::Result<CalibrateOutput> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        std::fs::write(&beside, "")
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(CalibrateOutput { path, beside })
    }

    fn write(self, found: &Calibration) -> anyhow::Result<PathBuf> {
        let mut comment =
            format!("Costs of {}, measured by `sluice calibrate`.\n", found.dir.display());
        comment += "The time one request costs the saturated backend, by its size or its kind.\n";
        for warning in found.warnings() {
            comment += &format!("Note: {warning}.\n");
        }
        let written = std::fs::write(&self.beside, found.costs_file().to_toml(&comment))
            .and_then(|()| std::fs::rename(&self.beside, &self.path));
        written.with_context(|| format!("{} cannot be written", self.path.display()))?;
        Ok(self.path.clone())
    }
}

impl Drop for CalibrateOutput {
    fn drop(&mut self) {
        // After the rename it is gone already.
        let _ = std::fs::remove_file(&self.beside);
    }
}

/// The line of progress.
struct CalibrateProgress {
    in_place: bool,
}

impl CalibrateProgress {
    fn show(&mut self, what: &str) {
        if self.in_place {
            // A terminal that has gone away is no reason to stop measuring.
            let _ = write!(io::stderr(), "\r\x1b[K{what}");
        }
    }

    fn clear(&mut self) {
        self.show("");
    }
}
