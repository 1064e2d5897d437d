//! Scrapes: what a page of metrics costs while tens of thousands of jobs are at work.
//!
//!   36,603 jobs: attach, getattr and clunk of each ─► GET /metrics, timed ─► again
//!   another job beside them: one getattr after the other, with and without scrapes
//!
//! 36,603 is how many different jobs a production file system of the references had in its
//! busiest statistics. Every job has used something at every scrape, which is the most that
//! there can be to do. No job keeps a fid: a proxy lets one client hold as many as half of its
//! descriptors at most, which may be less than there are jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use model::Bytes;
use ninep::{Fid, NOFID, Request, getattr};

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
    // What the scheduler needs for a job that asks is not the metrics'.
    touch(bed, &mut session, jobs)?;
    let attached = proxy.process.resident()?;
    let mut scrapes = Scrapes::default();
    for _ in 0..SCRAPES {
        touch(bed, &mut session, jobs)?;
        scrapes.add(&proxy)?;
    }
    let mut sample = scrapes.sample(jobs, empty, attached);
    let [alone, beside] = neighbour(&proxy, span)?;
    let us = |times: &Histogram<u64>| times.value_at_quantile(0.99) as f64 / 1e3;
    sample.insert("neighbour_p99_us".into(), us(&beside));
    sample.insert("neighbour_alone_p99_us".into(), us(&alone));
    Ok(sample)
}

/// Some requests of every job.
fn touch(bed: &QosTestBed, session: &mut BenchSession, jobs: u32) -> anyhow::Result<()> {
    for first in (0..jobs).step_by(AT_ONCE as usize) {
        bed.wait(Duration::ZERO)?;
        let numbers = first..jobs.min(first + AT_ONCE);
        let names: Vec<String> = numbers.clone().map(|job| format!("x?job=job.{job}")).collect();
        let attach = numbers.clone().zip(&names).map(|(job, name)| Request::Attach {
            fid: Fid(job),
            afid: NOFID,
            uname: b"root",
            aname: name.as_bytes(),
            n_uname: job / JOBS_PER_USER,
        });
        session.call_all(&attach.collect::<Vec<_>>())?;
        let each = |of: fn(Fid) -> Request<'static>| {
            numbers.clone().map(|job| of(Fid(job))).collect::<Vec<_>>()
        };
        session.call_all(&each(|fid| Request::Getattr { fid, mask: getattr::BASIC }))?;
        session.call_all(&each(|fid| Request::Clunk { fid }))?;
    }
    Ok(())
}

/// What the scrapes took and left.
#[derive(Default)]
struct Scrapes {
    took: Vec<Duration>,
    /// Before and after each page, in bytes.
    resident: Vec<[u64; 2]>,
    bytes: usize,
    lines: usize,
}

impl Scrapes {
    fn add(&mut self, proxy: &QosProxy) -> anyhow::Result<()> {
        let before = proxy.process.resident()?;
        let began = Instant::now();
        let page = proxy.api.metrics()?;
        self.took.push(began.elapsed());
        self.resident.push([before, proxy.process.resident()?]);
        self.bytes = page.len();
        self.lines = page.lines().filter(|line| !line.starts_with('#')).count();
        Ok(())
    }

    /// Memory is that of all jobs' metrics; the first two pages make room for what every later one
    /// uses again. Of growth only that counts which a page leaves: `cost/uptime-growth` is what
    /// the requests between two pages leave.
    fn sample(&self, jobs: u32, empty: u64, attached: u64) -> FigureSample {
        let mut took: Vec<f64> = self.took.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        took.sort_by(f64::total_cmp);
        let [_, second] = self.resident[1];
        let [_, last] = self.resident[self.resident.len() - 1];
        let left =
            self.resident.iter().skip(2).map(|[before, after]| after.saturating_sub(*before));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        FigureSample::from([
            ("page_median_ms".into(), took[took.len() / 2]),
            ("page_most_ms".into(), took[took.len() - 1]),
            ("page_kib".into(), (self.bytes >> 10) as f64),
            ("page_lines_count".into(), self.lines as f64),
            ("each_bytes".into(), second.saturating_sub(attached) as f64 / f64::from(jobs)),
            ("growth_kib".into(), left.sum::<u64>() as f64 / 1024.0),
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
/// Jobs whose requests are sent together.
const AT_ONCE: u32 = 64;
const LATENCY_NS_MAX: u64 = 60_000_000_000;
const JOBS_PER_USER: u32 = 40;
/// Pages in a round.
const SCRAPES: usize = 20;
/// What an allocator moves about.
const GROWTH_KIB_MAX: f64 = 2048.0;
const SLUICE: &str = "sluice";
const RULES: &str = "[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n";
