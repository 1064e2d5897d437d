//! Phases: more bandwidth for a part of a reservation's time.
//!
//! ```text
//!   rate           ┌────────┐  phase: demand − basic
//!        ──────────┘        └──────────  basic
//!                  │◄─►│ tolerance: the phase may start this much later
//! ```
//!
//! The calendar has the basic demand and, for the phase, the difference: so a phase and its
//! reservation never count twice. The rows of a phase have the difference, too: proxies add the rows of
//! both up.
//!
//! Phases that are requested with their reservation are planned with it: it starts where the basic
//! demand and each phase fit. It keeps its start from then on, and if a loss of capacity moves it,
//! its phases move as much.

use model::{Amount, Nanos, Time};

use super::{Admission, Calendar};
use crate::demand::Demand;
use crate::request::{ReservationClass, ReservationError, ReservationRequest};
use crate::reservation::{Reservation, ReservationId, Stage};
use crate::resources::{FitWindow, Span};

/// A phase that is requested with its reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPhase {
    /// The whole demand during the phase, with the basic one.
    pub demand: Demand,
    /// How long after the start of the reservation it is to start.
    pub after: Nanos,
    /// How much later it may start.
    pub tolerance: Nanos,
    /// How long it takes, not zero.
    pub duration: Nanos,
}

/// A phase with what it adds to its reservation, and what is in force during it.
#[derive(Debug)]
pub(super) struct PhaseDemand {
    pub(super) more: Demand,
    pub(super) all: Demand,
    pub(super) after: Nanos,
    pub(super) tolerance: Nanos,
    pub(super) duration: Nanos,
}

/// A phase of a reservation that was accepted before.
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
    /// Requests a fixed reservation with phases, of which all are planned or none. It starts at the
    /// first time at which its basic demand fits and each phase within its tolerance.
    ///
    /// # Errors
    /// As of [`Calendar::request`]; if it is not fixed or has a claim window, so that the times of its
    /// phases would not be known; or if a phase overlaps the one before it with its tolerance, ends
    /// after the reservation, or needs nothing more.
    pub fn request_with_phases(
        &mut self,
        request: ReservationRequest,
        phases: &[PlannedPhase],
        now: Time,
    ) -> Result<ReservationId, ReservationError> {
        if phases.is_empty() {
            return self.request(request, now);
        }
        self.advance(now);
        if request.class != ReservationClass::Fixed || request.claim_window != Nanos::ZERO {
            return Err(ReservationError::PhasesNeedStart);
        }
        if phases.len() > Calendar::PHASES_MAX {
            return Err(ReservationError::Phases(phases.len()));
        }
        if self.table.len() + phases.len() >= self.settings.reservations_max {
            return Err(ReservationError::Full(self.table.len()));
        }
        let mut all = vec![self.check(&request)?];
        let phases = phase_demands(&request, phases)?;
        for phase in &phases {
            self.resources.check_room(&phase.more, phases.len() + 1)?;
            all.push(self.amount(&phase.more, phase.duration));
        }
        let sum = all.iter().fold(Amount::default(), |sum, one| Amount {
            bytes: sum.bytes + one.bytes,
            ops: sum.ops + one.ops,
        });
        self.ceilings.check(&request.owner, sum, all.len() as u32)?;
        let Some(starts) = self.starts_with_phases(&request, &phases) else {
            return Err(self.refusal_with_phases(&request, &phases));
        };
        let owner = request.owner.clone();
        all.iter().for_each(|reserved| self.ceilings.charge(&owner, *reserved, 1));
        let id = self.enter(request, Admission { reserved: all[0], start: starts[0] });
        for (nth, phase) in phases.into_iter().enumerate() {
            let release = starts[0] + phase.after;
            let request = ReservationRequest::new(owner.clone(), phase.more, phase.duration)
                .starting_from(release)
                .ending_by(release + phase.tolerance + phase.duration);
            let admitted = Admission { reserved: all[nth + 1], start: starts[nth + 1] };
            self.enter_phase(id, request, admitted);
        }
        self.settle();
        Ok(id)
    }

    /// Plans a phase of a reservation that is claimed, or whose start is known: its own start is
    /// guaranteed, from the predicted one, or that of the reservation, to the end of the tolerance. It
    /// ends with its reservation at the latest.
    ///
    /// # Errors
    /// If the reservation is spontaneous or has a claim window and is not claimed, or is a phase itself;
    /// if the phase takes no time, needs nothing more, ends after it or does not fit; or if a bound or
    /// ceiling is reached.
    pub fn request_phase(
        &mut self,
        parent: ReservationId,
        phase: PhaseRequest,
        now: Time,
    ) -> Result<ReservationId, ReservationError> {
        self.advance(now);
        let reservation = self.table.get(parent).ok_or(ReservationError::Unknown)?;
        if reservation.parent.is_some() {
            return Err(ReservationError::NestedPhase);
        }
        let is_claimed = matches!(reservation.stage, Stage::Claimed { .. });
        let is_fixed =
            reservation.class == ReservationClass::Fixed && reservation.claim_window == Nanos::ZERO;
        if !is_claimed && !is_fixed {
            return Err(ReservationError::PhasesNeedStart);
        }
        if phase.duration == Nanos::ZERO {
            return Err(ReservationError::NoDuration);
        }
        if reservation.phases.len() >= Calendar::PHASES_MAX {
            return Err(ReservationError::Phases(reservation.phases.len()));
        }
        let start = phase.start.max(self.now).max(reservation.place.from);
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
        // A start after which it would outlive its reservation is none.
        let window = self.window(start, Some(deadline), phase.duration);
        let fits = self.resources.earliest_fit(&request.demand, window);
        let span = Span::new(start, phase.duration);
        let start = fits.map_err(|_| self.refusal(&request.demand, span, Some(last)))?;
        self.ceilings.charge(&request.owner, reserved, 1);
        let id = self.enter_phase(parent, request, Admission { reserved, start });
        self.settle();
        Ok(id)
    }

    /// How many phases of a reservation may not have ended.
    pub const PHASES_MAX: usize = 64;

    fn enter_phase(
        &mut self,
        parent: ReservationId,
        request: ReservationRequest,
        admitted: Admission,
    ) -> ReservationId {
        let id = self.enter(request, admitted);
        self.table.change(id, |phase| phase.parent = Some(parent));
        self.table.change(parent, |parent| parent.phases.push(id));
        id
    }

    /// The first start at which a reservation fits with its phases, and the starts of these; `None`
    /// if there is none before its deadline, or it was not found in the bounded number of attempts.
    pub(super) fn starts_with_phases(
        &self,
        request: &ReservationRequest,
        phases: &[PhaseDemand],
    ) -> Option<Vec<Time>> {
        let mut window = self.window(request.release, request.deadline, request.length());
        for _ in 0..ATTEMPTS_MAX {
            let start = self.resources.earliest_fit(&request.demand, window).ok()?;
            let mut starts = vec![start];
            for phase in phases {
                let release = start + phase.after;
                let fits = FitWindow { release, until: window.until, length: phase.duration };
                let found = self.resources.earliest_fit(&phase.all, fits).ok()?;
                if found > release + phase.tolerance {
                    // no start of the reservation before that one has room for this phase
                    window.release = found.before(phase.after + phase.tolerance);
                    break;
                }
                starts.push(found);
            }
            if starts.len() > phases.len() {
                return Some(starts);
            }
        }
        None
    }

    /// The refusal of a reservation with phases: what fits of the demand of which the least does.
    pub(super) fn refusal_with_phases(
        &self,
        request: &ReservationRequest,
        phases: &[PhaseDemand],
    ) -> ReservationError {
        let release = self.window(request.release, None, request.length()).release;
        let open = ReservationRequest { deadline: None, ..request.clone() };
        let next_start = self.starts_with_phases(&open, phases).map(|starts| starts[0]);
        let of_phase = |phase: &PhaseDemand| {
            let span = Span::new(release + phase.after, phase.duration);
            self.resources.share_that_fits(&phase.all, span)
        };
        let basic =
            self.resources.share_that_fits(&request.demand, Span::new(release, request.length()));
        let least = phases.iter().map(of_phase).fold(basic, std::cmp::Ord::min);
        self.no_fit(least, release, next_start)
    }

    /// Moves what phases of a reservation are planned by as much as its start has moved. Those that
    /// have begun stay.
    pub(super) fn move_phases(&mut self, id: ReservationId, from: Time, to: Time) {
        let phases = self.table.get(id).map(|one| one.phases.clone()).unwrap_or_default();
        let moved = |time: Time| match to > from {
            true => time + to.since(from),
            false => time.before(from.since(to)),
        };
        for phase in phases {
            if self.stage(phase) == Some(Stage::Scheduled) {
                self.table.change(phase, |phase| {
                    phase.release = moved(phase.release);
                    phase.deadline = phase.deadline.map(moved);
                });
                self.misplaced.push(phase);
            }
        }
    }

    /// Plans phases again whose reservations have moved.
    pub(super) fn replace_phases(&mut self) {
        while let Some(id) = self.misplaced.pop() {
            let is_outside =
                |phase: &Reservation| phase.stage == Stage::Scheduled && !phase.is_in_window();
            if self.table.get(id).is_some_and(is_outside) {
                self.take_out(id);
                self.put_back(id);
            }
        }
    }
}

/// Checks the phases of a request, and returns what each adds to it.
fn phase_demands(
    request: &ReservationRequest,
    phases: &[PlannedPhase],
) -> Result<Vec<PhaseDemand>, ReservationError> {
    let mut free = Nanos::ZERO;
    let mut demands = Vec::with_capacity(phases.len());
    for (nth, phase) in phases.iter().enumerate() {
        let PlannedPhase { demand, after, tolerance, duration } = phase.clone();
        let wrong = |why| ReservationError::Phase(nth + 1, Box::new(why));
        if duration == Nanos::ZERO {
            return Err(wrong(ReservationError::NoDuration));
        }
        if after < free {
            return Err(wrong(ReservationError::PhaseOverlap(free)));
        }
        let end = after + tolerance + duration;
        if end > request.duration {
            return Err(wrong(ReservationError::BeyondParent(end - request.duration)));
        }
        free = end;
        let more =
            demand.beyond(&request.demand).ok_or_else(|| wrong(ReservationError::Needless))?;
        let all = request.demand.plus(&more).map_err(|error| wrong(error.into()))?;
        demands.push(PhaseDemand { more, all, after, tolerance, duration });
    }
    Ok(demands)
}

/// How often a start is tried that has room for the basic demand and not for a phase.
const ATTEMPTS_MAX: usize = 1_024;
