//! The run file and the log of a mount's process, in /run/sluice.
//!
//! ```text
//!   mount-DIR.json   {"pid": 4711, "source": …}, locked by the process as long as it lives
//!   mount-DIR.log    the log of a background process
//! ```
//!
//! After its mount has left the table, a process writes back its uncommitted writes. So
//! `sluice umount` opens the run file before it unmounts and then waits for the lock; unlike a
//! process number, a lock cannot be mistaken for that of a later process. A process that ends
//! normally empties its run file and removes it; a killed process leaves it unlocked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::{Deserialize, Serialize};

use super::place::escaped;

/// The run file of this mount's process. If it is dropped, the file stays as after a kill.
#[derive(Debug)]
pub(crate) struct MountRunFile {
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

/// The run file of another process, opened while its mount existed.
#[derive(Debug)]
pub(crate) struct OtherMount {
    file: File,
    data: MountRunData,
}

/// The content of a run file.
#[derive(Debug, Serialize, Deserialize)]
struct MountRunData {
    pid: i32,
    source: String,
}

impl MountRunFile {
    /// Writes the run file of this process for the mount at `place`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(folder: &Path, place: &Path, source: &str) -> io::Result<MountRunFile> {
        api::make_directory(folder, 0o755)?;
        let path = folder.join(format!("mount-{}.json", escaped(place)));
        // An earlier run file may belong to a process that is still writing back: its name is
        // reused, not its file.
        let unfinished = path.with_extension(format!("{}", std::process::id()));
        let mut file = private().create_new(true).open(&unfinished)?;
        let about = MountRunData { pid: std::process::id().cast_signed(), source: source.into() };
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| Ok(serde_json::to_writer(&mut file, &about)?))
            .and_then(|()| fs::rename(&unfinished, &path));
        if written.is_err() {
            // The first error is returned, not one of the cleanup.
            let _ = fs::remove_file(&unfinished);
        }
        written.map(|()| MountRunFile { path, file })
    }

    /// Removes the run file at a normal end of the process.
    pub(crate) fn remove(self) {
        let emptied = self.file.set_len(0);
        // The name may belong to a later mount's run file by now.
        let is_own = fs::metadata(&self.path)
            .and_then(|named| Ok(named.ino() == self.file.metadata()?.ino()));
        let removed = match is_own {
            Ok(true) => fs::remove_file(&self.path),
            _ => Ok(()),
        };
        if let Err(error) = emptied.and(removed) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the run file");
        }
    }
}

impl OtherMount {
    /// Opens the run file of the process of the mount at `place`; none if it does not run.
    pub(crate) fn open(folder: &Path, place: &Path) -> Option<OtherMount> {
        let path = folder.join(format!("mount-{}.json", escaped(place)));
        let mut file = File::open(path).ok()?;
        // Other users who can write to the folder must not choose which process is killed.
        file.metadata().ok().filter(|data| data.uid() == geteuid().as_raw())?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let other = OtherMount { file, data: serde_json::from_str(&text).ok()? };
        other.is_alive().then_some(other)
    }

    /// Returns the process number.
    pub(crate) fn pid(&self) -> i32 {
        self.data.pid
    }

    /// Waits until the process has ended; returns false if the deadline came first.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        while self.is_alive() {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Returns whether the process ended normally; valid after it has ended.
    pub(crate) fn ended_normally(&self) -> bool {
        self.file.metadata().is_ok_and(|data| data.len() == 0)
    }

    /// Kills the process with SIGKILL, if it still runs.
    pub(crate) fn kill(&self) {
        // The lock shows that the process lives, so the number is not reused.
        if let Some(pid) = Pid::from_raw(self.data.pid).filter(|_| self.is_alive()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn is_alive(&self) -> bool {
        match flock(&self.file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => true,
            _ => {
                let _ = flock(&self.file, FlockOperation::Unlock);
                false
            }
        }
    }
}

/// Opens the log of a background process, emptied: `file`, or the default one in the folder.
///
/// # Errors
/// If it cannot be created.
pub(crate) fn open_log(
    folder: &Path,
    place: &Path,
    file: Option<&Path>,
) -> io::Result<(File, PathBuf)> {
    if let Some(file) = file {
        let log = private().create(true).truncate(true).open(file)?;
        return Ok((log, file.to_owned()));
    }
    api::make_directory(folder, 0o755)?;
    let path = folder.join(format!("mount-{}.log", escaped(place)));
    // Always a new file, so that an existing one or a link is not written to.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok((private().create_new(true).open(&path)?, path)),
    }
}

fn private() -> OpenOptions {
    let mut options = api::private_options();
    options.write(true);
    options
}

/// The folder of run files and logs.
pub(crate) const FOLDER: &str = "/run/sluice";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("sluice-record-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_process_that_ends_as_it_should_is_waited_for() {
        let (dir, at) = (folder("well"), Path::new("/mnt/a"));
        let record = MountRunFile::write(&dir, at, "s").unwrap();
        let other = OtherMount::open(&dir, at).unwrap();
        assert_eq!(other.pid(), std::process::id() as i32);
        assert!(!other.wait(Some(Instant::now())));
        record.remove();
        assert!(other.wait(None) && other.ended_normally());
        assert!(OtherMount::open(&dir, at).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_process_that_was_killed_did_not_end_well_and_is_no_longer_there() {
        let (dir, at) = (folder("killed"), Path::new("/mnt/a"));
        let record = MountRunFile::write(&dir, at, "s").unwrap();
        let other = OtherMount::open(&dir, at).unwrap();
        drop(record);
        assert!(other.wait(None) && !other.ended_normally());
        assert!(OtherMount::open(&dir, at).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_later_mount_at_the_same_place_has_a_record_of_its_own() {
        let (dir, at) = (folder("later"), Path::new("/mnt/a"));
        let first = MountRunFile::write(&dir, at, "s").unwrap();
        let of_first = OtherMount::open(&dir, at).unwrap();
        let second = MountRunFile::write(&dir, at, "s").unwrap();
        let of_second = OtherMount::open(&dir, at).unwrap();
        assert!(!of_first.wait(Some(Instant::now())) && !of_first.ended_normally());
        first.remove();
        assert!(of_first.wait(None) && of_first.ended_normally());
        assert!(!of_second.wait(Some(Instant::now())));
        second.remove();
        assert!(of_second.wait(None) && of_second.ended_normally());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_record_that_somebody_else_made_is_not_believed() {
        if !geteuid().is_root() {
            return;
        }
        let (dir, at) = (folder("foreign"), Path::new("/mnt/a"));
        let record = MountRunFile::write(&dir, at, "s").unwrap();
        std::os::unix::fs::chown(&record.path, Some(1000), None).unwrap();
        assert!(OtherMount::open(&dir, at).is_none());
        record.remove();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_log_is_private_and_begins_empty() {
        let dir = folder("log");
        let (mut log, path) = open_log(&dir, Path::new("/mnt/a"), None).unwrap();
        log.write_all(b"old").unwrap();
        assert_eq!(path, dir.join("mount-mnt-a.log"));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        let (log, _) = open_log(&dir, Path::new("/mnt/a"), None).unwrap();
        assert!(!dir.join("elsewhere").exists());
        let stat = log.metadata().unwrap();
        assert_eq!((stat.len(), stat.permissions().mode() & 0o777), (0, 0o600));
        let own = dir.join("own.log");
        let (_, path) = open_log(&dir, Path::new("/mnt/a"), Some(&own)).unwrap();
        assert!(path == own && own.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
