//! The sums of a subject in the form that is reported to a controller.

use model::UsageTotals;

use crate::report::SubjectReport;

impl SubjectReport {
    /// The sums of the subject that a controller counts.
    pub fn totals(&self) -> UsageTotals {
        UsageTotals {
            read_bytes: self.usage.read.get(),
            written_bytes: self.usage.written.get(),
            cost_ns: self.usage.cost.get(),
            delayed: self.usage.delayed,
            delayed_ns: self.usage.delayed_time.get(),
            delayed_bytes: self.usage.delayed_bytes.get(),
            active_ns: self.activity.active.get(),
            delayed_span_ns: self.activity.delayed.get(),
            ops: self.ops.map(|ops| ops.get()),
            reads: self.reads,
            writes: self.writes,
        }
    }
}
