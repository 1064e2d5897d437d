//! Metadata of four servers divided between two jobs on mounts that do not ask all of them: the
//! service of all servers together follows the weights.
//!
//! ```text
//!   16 threads of a job ─► fstat ─► sluice mount ─┬─► proxy t0 ─► 4 ms ─┐
//!     files by their home: phases say which       ├─► proxy t1 ─► 4 ms  ├─► one FUSE directory
//!     servers a job asks                          ├─► proxy t2 ─► 4 ms  │
//!                                                 └─► proxy t3 ─► 4 ms ─┘
//! ```
//!
//! A target has one slot and a getattr of the directory takes 4 ms, so a proxy is a server of 250
//! operations per second on a fast machine and on a slow one alike. There is no controller: the mounts
//! report to each proxy what they asked the others. Plain clients report nothing, and show what weights
//! at each server alone come to.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ninep::Fid;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::session::{BenchIdentity, BenchSession};
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::metadata_phases::{JOBS, MetadataPhase, PHASES, RULES, SERVERS};
use super::metadata_server::{FILES, MetadataServer};
use super::mounted::QosMount;

/// Total service over four servers.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "total",
    title: "Total service over four servers",
    what: "Two jobs with weights 2 : 1 at four metadata servers of 250 operations per second, each \
           job by 16 threads on a mount of all four. `plain`: clients of each proxy, which report \
           nothing of what they ask the others. What counts is the least part of its share that a \
           job gets. The last rows are of one server: a job with four operations elsewhere for each \
           one here, beside a job that asks only here.",
    sources: &["bench/src/qos/total.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Controller],
    rows: || PHASES.iter().map(row_of).chain(LOCAL.iter().map(LocalCase::row)).collect(),
    measure,
};

const MOUNTS: &str = "mounts";
const PLAIN: &str = "plain";

/// How much of the first server a job gets that has four operations elsewhere for each one there.
struct LocalCase {
    name: &'static str,
    what: &'static str,
    keys: &'static str,
    /// What the other job gets there, in parts of that.
    times: f64,
}

const LOCAL: &[LocalCase] = &[
    LocalCase { name: "no-minimum", what: "without a minimum", keys: "", times: 5.0 },
    LocalCase {
        name: "min-local-service",
        what: "`min_local_service = \"50%\"`",
        keys: "min_local_service = \"50%\"\n",
        times: 2.0,
    },
];

fn row_of(phase: &MetadataPhase) -> FigureRow {
    let id = format!("total/{}", phase.name);
    let bound = FigureBound::Least(98.0);
    FigureRow::new(&id, phase.what, &[MOUNTS, PLAIN]).rounds(3, 10.0).goal(
        MOUNTS,
        "least_percent",
        bound,
    )
}

impl LocalCase {
    fn id(&self) -> String {
        format!("total/{}", self.name)
    }

    fn row(&self) -> FigureRow {
        let bound = FigureBound::Near { value: self.times, percent: 5.0 };
        FigureRow::new(&self.id(), self.what, &[MOUNTS]).rounds(3, 10.0).goal(
            MOUNTS,
            "local_ratio",
            bound,
        )
    }
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let directory = MetadataServer::mount(&bed, "names", THREADS)?;
    let start = |at: usize| {
        let dir = Some(directory.dir().to_path_buf());
        let setup = QosSetup { target: "slots_max = 1", dir, ..QosSetup::default() };
        bed.proxy(&format!("t{at}"), &setup)
    };
    let proxies = (0..SERVERS).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let all: Vec<&QosProxy> = proxies.iter().collect();
    let mount = |job: &str| {
        let options = format!("allow_other,attr_timeout=0s,job=fixed:{job}");
        QosMount::start_behind(&bed, &all, &format!("total-{job}"), &options, Vec::new())
    };
    let mounts = [mount(JOBS[0])?, mount(JOBS[1])?];
    let files = [homes(&mounts[0], &proxies)?, homes(&mounts[1], &proxies)?];
    for phase in &PHASES {
        let row = row_of(phase);
        set_rules(&proxies, RULES)?;
        sink.round_of(&row, |who| {
            let shared = Arc::new(TotalState::default());
            let askers: Vec<Asker> = match who {
                MOUNTS => mount_askers(&files, phase, &shared),
                _ => plain_askers(&proxies, phase, &shared),
            };
            let counts = shared.watch(&bed, run.time(&row))?;
            shared.end(askers)?;
            Ok(figures(phase, counts))
        })?;
    }
    for case in LOCAL {
        let row = case.row();
        set_rules(
            &proxies,
            &format!(
                "[[rule]]\nname = \"one\"\nmatch = \"jobid={{one}}\"\n{}\n\
            [[rule]]\nname = \"two\"\nmatch = \"jobid={{two}}\"\n",
                case.keys
            ),
        )?;
        sink.round_of(&row, |_| {
            let shared = Arc::new(TotalState::default());
            let askers = local_askers(&files, &shared);
            let counts = shared.watch(&bed, run.time(&row))?;
            shared.end(askers)?;
            let [one, two] = counts.map(|count| count as f64);
            Ok(sample([("local_ratio", two / one), ("one_count", one), ("two_count", two)]))
        })?;
    }
    Ok(())
}

fn set_rules(proxies: &[QosProxy], rules: &str) -> anyhow::Result<()> {
    proxies.iter().try_for_each(|proxy| Ok(proxy.api.set_rules(rules).map(drop)?))
}

/// Open files of a mount by the proxy that is asked for their attributes.
fn homes(mount: &QosMount, proxies: &[QosProxy]) -> anyhow::Result<[Vec<Arc<File>>; SERVERS]> {
    let mut by_home: [Vec<Arc<File>>; SERVERS] = Default::default();
    for number in 0..FILES {
        let path = mount.join(&format!("f{number}"));
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let before = requests(proxies)?;
        for _ in 0..PROBES {
            rustix::fs::fstat(&file).context("cannot read a file's attributes")?;
        }
        let after = requests(proxies)?;
        let asked = (0..SERVERS).find(|at| after[*at] - before[*at] >= PROBES);
        by_home[asked.context("no proxy was asked for a file")?].push(Arc::new(file));
    }
    let least = by_home.iter().map(Vec::len).min().unwrap_or(0);
    ensure!(least > 0, "a proxy is home of no file");
    Ok(by_home)
}

fn requests(proxies: &[QosProxy]) -> anyhow::Result<Vec<u64>> {
    proxies.iter().map(|proxy| Ok(proxy.api.status()?.totals.requests)).collect()
}

fn figures(phase: &MetadataPhase, counts: [u64; 2]) -> FigureSample {
    sample([
        ("least_percent", phase.least_percent(counts)),
        ("one_count", counts[0] as f64),
        ("two_count", counts[1] as f64),
    ])
}

/// What the askers of a round have in common.
#[derive(Default)]
struct TotalState {
    stop: AtomicBool,
    served: [AtomicU64; 2],
    turn: AtomicUsize,
}

type Asker = JoinHandle<anyhow::Result<()>>;

impl TotalState {
    /// What both jobs are served in `time`, once all ask.
    fn watch(&self, bed: &QosTestBed, time: Duration) -> anyhow::Result<[u64; 2]> {
        let counts = || self.served.each_ref().map(|count| count.load(Ordering::Relaxed));
        bed.wait(SETTLE)?;
        let before = counts();
        bed.wait(time)?;
        let after = counts();
        Ok([after[0] - before[0], after[1] - before[1]])
    }

    fn end(&self, askers: Vec<Asker>) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        askers.into_iter().try_for_each(|asker| {
            asker.join().ok().context("a client panicked")?.context("a client")
        })
    }

    /// Calls `ask` again and again, and counts for the job what returns true.
    fn repeat(
        self: &Arc<TotalState>,
        job: usize,
        mut ask: impl FnMut() -> anyhow::Result<bool> + Send + 'static,
    ) -> Asker {
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                if ask()? {
                    shared.served[job].fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }
}

/// Threads of both jobs, evenly over the servers that each asks.
fn mount_askers(
    files: &[[Vec<Arc<File>>; SERVERS]; 2],
    phase: &MetadataPhase,
    shared: &Arc<TotalState>,
) -> Vec<Asker> {
    let mut askers = Vec::new();
    for job in 0..2 {
        for server in phase.seats(job) {
            let files = files[job][server].clone();
            let turn = shared.turn.fetch_add(1, Ordering::Relaxed);
            let file = files[turn % files.len()].clone();
            askers.push(shared.repeat(job, move || fstat(&file).map(|()| true)));
        }
    }
    askers
}

fn fstat(file: &File) -> anyhow::Result<()> {
    rustix::fs::fstat(file.as_fd()).map(drop).context("cannot read a file's attributes")
}

fn plain_askers(
    proxies: &[QosProxy],
    phase: &MetadataPhase,
    shared: &Arc<TotalState>,
) -> Vec<Asker> {
    let mut askers = Vec::new();
    for (job, name) in JOBS.iter().enumerate() {
        for server in phase.seats(job) {
            let address = proxies[server].address.clone();
            let mut session: Option<BenchSession> = None;
            askers.push(shared.repeat(job, move || {
                if session.is_none() {
                    let mut new = BenchSession::open(&address, 8192)?;
                    let root = BenchIdentity { uname: "root".into(), uid: 0 };
                    new.attach(Fid(1), &format!("x?job={name}"), &root)?;
                    new.walk(Fid(1), Fid(2), "f0")?;
                    session = Some(new);
                }
                let session = session.as_mut().context("it was opened")?;
                session.size(Fid(2)).map(|_| true)
            }));
        }
    }
    askers
}

/// Job one asks the first server once for every four times that it asks the others; job two asks
/// only the first server. What the first server does is counted.
fn local_askers(files: &[[Vec<Arc<File>>; SERVERS]; 2], shared: &Arc<TotalState>) -> Vec<Asker> {
    let mut askers = Vec::new();
    for at in 0..LOCAL_THREADS {
        let here = files[0][0][at % files[0][0].len()].clone();
        let elsewhere: Vec<Arc<File>> = (1..SERVERS)
            .map(|server| files[0][server][at % files[0][server].len()].clone())
            .collect();
        let mut turn = at;
        askers.push(shared.repeat(0, move || {
            for _ in 0..ELSEWHERE {
                turn += 1;
                fstat(&elsewhere[turn % elsewhere.len()])?;
            }
            fstat(&here).map(|()| true)
        }));
        let here = files[1][0][at % files[1][0].len()].clone();
        askers.push(shared.repeat(1, move || fstat(&here).map(|()| true)));
    }
    askers
}

const LOCAL_THREADS: usize = 32;
const ELSEWHERE: usize = 4;
/// More than there are servers, each of which has one slot.
const THREADS: usize = 8;
const PROBES: u64 = 3;
const SETTLE: Duration = Duration::from_secs(3);
