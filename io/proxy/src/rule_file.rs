//! A rule file that several may change: locked, read, and replaced as a whole.
//!
//! ```text
//!   lock ─► text ─► (caller decides) ─► FILE.new, same mode and owner ─► fsync ─► rename over FILE
//!     └ flock on the file; taken again if it was replaced while we waited for it
//! ```
//!
//! A reader of the file sees the old text or the new one and never a part. A symbolic link stays
//! one: its target is replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Time to wait for other processes, which hold the file for as long as it takes to write it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to try while they do.
const RETRY: Duration = Duration::from_millis(5);

/// A rule file, locked against changes by processes that use this type, too.
#[derive(Debug)]
pub struct SavedRuleFile {
    path: PathBuf,
    text: String,
    /// The lock goes with it.
    file: File,
}

impl SavedRuleFile {
    /// Locks and reads the file.
    ///
    /// # Errors
    /// Errors of the system, or `TimedOut` if another process holds the file for that long.
    pub fn lock(path: &Path) -> io::Result<SavedRuleFile> {
        let path = fs::canonicalize(path)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(RETRY);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    let why = format!("locked by a different process for {} s", PATIENCE.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                other => other?,
            }
            let (ours, there) = (file.metadata()?, fs::metadata(&path)?);
            if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
                continue;
            }
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            return Ok(SavedRuleFile { path, text, file });
        }
    }

    /// Returns the text of the file when it was locked.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Puts another text in its place, durably, and lets go of it.
    ///
    /// # Errors
    /// Errors of the system; then the old text is there as before.
    pub fn replace(self, text: &str) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let written = self.write(&beside, text).and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            // There may be none.
            let _ = fs::remove_file(&beside);
            return written;
        }
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        File::open(dir)?.sync_all()
    }

    fn write(&self, beside: &Path, text: &str) -> io::Result<()> {
        match fs::remove_file(beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let old = self.file.metadata()?;
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside)?;
        // A process that may not give files away keeps the new one.
        let _ = fchown(&new, Some(old.uid()), Some(old.gid()));
        new.set_permissions(old.permissions())?;
        new.write_all(text.as_bytes())?;
        new.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("sluice-{}-file-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode_and_the_link_to_it() {
        let dir = dir("replace");
        let (file, link) = (dir.join("rules.toml"), dir.join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("rules.toml", &link).unwrap();
        let mut reader = File::open(&file).unwrap();
        let locked = SavedRuleFile::lock(&link).unwrap();
        assert_eq!(locked.text(), "old");
        locked.replace("new").unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "old", "who has it open reads on");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn who_waits_for_the_lock_reads_what_the_other_wrote() {
        let dir = dir("lock");
        let file = dir.join("rules.toml");
        fs::write(&file, "").unwrap();
        let add = |count: usize| {
            for _ in 0..count {
                let locked = SavedRuleFile::lock(&file).unwrap();
                let text = format!("{}x", locked.text());
                locked.replace(&text).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| add(20));
            scope.spawn(|| add(20));
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "x".repeat(40));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_is_not_there_is_not_made() {
        let missing = Path::new("/nonexistent/rules.toml");
        assert_eq!(SavedRuleFile::lock(missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
