//! Tokens of a controller that does not run: the first one, and a new one if the last is lost.
//!
//! ```text
//!   DATA, locked ─► (etcd: leadership, while the command runs) ─► records ─► make, list, revoke
//!      └ a controller runs there: call it instead                      └─► DATA/audit.log
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::{MadeToken, NewToken, Role, Tokens};

use super::StorePlace;
use super::access::{AccessControl, ApiCaller};
use super::records::{Records, TokenFailed};
use crate::audit::{Audit, AuditError};
use crate::directory::{DataDirectory, DirectoryError};
use crate::election::{Election, FencingToken, Leadership};
use crate::etcd::EtcdError;
use crate::store::{EtcdStore, SqliteStore, Store, StoreError};

/// The records of a controller that does not run.
pub struct Offline {
    records: Records,
    access: AccessControl,
    by: ApiCaller,
    /// Given back last.
    _election: Option<Election>,
    _directory: DataDirectory,
}

/// An error at opening the records.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A controller runs on the directory, or it cannot be opened.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another controller of this etcd leads.
    #[error("the controller at {leader} is the leader; use --controller {leader}")]
    Led {
        /// The endpoint of the leader.
        leader: String,
    },
    /// An election without a result.
    #[error(
        "not elected leader within {} s; wait until other commands on this etcd have ended",
        OFFICE_TIME_MAX.as_secs()
    )]
    NoOffice,
    /// No member of etcd answers.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The records cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl Offline {
    /// Opens the records of a data directory, and of an etcd. With `accept_lost`, new records are
    /// created if they were lost.
    ///
    /// # Errors
    /// If a controller runs there, or they cannot be read.
    pub fn open(
        data: &Path,
        place: &StorePlace,
        accept_lost: bool,
    ) -> Result<Offline, OfflineError> {
        let directory = DataDirectory::open(data)?;
        let (election, fence) = match place {
            StorePlace::Data => (None, None),
            StorePlace::Etcd(etcd) => {
                let election = Election::campaign(etcd, "a command without a controller")?;
                let fence = wait_for_leadership(&election)?;
                (Some(election), Some(fence))
            }
        };
        if accept_lost && *place == StorePlace::Data {
            drop(SqliteStore::open(&decided_path(data))?);
        }
        let records = Records::open(open_store(data, place, fence)?)?;
        let access = AccessControl::new(records.tokens(), Audit::open(data)?, false);
        let from = format!("uid {}, without a controller", rustix::process::getuid().as_raw());
        let by = ApiCaller {
            name: "offline".into(),
            role: Role::Admin,
            user: None,
            job: None,
            node: None,
            from,
        };
        Ok(Offline { records, access, by, _election: election, _directory: directory })
    }

    /// Creates a token.
    ///
    /// # Errors
    /// If it is refused, or cannot be stored.
    pub fn make_token(&mut self, new: &NewToken) -> Result<MadeToken, TokenFailed> {
        self.records.make_token(new, &self.by, &self.access)
    }

    /// Lists the tokens on record.
    pub fn tokens(&self) -> Tokens {
        self.records.tokens().report()
    }

    /// Revokes a token; returns the remaining ones.
    ///
    /// # Errors
    /// If it does not exist, is the last of an administrator, or the change cannot be stored.
    pub fn revoke_token(&mut self, name: &str) -> Result<Tokens, TokenFailed> {
        self.records.revoke_token(name.to_owned(), &self.by, &self.access)
    }
}

/// Opens the store of a controller. The file in the data directory is created only if it is the
/// first file there: a lost one would be replaced by a store without tokens, open to everybody.
pub(super) fn open_store(
    data: &Path,
    place: &StorePlace,
    fence: Option<FencingToken>,
) -> Result<Box<dyn Store>, StoreError> {
    Ok(match place {
        StorePlace::Data => {
            let path = decided_path(data);
            let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            let is_there = |name: &&str| data.join(name).exists();
            let beside: Vec<_> = LATER_FILES.into_iter().filter(is_there).collect();
            // SQLite treats an empty file as new, whatever its write-ahead log contains.
            if size(&path) == 0 && !beside.is_empty() {
                return Err(StoreError::Missing { path, other_files: beside });
            }
            Box::new(SqliteStore::open(&path)?)
        }
        StorePlace::Etcd(etcd) => Box::new(EtcdStore::open(etcd, fence)?),
    })
}

/// The files that a controller makes after its store.
const LATER_FILES: [&str; 3] = ["used.db", "events.db", "audit.log"];

/// Returns the path of the store in a data directory.
pub(super) fn decided_path(data: &Path) -> PathBuf {
    data.join("decided.db")
}

fn wait_for_leadership(election: &Election) -> Result<FencingToken, OfflineError> {
    let began = Instant::now();
    let mut seen = Leadership::Standby { leader: None };
    loop {
        let patience = OFFICE_TIME_MAX.saturating_sub(began.elapsed());
        seen = match election.wait_for_change(&seen, patience) {
            Leadership::Leader(fence) => return Ok(fence),
            Leadership::Standby { leader } if patience.is_zero() => {
                return Err(
                    leader.map_or(OfflineError::NoOffice, |leader| OfflineError::Led { leader })
                );
            }
            office => office,
        };
    }
}

/// The longest wait for leadership: longer than a lease that was left behind.
const OFFICE_TIME_MAX: Duration = Duration::from_secs(5);
