//! What is published of reservations: what people want to know, not each step of the calendar.

use api::EventKind;
use model::{Nanos, Time};
use reserve::{CalendarChange, CalendarEvent};

use super::CalendarActor;

impl CalendarActor {
    /// Publishes what people want to know of a change.
    pub(super) fn publish(&self, event: &CalendarEvent) {
        let now = self.now();
        let until = |at: Time| format!("{} s", at.since(now).get() / 1_000_000_000);
        let what = match event.change {
            CalendarChange::Scheduled { span, is_guaranteed: true } => {
                format!("is scheduled to start in {}", until(span.from))
            }
            CalendarChange::Moved { from, to } if from.since(to) >= MOVED_MIN => {
                format!("starts earlier, in {}", until(to))
            }
            CalendarChange::Slipped { to, .. } => {
                format!("starts later than guaranteed, in {}", until(to))
            }
            CalendarChange::Active { claim_by: Some(at) } => {
                format!("is active, to be claimed within {}", until(at))
            }
            CalendarChange::Active { claim_by: None } => "is active".into(),
            CalendarChange::Scaled { load, .. } => format!(
                "has {} B/s of reads and {} B/s of writes, as its target has lost capacity",
                load.read_per_sec(),
                load.write_per_sec()
            ),
            CalendarChange::Restored { .. } => "has its whole rate again".into(),
            CalendarChange::Ended { reason } => format!("has ended: {}", reason.name()),
            CalendarChange::Scheduled { .. }
            | CalendarChange::Moved { .. }
            | CalendarChange::Aged { .. }
            | CalendarChange::Install { .. }
            | CalendarChange::Ends { .. } => return,
        };
        let (id, user) = (event.id, event.owner.uid);
        let text = format!("reservation {id} of user {user} {what}");
        self.to.publisher.publish_now(EventKind::Reservation, format!("reservation={id}"), text);
    }
}

/// A start that is less earlier than that is not published.
const MOVED_MIN: Nanos = Nanos::from_secs(60);
