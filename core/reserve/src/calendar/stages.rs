//! The stages of a reservation: what time, its owner and its installer make of it.
//!
//! ```text
//!   due ─► released, aged ─► install ─► (installed) ─► active ─► (claimed) ─► expired
//!                               └─ install_failed ─► planned again    └─ lapsed; late: claimed
//! ```

use model::Time;

use super::Calendar;
use crate::events::CalendarChange;
use crate::request::ReservationClass;
use crate::reservation::{EndReason, ReservationId, Stage};
use crate::resources::Span;

impl Calendar {
    /// Claims an active reservation: its owner begins, and the clock of its duration with it.
    /// Returns whether it was active and not yet claimed.
    pub fn claim(&mut self, id: ReservationId, now: Time) -> bool {
        self.advance(now);
        let Some(reservation) = self.table.get(id) else {
            return false;
        };
        if !matches!(reservation.stage, Stage::Active { .. }) {
            return false;
        }
        let until = reservation.place.until.min(self.now + reservation.duration);
        let freed = Span { from: until, until: reservation.place.until };
        reservation.release_within(freed, &mut self.resources);
        self.compression.note(&reservation.demand, freed);
        self.freed = true;
        let since = self.now;
        self.table.change(id, |reservation| {
            reservation.stage = Stage::Claimed { since };
            reservation.place.until = until;
        });
        self.report(id, CalendarChange::Ends { until });
        self.settle();
        true
    }

    /// Lets a reservation that is active and not claimed keep its time: at the end of its window its
    /// clock begins. For one whose owner tried to claim it, or could not while nobody took claims.
    pub fn excuse_claim(&mut self, id: ReservationId) {
        if let Some(Stage::Active { claim_by, is_late: false }) = self.stage(id) {
            let excused = Stage::Active { claim_by, is_late: true };
            self.table.change(id, |reservation| reservation.stage = excused);
        }
    }

    /// Reports that the rows of a reservation are in force on all servers. Returns whether that was
    /// expected.
    pub fn installed(&mut self, id: ReservationId, now: Time) -> bool {
        self.advance(now);
        if self.stage(id) != Some(Stage::Installing) {
            return false;
        }
        let now = self.now;
        self.table.change(id, |reservation| {
            let is_late = now > reservation.place.from;
            reservation.stage = Stage::Installed { is_late };
        });
        self.settle();
        true
    }

    /// Reports that the rows of a reservation cannot be put in force, and were removed where they
    /// were. It is planned again, so that the next attempt is `install_retry` later at the earliest.
    /// Returns whether that was expected.
    pub fn install_failed(&mut self, id: ReservationId, now: Time) -> bool {
        self.advance(now);
        if !matches!(self.stage(id), Some(Stage::Installing | Stage::Installed { .. })) {
            return false;
        }
        let release = self.now + self.settings.install_retry + self.settings.install_lead;
        self.take_out(id);
        self.table.change(id, |reservation| {
            reservation.stage = Stage::Scheduled;
            reservation.release = reservation.release.max(release);
            reservation.scaled.clear();
        });
        match self.next_fit(id) {
            Some(_) => self.put_back(id),
            None => {
                // not booked: the end must not release it again
                self.wait_again(id);
                self.end(id, EndReason::NotInstalled);
            }
        }
        self.settle();
        true
    }

    /// Lets everything happen that is due by now.
    pub(super) fn run_due(&mut self) {
        while let Some((_, id)) = self.table.next_due().filter(|(due, _)| *due <= self.now) {
            match self.stage(id).expect("what is due has not ended") {
                Stage::Waiting { released: false } => self.release_waiting(id),
                Stage::Waiting { released: true } => self.age(id),
                Stage::Scheduled => self.install(id),
                Stage::Installed { is_late } => self.activate(id, is_late),
                Stage::Installing => self.end(id, EndReason::NotInstalled),
                Stage::Active { is_late: false, .. } => self.end(id, EndReason::Lapsed),
                Stage::Active { claim_by, is_late: true } => self.start_clock(id, claim_by),
                Stage::Claimed { .. } => self.end(id, EndReason::Expired),
            }
        }
    }

    fn release_waiting(&mut self, id: ReservationId) {
        self.table.change(id, |one| one.stage = Stage::Waiting { released: true });
        // without a place it waits: capacity that was lost may come back
        if let Some(start) = self.next_fit(id) {
            self.start_or_lead(id, start);
        }
    }

    /// Fixes a reservation that waited for the longest time, or rejects one that is too late.
    fn age(&mut self, id: ReservationId) {
        let Some(start) = self.next_fit(id) else {
            return self.end(id, EndReason::Rejected);
        };
        self.table.change(id, |reservation| reservation.class = ReservationClass::Fixed);
        self.report(id, CalendarChange::Aged { start });
        self.place(id, start, true);
    }

    fn install(&mut self, id: ReservationId) {
        let span = self.table.change(id, |reservation| {
            reservation.stage = Stage::Installing;
            reservation.place
        });
        if self.head == Some(id) {
            // the next one of the queue gets a place
            self.head = None;
            self.freed = true;
        }
        self.report(id, CalendarChange::Install { span });
    }

    fn activate(&mut self, id: ReservationId, is_late: bool) {
        let now = self.now;
        let claim_by = self.table.change(id, |reservation| {
            // the end stays: what follows was planned with it, so a late start has a shorter window
            let last = reservation.place.until.before(reservation.duration);
            let claim_by = last.min(now + reservation.claim_window);
            let waits = claim_by > now;
            reservation.stage = if waits {
                Stage::Active { claim_by, is_late }
            } else {
                Stage::Claimed { since: now }
            };
            waits.then_some(claim_by)
        });
        self.report(id, CalendarChange::Active { claim_by });
    }

    /// Begins the duration of one whose window was too short to blame its owner: it has the rest.
    fn start_clock(&mut self, id: ReservationId, since: Time) {
        self.table.change(id, |reservation| reservation.stage = Stage::Claimed { since });
        self.report(id, CalendarChange::Active { claim_by: None });
    }

    pub(super) fn stage(&self, id: ReservationId) -> Option<Stage> {
        self.table.get(id).map(|reservation| reservation.stage)
    }
}
