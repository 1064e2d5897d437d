//! A limit of 200 a second over two proxies: the trace of the global rate control of LIME, on
//! real proxies and in the simulator.
//!
//! ```text
//!   t1 ████████████                 100 │   1 │ 100      served where clients are at work,
//!   t2 ████████████████████████     100 │ 199 │ 100      else the proxy's share of the limit
//!          both    │    one    │ none
//! ```
//!
//! A thread reads both proxies once a second, whatever else is done meanwhile; clients end right
//! after the sample that ends a span.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use ::sim::{Policy, Scenario, World};
use anyhow::{Context as _, ensure};
use api::WhyQuery;
use model::Bytes;

use super::super::super::figures::groups::FigureRun;
use super::super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::super::process::LOOK;
use super::super::bed::{QosProxy, QosTestBed};
use super::super::controllers::{QosController, proxies};
use super::reader::{self, JobReaders};
use super::{SLUICE, rules};

pub(super) fn row() -> FigureRow {
    let what = "200 operations/s over two proxies: both at work, then one, then none";
    let near = |value| FigureBound::Near { value, percent: 2.0 };
    let row = FigureRow::new("control/trace", what, &[SLUICE, SIMULATOR]).rounds(3, 80.0);
    let row = [SLUICE, SIMULATOR].into_iter().fold(row, |row, who| {
        row.goal(who, "both_first_ops_per_s", near(100.0))
            .goal(who, "both_second_ops_per_s", near(100.0))
            .goal(who, "one_second_ops_per_s", near(199.0))
    });
    row.goal(SLUICE, "one_first_share_ops_per_s", near(1.0))
        .goal(SLUICE, "none_first_share_ops_per_s", near(100.0))
        .goal(SLUICE, "none_second_share_ops_per_s", near(100.0))
}

pub(super) fn measure(
    run: &FigureRun<'_>,
    bed: &QosTestBed,
    who: &str,
) -> anyhow::Result<FigureSample> {
    match who {
        SIMULATOR => simulated(),
        _ => real(bed, TraceTimes::of(run.time(&row()).as_secs())),
    }
}

/// When clients begin and end, in seconds.
#[derive(Clone, Copy, Debug)]
struct TraceTimes {
    begin: usize,
    first_ends: usize,
    second_ends: usize,
    end: usize,
}

impl TraceTimes {
    /// As in the scenario.
    const SIMULATED: TraceTimes =
        TraceTimes { begin: 15, first_ends: 75, second_ends: 135, end: 160 };

    /// The same in about this time, or less at the begin and at the end.
    fn of(seconds: u64) -> TraceTimes {
        let span = (seconds as usize).saturating_sub(40).div_ceil(2).max(10);
        let (begin, first_ends) = (5, 5 + span);
        let second_ends = first_ends + span;
        TraceTimes { begin, first_ends, second_ends, end: second_ends + 15 }
    }

    /// Spans by name; what a change does to the shares is over after five seconds.
    fn spans(self) -> [(&'static str, usize, usize); 3] {
        [
            ("both", self.begin + 5, self.first_ends),
            ("one", self.first_ends + 5, self.second_ends),
            ("none", self.second_ends + 5, self.end),
        ]
    }
}

fn simulated() -> anyhow::Result<FigureSample> {
    let scenario = Scenario::parse(SCENARIO, "global-limit")?;
    let report = World::new(&scenario, Policy::Dispatcher, 1).run();
    let mut sample = FigureSample::new();
    for (name, from, to) in TraceTimes::SIMULATED.spans() {
        for (job, which) in report.jobs.iter().zip(WHICH) {
            let span = job.series.get(from..to).unwrap_or_default();
            let served: u64 = span.iter().map(|(requests, _)| requests).sum();
            sample.insert(format!("{name}_{which}_ops_per_s"), served as f64 / (to - from) as f64);
        }
    }
    Ok(sample)
}

fn real(bed: &QosTestBed, times: TraceTimes) -> anyhow::Result<FigureSample> {
    bed.file("small", Bytes::kib(4))?;
    let controller = QosController::start(bed, "trace")?;
    let version = controller.client.set_rules(&rules("200ops/s"))?.version;
    let proxies = proxies(bed, 2, &controller.url, &version)?;
    // The job is there for as long as somebody is attached: its limit can be asked for.
    let attached = proxies.iter().map(|proxy| reader::open(&proxy.address, 8192));
    let _attached = attached.collect::<anyhow::Result<Vec<_>>>()?;
    let (samples, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| watch(&proxies, &samples, &stop));
        let worked = work(bed, &proxies, times, &samples, &sampler);
        stop.store(true, Ordering::Relaxed);
        sampler.join().ok().context("the sampler panicked")?.context("the sampler")?;
        worked
    })?;
    let samples = samples.into_inner().ok().context("the sampler panicked")?;
    figures(&samples, times)
}

/// Clients begin and end, each right after the sample of that second.
fn work(
    bed: &QosTestBed,
    proxies: &[QosProxy],
    times: TraceTimes,
    samples: &Mutex<Vec<TraceSample>>,
    sampler: &ScopedJoinHandle<'_, anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let wait_for = |second: usize| {
        while samples.lock().map_or(0, |samples| samples.len()) <= second {
            ensure!(!sampler.is_finished(), "the sampler has ended");
            bed.wait(LOOK)?;
        }
        anyhow::Ok(())
    };
    let start = |proxy: &QosProxy| JobReaders::start(&[&proxy.address], DEPTH, "small", 4096);
    wait_for(times.begin)?;
    let (first, second) = (start(&proxies[0]), start(&proxies[1]));
    wait_for(times.first_ends)?;
    first.end()?;
    wait_for(times.second_ends)?;
    second.end()?;
    wait_for(times.end)
}

/// Both proxies at the end of a second.
type TraceSample = [ProxySample; 2];

#[derive(Clone, Copy, Debug, Default)]
struct ProxySample {
    /// Since the proxy's start, in seconds.
    at: f64,
    /// Operations that the job was served since then.
    ops: u64,
    /// What the proxy may serve of the limit, in operations/s, if it knows.
    share: Option<f64>,
}

fn watch(
    proxies: &[QosProxy],
    samples: &Mutex<Vec<TraceSample>>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let began = Instant::now();
    for second in 0.. {
        let due = began + Duration::from_secs(second);
        while Instant::now() < due {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()).min(LOOK));
        }
        let now = [ProxySample::of(&proxies[0])?, ProxySample::of(&proxies[1])?];
        samples.lock().ok().context("somebody panicked")?.push(now);
    }
    Ok(())
}

impl ProxySample {
    fn of(proxy: &QosProxy) -> anyhow::Result<ProxySample> {
        let answer = proxy.api.classes()?;
        let of_job = answer.classes.iter().filter(|class| class.rule == "job");
        let ops = of_job.map(|class| class.usage.ops).sum();
        let why = proxy.api.why(&WhyQuery { job: Some("job".into()), ..WhyQuery::default() })?;
        let mut limits = why.subjects.iter().flat_map(|subject| &subject.limits);
        let limit = limits.find(|limit| limit.name == "job");
        let share = limit.map(|limit| limit.per_s as f64 * f64::from(limit.share_ppb) / 1e9);
        Ok(ProxySample { at: answer.t_ns as f64 / 1e9, ops, share })
    }
}

fn figures(samples: &[TraceSample], times: TraceTimes) -> anyhow::Result<FigureSample> {
    let mut sample = FigureSample::new();
    for (name, from, to) in times.spans() {
        let span = samples.get(from..=to).context("a sample is missing")?;
        for (at, which) in WHICH.iter().enumerate() {
            let (first, last) = (span[0][at], span[to - from][at]);
            let served = (last.ops - first.ops) as f64 / (last.at - first.at);
            sample.insert(format!("{name}_{which}_ops_per_s"), served);
            let shares: Option<Vec<f64>> = span.iter().map(|one| one[at].share).collect();
            let shares = shares.with_context(|| format!("the {which} proxy shows no share"))?;
            let share = shares.iter().sum::<f64>() / shares.len() as f64;
            sample.insert(format!("{name}_{which}_share_ops_per_s"), share);
        }
    }
    Ok(sample)
}

/// The two proxies, and the two jobs of the scenario.
const WHICH: [&str; 2] = ["first", "second"];
const SIMULATOR: &str = "simulator";
/// As many at a time as in the scenario.
const DEPTH: usize = 16;
const SCENARIO: &str = include_str!("../../../../scenarios/global-limit.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_where_clients_do() {
        let times = TraceTimes::of(160);
        assert_eq!(times.spans(), [("both", 10, 65), ("one", 70, 125), ("none", 130, 140)]);
        assert_eq!(TraceTimes::SIMULATED.spans()[0], ("both", 20, 75));
    }

    #[test]
    fn what_is_served_is_between_the_first_and_the_last_sample_of_a_span() {
        let times = TraceTimes { begin: 0, first_ends: 7, second_ends: 14, end: 21 };
        let sample = |second: u64| {
            let ops = 100 * second.min(7);
            let one = ProxySample { at: second as f64, ops, share: Some(1.0) };
            [one, ProxySample { share: Some(second as f64), ..one }]
        };
        let samples: Vec<TraceSample> = (0..=21).map(sample).collect();
        let found = figures(&samples, times).unwrap();
        assert_eq!(found["both_first_ops_per_s"], 100.0);
        assert_eq!(found["one_first_ops_per_s"], 0.0);
        assert_eq!(found["one_second_share_ops_per_s"], 13.0);
        assert!(figures(&samples[..21], times).is_err());
    }
}
