//! What people decided, as records with revisions.
//!
//! ```text
//!   append(7, record) ─► newest is 7? ─yes─► kept as 8, durable, then acknowledged
//!                             └─no──► Behind: load what came after 7, decide anew
//!   load(0)           ─► snapshot at 5, records 6 7 8          snapshot(8, state) ─► 6 7 8 may go
//!   newest(8, 1 s)    ─► 8 after a second, or 9 as soon as it is there
//! ```
//!
//! A record is bytes to the store: what it means, and the state that the records
//! make, are the caller's. Who holds a state of revision N and sees a newer one loads
//! after N; who was away while records were folded into a snapshot is given that.
//!
//! Invariants: revisions have no gaps; an acknowledged record is never lost and never
//! changes; [`Store::load`] shows one moment. A snapshot does not change the newest
//! revision. Every 1,000 records or so deserve a snapshot: a load reads all after it.

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

/// A place for records with revisions: SQLite for one controller, etcd for several.
pub trait Store: Send {
    /// What is there after the revision `after`; everything after [`Revision::ZERO`].
    fn load(&mut self, after: Revision) -> Result<History, StoreError>;

    /// Keeps `record` as the one after `expected`; fails if that is not the newest.
    fn append(&mut self, expected: Revision, record: &[u8]) -> Result<Revision, StoreError>;

    /// Keeps `state` as what the records up to `at` make, and drops those records.
    /// Does nothing where a snapshot of `at` or later is there already.
    fn snapshot(&mut self, at: Revision, state: &[u8]) -> Result<(), StoreError>;

    /// The newest revision; waits up to `patience` for one after `after`.
    fn newest(&mut self, after: Revision, patience: Duration) -> Result<Revision, StoreError>;
}

/// Counts records from the first, which is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

/// One moment of a store: a snapshot where records asked for are folded into one, and
/// the records after it (or after the revision that was asked for), in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// To begin with, in place of whatever the caller holds.
    pub snapshot: Option<Snapshot>,
    /// To apply after that.
    pub records: Vec<StoreRecord>,
}

/// What was decided at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRecord {
    /// Its place in the order.
    pub revision: Revision,
    /// What the caller wrote.
    pub body: Vec<u8>,
}

/// What all records up to one make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last record in it.
    pub revision: Revision,
    /// What the caller wrote.
    pub state: Vec<u8>,
}

/// An error of a call of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another record came first. Nothing was stored.
    #[error(
        "{place}: revision {newest} is the newest, not {expected}; load the newer records and retry"
    )]
    Behind {
        /// The file or the endpoints.
        place: String,
        /// The revision that the caller expected.
        expected: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The caller has lost leadership. Nothing was stored.
    #[error(
        "{place}: {leader} is the leader, not the controller of term {term}; stop deciding and campaign again"
    )]
    Deposed {
        /// The endpoints.
        place: String,
        /// The current leader.
        leader: String,
        /// The caller's term, which is over.
        term: u64,
    },
    /// The connection was lost meanwhile: the record is there or not. Load to learn it.
    #[error("{place}: unknown whether revision {revision} was stored: {source}")]
    Uncertain {
        /// The endpoints.
        place: String,
        /// The revision of the record.
        revision: Revision,
        /// The error of the last attempt.
        #[source]
        source: Box<EtcdError>,
    },
    /// More bytes than any store takes. Nothing was stored.
    #[error("{place}: a {what} of {bytes} bytes is too large; {bytes_max} are the maximum")]
    TooLarge {
        /// The file or the endpoints.
        place: String,
        /// A record or a snapshot.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The most there may be.
        bytes_max: usize,
    },
    /// Content that this program did not write.
    #[error(
        "{place}: {problem}; restore a copy, or empty it and load the rules of the proxies again"
    )]
    Damaged {
        /// The file or the endpoints.
        place: String,
        /// What is wrong, with the key or revision at fault.
        problem: String,
    },
    /// The file is missing, and other files show that there was one.
    #[error(
        "{} is missing or empty, and {} beside it {} that there were rules and tokens; restore it \
         from a backup, or start without them: sluice token create NAME --role admin \
         --accept-lost-records --data {}",
        path.display(), beside.join(", "), if beside.len() == 1 { "shows" } else { "show" },
        path.parent().unwrap_or(path).display()
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// What is beside it.
        beside: Vec<&'static str>,
    },
    /// The file failed.
    #[error(transparent)]
    Sqlite(#[from] SqliteError),
    /// No member of etcd did it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// The largest record. etcd refuses requests above 1.5 MiB; SQLite keeps the same
/// bound, so that what one store takes the other takes too.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// The largest snapshot: every controller holds it in memory at least once.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

impl Revision {
    /// Before the first record.
    pub const ZERO: Revision = Revision(0);

    /// The revision that was given out as `number`.
    pub const fn new(number: u64) -> Revision {
        Revision(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after it.
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
    /// The newest revision in it; none if there is nothing in it.
    pub fn newest(&self) -> Option<Revision> {
        let last = self.records.last().map(|record| record.revision);
        last.or(self.snapshot.as_ref().map(|snapshot| snapshot.revision))
    }

    /// Fails where revisions are missing between `after` and `newest`.
    fn checked(
        self,
        place: &str,
        after: Revision,
        newest: Revision,
    ) -> Result<History, StoreError> {
        let mut at = self.snapshot.as_ref().map_or(after, |snapshot| snapshot.revision);
        let damaged =
            |problem: String| Err(StoreError::Damaged { place: place.to_string(), problem });
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
    Err(StoreError::TooLarge { place: place.to_string(), what, bytes, bytes_max })
}
