//! Limits: a job gets what its limit says, however it asks, and is never frozen.
//!
//! Every case is a job of its own, so that each begins with a meter that nobody has used.
//! What was served comes from the control API's counters and their own time. The rate
//! without a limit is measured first for each way of asking; where it is not well above a
//! limit, the limit limits nothing, and the row says so.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Bytes;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::super::work::WorkOp;
use super::bed::{QosProxy, QosSetup, QosTestBed};
use super::job::{Cut, QosJob, QosJobPart};

/// Limits of one job.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "limits",
    title: "Limits",
    what: "One job of cached reads with a limit, by every size, number of connections and depth. The \
           error is what it was served, against the limit's rate times the span; a span is so long \
           that a request and the burst are within 2 % of it. `gap` is the longest time without a \
           reply, as a multiple of the longest that the limit explains.",
    sources: &["bench/src/qos/limits.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Calibrate],
    rows: || cases().map(|(limit, shape)| row(limit, shape)).collect(),
    measure,
};

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

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = QosTestBed::make(Some(run.dir), run.sluice, run.stop)?;
    let warm = bed.file("warm", WARM_LEN)?;
    let rules = rules();
    let proxy = bed.proxy("limits", &QosSetup { rules: &rules, ..QosSetup::default() })?;
    let mut free = BTreeMap::new();
    for (number, (limit, shape)) in cases().enumerate() {
        let row = row(limit, shape);
        if !sink.wants(&row.id) {
            continue;
        }
        let round = sink.begin(&row.id);
        std::io::copy(&mut warm.try_clone()?, &mut std::io::sink())?;
        if let std::collections::btree_map::Entry::Vacant(entry) = free.entry(shape) {
            let served = serve(&bed, &proxy, &format!("free.{number}"), shape, FREE_TIME)?;
            entry.insert(served.bytes as f64 / served.seconds);
        }
        let free = free[&shape];
        if free < 1.5 * limit.bytes_per_sec(shape.size) {
            drop(round);
            let mb = free / 1e6;
            let why = format!("without a limit {mb:.0} MB/s, less than 1.5 times the limit");
            sink.not_applicable(&row.id, &why)?;
            continue;
        }
        let job = format!("{}.{number}", limit.tag());
        let served = serve(&bed, &proxy, &job, shape, run.time(&row))?;
        let mut round = round;
        round.sample(SLUICE, sample(limit, shape, &served, free));
        round.end()?;
    }
    Ok(())
}

fn serve(
    bed: &QosTestBed,
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
    bed.wait(SETTLE)?;
    let (began, before) = proxy.class(job)?;
    load.cut()?;
    bed.wait(time)?;
    let (ended, after) = proxy.class(job)?;
    let cut = load.cut()?;
    cut.check()?;
    let usage = after.usage.since(&before.usage);
    Ok(LimitServed { bytes: usage.read_bytes, ops: usage.ops, seconds: ended - began, cut })
}

fn sample(limit: LimitCase, shape: LimitShape, served: &LimitServed, free: f64) -> FigureSample {
    let amount = match limit {
        LimitCase::Bytes(_) => served.bytes,
        LimitCase::Ops(_) => served.ops,
    };
    let (rate, request) = limit.rate_and_request(shape.size);
    let granted = rate * served.seconds;
    // Requests take turns: two of them, and the burst's time for a thread to wake.
    let gap_max = 2.0 * request / rate + BURST_SECONDS;
    let gap = served.cut.gap.as_secs_f64();
    let all = [
        ("error_percent", (amount as f64 / granted - 1.0) * 100.0),
        ("gap_ratio", gap / gap_max),
        ("gap_ms", gap * 1e3),
        ("span_s", served.seconds),
        ("without_limit_mb_per_s", free / 1e6),
        ("p99_us", served.cut.latency_us(0.99)),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn row(limit: LimitCase, shape: LimitShape) -> FigureRow {
    let LimitShape { size, connections, depth } = shape;
    let id = format!("limits/{}-{}k-{connections}x{depth}", limit.tag(), size >> 10);
    let what =
        format!("{} by reads of {}, {connections} × {depth}", limit.text(), Bytes::new(size));
    FigureRow::new(&id, &what, &[SLUICE])
        .rounds(1, seconds(limit, shape))
        .goal(SLUICE, "error_percent", FigureBound::Within(2.0))
        .goal(SLUICE, "gap_ratio", FigureBound::Most(1.0))
}

/// Seconds after which a request and the burst are within 2 % of what the limit grants.
fn seconds(limit: LimitCase, shape: LimitShape) -> f64 {
    let (rate, request) = limit.rate_and_request(shape.size);
    let burst = (rate * BURST_SECONDS).max(request);
    ((request + burst) / rate / 0.02).ceil().max(10.0)
}

/// Every limit in every shape.
fn cases() -> impl Iterator<Item = (LimitCase, LimitShape)> {
    LIMITS.into_iter().flat_map(|limit| shapes().map(move |shape| (limit, shape)))
}

fn shapes() -> impl Iterator<Item = LimitShape> {
    let sizes = [4 << 10, 64 << 10, 1 << 20];
    let all = move |size| {
        let depths = move |connections| {
            [1, 8, 64].map(|depth| LimitShape { size, connections, depth }).into_iter()
        };
        [1, 8].into_iter().flat_map(depths)
    };
    sizes.into_iter().flat_map(all)
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

    /// The rate, and what one request of that size is of it.
    fn rate_and_request(self, size: u64) -> (f64, f64) {
        match self {
            LimitCase::Bytes(rate) => (rate as f64, size as f64),
            LimitCase::Ops(rate) => (rate as f64, 1.0),
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
const SLUICE: &str = "sluice";
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
        let rules = rules::RuleSet::parse(&rules()).unwrap();
        assert_eq!(rules.rules.len(), LIMITS.len() + 1);
        assert_eq!(rules.rules[0].limits[0].rate.per_sec(), 1_000_000);
        assert_eq!(rules.rules[7].limits[0].rate.per_sec(), 100_000);
    }

    #[test]
    fn a_span_is_long_enough_for_a_request_and_the_burst() {
        let shape = |size| LimitShape { size, connections: 1, depth: 1 };
        assert_eq!(seconds(LimitCase::Bytes(100_000_000), shape(4096)), 10.0);
        // A burst is at least a request: 2 MiB are 2 % of 105 s of 1 MB/s.
        assert_eq!(seconds(LimitCase::Bytes(1_000_000), shape(1 << 20)), 105.0);
        assert_eq!(cases().count(), 144);
    }
}
