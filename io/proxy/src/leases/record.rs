//! The record of which mounts may hold leases, on disk.
//!
//! ```text
//!   a mount joins ─► PATH.new, synced ─► PATH ─► it may get leases
//!   restart       ─► PATH ─► LeaseTable::restarted: changes wait for those that are listed
//! ```
//!
//! A mount is listed by a hash of its session's number: who reads the file cannot enter the session. A
//! lock on `PATH.lock` keeps a second proxy from using the same file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use leases::HolderId;
use rustix::fs::FlockOperation;

use crate::credentials;

/// What a mount's session is recorded by.
pub(crate) type HolderKey = [u8; 16];

/// The file, which this proxy alone uses while this exists.
#[derive(Debug)]
pub(super) struct HolderRecord {
    path: PathBuf,
    _lock: File,
}

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// Two proxies would overwrite each other's holders.
    #[error("{} is in use by another proxy; give each proxy a lease_state of its own", .0.display())]
    InUse(PathBuf),
    /// It was not written by a proxy.
    #[error(
        "{}:{line}: not a record of leases; remove the file once no proxy has served its exports for an \
         hour", path.display()
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The first line that is wrong, from 1.
        line: usize,
    },
    /// It can be neither read nor made.
    #[error("cannot read or create {}", path.display())]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl HolderRecord {
    /// Locks and reads the record; no holders if there is none yet.
    pub(super) fn open(
        path: &Path,
    ) -> Result<(HolderRecord, Vec<(HolderId, HolderKey)>), RecordError> {
        let system = |source| RecordError::System { path: path.into(), source };
        let lock = options().open(beside(path, ".lock")).map_err(system)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(RecordError::InUse(path.into())),
            result => result.map_err(|errno| system(errno.into()))?,
        }
        let holders = match fs::read_to_string(path) {
            Ok(text) => {
                parse(&text).map_err(|line| RecordError::Damaged { path: path.into(), line })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(system(error)),
        };
        let record = HolderRecord { path: path.into(), _lock: lock };
        // Now is the time to learn that the directory cannot be written.
        record.write(&holders).map_err(system)?;
        Ok((record, holders))
    }

    /// Puts these holders in place of those that are recorded, durably.
    pub(super) fn write(&self, holders: &[(HolderId, HolderKey)]) -> io::Result<()> {
        // The calling thread may act for a user.
        credentials::become_root();
        let new = beside(&self.path, ".new");
        let mut file = options().truncate(true).open(&new)?;
        file.write_all(text_of(holders).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_path_buf().into_os_string();
    name.push(ending);
    name.into()
}

const FIRST_LINE: &str = "sluice leases 1";

fn text_of(holders: &[(HolderId, HolderKey)]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for (HolderId(number), key) in holders {
        text += &format!("{number} {:032x}\n", u128::from_be_bytes(*key));
    }
    // A file that was cut off would leave holders out.
    text + "end\n"
}

/// The holders of a record's text, or the number of the first line that is wrong.
fn parse(text: &str) -> Result<Vec<(HolderId, HolderKey)>, usize> {
    let mut holders = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
        return Err(1);
    }
    for (at, line) in lines {
        if line == "end" {
            return Ok(holders);
        }
        let (number, key) = line.split_once(' ').ok_or(at)?;
        let key = u128::from_str_radix(key, 16).map_err(|_| at)?;
        let number: u32 = number.parse().map_err(|_| at)?;
        holders.push((HolderId(number), key.to_be_bytes()));
    }
    Err(text.lines().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDERS: [(HolderId, HolderKey); 2] = [(HolderId(1), [0; 16]), (HolderId(7), [0xfe; 16])];

    #[test]
    fn what_is_recorded_is_read_again_and_a_text_that_was_cut_is_refused() {
        let text = text_of(&HOLDERS);
        assert_eq!(parse(&text), Ok(HOLDERS.to_vec()));
        assert_eq!(parse(text.strip_suffix("end\n").unwrap()), Err(4));
        assert_eq!(parse("other\n"), Err(1));
        assert_eq!(parse(&text.replace("7 ", "seven ")), Err(3));
    }

    #[test]
    fn a_record_is_of_one_proxy_at_a_time_and_outlives_it() {
        let dir = std::env::temp_dir().join(format!("sluice-{}-leases", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("leases");
        let (record, holders) = HolderRecord::open(&path).unwrap();
        assert!(holders.is_empty());
        record.write(&HOLDERS).unwrap();
        assert!(matches!(HolderRecord::open(&path).unwrap_err(), RecordError::InUse(_)));
        drop(record);
        assert_eq!(HolderRecord::open(&path).unwrap().1, HOLDERS);
        fs::write(&path, "no record").unwrap();
        let error = HolderRecord::open(&path).unwrap_err();
        assert!(matches!(error, RecordError::Damaged { line: 1, .. }), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
