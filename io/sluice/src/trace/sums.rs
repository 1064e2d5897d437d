//! Sums up a trace by job, user, class, node or export, and by kind within each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::trace::{Access, TraceOutcome, TraceRecord};
use hdrhistogram::Histogram;
use model::{Amount, Direction, Nanos, OpKind, Time};
use serde::Serialize;

use super::TraceSummary;
use super::lines::{span, span_of};
use crate::top::table;

/// The grouping of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TraceBy {
    /// One row per batch job.
    Job,
    /// One row per user id.
    User,
    /// One row per class of the rules.
    Class,
    /// One row per client node.
    Client,
    /// One row per export.
    Export,
}

/// The sums so far.
pub(crate) struct TraceSums {
    by: TraceBy,
    all: BTreeMap<TraceKey, TraceSum>,
}

/// The key of a sum; the names of classes may come after the requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TraceKey {
    Name(String),
    User(Option<u32>),
    Class(String, Option<u64>),
}

struct TraceSum {
    first: Time,
    end: Time,
    read_bytes: u64,
    written_bytes: u64,
    ops: u64,
    ends: TraceSpan,
    queue: TraceLatency,
    service: TraceLatency,
    kinds: BTreeMap<OpKind, TraceKindSum>,
}

/// Counts of failed and cancelled requests.
#[derive(Clone, Copy, Debug, Default)]
struct TraceSpan {
    errors: u64,
    cancelled: u64,
}

/// An exact sum and a histogram with two digits.
struct TraceLatency {
    sum_ns: u128,
    histogram: Histogram<u32>,
}

#[derive(Clone, Debug, Default)]
struct TraceKindSum {
    requests: u64,
    amount: Amount,
    ends: TraceSpan,
    service_ns: u128,
    /// Requests with a position in a file, and the sequential ones among them.
    with_offset: u64,
    sequential: u64,
}

/// The sums of one job, user, …
#[derive(Debug, Serialize)]
pub(crate) struct TraceRow {
    pub(crate) name: String,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    ops: u64,
    /// From the first arrival to the last reply.
    span_ns: u64,
    queue: TraceTimes,
    service: TraceTimes,
    /// Requests with an error in the reply.
    errors: u64,
    /// Requests that were cancelled by their clients.
    cancelled: u64,
    kinds: Vec<TraceKindRow>,
}

/// Times in nanoseconds; percentiles to two digits.
#[derive(Debug, Serialize)]
struct TraceTimes {
    mean_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
}

#[derive(Debug, Serialize)]
struct TraceKindRow {
    kind: &'static str,
    requests: u64,
    bytes: u64,
    ops: u64,
    service_ns_mean: u64,
    /// Percent of the reads or writes of files that are sequential.
    sequential_percent: Option<u64>,
    errors: u64,
    cancelled: u64,
}

impl TraceSums {
    pub(crate) fn new(by: TraceBy) -> TraceSums {
        TraceSums { by, all: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, record: &TraceRecord) {
        let who = &record.subject.identity;
        let key = match self.by {
            TraceBy::Job => TraceKey::Name(who.job.to_string()),
            TraceBy::User => TraceKey::User(record.subject.uid()),
            TraceBy::Class => TraceKey::Class(record.subject.target.clone(), record.request.class),
            TraceBy::Client => TraceKey::Name(who.nid.to_string()),
            TraceBy::Export => TraceKey::Name(record.subject.export.clone()),
        };
        let arrived = record.request.arrived;
        self.all.entry(key).or_insert_with(|| TraceSum::new(arrived)).add(record);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.all.values().map(TraceSum::requests).sum()
    }

    /// Returns the rows, sorted by number of requests, largest first.
    pub(crate) fn rows<'a>(&self, class: impl Fn(&str, u64) -> Option<&'a str>) -> Vec<TraceRow> {
        let name = |key: &TraceKey| match key {
            TraceKey::Name(name) if name.is_empty() => "-".into(),
            TraceKey::Name(name) => name.clone(),
            TraceKey::User(uid) => uid.map_or("-".into(), |uid| uid.to_string()),
            TraceKey::Class(_, None) => "-".into(),
            TraceKey::Class(target, Some(number)) => match class(target, *number) {
                Some(name) => name.to_owned(),
                // The index in the dispatcher (low half) and its generation (high half).
                None => format!("class {}.{}", *number as u32, number >> 32),
            },
        };
        let mut rows: Vec<_> = self.all.iter().map(|(key, sum)| sum.row(name(key))).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
        rows
    }
}

impl TraceSum {
    fn new(first: Time) -> TraceSum {
        TraceSum {
            first,
            end: first,
            read_bytes: 0,
            written_bytes: 0,
            ops: 0,
            ends: TraceSpan::default(),
            queue: TraceLatency::new(),
            service: TraceLatency::new(),
            kinds: BTreeMap::new(),
        }
    }

    fn add(&mut self, record: &TraceRecord) {
        let request = &record.request;
        self.first = self.first.min(request.arrived);
        self.end = self.end.max(request.arrived + request.queued + request.service);
        match request.kind.direction() {
            Direction::Read => self.read_bytes += request.served.bytes.get(),
            Direction::Write => self.written_bytes += request.served.bytes.get(),
            Direction::Metadata => {}
        }
        self.ops += request.served.ops.get();
        self.ends.add(request.outcome);
        self.queue.add(request.queued);
        self.service.add(request.service);
        let kind = self.kinds.entry(request.kind).or_default();
        kind.requests += 1;
        kind.amount.bytes += request.served.bytes;
        kind.amount.ops += request.served.ops;
        kind.ends.add(request.outcome);
        kind.service_ns += u128::from(request.service.get());
        kind.with_offset += u64::from(request.access.is_some());
        kind.sequential += u64::from(request.access == Some(Access::Sequential));
    }

    fn requests(&self) -> u64 {
        self.kinds.values().map(|kind| kind.requests).sum()
    }

    fn row(&self, name: String) -> TraceRow {
        let requests = self.requests();
        let kinds = self.kinds.iter().map(|(kind, sum)| sum.row(*kind)).collect();
        TraceRow {
            name,
            requests,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            ops: self.ops,
            span_ns: self.end.since(self.first).get(),
            queue: self.queue.times(requests),
            service: self.service.times(requests),
            errors: self.ends.errors,
            cancelled: self.ends.cancelled,
            kinds,
        }
    }
}

impl TraceKindSum {
    fn row(&self, kind: OpKind) -> TraceKindRow {
        TraceKindRow {
            kind: kind.name(),
            requests: self.requests,
            bytes: self.amount.bytes.get(),
            ops: self.amount.ops.get(),
            service_ns_mean: mean(self.service_ns, self.requests),
            sequential_percent: (self.sequential * 100).checked_div(self.with_offset),
            errors: self.ends.errors,
            cancelled: self.ends.cancelled,
        }
    }
}

impl TraceSpan {
    fn add(&mut self, outcome: TraceOutcome) {
        self.errors += u64::from(matches!(outcome, TraceOutcome::Failed(_)));
        self.cancelled += u64::from(outcome == TraceOutcome::Cancelled);
    }
}

impl TraceLatency {
    fn new() -> TraceLatency {
        let histogram = Histogram::new(2).expect("two digits are between zero and five");
        TraceLatency { sum_ns: 0, histogram }
    }

    fn add(&mut self, span: Nanos) {
        self.sum_ns += u128::from(span.get());
        // The histogram grows as needed; only a span near 2^64 is out of its range.
        let _ = self.histogram.record(span.get().min(u64::MAX >> 4));
    }

    fn times(&self, requests: u64) -> TraceTimes {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        TraceTimes { mean_ns: mean(self.sum_ns, requests), p50_ns: at(0.5), p99_ns: at(0.99) }
    }
}

fn mean(sum_ns: u128, requests: u64) -> u64 {
    sum_ns.checked_div(requests.into()).unwrap_or(0) as u64
}

/// Formats the sums for people: by name, by kind within each, and missing requests.
pub(crate) fn tables(summary: &TraceSummary) -> String {
    let mut text = String::new();
    let name = match summary.by {
        TraceBy::Job => "JOB",
        TraceBy::User => "UID",
        TraceBy::Class => "CLASS",
        TraceBy::Client => "NODE",
        TraceBy::Export => "EXPORT",
    };
    if summary.rows.is_empty() {
        text += "no requests\n";
    } else {
        text += &by_name(name, &summary.rows);
        text.push('\n');
        text += &by_kind(name, &summary.rows);
    }
    if summary.dropped > 0 {
        let _ = writeln!(text, "\n{} requests were not recorded", summary.dropped);
    }
    if summary.cut {
        text += "\nthe end of the trace is missing: the proxy was killed, or is still writing it\n";
    }
    text
}

fn by_name(name: &str, rows: &[TraceRow]) -> String {
    let head = [
        name,
        "REQUESTS",
        "READ MB",
        "WRITTEN MB",
        "OPS",
        "SPAN",
        "MB/s",
        "OPS/s",
        "QUEUE mean",
        "p50",
        "p99",
        "SERVICE mean",
        "p50",
        "p99",
        "ERRORS",
        "CANCELLED",
    ];
    let cells = rows.iter().map(|row| {
        let seconds = row.span_ns as f64 / 1e9;
        let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let mut cells = vec![
            row.name.clone(),
            row.requests.to_string(),
            format!("{:.1}", megabytes(row.read_bytes)),
            format!("{:.1}", megabytes(row.written_bytes)),
            row.ops.to_string(),
            span(row.span_ns as f64),
            format!("{:.1}", rate(megabytes(row.read_bytes + row.written_bytes))),
            format!("{:.0}", rate(row.ops as f64)),
        ];
        for times in [&row.queue, &row.service] {
            cells.extend(
                [times.mean_ns, times.p50_ns, times.p99_ns].map(|ns| span_of(Nanos::new(ns))),
            );
        }
        cells.extend([row.errors.to_string(), row.cancelled.to_string()]);
        cells
    });
    let right: Vec<_> = (1..head.len()).collect();
    table::aligned(&head, &right, cells)
}

fn by_kind(name: &str, rows: &[TraceRow]) -> String {
    let head = [
        name,
        "KIND",
        "REQUESTS",
        "MB",
        "OPS",
        "SERVICE mean",
        "SEQUENTIAL",
        "ERRORS",
        "CANCELLED",
    ];
    let cells = rows.iter().flat_map(|row| {
        row.kinds.iter().map(|kind| {
            vec![
                row.name.clone(),
                kind.kind.to_owned(),
                kind.requests.to_string(),
                format!("{:.1}", kind.bytes as f64 / 1e6),
                kind.ops.to_string(),
                span_of(Nanos::new(kind.service_ns_mean)),
                kind.sequential_percent.map_or(String::new(), |percent| format!("{percent}%")),
                kind.errors.to_string(),
                kind.cancelled.to_string(),
            ]
        })
    });
    table::aligned(&head, &[2, 3, 4, 5, 6, 7, 8], cells)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::trace::{TraceRequest, TraceSubject};
    use model::{Bytes, Identity, JobId, Lane, Nid};

    use super::*;

    fn record(job: &str, kind: OpKind, at_us: u64, bytes: u64) -> TraceRecord {
        let job = JobId::new(job).unwrap();
        let who = Identity { job, uid: 7, gid: 7, projid: None, nid: Nid::local() };
        let who = TraceSubject { identity: who, export: "x".into(), target: "disk".into() };
        let request = TraceRequest {
            subject: 1,
            class: Some(1 << 32 | 3),
            kind,
            lane: Lane::Device,
            access: (bytes > 0).then_some(Access::Sequential),
            arrived: Time::from_nanos(at_us * 1000),
            queued: Nanos::from_micros(100),
            service: Nanos::from_micros(300),
            requested: Bytes::new(bytes),
            served: Amount::new(bytes, 1),
            outcome: match kind {
                OpKind::Open => TraceOutcome::of(2),
                OpKind::Fsync => TraceOutcome::Cancelled,
                _ => TraceOutcome::Done,
            },
        };
        TraceRecord { subject: Arc::new(who), request }
    }

    fn summary(by: TraceBy, class: Option<&'static str>) -> TraceSummary {
        let mut sums = TraceSums::new(by);
        sums.add(&record("", OpKind::Open, 1_000_000, 0));
        for at in 0..4 {
            sums.add(&record("dd", OpKind::Read, at * 200, 1_000_000));
        }
        sums.add(&record("dd", OpKind::Write, 600, 500_000));
        sums.add(&record("dd", OpKind::Fsync, 600, 0));
        let rows = sums.rows(|_, _| class);
        TraceSummary {
            by,
            requests: sums.requests(),
            dropped: 3,
            cut: true,
            origin_unix_ns: 0,
            rows,
        }
    }

    #[test]
    fn jobs_are_summed_up_with_their_rates_times_and_kinds() {
        assert_eq!(
            tables(&summary(TraceBy::Job, None)),
            "JOB  REQUESTS  READ MB  WRITTEN MB  OPS    SPAN    MB/s  OPS/s  QUEUE mean    p50    p99  SERVICE mean    p50    p99  ERRORS  CANCELLED\n\
             dd          6      4.0         0.5    6  1.00ms  4500.0   6000       100µs  100µs  100µs         300µs  301µs  301µs       0          1\n\
             -           1      0.0         0.0    1   400µs     0.0   2500       100µs  100µs  100µs         300µs  301µs  301µs       1          0\n\
             \n\
             JOB  KIND   REQUESTS   MB  OPS  SERVICE mean  SEQUENTIAL  ERRORS  CANCELLED\n\
             dd   read          4  4.0    4         300µs        100%       0          0\n\
             dd   write         1  0.5    1         300µs        100%       0          0\n\
             dd   fsync         1  0.0    1         300µs                   0          1\n\
             -    open          1  0.0    1         300µs                   1          0\n\
             \n\
             3 requests were not recorded\n\
             \n\
             the end of the trace is missing: the proxy was killed, or is still writing it\n"
        );
    }

    #[test]
    fn a_class_has_its_name_or_at_least_its_number() {
        assert_eq!(summary(TraceBy::Class, Some("jobs dd")).rows[0].name, "jobs dd");
        let unnamed = summary(TraceBy::Class, None);
        assert_eq!((unnamed.rows.len(), &*unnamed.rows[0].name), (1, "class 3.1"));
        assert_eq!(summary(TraceBy::User, None).rows[0].name, "7");
        assert_eq!(summary(TraceBy::Client, None).rows[0].name, "0@lo");
    }
}
