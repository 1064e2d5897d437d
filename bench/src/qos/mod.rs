//! `sluice-bench qos`: the commands that measure the guarantees.
//!
//!   mounts  controller  decay
//!      └────────┼─────────┘
//!     bed (directory, proxies) + jobs that compete ─► table: target, reached
//!
//! Each starts proxies of its own over a new directory, with rules it writes, and stops and
//! removes everything at its end. With `--out DIR` it writes `qos-NAME.md` and
//! `qos-NAME.json` there.

mod backend;
mod bed;
pub(crate) mod blocked;
mod controlled;
mod cost;
pub(crate) mod costs;
mod decayed;
mod job;
pub(crate) mod limits;
mod memory;
mod mounted;
mod mounts;
pub(crate) mod neighbour;
pub(crate) mod node;
pub(crate) mod patterns;
pub(crate) mod promises;
mod scrape;
mod shares;
mod slow;
mod table;
pub(crate) mod total;
pub(crate) mod victim;
pub(crate) mod weights;
mod write_modes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use model::Nanos;

use bed::QosTestBed;
use table::QosTable;

/// Measure the guarantees: a proxy that returns, a controller, decay
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The guarantees to measure [default: all]
    #[arg(value_enum)]
    what: Vec<QosGuarantee>,
    /// Short spans and fewer cases, to see that everything works
    #[arg(long)]
    quick: bool,
    /// How long each case is measured [default: as each guarantee needs]
    #[arg(long)]
    time: Option<Nanos>,
    /// How often each comparison is repeated [default: mounts 10]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only the cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where the tables and all figures go [default: nowhere, the tables are printed]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where to make the directory that is served; its file system is what is measured
    /// [default: TMPDIR, or else /var/tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// One group of guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum QosGuarantee {
    /// A proxy that returns, through mounts
    Mounts,
    /// One limit over many proxies, and what their controller costs
    Controller,
    /// A limit that falls with past usage, by the formula
    Decay,
}

/// What a measurement is given.
pub(crate) struct QosRun<'a> {
    args: &'a Args,
    /// The directory and program that are measured.
    pub(crate) bed: QosTestBed,
}

/// Measures what was asked for, in order.
pub(crate) fn run(args: Args, sluice: &Path) -> anyhow::Result<()> {
    let stop = super::stop_on_signals()?;
    raise_descriptor_limit();
    let all = <QosGuarantee as clap::ValueEnum>::value_variants();
    let chosen = if args.what.is_empty() { all } else { &args.what };
    for guarantee in chosen {
        measure(*guarantee, &args, sluice, &stop)?;
    }
    Ok(())
}

fn measure(
    guarantee: QosGuarantee,
    args: &Args,
    sluice: &Path,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let out = args.out.as_deref();
    let bed = QosTestBed::make(args.dir.as_deref(), sluice, stop)?;
    let mut table = QosTable::new(guarantee.name(), &bed, args.command_line(guarantee));
    let run = QosRun { args, bed };
    match guarantee {
        QosGuarantee::Mounts => mounts::measure(&run, &mut table),
        QosGuarantee::Controller => controlled::measure(&run, &mut table, out),
        QosGuarantee::Decay => decayed::measure(&run, &mut table, out),
    }
    .with_context(|| format!("qos {}", guarantee.name()))?;
    drop(run);
    table.write(out)
}

impl QosGuarantee {
    fn name(self) -> &'static str {
        match self {
            QosGuarantee::Mounts => "mounts",
            QosGuarantee::Controller => "controller",
            QosGuarantee::Decay => "decay",
        }
    }
}

impl QosRun<'_> {
    /// Time for which a case is measured: `full` without other settings, in seconds.
    pub(crate) fn time(&self, full: u64, quick: u64) -> Duration {
        let chosen = self.args.time.map(|time| time.to_duration());
        chosen.unwrap_or(Duration::from_secs(if self.args.quick { quick } else { full }))
    }

    /// How often a comparison is repeated.
    pub(crate) fn rounds(&self, full: usize, quick: usize) -> usize {
        self.args.rounds.unwrap_or(if self.args.quick { quick } else { full }).max(1)
    }

    /// Fewer cases will do.
    pub(crate) fn is_quick(&self) -> bool {
        self.args.quick
    }

    /// Whether the case of that name is asked for.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.args.only.as_ref().is_none_or(|text| case.contains(text))
    }
}

impl Args {
    fn command_line(&self, guarantee: QosGuarantee) -> String {
        let mut line = format!("sluice-bench qos {}", guarantee.name());
        if self.quick {
            line.push_str(" --quick");
        }
        if let Some(time) = &self.time {
            line.push_str(&format!(" --time {time}"));
        }
        if let Some(rounds) = self.rounds {
            line.push_str(&format!(" --rounds {rounds}"));
        }
        if let Some(only) = &self.only {
            line.push_str(&format!(" --only {only:?}"));
        }
        line
    }
}

/// Raises the limit of open files to its maximum: one guarantee concerns thousands of connections.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    // Without it the case that needs them says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// The value that a part of all are below: 0.5 is the median. Between two values it is linear.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_between_the_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|part| quantile(&values, part)),
            [1.0, 1.75, 2.5, 4.0]
        );
        assert!(quantile(&[], 0.5).is_nan());
    }
}
