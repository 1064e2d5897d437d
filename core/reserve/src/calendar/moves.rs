//! Moves: another start for a reservation that has not begun, at the wish of its owner.
//!
//! ```text
//!   scheduled ─► out, with its phases ─► earliest fit from the wished start on ─┬─► booked there, guaranteed
//!   waiting ───────────────────────────►                                        └─ none: back as it was
//! ```
//!
//! Its own place counts as free while a start is searched. Nothing else is moved for it, so no other
//! reservation starts later; what it frees goes to others as after an end.

use model::Time;

use super::Calendar;
use super::phases::PhaseDemand;
use crate::request::{ReservationClass, ReservationError, ReservationRequest};
use crate::reservation::{Reservation, ReservationId};
use crate::resources::Span;

/// Where a reservation is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRequest {
    /// The earliest start that is wished.
    pub not_before: Time,
    /// Whether it starts exactly then, or not at all.
    pub is_exact: bool,
    /// When it must be over with its claim window.
    pub deadline: Option<Time>,
}

impl Calendar {
    /// Moves a reservation that has not begun to its earliest fit from a time on, with its phases, which
    /// keep their distances from its start. The new start is guaranteed, also of a spontaneous one.
    /// Returns it; others that start earlier now may leave a place that is earlier still.
    ///
    /// # Errors
    /// If it is unknown, has begun or is a phase; or if it does not fit: then it keeps its place.
    pub fn move_start(
        &mut self,
        id: ReservationId,
        to: MoveRequest,
        now: Time,
    ) -> Result<Time, ReservationError> {
        self.advance(now);
        let reservation = self.table.get(id).ok_or(ReservationError::Unknown)?;
        if reservation.parent.is_some() {
            return Err(ReservationError::MovedPhase);
        }
        let phases = reservation.phases.clone();
        let has_begun =
            |id: &ReservationId| self.table.get(*id).is_some_and(Reservation::has_begun);
        if reservation.has_begun() || phases.iter().any(has_begun) {
            return Err(ReservationError::HasBegun);
        }
        let release = to.not_before.max(self.now);
        let exact = Some(release + reservation.length());
        let deadline = if to.is_exact { exact } else { to.deadline };
        let request = ReservationRequest {
            owner: reservation.owner.clone(),
            class: ReservationClass::Fixed,
            demand: reservation.demand.clone(),
            release,
            duration: reservation.duration,
            deadline,
            claim_window: reservation.claim_window,
            spends_credit: reservation.has_paid,
        };
        let demands = self.phases_of(reservation)?;
        let moved: Vec<ReservationId> = std::iter::once(id).chain(phases).collect();
        self.release_all(&moved);
        let found = self.starts_with_phases(&request, &demands);
        let found = found.filter(|starts| self.fit_together(&request, &demands, starts));
        let Some(starts) = found else {
            let refused = self.refusal_with_phases(&request, &demands);
            self.book_all(&moved);
            self.settle();
            return Err(refused);
        };
        for id in &moved {
            let reservation = self.table.get(*id).expect("has not ended");
            if reservation.is_booked() {
                self.compression.note(&reservation.demand, self.rest_of(reservation.place));
                self.freed = true;
            }
        }
        if self.head == Some(id) {
            self.head = None;
        }
        self.table.change(id, |one| {
            (one.class, one.release, one.deadline) = (ReservationClass::Fixed, release, deadline);
            one.scaled.clear();
        });
        self.place(id, starts[0], true);
        for (nth, phase) in moved[1..].iter().enumerate() {
            let PhaseDemand { after, tolerance, duration, .. } = demands[nth];
            self.table.change(*phase, |one| {
                one.release = starts[0] + after;
                one.deadline = Some(one.release + tolerance + duration);
                one.scaled.clear();
            });
            self.place(*phase, starts[nth + 1], true);
        }
        self.settle();
        Ok(starts[0])
    }

    /// The phases of a reservation, as they were requested.
    fn phases_of(&self, reservation: &Reservation) -> Result<Vec<PhaseDemand>, ReservationError> {
        let start = reservation.place.from;
        let phases = reservation.phases.iter().filter_map(|id| self.table.get(*id));
        let demand = |phase: &Reservation| {
            let (more, duration) = (phase.demand.clone(), phase.duration);
            let after = phase.release.since(start);
            let last = phase.last_start().unwrap_or(phase.place.from);
            let all = reservation.demand.plus(&more)?;
            Ok(PhaseDemand { more, all, after, tolerance: last.since(phase.release), duration })
        };
        phases.map(demand).collect()
    }

    /// Whether a reservation and its phases fit at these starts together: phases that were added later
    /// may overlap, and their starts are searched for each by itself. Books nothing.
    fn fit_together(
        &mut self,
        request: &ReservationRequest,
        phases: &[PhaseDemand],
        starts: &[Time],
    ) -> bool {
        let of_phases = phases.iter().map(|phase| (&phase.more, phase.duration));
        let all = std::iter::once((&request.demand, request.length())).chain(of_phases);
        let mut booked = Vec::new();
        for ((demand, length), start) in all.zip(starts) {
            let span = Span::new(*start, length);
            if self.resources.check_fit(demand, span).is_err() {
                break;
            }
            self.resources.book(demand, span);
            booked.push((demand, span));
        }
        booked.iter().for_each(|(demand, span)| self.resources.release(demand, *span));
        booked.len() == starts.len()
    }

    fn release_all(&mut self, ids: &[ReservationId]) {
        for id in ids {
            let reservation = self.table.get(*id).expect("has not ended");
            if reservation.is_booked() {
                reservation.release_within(self.rest_of(reservation.place), &mut self.resources);
            }
        }
    }

    fn book_all(&mut self, ids: &[ReservationId]) {
        for id in ids {
            let reservation = self.table.get(*id).expect("has not ended");
            if reservation.is_booked() {
                reservation.book_within(self.rest_of(reservation.place), &mut self.resources);
            }
        }
    }
}
