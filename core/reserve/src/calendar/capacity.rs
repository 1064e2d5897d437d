//! Changes of capacities: what no longer fits is scaled or planned again, and restored later.
//!
//! ```text
//!   less ─► scheduled ones in the span are taken out ─► still too much? active ones are scaled
//!                                                  └─► put back where they were, if they fit;
//!                                                      then the others, by guaranteed starts
//!   more ─► scaled loads that fit are whole again, then compression
//! ```
//!
//! A load is scaled until the end of the loss. After it the whole load stays booked, which fitted
//! before: so nobody else gets its place, and it is whole when capacity is back.

use model::Time;

use super::Calendar;
use crate::demand::{Demand, ResourceId};
use crate::events::CalendarChange;
use crate::load::Capacity;
use crate::request::ReservationError;
use crate::reservation::{EndReason, Reservation, ReservationId, ScaledLoad};
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
        let rises = self.resources.rises(resource, span, reservable);
        self.resources.set_capacity(resource, span, reservable)?;
        let ahead = [span.from, span.until].into_iter().filter(|at| *at > self.now);
        self.capacity_changes.extend(ahead.filter(|at| *at < Time::MAX));
        for id in self.table.scaled() {
            // each part is whole again as soon as it fits
            self.table.change(id, |reservation| {
                reservation.split_scaled(resource, span.from);
                reservation.split_scaled(resource, span.until);
            });
        }
        if self.resources.overload(resource, span).is_some() {
            self.remove_overload(resource, span);
        }
        if rises {
            self.compression.note_resource(resource, span.from);
            self.freed = true;
        }
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
        self.scale(resource, span);
        // first those whose places still fit, so that none of those that move takes one of these
        moved.retain(|id| !self.book_if_it_fits(*id));
        for id in moved {
            self.put_back(id, EndReason::CapacityLost);
        }
    }

    /// Lowers the loads of what has begun to the share of them that fits in a span. The capacity is
    /// the same in all of it, so this replaces what earlier losses have scaled there.
    fn scale(&mut self, resource: ResourceId, span: Span) {
        let begun = self.table.iter().filter(|(_, reservation)| {
            reservation.has_begun()
                && reservation.place.overlaps(span)
                && !reservation.demand.load(resource).is_none()
        });
        let begun: Vec<ReservationId> = begun.map(|(id, _)| id).collect();
        let scaled_before: Vec<(ReservationId, Option<Span>)> = begun
            .into_iter()
            .map(|id| (id, self.rebook(id, |reservation| reservation.unscale(resource, span))))
            .collect();
        let overload = self.resources.overload(resource, span);
        for (id, before) in scaled_before {
            let place = self.table.get(id).expect("has not ended").place;
            let Some(overload) = overload.filter(|overload| overload.from < place.until) else {
                if let Some(span) = before {
                    self.report(id, CalendarChange::Restored { resource, span });
                }
                continue;
            };
            let from = before.map_or(overload.from, |before| before.from.min(overload.from));
            let span = Span { from: from.max(place.from), until: span.until.min(place.until) };
            let scaled =
                self.rebook(id, |reservation| reservation.scale(resource, span, overload.share));
            self.report(id, CalendarChange::Scaled { resource, load: scaled.load, span });
        }
    }

    /// Changes what is booked of a reservation, which has a place.
    fn rebook<T>(&mut self, id: ReservationId, change: impl FnOnce(&mut Reservation) -> T) -> T {
        let reservation = self.table.get(id).expect("has not ended");
        let rest = self.rest_of(reservation.place);
        reservation.release_within(rest, &mut self.resources);
        let changed = self.table.change(id, change);
        let reservation = self.table.get(id).expect("has not ended");
        reservation.book_within(rest, &mut self.resources);
        changed
    }

    /// Gives scaled reservations their whole loads where these fit again, and forgets what is over.
    pub(super) fn restore_scaled(&mut self) {
        for id in self.table.scaled() {
            let reservation = self.table.get(id).expect("has not ended");
            let (place, demand) = (reservation.place, reservation.demand.clone());
            for scaled in reservation.scaled.clone() {
                let ScaledLoad { resource, span, load } = scaled;
                let span = self.rest_of(Span { until: span.until.min(place.until), ..span });
                let is_over = span.from >= span.until;
                let missing = demand.load(resource).beyond(load);
                let fits = is_over
                    || Demand::new(&[(resource, missing)])
                        .ok()
                        .is_none_or(|missing| self.resources.check_fit(&missing, span).is_ok());
                if fits {
                    self.resources.book_load(resource, missing, span);
                    self.table
                        .change(id, |reservation| reservation.scaled.retain(|one| *one != scaled));
                }
                if fits && !is_over {
                    self.report(id, CalendarChange::Restored { resource, span });
                }
            }
        }
    }
}

/// How many changes of capacities may lie ahead.
const CAPACITY_CHANGES_MAX: usize = 16_384;
