//! Phases of reservations, as they are requested and shown.
//!
//! ```text
//!   NewPhase: whole rates, of which those that are not named are the reservation's ─► PlannedPhase
//!   calendar: a reservation of its own with the difference ─► WirePhase, with the whole rates
//! ```

use api::{NewPhase, NewReservation, WirePhase, WireRate};
use model::Nanos;
use reserve::{Calendar, PlannedPhase, ReservationId};

use super::CalendarActor;
use super::requests::{Refused, RequestContext, at, rate};
use super::shown::state_of;
use super::state::ReservationDetails;

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
        let of = |key: &str, named: Option<WireRate>, has: Option<u64>, in_bytes: bool| {
            let wrong = |why: &str| at("phases", format!("phase {number}: {key}: {why}"));
            let named = rate(key, named, in_bytes).map_err(|why| wrong(&why.message))?;
            if let (Some(named), Some(has)) = (named, has)
                && named < has
            {
                let why = format!("{named} is less than {has}, which the reservation has always");
                return Err(wrong(&why));
            }
            Ok(named.or(has))
        };
        let details = ReservationDetails {
            read: of("read", new.read, basic.read, true)?,
            write: of("write", new.write, basic.write, true)?,
            metadata: of("metadata", new.metadata, basic.metadata, false)?,
            idempotency_key: None,
            ..basic.clone()
        };
        let planned = PlannedPhase {
            demand: self.demand(&details)?,
            after: Nanos::new(new.start_ns),
            tolerance: Nanos::new(new.tolerance_ns),
            duration: Nanos::new(new.duration_ns),
        };
        Ok((planned, details))
    }
}

impl CalendarActor {
    /// The phases of a reservation that have not ended.
    pub(super) fn phases_of(&self, id: ReservationId) -> Vec<WirePhase> {
        let phases = self.calendar.progress(id).map(|progress| progress.phases);
        let shown = phases.unwrap_or_default().into_iter().filter_map(|id| {
            let details = &self.known.get(id)?.details;
            let status = self.calendar.status(id);
            let span = status.span?;
            let last = self.calendar.progress(id).and_then(|progress| progress.last_start);
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
