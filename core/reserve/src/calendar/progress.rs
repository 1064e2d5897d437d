//! What is to be in force of a reservation now, for the caller that installs it and for its owner.

use model::Time;

use super::Calendar;
use crate::demand::ResourceId;
use crate::load::Load;
use crate::reservation::{ReservationId, Stage};
use crate::resources::Span;

/// How far a reservation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationProgress {
    /// Whether it waits in the queue, without a place in the calendar.
    pub is_waiting: bool,
    /// Until when it must be claimed; `None` if its clock runs or it is not active.
    pub claim_by: Option<Time>,
    /// Since when its clock runs; `None` if it has not been claimed.
    pub since: Option<Time>,
    /// The rows to be in force; `None` if it has not begun to be installed.
    pub rows: Option<RowLoads>,
    /// Its last start that meets its deadline, which for a phase is the end of its tolerance.
    pub last_start: Option<Time>,
    /// The reservation of which it is a phase.
    pub parent: Option<ReservationId>,
    /// Its phases that have not ended.
    pub phases: Vec<ReservationId>,
}

/// The loads that the rows of a reservation grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLoads {
    /// The span of the rows.
    pub span: Span,
    /// Whether `installed` or `install_failed` is awaited.
    pub is_installing: bool,
    /// What it has of each resource of its demand, less than that in a loss; of a phase what that adds
    /// to its reservation.
    pub loads: Vec<(ResourceId, Load)>,
    /// When the loads change, if a loss begins or ends before the end of the span.
    pub next_change: Option<Time>,
}

impl Calendar {
    /// How far a reservation has come; `None` if it is unknown or has ended.
    pub fn progress(&self, id: ReservationId) -> Option<ReservationProgress> {
        let reservation = self.table.get(id)?;
        let (claim_by, since) = match reservation.stage {
            Stage::Active { claim_by, .. } => (Some(claim_by), None),
            Stage::Claimed { since } => (None, Some(since)),
            _ => (None, None),
        };
        let is_waiting = matches!(reservation.stage, Stage::Waiting { .. });
        let rows = reservation.has_begun().then(|| self.row_loads(id));
        Some(ReservationProgress {
            is_waiting,
            claim_by,
            since,
            rows: rows.flatten(),
            last_start: reservation.last_start(),
            parent: reservation.parent,
            phases: reservation.phases.clone(),
        })
    }

    fn row_loads(&self, id: ReservationId) -> Option<RowLoads> {
        let reservation = self.table.get(id)?;
        let span = reservation.place;
        let at = self.now.max(span.from);
        let (mut loads, mut next_change) = (Vec::new(), span.until);
        reservation.pieces(Span { from: at, until: span.until }, |resource, load, piece| {
            if piece.from <= at {
                loads.push((resource, load));
            }
            let change = if piece.from > at { piece.from } else { piece.until };
            next_change = next_change.min(change);
        });
        Some(RowLoads {
            span,
            is_installing: reservation.stage == Stage::Installing,
            loads,
            next_change: (next_change < span.until).then_some(next_change),
        })
    }
}
