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

use super::super::figures::groups::FigureRun;
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::session::{BenchIdentity, BenchSession};
use super::super::work::WorkOp;
use super::bed::{QosProxy, QosSetup, QosTestBed};

/// A page, its memory, and another job beside it.
pub(super) fn rows() -> Vec<FigureRow> {
    let what =
        "pages of metrics while 36,603 jobs are at work, and another job's getattrs beside them";
    vec![
        FigureRow::new("cost/scrape", what, &[SLUICE])
            .rounds(3, 10.0)
            .goal(SLUICE, "page_most_ms", FigureBound::Most(100.0))
            .goal(SLUICE, "growth_kib", FigureBound::Most(GROWTH_KIB_MAX)),
    ]
}

/// Measures pages and the job beside them.
pub(super) fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let row = &rows()[0];
    sink.round_of(row, |_| {
        let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
        one(&bed, if run.is_quick { JOBS / 10 } else { JOBS }, run.time(row) / 2)
    })
}

fn one(bed: &QosTestBed, jobs: u32, span: Duration) -> anyhow::Result<FigureSample> {
    let proxy = bed.proxy("scrape", &QosSetup { rules: RULES, ..QosSetup::default() })?;
    let mut session = connect(&proxy)?;
    proxy.api.metrics()?;
    let empty = proxy.process.resident()?;
    for job in 0..jobs {
        if job.is_multiple_of(1000) {
            bed.wait(Duration::ZERO)?;
        }
        let who = BenchIdentity { uname: "root".into(), uid: job / JOBS_PER_USER };
        session.attach(Fid(job), &format!("x?job=job.{job}"), &who)?;
    }
    // What the scheduler needs for a job that asks is not the metrics'.
    touch(&mut session, jobs)?;
    let attached = proxy.process.resident()?;
    let mut scrapes = Scrapes::default();
    for _ in 0..SCRAPES {
        bed.wait(Duration::ZERO)?;
        touch(&mut session, jobs)?;
        scrapes.add(&proxy)?;
    }
    let mut sample = scrapes.sample(jobs, empty, attached);
    let [alone, beside] = neighbour(&proxy, span)?;
    let us = |times: &Histogram<u64>| times.value_at_quantile(0.99) as f64 / 1e3;
    sample.insert("neighbour_p99_us".into(), us(&beside));
    sample.insert("neighbour_alone_p99_us".into(), us(&alone));
    Ok(sample)
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

    /// Memory is that of all jobs' metrics; the first two pages make room for what every later one
    /// uses again.
    fn sample(&self, jobs: u32, empty: u64, attached: u64) -> FigureSample {
        let mut took: Vec<f64> = self.took.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        took.sort_by(f64::total_cmp);
        let (second, last) = (self.resident[1], self.resident[self.resident.len() - 1]);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        FigureSample::from([
            ("page_median_ms".into(), took[took.len() / 2]),
            ("page_most_ms".into(), took[took.len() - 1]),
            ("page_kib".into(), (self.bytes >> 10) as f64),
            ("page_lines_count".into(), self.lines as f64),
            ("each_bytes".into(), second.saturating_sub(attached) as f64 / f64::from(jobs)),
            ("growth_kib".into(), last.saturating_sub(second) as f64 / 1024.0),
            ("resident_empty_mib".into(), mib(empty)),
            ("resident_mib".into(), mib(last)),
        ])
    }
}

/// The times of a job's requests, first alone and then beside scrapes.
fn neighbour(proxy: &QosProxy, span: Duration) -> anyhow::Result<[Histogram<u64>; 2]> {
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
/// Pages in a round.
const SCRAPES: usize = 20;
/// What an allocator moves about.
const GROWTH_KIB_MAX: f64 = 2048.0;
const SLUICE: &str = "sluice";
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
