//! A proxy, a controller and a mount under all attacks at once: each lives, others get what is
//! theirs, what the attackers hold stays within its bounds, and all of it comes back.
//!
//! ```text
//!   testkit::hostile ─► 127.0.0.1 ─► Proxy ◄─ 127.0.0.2 ─ open, read, write, lock
//!           ::http   ─► 127.0.0.1 ─► Controller ◄─ 127.0.0.2 ─ rules; proxy, admin ─ Unix socket
//!           ::files  ─► an ordinary user ─► mount ◄─ root ─ write, sync, rename, read
//! ```
//!
//! `SLUICE_HOSTILE_S` says for how many seconds each (`make soak`: 200), `SLUICE_SEED` repeats a
//! run. Each test is a process of its own, which opens much.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use api::Role;
use http::{ApiClient, Endpoint};
use ninep::{LockKind, LockStatus};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use testkit::hostile::files::{self, FilesVictim};
use testkit::hostile::http::{ALL as HTTP_ATTACKS, HttpVictim};
use testkit::hostile::{self, Attack, NinepVictim};
use testkit::p9::P9Address;
use testkit::{TestFolder, alone};

use crate::common::{Controller, P9Client, Proxy, SLUICE, Setup, USER, resident, until};
use crate::controlled::{LIMIT, limited, proxy_with};
use crate::entrusted::{ask_from, client, first_token, secret, showing, status, text, token};
use crate::mounted::{can_mount, setup};
use crate::posix_pair::Mounted;

const MIB: u64 = 1 << 20;
const SIZE: usize = 8 << 20;
/// Small enough that the attacks meet every one of them.
const BOUNDS: &str = "open_files_max = 3000\nlocks_max = 3000\nconnections_max = 400\n\
                      sessions_max = 200\nmemory_max = \"128MiB\"";

/// How long the attacks go on, and what they begin with.
fn seconds_and_seed() -> (u64, u64) {
    let number = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is no number")))
    };
    let by_clock = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seconds = number("SLUICE_HOSTILE_S").unwrap_or(5);
    (seconds, number("SLUICE_SEED").unwrap_or_else(by_clock))
}

/// Makes each attack alone, for a moment, so that none is one that never comes through; then all at
/// once, each by a thread that is `as_whom`. Looks meanwhile, again and again, at what others get.
fn under<V: Sync>(
    attacks: &'static [Attack<V>],
    victim: &V,
    as_whom: fn(),
    mut look: impl FnMut(u64),
) {
    let (seconds, seed) = seconds_and_seed();
    println!("to repeat: SLUICE_HOSTILE_S={seconds} SLUICE_SEED={seed}");
    let alone = || {
        as_whom();
        for attack in attacks {
            attack.once(victim, seed).unwrap_or_else(|error| panic!("{}: {error}", attack.name));
        }
    };
    thread::scope(|scope| scope.spawn(alone).join().unwrap());
    let (stop, began) = (&AtomicBool::new(false), Instant::now());
    let rounds: Vec<_> = attacks.iter().map(|_| AtomicU64::new(0)).collect();
    let mut looks = 0;
    thread::scope(|scope| {
        for ((attack, rounds), seed) in attacks.iter().zip(&rounds).zip(seed..) {
            scope.spawn(move || {
                as_whom();
                attack.go(victim, seed, stop, rounds);
            });
        }
        // A look that fails must not leave the attackers at it.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            while began.elapsed().as_secs() < seconds || looks < 3 {
                look(looks);
                looks += 1;
            }
        }));
        stop.store(true, Ordering::SeqCst);
        looked.unwrap_or_else(|panic| resume_unwind(panic));
    });
    for (attack, rounds) in attacks.iter().zip(&rounds) {
        println!("{}: {} rounds", attack.name, rounds.load(Ordering::Relaxed));
    }
    println!("others were served {looks} times");
}

/// Fails if more was written to a log than a few lines a second.
fn assert_short(log: &str, began: Instant) {
    let (lines, seconds) = (log.lines().count() as u64, began.elapsed().as_secs());
    println!("{lines} lines in {seconds} s of its log");
    assert!(lines < 100 + 50 * seconds, "{lines} lines, the last: {:?}", log.lines().last());
}

/// Memory of a process in bytes, and its descriptors but those of directories: of these a proxy
/// keeps some thousands, for handles that may come back.
fn has(process: u32) -> (u64, usize) {
    let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    // One may be closed meanwhile.
    let counts = all.filter(|one| {
        one.as_ref().is_ok_and(|one| fs::metadata(one.path()).is_ok_and(|data| !data.is_dir()))
    });
    (resident(process), counts.count())
}

// ---- a proxy ----

#[test]
fn whatever_hostile_clients_do_a_proxy_serves_others_and_all_comes_back() {
    alone(
        module_path!(),
        "whatever_hostile_clients_do_a_proxy_serves_others_and_all_comes_back",
        proxy_under_attack,
    );
}

fn proxy_under_attack() {
    api::raise_descriptor_limit();
    let began = Instant::now();
    let mut proxy = Setup::new("hostile").top(BOUNDS).start();
    fs::write(proxy.data().join("f"), vec![7; SIZE]).unwrap();
    // Whoever may make files there may not take away another's.
    fs::set_permissions(proxy.data(), Permissions::from_mode(0o1777)).unwrap();
    // What it takes once is not what attacks take.
    serve(&proxy, 0);
    let (memory, descriptors) = has(proxy.child.id());
    let victim = NinepVictim { address: proxy.tcp, aname: "x".into(), uid: USER };
    let mut most = (0, 0);
    under(
        hostile::ALL,
        &victim,
        || (),
        |round| {
            serve(&proxy, round);
            let now = has(proxy.child.id());
            most = (most.0.max(now.0), most.1.max(now.1));
            assert!(now.1 < 4500, "{} descriptors", now.1);
        },
    );
    println!("at most {} MiB resident, {} descriptors", most.0 / MIB, most.1);
    // Of what is charged 128 MiB.
    assert!(most.0 < memory + 256 * MIB, "{} MiB", most.0 / MIB);
    until("descriptors are given back", || has(proxy.child.id()).1 <= descriptors + 8);
    until("memory is given back", || has(proxy.child.id()).0 < memory + 128 * MIB);
    serve(&proxy, 0);
    proxy.signal(Signal::TERM);
    assert!(proxy.wait().success());
    assert_short(&proxy.rest_of_stderr(), began);
    let left: Vec<_> = fs::read_dir(&proxy.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "d" || name == "x"), "{left:?}");
}

/// Another user from another address has it all done that clients do, each time anew.
fn serve(proxy: &Proxy, round: u64) {
    let mut client = P9Client::open_door(&P9Address::From(Ipv4Addr::new(127, 0, 0, 2), proxy.tcp));
    client.version(1 << 20);
    client.attach(0, "x", USER + 1).unwrap();
    client.open_name(1, "f", 0).unwrap();
    let part = client.read(1, (round % 8) << 20, 512 << 10).unwrap();
    assert!(part.len() == 512 << 10 && part.iter().all(|byte| *byte == 7));
    let name = format!("others-{round}");
    client.make(2, &name);
    assert_eq!(client.write(2, 0, b"theirs"), Ok(6));
    let lock = |client: &mut P9Client, kind| client.lock(2, kind, (0, 0), ("others", 1));
    assert_eq!(lock(&mut client, LockKind::Write), Ok(LockStatus::Success));
    assert_eq!(client.read(2, 0, 100).unwrap(), b"theirs");
    assert_eq!(lock(&mut client, LockKind::Unlock), Ok(LockStatus::Success));
    client.clunk(2).unwrap();
    client.unlink(0, &name, 0).unwrap();
}

// ---- a controller ----

#[test]
fn whatever_hostile_callers_do_a_controller_decides_and_all_comes_back() {
    alone(
        module_path!(),
        "whatever_hostile_callers_do_a_controller_decides_and_all_comes_back",
        controller_under_attack,
    );
}

fn controller_under_attack() {
    api::raise_descriptor_limit();
    let (began, data) = (Instant::now(), TestFolder::new());
    let root = first_token(data.path());
    let (socket, log) = (data.path().join("socket"), data.path().join("log"));
    let mut command = Command::new(SLUICE);
    command.args(["controller", "--listen", &format!("unix://{}", socket.display())]);
    command.args(["--listen", "http://127.0.0.1:0", "--data", text(data.path())]);
    command.stderr(File::create(&log).unwrap());
    let controller = Controller::of(command, "ready");
    let beside = Endpoint::Unix(socket).to_string();
    let admin = client(&beside, &showing(&root));
    let (its, reader) = (token(&admin, "p", Role::Proxy), token(&admin, "r", Role::Read));
    let file = secret(data.path().join("token"), &its);
    let more = format!("controller_token_file = {file:?}\n");
    let proxy = proxy_with("hostile-controller", "a", &beside, &more);
    let is_heard = || {
        let known = admin.proxies().unwrap().proxies;
        known.iter().map(|proxy| proxy.name.as_str()).eq(["a"]) && !known[0].unreachable
    };
    until("the proxy is heard", is_heard);
    let address: SocketAddr = controller.at().parse().unwrap();
    let victim = HttpVictim { address, proxy: its, reader: reader.clone() };
    let (memory, descriptors) = has(controller.process());
    let (mut most, mut rules) = ((0, 0), String::new());
    under(
        HTTP_ATTACKS,
        &victim,
        || (),
        |round| {
            rules = admin.set_rules(&limited(LIMIT + round)).unwrap().text;
            let from = Ipv4Addr::new(127, 0, 0, 2);
            let answer = ask_from(from, address, "GET /v1/rules", &reader);
            assert_eq!(status(&answer), 200, "{answer}");
            until("the proxy is heard", is_heard);
            let now = has(controller.process());
            most = (most.0.max(now.0), most.1.max(now.1));
        },
    );
    println!("at most {} MiB resident, {} descriptors", most.0 / MIB, most.1);
    assert!(most.0 < memory + 512 * MIB, "{} MiB", most.0 / MIB);
    assert!(most.1 < 2_000, "{} descriptors", most.1);
    until("descriptors are given back", || has(controller.process()).1 <= descriptors + 8);
    until("memory is given back", || has(controller.process()).0 < memory + 256 * MIB);
    one_address_cannot_take_all_connections(address, &admin, &reader);
    assert_eq!(admin.rules().unwrap().text, rules);
    let names: Vec<_> = admin.tokens().unwrap().tokens.into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["p", "r", "root"]);
    drop(proxy);
    controller.signal(Signal::TERM);
    assert_short(&fs::read_to_string(&log).unwrap(), began);
}

fn one_address_cannot_take_all_connections(at: SocketAddr, admin: &ApiClient, reader: &str) {
    let (mut all, before) = (Vec::new(), refused(admin, "connections"));
    until("one address has its part", || {
        all.extend((0..64).map(|_| TcpStream::connect(at).unwrap()));
        refused(admin, "connections") > before
    });
    let answer = ask_from(Ipv4Addr::new(127, 0, 0, 2), at, "GET /v1/rules", reader);
    assert_eq!(status(&answer), 200, "{answer}");
}

/// How often somebody was refused more of what those who call share.
fn refused(admin: &ApiClient, bound: &str) -> u64 {
    let page = admin.metrics().unwrap();
    let name = format!("sluice_controller_bound_refused_total{{bound=\"{bound}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

// ---- a mount ----

#[test]
fn whatever_hostile_programs_do_a_mount_serves_others_and_all_comes_back() {
    if !can_mount() {
        return;
    }
    alone(
        module_path!(),
        "whatever_hostile_programs_do_a_mount_serves_others_and_all_comes_back",
        mount_under_attack,
    );
}

fn mount_under_attack() {
    api::raise_descriptor_limit();
    let proxy = setup("hostile-mount").start();
    let mount = Mounted::new(&proxy, "mount", "allow_other");
    let process = mount.process();
    use_mount(mount.at(), &proxy.data(), 0);
    let before = [has(process), has(proxy.child.id())];
    let mut most = before;
    under(files::ALL, &FilesVictim(mount.at().into()), as_a_user, |round| {
        use_mount(mount.at(), &proxy.data(), round);
        let now = [has(process), has(proxy.child.id())];
        for (most, now) in most.iter_mut().zip(now) {
            *most = (most.0.max(now.0), most.1.max(now.1));
        }
    });
    for (who, (most, before)) in ["mount", "proxy"].iter().zip(most.iter().zip(before)) {
        println!("{who}: at most {} MiB resident, {} descriptors", most.0 / MIB, most.1);
        assert!(most.0 < before.0 + 512 * MIB, "{who}: {} MiB", most.0 / MIB);
        assert!(most.1 < before.1 + 9_000, "{who}: {} descriptors", most.1);
    }
    let back = |of: usize, now: (u64, usize)| {
        now.0 < before[of].0 + 256 * MIB && now.1 <= before[of].1 + 64
    };
    until("the proxy gives back", || back(1, has(proxy.child.id())));
    until("the mount gives back", || back(0, has(process)));
    use_mount(mount.at(), &proxy.data(), 0);
    let left: Vec<_> =
        fs::read_dir(proxy.data()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "what the attackers made is gone with them: {left:?}");
}

/// Makes this thread an ordinary user.
fn as_a_user() {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (rustix::fs::Uid::from_raw(USER), rustix::fs::Gid::from_raw(USER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(Some(gid), Some(gid), Some(gid)).unwrap();
    set_thread_res_uid(Some(uid), Some(uid), Some(uid)).unwrap();
}

/// Root has it all done that programs do, and it is so beside the mount.
fn use_mount(mount: &Path, beside: &Path, round: u64) {
    let (name, text) = (format!("others-{round}"), format!("theirs {round}"));
    let mut file = File::create_new(mount.join("others-new")).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename(mount.join("others-new"), mount.join(&name)).unwrap();
    assert_eq!(fs::read_to_string(beside.join(&name)).unwrap(), text);
    file.write_all_at(b"T", 0).unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(mount.join(&name)).unwrap(), text.replacen('t', "T", 1));
    assert_eq!(fs::metadata(mount.join(&name)).unwrap().len(), text.len() as u64);
    fs::remove_file(mount.join(&name)).unwrap();
    assert!(!beside.join(&name).exists());
}
