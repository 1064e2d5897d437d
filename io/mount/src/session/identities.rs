//! Identities of the session: users, groups and jobs as numbers that the proxy knows.
//!
//! ```text
//!   (uid, gid, groups, job) ─► SessionIdentity ─┬─ not sent: Tidentity by the first channel
//!                                               ├─ sent: calls wait, on every channel
//!                                               └─ known: its window says how much may be in flight
//! ```
//!
//! Invariant: a number is used for one identity only, for as long as the mount lives.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fuse::Errno;
use model::JobId;
use ninep::dialect::{ExtRequest, GroupList};
use rustc_hash::FxHashMap;

use super::lock;
use super::remote_ops::{RemoteOps, RemoteOpsTable};

/// The identity that pays for calls.
#[derive(Debug)]
pub(crate) struct SessionIdentity {
    pub(crate) number: u32,
    /// The session whose proxy knows the number.
    pub(crate) home: usize,
    key: IdentityKey,
    sent: AtomicBool,
    /// Calls of one direction that each channel may have in flight; 0 until the proxy said it.
    requests: AtomicU32,
    bytes: AtomicU64,
    /// The errno with which the proxy refused it; 0 if it did not.
    refused: AtomicI32,
    /// When it was last asked for, counted in look-ups.
    used: AtomicU64,
    /// Bytes that were written and answered, and are not executed.
    pub(crate) write_behind: AtomicU64,
    /// Its service here and at other proxies, if there are others.
    service: Option<RemoteOps>,
}

/// Key of an identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct IdentityKey {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    job: JobId,
}

/// The identities of one session.
#[derive(Debug)]
pub(crate) struct IdentityTable {
    home: usize,
    services: Option<Arc<RemoteOpsTable>>,
    table: Mutex<IdentityMap>,
}

#[derive(Debug, Default)]
struct IdentityMap {
    by_key: FxHashMap<IdentityKey, Arc<SessionIdentity>>,
    by_number: FxHashMap<u32, Arc<SessionIdentity>>,
    numbers: u32,
    lookups: u64,
}

/// An identity, and the number of one that made room for it.
pub(crate) struct IdentityEntry {
    pub(crate) payer: Arc<SessionIdentity>,
    pub(crate) retired: Option<u32>,
}

impl IdentityTable {
    pub(super) fn new(home: usize, services: Option<Arc<RemoteOpsTable>>) -> IdentityTable {
        IdentityTable { home, services, table: Mutex::default() }
    }

    /// The identity of a user with its groups and job.
    ///
    /// # Errors
    /// `EUSERS` if there are too many that have calls or open files.
    pub(crate) fn find(
        &self,
        uid: u32,
        gid: u32,
        groups: &Arc<[u32]>,
        job: &JobId,
    ) -> Result<IdentityEntry, Errno> {
        let key = IdentityKey { uid, gid, groups: groups.clone(), job: job.clone() };
        let mut table = lock(&self.table);
        table.lookups += 1;
        let now = table.lookups;
        if let Some(payer) = table.by_key.get(&key) {
            payer.used.store(now, Ordering::Relaxed);
            return Ok(IdentityEntry { payer: payer.clone(), retired: None });
        }
        let retired = match table.by_key.len() < PAYERS_MAX {
            true => None,
            false => Some(table.retire().ok_or(Errno::USERS)?),
        };
        let service = self.services.as_ref().map(|services| services.of(&key));
        let payer = SessionIdentity::new(self.home, table.numbers, key.clone(), now);
        let payer = Arc::new(SessionIdentity { service, ..payer });
        table.numbers += 1;
        table.by_number.insert(payer.number, payer.clone());
        table.by_key.insert(key, payer.clone());
        Ok(IdentityEntry { payer, retired })
    }

    pub(crate) fn by_number(&self, number: u32) -> Option<Arc<SessionIdentity>> {
        lock(&self.table).by_number.get(&number).cloned()
    }

    /// Returns the identities that the proxy knows or is being sent.
    pub(crate) fn sent_identities(&self) -> Vec<Arc<SessionIdentity>> {
        let table = lock(&self.table);
        let asked = table.by_number.values().filter(|payer| payer.sent.load(Ordering::SeqCst));
        asked.cloned().collect()
    }

    /// Forgets an identity that was refused: the next caller with the same identity sends it again.
    pub(crate) fn forget(&self, payer: &SessionIdentity) {
        let mut table = lock(&self.table);
        table.by_number.remove(&payer.number);
        table.by_key.remove(&payer.key);
    }
}

impl IdentityMap {
    /// Drops the one that was not used for the longest time and is not in use.
    fn retire(&mut self) -> Option<u32> {
        // Two references of ours: every other one belongs to calls or open files.
        let idle = self.by_number.values().filter(|payer| Arc::strong_count(payer) == 2);
        let oldest = idle.min_by_key(|payer| payer.used.load(Ordering::Relaxed))?.clone();
        self.by_number.remove(&oldest.number);
        self.by_key.remove(&oldest.key);
        Some(oldest.number)
    }
}

impl SessionIdentity {
    fn new(home: usize, number: u32, key: IdentityKey, now: u64) -> SessionIdentity {
        SessionIdentity {
            number,
            home,
            key,
            sent: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            refused: AtomicI32::new(0),
            used: AtomicU64::new(now),
            write_behind: AtomicU64::new(0),
            service: None,
        }
    }

    /// Returns true for the first caller, which has to send the identity to the proxy.
    pub(crate) fn begin_send(&self) -> bool {
        !self.sent.load(Ordering::SeqCst) && !self.sent.swap(true, Ordering::SeqCst)
    }

    /// Sets the window that the proxy replied.
    pub(crate) fn set_window(&self, requests: u32, bytes: u64) {
        self.bytes.store(bytes, Ordering::SeqCst);
        // A window that lets nothing through would never open again.
        self.requests.store(requests.max(1), Ordering::SeqCst);
    }

    /// Whether the proxy knows it.
    pub(crate) fn is_known(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0 && self.refused().is_none()
    }

    /// The proxy does not take it.
    pub(crate) fn refuse(&self, error: Errno) {
        self.refused.store(error.raw_os_error(), Ordering::SeqCst);
    }

    pub(crate) fn refused(&self) -> Option<Errno> {
        match self.refused.load(Ordering::SeqCst) {
            0 => None,
            error => Some(Errno::from_raw_os_error(error)),
        }
    }

    /// Whether a call with `bytes` may begin beside what the channel has in flight in its direction.
    pub(crate) fn admits(&self, calls: u32, under_way: u64, bytes: u64) -> bool {
        let room = self.bytes.load(Ordering::Relaxed).saturating_sub(under_way);
        calls < self.requests.load(Ordering::SeqCst) && (under_way == 0 || bytes <= room)
    }

    /// The message that tells the proxy; `space` holds the groups.
    pub(crate) fn message<'a>(&'a self, space: &'a mut Vec<u8>) -> ExtRequest<'a> {
        let IdentityKey { uid, gid, groups, job } = &self.key;
        ExtRequest::Identity {
            identity: self.number,
            uid: *uid,
            gid: *gid,
            groups: GroupList::pack(groups.iter().copied(), space),
            job: job.as_str().as_bytes(),
            proof: b"",
        }
    }

    /// Counts a metadata message to its proxy. What it had of others since the last.
    pub(crate) fn count_remote_ops(&self) -> u32 {
        self.service.as_ref().map_or(0, RemoteOps::count)
    }

    /// Returns the user id of the identity.
    pub(crate) fn uid(&self) -> u32 {
        self.key.uid
    }

    #[cfg(test)]
    pub(crate) fn known(number: u32, requests: u32, bytes: u64) -> Arc<SessionIdentity> {
        let payer = SessionIdentity::new(0, number, IdentityKey::of_user(1), 0);
        payer.begin_send();
        payer.set_window(requests, bytes);
        Arc::new(payer)
    }
}

#[cfg(test)]
impl IdentityKey {
    pub(super) fn of_user(uid: u32) -> IdentityKey {
        IdentityKey { uid, gid: 1, groups: [].into(), job: JobId::new("test").unwrap() }
    }
}

/// Identities at a time.
const PAYERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn find(payers: &IdentityTable, uid: u32, job: &str) -> Result<IdentityEntry, Errno> {
        payers.find(uid, 100, &[1, 2].into(), &JobId::new(job).unwrap())
    }

    #[test]
    fn the_same_user_with_another_job_is_another_payer() {
        let payers = IdentityTable::new(0, None);
        let first = find(&payers, 1, "a").unwrap().payer;
        let other = find(&payers, 1, "b").unwrap().payer;
        assert_ne!(first.number, other.number);
        assert_eq!(find(&payers, 1, "a").unwrap().payer.number, first.number);
        assert!(first.begin_send() && !first.begin_send(), "one asks, and once");
        assert_eq!(payers.sent_identities().len(), 1);
    }

    #[test]
    fn the_one_unused_for_longest_makes_room_and_one_in_use_does_not() {
        let payers = IdentityTable::new(0, None);
        let used = find(&payers, 0, "").unwrap().payer;
        for uid in 1..PAYERS_MAX as u32 {
            find(&payers, uid, "").unwrap();
        }
        find(&payers, 1, "").unwrap();
        assert_eq!(find(&payers, 70_000, "").unwrap().retired, Some(2));
        assert!(payers.by_number(2).is_none() && payers.by_number(used.number).is_some());
        let all: Vec<_> = (0..PAYERS_MAX as u32 + 10).filter_map(|n| payers.by_number(n)).collect();
        assert_eq!(all.len(), PAYERS_MAX);
        assert_eq!(find(&payers, 70_001, "").err(), Some(Errno::USERS));
    }

    #[test]
    fn a_window_bounds_calls_and_bytes_but_always_lets_one_through() {
        let payer = SessionIdentity::known(1, 2, 1000);
        assert!(payer.admits(0, 0, 5000), "one larger than the window goes alone");
        assert!(payer.admits(1, 600, 400));
        assert!(!payer.admits(1, 600, 401));
        assert!(!payer.admits(2, 0, 0));
    }
}
