//! Taking the records of a calendar, and building it again from them.
//!
//! ```text
//!   records ─► resources as they were ─► reservations where they were ─► too much? as a loss
//!                                                                       └─► what is due by now
//! ```
//!
//! All that is recorded fitted before. If a resource is recorded no more or the share of best effort
//! has risen, what no longer fits is handled as a loss of capacity; a resource that is missing is
//! closed. A record that no calendar makes is repaired or left out, and is reported: a calendar
//! that cannot be built would promise nothing to anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Amount, Nanos, Time};

use super::{Calendar, CalendarSettings};
use crate::demand::{Demand, ResourceId, ResourceKind};
use crate::load::Capacity;
use crate::record::{
    CalendarRecords, LoadRecord, ReservationRecord, ResourceRecord, RestoreRepair, ScaledRecord,
};
use crate::request::ACCOUNT_MAX;
use crate::reservation::{EndReason, Reservation, ReservationId, ScaledLoad, Stage};
use crate::resources::{Span, Unreserved};

impl Calendar {
    /// All records. From now on changes are noted for [`Calendar::take_changed`].
    pub fn records(&mut self) -> CalendarRecords {
        self.take_changed();
        let reservations = self.table.iter();
        let credits = self.credits.subjects().map(|subject| self.credits.record(subject));
        CalendarRecords {
            reservations: reservations.filter_map(|(id, _)| self.record(id)).collect(),
            resources: self.resources.ids().filter_map(|at| self.record_of(at)).collect(),
            credits: credits.collect(),
            ..self.header()
        }
    }

    /// The records that have changed since they were taken last, with the numbers of what has ended.
    /// The first time, before [`Calendar::records`], there are none. To be called after each other
    /// call, and stored before its answer and events are passed on.
    pub fn take_changed(&mut self) -> CalendarRecords {
        let reservations = self.table.take_changed();
        let (changed, ended): (Vec<_>, Vec<_>) =
            reservations.into_iter().partition(|id| self.table.get(*id).is_some());
        let (resources, credits) = (self.resources.take_changed(), self.credits.take_changed());
        CalendarRecords {
            reservations: changed.into_iter().filter_map(|id| self.record(id)).collect(),
            ended,
            resources: resources.into_iter().filter_map(|at| self.record_of(at)).collect(),
            credits: credits.iter().map(|subject| self.credits.record(subject)).collect(),
            ..self.header()
        }
    }

    /// The record of a reservation; `None` if it is unknown or has ended.
    pub fn record(&self, id: ReservationId) -> Option<ReservationRecord> {
        let reservation = self.table.get(id)?;
        let load_of = |(resource, load)| {
            let (name, kind) = self.resources.describe(resource).expect("has a load");
            LoadRecord { kind, name: name.clone(), load }
        };
        let scaled = reservation.scaled.iter().map(|scaled| ScaledRecord {
            span: scaled.span,
            of: load_of((scaled.resource, scaled.load)),
        });
        Some(ReservationRecord {
            id,
            owner: reservation.owner.clone(),
            class: reservation.class,
            demand: reservation.demand.loads().map(load_of).collect(),
            release: reservation.release,
            duration: reservation.duration,
            claim_window: reservation.claim_window,
            deadline: reservation.deadline,
            has_paid: reservation.has_paid,
            requested: reservation.requested,
            stage: reservation.stage,
            is_head: self.head == Some(id),
            place: reservation.place,
            guaranteed: reservation.guaranteed,
            scaled: scaled.collect(),
            extended: reservation.extended,
            bytes: reservation.reserved.bytes,
            ops: reservation.reserved.ops,
            parent: reservation.parent,
        })
    }

    /// A calendar as it was recorded, at a time after that. What was due meanwhile happens. Events
    /// are of what has changed, which [`Calendar::take_changed`] has, too. Resources keep the order
    /// of their records. The ceilings of single subjects and the reasons of what has ended are not
    /// recorded: ceilings are set again by the caller.
    ///
    /// Also returns what was repaired: a record that is not valid is left out, and a second head of
    /// the queue waits in it.
    pub fn restore(
        settings: CalendarSettings,
        records: CalendarRecords,
        now: Time,
    ) -> (Calendar, Vec<RestoreRepair>) {
        let mut calendar = Calendar::new(settings);
        let (mut repairs, mut left_out) = (Vec::new(), Vec::new());
        let CalendarRecords { at, last, is_settled, resources, reservations, credits, .. } =
            records;
        calendar.now = now.max(at);
        for record in resources {
            repairs.extend(calendar.restore_resource(record, at).err());
        }
        let mut phases = Vec::new();
        for record in reservations {
            let (id, parent) = (record.id, record.parent);
            match calendar.restore_reservation(record) {
                Err(repair) => {
                    left_out.push(id);
                    repairs.push(repair);
                }
                Ok(repair) => {
                    repairs.extend(repair);
                    phases.extend(parent.map(|parent| (parent, id)));
                }
            }
        }
        calendar.table.skip_to(last);
        credits.into_iter().for_each(|record| calendar.credits.restore(record));
        if !is_settled {
            calendar.freed = true;
            for resource in calendar.resources.ids() {
                calendar.compression.note_resource(resource, calendar.now);
            }
        }
        // what is changed from here on is to be recorded
        calendar.take_changed();
        left_out.into_iter().for_each(|id| calendar.table.note_changed(id));
        calendar.link_phases(phases);
        for resource in calendar.resources.ids() {
            calendar.remove_overloads(resource);
        }
        calendar.settle();
        (calendar, repairs)
    }

    /// The records without any resource, reservation or credit.
    fn header(&self) -> CalendarRecords {
        CalendarRecords {
            at: self.now,
            last: self.table.last(),
            is_settled: !self.compression.is_pending(),
            ..CalendarRecords::default()
        }
    }

    fn record_of(&self, resource: ResourceId) -> Option<ResourceRecord> {
        self.resources.record(resource, self.now)
    }

    fn restore_resource(&mut self, record: ResourceRecord, at: Time) -> Result<(), RestoreRepair> {
        let ResourceRecord { kind, name, capacities, unseen, rules } = record;
        let is_in_order = capacities.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !is_in_order || capacities.is_empty() {
            return Err(RestoreRepair::Capacities(kind, name));
        }
        let (past, ahead): (Vec<_>, Vec<_>) =
            capacities.iter().partition(|(from, _)| *from <= self.now);
        let first = past.last().copied().unwrap_or((Time::ZERO, Capacity::CLOSED));
        // what has become free meanwhile is used
        self.freed |= first.0 > at;
        let id = self.resources.add(name, kind, first.1, self.now)?;
        let ends = ahead.iter().skip(1).map(|(from, _)| *from).chain([Time::MAX]);
        for ((from, capacity), until) in ahead.iter().zip(ends) {
            let span = Span { from: *from, until };
            self.resources.set_capacity(id, span, *capacity)?;
        }
        let best_effort = self.settings.best_effort_of(kind);
        let unreserved = Unreserved { unseen, rules, best_effort };
        self.resources.set_unreserved(id, unreserved, self.now)?;
        self.note_changes_ahead(id);
        Ok(())
    }

    /// Puts a reservation where it was, and returns what was changed of it; fails if it is left out.
    fn restore_reservation(
        &mut self,
        record: ReservationRecord,
    ) -> Result<Option<RestoreRepair>, RestoreRepair> {
        let id = record.id;
        if self.table.get(id).is_some() {
            return Err(RestoreRepair::Duplicate(id));
        }
        let mut loads = Vec::with_capacity(record.demand.len());
        for of in &record.demand {
            loads.push((self.find_or_close(of.kind, &of.name)?, of.load));
        }
        let demand = Demand::new(&loads).map_err(|error| RestoreRepair::Demand(id, error))?;
        let mut scaled = Vec::with_capacity(record.scaled.len());
        for ScaledRecord { span, of } in &record.scaled {
            let resource = self.find_or_close(of.kind, &of.name)?;
            scaled.push(ScaledLoad { resource, span: *span, load: of.load });
        }
        // Two heads, or one that begins, are of two decisions of which only parts were stored.
        let is_head = record.is_head && record.stage == Stage::Scheduled && self.head.is_none();
        let repair = (record.is_head && !is_head).then_some(RestoreRepair::Head(id));
        let waits = repair.is_some() && record.stage == Stage::Scheduled;
        let reservation = Reservation {
            owner: record.owner,
            class: record.class,
            demand,
            release: record.release,
            duration: record.duration,
            claim_window: record.claim_window,
            deadline: record.deadline,
            has_paid: record.has_paid,
            requested: record.requested,
            stage: if waits { Stage::Waiting { released: true } } else { record.stage },
            place: record.place,
            guaranteed: record.guaranteed,
            scaled,
            extended: record.extended,
            reserved: Amount { bytes: record.bytes, ops: record.ops },
            parent: record.parent,
            phases: Vec::new(),
        };
        check(&reservation).map_err(|what| RestoreRepair::Value(id, what))?;
        if reservation.is_booked() {
            let (rest, mut booked, mut fits) = (self.rest_of(reservation.place), Vec::new(), true);
            reservation.pieces(rest, |resource, load, span| {
                fits &= self.resources.has_room_for(resource, load, span);
                if fits {
                    self.resources.book_load(resource, load, span);
                    booked.push((resource, load, span));
                }
            });
            if !fits {
                for (resource, load, span) in booked {
                    self.resources.release_load(resource, load, span);
                }
                return Err(RestoreRepair::Value(id, "a load beyond all capacities"));
            }
        }
        if is_head {
            self.head = Some(id);
        }
        self.freed |= waits;
        self.ceilings.charge(&reservation.owner, reservation.reserved, 1);
        self.table.insert_as(id, reservation);
        Ok(repair)
    }

    /// The place of a resource, which is added without any capacity if it is missing.
    fn find_or_close(
        &mut self,
        kind: ResourceKind,
        name: &Arc<str>,
    ) -> Result<ResourceId, RestoreRepair> {
        match self.resources.find(kind, name) {
            Some(found) => Ok(found),
            None => Ok(self.add_now(name.clone(), kind, Capacity::CLOSED)?),
        }
    }

    /// Links phases with their reservations; one without ends, as it would have with its own.
    fn link_phases(&mut self, phases: Vec<(ReservationId, ReservationId)>) {
        for (parent, phase) in phases {
            if self.table.get(parent).is_some() {
                self.table.change(parent, |parent| parent.phases.push(phase));
            } else {
                self.end(phase, EndReason::ParentEnded);
            }
        }
    }
}

/// Whether a reservation is one that the calendar can go on with, or which value of it is not.
fn check(reservation: &Reservation) -> Result<(), &'static str> {
    if reservation.duration == Nanos::ZERO {
        return Err("a duration of zero");
    }
    if reservation.place.from > reservation.place.until {
        return Err("an end before its begin");
    }
    if reservation.owner.account.as_ref().is_some_and(|name| name.len() > ACCOUNT_MAX) {
        return Err("an account name of more than 128 bytes");
    }
    let mut ends = BTreeMap::new();
    for ScaledLoad { resource, span, load } in &reservation.scaled {
        let whole = reservation.demand.load(*resource);
        let is_less = load.beyond(whole).is_none() && !whole.is_none();
        let before = ends.insert(*resource, span.until).unwrap_or(Time::ZERO);
        if !is_less || span.from >= span.until || span.from < before {
            return Err("a scaled load");
        }
    }
    let starts = reservation.scaled.windows(2).all(|pair| pair[0].span.from <= pair[1].span.from);
    if !starts { Err("scaled loads not in the order of time") } else { Ok(()) }
}
