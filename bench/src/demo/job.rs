//! The demo's jobs: ordinary programs that know nothing of Sluice, on one mount.
//!
//! ```text
//!   fio, a status with all latencies so far ─► the difference to the one before ─┐
//!   sh, a line for each round of its tools ─► the time since the one before ─────┴► Interval
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::time::Instant;

use hdrhistogram::Histogram;
use model::Bytes;
use serde::{Deserialize, Serialize};

/// What works in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DemoJob {
    /// fio: large writes, many in flight.
    Bully,
    /// fio: small random reads past the page cache, and now and then a small write with
    /// fdatasync.
    Victim,
    /// The victim's other half: shell tools that list, make, rename and remove.
    Shell,
}

/// What one interval brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    /// Its length in seconds.
    pub(crate) seconds: f64,
    /// Operations finished in the interval.
    pub(crate) ops: u64,
    /// Payload bytes read and written.
    pub(crate) bytes: u64,
    /// Operations that failed in the interval.
    pub(crate) errors: u64,
    /// Latencies in nanoseconds, and how many operations had each; within one percent.
    pub(crate) latency_ns: Vec<(u64, u64)>,
}

/// How large the jobs' files are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The file that the victim reads.
    pub(super) victim: Bytes,
    /// Each of the bully's files.
    pub(super) bully: Bytes,
}

impl DemoJob {
    /// Its name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DemoJob::Bully => "bully",
            DemoJob::Victim => "victim",
            DemoJob::Shell => "shell",
        }
    }

    /// The job that it belongs to, by its environment and in rules.
    pub(super) fn account(self) -> &'static str {
        match self {
            DemoJob::Bully => "bully",
            DemoJob::Victim | DemoJob::Shell => "victim",
        }
    }

    /// The program, and its arguments for working in `dir`.
    pub(super) fn command(self, dir: &Path, sizes: Sizes) -> (&'static str, Vec<String>) {
        let dir = dir.display();
        match self {
            DemoJob::Bully => {
                let more = [
                    format!("--name=bully --directory={dir} --rw=write --bs=1M"),
                    format!("--numjobs={BULLY_WRITERS} --size={}", sizes.bully.get()),
                ];
                ("fio", fio(&more))
            }
            DemoJob::Victim => {
                let size = sizes.victim.get();
                let more = [
                    format!("--name=reads --filename={dir}/{READ_FILE} --size={size}"),
                    "--rw=randread --bs=4k --direct=1".into(),
                    format!(
                        "--name=saves --filename={dir}/saved --size=16M --rw=randwrite --bs=4k"
                    ),
                    format!("--fdatasync=1 --rate_iops={SAVES_PER_SEC}"),
                ];
                ("fio", fio(&more))
            }
            DemoJob::Shell => ("sh", vec!["-c".into(), ROUND.into(), "sh".into(), dir.to_string()]),
        }
    }

    /// Passes on what the program tells on its stdout, until it tells no more.
    pub(super) fn listen(self, stdout: impl Read, tell: &mut dyn FnMut(Interval)) {
        match self {
            DemoJob::Shell => listen_to_rounds(stdout, tell),
            DemoJob::Bully | DemoJob::Victim => listen_to_fio(stdout, tell),
        }
    }
}

/// fio's command line, from what is particular to a job.
fn fio(more: &[String]) -> Vec<String> {
    let words = more.iter().flat_map(|part| part.split(' ')).map(String::from);
    let common = "--output-format=json+ --status-interval=250ms --group_reporting --thread \
                  --ioengine=psync --time_based --runtime=86400 --fallocate=none";
    common.split_whitespace().map(String::from).chain(words).collect()
}

/// Each line is a round.
fn listen_to_rounds(stdout: impl Read, tell: &mut dyn FnMut(Interval)) {
    let mut before = Instant::now();
    for _ in BufReader::new(stdout).lines().map_while(Result::ok) {
        let took = before.elapsed();
        before = Instant::now();
        tell(Interval {
            seconds: took.as_secs_f64(),
            ops: 1,
            latency_ns: vec![(took.as_nanos() as u64, 1)],
            ..Interval::default()
        });
    }
}

/// Each status has everything since the beginning. The first is where the telling begins.
fn listen_to_fio(stdout: impl Read, tell: &mut dyn FnMut(Interval)) {
    let all = serde_json::Deserializer::from_reader(BufReader::new(stdout));
    let mut before: Option<DemoJobStatus> = None;
    for status in all.into_iter::<DemoJobStatus>().map_while(Result::ok) {
        if let Some(before) = &before
            && status.timestamp_ms > before.timestamp_ms
        {
            tell(status.since(before));
        }
        before = Some(status);
    }
}

/// One status of fio: what is counted of it.
#[derive(Debug, Deserialize)]
struct DemoJobStatus {
    timestamp_ms: u64,
    jobs: Vec<DemoJobPart>,
}

#[derive(Debug, Deserialize)]
struct DemoJobPart {
    error: i64,
    read: DemoDirection,
    write: DemoDirection,
    sync: Syncs,
}

#[derive(Debug, Deserialize)]
struct DemoDirection {
    io_bytes: u64,
    clat_ns: DemoLatency,
}

#[derive(Debug, Deserialize)]
struct Syncs {
    lat_ns: DemoLatency,
}

#[derive(Debug, Default, Deserialize)]
struct DemoLatency {
    /// How many operations took each time in nanoseconds.
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

impl DemoJobStatus {
    fn bytes(&self) -> u64 {
        self.jobs.iter().map(|part| part.read.io_bytes + part.write.io_bytes).sum()
    }

    fn errors(&self) -> u64 {
        self.jobs.iter().filter(|part| part.error != 0).count() as u64
    }

    fn latencies(&self) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for part in &self.jobs {
            for latency in [&part.read.clat_ns, &part.write.clat_ns, &part.sync.lat_ns] {
                for (ns, count) in &latency.bins {
                    *sums.entry(ns.parse().unwrap_or(0)).or_default() += count;
                }
            }
        }
        sums
    }

    fn since(&self, before: &DemoJobStatus) -> Interval {
        let earlier = before.latencies();
        let new = |(ns, count): (u64, u64)| {
            let new = count.saturating_sub(earlier.get(&ns).copied().unwrap_or(0));
            (new > 0).then_some((ns, new))
        };
        let latency_ns: Vec<_> = self.latencies().into_iter().filter_map(new).collect();
        Interval {
            seconds: (self.timestamp_ms - before.timestamp_ms) as f64 / 1e3,
            ops: latency_ns.iter().map(|(_, count)| count).sum(),
            bytes: self.bytes().saturating_sub(before.bytes()),
            errors: self.errors(),
            latency_ns,
        }
    }
}

/// An empty histogram of latencies, precise to one percent.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)
        .expect("bounds and digits are within what the histogram allows")
}

/// The bully's writers, each with a file of its own and one write under way.
pub(crate) const BULLY_WRITERS: usize = 16;
/// How often the victim saves something.
const SAVES_PER_SEC: u32 = 20;
/// What the victim's fio reads.
pub(super) const READ_FILE: &str = "read";
/// What the victim's shell does over and over. ls says 1 where a file went while it was listed.
const ROUND: &str = "while :; do { ls -l \"$1\" > /dev/null || [ $? -eq 1 ]; } && \
                     echo note > \"$1/new\" && \
                     mv \"$1/new\" \"$1/note\" && stat \"$1/note\" > /dev/null && \
                     rm \"$1/note\" && echo round || exit 1; done";
const LATENCY_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const PART: &str = r#""error":0,"read":{"io_bytes":RB,"clat_ns":{"N":1,"bins":{RBINS}}},
        "write":{"io_bytes":0,"clat_ns":{}},"sync":{"total_ios":1,"lat_ns":{"bins":{"9000":SN}}}"#;

    fn status(ms: u64, bytes: u64, bins: &str, syncs: u64) -> String {
        let part = PART.replace("RBINS", bins).replace("RB", &bytes.to_string());
        let part = part.replace("SN", &syncs.to_string());
        format!("{{\"timestamp_ms\":{ms},\"jobs\":[{{\"jobname\":\"reads\",{part}}}]}}\n")
    }

    #[test]
    fn two_statuses_make_one_interval_of_what_is_new() {
        let text = status(1000, 4096, r#""700":1"#, 1)
            + &status(1250, 16384, r#""700":3,"9000":1"#, 2)
            + "{\"cut";
        let mut told = Vec::new();
        DemoJob::Victim.listen(text.as_bytes(), &mut |interval| told.push(interval));
        let interval = Interval {
            seconds: 0.25,
            ops: 4,
            bytes: 12_288,
            errors: 0,
            latency_ns: vec![(700, 2), (9000, 2)],
        };
        assert_eq!(told, [interval]);
    }

    #[test]
    fn each_line_of_the_shell_is_a_round() {
        let mut rounds = 0;
        DemoJob::Shell.listen(&b"round\nround\n"[..], &mut |interval| rounds += interval.ops);
        assert_eq!(rounds, 2);
    }

    #[test]
    fn the_programs_work_in_their_jobs_directory() {
        let sizes = Sizes { victim: Bytes::mib(32), bully: Bytes::mib(16) };
        for job in [DemoJob::Bully, DemoJob::Victim, DemoJob::Shell] {
            let (_, arguments) = job.command(Path::new("/m/dir"), sizes);
            assert!(arguments.iter().any(|word| word.contains("/m/dir")), "{arguments:?}");
        }
    }
}
