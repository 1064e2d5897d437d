//! What a client must never get: the rights of another user, a file outside its export,
//! a device of the server's machine.
//!
//! The races run for some seconds against a local program that renames as fast as it
//! can, and say how often they met the dangerous state.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ninep::{Fid, NONUNAME, Request, SetAttributes, open, setattr};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::process::Signal;

use crate::common::{
    P9Client, PATIENCE, Proxy, Setup, USER, copy_program, everybodys, root_here, until,
};

const EPERM: u32 = 1;
const ENOENT: u32 = 2;
const ENXIO: u32 = 6;
const EACCES: u32 = 13;
const EXDEV: u32 = 18;
const EINVAL: u32 = 22;
const EROFS: u32 = 30;
const ELOOP: u32 = 40;
const NOBODY: u32 = 65_534;

/// How long a race runs at least.
const ATTACK: Duration = Duration::from_secs(3);

/// What lies outside the export, and must never be read or changed.
const SECRET: &str = "the secret";

/// A proxy beside whose export lies `outside/secret`, which everybody could read.
fn with_secret(name: &str) -> Proxy {
    let proxy = Proxy::plain(name);
    let outside = proxy.dir.join("outside");
    fs::create_dir(&outside).unwrap();
    everybodys(&outside);
    fs::write(outside.join("secret"), SECRET).unwrap();
    fs::set_permissions(outside.join("secret"), fs::Permissions::from_mode(0o666)).unwrap();
    proxy
}

fn assert_untouched(proxy: &Proxy) {
    let outside = proxy.dir.join("outside");
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(outside).unwrap().count(), 1);
}

// ---- whose rights ----

#[test]
fn root_over_tcp_has_nobodys_rights() {
    if !root_here() {
        return;
    }
    let proxy = Proxy::plain("squash");
    let private = proxy.data().join("private");
    fs::write(&private, SECRET).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    let mut client = proxy.client_of("x", 0);
    assert_eq!(client.open_name(1, "private", open::RDONLY), Err(EACCES));
    client.walk(0, 2, &["private"]).unwrap();
    let none = SetAttributes::default();
    let mode = SetAttributes { valid: setattr::MODE, mode: 0o777, ..none };
    assert_eq!(client.set(2, mode), Err(EPERM));
    assert_eq!(client.set(2, SetAttributes { valid: setattr::UID, uid: 0, ..none }), Err(EPERM));
    assert_eq!(client.set(2, SetAttributes { valid: setattr::SIZE, ..none }), Err(EACCES));
    client.make(3, "made");
    let made = fs::metadata(proxy.data().join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY));
    client.attach_named(4, "x", "root").unwrap();
    client.create(4, "named", open::RDWR, 0o600).unwrap();
    assert_eq!(fs::metadata(proxy.data().join("named")).unwrap().uid(), NOBODY);
    assert_eq!(fs::read_to_string(private).unwrap(), SECRET);
}

#[test]
fn squash_all_makes_everybody_nobody_and_none_leaves_root_root() {
    if !root_here() {
        return;
    }
    for (squash, uid, becomes) in [("all", USER, NOBODY), ("none", 0, 0), ("none", USER, USER)] {
        let proxy = Setup::new("squashes").top(&format!("squash = \"{squash}\"")).start();
        proxy.client_of("x", uid).make(1, "f");
        assert_eq!(fs::metadata(proxy.data().join("f")).unwrap().uid(), becomes, "{squash}");
    }
}

#[test]
fn one_user_cannot_use_the_files_groups_or_set_id_bits_of_another() {
    if !root_here() {
        return;
    }
    let proxy = Proxy::plain("users");
    let (mut one, mut two) = (proxy.client_of("x", 1000), proxy.client_of("x", 1001));
    one.walk(0, 1, &[]).unwrap();
    one.create(1, "own", open::RDWR, 0o600).unwrap();
    assert_eq!(two.open_name(1, "own", open::RDONLY), Err(EACCES));
    two.walk(0, 2, &["own"]).unwrap();
    let mode = SetAttributes { valid: setattr::MODE, mode: 0o666, ..SetAttributes::default() };
    assert_eq!(two.set(2, mode), Err(EPERM));
    // On one connection, one after the other: no rights are left over from the first.
    one.attach(5, "x", 1001).unwrap();
    assert_eq!(one.walk(5, 6, &["own"]).unwrap().len(), 1);
    assert_eq!(one.open(6, open::RDONLY), Err(EACCES));
    // A group that the user is not in is not given.
    one.walk(0, 7, &[]).unwrap();
    let request =
        Request::Lcreate { fid: Fid(7), name: b"group", flags: open::RDWR, mode: 0o660, gid: 0 };
    one.done(&request).unwrap();
    assert_eq!(fs::metadata(proxy.data().join("group")).unwrap().gid(), 1000);
    // Writing to another's set-user-id program takes the bit away.
    let program = proxy.data().join("program");
    fs::write(&program, "x").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).unwrap();
    one.open_name(8, "program", open::WRONLY).unwrap();
    one.write(8, 0, b"y").unwrap();
    assert_eq!(fs::metadata(&program).unwrap().mode() & 0o7777, 0o777);
}

/// Runs in a process of its own as an ordinary user: see the test below.
#[test]
#[ignore = "a part of a_unix_socket_peer_is_only_itself"]
fn peer() {
    let path = std::env::var("SLUICE_TEST_SOCKET").expect("started by its test");
    let mut client = P9Client::unix(Path::new(&path));
    client.version(65_536);
    assert_eq!(client.attach(0, "x", 0), Err(EPERM));
    assert_eq!(client.attach(0, "x", USER + 1), Err(EPERM));
    client.attach(0, "x", USER).unwrap();
    client.make(1, "by-number");
    client.attach_named(2, "x", "root").unwrap();
    client.create(2, "by-name", open::RDWR, 0o600).unwrap();
    client.attach_as(3, "x", "", NONUNAME).unwrap();
}

#[test]
fn a_unix_socket_peer_is_only_itself() {
    if !root_here() {
        return;
    }
    let proxy = Proxy::plain("peercred");
    // The test's own program may lie where an ordinary user cannot go.
    let program = proxy.dir.join("peer");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let output = Command::new(&program)
        .args(["--exact", "security::peer", "--ignored", "--nocapture"])
        .env("SLUICE_TEST_SOCKET", proxy.socket())
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    for name in ["by-number", "by-name"] {
        assert_eq!(fs::metadata(proxy.data().join(name)).unwrap().uid(), USER);
    }
    // Root may speak for others, and is itself squashed.
    let mut root = P9Client::unix(&proxy.socket());
    root.version(65_536);
    for (fid, uid, owner) in [(0, USER + 1, USER + 1), (1, 0, NOBODY)] {
        root.attach(fid, "x", uid).unwrap();
        let name = format!("root-as-{uid}");
        root.create(fid, &name, open::RDWR, 0o600).unwrap();
        assert_eq!(fs::metadata(proxy.data().join(name)).unwrap().uid(), owner);
    }
}

#[test]
fn every_thread_has_only_the_capabilities_it_needs() {
    if !root_here() {
        return;
    }
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, MKNOD, SETFCAP.
    let allowed: u64 = 0x1f | 1 << 6 | 1 << 7 | 1 << 27 | 1 << 31;
    let umask = ["sh", "-c", "umask 027; exec \"$0\" \"$@\""];
    let setup = Setup::new("capabilities").api().top("trace = \"@/trace\"");
    let proxy = setup.under(&umask).start();
    let mut client = proxy.client();
    client.make(1, "f");
    client.write(1, 0, &[1; 100_000]).unwrap();
    let process = format!("/proc/{}", proxy.child.id());
    let mut threads = 0;
    for task in fs::read_dir(format!("{process}/task")).unwrap() {
        let task = task.unwrap().path().display().to_string();
        let status = format!("{task}/status");
        let set = |key| u64::from_str_radix(&crate::common::status_of(&status, key), 16).unwrap();
        let name = crate::common::status_of(&status, "Name:");
        assert_eq!(set("CapPrm:") & !allowed, 0, "thread {name} may use more");
        assert_eq!(set("CapEff:") & !allowed, 0, "thread {name} uses more");
        assert_eq!(set("CapInh:") | set("CapAmb:"), 0, "thread {name} hands some on");
        // What they have in common.
        let serves = name.strip_prefix("sluice-").is_some_and(|rest| rest.parse::<u32>().is_ok());
        let umask = if serves { "0000" } else { "0027" };
        let own = crate::common::status_of(&status, "Umask:");
        assert_eq!(own, umask, "clients have applied theirs: thread {name}");
        for key in ["CapBnd:", "NoNewPrivs:", "Seccomp:", "SigBlk:", "Cpus_allowed:"] {
            let own = crate::common::status_of(&status, key);
            assert_eq!(own, proxy.status(key), "{key} of thread {name}");
        }
        for link in ["root", "cwd", "ns/mnt", "ns/user"] {
            let at = |place: &str| fs::read_link(format!("{place}/{link}")).unwrap();
            assert_eq!(at(&task), at(&process), "{link} of thread {name}");
        }
        threads += 1;
    }
    assert!(threads >= 3, "{threads} threads");
}

// ---- what must not be reached ----

#[test]
fn dots_and_links_lead_nowhere_outside() {
    let proxy = with_secret("dots");
    let outside = proxy.dir.join("outside");
    symlink(&outside, proxy.data().join("absolute")).unwrap();
    symlink("../outside", proxy.data().join("relative")).unwrap();
    symlink(outside.join("secret"), proxy.data().join("file")).unwrap();
    symlink("/proc/self/root", proxy.data().join("magic")).unwrap();
    symlink(outside.join("new"), proxy.data().join("dangling")).unwrap();
    let mut client = proxy.client();
    let root = client.stat(0).unwrap().qid.path;
    client.walk(0, 1, &[".."; 16]).unwrap();
    assert_eq!(client.stat(1).unwrap().qid.path, root);
    assert_eq!(client.walk(0, 2, &["..", "outside"]).unwrap().len(), 1);
    assert_eq!(client.stat(2), Err(9));
    for name in ["../outside", "a/b", "/etc", "/"] {
        assert_eq!(client.walk(0, 2, &[name]), Err(EINVAL), "{name}");
    }
    for name in ["absolute", "relative", "magic"] {
        assert_eq!(client.walk(0, 2, &[name, "secret"]).unwrap().len(), 1);
        assert_eq!(client.stat(2), Err(9));
    }
    for (fid, name) in [(10, "file"), (11, "dangling")] {
        client.walk(0, fid, &[name]).unwrap();
        assert_eq!(client.open(fid, open::RDWR), Err(ELOOP));
        client.walk(0, fid + 10, &[]).unwrap();
        assert_eq!(client.create(fid + 10, name, open::RDWR | open::TRUNC, 0o666), Err(ELOOP));
    }
    // A link to a link is a link, and what is set on it is not set on its target.
    client.symlink(0, "own", outside.join("secret").to_str().unwrap()).unwrap();
    client.walk(0, 12, &["own"]).unwrap();
    client.done(&Request::Link { dfid: Fid(0), fid: Fid(12), name: b"hard" }).unwrap();
    assert!(fs::symlink_metadata(proxy.data().join("hard")).unwrap().is_symlink());
    let none = SetAttributes::default();
    assert!(client.set(12, SetAttributes { valid: setattr::SIZE, ..none }).is_err());
    assert!(client.set(12, SetAttributes { valid: setattr::MODE, mode: 0, ..none }).is_err());
    assert_eq!(client.rename((0, ".."), (0, "x")), Err(EINVAL));
    assert_eq!(client.unlink(0, "..", ninep::REMOVE_DIR), Err(EINVAL));
    assert_untouched(&proxy);
}

/// Runs `attack` against `change` for three seconds, and for as long as no attack says that it has
/// met both sides of the change; how many attacks there were.
fn race(change: impl Fn() + Sync, mut attack: impl FnMut() -> bool) -> u32 {
    let (stop, changes) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut attacks = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                change();
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (began, mut is_met) = (Instant::now(), false);
        let goes_on = |is_met| began.elapsed() < if is_met { ATTACK } else { PATIENCE };
        while goes_on(is_met) {
            is_met |= attack();
            attacks += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{attacks} attacks against {changes:?} changes");
    attacks
}

#[test]
fn a_directory_that_turns_into_a_link_outside_is_never_followed() {
    let proxy = with_secret("swap");
    let data = proxy.data();
    fs::create_dir(data.join("swap")).unwrap();
    everybodys(&data.join("swap"));
    fs::write(data.join("swap/secret"), "inside").unwrap();
    fs::write(data.join("file"), "inside").unwrap();
    fs::set_permissions(data.join("file"), fs::Permissions::from_mode(0o666)).unwrap();
    symlink("../outside", data.join("swap.link")).unwrap();
    symlink("../outside/secret", data.join("file.link")).unwrap();
    let exchange = |name: &str| {
        let (a, b) = (data.join(name), data.join(format!("{name}.link")));
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
    };
    let mut client = proxy.client();
    let (mut read, mut refused) = (0, 0);
    race(
        || ["swap", "file"].into_iter().for_each(exchange),
        || {
            match client.walk(0, 1, &["swap", "secret"]).unwrap().len() {
                2 => {
                    client.open(1, open::RDONLY).unwrap();
                    assert_eq!(client.read(1, 0, 100).unwrap(), b"inside");
                    client.clunk(1).unwrap();
                    read += 1;
                }
                _ => refused += 1,
            }
            client.walk(0, 2, &[]).unwrap();
            match client.create(2, "file", open::RDWR | open::TRUNC, 0o666) {
                Ok(_) => drop(client.write(2, 0, b"inside").unwrap()),
                Err(error) => assert_eq!(error, ELOOP),
            }
            client.clunk(2).unwrap();
            read > 0 && refused > 0
        },
    );
    println!("{read} read, {refused} refused");
    assert!(read > 0 && refused > 0, "the race was not met: {read} read, {refused} refused");
    assert_untouched(&proxy);
}

#[test]
fn a_directory_that_is_moved_outside_cannot_be_left_upwards() {
    let proxy = with_secret("moved");
    let (inside, away) = (proxy.data().join("d/e"), proxy.dir.join("outside/e"));
    fs::create_dir_all(inside.join("f")).unwrap();
    let mut client = proxy.client();
    let (mut kept, mut refused) = (0, 0);
    race(
        || {
            fs::rename(&inside, &away).unwrap();
            fs::rename(&away, &inside).unwrap();
        },
        || {
            if client.walk(0, 1, &["d", "e", "f"]).is_ok_and(|found| found.len() == 3) {
                for up in [&["..", ".."][..], &["..", "..", "secret"]] {
                    match client.walk(1, 2, up) {
                        // The name that lies beside it outside must not be found.
                        Ok(found) => {
                            assert!(found.len() < 3);
                            if found.len() == up.len() {
                                kept += 1;
                                client.clunk(2).unwrap();
                            } else if up.len() == 2 {
                                refused += 1;
                            }
                        }
                        Err(error) => {
                            assert!(matches!(error, EXDEV | ENOENT), "{error}");
                            refused += 1;
                        }
                    }
                }
                client.clunk(1).unwrap();
            }
            kept > 0 && refused > 0
        },
    );
    println!("{kept} inside, {refused} refused");
    assert!(kept > 0 && refused > 0, "the race was not met: {kept} inside, {refused} refused");
    assert_untouched(&proxy);
}

#[test]
fn devices_fifos_and_sockets_are_not_opened() {
    let proxy = Setup::new("devices").top("squash = \"none\"").start();
    let data = proxy.data();
    let make = |name: &str, kind, device| {
        let path = data.join(name);
        let made = mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), device);
        made.is_ok()
    };
    assert!(make("fifo", FileType::Fifo, 0));
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).unwrap();
    fs::set_permissions(data.join("fifo"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut names = vec!["fifo", "socket"];
    // The device `null`: opening it would do no harm if the proxy did.
    if make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)) {
        names.push("null");
    } else {
        crate::common::skip("devices cannot be made here");
    }
    // A program that waits for a reader of the FIFO must go on waiting.
    let (opened, path) = (AtomicBool::new(false), data.join("fifo"));
    let thread = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            thread.store(rustix::thread::gettid().as_raw_pid() as u32, Ordering::SeqCst);
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            opened.store(true, Ordering::SeqCst);
            drop(file);
        });
        // The only thing it can sleep in is the opening.
        until("the writer waits", || {
            let path = format!("/proc/self/task/{}/status", thread.load(Ordering::SeqCst));
            Path::new(&path).exists() && crate::common::status_of(&path, "State:").starts_with('S')
        });
        for uid in [0, USER] {
            let mut client = proxy.client_of("x", uid);
            for name in &names {
                for flags in [open::RDONLY, open::RDWR, open::RDONLY | open::TRUNC] {
                    client.walk(0, 1, &[name]).unwrap();
                    assert_eq!(client.open(1, flags), Err(ENXIO), "{name}");
                    client.clunk(1).unwrap();
                    client.walk(0, 1, &[]).unwrap();
                    assert_eq!(client.create(1, name, flags, 0o666), Err(ENXIO), "{name}");
                    client.clunk(1).unwrap();
                }
            }
        }
        assert!(!opened.load(Ordering::SeqCst), "the FIFO was opened");
        let reader = fs::File::open(&path).unwrap();
        writer.join().unwrap();
        drop(reader);
    });
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
}

// ---- what is configured ----

#[test]
fn a_readonly_export_refuses_every_change() {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\nreadonly = true\n";
    let proxy = Setup::new("readonly").tables(tables).start();
    fs::write(proxy.data().join("f"), "content").unwrap();
    fs::set_permissions(proxy.data().join("f"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::create_dir(proxy.data().join("d")).unwrap();
    let mut client = proxy.client();
    client.walk(0, 1, &["f"]).unwrap();
    for flags in [open::WRONLY, open::RDWR, open::RDONLY | open::TRUNC] {
        assert_eq!(client.open(1, flags), Err(EROFS));
    }
    client.walk(0, 2, &[]).unwrap();
    assert_eq!(client.create(2, "new", open::RDWR, 0o666), Err(EROFS));
    assert_eq!(client.create(2, "f", open::RDONLY, 0o666), Err(EROFS));
    assert_eq!(client.mkdir(0, "new"), Err(EROFS));
    assert_eq!(client.symlink(0, "new", "f"), Err(EROFS));
    assert_eq!(client.unlink(0, "f", 0), Err(EROFS));
    assert_eq!(client.unlink(0, "d", ninep::REMOVE_DIR), Err(EROFS));
    assert_eq!(client.rename((0, "f"), (0, "g")), Err(EROFS));
    let none = SetAttributes::default();
    for valid in [setattr::MODE, setattr::SIZE, setattr::MTIME, setattr::UID] {
        assert_eq!(client.set(1, SetAttributes { valid, ..none }), Err(EROFS));
    }
    let requests = [
        Request::Mknod { dfid: Fid(0), name: b"n", mode: 0o10666, major: 0, minor: 0, gid: 0 },
        Request::Link { dfid: Fid(0), fid: Fid(1), name: b"n" },
        Request::Rename { fid: Fid(1), dfid: Fid(0), name: b"n" },
        Request::Xattrcreate { fid: Fid(1), name: b"user.a", size: 1, flags: 0 },
        Request::Remove { fid: Fid(1) },
    ];
    for request in &requests {
        assert_eq!(client.done(request), Err(EROFS), "{request:?}");
    }
    client.open_name(3, "f", open::RDONLY).unwrap();
    assert_eq!(client.read(3, 0, 10).unwrap(), b"content");
    assert_eq!(fs::read_dir(proxy.data()).unwrap().count(), 2);
}

#[test]
fn only_allowed_addresses_may_connect_over_tcp() {
    let proxy = Setup::new("allow").top("allow = [\"10.0.0.0/8\"]").start();
    proxy.connect().expect_closed();
    let mut local = P9Client::unix(&proxy.socket());
    local.version(8192);
    // Read again, the list holds for the next connection.
    let file = proxy.dir.join("sluice.toml");
    let text = fs::read_to_string(&file).unwrap().replace("10.0.0.0/8", "127.0.0.0/8");
    fs::write(&file, text).unwrap();
    proxy.signal(Signal::HUP);
    proxy.told("reloaded configuration and rules");
    proxy.client().stat(0).unwrap();
}
