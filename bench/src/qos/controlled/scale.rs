//! What a thousand proxies with a thousand classes each cost one controller.
//!
//! Each proxy is a thread with the half of the plan that a real one runs and a connection of its
//! own; what it serves is made up. Reports come once a second and say that every class was busy,
//! and every fifth what each of them had: more than any real second has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{ErrorCode, ProxyReport};
use http::{ApiClient, Endpoints};
use model::{JobId, KeyValue, Nanos, OpKind, Scope, ScopeUsage, Service, Share, Time};
use plan::{ControllerSession, SessionSettings};
use testkit::account_subject;
use usage::{UsageLine, UsageReport};

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::bed::QosTestBed;
use super::super::controllers::QosController;
use super::super::descriptors::raise_descriptor_limit;
use super::SLUICE;

pub(super) fn row() -> FigureRow {
    let what = "1,000 proxies × 1,000 classes, 10,000 rules, a report of each proxy a second";
    FigureRow::new("control/scale", what, &[SLUICE])
        .rounds(3, 30.0)
        .goal(SLUICE, "full_rate_cores", FigureBound::Most(0.5))
        .goal(SLUICE, "reports_per_s", FigureBound::Least(900.0))
}

pub(super) fn measure(run: &FigureRun<'_>, bed: &QosTestBed) -> anyhow::Result<FigureSample> {
    let (proxies, classes) = if run.is_quick { (100, 100) } else { (1_000, 1_000) };
    let time = run.time(&row());
    // A connection for each proxy.
    raise_descriptor_limit();
    let controller = QosController::start(bed, "scale")?;
    let rules: String = (0..RULES - 1).map(other_rule).collect::<String>() + LAST_RULE;
    let version = controller.client.set_rules(&rules)?.version;
    let shared = Arc::new(ScaleState { stop: AtomicBool::new(false), answered: AtomicU64::new(0) });
    let began = Instant::now();
    let threads: Vec<_> = (0..proxies)
        .map(|at| {
            let (url, version, shared) = (controller.url.clone(), version.clone(), shared.clone());
            // A second is spread among them.
            let phase = Duration::from_secs(1) * at / proxies;
            let name = format!("scale-{at}");
            let work = move || proxy(&name, &url, &version, classes, began + phase, &shared);
            std::thread::Builder::new().stack_size(1 << 20).spawn(work)
        })
        .collect::<Result<_, _>>()
        .context("cannot start a thread")?;
    let known = || controller.client.controller_status().map_or(0, |status| status.proxies);
    while known() < u64::from(proxies) && began.elapsed() < Duration::from_secs(120) {
        bed.wait(Duration::from_millis(500))?;
    }
    bed.wait(time / 3)?;
    let (cpu, reports, at) = (controller.process.cpu()?, shared.answered(), Instant::now());
    bed.wait(time)?;
    let seconds = at.elapsed().as_secs_f64();
    let cpu = (controller.process.cpu()? - cpu).as_secs_f64();
    let reports = (shared.answered() - reports) as f64;
    let memory = controller.process.resident()? as f64 / f64::from(1 << 20);
    shared.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().ok().context("a proxy panicked")??;
    }
    // While it is overloaded, a controller may not answer in time.
    let status = controller.client.controller_status()?;
    // Where the machine is too small for all of them beside the controller, each report still
    // costs what it costs.
    Ok(sample([
        ("full_rate_cores", cpu / reports.max(1.0) * f64::from(proxies)),
        ("used_cores", cpu / seconds),
        ("reports_per_s", reports / seconds),
        ("resident_mib", memory),
        ("scopes_count", status.scopes as f64),
        ("proxies_count", status.proxies as f64),
    ]))
}

struct ScaleState {
    stop: AtomicBool,
    answered: AtomicU64,
}

impl ScaleState {
    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

/// One proxy: reports once a second until `stop` is set.
fn proxy(
    name: &str,
    url: &str,
    version: &str,
    classes: u64,
    begin: Instant,
    shared: &ScaleState,
) -> anyhow::Result<()> {
    let client = ApiClient::at(&url.parse::<Endpoints>()?)?.with_connection_reuse();
    let client = client.with_time_limit(Duration::from_secs(20));
    // It reports whenever it is asked to.
    let rest = Nanos::from_millis(500);
    let settings = SessionSettings { idle_report_interval: rest, ..SessionSettings::default() };
    let clock = Instant::now();
    let now = || Time::from_nanos(clock.elapsed().as_nanos() as u64 + 1);
    let mut standing = ControllerSession::new(name, 1, settings, now());
    let (mut due, mut told_at) = (begin, begin);
    // Made once: what a proxy says is not what is measured.
    let mut report =
        ProxyReport { epoch: 1, rules: Some(version.into()), ..ProxyReport::default() };
    let uses = uses(classes);
    let mut usage = UsageReport::default();
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = (due + Duration::from_secs(1)).max(Instant::now());
        // As a real one where there are no decays: what was used is told every five seconds.
        match report.usage.take() {
            Some(told) => usage = told,
            None if told_at.elapsed() >= TELL => {
                told_at = Instant::now();
                count(&mut usage, classes);
                report.usage = Some(std::mem::take(&mut usage));
            }
            None => {}
        }
        if let Some(mut said) = standing.report(None, now()) {
            said.uses = Some(uses.clone());
            report.targets = vec![("fs".into(), said)];
        }
        let order = match client.report(name, &report) {
            Ok(order) => order,
            // The controller is overloaded: retry.
            Err(error) if RETRIED.contains(&error.code()) => continue,
            Err(error) => return Err(error.into()),
        };
        shared.answered.fetch_add(1, Ordering::Relaxed);
        for (_, assignment) in &order.targets {
            standing.receive(assignment, now());
        }
        while standing.poll_grants(now()).is_some() {}
    }
    Ok(())
}

/// Every job was served some more.
fn count(usage: &mut UsageReport, classes: u64) {
    usage.sequence += 1;
    if usage.lines.is_empty() {
        let line = |id| {
            let mut subject = account_subject(&format!("job.{id}"), 1_000 + (id % 100) as u32);
            subject.class = format!("jobs jobid=job.{id}").into();
            UsageLine { id, subject: subject.into(), service: Service::default() }
        };
        usage.lines = (1..=classes).map(line).collect();
    }
    for line in &mut usage.lines {
        add(&mut line.service, 1);
    }
    add(&mut usage.total, classes);
}

fn add(service: &mut Service, times: u64) {
    service.read_bytes += times * (1 << 20);
    service.cost_ns += times * 1_000_000;
    service.ops[OpKind::Read as usize] += times;
}

/// Each class used half of its part.
fn uses(classes: u64) -> Vec<(Scope, ScopeUsage)> {
    let job = |at: u64| JobId::new(&format!("job.{at}"));
    let jobs = (1..=classes).filter_map(job).map(KeyValue::Jobid);
    let usage = ScopeUsage { used: Some(Share::ratio(1, 2_000)), waiting: true };
    jobs.map(|job| (Scope::rule("jobs", &[job]), usage)).collect()
}

fn other_rule(at: u32) -> String {
    format!("[[rule]]\nname = \"r{at}\"\nmatch = \"uid={{{}}}\"\nlimit = \"1GB/s\"\n", 100_000 + at)
}

/// How often a proxy tells what was used.
const TELL: Duration = Duration::from_secs(5);
/// The errors of a controller with too many calls.
const RETRIED: [ErrorCode; 4] =
    [ErrorCode::Overloaded, ErrorCode::ShuttingDown, ErrorCode::Unreachable, ErrorCode::Timeout];
const RULES: u32 = 10_000;
const LAST_RULE: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\nlimit = \"100MB/s\"\n";
