//! Identities: who may say that they are whom, whose groups are believed, and which job
//! pays for what.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use ninep::dialect::{ExtRequest, GROUPS_MAX, HandleList, RequestHeader, handle_fid};
use ninep::{Fid, Request, SetAttributes, Tag, getattr, open, setattr};

use crate::peer::errno::*;
use crate::peer::{IDENTITY, P9Channel, SLOW, Served, Setup, USER, fresh_id, open_request};

const NOBODY: u32 = 65_534;
/// A group that no user of the server is in.
const GROUP: u32 = 4242;
const TRUSTED: &str = "groups = \"client\"\ntrusted = [\"127.0.0.0/8\"]";

/// A client over the Unix socket as a user.
fn local(served: &Served, uid: u32) -> P9Channel {
    let mut client = P9Channel::connect(served.unix(uid));
    client.begin(8192);
    client.session(fresh_id(), 0, 64, "x").unwrap();
    client
}

/// Makes a file that nobody but a member of [`GROUP`] may read.
fn for_the_group(served: &Served) {
    let path = served.data().join("group");
    fs::write(&path, "for the group").unwrap();
    chown(&path, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
}

/// Owner and group of what the client makes.
fn makes(served: &Served, client: &mut P9Channel, name: &str) -> (u32, u32) {
    client.mkdir(name).unwrap();
    let made = fs::metadata(served.data().join(name)).unwrap();
    (made.uid(), made.gid())
}

// ---- users ----

#[test]
fn over_tcp_a_user_is_who_the_client_says_but_root_is_nobody() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("tcp");
    let mut client = served.client();
    for (uid, becomes) in [(USER, USER), (USER + 7, USER + 7), (0, NOBODY)] {
        client.identify(2, uid, "").unwrap();
        assert_eq!(makes(&served, &mut client, &format!("of-{uid}")).0, becomes);
    }
    let served = Setup::new("unsquashed").top("squash = \"none\"").start();
    let mut client = served.client_of("x", 0, "");
    assert_eq!(makes(&served, &mut client, "of-root").0, 0);
}

#[test]
fn over_a_unix_socket_only_root_speaks_for_others() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("unix");
    let mut client = local(&served, USER);
    for uid in [0, USER + 1, NOBODY] {
        assert_eq!(client.identify(2, uid, ""), Err(EPERM), "{uid}");
    }
    client.identify(IDENTITY, USER, "").unwrap();
    assert_eq!(makes(&served, &mut client, "own").0, USER);
    let mut root = local(&served, 0);
    for (uid, becomes) in [(USER + 1, USER + 1), (0, NOBODY)] {
        root.identify(IDENTITY, uid, "").unwrap();
        assert_eq!(makes(&served, &mut root, &format!("for-{uid}")).0, becomes);
    }
}

#[test]
fn a_number_that_nobody_has_or_a_refused_one_is_einval() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("unknown");
    let mut client = local(&served, USER);
    let root = client.root.clone();
    client.identity = 3;
    assert_eq!(client.lookup(&root, "x"), Err(EINVAL));
    assert_eq!(client.identify(3, USER + 1, ""), Err(EPERM));
    client.identity = 3;
    assert_eq!(client.mkdir("x"), Err(EINVAL));
    client.identify(3, USER, "").unwrap();
    client.mkdir("x").unwrap();
    client.identity = ninep::dialect::NO_IDENTITY;
    assert_eq!(client.mkdir("y"), Err(EINVAL), "the session itself makes no files");
    assert!(!served.data().join("y").exists());
}

#[test]
fn a_number_given_anew_is_somebody_else_and_open_files_stay_their_openers() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("anew");
    let mut client = served.client();
    let root = client.root.clone();
    let flags = open::RDWR | open::CREATE;
    client.open(&root, 1, "f", flags, 0o600).unwrap();
    client.identify(IDENTITY, USER + 1, "").unwrap();
    assert_eq!(client.open_name(2, "f", open::RDONLY), Err(EACCES));
    client.write(1, 0, b"by its opener").unwrap();
    assert_eq!(makes(&served, &mut client, "d").0, USER + 1);
}

// ---- groups ----

#[test]
fn groups_are_believed_from_trusted_addresses_and_from_no_others() {
    if !crate::peer::root_here() {
        return;
    }
    for (top, expected) in [(TRUSTED, Ok(())), ("", Err(EACCES))] {
        let served = Setup::new("groups").top(top).start();
        for_the_group(&served);
        let mut client = served.client();
        client.identify_with(2, USER, GROUP + 1, &[7, GROUP, 9], b"").unwrap();
        let opened = client.open_name(1, "group", open::RDONLY).map(drop);
        assert_eq!(opened, expected, "{top:?}");
        let group = if expected.is_ok() { GROUP + 1 } else { USER };
        assert_eq!(makes(&served, &mut client, "d"), (USER, group), "{top:?}");
        client.identify_with(3, USER, USER, &[7, 9], b"").unwrap();
        assert_eq!(client.open_name(2, "group", open::RDONLY), Err(EACCES), "without it");
    }
}

#[test]
fn nobody_keeps_his_groups_as_any_user_does_where_nobody_is_squashed() {
    if !crate::peer::root_here() {
        return;
    }
    for uid in [NOBODY, NOBODY - 1] {
        let served = Setup::new("nobody").top(TRUSTED).top("squash = \"none\"").start();
        for_the_group(&served);
        let mut client = served.client();
        client.identify_with(2, uid, GROUP + 1, &[7, GROUP], b"").unwrap();
        assert_eq!(makes(&served, &mut client, "d"), (uid, GROUP + 1));
        client.open_name(1, "group", open::RDONLY).unwrap();
        let dir = client.find("d").unwrap().handle;
        let group = SetAttributes { valid: setattr::GID, gid: GROUP, ..SetAttributes::default() };
        client.change(&dir, group).unwrap();
        assert_eq!(fs::metadata(served.data().join("d")).unwrap().gid(), GROUP);
    }
    // Where root is squashed to it, it has the rights of nobody else.
    let served = Setup::new("squashed-nobody").top(TRUSTED).start();
    for_the_group(&served);
    let mut client = served.client();
    client.identify_with(2, NOBODY, GROUP + 1, &[7, GROUP], b"").unwrap();
    assert_eq!(client.open_name(1, "group", open::RDONLY), Err(EACCES));
}

#[test]
fn an_address_that_is_not_trusted_is_not_believed_where_another_is() {
    if !crate::peer::root_here() {
        return;
    }
    let top = "groups = \"client\"\ntrusted = [\"127.0.0.2/32\"]";
    let served = Setup::new("untrusted").top(top).start();
    for_the_group(&served);
    let mut client = served.client();
    client.identify_with(2, USER, GROUP, &[GROUP], b"").unwrap();
    assert_eq!(client.open_name(1, "group", open::RDONLY), Err(EACCES));
    assert_eq!(makes(&served, &mut client, "d"), (USER, USER));
}

#[test]
fn over_a_unix_socket_roots_word_about_groups_counts_and_a_users_does_not() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("socket").top("groups = \"client\"").start();
    for_the_group(&served);
    for (uid, expected) in [(0, Ok(())), (USER, Err(EACCES))] {
        let mut client = local(&served, uid);
        client.identify_with(2, USER, GROUP, &[GROUP], b"").unwrap();
        assert_eq!(client.open_name(1, "group", open::RDONLY).map(drop), expected, "{uid}");
        let group = if uid == 0 { GROUP } else { USER };
        assert_eq!(makes(&served, &mut client, &format!("by-{uid}")), (USER, group));
    }
}

#[test]
fn as_many_groups_as_a_message_can_have_all_count() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("many").top(TRUSTED).start();
    for_the_group(&served);
    let mut client = served.client();
    let mut groups: Vec<u32> = (10_000..).take(GROUPS_MAX).collect();
    groups[GROUPS_MAX - 1] = GROUP;
    client.identify_with(2, USER, USER, &groups, b"").unwrap();
    client.open_name(1, "group", open::RDONLY).unwrap();
}

#[test]
fn a_squashed_user_has_no_groups_of_its_own_choice() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Setup::new("squashed").top(TRUSTED).start();
    for_the_group(&served);
    let mut client = served.client();
    client.identify_with(2, 0, GROUP, &[GROUP, 0], b"").unwrap();
    assert_eq!(client.open_name(1, "group", open::RDONLY), Err(EACCES));
    assert_eq!(makes(&served, &mut client, "d"), (NOBODY, NOBODY));
}

// ---- jobs ----

#[test]
fn a_job_that_cannot_be_one_is_refused() {
    let served = Served::plain("job");
    let mut client = served.client();
    let long = [b'j'; 300];
    for job in [&b"a\nb"[..], b"\xff", &long] {
        assert_eq!(client.identify_with(2, USER, USER, &[], job), Err(EINVAL), "{job:?}");
        client.identity = 2;
        assert_eq!(client.find("x"), Err(EINVAL), "it made no identity");
        client.identity = IDENTITY;
    }
    client.identify_with(2, USER, USER, &[], b"dd.500").unwrap();
    // Neither can these be anybody.
    assert_eq!(client.identify(ninep::dialect::NO_IDENTITY, USER, ""), Err(EINVAL));
    assert_eq!(client.identify(3, u32::MAX, ""), Err(EINVAL));
}

#[test]
fn a_message_on_a_handle_is_paid_by_its_identity_and_one_on_a_fid_by_who_opened_it() {
    let served = Setup::new("pays").rules(SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    let f = client.create(1, "f").handle;
    client.identify(2, USER, "quick").unwrap();
    client.open(&f, 2, "", open::RDWR, 0).unwrap();
    client.identity = IDENTITY;
    client.owe();
    let stat = |fid| Request::Getattr { fid, mask: getattr::ALL };
    // By the identity of the header: slow, then quick.
    let handle = client.send(HandleList::one(&f), stat(handle_fid(0)));
    client.identity = 2;
    client.stat(&f).unwrap();
    // By who opened it, whatever the header says.
    let fid = client.send(HandleList::NONE, stat(Fid(1)));
    client.identity = IDENTITY;
    client.stat_fid(2).unwrap();
    client.ping();
    assert!(!client.came(handle) && !client.came(fid), "the slow job's");
    served.set_rules("");
    client.wait(handle).done().unwrap();
    client.wait(fid).done().unwrap();
}

#[test]
fn every_own_message_waits_for_its_job() {
    let served = Setup::new("waits").rules(SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    let root = client.root.clone();
    client.create(1, "f");
    client.open(&root, 2, "", open::RDONLY, 0).unwrap();
    client.owe();
    let (fid, name, file) = (handle_fid(0), b"f", Fid(1));
    let requests = [
        ExtRequest::Lookup { fid, name },
        open_request(3, "f", open::RDWR, 0),
        ExtRequest::List { fid: Fid(2), offset: 0, count: 4096 },
        ExtRequest::Mknode { fid, name: b"d", mode: 0o040_755, rdev: 0, target: b"" },
        ExtRequest::Change { fid: file, set: ninep::SetAttributes::default() },
        ExtRequest::Allocate { fid: file, mode: 0, offset: 0, length: 10 },
        ExtRequest::Getxattr { fid: file, name: b"user.a", count: 0 },
        ExtRequest::Setxattr { fid: file, name: b"user.a", flags: 0, data: b"1" },
        ExtRequest::Removexattr { fid: file, name: b"user.a" },
    ];
    let tags = requests.map(|request| client.send(HandleList::one(&root), request));
    client.ping();
    let early: Vec<_> = tags.iter().filter(|tag| client.came(**tag)).collect();
    assert!(early.is_empty(), "{early:?} did not wait");
    served.set_rules("");
    // In which order they are then executed is nobody's promise.
    for tag in tags {
        let done = client.wait(tag).done();
        assert!([Ok(()), Err(ENODATA)].contains(&done), "{done:?}");
    }
}

#[test]
fn an_identity_whose_job_is_held_back_does_not_hold_back_others_of_the_session() {
    let served = Setup::new("others").rules(SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    client.owe();
    client.identify(2, USER, "quick").unwrap();
    for nth in 0..100 {
        client.mkdir(&format!("d{nth}")).unwrap();
    }
    // The window is the client's to keep; who does not, waits like others.
    client.identity = IDENTITY;
    let root = client.root.clone();
    let header = RequestHeader {
        identity: IDENTITY,
        handles: HandleList::one(&root),
        ..RequestHeader::SESSION
    };
    for tag in 1000..1200 {
        let lookup = ExtRequest::Lookup { fid: handle_fid(0), name: b"d1" };
        client.send_as(Tag(tag), &header, &lookup.into());
    }
    client.identity = 2;
    client.mkdir("last").unwrap();
    assert!(!client.came(Tag(1000)));
}
