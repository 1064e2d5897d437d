//! The data directory of one controller.
//!
//! ```text
//!   DataDirectory::open(/var/lib/sluice) ─► made 0700, writable by its owner only ─► flock(/var/lib/sluice/lock), kept while the value lives
//!                                             └─ locked already: refused, naming the process that holds it
//! ```
//!
//! Two controllers on one directory would both assume to be the only writer. The lock is the
//! kernel's: it ends with the process, however that ends, so it is never left over.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A data directory that this process alone uses, for as long as the value lives.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
}

/// The reason why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process uses it.
    #[error(
        "{} is in use by the controller of process {process}; use one data directory per controller",
        path.display()
    )]
    InUse {
        /// The data directory in use.
        path: PathBuf,
        /// The process that its lock file names.
        process: String,
    },
    /// It cannot be made, or its lock cannot be taken.
    #[error("{}: {source}; use a data directory that this user may write to", path.display())]
    Unusable {
        /// The directory or the file in it.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

impl DataDirectory {
    /// Creates the directory if it does not exist, removes the write permission of others, and
    /// locks it.
    pub fn open(path: &Path) -> Result<DataDirectory, DirectoryError> {
        let unusable = |path: &Path, source| DirectoryError::Unusable { path: path.into(), source };
        let made = api::make_directory(path, 0o700).and_then(|()| api::close_directory(path));
        made.map_err(|e| unusable(path, e))?;
        let name = path.join("lock");
        let mut lock = api::private_options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)
            .map_err(|e| unusable(&name, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // only for the message: a holder that has not written yet has no number
                let _ = (&lock).take(32).read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "unknown".to_string(),
                    number => number.to_string(),
                };
                return Err(DirectoryError::InUse { path: path.into(), process: holder });
            }
            Err(errno) => return Err(unusable(&name, errno.into())),
        }
        lock.set_len(0).map_err(|e| unusable(&name, e))?;
        writeln!(lock, "{}", std::process::id()).map_err(|e| unusable(&name, e))?;
        Ok(DataDirectory { path: path.into(), _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TestFolder;

    #[test]
    fn a_second_controller_on_a_directory_is_refused_and_told_who_holds_it() {
        let folder = TestFolder::new();
        let first = DataDirectory::open(folder.path()).unwrap();
        let error = DataDirectory::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
        drop(first);
        DataDirectory::open(folder.path()).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_a_directory_is_named() {
        let folder = TestFolder::new();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = DataDirectory::open(&file.join("data")).unwrap_err().to_string();
        assert!(error.contains("file/data"), "{error}");
    }
}
