//! Sessions of the dialect: how one begins, what it keeps over its connections, whose it
//! is, and when it ends.

use std::fs;
use std::net::Ipv4Addr;

use ninep::dialect::{
    ExtReply, ExtRequest, HandleList, NO_IDENTITY, NOSLOT, RequestHeader, WireGroup, handle_fid,
};
use ninep::{Fid, LOCK_BLOCK, LockKind, LockStatus, NOFID, Reply, Request, Tag, getattr, open};

use rustix::fs::{FlockOperation, fcntl_lock};
use sluice_proxy::config::ProxyConfig;

use crate::peer::errno::*;
use crate::peer::{
    IDENTITY, P9Address, P9Channel, P9Session, PATIENCE, Served, Setup, USER, fresh_id,
    lock_request, until,
};

/// A client of a session with fid 1 open on a new file `f`, and a lock on it.
fn with_lock(served: &Served) -> P9Channel {
    let mut client = served.client();
    client.create(1, "f");
    assert_eq!(client.lock(1, LockKind::Write, "one"), Ok(LockStatus::Success));
    client
}

// ---- the beginning ----

#[test]
fn a_session_begins_with_its_terms_and_the_root() {
    let served = Setup::new("terms").top("session_timeout = \"17s\"").start();
    for (asked, granted) in [(0, 0), (1, 1), (64, 64), (65, 64), (u16::MAX, 64)] {
        let mut client = served.connect();
        let terms = client.session(fresh_id(), 0, asked, "x").unwrap();
        assert_eq!(terms, P9Session { slots: granted, resumed: false, keep: 17 });
        client.identify(IDENTITY, USER, "").unwrap();
        let root = client.root.clone();
        crate::peer::assert_as_stat(&client.stat(&root).unwrap(), &served.data());
    }
}

#[test]
fn anything_but_a_session_after_the_version_ends_the_connection() {
    let served = Served::plain("first");
    let (fid, afid, uname, aname, n_uname) = (Fid(0), NOFID, &b""[..], &b"x"[..], USER);
    let requests = [
        ExtRequest::Ping.into(),
        ExtRequest::Events.into(),
        ExtRequest::Retire { identity: 1 }.into(),
        ExtRequest::Lookup { fid: handle_fid(0), name: b"f" }.into(),
        Request::Attach { fid, afid, uname, aname, n_uname }.into(),
        Request::Getattr { fid, mask: getattr::ALL }.into(),
        Request::Flush { oldtag: Tag(1) }.into(),
    ];
    for request in requests {
        let mut client = served.connect();
        client.send_as(Tag(1), &RequestHeader::SESSION, &request);
        client.expect_closed();
    }
    served.client().mkdir("d").unwrap();
}

#[test]
fn an_unknown_export_is_enoent_and_another_one_for_the_same_id_einval() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"@/data\"\n\
                  [[export]]\nname = \"y\"\ndir = \"@/data\"\n";
    let served = Setup::new("exports").tables(tables).start();
    for aname in ["z", ""] {
        assert_eq!(served.connect().session(fresh_id(), 0, 4, aname), Err(ENOENT), "{aname:?}");
    }
    let mut client = served.client();
    client.mkdir("d").unwrap();
    let id = client.id();
    assert_eq!(served.connect().session(id, 1, 4, "y"), Err(EINVAL));
    assert!(served.connect().session(id, 1, 4, "x").unwrap().resumed);
    client.find("d").unwrap();
}

#[test]
fn a_version_ends_the_dialect_on_a_connection_and_begins_what_it_agrees_on() {
    let served = Served::plain("version");
    let mut client = with_lock(&served);
    assert_eq!(client.offer(8192, b"9P2000.L"), (8192, b"9P2000.L".to_vec()));
    let (fid, afid, uname, aname, n_uname) = (Fid(1), NOFID, &b""[..], &b"x"[..], USER);
    let mut bytes = Vec::new();
    Request::Attach { fid, afid, uname, aname, n_uname }.encode(Tag(3), &mut bytes);
    client.send_bytes(&bytes);
    let frame = client.try_next().unwrap();
    assert!(matches!(Reply::decode(&frame.0), Ok((Tag(3), Reply::Attach { .. }))), "{frame:?}");
    // And back: the session is the one that it was.
    assert_eq!(client.offer(8192, b"9P2000.L.sluice.4").1, b"9P2000.L.sluice.4");
    assert!(client.session(client.id(), 0, 64, "x").unwrap().resumed);
    client.stat_fid(1).unwrap();
}

#[test]
fn other_dialects_are_answered_with_9p2000_l() {
    let served = Served::plain("dialects");
    for offered in
        [&b"9P2000.L.sluice.3"[..], b"9P2000.L.sluice.5", b"9P2000.L.sluice", b"9P2000.L"]
    {
        let mut client = P9Channel::connect(served.tcp());
        assert_eq!(client.offer(8192, offered).1, b"9P2000.L");
    }
    assert_eq!(P9Channel::connect(served.tcp()).offer(8192, b"9P2000.sluice.4").1, b"unknown");
}

#[test]
fn the_group_may_be_asked_before_the_session_and_nothing_else() {
    let served = Served::plain("group");
    let mut client = P9Channel::connect(served.tcp());
    client.begin(8192);
    for asked in 0..2 {
        client.send_as(Tag(5), &RequestHeader::SESSION, &ExtRequest::Proxies.into());
        assert_eq!(client.wait(Tag(5)).own(), Ok(ExtReply::Proxies(WireGroup::NONE)));
        if asked == 0 {
            assert!(!client.session(fresh_id(), 0, 4, "x").unwrap().resumed);
        }
    }
    let mut other = P9Channel::connect(served.tcp());
    other.begin(8192);
    other.send_as(Tag(5), &RequestHeader::SESSION, &ExtRequest::Ping.into());
    other.expect_closed();
}

#[test]
fn a_proxy_says_the_group_of_its_configuration_and_of_a_reload_with_a_new_epoch() {
    let tables = "[group]\nname = \"b\"\nproxies = [\"b\", \"a\"]\nepoch = 4\n\
                  [[export]]\nname = \"x\"\ndir = \"@/data\"\n";
    let mut served = Setup::new("group-reload").tables(tables).start();
    let said = |served: &Served, msize| {
        let mut client = P9Channel::connect(served.tcp());
        client.begin(msize);
        client.send_as(Tag(5), &RequestHeader::SESSION, &ExtRequest::Proxies.into());
        let reply = client.wait(Tag(5));
        let ExtReply::Proxies(group) = reply.own()? else { panic!("{reply:?}") };
        Ok((group.name().to_owned(), group.epoch(), group.names().collect::<Vec<_>>().join(" ")))
    };
    assert_eq!(said(&served, 8192), Ok(("b".into(), 4, "a b".into())));
    let error = served.reload_with("\"a\"]", "\"a\", \"c\"]").unwrap();
    assert!(error.starts_with("group.epoch: 4 is the epoch of b, a; raise it"), "{error}");
    assert_eq!(said(&served, 8192), Ok(("b".into(), 4, "a b".into())));
    assert_eq!(served.reload_with("epoch = 4", "epoch = 5"), None);
    assert_eq!(said(&served, 8192), Ok(("b".into(), 5, "a b c".into())));
    // The longest list does not fit into the smallest message.
    let names: Vec<_> = (0..63).map(|n| format!("\"{n:064}\"")).collect();
    let names = format!("epoch = 6\nproxies = [\"b\", {}]", names.join(", "));
    let all = "proxies = [\"b\", \"a\", \"c\"]\nepoch = 5";
    assert_eq!(served.reload_with(all, &names), None);
    assert_eq!(said(&served, 4096), Err(EINVAL));
    assert_eq!(said(&served, 8192).map(|(_, epoch, _)| epoch), Ok(6));
}

// ---- over connections ----

#[test]
fn fids_identities_and_locks_survive_the_connection() {
    let served = Served::plain("survive");
    let mut client = with_lock(&served);
    client.write(1, 0, b"content").unwrap();
    let mut other = served.client();
    other.open_name(1, "f", open::RDWR).unwrap();
    client.lose();
    assert_eq!(other.lock(1, LockKind::Write, "two"), Ok(LockStatus::Blocked));
    assert!(client.reconnect().resumed);
    assert_eq!(client.read(1, 0, 100).unwrap(), b"content");
    client.mkdir("by-identity").unwrap();
    assert_eq!(other.lock(1, LockKind::Write, "two"), Ok(LockStatus::Blocked));
    assert_eq!(client.lock(1, LockKind::Unlock, "one"), Ok(LockStatus::Success));
    assert_eq!(other.lock(1, LockKind::Write, "two"), Ok(LockStatus::Success));
    assert_eq!(client.append(1, b"!").unwrap(), (7, 2), "and the count of its writes");
}

#[test]
fn channels_share_fids_and_identities_and_outlive_each_other() {
    let served = Served::plain("channels");
    let mut zero = with_lock(&served);
    let mut one = zero.channel(1);
    one.write(1, 0, b"by the other channel").unwrap();
    zero.lose();
    one.ping();
    assert_eq!(one.read(1, 0, 2).unwrap(), b"by");
    one.open_name(2, "f", open::RDONLY).unwrap();
    assert!(zero.reconnect().resumed);
    assert_eq!(zero.read(2, 0, 2).unwrap(), b"by");
    assert_eq!(zero.open_name(2, "f", open::RDONLY), Err(EBADF), "a fid of the session");
    zero.clunk(2).unwrap();
    assert_eq!(one.read(2, 0, 2), Err(EBADF));
}

#[test]
fn another_id_is_another_session() {
    let served = Served::plain("another");
    let mut client = with_lock(&served);
    let mut other = served.connect();
    assert!(!other.session(fresh_id(), 0, 64, "x").unwrap().resumed);
    let root = other.root.clone();
    other.identity = IDENTITY;
    assert_eq!(other.lookup(&root, "f"), Err(EINVAL), "identities are the session's own");
    other.identify(IDENTITY, USER, "").unwrap();
    assert_eq!(other.stat_fid(1), Err(EBADF), "and fids");
    other.create(1, "g");
    client.clunk(1).unwrap();
    other.stat_fid(1).unwrap();
}

#[test]
fn a_session_is_resumed_once_its_client_has_sent_a_message_in_it() {
    let served = Served::plain("confirmed");
    let (id, mut client) = (fresh_id(), served.connect());
    assert!(!client.session(id, 0, 64, "x").unwrap().resumed);
    // The first Rsession may have been lost, so far as the proxy knows.
    assert!(!client.reconnect().resumed);
    client.identify(IDENTITY, USER, "").unwrap();
    assert!(client.reconnect().resumed);
    assert!(served.connect().session(id, 1, 64, "x").unwrap().resumed, "on each channel");
}

#[test]
fn a_connection_that_binds_a_channel_anew_closes_the_old_one() {
    let served = Served::plain("anew");
    let mut old = with_lock(&served);
    old.write(1, 0, b"content").unwrap();
    let mut new = served.connect();
    assert!(new.session(old.id(), 0, 64, "x").unwrap().resumed);
    old.expect_closed();
    new.identity = IDENTITY;
    assert_eq!(new.read(1, 0, 100).unwrap(), b"content");
}

#[test]
fn of_many_connections_for_one_channel_the_last_has_it() {
    let served = Served::plain("last");
    let client = with_lock(&served);
    let (id, slots, aname) = (client.id(), 64, &b"x"[..]);
    for _ in 0..20 {
        let mut all: Vec<_> = (0..8).map(|_| served.connect()).collect();
        for connection in &mut all {
            let session = ExtRequest::Session { id, channel: 0, slots, aname };
            connection.send_as(Tag(1), &RequestHeader::SESSION, &session.into());
            let answered = connection.readable(PATIENCE.as_millis() as i64);
            assert!(answered, "and the one before closed");
        }
        let mut last = all.pop().unwrap();
        let frame = last.wait(Tag(1));
        let Ok(ExtReply::Session { resumed: 1, .. }) = frame.own() else { panic!("{frame:?}") };
        last.identity = IDENTITY;
        last.stat_fid(1).unwrap();
        for mut connection in all {
            connection.wait(Tag(1)).done().unwrap();
            connection.expect_closed();
        }
        last.stat_fid(1).unwrap();
    }
}

#[test]
fn a_session_without_connections_expires_and_gives_all_back() {
    let served = Setup::new("expired").top("session_timeout = \"1s\"").start();
    let mut client = with_lock(&served);
    let mut other = served.client();
    other.open_name(1, "f", open::RDWR).unwrap();
    let waits = lock_request(1, LockKind::Write, "two", LOCK_BLOCK);
    let tag = other.send(HandleList::NONE, waits);
    other.ping();
    assert!(!other.came(tag));
    client.lose();
    // Granted only by the end of the other session.
    let granted = other.wait(tag);
    assert_eq!(granted.plain(), Ok(Reply::Lock { status: LockStatus::Success }));
    let terms = client.reconnect();
    assert_eq!((terms.resumed, terms.keep), (false, 1));
    assert_eq!(client.find("f"), Err(EINVAL), "no identity");
    client.identify(IDENTITY, USER, "").unwrap();
    assert_eq!(client.stat_fid(1), Err(EBADF));
    assert_eq!(client.open_name(1, "f", open::RDWR).unwrap().file.attributes.uid, USER);
    assert_eq!(client.write(1, 0, b"x").unwrap().1, 1, "writes are counted from the beginning");
}

#[test]
fn a_session_expires_also_when_nobody_else_is_connected() {
    let served = Setup::new("alone").top("session_timeout = \"1s\"").start();
    let mut client = with_lock(&served);
    let path = served.data().join("f");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // As a program on the server's own machine would ask.
    let free = || fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(!free());
    client.lose();
    until("the lock is given back", free);
    assert!(!client.reconnect().resumed);
}

#[test]
fn a_session_with_a_connection_does_not_expire() {
    let served = Setup::new("kept").top("session_timeout = \"1s\"").start();
    let mut zero = with_lock(&served);
    let mut gone = served.client();
    gone.create(1, "g");
    assert_eq!(gone.lock(1, LockKind::Write, "gone"), Ok(LockStatus::Success));
    let mut one = zero.channel(1);
    zero.lose();
    gone.lose();
    // A session that lost all it had at the same time tells when the time is over.
    let mut other = served.client();
    other.open_name(1, "g", open::RDWR).unwrap();
    until("the other session expires", || {
        other.lock(1, LockKind::Write, "other").unwrap() == LockStatus::Success
    });
    one.stat_fid(1).unwrap();
    assert!(zero.reconnect().resumed);
    zero.stat_fid(1).unwrap();
}

// ---- whose session ----

#[test]
fn a_session_is_bound_to_the_address_of_its_peer() {
    let served = Served::plain("address");
    let mut client = with_lock(&served);
    let P9Address::Tcp(to) = served.tcp() else { unreachable!("it is TCP's") };
    let mut stranger = P9Channel::connect(P9Address::From(Ipv4Addr::new(127, 0, 0, 2), to));
    stranger.begin(8192);
    assert_eq!(stranger.session(client.id(), 0, 64, "x"), Err(EPERM));
    client.stat_fid(1).unwrap();
    // Nor does a lost connection make it anybody's.
    client.lose();
    let mut stranger = P9Channel::connect(P9Address::From(Ipv4Addr::new(127, 0, 0, 2), to));
    stranger.begin(8192);
    assert_eq!(stranger.session(client.id(), 0, 64, "x"), Err(EPERM));
    let mut local = P9Channel::connect(served.unix(0));
    local.begin(8192);
    assert_eq!(local.session(client.id(), 0, 64, "x"), Err(EPERM));
    assert!(client.reconnect().resumed);
}

#[test]
fn a_session_over_a_unix_socket_is_bound_to_the_user_of_its_peer() {
    if !crate::peer::root_here() {
        return;
    }
    let served = Served::plain("unix");
    let mut client = P9Channel::connect(served.unix(USER));
    client.begin(8192);
    client.session(fresh_id(), 0, 64, "x").unwrap();
    client.identify(IDENTITY, USER, "").unwrap();
    client.create(1, "f");
    for uid in [USER + 1, 0] {
        let mut stranger = P9Channel::connect(served.unix(uid));
        stranger.begin(8192);
        assert_eq!(stranger.session(client.id(), 0, 64, "x"), Err(EPERM), "user {uid}");
    }
    client.stat_fid(1).unwrap();
    assert!(client.reconnect().resumed);
    client.stat_fid(1).unwrap();
}

// ---- windows, pings and waits ----

#[test]
fn an_identitys_window_is_that_of_the_configuration() {
    let served = Served::plain("window");
    let ProxyConfig { window_requests, window_bytes, .. } = ProxyConfig::default();
    let window = (window_requests, window_bytes.get());
    assert_eq!(served.client().identify(2, USER, ""), Ok(window));
    let top = "window_requests = 7\nwindow_bytes = \"3MiB\"";
    let served = Setup::new("window-set").top(top).start();
    assert_eq!(served.client().identify(2, USER, ""), Ok((7, 3 << 20)));
}

#[test]
fn a_ping_is_answered_before_what_is_queued() {
    let served = Setup::new("ping").rules(crate::peer::SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    client.owe();
    let (fid, name) = (handle_fid(0), b"d");
    let root = client.root.clone();
    let mkdir = ExtRequest::Mknode { fid, name, mode: 0o040_755, rdev: 0, target: b"" };
    let tag = client.send(HandleList::one(&root), mkdir);
    for _ in 0..10 {
        client.ping();
    }
    assert!(!client.came(tag) && !served.data().join("d").exists());
    // The job holds it back and nothing else: without the rule it is made.
    served.set_rules("");
    client.wait(tag).done().unwrap();
}

#[test]
fn a_wait_without_news_is_not_answered_and_can_be_flushed() {
    let served = Served::plain("wait");
    let mut client = served.client();
    client.identity = NO_IDENTITY;
    for _ in 0..3 {
        let tag = client.send(HandleList::NONE, ExtRequest::Events);
        client.ping();
        assert!(!client.came(tag));
        assert!(client.flush(tag), "it was not answered");
    }
    let tag = client.send(HandleList::NONE, ExtRequest::Events);
    client.ping();
    assert!(!client.came(tag), "and neither by the end of the one before");
    assert!(client.reconnect().resumed, "nor is it in the way of another connection");
    client.identity = IDENTITY;
    client.mkdir("d").unwrap();
}

#[test]
fn a_wait_ends_with_the_server() {
    let mut served = Served::plain("drain");
    let mut client = served.client();
    client.identity = NO_IDENTITY;
    let tag = client.send(HandleList::NONE, ExtRequest::Events);
    client.ping();
    served.stop();
    assert_eq!(client.wait(tag).own(), Ok(ExtReply::Events { data: b"" }));
    client.expect_closed();
}

#[test]
fn a_request_that_nobody_waits_for_any_more_is_flushed_in_the_dialect_too() {
    let served = Setup::new("flush").rules(crate::peer::SLOW).start();
    let mut client = served.client_of("x", USER, "slow");
    client.owe();
    let root = client.root.clone();
    let mkdir = Request::Mkdir { dfid: handle_fid(0), name: b"d", mode: 0o755, gid: USER };
    let tag = client.send(HandleList::one(&root), mkdir);
    assert!(client.flush(tag));
    let waits = lock_request(1, LockKind::Write, "two", LOCK_BLOCK);
    client.identify(2, USER, "").unwrap();
    client.create(1, "f");
    let mut other = served.client();
    other.open_name(1, "f", open::RDWR).unwrap();
    assert_eq!(other.lock(1, LockKind::Write, "one"), Ok(LockStatus::Success));
    let tag = client.send(HandleList::NONE, waits);
    assert!(client.flush(tag), "a lock that waits");
    assert_eq!(other.lock(1, LockKind::Unlock, "one"), Ok(LockStatus::Success));
    assert_eq!(other.lock(1, LockKind::Write, "three"), Ok(LockStatus::Success));
    assert!(!served.data().join("d").exists());
    assert_eq!(fs::read_dir(served.data()).unwrap().count(), 1);
    // What is flushed and not known is answered all the same.
    client.call(HandleList::NONE, Request::Flush { oldtag: Tag(4000) }).done().unwrap();
}

#[test]
fn a_retired_identity_is_unknown_and_its_open_files_stay_open() {
    let served = Served::plain("retire");
    let mut client = served.client();
    client.create(1, "f");
    client.identify(2, USER, "").unwrap();
    let retire = ExtRequest::Retire { identity: IDENTITY };
    let header = RequestHeader { reply_slot: NOSLOT, ..RequestHeader::SESSION };
    client.send_as(Tag(9), &header, &retire.into());
    assert_eq!(client.wait(Tag(9)).own(), Ok(ExtReply::Retire));
    let root = client.root.clone();
    client.identity = IDENTITY;
    assert_eq!(client.lookup(&root, "f"), Err(EINVAL));
    client.identity = 2;
    client.write(1, 0, b"x").unwrap();
    client.identify(IDENTITY, USER, "").unwrap();
    client.lookup(&root, "f").unwrap();
}

#[test]
fn locks_hold_against_plain_clients_and_other_sessions_alike() {
    let served = Served::plain("locks");
    let mut client = with_lock(&served);
    let mut plain = P9Channel::connect(served.tcp());
    plain.offer(8192, b"9P2000.L");
    let mut ask = |request: Request<'_>| {
        let mut bytes = Vec::new();
        request.encode(Tag(1), &mut bytes);
        plain.send_bytes(&bytes);
        plain.try_next().unwrap().0
    };
    let (fid, afid, uname, aname, n_uname) = (Fid(0), NOFID, &b""[..], &b"x"[..], USER);
    ask(Request::Attach { fid, afid, uname, aname, n_uname });
    let mut space = Vec::new();
    let names = ninep::NameList::pack([&b"f"[..]], &mut space).unwrap();
    ask(Request::Walk { fid, newfid: Fid(1), names });
    ask(Request::Lopen { fid: Fid(1), flags: open::RDWR });
    let lock = |answer: Vec<u8>| match Reply::decode(&answer).unwrap().1 {
        Reply::Lock { status } => status,
        other => panic!("{other:?}"),
    };
    let wanted = lock_request(1, LockKind::Write, "plain", 0);
    assert_eq!(lock(ask(wanted)), LockStatus::Blocked);
    client.lose();
    assert_eq!(lock(ask(wanted)), LockStatus::Blocked);
    client.reconnect();
    assert_eq!(client.lock(1, LockKind::Unlock, "one"), Ok(LockStatus::Success));
    assert_eq!(lock(ask(wanted)), LockStatus::Success);
    assert_eq!(client.lock(1, LockKind::Write, "one"), Ok(LockStatus::Blocked));
}
