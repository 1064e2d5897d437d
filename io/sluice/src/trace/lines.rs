//! Formats one request on one line: columns for people, an object for programs.
//!
//! The columns have fixed widths, since the output is a stream; a longer name shifts the rest of
//! its line.

use std::io::{self, Write};

use ::trace::{TraceOutcome, TraceRecord};
use model::{Lane, Nanos};
use nix::errno::Errno;
use serde::Serialize;

/// A request in JSON.
#[derive(Debug, Serialize)]
struct TraceLine<'a> {
    /// When it arrived, in nanoseconds since the proxy's start.
    t_ns: u64,
    /// The number of its attach, unique in the trace.
    subject: u32,
    job: &'a str,
    /// None without an attach and without credentials of the peer; so is the gid.
    uid: Option<u32>,
    gid: Option<u32>,
    projid: Option<u32>,
    nid: &'a str,
    export: &'a str,
    target: &'a str,
    kind: &'a str,
    lane: &'a str,
    /// The position relative to the previous access, for reads and writes of files.
    offset: Option<&'a str>,
    requested_bytes: u64,
    bytes: u64,
    ops: u64,
    queue_ns: u64,
    service_ns: u64,
    errno: u32,
    /// It was cancelled by its client and has no reply.
    cancelled: bool,
}

/// Writes the names of the columns.
pub(crate) fn head(out: &mut impl Write) -> io::Result<()> {
    let [queue, service] = ["QUEUE", "SERVICE"];
    writeln!(
        out,
        "{:>13}  {:16}  {:>10}  {:18}  {:12}  {:8}  {:6}  {:10}  {:>9}  {queue:>9}  {service:>9}  END",
        "TIME", "JOB", "UID", "NODE", "EXPORT", "KIND", "LANE", "OFFSET", "BYTES"
    )
}

/// Writes one request for people.
pub(crate) fn plain(out: &mut impl Write, record: &TraceRecord) -> io::Result<()> {
    let (who, request) = (&record.subject.identity, &record.request);
    let micros = request.arrived.as_nanos() / 1000;
    let (secs, micros) = (micros / 1_000_000, micros % 1_000_000);
    let offset = request.access.map_or("-", |access| access.name());
    let end = match request.outcome {
        TraceOutcome::Done => String::new(),
        TraceOutcome::Failed(errno) => format!("  {}", errno_name(errno.get())),
        TraceOutcome::Cancelled => "  cancelled".into(),
    };
    let dash = |name: &str| if name.is_empty() { "-".to_owned() } else { name.to_owned() };
    writeln!(
        out,
        "{secs:>6}.{micros:06}  {:16}  {:>10}  {:18}  {:12}  {:8}  {:6}  {offset:10}  {:>9}  \
         {:>9}  {:>9}{end}",
        dash(who.job.as_str()),
        record.subject.uid().map_or("-".into(), |uid| uid.to_string()),
        who.nid,
        dash(&record.subject.export),
        request.kind,
        lane(request.lane),
        request.served.bytes.get(),
        span(request.queued.get() as f64),
        span(request.service.get() as f64),
    )
}

/// Writes one request for programs.
pub(crate) fn json(out: &mut impl Write, record: &TraceRecord) -> io::Result<()> {
    let (who, request) = (&record.subject.identity, &record.request);
    let line = TraceLine {
        t_ns: request.arrived.as_nanos(),
        subject: request.subject,
        job: who.job.as_str(),
        uid: record.subject.uid(),
        gid: record.subject.gid(),
        projid: who.projid,
        nid: who.nid.as_str(),
        export: &record.subject.export,
        target: &record.subject.target,
        kind: request.kind.name(),
        lane: lane(request.lane),
        offset: request.access.map(|access| access.name()),
        requested_bytes: request.requested.get(),
        bytes: request.served.bytes.get(),
        ops: request.served.ops.get(),
        queue_ns: request.queued.get(),
        service_ns: request.service.get(),
        errno: request.outcome.errno(),
        cancelled: request.outcome == TraceOutcome::Cancelled,
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Cached => "cached",
        Lane::Device => "device",
    }
}

fn errno_name(number: u32) -> String {
    match Errno::from_raw(number as i32) {
        Errno::UnknownErrno => number.to_string(),
        errno => format!("{errno:?}"),
    }
}

/// Formats a span with three digits, in the unit that makes it 1 to 1000.
pub(crate) fn span(ns: f64) -> String {
    let units = [("ns", 1e3), ("µs", 1e6), ("ms", 1e9), ("s", f64::INFINITY)];
    // A value that would be rounded to 1000 belongs to the next unit.
    let fits = |above: f64| ns < above * 0.9995;
    let (unit, above) = units.into_iter().find(|(_, above)| fits(*above)).unwrap_or(units[3]);
    let value = ns * 1e3 / above.min(1e12);
    match value {
        _ if unit == "ns" => format!("{value:.0}{unit}"),
        value if value < 9.995 => format!("{value:.2}{unit}"),
        value if value < 99.95 => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

/// Formats a span of type [`Nanos`].
pub(crate) fn span_of(span_ns: Nanos) -> String {
    span(span_ns.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_three_digits_and_a_unit() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00µs"),
            (12_345, "12.3µs"),
            (999_400, "999µs"),
            (999_600, "1.00ms"),
            (5_000_000_000, "5.00s"),
            (86_400_000_000_000, "86400s"),
        ];
        for (ns, text) in cases {
            assert_eq!(span_of(Nanos::new(ns)), text);
        }
    }

    #[test]
    fn an_error_has_its_name_where_it_has_one() {
        assert_eq!(errno_name(2), "ENOENT");
        assert_eq!(errno_name(u32::MAX), "4294967295");
    }
}
