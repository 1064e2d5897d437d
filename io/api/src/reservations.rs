//! Reservations, the calendar and credits, as people and programs read and request them.
//!
//! ```text
//!   NewReservation ─► POST ─┬─► WireReservation: scheduled, or active at once
//!                           └─► 409, ErrorReport with a WireRefusal: bottleneck, next start, what fits
//!   WireReservation ◄─ GET, claim, extend, finish
//!   WireCalendar: of each resource its capacity and what is promised, as steps
//! ```
//!
//! Times are nanoseconds since 1970 by the controller's clock, spans are half-open.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scope::WireRate;

/// A request for a reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReservation {
    /// The rate of reads, if any is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<WireRate>,
    /// The rate of writes, if any is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WireRate>,
    /// The rate of metadata operations, if any is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<WireRate>,
    /// How long it lasts, from its start or its claim.
    pub duration_ns: u64,
    /// The earliest start; absent: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ns: Option<u64>,
    /// It begins exactly at `not_before_ns` or is refused.
    #[serde(default)]
    pub exact: bool,
    /// When it is to have ended; absent: whenever it fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ns: Option<u64>,
    /// The reservation after whose end it may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Whether it waits in a queue and begins when it fits, without a guaranteed start at first.
    #[serde(default)]
    pub spontaneous: bool,
    /// How long after ACTIVE was reported its owner may begin to use it.
    #[serde(default)]
    pub claim_window_ns: u64,
    /// Whether it pays a credit to be queued before others; spontaneous ones only.
    #[serde(default)]
    pub spend_credit: bool,
    /// The job whose requests it serves; absent: all of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user whose requests it serves and who owns it; absent: the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The primary group of its owner, for ceilings of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The account of the batch system, for ceilings and credits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The project, for ceilings of projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// The export on whose target it is; may be absent if all exports have one target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// The directory below that export to whose files it is limited, such as `run7/out`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// How many nodes its requests come from, 1 to 65536: it has no more than these can move, if the
    /// controller knows what one node can. Absent: not bounded so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The parts of its time in which it has higher rates, in their order, at most 64. A reservation
    /// with phases is not spontaneous and has no claim window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<NewPhase>,
    /// The key of this request, 1 to 64 printable ASCII characters without spaces. While the
    /// reservation has not ended, another request of its user with this key returns it and reserves
    /// nothing: for a request whose reply was lost. Absent: every request is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// A phase of a requested reservation: a part of its time with higher rates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPhase {
    /// How long after the start of the reservation it is to start.
    pub start_ns: u64,
    /// How much later it may start. With it a phase is over before the next one starts.
    #[serde(default)]
    pub tolerance_ns: u64,
    /// How long it lasts.
    pub duration_ns: u64,
    /// The whole rate of reads in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<WireRate>,
    /// The whole rate of writes in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WireRate>,
    /// The whole rate of metadata operations in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<WireRate>,
}

/// A phase that is added to an accepted reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddedPhase {
    /// When it is to start; absent: now. It starts no earlier than the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ns: Option<u64>,
    /// How much later it may start.
    #[serde(default)]
    pub tolerance_ns: u64,
    /// How long it lasts.
    pub duration_ns: u64,
    /// The whole rate of reads in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<WireRate>,
    /// The whole rate of writes in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WireRate>,
    /// The whole rate of metadata operations in the phase; absent: that of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<WireRate>,
    /// How many nodes its requests come from, 1 to 65536, as of a [`NewReservation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// The key of this request, as of a [`NewReservation`]: while the phase has not ended, another
    /// request of one of this reservation with this key returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// The state of a reservation, as its owner sees it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum WireReservationState {
    /// It does not exist, or has ended.
    #[default]
    Undefined,
    /// It is accepted and has not begun.
    Scheduled,
    /// It is served before others now.
    Active,
}

/// A reservation, as the controller keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireReservation {
    /// The number of the reservation.
    pub id: u64,
    /// The state of the reservation.
    pub state: WireReservationState,
    /// What it has of its demand now, if it is active and that is less than all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduced: Option<ReducedReservation>,
    /// Its rates that are not served while its requests wait, if it is active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateRate>,
    /// Why it has ended, such as `completed`, `removed`, `expired` or `lapsed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// When it starts or started; absent while it waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// When it ends, unless it is claimed earlier, extended or finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ns: Option<u64>,
    /// The start that was guaranteed at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_ns: Option<u64>,
    /// Until when it must be claimed; absent if its time runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_by_ns: Option<u64>,
    /// When its time began to run: at its claim, or at its start without a claim window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_ns: Option<u64>,
    /// The job, if it is limited to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The user who owns it.
    pub user: u32,
    /// The account of the batch system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The project of its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// The target on which it is.
    pub target: String,
    /// The directory to whose files it is limited, as `EXPORT/PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The rate of reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<WireRate>,
    /// The rate of writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WireRate>,
    /// The rate of metadata operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<WireRate>,
    /// Whether it was spontaneous.
    #[serde(default)]
    pub spontaneous: bool,
    /// Its phases that have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<WirePhase>,
    /// The reservation of which it is a phase. Its rates are those of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_of: Option<u64>,
    /// The key of its request, if that had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// What its job or user has moved since `claimed_ns`, in bytes, as the ledger counts it by the
    /// minute; only in the answer for one reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The credit that its early end gave, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<u64>,
}

/// A phase of a reservation. It is a reservation with a number of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WirePhase {
    /// The number of the phase.
    pub id: u64,
    /// The state of the phase.
    pub state: WireReservationState,
    /// When it starts or started.
    pub start_ns: u64,
    /// The last start within its tolerance.
    pub last_start_ns: u64,
    /// When it ends or ended.
    pub end_ns: u64,
    /// The whole rate of reads in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<WireRate>,
    /// The whole rate of writes in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WireRate>,
    /// The whole rate of metadata operations in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<WireRate>,
}

/// An active reservation that has less than its demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReducedReservation {
    /// The part of its demand that it has, in millionths.
    pub ppm: u32,
    /// Why: the proxies that are unreachable, or the resource that lost capacity.
    pub because: String,
}

/// A reserved rate that is not served while requests of the reservation wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LateRate {
    /// `read`, `write` or `metadata`; `all` for rules, whose reservations are of all requests.
    pub direction: String,
    /// What was served lately, while requests waited.
    pub served: WireRate,
    /// What is reserved and in force.
    pub reserved: WireRate,
    /// For how long it was measured until now.
    pub span_ns: u64,
}

/// A list of reservations by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireReservations {
    /// The time of the answer.
    pub at_ns: u64,
    /// Those that have not ended, or with `ended` also those that ended lately, which are in the last
    /// page.
    pub reservations: Vec<WireReservation>,
    /// How many more there are after this page, and of those that have ended than are listed.
    pub omitted: u64,
    /// The number after which the next page begins; absent in the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Why a reservation does not fit, and what would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireRefusal {
    /// The kind of the resource of which the least fits, such as `target`.
    pub kind: String,
    /// The name of that resource.
    pub bottleneck: String,
    /// What else has it: rules with their rates (for role user their sum), the part for best effort,
    /// what no proxy sees.
    pub taken_by: Vec<String>,
    /// The first start at which all of it fits; absent: none within the horizon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_start_ns: Option<u64>,
    /// The part of the demand that fits for its whole length from its earliest start on, in
    /// millionths.
    pub fits_now_ppm: u32,
}

/// A longer time for an active reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReservationExtension {
    /// How much later it is to end.
    pub more_ns: u64,
}

/// Another start for a reservation that has not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReservationMove {
    /// When it is to start at the earliest; absent: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ns: Option<u64>,
    /// Whether it starts exactly then, or is refused.
    #[serde(default)]
    pub exact: bool,
    /// When it must be over with its claim window; absent: no deadline, whatever it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ns: Option<u64>,
}

/// The calendar in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireCalendar {
    /// The time of the answer.
    pub at_ns: u64,
    /// The first moment that is shown.
    pub from_ns: u64,
    /// The end of what is shown.
    pub until_ns: u64,
    /// The resources by kind and name.
    pub resources: Vec<CalendarResource>,
    /// How many more resources there are: ask for them by their targets.
    #[serde(default)]
    pub omitted: u64,
}

/// One resource of the calendar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CalendarResource {
    /// `target`, `metadata`, `proxy network` (of all proxies of the target) or `pool`.
    pub kind: String,
    /// The name of the resource.
    pub name: String,
    /// Bytes a second; of `metadata` operations a second: what the whole resource gives if only
    /// reads are served.
    pub read_per_sec: u64,
    /// The same if only writes are served.
    pub write_per_sec: u64,
    /// The part that is never reserved, in millionths.
    pub best_effort_ppm: u32,
    /// The part that no proxy sees, in millionths.
    pub unseen_ppm: u32,
    /// What rules reserve, each as `rule NAME: RATE`; for role user their sum.
    pub rules: Vec<String>,
    /// What of its reservations, rules included, is not served while their requests wait: the sum of
    /// each direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateRate>,
    /// What is promised from each time on, until that of the next one; of the past as far as it is
    /// kept, at most 7 days and since the controller started.
    pub steps: Vec<CalendarStep>,
    /// What proxies have served of it until now, with and without a reservation: means of minutes or
    /// longer, from each time on until that of the next one.
    pub used: Vec<CalendarStep>,
}

/// A level from a time on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CalendarStep {
    /// The time from which it counts.
    pub from_ns: u64,
    /// The level of reads, in the resource's unit per second.
    pub read_per_sec: u64,
    /// The level of writes.
    pub write_per_sec: u64,
}

/// The credit of an account or user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireCredit {
    /// `account NAME` or `user UID`.
    pub subject: String,
    /// The balance now, in bytes.
    pub bytes: u64,
    /// Reserved bytes of reservations that have not ended.
    pub outstanding_bytes: u64,
    /// Reservations that have not ended.
    pub outstanding: u32,
}
