//! The file of events: the last thirty days, within a bound.
//!
//! ```text
//!   append ─► numbers after the newest ─► one transaction ─┬─► rows
//!   keep ───► a leader's, with its numbers ────────────────┘    └ the oldest go
//! ```

use std::path::{Path, PathBuf};

use api::ControllerEvent;
use model::Nanos;
use rusqlite::{Connection, TransactionBehavior, params};

use super::EventsSince;
use crate::sqlite::{FileKind, SqliteError};

/// The file of published events.
pub(crate) struct EventFile {
    path: PathBuf,
    connection: Connection,
    /// The greatest number in use.
    newest: u64,
}

impl EventFile {
    /// Opens the file, and creates it if it does not exist. The last events of another controller
    /// may be missing here: their numbers are skipped.
    pub(crate) fn open(path: &Path, left_out: u64) -> Result<EventFile, SqliteError> {
        let connection = KIND.open(path)?;
        let newest: i64 = connection
            .query_row("SELECT coalesce(max(sequence), 0) FROM event", [], |row| row.get(0))
            .map_err(|source| KIND.failed(path, source))?;
        let newest = newest.cast_unsigned();
        let mut file = EventFile { path: path.into(), connection, newest };
        file.skip(left_out);
        Ok(file)
    }

    /// Skips this many numbers.
    pub(crate) fn skip(&mut self, count: u64) {
        if self.newest > 0 {
            self.newest += count;
        }
    }

    /// Numbers events and writes them. They are numbered even if that fails.
    pub(crate) fn append(&mut self, events: &mut [ControllerEvent]) -> Result<(), SqliteError> {
        for event in events.iter_mut() {
            self.newest += 1;
            event.sequence = self.newest;
        }
        self.write(events)
    }

    /// Writes another controller's events; events that are here already stay.
    pub(crate) fn insert_copies(&mut self, events: &[ControllerEvent]) -> Result<(), SqliteError> {
        let newest = events.iter().map(|event| event.sequence).max();
        self.newest = self.newest.max(newest.unwrap_or(0));
        self.write(events)
    }

    /// Returns the greatest number in use.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns events from there on, oldest first.
    pub(crate) fn page(
        &self,
        since: EventsSince,
        most: usize,
    ) -> Result<Vec<ControllerEvent>, SqliteError> {
        let (select, from) = match since {
            EventsSince::Sequence(sequence) => {
                ("sequence > ?1 ORDER BY sequence", signed(sequence))
            }
            EventsSince::Time(time) => ("at_ns >= ?1 ORDER BY sequence", signed(time.as_nanos())),
            EventsSince::Newest => ("sequence > ?1 ORDER BY sequence DESC", 0),
        };
        let select = format!("SELECT sequence, body FROM event WHERE {select} LIMIT ?2");
        let run = || -> rusqlite::Result<Vec<ControllerEvent>> {
            let mut rows = self.connection.prepare_cached(&select)?;
            let rows = rows.query_map(params![from, signed(most as u64)], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })?;
            // An event of a later version that cannot be read is skipped.
            let read = |(sequence, body): (i64, String)| {
                let event = serde_json::from_str::<ControllerEvent>(&body).ok()?;
                Some(ControllerEvent { sequence: sequence.cast_unsigned(), ..event })
            };
            rows.filter_map(|row| row.map(read).transpose()).collect()
        };
        let mut events = run().map_err(|source| KIND.failed(&self.path, source))?;
        if since == EventsSince::Newest {
            events.reverse();
        }
        Ok(events)
    }

    fn write(&mut self, events: &[ControllerEvent]) -> Result<(), SqliteError> {
        let Some(last) = events.last() else { return Ok(()) };
        let oldest = last.at_ns.saturating_sub(RETENTION.get());
        let run = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for event in events {
                let body = serde_json::to_string(event).expect("an event is plain data");
                transaction
                    .prepare_cached(
                        "INSERT OR IGNORE INTO event (sequence, at_ns, body) VALUES (?1, ?2, ?3)",
                    )?
                    .execute(params![signed(event.sequence), signed(event.at_ns), body])?;
            }
            let first = last.sequence.saturating_sub(EVENTS_MAX);
            transaction
                .prepare_cached("DELETE FROM event WHERE sequence <= ?1 OR at_ns < ?2")?
                .execute(params![signed(first), signed(oldest)])?;
            transaction.commit()
        };
        run(&mut self.connection).map_err(|source| KIND.failed(&self.path, source))
    }
}

/// Converts to the signed numbers of SQLite: the same bits.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// The time for which events are kept.
const RETENTION: Nanos = Nanos::from_secs(30 * 86_400);
/// The most events that are kept: about 60 MB.
const EVENTS_MAX: u64 = 100_000;

const KIND: FileKind = FileKind {
    application_id: 0x534c_5545, // "SLUE"
    format: 1,
    name: "file of a controller's events",
    schema: "
        CREATE TABLE event (
            sequence INTEGER PRIMARY KEY,
            at_ns INTEGER NOT NULL,
            body TEXT NOT NULL
        ) STRICT;
        CREATE INDEX event_by_time ON event (at_ns);",
};

#[cfg(test)]
mod tests {
    use api::EventKind;
    use model::Time;

    use super::*;
    use testkit::TestFolder;

    fn event(at_ns: u64) -> ControllerEvent {
        ControllerEvent { at_ns, kind: EventKind::Rules, ..ControllerEvent::default() }
    }

    #[test]
    fn numbers_go_on_and_leave_out_what_another_may_have_told() {
        let folder = TestFolder::new();
        let path = folder.path().join("e.db");
        let mut file = EventFile::open(&path, 1_000).unwrap();
        file.append(&mut [event(1), event(2)]).unwrap();
        assert_eq!(file.newest(), 2, "a file that is new leaves nothing out");
        drop(file);
        let mut file = EventFile::open(&path, 1_000).unwrap();
        let mut next = [event(3)];
        file.append(&mut next).unwrap();
        assert_eq!(next[0].sequence, 1_003);
        file.insert_copies(&[
            ControllerEvent { sequence: 2, ..event(9) },
            ControllerEvent { sequence: 2_000, ..event(4) },
        ])
        .unwrap();
        let page = file.page(EventsSince::Sequence(0), 10).unwrap();
        let kept: Vec<_> = page.iter().map(|event| (event.sequence, event.at_ns)).collect();
        assert_eq!(kept, [(1, 1), (2, 2), (1_003, 3), (2_000, 4)]);
        assert_eq!(file.page(EventsSince::Time(Time::from_nanos(3)), 10).unwrap(), page[2..]);
    }

    #[test]
    fn what_is_too_old_or_too_much_goes() {
        let folder = TestFolder::new();
        let mut file = EventFile::open(&folder.path().join("e.db"), 0).unwrap();
        file.append(&mut [event(5)]).unwrap();
        file.append(&mut [event(RETENTION.get()), event(RETENTION.get() + 6)]).unwrap();
        assert_eq!(
            file.page(EventsSince::Sequence(0), 10).unwrap().len(),
            2,
            "the first is too old"
        );
        file.insert_copies(&[ControllerEvent {
            sequence: EVENTS_MAX + 2,
            ..event(RETENTION.get() + 7)
        }])
        .unwrap();
        let page = file.page(EventsSince::Sequence(0), 10).unwrap();
        assert_eq!(
            page.iter().map(|event| event.sequence).collect::<Vec<_>>(),
            [3, EVENTS_MAX + 2]
        );
    }
}
