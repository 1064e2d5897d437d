//! Memory: what an idle connection holds, and that nothing grows with uptime.
//!
//! The first is the difference of the proxy's resident memory with thousands of idle
//! attached connections and with none. The second runs the life of a job (attach under
//! a name that was never used, load, clunk, close) over and over. The dispatcher
//! remembers jobs that have gone, up to a bound, so memory grows until then: the spans
//! that count come after it, and of both the one that grew more is judged.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;
use ninep::{Fid, open};

use super::super::figures::groups::FigureRun;
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::session::{BenchIdentity, BenchSession};
use super::super::work::WorkOp;
use super::bed::{QosProxy, QosSetup, QosTestBed};

/// Idle connections, and growth with uptime.
pub(super) fn rows() -> Vec<FigureRow> {
    vec![
        FigureRow::new(IDLE, "memory of an attached connection, of 3,000 idle ones", &[SLUICE])
            .rounds(3, 1.0)
            .goal(SLUICE, "each_bytes", FigureBound::Most(65_536.0)),
        FigureRow::new(
            UPTIME,
            "growth for each job that comes and goes, of 80,000 after the 66,000 that are remembered",
            &[SLUICE],
        )
        .rounds(3, 1.0)
        .goal(SLUICE, "growth_each_bytes", FigureBound::Most(GROWTH_BYTES_MAX)),
    ]
}

/// Measures both on a proxy of its own each.
pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let rows = rows();
    if !sink.wants_any(&rows) {
        return Ok(());
    }
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    bed.file("data", Bytes::mib(1))?;
    let setup = QosSetup { rules: RULES, ..QosSetup::default() };
    let few = if run.is_quick { 10 } else { 1 };
    sink.round_of(&rows[0], |_| idle(&bed, &bed.proxy("idle", &setup)?, CONNECTIONS / few))?;
    sink.round_of(&rows[1], |_| {
        let lives = [REMEMBERED / few as u64, LIVES / few as u64];
        uptime(&bed, &bed.proxy("uptime", &setup)?, lives)
    })
}

fn idle(bed: &QosTestBed, proxy: &QosProxy, count: usize) -> anyhow::Result<FigureSample> {
    // What the first connections bring into being (threads, buffers) is nobody's own.
    drop(attach(proxy, "first")?);
    let empty = proxy.process.resident()?;
    let mut sessions = Vec::new();
    while sessions.len() < count {
        sessions.push(attach(proxy, &format!("idle{}", sessions.len()))?);
        bed.wait(Duration::ZERO)?;
    }
    let resident = proxy.process.resident()?;
    Ok(FigureSample::from([
        ("each_bytes".into(), (resident as f64 - empty as f64) / count as f64),
        ("resident_mib".into(), mib(resident)),
        ("resident_empty_mib".into(), mib(empty)),
    ]))
}

/// Jobs until the memory for those that have gone is full, then two spans of half the lives each.
fn uptime(
    bed: &QosTestBed,
    proxy: &QosProxy,
    [remembered, lives]: [u64; 2],
) -> anyhow::Result<FigureSample> {
    let empty = proxy.process.resident()?;
    let mut seen = [0; 3];
    for (span, resident) in seen.iter_mut().enumerate() {
        for job in 0..if span == 0 { remembered } else { lives / 2 } {
            if job.is_multiple_of(100) {
                bed.wait(Duration::ZERO)?;
            }
            live(proxy, &format!("job{span}.{job}"))?;
        }
        *resident = proxy.process.resident()?;
    }
    let [full, second, third] = seen.map(|bytes| bytes as f64);
    let growth = (second - full).max(third - second) / (lives / 2) as f64;
    Ok(FigureSample::from([
        ("growth_each_bytes".into(), growth),
        ("remembered_each_bytes".into(), (full - empty as f64) / remembered as f64),
        ("resident_empty_mib".into(), mib(empty)),
        ("resident_full_mib".into(), mib(seen[0])),
        ("resident_end_mib".into(), mib(seen[2])),
    ]))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The whole life of a job.
fn live(proxy: &QosProxy, job: &str) -> anyhow::Result<()> {
    let mut session = attach(proxy, job)?;
    session.open_file(ROOT, FILE, "data", open::RDONLY)?;
    session.warm(FILE, READ_LEN)?;
    session.size(FILE)?;
    session.clunk(FILE)?;
    session.clunk(ROOT)
}

fn attach(proxy: &QosProxy, job: &str) -> anyhow::Result<BenchSession> {
    let plan = proxy.plan("x", job, WorkOp::Read, Bytes::kib(64));
    let mut session = plan.session().with_context(|| format!("connection of job {job}"))?;
    let who = BenchIdentity { uname: "root".into(), uid: 0 };
    session.attach(ROOT, &plan.aname, &who)?;
    Ok(session)
}

const SLUICE: &str = "sluice";
const IDLE: &str = "cost/idle-connection";
const UPTIME: &str = "cost/uptime-growth";
/// A client of one user may hold a third of what the proxy has for files: of a limit of 20,000
/// descriptors, which is the most that some machines grant, 3,850.
const CONNECTIONS: usize = 3_000;
const ROOT: Fid = Fid(1);
const FILE: Fid = Fid(2);
const READ_LEN: u64 = 256 << 10;
/// More idle jobs than the dispatcher keeps (65,536 of each kind of thing).
const REMEMBERED: u64 = 66_000;
const LIVES: u64 = 80_000;
/// A leak is of whole objects; less than this is the allocator's moving about.
const GROWTH_BYTES_MAX: f64 = 50.0;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
