//! A disk that fails when it is to make writes durable, and has lost them: the proxy says so by
//! another verifier, the mount writes them once more, and fsync tells no lie.
//!
//! ```text
//!   test ─► sluice mount (keeps what is not durable) ─► Proxy ─► Lossy, a process of its own
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use crate::common::{Proxy, Setup, root_here, skip, until};
use crate::lossy::Lossy;
use crate::posix_pair::{Mounted, bytes, words, worker};
use rustix::io::Errno;
use testkit::TestFolder;

/// The server of the file system; without words to work on, a look at whether it loses.
#[test]
fn a_file_system_that_is_told_to_lose_what_was_not_synced_does_so_once() {
    if let Some(words) = words() {
        let write_time = Duration::from_millis(words[2].parse().unwrap());
        return crate::lossy::serve(Path::new(&words[0]), Path::new(&words[1]), write_time);
    }
    if !can_mount() {
        return;
    }
    let dir = TestFolder::new();
    let lossy = mount(&dir.path().join("at"), &dir.path().join("lose"));
    let path = dir.path().join("at/file");
    let mut file = open(&path);
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    file.write_all(b" and lost").unwrap();
    lossy.lose_at_next_sync();
    assert!(!lossy.has_lost());
    let told = file.sync_all().map_err(|error| error.raw_os_error());
    assert_eq!(told, Err(Some(Errno::IO.raw_os_error())));
    assert!(lossy.has_lost());
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    file.sync_all().expect("it fails once");
}

const SERVER: &str = "a_file_system_that_is_told_to_lose_what_was_not_synced_does_so_once";

fn mount(at: &Path, lose: &Path) -> Lossy {
    mount_slow(at, lose, 0)
}

/// One whose writes take so many milliseconds each, one after the other.
pub(crate) fn mount_slow(at: &Path, lose: &Path, write_ms: u64) -> Lossy {
    let words = [at.to_str().unwrap(), lose.to_str().unwrap(), &write_ms.to_string()];
    Lossy::mount(at, lose, || worker(module_path!(), SERVER, &words))
}

pub(crate) fn can_mount() -> bool {
    let fuse = Path::new("/dev/fuse").exists();
    if !fuse {
        skip("no /dev/fuse here");
    }
    root_here() && fuse
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A mount of a proxy over such a file system.
struct Stand {
    mount: Mounted,
    // Served until its clients are gone: fields are dropped in this order.
    _proxy: Proxy,
    lossy: Lossy,
    dir: TestFolder,
}

impl Stand {
    fn new(name: &str, options: &str) -> Option<Stand> {
        if !can_mount() {
            return None;
        }
        let dir = TestFolder::new();
        let lossy = mount(&dir.path().join("at"), &dir.path().join("lose"));
        let export = format!("[[export]]\nname = \"x\"\ndir = {:?}\n", dir.path().join("at"));
        let proxy = Setup::new(name).top("squash = \"none\"").tables(&export).start();
        let mount = Mounted::new(&proxy, "mount", options);
        Some(Stand { mount, _proxy: proxy, lossy, dir })
    }

    /// What the file system has, past proxy and mount.
    fn behind(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir.path().join("at").join(name)).unwrap()
    }

    /// Syncs until that succeeds: the loss may be told once.
    fn sync(&self, file: &File) {
        if let Err(error) = file.sync_all() {
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
            assert!(self.lossy.has_lost(), "there is no other reason to fail");
            file.sync_all().expect("what was lost was written again");
        }
    }
}

#[test]
fn what_the_disk_lost_is_written_once_more_before_fsync_succeeds() {
    for options in ["attr_timeout=1s", "attr_timeout=0"] {
        let Some(stand) = Stand::new("lost", options) else { return };
        let expected = bytes(3, 3 << 20);
        let file = open(&stand.mount.join("file"));
        file.write_all_at(&expected[..1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        for (n, piece) in expected.chunks(100_000).enumerate().skip(5) {
            file.write_all_at(piece, n as u64 * 100_000).unwrap();
        }
        until("the proxy has it", || stand.behind("file").len() == expected.len());
        stand.lossy.lose_at_next_sync();
        stand.sync(&file);
        assert!(stand.lossy.has_lost());
        assert!(stand.behind("file") == expected, "{options}");
        // And it is durable now: another loss takes nothing.
        stand.lossy.lose_at_next_sync();
        assert!(open(&stand.dir.path().join("at/file")).sync_all().is_err());
        assert!(stand.behind("file") == expected, "{options}");
    }
}

#[test]
fn what_was_lost_of_other_files_comes_back_too() {
    let Some(stand) = Stand::new("others", "attr_timeout=1s") else { return };
    let closed = bytes(1, 300_000);
    fs::write(stand.mount.join("closed"), &closed).unwrap();
    let mut lines = OpenOptions::new();
    let mut lines = lines.append(true).create(true).open(stand.mount.join("lines")).unwrap();
    for line in 0..100 {
        lines.write_all(format!("line {line:03}\n").as_bytes()).unwrap();
    }
    let synced = open(&stand.mount.join("synced"));
    synced.write_all_at(b"synced", 0).unwrap();
    until("the proxy has it", || stand.behind("synced") == b"synced");
    stand.lossy.lose_at_next_sync();
    stand.sync(&synced);
    assert!(stand.lossy.has_lost());
    assert_eq!(stand.behind("synced"), b"synced");
    // Those that nobody syncs come back in their own time.
    let expected: String = (0..100).map(|line| format!("line {line:03}\n")).collect();
    until("the lines are there again", || stand.behind("lines") == expected.as_bytes());
    until("the closed file is there again", || stand.behind("closed") == closed);
    // Appended behind what came back, and not in its place.
    lines.write_all(b"the last\n").unwrap();
    stand.sync(&lines);
    assert_eq!(stand.behind("lines"), (expected + "the last\n").as_bytes());
}
