//! What the ledger costs: proxies that each report every class each second.
//!
//!   ledger_load [PROXIES CLASSES SECONDS]      default 1000 1000 180
//!
//! Time is invented: the seconds follow each other as fast as they can, and what is
//! printed is the processor time of each part, as a share of one processor at that load.
//! The file is real, in a folder below TMPDIR; a commit syncs it.

use std::path::Path;
use std::time::Duration;

use controller::ledger::{
    Ledger, LedgerBounds, LedgerError, ReplicationBatch, Retention, SubjectKind,
};
use model::{AccountSubject, Identity, JobId, Nid, OpKind, PathSet, Service, Time};
use rustix::time::{ClockId, clock_gettime};
use usage::{UsageLine, UsageReport};

const SECOND_NS: u64 = 1_000_000_000;
/// A day of some year, at a full hour.
const BEGIN_S: u64 = 480_000 * 3_600;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map_while(|word| word.parse().ok()).collect();
    let (proxies, classes, seconds) = match numbers[..] {
        [] => (1_000, 1_000, 180),
        [proxies, classes, seconds] => (proxies, classes, seconds),
        _ => {
            eprintln!("usage: ledger_load [PROXIES CLASSES SECONDS]");
            std::process::exit(2);
        }
    };
    let folder = std::env::temp_dir().join(format!("ledger-load-{}", std::process::id()));
    let made = std::fs::create_dir_all(&folder);
    let ran = made
        .map_err(|error| error.to_string())
        .and_then(|()| run(&folder, proxies, classes, seconds).map_err(|error| error.to_string()));
    let _ = std::fs::remove_dir_all(&folder);
    if let Err(error) = ran {
        eprintln!("ledger_load: {error}");
        std::process::exit(1);
    }
}

fn run(folder: &Path, proxies: u64, classes: u64, seconds: u64) -> Result<(), LedgerError> {
    let path = folder.join("ledger.db");
    let mut ledger = Ledger::open(&path, Retention::default(), LedgerBounds::default(), time(0))?;
    let names: Vec<String> = (0..proxies).map(|i| format!("proxy{i:04}")).collect();
    // every proxy tells the same: what it costs is the same, and the load needs no memory
    let mut report =
        UsageReport { lines: (0..classes).map(line).collect(), ..UsageReport::default() };
    let (mut reports, mut commits, mut copies) =
        (Parts::default(), Parts::default(), Parts::default());
    for second in 0..seconds {
        report.sequence = second + 1;
        report.lines.iter_mut().for_each(serve);
        // Its total is what its lines have.
        report.total = Service::default();
        report.lines.iter().for_each(|line| report.total.add(&line.service));
        reports.time(|| tell(&mut ledger, &names, &report, second))?;
        if (second + 1) % 60 == 0 {
            commits.time(|| ledger.tick(time(second + 1)))?;
            println!(
                "after {:>4} s: {:>5.1} % of a processor for reports, a commit {:.2} s, {} MB resident",
                second + 1,
                reports.share(second + 1),
                commits.last.as_secs_f64(),
                resident_mb(),
            );
        } else {
            ledger.tick(time(second))?;
        }
    }
    let cursor = ledger.cursor();
    let mut bytes = 0;
    copies.time(|| {
        if let ReplicationBatch::Changes(changes) = ledger.copy_since(&cursor)? {
            bytes = changes.len();
        }
        Ok::<(), LedgerError>(())
    })?;
    let mut asked = Parts::default();
    let found = asked.time(|| ledger.sums_by(SubjectKind::User, time(0), time(seconds)))?;
    println!(
        "{proxies} proxies × {classes} classes, one report a second: {:.1} % of a processor for reports, {:.1} % for commits ({:.2} s each at most)",
        reports.share(seconds),
        commits.share(seconds),
        commits.longest.as_secs_f64(),
    );
    println!(
        "a copy of everything: {} MB in {:.2} s; usage of {} users: {:.2} s; file {} MB; {:?}",
        bytes >> 20,
        copies.last.as_secs_f64(),
        found.len(),
        asked.last.as_secs_f64(),
        std::fs::metadata(&path).map_or(0, |file| file.len()) >> 20,
        ledger.stats(),
    );
    Ok(())
}

fn tell(
    ledger: &mut Ledger,
    names: &[String],
    report: &UsageReport,
    second: u64,
) -> Result<(), LedgerError> {
    for name in names {
        ledger.report(name, time(0).as_nanos(), report, time(second))?;
    }
    Ok(())
}

fn line(id: u64) -> UsageLine {
    let identity = Identity {
        job: JobId::new(&format!("ior.{id}")).expect("a short name"),
        uid: 1_000 + (id % 200) as u32,
        gid: 100 + (id % 20) as u32,
        projid: Some((id % 50) as u32),
        nid: Nid::local(),
    };
    let (export, class) = ("scratch".into(), format!("default jobid=ior.{id}").into());
    let subject = AccountSubject { identity, paths: PathSet::default(), export, class }.into();
    UsageLine { id, subject, service: Service::default() }
}

/// A second of a job: reads, writes, and some metadata.
fn serve(line: &mut UsageLine) {
    let counters = &mut line.service;
    counters.read_bytes += (line.id % 64) << 20;
    counters.written_bytes += 3 << 20;
    counters.cost_ns += 1_000_000;
    counters.delayed += line.id % 3;
    counters.delayed_ns += (line.id % 3) * 50_000;
    for (kind, ops) in [
        (OpKind::Read, 64),
        (OpKind::Write, 3),
        (OpKind::Open, 2),
        (OpKind::Getattr, 9),
        (OpKind::Clunk, 2),
    ] {
        counters.ops[kind as usize] += ops;
    }
}

/// Processor time of one part.
#[derive(Default)]
struct Parts {
    sum: Duration,
    last: Duration,
    longest: Duration,
}

impl Parts {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = processor_time();
        let answer = work();
        self.last = processor_time() - begin;
        self.sum += self.last;
        self.longest = self.longest.max(self.last);
        answer
    }

    /// Percent of a processor over so many seconds of load.
    fn share(&self, seconds: u64) -> f64 {
        100.0 * self.sum.as_secs_f64() / seconds as f64
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kb.unwrap_or(0) >> 10
}

fn time(second: u64) -> Time {
    Time::from_nanos((BEGIN_S + second) * SECOND_NS)
}
