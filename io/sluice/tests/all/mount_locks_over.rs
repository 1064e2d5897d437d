//! Locks make data coherent also while proxies die: a lock that is held over the death of its
//! proxy is granted to who waits for it on the other mount once it is given back, no sooner, and
//! with what was written before that.
//!
//! ```text
//!   holder ─► a ─► sluice mount ─┬─► Proxy, which dies and returns, or two of which one dies
//!   waiter ─► b ─► sluice mount ─┘        └─► the directory beside it
//! ```
//!
//! Who locks are processes of their own: whoever starts a proxy closes its copies of all files,
//! and waits for what was written to them. What they say to each other lies in a folder that is in
//! no mount.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use nix::libc::{ESTALE, SYS_fcntl, SYS_flock};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{TestFolder, again};

use crate::common::{Proxy, Setup, everybodys, until};
use crate::mixed::Obeying;
use crate::mount_left_behind::is_in;
use crate::mount_locks::Kind;
use crate::mounted::can_mount;
use crate::posix_pair::Mounted;

/// File n of a test is locked by kind n.
const KINDS: [Kind; 4] = [Kind::Flock, Kind::Fcntl, Kind::Ofd, Kind::Range];
/// As many bytes as make several pages, and a part of one.
const SIZE: usize = 9000;
const OPTIONS: &str = "attr_timeout=1h";

// ---- who locks ----

/// The process of one who locks; by itself it does nothing.
#[test]
fn one_who_locks() {
    if std::env::var_os(LOCKS).is_none() {
        return;
    }
    let mut files = Vec::new();
    for line in std::io::stdin().lines() {
        obey(&line.unwrap(), &mut files);
        // On a line of its own: the harness may have begun one.
        println!("\nok");
    }
}

const LOCKS: &str = "SLUICE_LOCKS";

fn one_who_locks_in(folder: &Path) -> Obeying {
    let mut one = Obeying::start(again(module_path!(), "one_who_locks").env(LOCKS, ""));
    one.tell(&format!("open {}", folder.display()));
    one
}

fn obey(line: &str, files: &mut Vec<File>) {
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["open", folder] => files.extend((0..KINDS.len()).map(|n| opened(folder, n))),
        ["write", byte] => {
            for file in files {
                file.write_all_at(&filled_with(byte), 0).unwrap();
            }
        }
        ["lock"] => {
            for (kind, file) in KINDS.iter().zip(files) {
                kind.set(file, FlockOperation::LockExclusive);
            }
        }
        // What was said before a lock was given back is there when it is granted.
        ["unlock", said] => {
            for (n, (kind, file)) in KINDS.iter().zip(files).enumerate() {
                fs::write(format!("{said}{n}"), "").unwrap();
                kind.set(file, FlockOperation::Unlock);
            }
        }
        ["wait", n, said, byte] => {
            let number: usize = n.parse().unwrap();
            let (kind, file) = (KINDS[number], &files[number]);
            // From now on the kernel has old pages.
            let before = content(file);
            kind.set(file, FlockOperation::LockExclusive);
            assert!(fs::exists(format!("{said}{n}")).unwrap(), "{kind:?} is held by two");
            assert!(before != filled_with(byte));
            assert!(content(file) == filled_with(byte), "{kind:?} let old bytes be read");
            kind.set(file, FlockOperation::Unlock);
        }
        ["count", folder, noted, until] => {
            let mut noted = OpenOptions::new().append(true).create_new(true).open(noted).unwrap();
            while !fs::exists(until).unwrap() {
                for (n, file) in files.iter_mut().enumerate() {
                    let note = match count(KINDS[n], file) {
                        Ok(()) => COUNTED,
                        // Its mount was back so late that the lock was another's: it says so, and
                        // whether the last step was made nobody knows.
                        Err(error) if error.raw_os_error() == Some(ESTALE) => {
                            *file = opened(folder, n);
                            IN_DOUBT
                        }
                        Err(error) => panic!("{:?}: {error}", KINDS[n]),
                    };
                    noted.write_all(&[note[n]]).unwrap();
                }
            }
        }
        _ => panic!("nobody knows what {line:?} means"),
    }
}

fn opened(folder: &str, n: usize) -> File {
    let path = Path::new(folder).join(format!("file{n}"));
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Adds one to the number in the locked file.
fn count(kind: Kind, file: &File) -> io::Result<()> {
    kind.try_set(file, FlockOperation::LockExclusive)?;
    let mut number = [0; 8];
    file.read_exact_at(&mut number, 0)?;
    file.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0)?;
    kind.try_set(file, FlockOperation::Unlock)
}

/// What is noted of a step in file n.
const COUNTED: &[u8; 4] = b"0123";
const IN_DOUBT: &[u8; 4] = b"abcd";

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; SIZE];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

fn filled_with(byte: &str) -> Vec<u8> {
    vec![byte.as_bytes()[0]; SIZE]
}

// ---- one proxy, or two of one directory ----

/// Proxies of one directory; two mounts of all of them; and a folder that is in no mount.
///
/// Dropped from the top: mounts end before their proxies do.
struct Place {
    a: Mounted,
    b: Mounted,
    proxies: Vec<Option<Proxy>>,
    folder: TestFolder,
    names: Vec<String>,
}

impl Place {
    /// None, said aloud, where nothing can be mounted.
    fn new(names: &[&str], content: &[u8]) -> Option<Place> {
        if !can_mount() {
            return None;
        }
        let folder = TestFolder::new();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        everybodys(&data);
        for n in 0..KINDS.len() {
            fs::write(data.join(format!("file{n}")), content).unwrap();
        }
        let proxies: Vec<_> =
            names.iter().map(|name| Some(setup(folder.path(), name, names).start())).collect();
        let all: Vec<_> = proxies.iter().flatten().collect();
        let mounted = |at| Mounted::of(&all, folder.path().join(at), OPTIONS);
        let (a, b) = (mounted("a"), mounted("b"));
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Some(Place { a, b, proxies, folder, names })
    }

    fn crash(&mut self, which: usize) {
        self.proxies[which].take().unwrap().crash();
    }

    /// Starts it where it was, as its supervisor would.
    fn start_again(&mut self, which: usize) {
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        let setup = setup(self.folder.path(), names[which], &names);
        self.proxies[which] = Some(setup.again().start());
    }

    /// Returns once the holder's mount has reached proxies for all files, and has its locks there.
    fn wait_for_a(&self) {
        for n in 0..KINDS.len() {
            File::open(self.a.join(&format!("file{n}"))).unwrap().sync_all().unwrap();
        }
    }

    /// Stops the mount where locks are waited for, or lets it go on: so it comes after the other
    /// one, however late that is.
    fn signal_b(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.b.process() as i32).unwrap(), signal).unwrap();
    }

    /// In no mount.
    fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self, n: usize) -> Vec<u8> {
        fs::read(self.beside("data").join(format!("file{n}"))).unwrap()
    }
}

fn setup(folder: &Path, name: &str, all: &[&str]) -> Setup {
    let export = format!("[[export]]\nname = \"x\"\ndir = {:?}\n", folder.join("data"));
    let top = format!("squash = \"none\"\nhandle_key = {:?}", folder.join("key"));
    Setup::new(name).tables(&export).top(&top).group(name, all)
}

// ---- locks that are waited for ----

/// One that holds a lock of each kind on `a`, and as many that wait for them on `b`.
struct Waited {
    holder: Obeying,
    waiters: Vec<JoinHandle<Obeying>>,
    said: PathBuf,
    next: String,
}

impl Waited {
    /// Who waits will look for `next`.
    fn begin(place: &Place, next: char) -> Waited {
        let said = place.beside(&format!("given-back-{next}-"));
        let mut holder = one_who_locks_in(place.a.at());
        holder.tell("lock");
        let waits = |n| {
            let mut waiter = one_who_locks_in(place.b.at());
            let process = waiter.process();
            let line = format!("wait {n} {} {next}", said.display());
            let thread = std::thread::spawn(move || {
                waiter.tell(&line);
                waiter
            });
            until("it waits for the lock", || {
                thread.is_finished() || is_in(process, &[SYS_fcntl, SYS_flock])
            });
            thread
        };
        let waiters = (0..KINDS.len()).map(waits).collect();
        Waited { holder, waiters, said, next: next.into() }
    }

    /// Writes what is not to be read by anybody, and then what is.
    fn write(&mut self) {
        self.holder.tell("write -");
        self.holder.tell(&format!("write {}", self.next));
        assert!(!self.waiters.iter().any(JoinHandle::is_finished), "they wait");
    }

    fn give_back(&mut self) {
        self.holder.tell(&format!("unlock {}", self.said.display()));
    }

    /// All have got it, and have found what they were to find.
    fn end(self, place: &Place) {
        until("all get the lock", || self.waiters.iter().all(JoinHandle::is_finished));
        self.waiters.into_iter().for_each(|waiter| waiter.join().unwrap().end());
        self.holder.end();
        for n in 0..KINDS.len() {
            assert!(place.data(n) == filled_with(&self.next));
        }
    }
}

#[test]
fn who_waits_over_the_death_of_the_proxy_gets_the_lock_after_its_unlock_and_reads_what_was_written()
{
    let Some(mut place) = Place::new(&["locks-over"], &[b'.'; SIZE]) else { return };
    let mut waited = Waited::begin(&place, '1');
    place.signal_b(Signal::STOP);
    place.crash(0);
    place.start_again(0);
    place.wait_for_a();
    place.signal_b(Signal::CONT);
    waited.write();
    waited.give_back();
    waited.end(&place);
}

#[test]
fn a_lock_that_is_given_back_while_the_proxy_is_away_is_granted_by_the_next_one() {
    let Some(mut place) = Place::new(&["locks-away"], &[b'.'; SIZE]) else { return };
    let mut waited = Waited::begin(&place, '1');
    waited.write();
    place.signal_b(Signal::STOP);
    place.crash(0);
    // It may wait for the proxy.
    let gives_back = std::thread::spawn(move || {
        waited.give_back();
        waited
    });
    until("it begins to", || fs::exists(place.beside("given-back-1-0")).unwrap());
    place.start_again(0);
    until("it is done", || gives_back.is_finished());
    place.signal_b(Signal::CONT);
    gives_back.join().unwrap().end(&place);
}

#[test]
fn who_waits_for_a_lock_that_another_proxy_takes_over_gets_it_after_its_unlock() {
    // Each file is at home with one of them.
    for dies in [0, 1] {
        let names = ["locks-over-1", "locks-over-2"];
        let Some(mut place) = Place::new(&names, &[b'.'; SIZE]) else { return };
        let mut waited = Waited::begin(&place, '1');
        place.signal_b(Signal::STOP);
        place.crash(dies);
        place.wait_for_a();
        place.signal_b(Signal::CONT);
        waited.write();
        waited.give_back();
        waited.end(&place);
    }
}

// ---- counters ----

/// Two on each mount count up under locks, while a proxy dies so often. `away` waits before it
/// is back.
fn counted(mut place: Place, (dies, deaths): (usize, usize), away: impl Fn(&[PathBuf])) {
    let stop = place.beside("stop");
    let noted: Vec<_> = (0..4).map(|n| place.beside(&format!("counted-{n}"))).collect();
    let begin = |(n, noted): (usize, &PathBuf)| {
        let at = [&place.a, &place.b][n % 2].at();
        let mut one = one_who_locks_in(at);
        let line = format!("count {} {} {}", at.display(), noted.display(), stop.display());
        std::thread::spawn(move || {
            one.tell(&line);
            one
        })
    };
    let counting: Vec<_> = noted.iter().enumerate().map(begin).collect();
    for _ in 0..deaths {
        all_go_on(&noted);
        place.crash(dies);
        away(&noted);
        place.start_again(dies);
    }
    all_go_on(&noted);
    fs::write(&stop, "").unwrap();
    until("all stop", || counting.iter().all(JoinHandle::is_finished));
    counting.into_iter().for_each(|one| one.join().unwrap().end());
    let notes: Vec<u8> = noted.iter().flat_map(|noted| fs::read(noted).unwrap()).collect();
    for (n, kind) in KINDS.iter().enumerate() {
        let of = |note: &[u8; 4]| notes.iter().filter(|one| **one == note[n]).count() as u64;
        let (counted, doubts) = (of(COUNTED), of(IN_DOUBT));
        let found = u64::from_le_bytes(place.data(n)[..].try_into().unwrap());
        println!("{found} under {kind:?}: {counted} that were counted, {doubts} in doubt");
        assert!((counted..=counted + doubts).contains(&found));
    }
}

fn all_go_on(noted: &[PathBuf]) {
    let goals: Vec<_> = noted.iter().map(|noted| steps(noted) + 20).collect();
    until("all go on", || noted.iter().zip(&goals).all(|(noted, goal)| steps(noted) >= *goal));
}

/// How many steps one has made.
fn steps(noted: &Path) -> u64 {
    noted.metadata().map_or(0, |noted| noted.len())
}

#[test]
fn counters_under_locks_on_two_mounts_lose_nothing_however_often_the_proxy_dies() {
    let Some(place) = Place::new(&["locks-count"], &[0; 8]) else { return };
    counted(place, (0, 3), |_| {});
}

#[test]
fn counters_under_locks_on_two_mounts_lose_nothing_when_one_of_their_proxies_dies() {
    for dies in [0, 1] {
        let names = ["locks-count-1", "locks-count-2"];
        let Some(place) = Place::new(&names, &[0; 8]) else { return };
        // The other one has all of it before it is back.
        counted(place, (dies, 1), all_go_on);
    }
}
