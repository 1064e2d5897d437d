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

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use fuse::{
    Attr, Attributes, Created, Errno, FileSystem, FuseOpen, FuseRequest, FuseSession, Handle,
    InodeEntry, InodeId, NewFile, Options, Reply,
};
use ninep::Fid;

use super::super::super::session::{BenchIdentity, BenchSession as Client};
use super::super::super::socket::BenchAddress;
use super::super::QosRun;
use super::super::bed::{QosSetup, QosTestBed};
use super::super::table::{QosRow, QosTable, figures};
use super::{QosController, wait_for_rules};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let bed = &run.bed;
    let servers = match (0..SERVERS).map(|at| MetadataServer::mount(bed, at)).collect() {
        Ok::<Vec<MetadataServer>, anyhow::Error>(servers) => servers,
        Err(error) => {
            table.note(format!("metadata: not measured: {error:#}"));
            return Ok(());
        }
    };
    let controller = QosController::start(bed, "metadata")?;
    let version = controller.client.set_rules(RULES)?.version;
    let start = |(at, server): (usize, &MetadataServer)| {
        let top = format!("controller = \"{}\"\nproxy_name = \"m{at}\"", controller.url);
        let second = Some(server.dir.clone());
        let target = "slots_max = 1";
        bed.proxy(&format!("m{at}"), &QosSetup { top: &top, target, second, ..QosSetup::default() })
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
    table.progress("metadata: all begin");
    bed.wait(Duration::from_secs(3))?;
    let mut worst: Option<f64> = None;
    for (at, phase) in PHASES.iter().enumerate() {
        let (name, asked, target) = phase;
        shared.phase.store(at, Ordering::Relaxed);
        let before = shared.counts();
        bed.wait(run.time(20, 6))?;
        let after = shared.counts();
        let served: Vec<u64> = (0..2).map(|job| after[job] - before[job]).collect();
        let all = served.iter().sum::<u64>().max(1) as f64;
        let kept = (0..2).map(|job| served[job] as f64 / all / target[job]).fold(1.0, f64::min);
        worst = Some(worst.map_or(kept, |worst| worst.min(kept)));
        let servers = |job: usize| asked[job].iter().filter(|asks| **asks).count();
        table.add(QosRow {
            case: format!("metadata: {name}: {} and {} servers", servers(0), servers(1)),
            target: "98 % of its part for each".into(),
            reached: format!("{:.1} %", kept * 100.0),
            met: Some(kept >= 0.98),
            beside: format!("{} and {} operations", served[0], served[1]),
            figures: figures([
                ("least_percent", kept * 100.0),
                ("one", served[0] as f64),
                ("two", served[1] as f64),
            ]),
        });
    }
    shared.stop.store(true, Ordering::Relaxed);
    askers.into_iter().try_for_each(Asker::end)
}

/// Which servers each job asks, and the part of all service that its weight gives it.
type MetadataPhase = (&'static str, [[bool; SERVERS]; 2], [f64; 2]);

const PHASES: [MetadataPhase; 4] = [
    ("both ask all", [[true; 4], [true; 4]], [2.0 / 3.0, 1.0 / 3.0]),
    ("the lighter asks two", [[true; 4], [true, true, false, false]], [2.0 / 3.0, 1.0 / 3.0]),
    ("the heavier asks three", [[true, true, true, false], [true; 4]], [2.0 / 3.0, 1.0 / 3.0]),
    // The heavier can have no more than all of its two.
    ("the heavier asks two", [[false, true, true, false], [true; 4]], [0.5, 0.5]),
];
const SERVERS: usize = 4;
const JOBS: [&str; 2] = ["one", "two"];
const RULES: &str = "[[rule]]\nname = \"one\"\nmatch = \"jobid={one}\"\nweight = 2\n\n\
                     [[rule]]\nname = \"two\"\nmatch = \"jobid={two}\"\n";
/// Clients of each job at each server.
const DEPTH: usize = 4;
/// What one getattr takes.
const OPERATION: Duration = Duration::from_millis(4);

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
        client.walk(Fid(1), Fid(2), "f")?;
        while !shared.stop.load(Ordering::Relaxed) {
            let (_, asked, _) = &PHASES[shared.phase.load(Ordering::Relaxed)];
            if !asked[job][server] {
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

/// A metadata server, mounted until this is dropped.
struct MetadataServer {
    // Ended before its directory is removed.
    session: Option<FuseSession>,
    dir: PathBuf,
}

impl MetadataServer {
    fn mount(bed: &QosTestBed, at: usize) -> anyhow::Result<MetadataServer> {
        let dir = bed.dir().join(format!("server-{at}"));
        std::fs::create_dir(&dir).context("cannot make a directory")?;
        // Whoever is killed while it waits for its own file system is freed by the kernel.
        let options = Options { threads: 1, request_timeout_s: 60, ..Options::default() };
        let session = FuseSession::mount(&dir, MetadataNames, &options)?;
        Ok(MetadataServer { session: Some(session), dir })
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// A directory with one file, `f`.
struct MetadataNames;

const FILE: InodeId = InodeId(2);
/// Names never change; attributes are asked for each time.
const NAME_TTL: Duration = Duration::from_secs(3600);

fn attributes(inode: InodeId) -> Attributes {
    let mode = if inode == InodeId::ROOT { 0o040_755 } else { 0o100_644 };
    Attributes { number: inode.0, mode, size: 1, links: 1, ..Attributes::default() }
}

impl FileSystem for MetadataNames {
    fn lookup(&self, _request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        if name.to_bytes() != b"f" {
            return reply.error(Errno::NOENT);
        }
        let (inode, generation, attributes) = (FILE, 0, attributes(FILE));
        let attributes_ttl = Duration::ZERO;
        reply.ok(&InodeEntry { inode, generation, attributes, ttl: NAME_TTL, attributes_ttl });
    }

    /// The proxy's probe takes it for a directory that it may not change.
    fn tmpfile(
        &self,
        _request: &FuseRequest,
        _open: FuseOpen,
        _new: NewFile,
        reply: Reply<Created>,
    ) {
        reply.error(Errno::ACCESS);
    }

    fn getattr(&self, request: &FuseRequest, _handle: Option<Handle>, reply: Reply<Attr>) {
        if request.inode == FILE {
            // The thread is the server, and is busy.
            std::thread::sleep(OPERATION);
        }
        let ttl = if request.inode == FILE { Duration::ZERO } else { NAME_TTL };
        reply.ok(&Attr { attributes: attributes(request.inode), ttl });
    }
}
