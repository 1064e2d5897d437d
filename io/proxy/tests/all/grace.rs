//! Locks after a restart: those who had them take them again, and others wait for that.

#![allow(clippy::unwrap_used)]

use ninep::{Fid, LOCK_BLOCK, LOCK_RECLAIM, LockKind, LockStatus, Reply, Request, Tag, open};

use crate::peer::errno::EBADF;
use crate::peer::{P9Client, Served, Setup, until};

const GRANTED: Result<LockStatus, u32> = Ok(LockStatus::Success);
const REFUSED: Result<LockStatus, u32> = Ok(LockStatus::Error);

/// A server that was started again, with a file `f`, and a grace of this length.
fn started_again(name: &str, grace: &str) -> Served {
    let mut served = first_start(name, grace);
    served.start_again();
    served
}

fn first_start(name: &str, grace: &str) -> Served {
    let served = Setup::new(name).top(&format!("lock_grace = \"{grace}\"")).start();
    served.plain_client().make(1, "f");
    served
}

/// A client with `f` open as fid 1.
fn opener(served: &Served) -> P9Client {
    let mut client = served.plain_client();
    client.open_name(1, "f", open::RDWR).unwrap();
    client
}

/// The lock of a byte for process `at`, which has no other.
fn byte(at: u32, flags: u32) -> Request<'static> {
    P9Client::lock_request(1, LockKind::Write, (at.into(), 1), ("node", at), flags)
}

fn lock(client: &mut P9Client, at: u32, flags: u32) -> Result<LockStatus, u32> {
    status(client.call(&byte(at, flags)).reply())
}

fn status(reply: Result<Reply<'_>, u32>) -> Result<LockStatus, u32> {
    match reply? {
        Reply::Lock { status } => Ok(status),
        other => panic!("{other:?}"),
    }
}

/// Sends a request that is not answered.
fn waits(client: &mut P9Client, request: &Request<'_>) -> Tag {
    let tag = client.send(request);
    // The connection goes on: what comes behind it is answered.
    let behind = client.send(&Request::Getattr { fid: Fid(1), mask: 1 });
    assert_eq!(client.next().tag(), behind);
    tag
}

#[test]
fn who_had_a_lock_takes_it_again_while_the_others_wait() {
    let served = started_again("again", "1h");
    let (mut holder, mut other) = (opener(&served), opener(&served));
    let flushed = waits(&mut other, &byte(1, 0));
    let ended = waits(&mut other, &byte(2, LOCK_BLOCK));
    assert_eq!(lock(&mut holder, 1, LOCK_RECLAIM), GRANTED);
    assert_eq!(lock(&mut holder, 2, LOCK_RECLAIM | LOCK_BLOCK), GRANTED);
    // A lock that another has taken again is not waited for by who says to have had it.
    let theirs =
        P9Client::lock_request(1, LockKind::Read, (1, 1), ("node", 9), LOCK_RECLAIM | LOCK_BLOCK);
    assert_eq!(status(other.call(&theirs).reply()), Ok(LockStatus::Blocked));
    let unlock = P9Client::lock_request(1, LockKind::Unlock, (1, 1), ("node", 1), 0);
    assert_eq!(status(holder.call(&unlock).reply()), GRANTED);
    // It is free, and the waiting goes on, until it is given up in one of the usual ways.
    assert_eq!(other.call(&Request::Flush { oldtag: flushed }).reply(), Ok(Reply::Flush));
    other.clunk(1).unwrap();
    assert_eq!(other.wait(ended).reply(), Err(EBADF));
    assert!(!other.readable(0));
    let gone = waits(&mut holder, &byte(3, 0));
    holder.version(1 << 20);
    holder.attach(0, "x", crate::peer::USER).unwrap();
    holder.send_as(gone, &Request::Getattr { fid: Fid(0), mask: 1 });
    assert!(matches!(holder.wait(gone).reply(), Ok(Reply::Getattr(_))));
}

#[test]
fn who_waits_is_answered_when_the_grace_is_over_and_from_then_on_nobody_had_a_lock() {
    let served = started_again("over", "2s");
    let (mut holder, mut other) = (opener(&served), opener(&served));
    // The machine may be so slow that the grace is over by now: the order is the same.
    let (at_once, blocking) = (other.send(&byte(1, 0)), other.send(&byte(2, LOCK_BLOCK)));
    until("nobody had a lock", || {
        let answered = other.readable(0);
        let again = lock(&mut holder, 3, LOCK_RECLAIM);
        assert!(!answered || again == REFUSED, "answered while others take locks again");
        again == REFUSED
    });
    assert_eq!(status(other.wait(at_once).reply()), GRANTED);
    assert_eq!(status(other.wait(blocking).reply()), GRANTED);
    assert_eq!(lock(&mut other, 4, LOCK_RECLAIM | LOCK_BLOCK), REFUSED);
    assert_eq!(lock(&mut other, 4, 0), GRANTED);
}

#[test]
fn without_a_restart_or_a_grace_nothing_waits_and_nobody_had_a_lock() {
    for served in [first_start("fresh", "1h"), started_again("none", "0s")] {
        let mut client = opener(&served);
        assert_eq!(lock(&mut client, 1, LOCK_RECLAIM), REFUSED);
        assert_eq!(lock(&mut client, 1, 0), GRANTED);
        assert_eq!(lock(&mut client, 2, LOCK_BLOCK), GRANTED);
    }
}
