//! Memory: what an idle connection holds, and that nothing grows with uptime.
//!
//! The first is the difference of the proxy's resident memory with thousands of idle
//! attached connections and with none. The second runs the life of a job (attach under
//! a name that was never used, load, clunk, close) over and over. The dispatcher
//! remembers jobs that have gone, up to a bound, so memory grows until then: the spans
//! that count come after it.

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;
use ninep::{Fid, open};

use super::super::session::{BenchIdentity, BenchSession};
use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{QosProxy, QosSetup};
use super::table::{QosRow, QosTable, figures};

/// Measures the memory of idle connections, and its growth with uptime.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let bed = &run.bed;
    bed.file("data", Bytes::mib(1))?;
    let setup = QosSetup { rules: RULES, ..QosSetup::default() };
    let proxy = bed.proxy("idle", &setup)?;
    idle(run, &proxy, table)?;
    drop(proxy);
    let proxy = bed.proxy("uptime", &setup)?;
    uptime(run, &proxy, table)
}

fn idle(run: &QosRun<'_>, proxy: &QosProxy, table: &mut QosTable) -> anyhow::Result<()> {
    // What the first connections bring into being (threads, buffers) is nobody's own.
    drop(attach(proxy, "first")?);
    let empty = proxy.process.resident()?;
    let mut sessions = Vec::new();
    for count in [1000, 4000] {
        table.progress(&format!("{count} connections"));
        while sessions.len() < count {
            sessions.push(attach(proxy, &format!("idle{}", sessions.len()))?);
            run.bed.wait(Duration::ZERO)?;
        }
        let resident = proxy.process.resident()?;
        let each = (resident as f64 - empty as f64) / count as f64;
        table.add(QosRow {
            case: format!("{count} idle attached connections"),
            target: "at most 64 KiB each".into(),
            reached: format!("{:.1} KiB each", each / 1024.0),
            met: Some(each <= 65536.0),
            beside: format!("{} MiB, {} with none", resident >> 20, empty >> 20),
            figures: figures([
                ("bytes_each", each),
                ("resident_bytes", resident as f64),
                ("resident_bytes_empty", empty as f64),
            ]),
        });
    }
    drop(sessions);
    Ok(())
}

fn uptime(run: &QosRun<'_>, proxy: &QosProxy, table: &mut QosTable) -> anyhow::Result<()> {
    let cycles: u64 = if run.is_quick() { 40_000 } else { 80_000 };
    let empty = proxy.process.resident()?;
    let mut seen = [0; 3];
    for (span, resident) in seen.iter_mut().enumerate() {
        let lives = if span == 0 { REMEMBERED } else { cycles / 2 };
        for cycle in 0..lives {
            if cycle.is_multiple_of(100) {
                table.progress(&format!("job {cycle} of {lives}, span {span}"));
                run.bed.wait(Duration::ZERO)?;
            }
            live(proxy, &format!("job{span}.{cycle}"))?;
        }
        *resident = proxy.process.resident()?;
    }
    let [full, second, third] = seen.map(|bytes| bytes as f64);
    // What the allocator keeps moves about: growth is what both later spans show.
    let each = (second - full).min(third - second) / (cycles / 2) as f64;
    let kept = (full - empty as f64) / REMEMBERED as f64;
    table.add(QosRow {
        case: format!("{cycles} jobs come and go, after {REMEMBERED} that are remembered"),
        target: "nothing grows with uptime".into(),
        reached: format!("{each:+.1} bytes for each job"),
        met: Some(each <= GROWTH_BYTES_MAX),
        beside: format!(
            "{kept:.0} bytes for each job that is remembered; resident {} KiB, then {}, {} and {}",
            empty >> 10,
            seen[0] >> 10,
            seen[1] >> 10,
            seen[2] >> 10
        ),
        figures: figures([
            ("bytes_each", each),
            ("bytes_each_remembered", kept),
            ("resident_bytes_empty", empty as f64),
            ("resident_bytes_full", full),
            ("resident_bytes_2", second),
            ("resident_bytes_3", third),
        ]),
    });
    Ok(())
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

const ROOT: Fid = Fid(1);
const FILE: Fid = Fid(2);
const READ_LEN: u64 = 256 << 10;
/// More idle jobs than the dispatcher keeps (65,536 of each kind of thing).
const REMEMBERED: u64 = 66_000;
/// A leak is of whole objects; less than this is the allocator's moving about.
const GROWTH_BYTES_MAX: f64 = 50.0;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
