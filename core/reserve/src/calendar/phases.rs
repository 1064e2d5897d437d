//! Phases: more bandwidth for a part of a reservation's time.
//!
//! ```text
//!   rate           ┌────────┐  phase: demand − basic
//!        ──────────┘        └──────────  basic
//!                  │◄─►│ tolerance: the phase may start this much later
//! ```
//!
//! The calendar has the basic demand and, for the phase, the difference. So a phase and its
//! reservation never count twice, and the rows of both add up.

use model::{Nanos, Time};

use super::{Admission, Calendar};
use crate::demand::Demand;
use crate::request::{ReservationClass, ReservationError, ReservationRequest};
use crate::reservation::{ReservationId, Stage};

/// A phase of a claimed reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseRequest {
    /// The whole demand during the phase, with the basic one.
    pub demand: Demand,
    /// The start that is predicted.
    pub start: Time,
    /// How much later it may start.
    pub tolerance: Nanos,
    /// How long it takes, not zero.
    pub duration: Nanos,
}

impl Calendar {
    /// Plans a phase of a claimed reservation: its start is guaranteed, from the predicted one to
    /// the end of the tolerance. It ends with its reservation at the latest.
    ///
    /// # Errors
    /// If the reservation is not claimed or is a phase itself, the phase needs nothing more, ends
    /// after it or does not fit, or a bound or ceiling is reached.
    pub fn request_phase(
        &mut self,
        parent: ReservationId,
        phase: PhaseRequest,
        now: Time,
    ) -> Result<ReservationId, ReservationError> {
        self.advance(now);
        let reservation = self.table.get(parent).ok_or(ReservationError::Unknown)?;
        if !matches!(reservation.stage, Stage::Claimed { .. }) {
            return Err(ReservationError::NotActive);
        }
        if reservation.parent.is_some() {
            return Err(ReservationError::NestedPhase);
        }
        if reservation.phases.len() >= PHASES_MAX {
            return Err(ReservationError::Phases(reservation.phases.len()));
        }
        let start = phase.start.max(self.now);
        let (first_end, last) = (start + phase.duration, reservation.place.until);
        if first_end > last {
            return Err(ReservationError::BeyondParent(first_end.since(last)));
        }
        let more = phase.demand.beyond(&reservation.demand).ok_or(ReservationError::Needless)?;
        let deadline = (phase.start + phase.tolerance + phase.duration).max(first_end).min(last);
        let request = ReservationRequest::new(reservation.owner.clone(), more, phase.duration)
            .starting_from(start)
            .ending_by(deadline);
        debug_assert_eq!(request.class, ReservationClass::Fixed);
        let reserved = self.check(&request)?;
        self.ceilings.check(&request.owner, reserved, 1)?;
        let start = self.first_start(&request)?;
        self.ceilings.charge(&request.owner, reserved, 1);
        let id = self.enter(request, Admission { reserved, start });
        self.table.change(id, |phase| phase.parent = Some(parent));
        self.table.change(parent, |parent| parent.phases.push(id));
        self.settle();
        Ok(id)
    }
}

/// How many phases of a reservation may not have ended.
const PHASES_MAX: usize = 64;
