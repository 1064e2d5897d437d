//! Locks without a socket: what is granted, what waits, and what is forgotten.

use std::os::unix::net::UnixStream;
use std::sync::Weak;

use super::*;
use model::{Nid, Time};
use ninep::{LOCK_BLOCK, LOCK_RECLAIM};

use crate::connection::{ConnectionPeer, TaggedRequest};
use crate::limits::DescriptorLimits;

const GRANTED: Option<LockOutcome> = Some(LockOutcome::Status(LockStatus::Success));
const BLOCKED: Option<LockOutcome> = Some(LockOutcome::Status(LockStatus::Blocked));
const WAITS: Option<LockOutcome> = None;
const ALL: (u64, u64) = (0, 0);

/// One file, one connection with one fid of it, and the locks of a proxy.
struct LockBed {
    locks: LockTable,
    node: ExportNode,
    fid: Arc<FidLocks>,
    connection: Arc<Connection>,
    waiters_max: usize,
    owners_max: usize,
    bounds: Arc<SharedBounds>,
}

fn nameless_file() -> ExportNode {
    let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    ExportNode::new(file, None).unwrap()
}

fn wanted(kind: LockKind, range: (u64, u64)) -> WantedRange {
    WantedRange { kind, start: range.0, len: range.1 }
}

impl LockBed {
    fn new() -> LockBed {
        let (socket, _) = UnixStream::pair().unwrap();
        let peer = ConnectionPeer { nid: model::Nid::local(), uid: None, trusted: false };
        LockBed {
            locks: LockTable::default(),
            node: nameless_file(),
            fid: Arc::default(),
            connection: Arc::new(Connection::new(7, socket.into(), peer, Weak::new())),
            waiters_max: 100,
            owners_max: 100,
            bounds: SharedBounds::new(&DescriptorLimits {
                locks: 90_000,
                open_files: 900,
                ..DescriptorLimits::default()
            }),
        }
    }

    fn owner(&self, proc_id: u32) -> TlockOwner {
        TlockOwner::new(&self.node, b"node", proc_id).unwrap()
    }

    /// A Tlock of process `proc_id`, whose number is its tag too.
    fn ask(
        &self,
        fid: &Arc<FidLocks>,
        proc_id: u32,
        wanted: WantedRange,
        waits: bool,
    ) -> io::Result<Option<LockOutcome>> {
        self.ask_of(&self.node, fid, proc_id, wanted, waits)
    }

    fn ask_of(
        &self,
        node: &ExportNode,
        through: &Arc<FidLocks>,
        proc_id: u32,
        wanted: WantedRange,
        waits: bool,
    ) -> io::Result<Option<LockOutcome>> {
        let flags = if waits { LOCK_BLOCK } else { 0 };
        self.ask_at(node, through, proc_id, wanted, flags, Time::ZERO)
    }

    fn ask_at(
        &self,
        node: &ExportNode,
        through: &Arc<FidLocks>,
        proc_id: u32,
        wanted: WantedRange,
        flags: u32,
        now: Time,
    ) -> io::Result<Option<LockOutcome>> {
        let mut session = self.connection.session.lock().unwrap();
        let to = session.reply_to(&self.connection, Tag(proc_id as u16));
        drop(session);
        let asked = LockCall {
            to: &to,
            node,
            through,
            owner: TlockOwner::new(node, b"node", proc_id).unwrap(),
            wanted,
            waits: flags & LOCK_BLOCK != 0,
            reclaims: flags & LOCK_RECLAIM != 0,
            waiters_max: self.waiters_max,
            owners_max: self.owners_max,
            bounds: &self.bounds,
            holder: Holder { peer: Nid::local(), uid: Some(1) },
            record: &|| None,
        };
        self.locks.set(&asked, now)
    }

    fn set(&self, proc_id: u32, kind: LockKind, range: (u64, u64)) -> Option<LockOutcome> {
        self.ask(&self.fid, proc_id, wanted(kind, range), false).unwrap()
    }

    fn wait(&self, proc_id: u32, kind: LockKind, range: (u64, u64)) -> Option<LockOutcome> {
        self.ask(&self.fid, proc_id, wanted(kind, range), true).unwrap()
    }

    fn test(&self, proc_id: u32, kind: LockKind, range: (u64, u64)) -> Option<(WantedRange, u32)> {
        let found = self.locks.test(&self.node, &self.owner(proc_id), wanted(kind, range));
        found.unwrap().map(|(range, name)| (range, name.unwrap().1))
    }

    fn close(&self, fid: &Arc<FidLocks>) -> Vec<(u16, LockOutcome)> {
        let mut answers = Vec::new();
        self.locks.release(&self.node, fid, &mut |a| answers.push((a.to.tag.0, a.outcome)));
        answers
    }

    fn retry(&self) -> Vec<(u16, LockOutcome)> {
        self.retry_at(Time::ZERO)
    }

    fn retry_at(&self, now: Time) -> Vec<(u16, LockOutcome)> {
        let mut answers = Vec::new();
        self.locks.retry(&self.node, &mut |a| answers.push((a.to.tag.0, a.outcome)), now);
        answers
    }

    fn assert_nothing_is_left(&self) {
        assert!(self.locks.files().is_empty());
        assert!(!self.locks.any_waiting());
        assert_eq!(self.connection.lock_waiters.load(Ordering::SeqCst), 0);
        assert_eq!(self.connection.lock_owners.load(Ordering::SeqCst), 0);
    }
}

use LockKind::{Read, Unlock, Write};

fn success(tag: u16) -> (u16, LockOutcome) {
    (tag, LockOutcome::Status(LockStatus::Success))
}

#[test]
fn owners_conflict_and_getlock_names_the_holder() {
    let bed = LockBed::new();
    assert_eq!(bed.set(1, Write, (10, 10)), GRANTED);
    assert_eq!(bed.set(2, Read, (15, 1)), BLOCKED);
    assert_eq!(bed.test(2, Read, ALL), Some((wanted(Write, (10, 10)), 1)));
    assert_eq!(bed.test(1, Write, ALL), None);
}

#[test]
fn unlocking_the_middle_leaves_both_ends_locked() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    bed.set(1, Unlock, (10, 10));
    assert_eq!(bed.set(2, Write, (10, 10)), GRANTED);
    assert_eq!(bed.set(2, Write, (9, 1)), BLOCKED);
    assert_eq!(bed.test(2, Write, (20, 0)), Some((wanted(Write, (20, 0)), 1)));
}

#[test]
fn an_upgrade_that_is_refused_leaves_the_weaker_lock_in_place() {
    let bed = LockBed::new();
    assert_eq!(bed.set(1, Read, (0, 20)), GRANTED);
    assert_eq!(bed.set(2, Read, (10, 20)), GRANTED);
    assert_eq!(bed.set(1, Write, (0, 20)), BLOCKED);
    // The half that the other has no part in can be had, and weakened again.
    assert_eq!(bed.set(1, Write, (0, 10)), GRANTED);
    assert_eq!(bed.test(2, Read, (0, 40)), Some((wanted(Write, (0, 10)), 1)));
    assert_eq!(bed.set(1, Read, (5, 5)), GRANTED);
    assert_eq!(bed.set(2, Read, (5, 5)), GRANTED);
    assert_eq!(bed.test(2, Write, (5, 40)), Some((wanted(Read, (5, 15)), 1)));
}

#[test]
fn an_upgrade_waits_for_the_other_readers_alone() {
    let bed = LockBed::new();
    bed.set(1, Read, ALL);
    bed.set(2, Read, ALL);
    assert_eq!(bed.wait(1, Write, ALL), WAITS);
    assert_eq!(bed.retry(), []);
    bed.set(2, Unlock, ALL);
    assert_eq!(bed.retry(), [success(1)]);
    assert_eq!(bed.set(2, Read, ALL), BLOCKED);
}

#[test]
fn nothing_is_remembered_once_all_is_given_back() {
    let bed = LockBed::new();
    bed.set(1, Write, (0, 5));
    assert_eq!(bed.set(2, Write, (0, 5)), BLOCKED);
    assert_eq!(bed.wait(3, Write, (0, 5)), WAITS);
    assert!(bed.locks.cancel(&bed.connection, Tag(3)).is_some());
    assert!(bed.locks.cancel(&bed.connection, Tag(3)).is_none());
    assert_eq!(bed.set(4, Unlock, ALL), GRANTED);
    bed.set(1, Unlock, ALL);
    bed.assert_nothing_is_left();
}

#[test]
fn those_that_wait_are_granted_in_the_order_in_which_they_came() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    for (proc_id, kind) in [(2, Read), (3, Write), (4, Read)] {
        assert_eq!(bed.wait(proc_id, kind, ALL), WAITS);
    }
    assert_eq!(bed.retry(), []);
    bed.set(1, Unlock, ALL);
    // The writer has to wait for the first reader, and the second reader need not.
    assert_eq!(bed.retry(), [success(2), success(4)]);
    bed.set(2, Unlock, ALL);
    bed.set(4, Unlock, ALL);
    assert_eq!(bed.wait(5, Write, (9, 1)), GRANTED);
    assert_eq!(bed.retry(), []);
    bed.set(5, Unlock, ALL);
    assert_eq!(bed.retry(), [success(3)]);
    bed.set(3, Unlock, ALL);
    bed.assert_nothing_is_left();
}

#[test]
fn a_lock_that_comes_after_its_fid_was_closed_is_not_taken() {
    let bed = LockBed::new();
    assert_eq!(bed.close(&bed.fid), []);
    let refused = bed.ask(&bed.fid, 1, wanted(Write, ALL), true).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    bed.assert_nothing_is_left();
}

#[test]
fn closing_a_fid_gives_back_what_its_owners_hold_and_ends_its_own_waiting() {
    let bed = LockBed::new();
    let other = Arc::default();
    bed.set(1, Write, (0, 10));
    bed.ask(&other, 1, wanted(Write, (20, 10)), false).unwrap();
    bed.ask(&other, 2, wanted(Write, (40, 10)), false).unwrap();
    assert_eq!(bed.wait(3, Write, (0, 30)), WAITS);
    // This one waits through the other fid and goes on, though its owner has lost the rest.
    assert_eq!(bed.ask(&other, 1, wanted(Write, (40, 1)), true).unwrap(), WAITS);
    assert_eq!(bed.close(&bed.fid), [(3, LockOutcome::Failed(Errno::BADF))]);
    assert_eq!(bed.ask(&other, 4, wanted(Write, (0, 30)), false).unwrap(), GRANTED);
    assert_eq!(bed.retry(), []);
    bed.ask(&other, 2, wanted(Unlock, ALL), false).unwrap();
    assert_eq!(bed.retry(), [success(1)]);
    assert_eq!(bed.close(&other), []);
    bed.assert_nothing_is_left();
}

#[test]
fn no_more_of_a_connection_wait_than_may() {
    let bed = LockBed { waiters_max: 2, ..LockBed::new() };
    bed.set(1, Write, ALL);
    assert_eq!(bed.wait(2, Write, ALL), WAITS);
    assert_eq!(bed.wait(3, Read, ALL), WAITS);
    assert_eq!(bed.wait(4, Read, ALL), BLOCKED);
    assert!(bed.locks.cancel(&bed.connection, Tag(2)).is_some());
    assert_eq!(bed.wait(4, Read, ALL), WAITS);
    assert_eq!(bed.wait(5, Read, ALL), BLOCKED);
    bed.locks.cancel_all(&bed.connection);
    bed.set(1, Unlock, ALL);
    bed.assert_nothing_is_left();
}

#[test]
fn a_flush_that_comes_while_a_lock_is_tried_ends_its_waiting() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    let flushed_meanwhile = |tag, flush| {
        let mut session = bed.connection.session.lock().unwrap();
        session.tags.insert(tag, TaggedRequest { request: None, bytes: 0, is_parked: false });
        session.flushes.push((Tag(tag), Tag(flush)));
    };
    let flushed = LockOutcome::Flushed(vec![Tag(102)]);
    flushed_meanwhile(2, 102);
    assert_eq!(bed.wait(2, Write, ALL), Some(flushed));
    // The same where it has waited before and is tried again.
    assert_eq!(bed.wait(3, Write, ALL), WAITS);
    flushed_meanwhile(3, 103);
    assert_eq!(bed.retry(), [(3, LockOutcome::Flushed(vec![Tag(103)]))]);
    // And where it is granted in time, its own reply comes first, by the usual way.
    assert_eq!(bed.wait(4, Write, ALL), WAITS);
    flushed_meanwhile(4, 104);
    bed.set(1, Unlock, ALL);
    assert_eq!(bed.retry(), [success(4)]);
    let session = bed.connection.session.lock().unwrap();
    assert_eq!(session.flushes, [(Tag(4), Tag(104))]);
    assert_eq!(session.tags.keys().collect::<Vec<_>>(), [&4]);
}

#[test]
fn a_session_that_is_over_has_nobody_waiting() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    assert_eq!(bed.wait(2, Write, ALL), WAITS);
    // As Tversion does it, while a third is on its way: nobody is answered.
    let given_up = || LockOutcome::Flushed(vec![]);
    bed.connection.session.lock().unwrap().epoch += 1;
    assert_eq!(bed.retry(), [(2, given_up())]);
    bed.connection.closed.store(true, Ordering::SeqCst);
    assert_eq!(bed.wait(3, Write, ALL), Some(given_up()));
    assert!(!bed.locks.any_waiting());
    bed.close(&bed.fid);
    bed.assert_nothing_is_left();
}

#[test]
fn what_a_session_that_is_over_holds_is_in_its_owners_own_way_until_it_is_given_back() {
    let bed = LockBed::new();
    let (next, other) = (Arc::default(), Arc::default());
    bed.set(1, Write, (0, 10));
    bed.fid.end();
    // The same process, in a session that it began since.
    let ask = |kind, waits| bed.ask(&next, 1, wanted(kind, (0, 10)), waits).unwrap();
    assert_eq!(ask(Write, false), BLOCKED);
    assert_eq!(bed.test(1, Read, ALL), Some((wanted(Write, (0, 10)), 1)));
    // It has nothing of its own there that it could give back.
    assert_eq!(ask(Unlock, false), GRANTED);
    let others = bed.ask(&other, 2, wanted(Read, (0, 1)), false).unwrap();
    assert_eq!(others, BLOCKED);
    assert_eq!(ask(Write, true), WAITS);
    assert_eq!(bed.retry(), []);
    assert_eq!(bed.close(&bed.fid), []);
    assert_eq!(bed.retry(), [success(1)]);
    // And the end of the first session takes nothing from the second.
    assert_eq!(bed.close(&bed.fid), []);
    assert_eq!(bed.test(2, Write, ALL), Some((wanted(Write, (0, 10)), 1)));
    let late = bed.ask(&bed.fid, 3, wanted(Read, (50, 1)), false).unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::EBADF));
    bed.close(&next);
    bed.assert_nothing_is_left();
}

#[test]
fn at_the_end_of_the_proxy_nobody_waits_any_more() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    assert_eq!(bed.wait(2, Write, ALL), WAITS);
    let told: Vec<_> = bed.locks.end_waiting().into_iter().map(|a| a.outcome).collect();
    assert_eq!(told, [LockOutcome::Status(LockStatus::Blocked)]);
    assert_eq!(bed.wait(3, Write, ALL), BLOCKED);
}

#[test]
fn owners_and_ranges_are_bounded() {
    let bed = LockBed { owners_max: 2, ..LockBed::new() };
    let no_lock = |result: io::Result<_>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOLCK));
    };
    let read = |proc_id, at| bed.ask(&bed.fid, proc_id, wanted(Read, (at, 1)), false);
    bed.set(1, Read, ALL);
    bed.set(2, Read, (0, 1));
    no_lock(read(3, 0));
    bed.set(1, Unlock, ALL);
    assert_eq!(read(3, 0).unwrap(), GRANTED);
    (0..RANGES_MAX as u64).for_each(|i| assert_eq!(read(2, 2 * i).unwrap(), GRANTED));
    no_lock(read(2, 1 << 20));
    // What joins them or gives them back is welcome; what cuts one in two is not.
    assert_eq!(read(2, 1).unwrap(), GRANTED);
    assert_eq!(read(2, 1 << 20).unwrap(), GRANTED);
    no_lock(bed.ask(&bed.fid, 2, wanted(Unlock, (1, 1)), false));
    assert_eq!(bed.set(2, Unlock, ALL), GRANTED);
}

#[test]
fn a_file_that_somebody_is_busy_with_keeps_no_other_waiting() {
    let bed = LockBed::new();
    bed.set(1, Write, ALL);
    assert_eq!(bed.wait(2, Write, ALL), WAITS);
    // A lock of another file, which a local program has for now.
    let (other, fid) = (nameless_file(), Arc::default());
    let local = open_for_locks(&other).unwrap();
    sys::ofd_lock(local.as_fd(), wanted(Write, ALL).to_kernel()).unwrap();
    assert_eq!(bed.ask_of(&other, &fid, 3, wanted(Write, ALL), true).unwrap(), WAITS);
    drop(local);
    // As by a thread that is in a call to the backend.
    let file = bed.locks.files().get(&file_id(&bed.node)).cloned().unwrap();
    let busy = file.lock().unwrap();
    let mut answers = Vec::new();
    bed.locks.retry_all(&mut |a| answers.push((a.to.tag.0, a.outcome)), Time::ZERO);
    assert_eq!(answers, [success(3)]);
    assert!(bed.locks.cancel(&bed.connection, Tag(2)).is_some());
    bed.locks.cancel_all(&bed.connection);
    drop(busy);
    drop(file);
    // The next thread removes the entries of those that are gone.
    bed.locks.release(&other, &fid, &mut |_| panic!("nobody waits"));
    bed.set(1, Unlock, ALL);
    bed.assert_nothing_is_left();
}

/// In a grace that ends at 5 ns.
fn in_grace() -> LockBed {
    LockBed { locks: LockTable::new(Grace::new(Time::from_nanos(5))), ..LockBed::new() }
}

impl LockBed {
    /// Asks for a lock of the whole file; `flags` are those of Tlock.
    fn lock_at(&self, proc_id: u32, flags: u32, ns: u64) -> Option<LockOutcome> {
        let (wanted, now) = (wanted(Write, ALL), Time::from_nanos(ns));
        self.ask_at(&self.node, &self.fid, proc_id, wanted, flags, now).unwrap()
    }
}

#[test]
fn in_the_grace_a_lock_is_taken_again_at_once_and_others_wait_for_its_end() {
    let bed = in_grace();
    assert_eq!(bed.lock_at(1, 0, 0), WAITS);
    assert_eq!(bed.lock_at(2, LOCK_BLOCK, 0), WAITS);
    assert_eq!(bed.lock_at(3, LOCK_RECLAIM, 1), GRANTED);
    // Even the owner itself waits for what it has not had before.
    assert_eq!(bed.lock_at(3, 0, 1), WAITS);
    // A client that reclaims a lock does not wait for it.
    assert_eq!(bed.lock_at(4, LOCK_BLOCK | LOCK_RECLAIM, 4), BLOCKED);
    assert_eq!(bed.retry_at(Time::from_nanos(4)), []);
    let blocked = |tag| (tag, LockOutcome::Status(LockStatus::Blocked));
    assert_eq!(bed.retry_at(Time::from_nanos(5)), [blocked(1), success(3)]);
    assert_eq!(
        bed.lock_at(5, LOCK_BLOCK | LOCK_RECLAIM, 5),
        Some(LockOutcome::Status(LockStatus::Error))
    );
    bed.set(3, Unlock, ALL);
    assert_eq!(bed.retry_at(Time::from_nanos(5)), [success(2)]);
    bed.close(&bed.fid);
    bed.assert_nothing_is_left();
}

#[test]
fn what_waits_for_the_end_of_the_grace_is_given_up_as_any_other_waiting() {
    let bed = LockBed { waiters_max: 2, ..in_grace() };
    assert_eq!(bed.lock_at(1, 0, 0), WAITS);
    assert_eq!(bed.lock_at(2, 0, 0), WAITS);
    assert_eq!(bed.lock_at(3, 0, 0), BLOCKED);
    assert!(bed.locks.cancel(&bed.connection, Tag(1)).is_some());
    // Unlocking never waits.
    assert_eq!(bed.set(1, Unlock, ALL), GRANTED);
    assert_eq!(bed.close(&bed.fid), [(2, LockOutcome::Failed(Errno::BADF))]);
    bed.assert_nothing_is_left();
}
