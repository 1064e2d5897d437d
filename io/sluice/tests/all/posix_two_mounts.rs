//! Two mounts of one directory: what one does is seen by the other, and what only one may
//! have, only one has.
//!
//! ```text
//!   close on a ─► open on b      close-to-open: everything is there
//!   a, b at once ─► proxy        locks, appends, names: the proxy puts them in an order
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use crate::common::until;
use crate::posix_pair::{Mounted, Pair, bytes, finish, words, worker};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use testkit::TestFolder;

/// Around the sizes of pages, of messages and of what is read ahead.
const SIZES: [usize; 10] = [0, 1, 100, 4095, 4096, 4097, 131_072, 131_073, 1_048_575, 2_097_153];

/// Files of the loops; each is checked several times.
const FILES: usize = 200;

#[test]
fn open_reads_what_another_mount_wrote_before_close() {
    let Some(pair) = Pair::new("close-open", "allow_other") else { return };
    for round in 0..FILES {
        let [from, to] = match round % 2 {
            0 => [&pair.a, &pair.b],
            _ => [&pair.b, &pair.a],
        };
        // Twenty names, so that most files are there with other content in both caches.
        let name = format!("file{}", round % 20);
        let content = bytes(round, SIZES[round % 10] + round / 10);
        fs::write(from.join(&name), &content).unwrap();
        assert!(fs::read(to.join(&name)).unwrap() == content, "round {round}");
        let cut = content.len() / 3;
        let file = OpenOptions::new().write(true).open(to.join(&name)).unwrap();
        file.set_len(cut as u64).unwrap();
        drop(file);
        assert!(fs::read(from.join(&name)).unwrap() == content[..cut], "round {round}, cut");
        let mut file = OpenOptions::new().read(true).write(true).open(from.join(&name)).unwrap();
        file.seek(SeekFrom::Start(cut as u64 + 5000)).unwrap();
        file.write_all(b"after a hole").unwrap();
        drop(file);
        let seen = fs::read(to.join(&name)).unwrap();
        let expected = [&content[..cut], &[0; 5000], b"after a hole"].concat();
        assert!(seen == expected, "round {round}, hole");
    }
}

#[test]
fn same_size_and_same_time_do_not_hide_new_content() {
    let Some(pair) = Pair::new("same-size", "allow_other") else { return };
    for round in 0..FILES {
        let [from, to] = if round % 2 == 0 { [&pair.a, &pair.b] } else { [&pair.b, &pair.a] };
        let content = bytes(round, 10_000);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.open(from.join("file")).unwrap().write_all_at(&content, 0).unwrap();
        // No pause: both writes may fall into one tick of the backend's clock.
        assert!(fs::read(to.join("file")).unwrap() == content, "round {round}");
    }
}

#[test]
fn a_file_that_was_renamed_over_is_opened_as_the_new_one() {
    let Some(pair) = Pair::new("over", "allow_other,attr_timeout=0") else { return };
    for round in 0..FILES {
        let name = format!("file{}", round % 20);
        let content = bytes(round, SIZES[round % 10]);
        fs::write(pair.a.join("new"), &content).unwrap();
        fs::rename(pair.a.join("new"), pair.a.join(&name)).unwrap();
        assert!(fs::read(pair.b.join(&name)).unwrap() == content, "round {round}");
    }
    // By default a name is believed for a second: what it had before or what it has now, whole.
    let Some(pair) = Pair::new("over-soon", "allow_other") else { return };
    let mut before = None;
    for round in 0..FILES {
        let content = bytes(round, SIZES[round % 10] + 1);
        fs::write(pair.a.join("new"), &content).unwrap();
        fs::rename(pair.a.join("new"), pair.a.join("file")).unwrap();
        let seen = fs::read(pair.b.join("file")).unwrap();
        assert!(seen == content || before.as_ref() == Some(&seen), "round {round}");
        before = Some(seen);
    }
    let last = bytes(FILES - 1, SIZES[(FILES - 1) % 10] + 1);
    until("the last content is seen", || fs::read(pair.b.join("file")).unwrap() == last);
}

#[test]
fn without_attribute_cache_every_change_is_visible_at_once() {
    let Some(pair) = Pair::new("at-once", "allow_other,attr_timeout=0") else { return };
    let [a, b] = pair.both();
    for round in 0..FILES {
        let name = format!("file{round}");
        assert!(!b.join(&name).exists(), "an absent name is asked for, and must not be kept");
        fs::write(a.join(&name), bytes(round, round)).unwrap();
        assert_eq!(fs::metadata(b.join(&name)).unwrap().len(), round as u64);
        let mode = 0o600 + round as u32 % 0o77;
        fs::set_permissions(b.join(&name), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(a.join(&name)).unwrap().mode() & 0o777, mode);
        fs::rename(a.join(&name), a.join("moved")).unwrap();
        assert!(!b.join(&name).exists() && b.join("moved").exists(), "round {round}");
        fs::hard_link(b.join("moved"), b.join(&name)).unwrap();
        let (here, there) = (fs::metadata(a.join("moved")), fs::metadata(b.join(&name)));
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!((here.nlink(), here.ino()), (2, there.ino()), "round {round}");
        fs::remove_file(b.join("moved")).unwrap();
        assert!(!a.join("moved").exists());
        let seen: BTreeSet<_> = names(a);
        assert!(seen == names(b) && seen.len() == round + 1, "round {round}");
    }
}

fn names(mount: &Mounted) -> BTreeSet<std::ffi::OsString> {
    fs::read_dir(mount.at()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(pair) = Pair::new("open", "allow_other,attr_timeout=0") else { return };
    let [a, b] = pair.both();
    for round in 0..20 {
        fs::write(a.join("file"), "first").unwrap();
        let mut file = OpenOptions::new().read(true).write(true).open(b.join("file")).unwrap();
        match round % 4 {
            0 => fs::remove_file(a.join("file")).unwrap(),
            1 => fs::remove_file(b.join("file")).unwrap(),
            2 => {
                fs::write(a.join("other"), "other").unwrap();
                fs::rename(a.join("other"), a.join("file")).unwrap();
            }
            _ => fs::rename(a.join("file"), a.join("away")).unwrap(),
        }
        let links = u64::from(round % 4 == 3);
        assert_eq!(file.metadata().unwrap().nlink(), links, "round {round}");
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b" and more").unwrap();
        file.sync_all().unwrap();
        file.rewind().unwrap();
        let mut seen = String::new();
        file.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "first and more", "round {round}");
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        if round % 4 == 3 {
            assert_eq!(fs::read(a.join("away")).unwrap(), b"fir");
            fs::remove_file(a.join("away")).unwrap();
        }
        let _ = fs::remove_file(a.join("file"));
    }
}

/// Adds one to a number so often, under a lock: what is lost shows that two had it.
fn count(kind: &str, dir: &Path, rounds: u32) {
    let lock = OpenOptions::new().read(true).write(true).open(dir.join("lock")).unwrap();
    let counter = dir.join("counter");
    for _ in 0..rounds {
        match kind {
            "fcntl" => fcntl_lock(&lock, FlockOperation::LockExclusive).unwrap(),
            _ => flock(&lock, FlockOperation::LockExclusive).unwrap(),
        }
        let number: u32 = fs::read_to_string(&counter).unwrap().parse().unwrap();
        fs::write(&counter, (number + 1).to_string()).unwrap();
        match kind {
            "fcntl" => fcntl_lock(&lock, FlockOperation::Unlock).unwrap(),
            _ => flock(&lock, FlockOperation::Unlock).unwrap(),
        }
    }
}

/// Appends lines that say whose they are and which, of many lengths.
fn append(who: &str, dir: &Path, lines: u32) {
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
    for number in 0..lines {
        log.write_all(line(who, number).as_bytes()).unwrap();
    }
}

fn line(who: &str, number: u32) -> String {
    let len = [3, 70, 900, 4100][number as usize % 4] + number as usize % 97;
    format!("{who} {number} {}\n", "x".repeat(len))
}

/// What the workers of the tests below do; without such words, that it counts right by itself.
#[test]
fn a_worker_does_what_it_is_told() {
    if let Some(words) = words() {
        let (dir, rounds) = (Path::new(&words[1]), words[2].parse().unwrap());
        match &*words[0] {
            kind @ ("fcntl" | "flock") => count(kind, dir, rounds),
            who => append(who, dir, rounds),
        }
        return;
    }
    let folder = TestFolder::new();
    let dir = folder.path();
    fs::write(dir.join("lock"), "").unwrap();
    fs::write(dir.join("counter"), "0").unwrap();
    count("fcntl", dir, 3);
    count("flock", dir, 4);
    append("alone", dir, 2);
    assert_eq!(fs::read_to_string(dir.join("counter")).unwrap(), "7");
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert_eq!(log, line("alone", 0) + &line("alone", 1));
}

const WORKER: &str = "a_worker_does_what_it_is_told";

/// Four processes, two on each mount, with one kind of lock.
fn exclude(kind: &str, options: &str) {
    let Some(pair) = Pair::new(&format!("lock-{kind}"), options) else { return };
    fs::write(pair.a.join("lock"), "").unwrap();
    fs::write(pair.a.join("counter"), "0").unwrap();
    let rounds = 150;
    let start = |n: usize| {
        let dir = pair.both()[n % 2].at().to_str().unwrap();
        worker(module_path!(), WORKER, &[kind, dir, &rounds.to_string()])
    };
    finish((0..4).map(start).collect());
    let counted = fs::read_to_string(pair.beside("counter")).unwrap();
    assert_eq!(counted, (4 * rounds).to_string());
}

#[test]
fn fcntl_locks_of_processes_on_both_mounts_exclude_each_other() {
    exclude("fcntl", "allow_other");
}

#[test]
fn flock_locks_of_processes_on_both_mounts_exclude_each_other() {
    exclude("flock", "allow_other");
}

#[test]
fn a_process_that_dies_leaves_its_locks_to_the_other_mount() {
    let Some(pair) = Pair::new("dies", "allow_other") else { return };
    fs::write(pair.a.join("lock"), "").unwrap();
    let mut holder = std::process::Command::new("flock")
        .arg("--no-fork")
        .arg(pair.a.join("lock"))
        .args(["sh", "-c", "echo; exec sleep infinity"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let lock = OpenOptions::new().write(true).open(pair.b.join("lock")).unwrap();
    let lock = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(!lock());
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the lock is free", lock);
}

#[test]
#[ignore = "as with NFS, the proxy's locks need the right that the descriptor was opened with"]
fn an_exclusive_flock_needs_no_right_to_write() {
    let Some(pair) = Pair::new("read-lock", "allow_other") else { return };
    fs::write(pair.a.join("lock"), "").unwrap();
    let file = File::open(pair.a.join("lock")).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn appended_lines_of_both_mounts_are_each_there_once_and_whole() {
    let Some(pair) = Pair::new("append", "allow_other") else { return };
    let lines = 1000;
    let start = |n: usize| {
        let dir = pair.both()[n % 2].at().to_str().unwrap();
        worker(module_path!(), WORKER, &[&format!("writer{n}"), dir, &lines.to_string()])
    };
    // Open on both all the time, so that what a mount has cached is not thrown away by an open.
    fs::write(pair.a.join("log"), "").unwrap();
    let _open = pair.both().map(|mount| File::open(mount.join("log")).unwrap());
    finish((0..4).map(start).collect());
    for place in [pair.proxy.data(), pair.a.join(""), pair.b.join("")] {
        let log = fs::read_to_string(place.join("log")).unwrap();
        let mut next = [0; 4];
        for found in log.split_inclusive('\n') {
            let writer: usize = found["writer".len()..][..1].parse().unwrap();
            assert!(found == line(&format!("writer{writer}"), next[writer]), "{}", place.display());
            next[writer] += 1;
        }
        assert_eq!(next, [lines; 4], "{}", place.display());
    }
}

#[test]
fn of_concurrent_creators_of_one_name_exactly_one_succeeds() {
    let Some(pair) = Pair::new("winner", "allow_other") else { return };
    fs::write(pair.a.join("source"), "").unwrap();
    let (rounds, start) = (100, Barrier::new(4));
    let contend = |n: usize| {
        let (pair, start) = (&pair, &start);
        move || {
            let mount = pair.both()[n % 2];
            let made = |round: usize| {
                start.wait();
                let name = mount.join(&format!("name{round}"));
                let made = match round % 4 {
                    0 => fs::create_dir(&name),
                    1 => File::create_new(&name).map(drop),
                    2 => symlink(format!("{n}"), &name),
                    _ => fs::hard_link(mount.join("source"), &name),
                };
                // Not looked at here: the others would wait for who panics.
                made.map_err(|error| error.kind())
            };
            (0..rounds).map(made).collect::<Vec<_>>()
        }
    };
    let won: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(contend(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for round in 0..rounds {
        let made: Vec<_> = won.iter().map(|won| won[round]).collect();
        let count = |what| made.iter().filter(|made| **made == what).count();
        let (winners, losers) = (count(Ok(())), count(Err(ErrorKind::AlreadyExists)));
        assert_eq!((winners, losers), (1, 3), "round {round}: {made:?}");
    }
}

#[test]
fn write_past_the_cache_is_read_past_the_cache_at_once() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(pair) = Pair::new("direct", "allow_other") else { return };
    let direct = |mount: &Mounted| {
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        options.open(mount.join("file")).unwrap()
    };
    let files = pair.both().map(direct);
    let mut space = vec![0; 3 * 65_536];
    let aligned = space.as_ptr().align_offset(4096);
    for round in 0..50 {
        let (from, to) = (&files[round % 2], &files[1 - round % 2]);
        let at = (round as u64 % 7) * 65_536;
        let block = &mut space[aligned..aligned + 65_536];
        let content = bytes(round, block.len());
        block.copy_from_slice(&content);
        from.write_all_at(block, at).unwrap();
        block.fill(0);
        to.read_exact_at(block, at).unwrap();
        assert!(block == content, "round {round}");
    }
}
