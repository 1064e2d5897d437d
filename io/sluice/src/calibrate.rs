//! `sluice calibrate`: measures a backend directory and writes the file of costs.
//!
//! Progress goes to stderr, on one line if that is a terminal; tables or JSON go to stdout.
//! Ctrl-C and SIGTERM end the measurement at its next operation, and the files in the directory
//! are removed before the command returns.

use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use model::Nanos;
use proxy::{CalibrateError, Calibration};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Measure the cost of requests on the file system of a directory
///
/// Runs reads, writes and metadata operations of several sizes, with direct I/O if the file
/// system supports it. The result is the cost of a request of each size, the smallest number of
/// slots (`slots_max`) with full throughput, and the write mode that delays other requests least.
/// Needs a few hundred MiB of free space; all files are removed at the end.
///
/// Run it on the machine of the proxy, while nothing else uses the file system.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Writable directory of the file system.
    dir: PathBuf,
    /// File for the measured costs, for `[[target]] costs = "FILE"` in the configuration.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Approximate duration of the measurement, 1s to 1h; longer on a busy machine.
    #[arg(long, value_name = "SPAN", default_value = "20s")]
    time: Nanos,
    /// JSON output with all measurements.
    #[arg(long)]
    json: bool,
}

const TIME_MIN: Nanos = Nanos::from_secs(1);
const TIME_MAX: Nanos = Nanos::from_secs(3600);

/// Runs `sluice calibrate`: measures a directory and writes the file of costs.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, out, time, json } = args;
    ensure!((TIME_MIN..=TIME_MAX).contains(&time), "\"{time}\" is not a --time from 1s to 1h");
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
        error => anyhow::Error::new(error).context("calibration failed"),
    })
}

/// The file of costs: written to a temporary file and then renamed, so that a proxy never reads a
/// part of it. Without the rename the temporary file is removed.
struct CalibrateOutput {
    path: PathBuf,
    temporary: PathBuf,
}

impl CalibrateOutput {
    /// Creates the temporary file at once: a wrong path is an error before the measurement and
    /// not after it.
    fn prepare(path: PathBuf) -> anyhow::Result<CalibrateOutput> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        std::fs::write(&beside, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(CalibrateOutput { path, temporary: beside })
    }

    fn write(self, found: &Calibration) -> anyhow::Result<PathBuf> {
        let mut comment =
            format!("Costs of {}, measured by `sluice calibrate`.\n", found.dir.display());
        comment += "Time of one request at the saturated backend, by size or by kind.\n";
        for warning in found.warnings() {
            comment += &format!("Note: {warning}.\n");
        }
        let written = std::fs::write(&self.temporary, found.costs_file().to_toml(&comment))
            .and_then(|()| std::fs::rename(&self.temporary, &self.path));
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.path.clone())
    }
}

impl Drop for CalibrateOutput {
    fn drop(&mut self) {
        // After the rename the file does not exist.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// The progress line.
struct CalibrateProgress {
    in_place: bool,
}

impl CalibrateProgress {
    fn show(&mut self, what: &str) {
        if self.in_place {
            // A closed terminal does not end the measurement.
            let _ = write!(io::stderr(), "\r\x1b[K{what}");
        }
    }

    fn clear(&mut self) {
        self.show("");
    }
}
