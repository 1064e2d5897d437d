//! Phases of reservations, as they are requested and shown.
//!
//! ```text
//!   NewPhase: whole rates, of which those that are not named are the reservation's ─► PlannedPhase
//!   AddedPhase, later ─► PhaseRequest
//!   calendar: a reservation of its own with the difference ─► WirePhase, with the whole rates
//! ```

use api::{AddedPhase, NewPhase, NewReservation, WirePhase, WireRate, WireReservation};
use model::{Nanos, Time};
use reserve::{
    Calendar, PhaseRequest, PlannedPhase, ReservationError, ReservationId, ReservationState,
};

use super::CalendarActor;
use super::answers::not_found;
use super::requests::{Refused, RequestContext, at, check_key, may_act, rate, report_of};
use super::shown::{KnownReservation, state_of};
use super::state::ReservationDetails;
use crate::process::access::ApiCaller;

impl RequestContext<'_> {
    /// Checks the phases of a request; the calendar decides whether they fit.
    pub(super) fn phases(
        &self,
        new: &NewReservation,
        basic: &ReservationDetails,
    ) -> Result<Vec<(PlannedPhase, ReservationDetails)>, Refused> {
        if new.phases.len() > Calendar::PHASES_MAX {
            let (count, most) = (new.phases.len(), Calendar::PHASES_MAX);
            return Err(at("phases", format!("{count} phases: at most {most} are accepted")));
        }
        let numbered = new.phases.iter().enumerate();
        let phase = |(nth, phase)| {
            let (planned, details) = self.phase(nth + 1, phase, basic)?;
            self.check_nodes(new.nodes, &details)?;
            Ok((planned, details))
        };
        numbered.map(phase).collect()
    }

    fn phase(
        &self,
        number: usize,
        new: &NewPhase,
        basic: &ReservationDetails,
    ) -> Result<(PlannedPhase, ReservationDetails), Refused> {
        let details = phase_details([new.read, new.write, new.metadata], basic).map_err(|why| {
            let key = why.at.unwrap_or_default();
            at("phases", format!("phase {number}: {key}: {}", why.message))
        })?;
        let planned = PlannedPhase {
            demand: self.demand(&details)?,
            after: Nanos::new(new.start_ns),
            tolerance: Nanos::new(new.tolerance_ns),
            duration: Nanos::new(new.duration_ns),
        };
        Ok((planned, details))
    }
}

/// What a phase has: the rates of reads, writes and metadata that it names, and otherwise those of its
/// reservation.
fn phase_details(
    [read, write, metadata]: [Option<WireRate>; 3],
    basic: &ReservationDetails,
) -> Result<ReservationDetails, Refused> {
    let of = |key: &str, named: Option<WireRate>, has: Option<u64>, in_bytes: bool| {
        let named = rate(key, named, in_bytes)?;
        if let (Some(named), Some(has)) = (named, has)
            && named < has
        {
            let why = format!("{named} is less than {has}, which the reservation has always");
            return Err(at(key, why));
        }
        Ok(named.or(has))
    };
    Ok(ReservationDetails {
        read: of("read", read, basic.read, true)?,
        write: of("write", write, basic.write, true)?,
        metadata: of("metadata", metadata, basic.metadata, false)?,
        idempotency_key: None,
        ..basic.clone()
    })
}

impl CalendarActor {
    /// Adds a phase to a reservation, and returns the phase.
    pub(super) fn add_phase(
        &mut self,
        id: ReservationId,
        new: &AddedPhase,
        by: &ApiCaller,
        now: Time,
    ) -> Result<WireReservation, Refused> {
        let KnownReservation { owner, details: basic, .. } = self.find(id, by)?.clone();
        may_act(by, Some(owner.uid))?;
        self.calendar.advance(now);
        self.drain_events();
        if let Some(key) = new.idempotency_key.as_deref() {
            check_key(key)?;
            if let Some(phase) = self.requested_with(owner.uid, key, Some(id)) {
                return Ok(self.show(phase).expect("it has not ended"));
            }
        }
        let details = phase_details([new.read, new.write, new.metadata], &basic)?;
        let (calendar, fleet, node) = (&self.calendar, &self.fleet, self.settings.node);
        let context = RequestContext { calendar, fleet, node, now };
        context.check_nodes(new.nodes, &details)?;
        // What the phase adds by the proxies of today: the reservation has its demand by those of the
        // time of its request, and what has changed since then is not a part of the phase.
        let more = context.demand(&details)?.beyond(&context.demand(&basic)?);
        let has = calendar.demand(id).ok_or_else(|| not_found(id.0))?;
        let demand = more.map_or(Ok(has.clone()), |more| has.plus(&more));
        let phase = PhaseRequest {
            demand: demand.map_err(|error| at("read", error.to_string()))?,
            start: new.not_before_ns.map_or(now, Time::from_nanos),
            tolerance: Nanos::new(new.tolerance_ns),
            duration: Nanos::new(new.duration_ns),
        };
        self.check_overlap(id, &phase, now)?;
        let made = self.calendar.request_phase(id, phase, now).map_err(|error| {
            let mut report = report_of(&error, &self.calendar, &self.rules.visible_to(by));
            match error {
                ReservationError::BeyondParent(_) => report.at = Some("duration_ns".into()),
                ReservationError::PhasesNeedStart => report.at = Some("id".into()),
                _ => {}
            }
            report
        })?;
        let details = ReservationDetails {
            idempotency_key: new.idempotency_key.clone(),
            is_spontaneous: false,
            ..details
        };
        self.keep(made, KnownReservation { owner, details, phase_of: Some(id) });
        self.changed.insert(id);
        self.drain_events();
        Ok(self.show(made).expect("it was just made"))
    }

    /// Checks that a phase is over, with its tolerance, before another one starts, and starts after it.
    fn check_overlap(
        &self,
        id: ReservationId,
        phase: &PhaseRequest,
        now: Time,
    ) -> Result<(), Refused> {
        let begins = self.calendar.status(id).span.map_or(now, |span| span.from.max(now));
        let start = phase.start.max(begins);
        let end = (phase.start + phase.tolerance).max(start) + phase.duration;
        let (start, end) = (start.as_nanos(), end.as_nanos());
        let last = |other: &WirePhase| {
            other.end_ns.saturating_add(other.last_start_ns.saturating_sub(other.start_ns))
        };
        let phases = self.phases_of(id);
        let overlaps = |other: &&WirePhase| start < last(other) && other.start_ns < end;
        phases.iter().find(overlaps).map_or(Ok(()), |other| {
            let message =
                format!("the phase overlaps phase {} with the tolerances of both", other.id);
            Err(at("not_before_ns", message))
        })
    }

    /// The phases of a reservation that have not ended.
    pub(super) fn phases_of(&self, id: ReservationId) -> Vec<WirePhase> {
        let phases = self.calendar.progress(id).map(|progress| progress.phases);
        let shown = phases.unwrap_or_default().into_iter().filter_map(|id| {
            let details = &self.known.get(id)?.details;
            let status = self.calendar.status(id);
            let span = status.span?;
            // One that has begun starts no later.
            let may_move = status.state == ReservationState::Scheduled;
            let progress = self.calendar.progress(id).filter(|_| may_move);
            let last = progress.and_then(|progress| progress.last_start);
            Some(WirePhase {
                id: id.0,
                state: state_of(status.state),
                start_ns: span.from.as_nanos(),
                last_start_ns: last.map_or(span.from, |last| last.max(span.from)).as_nanos(),
                end_ns: span.until.as_nanos(),
                read: details.read.map(WireRate::Bytes),
                write: details.write.map(WireRate::Bytes),
                metadata: details.metadata.map(WireRate::Ops),
            })
        });
        let mut shown: Vec<WirePhase> = shown.collect();
        shown.sort_by_key(|phase| phase.start_ns);
        shown
    }
}
