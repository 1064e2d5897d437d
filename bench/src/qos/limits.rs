//! Limits: a job gets what its limit says, however it asks, and is never frozen.
//!
//! Every case is a job of its own, so that each begins with a meter that nobody has used.
//! What was served comes from the control API's counters and their own time. The rate
//! without a limit is measured first for each way of asking; a limit that is not well
//! below it limits nothing and is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Bytes;

use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{QosProxy, QosSetup};
use super::job::{Cut, QosJob, QosJobPart};
use super::table::{QosRow, QosTable, figures};

/// How a job asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LimitShape {
    size: u64,
    connections: usize,
    depth: usize,
}

/// A rate in bytes or operations per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitCase {
    Bytes(u64),
    Ops(u64),
}

/// What a job was served in a span.
struct LimitServed {
    bytes: u64,
    ops: u64,
    seconds: f64,
    cut: Cut,
}

/// Measures every limit in every shape that can exceed it.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    table.progress("making files");
    let bed = &run.bed;
    let warm = bed.file("warm", WARM_LEN)?;
    let rules = rules();
    let proxy = bed.proxy("limits", &QosSetup { rules: &rules, ..QosSetup::default() })?;
    let mut free = BTreeMap::new();
    let mut number = 0;
    let mut skipped = 0;
    for limit in LIMITS {
        for shape in shapes(run.is_quick()) {
            if !run.wants(&name(limit, shape)) {
                continue;
            }
            table.progress(&name(limit, shape));
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink())?;
            number += 1;
            if let std::collections::btree_map::Entry::Vacant(entry) = free.entry(shape) {
                let served = serve(run, &proxy, &format!("free.{number}"), shape, FREE_TIME)?;
                entry.insert(served.bytes as f64 / served.seconds);
            }
            let free = free[&shape];
            if free < 1.5 * limit.bytes_per_sec(shape.size) {
                skipped += 1;
                continue;
            }
            let job = format!("{}.{number}", limit.tag());
            let served = serve(run, &proxy, &job, shape, run.time(10, 3))?;
            table.add(row(limit, shape, &served, free));
        }
    }
    table.note(format!("{skipped} cases left out: unlimited, they had less than 1.5 × the limit"));
    Ok(())
}

fn serve(
    run: &QosRun<'_>,
    proxy: &QosProxy,
    job: &str,
    shape: LimitShape,
    time: Duration,
) -> anyhow::Result<LimitServed> {
    let mut plan = proxy.plan("x", job, WorkOp::Randread, Bytes::new(shape.size));
    plan.connections = shape.connections;
    plan.depth = shape.depth;
    plan.file_size = WARM_LEN;
    let part = QosJobPart { plan, dir: String::new(), data: "warm".into() };
    let mut load = QosJob::start(&[part])?;
    run.bed.wait(SETTLE)?;
    let (began, before) = proxy.class(job)?;
    load.cut()?;
    run.bed.wait(time)?;
    let (ended, after) = proxy.class(job)?;
    let cut = load.cut()?;
    cut.check()?;
    let usage = after.usage.since(&before.usage);
    Ok(LimitServed { bytes: usage.read_bytes, ops: usage.ops, seconds: ended - began, cut })
}

fn row(limit: LimitCase, shape: LimitShape, served: &LimitServed, free: f64) -> QosRow {
    let (amount, rate, request) = match limit {
        LimitCase::Bytes(rate) => (served.bytes as f64, rate as f64, shape.size as f64),
        LimitCase::Ops(rate) => (served.ops as f64, rate as f64, 1.0),
    };
    let granted = rate * served.seconds;
    let error = amount - granted;
    let bound = bound(rate, request, granted);
    // Requests take turns: two of them, and the burst's time for a thread to wake.
    let gap_max = 2.0 * request / rate + BURST_SECONDS;
    let gap = served.cut.gap.as_secs_f64();
    let frozen = gap > gap_max;
    let percent = error / granted * 100.0;
    let mut beside = format!("longest gap {:.0} ms", gap * 1e3);
    if frozen {
        beside.push_str(&format!(": frozen, {:.0} ms expected at most", gap_max * 1e3));
    }
    QosRow {
        case: name(limit, shape),
        target: format!("within {:.2} %, never frozen", bound / granted * 100.0),
        reached: format!("{percent:+.2} %"),
        met: Some(error.abs() <= bound && !frozen),
        beside,
        figures: figures([
            ("served", amount),
            ("granted", granted),
            ("bound", bound),
            ("seconds", served.seconds),
            ("error_percent", percent),
            ("gap_ms", gap * 1e3),
            ("gap_max_ms", gap_max * 1e3),
            ("free_bytes_per_sec", free),
            ("p99_us", served.cut.latency_us(0.99)),
        ]),
    }
}

/// How far from its grant a job may be: 2 %, or one request and the burst.
fn bound(rate: f64, request: f64, granted: f64) -> f64 {
    let burst = (rate * BURST_SECONDS).max(request);
    (granted * 0.02).max(request + burst)
}

fn shapes(quick: bool) -> Vec<LimitShape> {
    let sizes: &[u64] = if quick { &[4 << 10, 1 << 20] } else { &[4 << 10, 64 << 10, 1 << 20] };
    let depths: &[usize] = if quick { &[1, 64] } else { &[1, 8, 64] };
    let mut all = Vec::new();
    for &size in sizes {
        for connections in [1, 8] {
            all.extend(depths.iter().map(|&depth| LimitShape { size, connections, depth }));
        }
    }
    all
}

fn name(limit: LimitCase, shape: LimitShape) -> String {
    let LimitShape { size, connections, depth } = shape;
    format!("{}, {}, {connections} × {depth}", limit.text(), Bytes::new(size))
}

impl LimitCase {
    /// As a rule says it.
    fn text(self) -> String {
        match self {
            LimitCase::Bytes(rate) => format!("{}MB/s", rate / 1_000_000),
            LimitCase::Ops(rate) => format!("{rate}ops/s"),
        }
    }

    /// What its jobs' names begin with.
    fn tag(self) -> String {
        match self {
            LimitCase::Bytes(rate) => format!("bytes{}", rate / 1_000_000),
            LimitCase::Ops(rate) => format!("ops{rate}"),
        }
    }

    fn bytes_per_sec(self, size: u64) -> f64 {
        match self {
            LimitCase::Bytes(rate) => rate as f64,
            LimitCase::Ops(rate) => (rate * size) as f64,
        }
    }
}

/// A rule for each limit, and one for what is measured without.
fn rules() -> String {
    let rule = |tag: &str, limit: &str| {
        format!(
            "[[rule]]\nname = \"{tag}\"\nmatch = \"jobid={{{tag}.*}}\"\nper = [\"jobid\"]\n{limit}\n"
        )
    };
    let limited = |limit: LimitCase| rule(&limit.tag(), &format!("limit = \"{}\"\n", limit.text()));
    LIMITS.into_iter().map(limited).collect::<String>() + &rule("free", "")
}

const LIMITS: [LimitCase; 8] = [
    LimitCase::Bytes(1_000_000),
    LimitCase::Bytes(10_000_000),
    LimitCase::Bytes(100_000_000),
    LimitCase::Bytes(1_000_000_000),
    LimitCase::Ops(100),
    LimitCase::Ops(1_000),
    LimitCase::Ops(10_000),
    LimitCase::Ops(100_000),
];
const WARM_LEN: Bytes = Bytes::mib(256);
const FREE_TIME: Duration = Duration::from_secs(1);
/// The burst that an unused meter lets through at once is over by then.
const SETTLE: Duration = Duration::from_millis(500);
/// The burst of a limit that names none, in seconds of its rate.
const BURST_SECONDS: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_all_limits_are_rules() {
        let rules = model::RuleSet::parse(&rules()).unwrap();
        assert_eq!(rules.rules.len(), LIMITS.len() + 1);
        assert_eq!(rules.rules[0].limits[0].rate.per_sec(), 1_000_000);
        assert_eq!(rules.rules[7].limits[0].rate.per_sec(), 100_000);
    }

    #[test]
    fn a_bound_is_two_percent_or_a_request_and_the_burst() {
        // 10 s of 100 MB/s by 4 KiB: 2 % are more than a request and the burst of 10 MB.
        assert_eq!(bound(1e8, 4096.0, 1e9), 2e7);
        // 3 s of it: they are less.
        assert_eq!(bound(1e8, 4096.0, 3e8), 1e7 + 4096.0);
        // Requests larger than the burst count twice.
        assert_eq!(bound(1e6, 1048576.0, 1e7), 2.0 * 1048576.0);
    }
}
