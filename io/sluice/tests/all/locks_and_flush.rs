//! What waits: byte-range locks between clients, and requests that are taken back.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;

use ninep::open;
use ninep::{Fid, LOCK_BLOCK, LockKind, LockStatus, NOTAG, Reply, Request, Tag};
use rustix::process::Signal;

use crate::common::errno::*;
use crate::common::{HangingOpens, P9Client, Proxy, Setup, names};

/// A thousand bytes may be written, and the next ones a quarter of an hour later.
const NO_SECOND_WRITE: &str = "[[rule]]\nname = \"slow\"\nlimit = { write = \"1B/s\" }\n";

/// A client with a file `f` of a thousand bytes as fid 1, whose next write has to wait.
fn writer(proxy: &Proxy) -> P9Client {
    let mut client = proxy.client();
    client.make(1, "f");
    assert_eq!(client.write(1, 0, &[b'.'; 1000]), Ok(1000));
    client
}

fn write(data: &[u8]) -> Request<'_> {
    Request::Write { fid: Fid(1), offset: 0, data }
}

// ---- locks ----

#[test]
fn locks_conflict_between_clients_and_between_processes_of_one() {
    let proxy = Proxy::plain("locks");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    let (read, write, unlock) = (LockKind::Read, LockKind::Write, LockKind::Unlock);
    let (granted, blocked) = (Ok(LockStatus::Success), Ok(LockStatus::Blocked));
    assert_eq!(a.lock(1, write, (0, 10), ("a", 1)), granted);
    assert_eq!(a.lock(1, write, (5, 10), ("a", 1)), granted);
    assert_eq!(b.lock(1, read, (9, 1), ("b", 1)), blocked);
    assert_eq!(b.lock(1, read, (15, 1), ("b", 1)), granted);
    assert_eq!(a.lock(1, read, (0, 1), ("a", 2)), blocked);
    assert_eq!(a.lock(1, write, (15, 0), ("a", 2)), blocked);
    assert_eq!(a.lock(1, read, (15, 0), ("a", 2)), granted);
    assert_eq!(a.lock(1, unlock, (0, 8), ("a", 1)), granted);
    assert_eq!(b.lock(1, write, (0, 8), ("b", 1)), granted);
    assert_eq!(b.lock(1, write, (8, 1), ("b", 1)), blocked);
    // The end of a's connection gives back what a's processes hold.
    drop(a);
    crate::common::until("the locks are given back", || {
        b.lock(1, write, (0, 0), ("b", 1)) == Ok(LockStatus::Success)
    });
}

#[test]
fn clunk_gives_back_the_locks_taken_through_a_fid() {
    let proxy = Proxy::plain("lockclunk");
    let mut a = proxy.client();
    a.make(1, "f");
    a.open_name(2, "f", open::RDWR).unwrap();
    let write = LockKind::Write;
    assert_eq!(a.lock(1, write, (0, 0), ("a", 1)), Ok(LockStatus::Success));
    assert_eq!(a.lock(2, write, (0, 0), ("a", 2)), Ok(LockStatus::Blocked));
    a.clunk(1).unwrap();
    assert_eq!(a.lock(2, write, (0, 0), ("a", 2)), Ok(LockStatus::Success));
    a.open_name(3, "f", open::RDONLY).unwrap();
    assert_eq!(a.lock(3, write, (0, 0), ("a", 2)), Err(EBADF));
}

#[test]
fn getlock_names_the_holder_and_its_range() {
    let proxy = Proxy::plain("getlock");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    a.lock(1, LockKind::Read, (10, 0), ("node-a", 77)).unwrap();
    let ask = |kind, start| Request::Getlock {
        fid: Fid(1),
        kind,
        start,
        length: 5,
        proc_id: 5,
        client_id: b"node-b",
    };
    let held = Reply::Getlock {
        kind: LockKind::Read,
        start: 10,
        length: 0,
        proc_id: 77,
        client_id: b"node-a",
    };
    let free = |start| Reply::Getlock {
        kind: LockKind::Unlock,
        start,
        length: 5,
        proc_id: 5,
        client_id: b"node-b",
    };
    assert_eq!(b.call(&ask(LockKind::Write, 8)).reply(), Ok(held));
    assert_eq!(b.call(&ask(LockKind::Unlock, 1 << 40)).reply(), Ok(held));
    assert_eq!(b.call(&ask(LockKind::Read, 8)).reply(), Ok(free(8)));
    assert_eq!(b.call(&ask(LockKind::Write, 0)).reply(), Ok(free(0)));
}

#[test]
fn a_blocking_lock_is_answered_when_it_is_granted() {
    let proxy = Proxy::plain("blocking");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    let (write, unlock, all) = (LockKind::Write, LockKind::Unlock, (0, 0));
    a.lock(1, write, all, ("a", 1)).unwrap();
    let waits = b.send(&P9Client::lock_request(1, write, all, ("b", 1), LOCK_BLOCK));
    // The connection goes on meanwhile.
    b.stat(1).unwrap();
    assert!(!b.readable(100));
    assert_eq!(a.lock(1, unlock, all, ("a", 1)), Ok(LockStatus::Success));
    assert_eq!(b.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
    // Now a waits, and is flushed: no reply, and b's unlock grants nothing to it.
    let waits = a.send(&P9Client::lock_request(1, write, all, ("a", 1), LOCK_BLOCK));
    a.stat(1).unwrap();
    let flush = a.send(&Request::Flush { oldtag: waits });
    assert_eq!(a.next().tag(), flush);
    b.lock(1, unlock, all, ("b", 1)).unwrap();
    let mut c = proxy.client();
    c.open_name(1, "f", open::RDWR).unwrap();
    assert_eq!(c.lock(1, write, all, ("c", 1)), Ok(LockStatus::Success));
    assert!(!a.readable(0));
}

#[test]
fn a_blocking_lock_waits_for_a_program_of_the_server_too() {
    let proxy = Proxy::plain("locallock");
    let mut a = proxy.client();
    a.make(1, "f");
    let local = fs::OpenOptions::new().write(true).open(proxy.data().join("f")).unwrap();
    // v9fs maps flock to record locks, and so does this: fcntl locks of this process.
    rustix::fs::fcntl_lock(&local, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let write = LockKind::Write;
    assert_eq!(a.lock(1, write, (0, 0), ("a", 1)), Ok(LockStatus::Blocked));
    let waits = a.send(&P9Client::lock_request(1, write, (0, 0), ("a", 1), LOCK_BLOCK));
    a.stat(1).unwrap();
    drop(local);
    assert_eq!(a.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
}

#[test]
fn part_of_a_lock_can_be_given_back_or_made_weaker_and_those_that_wait_for_it_get_it() {
    let proxy = Proxy::plain("lockparts");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    let (read, write, unlock) = (LockKind::Read, LockKind::Write, LockKind::Unlock);
    let granted = Ok(Reply::Lock { status: LockStatus::Success });
    a.lock(1, write, (0, 0), ("a", 1)).unwrap();
    let mut wait = |kind, range, proc| {
        b.send(&P9Client::lock_request(1, kind, range, ("b", proc), LOCK_BLOCK))
    };
    let (middle, shared, all) =
        (wait(write, (10, 10), 1), wait(read, (50, 10), 2), wait(write, (0, 0), 3));
    b.stat(0).unwrap();
    a.lock(1, unlock, (10, 10), ("a", 1)).unwrap();
    assert_eq!(b.wait(middle).reply(), granted);
    a.lock(1, read, (40, 30), ("a", 1)).unwrap();
    assert_eq!(b.wait(shared).reply(), granted);
    // A reader who wants to write waits for the other readers.
    let stronger = a.send(&P9Client::lock_request(1, write, (45, 10), ("a", 1), LOCK_BLOCK));
    a.stat(0).unwrap();
    b.lock(1, unlock, (0, 0), ("b", 2)).unwrap();
    assert_eq!(a.wait(stronger).reply(), granted);
    a.lock(1, unlock, (0, 0), ("a", 1)).unwrap();
    assert!(!b.readable(50));
    b.lock(1, unlock, (0, 0), ("b", 1)).unwrap();
    assert_eq!(b.wait(all).reply(), granted);
}

#[test]
fn a_fid_that_is_clunked_ends_its_own_waiting_and_no_other() {
    let proxy = Proxy::plain("lockclunkwait");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    b.open_name(2, "f", open::RDWR).unwrap();
    let write = LockKind::Write;
    a.lock(1, write, (0, 10), ("a", 1)).unwrap();
    b.lock(1, write, (20, 10), ("b", 1)).unwrap();
    let mut wait = |fid| {
        let tag = b.send(&P9Client::lock_request(fid, write, (0, 10), ("b", 1), LOCK_BLOCK));
        b.stat(0).unwrap();
        tag
    };
    // Both are of the process that closes one of its two descriptors.
    let (ends, goes_on) = (wait(1), wait(2));
    b.clunk(1).unwrap();
    assert_eq!(b.wait(ends).reply(), Err(EBADF));
    assert_eq!(a.lock(1, write, (20, 10), ("a", 1)), Ok(LockStatus::Success));
    assert!(!b.readable(100));
    a.clunk(1).unwrap();
    assert_eq!(b.wait(goes_on).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
}

#[test]
fn a_client_that_is_gone_or_begins_anew_holds_nothing_and_waits_for_nothing() {
    let proxy = Proxy::plain("lockgone");
    let mut a = proxy.client();
    a.make(1, "f");
    let (write, all) = (LockKind::Write, (0, 0));
    for gone in [true, false] {
        let (mut b, mut c) = (proxy.client(), proxy.client());
        a.lock(1, write, all, ("a", 1)).unwrap();
        for client in [&mut b, &mut c] {
            client.open_name(1, "f", open::RDWR).unwrap();
        }
        b.lock(1, LockKind::Unlock, all, ("b", 1)).unwrap();
        b.send(&P9Client::lock_request(1, write, all, ("b", 1), LOCK_BLOCK));
        b.stat(0).unwrap();
        let waits = c.send(&P9Client::lock_request(1, write, all, ("c", 1), LOCK_BLOCK));
        c.stat(0).unwrap();
        let before = proxy.sockets();
        let kept = if gone {
            drop(b);
            crate::common::until("it is closed", || proxy.sockets() < before);
            None
        } else {
            b.version(65_536);
            Some(b)
        };
        // It came first, and is passed over.
        a.lock(1, LockKind::Unlock, all, ("a", 1)).unwrap();
        assert_eq!(c.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
        assert!(kept.is_none_or(|b| !b.readable(0)));
        // Who waits for a holder that goes gets it then.
        let waits = a.send(&P9Client::lock_request(1, write, all, ("a", 1), LOCK_BLOCK));
        a.stat(0).unwrap();
        if gone {
            drop(c);
        } else {
            c.version(65_536);
        }
        assert_eq!(a.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
    }
}

/// The server opens a file once for each owner of a lock, and that may hang.
#[test]
fn an_open_that_hangs_holds_up_no_other_lock_and_can_be_flushed() {
    let proxy = Proxy::plain("lockhang");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let (read, write, unlock) = (LockKind::Read, LockKind::Write, LockKind::Unlock);
    let (granted, blocked) = (Ok(LockStatus::Success), Ok(LockStatus::Blocked));
    let all = (0, 0);
    for (fid, name) in [(1, "f"), (2, "g")] {
        a.make(fid, name);
        b.open_name(fid, name, open::RDWR).unwrap();
        assert_eq!(a.lock(fid, write, all, ("a", 1)), granted);
    }
    let Some(mut opens) = HangingOpens::of(&proxy.data().join("f")) else { return };
    let stuck = b.send(&P9Client::lock_request(1, write, all, ("b", 1), LOCK_BLOCK));
    crate::common::until("the open hangs", || opens.count() == 1);
    // The other file's locks, and those who are known with this one.
    assert_eq!(b.lock(2, write, all, ("b", 1)), blocked);
    let waits = b.send(&P9Client::lock_request(2, write, all, ("b", 1), LOCK_BLOCK));
    b.stat(0).unwrap();
    assert_eq!(a.lock(2, unlock, all, ("a", 1)), granted);
    assert_eq!(b.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Success }));
    assert_eq!(a.lock(1, read, (10, 10), ("a", 1)), granted);
    let ask = P9Client::lock_request(2, write, all, ("a", 1), LOCK_BLOCK);
    let waits = a.send(&ask);
    a.stat(0).unwrap();
    assert_eq!(a.call(&Request::Flush { oldtag: waits }).reply(), Ok(Reply::Flush));
    // What hangs is being executed: its flush is answered when that is known.
    let flush = b.send(&Request::Flush { oldtag: stuck });
    b.stat(0).unwrap();
    assert!(!b.readable(50));
    assert_eq!(opens.count(), 1);
    drop(opens);
    // It would have to wait, so it is gone, and never answered.
    assert_eq!(b.next().tag(), flush);
    assert_eq!(a.lock(1, unlock, all, ("a", 1)), granted);
    assert_eq!(a.lock(1, write, all, ("a", 2)), granted);
    assert!(!b.readable(0));
}

#[test]
fn a_lock_that_was_being_taken_when_its_client_went_is_not_kept() {
    let proxy = Proxy::plain("lockleft");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    let Some(mut opens) = HangingOpens::of(&proxy.data().join("f")) else { return };
    let before = proxy.sockets();
    b.send(&P9Client::lock_request(1, LockKind::Write, (0, 0), ("b", 1), 0));
    crate::common::until("the open hangs", || opens.count() == 1);
    // A shutdown, for a socket whose last use is in a call that hangs is not closed yet.
    rustix::net::shutdown(b.fd(), rustix::net::Shutdown::Write).unwrap();
    b.expect_closed();
    drop(opens);
    crate::common::until("the call has ended", || proxy.sockets() < before);
    assert_eq!(a.lock(1, LockKind::Write, (0, 0), ("a", 1)), Ok(LockStatus::Success));
}

// ---- flush ----

#[test]
fn tflush_takes_queued_requests_out_and_they_never_happen() {
    let proxy = Setup::new("flush").rules(NO_SECOND_WRITE).start();
    let mut client = writer(&proxy);
    let queued = client.send(&write(b"queued"));
    let flush = client.send(&Request::Flush { oldtag: queued });
    assert_eq!(client.next().tag(), flush);
    // The same in one piece: request and flush arrive together.
    let mut bytes = Vec::new();
    write(b"together").encode(Tag(1001), &mut bytes);
    Request::Flush { oldtag: Tag(1001) }.encode(Tag(1002), &mut bytes);
    client.send_bytes(&bytes);
    assert_eq!(client.next().tag(), Tag(1002));
    // The tag can be used again, and what follows is not held up by the flushed.
    client.send_as(Tag(1001), &write(b"last"));
    client.stat(0).unwrap();
    fs::write(proxy.dir.join("rules.toml"), "").unwrap();
    proxy.signal(Signal::HUP);
    assert!(client.wait(Tag(1001)).is_ok());
    let content = fs::read(proxy.data().join("f")).unwrap();
    assert_eq!((&content[..4], &content[4..]), (&b"last"[..], &[b'.'; 996][..]));
}

#[test]
fn flushes_of_nothing_of_themselves_and_of_each_other_are_answered() {
    let proxy = Setup::new("flushes").rules(NO_SECOND_WRITE).start();
    let mut client = proxy.client();
    for old in [Tag(4000), NOTAG] {
        let frame = client.call(&Request::Flush { oldtag: old });
        assert_eq!(frame.reply(), Ok(Reply::Flush));
    }
    client.send_as(Tag(7), &Request::Flush { oldtag: Tag(7) });
    assert_eq!(client.wait(Tag(7)).reply(), Ok(Reply::Flush));
    let mut client = writer(&proxy);
    let mut bytes = Vec::new();
    write(b"a").encode(Tag(20), &mut bytes);
    Request::Flush { oldtag: Tag(20) }.encode(Tag(21), &mut bytes);
    Request::Flush { oldtag: Tag(20) }.encode(Tag(22), &mut bytes);
    Request::Flush { oldtag: Tag(21) }.encode(Tag(23), &mut bytes);
    client.send_bytes(&bytes);
    let order: Vec<_> = (0..3).map(|_| client.next().tag().0).collect();
    assert_eq!(order, [21, 22, 23]);
    assert_eq!(fs::read(proxy.data().join("f")).unwrap(), [b'.'; 1000]);
}

#[test]
fn a_tag_that_is_in_use_ends_the_connection() {
    let proxy = Setup::new("tag").rules(NO_SECOND_WRITE).start();
    let mut client = writer(&proxy);
    client.send_as(Tag(1), &write(b"a"));
    client.send_as(Tag(1), &write(b"a"));
    client.expect_closed();
}

#[test]
fn many_requests_in_flight_are_each_answered_once() {
    let proxy = Proxy::plain("flight");
    let mut client = proxy.client();
    client.make(1, "f");
    let data: Vec<u8> = (0..1u32 << 20).map(|i| (i % 249) as u8).collect();
    client.write(1, 0, &data[..1 << 19]).unwrap();
    client.write(1, 1 << 19, &data[1 << 19..]).unwrap();
    let mut asked = Vec::new();
    for i in 0..800u32 {
        // Short ones are copied and long ones go through pipes: both, mixed.
        let (offset, count) = (u64::from(i) * 1000, if i % 3 == 0 { 40_000 } else { 500 });
        asked.push((client.send(&Request::Read { fid: Fid(1), offset, count }), offset, count));
    }
    let walked =
        names(&["f"], |names| client.send(&Request::Walk { fid: Fid(0), newfid: Fid(2), names }));
    for (tag, offset, count) in asked {
        let (start, frame) = (offset as usize, client.wait(tag));
        let expected = &data[start..data.len().min(start + count as usize)];
        assert_eq!(frame.reply(), Ok(Reply::Read { data: expected }));
    }
    assert!(client.wait(walked).is_ok());
}
