//! IOR by MPI on two nodes: each process sees the mount of its node in the same place.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::{JobsCrowd, RATE, SLUICE, WITHOUT, output};

/// The ways in which IOR writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IorInterface {
    /// A file of each process.
    Posix,
    /// One file of all processes.
    Mpiio,
}

const ALL: [IorInterface; 2] = [IorInterface::Posix, IorInterface::Mpiio];

impl IorInterface {
    fn id(self) -> &'static str {
        match self {
            IorInterface::Posix => "jobs/ior-posix",
            IorInterface::Mpiio => "jobs/ior-mpiio",
        }
    }

    pub(super) fn of(id: &str) -> Option<IorInterface> {
        ALL.into_iter().find(|one| one.id() == id)
    }

    fn row(self) -> FigureRow {
        let (way, files) = match self {
            IorInterface::Posix => ("POSIX", "a file of each process"),
            IorInterface::Mpiio => ("MPIIO", "one file of all processes"),
        };
        let what = format!(
            "IOR {way}, {files}, 8 × {BLOCK_MIB} MiB in pieces of 1 MiB, with {} MB/s reserved for each direction; \
             without: an eighth of it, no reservation",
            RATE / 1_000_000
        );
        let bound = FigureBound::Least(97.0);
        FigureRow::new(self.id(), &what, &[SLUICE, WITHOUT])
            .rounds(3, 20.0)
            .goal(SLUICE, "write_percent", bound)
            .goal(SLUICE, "read_percent", bound)
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            IorInterface::Posix => &["-a", "POSIX", "-F"],
            IorInterface::Mpiio => &["-a", "MPIIO"],
        }
    }
}

pub(super) fn rows() -> Vec<FigureRow> {
    ALL.into_iter().map(IorInterface::row).collect()
}

/// Why it cannot run here, if so.
pub(super) fn missing() -> Option<String> {
    let is_there = |name: &str| Command::new(name).arg("--help").output().is_ok();
    if !is_there("ior") {
        return Some(
            "no ior in PATH: Debian has none; build it from its source with Debian's MPI".into(),
        );
    }
    (!is_there("mpirun")).then(|| "no mpirun in PATH: Debian's openmpi-bin has it".into())
}

/// Runs it with or without a reservation of its job.
pub(super) fn measure(
    crowd: &JobsCrowd<'_>,
    interface: IorInterface,
    is_reserved: bool,
) -> anyhow::Result<FigureSample> {
    let reservation = is_reserved.then(|| crowd.reserve(JOB)).transpose()?;
    let summary = crowd.bed.dir().join("ior.json");
    let at = crowd.bed.dir().join("ior");
    std::fs::create_dir_all(&at).context("cannot make a mount point")?;
    let mut command = crowd.command(Path::new("mpirun"), JOB);
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader"]);
    command.args(["--mca", "mpi_yield_when_idle", "1"]);
    for (node, mount) in crowd.mounts.iter().enumerate() {
        if node > 0 {
            command.arg(":");
        }
        // an own mount namespace for each process, with its node's mount in the place that all name
        let see = "mount --bind \"$0\" \"$1\" && shift && exec ior \"$@\"";
        command.args(["-np", "4", "-x", "SLURM_JOB_ID", "unshare", "-m", "sh", "-c", see]);
        command.arg(mount.root()).arg(&at);
        command.args(interface.words());
        // -e: on disk, -k: kept for the next round, -Q 4 -C: reads what a process of the other node wrote
        // without a reservation it would take minutes
        let block = format!("{}m", if is_reserved { BLOCK_MIB } else { BLOCK_MIB / 8 });
        command.args(["-w", "-r", "-e", "-k", "-C", "-Q", "4", "-t", "1m", "-b", &block]);
        command.args(["-O", "summaryFormat=JSON", "-O"]);
        command.arg(format!("summaryFile={}", summary.display()));
        command.arg("-o").arg(at.join(format!("{interface:?}")));
    }
    let said = output(&mut command)?;
    if let Some(id) = reservation {
        crowd.controller.client.remove_reservation(id).context("a reservation")?;
    }
    let text = std::fs::read_to_string(&summary).with_context(|| format!("no summary: {said}"))?;
    let [write, read] = rates(&text).with_context(|| format!("the summary of IOR: {text}"))?;
    let percent = |rate: f64| rate * 1e8 / RATE as f64;
    Ok(sample([
        ("write_percent", percent(write)),
        ("read_percent", percent(read)),
        ("write_mb_per_s", write),
        ("read_mb_per_s", read),
    ]))
}

/// Megabytes per second of writes and of reads, from a summary that has mebibytes.
fn rates(text: &str) -> Option<[f64; 2]> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let results = whole["summary"].as_array()?;
    let of = |operation: &str| {
        let found = results.iter().find(|one| one["operation"] == operation)?;
        Some(found["bwMaxMIB"].as_f64()? * 1_048_576.0 / 1e6)
    };
    Some([of("write")?, of("read")?])
}

const JOB: &str = "ior";
const BLOCK_MIB: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_a_summary_are_in_megabytes() {
        let text = r#"{"summary": [{"operation": "write", "bwMaxMIB": 100.0}, {"operation": "read", "bwMaxMIB": 50}]}"#;
        assert_eq!(rates(text), Some([104.8576, 52.4288]));
        assert_eq!(rates("{}"), None);
    }
}
