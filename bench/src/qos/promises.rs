//! Reserved rates, spare service and dependent limits, live: what each job gets beside others.
//!
//! ```text
//!   case: backend, jobs, phases of rules ─► counters of each class, every 100 ms ─► mean of a phase
//!                                                                              └─► worst 10 s
//! ```
//!
//! Jobs are always backlogged but for those that have a rate of their own. Where one of the others
//! had nothing queued, or the backend served something else than the proxy, the round is void.

mod cases;
mod dependent_change;
mod report_order;
mod reserved_slots;
mod series;
mod two_proxies;

use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::backend::{BackendKind, ColdFile, MANY_THREADS, QosBackend};
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::job::{QosJob, QosJobPart};
use super::slow::SlowRate;
use cases::CASES;
use series::PromiseSeries;

/// Promises beside other jobs.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "live",
    title: "Promises, live",
    what: "Raw clients of one proxy over the slow backend (150 MB/s, or some number of operations per \
           second) or over the disk. Every job is backlogged unless it has a rate of its own. The \
           worst 10 s are of all windows of that length, and of the job that is furthest off.",
    sources: &["bench/src/qos/promises.rs"],
    programs: &[
        FigureProgram::Proxy,
        FigureProgram::Mount,
        FigureProgram::Calibrate,
        FigureProgram::Controller,
        FigureProgram::Report,
    ],
    rows: || {
        let cases = CASES.iter().map(PromiseCase::row);
        let others = [two_proxies::row(), dependent_change::row(), report_order::row()];
        cases.chain(reserved_slots::rows()).chain(others).collect()
    },
    measure,
};

/// Jobs, the rules that they are under one after the other, and what each is to get.
struct PromiseCase {
    name: &'static str,
    what: &'static str,
    on: PromiseOn,
    /// All phases together.
    seconds: f64,
    jobs: &'static [PromiseJob],
    phases: &'static [PromisePhase],
    /// How far any 10 s of a job may be from what it is to get.
    window_percent: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromiseOn {
    /// 150 MB/s.
    Slow,
    /// Reads and writes per second.
    Ops(u64),
    /// The disk: rates of rules are parts of what it gives these jobs without rules.
    Disk,
}

/// Clients of one name, or of `copies` names with a number behind.
struct PromiseJob {
    name: &'static str,
    op: WorkOp,
    kib: u64,
    depth: usize,
    copies: usize,
    /// Operations per second that it asks for; `None` is as many as it gets.
    per_s: Option<f64>,
    /// Phases in which it is there.
    phases: std::ops::Range<usize>,
}

struct PromisePhase {
    rules: &'static str,
    expect: &'static [PromiseExpect],
}

/// A measure and its bound. The measure's unit says what is counted, and its name whether it is the
/// least or the most of several jobs.
struct PromiseExpect {
    measure: &'static str,
    /// The beginning of the jobs' names; empty: all of them together.
    of: &'static str,
    bound: Option<FigureBound>,
}

impl PromiseCase {
    fn id(&self) -> String {
        format!("live/{}", self.name)
    }

    fn row(&self) -> FigureRow {
        let what = format!("{}: {}", self.on.text(), self.what);
        // A backend of a given rate is the same in every round.
        let rounds = if self.on == PromiseOn::Disk { 3 } else { 2 };
        let mut row = FigureRow::new(&self.id(), &what, &["sluice"]).rounds(rounds, self.seconds);
        for expect in self.phases.iter().flat_map(|phase| phase.expect) {
            if let Some(bound) = expect.bound {
                row = row.goal("sluice", expect.measure, bound);
            }
        }
        match self.window_percent {
            Some(most) => row.goal("sluice", WORST, FigureBound::Most(most)),
            None => row,
        }
    }
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let mut places: Vec<PromiseOn> = Vec::new();
    for case in CASES {
        if !places.contains(&case.on) {
            places.push(case.on);
        }
    }
    for on in places {
        let of_place = |case: &&PromiseCase| case.on == on;
        let wanted: Vec<_> =
            CASES.iter().filter(of_place).filter(|case| sink.wants(&case.id())).collect();
        let latency = match on {
            PromiseOn::Slow => Some(reserved_slots::row(BackendKind::Slow)),
            PromiseOn::Disk => Some(reserved_slots::row(BackendKind::Disk)),
            PromiseOn::Ops(_) => None,
        };
        let latency = latency.filter(|row| sink.wants(&row.id));
        let others = [two_proxies::row(), dependent_change::row()];
        let are_others = on == PromiseOn::Slow && sink.wants_any(&others);
        if wanted.is_empty() && latency.is_none() && !are_others {
            continue;
        }
        let backend = on.backend(&bed, run)?;
        backend.file("data", backend.cold_len())?;
        for case in wanted {
            measure_case(run, &backend, case, sink).context(case.name)?;
        }
        if let Some(row) = latency {
            reserved_slots::measure(run, &backend, &row, sink)?;
        }
        if are_others {
            two_proxies::measure(run, &backend, sink)?;
            dependent_change::measure(run, &backend, sink)?;
        }
    }
    report_order::measure(run, &bed, sink)
}

fn measure_case(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    case: &PromiseCase,
    sink: &mut FigureSink,
) -> anyhow::Result<()> {
    let bed = backend.bed();
    for name in case.jobs.iter().flat_map(PromiseJob::names) {
        std::fs::create_dir_all(backend.dir().join(&name)).context("cannot make a directory")?;
    }
    let capacity = match case.on {
        PromiseOn::Disk => Some(capacity(run, backend, case)?),
        _ => None,
    };
    let rules = |phase: &PromisePhase| scaled(phase.rules, capacity);
    let target = case.on.target();
    let setup = QosSetup {
        top: MANY_THREADS,
        target,
        rules: &rules(&case.phases[0]),
        ..QosSetup::default()
    };
    let proxy = backend.proxy(case.name, &setup)?;
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    let span =
        Duration::from_secs_f64(run.time(&case.row()).as_secs_f64() / case.phases.len() as f64);
    let mut round = sink.begin(&case.id());
    let mut jobs: Vec<(usize, QosJob)> = Vec::new();
    let mut figures = FigureSample::new();
    let mut void = None;
    for (at, phase) in case.phases.iter().enumerate() {
        if at > 0 {
            proxy.api.set_rules(&rules(phase))?;
        }
        jobs.retain(|(job, _)| case.jobs[*job].phases.contains(&at));
        for (number, job) in case.jobs.iter().enumerate() {
            if job.phases.start == at {
                let started = job.start(&proxy, backend.cold_len())?;
                jobs.extend(started.into_iter().map(|job| (number, job)));
            }
        }
        let is_first_second = phase.expect.iter().any(|expect| expect.measure == FIRST_SECOND);
        if !is_first_second {
            bed.wait(if at == 0 { SETTLE } else { SETTLE_LATER })?;
        }
        let below = backend.watch(&proxy)?;
        let series = PromiseSeries::take(bed, &proxy, span, capacity.unwrap_or(f64::NAN))?;
        let (ratio, apart) = below.end(&proxy)?;
        figures.extend(ratio.map(|ratio| ("served_below_ratio".to_owned(), ratio)));
        let backlogged = jobs.iter().filter(|(job, _)| case.jobs[*job].per_s.is_none());
        let names = backlogged.flat_map(|(job, _)| case.jobs[*job].names());
        void = void.or(series.dry(names)).or(apart);
        series.figures(phase.expect, &mut figures);
        if phase.expect.iter().any(|expect| expect.measure == SHORTFALL) {
            let short = proxy.target()?.reservation_shortfall_ppm as f64 / 1e4;
            figures.insert(SHORTFALL.into(), short);
        }
        jobs.iter_mut().try_for_each(|(_, job)| job.cut()?.check())?;
    }
    figures.extend(capacity.map(|mb_per_s| ("capacity_mb_per_s".to_owned(), mb_per_s)));
    if let Some(why) = void {
        return round.void(&why);
    }
    round.sample("sluice", figures);
    round.end()
}

/// What the disk gives these jobs without rules, in MB/s.
fn capacity(
    run: &FigureRun<'_>,
    backend: &QosBackend<'_>,
    case: &PromiseCase,
) -> anyhow::Result<f64> {
    let setup = QosSetup { top: MANY_THREADS, ..QosSetup::default() };
    let proxy = backend.proxy(&format!("{}-free", case.name), &setup)?;
    let _kept_cold = backend.keep_cold("data", ColdFile::Random)?;
    let mut jobs = Vec::new();
    for job in case.jobs {
        jobs.extend(job.start(&proxy, backend.cold_len())?);
    }
    backend.bed().wait(SETTLE)?;
    let before = proxy.payload()?;
    let span = run.time(&case.row()).min(Duration::from_secs(10));
    backend.bed().wait(span)?;
    Ok((proxy.payload()? - before) as f64 / 1e6 / span.as_secs_f64())
}

/// Rules whose rates are parts of a capacity, as in `{60%}`.
fn scaled(rules: &str, capacity: Option<f64>) -> String {
    let Some(capacity) = capacity else { return rules.into() };
    let mut text = String::from(rules);
    for percent in 1..=100 {
        let rate = format!("{:.0}kB/s", capacity * 1e3 * f64::from(percent) / 100.0);
        text = text.replace(&format!("{{{percent}%}}"), &rate);
    }
    text
}

impl PromiseOn {
    fn backend<'a>(
        self,
        bed: &'a QosTestBed,
        run: &FigureRun<'_>,
    ) -> anyhow::Result<QosBackend<'a>> {
        let mut backend = match self {
            PromiseOn::Slow => QosBackend::start(bed, BackendKind::Slow)?,
            PromiseOn::Disk => QosBackend::start(bed, BackendKind::Disk)?,
            // All requests are of one size: there is nothing to calibrate.
            PromiseOn::Ops(rate) => {
                return QosBackend::slow(bed, &format!("ops-{rate}"), SlowRate::Ops(rate));
            }
        };
        backend.calibrate(run)?;
        Ok(backend)
    }

    /// Keys of the target. Some operations under way keep a backend busy that is a network away.
    fn target(self) -> &'static str {
        if matches!(self, PromiseOn::Ops(_)) { "slots_max = 16" } else { "" }
    }

    fn text(self) -> String {
        match self {
            PromiseOn::Slow => "150 MB/s".into(),
            PromiseOn::Ops(rate) => format!("{rate} ops/s"),
            PromiseOn::Disk => "disk".into(),
        }
    }
}

impl PromiseJob {
    fn names(&self) -> Vec<String> {
        match self.copies {
            1 => vec![self.name.into()],
            copies => (1..=copies).map(|copy| format!("{}{copy}", self.name)).collect(),
        }
    }

    fn start(&self, proxy: &QosProxy, data_len: Bytes) -> anyhow::Result<Vec<QosJob>> {
        let start = |name: String| {
            let mut plan = proxy.plan("x", &name, self.op, Bytes::kib(self.kib));
            (plan.depth, plan.file_size) = (self.depth, data_len);
            let parts = [QosJobPart { plan, dir: name, data: "data".into() }];
            match self.per_s {
                Some(per_s) => QosJob::start_paced(&parts, per_s),
                None => QosJob::start(&parts),
            }
        };
        self.names().into_iter().map(start).collect()
    }
}

const WORST: &str = "worst_10_s_percent";
const SHORTFALL: &str = "shortfall_percent";
const FIRST_SECOND: &str = "first_second_requests";
const SETTLE: Duration = Duration::from_secs(3);
/// New rules count from the next request on.
const SETTLE_LATER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_every_case_are_rules_and_its_jobs_have_them() {
        for case in CASES {
            for (at, phase) in case.phases.iter().enumerate() {
                let text = scaled(phase.rules, Some(100.0));
                assert!(rules::RuleSet::parse(&text).is_ok(), "{}: {text}", case.name);
                let there = |of: &str| {
                    case.jobs.iter().any(|job| job.name.starts_with(of) && job.phases.contains(&at))
                };
                assert!(phase.expect.iter().all(|expect| there(expect.of)), "{}", case.name);
            }
        }
    }

    #[test]
    fn rates_of_rules_are_parts_of_the_capacity() {
        assert_eq!(scaled("{60%} {5%}", Some(100.0)), "60000kB/s 5000kB/s");
        assert_eq!(scaled("90MB/s", None), "90MB/s");
    }
}
