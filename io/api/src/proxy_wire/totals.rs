//! The wire form of usage, made from the reports of `usage`.

use model::UsageTotals;
use usage::{TotalsLine, TotalsReport};

use super::{UsageLine, UsageReport, WireCounters, WireOps, WireSubjectId};

impl From<&TotalsReport> for UsageReport {
    fn from(report: &TotalsReport) -> UsageReport {
        UsageReport {
            sequence: report.sequence,
            total: WireCounters::from(&report.total),
            lines: report.lines.iter().map(UsageLine::from).collect(),
            dropped_lines: report.dropped_lines.clone(),
        }
    }
}

impl From<&TotalsLine> for UsageLine {
    fn from(line: &TotalsLine) -> UsageLine {
        let subject = WireSubjectId {
            job: line.identity.job.to_string(),
            uid: line.identity.uid,
            gid: line.identity.gid,
            project: line.identity.projid,
            nid: line.identity.nid.to_string(),
            paths: line.paths.0,
            class: line.class.to_string(),
            export: line.export.to_string(),
        };
        UsageLine { id: line.id, subject, counters: WireCounters::from(&line.totals) }
    }
}

impl From<&UsageTotals> for WireCounters {
    fn from(totals: &UsageTotals) -> WireCounters {
        WireCounters {
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
            cost_ns: totals.cost_ns,
            delayed: totals.delayed,
            delayed_ns: totals.delayed_ns,
            delayed_bytes: totals.delayed_bytes,
            active_ns: totals.active_ns,
            delayed_span_ns: totals.delayed_span_ns,
            ops: WireOps(totals.ops),
            reads: totals.reads.into(),
            writes: totals.writes.into(),
        }
    }
}
