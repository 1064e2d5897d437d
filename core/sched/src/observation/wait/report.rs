//! Reports of wait causes, with the current status of each meter.
//!
//! ```text
//!   causes of a class ─ with what waits now added ─► WaitReport
//!   subjects ─ classifications ─► classes and meters ─► SubjectDetail
//! ```

use model::{Bytes, Identity, JobId, KeyValue, Nanos, Ops, Rate, Scope, Share, TargetId, Time};
use rules::{Entitlement, EntitlementId};

use super::super::usage::Usage;
use super::{OTHER, ReadyCause, WaitCauses, WaitRecord};
use crate::ids::{ClassId, SubjectId};
use crate::index::{ClassIndex, MeterIndex};
use crate::keys::ClassKey;

/// The wait causes of a class since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// The id of the class.
    pub class: ClassId,
    /// The target of its requests.
    pub target: TargetId,
    /// The rule that makes it.
    pub rule: String,
    /// The values of the rule's `per` fields.
    pub key: Vec<KeyValue>,
    /// The number of waiting requests.
    pub queued: u32,
    /// The causes, the one that cost most time first.
    pub causes: Vec<WaitCauseReport>,
}

/// One cause for which requests of a class waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitCauseReport {
    /// The kind of the cause.
    pub by: WaitCause,
    /// Whether requests wait for it now. They did within the last second, and for a twentieth of
    /// the time since it began, or of a second if that is more.
    pub now: bool,
    /// Since when heads have waited for it, with pauses of less than a second.
    pub since: Time,
    /// For how long of that time some head waited for it.
    pub active: Nanos,
    /// When a head waited for it last.
    pub last: Time,
    /// The time that requests waited for it, summed up over requests.
    pub wait: Nanos,
    /// The time during which some head waited for it.
    pub span: Nanos,
    /// Requests for which it was the last cause before they went.
    pub requests: u64,
    /// The payload of these requests.
    pub bytes: Bytes,
    /// The status of the meter, where it is one that still exists.
    pub meter: Option<MeterStatus>,
}

/// What a head can wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCause {
    /// A meter: the limit of a rule, a `[[meter]]`, or a decay; whether it counts bytes.
    Meter {
        /// The scope of the meter.
        scope: Scope,
        /// Whether it counts bytes; operations otherwise.
        in_bytes: bool,
    },
    /// Others were served by their weights while slots were taken.
    Weight,
    /// No other class was served: its own requests use what the target or the threads can do.
    Busy,
    /// The rule's cap on slots.
    Slots,
    /// Others came first, since the class had service at other servers.
    RemoteService,
    /// Causes that were not kept apart.
    Other,
}

/// The current status of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterStatus {
    /// The scope of the meter.
    pub scope: Scope,
    /// Its current rate, over all proxies.
    pub rate: Rate,
    /// The share of the rate that is let through here.
    pub part: Share,
    /// Units a second that it let through here over the last second or two.
    pub used_per_sec: u64,
    /// When nothing is owed any more and it lets the next request go.
    pub due: Time,
    /// Heads that wait at it, of all classes.
    pub waiting: usize,
    /// The rule that its limit depends on, where it does.
    pub depends_on: Option<String>,
}

/// One subject, its classes, and the meters that it pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectDetail {
    /// The id of the subject.
    pub id: SubjectId,
    /// The target of its requests.
    pub target: TargetId,
    /// The identity of the subject.
    pub identity: Identity,
    /// Its classes, of the kinds of request that it made.
    pub classes: Vec<ClassId>,
    /// The indices of its classes, in the same order.
    pub(crate) indices: Vec<ClassIndex>,
    /// The meters that these requests pay.
    pub meters: Vec<MeterStatus>,
    /// The rows that reserve for these requests: of those that add up the one with the lowest number
    /// ([`Dispatcher::reserved_rows`](crate::Dispatcher::reserved_rows)).
    pub reserved: Vec<EntitlementId>,
    /// Its operations that neither read nor wrote a file.
    pub metadata: Ops,
    /// The sums of the subject.
    pub usage: Usage,
}

/// What a row reserves at a target, and what went by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedRow {
    /// The number of the row.
    pub row: EntitlementId,
    /// The row itself; its span counts from the message that brought it.
    pub entitlement: Entitlement,
    /// The share of the row's rate here.
    pub part: Share,
    /// When the row ends; `None`: when it is removed.
    pub ends: Option<Time>,
    /// Units of the row's rate that went by it, of all whom it is for, as counted when usage was taken
    /// last ([`Dispatcher::take_class_usage`](crate::Dispatcher::take_class_usage)). Rows that add up
    /// have served in proportion to their rates while they did.
    pub served: u64,
}

/// A selection of subjects: those that match all given fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeterPayers<'q> {
    /// The subjects of this job.
    pub job: Option<&'q JobId>,
    /// The subjects of this user.
    pub user: Option<u32>,
}

impl MeterPayers<'_> {
    /// Whether a subject is selected.
    pub fn has(&self, who: &Identity) -> bool {
        self.job.is_none_or(|job| *job == who.job) && self.user.is_none_or(|user| user == who.uid)
    }
}

impl WaitCauses {
    /// What the requests of a class waited for; `None` where they never did.
    pub(crate) fn report(
        &self,
        class: ClassId,
        key: &ClassKey,
        queued: u32,
        now: Time,
        status_of: impl Fn(MeterIndex, u32) -> Option<MeterStatus>,
    ) -> Option<WaitReport> {
        let plain = READY.iter().map(|(by, cause)| (by.clone(), &self.plain[*cause as usize]));
        let other = (WaitCause::Other, &self.plain[OTHER]);
        let plain = plain.chain([other]).map(|(by, waits)| (by, waits, None));
        let meters = self.meters.iter().map(|at| {
            let by = WaitCause::Meter { scope: at.key.scope(), in_bytes: at.key.in_bytes };
            (by, &at.waits, status_of(at.index, at.generation))
        });
        let some = plain.chain(meters).filter(|(_, waits, _)| !waits.is_empty());
        let mut causes: Vec<_> =
            some.map(|(by, waits, meter)| waits.report(by, meter, now)).collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.wait));
        let (rule, target, key) = (key.rule.to_string(), key.target, key.values.to_vec());
        (!causes.is_empty()).then_some(WaitReport { class, target, rule, key, queued, causes })
    }
}

impl WaitRecord {
    fn report(&self, by: WaitCause, meter: Option<MeterStatus>, now: Time) -> WaitCauseReport {
        WaitCauseReport {
            by,
            now: self.is_current(now),
            since: self.since,
            last: self.last,
            active: Nanos::new(self.active),
            wait: Nanos::new(self.wait),
            span: Nanos::new(self.span),
            requests: self.requests,
            bytes: Bytes::new(self.bytes),
            meter,
        }
    }
}

/// The causes of ready heads, as they are reported.
const READY: [(WaitCause, ReadyCause); OTHER] = [
    (WaitCause::Weight, ReadyCause::Weight),
    (WaitCause::Busy, ReadyCause::Busy),
    (WaitCause::Slots, ReadyCause::Slots),
    (WaitCause::RemoteService, ReadyCause::RemoteService),
];
