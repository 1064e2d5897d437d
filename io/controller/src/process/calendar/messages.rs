//! What the calendar's thread is asked, and what it answers.

use std::sync::Arc;

use api::{
    AddedPhase, ErrorReport, NewReservation, ProxyDescription, WireCredit, WireReservation,
    WireReservations,
};
use model::{Bytes, Nanos, Time};
use plan::LateReservation;
use reserve::{CeilingSubject, MoveRequest};
use tokio::sync::oneshot;

use super::jobs::JobMsg;
use super::late::LateFigures;
use super::shown::{PromisedCalendar, UnreachableProxies};
use crate::process::access::ApiCaller;
use crate::process::records::RulePublishError;

/// The answer to a call.
pub(crate) type CalendarReply<T> = oneshot::Sender<Result<T, Box<ErrorReport>>>;

/// A message to this thread.
pub(crate) enum CalendarMsg {
    Request {
        new: Box<NewReservation>,
        by: ApiCaller,
        /// The user at the other end of a Unix socket.
        peer: Option<u32>,
        answer: CalendarReply<WireReservation>,
    },
    AddPhase {
        id: u64,
        phase: Box<AddedPhase>,
        by: ApiCaller,
        answer: CalendarReply<WireReservation>,
    },
    Change {
        id: u64,
        change: ReservationChange,
        by: ApiCaller,
        answer: CalendarReply<WireReservation>,
    },
    Get {
        id: u64,
        by: ApiCaller,
        answer: CalendarReply<WireReservation>,
    },
    /// Answered as soon as the reservation is active or has ended.
    Watch {
        id: u64,
        by: ApiCaller,
        answer: CalendarReply<WireReservation>,
    },
    List {
        wanted: WantedReservations,
        answer: oneshot::Sender<WireReservations>,
    },
    Promised {
        span: (Time, Time),
        /// Of one target only.
        target: Option<String>,
        by: ApiCaller,
        answer: oneshot::Sender<PromisedCalendar>,
    },
    Job(JobMsg),
    Credit(CeilingSubject, oneshot::Sender<WireCredit>),
    Figures(oneshot::Sender<CalendarFigures>),
    Describe(Arc<str>, Arc<ProxyDescription>),
    /// A proxy was removed.
    Forget(String),
    /// The rows of a reservation are in force at all proxies that answer.
    InForce {
        id: u64,
        /// The version of the rows.
        version: u64,
    },
    /// The rows of a reservation have no room at the proxies of its target.
    NoRoom {
        id: u64,
        /// The version of the rows.
        version: u64,
    },
    /// Rows of reservations that were used.
    Used(Vec<u64>),
    Unreachable(Arc<str>, UnreachableProxies),
    /// All reservations of a target that are late now.
    Late(Arc<str>, Vec<LateReservation>),
    /// New rules: put in force by the store if what they reserve fits.
    SetRules {
        text: String,
        over: Option<String>,
        by: ApiCaller,
        answer: oneshot::Sender<Result<(), RulePublishError>>,
    },
    Stop,
}

/// Which reservations are listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedReservations {
    /// Of one user only.
    pub(crate) user: Option<u32>,
    /// Of one job only.
    pub(crate) job: Option<String>,
    /// Those above this number only.
    pub(crate) after: u64,
    pub(crate) with_ended: bool,
}

/// What an owner does with a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservationChange {
    Claim,
    Extend(Nanos),
    Move(MoveRequest),
    /// With the bytes that its owner has moved since the claim.
    Finish(Bytes),
    Remove,
}

/// Figures of the calendar for metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct CalendarFigures {
    pub(crate) scheduled: u64,
    pub(crate) active: u64,
    pub(crate) resources: Vec<ResourceFigures>,
    pub(crate) late: Vec<LateFigures>,
}

/// Figures of a resource for metrics.
#[derive(Clone, Debug)]
pub(crate) struct ResourceFigures {
    pub(crate) kind: &'static str,
    pub(crate) name: Arc<str>,
    /// The part of what can be reserved that is promised now.
    pub(crate) promised_ppm: u64,
    /// What can be reserved now if only that direction is.
    pub(crate) read_per_sec: u64,
    pub(crate) write_per_sec: u64,
}
