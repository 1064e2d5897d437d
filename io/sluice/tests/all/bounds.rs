//! What one client can take of a proxy: every bound of docs/CONFIG.md, by its key, and
//! clients that do not read, do not finish, or do not make sense.
//!
//! Reading stops at a bound and goes on below it: nothing is lost and nobody else is
//! kept waiting.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ninep::{Fid, LOCK_BLOCK, LockKind, LockStatus, Reply, Request, Tag, open};

use rustix::process::Signal;

use crate::common::{P9Client, Proxy, Setup, USER, until};

const ENFILE: u32 = 23;
const ENOLCK: u32 = 37;
/// A job may read a thousand bytes, and the next ones a quarter of an hour later.
const NO_SECOND_READ: &str =
    "[[rule]]\nname = \"slow\"\nper = [\"jobid\"]\nlimit = { read = \"1B/s\" }\n";
const MIB: u64 = 1 << 20;

fn read(fid: u32, offset: u64, count: u32) -> Request<'static> {
    Request::Read { fid: Fid(fid), offset, count }
}

/// A client with a file open as fid 1 whose job has had its one read under that rule.
fn reader(proxy: &Proxy, job: &str) -> P9Client {
    fs::write(proxy.data().join("f"), [1; 1000]).unwrap();
    let mut client = proxy.client_of(&format!("x?job={job}"), USER);
    client.open_name(1, "f", open::RDONLY).unwrap();
    client.read(1, 0, 1000).unwrap();
    client
}

#[test]
fn one_connection_too_many_is_closed_and_the_others_are_not() {
    let proxy = Setup::new("connections").top("connections_max = 3").start();
    let mut three: Vec<_> = (0..3).map(|_| proxy.client()).collect();
    proxy.connect().expect_closed();
    three.iter_mut().for_each(|client| assert!(client.stat(0).is_ok()));
    three.pop();
    // The place is free as soon as the proxy has seen the end.
    let mut next = None;
    until("a place is free", || {
        let mut client = proxy.connect();
        let sent = client.try_send_bytes(&message(ninep::NOTAG, &VERSION));
        let answered = sent.is_ok() && client.try_next().is_some();
        next = answered.then_some(client);
        answered
    });
    next.unwrap().attach(0, "x", USER).unwrap();
}

#[test]
fn one_fid_too_many_is_enfile_until_one_is_clunked() {
    let proxy = Setup::new("fids").top("fids_max = 4").start();
    let mut client = proxy.client();
    (1..4).for_each(|fid| drop(client.walk(0, fid, &[]).unwrap()));
    assert_eq!(client.walk(0, 4, &[]), Err(ENFILE));
    assert_eq!(client.attach(4, "x", USER), Err(ENFILE));
    // A fid that changes is not one more.
    client.create(3, "f", open::RDWR, 0o644).unwrap();
    client.clunk(1).unwrap();
    client.walk(0, 4, &[]).unwrap();
}

#[test]
fn reading_stops_at_tags_max_and_goes_on_below_it() {
    let proxy = Setup::new("tags").top("tags_max = 4").rules(NO_SECOND_READ).start();
    let mut client = reader(&proxy, "a");
    let mut waiting: Vec<_> = (0..3).map(|_| client.send(&read(1, 0, 1000))).collect();
    let flush = Request::Flush { oldtag: ninep::NOTAG };
    client.done(&flush).unwrap();
    waiting.push(client.send(&read(1, 0, 1000)));
    // Four are under way; these wait in the socket, even what would be answered at once.
    let mut later: Vec<_> = (0..50).map(|_| client.send(&flush)).collect();
    assert!(!client.readable(100));
    proxy.client().stat(0).unwrap();
    fs::write(proxy.dir.join("rules.toml"), "").unwrap();
    proxy.signal(Signal::HUP);
    later.append(&mut waiting);
    later.into_iter().for_each(|tag| assert!(client.wait(tag).is_ok()));
}

#[test]
fn a_client_that_is_gone_while_its_connection_is_paused_is_forgotten() {
    let proxy = Setup::new("pausedgone").top("tags_max = 2").rules(NO_SECOND_READ).start();
    let mut next = proxy.client();
    let before = proxy.sockets();
    for reset in [false, true] {
        let mut client = reader(&proxy, if reset { "a" } else { "b" });
        for _ in 0..4 {
            client.send(&read(1, 0, 1000));
        }
        assert!(!client.readable(50));
        if reset {
            let now = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(client.fd(), now).unwrap();
        }
        drop(client);
        until("the connection is closed", || proxy.sockets() == before);
    }
    next.stat(0).unwrap();
}

#[test]
fn at_most_half_of_the_tags_wait_for_locks_and_what_ends_that_is_always_read() {
    let proxy = Setup::new("locktags").top("tags_max = 8").start();
    let mut client = proxy.client();
    client.make(1, "f");
    let (write, all) = (LockKind::Write, (0, 0));
    let lock = |proc| P9Client::lock_request(1, write, all, ("c", proc), LOCK_BLOCK);
    let blocked = Ok(Reply::Lock { status: LockStatus::Blocked });
    let granted = Ok(Reply::Lock { status: LockStatus::Success });
    assert_eq!(client.call(&lock(0)).reply(), granted);
    let mut waiting: BTreeMap<_, _> =
        (1..30).map(|proc| (client.send(&lock(proc)), proc)).collect();
    let told_to_come_again = |client: &mut P9Client, waiting: &mut BTreeMap<_, _>| {
        let frame = client.next();
        assert_eq!(frame.reply(), blocked);
        waiting.remove(&frame.tag()).unwrap();
    };
    (0..25).for_each(|_| told_to_come_again(&mut client, &mut waiting));
    assert!(!client.readable(50));
    // A place that a flush frees can be had, once.
    let (flushed, _) = waiting.pop_first().unwrap();
    assert_eq!(client.call(&Request::Flush { oldtag: flushed }).reply(), Ok(Reply::Flush));
    waiting.extend((30..32).map(|proc| (client.send(&lock(proc)), proc)));
    told_to_come_again(&mut client, &mut waiting);
    assert!(!client.readable(50));
    // All wait for one of this very connection, and then for each other.
    let mut holder = 0;
    while !waiting.is_empty() {
        let unlock = client.lock(1, LockKind::Unlock, all, ("c", holder));
        assert_eq!(unlock, Ok(LockStatus::Success));
        let frame = client.next();
        assert_eq!(frame.reply(), granted);
        holder = waiting.remove(&frame.tag()).unwrap();
    }
}

#[test]
fn a_connection_that_may_have_one_request_never_waits_for_a_lock() {
    let proxy = Setup::new("onetag").top("tags_max = 1").start();
    let mut client = proxy.client();
    client.make(1, "f");
    let lock = |proc| P9Client::lock_request(1, LockKind::Write, (0, 0), ("c", proc), LOCK_BLOCK);
    for (proc, status) in [(0, LockStatus::Success), (1, LockStatus::Blocked)] {
        assert_eq!(client.call(&lock(proc)).reply(), Ok(Reply::Lock { status }));
    }
}

#[test]
fn owners_of_locks_hold_no_more_descriptors_than_fids_do() {
    let proxy = Setup::new("lockowners").top("fids_max = 4").start();
    let mut client = proxy.client();
    client.make(1, "f");
    let before = proxy.descriptors();
    let (read, unlock, all) = (LockKind::Read, LockKind::Unlock, (0, 0));
    for proc in 0..4 {
        assert_eq!(client.lock(1, read, all, ("c", proc)), Ok(LockStatus::Success));
    }
    assert_eq!(client.lock(1, read, all, ("c", 4)), Err(ENOLCK));
    until("each has one", || proxy.descriptors() == before + 4);
    client.lock(1, unlock, all, ("c", 0)).unwrap();
    // Processes that come and go, as below a server that forks, leave nothing.
    for proc in 4..1000 {
        assert_eq!(client.lock(1, read, all, ("c", proc)), Ok(LockStatus::Success));
        client.lock(1, unlock, all, ("c", proc)).unwrap();
    }
    until("three are left", || proxy.descriptors() == before + 3);
    client.clunk(1).unwrap();
    until("all are closed", || proxy.descriptors() < before);
}

#[test]
fn bytes_in_flight_are_bounded_and_nothing_is_lost() {
    let top = "msize_max = \"64KiB\"\nbytes_in_flight_max = \"128KiB\"";
    let proxy = Setup::new("bytes").top(top).start();
    let content: Vec<u8> = (0..4 * MIB).map(|i| (i % 241) as u8).collect();
    fs::write(proxy.data().join("f"), &content).unwrap();
    let mut client = proxy.connect();
    assert_eq!(client.version(1 << 20), 65_536);
    client.attach(0, "x", USER).unwrap();
    client.open_name(1, "f", open::RDONLY).unwrap();
    let count = 60_000;
    let asked: Vec<_> =
        (0..200).map(|i| (client.send(&read(1, i * 15_000, count)), i * 15_000)).collect();
    for (tag, offset) in asked {
        let expected = &content[offset as usize..offset as usize + count as usize];
        assert_eq!(client.wait(tag).reply(), Ok(Reply::Read { data: expected }));
    }
}

#[test]
fn who_sends_much_before_attach_is_closed() {
    let proxy = Setup::new("before").top("bytes_before_attach = \"1KiB\"").start();
    let mut client = proxy.connect();
    client.version(65_536);
    let mut bytes = Vec::new();
    for tag in 0..20 {
        Request::Write { fid: Fid(0), offset: 0, data: &[7; 100] }.encode(Tag(tag), &mut bytes);
    }
    let _ = client.try_send_bytes(&bytes);
    while let Some(frame) = client.try_next() {
        assert_eq!(frame.reply().map(drop), Err(9));
    }
    // As many bytes after the attach are welcome.
    let mut client = proxy.client();
    client.make(1, "f");
    assert_eq!(client.write(1, 0, &[7; 5000]), Ok(5000));
}

#[test]
fn who_does_not_attach_in_time_is_closed_and_who_did_stays() {
    let proxy = Setup::new("timeout").top("attach_timeout = \"200ms\"").start();
    // A test that waits for a processor may be late.
    let mut attached = None;
    until("one attaches in time", || {
        attached = attach(proxy.connect());
        attached.is_some()
    });
    let (mut silent, mut versioned) = (proxy.connect(), proxy.connect());
    let _ = versioned.try_send_bytes(&message(ninep::NOTAG, &VERSION));
    silent.expect_closed();
    while let Some(frame) = versioned.try_next() {
        assert!(frame.is_ok());
    }
    attached.unwrap().stat(0).unwrap();
}

#[test]
fn time_in_which_the_proxy_was_stopped_makes_no_client_late() {
    let patience = Duration::from_secs(1);
    let proxy = Setup::new("stopped").top("attach_timeout = \"1s\"").start();
    // A test that waits for a processor may be late.
    until("one attaches that asked while the proxy was stopped", || {
        let mut client = proxy.connect();
        let greeted = greet(&mut client);
        proxy.pause();
        let asked = client.try_send_bytes(&message(Tag(0), &ATTACH)).is_ok();
        std::thread::sleep(patience + patience / 2);
        proxy.signal(Signal::CONT);
        greeted && asked && client.try_next().is_some_and(|frame| frame.is_ok())
    });
}

const VERSION: Request<'_> = Request::Version { msize: 8192, version: b"9P2000.L" };
const ATTACH: Request<'_> =
    Request::Attach { fid: Fid(0), afid: ninep::NOFID, uname: b"", aname: b"x", n_uname: USER };

fn message(tag: Tag, request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(tag, &mut bytes);
    bytes
}

/// Whether the proxy answers the first message of a client.
pub(crate) fn greet(client: &mut P9Client) -> bool {
    client.try_send_bytes(&message(ninep::NOTAG, &VERSION)).is_ok() && client.try_next().is_some()
}

/// The client as soon as it is attached; `None` if it was closed before.
fn attach(mut client: P9Client) -> Option<P9Client> {
    for (tag, request) in [(ninep::NOTAG, VERSION), (Tag(0), ATTACH)] {
        client.try_send_bytes(&message(tag, &request)).ok()?;
        assert!(client.try_next()?.is_ok());
    }
    Some(client)
}

#[test]
fn a_client_that_never_reads_takes_neither_memory_nor_slots() {
    let target = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"t\"\n\
                  [[target]]\nname = \"t\"\nslots_max = 1\n";
    let proxy = Setup::new("slow").tables(target).start();
    fs::write(proxy.data().join("f"), vec![5; 16 << 20]).unwrap();
    let mut other = proxy.client();
    other.open_name(1, "f", open::RDONLY).unwrap();
    other.make(2, "g");
    let before = proxy.rss();
    let mut slow: Vec<_> = (0..4).map(|_| proxy.client()).collect();
    for client in &mut slow {
        client.open_name(1, "f", open::RDONLY).unwrap();
        for i in 0..800 {
            client.send(&read(1, i % 256 * 65_536, 65_536));
        }
    }
    // Every one of these goes through the only slot of the target.
    for i in 0..200 {
        assert_eq!(other.read(1, i * 65_536, 65_536).unwrap().len(), 65_536);
        assert_eq!(other.write(2, i * 10, b"0123456789"), Ok(10));
    }
    let grown = proxy.rss().saturating_sub(before);
    // Of 50 MiB asked for, each may have bytes_in_flight_max, 16 MiB, under way; the
    // rest is left in the sockets.
    assert!(grown <= 4 * 20 * MIB, "{} MiB", grown / MIB);
    // And when they do read, everything is there.
    for mut client in slow {
        for _ in 0..800 {
            let frame = client.next();
            let Ok(Reply::Read { data }) = frame.reply() else { panic!("{:?}", frame.tag()) };
            assert_eq!(data.len(), 65_536);
        }
    }
}

#[test]
fn when_all_pipes_are_held_by_a_slow_reader_others_get_their_payload_all_the_same() {
    let proxy = Setup::new("pipes").top("pipes_max = 1").start();
    let content: Vec<u8> = (0..4 * MIB).map(|i| (i % 239) as u8).collect();
    fs::write(proxy.data().join("f"), &content).unwrap();
    let (mut slow, mut other) = (proxy.client(), proxy.client());
    slow.open_name(1, "f", open::RDONLY).unwrap();
    other.open_name(1, "f", open::RDONLY).unwrap();
    let count = 1_000_000;
    let asked: Vec<_> = (0..12).map(|i| (slow.send(&read(1, i * 77_777, count)), i)).collect();
    for i in 0..50 {
        let offset = i * 50_001;
        let expected = &content[offset as usize..offset as usize + count as usize];
        assert!(other.read(1, offset, count).unwrap() == expected);
    }
    for (tag, i) in asked {
        let start = i as usize * 77_777;
        let frame = slow.wait(tag);
        let Ok(Reply::Read { data }) = frame.reply() else { panic!("{tag}") };
        assert!(data == &content[start..start + count as usize]);
    }
}

#[test]
fn a_thousand_idle_connections_take_at_most_64_kib_each() {
    let proxy = Proxy::plain("thousand");
    // The first ones warm up what all share.
    let warm: Vec<_> = (0..10).map(|_| proxy.client()).collect();
    let before = proxy.rss();
    let mut clients: Vec<_> = (0..1000).map(|_| proxy.client()).collect();
    let each = proxy.rss().saturating_sub(before) / 1000;
    println!("{each} bytes for each idle connection");
    assert!(each <= 65_536, "{each} bytes");
    clients.iter_mut().step_by(100).for_each(|client| assert!(client.stat(0).is_ok()));
    let open = proxy.sockets();
    drop(clients);
    until("all are closed", || proxy.sockets() + 1000 == open);
    drop(warm);
}

#[test]
fn garbage_and_half_a_message_end_at_most_their_own_connection() {
    // None is closed because its time is over.
    let proxy = Setup::new("garbage").top("attach_timeout = \"1h\"").start();
    let mut good = proxy.client();
    let sockets = proxy.sockets();
    let mut noise = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise as u8
    };
    for round in 0..200 {
        let mut client = proxy.connect();
        if round % 2 == 1 {
            client.version(8192);
        }
        let bytes: Vec<u8> = (0..500).map(|_| random()).collect();
        let _ = client.try_send_bytes(&bytes);
    }
    // Well-formed sizes and types with random bodies, after an attach.
    for _ in 0..200 {
        let mut client = proxy.client();
        for tag in 1..30u8 {
            let len = 7 + random() % 60;
            let mut bytes = vec![len, 0, 0, 0, random(), tag, 0];
            bytes.extend((7..len).map(|_| random() % 8));
            if client.try_send_bytes(&bytes).is_err() {
                break;
            }
        }
    }
    // Half a message, and then the end.
    let mut client = proxy.client();
    let mut bytes = Vec::new();
    Request::Write { fid: Fid(0), offset: 0, data: &[1; 100_000] }.encode(Tag(1), &mut bytes);
    client.send_bytes(&bytes[..50_000]);
    drop(client);
    good.stat(0).unwrap();
    until("they are closed", || proxy.sockets() == sockets);
    good.stat(0).unwrap();
}

#[test]
fn half_a_message_is_waited_for_and_then_served() {
    let proxy = Proxy::plain("half");
    let (mut client, mut other) = (proxy.client(), proxy.client());
    client.make(1, "f");
    let mut bytes = Vec::new();
    Request::Write { fid: Fid(1), offset: 0, data: &[9; 100_000] }.encode(Tag(1), &mut bytes);
    for part in bytes.chunks(33_333) {
        client.send_bytes(part);
        other.stat(0).unwrap();
    }
    assert_eq!(client.wait(Tag(1)).reply(), Ok(Reply::Write { count: 100_000 }));
}

#[test]
fn a_file_cut_while_it_is_sent_gives_shorter_replies_and_whole_ones() {
    let proxy = Proxy::plain("cut");
    let path = proxy.data().join("f");
    fs::write(&path, vec![3; 4 << 20]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                for size in [0, 1_000_000, 4 << 20, 5000, 4 << 20] {
                    file.set_len(size).unwrap();
                }
            }
        });
        let mut client = proxy.connect();
        client.version(4 << 20);
        client.attach(0, "x", USER).unwrap();
        client.open_name(1, "f", open::RDONLY).unwrap();
        let began = Instant::now();
        let mut rounds = 0;
        while began.elapsed() < Duration::from_secs(3) {
            let tags: Vec<_> =
                (0..8).map(|i| client.send(&read(1, i * 500_000, 1 << 20))).collect();
            for tag in tags {
                let frame = client.wait(tag);
                let Ok(Reply::Read { data }) = frame.reply() else { panic!("{tag}") };
                assert!(data.len() <= 1 << 20 && data.iter().all(|b| matches!(b, 0 | 3)));
            }
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        println!("{rounds} rounds of 8 reads");
        assert!(client.stat(1).is_ok());
    });
}

#[test]
fn twenty_thousand_jobs_that_come_and_go_leave_nothing_behind() {
    let proxy = Setup::new("jobs").rules("[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n").start();
    let mut client = proxy.client();
    // A hundred jobs at a time: attach, use, forget.
    let mut round = |from: u32, to: u32| {
        for first in (from..to).step_by(100) {
            let anames: Vec<_> =
                (first..first + 100).map(|job| format!("x?job=job.{job}")).collect();
            all(&mut client, |i| Request::Attach {
                fid: Fid(1 + i),
                afid: ninep::NOFID,
                uname: b"",
                aname: anames[i as usize].as_bytes(),
                n_uname: USER + i % 7,
            });
            all(&mut client, |i| Request::Getattr { fid: Fid(1 + i), mask: 1 });
            all(&mut client, |i| Request::Clunk { fid: Fid(1 + i) });
        }
    };
    // The dispatcher remembers 65,536 idle classes, so that a job which comes back finds
    // its debts, and then the heap still settles for a while.
    round(0, 160_000);
    let (before, open) = (proxy.rss(), proxy.descriptors());
    round(160_000, 180_000);
    let grown = proxy.rss().saturating_sub(before);
    println!("{} MiB after 160,000 jobs, {grown} bytes more after 20,000 others", before / MIB);
    // A class that stayed for each job would be 25 MiB.
    assert!(grown <= 12 * MIB, "{grown} bytes");
    assert_eq!(proxy.descriptors(), open);
}

/// Sends a hundred requests at once; each must succeed.
fn all<'a>(client: &mut P9Client, request: impl Fn(u32) -> Request<'a>) {
    let tags: Vec<_> = (0..100).map(|i| client.send(&request(i))).collect();
    for tag in tags {
        client.wait(tag).reply().unwrap();
    }
}
