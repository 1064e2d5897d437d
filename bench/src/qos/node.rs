//! A node: what its mount costs at 1.5 GiB/s, what part of the network's rate a program on it reaches,
//! and requests of 1 and 4 MiB.
//!
//! ```text
//!   fio ─► kernel ─► sluice mount ─► TCP on loopback ─► proxy ─► a file in its page cache
//!          └── the node's processors ──┘                └ the server's: here they share all of them
//! ```

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use model::{Bytes, Nanos};

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::load::{self, LoadWatch};
use super::super::plan::PeerPlan;
use super::super::process::BenchProcess;
use super::super::programs;
use super::super::servers::{BenchServer, DATA, ServerDirs, ServerKind};
use super::super::work::WorkOp;
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};
use super::mounted::{QosFio, QosMount, for_time, on};

/// A node's processors, memory and network.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "node",
    title: "A node",
    what: "One mount over TCP on loopback, fio with four threads past the node's page cache; the \
           proxy has the file in memory, and shares the processors with the node. `socket` answers \
           from memory without any 9P work. Cores are those of the mount's process.",
    sources: &["bench/src/qos/node.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount],
    rows,
    measure,
};

const MOUNT: &str = "mount";
const SOCKET: &str = "socket";

fn rows() -> Vec<FigureRow> {
    let mut rows = Vec::new();
    for kind in ["read", "write"] {
        let what = format!("sequential {kind}s of 1 MiB, at most 1.5 GiB/s");
        let row = FigureRow::new(&format!("node/{kind}-1500m"), &what, &[MOUNT]).rounds(3, 5.0);
        let row = row
            .goal(MOUNT, "gib_per_s", FigureBound::Least(1.5 * 0.98))
            .goal(MOUNT, "mount_cores", FigureBound::Most(1.0))
            // With the replay buffer of 256 MiB.
            .goal(MOUNT, "mount_resident_mib", FigureBound::Most(512.0));
        rows.push(row);
        for (size, mib) in [("1m", 1), ("4m", 4)] {
            let what =
                format!("sequential {kind}s of {mib} MiB beside the same messages on a socket");
            let id = format!("node/part-of-network-{kind}-{size}");
            let row = FigureRow::new(&id, &what, &[MOUNT, SOCKET]).rounds(3, 3.0);
            rows.push(row.beside(MOUNT, "mb_per_s", FigureBound::TimesLeast(2.0 / 3.0), &[SOCKET]));
        }
        let what = format!("random {kind}s of 1 and 4 MiB on the disk, four in flight");
        let row = FigureRow::new(&format!("node/random-{kind}-disk"), &what, &["4m", "1m"]);
        let bound = FigureBound::TimesLeast(2.0);
        rows.push(row.rounds(3, 3.0).beside("4m", "mb_per_s", bound, &["1m"]));
    }
    rows
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let data = bed.file("data", DATA_LEN)?;
    bed.file("random/written0", DATA_LEN)?;
    let proxy = bed.proxy("node", &QosSetup { port: Some(PORT), ..QosSetup::default() })?;
    let mount = QosMount::start(&bed, &proxy, "node", "allow_other")?;
    let dirs =
        ServerDirs { dir: bed.dir().into(), sluice: run.sluice.into(), own: programs::own()? };
    std::fs::create_dir(dirs.export()).context("cannot make a directory")?;
    std::fs::hard_link(bed.export().join("data"), dirs.export().join(DATA))
        .context("cannot link a file")?;
    let socket = BenchServer::start(ServerKind::Memory, &dirs)?;
    let node = Node { run, bed: &bed, proxy: &proxy, mount: &mount, socket: &socket, data: &data };
    for row in rows() {
        let name = row.id.trim_start_matches("node/").to_owned();
        let is_write = name.contains("write");
        sink.round_of(&row, |who| {
            let size = if name.ends_with("4m") { Bytes::mib(4) } else { Bytes::mib(1) };
            match who {
                MOUNT => node.mounted(is_write, size, name.ends_with("1500m"), run.time(&row)),
                SOCKET => node.socket(is_write, size, run.time(&row)),
                "4m" => node.random(is_write, Bytes::mib(4), run.time(&row)),
                _ => node.random(is_write, Bytes::mib(1), run.time(&row)),
            }
        })?;
    }
    Ok(())
}

struct Node<'a> {
    run: &'a FigureRun<'a>,
    bed: &'a QosTestBed,
    proxy: &'a QosProxy,
    mount: &'a QosMount,
    socket: &'a BenchServer,
    data: &'a File,
}

impl Node<'_> {
    /// fio on the mount, with what that costs.
    fn mounted(
        &self,
        is_write: bool,
        size: Bytes,
        is_limited: bool,
        time: Duration,
    ) -> anyhow::Result<FigureSample> {
        self.warm()?;
        let (kind, file) = if is_write { ("write", "written") } else { ("read", "data") };
        let own = DATA_LEN.get() / u64::from(THREADS);
        let rate = if is_limited {
            format!("--rate={}", LIMIT / u64::from(THREADS))
        } else {
            String::new()
        };
        let words = format!(
            "--ioengine=psync --direct=1 --rw={kind} --bs={} --numjobs={THREADS} --size={own} \
             --offset_increment={own} {rate} {} {}",
            size.get(),
            on(&self.mount.join(file)),
            for_time(Duration::ZERO, time)
        );
        let process = self.mount.process();
        let (began, mount_cpu, proxy_cpu, all_cpu) =
            (Instant::now(), process.cpu()?, self.proxy.process.cpu()?, busy()?);
        let fio = QosFio::start(self.bed, "node", 0, &words)?;
        let (result, resident) = resident_during(process, || fio.finish(self.bed))?;
        let seconds = began.elapsed().as_secs_f64();
        let mount = (process.cpu()? - mount_cpu).as_secs_f64();
        let proxy = (self.proxy.process.cpu()? - proxy_cpu).as_secs_f64();
        let all = busy()? - all_cpu;
        let mb_per_s = result?.mb_per_sec();
        let gib = mb_per_s * 1e6 / GIB * seconds;
        let values = [
            ("mb_per_s", mb_per_s),
            ("gib_per_s", mb_per_s * 1e6 / GIB),
            ("mount_cores", mount / seconds),
            ("proxy_cores", proxy / seconds),
            ("node_cores", (all - proxy) / seconds),
            ("mount_s", mount),
            ("mount_each_gib_s", mount / gib),
            ("mount_resident_mib", resident as f64 / f64::from(1 << 20)),
        ];
        Ok(figures(&values))
    }

    /// The same messages to a server that does no more than answer them.
    fn socket(&self, is_write: bool, size: Bytes, time: Duration) -> anyhow::Result<FigureSample> {
        let nanos = |span: Duration| Nanos::new(span.as_nanos() as u64);
        let plan = PeerPlan {
            op: if is_write { WorkOp::Write } else { WorkOp::Read },
            size: Some(size),
            msize: Bytes::new(size.get() + 4096),
            file_size: DATA_LEN,
            depth: THREADS as usize,
            bare: true,
            cold: true,
            time: nanos(time),
            warmup: nanos(time / 5),
            ..PeerPlan::new(self.socket.tcp.clone())
        };
        struct Silent;
        impl LoadWatch for Silent {}
        let outcome = load::run(&plan, self.run.stop, &mut Silent)?;
        let rate = outcome.score.bytes as f64 / 1e6 / outcome.span.as_secs_f64();
        Ok(figures(&[("mb_per_s", rate)]))
    }

    /// Messages of that size, less what the largest message has for its head, at random places of
    /// the disk.
    fn random(&self, is_write: bool, size: Bytes, time: Duration) -> anyhow::Result<FigureSample> {
        let size = Bytes::new(size.get().min((4 << 20) - 4096));
        let op = if is_write { WorkOp::Randwrite } else { WorkOp::Randread };
        let _kept_cold = KeepCold::start(self.data)?;
        let mut plan = self.proxy.plan("x", "random", op, size);
        (plan.depth, plan.file_size) = (4, DATA_LEN);
        let mut job =
            QosJob::start(&[QosJobPart { plan, dir: "random".into(), data: "data".into() }])?;
        self.bed.wait(time / 3)?;
        job.cut()?;
        self.bed.wait(time)?;
        let cut = job.cut()?;
        cut.check()?;
        let ops = cut.score.ops as f64 / cut.span.as_secs_f64();
        Ok(figures(&[("mb_per_s", cut.mb_per_sec()), ("ops_per_s", ops)]))
    }

    fn warm(&self) -> anyhow::Result<()> {
        let mut file = File::open(self.bed.export().join("data")).context("warming")?;
        std::io::copy(&mut file, &mut std::io::sink()).context("warming")?;
        Ok(())
    }
}

/// Runs `work`, and returns the most memory that the process held meanwhile, in bytes.
fn resident_during<T>(
    process: &BenchProcess,
    work: impl FnOnce() -> T,
) -> anyhow::Result<(T, u64)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = process.resident()?;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(process.resident()?);
                std::thread::sleep(SAMPLE_EVERY);
            }
            anyhow::Ok(most)
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let most = watcher.join().expect("it does not panic")?;
        Ok((done, most))
    })
}

/// Processor time that everything on this machine has used, in seconds.
fn busy() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_busy(&text).context("/proc/stat has no line of all processors")
}

fn parse_busy(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    let used = |at: usize| ticks.get(at).copied();
    Some((used(0)? + used(1)? + used(2)? + used(5)? + used(6)?) / TICKS_PER_S)
}

fn figures(values: &[(&str, f64)]) -> FigureSample {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

const THREADS: u32 = 4;
/// 1.5 GiB/s.
const LIMIT: u64 = 3 << 29;
const GIB: f64 = 1_073_741_824.0;
const DATA_LEN: Bytes = Bytes::mib(1024);
/// The bench has a network of its own, so any port is free.
const PORT: u16 = 15_740;
/// USER_HZ, which is the same on all machines that are in use.
const TICKS_PER_S: f64 = 100.0;
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_are_not_busy() {
        assert_eq!(parse_busy("cpu  100 20 30 9999 500 5 45 7 0 0\ncpu0 1"), Some(2.0));
        assert_eq!(parse_busy("intr 1"), None);
    }
}
