//! Byte-range locks that hold between clients, and against programs on the server.
//!
//! An owner is what the client says: (client_id, proc_id). Each owner has one open
//! file description per file, and the kernel decides between descriptions
//! (F_OFD_SETLK), so locks also conflict with those of local programs and, where
//! the file system has them, of other nodes. A mirror of the ranges answers
//! getlock with the owner's name, which the kernel does not know.
//!
//! A blocking lock that must wait becomes a [`Waiter`]: no thread and no slot is
//! held; it is tried again when a lock is given back here, and now and then
//! because a local program may have given one back.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ninep::{LockKind, Tag};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::connection::{Connection, ReplyTo};
use crate::credentials::{self, Credentials};
use crate::export::Node;
use crate::sys::{self, LockRange};

type FileId = (u64, u64);
type OwnerName = (Box<[u8]>, u32);

/// Who holds a lock on which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    file: FileId,
    name: OwnerName,
}

/// A lock as the protocol says it: `len` 0 is "to the end of the file".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) kind: LockKind,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Granted,
    Blocked,
}

/// A blocking Tlock whose reply is held.
pub(crate) struct Waiter {
    pub(crate) to: ReplyTo,
    pub(crate) owner: Owner,
    pub(crate) wanted: Wanted,
}

/// All locks taken through this proxy.
#[derive(Default)]
pub(crate) struct Locks {
    table: Mutex<Table>,
    /// How many wait: looked at far more often than there are any.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Table {
    files: BTreeMap<FileId, BTreeMap<OwnerName, Held>>,
    waiting: Vec<Waiter>,
}

/// What one owner holds on one file.
struct Held {
    file: OwnedFd,
    ranges: Vec<Wanted>,
}

impl Owner {
    pub(crate) fn new(node: &Node, client: &[u8], proc_id: u32) -> Owner {
        Owner { file: (node.dev, node.ino), name: (client.into(), proc_id) }
    }
}

fn kernel_kind(kind: LockKind) -> i16 {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    kind as i16
}

impl Wanted {
    fn end(&self) -> u64 {
        if self.len == 0 { u64::MAX } else { self.start.saturating_add(self.len) }
    }

    fn overlaps(&self, other: &Wanted) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    fn conflicts(&self, held: &Wanted) -> bool {
        self.overlaps(held) && (self.kind == LockKind::Write || held.kind == LockKind::Write)
    }

    fn to_kernel(self) -> LockRange {
        LockRange { kind: kernel_kind(self.kind), start: self.start, len: self.len }
    }

    fn between(kind: LockKind, start: u64, end: u64) -> Wanted {
        Wanted { kind, start, len: if end == u64::MAX { 0 } else { end - start } }
    }
}

impl Locks {
    /// Tries once to take, change or give back a lock. Where it is refused, `waiter`
    /// (if any) waits for it: its reply comes from [`Locks::retry`].
    pub(crate) fn set(
        &self,
        node: &Node,
        owner: &Owner,
        wanted: Wanted,
        waiter: Option<Waiter>,
    ) -> io::Result<Grant> {
        let mut table = self.table.lock().expect("not poisoned");
        let owners = table.files.entry(owner.file).or_default();
        if !owners.contains_key(&owner.name) {
            if wanted.kind == LockKind::Unlock {
                table.forget_if_empty(owner);
                return Ok(Grant::Granted);
            }
            let held = Held { file: open_for_locks(node)?, ranges: Vec::new() };
            owners.insert(owner.name.clone(), held);
        }
        let result = table.attempt(owner, wanted);
        if let (Ok(Grant::Blocked), Some(waiter)) = (&result, waiter) {
            table.waiting.push(waiter);
            self.count(&table);
        }
        table.forget_if_empty(owner);
        result
    }

    /// The first lock of another owner that would refuse `wanted`, with its owner
    /// where it is one of ours.
    pub(crate) fn test(
        &self,
        node: &Node,
        owner: &Owner,
        wanted: Wanted,
    ) -> io::Result<Option<(Wanted, Option<OwnerName>)>> {
        let table = self.table.lock().expect("not poisoned");
        let owners = table.files.get(&owner.file);
        for (name, held) in owners.into_iter().flatten() {
            let conflict = held.ranges.iter().find(|range| wanted.conflicts(range));
            if let (true, Some(range)) = (*name != owner.name, conflict) {
                return Ok(Some((*range, Some(name.clone()))));
            }
        }
        let own = owners.and_then(|owners| owners.get(&owner.name));
        let found = match own {
            Some(held) => sys::ofd_test(held.file.as_fd(), wanted.to_kernel())?,
            None => sys::ofd_test(open_for_locks(node)?.as_fd(), wanted.to_kernel())?,
        };
        Ok(found.map(|range| {
            let read = range.kind == kernel_kind(LockKind::Read);
            let kind = if read { LockKind::Read } else { LockKind::Write };
            (Wanted { kind, start: range.start, len: range.len }, None)
        }))
    }

    /// Gives up waiting: `true` if such a waiter was there.
    pub(crate) fn cancel(&self, connection: &Connection, tag: Tag) -> bool {
        let mut table = self.table.lock().expect("not poisoned");
        let is = |w: &Waiter| std::ptr::eq(&*w.to.connection, connection) && w.to.tag == tag;
        match table.waiting.iter().position(is) {
            Some(at) => drop(table.waiting.remove(at)),
            None => return false,
        }
        self.count(&table);
        true
    }

    /// Gives up all waiting of a connection that is gone or begins anew.
    pub(crate) fn cancel_all(&self, connection: &Connection) {
        let mut table = self.table.lock().expect("not poisoned");
        table.waiting.retain(|w| !std::ptr::eq(&*w.to.connection, connection));
        self.count(&table);
    }

    /// Gives back all that an owner holds on a file, as closing it does.
    pub(crate) fn release(&self, owner: &Owner) {
        let mut table = self.table.lock().expect("not poisoned");
        if let Some(owners) = table.files.get_mut(&owner.file) {
            // Closing the open file description releases its locks.
            owners.remove(&owner.name);
            if owners.is_empty() {
                table.files.remove(&owner.file);
            }
        }
    }

    /// Tries those that wait, oldest first; returns whose reply is due now.
    pub(crate) fn retry(&self) -> Vec<(Waiter, io::Result<()>)> {
        let mut table = self.table.lock().expect("not poisoned");
        let mut due = Vec::new();
        let mut at = 0;
        while at < table.waiting.len() {
            let (owner, wanted) = (table.waiting[at].owner.clone(), table.waiting[at].wanted);
            match table.attempt(&owner, wanted) {
                Ok(Grant::Blocked) => at += 1,
                Ok(Grant::Granted) => due.push((table.waiting.remove(at), Ok(()))),
                Err(error) => due.push((table.waiting.remove(at), Err(error))),
            }
        }
        self.count(&table);
        due
    }

    /// Gives up all waiting; returns who waited.
    pub(crate) fn take_waiting(&self) -> Vec<Waiter> {
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut self.table.lock().expect("not poisoned").waiting)
    }

    /// Whether anybody waits.
    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn count(&self, table: &Table) {
        self.waiting.store(table.waiting.len(), Ordering::Relaxed);
    }
}

impl Table {
    fn attempt(&mut self, owner: &Owner, wanted: Wanted) -> io::Result<Grant> {
        let held = self.files.get_mut(&owner.file).and_then(|owners| owners.get_mut(&owner.name));
        // The owner's fid was clunked while it waited.
        let held = held.ok_or(Errno::BADF)?;
        match sys::ofd_lock(held.file.as_fd(), wanted.to_kernel()) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => return Ok(Grant::Blocked),
                _ => return Err(error),
            },
        }
        held.note(wanted);
        Ok(Grant::Granted)
    }

    /// Closes the description of an owner who holds nothing and waits for nothing.
    fn forget_if_empty(&mut self, owner: &Owner) {
        let Some(owners) = self.files.get_mut(&owner.file) else { return };
        let waits = self.waiting.iter().any(|w| w.owner == *owner);
        if owners.get(&owner.name).is_some_and(|held| held.ranges.is_empty()) && !waits {
            owners.remove(&owner.name);
        }
        if owners.is_empty() {
            self.files.remove(&owner.file);
        }
    }
}

impl Held {
    /// Mirrors what the kernel just did: the new range replaces what it covers.
    fn note(&mut self, new: Wanted) {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 2);
        for old in self.ranges.drain(..) {
            if !old.overlaps(&new) {
                ranges.push(old);
                continue;
            }
            if old.start < new.start {
                ranges.push(Wanted::between(old.kind, old.start, new.start));
            }
            if old.end() > new.end() {
                ranges.push(Wanted::between(old.kind, new.end(), old.end()));
            }
        }
        if new.kind != LockKind::Unlock {
            ranges.push(new);
        }
        self.ranges = ranges;
    }
}

/// A description of the file for locks only, opened as the server itself, since the
/// kernel wants one opened for writing before it grants a write lock.
fn open_for_locks(node: &Node) -> io::Result<OwnedFd> {
    let root = Credentials { uid: 0, gid: 0, groups: Arc::from([]), gid_trusted: true };
    credentials::become_user(&root, 0)?;
    node.reopen(OFlags::RDWR).or_else(|_| node.reopen(OFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(kind: LockKind, start: u64, len: u64) -> Wanted {
        Wanted { kind, start, len }
    }

    fn table_with_file(name: &str) -> (Locks, Node, Owner, Owner) {
        let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let node = Node::new(file.into(), None).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (a, b) = (Owner::new(&node, b"one", 1), Owner::new(&node, b"two", 1));
        (Locks::default(), node, a, b)
    }

    #[test]
    fn owners_conflict_and_getlock_names_the_holder() {
        let (locks, node, a, b) = table_with_file("owners");
        let write = wanted(LockKind::Write, 10, 10);
        assert_eq!(locks.set(&node, &a, write, None).unwrap(), Grant::Granted);
        assert_eq!(
            locks.set(&node, &b, wanted(LockKind::Read, 15, 1), None).unwrap(),
            Grant::Blocked
        );
        let (found, name) = locks.test(&node, &b, wanted(LockKind::Read, 0, 0)).unwrap().unwrap();
        assert_eq!((found, name.unwrap()), (write, (b"one".as_slice().into(), 1)));
        assert_eq!(locks.test(&node, &a, wanted(LockKind::Write, 0, 0)).unwrap(), None);
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends_locked() {
        let (locks, node, a, b) = table_with_file("middle");
        locks.set(&node, &a, wanted(LockKind::Write, 0, 0), None).unwrap();
        locks.set(&node, &a, wanted(LockKind::Unlock, 10, 10), None).unwrap();
        assert_eq!(
            locks.set(&node, &b, wanted(LockKind::Write, 10, 10), None).unwrap(),
            Grant::Granted
        );
        assert_eq!(
            locks.set(&node, &b, wanted(LockKind::Write, 9, 1), None).unwrap(),
            Grant::Blocked
        );
        let conflict = locks.test(&node, &b, wanted(LockKind::Write, 20, 0)).unwrap().unwrap();
        assert_eq!(conflict.0, wanted(LockKind::Write, 20, 0));
    }

    #[test]
    fn nothing_is_remembered_once_all_is_given_back() {
        let (locks, node, a, b) = table_with_file("forget");
        locks.set(&node, &a, wanted(LockKind::Write, 0, 5), None).unwrap();
        locks.set(&node, &b, wanted(LockKind::Write, 0, 5), None).unwrap();
        locks.set(&node, &a, wanted(LockKind::Unlock, 0, 0), None).unwrap();
        locks.set(&node, &b, wanted(LockKind::Unlock, 0, 0), None).unwrap();
        assert!(locks.table.lock().unwrap().files.is_empty());
    }
}
