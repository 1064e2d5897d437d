//! What the core costs without any proxy around it: the dispatcher beside other schedulers, the
//! memory of a class, the simulator's speed.
//!
//! ```text
//!   sim::Backlog (all classes backlogged) ─► enqueue, choose, complete ─► time of this thread
//!   sluice-bench class-memory N ─► a process of its own ─► its resident memory
//!   sluice-bench simulate NAME  ─► a process of its own ─► events, time, memory
//! ```
//!
//! All schedulers have the same load and the same rules, through the same calls; `dmclock` has the
//! three heaps of the published algorithm, `tbf` the one heap by deadline of Lustre, both with the
//! heap that ours has.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::sim::{Backlog, Policy, Scenario, World};
use anyhow::{Context as _, bail, ensure};
use model::{
    Amount, Directory, FilePlace, Identity, JobId, KindSet, Lane, Nanos, Nid, OpKind, PathSet,
    Rate, TargetId, Time,
};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, KeyField, Limit,
    Match, Rule, RuleSet,
};
use rustix::time::{ClockId, clock_gettime};
use sched::{Arrival, Costs, Dispatcher, TargetParams};

use super::figures::groups::{FigureGroup, FigureRun};
use super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::figures::sink::FigureSink;
use super::figures::sources::FigureProgram;
use super::programs;

/// The scheduler and the simulator by themselves.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "scheduler",
    title: "The scheduler by itself",
    what: "`each` is a request's enqueue, choice and completion, in processor time. `sluice` has every \
           mechanism on: weights, reservations, a limit and a cap on slots for each class, slots by \
           size, and a meter that all share; with `sluice-short-meter` every class waits at that \
           meter; `sluice-by-weight` has weights alone. `dmclock` and `tbf` are dmClock and the \
           token bucket filter of Lustre under the same load and heap.",
    sources: &["bench/src/scheduler_costs.rs"],
    programs: &[FigureProgram::Simulator],
    rows,
    measure,
};

/// The command that measures the memory of classes, for a process of its own
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClassMemoryArgs {
    classes: u64,
    /// Their jobs do not end
    #[arg(long)]
    stay: bool,
}

/// The command that simulates one world, for a process of its own
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    world: String,
}

fn rows() -> Vec<FigureRow> {
    let mut rows = Vec::new();
    for (classes, most_ns) in [(100, Some(150.0)), (1_000, None), (10_000, Some(300.0))] {
        let id = format!("scheduler/dispatcher-{classes}");
        let what = format!("a request in the scheduler, {classes} classes that are all backlogged");
        let mut row = FigureRow::new(&id, &what, &SCHEDULERS)
            .rounds(7, 0.5)
            .beside(OURS, "each_ns", FigureBound::TimesMost(1.0), &["dmclock"])
            .beside(OURS, "each_ns", FigureBound::TimesMost(2.0), &["tbf"]);
        if let Some(most) = most_ns {
            row = row.goal(BY_WEIGHT, "each_ns", FigureBound::Most(most));
        }
        rows.push(row);
    }
    for branches in [1, 64, 4_096] {
        let id = format!("scheduler/branches-{branches}");
        let what =
            format!("a request of a class with {branches} reserved directories, all backlogged");
        let row = FigureRow::new(&id, &what, &["sluice"]).rounds(7, 0.5);
        rows.push(row.goal("sluice", "each_ns", FigureBound::Most(1_000.0)));
    }
    for change in CHANGES {
        let id = format!("scheduler/change-{}", change.name);
        let row = FigureRow::new(&id, change.what, &["sluice"]).rounds(3, 1.0);
        rows.push(row.goal("sluice", "call_ms", FigureBound::Most(1.0)).goal(
            "sluice",
            "change_ms",
            FigureBound::Most(50.0),
        ));
    }
    for change in ENTITLEMENTS {
        let id = format!("scheduler/entitlement-{}", change.name);
        let row = FigureRow::new(&id, change.what, &["sluice"]).rounds(3, 1.0);
        rows.push(row.goal("sluice", "call_ms", FigureBound::Most(1.0)));
    }
    let memory = |name: &str, what: &str| {
        FigureRow::new(&format!("scheduler/{name}"), what, &["sluice"]).rounds(3, 1.0)
    };
    let bound = FigureBound::Most(400.0);
    rows.push(memory("class-idle-10k", "memory of a class whose job has ended, of 10,000").goal(
        "sluice",
        "each_bytes",
        bound,
    ));
    rows.push(memory("class-idle-65k", "the same, of 65,536, which is all that are kept").goal(
        "sluice",
        "each_bytes",
        bound,
    ));
    rows.push(memory("class-present-1m", "memory of a class whose job is there, of 1,000,000"));
    rows.push(memory("simulate-small", "simulating 64 jobs at one server, without checks").goal(
        "sluice",
        "events_per_s",
        FigureBound::Least(1.5e6),
    ));
    rows.push(
        memory("simulate-spider", "simulating 18,640 clients and 192 servers for 60 s")
            .rounds(1, 1.0)
            .goal("sluice", "events_per_s", FigureBound::Least(1.5e6))
            .goal("sluice", "resident_gib", FigureBound::Most(4.0)),
    );
    rows.push(memory("simulate-scenarios", "sluice sim scenarios/, all of them with their checks"));
    rows.push(memory("simulate-seeds", "sluice sim --seeds 1000, with checks").rounds(1, 1.0));
    rows
}

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    for row in rows() {
        if let Some(classes) = row.id.strip_prefix("scheduler/dispatcher-") {
            let classes = classes.parse().context("a number of classes")?;
            sink.round_of(&row, |who| serve(who, classes, run.time(&row)))?;
            continue;
        }
        if let Some(branches) = row.id.strip_prefix("scheduler/branches-") {
            let branches = branches.parse().context("a number of branches")?;
            sink.round_of(&row, |_| serve_branches(branches, run.time(&row)))?;
            continue;
        }
        if let Some(name) = row.id.strip_prefix("scheduler/change-") {
            let change = CHANGES.iter().find(|change| change.name == name);
            let change = change.context("a change of this name")?;
            sink.round_of(&row, |_| change_rules(change, run.time(&row)))?;
            continue;
        }
        if let Some(name) = row.id.strip_prefix("scheduler/entitlement-") {
            let change = ENTITLEMENTS.iter().find(|change| change.name == name);
            let change = change.context("entitlements of this name")?;
            sink.round_of(&row, |_| change_entitlements(change, run.time(&row)))?;
            continue;
        }
        sink.round_of(&row, |_| match row.id.as_str() {
            "scheduler/class-idle-10k" => child(&["class-memory", "10000"]),
            "scheduler/class-idle-65k" => child(&["class-memory", "65536"]),
            "scheduler/class-present-1m" => child(&["class-memory", "1000000", "--stay"]),
            "scheduler/simulate-small" => child(&["simulate", "small"]),
            "scheduler/simulate-spider" => child(&["simulate", "spider"]),
            "scheduler/simulate-scenarios" => {
                simulated(run.sluice, &["sim", "--quiet", "scenarios/"])
            }
            _ => simulated(run.sluice, &["sim", "--quiet", "--seeds", "1000"]),
        })?;
    }
    Ok(())
}

/// Nanoseconds of this thread for each request.
fn serve(who: &str, classes: u32, time: Duration) -> anyhow::Result<FigureSample> {
    let (ample, short) = (Rate::ops_per_sec(200_000), Rate::ops_per_sec(90_000));
    let mut backlog = match who {
        OURS => Backlog::new(Policy::Dispatcher, classes, ample),
        SHORT => Backlog::new(Policy::Dispatcher, classes, short),
        BY_WEIGHT => Backlog::by_weight(Policy::Dispatcher, classes),
        "dmclock" => Backlog::new(Policy::Dmclock, classes, None),
        "tbf" => Backlog::new(Policy::Tbf, classes, None),
        _ => bail!("{who} is not a scheduler"),
    };
    // Some requests of each class, and the burst of a meter that is short.
    (0..WARM_UP).for_each(|_| backlog.serve());
    Ok(each_ns(|| backlog.serve(), time))
}

/// The same where all are of one class, and a row reserves a directory for each branch of it.
fn serve_branches(branches: u64, time: Duration) -> anyhow::Result<FigureSample> {
    let mut sched = Dispatcher::new([target()], Arc::default());
    let rate = Rate::ops_per_sec(10).context("above zero")?;
    let (mut subjects, mut rows) = (Vec::new(), Vec::new());
    for number in 0..branches {
        let directory = Directory::new(format!("export/{number}").as_bytes());
        let place = FilePlace { paths: PathSet::default(), mark: directory.clone() };
        subjects.push(sched.subject(TargetId::FIRST, &who(0)?, place));
        let scope = EntitlementScope { directory, ..EntitlementScope::default() };
        let (grants, source) = (Grantable::Reservation(rate), EntitlementSource::Operator);
        let row = Entitlement::new(scope, grants, KindSet::ALL, source)?;
        rows.push((EntitlementId(number), Some(row)));
    }
    let mut now = Time::from_nanos(1_000_000_000);
    sched.set_entitlements(rows, now, now);
    let (amount, lane) = (Amount::new(4096, 1), Lane::Device);
    let arrival = |subject| Arrival { subject, kind: OpKind::Read, amount, lane, token: 0 };
    for subject in subjects.iter().chain(&subjects) {
        sched.enqueue(arrival(*subject), now);
    }
    let mut serve = || {
        now = now + Nanos::new(1_500);
        let next = sched.poll_dispatch(now).expect("there is a backlog, and nothing runs");
        sched.enqueue(arrival(next.subject), now);
        sched.complete(next.id, amount, now);
    };
    (0..WARM_UP).for_each(|_| serve());
    Ok(each_ns(serve, time))
}

/// Nanoseconds of this thread for each of the requests that are served in a time.
fn each_ns(mut serve: impl FnMut(), time: Duration) -> FigureSample {
    let (began, used) = (Instant::now(), thread_time());
    let mut requests = 0;
    while began.elapsed() < time {
        (0..BATCH).for_each(|_| serve());
        requests += BATCH;
    }
    let each = (thread_time() - used).as_nanos() as f64 / f64::from(requests);
    FigureSample::from([("each_ns".into(), each)])
}

/// A change of rules and back.
fn change_rules(change: &MeasuredChange, time: Duration) -> anyhow::Result<FigureSample> {
    let MeasuredChange { words, others, .. } = change;
    let backlog = changed_backlog();
    let sets = [backlog.edited(words, others), backlog.edited(words, words)];
    ensure!(sets[0] != sets[1], "{words:?} are no words of the rules");
    change_and_back(backlog, &sets, |backlog, rules| backlog.set_rules(rules), time)
}

/// A change of entitlements and back.
fn change_entitlements(
    change: &MeasuredEntitlements,
    time: Duration,
) -> anyhow::Result<FigureSample> {
    let mut backlog = changed_backlog();
    let rows = |rate: Option<u64>| {
        let row = |at: u32| anyhow::Ok((EntitlementId(at.into()), change.row(at, rate)?));
        (0..change.count).map(row).collect::<anyhow::Result<Vec<_>>>()
    };
    let back = if change.stays { Some(10) } else { None };
    let sets = [rows(Some(20))?, rows(back)?];
    backlog.set_entitlements(sets[1].clone());
    change_and_back(backlog, &sets, |backlog, rows| backlog.set_entitlements(rows), time)
}

fn changed_backlog() -> Backlog {
    let ample = Rate::ops_per_sec(200_000);
    Backlog::new(Policy::Dispatcher, CHANGED_CLASSES, ample)
}

/// Milliseconds of this thread for a change and back, while all classes wait: the longest call of a
/// change and all of its calls, the median over changes.
fn change_and_back<C: Clone>(
    mut backlog: Backlog,
    sets: &[C; 2],
    put: impl Fn(&mut Backlog, C),
    time: Duration,
) -> anyhow::Result<FigureSample> {
    (0..WARM_UP).for_each(|_| backlog.serve());
    let began = Instant::now();
    let (mut calls, mut changes) = (Vec::new(), Vec::new());
    while began.elapsed() < time || changes.is_empty() {
        for change in sets {
            let change = change.clone();
            let used = thread_time();
            put(&mut backlog, change);
            let mut last = thread_time();
            let (mut longest, mut is_due) = (last - used, true);
            while is_due {
                is_due = backlog.poll();
                let now = thread_time();
                (longest, last) = (longest.max(now - last), now);
            }
            calls.push(longest.as_secs_f64() * 1e3);
            changes.push((last - used).as_secs_f64() * 1e3);
            (0..BATCH).for_each(|_| backlog.serve());
        }
    }
    let figures = [("call_ms", calls), ("change_ms", changes)].map(|(name, mut values)| {
        values.sort_by(f64::total_cmp);
        (name.to_owned(), values[values.len() / 2])
    });
    Ok(figures.into())
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What this program prints as JSON, in a process of its own.
fn child(words: &[&str]) -> anyhow::Result<FigureSample> {
    let output = Command::new(programs::own()?).args(words).output();
    let output = output.context("cannot start this program once more")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", words.join(" "), errors.trim());
    serde_json::from_slice(&output.stdout).context("unexpected output of this program")
}

/// How long the product's simulator takes, from the root of the project.
fn simulated(sluice: &Path, words: &[&str]) -> anyhow::Result<FigureSample> {
    let began = Instant::now();
    let output = Command::new(sluice).args(words).output().context("cannot start sluice")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sluice {}: {}", words.join(" "), errors.trim());
    Ok(FigureSample::from([("took_s".into(), began.elapsed().as_secs_f64())]))
}

/// Prints what a class costs while nothing of it waits. Each class has one subject, a weight, a
/// limit, a reservation and a finish tag: it was served once.
pub(crate) fn class_memory(args: &ClassMemoryArgs) -> anyhow::Result<()> {
    let mut sched = Dispatcher::new([target()], Arc::new(class_rules()?));
    let before = resident()?;
    for number in 0..args.classes {
        let subject = sched.subject(TargetId::FIRST, &who(number)?, PathSet::default());
        let now = Time::from_nanos(number * 1_000_000);
        let (kind, amount, lane) = (OpKind::Read, Amount::new(4096, 1), Lane::Device);
        sched.enqueue(Arrival { subject, kind, amount, lane, token: number }, now);
        let next = sched.poll_dispatch(now).context("nothing holds it back")?;
        sched.complete(next.id, amount, now);
        if !args.stay {
            sched.release_subject(subject);
        }
    }
    let kept = sched.classes().count().max(1) as f64;
    let used = resident()?.saturating_sub(before) as f64;
    print(&FigureSample::from([
        ("each_bytes".into(), used / kept),
        ("kept_count".into(), kept),
        ("resident_mib".into(), resident()? as f64 / f64::from(1 << 20)),
    ]))
}

fn target() -> TargetParams {
    TargetParams {
        name: "t".into(),
        slots_max: 64,
        threads: 8,
        costs: Costs::default(),
        latency: None,
        recalibrate: false,
    }
}

fn who(number: u64) -> anyhow::Result<Identity> {
    let job = JobId::new(&format!("job.{number}")).context("a short name")?;
    Ok(Identity { job, uid: number as u32, gid: 100, projid: None, nid: Nid::local() })
}

fn class_rules() -> anyhow::Result<RuleSet> {
    let mut set = RuleSet::default();
    let rate = Rate::ops_per_sec(1_000).context("above zero")?;
    set.rules.push(Rule {
        per: vec![KeyField::Jobid],
        limits: vec![Limit { kinds: KindSet::ALL, rate, burst: None }],
        reservation: Rate::ops_per_sec(10),
        max_classes: Some(u32::MAX),
        ..Rule::new("jobs", Match::any())
    });
    Ok(set)
}

/// Prints how fast a world is simulated without checks. An event is an arrival, a dispatch or a
/// completion of a request.
pub(crate) fn simulate(args: &SimulateArgs) -> anyhow::Result<()> {
    let text = match args.world.as_str() {
        "small" => SMALL,
        "spider" => SPIDER,
        other => bail!("no world is named {other}; small and spider are"),
    };
    let scenario = Scenario::parse(text, &args.world)?;
    let began = Instant::now();
    let mut world = World::new(&scenario, Policy::Dispatcher, 1).without_checks();
    world.run_until(world.end());
    let took = began.elapsed().as_secs_f64();
    let events = world.request_events() as f64;
    print(&FigureSample::from([
        ("events_per_s".into(), events / took),
        ("events_count".into(), events),
        ("took_s".into(), took),
        ("resident_gib".into(), resident()? as f64 / f64::from(1 << 30)),
    ]))
}

fn print(sample: &FigureSample) -> anyhow::Result<()> {
    let text = serde_json::to_string(sample).context("cannot write JSON")?;
    crate::print(format_args!("{text}\n"))
}

/// Bytes of memory that this process has in use.
fn resident() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("/proc is not mounted")?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.context("/proc/self/statm has no second number")? * 4096)
}

/// A change of rules.
struct MeasuredChange {
    name: &'static str,
    what: &'static str,
    /// Words of the rules.
    words: &'static str,
    /// The words in their place.
    others: &'static str,
}

/// Rows of entitlements that come, and go or get another rate.
struct MeasuredEntitlements {
    name: &'static str,
    what: &'static str,
    count: u32,
    /// Of a job each, else of a user each.
    of_jobs: bool,
    /// They reserve, else they limit.
    reserve: bool,
    /// They do not go.
    stays: bool,
}

impl MeasuredEntitlements {
    /// The row of that number with a rate in operations a second; none without a rate.
    fn row(&self, at: u32, rate: Option<u64>) -> anyhow::Result<Option<Entitlement>> {
        let Some(rate) = rate else { return Ok(None) };
        let rate = Rate::ops_per_sec(rate).context("a rate above zero")?;
        let (job, uid) =
            if self.of_jobs { (Some(Backlog::job(at)), None) } else { (None, Some(at)) };
        let scope = EntitlementScope { job, uid, ..EntitlementScope::default() };
        let grants = match self.reserve {
            true => Grantable::Reservation(rate),
            false => Grantable::Limit(rate, None),
        };
        let source = EntitlementSource::Operator;
        Ok(Some(Entitlement::new(scope, grants, KindSet::ALL, source)?))
    }
}

const ENTITLEMENTS: [MeasuredEntitlements; 4] = [
    MeasuredEntitlements {
        name: "job",
        what: "a reservation of a job comes or goes, with 10,000 classes that wait",
        count: 1,
        of_jobs: true,
        reserve: true,
        stays: false,
    },
    MeasuredEntitlements {
        name: "user",
        what: "a limit of a user comes or goes, with 10,000 classes that wait",
        count: 1,
        of_jobs: false,
        reserve: false,
        stays: false,
    },
    MeasuredEntitlements {
        name: "100-jobs",
        what: "reservations of 100 jobs come or go in one message, with 10,000 classes that wait",
        count: 100,
        of_jobs: true,
        reserve: true,
        stays: false,
    },
    MeasuredEntitlements {
        name: "rates",
        what: "100 reservations of jobs get other rates, with 10,000 classes that wait",
        count: 100,
        of_jobs: true,
        reserve: true,
        stays: true,
    },
];

const CHANGES: [MeasuredChange; 5] = [
    MeasuredChange {
        name: "meter",
        what: "another rate of a meter that 10,000 classes wait to pay",
        words: "rate = \"200kops/s\"",
        others: "rate = \"190kops/s\"",
    },
    MeasuredChange {
        name: "weight",
        what: "another weight of a rule with 2,500 classes, with 10,000 that wait",
        words: "weight = 3",
        others: "weight = 5",
    },
    MeasuredChange {
        name: "limit",
        what: "another limit of four rules with 10,000 classes, all of which wait",
        words: "limit = \"15ops/s\"",
        others: "limit = \"14ops/s\"",
    },
    MeasuredChange {
        name: "reservation",
        what: "another reservation of four rules with 10,000 classes, all of which wait",
        words: "reservation = \"2ops/s\"",
        others: "reservation = \"1ops/s\"",
    },
    MeasuredChange {
        name: "match",
        what: "another condition of a rule with 2,500 classes, with 10,000 that wait",
        words: "jobid={w3.*}",
        others: "jobid={w3.* x}",
    },
];
const CHANGED_CLASSES: u32 = 10_000;

const OURS: &str = "sluice";
const SHORT: &str = "sluice-short-meter";
const BY_WEIGHT: &str = "sluice-by-weight";
const SCHEDULERS: [&str; 5] = [OURS, SHORT, BY_WEIGHT, "dmclock", "tbf"];
/// Requests before measuring.
const WARM_UP: u32 = 200_000;
/// Requests between two looks at the clock.
const BATCH: u32 = 1_000;

/// 64 jobs in a closed loop at one server.
const SMALL: &str = r#"
from = "a bench"
description = "Jobs with classes of their own at one server."
duration = "20s"
rules = """
[[rule]]
name = "jobs"
per = ["jobid"]
"""

[[target]]
name = "server"
slots = 64
parallelism = 64
read = [["4KiB", "640us"]]
jitter_percent = 20

[[job]]
name = "job"
copies = 64
steps = [{ do = "read 4KiB", depth = 16 }]
"#;

/// Clients and servers of Spider, each server with 1,000 requests a second.
const SPIDER: &str = r#"
from = "Spider, Oak Ridge: 18,640 clients and 192 servers"
description = "Every client asks every server in turn, by chance, a thousand requests a second each."
duration = "60s"
rules = """
[[rule]]
name = "jobs"
per = ["jobid"]
"""

[[target]]
name = "oss"
count = 192
slots = 32
parallelism = 32
read = [["4KiB", "2ms"], ["1MiB", "25ms"]]
jitter_percent = 20

[[job]]
name = "job"
nid = "10.0.0.1"
nodes = 932
copies = 20
steps = [{ do = "read 64KiB, write 256KiB", rate = "1687552B/s", spacing = "poisson" }]
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worlds_are_scenarios() {
        for text in [SMALL, SPIDER] {
            assert!(Scenario::parse(text, "bench").is_ok());
        }
    }

    #[test]
    fn every_scheduler_of_a_row_serves() {
        for who in SCHEDULERS {
            let sample = serve(who, 100, Duration::from_millis(1)).unwrap();
            assert!(sample["each_ns"] > 0.0, "{who}");
        }
    }
}
