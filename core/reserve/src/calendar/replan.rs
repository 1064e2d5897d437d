//! Places in the calendar: the queue, compression after something was freed, and planning again.
//!
//! ```text
//!   freed ─► scaled loads that fit again
//!        ├─► compression: scheduled ones in order of start, out and back in ─► earlier or the same
//!        └─► head of the queue gets a place; others start if they fit now (EASY)
//! ```
//!
//! A later one of the queue starts only if it fits for its whole span beside everything that is
//! booked, and the head is booked. So it delays neither the head nor a fixed one.

use std::collections::BTreeSet;

use model::{Nanos, Time};

use super::Calendar;
use crate::demand::{Demand, ResourceId};
use crate::events::CalendarChange;
use crate::reservation::{ReservationId, Stage};
use crate::resources::Span;

/// Which scheduled reservations may start earlier, and how far they were tried.
///
/// What is freed during a pass waits for the next one: a pass that began again with each end would
/// never finish while there are many, and the queue waits for it.
#[derive(Debug, Default)]
pub(super) struct Compression {
    running: Option<CompressionPass>,
    next: Option<CompressionPass>,
}

/// One pass over the scheduled reservations that start after something was freed.
#[derive(Debug)]
struct CompressionPass {
    freed: BTreeSet<ResourceId>,
    at: (Time, ReservationId),
}

impl Compression {
    /// Notes that a demand was freed in a span. A span that is over frees nothing.
    pub(super) fn note(&mut self, demand: &Demand, span: Span) {
        if span.from < span.until {
            self.note_from(demand.loads().map(|(resource, _)| resource), span.from);
        }
    }

    /// Notes that something of one resource was freed from a time on.
    pub(super) fn note_resource(&mut self, resource: ResourceId, from: Time) {
        self.note_from(std::iter::once(resource), from);
    }

    /// Whether some are left to be tried.
    pub(super) fn is_pending(&self) -> bool {
        self.running.is_some() || self.next.is_some()
    }

    fn note_from(&mut self, freed: impl Iterator<Item = ResourceId>, from: Time) {
        let at = (from, ReservationId(0));
        let next = self.next.get_or_insert(CompressionPass { freed: BTreeSet::new(), at });
        next.freed.extend(freed);
        next.at = next.at.min(at);
    }
}

impl CompressionPass {
    fn concerns(&self, demand: &Demand) -> bool {
        demand.loads().any(|(resource, _)| self.freed.contains(&resource))
    }
}

impl Calendar {
    /// Uses what was freed, until nothing more is due. Compression may leave some for the next call.
    pub(super) fn settle(&mut self) {
        self.replace_phases();
        loop {
            self.run_due();
            if self.freed {
                // what is active has less than was guaranteed: it is first
                self.restore_scaled();
            }
            let has_passed = self.compress();
            if self.compression.running.is_some() || !(self.freed || has_passed) {
                break;
            }
            self.freed = false;
            self.backfill();
        }
        // what compression moved to now is installed now
        self.run_due();
    }

    /// Books a place for a waiting reservation.
    pub(super) fn place(&mut self, id: ReservationId, start: Time, is_guaranteed: bool) {
        let span = self.table.change(id, |reservation| {
            reservation.stage = Stage::Scheduled;
            reservation.place = Span::new(start, reservation.length());
            reservation.guaranteed = is_guaranteed.then_some(start);
            reservation.place
        });
        self.book(id);
        self.report(id, CalendarChange::Scheduled { span, is_guaranteed });
    }

    /// Starts a waiting reservation if its earliest fit is now, and makes it the head if there is
    /// none; otherwise it waits. Without a head, those before it in the queue are first.
    pub(super) fn start_or_lead(&mut self, id: ReservationId, start: Time) {
        if self.head.is_none() && self.table.queue().next() != Some(id) {
            self.freed = true;
        } else if start <= self.now {
            self.place(id, start, false);
        } else if self.head.is_none() {
            self.head = Some(id);
            self.place(id, start, false);
        }
    }

    /// The earliest fit of a reservation that is not booked.
    pub(super) fn next_fit(&self, id: ReservationId) -> Option<Time> {
        let reservation = self.table.get(id)?;
        let window = self.window(reservation.release, reservation.deadline, reservation.length());
        self.resources.earliest_fit(&reservation.demand, window).ok()
    }

    /// Releases the place of a reservation, which is then booked again or put back elsewhere.
    pub(super) fn take_out(&mut self, id: ReservationId) {
        let reservation = self.table.get(id).expect("has not ended");
        reservation.release_within(self.rest_of(reservation.place), &mut self.resources);
        if !reservation.scaled.is_empty() {
            self.table.change(id, |reservation| reservation.scaled.clear());
        }
    }

    /// Plans a reservation again that was taken out, and reports where it is now. If it has no place
    /// before its deadline, a guaranteed one has what is left where it was, and another one waits in
    /// the queue again.
    pub(super) fn put_back(&mut self, id: ReservationId) {
        let reservation = self.table.get(id).expect("has not ended");
        self.compression.note(&reservation.demand, self.rest_of(reservation.place));
        self.freed = true;
        let Some(to) = self.next_fit(id) else {
            return match reservation.guaranteed {
                Some(_) => self.keep_in_place(id),
                None => self.wait_again(id),
            };
        };
        let (from, guaranteed) = self.table.change(id, |reservation| {
            let from = reservation.place.from;
            reservation.place = Span::new(to, reservation.length());
            (from, reservation.guaranteed)
        });
        self.book(id);
        self.move_phases(id, from, to);
        match guaranteed {
            _ if to == from => {}
            Some(guaranteed) if to > guaranteed => {
                self.report(id, CalendarChange::Slipped { guaranteed, to });
            }
            _ => self.report(id, CalendarChange::Moved { from, to }),
        }
    }

    /// Books the place of a reservation that was taken out, if it still fits there.
    pub(super) fn book_if_it_fits(&mut self, id: ReservationId) -> bool {
        let reservation = self.table.get(id).expect("has not ended");
        let fits = self.resources.check_fit(&reservation.demand, reservation.place).is_ok();
        if fits {
            self.book(id);
        }
        fits
    }

    /// Returns a reservation that is not booked to the queue.
    pub(super) fn wait_again(&mut self, id: ReservationId) {
        self.table.change(id, |one| one.stage = Stage::Waiting { released: true });
        if self.head == Some(id) {
            self.head = None;
        }
    }

    /// Books a reservation that was taken out where it was, with what is left there: the capacity
    /// may come back before it begins. A phase that is no longer where its reservation has it begins
    /// as early as it may.
    fn keep_in_place(&mut self, id: ReservationId) {
        let (from, place) = self.table.change(id, |one| {
            let from = one.place.from;
            if !one.is_in_window() {
                one.place = Span::new(one.release, one.length());
            }
            (from, one.place)
        });
        if place.from != from {
            self.report(id, CalendarChange::Moved { from, to: place.from });
        }
        let reservation = self.table.get(id).expect("has not ended");
        let (demand, span) = (reservation.demand.clone(), self.rest_of(place));
        for (resource, load) in demand.loads() {
            if let Some((span, share)) = self.resources.shortfall(resource, load, span) {
                let scaled = self.table.change(id, |one| one.scale(resource, span, share));
                self.report(id, CalendarChange::Scaled { resource, load: scaled.load, span });
            }
        }
        self.book(id);
    }

    /// Gives a scheduled reservation that is scaled a place at which all of it fits. Where it is, all
    /// of it is restored as soon as it fits.
    fn replace_scaled(&mut self, id: ReservationId) -> bool {
        let has_place = self.next_fit(id).is_some();
        if has_place {
            self.take_out(id);
            self.put_back(id);
        }
        has_place
    }

    /// Tries to start scheduled reservations earlier, in order of their starts, up to a bound.
    /// Returns whether that ends a pass.
    fn compress(&mut self) -> bool {
        let waiting = || self.compression.next.take();
        let Some(mut pass) = self.compression.running.take().or_else(waiting) else { return false };
        let (mut tried, mut read) = (0, 0);
        while tried < TRIED_MAX && read < READ_MAX {
            let Some((start, id)) = self.table.next_start(pass.at) else { return true };
            pass.at = (start, ReservationId(id.0 + 1));
            read += 1;
            let reservation = self.table.get(id).expect("has not ended");
            // one that has phases keeps its start, as they are planned by it
            let is_first =
                start <= reservation.release.max(self.now) || !reservation.phases.is_empty();
            let is_scaled = !reservation.scaled.is_empty();
            if (is_scaled || !is_first) && pass.concerns(&reservation.demand) {
                tried += 1;
                if if is_scaled { self.replace_scaled(id) } else { self.start_earlier(id) } {
                    // its old place is free for those after it
                    let demand = &self.table.get(id).expect("has not ended").demand;
                    pass.freed.extend(demand.loads().map(|(resource, _)| resource));
                }
            }
        }
        self.compression.running = Some(pass);
        false
    }

    /// Takes a scheduled reservation out and puts it back at its earliest fit. Its old place is
    /// free then, so it does not start later (Mu'alem and Feitelson 2001). Returns whether it moves.
    fn start_earlier(&mut self, id: ReservationId) -> bool {
        let reservation = self.table.get(id).expect("has not ended");
        let (place, demand) = (reservation.place, reservation.demand.clone());
        let mut window = self.window(reservation.release, None, reservation.length());
        let just_before = Span { from: place.from.before(Nanos::new(1)), until: place.from };
        if self.resources.check_fit(&demand, just_before).is_err() {
            // an earlier start is a whole length before its place, where its own load does not count:
            // mostly there is none, and a search is a third of the work of taking it out
            window.until = place.from;
            if self.resources.earliest_fit(&demand, window).is_err() {
                return false;
            }
        }
        reservation.release_within(place, &mut self.resources);
        window.until = place.until;
        let to = self.resources.earliest_fit(&demand, window).expect("its old place is free");
        let is_earlier = to < place.from;
        if is_earlier {
            let to = Span::new(to, place.length());
            self.table.change(id, |reservation| reservation.place = to);
            self.freed = true;
            self.report(id, CalendarChange::Moved { from: place.from, to: to.from });
        }
        self.book(id);
        is_earlier
    }

    /// Gives the first of the queue that has one a place, and starts those behind it that fit now.
    /// What has no place waits on: capacity that was lost may come back.
    fn backfill(&mut self) {
        let mut without_place = 0;
        while self.head.is_none() && without_place < WITHOUT_PLACE_MAX {
            let Some(id) = self.table.queue().nth(without_place) else { break };
            match self.next_fit(id) {
                Some(start) => {
                    self.head = (start > self.now).then_some(id);
                    self.place(id, start, false);
                }
                None => without_place += 1,
            }
        }
        let waiting: Vec<ReservationId> = self.table.queue().take(BACKFILL_MAX).collect();
        for id in waiting {
            let reservation = self.table.get(id).expect("has not ended");
            let span = Span::new(self.now, reservation.length());
            let is_late = reservation.last_start().is_some_and(|last| last < self.now);
            if !is_late && self.resources.check_fit(&reservation.demand, span).is_ok() {
                self.place(id, self.now, false);
            }
        }
    }

    fn book(&mut self, id: ReservationId) {
        let reservation = self.table.get(id).expect("has not ended");
        reservation.book_within(self.rest_of(reservation.place), &mut self.resources);
    }
}

/// How many reservations are taken out and put back in one call.
const TRIED_MAX: usize = 256;
/// How many are read in one call to find those.
const READ_MAX: usize = 8_192;
/// How many of the queue may have no place before one gets it; each search reads the whole horizon.
const WITHOUT_PLACE_MAX: usize = 16;
/// How many of the queue are tried in one call: Slurm's bf_max_job_test is 500.
const BACKFILL_MAX: usize = 512;
