//! Decisions, as records with revisions.
//!
//! ```text
//!   append(7, record) ─► newest is 7? ─yes─► kept as 8, durable, then acknowledged
//!                             └─no──► RevisionConflict: load what came after 7, and retry
//!   load(0)           ─► snapshot at 5, records 6 7 8          snapshot(8, state) ─► 6 7 8 may go
//!   newest(8, 1 s)    ─► 8 after a second, or 9 as soon as it is there
//! ```
//!
//! The store does not interpret records; their meaning, and the state that they make, are the
//! caller's. A caller with the state of revision N that sees a newer one loads after N; if records
//! were folded into a snapshot in between, it gets that snapshot.
//!
//! Invariants: revisions have no gaps; an acknowledged record is never lost and never changes;
//! [`Store::load`] shows one moment. A snapshot does not change the newest revision. Write a
//! snapshot about every 1,000 records: a load reads all records after it.

mod etcd;
mod sqlite;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use etcd::EtcdStore;
pub(crate) use etcd::watch_once;
pub use sqlite::SqliteStore;

use crate::etcd::EtcdError;
use crate::sqlite::SqliteError;

/// A store of records with revisions: SQLite for one controller, etcd for several.
pub trait Store: Send {
    /// Returns the content after the revision `after`; everything after [`Revision::ZERO`].
    fn load(&mut self, after: Revision) -> Result<History, StoreError>;

    /// Stores `record` as the one after `expected`; fails if that is not the newest.
    fn append(&mut self, expected: Revision, record: &[u8]) -> Result<Revision, StoreError>;

    /// Stores `state` as the result of the records up to `at`, and drops those records. Does
    /// nothing if there is a snapshot of `at` or later already.
    fn snapshot(&mut self, at: Revision, state: &[u8]) -> Result<(), StoreError>;

    /// Returns the newest revision; waits up to `patience` for one after `after`.
    fn newest(&mut self, after: Revision, patience: Duration) -> Result<Revision, StoreError>;
}

/// The number of a record, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

/// The content of a store at one moment: a snapshot if requested records were folded into one, and
/// the records after it (or after the requested revision), in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The state to start with, in place of the state of the caller.
    pub snapshot: Option<Snapshot>,
    /// The records to apply after that.
    pub records: Vec<StoreRecord>,
}

/// One record: a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRecord {
    /// Its position in the order.
    pub revision: Revision,
    /// The bytes of the caller.
    pub body: Vec<u8>,
}

/// The result of all records up to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record in it.
    pub revision: Revision,
    /// The bytes of the caller.
    pub state: Vec<u8>,
}

/// An error of a call of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another record came first. Nothing was stored.
    #[error(
        "{location}: revision {newest} is the newest, not {expected}; load the newer records and retry"
    )]
    RevisionConflict {
        /// The file or the endpoints.
        location: String,
        /// The revision that the caller expected.
        expected: Revision,
        /// The newest revision in the store.
        newest: Revision,
    },
    /// The caller has lost leadership. Nothing was stored.
    #[error(
        "{location}: {leader} is the leader, not the controller of term {term}; stop deciding and campaign again"
    )]
    Deposed {
        /// The endpoints of the store.
        location: String,
        /// The endpoint of the current leader.
        leader: String,
        /// The caller's term, which is over.
        term: u64,
    },
    /// The connection was lost in between: the record was stored or not. Load to find out.
    #[error("{location}: unknown whether revision {revision} was stored: {source}")]
    Uncertain {
        /// The endpoints of the store.
        location: String,
        /// The revision of the record.
        revision: Revision,
        /// The error of the last attempt.
        #[source]
        source: Box<EtcdError>,
    },
    /// More bytes than any store takes. Nothing was stored.
    #[error("{location}: a {what} of {bytes} bytes is too large; {bytes_max} are the maximum")]
    TooLarge {
        /// The file or the endpoints.
        location: String,
        /// A record or a snapshot.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The maximum size in bytes.
        bytes_max: usize,
    },
    /// Content that this program did not write.
    #[error(
        "{location}: {problem}; restore a copy, or empty it and load the rules of the proxies again"
    )]
    Damaged {
        /// The file or the endpoints.
        location: String,
        /// The problem, with the key or revision at fault.
        problem: String,
    },
    /// The file is missing, and other files show that there was one.
    #[error(
        "{} is missing or empty, and {} beside it {} that there were rules and tokens; restore it \
         from a backup, or start without them: sluice token create NAME --role admin \
         --accept-lost-records --data {}",
        path.display(), other_files.join(", "), if other_files.len() == 1 { "shows" } else { "show" },
        path.parent().unwrap_or(path).display()
    )]
    Missing {
        /// The path of the missing file.
        path: PathBuf,
        /// The files beside it.
        other_files: Vec<&'static str>,
    },
    /// The file of the store failed.
    #[error(transparent)]
    Sqlite(#[from] SqliteError),
    /// No member of etcd executed the call.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// The largest record. etcd refuses requests above 1.5 MiB; SQLite keeps the same
/// bound, so that what one store takes the other takes too.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// The largest snapshot: every controller holds it in memory at least once.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

impl Revision {
    /// The revision before the first record.
    pub const ZERO: Revision = Revision(0);

    /// Makes the revision from its number.
    pub const fn new(number: u64) -> Revision {
        Revision(number)
    }

    /// Returns the number of the revision.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next revision.
    pub const fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl History {
    /// Returns the newest revision in it; none if it is empty.
    pub fn newest(&self) -> Option<Revision> {
        let last = self.records.last().map(|record| record.revision);
        last.or(self.snapshot.as_ref().map(|snapshot| snapshot.revision))
    }

    /// Fails if revisions are missing between `after` and `newest`.
    fn checked(
        self,
        place: &str,
        after: Revision,
        newest: Revision,
    ) -> Result<History, StoreError> {
        let mut at = self.snapshot.as_ref().map_or(after, |snapshot| snapshot.revision);
        let damaged =
            |problem: String| Err(StoreError::Damaged { location: place.to_string(), problem });
        for record in &self.records {
            if record.revision != at.next() {
                return damaged(format!("revision {at} is followed by {}", record.revision));
            }
            at = record.revision;
        }
        if at != newest {
            return damaged(format!("revision {newest} should be the newest, not {at}"));
        }
        Ok(self)
    }
}

/// Refuses a record or snapshot that no store takes.
fn check_size(
    place: &str,
    what: &'static str,
    bytes: usize,
    bytes_max: usize,
) -> Result<(), StoreError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(StoreError::TooLarge { location: place.to_string(), what, bytes, bytes_max })
}
