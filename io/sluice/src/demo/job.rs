//! One job of the demo, a process of its own: a load on the proxy that tells its
//! parent, four times a second, what it was served.
//!
//! ```text
//!   sluice demo-job ──9P──► proxy
//!        └─ stdout: a line of JSON, a [`Message`], when it begins and for each interval
//! ```
//!
//! It ends on SIGTERM, through the engine's own end, with nothing in flight.

use std::io::Write as _;
use std::time::Duration;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use model::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::bench::link::Score;
use crate::bench::load::{self, Watch};
use crate::bench::plan::Plan;
use crate::bench::socket::Address;
use crate::bench::stop_on_signals;
use crate::bench::work::Op;

/// Works for the demo as one of its jobs, until SIGTERM.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Which job.
    job: Job,
    /// Where the proxy listens.
    server: Address,
    /// Size of each file it works on.
    #[arg(long)]
    file_size: Bytes,
    /// The file of the export that the victim reads.
    #[arg(long)]
    file: Option<String>,
}

/// The demo's two jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Job {
    /// Large writes, many in flight.
    Bully,
    /// Small random reads, stats, creates and now and then an fsync, two at a time.
    Victim,
}

/// What a job tells its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    /// Its files are there and its load runs.
    Began,
    /// What one interval brought.
    Interval(Interval),
}

/// What one interval brought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// Its length in seconds.
    pub(crate) seconds: f64,
    /// Operations finished.
    pub(crate) ops: u64,
    /// Payload moved.
    pub(crate) bytes: u64,
    /// Error replies, and replies with other data than asked for.
    pub(crate) errors: u64,
    /// Latencies in nanoseconds, and how many operations had each; within one percent.
    pub(crate) latency_ns: Vec<(u64, u64)>,
}

/// How often a job tells what it was served.
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);

/// Runs the job until SIGTERM.
pub(crate) fn run_job(args: JobArgs) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    let ended = load::run(&args.plan(), &stop, &mut Teller);
    // It runs for ever, so being stopped is its only good end.
    match stop.load(std::sync::atomic::Ordering::Relaxed) {
        true => Ok(()),
        false => ended.map(drop),
    }
}

impl Job {
    /// Its name in rules, tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Job::Bully => "bully",
            Job::Victim => "victim",
        }
    }
}

impl JobArgs {
    fn plan(&self) -> Plan {
        let plan = Plan {
            aname: format!("data?job={}", self.job.name()),
            uid: rustix::process::getuid().as_raw(),
            file_size: self.file_size,
            file: self.file.clone(),
            // The parent sees to what the page cache holds.
            cold: true,
            time: FOR_EVER,
            warmup: Nanos::new(0),
            every: Some(Nanos::new(INTERVAL.as_nanos() as u64)),
            ..Plan::new(self.server.clone())
        };
        match self.job {
            Job::Bully => Plan {
                op: Op::Write,
                size: Some(Bytes::mib(1)),
                msize: Bytes::mib(2),
                connections: BULLY_FILES,
                depth: BULLY_IN_FLIGHT / BULLY_FILES,
                ..plan
            },
            Job::Victim => Plan { op: Op::Interactive, depth: VICTIM_IN_FLIGHT, ..plan },
        }
    }
}

/// Tells the parent on stdout.
struct Teller;

impl Watch for Teller {
    fn begins(&mut self) {
        tell(&Message::Began);
    }

    fn interval(&mut self, _index: u64, score: &Score, span: Duration) {
        tell(&Message::Interval(Interval::of(score, span)));
    }
}

fn tell(message: &Message) {
    let line = serde_json::to_string(message).expect("a message is plain data");
    // A parent that is gone takes this process with it.
    let _ = writeln!(std::io::stdout(), "{line}");
}

impl Interval {
    fn of(score: &Score, span: Duration) -> Interval {
        let mut coarse = latencies();
        for step in score.latency_ns.iter_recorded() {
            coarse.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        let pair = |step: hdrhistogram::iterators::IterationValue<u64>| {
            (step.value_iterated_to(), step.count_at_value())
        };
        Interval {
            seconds: span.as_secs_f64(),
            ops: score.ops,
            bytes: score.bytes,
            errors: score.errors.values().sum::<u64>() + score.wrong,
            latency_ns: coarse.iter_recorded().map(pair).collect(),
        }
    }
}

/// An empty histogram of latencies, precise to one percent so that a line stays short.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)
        .expect("bounds and digits are within what the histogram allows")
}

/// The bully's files, each written over and over from its beginning to its end.
pub(crate) const BULLY_FILES: usize = 4;
const BULLY_IN_FLIGHT: usize = 16;
const VICTIM_IN_FLIGHT: usize = 2;
const FOR_EVER: Nanos = Nanos::from_secs(24 * 3600);
const LATENCY_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_reads_back_as_it_was() {
        let mut score = Score::new();
        score.ops = 3;
        score.bytes = 8192;
        score.wrong = 1;
        score.errors.insert(5, 2);
        score.latency_ns.record_n(1000, 2).unwrap();
        score.latency_ns.record(1_000_000).unwrap();
        let message = Message::Interval(Interval::of(&score, INTERVAL));
        let line = serde_json::to_string(&message).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
        let Message::Interval(interval) = message else { panic!("{message:?}") };
        assert_eq!((interval.ops, interval.bytes, interval.errors), (3, 8192, 3));
        let counts: Vec<u64> = interval.latency_ns.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1]);
        let (slowest, _) = interval.latency_ns[1];
        assert!((990_000..=1_010_000).contains(&slowest), "{slowest}");
    }

    #[test]
    fn the_plans_of_both_jobs_can_be_run() {
        for job in [Job::Bully, Job::Victim] {
            let server = Address::Unix("/s".into());
            let args = JobArgs { job, server, file_size: Bytes::mib(64), file: None };
            args.plan().check().unwrap();
        }
    }
}
