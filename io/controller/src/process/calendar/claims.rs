//! Claims that could not be taken in time, and the clock by which they are due.

use std::time::Duration;

use reserve::ReservationId;

use super::requests::may_act;
use super::{CalendarActor, CalendarMsg, ReservationChange};

impl CalendarActor {
    /// Lets what is active keep its time: nobody took claims for a while.
    pub(super) fn excuse_claims(&mut self) {
        self.known.ids().for_each(|id| self.calendar.excuse_claim(id));
    }

    pub(super) fn excuse_claims_of(&mut self, msg: &CalendarMsg) {
        match msg {
            CalendarMsg::Used(ids) => {
                ids.iter().for_each(|id| self.calendar.excuse_claim(ReservationId(*id)));
            }
            CalendarMsg::Change { id, change: ReservationChange::Claim, by, .. } => {
                let id = ReservationId(*id);
                if self.find(id, by).is_ok_and(|of| may_act(by, Some(of.owner.uid)).is_ok()) {
                    self.calendar.excuse_claim(id);
                }
            }
            _ => {}
        }
    }

    /// Logs when the time of day differs from the calendar's, and when it no longer does.
    pub(super) fn check_clock(&mut self) {
        let offset = self.clock.offset();
        let is_off = offset >= CLOCK_OFF;
        if std::mem::replace(&mut self.is_clock_off, is_off) != is_off {
            let offset_s = offset.as_secs();
            match is_off {
                true => tracing::warn!(
                    offset_s,
                    "the clock of the system was set; reservations keep the time that they had \
                     until the controller is restarted"
                ),
                false => tracing::info!("the clock of the system is that of reservations again"),
            }
        }
    }
}

/// A difference to the time of day that is logged.
const CLOCK_OFF: Duration = Duration::from_secs(2);
