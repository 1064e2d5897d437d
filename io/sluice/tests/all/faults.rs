//! What happens to clients when the proxy, its disk or its backend has a bad day.
//!
//! The slow backend is a frozen file system: everything that would change it waits,
//! in the kernel, until it is thawed. Nobody else may notice.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ninep::{Fid, LOCK_BLOCK, LockKind, LockStatus, Reply, Request, SetAttributes, Tag};
use ninep::{open, setattr};
use rustix::process::Signal;

use crate::common::{
    Image, P9Client, PATIENCE, Proxy, Setup, Tmpfs, USER, everybodys, skip, until,
};

const ENOSPC: u32 = 28;
const EDQUOT: u32 = 122;
/// What a backend call that hangs may cost anybody else.
const DELAY_MAX: Duration = Duration::from_millis(5);

fn mkdir(name: &[u8]) -> Request<'_> {
    Request::Mkdir { dfid: Fid(0), name, mode: 0o755, gid: u32::MAX }
}

fn getattr(fid: u32) -> Request<'static> {
    Request::Getattr { fid: Fid(fid), mask: 1 }
}

// ---- the proxy ends ----

#[test]
fn sigterm_answers_what_is_in_flight_takes_nothing_new_and_exits_0() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = \"20ops/s\"\n";
    let mut proxy = Setup::new("drain").rules(rules).start();
    let mut client = proxy.client();
    // In one piece, so that the proxy has all of them when it answers the first.
    let mut bytes = Vec::new();
    (1..=20).for_each(|tag| getattr(0).encode(Tag(tag), &mut bytes));
    client.send_bytes(&bytes);
    assert!(client.wait(Tag(1)).is_ok());
    proxy.signal(Signal::TERM);
    until("new connections are refused", || TcpStream::connect(proxy.tcp).is_err());
    until("those over the socket, too", || UnixStream::connect(proxy.socket()).is_err());
    for tag in 2..=20 {
        assert!(client.wait(Tag(tag)).is_ok());
    }
    client.expect_closed();
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(!proxy.socket().exists());
}

#[test]
fn a_client_that_goes_on_asking_does_not_keep_the_proxy_from_ending() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = \"100ops/s\"\n";
    // It does not end because its time is over.
    let setup = Setup::new("insist").rules(rules).top("drain_timeout = \"1h\"");
    let mut proxy = setup.start();
    let mut client = proxy.client();
    for tag in 1..=50 {
        client.send_as(Tag(tag), &getattr(0));
    }
    assert!(client.wait(Tag(1)).is_ok());
    proxy.signal(Signal::TERM);
    let began = Instant::now();
    // One more for every answer: without an end the proxy would never be idle.
    let mut tag = 51;
    while client.try_next().is_some() {
        assert!(began.elapsed() < PATIENCE, "it goes on answering");
        let mut bytes = Vec::new();
        getattr(0).encode(Tag(tag), &mut bytes);
        tag += 1;
        if client.try_send_bytes(&bytes).is_err() {
            break;
        }
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn sigterm_loses_no_reply_on_its_way_to_a_slow_reader_who_has_asked_for_more() {
    let mut proxy = Proxy::plain("drainslow");
    fs::write(proxy.data().join("f"), vec![6; 1 << 20]).unwrap();
    let mut client = proxy.client();
    rustix::net::sockopt::set_socket_recv_buffer_size(client.fd(), 64 << 10).unwrap();
    client.open_name(1, "f", open::RDONLY).unwrap();
    let mut bytes = Vec::new();
    for tag in 101..105 {
        let request = Request::Read { fid: Fid(1), offset: 0, count: 1 << 19 };
        request.encode(Tag(tag), &mut bytes);
    }
    client.send_bytes(&bytes);
    assert!(client.readable(PATIENCE.as_millis() as i64));
    proxy.signal(Signal::TERM);
    until("new connections are refused", || TcpStream::connect(proxy.tcp).is_err());
    // Too late to be answered; but closing a socket with unread input resets it.
    for tag in 201..211 {
        client.send_as(Tag(tag), &getattr(0));
    }
    for tag in 101..105 {
        let frame = client.wait(Tag(tag));
        let Ok(Reply::Read { data }) = frame.reply() else { panic!("{tag}") };
        assert_eq!(data.len(), 1 << 19);
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn draining_ends_after_its_timeout_whatever_is_left() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = \"1ops/s\"\n";
    let setup = Setup::new("draintimeout").rules(rules).top("drain_timeout = \"300ms\"");
    let mut proxy = setup.start();
    let mut client = proxy.client();
    // Ten minutes of work.
    let tags: Vec<_> = (0..600).map(|_| client.send(&getattr(0))).collect();
    assert!(client.wait(tags[0]).is_ok());
    proxy.signal(Signal::TERM);
    proxy.told("left unanswered after drain_timeout");
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn sigterm_tells_those_that_wait_for_a_lock_that_it_is_taken() {
    let mut proxy = Proxy::plain("drainlock");
    let (mut a, mut b) = (proxy.client(), proxy.client());
    a.make(1, "f");
    b.open_name(1, "f", open::RDWR).unwrap();
    a.lock(1, LockKind::Write, (0, 0), ("a", 1)).unwrap();
    let request = P9Client::lock_request(1, LockKind::Write, (0, 0), ("b", 1), LOCK_BLOCK);
    let waits = b.send(&request);
    b.stat(1).unwrap();
    proxy.signal(Signal::TERM);
    assert_eq!(b.wait(waits).reply(), Ok(Reply::Lock { status: LockStatus::Blocked }));
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn sighup_with_bad_rules_disturbs_nobody_and_good_ones_free_what_waits() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = \"1ops/s\"\n";
    let proxy = Setup::new("hup").rules(rules).start();
    let mut client = proxy.client();
    let sent = Instant::now();
    // Ten minutes of work.
    let tags: Vec<_> = (0..600).map(|_| client.send(&getattr(0))).collect();
    fs::write(proxy.dir.join("rules.toml"), "[[rule]]\nname = \"a\"\nlimit = \"fast\"\n").unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.told("stay in force");
    assert!(line.contains("/rules.toml:3:9: "), "{line}");
    // The old limit holds: one a second, and what it makes up for.
    let mut answered = 0;
    while answered < 3 || client.readable(200) {
        assert!(client.wait(tags[answered]).is_ok());
        answered += 1;
    }
    let most = sent.elapsed().as_secs() as usize + 3;
    assert!(answered <= most, "{answered} in {:?}", sent.elapsed());
    let began = Instant::now();
    fs::write(proxy.dir.join("rules.toml"), "").unwrap();
    proxy.signal(Signal::HUP);
    proxy.told("reloaded configuration and rules");
    for tag in &tags[answered..] {
        assert!(client.wait(*tag).is_ok());
    }
    // At one a second it would take most of ten minutes.
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_proxy_that_was_killed_starts_again_on_the_same_port_and_socket() {
    let proxy = Proxy::plain("killed");
    let (tcp, socket, data) = (proxy.tcp, proxy.socket(), proxy.data());
    let mut client = proxy.client();
    client.make(1, "f");
    client.write(1, 0, b"before").unwrap();
    client.done(&Request::Fsync { fid: Fid(1), datasync: 0 }).unwrap();
    client.lock(1, LockKind::Write, (0, 0), ("a", 1)).unwrap();
    let mut local = P9Client::unix(&socket);
    local.version(8192);
    proxy.crash();
    client.expect_closed();
    local.expect_closed();
    assert!(socket.exists());
    let listen = format!("listen = [\"tcp://{tcp}\", \"unix://{}\"]", socket.display());
    let proxy = Setup::new("killed").again().top(&listen).start();
    assert_eq!(proxy.tcp, tcp);
    let mut client = proxy.client();
    client.open_name(1, "f", open::RDWR).unwrap();
    assert_eq!(client.read(1, 0, 10).unwrap(), b"before");
    // The lock died with the proxy that held it.
    let status = client.lock(1, LockKind::Write, (0, 0), ("b", 1));
    assert_eq!(status, Ok(LockStatus::Success));
    P9Client::unix(&socket).version(8192);
    assert!(data.join("f").exists());
}

#[test]
fn a_second_proxy_does_not_take_the_socket_of_one_that_runs() {
    let proxy = Proxy::plain("second");
    let mut child = std::process::Command::new(crate::common::SLUICE)
        .args(["proxy", "--api", "off", "--export", "x=/tmp", "--listen"])
        .arg(format!("unix://{}", proxy.socket().display()))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut code = None;
    until("the second gives up", || {
        code = child.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    });
    assert_eq!(code, Some(Some(1)));
    P9Client::unix(&proxy.socket()).version(8192);
}

// ---- the proxy stands still ----

/// A session over the Unix socket, whose end the proxy can see as soon as it [hangs up](hang_up).
fn local(proxy: &Proxy, aname: &str) -> P9Client {
    let mut client = P9Client::unix(&proxy.socket());
    client.version(1 << 20);
    client.attach(0, aname, USER).unwrap();
    client
}

/// A command that another test starts may have the socket, too, for a moment: closing it alone
/// would not end it.
fn hang_up(client: &P9Client) {
    rustix::net::shutdown(client.fd(), rustix::net::Shutdown::Both).unwrap();
}

/// What was sent before is in the queue when this returns.
fn is_queued(client: &mut P9Client) {
    let nothing = Request::Flush { oldtag: Tag(4000) };
    assert_eq!(client.call(&nothing).reply(), Ok(Reply::Flush));
}

#[test]
fn what_a_client_sent_to_a_stopped_proxy_before_it_went_is_not_executed() {
    let proxy = Proxy::plain("stopped");
    let mut client = local(&proxy, "x");
    client.make(1, "f");
    let before = proxy.sockets();
    proxy.pause();
    client.send(&Request::Write { fid: Fid(1), offset: 0, data: b"old" });
    client.send(&mkdir(b"late"));
    hang_up(&client);
    proxy.signal(Signal::CONT);
    until("it is closed", || proxy.sockets() < before);
    assert!(!proxy.data().join("late").exists());
    assert_eq!(fs::read(proxy.data().join("f")).unwrap(), b"");
}

#[test]
fn what_was_queued_in_a_stopped_proxy_is_not_executed_after_its_client_went() {
    let Some(disk) = Image::mount("stoppedqueue-disk", 64, &[], "errors=continue") else { return };
    // What hangs has the only slot, and the rest waits behind it.
    let proxy = with_cold("stoppedqueue", &disk.dir, "slots_max = 1\n");
    let Frozen { proxy, disk } = &Frozen { proxy, disk };
    let mut stuck = local(proxy, "cold");
    // Their ends keep the thread that reads the sockets while another executes what is queued.
    let crowd: Vec<_> = (0..700).map(|_| local(proxy, "x")).collect();
    let mut client = local(proxy, "cold");
    let before = proxy.sockets();
    disk.freeze();
    let first = stuck.send(&mkdir(b"first"));
    is_queued(&mut stuck);
    client.send(&mkdir(b"late"));
    is_queued(&mut client);
    proxy.pause();
    let stopped = Instant::now();
    crowd.iter().for_each(hang_up);
    hang_up(&client);
    disk.thaw();
    // Nothing happens meanwhile: for less than a second the proxy takes nobody to have moved.
    while stopped.elapsed() < Duration::from_millis(1100) {
        std::thread::sleep(Duration::from_millis(100));
    }
    proxy.signal(Signal::CONT);
    assert!(stuck.wait(first).is_ok());
    until("all are closed", || proxy.sockets() < before - 700);
    // It had to wait for the slot behind whatever was queued before.
    assert_eq!(stuck.mkdir(0, "last"), Ok(()));
    assert!(disk.dir.join("first").exists());
    assert!(!disk.dir.join("late").exists());
}

// ---- the disk is full ----

/// An export `cold` of this directory beside `x`.
fn with_cold(name: &str, dir: &Path, mode: &str) -> Proxy {
    let tables = format!(
        "[[export]]\nname = \"x\"\ndir = \"data\"\n\
         [[export]]\nname = \"cold\"\ndir = \"{}\"\ntarget = \"t\"\n\
         [[target]]\nname = \"t\"\n{mode}",
        dir.display()
    );
    Setup::new(name).tables(&tables).start()
}

/// Writes to a new file until that fails; the errno and how many bytes went before.
fn fill(client: &mut P9Client, fid: u32, name: &str) -> (u32, u64) {
    client.make(fid, name);
    let mut at = 0;
    loop {
        match client.write(fid, at, &[7; 64 << 10]) {
            Ok(count) => at += u64::from(count),
            Err(errno) => return (errno, at),
        }
        assert!(at < 1 << 30, "it never ends");
    }
}

fn refill_after_enospc(proxy: &Proxy, size: u64) {
    let mut client = proxy.client_of("cold", USER);
    let (errno, written) = fill(&mut client, 1, "big");
    assert_eq!(errno, ENOSPC);
    assert!(written > size / 4 && written <= size, "{written} of {size}");
    let _ = client.done(&Request::Fsync { fid: Fid(1), datasync: 0 });
    // Reading goes on, other exports go on, and once there is room so does writing.
    assert_eq!(client.read(1, 0, 4096).unwrap(), vec![7; 4096]);
    proxy.client().make(1, "elsewhere");
    client.unlink(0, "big", 0).unwrap();
    client.clunk(1).unwrap();
    let mut room = false;
    until("there is room again", || {
        client.make(2, "again");
        room = client.write(2, 0, &[1; 64 << 10]) == Ok(64 << 10);
        client.clunk(2).unwrap();
        client.unlink(0, "again", 0).unwrap();
        room
    });
}

#[test]
fn a_full_tmpfs_is_enospc() {
    let Some(disk) = Tmpfs::mount("full", "2m") else { return };
    refill_after_enospc(&with_cold("fulltmpfs", &disk.dir, ""), 2 << 20);
}

#[test]
fn a_full_disk_is_enospc_in_every_write_mode() {
    for mode in ["direct", "dontcache", "paced", "cached"] {
        let options = "errors=continue";
        let Some(disk) = Image::mount(&format!("full-{mode}"), 16, &[], options) else { return };
        let proxy =
            with_cold(&format!("full{mode}"), &disk.dir, &format!("write_mode = \"{mode}\"\n"));
        refill_after_enospc(&proxy, 16 << 20);
    }
}

#[test]
fn reserved_blocks_are_not_for_users_of_the_proxy() {
    let Some(disk) = Image::mount("reserved", 32, &["-m", "40"], "errors=continue") else { return };
    let proxy = with_cold("reserved", &disk.dir, "");
    let mut client = proxy.client_of("cold", USER);
    assert_eq!(fill(&mut client, 1, "big").0, ENOSPC);
    let _ = client.done(&Request::Fsync { fid: Fid(1), datasync: 0 });
    let frame = client.call(&Request::Statfs { fid: Fid(0) });
    let Ok(Reply::Statfs(fs)) = frame.reply() else { panic!("{frame:?}") };
    assert!(fs.bfree * u64::from(fs.bsize) > 8 << 20, "{fs:?}");
}

#[test]
fn a_users_quota_binds_that_user_alone() {
    use nix::sys::quota::{Dqblk, QuotaType, QuotaValidFlags, quotactl_set};
    let mkfs = ["-O", "quota", "-E", "quotatype=usrquota"];
    let Some(disk) = Image::mount("quota", 32, &mkfs, "usrquota,errors=continue") else { return };
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let here = disk.dir.display().to_string();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&here)).unwrap();
    let device = line.split(' ').next().unwrap();
    let mut limit = Dqblk::default();
    // In blocks of 1 KiB.
    limit.set_blocks_hard_limit(2048);
    let set = quotactl_set(
        QuotaType::USRQUOTA,
        device,
        USER as i32,
        &limit,
        QuotaValidFlags::QIF_BLIMITS,
    );
    if let Err(error) = set {
        return skip(&format!("no quotas in this kernel: {error}"));
    }
    let proxy = with_cold("quota-proxy", &disk.dir, "");
    let (errno, written) = fill(&mut proxy.client_of("cold", USER), 1, "bound");
    assert_eq!(errno, EDQUOT);
    assert!(written <= 2 << 20, "{written}");
    let mut other = proxy.client_of("cold", USER + 1);
    other.make(1, "free");
    assert_eq!(other.write(1, 0, &[1; 64 << 10]), Ok(64 << 10));
}

// ---- a backend call hangs ----

/// Latencies of one request after the other, sorted.
struct Latencies(Vec<Duration>);

impl Latencies {
    fn of(count: usize, mut call: impl FnMut(usize)) -> Latencies {
        let timed = |i| {
            let began = Instant::now();
            call(i);
            began.elapsed()
        };
        let mut all: Vec<_> = (0..count).map(timed).collect();
        all.sort();
        Latencies(all)
    }

    fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

/// The machine has other work too, which no proxy can help: so the tenth of `count` calls in one
/// round at least. Who waits for a call that hangs, or for a thread's time to be over, does so
/// with each call of each round.
fn assert_undelayed(what: &str, count: usize, mut call: impl FnMut(usize)) {
    until(&format!("{what}: a tenth of them within {DELAY_MAX:?}"), || {
        let all = Latencies::of(count, &mut call);
        println!("{what}: median {:?}, p99 {:?}, max {:?}", all.at(50), all.at(99), all.at(100));
        all.at(10) <= DELAY_MAX
    });
}

/// A frozen file system behind `cold`, with the proxy over it and a file in it.
struct Frozen {
    // In this order: the proxy must be gone before the file system is.
    proxy: Proxy,
    disk: Image,
}

impl Frozen {
    fn new(name: &str) -> Option<Frozen> {
        let disk = Image::mount(&format!("{name}-disk"), 64, &[], "errors=continue")?;
        fs::write(disk.dir.join("f"), vec![4; 1 << 20]).unwrap();
        fs::set_permissions(disk.dir.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
        let proxy = with_cold(name, &disk.dir, "");
        fs::write(proxy.data().join("f"), vec![5; 1 << 20]).unwrap();
        everybodys(&proxy.data());
        Some(Frozen { proxy, disk })
    }

    fn reader(&self, export: &str) -> P9Client {
        let mut client = self.proxy.client_of(export, USER);
        client.open_name(1, "f", open::RDONLY).unwrap();
        // Into the page cache.
        (0..16).for_each(|i| drop(client.read(1, i << 16, 1 << 16).unwrap()));
        client
    }

    /// A thousand reads, and as many stats, one after the other, while something hangs.
    fn assert_others_are_undelayed(&self, what: &str, exports: &[&str]) {
        for export in exports {
            let mut client = self.reader(export);
            assert_undelayed(&format!("{what}: reads from {export}"), 1000, |i| {
                assert_eq!(client.read(1, (i as u64 % 256) << 12, 4096).unwrap().len(), 4096);
            });
            assert_undelayed(&format!("{what}: stats in {export}"), 1000, |_| {
                assert_eq!(client.stat(1).unwrap().size, 1 << 20);
            });
        }
        // New connections are accepted and served too.
        assert_undelayed(&format!("{what}: connections"), 100, |_| drop(self.proxy.client()));
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // A call that hangs would keep the proxy from ending.
        self.disk.thaw_if_frozen();
    }
}

#[test]
fn one_hanging_call_delays_nobody_else() {
    let Some(frozen) = Frozen::new("hang1") else { return };
    let mut stuck = frozen.proxy.client_of("cold", USER);
    frozen.disk.freeze();
    let tag = stuck.send(&mkdir(b"late"));
    assert!(!stuck.readable(100), "it did not hang");
    frozen.assert_others_are_undelayed("one call hangs", &["x", "cold"]);
    assert!(!stuck.readable(0), "it did not hang");
    frozen.disk.thaw();
    assert!(stuck.wait(tag).is_ok());
}

#[test]
fn ten_hanging_calls_of_many_kinds_delay_nobody_else() {
    let Some(frozen) = Frozen::new("hang10") else { return };
    let mut stuck: Vec<_> = (0..10).map(|_| frozen.proxy.client_of("cold", USER)).collect();
    for (i, client) in stuck.iter_mut().enumerate() {
        client.make(1, &format!("own{i}"));
    }
    frozen.disk.freeze();
    let set = SetAttributes { valid: setattr::MODE, mode: 0o600, ..SetAttributes::default() };
    let names: Vec<_> = (0..10).map(|i| format!("own{i}")).collect();
    let mut tags = Vec::new();
    for (i, client) in stuck.iter_mut().enumerate() {
        let name = names[i].as_bytes();
        tags.push(client.send(&match i % 5 {
            0 => mkdir(b"dir"),
            1 => Request::Write { fid: Fid(1), offset: 0, data: &[1; 5000] },
            2 => Request::Setattr { fid: Fid(1), set },
            3 => Request::Unlinkat { dirfid: Fid(0), name, flags: 0 },
            _ => Request::Symlink { fid: Fid(0), name: b"s", target: name, gid: USER },
        }));
    }
    assert!(stuck.iter().all(|client| !client.readable(10)), "one did not hang");
    frozen.assert_others_are_undelayed("ten calls hang", &["x", "cold"]);
    // The same connections still answer what does not hang.
    for client in &mut stuck {
        assert!(client.stat(0).is_ok());
    }
    frozen.disk.thaw();
    // Made twice, by two of them: one is too late.
    let answers: Vec<_> = stuck
        .iter_mut()
        .zip(tags)
        .map(|(client, tag)| client.wait(tag).reply().map(drop))
        .collect();
    assert_eq!(answers.iter().filter(|answer| **answer == Err(17)).count(), 2, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 8, "{answers:?}");
}

#[test]
fn an_attribute_that_hangs_at_its_clunk_delays_nobody_else() {
    let Some(frozen) = Frozen::new("hangclunk") else { return };
    let mut stuck = frozen.proxy.client_of("cold", USER);
    stuck.walk(0, 1, &["f"]).unwrap();
    let request = Request::Xattrcreate { fid: Fid(1), name: b"user.a", size: 1, flags: 0 };
    stuck.done(&request).unwrap();
    stuck.write(1, 0, b"v").unwrap();
    frozen.disk.freeze();
    let tag = stuck.send(&Request::Clunk { fid: Fid(1) });
    assert!(!stuck.readable(100), "it did not hang");
    frozen.assert_others_are_undelayed("a clunk hangs", &["x", "cold"]);
    // A new session does not wait for the old one's call, and gets no reply of it.
    stuck.version(65_536);
    stuck.attach(0, "cold", USER).unwrap();
    assert!(stuck.stat(0).is_ok());
    frozen.disk.thaw();
    // The old call ends now; its tag is the new session's.
    stuck.send_as(tag, &getattr(0));
    assert!(matches!(stuck.wait(tag).reply(), Ok(Reply::Getattr(_))));
    assert!(!stuck.readable(50));
}

/// A hundred calls take every slot of their target: who else uses it must wait, and
/// only those. What was queued goes with its client.
#[test]
fn a_client_that_leaves_while_its_calls_hang_delays_nobody_else() {
    let Some(frozen) = Frozen::new("hangleave") else { return };
    let mut stuck = frozen.proxy.client_of("cold", USER);
    frozen.disk.freeze();
    for i in 0..100u8 {
        stuck.send(&mkdir(&[b'd', b'0' + i / 10, b'0' + i % 10]));
    }
    assert!(!stuck.readable(100), "it did not hang");
    // It says that it leaves, and sees the proxy close.
    rustix::net::shutdown(stuck.fd(), rustix::net::Shutdown::Write).unwrap();
    stuck.expect_closed();
    frozen.assert_others_are_undelayed("calls of nobody hang", &["x"]);
    frozen.disk.thaw();
}
