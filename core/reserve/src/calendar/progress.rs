//! What is to be in force of a reservation now, for the caller that installs it and for its owner.

use model::Time;

use super::Calendar;
use crate::demand::{Demand, ResourceId, ResourceKind};
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
    /// What it has by each resource of its demand, less than that in a loss; of a phase what that adds
    /// to its reservation. Of a network that a part of its rate passes, what that allows of the rate.
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
                loads.push((resource, self.of_whole_rate(&reservation.demand, resource, load)));
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

    /// What a load of a resource is of the rate at the targets: where a part of that goes by a network,
    /// as much as the load is of this part.
    fn of_whole_rate(&self, demand: &Demand, resource: ResourceId, load: Load) -> Load {
        let kind = |resource| self.resources.describe(resource).map(|(_, kind)| kind);
        if kind(resource) != Some(ResourceKind::ProxyNetwork) {
            return load;
        }
        let of_targets = demand.loads().filter(|(of, _)| kind(*of) == Some(ResourceKind::Target));
        let (mut read, mut write) = (0, 0);
        for (_, load) in of_targets {
            read = read.max(load.read_per_sec());
            write = write.max(load.write_per_sec());
        }
        let whole = demand.load(resource);
        let of = |load: u64, whole: u64, rate: u64| match load < whole {
            true => (u128::from(rate) * u128::from(load) / u128::from(whole)) as u64,
            false => rate,
        };
        let read = of(load.read_per_sec(), whole.read_per_sec(), read);
        let write = of(load.write_per_sec(), whole.write_per_sec(), write);
        Load::per_sec(read, write).expect("no more than the rate")
    }
}
