//! Byte-range locks that hold between clients, and against programs on the server.
//!
//! An owner is what the client says: (client_id, proc_id). Each owner has one open
//! file description per file, and the kernel decides between descriptions
//! (F_OFD_SETLK), so locks also conflict with those of local programs and, where
//! the file system has them, of other nodes. A mirror of the ranges answers
//! getlock with the owner's name, which the kernel does not know.
//!
//! A blocking lock that must wait is parked (`waiting`). It is tried again when a lock is released
//! here, and now and then because a local program may have released one.
//!
//! For a while after a restart only former holders get locks (`grace`); others wait.
//!
//! Any call to the backend may hang. It is made under the lock of its own file at most, and opening
//! under none. A request for another file, a cancelled wait and the end of a session never wait for
//! it. Order: a file's lock, then a session's, then one of the tables'.

mod grace;
mod ranges;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bounds::Holder;
use model::Time;
use ninep::{LockKind, LockStatus, Tag};
use rustix::fs::OFlags;
use rustix::io::Errno;

use self::grace::Admission;
use self::ranges::LockedRanges;
use self::waiting::{LockWaiters, WaitPermit};
use crate::bounds::{Charge, SharedBound, SharedBounds};
use crate::connection::{Connection, ReplyTo};
use crate::credentials::{self, FsCredentials};
use crate::export::ExportNode;
use crate::sys;
use crate::trace::TraceDraft;

pub(crate) use self::grace::Grace;
pub(crate) use self::ranges::WantedRange;
pub(crate) use self::waiting::{LockOutcome, LockReply};

/// Key of a file: device and inode number.
type LockedFileId = (u64, u64);
type OwnerName = (Box<[u8]>, u32);

/// Owner of a lock on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlockOwner {
    file: LockedFileId,
    name: OwnerName,
}

/// A call of Tlock.
pub(crate) struct LockCall<'a> {
    pub(crate) to: &'a ReplyTo,
    pub(crate) node: &'a ExportNode,
    pub(crate) through: &'a Arc<FidLocks>,
    pub(crate) owner: TlockOwner,
    pub(crate) wanted: WantedRange,
    /// Whether it waits if it is refused.
    pub(crate) waits: bool,
    /// Whether its owner says that it had the lock before the proxy was started.
    pub(crate) reclaims: bool,
    /// Maximum number of locks of its connection that may wait.
    pub(crate) waiters_max: usize,
    /// Maximum number of owners of its connection: each holds a descriptor.
    pub(crate) owners_max: usize,
    /// Bounds that count its descriptor and its ranges.
    pub(crate) bounds: &'a Arc<SharedBounds>,
    pub(crate) holder: Holder,
    /// Makes its trace draft, if it waits.
    pub(crate) record: &'a dyn Fn() -> Option<TraceDraft>,
}

/// Locking state of an open fid.
#[derive(Debug, Default)]
pub(crate) struct FidLocks(Mutex<FileUse>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FileUse {
    #[default]
    Never,
    Used,
    /// Its session is over, and its locks wait to be released.
    Ended,
    Closed,
}

/// All locks taken through this proxy.
#[derive(Default)]
pub(crate) struct LockTable {
    files: Mutex<BTreeMap<LockedFileId, Arc<LockedFile>>>,
    waiting: LockWaiters,
    grace: Grace,
}

/// Locks of one file; the mutex is held over calls to the backend.
type LockedFile = Mutex<FileOwners>;
type FileOwners = BTreeMap<OwnerName, OwnerLocks>;

/// Locks of one owner on one file.
struct OwnerLocks {
    file: OwnedFd,
    ranges: LockedRanges,
    /// The fids through which it was locked.
    through: Vec<Arc<FidLocks>>,
    /// Number of waiting locks of this owner.
    waiters: Arc<AtomicUsize>,
    /// Its ranges.
    charge: Charge,
    _open_file: Charge,
    _permit: WaitPermit,
}

/// Maximum number of ranges of one owner on one file. Each takes memory here and in the kernel,
/// which searches all ranges of a file for every lock.
const RANGES_MAX: usize = 4096;
/// The longest name of a client. Linux's node names have at most 64 bytes.
const CLIENT_ID_MAX: usize = 255;
/// The longest Tlock, by that.
pub(crate) const TLOCK_MAX: usize = 38 + CLIENT_ID_MAX;
/// Reply of getlock: a lock, and its owner if that is a client.
type FoundOwner = Option<(WantedRange, Option<OwnerName>)>;

impl TlockOwner {
    pub(crate) fn new(node: &ExportNode, client: &[u8], proc_id: u32) -> io::Result<TlockOwner> {
        if client.len() > CLIENT_ID_MAX {
            return Err(Errno::INVAL.into());
        }
        Ok(TlockOwner { file: file_id(node), name: (client.into(), proc_id) })
    }
}

impl FidLocks {
    /// Notes a lock through the fid; `false` if the fid was closed or its session is over: a later
    /// lock would never be released.
    fn begin(&self) -> bool {
        let mut now = self.0.lock().expect("not poisoned");
        if *now == FileUse::Never {
            *now = FileUse::Used;
        }
        *now == FileUse::Used
    }

    /// Ends its session: locks through it cannot be changed any more, until the fid is closed.
    pub(crate) fn end(&self) {
        let mut now = self.0.lock().expect("not poisoned");
        *now = if *now == FileUse::Used { FileUse::Ended } else { FileUse::Closed };
    }

    fn is_ended(&self) -> bool {
        *self.0.lock().expect("not poisoned") == FileUse::Ended
    }

    /// Whether there may be locks to release.
    fn close(&self) -> bool {
        let mut now = self.0.lock().expect("not poisoned");
        matches!(std::mem::replace(&mut *now, FileUse::Closed), FileUse::Used | FileUse::Ended)
    }
}

impl LockTable {
    pub(crate) fn new(grace: Grace) -> LockTable {
        LockTable { grace, ..LockTable::default() }
    }

    /// Locks, changes or unlocks a range. `None`: it waits, and its reply comes from
    /// [`LockTable::retry`].
    pub(crate) fn set(&self, asked: &LockCall<'_>, now: Time) -> io::Result<Option<LockOutcome>> {
        let admission = self.grace.admit(asked.wanted.kind, asked.reclaims, now);
        if admission == Admission::Refuse {
            return Ok(Some(LockOutcome::Status(LockStatus::Error)));
        }
        let mut fresh = None;
        loop {
            let tried = self.with_file(asked.owner.file, |owners| {
                self.attempt(owners, asked, admission, &mut fresh)
            });
            if let LockAttempt::Ended(outcome) = tried? {
                return Ok(outcome);
            }
            // Opening may hang where nothing else does: no lock is held meanwhile.
            let place =
                WaitPermit::acquire(&asked.to.path.connection.lock_owners, asked.owners_max);
            let place = place.ok_or(Errno::NOLCK)?;
            let charge = |what, amount| asked.bounds.charge(what, asked.holder.clone(), amount);
            // Locking calls know no ENFILE.
            let open_file = charge(SharedBound::OpenFiles, 1).map_err(|_| Errno::NOLCK)?;
            let locks = charge(SharedBound::Locks, 0)?;
            let file = open_for_locks(asked.node)?;
            fresh = Some(OwnerLocks::new(place, locks, open_file, file));
        }
    }

    /// Returns the first lock of another owner that would refuse `wanted`, with its owner if that
    /// is a client. `node` is open for reading or writing.
    pub(crate) fn test(
        &self,
        node: &ExportNode,
        owner: &TlockOwner,
        wanted: WantedRange,
    ) -> io::Result<FoundOwner> {
        self.with_file(owner.file, |owners| {
            let others =
                owners.iter().filter(|(name, held)| **name != owner.name || held.is_ended());
            for (name, held) in others {
                if let Some(range) = held.ranges.conflict(&wanted) {
                    return Ok(Some((range, Some(name.clone()))));
                }
            }
            // Its own locks are in nobody's way; the fid's description never holds any.
            let own = owners.get(&owner.name).map_or(&node.fd, |held| &held.file);
            let found = sys::ofd_test(own.as_fd(), wanted.to_kernel())?;
            Ok(found.map(|range| (WantedRange::from_kernel(range), None)))
        })
    }

    /// Cancels waiting; returns the cancelled call, if there is one. Never waits for the backend.
    pub(crate) fn cancel(&self, connection: &Connection, tag: Tag) -> Option<LockReply> {
        self.waiting.cancel(connection, |waiting| waiting == tag).pop()
    }

    /// Cancels all waiting of a connection that is gone or starts a new session.
    pub(crate) fn cancel_all(&self, connection: &Connection) -> Vec<LockReply> {
        self.waiting.cancel(connection, |_| true)
    }

    /// Releases, when a fid is closed, all locks on the file of the owners that locked it through
    /// this fid, and answers the waiters of this fid. Returns whether there was anything.
    pub(crate) fn release(
        &self,
        node: &ExportNode,
        through: &Arc<FidLocks>,
        answer: &mut dyn FnMut(LockReply),
    ) -> bool {
        let used = through.close();
        if used {
            let file = file_id(node);
            self.with_file(file, |owners| {
                for waiter in self.waiting.take_through(file, through) {
                    answer(waiter.answer(LockOutcome::Failed(Errno::BADF)));
                }
                owners.values_mut().for_each(|held| held.release(through));
            });
        }
        used
    }

    /// Tries the waiters of a file, oldest first, and answers those that need not wait on.
    pub(crate) fn retry(&self, node: &ExportNode, answer: &mut dyn FnMut(LockReply), now: Time) {
        if self.any_waiting() && !self.grace.lasts(now) {
            let file = file_id(node);
            self.with_file(file, |owners| self.try_waiters(file, owners, answer));
        }
    }

    /// Tries the waiters of every file, except files in use by another thread: a call there may
    /// hang, and the others need not wait for that.
    pub(crate) fn retry_all(&self, answer: &mut dyn FnMut(LockReply), now: Time) {
        if self.grace.lasts(now) {
            return;
        }
        for id in self.waiting.files() {
            let Some(file) = self.files().get(&id).cloned() else { continue };
            if let Ok(mut owners) = file.try_lock() {
                self.try_waiters(id, &mut owners, answer);
                forget_idle(&mut owners);
            }
            self.drop_if_unused(id, file);
        }
    }

    /// Ends all waiting for good; returns the replies.
    pub(crate) fn end_waiting(&self) -> Vec<LockReply> {
        self.waiting.end()
    }

    /// Whether any request waits.
    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting.any()
    }

    fn attempt(
        &self,
        owners: &mut FileOwners,
        asked: &LockCall<'_>,
        admission: Admission,
        fresh: &mut Option<OwnerLocks>,
    ) -> io::Result<LockAttempt> {
        let unlock = asked.wanted.kind == LockKind::Unlock;
        if !unlock && !asked.through.begin() {
            return Err(Errno::BADF.into());
        }
        let name = &asked.owner.name;
        if !owners.contains_key(name)
            && let Some(held) = fresh.take()
        {
            owners.insert(name.clone(), held);
        }
        let Some(held) = owners.get_mut(name) else {
            let nothing_held = LockAttempt::Ended(Some(LockOutcome::Status(LockStatus::Success)));
            return Ok(if unlock { nothing_held } else { LockAttempt::NotOpen });
        };
        let (status, waits) = match admission {
            Admission::Wait => (LockStatus::Blocked, true),
            Admission::TryOnce => (held.set(asked.wanted, asked.through)?, false),
            _ => (held.set(asked.wanted, asked.through)?, asked.waits),
        };
        Ok(LockAttempt::Ended(match status {
            LockStatus::Blocked if waits => {
                self.waiting.begin(asked, &held.waiters).map(|answer| answer.outcome)
            }
            status => Some(LockOutcome::Status(status)),
        }))
    }

    fn try_waiters(
        &self,
        file: LockedFileId,
        owners: &mut FileOwners,
        answer: &mut dyn FnMut(LockReply),
    ) {
        let mut tried = None;
        while let Some((number, waiter)) = self.waiting.take_after(file, tried) {
            tried = Some(number);
            let held = owners.get_mut(&waiter.name).expect("an owner who waits is not forgotten");
            match held.set(waiter.wanted, &waiter.through) {
                Ok(LockStatus::Blocked) if !waiter.once => {
                    self.waiting.park(waiter).into_iter().for_each(&mut *answer)
                }
                Ok(status) => answer(waiter.answer(LockOutcome::Status(status))),
                Err(errno) => answer(waiter.answer(LockOutcome::Failed(errno))),
            }
        }
    }

    /// Calls `body` with the owners of a file, without concurrent changes.
    fn with_file<R>(&self, id: LockedFileId, body: impl FnOnce(&mut FileOwners) -> R) -> R {
        let file = self.files().entry(id).or_default().clone();
        let mut owners = file.lock().expect("not poisoned");
        let result = body(&mut owners);
        forget_idle(&mut owners);
        drop(owners);
        self.drop_if_unused(id, file);
        result
    }

    /// Forgets a file without locks and without users.
    fn drop_if_unused(&self, id: LockedFileId, file: Arc<LockedFile>) {
        let mut files = self.files();
        let unused = file.try_lock().is_ok_and(|owners| owners.is_empty());
        drop(file);
        // A thread that uses it has got it from this table.
        if unused && files.get(&id).is_some_and(|file| Arc::strong_count(file) == 1) {
            files.remove(&id);
        }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<LockedFileId, Arc<LockedFile>>> {
        self.files.lock().expect("not poisoned")
    }
}

/// Result of an attempt.
enum LockAttempt {
    /// The owner has no description of the file yet.
    NotOpen,
    /// `None`: it waits.
    Ended(Option<LockOutcome>),
}

impl OwnerLocks {
    fn new(place: WaitPermit, charge: Charge, open_file: Charge, file: OwnedFd) -> OwnerLocks {
        let (ranges, through, waiters) = (LockedRanges::default(), Vec::new(), Arc::default());
        OwnerLocks { file, ranges, through, waiters, charge, _open_file: open_file, _permit: place }
    }

    /// Calls the kernel once, and notes the result. Locks that the owner took in a session that is
    /// over conflict with its own, too: a call of that session may still be executed.
    fn set(&mut self, wanted: WantedRange, through: &Arc<FidLocks>) -> Result<LockStatus, Errno> {
        if self.is_ended() {
            return Ok(match wanted.kind {
                LockKind::Unlock => LockStatus::Success,
                LockKind::Read | LockKind::Write => LockStatus::Blocked,
            });
        }
        let next = self.ranges.with(wanted);
        if next.len() > RANGES_MAX.max(self.ranges.len()) {
            return Err(Errno::NOLCK);
        }
        // An unlock that cuts a range in two is let through: it ends more than it costs.
        let before = self.charge.amount();
        let charged = self.charge.resize(next.len() as u64);
        if wanted.kind != LockKind::Unlock {
            charged?;
        }
        if let Err(error) = sys::ofd_lock(self.file.as_fd(), wanted.to_kernel()) {
            // Less, or what was had a moment ago and may be refused only if others were faster.
            let _ = self.charge.resize(before);
            return match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                Errno::AGAIN | Errno::ACCESS => Ok(LockStatus::Blocked),
                errno => Err(errno),
            };
        }
        self.ranges = next;
        if wanted.kind != LockKind::Unlock && !self.is_locked_by(through) {
            self.through.push(through.clone());
        }
        Ok(LockStatus::Success)
    }

    /// Releases everything if it was locked through this fid.
    fn release(&mut self, through: &Arc<FidLocks>) {
        if self.is_locked_by(through) {
            let all = WantedRange { kind: LockKind::Unlock, start: 0, len: 0 };
            // Should it fail: the description is closed as soon as this owner waits for
            // nothing more, and that gives back whatever it holds.
            let _ = sys::ofd_lock(self.file.as_fd(), all.to_kernel());
            self.ranges = LockedRanges::default();
            let _ = self.charge.resize(0);
            self.through.clear();
        }
    }

    /// Whether some of it was locked in a session that is over.
    fn is_ended(&self) -> bool {
        self.through.iter().any(|fid| fid.is_ended())
    }

    fn is_locked_by(&self, fid: &Arc<FidLocks>) -> bool {
        self.through.iter().any(|through| Arc::ptr_eq(through, fid))
    }
}

/// Closes the descriptions of owners without locks and without waiting requests.
fn forget_idle(owners: &mut FileOwners) {
    owners.retain(|_, held| !held.ranges.is_empty() || held.waiters.load(Ordering::SeqCst) > 0);
}

fn file_id(node: &ExportNode) -> LockedFileId {
    (node.dev, node.ino)
}

/// Opens a description of the file for locks only, as the server itself, since the kernel requires
/// one opened for writing before it grants a write lock.
fn open_for_locks(node: &ExportNode) -> io::Result<OwnedFd> {
    let root = FsCredentials { uid: 0, gid: 0, groups: Arc::from([]), gid_trusted: true };
    credentials::become_user(&root, 0)?;
    node.reopen(OFlags::RDWR).or_else(|_| node.reopen(OFlags::RDONLY))
}

#[cfg(test)]
mod tests;
