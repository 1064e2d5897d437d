//! Changes that wait for leases: how the waiting ends.

use ninep::dialect::{ExtRequest, HandleList, handle_fid};
use ninep::{Fid, Reply, Request, SetAttributes, Tag, open, setattr};

use super::{ATTRIBUTES, holder, recall, served, setup, shows};
use crate::peer::{P9Channel, P9Client, P9File, Served, until, write_as_user};

/// A holder of the attributes of `f`, and a plain client that has `f` open as fid 1.
fn pair(served: &Served) -> (P9Channel, Tag, P9Client) {
    let (mut client, listening) = holder(served);
    client.create(1, "f");
    client.find("f").unwrap();
    assert_eq!(client.granted().1, ATTRIBUTES);
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    (client, listening, plain)
}

fn write(client: &mut P9Client, data: &[u8]) -> Tag {
    client.send(&Request::Write { fid: Fid(1), offset: 0, data })
}

/// What is in `f` on the disk.
fn content(served: &Served) -> Vec<u8> {
    std::fs::read(served.data().join("f")).unwrap()
}

#[test]
fn a_holder_that_works_on_a_return_is_waited_for_until_it_has_done() {
    let served = served("progress");
    let (mut client, mut listening, mut plain) = pair(&served);
    let tag = write(&mut plain, b"x");
    let got = recall(&mut client, &mut listening);
    client.give_up(&got, false);
    assert!(client.renews() && !plain.readable(0));
    assert_eq!(content(&served), b"");
    client.give_up(&got, true);
    assert_eq!(plain.wait(tag).reply(), Ok(Reply::Write { count: 1 }));
}

#[test]
fn a_holder_that_does_not_answer_is_expelled_and_the_change_is_executed_after_its_term() {
    let top = "lease_recall_limit = \"1ms\"\nlease_term = \"1s\"";
    let served = setup("expelled", top).start();
    let (mut client, mut listening, mut plain) = pair(&served);
    let tag = write(&mut plain, b"x");
    let got = recall(&mut client, &mut listening);
    assert_eq!(got.kinds, ATTRIBUTES);
    // It renews as long as it may, and returns nothing.
    assert_eq!(plain.wait(tag).reply(), Ok(Reply::Write { count: 1 }));
    assert!(!client.renews(), "its life is over");
    client.join(2);
    client.find("f").unwrap();
    assert_eq!(client.granted().1, ATTRIBUTES);
}

#[test]
fn a_silent_holder_is_waited_for_no_longer_than_its_term() {
    let served = setup("over", "lease_term = \"1s\"\nlease_recall_limit = \"1h\"").start();
    let (mut client, listening, mut plain) = pair(&served);
    let tag = write(&mut plain, b"x");
    assert_eq!(client.recalls(listening).len(), 1);
    assert_eq!(plain.wait(tag).reply(), Ok(Reply::Write { count: 1 }));
    assert!(!client.renews(), "its term is over");
}

#[test]
fn a_flushed_change_that_waits_is_not_executed_and_holds_nothing_back() {
    let served = served("flushed");
    let (mut client, mut listening, mut plain) = pair(&served);
    let tag = write(&mut plain, b"x");
    let got = recall(&mut client, &mut listening);
    assert_eq!(plain.call(&Request::Flush { oldtag: tag }).reply(), Ok(Reply::Flush));
    assert!(!plain.readable(0), "the change is not answered");
    client.give_up(&got, true);
    client.find("f").unwrap();
    assert_eq!(client.granted().1, ATTRIBUTES, "the access has ended");
    assert_eq!(content(&served), b"");
}

#[test]
fn the_change_of_a_client_that_is_gone_is_not_executed_and_holds_nothing_back() {
    for ends_by_version in [false, true] {
        let served = served("gone");
        let (mut client, mut listening, mut plain) = pair(&served);
        write(&mut plain, b"x");
        let got = recall(&mut client, &mut listening);
        let kept = if ends_by_version {
            plain.version(1 << 20);
            Some(plain)
        } else {
            drop(plain);
            None
        };
        client.give_up(&got, true);
        until("it is granted again", || {
            client.find("f").unwrap();
            client.granted().1 == ATTRIBUTES
        });
        assert_eq!(content(&served), b"");
        drop(kept);
    }
}

#[test]
fn a_mounts_change_that_waits_is_executed_once_after_its_connection_was_lost() {
    let served = served("resent");
    let (mut client, mut listening, _plain) = pair(&served);
    let mut mount = served.client();
    mount.open_name(1, "f", open::RDWR).unwrap();
    let request = ExtRequest::Append { fid: Fid(1), flags: 0, data: b"once" };
    let call = mount.send_once(HandleList::NONE, request);
    let first = recall(&mut client, &mut listening);
    mount.reconnect();
    mount.again();
    let second = recall(&mut client, &mut listening);
    assert_ne!(first.access, second.access);
    client.give_up(&first, true);
    client.give_up(&second, true);
    mount.wait(call.tag).done().unwrap();
    assert_eq!(content(&served), b"once");
}

#[test]
fn a_recall_goes_again_over_a_new_connection_of_the_holder() {
    let served = served("lost");
    let (mut client, listening, mut plain) = pair(&served);
    let tag = write(&mut plain, b"x");
    let lost = client.recalls(listening);
    client.reconnect();
    let mut listening = client.listen();
    let again = recall(&mut client, &mut listening);
    assert_eq!(again.access, lost[0].access);
    client.give_up(&again, true);
    assert!(plain.wait(tag).is_ok());
}

#[test]
fn a_recall_reaches_its_holder_whenever_its_connection_breaks() {
    let served = setup("breaks", "lease_term = \"1h\"\nlease_recall_limit = \"1h\"").start();
    let (mut client, mut listening, mut plain) = pair(&served);
    for round in 0..100 {
        client.find("f").unwrap();
        assert_eq!(client.granted().1, ATTRIBUTES, "round {round}");
        let tag = write(&mut plain, b"x");
        for _ in 0..round % 4 {
            client.reconnect();
            listening = client.listen();
        }
        // A recall may come twice, also later.
        until("the change is executed", || {
            if client.came(listening) || client.readable(0) {
                let got = client.recalls(listening);
                listening = client.listen();
                got.iter().for_each(|one| client.give_up(one, true));
            }
            plain.readable(10)
        });
        assert!(plain.wait(tag).is_ok());
    }
}

#[test]
fn many_changes_wait_for_one_holder_and_hold_neither_slots_nor_threads() {
    let served = setup("many", "threads_max = 2").start();
    let (mut client, mut listening, mut plain) = pair(&served);
    let tags: Vec<Tag> = (0..200).map(|_| write(&mut plain, b"x")).collect();
    let mut other = served.plain_client();
    other.make(1, "other");
    // The changes hold no thread: the other client's were executed. Each is recalled for.
    let mut rest = tags.len();
    while rest > 0 {
        if client.came(listening) || client.readable(0) {
            let got = client.recalls(listening);
            listening = client.listen();
            got.iter().for_each(|one| client.give_up(one, true));
        }
        if plain.readable(10) {
            assert!(plain.next().is_ok());
            rest -= 1;
        }
    }
}

#[test]
fn two_mounts_whose_changes_wait_for_each_other_answer_recalls_however_many_wait() {
    const FILES: u32 = 40;
    // Sixteen in flight on a mount's connection, and nobody is expelled while the test runs.
    let top = "tags_max = 4\nlease_recall_limit = \"1h\"\nlease_term = \"1h\"";
    let served = setup("crossed", top).start();
    let mut clients = [holder(&served), holder(&served)];
    let names = |at: usize| (0..FILES).map(move |nth| format!("{at}-{nth}"));
    (0..2).flat_map(names).for_each(|name| write_as_user(&served.data().join(name), b""));
    // Each knows the files that it changes, and those of the other.
    let mut files: [Vec<P9File>; 2] = Default::default();
    for (at, (client, _)) in clients.iter_mut().enumerate() {
        files[at].extend(names(at).map(|name| client.find(&name).unwrap()));
        for name in names(1 - at) {
            client.find(&name).unwrap();
            assert_eq!(client.granted().1, ATTRIBUTES);
        }
    }
    let mut changes: [Vec<Tag>; 2] = Default::default();
    for (at, (client, _)) in clients.iter_mut().enumerate() {
        for file in &files[at] {
            let set = SetAttributes { valid: setattr::MODE, mode: 0o600, ..Default::default() };
            let change = ExtRequest::Change { fid: handle_fid(0), set };
            changes[at].push(client.send_once(HandleList::one(&file.handle), change).tag);
        }
    }
    until("all are executed", || {
        for (at, (client, listening)) in clients.iter_mut().enumerate() {
            if client.readable(0) {
                // What came before the reply to this is kept.
                client.ping();
            }
            if client.came(*listening) {
                let got = client.recalls(*listening);
                *listening = client.listen();
                got.iter().for_each(|one| client.give_up(one, true));
            }
            changes[at].retain(|tag| !client.came(*tag));
        }
        changes.iter().all(Vec::is_empty)
    });
}

#[test]
fn what_is_behind_a_name_when_it_is_removed_is_what_was_recalled() {
    let served = served("behind");
    let (mut client, mut listening) = holder(&served);
    client.create(1, "f");
    client.create(2, "g");
    let other = client.find("g").unwrap();
    client.find("f").unwrap();
    let mut plain = served.plain_client();
    let unlink = Request::Unlinkat { dirfid: Fid(0), name: b"f", flags: 0 };
    let tag = plain.send(&unlink);
    let mut first = client.recalls(listening);
    listening = client.listen();
    while first.len() < 2 {
        first.extend(client.recalls(listening));
        listening = client.listen();
    }
    // Meanwhile the holder itself puts another file there.
    let root = client.root.clone();
    client.rename((&root, "g"), (&root, "f")).unwrap();
    client.find("f").unwrap();
    first.iter().for_each(|one| client.give_up(one, true));
    let mut got = recall(&mut client, &mut listening);
    while got.file != other.attributes.qid.path {
        client.give_up(&got, true);
        got = recall(&mut client, &mut listening);
    }
    assert!(!plain.readable(0), "it waits for the other file");
    client.give_up(&got, true);
    assert!(plain.wait(tag).is_ok());
    assert_eq!(client.find("f").unwrap_err(), crate::peer::errno::ENOENT);
}

#[test]
fn the_metrics_show_what_waits_and_what_was_recalled() {
    let served = served("metrics");
    let (mut client, mut listening, mut plain) = pair(&served);
    let shows = |name: &str, value: u64| shows(&served, name, value);
    assert!(shows("_holders", 1) && shows("_waiting_requests", 0));
    let tag = write(&mut plain, b"x");
    let got = recall(&mut client, &mut listening);
    until("it waits", || shows("_waiting_requests", 1));
    assert!(shows("_recalls_total", 1) && shows("_returns_total", 0));
    client.give_up(&got, true);
    assert!(plain.wait(tag).is_ok());
    assert!(shows("_waiting_requests", 0) && shows("_returns_total", 1));
}
