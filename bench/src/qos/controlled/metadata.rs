//! Metadata of four servers divided between two jobs that do not ask all of them.
//!
//! ```text
//!   plain clients ─► proxies m0 … m3 ─► a server each, which takes 4 ms for one getattr
//!        │               └─ what each class was served ─► controller ─► the other proxies
//!        └ phases: who asks which server; the sum over all servers is to follow the weights
//! ```
//!
//! Each server is a FUSE file system of this process with one thread, and its target has one slot:
//! it takes its time on a fast machine and on a slow one alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ninep::Fid;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::super::figures::sink::FigureSink;
use super::super::super::session::{BenchIdentity, BenchSession as Client};
use super::super::super::socket::BenchAddress;
use super::super::bed::{QosProxy, QosSetup, QosTestBed};
use super::super::controllers::{QosController, wait_for_rules};
use super::super::metadata_phases::{DEPTH, JOBS, MetadataPhase, PHASES, RULES, SERVERS};
use super::super::metadata_server::MetadataServer;
use super::{SLUICE, bed};

/// A row for each phase.
pub(super) fn rows() -> Vec<FigureRow> {
    let row = |phase: &MetadataPhase| {
        let what = format!("getattr at 4 servers, weights 2 : 1: {}", phase.what);
        FigureRow::new(&format!("control/metadata-{}", phase.name), &what, &[SLUICE])
            .rounds(3, 10.0)
            .goal(SLUICE, "least_percent", FigureBound::Least(98.0))
    };
    PHASES.iter().map(row).collect()
}

/// All phases have one set of servers: clients go on from one to the next.
pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let rows = rows();
    if !sink.wants_any(&rows) {
        return Ok(());
    }
    let bed = bed(run)?;
    let started = MetadataLoad::start(&bed);
    for (at, row) in rows.iter().enumerate() {
        sink.round_of(row, |_| match &started {
            Ok(load) => load.measure(&bed, at, run.time(row)),
            Err(error) => bail!("{error:#}"),
        })?;
    }
    started.map_or(Ok(()), MetadataLoad::end)
}

/// Four servers with a proxy each, and clients of two jobs at all of them.
struct MetadataLoad {
    shared: Arc<MetadataState>,
    askers: Vec<Asker>,
    // Ended before the servers below them.
    _proxies: Vec<QosProxy>,
    _controller: QosController,
    _servers: Vec<MetadataServer>,
}

impl MetadataLoad {
    fn start(bed: &QosTestBed) -> anyhow::Result<MetadataLoad> {
        let servers = (0..SERVERS).map(|at| MetadataServer::mount(bed, &format!("server-{at}"), 1));
        let servers = servers.collect::<anyhow::Result<Vec<_>>>()?;
        let controller = QosController::start(bed, "metadata")?;
        let version = controller.client.set_rules(RULES)?.version;
        let start = |(at, server): (usize, &MetadataServer)| {
            let top = format!("controller = \"{}\"\nproxy_name = \"m{at}\"", controller.url);
            let second = Some(server.dir().to_path_buf());
            let target = "slots_max = 1";
            let setup = QosSetup { top: &top, target, second, ..QosSetup::default() };
            bed.proxy(&format!("m{at}"), &setup)
        };
        let proxies = servers.iter().enumerate().map(start).collect::<anyhow::Result<Vec<_>>>()?;
        wait_for_rules(bed, &proxies, &version)?;
        let shared = Arc::new(MetadataState::default());
        let askers = JOBS.iter().enumerate().flat_map(|(job, name)| {
            let (shared, proxies) = (&shared, &proxies);
            (0..SERVERS * DEPTH).map(move |at| {
                let server = at % SERVERS;
                ask(&proxies[server].address, name, job, server, shared)
            })
        });
        let askers: Vec<Asker> = askers.collect();
        let load = MetadataLoad {
            shared,
            askers,
            _proxies: proxies,
            _controller: controller,
            _servers: servers,
        };
        bed.wait(Duration::from_secs(3))?;
        Ok(load)
    }

    fn measure(&self, bed: &QosTestBed, at: usize, time: Duration) -> anyhow::Result<FigureSample> {
        self.shared.phase.store(at, Ordering::Relaxed);
        let (before, began) = (self.shared.counts(), Instant::now());
        bed.wait(time)?;
        let (after, seconds) = (self.shared.counts(), began.elapsed().as_secs_f64());
        ensure!(!self.askers.iter().any(|asker| asker.0.is_finished()), "a client has ended");
        let served = [0, 1].map(|job| after[job] - before[job]);
        Ok(sample([
            ("least_percent", PHASES[at].least_percent(served)),
            ("heavier_ops_per_s", served[0] as f64 / seconds),
            ("lighter_ops_per_s", served[1] as f64 / seconds),
        ]))
    }

    fn end(self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.askers.into_iter().try_for_each(Asker::end)
    }
}

#[derive(Default)]
struct MetadataState {
    phase: AtomicUsize,
    stop: AtomicBool,
    served: [AtomicU64; 2],
}

impl MetadataState {
    fn counts(&self) -> [u64; 2] {
        self.served.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// A client that asks one server as long as its job asks it.
struct Asker(JoinHandle<anyhow::Result<()>>);

fn ask(
    at: &BenchAddress,
    name: &'static str,
    job: usize,
    server: usize,
    shared: &Arc<MetadataState>,
) -> Asker {
    let (at, shared) = (at.clone(), shared.clone());
    Asker(std::thread::spawn(move || {
        let mut client = Client::open(&at, 8192)?;
        let root = BenchIdentity { uname: "root".into(), uid: 0 };
        client.attach(Fid(1), &format!("y?job={name}"), &root)?;
        client.walk(Fid(1), Fid(2), "f0")?;
        while !shared.stop.load(Ordering::Relaxed) {
            let phase = &PHASES[shared.phase.load(Ordering::Relaxed)];
            if !phase.asked[job][server] {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            client.size(Fid(2))?;
            shared.served[job].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }))
}

impl Asker {
    fn end(self) -> anyhow::Result<()> {
        self.0.join().ok().context("a client panicked")?.context("a client")
    }
}
