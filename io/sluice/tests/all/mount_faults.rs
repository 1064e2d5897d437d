//! A mount whose proxy dies, hangs or is cut off: programs wait, go on, and can be killed.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{Proxy, until};
use crate::mounted::{Mounted, NO_RSESSION, Relay, can_mount, finish, setup};
use mount::{MountDaemon, MountSettings};
use rustix::process::Signal;

/// Makes, renames and removes in a folder of its own until told to stop, and checks that each
/// call did what it said, once. Gives how many rounds it made.
fn work(folder: PathBuf, stop: Arc<AtomicBool>) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        fs::create_dir(&folder).unwrap();
        let mut log =
            OpenOptions::new().append(true).create_new(true).open(folder.join("log")).unwrap();
        let mut rounds = 0;
        while !stop.load(Ordering::SeqCst) {
            round(&folder, rounds);
            log.write_all(format!("{rounds:09}\n").as_bytes()).unwrap();
            rounds += 1;
        }
        let written = fs::read_to_string(folder.join("log")).unwrap();
        assert!(written.lines().eq((0..rounds).map(|round| format!("{round:09}"))), "{written}");
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["log"]);
        rounds
    })
}

/// Each of these fails if it is executed twice, and the next one if it is not at all.
fn round(folder: &Path, number: usize) {
    let name = |kind: &str| folder.join(format!("{kind}{number}"));
    let text = number.to_string();
    let mut file = File::create_new(name("file")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    drop(file);
    fs::create_dir(name("dir")).unwrap();
    fs::rename(name("file"), name("dir").join("moved")).unwrap();
    fs::hard_link(name("dir").join("moved"), name("link")).unwrap();
    symlink(&text, name("symlink")).unwrap();
    assert_eq!(fs::read_to_string(name("link")).unwrap(), text);
    assert_eq!(fs::read_link(name("symlink")).unwrap(), Path::new(&text));
    for gone in [name("dir").join("moved"), name("link"), name("symlink")] {
        fs::remove_file(gone).unwrap();
    }
    fs::remove_dir(name("dir")).unwrap();
}

/// Starts it again where it was, as its supervisor would.
fn again(name: &str) -> Proxy {
    setup(name).again().start()
}

#[test]
fn a_proxy_that_dies_and_returns_fails_no_call_and_repeats_none() {
    if !can_mount() {
        return;
    }
    let mut proxy = setup("dies").start();
    let mount = Mounted::new(&proxy, "attr_timeout=0");
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        (0..3).map(|n| work(mount.join(&format!("worker{n}")), stop.clone())).collect();
    for _ in 0..3 {
        let folder = proxy.data().join("worker0");
        until("there is work under way", || {
            folder.join("log").metadata().is_ok_and(|m| m.len() > 30)
        });
        proxy.crash();
        proxy = again("dies");
        fs::metadata(mount.at()).unwrap();
        let len = folder.join("log").metadata().unwrap().len();
        until("work goes on", || folder.join("log").metadata().unwrap().len() > len + 30);
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: usize = finish(workers).iter().sum();
    println!("{rounds} rounds over three deaths");
}

#[test]
fn connections_that_are_cut_at_any_moment_fail_no_call_and_repeat_none() {
    if !can_mount() {
        return;
    }
    let proxy = setup("cut").start();
    let relay = Relay::new(proxy.tcp);
    let mount = Mounted::of(&format!("tcp://{}/x", relay.address), "attr_timeout=0");
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        (0..3).map(|n| work(mount.join(&format!("worker{n}")), stop.clone())).collect();
    let log = proxy.data().join("worker0/log");
    let mut cuts = 0;
    let len = || log.metadata().map_or(0, |found| found.len());
    for round in 0..40u64 {
        // A line may have been under way when it was cut; the one after it came by a new connection.
        let goal = len() + 30 + round * 7 % 20;
        until("work goes on", || len() >= goal);
        cuts += relay.cut();
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: usize = finish(workers).iter().sum();
    println!("{rounds} rounds over {cuts} cut connections");
    assert!(cuts >= 40);
}

#[test]
fn a_lost_rsession_of_a_restarted_proxy_fails_no_call_and_repeats_none() {
    if !can_mount() {
        return;
    }
    let mut proxy = setup("rsession").start();
    let lost = Arc::new(AtomicU8::new(NO_RSESSION));
    let tcp = Arc::new(Mutex::new(proxy.tcp));
    let relay = Relay::losing_rsession(tcp.clone(), lost.clone());
    let mount = Mounted::of(&format!("tcp://{}/x", relay.address), "attr_timeout=0");
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        (0..3).map(|n| work(mount.join(&format!("worker{n}")), stop.clone())).collect();
    for _ in 0..3 {
        let log = proxy.data().join("worker0/log");
        until("there is work under way", || log.metadata().is_ok_and(|m| m.len() > 30));
        // The Rsession of the session that begins at the proxy that is started next.
        lost.store(0, Ordering::SeqCst);
        proxy.crash();
        proxy = again("rsession");
        *tcp.lock().unwrap() = proxy.tcp;
        until("an Rsession is lost", || lost.load(Ordering::SeqCst) == NO_RSESSION);
        let len = log.metadata().unwrap().len();
        until("work goes on", || log.metadata().unwrap().len() > len + 30);
    }
    stop.store(true, Ordering::SeqCst);
    println!("{} rounds", finish(workers).iter().sum::<usize>());
}

#[test]
fn an_open_file_and_its_lock_outlive_the_proxy() {
    if !can_mount() {
        return;
    }
    let proxy = setup("outlive").start();
    let (mount, other) = (Mounted::new(&proxy, ""), Mounted::new(&proxy, ""));
    let path = mount.join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    // A proxy that is started here has this file for a moment too, and closing it waits for what is
    // not executed: for that proxy.
    file.sync_all().unwrap();
    file.lock().unwrap();
    proxy.crash();
    let proxy = again("outlive");
    file.write_all_at(b" after", 6).unwrap();
    let mut read = [0; 12];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"before after");
    let others = OpenOptions::new().read(true).write(true).open(other.join("file")).unwrap();
    let tried = others.try_lock();
    assert!(matches!(tried, Err(TryLockError::WouldBlock)), "{tried:?}");
    drop(file);
    others.lock().unwrap();
    assert_eq!(fs::read(proxy.data().join("file")).unwrap(), b"before after");
}

#[test]
fn an_open_file_that_is_gone_when_the_proxy_returns_is_stale() {
    if !can_mount() {
        return;
    }
    let proxy = setup("stale").start();
    let mount = Mounted::new(&proxy, "");
    let path = mount.join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let beside = proxy.data().join("file");
    proxy.crash();
    fs::remove_file(beside).unwrap();
    let _proxy = again("stale");
    // The write may be answered before it is known.
    let error = file.write_all_at(b"nowhere", 0).and_then(|()| file.sync_all()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    fs::write(mount.join("other"), "goes on").unwrap();
}

fn child(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Kills processes that wait for a mount without a proxy; they must be gone without one.
fn killed(children: &mut [Child]) {
    for child in children.iter_mut() {
        assert!(child.try_wait().unwrap().is_none(), "it waits for the proxy");
        child.kill().unwrap();
    }
    for child in children {
        until("a killed process ends", || child.try_wait().unwrap().is_some());
    }
}

/// Processes that wait for the mount in several ways, once they are in the kernel.
fn waiting(mount: &Mounted) -> Vec<Child> {
    let at = mount.at().display();
    let scripts = [
        format!("exec mkdir {at}/made"),
        format!("exec dd if=/dev/zero of={at}/written bs=1M count=16"),
        format!("exec ls -l {at}/folder"),
        format!("exec flock {at}/lock true"),
    ];
    let children: Vec<_> = scripts.iter().map(|script| child(script)).collect();
    for child in &children {
        let path = format!("/proc/{}/stat", child.id());
        // In S or D and not in the shell any more.
        until("it waits", || {
            let stat = fs::read_to_string(&path).unwrap();
            !stat.contains("(sh)") && (stat.contains(") S ") || stat.contains(") D "))
        });
    }
    children
}

#[test]
fn processes_that_wait_for_a_dead_proxy_can_be_killed() {
    if !can_mount() {
        return;
    }
    let proxy = setup("dead").start();
    let mount = Mounted::new(&proxy, "attr_timeout=0");
    fs::create_dir(mount.join("folder")).unwrap();
    proxy.crash();
    killed(&mut waiting(&mount));
    let proxy = again("dead");
    assert!(fs::read_dir(mount.at()).unwrap().count() >= 1);
    drop(proxy);
}

#[test]
fn processes_that_wait_for_a_proxy_that_hangs_can_be_killed() {
    if !can_mount() {
        return;
    }
    let proxy = setup("hangs").start();
    let mount = Mounted::new(&proxy, "attr_timeout=0");
    fs::create_dir(mount.join("folder")).unwrap();
    proxy.signal(Signal::STOP);
    killed(&mut waiting(&mount));
    proxy.signal(Signal::CONT);
    fs::write(mount.join("goes"), "on").unwrap();
}

#[test]
fn a_soft_mount_gives_up_after_its_time() {
    if !can_mount() {
        return;
    }
    let proxy = setup("soft").start();
    let mount = Mounted::new(&proxy, "attr_timeout=0,soft=1s");
    // The time may count from when the mount sees that it is gone.
    let start = Instant::now();
    proxy.crash();
    let error = fs::read_dir(mount.at()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // Not before its time; and with the proxy still away, so that it waited for nothing else.
    assert!(start.elapsed() > Duration::from_millis(900), "{:?}", start.elapsed());
    let _proxy = again("soft");
    until("it is back", || fs::read_dir(mount.at()).is_ok());
}

#[test]
fn a_server_that_knows_only_another_9p_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The dialect is offered first, then what it is one of.
        for offered in [ninep::dialect::VERSION, ninep::VERSION] {
            let mut size = [0; 4];
            stream.read_exact(&mut size).unwrap();
            let mut rest = vec![0; u32::from_le_bytes(size) as usize - 4];
            stream.read_exact(&mut rest).unwrap();
            assert!(rest.ends_with(offered), "{rest:?}");
            let mut out = Vec::new();
            let (msize, version) = (8192, &b"9P2000.u"[..]);
            ninep::Reply::Version { msize, version }.encode(ninep::NOTAG, &mut out);
            stream.write_all(&out).unwrap();
        }
        stream
    });
    let settings =
        MountSettings::new(&format!("tcp://{address}/x"), Path::new("/nowhere"), "").unwrap();
    let error = MountDaemon::start(&settings).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("it speaks 9P2000.u") && error.contains(&address.to_string()),
        "{error}"
    );
    server.join().unwrap();
}
