//! The directory of one run, and where such directories are made.
//!
//! ```text
//!   made ─► used: files, sockets, mounts ─► dropped: what is mounted below is detached,
//!                                           then everything is removed
//! ```
//!
//! A run ends through its guards whichever way it ends: by itself, by an error, by a panic,
//! or by a signal, which raises the flag of [`crate::stop_on_signals`]. Guards of processes
//! and mounts are made after the directory and so go before it; here is what they missed.

use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::mount::{UnmountFlags, unmount};

/// A directory that is removed with all in it when dropped.
#[derive(Debug)]
pub(crate) struct RunDir(PathBuf);

impl RunDir {
    /// Makes it in `parent`, or else where [`parent`] says; others than its owner see nothing
    /// of it.
    pub(crate) fn make(parent: Option<&Path>, name: &str) -> anyhow::Result<RunDir> {
        let parent = parent.map_or_else(self::parent, Path::to_path_buf);
        let found = parent.canonicalize();
        let found = found.with_context(|| format!("cannot use {}", parent.display()))?;
        let path = found.join(format!("sluice-{name}-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(RunDir(path))
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
        for at in mounts_below(&table, &self.0) {
            // Else the removal below says what is wrong.
            let _ = unmount(&at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        // What ran in it may have been making files until a moment ago.
        let deadline = Instant::now() + GRACE;
        while let Err(error) = fs::remove_dir_all(&self.0) {
            if Instant::now() > deadline {
                eprintln!("sluice-bench: cannot remove {}: {error}", self.0.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Where directories are made unless the user says where: TMPDIR, or else a place that is on
/// a disk, which /tmp often is not.
pub(crate) fn parent() -> PathBuf {
    let named = std::env::var_os("TMPDIR").filter(|named| !named.is_empty());
    named.map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

/// What is mounted below `dir`, the last first.
fn mounts_below(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let mut below: Vec<PathBuf> =
        points.map(unescaped).filter(|at| at.starts_with(dir) && at != dir).collect();
    below.reverse();
    below
}

/// A path of the kernel's table, in which space, tab, newline and backslash are octal.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = text;
    while let [first, more @ ..] = rest {
        let octal = more.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &more[3..];
            }
            None => {
                path.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_comes_last_first_and_with_its_own_name() {
        let table = b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:30 / /t/a rw - fuse x rw\n\
                      31 30 0:31 / /t/a/with\\040space rw - fuse x rw\n\
                      32 30 0:32 / /t/a/b\\134c rw - fuse x rw\n\
                      33 22 0:33 / /t/ab rw - fuse x rw\n";
        let found = mounts_below(table, Path::new("/t/a"));
        assert_eq!(found, ["/t/a/b\\c", "/t/a/with space"].map(PathBuf::from));
    }

    #[test]
    fn a_panic_takes_the_directory_along() {
        let here = testkit::TestFolder::new();
        let made = std::panic::catch_unwind(|| {
            let dir = RunDir::make(Some(here.path()), "panic").unwrap();
            fs::write(dir.path().join("file"), "x").unwrap();
            panic!("in the middle");
        });
        assert!(made.is_err());
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
    }
}
