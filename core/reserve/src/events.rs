//! What the calendar reports to the owners of reservations, and to the caller that installs them.

use model::Time;

use crate::demand::ResourceId;
use crate::load::Load;
use crate::request::ReservationOwner;
use crate::reservation::{EndReason, ReservationId};
use crate::resources::Span;

/// A change of one reservation. Events are applied in order: an end before a later install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarEvent {
    /// The reservation that has changed.
    pub id: ReservationId,
    /// The owner of the reservation.
    pub owner: ReservationOwner,
    /// What has changed of it.
    pub change: CalendarChange,
}

/// What has changed of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarChange {
    /// It has a place in the calendar.
    Scheduled {
        /// The span that it occupies.
        span: Span,
        /// Whether the start is guaranteed.
        is_guaranteed: bool,
    },
    /// It starts at another time: not later than guaranteed, or if nothing is, maybe later.
    Moved {
        /// The start until now.
        from: Time,
        /// The start from now on.
        to: Time,
    },
    /// It starts later than guaranteed: capacity was lost or its rows could not be installed.
    Slipped {
        /// The start that was guaranteed.
        guaranteed: Time,
        /// The start from now on.
        to: Time,
    },
    /// It waited for the longest time and is fixed now.
    Aged {
        /// The start that was guaranteed.
        start: Time,
    },
    /// Its rows are to be put in force for a span, then `installed` or `install_failed` is called.
    Install {
        /// The span of the rows.
        span: Span,
    },
    /// It is active: its rows are in force and its start has come.
    Active {
        /// Until when it must be claimed; `None` if its clock runs, which is reported for its own if
        /// it was installed late and not claimed.
        claim_by: Option<Time>,
    },
    /// Its end is another: it was claimed or extended. Its rows are to end then.
    Ends {
        /// The end from now on.
        until: Time,
    },
    /// One of its loads is lower for a span, and whole after it: capacity was lost.
    Scaled {
        /// The resource that is concerned.
        resource: ResourceId,
        /// The load in that span, whatever was reported of it before.
        load: Load,
        /// When the load is lower.
        span: Span,
    },
    /// A scaled load is whole again, earlier than reported.
    Restored {
        /// The resource that is concerned.
        resource: ResourceId,
        /// When the load is whole.
        span: Span,
    },
    /// It has ended. Its rows are to be removed; I/O that goes on is best effort.
    Ended {
        /// Why it has ended.
        reason: EndReason,
    },
}
