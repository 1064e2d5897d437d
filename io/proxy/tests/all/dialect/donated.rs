//! Writes that another identity waits for: in whose class they go, and what is refused.

use std::fs;

use ninep::dialect::{ExtRequest, HandleList, WRITE_DONATED};
use ninep::{Fid, Tag};

use crate::peer::errno::*;
use crate::peer::{IDENTITY, P9Channel, Served, Setup, USER};

const RULES: &str =
    "[[rule]]\nname = \"slow\"\nmatch = \"jobid={slow}\"\nlimit = { write = \"1B/s\" }\n";
/// The identity that waits.
const QUICK: u32 = 2;

/// A slow job's open file 1, in debt for days, and a quick identity beside it.
fn held_up(name: &str) -> (Served, P9Channel) {
    let served = Setup::new(name).rules(RULES).start();
    let mut client = served.client_of("x", USER, "slow");
    client.create(1, "f");
    client.write(1, 0, &[b'-'; 100_000]).unwrap();
    client.identify(QUICK, USER, "quick").unwrap();
    (served, client)
}

fn write(flags: u32, offset: u64) -> ExtRequest<'static> {
    ExtRequest::Write { fid: Fid(1), offset, flags, data: b"data" }
}

fn donate(client: &mut P9Channel, identity: u32, fid: u32, oldtag: Tag) -> Result<(), u32> {
    let before = std::mem::replace(&mut client.identity, identity);
    let donated =
        client.call(HandleList::NONE, ExtRequest::Donate { fid: Fid(fid), oldtag }).done();
    client.identity = before;
    donated
}

#[test]
fn a_queued_write_goes_as_who_waits_for_it_and_others_stay() {
    let (served, mut client) = held_up("donated");
    let [first, second] = [4, 8].map(|offset| client.send(HandleList::NONE, write(0, offset)));
    client.ping();
    assert!(!client.came(first) && !client.came(second));
    donate(&mut client, QUICK, 1, second).unwrap();
    client.wait(second).done().unwrap();
    client.ping();
    assert!(!client.came(first), "nobody waits for it");
    assert_eq!(fs::read(served.data().join("f")).unwrap()[..12], *b"--------data");
    // The slow job's own other identity pays at the same limit: it is no sooner there.
    client.identify(3, USER, "slow").unwrap();
    donate(&mut client, 3, 1, first).unwrap();
    client.ping();
    assert!(!client.came(first));
    // It can be taken back all the same, or donated by another.
    donate(&mut client, QUICK, 1, first).unwrap();
    client.wait(first).done().unwrap();
}

#[test]
fn a_write_that_somebody_waits_for_as_it_comes_goes_as_his_and_is_done_as_the_openers() {
    let (served, mut client) = held_up("flagged");
    // Whoever waits may not write here himself.
    client.identify(QUICK, USER + 1, "quick").unwrap();
    client.identity = QUICK;
    let flagged = client.send(HandleList::NONE, write(WRITE_DONATED, 0));
    client.wait(flagged).done().unwrap();
    assert_eq!(fs::read(served.data().join("f")).unwrap()[..4], *b"data");
    client.identity = 77;
    let nobody = client.send(HandleList::NONE, write(WRITE_DONATED, 0));
    client.identity = IDENTITY;
    client.ping();
    assert!(!client.came(nobody), "it waits as any other of the slow job");
    assert!(client.flush(nobody), "and can be taken back");
}

#[test]
fn what_cannot_be_donated_is_refused_or_changes_nothing() {
    let (_served, mut client) = held_up("undonated");
    let waits = client.send(HandleList::NONE, write(0, 0));
    assert_eq!(donate(&mut client, 77, 1, waits), Err(EINVAL), "an identity that is none");
    assert_eq!(donate(&mut client, QUICK, 99, waits), Err(EBADF), "a fid that is none");
    assert_eq!(donate(&mut client, QUICK, 1, Tag(999)), Ok(()), "a tag that is not in use");
    let once = ExtRequest::Donate { fid: Fid(1), oldtag: waits };
    assert_eq!(client.once(HandleList::NONE, once).done(), Err(EINVAL), "it has no slot");
    assert!(!client.came(waits));
    // An identity that is forgotten meanwhile is kept until the write is done.
    donate(&mut client, QUICK, 1, waits).unwrap();
    client.call(HandleList::NONE, ExtRequest::Retire { identity: QUICK }).done().unwrap();
    client.wait(waits).done().unwrap();
}
