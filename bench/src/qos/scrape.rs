//! Scrapes: what a page of metrics costs while tens of thousands of jobs are at work.
//!
//!   36,603 jobs, each with a fid ─► a getattr of each ─► GET /metrics, timed ─► again
//!   another job beside them: one getattr after the other, with and without scrapes
//!
//! 36,603 is how many different jobs a production file system of the references had in its
//! busiest statistics. Every job has used something at every scrape, which is the most that
//! there can be to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use model::Bytes;
use ninep::Fid;

use super::super::session::{BenchIdentity, BenchSession};
use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{QosProxy, QosSetup};
use super::table::{QosRow, QosTable, figures};

/// Measures pages and who is served meanwhile.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let jobs = if run.is_quick() { JOBS / 10 } else { JOBS };
    let rounds = run.rounds(20, 4);
    let setup = QosSetup { rules: RULES, ..QosSetup::default() };
    let proxy = run.bed.proxy("scrape", &setup)?;
    let mut session = connect(&proxy)?;
    proxy.api.metrics()?;
    let empty = proxy.process.resident()?;
    for job in 0..jobs {
        if job.is_multiple_of(1000) {
            table.progress(&format!("{job} of {jobs} jobs attached"));
            run.bed.wait(Duration::ZERO)?;
        }
        let who = BenchIdentity { uname: "root".into(), uid: job / JOBS_PER_USER };
        session.attach(Fid(job), &format!("x?job=job.{job}"), &who)?;
    }
    // What the scheduler needs for a job that asks is not the metrics'.
    touch(&mut session, jobs)?;
    let attached = proxy.process.resident()?;
    let mut scrapes = Scrapes::default();
    for round in 0..rounds {
        table.progress(&format!("scrape {round} of {rounds}"));
        run.bed.wait(Duration::ZERO)?;
        touch(&mut session, jobs)?;
        scrapes.add(&proxy)?;
    }
    let [alone, beside] = neighbour(run, &proxy)?;
    table.add(pages(jobs, &scrapes));
    table.add(memory(jobs, empty, attached, &scrapes));
    table.add(waits(&alone, &beside));
    Ok(())
}

/// A request of every job.
fn touch(session: &mut BenchSession, jobs: u32) -> anyhow::Result<()> {
    (0..jobs).try_for_each(|job| session.size(Fid(job)).map(drop))
}

/// What the scrapes took and left.
#[derive(Default)]
struct Scrapes {
    took: Vec<Duration>,
    resident: Vec<u64>,
    bytes: usize,
    lines: usize,
}

impl Scrapes {
    fn add(&mut self, proxy: &QosProxy) -> anyhow::Result<()> {
        let began = Instant::now();
        let page = proxy.api.metrics()?;
        self.took.push(began.elapsed());
        self.resident.push(proxy.process.resident()?);
        self.bytes = page.len();
        self.lines = page.lines().filter(|line| !line.starts_with('#')).count();
        Ok(())
    }
}

fn pages(jobs: u32, scrapes: &Scrapes) -> QosRow {
    let mut took: Vec<f64> = scrapes.took.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    took.sort_by(f64::total_cmp);
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    QosRow {
        case: format!("a page with {jobs} jobs at work"),
        target: "under 100 ms".into(),
        reached: format!("{worst:.1} ms at most"),
        met: Some(worst < 100.0),
        beside: format!(
            "{median:.1} ms in the middle; {} KiB, {} lines, {} scrapes",
            scrapes.bytes >> 10,
            scrapes.lines,
            took.len()
        ),
        figures: figures([
            ("median_ms", median),
            ("max_ms", worst),
            ("page_bytes", scrapes.bytes as f64),
            ("page_lines", scrapes.lines as f64),
        ]),
    }
}

fn memory(jobs: u32, empty: u64, attached: u64, scrapes: &Scrapes) -> QosRow {
    // The first two make room for what every later one uses again.
    let second = scrapes.resident[1.min(scrapes.resident.len() - 1)];
    let last = scrapes.resident[scrapes.resident.len() - 1];
    let growth = last.saturating_sub(second);
    let each = second.saturating_sub(attached) as f64 / f64::from(jobs);
    QosRow {
        case: format!("memory for metrics of {jobs} jobs"),
        target: "no growth from scrape to scrape".into(),
        reached: format!("{} KiB more after {} scrapes", growth >> 10, scrapes.resident.len()),
        met: Some(growth <= GROWTH_BYTES_MAX),
        beside: format!(
            "{each:.0} bytes for each job; resident {} MiB, {} with the jobs, {} with their metrics",
            empty >> 20,
            attached >> 20,
            last >> 20
        ),
        figures: figures([
            ("bytes_each", each),
            ("growth_bytes", growth as f64),
            ("resident_bytes_empty", empty as f64),
            ("resident_bytes_attached", attached as f64),
            ("resident_bytes_last", last as f64),
        ]),
    }
}

fn waits(alone: &Histogram<u64>, beside: &Histogram<u64>) -> QosRow {
    let us = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let [before, now] = [alone, beside].map(|times| us(times, 0.99));
    let worst = beside.max() as f64 / 1e3;
    QosRow {
        case: "another job's getattrs while one scrape follows the other".into(),
        target: "for comparison".into(),
        reached: format!("p99 {now:.0} µs"),
        met: None,
        beside: format!("{before:.0} µs without scrapes; at most {worst:.0} µs"),
        figures: figures([("p99_us", now), ("p99_us_alone", before), ("max_us", worst)]),
    }
}

/// The times of a job's requests, first alone and then beside scrapes.
fn neighbour(run: &QosRun<'_>, proxy: &QosProxy) -> anyhow::Result<[Histogram<u64>; 2]> {
    let span = run.time(5, 1);
    let alone = ask_for(proxy, span, &AtomicBool::new(false))?;
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_for(proxy, span * 100, &stop));
        let end = Instant::now() + span;
        let mut scraped = Ok(());
        while Instant::now() < end && scraped.is_ok() {
            scraped = proxy.api.metrics().map(drop);
        }
        stop.store(true, Ordering::Relaxed);
        let times = asking.join().expect("it does not panic");
        scraped.context("cannot scrape")?;
        times
    })?;
    Ok([alone, beside])
}

fn ask_for(proxy: &QosProxy, span: Duration, stop: &AtomicBool) -> anyhow::Result<Histogram<u64>> {
    let mut session = connect(proxy)?;
    let who = BenchIdentity { uname: "root".into(), uid: 0 };
    session.attach(Fid(0), "x?job=neighbour", &who)?;
    let mut times = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).context("a histogram")?;
    let end = Instant::now() + span;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        session.size(Fid(0))?;
        times.saturating_record(began.elapsed().as_nanos() as u64);
        if Instant::now() > end {
            break;
        }
    }
    Ok(times)
}

fn connect(proxy: &QosProxy) -> anyhow::Result<BenchSession> {
    proxy.plan("x", "any", WorkOp::Read, Bytes::kib(64)).session()
}

const JOBS: u32 = 36_603;
const LATENCY_NS_MAX: u64 = 60_000_000_000;
const JOBS_PER_USER: u32 = 40;
/// What an allocator moves about.
const GROWTH_BYTES_MAX: u64 = 2 << 20;
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
