//! Writes through a mount that are answered before the proxy has executed them: who waits for
//! them, who need not, what becomes of those that fail.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use crate::common::{Proxy, copy_program, until};
use crate::controlled::api_of;
use crate::mounted::{Mounted, can_mount, finish, setup};
use rustix::process::Signal;

/// A proxy that executes nothing while this lives.
struct Stopped<'a>(&'a Proxy);

impl<'a> Stopped<'a> {
    fn new(proxy: &'a Proxy) -> Stopped<'a> {
        proxy.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", proxy.child.id());
        until("it is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
        Stopped(proxy)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 256 * 7 + i + seed * 31) as u8).collect()
}

#[test]
fn a_write_need_not_wait_for_the_proxy_and_what_follows_sees_it() {
    if !can_mount() {
        return;
    }
    let proxy = setup("behind").start();
    let mount = Mounted::new(&proxy, "");
    let path = mount.join("file");
    let mut file = open(&path);
    let stopped = Stopped::new(&proxy);
    for piece in 0..100usize {
        file.write_all(&bytes(1000, piece)).unwrap();
    }
    assert_eq!(fs::metadata(proxy.data().join("file")).unwrap().len(), 0, "nothing is executed");
    let (told, tells) = mpsc::channel();
    let same = path.clone();
    let others = std::thread::spawn(move || {
        told.send(()).unwrap();
        // Another name for the same file's size, and another descriptor.
        let size = fs::metadata(&same).unwrap().len();
        (size, fs::read(&same).unwrap())
    });
    tells.recv().unwrap();
    drop(stopped);
    let expected: Vec<u8> = (0..100).flat_map(|piece| bytes(1000, piece)).collect();
    let (size, content) = finish(vec![others]).pop().unwrap();
    assert_eq!(size, expected.len() as u64);
    assert!(content == expected);
    drop(file);
    assert!(fs::read(proxy.data().join("file")).unwrap() == expected, "as it was closed");
}

#[test]
fn small_writes_become_few_messages() {
    if !can_mount() {
        return;
    }
    let proxy = setup("few").api().start();
    let mount = Mounted::new(&proxy, "");
    let before = requests(&proxy);
    // By a process of its own: one that another test starts closes its copies of descriptors, and
    // what was written until then travels without the rest.
    let mut dd = Command::new("dd");
    dd.args(["bs=4096", "iflag=fullblock", "status=none"]);
    dd.arg(format!("of={}", mount.join("file").display())).stdin(Stdio::piped());
    let mut dd = dd.spawn().unwrap();
    let mut pipe = dd.stdin.take().unwrap();
    let expected = bytes(1 << 20, 1);
    let there = proxy.data().join("file");
    pipe.write_all(&expected[..4096]).unwrap();
    until("the first is executed", || fs::metadata(&there).is_ok_and(|m| m.len() == 4096));
    let stopped = Stopped::new(&proxy);
    pipe.write_all(&expected[4096..]).unwrap();
    let io = format!("/proc/{}/io", dd.id());
    until("all are written", || {
        let io = fs::read_to_string(&io).unwrap();
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        written.parse::<usize>().unwrap() >= expected.len()
    });
    drop((stopped, pipe));
    assert!(dd.wait().unwrap().success());
    assert!(fs::read(there).unwrap() == expected);
    // The first few went at once, the rest together.
    let requests = requests(&proxy) - before;
    assert!(requests < 64, "256 writes were {requests} messages");
}

/// Requests that the proxy has counted, of all kinds.
fn requests(proxy: &Proxy) -> u64 {
    api_of(proxy).classes().unwrap().classes.iter().map(|class| class.usage.requests).sum()
}

#[test]
fn writes_that_overlap_are_executed_in_their_order() {
    if !can_mount() {
        return;
    }
    let proxy = setup("order").start();
    let mount = Mounted::new(&proxy, "");
    let (file, other) = (open(&mount.join("file")), open(&mount.join("file")));
    let mut expected = vec![0; 64 << 10];
    for round in 0..400usize {
        // Every byte is written many times, by two descriptors.
        let (offset, len) = (round * 7919 % (60 << 10), 1 + round * 613 % 4000);
        let data = bytes(len, round);
        expected[offset..offset + len].copy_from_slice(&data);
        let which = if round % 3 == 0 { &other } else { &file };
        which.write_all_at(&data, offset as u64).unwrap();
    }
    file.sync_all().unwrap();
    let there = fs::read(proxy.data().join("file")).unwrap();
    assert!(there == expected[..there.len()] && expected[there.len()..].iter().all(|b| *b == 0));
}

#[test]
fn a_write_that_fails_later_is_told_by_fsync_and_close() {
    if !can_mount() {
        return;
    }
    let proxy = setup("full").start();
    let small = proxy.data().join("small");
    fs::create_dir(&small).unwrap();
    let tmpfs = Tmpfs::new(&small, "size=1m");
    let mount = Mounted::new(&proxy, "");
    let mut file = open(&mount.join("small/file"));
    let mut error = None;
    for _ in 0..64 {
        if let Err(why) = file.write_all(&[7; 64 << 10]) {
            error = Some(why);
            break;
        }
    }
    // A write was refused with what became of one before it, or fsync says it.
    let error = error.or_else(|| file.sync_all().err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    // Those that were under way meanwhile may have failed too; then everything is told.
    let _ = file.sync_all();
    file.sync_all().expect("each failure is reported once");
    drop(file);
    // A close tells it too, as cp shows.
    fs::remove_file(mount.join("small/file")).unwrap();
    fs::write(mount.join("large"), vec![1; 4 << 20]).unwrap();
    let copy =
        Command::new("cp").arg(mount.join("large")).arg(mount.join("small/copy")).output().unwrap();
    let said = String::from_utf8(copy.stderr).unwrap();
    assert!(!copy.status.success() && said.contains("No space left on device"), "{said}");
    drop(mount);
    drop(tmpfs);
}

/// A file system of its own, gone when dropped.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn new(at: &Path, options: &str) -> Tmpfs {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(at)
            .status()
            .unwrap();
        assert!(mounted.success());
        Tmpfs(at.into())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_write_to_a_running_program_harms_it_not() {
    if !can_mount() {
        return;
    }
    let proxy = setup("busy").start();
    let mount = Mounted::new(&proxy, "exec");
    let path = mount.join("sleep");
    copy_program(Path::new("/bin/sleep"), &path);
    let len = fs::metadata(&path).unwrap().len();
    for _ in 0..20 {
        let mut program = Command::new(&path).arg("infinity").spawn().unwrap();
        let cut = File::create(&path).map(|_| ()).map_err(|why| why.kind());
        assert_eq!(cut, Err(ErrorKind::ExecutableFileBusy));
        assert!(program.try_wait().unwrap().is_none(), "it still runs");
        program.kill().unwrap();
        program.wait().unwrap();
    }
    assert_eq!(fs::metadata(proxy.data().join("sleep")).unwrap().len(), len);
}
