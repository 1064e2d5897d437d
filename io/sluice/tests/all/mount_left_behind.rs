//! What a killed process leaves under way is over before its locks are anybody else's: as on a local
//! disk, where the kernel finishes it first. SQLite's databases depend on it: a truncation of the
//! journal that comes late would meet the journal of the next writer.
//!
//! ```text
//!   holder ─ locks, and truncates ─► a ─► sluice mount ─┐
//!     └─ killed                                         ├─► Proxy ─► a frozen file system
//!   next ─── asks for the locks ───► b ─► sluice mount ─┘
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};

use nix::libc::{SYS_flock, SYS_ftruncate, SYS_pwrite64, SYS_pwritev2};
use rustix::fs::FlockOperation;
use testkit::again;

use crate::common::{Image, Proxy, Setup, everybodys, until};
use crate::mixed::Obeying;
use crate::mount_locks::Kind;
use crate::mounted::can_mount;
use crate::posix_pair::Mounted;

/// File n of a test is locked by kind n.
const KINDS: [Kind; 4] = [Kind::Flock, Kind::Fcntl, Kind::Ofd, Kind::Range];

// ---- who locks ----

/// The process of one who locks; by itself it does nothing.
#[test]
fn one_who_locks() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let open =
        |name: &str| OpenOptions::new().read(true).write(true).open(folder.join(name)).unwrap();
    let files: Vec<_> = (0..KINDS.len()).map(|n| open(&format!("file{n}"))).collect();
    let journal = open("journal");
    for line in std::io::stdin().lines() {
        obey(&line.unwrap(), &files, &journal);
        // On a line of its own: the harness may have begun one.
        println!("\nok");
    }
}

const FOLDER: &str = "SLUICE_LOCKS_IN";

fn obey(line: &str, files: &[File], journal: &File) {
    let try_all = |how| KINDS.iter().zip(files).map(move |(kind, file)| kind.try_set(file, how));
    match line {
        "lock" => try_all(FlockOperation::LockExclusive).for_each(Result::unwrap),
        "find them locked" => {
            for (tried, kind) in try_all(FlockOperation::NonBlockingLockExclusive).zip(KINDS) {
                let error = tried.expect_err(&format!("{kind:?} is held by two"));
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            }
        }
        "truncate" => journal.set_len(0).unwrap(),
        "write" => journal.write_all_at(b"late", 0).unwrap(),
        _ => panic!("nobody knows what {line:?} means"),
    }
}

/// One who tells when it is ready to obey, and may be killed.
fn one_in(folder: &Path) -> Child {
    let mut command = again(module_path!(), "one_who_locks");
    let command = command.env(FOLDER, folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

// ---- the test ----

/// `act` is under way at the backend when its process is killed.
fn left_behind(name: &str, options: &str, (act, calls): (&str, &[i64])) {
    if !can_mount() {
        return;
    }
    let Some(disk) = Image::mount(&format!("{name}-disk"), 64, &[], "errors=continue") else {
        return;
    };
    let place = Place::new(name, options, disk);
    let mut holder = one_in(place.a.at());
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    let mut ready = || while said.next().unwrap().unwrap() != "ok" {};
    let mut asked = holder.stdin.take().unwrap();
    writeln!(asked, "lock").unwrap();
    ready();
    let mut command = again(module_path!(), "one_who_locks");
    let mut next = Obeying::start(command.env(FOLDER, place.b.at()));
    next.tell("find them locked");
    place.disk.freeze();
    writeln!(asked, "{act}").unwrap();
    let proxy = place.proxy.child.id();
    until("it is under way at the backend", || is_in(proxy, calls));
    holder.kill().unwrap();
    until("the killed process goes", || holder.try_wait().unwrap().is_some());
    next.tell("find them locked");
    // Who waits for them where they were held can be killed, too.
    let mut waits = one_in(place.a.at());
    let lines = waits.stdin.as_mut().unwrap();
    writeln!(lines, "lock").unwrap();
    let process = waits.id();
    until("it waits", || is_in(process, &[SYS_flock]));
    waits.kill().unwrap();
    until("it goes", || waits.try_wait().unwrap().is_some());
    place.disk.thaw();
    next.tell("lock");
    next.end();
    let journal = fs::read(place.disk.dir.join("journal")).unwrap();
    assert!(journal != b"journal", "what it left was not over: {journal:?}");
}

struct Place {
    // In this order: mounts end before the proxy, and that before its file system.
    a: Mounted,
    b: Mounted,
    proxy: Proxy,
    disk: Image,
}

impl Place {
    fn new(name: &str, options: &str, disk: Image) -> Place {
        for n in 0..KINDS.len() {
            fs::write(disk.dir.join(format!("file{n}")), "data").unwrap();
        }
        fs::write(disk.dir.join("journal"), "journal").unwrap();
        everybodys(&disk.dir);
        let export = format!("[[export]]\nname = \"x\"\ndir = {:?}\n", disk.dir);
        let proxy = Setup::new(name).tables(&export).top("squash = \"none\"").start();
        let mounted = |at| Mounted::new(&proxy, at, options);
        let (a, b) = (mounted("a"), mounted("b"));
        Place { a, b, proxy, disk }
    }
}

/// Whether a thread of a process is in one of these system calls.
pub(crate) fn is_in(process: u32, calls: &[i64]) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| task.unwrap().path().join("syscall")).any(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let call = text.split(' ').next().unwrap().parse();
        call.is_ok_and(|call: i64| calls.contains(&call))
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        self.disk.thaw_if_frozen();
    }
}

#[test]
fn a_truncation_is_over_before_the_locks_of_the_process_that_was_killed_in_it_are_anothers() {
    left_behind("left-truncate", "attr_timeout=1h", ("truncate", &[SYS_ftruncate]));
}

#[test]
fn a_write_that_was_not_answered_is_over_before_them_too() {
    left_behind("left-write", "attr_timeout=0", ("write", &[SYS_pwrite64, SYS_pwritev2]));
}
