//! A victim beside a bully: how long small operations take while another job writes, with one change
//! at a time.
//!
//! ```text
//!   victim  4 KiB reads (cached, uncached) or write + fsync, one in flight
//!   bully   16 × 1 MiB writes in flight that fill a new file, as a checkpoint does
//!   way     no-rules │ weight │ slots │ limit │ all │ no-schedule │ alone
//! ```
//!
//! Every way has the same write mode, the proxy's default. Without rules all requests are of one
//! class and served as they come; `alone` says what of the victim's p99 is this machine's own.
//!
//! The bully's generator stands for other machines and goes behind everything else. A new file
//! matters: where its blocks are allocated in the transaction that a victim's fsync commits, ext4
//! and others write its data first. Between two ways everything is flushed, or what one left dirty
//! would be the next one's load.

use std::fs::File;
use std::time::Duration;

use anyhow::Context as _;
use model::{Bytes, Nanos};

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::backend::{BackendKind, ColdFile, QosBackend};
use super::bed::{KeepCold, QosProxy, QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};
use super::mounted::{QosFio, QosLatency, QosMount, for_time, on};

/// The p99 of small operations beside large writes.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "victim",
    title: "A victim beside a bully",
    what: "One small operation in flight beside 16 writes of 1 MiB. `no-rules`: all requests are of \
           one class. `weight`: 8 : 1. `slots`: the bully has those of one write. `limit`: a quarter \
           of the bully's rate without rules. `all`: the three together. `no-schedule`: as they come, \
           without a scheduler. `alone`: no bully.",
    sources: &["bench/src/qos/victim.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Calibrate],
    rows: || VictimCase::all().iter().map(VictimCase::row).collect(),
    measure,
};

/// What the victim does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VictimLoad {
    CachedRead,
    UncachedRead,
    Fsync,
}

struct VictimCase {
    backend: BackendKind,
    is_mounted: bool,
    load: VictimLoad,
}

/// Names of the ways: which of weight, slots and limit the rules have.
const WAYS: [&str; 7] = ["weight", "slots", "limit", "all", NO_RULES, NO_SCHEDULE, ALONE];
const NO_RULES: &str = "no-rules";
const NO_SCHEDULE: &str = "no-schedule";
const ALONE: &str = "alone";

impl VictimCase {
    fn all() -> Vec<VictimCase> {
        let mut cases = Vec::new();
        for backend in [BackendKind::Slow, BackendKind::Disk] {
            for is_mounted in [false, true] {
                for load in [VictimLoad::CachedRead, VictimLoad::UncachedRead, VictimLoad::Fsync] {
                    cases.push(VictimCase { backend, is_mounted, load });
                }
            }
        }
        cases
    }

    fn id(&self) -> String {
        let by = if self.is_mounted { "mount" } else { "client" };
        format!("victim/{}-{by}-{}", self.backend.name(), self.load.name())
    }

    fn row(&self) -> FigureRow {
        let by = if self.is_mounted { "on a mount" } else { "raw client" };
        let what = format!("{}, {by}: {}", self.backend.name(), self.load.text());
        ["weight", "slots", "limit"]
            .into_iter()
            .fold(FigureRow::new(&self.id(), &what, &WAYS).rounds(3, 4.0), |row, way| {
                row.beside(way, "p99_us", FigureBound::TimesMost(0.2), &[NO_RULES])
            })
    }
}

/// A backend with a proxy for each way that needs one of its own, and what the bully did.
struct VictimStand<'a> {
    backend: &'a QosBackend<'a>,
    scheduled: QosProxy,
    unscheduled: QosProxy,
    /// The bully's rate without rules, once it is known.
    bully_mb_per_s: Option<f64>,
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    for kind in [BackendKind::Slow, BackendKind::Disk] {
        let cases = VictimCase::all();
        let wanted = cases.iter().filter(|case| case.backend == kind && sink.wants(&case.id()));
        let wanted: Vec<&VictimCase> = wanted.collect();
        if wanted.is_empty() {
            continue;
        }
        let mut backend = QosBackend::start(&bed, kind)?;
        backend.calibrate(run)?;
        let files = [("warm", WARM_LEN), ("cold", COLD_LEN), ("victim/written0", WARM_LEN)];
        for (name, len) in files {
            backend.file(name, len)?;
        }
        std::fs::create_dir_all(backend.dir().join("bully")).context("cannot make a directory")?;
        let start = |name: &str, no_schedule: bool| {
            let name = format!("{}-{name}", kind.name());
            backend.proxy(&name, &QosSetup { no_schedule, ..QosSetup::default() })
        };
        let (scheduled, unscheduled) = (start("scheduled", false)?, start("unscheduled", true)?);
        let mut stand =
            VictimStand { backend: &backend, scheduled, unscheduled, bully_mb_per_s: None };
        for case in wanted {
            stand.measure(run, case, sink)?;
        }
    }
    Ok(())
}

impl VictimStand<'_> {
    fn measure(
        &mut self,
        run: &FigureRun<'_>,
        case: &VictimCase,
        sink: &mut FigureSink,
    ) -> anyhow::Result<()> {
        let row = case.row();
        let time = run.time(&row);
        let settle = if run.is_quick { Duration::from_secs(1) } else { SETTLE };
        if self.bully_mb_per_s.is_none() {
            self.one(case, NO_RULES, settle, time)?;
        }
        sink.round_of(&row, |way| self.one(case, way, settle, time))
    }

    fn one(
        &mut self,
        case: &VictimCase,
        way: &str,
        settle: Duration,
        time: Duration,
    ) -> anyhow::Result<FigureSample> {
        let proxy = if way == NO_SCHEDULE { &self.unscheduled } else { &self.scheduled };
        if way != NO_SCHEDULE {
            proxy.api.set_rules(&self.rules(way)?)?;
        }
        self.clear()?;
        let bed = self.backend.bed();
        let mut warm = File::open(self.backend.dir().join("warm")).context("cannot open a file")?;
        std::io::copy(&mut warm, &mut std::io::sink()).context("warming")?;
        let _kept_cold: Option<KeepCold> = match case.load {
            VictimLoad::UncachedRead => Some(self.backend.keep_cold("cold", ColdFile::Random)?),
            _ => None,
        };
        let sample = if case.is_mounted {
            mounted(bed, proxy, case.load, way, settle, time)?
        } else {
            raw(bed, proxy, case.load, way, settle, time)?
        };
        if way == NO_RULES {
            self.bully_mb_per_s = sample.get(BULLY_RATE).copied();
        }
        Ok(sample)
    }

    /// Takes the bully's files away and flushes the rest.
    fn clear(&self) -> anyhow::Result<()> {
        let folder = self.backend.dir().join("bully");
        for entry in std::fs::read_dir(&folder).context("cannot list the bully's files")? {
            let path = entry.context("cannot list the bully's files")?.path();
            std::fs::remove_file(path).context("cannot remove a bully's file")?;
        }
        File::create(folder.join("written0")).context("cannot make the bully's file")?;
        let folder = File::open(&folder).context("cannot open the bully's directory")?;
        rustix::fs::syncfs(&folder).context("cannot flush")
    }

    fn rules(&self, way: &str) -> anyhow::Result<String> {
        if [NO_RULES, ALONE].contains(&way) {
            return Ok(String::new());
        }
        let has = |part: &str| way == part || way == "all";
        let weight = if has("weight") { 8 } else { 1 };
        let mut bully = String::new();
        if has("slots") {
            bully.push_str(&format!("slots = {}\n", slots_of_a_write(&self.scheduled)?));
        }
        if has("limit") {
            let rate = self.bully_mb_per_s.context("the bully's rate is measured first")? / 4.0;
            bully.push_str(&format!("limit = {{ write = \"{:.0}kB/s\" }}\n", rate * 1e3));
        }
        Ok(rules(weight, &bully))
    }
}

fn rules(weight: u32, bully: &str) -> String {
    format!(
        "[[rule]]\nname = \"victim\"\nmatch = \"jobid={{victim}}\"\nweight = {weight}\n\n\
         [[rule]]\nname = \"bully\"\nmatch = \"jobid={{bully}}\"\n{bully}"
    )
}

/// Slots that one of the bully's writes holds.
fn slots_of_a_write(proxy: &QosProxy) -> anyhow::Result<u32> {
    let target = proxy.target()?;
    let large = target.write_costs.iter().find(|point| point.bytes == BULLY_SIZE.get());
    let large = large.context("the proxy has no cost of a large write")?.cost_ns;
    let unit = target.read_costs.first().context("the proxy has no costs")?.cost_ns;
    Ok(sched::slots_needed(Nanos::new(large), Nanos::new(unit), target.slots_max))
}

/// Both as clients of the proxy.
fn raw(
    bed: &QosTestBed,
    proxy: &QosProxy,
    load: VictimLoad,
    way: &str,
    settle: Duration,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    let mut plan = proxy.plan("x", "bully", WorkOp::Write, BULLY_SIZE);
    (plan.depth, plan.file_size) = (16, BULLY_LEN);
    let part = QosJobPart { plan, dir: "bully".into(), data: String::new() };
    let parts = if way == ALONE { Vec::new() } else { vec![part] };
    let mut bully = QosJob::start_behind(&parts)?;
    let (op, data, len) = match load {
        VictimLoad::CachedRead => (WorkOp::Randread, "warm", WARM_LEN),
        VictimLoad::UncachedRead => (WorkOp::Randread, "cold", COLD_LEN),
        VictimLoad::Fsync => (WorkOp::Fsync, "", WARM_LEN),
    };
    let mut plan = proxy.plan("x", "victim", op, Bytes::kib(4));
    plan.file_size = len;
    let mut job = QosJob::start(&[QosJobPart { plan, dir: "victim".into(), data: data.into() }])?;
    bed.wait(settle)?;
    bully.cut()?;
    job.cut()?;
    bed.wait(time)?;
    let (bully, job) = (bully.cut()?, job.cut()?);
    bully.check().context("bully")?;
    job.check().context("victim")?;
    // A victim that never came round in the span waited for at least all of it.
    let at_least = if job.score.ops == 0 { job.gap.as_secs_f64() * 1e6 } else { 0.0 };
    let rate = job.score.ops as f64 / job.span.as_secs_f64();
    let [p50, p99] = [0.5, 0.99].map(|quantile| job.latency_us(quantile).max(at_least));
    Ok(sample(p50, p99, rate, bully.mb_per_sec()))
}

/// Both as fio on a mount of its own. The writers write past the page cache of their mount, so
/// there are 16 requests in flight all the time, as of a checkpoint on several nodes.
fn mounted(
    bed: &QosTestBed,
    proxy: &QosProxy,
    load: VictimLoad,
    way: &str,
    settle: Duration,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    let mount = |job: &str| {
        QosMount::start(bed, proxy, &format!("of-{job}"), &format!("allow_other,job=fixed:{job}"))
    };
    let (own, other) = (mount("victim")?, mount("bully")?);
    let span = for_time(settle, time);
    let bully = match way {
        ALONE => None,
        _ => {
            let words = format!("--directory={} {BULLY} {span}", other.join("bully").display());
            Some(QosFio::start(bed, "bully", BEHIND, &words)?)
        }
    };
    let (words, file, of) = match load {
        VictimLoad::CachedRead => ("--rw=randread --direct=1 --size=64m", "warm", QosLatency::Read),
        VictimLoad::UncachedRead => {
            ("--rw=randread --direct=1 --size=1g", "cold", QosLatency::Read)
        }
        VictimLoad::Fsync => {
            ("--rw=randwrite --fdatasync=1 --size=64m", "victim/written0", QosLatency::Sync)
        }
    };
    let words = format!("--ioengine=psync --bs=4k {words} {} {span}", on(&own.join(file)));
    let victim = QosFio::start(bed, "victim", 0, &words)?.finish(bed)?;
    let bully = bully.map(|bully| bully.finish(bed)).transpose()?;
    let [p50, p99] = ["50.000000", "99.000000"].map(|at| victim.latency_us(of, at));
    Ok(sample(p50?, p99?, victim.ops_per_sec(), bully.map_or(0.0, |bully| bully.mb_per_sec())))
}

fn sample(p50_us: f64, p99_us: f64, ops_per_s: f64, bully_mb_per_s: f64) -> FigureSample {
    let values = [
        ("p50_us", p50_us),
        ("p99_us", p99_us),
        ("ops_per_s", ops_per_s),
        (BULLY_RATE, bully_mb_per_s),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl VictimLoad {
    fn name(self) -> &'static str {
        match self {
            VictimLoad::CachedRead => "cached",
            VictimLoad::UncachedRead => "uncached",
            VictimLoad::Fsync => "fsync",
        }
    }

    fn text(self) -> &'static str {
        match self {
            VictimLoad::CachedRead => "4 KiB reads, cached",
            VictimLoad::UncachedRead => "4 KiB reads, uncached",
            VictimLoad::Fsync => "4 KiB write + fsync",
        }
    }
}

const BULLY_RATE: &str = "bully_mb_per_s";
/// 16 new files, one write in flight in each.
const BULLY: &str = "--ioengine=psync --rw=write --bs=1m --direct=1 --numjobs=16 --size=128m";
/// The bully stands for other machines and goes behind everything else.
const BEHIND: i32 = 10;
const BULLY_SIZE: Bytes = Bytes::mib(1);
/// As much as may be in memory twice. Writes are direct, so it need not be more than the kernel
/// lets be dirty.
const BULLY_LEN: Bytes = Bytes::mib(2 << 10);
const WARM_LEN: Bytes = Bytes::mib(64);
const COLD_LEN: Bytes = Bytes::mib(1024);
/// Long enough for what is written to get to the device.
const SETTLE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_changed_at_a_time_and_held_against_no_rules() {
        let row = VictimCase::all()[0].row();
        let goals: Vec<_> = row.goals.iter().map(|goal| goal.target()).collect();
        assert_eq!(goals[0], "weight p99 ≤ 0.2 × no-rules");
        assert_eq!(goals.len(), 3);
        let parsed = rules::RuleSet::parse(&rules(8, "slots = 32\n")).unwrap();
        assert_eq!([0, 1].map(|rule| parsed.rules[rule].weight.get()), [8, 1]);
        assert_eq!(parsed.rules[1].slots, Some(32));
    }
}
