//! `sluice-bench peers`, which `make bench` calls: the proxy beside diod, ganesha and
//! the ceilings, in interleaved rounds.
//!
//!   outside  ─ makes a directory, starts ─► unshare: own network, own processes
//!                                             │
//!   inside   servers ─► rounds × rows × contenders ─► results ─► report
//!
//! Ganesha binds every interface, so all of it runs in a network of its own; the
//! process namespace takes every server along when the bench is killed. A round runs
//! each contender of each row once, so that what drifts on the machine drifts for all.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use model::{Bytes, Nanos};
use rustix::thread::CpuSet;

use super::ceilings::{self, Raw};
use super::files::make_file;
use super::inside;
use super::load::{self, LoadWatch};
use super::p9::NinepFigures;
use super::place::RunDir;
use super::plan::PeerPlan;
use super::programs;
use super::report::{PeerReport, PeerResults, PeerSample};
use super::rows::{self, PeerContender, PeerRow, PeerShape};
use super::servers::{BenchServer, DATA, ServerDirs, ServerKind};
use super::socket::BenchAddress;
use super::work::WorkOp;

/// Compare the proxy with diod, NFS-Ganesha and the machine's ceilings
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each load runs on each server
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// How long each load runs
    #[arg(long, default_value = "2s")]
    time: Nanos,
    /// Three rounds of half a second, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Only the loads whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where the table (peers.md), all samples (peers.json) and the chart (peers.svg) go
    /// [default: nowhere, the table is printed]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where to make the directory that is served; its file system is what is measured
    /// [default: TMPDIR, or else /var/tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// TCP congestion control within the bench, such as reno [default: the machine's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// The directory, made by the outer process
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// Runs the comparison and writes its report.
pub(crate) fn run(args: Args, sluice: &Path) -> anyhow::Result<()> {
    let stop = super::stop_on_signals()?;
    match args.inside.clone() {
        None => inside::run(RunDir::make(args.dir.as_deref(), "bench-peers")?, &stop),
        Some(dir) => compare(&args, dir, sluice, &stop),
    }
}

/// What the inner process does.
fn compare(args: &Args, dir: PathBuf, sluice: &Path, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if !up.context("cannot run ip, which brings up the loopback interface")?.success() {
        bail!("cannot bring up the loopback interface");
    }
    if let Some(name) = &args.congestion {
        std::fs::write(CONGESTION, name).with_context(|| format!("cannot use {name} for TCP"))?;
    }
    let place = ServerDirs { dir, sluice: sluice.into(), own: programs::own()? };
    std::fs::create_dir(place.export()).context("cannot make the directory to serve")?;
    make_file(&place.export().join(DATA), FILE_SIZE)?;
    let wanted = |row: &PeerRow| args.only.as_ref().is_none_or(|text| row.what.contains(text));
    let rows: Vec<PeerRow> = rows::table().into_iter().filter(wanted).collect();
    let mut report = PeerReport::new(&place);
    let mut servers = Vec::new();
    for kind in ServerKind::ALL {
        let contender = PeerContender::Server(kind);
        if !rows.iter().any(|row| row.contenders.contains(&contender)) {
            continue;
        }
        let started = kind.version(&place).and_then(|version| {
            let server = BenchServer::start(kind, &place)?;
            report.servers.push((kind, version));
            Ok(server)
        });
        match started {
            Ok(server) => servers.push(server),
            Err(error) => report.note(format!("{kind}: {error:#}")),
        }
    }
    let bench = PeerBench {
        args,
        place: &place,
        servers,
        stop,
        time: args.time(),
        started: Instant::now(),
    };
    bench.run(&rows, &mut report.results)?;
    report.command = args.command_line();
    report.rounds = args.rounds();
    report.time = bench.time;
    drop(bench);
    report.write(&rows, args.out.as_deref())
}

impl Args {
    fn rounds(&self) -> usize {
        if self.quick { 3 } else { self.rounds.max(1) }
    }

    fn time(&self) -> Duration {
        if self.quick { Duration::from_millis(500) } else { Duration::from_nanos(self.time.get()) }
    }

    fn command_line(&self) -> String {
        let mut line = "sluice-bench peers".to_owned();
        match self.quick {
            true => line.push_str(" --quick"),
            false => line.push_str(&format!(" --rounds {} --time {}", self.rounds, self.time)),
        }
        if let Some(name) = &self.congestion {
            line.push_str(&format!(" --congestion {name}"));
        }
        if let Some(only) = &self.only {
            line.push_str(&format!(" --only {only:?}"));
        }
        line
    }
}

struct PeerBench<'a> {
    args: &'a Args,
    place: &'a ServerDirs,
    servers: Vec<BenchServer>,
    stop: &'a Arc<AtomicBool>,
    time: Duration,
    started: Instant,
}

impl PeerBench<'_> {
    fn run(&self, rows: &[PeerRow], results: &mut PeerResults) -> anyhow::Result<()> {
        let rounds = self.args.rounds();
        let total = rounds * rows.iter().map(|row| row.contenders.len()).sum::<usize>();
        let mut done = 0;
        for round in 0..rounds {
            if !std::io::stderr().is_terminal() {
                eprintln!("round {} of {rounds}", round + 1);
            }
            for row in rows {
                // Whoever goes first finds another machine than whoever goes last.
                let first = round % row.contenders.len();
                let (later, sooner) = row.contenders.split_at(first);
                for contender in sooner.iter().chain(later) {
                    self.progress(done, total, &format!("{} · {}", row.what, contender.name()));
                    done += 1;
                    let sample = self.measure(row, *contender);
                    if self.stop.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    match sample.transpose() {
                        Some(Ok(sample)) => results.add(row.what, *contender, round, sample),
                        Some(Err(error)) => results.fail(row.what, *contender, &error),
                        None => {}
                    }
                }
            }
        }
        self.progress(done, total, "done\n");
        Ok(())
    }

    /// One run of a row's load; `None` where the server is missing.
    fn measure(
        &self,
        row: &PeerRow,
        contender: PeerContender,
    ) -> anyhow::Result<Option<PeerSample>> {
        self.warm()?;
        let PeerContender::Server(kind) = contender else {
            return self.measure_backend(&row.load).map(Some);
        };
        let Some(server) = self.servers.iter().find(|server| server.kind == kind) else {
            return Ok(None);
        };
        let address = match &server.unix {
            Some(unix) if row.load.unix => unix,
            _ => &server.tcp,
        };
        let plan = PeerPlan {
            aname: server.aname.clone(),
            bare: kind.is_bare(),
            ..self.plan(&row.load, address)
        };
        let all_cpus = rustix::thread::sched_getaffinity(None).context("cannot read processors")?;
        if row.load.one_cpu {
            let mut one = CpuSet::new();
            one.set(0);
            server.keep_on(&one)?;
        }
        let mut meter = CpuMeter { server, began: None, used: None };
        let outcome = load::run(&plan, self.stop, &mut meter);
        let used = meter.used;
        if row.load.one_cpu {
            server.keep_on(&all_cpus)?;
        }
        let outcome = outcome?;
        let figures = NinepFigures::of(plan.op, &outcome);
        let server_cpu = used.context("the server's processor time could not be read")?;
        Ok(Some(PeerSample::new(&figures, Some(server_cpu))))
    }

    fn measure_backend(&self, load: &PeerShape) -> anyhow::Result<PeerSample> {
        let nowhere = BenchAddress::Tcp(String::from("localhost:0"));
        let size = self.plan(load, &nowhere).size().get();
        let export = self.place.export();
        let raw = Raw {
            op: load.op,
            size: size as usize,
            dir: &export,
            file_size: file_size(load.op).get(),
            threads: load.connections,
            time: self.time / 2,
        };
        let ops_per_sec = ceilings::run(&raw, self.stop)?;
        let moves = !matches!(load.op, WorkOp::Getattr | WorkOp::Create);
        Ok(PeerSample::raw(ops_per_sec, if moves { size } else { 0 }))
    }

    /// A row's load on whatever listens at `address`.
    fn plan(&self, load: &PeerShape, address: &BenchAddress) -> PeerPlan {
        PeerPlan {
            time: nanos(self.time),
            warmup: nanos(self.time / 5),
            pin: load.one_cpu.then_some(0),
            cold: true,
            file: Some(DATA.into()),
            file_size: file_size(load.op),
            op: load.op,
            size: load.size,
            msize: load.msize,
            connections: load.connections,
            depth: load.depth,
            jobs: load.jobs,
            ..PeerPlan::new(address.clone())
        }
    }

    /// The page cache of a virtual machine is thinned out from outside even when
    /// memory is free, so the file is read before each run.
    fn warm(&self) -> anyhow::Result<()> {
        let mut file = std::fs::File::open(self.place.export().join(DATA)).context("warming")?;
        std::io::copy(&mut file, &mut std::io::sink()).context("warming")?;
        Ok(())
    }

    fn progress(&self, done: usize, total: usize, what: &str) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let left = match done {
            0 => String::new(),
            _ => {
                let left = self.started.elapsed() * (total - done) as u32 / done as u32;
                format!("{}:{:02} left", left.as_secs() / 60, left.as_secs() % 60)
            }
        };
        eprint!("\r\x1b[K{done}/{total} {left}  {what}");
        let _ = std::io::stderr().flush();
    }
}

/// Reads the server's processor time at both ends of the measured span.
struct CpuMeter<'s> {
    server: &'s BenchServer,
    began: Option<Duration>,
    used: Option<Duration>,
}

impl LoadWatch for CpuMeter<'_> {
    fn begins(&mut self) {
        self.began = self.server.cpu().ok();
    }

    fn ends(&mut self) {
        self.used = self.began.zip(self.server.cpu().ok()).map(|(began, now)| now - began);
    }
}

fn nanos(span: Duration) -> Nanos {
    Nanos::new(span.as_nanos() as u64)
}

/// Size of the file: smaller for writes, because it is filled again for each run.
fn file_size(op: WorkOp) -> Bytes {
    if op.writes() { Bytes::mib(64) } else { FILE_SIZE }
}

const FILE_SIZE: Bytes = Bytes::mib(256);
/// Of the network the bench runs in, which is its own.
pub(crate) const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
