//! What one client can take of what all share: descriptors, places in tables, locks, memory. It
//! is refused at its part, others get theirs, and what was taken comes back.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use ninep::{Fid, LockKind, LockStatus, Request};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use testkit::p9::{P9Address, P9Channel};

use crate::bounds::greet;
use crate::common::{P9Client, Proxy, Setup, USER, until};

const ENOMEM: u32 = 12;
const ENFILE: u32 = 23;
const ENOLCK: u32 = 37;
const MIB: u64 = 1 << 20;

/// A client at another address than [`Proxy::client`]'s.
fn other(proxy: &Proxy) -> P9Client {
    let mut client = P9Client::open_door(&P9Address::From(Ipv4Addr::new(127, 0, 0, 2), proxy.tcp));
    client.version(1 << 20);
    client.attach(0, "x", USER + 1).unwrap();
    client
}

/// Sets how many descriptors the proxy may have; what it could before.
fn set_descriptors(proxy: &Proxy, limit: Rlimit) -> Rlimit {
    let pid = Some(Pid::from_child(&proxy.child));
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap()
}

#[test]
fn without_descriptors_nothing_is_accepted_for_a_while_and_others_are_served() {
    let mut proxy = Setup::new("nodescriptors").start();
    let mut client = proxy.client();
    let began = Instant::now();
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let before = set_descriptors(&proxy, Rlimit { current: Some(4), maximum });
    let mut late = proxy.connect();
    for _ in 0..300 {
        client.stat(0).unwrap();
    }
    assert!(!late.readable(300));
    set_descriptors(&proxy, before);
    late.version(1 << 16);
    late.attach(0, "x", USER).unwrap();
    let tenths = began.elapsed().as_millis() as u64 / 100;
    proxy.signal(Signal::TERM);
    assert!(proxy.wait().success());
    // Each attempt is a line or counted as left out. Without the pause there are thousands.
    let text = proxy.rest_of_stderr();
    let attempts: u64 = text
        .lines()
        .filter(|line| line.contains("proxy::accept"))
        .map(|line| line.split_once("count=").map_or("1", |(_, rest)| rest))
        .map(|count| count.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert!((1..=tenths + 2).contains(&attempts), "{attempts} in {tenths} tenths: {text}");
}

#[test]
fn one_client_cannot_take_the_open_files_of_all() {
    let proxy = Setup::new("openfiles").top("open_files_max = 90").start();
    fs::write(proxy.data().join("f"), "text").unwrap();
    let mut greedy = proxy.client();
    greedy.walk(0, 90, &[]).unwrap();
    let refused = (1..).find_map(|fid| {
        let opened = greedy.walk(0, fid, &["f"]).and_then(|_| greedy.open(fid, 0));
        opened.err().map(|errno| (fid, errno))
    });
    // Of thirty, its root and the copy of that are two.
    assert_eq!(refused, Some((29, ENFILE)));
    // A second connection of it is no second client.
    let mut again = proxy.connect();
    again.version(1 << 16);
    assert_eq!(again.attach(0, "x", USER), Err(ENFILE));
    // Another user of its peer, and another peer.
    let mut beside = proxy.client_of("x", USER + 1);
    beside.open_name(1, "f", 0).unwrap();
    let mut other = other(&proxy);
    for fid in 1..5 {
        other.open_name(fid, "f", 0).unwrap();
    }
    // Nothing is made where there is no fid for it.
    assert_eq!(greedy.create(90, "new", 1, 0o644), Err(ENFILE));
    assert!(!proxy.data().join("new").exists());
    greedy.clunk(1).unwrap();
    drop((beside, other));
    // The part of who stays grows again.
    until("the others are gone", || greedy.open_name(1, "f", 0).is_ok());
    drop(greedy);
    until("all is given back", || {
        let mut again = proxy.connect();
        again.version(1 << 16);
        again.attach(0, "x", USER).is_ok() && again.open_name(1, "f", 0).is_ok()
    });
}

#[test]
fn a_file_that_several_fids_share_is_held_until_the_last_is_clunked() {
    let proxy = Setup::new("sharedfids").top("open_files_max = 21").start();
    fs::write(proxy.data().join("f"), "text").unwrap();
    let mut client = proxy.client();
    // Each is walked to, cloned and clunked: the descriptor stays, and a fid counts too.
    for fid in 1..4 {
        client.walk(0, 10, &["f"]).unwrap();
        client.walk(10, fid, &[]).unwrap();
        client.clunk(10).unwrap();
    }
    assert_eq!(client.walk(0, 10, &["f"]), Err(ENFILE));
    client.clunk(1).unwrap();
    client.walk(0, 10, &["f"]).unwrap();
}

#[test]
fn one_client_cannot_take_the_locks_of_all() {
    let proxy = Setup::new("manylocks").top("locks_max = 30").start();
    let mut greedy = proxy.client();
    greedy.make(1, "f");
    let lock =
        |client: &mut P9Client, at: u64| client.lock(1, LockKind::Write, (2 * at, 1), ("c", 1));
    let refused = (0..).find_map(|at| lock(&mut greedy, at).err().map(|errno| (at, errno)));
    assert_eq!(refused, Some((10, ENOLCK)));
    let mut other = other(&proxy);
    fs::set_permissions(proxy.data().join("f"), Permissions::from_mode(0o666)).unwrap();
    other.open_name(2, "f", 2).unwrap();
    let granted = other.lock(2, LockKind::Write, (1000, 1), ("d", 1));
    assert_eq!(granted, Ok(LockStatus::Success));
    let unlocked = greedy.lock(1, LockKind::Unlock, (0, 0), ("c", 1));
    assert_eq!(unlocked, Ok(LockStatus::Success));
    assert_eq!(lock(&mut greedy, 1), Ok(LockStatus::Success));
}

#[test]
fn values_of_extended_attributes_do_not_take_the_memory_of_all() {
    let bounds = "msize_max = \"4KiB\"\nbytes_in_flight_max = \"16KiB\"\nmemory_max = \"96KiB\"";
    let proxy = Setup::new("xattrsinks").top(bounds).start();
    let mut greedy = proxy.client();
    let sink = |client: &mut P9Client, fid: u32| {
        client.walk(0, fid, &[]).unwrap();
        let size = 8 << 10;
        client.done(&Request::Xattrcreate { fid: Fid(fid), name: b"user.a", size, flags: 0 })
    };
    let refused = (1..).find_map(|fid| sink(&mut greedy, fid).err().map(|errno| (fid, errno)));
    assert_eq!(refused, Some((5, ENOMEM)));
    assert_eq!(sink(&mut other(&proxy), 1), Ok(()));
    drop(greedy);
    until("all is given back", || sink(&mut proxy.client(), 1).is_ok());
}

#[test]
fn whoever_fills_the_table_of_connections_makes_room_for_others() {
    let proxy = Setup::new("fulltable").top("connections_max = 12").start();
    let mut many: Vec<_> = (0..12).map(|_| proxy.client()).collect();
    // Its own next one takes no place of them.
    proxy.connect().expect_closed();
    let mut other = other(&proxy);
    other.stat(0).unwrap();
    many.retain_mut(|client| !client.readable(0));
    assert_eq!(many.len(), 11);
    for client in &mut many {
        client.stat(0).unwrap();
    }
}

#[test]
fn newcomers_that_come_at_once_get_no_more_places_than_there_are() {
    const MOST: usize = 20;
    let top = format!("connections_max = {MOST}\nattach_timeout = \"1h\"");
    let proxy = Setup::new("newcomers").top(&top).start();
    let before = proxy.sockets();
    let mut many: Vec<_> = (0..MOST).map(|_| proxy.connect()).collect();
    until("they have their places", || proxy.sockets() == before + MOST);
    // All of these wait when it accepts again, and the others have been idle for a second.
    proxy.pause();
    std::thread::sleep(Duration::from_millis(1100));
    let from = P9Address::From(Ipv4Addr::new(127, 0, 0, 2), proxy.tcp);
    let mut newcomers: Vec<_> = (0..2 * MOST).map(|_| P9Client::open_door(&from)).collect();
    proxy.signal(Signal::CONT);
    newcomers.retain_mut(greet);
    assert!(!newcomers.is_empty());
    // A client sees the end of its connection before the proxy has closed its socket.
    until("those without a place are closed", || proxy.sockets() <= before + MOST);
    many.retain_mut(|client| !client.readable(0));
    newcomers.retain_mut(|client| !client.readable(0));
    assert!(many.len() + newcomers.len() <= MOST, "{} and {}", many.len(), newcomers.len());
}

#[test]
fn abandoned_sessions_make_room_for_others() {
    let proxy = Setup::new("fullsessions").top("sessions_max = 12").start();
    let abandon = |id: u128| {
        let mut channel = P9Channel::connect(P9Address::Tcp(proxy.tcp));
        channel.begin(1 << 16);
        let began = channel.session(id, 0, 4, "x").map(drop);
        channel.lose();
        began
    };
    (0..12).for_each(|id| abandon(id + 1).unwrap());
    let mut other = P9Channel::connect(P9Address::From(Ipv4Addr::new(127, 0, 0, 2), proxy.tcp));
    other.begin(1 << 16);
    // A connection that was lost is noticed by and by.
    until("there is a place", || other.session(99, 0, 4, "x").is_ok());
    // Sessions that are in use are not taken.
    let proxy = Setup::new("usedsessions").top("sessions_max = 2").start();
    let mut used: Vec<_> =
        (1..4).map(|id| (id, P9Channel::connect(P9Address::Tcp(proxy.tcp)))).collect();
    let began = used.iter_mut().map(|(id, channel)| {
        channel.begin(1 << 16);
        channel.session(*id, 0, 4, "x").map(drop)
    });
    assert_eq!(began.collect::<Vec<_>>(), [Ok(()), Ok(()), Err(ENFILE)]);
}

#[test]
fn clients_that_do_not_read_hold_bounded_memory_and_a_burst_is_given_back() {
    const CLIENTS: usize = 30;
    const SIZE: u32 = 4 << 20;
    let bounds = "memory_max = \"64MiB\"\npipes_max = 0";
    let proxy = Setup::new("burst").top(bounds).start();
    fs::write(proxy.data().join("f"), vec![1; SIZE as usize]).unwrap();
    let mut probe = other(&proxy);
    let before = proxy.rss();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = proxy.connect();
            client.version(SIZE);
            client.attach(0, "x", USER).unwrap();
            client.open_name(1, "f", 0).unwrap();
            let read = Request::Read { fid: Fid(1), offset: 0, count: SIZE - 11 };
            for _ in 0..4 {
                client.send(&read);
            }
            client
        })
        .collect();
    // Others go on meanwhile, with large requests too.
    probe.open_name(1, "f", 0).unwrap();
    for _ in 0..300 {
        probe.read(1, 0, 1 << 19).unwrap();
        let grown = proxy.rss().saturating_sub(before);
        assert!(grown < 200 * MIB, "{} MiB more", grown / MIB);
    }
    drop(clients);
    until("memory is given back", || proxy.rss() < before + 40 * MIB);
    probe.stat(0).unwrap();
}
