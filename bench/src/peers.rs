//! The proxy beside diod, NFS-Ganesha and the ceilings of the machine: a group of figures.
//!
//! ```text
//!   servers over one directory ─► rows × contenders ─► a sample each
//! ```
//!
//! Ganesha binds every interface, so all of it runs in a network of its own.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, bail};
use model::{Bytes, Nanos};
use rustix::thread::CpuSet;

use super::ceilings::{self, Raw};
use super::figures::groups::{FigureGroup, FigureRun};
use super::figures::row::{FigureRow, FigureSample};
use super::figures::sink::FigureSink;
use super::figures::sources::FigureProgram;
use super::files::make_file;
use super::load::{self, LoadWatch};
use super::p9::NinepFigures;
use super::plan::PeerPlan;
use super::programs;
use super::rows::{self, BACKEND, PeerRow, PeerShape};
use super::servers::{BenchServer, DATA, ServerDirs, ServerKind};
use super::session::BenchSession;
use super::socket::BenchAddress;
use super::work::WorkOp;

/// The proxy beside its peers.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "peers",
    title: "The proxy beside its peers",
    what: "One load generator, 9P on loopback, all servers on the same directory. `1 × 64` is one \
           connection with 64 requests in flight. `socket` answers from memory without any 9P work, \
           `bare` does the least that serves a file, `backend` is the same work by system calls \
           without a server. `server` is the server's processor time for each operation.",
    sources: &["bench/src/peers.rs"],
    programs: &[FigureProgram::Proxy],
    rows: || rows::table().into_iter().map(|row| row.row).collect(),
    measure,
};

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let place =
        ServerDirs { dir: run.dir.into(), sluice: run.sluice.into(), own: programs::own()? };
    std::fs::create_dir(place.export()).context("cannot make the directory to serve")?;
    make_file(&place.export().join(DATA), FILE_SIZE)?;
    let rows: Vec<PeerRow> =
        rows::table().into_iter().filter(|row| sink.wants(&row.row.id)).collect();
    let mut servers = Vec::new();
    for kind in ServerKind::ALL {
        if rows.iter().any(|row| row.row.contenders.contains(&kind.to_string())) {
            let server = PeerServer::start(kind, &place);
            if let Some(version) = &server.version {
                sink.version(&kind.to_string(), version);
            }
            servers.push(server);
        }
    }
    let bench = PeerBench { run, place: &place, servers };
    for PeerRow { row, load } in &rows {
        sink.round_of(row, |who| bench.measure(row, load, who))?;
    }
    Ok(())
}

/// A server that was started, or why it was not.
struct PeerServer {
    kind: ServerKind,
    version: Option<String>,
    started: Result<BenchServer, String>,
}

impl PeerServer {
    fn start(kind: ServerKind, place: &ServerDirs) -> PeerServer {
        let version = kind.version(place);
        let started = match &version {
            Ok(_) => BenchServer::start(kind, place).map_err(|error| format!("{error:#}")),
            Err(error) => Err(format!("{error:#}")),
        };
        PeerServer { kind, version: version.ok(), started }
    }
}

struct PeerBench<'a> {
    run: &'a FigureRun<'a>,
    place: &'a ServerDirs,
    servers: Vec<PeerServer>,
}

impl PeerBench<'_> {
    /// One run of a row's load.
    fn measure(
        &self,
        row: &FigureRow,
        load: &PeerShape,
        who: &str,
    ) -> anyhow::Result<FigureSample> {
        self.warm()?;
        let time = self.run.time(row);
        if who == BACKEND {
            return self.measure_backend(load, time);
        }
        let server = self.servers.iter().find(|server| server.kind.to_string() == who);
        let server = server.with_context(|| format!("no server is named {who}"))?;
        let server = server.started.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
        let address = match &server.unix {
            Some(unix) if load.unix => unix,
            _ => &server.tcp,
        };
        if load.unix && server.unix.is_none() {
            bail!("{who} has no Unix socket");
        }
        let granted = match server.kind.is_bare() {
            true => load.msize,
            false => {
                let session = BenchSession::open(address, load.msize.get() as u32)?;
                Bytes::new(u64::from(session.msize()))
            }
        };
        let plan = PeerPlan {
            aname: server.aname.clone(),
            bare: server.kind.is_bare(),
            ..plan(load, address, granted, time)
        };
        let all_cpus = rustix::thread::sched_getaffinity(None).context("cannot read processors")?;
        if load.one_cpu {
            let mut one = CpuSet::new();
            one.set(0);
            server.keep_on(&one)?;
        }
        let mut meter = CpuMeter { server, began: None, used: None };
        let outcome = load::run(&plan, self.run.stop, &mut meter);
        let used = meter.used;
        if load.one_cpu {
            server.keep_on(&all_cpus)?;
        }
        let figures = NinepFigures::of(plan.op, &outcome?);
        let server_cpu = used.context("the server's processor time could not be read")?;
        if figures.errors + figures.wrong > 0 {
            bail!("{} wrong or refused operations", figures.errors + figures.wrong);
        }
        Ok(sample(&figures, server_cpu))
    }

    fn measure_backend(&self, load: &PeerShape, time: Duration) -> anyhow::Result<FigureSample> {
        let size = size_of(load, load.msize);
        let export = self.place.export();
        let raw = Raw {
            op: load.op,
            size: size.get() as usize,
            dir: &export,
            file_size: file_size(load.op).get(),
            threads: load.connections,
            time: time / 2,
        };
        let ops_per_s = ceilings::run(&raw, self.run.stop)?;
        let mut sample = FigureSample::from([("ops_per_s".to_owned(), ops_per_s)]);
        if !matches!(load.op, WorkOp::Getattr | WorkOp::Create) {
            sample.insert("mb_per_s".into(), ops_per_s * size.get() as f64 / 1e6);
        }
        Ok(sample)
    }

    /// The page cache of a virtual machine is thinned out from outside even when
    /// memory is free, so the file is read before each run.
    fn warm(&self) -> anyhow::Result<()> {
        let mut file = File::open(self.place.export().join(DATA)).context("warming")?;
        std::io::copy(&mut file, &mut std::io::sink()).context("warming")?;
        Ok(())
    }
}

/// A row's load on whatever listens at `address`. A server that grants smaller messages gets as
/// many more of them at once, so that as many bytes are in flight.
fn plan(load: &PeerShape, address: &BenchAddress, granted: Bytes, time: Duration) -> PeerPlan {
    let nanos = |span: Duration| Nanos::new(span.as_nanos() as u64);
    let more = (load.msize.get() / granted.get().max(1)).max(1) as usize;
    PeerPlan {
        time: nanos(time),
        warmup: nanos(time / 5),
        pin: load.one_cpu.then_some(0),
        cold: true,
        file: Some(DATA.into()),
        file_size: file_size(load.op),
        op: load.op,
        size: Some(size_of(load, granted)),
        msize: granted,
        connections: load.connections,
        depth: load.depth * more,
        ..PeerPlan::new(address.clone())
    }
}

/// Payload of a request: whole blocks, as a client with a page cache asks for, of all that fits.
fn size_of(load: &PeerShape, msize: Bytes) -> Bytes {
    let room = msize.get().saturating_sub(u64::from(ninep::IO_HEADER));
    load.size.unwrap_or(Bytes::new((room / 4096 * 4096).max(1)))
}

fn sample(figures: &NinepFigures, server_cpu: Duration) -> FigureSample {
    let ops = figures.ops.max(1) as f64;
    let mut sample = FigureSample::from([
        ("ops_per_s".to_owned(), figures.ops_per_sec),
        ("p50_us".to_owned(), figures.p50_us),
        ("p99_us".to_owned(), figures.p99_us),
        ("server_us".to_owned(), server_cpu.as_secs_f64() * 1e6 / ops),
    ]);
    if figures.mb_per_sec > 0.0 {
        sample.insert("mb_per_s".into(), figures.mb_per_sec);
    }
    if let Some(generator) = figures.generator_cpu_us_per_op {
        sample.insert("generator_us".into(), generator);
    }
    sample
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

/// Size of the file: smaller for writes, because it is filled again for each run.
fn file_size(op: WorkOp) -> Bytes {
    if op.writes() { Bytes::mib(64) } else { FILE_SIZE }
}

const FILE_SIZE: Bytes = Bytes::mib(256);
/// Of the network the bench runs in, which is its own.
pub(crate) const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
