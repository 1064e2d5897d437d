//! Figures of subjects and classes: the content of `sluice top`.

use std::sync::Arc;

use model::{Accesses, Identity, KeyValue, OpKind, Ops, PathSet, UsageTotals, Weight};

use super::activity::Activity;
use super::usage::Usage;
use crate::ids::{ClassId, SubjectId};

/// The figures of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectReport {
    /// The id of the subject.
    pub id: SubjectId,
    /// The identity of the subject.
    pub identity: Identity,
    /// The rule directories that it works in.
    pub paths: PathSet,
    /// The export that it uses ([`Dispatcher::subject_through`](crate::Dispatcher::subject_through)); empty for none.
    pub export: Arc<str>,
    /// The sums of the subject.
    pub usage: Usage,
    /// Its part of the time of its job, as last counted by [`Dispatcher::count_activity`](crate::Dispatcher::count_activity).
    pub activity: Activity,
    /// Its backend operations by kind, in the order of [`OpKind::ALL`].
    pub ops: [Ops; OpKind::COUNT],
    /// Its reads, as far as they were counted.
    pub reads: Accesses,
    /// Its writes, as far as they were counted.
    pub writes: Accesses,
    /// The number of waiting requests.
    pub queued: u32,
    /// The number of running requests.
    pub running: u32,
    /// Slots of both lanes in use now.
    pub slots: u32,
    /// Whether a request of the subject is, or is queued behind, a head that waits for a meter.
    pub throttled: bool,
}

/// The figures of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassReport {
    /// The id of the class.
    pub id: ClassId,
    /// The rule that makes it; `default` where none matched.
    pub rule: String,
    /// The values of the rule's `per` fields, in its order; empty also for the class that
    /// takes the keys beyond `max_classes`.
    pub key: Vec<KeyValue>,
    /// The weight of the class.
    pub weight: Weight,
    /// The sums of the class.
    pub usage: Usage,
    /// The number of waiting requests.
    pub queued: u32,
    /// The number of running requests.
    pub running: u32,
    /// Device slots in use now.
    pub slots: u32,
    /// Whether a head waits for a meter.
    pub throttled: bool,
}

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
