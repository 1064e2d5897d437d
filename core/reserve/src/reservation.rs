//! One reservation: its stage, its place in the calendar, and what of it is scaled.
//!
//! ```text
//!   waiting ─► scheduled ─► installing ─► installed ─► active ─► claimed ─► (ended: not kept)
//!                                 └───── s has come ──────┘ └── no claim window
//! ```
//!
//! A scaled load holds for the span of a loss: before and after it the load is that of the demand.
//! What is booked is always what [`Reservation::pieces`] says.

use model::{Amount, Nanos, Share, Time};
use serde::{Deserialize, Serialize};

use crate::demand::{Demand, ResourceId};
use crate::load::Load;
use crate::request::{ReservationClass, ReservationOwner, ReservationRequest};
use crate::resources::{ResourceTable, Span};

/// The number of a reservation, which no other one gets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReservationId(pub u64);

/// The state of a reservation as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// Not known, or ended.
    Undefined,
    /// In the calendar or its queue, and not begun. The start may change.
    Scheduled,
    /// In force on all servers.
    Active,
}

/// Why a reservation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The owner finished it after its begin.
    Completed,
    /// The owner removed it.
    Removed,
    /// Its time is over; I/O goes on as best effort.
    Expired,
    /// It was not claimed in its window.
    Lapsed,
    /// Its deadline can no longer be met.
    Rejected,
    /// Its rows were not in force until its end, or could not be in time for its deadline.
    NotInstalled,
    /// The reservation of which it was a phase has ended.
    ParentEnded,
}

/// What a client sees of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationStatus {
    /// The state of the reservation.
    pub state: ReservationState,
    /// The planned or actual span; of a waiting one an estimate made at the request.
    pub span: Option<Span>,
    /// The guaranteed start, if there is one.
    pub guaranteed: Option<Time>,
    /// Why it has ended, if that is known.
    pub ended: Option<EndReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// In the queue, with whether its release has come.
    Waiting { released: bool },
    /// In the calendar, not begun.
    Scheduled,
    /// Its rows are on their way.
    Installing,
    /// Its rows are in force, its start has not come, unless they were late.
    Installed { is_late: bool },
    /// ACTIVE was reported. If it is not claimed until then it lapses, or, if its owner had less than
    /// its window (installed late, or nobody took claims), its clock begins.
    Active { claim_by: Time, is_late: bool },
    /// Its clock runs since then.
    Claimed { since: Time },
}

/// The lower load of one resource during a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScaledLoad {
    pub(crate) resource: ResourceId,
    pub(crate) span: Span,
    pub(crate) load: Load,
}

#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) owner: ReservationOwner,
    pub(crate) class: ReservationClass,
    pub(crate) demand: Demand,
    pub(crate) release: Time,
    pub(crate) duration: Nanos,
    pub(crate) claim_window: Nanos,
    pub(crate) deadline: Option<Time>,
    /// Queued before those that do not pay.
    pub(crate) has_paid: bool,
    pub(crate) requested: Time,
    pub(crate) stage: Stage,
    /// What it occupies; of a waiting one an estimate, which is not booked.
    pub(crate) place: Span,
    pub(crate) guaranteed: Option<Time>,
    /// In the order of time; those of one resource do not overlap.
    pub(crate) scaled: Vec<ScaledLoad>,
    /// How much of the place was added by extensions.
    pub(crate) extended: Nanos,
    /// The reserved bytes, for ceilings and credits, and operations, for ceilings.
    pub(crate) reserved: Amount,
    pub(crate) parent: Option<ReservationId>,
    pub(crate) phases: Vec<ReservationId>,
}

impl Reservation {
    pub(crate) fn new(
        request: ReservationRequest,
        reserved: Amount,
        place: Span,
        now: Time,
    ) -> Self {
        Reservation {
            owner: request.owner,
            class: request.class,
            demand: request.demand,
            release: request.release.max(now),
            duration: request.duration,
            claim_window: request.claim_window,
            deadline: request.deadline,
            has_paid: request.spends_credit && request.class == ReservationClass::Spontaneous,
            requested: now,
            stage: Stage::Waiting { released: request.release <= now },
            place,
            guaranteed: None,
            scaled: Vec::new(),
            extended: Nanos::ZERO,
            reserved,
            parent: None,
            phases: Vec::new(),
        }
    }

    /// How long it occupies the calendar, unless it is claimed earlier.
    pub(crate) fn length(&self) -> Nanos {
        self.duration + self.claim_window
    }

    /// Whether its place is booked.
    pub(crate) fn is_booked(&self) -> bool {
        !matches!(self.stage, Stage::Waiting { .. })
    }

    /// Whether it begins or has begun, so that it is scaled and not moved.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Waiting { .. } | Stage::Scheduled)
    }

    pub(crate) fn state(&self) -> ReservationState {
        match self.stage {
            Stage::Active { .. } | Stage::Claimed { .. } => ReservationState::Active,
            _ => ReservationState::Scheduled,
        }
    }

    /// When its next stage is due by time alone.
    pub(crate) fn due(&self, install_lead: Nanos, wait_max: Nanos) -> Time {
        match self.stage {
            Stage::Waiting { released: false } => self.release,
            Stage::Waiting { released: true } => {
                let ages = self.release.max(self.requested) + wait_max;
                ages.min(self.last_start().map_or(Time::MAX, |last| last + Nanos::new(1)))
            }
            Stage::Scheduled => self.place.from.before(install_lead),
            Stage::Installed { .. } => self.place.from,
            Stage::Active { claim_by, .. } => claim_by,
            Stage::Installing | Stage::Claimed { .. } => self.place.until,
        }
    }

    /// Whether it is within its release and its deadline.
    pub(crate) fn is_in_window(&self) -> bool {
        self.release <= self.place.from
            && self.deadline.is_none_or(|deadline| self.place.until <= deadline)
    }

    /// The last start that meets the deadline.
    pub(crate) fn last_start(&self) -> Option<Time> {
        self.deadline.map(|deadline| deadline.before(self.length()))
    }

    /// Lowers the load of one resource to a share of it during a span.
    pub(crate) fn scale(&mut self, resource: ResourceId, span: Span, share: Share) -> ScaledLoad {
        let load = self.demand.load(resource).scaled(share);
        let scaled = ScaledLoad { resource, span, load };
        self.scaled.push(scaled);
        self.scaled.sort_by_key(|scaled| scaled.span.from);
        scaled
    }

    /// Makes the load of one resource whole during a span. Returns where it was not.
    pub(crate) fn unscale(&mut self, resource: ResourceId, span: Span) -> Option<Span> {
        self.split_scaled(resource, span.from);
        self.split_scaled(resource, span.until);
        let is_in = |one: &ScaledLoad| one.resource == resource && one.span.overlaps(span);
        let mut inside = self.scaled.iter().filter(|one| is_in(one)).map(|one| one.span);
        let found = inside
            .next()
            .map(|first| inside.fold(first, |all, next| Span { until: next.until, ..all }));
        self.scaled.retain(|one| !is_in(one));
        found
    }

    /// Makes a time the begin of a scaled load of a resource, if it is within one.
    pub(crate) fn split_scaled(&mut self, resource: ResourceId, at: Time) {
        let is_at = |one: &&mut ScaledLoad| {
            one.resource == resource && one.span.from < at && at < one.span.until
        };
        if let Some(one) = self.scaled.iter_mut().find(is_at) {
            let later = ScaledLoad { span: Span { from: at, ..one.span }, ..*one };
            one.span.until = at;
            self.scaled.push(later);
            self.scaled.sort_by_key(|scaled| scaled.span.from);
        }
    }

    /// Books or releases the part of its place within a span.
    pub(crate) fn book_within(&self, span: Span, table: &mut ResourceTable) {
        self.pieces(span, |resource, load, span| table.book_load(resource, load, span));
    }

    /// Releases the part of its place within a span.
    pub(crate) fn release_within(&self, span: Span, table: &mut ResourceTable) {
        self.pieces(span, |resource, load, span| table.release_load(resource, load, span));
    }

    /// The booked loads within a span.
    pub(crate) fn pieces(&self, span: Span, mut each: impl FnMut(ResourceId, Load, Span)) {
        let (from, until) = (span.from.max(self.place.from), span.until.min(self.place.until));
        for (resource, load) in self.demand.loads() {
            let mut at = from;
            for scaled in self.scaled.iter().filter(|scaled| scaled.resource == resource) {
                let begin = scaled.span.from.max(at).min(until);
                let end = scaled.span.until.min(until);
                if at < begin {
                    each(resource, load, Span { from: at, until: begin });
                }
                if begin < end {
                    each(resource, scaled.load, Span { from: begin, until: end });
                }
                at = at.max(end);
            }
            if at < until {
                each(resource, load, Span { from: at, until });
            }
        }
    }
}

impl std::fmt::Display for ReservationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl EndReason {
    /// Whether the calendar ended it before its begin, so that it had nothing for its credit.
    pub(crate) const fn is_of_calendar(self) -> bool {
        matches!(self, EndReason::Rejected | EndReason::NotInstalled)
    }

    /// The word for it in messages and events.
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Completed => "completed",
            EndReason::Removed => "removed",
            EndReason::Expired => "expired",
            EndReason::Lapsed => "lapsed",
            EndReason::Rejected => "rejected",
            EndReason::NotInstalled => "not_installed",
            EndReason::ParentEnded => "parent_ended",
        }
    }
}
