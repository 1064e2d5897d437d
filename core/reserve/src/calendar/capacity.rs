//! Changes of capacities: what no longer fits is scaled or planned again, and restored later.
//!
//! ```text
//!   less ─► scheduled ones in the span are taken out ─► still too much? active ones are scaled
//!                                                  └─► put back where they were, if they fit;
//!                                                      then the others, by guaranteed starts;
//!                                                      those without a place: scaled where they were
//!   more ─► scaled loads that fit are whole again, then compression
//!   rules reserve more ─► refused, if what is promised no longer fits at some time
//! ```
//!
//! No promise ends with a loss: a capacity may be mistyped, and is corrected. A guaranteed
//! reservation without another place keeps its own, with what is left there, and one without a
//! guarantee waits in the queue.
//!
//! A load is scaled until the end of the loss. After it the whole load stays booked, which fitted
//! before: so nobody else gets its place, and it is whole when capacity is back.

use std::sync::Arc;

use model::{Share, Time};

use super::Calendar;
use crate::demand::{Demand, ResourceId, ResourceKind};
use crate::events::CalendarChange;
use crate::load::{Capacity, Load};
use crate::request::ReservationError;
use crate::reservation::{Reservation, ReservationId, ScaledLoad};
use crate::resources::{ResourceError, Span, Unreserved};

/// Why rules cannot reserve that amount of a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The resource does not exist.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// What is promised to reservations would not fit beside it.
    #[error("{kind} {name:?} is promised to reservations: beside {first}{more} at {at} ns the rules do not fit",
        kind = .kind.name(), first = .reservations[0], at = .at.as_nanos(),
        more = if .reservations.len() > 1 { " and others" } else { "" })]
    Promised {
        /// The kind of the resource.
        kind: ResourceKind,
        /// The name of the resource.
        name: Arc<str>,
        /// The first time at which it does not fit.
        at: Time,
        /// The first of the reservations that have some of it then, at least one and at most 8.
        reservations: Vec<ReservationId>,
    },
}

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
        let usable = self.resources.unreserved(resource).of(capacity);
        let rises = self.resources.rises(resource, span, usable);
        self.resources.set_capacity(resource, span, capacity)?;
        self.note_changes_ahead(resource);
        for id in self.table.scaled() {
            // each part is whole again as soon as it fits
            self.table.change(id, |reservation| {
                reservation.split_scaled(resource, span.from);
                reservation.split_scaled(resource, span.until);
            });
        }
        self.remove_overload(resource, span);
        if rises {
            self.note_gain(resource, span.from);
        }
        self.settle();
        Ok(())
    }

    /// Sets the share of a resource that is used by what no proxy sees. Less capacity is a loss.
    ///
    /// # Errors
    /// If the resource is unknown.
    pub fn set_unseen(
        &mut self,
        resource: ResourceId,
        unseen: Share,
        now: Time,
    ) -> Result<(), ResourceError> {
        self.advance(now);
        let unreserved = Unreserved { unseen, ..self.resources.unreserved(resource) };
        self.set_unreserved(resource, unreserved)?;
        self.settle();
        Ok(())
    }

    /// Sets what rules reserve of some resources: of all, or if one is refused, of none.
    ///
    /// # Errors
    /// If a resource is unknown, or rules would reserve more of one and what is promised to
    /// reservations would no longer fit beside it.
    pub fn set_rules(&mut self, rules: &[(ResourceId, Load)], now: Time) -> Result<(), RulesError> {
        self.advance(now);
        for (resource, load) in rules {
            self.check_rules(*resource, *load)?;
        }
        for (resource, load) in rules {
            let unreserved = Unreserved { rules: *load, ..self.resources.unreserved(*resource) };
            self.set_unreserved(*resource, unreserved)?;
        }
        self.settle();
        Ok(())
    }

    /// Whether rules may reserve that much of a resource, beside what is promised since the last
    /// call with a time.
    ///
    /// # Errors
    /// As of [`Calendar::set_rules`].
    pub fn check_rules(&self, resource: ResourceId, rules: Load) -> Result<(), RulesError> {
        let known = self.resources.describe(resource).ok_or(ResourceError::Unknown(resource))?;
        let is = self.resources.unreserved(resource);
        let wanted = Unreserved { rules, ..is };
        let first = self.resources.whole_pieces(resource, self.now).into_iter().find_map(
            |(span, whole)| {
                // what rules have already is theirs, also in a loss
                let usable = wanted.of(whole);
                let is_less = !usable.contains(is.of(whole));
                is_less.then(|| self.resources.first_beyond(resource, span, usable)).flatten()
            },
        );
        let Some(at) = first else { return Ok(()) };
        let has_some = |(id, of, load, span): (ReservationId, ResourceId, Load, Span)| {
            let counts = of == resource && !load.is_none() && span.from <= at && at < span.until;
            counts.then_some(id)
        };
        let reservations = self.booked().filter_map(has_some).take(NAMED_MAX).collect();
        let (name, kind) = (known.0.clone(), known.1);
        Err(RulesError::Promised { kind, name, at, reservations })
    }

    /// Changes what of a resource is not for reservations, as losses and gains of all times ahead.
    pub(super) fn set_unreserved(
        &mut self,
        resource: ResourceId,
        unreserved: Unreserved,
    ) -> Result<(), ResourceError> {
        let pieces = self.resources.whole_pieces(resource, self.now);
        let usable = |(span, whole): &(Span, Capacity)| (*span, unreserved.of(*whole));
        let mut pieces = pieces.iter().map(usable);
        let gain = pieces.find(|(span, usable)| self.resources.rises(resource, *span, *usable));
        self.resources.set_unreserved(resource, unreserved, self.now)?;
        self.remove_overloads(resource);
        if let Some((span, _)) = gain {
            self.note_gain(resource, span.from);
        }
        Ok(())
    }

    /// Scales and moves what exceeds the capacity of a resource at any time ahead.
    pub(super) fn remove_overloads(&mut self, resource: ResourceId) {
        for (span, _) in self.resources.whole_pieces(resource, self.now) {
            self.remove_overload(resource, span);
        }
    }

    /// Keeps the times ahead at which the capacity of a resource changes.
    pub(super) fn note_changes_ahead(&mut self, resource: ResourceId) {
        self.capacity_changes.retain(|(_, of)| *of != resource);
        let ahead = self.resources.whole_changes(resource, self.now);
        self.capacity_changes.extend(ahead.into_iter().map(|at| (at, resource)));
    }

    fn note_gain(&mut self, resource: ResourceId, from: Time) {
        self.compression.note_resource(resource, from);
        self.freed = true;
    }

    /// Scales and moves what exceeds the capacity in a span, in all of which it is the same.
    fn remove_overload(&mut self, resource: ResourceId, span: Span) {
        if self.resources.overload(resource, span).is_none() {
            return;
        }
        let concerned = |id: &ReservationId| {
            self.table.get(*id).is_some_and(|reservation| {
                reservation.place.overlaps(span) && !reservation.demand.load(resource).is_none()
            })
        };
        let mut moved: Vec<ReservationId> =
            self.table.starting_before(span.until).filter(concerned).collect();
        // wherever it is, the head has no place before one with a guarantee
        moved.extend(self.head.filter(|head| !moved.contains(head)));
        moved.sort_by_key(|id| {
            let reservation = self.table.get(*id).expect("has a place");
            (reservation.guaranteed.unwrap_or(reservation.place.from), *id)
        });
        let is_scaled = |id: &ReservationId| {
            self.table.get(*id).is_some_and(|reservation| !reservation.scaled.is_empty())
        };
        let scaled_before: Vec<ReservationId> = moved.iter().copied().filter(is_scaled).collect();
        moved.iter().for_each(|id| self.take_out(*id));
        self.scale(resource, span);
        let is_guaranteed =
            |id: &ReservationId| self.table.get(*id).is_some_and(|one| one.guaranteed.is_some());
        let (guaranteed, others): (Vec<_>, Vec<_>) = moved.into_iter().partition(is_guaranteed);
        for mut moved in [guaranteed, others] {
            // first those whose places still fit, so that none of those that move takes one of these
            moved.retain(|id| !self.book_if_it_fits(*id));
            for id in moved {
                self.put_back(id);
            }
        }
        for id in scaled_before {
            let whole = self.table.get(id).filter(|one| one.is_booked() && one.scaled.is_empty());
            if let Some(span) = whole.map(|one| one.place) {
                self.report(id, CalendarChange::Restored { resource, span });
            }
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

/// How many reservations a refusal of rules names.
const NAMED_MAX: usize = 8;
/// How many changes of capacities may lie ahead.
const CAPACITY_CHANGES_MAX: usize = 16_384;
