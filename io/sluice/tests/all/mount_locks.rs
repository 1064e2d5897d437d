//! Locks make data coherent: what was written before one is given back is read by who has it next, on
//! whatever mount.
//!
//! ```text
//!   a: lock, read ─ cached for an hour        b: lock, write, unlock
//!   a: lock, read ─► what b wrote, though size and time may be as they were
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;

use crate::common::until;
use crate::posix_pair::{Mounted, Pair};
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// As many bytes as make several pages, and a part of one.
const SIZE: usize = 9000;

/// A kind of lock, and how much of a file it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Flock,
    Fcntl,
    Ofd,
    /// An fcntl lock on one byte of the file: it stands for all of it.
    Range,
}

impl Kind {
    /// Takes it, waiting if need be, or gives it back.
    pub(crate) fn set(self, file: &File, how: FlockOperation) {
        self.try_set(file, how).unwrap();
    }

    /// The same where that may fail.
    pub(crate) fn try_set(self, file: &File, how: FlockOperation) -> io::Result<()> {
        if let Kind::Flock = self {
            return Ok(flock(file, how)?);
        }
        let kind = match how {
            FlockOperation::LockShared => nix::libc::F_RDLCK,
            FlockOperation::LockExclusive | FlockOperation::NonBlockingLockExclusive => {
                nix::libc::F_WRLCK
            }
            _ => nix::libc::F_UNLCK,
        };
        let waits = how != FlockOperation::NonBlockingLockExclusive;
        let (start, len) = if let Kind::Range = self { (7, 1) } else { (0, 0) };
        let range = nix::libc::flock {
            l_type: kind as i16,
            l_whence: nix::libc::SEEK_SET as i16,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        let argument = match (self, waits) {
            (Kind::Ofd, true) => FcntlArg::F_OFD_SETLKW(&range),
            (Kind::Ofd, false) => FcntlArg::F_OFD_SETLK(&range),
            (_, true) => FcntlArg::F_SETLKW(&range),
            (_, false) => FcntlArg::F_SETLK(&range),
        };
        fcntl(file, argument)?;
        Ok(())
    }
}

fn open(mount: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).open(mount.join("file")).unwrap()
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; SIZE];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// Rounds of reading on one mount and writing on the other, each under the lock, both open
/// all the time.
fn seen_under(kind: Kind, write: impl Fn(&File, &[u8])) {
    seen_under_until(kind, write, || {});
}

/// The same, with something to end before the mounts are.
fn seen_under_until(kind: Kind, write: impl Fn(&File, &[u8]), end: impl Fn()) {
    let Some(pair) = Pair::new(&format!("coherent-{kind:?}"), "allow_other,attr_timeout=1h") else {
        return;
    };
    fs::write(pair.a.join("file"), vec![b'.'; SIZE]).unwrap();
    let files = pair.both().map(open);
    for round in 0..40 {
        let (reader, writer) = (&files[round % 2], &files[1 - round % 2]);
        let next = vec![b'a' + (round % 26) as u8; SIZE];
        kind.set(reader, FlockOperation::LockShared);
        assert!(content(reader) != next);
        kind.set(reader, FlockOperation::Unlock);
        kind.set(writer, FlockOperation::LockExclusive);
        write(writer, &next);
        kind.set(writer, FlockOperation::Unlock);
        kind.set(reader, FlockOperation::LockShared);
        assert!(content(reader) == next, "round {round}");
        kind.set(reader, FlockOperation::Unlock);
    }
    end();
}

fn by_writing(file: &File, bytes: &[u8]) {
    file.write_all_at(bytes, 0).unwrap();
}

#[test]
fn what_was_written_under_flock_is_read_under_it_on_the_other_mount() {
    seen_under(Kind::Flock, by_writing);
}

#[test]
fn what_was_written_under_fcntl_locks_is_read_under_them_on_the_other_mount() {
    seen_under(Kind::Fcntl, by_writing);
}

#[test]
fn what_was_written_under_ofd_locks_is_read_under_them_on_the_other_mount() {
    seen_under(Kind::Ofd, by_writing);
}

#[test]
fn what_was_written_under_a_lock_of_one_byte_is_read_under_it_on_the_other_mount() {
    seen_under(Kind::Range, by_writing);
}

/// Writes by way of a mapping that is there only now; nothing is synced.
#[allow(unsafe_code, reason = "a mapping is memory that others may change")]
fn by_mapping(file: &File, bytes: &[u8]) {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses where; the file has as many bytes, and nobody cuts it.
    let map = unsafe { mmap(std::ptr::null_mut(), SIZE, protection, flags, file, 0) }.unwrap();
    // SAFETY: both are SIZE bytes long, and nobody else has this mapping.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast(), bytes.len()) };
    KEPT.with_borrow_mut(|kept| kept.push(map as usize));
}

thread_local! {
    /// Mappings that stay until the end of the test: unmapping would bring out what was written.
    static KEPT: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[allow(unsafe_code, reason = "mappings end")]
fn unmap() {
    // SAFETY: each was mapped with this length, and nothing uses them any more.
    KEPT.take().into_iter().for_each(|map| unsafe { munmap(map as *mut _, SIZE) }.unwrap());
}

#[test]
fn what_was_written_through_a_mapping_under_a_lock_is_read_under_it_on_the_other_mount() {
    seen_under_until(Kind::Fcntl, by_mapping, unmap);
}

#[test]
fn a_length_that_changed_under_a_lock_is_known_under_it_on_the_other_mount() {
    let Some(pair) = Pair::new("coherent-length", "allow_other,attr_timeout=1h") else { return };
    fs::write(pair.a.join("file"), "").unwrap();
    let [a, b] = pair.both().map(open);
    for round in 0..20 {
        let len = (round * 5077) % 20_011;
        flock(&b, FlockOperation::LockExclusive).unwrap();
        b.set_len(len / 2).unwrap();
        b.write_all_at(b"x", len).unwrap();
        flock(&b, FlockOperation::Unlock).unwrap();
        flock(&a, FlockOperation::LockShared).unwrap();
        assert_eq!(a.metadata().unwrap().len(), len + 1, "round {round}");
        flock(&a, FlockOperation::Unlock).unwrap();
    }
}

#[test]
fn who_waited_for_a_lock_reads_what_was_written_before_it_was_given_back() {
    let Some(pair) = Pair::new("coherent-waiting", "allow_other,attr_timeout=1h") else { return };
    fs::write(pair.a.join("file"), vec![b'.'; SIZE]).unwrap();
    let [a, b] = pair.both().map(open);
    for round in 0..20 {
        let next = vec![b'a' + round; SIZE];
        content(&a);
        flock(&b, FlockOperation::LockExclusive).unwrap();
        b.write_all_at(&next, 0).unwrap();
        let (told, tells) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                told.send(rustix::thread::gettid()).unwrap();
                flock(&a, FlockOperation::LockShared).unwrap();
                assert!(content(&a) == next, "round {round}");
                flock(&a, FlockOperation::Unlock).unwrap();
            });
            let thread = tells.recv().unwrap().as_raw_nonzero();
            until("it waits for the lock", || sleeps(&format!("/proc/self/task/{thread}/stat")));
            flock(&b, FlockOperation::Unlock).unwrap();
        });
    }
}

fn sleeps(stat: &str) -> bool {
    fs::read_to_string(stat).unwrap().rsplit(')').next().unwrap().trim_start().starts_with('S')
}

/// A descriptor that is closed takes its process's locks with it, whichever of them was written by.
#[test]
fn a_close_that_gives_locks_back_brings_out_what_another_descriptor_wrote() {
    let Some(pair) = Pair::new("coherent-close", "allow_other,attr_timeout=1h") else { return };
    fs::write(pair.a.join("file"), vec![b'.'; SIZE]).unwrap();
    let [a, b] = pair.both().map(open);
    for round in 0..20 {
        let next = vec![b'a' + round; SIZE];
        Kind::Fcntl.set(&a, FlockOperation::LockExclusive);
        a.write_all_at(&next, 0).unwrap();
        drop(File::open(pair.a.join("file")).unwrap());
        Kind::Ofd.set(&b, FlockOperation::LockShared);
        assert!(content(&b) == next, "round {round}");
        Kind::Ofd.set(&b, FlockOperation::Unlock);
    }
}

/// A counter in the locked file itself, which stays open: what is lost shows a read of old bytes.
#[test]
fn a_counter_in_the_locked_file_loses_nothing() {
    let Some(pair) = Pair::new("coherent-counter", "allow_other,attr_timeout=1h") else { return };
    let path = |n: usize| pair.both()[n % 2].join("file");
    fs::write(path(0), 0u64.to_le_bytes()).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let path = path(n);
            scope.spawn(move || count(&path, 100));
        }
    });
    let counted = fs::read(pair.beside("file")).unwrap();
    assert_eq!(counted, 400u64.to_le_bytes());
}

fn count(path: &Path, rounds: u32) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    for _ in 0..rounds {
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0).unwrap();
        file.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0).unwrap();
        flock(&file, FlockOperation::Unlock).unwrap();
    }
}
