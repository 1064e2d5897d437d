//! Figures of subjects and classes: the content of `sluice top`.

use std::sync::Arc;

use model::{Identity, KeyValue, PathSet, Service, TargetId, Weight};

use super::usage::Usage;
use crate::ids::{ClassId, SubjectId};

/// The figures of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectReport {
    /// The id of the subject.
    pub id: SubjectId,
    /// The target of its requests.
    pub target: TargetId,
    /// The identity of the subject.
    pub identity: Identity,
    /// The rule directories that it works in.
    pub paths: PathSet,
    /// The export that it uses ([`Dispatcher::subject_through`](crate::Dispatcher::subject_through)); empty for none.
    pub export: Arc<str>,
    /// The sums of the subject.
    pub usage: Usage,
    /// Its service in all its classes; active time as last counted by
    /// [`Dispatcher::count_activity`](crate::Dispatcher::count_activity).
    pub service: Service,
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
    /// The target of its requests.
    pub target: TargetId,
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
