//! Requests for reservations, their owners, and why a request is refused.

use std::sync::Arc;

use model::{Bytes, JobId, Nanos, Share, Time};
use serde::{Deserialize, Serialize};

use crate::ceilings::CeilingSubject;
use crate::demand::{Demand, DemandError, ResourceKind};
use crate::resources::ResourceError;

/// The owner of a reservation: who may test and remove it, and whose ceilings it counts for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationOwner {
    /// The batch job; empty without one.
    pub job: JobId,
    /// The number of the user.
    pub uid: u32,
    /// The group of the user.
    pub gid: u32,
    /// The account of the batch system, at most 128 bytes.
    #[serde(default, with = "crate::record::optional_text")]
    pub account: Option<Arc<str>>,
    /// The number of the project.
    pub project: Option<u32>,
}

/// How a reservation gets its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationClass {
    /// Planned at the request, with a guaranteed start: conservative backfilling.
    Fixed,
    /// In a queue of which only the head is planned; others start when they fit: EASY backfilling.
    Spontaneous,
}

/// A request for a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRequest {
    pub(crate) owner: ReservationOwner,
    pub(crate) class: ReservationClass,
    pub(crate) demand: Demand,
    pub(crate) release: Time,
    pub(crate) duration: Nanos,
    pub(crate) deadline: Option<Time>,
    pub(crate) claim_window: Nanos,
    pub(crate) spends_credit: bool,
}

/// A demand that does not fit in time: what limits it, when it would fit, and how much fits now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of the resource of which the least fits.
    pub kind: ResourceKind,
    /// The name of that resource.
    pub bottleneck: Arc<str>,
    /// The earliest start that was permitted.
    pub release: Time,
    /// The first start without the deadline; `None` if there is none within the horizon, or within the
    /// reservation of which it is to be a phase.
    pub next_start: Option<Time>,
    /// The share of the demand that fits for its whole length from the release on.
    pub fits_now: Share,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// It does not fit before its deadline or the horizon.
    #[error("the reservation does not fit in time: {0}")]
    NoFit(Refusal),
    /// The calendar is full.
    #[error("the calendar has {0} reservations: wait until some have ended")]
    Full(usize),
    /// The duration is zero or too long.
    #[error("a duration of {0} with a claim window of {1}: more than 0s and together at most {2}")]
    Duration(Nanos, Nanos, Nanos),
    /// The account's name is too long.
    #[error("an account of {0} bytes: at most 128 are accepted")]
    AccountName(usize),
    /// The loads are not a demand.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// A resource cannot take more.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// A ceiling of the owner is reached.
    #[error(
        "{subject} has {has} {unit} outstanding: with {more} more it exceeds its ceiling of {most}"
    )]
    Ceiling {
        /// The user, group, account or project.
        subject: CeilingSubject,
        /// What the ceiling is of: `bytes`, `operations` or `reservations`.
        unit: &'static str,
        /// What is reserved by what has not ended.
        has: u64,
        /// What the request adds.
        more: u64,
        /// What may be outstanding.
        most: u64,
    },
    /// The credit does not pay for it.
    #[error("{subject} has a credit of {has} B, and the request costs {needs} B",
        has = .has.get(), needs = .needs.get())]
    Credit {
        /// The account or user.
        subject: CeilingSubject,
        /// The balance of its credit.
        has: Bytes,
        /// The reserved bytes of the request.
        needs: Bytes,
    },
    /// The request has no bytes that a credit could pay for.
    #[error("the request reserves operations only: a credit pays for bytes")]
    NothingToPay,
    /// The reservation is unknown or has ended.
    #[error("the reservation does not exist or has ended")]
    Unknown,
    /// The reservation has not begun.
    #[error("the reservation is not active: phases and extensions are of active ones")]
    NotActive,
    /// The reservation is no longer moved.
    #[error("the reservation has begun, or begins within seconds: it is not moved any more")]
    HasBegun,
    /// A phase is to be moved by itself.
    #[error("the reservation is a phase: it is moved with the reservation of which it is one")]
    MovedPhase,
    /// A phase needs nothing beyond the basic demand.
    #[error("the phase needs nothing beyond the basic demand of its reservation")]
    Needless,
    /// A phase is asked of a phase.
    #[error("the reservation is a phase itself: phases are parts of reservations that are not")]
    NestedPhase,
    /// A phase does not lie within its parent.
    #[error("the phase ends {0} after its reservation")]
    BeyondParent(Nanos),
    /// A reservation has too many phases.
    #[error("{0} phases: a reservation has at most {max} that have not ended", max = crate::Calendar::PHASES_MAX)]
    Phases(usize),
    /// A phase starts before the one before it is over.
    #[error("the phase starts before the one before it is over, {0} after the start at the latest")]
    PhaseOverlap(Nanos),
    /// A phase takes no time.
    #[error("the phase has a duration of zero")]
    NoDuration,
    /// The phases have no known times.
    #[error(
        "phases are of reservations with a guaranteed start: not spontaneous, without a claim window"
    )]
    PhasesNeedStart,
    /// One of the phases is refused, counted from 1.
    #[error("phase {0}: {1}")]
    Phase(usize, #[source] Box<ReservationError>),
    /// A group is empty or too large.
    #[error("a group of {0} reservations: 1 to {1} are accepted")]
    GroupSize(usize, usize),
    /// Too many changes of capacities lie ahead.
    #[error("{0} changes of capacities lie ahead: that is the bound")]
    CapacityChanges(usize),
}

impl ReservationRequest {
    /// A request for a fixed reservation, as early as it fits and without a claim window.
    pub fn new(owner: ReservationOwner, demand: Demand, duration: Nanos) -> ReservationRequest {
        ReservationRequest {
            owner,
            class: ReservationClass::Fixed,
            demand,
            release: Time::ZERO,
            duration,
            deadline: None,
            claim_window: Nanos::ZERO,
            spends_credit: false,
        }
    }

    /// The same request, spontaneous.
    pub fn spontaneous(self) -> ReservationRequest {
        ReservationRequest { class: ReservationClass::Spontaneous, ..self }
    }

    /// The same request, not to start before a time.
    pub fn starting_from(self, release: Time) -> ReservationRequest {
        ReservationRequest { release, ..self }
    }

    /// The same request, to end by a time, with its claim window.
    pub fn ending_by(self, deadline: Time) -> ReservationRequest {
        ReservationRequest { deadline: Some(deadline), ..self }
    }

    /// The same request, to be claimed at most that long after ACTIVE was reported.
    pub fn claimed_within(self, claim_window: Nanos) -> ReservationRequest {
        ReservationRequest { claim_window, ..self }
    }

    /// The same request; if it is spontaneous, it is queued before those that pay nothing, for a
    /// credit of its bytes.
    pub fn spending_credit(self) -> ReservationRequest {
        ReservationRequest { spends_credit: true, ..self }
    }

    /// How long it occupies the calendar, unless it is claimed earlier.
    pub(crate) fn length(&self) -> Nanos {
        self.duration + self.claim_window
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, name) = (self.kind.name(), &self.bottleneck);
        // Rounded so that the message promises no more than there is.
        let percent = self.fits_now.billionths() / 10_000_000;
        write!(
            f,
            "{kind} {name:?} is the bottleneck, {percent} % of the demand fits at its earliest \
             start, "
        )?;
        match self.next_start {
            Some(start) => {
                let seconds = start.since(self.release).get().div_ceil(1_000_000_000);
                write!(f, "all of it fits {} later", Nanos::from_secs(seconds))
            }
            None => f.write_str(
                "and all of it at no time within the horizon, or the reservation of a phase",
            ),
        }
    }
}

/// The longest name of an account in bytes.
pub(crate) const ACCOUNT_MAX: usize = 128;
