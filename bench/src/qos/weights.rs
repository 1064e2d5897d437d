//! Shares: two jobs with weights w : 1, both always backlogged, on a backend with calibrated costs.
//!
//! ```text
//!   calibrated backend ─► a proxy for each load ─► weights 2 … 32 ─► charged and payload ratio
//! ```
//!
//! The division is that of the charged cost, so a wrong charge would not show in it: beside it
//! stands the ratio of the payload, and on the slow backend, whose time follows from bytes, the
//! difference of both is the error of the calibration.

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::backend::{BackendKind, ColdFile, QosBackend};
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};
use super::mounted::{ENDLESS, QosFio, QosMount, on};
use super::shares::{SETTLE, SharesJob, SharesRule, WEIGHTS, rules, wait_for_backlog, watch};
use super::slow::READ_AHEAD_KIB;

/// Weights on the slow backend and on the disk.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "shares",
    title: "Shares by weight",
    what: "Two jobs with weights w : 1, both always backlogged, until the lighter one was served 50 \
           times as many of its requests as fit the D slots. Costs and D are those of `sluice \
           calibrate`. The ratio is of the charged cost, or of bytes where `cost = \"bytes\"`.",
    sources: &["bench/src/qos/weights.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Calibrate],
    rows: || CASES.iter().flat_map(|case| WEIGHTS.map(|weight| case.row(weight))).collect(),
    measure,
};

/// What one of the jobs does: an operation on each of its connections in turn.
struct WeightsHalf {
    ops: &'static [WorkOp],
    kib: u64,
}

struct WeightsCase {
    name: &'static str,
    what: &'static str,
    backend: BackendKind,
    by: WeightsLoad,
    /// Keys of the target.
    target: &'static str,
    heavy: WeightsHalf,
    light: WeightsHalf,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WeightsLoad {
    Clients,
    /// fio on mounts of each job.
    Mounts,
    /// One thread serves what is in the page cache.
    CachedByOneThread,
}

const READ: &[WorkOp] = &[WorkOp::Randread];
const WRITE: &[WorkOp] = &[WorkOp::Randwrite];
const IN_ORDER: &[WorkOp] = &[WorkOp::Read];
const BOTH: &[WorkOp] = &[WorkOp::Randread, WorkOp::Randwrite];
const BY_BYTES: &str = "cost = \"bytes\"";

macro_rules! case {
    ($name:literal, $backend:ident, $by:ident, $target:expr, $heavy:ident $heavy_kib:literal, $light:ident $light_kib:literal, $what:literal) => {
        WeightsCase {
            name: $name,
            what: $what,
            backend: BackendKind::$backend,
            by: WeightsLoad::$by,
            target: $target,
            heavy: WeightsHalf { ops: $heavy, kib: $heavy_kib },
            light: WeightsHalf { ops: $light, kib: $light_kib },
        }
    };
}

#[rustfmt::skip]
const CASES: &[WeightsCase] = &[
    case!("slow-write-read-64k", Slow, Clients, "", WRITE 64, READ 64, "64 KiB writes : reads"),
    case!("slow-sequential-random-64k", Slow, Clients, "", IN_ORDER 64, READ 64, "64 KiB sequential : random reads"),
    case!("slow-small-large", Slow, Clients, "", READ 4, READ 1024, "4 KiB : 1 MiB reads"),
    case!("slow-large-small", Slow, Clients, "", READ 1024, READ 4, "1 MiB : 4 KiB reads"),
    case!("slow-write-mixed-64k", Slow, Clients, "", WRITE 64, BOTH 64, "64 KiB writes : reads and writes"),
    case!("slow-write-read-64k-bytes", Slow, Clients, BY_BYTES, WRITE 64, READ 64, "64 KiB writes : reads, `cost = \"bytes\"`"),
    case!("slow-mounts-write-read-64k", Slow, Mounts, "", WRITE 64, READ 64, "four mounts a job, 64 KiB writes : reads"),
    case!("slow-mounts-sequential-random-64k", Slow, Mounts, "", IN_ORDER 64, READ 64, "four mounts a job, 64 KiB sequential : random reads"),
    case!("disk-write-read-64k", Disk, Clients, "", WRITE 64, READ 64, "64 KiB writes : reads"),
    case!("disk-sequential-random-64k", Disk, Clients, "", IN_ORDER 64, READ 64, "64 KiB sequential : random reads"),
    case!("disk-small-large", Disk, Clients, "", READ 4, READ 1024, "4 KiB : 1 MiB reads"),
    case!("disk-large-small", Disk, Clients, "", READ 1024, READ 4, "1 MiB : 4 KiB reads"),
    case!("disk-write-mixed-64k", Disk, Clients, "", WRITE 64, BOTH 64, "64 KiB writes : reads and writes"),
    case!("disk-write-read-64k-bytes", Disk, Clients, BY_BYTES, WRITE 64, READ 64, "64 KiB writes : reads, `cost = \"bytes\"`"),
    case!("cached-read-1k", Disk, CachedByOneThread, "", READ 1, READ 1, "1 KiB cached reads, `threads = 1`"),
];

impl WeightsCase {
    fn id(&self, weight: u32) -> String {
        format!("shares/{}-{weight}", self.name)
    }

    fn row(&self, weight: u32) -> FigureRow {
        let what = format!("{}, {}, weights {weight} : 1", self.backend.name(), self.what);
        let measure = if self.target == BY_BYTES { "payload_ratio" } else { "charged_ratio" };
        let percent = if self.by == WeightsLoad::CachedByOneThread { 1.0 } else { 2.0 };
        let bound = FigureBound::Near { value: weight.into(), percent };
        FigureRow::new(&self.id(weight), &what, &["sluice"])
            // Five weights of a case are five observations of it.
            .rounds(1, 30.0)
            .goal("sluice", measure, bound)
    }

    fn is_wanted(&self, sink: &FigureSink) -> bool {
        WEIGHTS.iter().any(|weight| sink.wants(&self.id(*weight)))
    }
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    for kind in [BackendKind::Slow, BackendKind::Disk] {
        let of_kind = |case: &&WeightsCase| case.backend == kind;
        if !CASES.iter().filter(of_kind).any(|case| case.is_wanted(sink)) {
            continue;
        }
        let mut backend = QosBackend::start(&bed, kind)?;
        backend.calibrate(run)?;
        backend.file("random", backend.cold_len())?;
        backend.file("in-order", IN_ORDER_LEN)?;
        for name in ["a", "b"].iter().flat_map(|job| (0..CONNECTIONS).map(move |at| (job, at))) {
            backend.file(&format!("{}/written{}", name.0, name.1), WRITTEN_LEN)?;
        }
        for case in CASES.iter().filter(of_kind) {
            if case.is_wanted(sink) {
                measure_case(run, &backend, case, sink).context(case.name)?;
            }
        }
    }
    Ok(())
}

fn measure_case(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    case: &WeightsCase,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let bed = backend.bed();
    let top = match case.by {
        // A job of writes keeps its backlog in the proxy's memory.
        WeightsLoad::Clients => "threads_max = 256\nmemory_max = \"8GiB\"",
        WeightsLoad::Mounts => {
            "threads_max = 256\nwindow_requests = 2048\nwindow_bytes = \"256MiB\"\n\
             open_files_max = 16384"
        }
        WeightsLoad::CachedByOneThread => "threads = 1",
    };
    let target = format!("write_mode = \"direct\"\n{}", case.target);
    let rules_first = rules(1);
    let setup = QosSetup { top, target: &target, rules: &rules_first, ..QosSetup::default() };
    let proxy = backend.proxy(case.name, &setup)?;
    let report = proxy.target()?;
    let of = |half: &WeightsHalf| match case.by {
        WeightsLoad::CachedByOneThread => Ok(SharesJob::on_one_thread()),
        // Whichever of both is the largest in slots holds for the whole job.
        _ => SharesJob::on_slots(&report, half.size(), half.ops == WRITE),
    };
    let (heavy, light) = (of(&case.heavy)?, of(&case.light)?);
    let rule = SharesRule::new(heavy, light, run.is_quick);
    let _kept_cold = match case.by {
        WeightsLoad::CachedByOneThread => {
            backend.file("warm", WARM_LEN)?;
            None
        }
        _ => Some([
            backend.keep_cold("random", ColdFile::Random)?,
            backend.keep_cold("in-order", ColdFile::Sequential)?,
        ]),
    };
    // Over a mount the requests of a sequential reader come a little out of order, and far ahead of
    // them nothing is to be read twice.
    let is_in_order = case.by == WeightsLoad::Mounts && case.heavy.ops == IN_ORDER;
    backend.read_ahead(if is_in_order { 4 * case.heavy.kib } else { READ_AHEAD_KIB })?;
    let mut jobs = WeightsJobs::start(backend, case, &proxy, heavy, light)?;
    wait_for_backlog(bed, &proxy, rule)?;
    for weight in WEIGHTS {
        if !sink.wants(&case.id(weight)) {
            continue;
        }
        proxy.api.set_rules(&rules(weight))?;
        let mut round = sink.begin(&case.id(weight));
        // What was read ahead in the pause is served in the span.
        let below = backend.watch(&proxy)?;
        bed.wait(SETTLE)?;
        jobs.check()?;
        let seen = watch(bed, &proxy, rule)?;
        let (ratio, void) = below.end(&proxy)?;
        jobs.check()?;
        let whys: Vec<String> = [seen.void(), void].into_iter().flatten().collect();
        if !whys.is_empty() {
            round.void(&whys.join("; "))?;
            continue;
        }
        let mut figures = seen.figures(weight, report.slots_max.into(), backend.is_slow());
        figures.extend(ratio.map(|ratio| ("served_below_ratio".to_owned(), ratio)));
        round.sample("sluice", figures);
        round.end()?;
    }
    Ok(())
}

/// Both jobs at work, until this is dropped.
struct WeightsJobs {
    clients: Vec<QosJob>,
    // Programs end before their mounts.
    programs: Vec<QosFio>,
    /// Held for as long as the programs run.
    mounts: Vec<QosMount>,
}

impl WeightsJobs {
    fn start(
        backend: &QosBackend<'_>,
        case: &WeightsCase,
        proxy: &QosProxy,
        heavy: SharesJob,
        light: SharesJob,
    ) -> anyhow::Result<WeightsJobs> {
        let halves = [("a", &case.heavy, heavy), ("b", &case.light, light)];
        if case.by != WeightsLoad::Mounts {
            let start = |(job, half, n): (&str, &WeightsHalf, SharesJob)| {
                QosJob::start(&half.parts(backend, proxy, job, n))
            };
            let clients = halves.into_iter().map(start).collect::<anyhow::Result<_>>()?;
            return Ok(WeightsJobs { clients, programs: Vec::new(), mounts: Vec::new() });
        }
        let bed = backend.bed();
        let mut jobs =
            WeightsJobs { clients: Vec::new(), programs: Vec::new(), mounts: Vec::new() };
        for (job, half, n) in halves {
            let options = format!("allow_other,threads=1,job=fixed:{job}");
            for at in 0..CONNECTIONS {
                let name = format!("{}-{job}{at}", case.name);
                let mount = QosMount::start(bed, proxy, &name, &options)?;
                mount.allow_background(mounted_in_flight(n))?;
                let words = half.fio(backend, &mount, at, job, n);
                jobs.programs.push(QosFio::start(bed, &format!("{job}{at}"), FIRST, &words)?);
                jobs.mounts.push(mount);
            }
        }
        Ok(jobs)
    }

    /// An error if one of them met one.
    fn check(&mut self) -> anyhow::Result<()> {
        self.clients.iter_mut().try_for_each(|job| job.cut()?.check())?;
        self.programs.iter_mut().try_for_each(QosFio::check)
    }
}

impl WeightsHalf {
    fn parts(
        &self,
        backend: &QosBackend<'_>,
        proxy: &QosProxy,
        job: &str,
        n: SharesJob,
    ) -> Vec<QosJobPart> {
        let part = |op: &WorkOp| {
            let mut plan = proxy.plan("x", job, *op, self.size());
            plan.connections = CONNECTIONS / self.ops.len();
            plan.file_size = self.len_of(*op, backend);
            plan.depth = n.in_flight().min(4096);
            QosJobPart { plan, dir: job.into(), data: self.file_of(*op, job, 0) }
        };
        self.ops.iter().map(part).collect()
    }

    fn size(&self) -> Bytes {
        Bytes::kib(self.kib)
    }

    fn len_of(&self, op: WorkOp, backend: &QosBackend<'_>) -> Bytes {
        match op {
            WorkOp::Randwrite => WRITTEN_LEN,
            WorkOp::Read => IN_ORDER_LEN,
            _ if self.is_cached() => WARM_LEN,
            _ => backend.cold_len(),
        }
    }

    fn file_of(&self, op: WorkOp, job: &str, connection: usize) -> String {
        match op {
            WorkOp::Randwrite => format!("{job}/written{connection}"),
            WorkOp::Read => "in-order".into(),
            _ if self.is_cached() => "warm".into(),
            _ => "random".into(),
        }
    }

    /// Less than a page: only where the page cache answers.
    fn is_cached(&self) -> bool {
        self.kib < 4
    }

    /// Words for fio that do the same on one of the job's mounts: threads that wait for one request
    /// each, or, to read in order, one with many requests. A thread has a file of its own open, and
    /// for each of a thousand that read in order the kernel below the proxy would read ahead.
    fn fio(
        &self,
        backend: &QosBackend<'_>,
        mount: &QosMount,
        at: usize,
        job: &str,
        n: SharesJob,
    ) -> String {
        let op = self.ops[0];
        let (len, in_flight) = (self.len_of(op, backend).get(), mounted_in_flight(n));
        let load = match op {
            WorkOp::Read => {
                let own = len / CONNECTIONS as u64;
                let offset = own * at as u64;
                format!(
                    "--rw=read --ioengine=libaio --iodepth={in_flight} --offset={offset} --size={own}"
                )
            }
            _ => {
                let kind = if op == WorkOp::Randwrite { "randwrite" } else { "randread" };
                let threads = in_flight.min(FIO_THREADS_MAX / CONNECTIONS);
                format!("--rw={kind} --ioengine=psync --numjobs={threads} --size={len}")
            }
        };
        let file = on(&mount.join(&self.file_of(op, job, at)));
        format!("{load} --bs={}k --direct=1 {ENDLESS} {file}", self.kib)
    }
}

/// Requests under way on one of a job's mounts. What waits in the kernel and in the mount is not
/// queued at the proxy.
fn mounted_in_flight(n: SharesJob) -> usize {
    (2 * n.in_flight()).div_ceil(CONNECTIONS)
}

/// Of a job: its connections, or its mounts, each with a channel of its own.
const CONNECTIONS: usize = 4;
/// Of a job. fio holds a file up to twice for each thread, and a direct writer has a descriptor more
/// in the proxy: 5,120 for both jobs, of one user, who may have a third of `open_files_max`.
const FIO_THREADS_MAX: usize = 1024;
/// Before the proxy's threads: who asks late has nothing queued.
const FIRST: i32 = -10;
const IN_ORDER_LEN: Bytes = Bytes::mib(2048);
const WRITTEN_LEN: Bytes = Bytes::mib(128);
const WARM_LEN: Bytes = Bytes::mib(256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_measured_at_every_weight() {
        assert_eq!(WEIGHTS, [2, 4, 8, 16, 32]);
        let rows = (GROUP.rows)();
        assert_eq!(rows.len(), CASES.len() * 5);
        assert!(rows.iter().all(|row| row.goals.len() == 1));
    }
}
