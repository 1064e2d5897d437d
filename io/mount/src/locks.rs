//! The locks that programs hold through this mount, so that they can be taken again where the
//! proxy has forgotten them.
//!
//! ```text
//!   granted ─► set: owner's range replaced, cut or joined ─► all: taken again
//!   closed ─► begin_release: no lock of the inode is asked for ─► sent: set, kind None
//!                └─ answered: PendingRelease ends ─► the waiters ask
//! ```
//!
//! The kernel names an owner by an address, which it soon reuses. So no lock of an inode is
//! requested while one there is being released, since the proxy would take that one for the new
//! one's.
//!
//! An owner is named to the proxy by the mount's own name and the kernel's number. flock and
//! fcntl locks of one process have different names, so they do not meet here, as on a local
//! file system; with those of other mounts they do meet, since both are fcntl locks there.
//! For the same reason an exclusive flock lock needs a file that is open for writing (EBADF
//! otherwise), as on NFS.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fuse::{InodeId, Lock, LockKind, LockOwner};
use ninep::dialect::HandleList;
use ninep::{LOCK_BLOCK, Request};
use rustc_hash::FxHashMap;

use crate::files::OpenFile;
use crate::session::{CallSpec, lock};

/// All locks of the mount.
#[derive(Debug)]
pub(crate) struct MountLocks {
    /// `HOST:random`.
    client: String,
    granted: Mutex<FxHashMap<InodeId, Vec<GrantedLock>>>,
    /// Whether there are any, readable without the lock.
    any: AtomicBool,
    releasing: Arc<PendingReleases>,
}

/// Locks that are being given back.
#[derive(Debug, Default)]
struct PendingReleases {
    /// Number of entries, readable without the lock.
    count: AtomicUsize,
    inodes: Mutex<FxHashMap<InodeId, Giving>>,
}

/// Locks of an inode that are being released, and the waiters for their end.
#[derive(Default)]
struct Giving {
    count: usize,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

/// Guard of the release of some locks of an inode. It is dropped where no channel is locked:
/// waiters continue then.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    all: Arc<PendingReleases>,
    inode: InodeId,
}

/// The owner of a lock, by kind: flock and fcntl locks do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountLockOwner {
    pub(crate) owner: LockOwner,
    pub(crate) flock: bool,
}

/// A lock that was granted.
#[derive(Clone, Debug)]
pub(crate) struct GrantedLock {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) owner: MountLockOwner,
    pub(crate) lock: Lock,
}

impl MountLocks {
    /// None. `client` is this mount's name, which no other has.
    pub(crate) fn new(client: String) -> MountLocks {
        let (held, any, giving_back) = Default::default();
        MountLocks { client, granted: held, any, releasing: giving_back }
    }

    /// The message that takes a lock or gives it back, with the protocol's flags.
    pub(crate) fn lock_call(
        &self,
        file: &OpenFile,
        owner: MountLockOwner,
        lock: &Lock,
        flags: u32,
    ) -> CallSpec {
        let client_id = self.name(owner);
        let request = Request::Lock {
            fid: file.fid,
            kind: kind_of(lock.kind),
            flags,
            start: lock.start,
            length: length_of(lock),
            proc_id: 0,
            client_id: client_id.as_bytes(),
        };
        // What waits for a lock must not fill a window that the unlock needs.
        let ask = CallSpec::new(HandleList::NONE, request).freely();
        let ask = if lock.kind == LockKind::None { ask } else { ask.locking() };
        if flags & LOCK_BLOCK != 0 { ask.patiently() } else { ask }
    }

    /// The message that asks which lock is in the way.
    pub(crate) fn test(&self, file: &OpenFile, owner: MountLockOwner, lock: &Lock) -> CallSpec {
        let client_id = self.name(owner);
        let request = Request::Getlock {
            fid: file.fid,
            kind: kind_of(lock.kind),
            start: lock.start,
            length: length_of(lock),
            proc_id: 0,
            client_id: client_id.as_bytes(),
        };
        CallSpec::new(HandleList::NONE, request)
    }

    /// A lock was granted, or with kind `None` given back.
    pub(crate) fn set(&self, file: &Arc<OpenFile>, owner: MountLockOwner, range: Lock) {
        let mut all = lock(&self.granted);
        let held = all.entry(file.node.id).or_default();
        let mut left = Vec::with_capacity(held.len() + 1);
        for one in held.drain(..) {
            match one.owner == owner {
                true => left.extend(without(one, &range)),
                false => left.push(one),
            }
        }
        if range.kind != LockKind::None {
            left.push(GrantedLock { file: file.clone(), owner, lock: range });
        }
        match left.is_empty() {
            true => drop(all.remove(&file.node.id)),
            false => *held = left,
        }
        self.any.store(!all.is_empty(), Ordering::SeqCst);
    }

    /// Locks of an inode are about to be given back. To be kept until the proxy has answered.
    pub(crate) fn begin_release(&self, inode: InodeId) -> PendingRelease {
        self.releasing.count.fetch_add(1, Ordering::SeqCst);
        lock(&self.releasing.inodes).entry(inode).or_default().count += 1;
        PendingRelease { all: self.releasing.clone(), inode }
    }

    /// Whether locks of an inode are being given back.
    pub(crate) fn is_releasing(&self, inode: InodeId) -> bool {
        let any = self.releasing.count.load(Ordering::SeqCst) > 0;
        any && lock(&self.releasing.inodes).contains_key(&inode)
    }

    /// Keeps a waiter until no lock of an inode is being released; returns the waiter if it need
    /// not wait.
    pub(crate) fn wait_for_release<F: FnOnce() + Send + 'static>(
        &self,
        inode: InodeId,
        then: F,
    ) -> Option<F> {
        match lock(&self.releasing.inodes).get_mut(&inode) {
            Some(giving) => {
                giving.then.push(Box::new(then));
                None
            }
            None => Some(then),
        }
    }

    /// An open file ends, and with it what was locked by it. Whether there was anything.
    pub(crate) fn close(&self, file: &Arc<OpenFile>) -> bool {
        let mut all = lock(&self.granted);
        let Some(held) = all.get_mut(&file.node.id) else { return false };
        let before = held.len();
        held.retain(|one| !Arc::ptr_eq(&one.file, file));
        let after = held.len();
        if after == 0 {
            all.remove(&file.node.id);
        }
        self.any.store(!all.is_empty(), Ordering::SeqCst);
        after < before
    }

    /// Whether anything is locked by an open file.
    pub(crate) fn any_by(&self, file: &Arc<OpenFile>) -> bool {
        let all = lock(&self.granted);
        let held = all.get(&file.node.id);
        held.is_some_and(|held| held.iter().any(|one| Arc::ptr_eq(&one.file, file)))
    }

    /// Whether the proxy of a session may have locks of this mount.
    pub(crate) fn any_at(&self, home: usize) -> bool {
        !self.all_at(home).is_empty() || self.releasing.count.load(Ordering::SeqCst) > 0
    }

    /// Whether this mount has any locks.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Whether an owner has locks of this kind on the inode.
    pub(crate) fn has(&self, inode: InodeId, owner: MountLockOwner) -> bool {
        let all = lock(&self.granted);
        all.get(&inode).is_some_and(|held| held.iter().any(|one| one.owner == owner))
    }

    /// Returns the process that holds a lock of this mount, by the name that the proxy knows.
    pub(crate) fn process(&self, inode: InodeId, client_id: &[u8]) -> Option<u32> {
        let all = lock(&self.granted);
        let held = all.get(&inode)?;
        let found = held.iter().find(|one| self.name(one.owner).as_bytes() == client_id);
        found.map(|one| one.lock.process)
    }

    /// All that are held at the proxy of one session.
    pub(crate) fn all_at(&self, home: usize) -> Vec<GrantedLock> {
        let all = lock(&self.granted);
        let held = all.values().flatten().filter(|one| one.file.payer.home == home);
        held.cloned().collect()
    }

    fn name(&self, MountLockOwner { owner, flock }: MountLockOwner) -> String {
        let kind = if flock { "flock" } else { "fcntl" };
        format!("{}:{kind}:{:x}", self.client, owner.0)
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        let mut inodes = lock(&self.all.inodes);
        let giving = inodes.get_mut(&self.inode).expect("it is counted");
        giving.count -= 1;
        let over = (giving.count == 0).then(|| inodes.remove(&self.inode)).flatten();
        drop(inodes);
        self.all.count.fetch_sub(1, Ordering::SeqCst);
        over.into_iter().flat_map(|giving| giving.then).for_each(|then| then());
    }
}

impl std::fmt::Debug for Giving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Giving({}, {} wait)", self.count, self.then.len())
    }
}

/// All of a file, as unlocking at close names it.
pub(crate) const WHOLE: Lock = Lock { kind: LockKind::None, start: 0, end: END, process: 0 };

/// The kernel's value for "to the end".
const END: u64 = i64::MAX as u64;

/// Returns the rest of a lock when `range` is removed from it.
fn without(held: GrantedLock, range: &Lock) -> Vec<GrantedLock> {
    let Lock { start, end, .. } = held.lock;
    let part = |start, end| GrantedLock { lock: Lock { start, end, ..held.lock }, ..held.clone() };
    if range.end < start || end < range.start {
        return vec![held];
    }
    let mut left = Vec::new();
    if start < range.start {
        left.push(part(start, range.start - 1));
    }
    if range.end < end {
        left.push(part(range.end + 1, end));
    }
    left
}

fn kind_of(kind: LockKind) -> ninep::LockKind {
    match kind {
        LockKind::Read => ninep::LockKind::Read,
        LockKind::Write => ninep::LockKind::Write,
        LockKind::None => ninep::LockKind::Unlock,
    }
}

/// The length by which the protocol names a range; 0 is to the end.
fn length_of(lock: &Lock) -> u64 {
    if lock.end >= END { 0 } else { lock.end - lock.start + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::OpenFiles;
    use crate::nodes::Nodes;
    use crate::session::SessionIdentity;
    use std::time::Duration;

    const A: MountLockOwner = MountLockOwner { owner: LockOwner(1), flock: false };
    const B: MountLockOwner = MountLockOwner { owner: LockOwner(1), flock: true };

    fn file() -> Arc<OpenFile> {
        let (nodes, files) = (Nodes::new(b"root", Duration::ZERO), OpenFiles::default());
        let node = nodes.lookup(b"file", &ninep::Attributes::default());
        files.opened(files.reserve().unwrap(), node, SessionIdentity::known(1, 1, 1), 2)
    }

    fn range(kind: LockKind, start: u64, end: u64) -> Lock {
        Lock { kind, start, end, process: 7 }
    }

    fn ranges(locks: &MountLocks, owner: MountLockOwner) -> Vec<(LockKind, u64, u64)> {
        let of = |held: &GrantedLock| (held.lock.kind, held.lock.start, held.lock.end);
        let held = locks.all_at(0);
        let mut all: Vec<_> = held.iter().filter(|one| one.owner == owner).map(of).collect();
        all.sort_by_key(|(_, start, _)| *start);
        all
    }

    #[test]
    fn a_new_lock_replaces_what_it_covers_of_its_owners_alone() {
        use LockKind::{None, Read, Write};
        let (locks, file) = (MountLocks::new("here".into()), file());
        locks.set(&file, A, range(Write, 0, 99));
        locks.set(&file, B, range(Write, 0, END));
        locks.set(&file, A, range(Read, 40, 59));
        assert_eq!(ranges(&locks, A), [(Write, 0, 39), (Read, 40, 59), (Write, 60, 99)]);
        locks.set(&file, A, range(None, 50, END));
        assert_eq!(ranges(&locks, A), [(Write, 0, 39), (Read, 40, 49)]);
        assert!(locks.has(file.node.id, B));
        assert_eq!(locks.process(file.node.id, locks.name(A).as_bytes()), Some(7));
        locks.set(&file, B, WHOLE);
        assert!(!locks.has(file.node.id, B) && locks.any_by(&file));
        assert!(locks.close(&file) && !locks.close(&file));
        assert!(locks.all_at(0).is_empty() && !locks.has(file.node.id, A) && !locks.any());
    }

    #[test]
    fn nobody_asks_for_a_lock_of_an_inode_while_one_is_being_given_back_there() {
        let (locks, one, other) = (MountLocks::new("here".into()), InodeId(7), InodeId(8));
        let asked = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let asked = asked.clone();
            move || {
                asked.fetch_add(1, Ordering::SeqCst);
            }
        };
        assert!(locks.wait_for_release(one, ask()).is_some());
        let giving = [locks.begin_release(one), locks.begin_release(one)];
        assert!(locks.any_at(0), "the proxy may still have it");
        assert!(
            locks.wait_for_release(one, ask()).is_none()
                && locks.wait_for_release(other, ask()).is_some()
        );
        let [first, second] = giving;
        drop(first);
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(!locks.any_at(0) && locks.wait_for_release(one, ask()).is_some());
    }

    #[test]
    fn a_range_to_the_end_has_length_0() {
        assert_eq!(length_of(&range(LockKind::Read, 7, END)), 0);
        assert_eq!(length_of(&range(LockKind::Read, 7, 7)), 1);
    }
}
