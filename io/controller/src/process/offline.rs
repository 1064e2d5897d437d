//! Tokens of a controller that does not run: the first one, and one for who lost the last.
//!
//! ```text
//!   DATA, locked ─► (etcd: the office, for as long as it takes) ─► records ─► make, list, revoke
//!      └ a controller runs there: ask it instead                      └─► DATA/audit.log
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

/// What people decided, while no controller has it in hand.
pub struct Offline {
    records: Records,
    access: AccessControl,
    by: ApiCaller,
    /// Given back last.
    _election: Option<Election>,
    _directory: DataDirectory,
}

/// Why the records cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A controller runs on the directory, or nobody can.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another controller of this etcd leads.
    #[error("the controller at {leader} leads: ask it, with --controller {leader}")]
    Led {
        /// Where it is.
        leader: String,
    },
    /// Nobody came into office.
    #[error(
        "etcd did not give the office within {} s: is another command under way?",
        OFFICE_TIME_MAX.as_secs()
    )]
    NoOffice,
    /// No member of etcd answers.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The records cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is changed could not be written down.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl Offline {
    /// Takes the records of a data directory, and of an etcd, in hand. With `accept_lost` new ones
    /// are begun where they were lost.
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
                let fence = wait_for_office(&election)?;
                (Some(election), Some(fence))
            }
        };
        if accept_lost && *place == StorePlace::Data {
            drop(SqliteStore::open(&decided_path(data))?);
        }
        let records = Records::open(open_store(data, place, fence)?)?;
        let access = AccessControl::new(records.tokens(), Audit::open(data)?, false);
        let from = format!("uid {}, without a controller", rustix::process::getuid().as_raw());
        let by =
            ApiCaller { name: "offline".into(), role: Role::Admin, user: None, node: None, from };
        Ok(Offline { records, access, by, _election: election, _directory: directory })
    }

    /// Makes a token.
    ///
    /// # Errors
    /// If it cannot be, or cannot be kept.
    pub fn make_token(&mut self, new: &NewToken) -> Result<MadeToken, TokenFailed> {
        self.records.make_token(new, &self.by, &self.access)
    }

    /// The tokens on record.
    pub fn tokens(&self) -> Tokens {
        self.records.tokens().report()
    }

    /// Revokes a token; those that are left.
    ///
    /// # Errors
    /// If there is none of that name, it is the last administrator's, or that cannot be kept.
    pub fn revoke_token(&mut self, name: &str) -> Result<Tokens, TokenFailed> {
        self.records.revoke_token(name.to_owned(), &self.by, &self.access)
    }
}

/// The store of a controller. One of its own in the data directory is made if it is not there,
/// which is so before there is anything else: a lost one would be begun anew without a token, for
/// everybody.
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
            let beside: Vec<_> = BESIDE.into_iter().filter(is_there).collect();
            // SQLite begins an empty file anew, whatever was in its write-ahead log.
            if size(&path) == 0 && !beside.is_empty() {
                return Err(StoreError::Lost { path, beside });
            }
            Box::new(SqliteStore::open(&path)?)
        }
        StorePlace::Etcd(etcd) => Box::new(EtcdStore::open(etcd, fence)?),
    })
}

/// What a controller has in its directory after its records' file was made.
const BESIDE: [&str; 3] = ["used.db", "events.db", "audit.log"];

/// The records' file in a data directory.
pub(super) fn decided_path(data: &Path) -> PathBuf {
    data.join("decided.db")
}

fn wait_for_office(election: &Election) -> Result<FencingToken, OfflineError> {
    let began = Instant::now();
    let mut seen = Leadership::Standby { leader: None };
    loop {
        let patience = OFFICE_TIME_MAX.saturating_sub(began.elapsed());
        seen = match election.changed(&seen, patience) {
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

/// How long the office is waited for: longer than a lease that somebody left behind.
const OFFICE_TIME_MAX: Duration = Duration::from_secs(5);
