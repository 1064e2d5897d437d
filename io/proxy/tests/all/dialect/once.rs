//! Exactly once: calls in a slot whose reply was lost with its connection, or that come
//! again although it was not.
//!
//! ```text
//!   send ─► the effect is there ─► connection lost ─► effect undone here ─► sent again
//!                                                           │
//!                    the first execution's reply, and still undone: executed once
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use ninep::dialect::{AnyRequest, ExtRequest, HandleList, NOSLOT, handle_fid};
use ninep::{Fid, LockKind, REMOVE_DIR, Request, Tag, XATTR_CREATE, open};
use rustix::fs::{getxattr_query, removexattr};
use session::client::CallId;

use crate::peer::errno::*;
use crate::peer::{
    Dice, P9Channel, P9Frame, PATIENCE, Served, Setup, appended, lock_request, open_request,
    opened, rename_request, write_as_user,
};

const EXCLUSIVE: u32 = open::RDWR | open::CREATE | open::EXCL;
/// A tag that [`P9Channel`] never takes by itself.
const OTHER_TAG: Tag = Tag(5000);

fn mkdir_request(name: &str) -> ExtRequest<'_> {
    let (fid, name) = (handle_fid(0), name.as_bytes());
    ExtRequest::Mknode { fid, name, mode: 0o040_755, rdev: 0, target: b"" }
}

/// A call whose reply is lost on its way, and what it answers when it comes again over
/// another connection. Meanwhile `undo` undoes its effect, which `seen` sees.
fn lose_reply(
    client: &mut P9Channel,
    ticket: CallId,
    seen: impl Fn() -> bool,
    undo: impl FnOnce(),
) -> P9Frame {
    // What is undone while it is being executed could make it fail.
    assert!(client.readable(PATIENCE.as_millis() as i64), "it is answered");
    assert!(seen(), "it was executed");
    client.lose();
    undo();
    assert!(client.reconnect().resumed);
    client.again();
    client.wait(ticket.tag)
}

#[test]
fn an_exclusive_create_whose_reply_was_lost_has_made_the_file_once() {
    let served = Served::plain("create");
    let path = served.data().join("f");
    let mut client = served.client();
    let root = client.root.clone();
    let ticket = client.send_once(HandleList::one(&root), open_request(1, "f", EXCLUSIVE, 0o644));
    let gone = || fs::remove_file(&path).unwrap();
    let answer = opened(&lose_reply(&mut client, ticket, || path.exists(), gone)).unwrap();
    assert!(answer.created && !path.exists());
    // Its fid is that of the first execution.
    client.write(1, 0, b"into a file without a name").unwrap();
    assert_eq!(client.stat_fid(1).unwrap().nlink, 0);
}

#[test]
fn a_mkdir_a_symlink_and_a_link_whose_replies_were_lost_have_made_one_each() {
    let served = Served::plain("make");
    let at = |name: &str| served.data().join(name);
    write_as_user(&at("file"), b"");
    let mut client = served.client();
    let (root, file) = (client.root.clone(), client.find("file").unwrap().handle);
    let ticket = client.send_once(HandleList::one(&root), mkdir_request("dir"));
    let undo = || fs::remove_dir(at("dir")).unwrap();
    lose_reply(&mut client, ticket, || at("dir").exists(), undo).done().unwrap();
    assert!(!at("dir").exists());

    let (fid, name, target) = (handle_fid(0), b"link", b"target");
    let symlink = ExtRequest::Mknode { fid, name, mode: 0o120_777, rdev: 0, target };
    let ticket = client.send_once(HandleList::one(&root), symlink);
    let undo = || fs::remove_file(at("link")).unwrap();
    lose_reply(&mut client, ticket, || at("link").is_symlink(), undo).done().unwrap();
    assert!(!at("link").is_symlink());

    let link = Request::Link { dfid: handle_fid(1), fid: handle_fid(0), name: b"second" };
    let ticket = client.send_once(HandleList::two(&file, &root), link);
    let undo = || fs::remove_file(at("second")).unwrap();
    lose_reply(&mut client, ticket, || at("second").exists(), undo).done().unwrap();
    assert!(!at("second").exists());

    let mkdir = Request::Mkdir { dfid: handle_fid(0), name: b"plain", mode: 0o755, gid: 1000 };
    let ticket = client.send_once(HandleList::one(&root), mkdir);
    let undo = || fs::remove_dir(at("plain")).unwrap();
    lose_reply(&mut client, ticket, || at("plain").exists(), undo).done().unwrap();
    assert!(!at("plain").exists(), "a message of 9P2000.L is remembered as well");
}

#[test]
fn a_rename_and_an_unlink_whose_replies_were_lost_leave_what_has_the_name_since() {
    let served = Served::plain("rename");
    let at = |name: &str| served.data().join(name);
    write_as_user(&at("a"), b"first");
    let mut client = served.client();
    let root = client.root.clone();
    let ticket = client.send_once(HandleList::two(&root, &root), rename_request("a", "b"));
    let another = || write_as_user(&at("a"), b"second");
    lose_reply(&mut client, ticket, || at("b").exists(), another).done().unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), b"second");
    assert_eq!(fs::read(at("b")).unwrap(), b"first");

    let unlink = Request::Unlinkat { dirfid: handle_fid(0), name: b"b", flags: 0 };
    let ticket = client.send_once(HandleList::one(&root), unlink);
    let another = || write_as_user(&at("b"), b"third");
    lose_reply(&mut client, ticket, || !at("b").exists(), another).done().unwrap();
    assert_eq!(fs::read(at("b")).unwrap(), b"third");

    client.mkdir("dir").unwrap();
    let rmdir = Request::Unlinkat { dirfid: handle_fid(0), name: b"dir", flags: REMOVE_DIR };
    let ticket = client.send_once(HandleList::one(&root), rmdir);
    let another = || fs::create_dir(at("dir")).unwrap();
    lose_reply(&mut client, ticket, || !at("dir").exists(), another).done().unwrap();
    assert!(at("dir").exists());
}

#[test]
fn an_append_whose_reply_was_lost_answers_where_it_went() {
    let served = Served::plain("append");
    let path = served.data().join("f");
    let len = || fs::metadata(&path).unwrap().len();
    let mut client = served.client();
    client.create(1, "f");
    assert_eq!(client.append(1, b"before").unwrap(), (0, 1));
    let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: b"appended" };
    let ticket = client.send_once(HandleList::NONE, append);
    let cut = || fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2).unwrap();
    let answer = lose_reply(&mut client, ticket, || len() == 14, cut);
    assert_eq!(appended(&answer), Ok((6, 2)));
    assert_eq!(fs::read(&path).unwrap(), b"be");
    assert_eq!(client.append(1, b"!").unwrap(), (2, 3));
}

#[test]
fn an_attribute_set_anew_whose_reply_was_lost_is_set_once() {
    let served = Served::plain("xattr");
    let path = served.data().join("f");
    let mut client = served.client();
    let f = client.create(1, "f").handle;
    let (fid, name, data) = (handle_fid(0), b"user.a", b"1");
    let set = ExtRequest::Setxattr { fid, name, flags: XATTR_CREATE, data };
    let ticket = client.send_once(HandleList::one(&f), set);
    let there = || getxattr_query(&path, "user.a").is_ok();
    let undo = || removexattr(&path, "user.a").unwrap();
    lose_reply(&mut client, ticket, there, undo).done().unwrap();
    assert!(!there());
}

#[test]
fn an_error_is_remembered_as_well_as_success() {
    let served = Served::plain("error");
    let path = served.data().join("f");
    write_as_user(&path, b"");
    let mut client = served.client();
    let root = client.root.clone();
    let ticket = client.send_once(HandleList::one(&root), open_request(1, "f", EXCLUSIVE, 0o644));
    let gone = || fs::remove_file(&path).unwrap();
    let answer = lose_reply(&mut client, ticket, || path.exists(), gone);
    assert_eq!(answer.done(), Err(EEXIST));
    assert!(!path.exists());
}

#[test]
fn calls_that_were_sent_and_lost_at_once_are_executed_once_however_far_they_came() {
    let served = Served::plain("atonce");
    let mut client = served.client();
    let root = client.root.clone();
    client.create(1, "log");
    for nth in 0..60u64 {
        let name = format!("d{nth}");
        let mkdir = client.send_once(HandleList::one(&root), mkdir_request(&name));
        let line = format!("{nth:04}");
        let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: line.as_bytes() };
        let append = client.send_once(HandleList::NONE, append);
        // Now and then the server gets a moment's start.
        if nth % 3 == 0 {
            client.readable(i64::try_from(nth / 20).unwrap());
        }
        assert!(client.reconnect().resumed);
        client.again();
        assert_eq!(client.wait(mkdir.tag).done(), Ok(()), "{name}");
        assert_eq!(appended(&client.wait(append.tag)), Ok((nth * 4, nth + 1)));
        assert!(served.data().join(name).exists());
    }
    let expected: String = (0..60).map(|nth| format!("{nth:04}")).collect();
    assert_eq!(fs::read_to_string(served.data().join("log")).unwrap(), expected);
}

#[test]
fn a_call_of_which_half_has_arrived_was_not_made() {
    let served = Served::plain("half");
    let mut client = served.client();
    let root = client.root.clone();
    for len in [4, 10, 40] {
        let name = format!("d{len}");
        let request = mkdir_request(&name).into();
        let ticket = client.plan(true, HandleList::one(&root), &request);
        let bytes = client.planned(ticket);
        client.send_bytes(&bytes[..len]);
        assert!(client.reconnect().resumed);
        assert!(!served.data().join(&name).exists());
        client.again();
        client.wait(ticket.tag).done().unwrap();
        assert!(served.data().join(&name).exists());
    }
}

#[test]
fn many_calls_that_were_under_way_are_each_answered_with_their_own_execution() {
    let served = Served::plain("many");
    let mut client = served.client();
    client.create(1, "f");
    let block = |nth: u8| vec![nth; 100 + usize::from(nth)];
    let tickets: Vec<_> = (0..60)
        .map(|nth| {
            let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: &block(nth) };
            (nth, client.send_once(HandleList::NONE, append))
        })
        .collect();
    for _ in 0..3 {
        assert!(client.reconnect().resumed);
        client.again();
    }
    let mut told: Vec<_> = tickets
        .into_iter()
        .map(|(nth, ticket)| (appended(&client.wait(ticket.tag)).unwrap(), block(nth)))
        .collect();
    told.sort();
    let content = fs::read(served.data().join("f")).unwrap();
    assert_eq!(content.len(), told.iter().map(|(_, block)| block.len()).sum::<usize>());
    let numbers: BTreeSet<_> = told.iter().map(|((_, number), _)| *number).collect();
    assert_eq!(numbers, (1..=60).collect(), "each has a number of its own");
    for ((offset, _), block) in told {
        assert!(content[offset as usize..].starts_with(&block), "at {offset}");
    }
}

#[test]
fn over_channels_that_break_at_random_each_append_is_in_the_file_once() {
    let served = Served::plain("random");
    let mut first = served.client();
    first.create(1, "f");
    let others = [first.channel(1), first.channel(2)];
    let mut channels: Vec<_> = [first].into_iter().chain(others).map(|c| (c, vec![])).collect();
    let mut dice = Dice::new(3);
    let mut told = Vec::new();
    let line = |nth: u32| format!("{nth:07}\n");
    for nth in 0..600 {
        let (client, sent) = &mut channels[dice.below(3) as usize];
        let data = line(nth);
        let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: data.as_bytes() };
        sent.push((nth, client.send_once(HandleList::NONE, append).tag));
        if dice.below(8) == 0 {
            assert!(client.reconnect().resumed);
            client.again();
        }
        if sent.len() > 12 || dice.below(4) == 0 {
            for (nth, tag) in sent.drain(..) {
                told.push((appended(&client.wait(tag)).unwrap(), nth));
            }
        }
    }
    for (client, sent) in &mut channels {
        for (nth, tag) in sent.drain(..) {
            told.push((appended(&client.wait(tag)).unwrap(), nth));
        }
    }
    told.sort();
    let expected: String = told.iter().map(|(_, nth)| line(*nth)).collect();
    assert_eq!(fs::read_to_string(served.data().join("f")).unwrap(), expected);
    let numbers: BTreeSet<_> = told.iter().map(|((_, number), _)| *number).collect();
    assert_eq!((told.len(), numbers), (600, (1..=600).collect()));
}

/// Makes files, writes lines to a shared one, and moves the files; its connection breaks
/// every few calls.
fn work_over_breaking_connections(mut client: P9Channel, worker: u64, files: u32) {
    let mut dice = Dice::new(worker);
    let root = client.root.clone();
    let mut answer = |client: &mut P9Channel, ticket: CallId| {
        while dice.below(4) == 0 {
            assert!(client.reconnect().resumed);
            client.again();
        }
        client.wait(ticket.tag)
    };
    for nth in 0..files {
        let (new, done) = (format!("new-{worker}-{nth}"), format!("done-{worker}-{nth}"));
        let fid = 10 + worker as u32;
        let create = open_request(fid, &new, EXCLUSIVE, 0o644);
        let create = client.send_once(HandleList::one(&root), create);
        assert!(opened(&answer(&mut client, create)).unwrap().created, "{new}");
        let line = format!("{worker}-{nth:04}\n");
        let append = ExtRequest::Append { fid: Fid(1), flags: 0, data: line.as_bytes() };
        let append = client.send_once(HandleList::NONE, append);
        let rename = rename_request(&new, &done);
        let rename = client.send_once(HandleList::two(&root, &root), rename);
        appended(&answer(&mut client, append)).unwrap();
        assert_eq!(answer(&mut client, rename).done(), Ok(()), "{new}");
        let clunk = client.send_once(HandleList::NONE, Request::Clunk { fid: Fid(fid) });
        assert_eq!(answer(&mut client, clunk).done(), Ok(()), "{new}");
    }
}

#[test]
fn four_that_work_at_a_time_over_breaking_connections_do_everything_once() {
    let served = Served::plain("four");
    let mut first = served.client();
    first.create(1, "log");
    std::thread::scope(|scope| {
        for worker in 1..=4 {
            let client = first.channel(worker as u16);
            scope.spawn(move || work_over_breaking_connections(client, worker, 60));
        }
    });
    let log = fs::read_to_string(served.data().join("log")).unwrap();
    let lines: BTreeSet<_> = log.lines().collect();
    assert_eq!((log.len(), lines.len()), (240 * 7, 240));
    let names = fs::read_dir(served.data()).unwrap().map(|e| e.unwrap().file_name());
    let done = names.filter(|name| name.to_string_lossy().starts_with("done-")).count();
    assert_eq!(done, 240);
    assert_eq!(fs::read_dir(served.data()).unwrap().count(), 241);
}

// ---- without a loss ----

#[test]
fn the_same_sequence_again_gets_the_remembered_reply_under_its_own_tag() {
    let served = Served::plain("again");
    let path = served.data().join("d");
    let mut client = served.client();
    let root = client.root.clone();
    let first = CallId { tag: Tag(9), slot: 3, sequence: 1 };
    let answer = client.call_as(first, HandleList::one(&root), mkdir_request("d"));
    answer.done().unwrap();
    fs::remove_dir(&path).unwrap();
    for tag in [OTHER_TAG, Tag(9), Tag(0)] {
        let again =
            client.call_as(CallId { tag, ..first }, HandleList::one(&root), mkdir_request("d"));
        assert_eq!((again.tag(), again.said()), (tag, answer.said()));
    }
    assert!(!path.exists());
    // The next sequence is a call of its own.
    let next = CallId { sequence: 2, ..first };
    client.call_as(next, HandleList::one(&root), mkdir_request("d")).done().unwrap();
    assert!(path.exists());
}

#[test]
fn a_wrong_sequence_slot_or_type_is_einval_and_nothing_is_executed() {
    let served = Served::plain("wrong");
    let mut client = served.connect();
    assert_eq!(client.session(crate::peer::fresh_id(), 0, 4, "x").unwrap().slots, 4);
    client.identify(1, crate::peer::USER, "").unwrap();
    let root = client.root.clone();
    let none = || fs::read_dir(served.data()).unwrap().count() == 0;
    let mkdir = |client: &mut P9Channel, slot: u16, sequence: u32| {
        let ticket = CallId { tag: OTHER_TAG, slot, sequence };
        client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done()
    };
    for (slot, sequence) in [(0, 0), (0, 2), (0, u32::MAX), (4, 1), (100, 1), (0xfffe, 1)] {
        assert_eq!(mkdir(&mut client, slot, sequence), Err(EINVAL), "slot {slot}, {sequence}");
        assert!(none(), "slot {slot}, sequence {sequence}");
    }
    assert_eq!(mkdir(&mut client, 0, 1), Ok(()));
    fs::remove_dir(served.data().join("d")).unwrap();
    assert_eq!(mkdir(&mut client, 0, 3), Err(EINVAL));
    assert_eq!(mkdir(&mut client, 0, 0), Err(EINVAL));
    // Another message under the number of the last.
    let ticket = CallId { tag: OTHER_TAG, slot: 0, sequence: 1 };
    let root = client.root.clone();
    let other =
        client.call_as(ticket, HandleList::one(&root), open_request(1, "d", EXCLUSIVE, 0o644));
    assert_eq!(other.done(), Err(EINVAL));
    assert!(none());
    assert_eq!(client.stat_fid(1), Err(EBADF));
    client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done().unwrap();
    assert!(none(), "the right one again: remembered, not executed");
    let next = CallId { sequence: 2, ..ticket };
    client.call_as(next, HandleList::one(&root), mkdir_request("d")).done().unwrap();
    assert!(!none());
}

#[test]
fn what_is_about_the_session_and_what_is_too_much_to_remember_has_no_slot() {
    let served = Served::plain("noslot");
    let mut client = served.client();
    client.create(1, "f");
    let ticket = CallId { tag: OTHER_TAG, slot: 0, sequence: 1 };
    let root = client.root.clone();
    let fid = Fid(1);
    let own = [
        ExtRequest::Ping,
        ExtRequest::Events,
        ExtRequest::Retire { identity: 1 },
        ExtRequest::List { fid, offset: 0, count: 4096 },
        ExtRequest::Getxattr { fid, name: b"", count: 4096 },
    ];
    let plain = [
        Request::Flush { oldtag: Tag(7) },
        Request::Read { fid, offset: 0, count: 10 },
        Request::Readdir { fid, offset: 0, count: 4096 },
        Request::Readlink { fid },
        lock_request(1, LockKind::Write, "one", 0),
    ];
    let all = own.map(AnyRequest::from).into_iter().chain(plain.map(AnyRequest::from));
    for request in all {
        let answer = client.call_as(ticket, HandleList::one(&root), request).done();
        assert_eq!(answer, Err(EINVAL), "{request:?}");
    }
    // None of them has used the slot.
    client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done().unwrap();
}

#[test]
fn each_channel_has_slots_of_its_own() {
    let served = Served::plain("channels");
    let mut zero = served.client();
    let mut one = zero.channel(1);
    let root = zero.root.clone();
    let ticket = CallId { tag: OTHER_TAG, slot: 0, sequence: 1 };
    let make = |client: &mut P9Channel, name: &str| {
        client.call_as(ticket, HandleList::one(&root), mkdir_request(name)).done()
    };
    assert_eq!(make(&mut zero, "zero"), Ok(()));
    assert_eq!(make(&mut one, "one"), Ok(()));
    assert!(served.data().join("one").exists());
    let nothing = CallId { tag: OTHER_TAG, slot: NOSLOT, sequence: 0 };
    for expected in [Ok(()), Err(EEXIST)] {
        let answer = one.call_as(nothing, HandleList::one(&root), mkdir_request("twice"));
        assert_eq!(answer.done(), expected, "without a slot it is executed every time");
    }
}

// ---- queued calls ----

/// A session with the identities 1, whose job is held back, and 2, whose is not.
fn with_slow(name: &str) -> (Served, P9Channel) {
    let served = Setup::new(name).rules(crate::peer::SLOW).start();
    let mut client = served.client();
    client.identify(2, crate::peer::USER, "quick").unwrap();
    client.identify(1, crate::peer::USER, "slow").unwrap();
    client.owe();
    (served, client)
}

#[test]
fn a_queued_call_that_was_flushed_is_executed_when_its_sequence_comes_again() {
    let (served, mut client) = with_slow("flush");
    let root = client.root.clone();
    let ticket = client.send_once(HandleList::one(&root), mkdir_request("d"));
    assert!(client.flush(ticket.tag), "it was still queued");
    client.ping();
    assert!(!client.came(ticket.tag) && !served.data().join("d").exists());
    client.identity = 2;
    client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done().unwrap();
    assert!(served.data().join("d").exists());
    assert_eq!(
        client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done(),
        Ok(()),
        "and is remembered from then on"
    );
}

#[test]
fn a_queued_call_of_a_lost_connection_is_taken_back_and_executed_when_it_comes_again() {
    let (served, mut client) = with_slow("lost");
    let root = client.root.clone();
    let path: PathBuf = served.data().join("d");
    let ticket = client.send_once(HandleList::one(&root), mkdir_request("d"));
    client.ping();
    assert!(client.reconnect().resumed);
    assert!(!path.exists());
    client.identity = 2;
    client.call_as(ticket, HandleList::one(&root), mkdir_request("d")).done().unwrap();
    assert!(path.exists());
}

#[test]
fn the_next_call_of_a_slot_does_not_overtake_the_one_under_way() {
    let (served, mut client) = with_slow("overlap");
    let root = client.root.clone();
    let first = CallId { tag: Tag(409), slot: 7, sequence: 1 };
    let header = |ticket: CallId, identity| ninep::dialect::RequestHeader {
        identity,
        reply_slot: ticket.slot,
        sequence: ticket.sequence,
        handles: HandleList::one(&root),
        ..ninep::dialect::RequestHeader::SESSION
    };
    client.send_as(first.tag, &header(first, 1), &mkdir_request("d").into());
    client.identity = 2;
    let next = CallId { tag: Tag(410), sequence: 2, ..first };
    let answer = client.call_as(next, HandleList::one(&root), mkdir_request("e"));
    assert_eq!(answer.done(), Err(EINVAL));
    assert!(!served.data().join("e").exists());
    assert!(!client.came(first.tag), "the first waits for its job");
}
