//! Programs that reserve for themselves, beside 32 jobs that ask for all: a dump of the example, and IOR.
//!
//! ```text
//!   md, or IOR on both nodes ─┐
//!   16 fio, a job each ───────┴─► mount n0 ═╗  each mount has both proxies
//!   16 fio, a job each ─────────► mount n1 ═╩═► proxies p0, p1 ─► slow backend, 150 MB/s
//!        └ md, sluice reserve ─► controller ◄───────┘
//! ```

mod ior;
mod start;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::{NewReservation, WireRate};
use model::Bytes;
use testkit::native;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::backend::{BackendKind, ColdFile, MANY_THREADS, QosBackend};
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed};
use super::controllers::{QosController, wait_for_rules};
use super::mounted::{ENDLESS, QosFio, QosMount, on};
use ior::IorInterface;

/// Programs and jobs with reservations of their own.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "jobs",
    title: "Jobs that reserve",
    what: "Programs on two mounts over two proxies of the slow backend (150 MB/s), beside 32 jobs of fio that \
           keep 8 requests of 256 KiB under way each. dump: native/examples/md.c; its time from ACTIVE until \
           the dump is on disk, in parts of its bytes at the reserved rate. ior: 8 processes, 4 on each \
           mount, as `mpirun` starts them; the reads are of what the other mount's processes wrote. start: a \
           real Slurm of four nodes on this machine, with TLS between it and the controller.",
    sources: &[
        "bench/src/qos/reserved_jobs.rs",
        "native/examples/md.c",
        "native/library/Cargo.toml",
        "native/library/include",
        "native/library/src",
        "native/slurm",
        "native/spank",
    ],
    programs: &[
        FigureProgram::Proxy,
        FigureProgram::Mount,
        FigureProgram::Calibrate,
        FigureProgram::Controller,
    ],
    rows: || [vec![dump_row(), start::row()], ior::rows()].concat(),
    measure,
};

fn dump_row() -> FigureRow {
    let what = format!(
        "a dump of {} MB with {} MB/s reserved by the program itself; without: a fifth of it, with no controller named",
        DUMP.get() / 1_000_000,
        RATE / 1_000_000
    );
    FigureRow::new(DUMP_ROW, &what, &[SLUICE, WITHOUT]).rounds(5, 5.0).goal(
        SLUICE,
        "dump_ratio",
        FigureBound::Most(1.05),
    )
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    start::measure(run, sink)?;
    let row = dump_row();
    let wanted: Vec<FigureRow> =
        ior::rows().into_iter().filter(|row| sink.wants(&row.id)).collect();
    if !sink.wants(&row.id) && wanted.is_empty() {
        return Ok(());
    }
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let crowd = JobsCrowd::start(&bed, run)?;
    if sink.wants(&row.id) {
        let program = build_md(&bed)?;
        sink.round_of(&row, |who| crowd.dump(&program, who == SLUICE))?;
    }
    for row in wanted {
        let Some(interface) = IorInterface::of(&row.id) else { continue };
        match ior::missing() {
            Some(why) => sink.not_applicable(&row.id, &why)?,
            None => sink.round_of(&row, |who| ior::measure(&crowd, interface, who == SLUICE))?,
        }
    }
    Ok(())
}

/// Two proxies and two mounts, and the 32 jobs on them. Dropped in this order.
struct JobsCrowd<'a> {
    bed: &'a QosTestBed,
    library: PathBuf,
    _others: Vec<QosFio>,
    mounts: [QosMount; 2],
    controller: QosController,
    _proxies: Vec<QosProxy>,
    _cold: KeepCold,
    _backend: QosBackend<'a>,
}

impl<'a> JobsCrowd<'a> {
    fn start(bed: &'a QosTestBed, run: &FigureRun<'_>) -> anyhow::Result<JobsCrowd<'a>> {
        let mut backend = QosBackend::start(bed, BackendKind::Slow)?;
        backend.calibrate(run)?;
        backend.file("data", backend.cold_len())?;
        for at in 0..OTHERS {
            backend.file(&format!("written{at}"), WRITTEN_LEN)?;
        }
        let controller = QosController::start(bed, "jobs")?;
        let version = controller.client.set_rules(RULES)?.version;
        let start = |at: usize| {
            let url = &controller.url;
            let top = format!("{MANY_THREADS}\ncontroller = \"{url}\"\nproxy_name = \"p{at}\"");
            backend.proxy(
                &format!("p{at}"),
                &QosSetup { top: &top, target: TARGET, ..QosSetup::default() },
            )
        };
        let proxies = (0..2).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        wait_for_rules(bed, &proxies, &version)?;
        let cold = backend.keep_cold("data", ColdFile::Random)?;
        let all: Vec<&QosProxy> = proxies.iter().collect();
        let mount = |name: &str| {
            let mount = QosMount::start_behind(bed, &all, name, "allow_other,job=env", Vec::new())?;
            mount.allow_background(1_024)?;
            anyhow::Ok(mount)
        };
        let mounts = [mount("n0")?, mount("n1")?];
        let others =
            (0..OTHERS).map(|at| other(bed, &mounts[at % 2], at)).collect::<anyhow::Result<_>>()?;
        let library = run.sluice.with_file_name("libsluice.so");
        ensure!(library.exists(), "no {}: build it (make build)", library.display());
        bed.wait(SETTLE)?;
        Ok(JobsCrowd {
            bed,
            library,
            _others: others,
            mounts,
            controller,
            _proxies: proxies,
            _cold: cold,
            _backend: backend,
        })
    }

    /// A command of a job with the name `job`.
    fn command(&self, program: &Path, job: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).env("SLURM_JOB_ID", job);
        command.stdin(Stdio::null());
        command
    }

    /// Has the example write a dump, and reads how long it took.
    fn dump(&self, program: &Path, is_reserved: bool) -> anyhow::Result<FigureSample> {
        // without a reservation it would take minutes
        let dump = if is_reserved { DUMP } else { Bytes::new(DUMP.get() / 5) };
        let [bytes, rate] = [dump.get(), RATE].map(|value| value.to_string());
        let mut command = self.command(program, "md");
        command.arg(self.mounts[0].root()).args(["1", "1", &bytes, &rate]);
        // the library's own file, by the name that its programs look for
        let libraries = self.bed.dir().join("lib");
        std::fs::create_dir_all(&libraries).context("cannot make a directory")?;
        let link = libraries.join("libsluice.so.0");
        if !link.exists() {
            std::os::unix::fs::symlink(&self.library, &link).context("cannot link the library")?;
        }
        command.env("LD_LIBRARY_PATH", &libraries).env_remove("SLUICE_CONTROLLER");
        if is_reserved {
            command.env("SLUICE_CONTROLLER", &self.controller.url);
        }
        let said = output(&mut command)?;
        let way = if is_reserved { "reserved" } else { "best effort" };
        let seconds =
            seconds_of(&said, way).with_context(|| format!("the program said: {said}"))?;
        let least = dump.get() as f64 / RATE as f64;
        Ok(sample([("dump_ratio", seconds / least), ("dump_s", seconds)]))
    }

    /// Reserves for a job over both directions, and waits until it is active; the reservation's number.
    fn reserve(&self, job: &str) -> anyhow::Result<u64> {
        let rate = Some(WireRate::Bytes(RATE));
        let new = NewReservation {
            read: rate,
            write: rate,
            // longer than what is measured; it is removed after that
            duration_ns: Duration::from_secs(600).as_nanos() as u64,
            job: Some(job.into()),
            export: Some("x".into()),
            ..NewReservation::default()
        };
        let accepted = self.controller.client.reserve(&new)?;
        let active = super::reserved::wait_until_active(&self.controller.client, accepted.id)?;
        ensure!(active.reduced.is_none(), "reduced: {active:?}");
        Ok(active.id)
    }
}

/// A job that asks for all it can get: every second pair writes.
fn other(bed: &QosTestBed, mount: &QosMount, at: usize) -> anyhow::Result<QosFio> {
    let (file, how) = match at / 2 % 2 {
        0 => (format!("written{at}"), "randwrite"),
        _ => ("data".to_owned(), "randread"),
    };
    let words = format!(
        "--rw={how} --bs=256k --ioengine=libaio --iodepth=8 --direct=1 {ENDLESS} {}",
        on(&mount.join(&file))
    );
    QosFio::start(bed, &format!("other{at}"), 0, &words)
}

/// Builds the example against the library's header; the library itself is found when it runs.
fn build_md(bed: &QosTestBed) -> anyhow::Result<PathBuf> {
    let sluice = PathBuf::from(bed.sluice());
    let program = bed.dir().join("md");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-O2", "-o"]).arg(&program).arg(native("examples/md.c"));
    command.arg("-I").arg(native("library/include"));
    command.arg(sluice.with_file_name("libsluice.so"));
    output(&mut command)?;
    Ok(program)
}

/// What a command prints, which must succeed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let [out, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{command:?}: {}: {out}{errors}", output.status);
    Ok(out)
}

/// The seconds of the one dump that the example printed, if it was written in that way.
fn seconds_of(said: &str, way: &str) -> Option<f64> {
    let (_, after) = said.trim().split_once(&format!(": {way}, "))?;
    after.strip_suffix(" s")?.parse().ok()
}

const SLUICE: &str = "sluice";
const WITHOUT: &str = "without";
const DUMP_ROW: &str = "jobs/dump";
const OTHERS: usize = 32;
/// What is reserved, in bytes per second.
const RATE: u64 = 60_000_000;
const DUMP: Bytes = Bytes::new(300_000_000);
const WRITTEN_LEN: Bytes = Bytes::mib(64);
const TARGET: &str = "write_mode = \"direct\"\ncapacity_read = \"150MB/s\"\ncapacity_write = \"150MB/s\"\nslots_max = 64";
const RULES: &str = "[[rule]]\nname = \"each\"\nper = [\"jobid\"]\n";
const SETTLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seconds_of_a_dump_are_read_if_it_was_reserved() {
        let said = "dump 1 at step 1: reserved, 5.012 s\n";
        assert_eq!(seconds_of(said, "reserved"), Some(5.012));
        assert_eq!(seconds_of(said, "best effort"), None);
    }
}
