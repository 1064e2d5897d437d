//! Changes of capacities: what no longer fits is scaled or planned again, and restored later.
//!
//! ```text
//!   less ─► scheduled ones in the span are taken out ─► still too much? active ones are scaled
//!                                                  └─► put back, in order of guaranteed starts
//!   more ─► scaled loads that fit are whole again, then compression
//! ```

use model::{Share, Time};

use super::Calendar;
use crate::demand::{Demand, ResourceId};
use crate::events::CalendarChange;
use crate::load::Capacity;
use crate::request::ReservationError;
use crate::reservation::{ReservationId, ScaledLoad};
use crate::resources::Span;

impl Calendar {
    /// Sets the whole capacity of a resource during a span: maintenance, a loss, a repair.
    /// `Time::MAX` as its end is for ever. Each owner that this concerns gets an event.
    ///
    /// # Errors
    /// If the resource is unknown, the span is over or empty, or too many changes lie ahead.
    pub fn set_capacity(
        &mut self,
        resource: ResourceId,
        span: Span,
        capacity: Capacity,
        now: Time,
    ) -> Result<(), ReservationError> {
        self.advance(now);
        if self.capacity_changes.len() + 2 > CAPACITY_CHANGES_MAX {
            return Err(ReservationError::CapacityChanges(self.capacity_changes.len()));
        }
        let span = self.rest_of(span);
        let reservable = capacity.without(self.settings.best_effort);
        self.resources.set_capacity(resource, span, reservable)?;
        let ahead = [span.from, span.until].into_iter().filter(|at| *at > self.now);
        self.capacity_changes.extend(ahead.filter(|at| *at < Time::MAX));
        if self.resources.overload(resource, span).is_some() {
            self.remove_overload(resource, span);
        }
        self.compression.note_resource(resource, self.now);
        self.freed = true;
        self.settle();
        Ok(())
    }

    fn remove_overload(&mut self, resource: ResourceId, span: Span) {
        let concerned = |id: &ReservationId| {
            self.table.get(*id).is_some_and(|reservation| {
                reservation.place.overlaps(span) && !reservation.demand.load(resource).is_none()
            })
        };
        let mut moved: Vec<ReservationId> =
            self.table.starting_before(span.until).filter(concerned).collect();
        moved.sort_by_key(|id| {
            let reservation = self.table.get(*id);
            let start = reservation.map(|one| one.guaranteed.unwrap_or(one.place.from));
            (reservation.is_some_and(|one| one.guaranteed.is_none()), start, *id)
        });
        moved.iter().for_each(|id| self.take_out(*id));
        if let Some(overload) = self.resources.overload(resource, span) {
            self.scale(resource, Span { from: overload.from, until: span.until }, overload.share);
        }
        for id in moved {
            self.put_back(id);
        }
    }

    /// Lowers the loads of what has begun to a share of them, from the begin of a span on.
    fn scale(&mut self, resource: ResourceId, span: Span, share: Share) {
        let begun = self.table.iter().filter(|(_, reservation)| {
            reservation.has_begun()
                && reservation.place.overlaps(span)
                && !reservation.demand.load(resource).is_none()
        });
        let begun: Vec<ReservationId> = begun.map(|(id, _)| id).collect();
        for id in begun {
            let reservation = self.table.get(id).expect("has not ended");
            let rest = self.rest_of(reservation.place);
            reservation.release_within(rest, &mut self.resources);
            let scaled = self.table.change(id, |reservation| {
                let before = reservation.scaled_load(resource);
                let load = before.map_or(reservation.demand.load(resource), |scaled| scaled.load);
                let from = before.map_or(span.from, |scaled| scaled.from.min(span.from));
                let scaled = ScaledLoad { resource, from, load: load.scaled(share) };
                reservation.scaled.retain(|scaled| scaled.resource != resource);
                reservation.scaled.push(scaled);
                scaled
            });
            let reservation = self.table.get(id).expect("has not ended");
            reservation.book_within(rest, &mut self.resources);
            let (load, from) = (scaled.load, scaled.from);
            self.report(id, CalendarChange::Scaled { resource, load, from });
        }
    }

    /// Gives scaled reservations their whole loads where these fit again.
    pub(super) fn restore_scaled(&mut self) {
        for id in self.table.scaled() {
            let reservation = self.table.get(id).expect("has not ended");
            let (place, demand) = (reservation.place, reservation.demand.clone());
            for ScaledLoad { resource, from, load } in reservation.scaled.clone() {
                let span = self.rest_of(Span { from: from.max(place.from), until: place.until });
                let missing = demand.load(resource).beyond(load);
                let fits = Demand::new(&[(resource, missing)]).ok().is_none_or(|missing| {
                    span.from >= span.until || self.resources.check_fit(&missing, span).is_ok()
                });
                if fits {
                    self.resources.book_load(resource, missing, span);
                    self.table.change(id, |reservation| {
                        reservation.scaled.retain(|scaled| scaled.resource != resource);
                    });
                    self.report(id, CalendarChange::Restored { resource });
                }
            }
        }
    }
}

/// How many changes of capacities may lie ahead.
const CAPACITY_CHANGES_MAX: usize = 16_384;
