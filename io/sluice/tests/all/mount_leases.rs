//! Two mounts that hold leases, and what they may believe: what another node changed is seen at
//! once, and what nobody changed needs no message.
//!
//! ```text
//!   a: stat, ls, open ─► kept under leases ─► again: no message
//!   b, or a plain 9P client: changes ─► recalled from a ─► executed ─► a sees it
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use testkit::skip;

use crate::common::{Proxy, until};
use crate::mounted::{Mounted, can_mount, setup};
use crate::prometheus::Page;

/// Names that the tests change at random.
const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Changes of a writer beside readers.
const STEPS: u64 = 200;
/// Random changes of one test.
const ROUNDS: u64 = 400;

/// A proxy that grants leases, and two mounts of it.
struct Leased {
    a: Mounted,
    b: Mounted,
    proxy: Proxy,
}

impl Leased {
    fn new(name: &str) -> Option<Leased> {
        if !can_mount() {
            return None;
        }
        let proxy = setup(name).leases().start();
        let [a, b] = [0; 2].map(|_| Mounted::new(&proxy, "allow_other,metrics=http://127.0.0.1:0"));
        let leased = Leased { a, b, proxy };
        [&leased.a, &leased.b].into_iter().for_each(joined);
        Some(leased)
    }
}

/// Waits until the mount holds leases.
pub(crate) fn joined(mount: &Mounted) {
    until("the mount holds leases", || {
        fs::read_dir(mount.at()).unwrap().for_each(drop);
        Page::at(&mount.metrics()).value("sluice_mount_leases", "") > 0.0
    });
}

/// Messages that the mount has sent for requests of programs.
fn messages(mount: &Mounted) -> f64 {
    let page = Page::at(&mount.metrics());
    ["ok", "error"].map(|outcome| page.value("sluice_mount_calls_total", outcome)).iter().sum()
}

/// Waits until the mount sends nothing any more: closing is told later.
fn quiet(mount: &Mounted) -> f64 {
    let mut last = messages(mount);
    let mut same = 0;
    until("the mount sends nothing", || {
        let now = messages(mount);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 20
    });
    last
}

#[test]
fn attributes_and_names_that_another_node_changed_are_seen_at_once() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-seen") else { return };
    let len = |at: &Mounted| fs::metadata(at.join("file")).map(|file| file.len());
    for round in 0..50u64 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        assert_eq!(len(to).map_err(|error| error.kind()), Err(ErrorKind::NotFound));
        fs::write(from.join("file"), vec![1; round as usize + 1]).unwrap();
        assert_eq!(len(to).unwrap(), round + 1, "created after a look-up that found nothing");
        fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(to.join("file")).unwrap().mode() & 0o777, 0o640);
        OpenOptions::new().write(true).open(from.join("file")).unwrap().set_len(3).unwrap();
        assert_eq!(len(to).unwrap(), 3);
        fs::write(from.join("other"), [2; 9]).unwrap();
        fs::rename(from.join("other"), from.join("file")).unwrap();
        assert_eq!(len(to).unwrap(), 9, "another file was put in its place");
        assert_eq!(fs::read(to.join("file")).unwrap(), [2; 9]);
        fs::hard_link(from.join("file"), from.join("link")).unwrap();
        assert_eq!(fs::metadata(to.join("file")).unwrap().nlink(), 2);
        fs::remove_file(from.join("link")).unwrap();
        assert_eq!(fs::metadata(to.join("file")).unwrap().nlink(), 1);
        fs::remove_file(from.join("file")).unwrap();
        assert_eq!(fs::read_dir(to.at()).unwrap().count(), 0);
    }
}

#[test]
fn changes_of_a_plain_client_are_seen_at_once() {
    let Some(Leased { a, proxy, .. }) = Leased::new("leases-plain") else { return };
    let mut client = proxy.client();
    for round in 0..20 {
        assert_eq!(fs::metadata(a.join("file")).unwrap_err().kind(), ErrorKind::NotFound);
        client.walk(0, 1, &[]).unwrap();
        client.create(1, "file", 1 /* O_WRONLY */, 0o644).unwrap();
        assert_eq!(fs::metadata(a.join("file")).unwrap().len(), 0, "round {round}");
        client.write(1, 0, b"hello").unwrap();
        assert_eq!(fs::metadata(a.join("file")).unwrap().len(), 5);
        assert_eq!(fs::read(a.join("file")).unwrap(), b"hello");
        client.write(1, 0, b"HELLO").unwrap();
        assert_eq!(fs::read(a.join("file")).unwrap(), b"HELLO");
        client.clunk(1).unwrap();
        client.unlink(0, "file", 0).unwrap();
    }
}

#[test]
fn file_that_is_read_again_needs_no_message() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-read") else { return };
    fs::write(b.join("file"), "hello").unwrap();
    let read = || assert_eq!(fs::read(a.join("file")).unwrap(), b"hello");
    // The kernel says later that a file was closed: an open that comes before that is another one.
    until("reads need no message", || {
        let before = quiet(&a);
        (0..10).for_each(|_| read());
        quiet(&a) == before
    });
    fs::write(b.join("file"), "HELLO").unwrap();
    assert_eq!(fs::read(a.join("file")).unwrap(), b"HELLO");
}

#[test]
fn tree_that_is_walked_again_needs_no_message() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-find") else { return };
    for directory in 0..10 {
        fs::create_dir(b.join(&format!("d{directory}"))).unwrap();
        for file in 0..100 {
            fs::write(b.join(&format!("d{directory}/f{file}")), [1; 3]).unwrap();
        }
    }
    walk(a.at());
    walk(a.at());
    let before = quiet(&a);
    assert_eq!(walk(a.at()), 1010);
    assert_eq!(quiet(&a), before);
    fs::write(b.join("d3/f100"), "").unwrap();
    fs::remove_file(b.join("d4/f50")).unwrap();
    assert_eq!(fs::metadata(a.join("d4/f50")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(b.join("d5/f7"), [1; 8]).unwrap();
    assert_eq!(fs::metadata(a.join("d5/f7")).unwrap().len(), 8);
    assert_eq!(fs::read_dir(a.join("d3")).unwrap().count(), 101);
    assert_eq!(walk(a.at()), 1010);
}

/// Counts what is below a directory, and looks at each.
fn walk(at: &Path) -> usize {
    let entries = fs::read_dir(at).unwrap().map(Result::unwrap);
    let below = entries.map(|entry| match fs::symlink_metadata(entry.path()).unwrap().is_dir() {
        true => 1 + walk(&entry.path()),
        false => 1,
    });
    below.sum()
}

#[test]
fn mapped_file_shows_what_another_node_wrote() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-mapped") else { return };
    fs::write(b.join("file"), [1; 4096]).unwrap();
    let file = File::open(a.join("file")).unwrap();
    let map = map(&file);
    assert_eq!(map.first(), 1);
    let other = OpenOptions::new().write(true).open(b.join("file")).unwrap();
    other.write_all_at(&[2; 4096], 0).unwrap();
    other.sync_all().unwrap();
    assert_eq!(map.first(), 2);
}

#[test]
fn file_that_stays_open_is_read_as_it_was_written() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-open") else { return };
    fs::write(b.join("file"), 0u64.to_le_bytes()).unwrap();
    let reader = File::open(a.join("file")).unwrap();
    let (map, ended) = (map(&reader), AtomicBool::new(false));
    let read = || {
        let mut found = [0; 8];
        reader.read_exact_at(&mut found, 0).unwrap();
        u64::from_le_bytes(found)
    };
    let writer = OpenOptions::new().write(true).open(b.join("file")).unwrap();
    let write = |step: u64| {
        writer.write_all_at(&step.to_le_bytes(), 0).unwrap();
        writer.sync_all().unwrap();
    };
    for step in 1..=STEPS {
        write(step);
        assert_eq!((read(), map.first()), (step, step as u8));
    }
    // Now pages are brought back at every moment of a change; none of them stays.
    std::thread::scope(|scope| {
        let _ended = Ended(&ended);
        for _ in 0..2 {
            scope.spawn(|| {
                let map = self::map(&reader);
                while !ended.load(Ordering::SeqCst) {
                    map.first();
                }
            });
        }
        for step in STEPS + 1..=STEPS * 2 {
            write(step);
            // Nothing but the mapping is used: a read has the kernel compare the time of the last change.
            until("no old page is left", || map.first() == step as u8);
        }
    });
}

#[test]
fn what_is_mounted_below_a_directory_stays_when_another_node_cannot_remove_it() {
    let Some(Leased { a, b, proxy }) = Leased::new("leases-below") else { return };
    if kernel_takes_names_out() {
        return;
    }
    let (inner, other) = (a.join("dir/inner"), proxy.dir.join("other"));
    [&inner, &other].into_iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    fs::write(other.join("here"), "").unwrap();
    let run = |program: &str, args: &[&Path]| {
        let status = Command::new(program).args(args).status().unwrap();
        assert!(status.success(), "{program} {args:?}");
    };
    run("mount", &[Path::new("--bind"), &other, &inner]);
    for _ in 0..2 {
        assert!(inner.join("here").exists());
        let refused = fs::remove_dir(b.join("dir")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty);
    }
    assert!(inner.join("here").exists(), "it is mounted there");
    run("umount", &[&inner]);
    fs::remove_dir(&inner).unwrap();
    fs::remove_dir(b.join("dir")).unwrap();
    assert!(!a.join("dir").exists());
}

/// Whether the kernel knows no way to have a name expire, which came with Linux 6.2; says so aloud.
fn kernel_takes_names_out() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let is_old = version < (6, 2);
    if is_old {
        skip(&format!("Linux {} takes out the names of directories", release.trim()));
    }
    is_old
}

#[test]
fn names_of_one_directory_are_changed_by_two_nodes_at_once_without_waiting_for_each_other() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-names") else { return };
    let work = |at: &Mounted, own: &str| {
        for round in 0..100 {
            let name = at.join(&format!("{own}{}", round % 10));
            fs::write(&name, own).unwrap();
            fs::rename(&name, at.join(&format!("{own}-moved"))).unwrap();
            fs::read_dir(at.at()).unwrap().for_each(|entry| drop(entry.unwrap()));
            fs::remove_file(at.join(&format!("{own}-moved"))).unwrap();
        }
    };
    let recalls =
        |at: &Mounted| Page::at(&at.metrics()).value("sluice_mount_lease_recalls_total", "");
    std::thread::scope(|scope| {
        scope.spawn(|| work(&a, "a"));
        scope.spawn(|| work(&b, "b"));
    });
    assert!(recalls(&a) + recalls(&b) > 0.0, "neither had anything to return");
    assert_eq!(fs::read_dir(a.at()).unwrap().count(), 0);
}

#[test]
fn reader_is_never_behind_what_was_acknowledged_before_it_asked() {
    let Some(Leased { a, b, proxy: _proxy }) = Leased::new("leases-behind") else { return };
    fs::write(b.join("replaced"), "").unwrap();
    let grown = File::create(b.join("grown")).unwrap();
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while acknowledged.load(Ordering::SeqCst) < STEPS {
                    let least = acknowledged.load(Ordering::SeqCst);
                    for name in ["replaced", "grown"] {
                        let len = fs::metadata(a.join(name)).unwrap().len();
                        assert!(len >= least, "{name}: {len}, {least} was acknowledged");
                        let len = fs::read(a.join(name)).unwrap().len() as u64;
                        assert!(len >= least, "{name}: read {len}, {least} was acknowledged");
                    }
                    let made = a.join(&format!("made{least}"));
                    assert!(least == 0 || fs::symlink_metadata(&made).is_ok(), "{made:?}");
                    let next = a.join(&format!("made{}", least + 1));
                    let _ = fs::symlink_metadata(next);
                }
            });
        }
        // A reader that fails ends with it.
        let _end = Step(&acknowledged, STEPS);
        for step in 1..=STEPS {
            fs::write(b.join("new"), vec![1; step as usize]).unwrap();
            fs::rename(b.join("new"), b.join("replaced")).unwrap();
            grown.set_len(step).unwrap();
            fs::write(b.join(&format!("made{step}")), "").unwrap();
            drop(Step(&acknowledged, step));
        }
    });
}

/// Sets the number when it is dropped, also by a panic.
struct Step<'a>(&'a AtomicU64, u64);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::SeqCst);
    }
}

/// What the random test expects of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    content: Option<Vec<u8>>,
    mode: u32,
}

#[test]
fn no_answer_is_old_however_two_nodes_and_a_plain_client_change_files() {
    let Some(Leased { a, b, proxy }) = Leased::new("leases-random") else { return };
    let seed = std::env::var("SLUICE_LEASE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut dice = testkit::Dice::new(seed);
    let mut model = vec![Expected::default(); NAMES.len()];
    let mut client = proxy.client_of("x", 0);
    for round in 0..ROUNDS {
        let at = if dice.below(2) == 0 { &a } else { &b };
        let number = dice.below(NAMES.len() as u64) as usize;
        let (path, file) = (at.join(NAMES[number]), &mut model[number]);
        let is_there = file.content.is_some();
        match dice.below(8) {
            0 | 1 => {
                let content = dice.bytes(1 + dice.clone().below(6000) as usize);
                fs::write(&path, &content).unwrap();
                let mode = if is_there { file.mode } else { 0o644 };
                *file = Expected { content: Some(content), mode };
            }
            2 if is_there => {
                fs::remove_file(&path).unwrap();
                *file = Expected::default();
            }
            3 if is_there => {
                file.mode = 0o600 + dice.below(0o100) as u32;
                fs::set_permissions(&path, fs::Permissions::from_mode(file.mode)).unwrap();
            }
            4 if is_there => {
                let to = dice.below(NAMES.len() as u64) as usize;
                fs::rename(&path, at.join(NAMES[to])).unwrap();
                if to != number {
                    model[to] = std::mem::take(&mut model[number]);
                }
            }
            5 if is_there => {
                let len = dice.below(9000);
                OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
                file.content.as_mut().unwrap().resize(len as usize, 0);
            }
            6 if is_there => {
                client.walk(0, 1, &[NAMES[number]]).unwrap();
                client.open(1, 1 /* O_WRONLY */).unwrap();
                let written = dice.bytes(10);
                client.write(1, 5, &written).unwrap();
                client.clunk(1).unwrap();
                let content = file.content.as_mut().unwrap();
                content.resize(content.len().max(15), 0);
                content[5..15].copy_from_slice(&written);
            }
            7 if is_there => {
                client.unlink(0, NAMES[number], 0).unwrap();
                *file = Expected::default();
            }
            _ => {}
        }
        for at in [&a, &b] {
            check(at, &model, &format!("seed {seed}, round {round}"));
        }
    }
}

/// Whether a mount shows what is expected.
fn check(at: &Mounted, model: &[Expected], when: &str) {
    for (name, expected) in NAMES.iter().zip(model) {
        match (fs::metadata(at.join(name)), &expected.content) {
            (Ok(found), Some(content)) => {
                assert_eq!(found.len(), content.len() as u64, "{name}, {when}");
                assert_eq!(found.mode() & 0o777, expected.mode, "{name}, {when}");
                assert!(fs::read(at.join(name)).unwrap() == *content, "{name}, {when}");
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{name}, {when}"),
            (found, _) => panic!("{name}, {when}: {found:?}, expected {expected:?}"),
        }
    }
    let mut names: Vec<_> = fs::read_dir(at.at())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let present = |(_, expected): &(&&str, &Expected)| expected.content.is_some();
    let mut there: Vec<_> =
        NAMES.iter().zip(model).filter(present).map(|(name, _)| (*name).to_owned()).collect();
    there.sort();
    assert_eq!(names, there, "{when}");
}

/// Ends threads that go on until then, also after an assertion that failed.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The first byte of a mapped file.
struct Mapped(*mut std::ffi::c_void);

#[allow(unsafe_code, reason = "a mapping is memory that others may change")]
fn map(file: &File) -> Mapped {
    // SAFETY: a new mapping of one page, which nothing else uses.
    let at = unsafe {
        mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap()
    };
    Mapped(at)
}

#[allow(unsafe_code, reason = "a mapping is memory that others may change")]
impl Mapped {
    fn first(&self) -> u8 {
        // SAFETY: the page is mapped for as long as this is.
        unsafe { std::ptr::read_volatile(self.0.cast::<u8>()) }
    }
}

#[allow(unsafe_code, reason = "mappings end")]
impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is this mapping, which nothing else uses.
        unsafe { munmap(self.0, 4096).unwrap() };
    }
}
