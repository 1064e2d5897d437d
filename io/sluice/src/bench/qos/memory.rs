//! Memory: what an idle connection holds, and that nothing grows with uptime.
//!
//! The first is the difference of the proxy's resident memory with thousands of idle
//! attached connections and with none. The second runs the life of a job (attach under
//! a name that was never used, load, clunk, close) over and over: what a cycle left
//! behind after the first third of them, times their number, must not be seen.

use anyhow::Context as _;
use model::Bytes;
use ninep::{Fid, open};

use super::super::session::{Identity, Session};
use super::super::work::Op;
use super::Run;
use super::bed::{Proxy, Setup};
use super::table::{Row, Table, figures};

/// Measures both.
pub(crate) fn measure(run: &Run<'_>, table: &mut Table) -> anyhow::Result<()> {
    let bed = &run.bed;
    bed.file("data", Bytes::mib(1))?;
    let setup = Setup { rules: RULES, ..Setup::default() };
    let proxy = bed.proxy("idle", &setup)?;
    idle(run, &proxy, table)?;
    drop(proxy);
    let proxy = bed.proxy("uptime", &setup)?;
    uptime(run, &proxy, table)
}

fn idle(run: &Run<'_>, proxy: &Proxy, table: &mut Table) -> anyhow::Result<()> {
    // What the first connections bring into being (threads, buffers) is nobody's own.
    drop(attach(proxy, "first")?);
    let empty = proxy.process.resident()?;
    let mut sessions = Vec::new();
    for count in [1000, 4000] {
        table.progress(&format!("{count} connections"));
        while sessions.len() < count {
            sessions.push(attach(proxy, &format!("idle{}", sessions.len()))?);
            run.bed.wait(std::time::Duration::ZERO)?;
        }
        let resident = proxy.process.resident()?;
        let each = (resident as f64 - empty as f64) / count as f64;
        table.add(Row {
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

fn uptime(run: &Run<'_>, proxy: &Proxy, table: &mut Table) -> anyhow::Result<()> {
    let cycles: u64 = if run.is_quick() { 6_000 } else { 60_000 };
    let mut seen = [0; 3];
    for (third, resident) in seen.iter_mut().enumerate() {
        for cycle in 0..cycles / 3 {
            if cycle.is_multiple_of(100) {
                table.progress(&format!("third {third}, cycle {cycle} of {}", cycles / 3));
                run.bed.wait(std::time::Duration::ZERO)?;
            }
            live(proxy, &format!("job{third}.{cycle}"))?;
        }
        *resident = proxy.process.resident()?;
    }
    let [first, second, third] = seen;
    // What the allocator keeps moves about: growth is what both later thirds show.
    let growth = (second as f64 - first as f64).min(third as f64 - second as f64);
    let each = growth / (cycles / 3) as f64;
    table.add(Row {
        case: format!("{cycles} jobs come and go"),
        target: "nothing grows with uptime".into(),
        reached: format!("{each:+.1} bytes for each job"),
        met: Some(each <= GROWTH_BYTES_MAX),
        beside: format!(
            "resident after each third: {} KiB, {} KiB, {} KiB",
            first >> 10,
            second >> 10,
            third >> 10
        ),
        figures: figures([
            ("bytes_each", each),
            ("resident_bytes_1", first as f64),
            ("resident_bytes_2", second as f64),
            ("resident_bytes_3", third as f64),
        ]),
    });
    Ok(())
}

/// The whole life of a job.
fn live(proxy: &Proxy, job: &str) -> anyhow::Result<()> {
    let mut session = attach(proxy, job)?;
    session.open_file(ROOT, FILE, "data", open::RDONLY)?;
    session.warm(FILE, READ_LEN)?;
    session.size(FILE)?;
    session.clunk(FILE)?;
    session.clunk(ROOT)
}

fn attach(proxy: &Proxy, job: &str) -> anyhow::Result<Session> {
    let plan = proxy.plan("x", job, Op::Read, Bytes::kib(64));
    let mut session = plan.session().with_context(|| format!("connection of job {job}"))?;
    let who = Identity { uname: "root".into(), uid: 0 };
    session.attach(ROOT, &plan.aname, &who)?;
    Ok(session)
}

const ROOT: Fid = Fid(1);
const FILE: Fid = Fid(2);
const READ_LEN: u64 = 256 << 10;
/// Below this a third of the cycles moves the resident memory by less than one page in 80.
const GROWTH_BYTES_MAX: f64 = 50.0;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
