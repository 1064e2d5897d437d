//! Which leases each change recalls, of others and not of its own session.

use ninep::{REMOVE_DIR, Request, SetAttributes, open, setattr};

use super::{ATTRIBUTES, NAMES, READ, holder, recall, served, setup};
use crate::peer::P9Channel;

/// Sends a change over a session that holds the same leases, and checks what is recalled of another: kinds
/// and names, in any order.
fn recalls(changes: &str, change: impl FnOnce(&mut P9Channel) + Send, expected: &[(u8, &str)]) {
    let served = served("recalls");
    let (mut holder_one, mut listening) = holder(&served);
    let (mut writer, _) = holder(&served);
    let root = writer.root.clone();
    for name in ["f", "g"] {
        writer.create(if name == "f" { 1 } else { 2 }, name);
    }
    writer.mkdir("d").unwrap();
    for client in [&mut holder_one, &mut writer] {
        for name in ["f", "g", "d"] {
            client.open(&root, 10, name, open::RDONLY, 0).unwrap();
            client.clunk(10).unwrap();
        }
    }
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| change(&mut writer));
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let all = holder_one.recalls(listening);
            listening = holder_one.listen();
            assert!(!changing.is_finished(), "{changes}: it waits for what was recalled");
            for one in all {
                got.push((one.kinds, one.name.clone()));
                holder_one.give_up(&one, true);
            }
        }
        changing.join().unwrap();
        got.sort();
        let mut expected: Vec<_> =
            expected.iter().map(|(kinds, name)| (*kinds, (*name).to_owned())).collect();
        expected.sort();
        assert_eq!(got, expected, "{changes}");
    });
    holder_one.ping();
    assert!(!holder_one.came(listening), "{changes}: no more is recalled");
}

const FILE: u8 = ATTRIBUTES | READ;

#[test]
fn a_change_of_data_recalls_the_attributes_and_opens_of_the_file() {
    recalls("a write", |client| assert!(client.write(1, 0, b"x").is_ok()), &[(FILE, "")]);
    recalls("an append", |client| assert!(client.append(1, b"x").is_ok()), &[(FILE, "")]);
    recalls("an allocation", |client| client.allocate(1, 0, 0, 1 << 16).unwrap(), &[(FILE, "")]);
    let cut = |client: &mut P9Channel| {
        let root = client.root.clone();
        client.open(&root, 11, "f", open::WRONLY | open::TRUNC, 0).unwrap();
    };
    // by name: that stays as it is until the file is cut
    recalls("an open that cuts", cut, &[(NAMES, "f"), (FILE, "")]);
    let copy = |client: &mut P9Channel| assert!(client.copy((2, 0), (1, 0), 1).is_ok());
    recalls("a copy", copy, &[(FILE, "")]);
}

#[test]
fn a_change_of_attributes_recalls_them_and_opens_of_the_file() {
    let set = |valid: u32| {
        move |client: &mut P9Channel| {
            let handle = client.find("f").unwrap().handle;
            let set = SetAttributes { valid, mode: 0o600, size: 3, ..Default::default() };
            client.change(&handle, set).unwrap();
        }
    };
    recalls("a mode", set(setattr::MODE), &[(FILE, "")]);
    recalls("a size", set(setattr::SIZE), &[(FILE, "")]);
    let xattr = |client: &mut P9Channel| {
        let handle = client.find("f").unwrap().handle;
        // Whether the file system has them or not.
        let _ = client.setxattr(&handle, "user.a", 0, b"v");
    };
    recalls("an extended attribute", xattr, &[(FILE, "")]);
}

#[test]
fn a_change_of_a_name_recalls_that_name_and_what_becomes_of_its_file() {
    let root = |client: &P9Channel| client.root.clone();
    // The directory's attributes were never granted, so only its names are recalled.
    recalls("a creation", |client| drop(client.create(11, "new")), &[(NAMES, "new")]);
    recalls("a directory", |client| drop(client.mkdir("new").unwrap()), &[(NAMES, "new")]);
    let link = |client: &mut P9Channel| {
        let handle = client.find("f").unwrap().handle;
        client.link(&handle, &root(client), "new").unwrap();
    };
    recalls("a link", link, &[(NAMES, "new"), (FILE, "")]);
    let unlink = |client: &mut P9Channel| client.unlink(&root(client), "f", 0).unwrap();
    recalls("a removal", unlink, &[(NAMES, "f"), (FILE, "")]);
    let rmdir = |client: &mut P9Channel| client.unlink(&root(client), "d", REMOVE_DIR).unwrap();
    recalls("of a directory", rmdir, &[(NAMES, "d"), (FILE, "")]);
    let rename = |client: &mut P9Channel| {
        let root = root(client);
        client.rename((&root, "f"), (&root, "g")).unwrap();
    };
    recalls("a rename", rename, &[(NAMES, "f"), (NAMES, "g"), (FILE, ""), (FILE, "")]);
}

#[test]
fn a_plain_clients_changes_recall_too_and_its_own_session_s_do_not() {
    let served = served("plain");
    let (mut client, mut listening) = holder(&served);
    client.create(1, "f");
    let handle = client.find("f").unwrap().handle;
    client.write(1, 0, b"own").unwrap();
    assert_eq!(client.stat(&handle).unwrap().size, 3, "nobody else holds it");
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let write = plain.send(&Request::Write { fid: ninep::Fid(1), offset: 0, data: b"theirs" });
    let got = recall(&mut client, &mut listening);
    assert_eq!((got.kinds, got.file), (ATTRIBUTES, client.stat(&handle).unwrap().qid.path));
    assert!(!plain.readable(0), "it waits");
    client.give_up(&got, true);
    assert!(plain.wait(write).is_ok());
    assert_eq!(client.stat(&handle).unwrap().size, 6);
}

#[test]
fn nothing_is_granted_again_while_a_change_waits_that_would_break_it() {
    let served = served("again");
    let (mut client, mut listening) = holder(&served);
    let (mut second, _) = holder(&served);
    client.create(1, "f");
    let handle = client.find("f").unwrap().handle;
    let mut plain = served.plain_client();
    plain.open_name(1, "f", open::RDWR).unwrap();
    let write = plain.send(&Request::Write { fid: ninep::Fid(1), offset: 0, data: b"theirs" });
    let got = recall(&mut client, &mut listening);
    second.stat(&handle).unwrap();
    assert_eq!(second.granted(), (0, 0), "a change of it has begun");
    client.give_up(&got, true);
    assert!(plain.wait(write).is_ok());
    second.stat(&handle).unwrap();
    assert_eq!(second.granted(), (ATTRIBUTES, 0));
}

#[test]
fn exports_that_overlap_recall_from_each_other_also_one_that_grants_none() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\nleases = \"read\"\n\
                  [[export]]\nname = \"y\"\ndir = \"@/data\"\n";
    let served = setup("overlap", "").tables(tables).start();
    let (mut client, mut listening) = holder(&served);
    client.create(1, "f");
    let file = client.find("f").unwrap();
    let mut other = served.client_of("y", crate::peer::USER, "");
    assert_eq!(other.renew(1, ninep::dialect::RENEW_JOIN).0, ninep::dialect::RENEW_REFUSED);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            other.open_name(1, "f", open::RDWR).unwrap();
            other.write(1, 0, b"x").unwrap();
        });
        let got = recall(&mut client, &mut listening);
        assert_eq!((got.kinds, got.file), (ATTRIBUTES, file.attributes.qid.path));
        client.give_up(&got, true);
        writing.join().unwrap();
    });
}
