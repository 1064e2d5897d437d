//! The store of a single controller: one SQLite file.
//!
//! ```text
//!   append ─► BEGIN IMMEDIATE; newest = expected? ─► INSERT; COMMIT (synced) ─► acknowledged
//! ```
//!
//! The data directory ensures that there is no other writer
//! ([`DataDirectory`](crate::DataDirectory)); even without that, the transaction keeps revisions
//! apart.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{
    History, RECORD_BYTES_MAX, Revision, SNAPSHOT_BYTES_MAX, Snapshot, Store, StoreError,
    StoreRecord, check_size,
};
use crate::sqlite::{FileKind, SqliteError};

/// Records in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    connection: Connection,
}

impl SqliteStore {
    /// Opens the file, and creates it if it does not exist. Lock its directory first.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        Ok(SqliteStore { path: path.into(), connection: KIND.open(path)? })
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }

    /// Runs `work` in one transaction; its result is durable when this returns.
    fn transaction<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, SqliteError> {
        let path = &self.path;
        let connection = &mut self.connection;
        let run = || {
            let transaction = connection.transaction_with_behavior(behavior)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        };
        run().map_err(|source| KIND.failed(path, source))
    }
}

impl Store for SqliteStore {
    fn load(&mut self, after: Revision) -> Result<History, StoreError> {
        let (history, newest) = self.transaction(TransactionBehavior::Deferred, |transaction| {
            let snapshot = snapshot_after(transaction, after)?;
            let from = snapshot.as_ref().map_or(after, |snapshot| snapshot.revision);
            let mut rows = transaction.prepare_cached(
                "SELECT revision, body FROM record WHERE revision > ?1 ORDER BY revision",
            )?;
            let records = rows
                .query_map([number(from)], |row| {
                    Ok(StoreRecord { revision: revision(row.get(0)?), body: row.get(1)? })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            Ok((History { snapshot, records }, newest_of(transaction)?))
        })?;
        history.checked(&self.location(), after, newest)
    }

    fn append(&mut self, expected: Revision, record: &[u8]) -> Result<Revision, StoreError> {
        check_size(&self.location(), "record", record.len(), RECORD_BYTES_MAX)?;
        let newest = self.transaction(TransactionBehavior::Immediate, |transaction| {
            let newest = newest_of(transaction)?;
            if newest == expected {
                transaction
                    .prepare_cached("INSERT INTO record (revision, body) VALUES (?1, ?2)")?
                    .execute(params![number(expected.next()), record])?;
            }
            Ok(newest)
        })?;
        if newest != expected {
            return Err(StoreError::RevisionConflict {
                location: self.location(),
                expected,
                newest,
            });
        }
        Ok(expected.next())
    }

    fn snapshot(&mut self, at: Revision, state: &[u8]) -> Result<(), StoreError> {
        check_size(&self.location(), "snapshot", state.len(), SNAPSHOT_BYTES_MAX)?;
        let newest = self.transaction(TransactionBehavior::Immediate, |transaction| {
            let newest = newest_of(transaction)?;
            if at > newest || snapshot_revision(transaction)? >= at {
                return Ok(newest);
            }
            transaction.execute(
                "INSERT OR REPLACE INTO snapshot (only_one, revision, state) VALUES (1, ?1, ?2)",
                params![number(at), state],
            )?;
            transaction.execute("DELETE FROM record WHERE revision <= ?1", [number(at)])?;
            Ok(newest)
        })?;
        if at > newest {
            return Err(StoreError::RevisionConflict {
                location: self.location(),
                expected: at,
                newest,
            });
        }
        Ok(())
    }

    fn newest(&mut self, after: Revision, patience: Duration) -> Result<Revision, StoreError> {
        let deadline = Instant::now() + patience;
        loop {
            let newest = self.transaction(TransactionBehavior::Deferred, newest_of)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if newest > after || left.is_zero() {
                return Ok(newest);
            }
            // only another handle of this process appends in between: rare, and cheap to check
            std::thread::sleep(POLL.min(left));
        }
    }
}

const POLL: Duration = Duration::from_millis(20);

const KIND: FileKind = FileKind {
    application_id: 0x534c_5531, // "SLU1"
    format: 1,
    name: "store of a controller",
    schema: "
        CREATE TABLE record (revision INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
        CREATE TABLE snapshot (
            only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
            revision INTEGER NOT NULL,
            state BLOB NOT NULL
        ) STRICT;",
};

fn newest_of(transaction: &Transaction<'_>) -> rusqlite::Result<Revision> {
    let last: Option<i64> =
        transaction.query_row("SELECT max(revision) FROM record", [], |row| row.get(0))?;
    match last {
        Some(last) => Ok(revision(last)),
        None => snapshot_revision(transaction),
    }
}

fn snapshot_revision(transaction: &Transaction<'_>) -> rusqlite::Result<Revision> {
    let found: Option<i64> =
        transaction.query_row("SELECT revision FROM snapshot", [], |row| row.get(0)).optional()?;
    Ok(found.map_or(Revision::ZERO, revision))
}

fn snapshot_after(
    transaction: &Transaction<'_>,
    after: Revision,
) -> rusqlite::Result<Option<Snapshot>> {
    transaction
        .query_row(
            "SELECT revision, state FROM snapshot WHERE revision > ?1",
            [number(after)],
            |row| Ok(Snapshot { revision: revision(row.get(0)?), state: row.get(1)? }),
        )
        .optional()
}

/// Converts to the signed numbers of SQLite; no store reaches the difference.
fn number(revision: Revision) -> i64 {
    i64::try_from(revision.get()).unwrap_or(i64::MAX)
}

fn revision(number: i64) -> Revision {
    Revision::new(number.unsigned_abs())
}
