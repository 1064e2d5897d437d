//! Events, published in their order: written to disk, shown, and delivered.
//!
//! ```text
//!   plan: unreachable, … ─┐         ┌ events ─────────────────────────────────┐
//!   usage: decays ────────┼─ Teller ► number ─► file ─► Recent ─► GET /v1/events │
//!   store: rules ─────────┘  bounded└──────────────────────┬──────────────────┘
//!                                                          └─► command, webhook
//! ```
//!
//! An event is shown once it is on disk, so a number that was seen once never belongs to another
//! event. Publishing never waits: if the queue is full, the event is lost and counted.

mod deliver;
mod file;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{ControllerEvent, EventKind};
use model::Time;
use tokio::sync::{oneshot, watch};

pub(crate) use deliver::EventDelivery;
pub use deliver::{ParseWebhookError, Webhook};
pub(crate) use file::EventFile;

use super::counts::Counts;
use super::queue::{MsgInbox, MsgQueue};
use crate::clock::WallClock;
use crate::sqlite::SqliteError;

/// A message to this thread.
pub(crate) enum EventMsg {
    Publish(Box<ControllerEvent>),
    /// Reads events that are not recent any more.
    Page {
        since: EventsSince,
        most: usize,
        answer: oneshot::Sender<Result<Vec<ControllerEvent>, SqliteError>>,
    },
    Stop,
}

/// The position from which events are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventsSince {
    /// After the event of this number.
    Sequence(u64),
    /// From this time on.
    Time(Time),
    /// The newest events, as many as the caller wants.
    Newest,
}

/// A handle that publishes events.
#[derive(Clone)]
pub(crate) struct EventPublisher {
    queue: MsgQueue<EventMsg>,
    counts: Arc<Counts>,
    clock: WallClock,
}

/// The newest events, for readers.
#[derive(Debug)]
pub(crate) struct RecentEvents {
    recent: Mutex<VecDeque<ControllerEvent>>,
    newest: watch::Sender<u64>,
}

impl EventPublisher {
    pub(crate) fn new(
        queue: MsgQueue<EventMsg>,
        counts: Arc<Counts>,
        clock: WallClock,
    ) -> EventPublisher {
        EventPublisher { queue, counts, clock }
    }

    /// Publishes an event of now, if there is room.
    pub(crate) fn publish_now(&self, kind: EventKind, subject: impl Into<String>, text: String) {
        let (at_ns, subject) = (self.clock.now().as_nanos(), subject.into());
        self.publish(ControllerEvent { sequence: 0, at_ns, kind, subject, decay: None, text });
    }

    /// Publishes an event, if there is room.
    pub(crate) fn publish(&self, event: ControllerEvent) {
        if self.queue.try_send(EventMsg::Publish(Box::new(event))).is_err() {
            self.counts.events_dropped.add(1);
        }
    }
}

impl RecentEvents {
    /// Reads the newest events of a file.
    pub(crate) fn of(file: &EventFile) -> Result<RecentEvents, SqliteError> {
        let ring: VecDeque<_> = file.page(EventsSince::Newest, RECENT)?.into();
        let (newest, _) = watch::channel(file.newest());
        Ok(RecentEvents { recent: Mutex::new(ring), newest })
    }

    /// Returns events from there on, oldest first; `None` if only the file has all of them.
    pub(crate) fn page(&self, since: EventsSince, most: usize) -> Option<Vec<ControllerEvent>> {
        let ring = self.lock_recent();
        let first = ring.front().map(|event| (event.sequence, event.at_ns));
        let from = match since {
            EventsSince::Sequence(sequence) => {
                if first.is_some_and(|(first, _)| first > sequence.saturating_add(1)) {
                    return None;
                }
                ring.partition_point(|event| event.sequence <= sequence)
            }
            EventsSince::Time(time) => {
                if first.is_some_and(|(_, at_ns)| at_ns >= time.as_nanos()) {
                    return None;
                }
                ring.partition_point(|event| event.at_ns < time.as_nanos())
            }
            EventsSince::Newest if most > ring.len() => {
                return (ring.len() < RECENT).then(|| ring.iter().cloned().collect());
            }
            EventsSince::Newest => ring.len() - most,
        };
        Some(ring.iter().skip(from).take(most).cloned().collect())
    }

    /// Returns the number of the newest event, and a receiver of newer ones.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn add(&self, events: &[ControllerEvent]) {
        let Some(last) = events.last() else { return };
        let mut ring = self.lock_recent();
        ring.extend(events.iter().cloned());
        let surplus = ring.len().saturating_sub(RECENT);
        ring.drain(..surplus);
        drop(ring);
        self.newest.send_replace(last.sequence);
    }

    fn lock_recent(&self) -> MutexGuard<'_, VecDeque<ControllerEvent>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the thread until it is stopped.
pub(crate) fn run(
    mut file: EventFile,
    asked: &MsgInbox<EventMsg>,
    recent: &RecentEvents,
    deliveries: &EventDelivery,
    counts: &Counts,
) {
    while let Ok(first) = asked.recv() {
        let mut told = Vec::new();
        for ask in std::iter::once(first).chain(asked.try_iter().take(BATCH - 1)) {
            match ask {
                EventMsg::Publish(event) => told.push(*event),
                // The caller may have gone.
                EventMsg::Page { since, most, answer } => drop(answer.send(file.page(since, most))),
                EventMsg::Stop => {
                    publish(&mut file, told, recent, deliveries, counts);
                    return;
                }
            }
        }
        publish(&mut file, told, recent, deliveries, counts);
    }
}

fn publish(
    file: &mut EventFile,
    mut told: Vec<ControllerEvent>,
    recent: &RecentEvents,
    deliveries: &EventDelivery,
    counts: &Counts,
) {
    if told.is_empty() {
        return;
    }
    if let Err(error) = file.append(&mut told) {
        tracing::error!(%error, "cannot write events; they are shown and delivered only");
        counts.events_unpersisted.add(told.len() as u64);
    }
    counts.events.add(told.len() as u64);
    recent.add(&told);
    told.iter().for_each(|event| deliveries.deliver(event));
}

/// The most events in memory.
const RECENT: usize = 1_024;
/// The most events that are written at once.
const BATCH: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TestFolder;

    fn told(count: usize) -> Vec<ControllerEvent> {
        let event = |nth| ControllerEvent {
            sequence: 0,
            at_ns: 1,
            kind: EventKind::Unreachable,
            subject: format!("p{nth}"),
            decay: None,
            text: String::new(),
        };
        (0..count).map(event).collect()
    }

    #[test]
    fn what_is_recent_is_a_page_of_the_file_and_says_when_it_does_not_reach_back() {
        let folder = TestFolder::new();
        let mut file = EventFile::open(&folder.path().join("e.db"), 0).unwrap();
        let recent = RecentEvents::of(&file).unwrap();
        assert_eq!(recent.page(EventsSince::Sequence(0), 10), Some(vec![]));
        assert_eq!(recent.page(EventsSince::Newest, 10), Some(vec![]));
        let mut events = told(RECENT + 10);
        file.append(&mut events).unwrap();
        recent.add(&events);
        assert_eq!(*recent.watch().borrow(), RECENT as u64 + 10);
        assert_eq!(recent.page(EventsSince::Sequence(9), 10), None, "event 10 is in the file only");
        for since in [EventsSince::Sequence(10), EventsSince::Sequence(500), EventsSince::Newest] {
            let page = recent.page(since, 7).unwrap();
            assert_eq!(page, file.page(since, 7).unwrap(), "{since:?}");
        }
        assert_eq!(file.page(EventsSince::Sequence(8), 2).unwrap(), events[8..10]);
        let again = RecentEvents::of(&file).unwrap();
        assert_eq!(again.page(EventsSince::Newest, 3), recent.page(EventsSince::Newest, 3));
    }
}
