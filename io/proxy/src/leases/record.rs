//! The record of which mounts may hold leases, on disk.
//!
//! ```text
//!   a mount joins ─► PATH.new, synced ─► PATH ─► it may get leases
//!   restart       ─► PATH ─► LeaseTable::restarted: changes wait for those that are listed
//!   restart without leases ─► PATH ─► the same ─► all are over ─► PATH lists none
//! ```
//!
//! A mount is listed by a hash of its session's number: who reads the file cannot enter the session. It is
//! listed with the longest term under which it may believe something: a span, which a restarted proxy
//! counts from its start. Starts are counted, so that no number of a lease or a recall is used by two
//! of them. A lock on `PATH.lock` keeps a second proxy from using the same file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use leases::{HolderId, LeaseTerms, RecordedHolder};
use model::Nanos;
use rustix::fs::FlockOperation;

use crate::credentials;

/// What a mount's session is recorded by.
pub(crate) type HolderKey = [u8; 16];

/// A mount that may believe something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordEntry {
    pub(super) known: RecordedHolder,
    pub(super) key: HolderKey,
}

/// What a proxy does with the record.
#[derive(Debug)]
pub(super) enum LeaseRecord {
    /// It records its own holders.
    Own(HolderRecord),
    /// It grants nothing, and waits for the holders of before.
    Former(FormerRecord),
    /// It grants nothing, and waits for none.
    Unused,
}

/// The file, which this proxy alone uses while this exists.
#[derive(Debug)]
pub(super) struct HolderRecord {
    path: PathBuf,
    /// How often a proxy has used it.
    starts: u32,
    _lock: File,
}

/// What is in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RecordContent {
    starts: u32,
    holders: Vec<RecordEntry>,
}

/// The file of a proxy that granted leases before. It is not locked meanwhile: a proxy that grants some
/// may be started in place of this one.
#[derive(Debug)]
pub(super) struct FormerRecord {
    path: PathBuf,
    text: String,
    starts: u32,
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

impl LeaseRecord {
    /// Opens the record of a proxy that grants leases, or does not, and reads who is listed.
    pub(super) fn open(
        path: &Path,
        grants: bool,
    ) -> Result<(LeaseRecord, Vec<RecordEntry>), RecordError> {
        if grants {
            let (record, holders) = HolderRecord::open(path)?;
            return Ok((LeaseRecord::Own(record), holders));
        }
        Ok(match FormerRecord::read(path)? {
            Some((record, holders)) => (LeaseRecord::Former(record), holders),
            None => (LeaseRecord::Unused, Vec::new()),
        })
    }
}

impl HolderRecord {
    /// Locks and reads the record; no holders if there is none yet.
    fn open(path: &Path) -> Result<(HolderRecord, Vec<RecordEntry>), RecordError> {
        let system = |source| RecordError::System { path: path.into(), source };
        let lock = lock(path)?;
        let RecordContent { starts, holders } = match read(path)? {
            Some(text) => content_of(path, &text)?,
            None => RecordContent::default(),
        };
        let record =
            HolderRecord { path: path.into(), starts: starts.wrapping_add(1), _lock: lock };
        // Now is the time to learn that the directory cannot be written.
        record.write(&holders).map_err(system)?;
        Ok((record, holders))
    }

    /// The first number of this start's grants and accesses: above those of all earlier starts, of a
    /// million at least.
    pub(super) fn first_number(&self) -> u64 {
        u64::from(self.starts) << NUMBER_BITS
    }

    /// Puts these holders in place of those that are recorded, durably.
    pub(super) fn write(&self, holders: &[RecordEntry]) -> io::Result<()> {
        // The calling thread may act for a user.
        credentials::become_root();
        let new = beside(&self.path, ".new");
        let mut file = options().truncate(true).open(&new)?;
        file.write_all(text_of(self.starts, holders).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl FormerRecord {
    /// Reads the record. None if nobody is listed, or another proxy uses the file: then they are its own.
    fn read(path: &Path) -> Result<Option<(FormerRecord, Vec<RecordEntry>)>, RecordError> {
        let Some(text) = read(path)? else { return Ok(None) };
        let RecordContent { starts, holders } = content_of(path, &text)?;
        if holders.is_empty() {
            return Ok(None);
        }
        match lock(path) {
            Ok(_) => Ok(Some((FormerRecord { path: path.into(), text, starts }, holders))),
            Err(RecordError::InUse(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists nobody any more, unless another proxy has used the file since it was read.
    pub(super) fn clear(&self) -> Result<(), RecordError> {
        credentials::become_root();
        let _lock = match lock(&self.path) {
            Err(RecordError::InUse(_)) => return Ok(()),
            lock => lock?,
        };
        if read(&self.path)?.is_none_or(|text| text != self.text) {
            return Ok(());
        }
        let record = HolderRecord { path: self.path.clone(), starts: self.starts, _lock };
        record.write(&[]).map_err(|source| RecordError::System { path: self.path.clone(), source })
    }
}

/// Locks the record against other proxies.
fn lock(path: &Path) -> Result<File, RecordError> {
    let system = |source| RecordError::System { path: path.into(), source };
    let lock = options().open(beside(path, ".lock")).map_err(system)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RecordError::InUse(path.into())),
        result => result.map(|()| lock).map_err(|errno| system(errno.into())),
    }
}

/// The text of the record; none if there is no file. What is too long is cut off, and so is damaged.
fn read(path: &Path) -> Result<Option<String>, RecordError> {
    let read = |file: File| {
        let mut text = String::new();
        file.take(RECORD_BYTES_MAX).read_to_string(&mut text).map(|_| text)
    };
    match File::open(path).and_then(read) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(RecordError::Damaged { path: path.into(), line: 1 })
        }
        Err(source) => Err(RecordError::System { path: path.into(), source }),
    }
}

fn content_of(path: &Path, text: &str) -> Result<RecordContent, RecordError> {
    parse(text).map_err(|line| RecordError::Damaged { path: path.into(), line })
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

/// The most mounts that may hold leases at a time.
pub(super) const HOLDERS_MAX: usize = 65_536;
/// Bytes of a record, at most: a line has 64.
const RECORD_BYTES_MAX: u64 = 64 * (HOLDERS_MAX as u64 + 3);
/// Bits of the numbers of one start: for a year with half a million accesses a second. The bits above
/// count a million starts before they begin again.
const NUMBER_BITS: u32 = 44;
const FIRST_LINE: &str = "sluice leases 2";
/// Of a record without starts and terms: its holders are waited for as long as any term is.
const FIRST_LINE_WITHOUT_TERMS: &str = "sluice leases 1";

fn text_of(starts: u32, holders: &[RecordEntry]) -> String {
    let mut text = format!("{FIRST_LINE}\nstarts {starts}\n");
    for RecordEntry { known: RecordedHolder { holder, term }, key } in holders {
        let key = u128::from_be_bytes(*key);
        text += &format!("{} {key:032x} {}\n", holder.0, term.get());
    }
    // A file that was cut off would leave holders out.
    text + "end\n"
}

/// The content of a record's text, or the number of the first line that is wrong.
fn parse(text: &str) -> Result<RecordContent, usize> {
    let mut content = RecordContent::default();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let has_terms = match lines.next() {
        Some((_, FIRST_LINE)) => true,
        Some((_, FIRST_LINE_WITHOUT_TERMS)) => false,
        _ => return Err(1),
    };
    if has_terms {
        let starts = lines.next().and_then(|(_, line)| line.strip_prefix("starts ")?.parse().ok());
        content.starts = starts.ok_or(2usize)?;
    }
    for (at, line) in lines {
        if line == "end" {
            return Ok(content);
        }
        content.holders.push(parse_holder(line, has_terms).ok_or(at)?);
    }
    Err(text.lines().count() + 1)
}

fn parse_holder(line: &str, has_terms: bool) -> Option<RecordEntry> {
    let (number, rest) = line.split_once(' ')?;
    let (key, term) = match has_terms {
        true => {
            let (key, term) = rest.split_once(' ')?;
            (key, Nanos::new(term.parse().ok()?))
        }
        false => (rest, LeaseTerms::TERM_MAX),
    };
    let key = u128::from_str_radix(key, 16).ok()?.to_be_bytes();
    let known = RecordedHolder { holder: HolderId(number.parse().ok()?), term };
    (term <= LeaseTerms::TERM_MAX).then_some(RecordEntry { known, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Nanos = Nanos::from_secs(2);

    fn entry(number: u32, key: u8, term: Nanos) -> RecordEntry {
        let known = RecordedHolder { holder: HolderId(number), term };
        RecordEntry { known, key: [key; 16] }
    }

    fn holders() -> [RecordEntry; 2] {
        [entry(1, 0, SHORT), entry(7, 0xfe, LeaseTerms::TERM_MAX)]
    }

    /// A path for a record in an empty directory of its own.
    fn path(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir.join("leases")
    }

    fn remove(path: &Path) {
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_recorded_is_read_again_and_a_text_that_was_cut_is_refused() {
        let text = text_of(9, &holders());
        assert_eq!(parse(&text), Ok(RecordContent { starts: 9, holders: holders().to_vec() }));
        assert_eq!(parse(text.strip_suffix("end\n").unwrap()), Err(5));
        assert_eq!(parse("other\n"), Err(1));
        assert_eq!(parse(&text.replace("starts 9", "starts")), Err(2));
        assert_eq!(parse(&text.replace("7 ", "seven ")), Err(4));
        assert_eq!(parse(&text.replace("3600", "3601")), Err(4), "no term is so long");
    }

    #[test]
    fn holders_of_a_record_without_terms_are_waited_for_as_long_as_any_term_is() {
        let text = format!("sluice leases 1\n1 {:032x}\nend\n", 0);
        let holders = vec![entry(1, 0, LeaseTerms::TERM_MAX)];
        assert_eq!(parse(&text), Ok(RecordContent { starts: 0, holders }));
    }

    #[test]
    fn longest_record_is_read() {
        let longest = entry(u32::MAX, 0xff, LeaseTerms::TERM_MAX);
        let text = text_of(u32::MAX, &vec![longest; HOLDERS_MAX]);
        assert!(text.len() as u64 <= RECORD_BYTES_MAX, "{}", text.len());
        assert_eq!(parse(&text).unwrap().holders.len(), HOLDERS_MAX);
    }

    #[test]
    fn no_number_is_used_by_two_starts() {
        let path = path("leases-numbers");
        let first = |path: &Path| HolderRecord::open(path).unwrap().0.first_number();
        assert_eq!([first(&path), first(&path)], [1 << NUMBER_BITS, 2 << NUMBER_BITS]);
        let (record, _) = HolderRecord::open(&path).unwrap();
        record.write(&holders()).unwrap();
        drop(record);
        FormerRecord::read(&path).unwrap().unwrap().0.clear().unwrap();
        assert_eq!(first(&path), 4 << NUMBER_BITS, "also after one that grants none");
        remove(&path);
    }

    #[test]
    fn a_record_is_of_one_proxy_at_a_time_and_outlives_it() {
        let path = path("leases-own");
        let (record, found) = HolderRecord::open(&path).unwrap();
        assert!(found.is_empty());
        record.write(&holders()).unwrap();
        assert!(matches!(HolderRecord::open(&path).unwrap_err(), RecordError::InUse(_)));
        drop(record);
        assert_eq!(HolderRecord::open(&path).unwrap().1, holders());
        fs::write(&path, "no record").unwrap();
        let error = HolderRecord::open(&path).unwrap_err();
        assert!(matches!(error, RecordError::Damaged { line: 1, .. }), "{error}");
        remove(&path);
    }

    #[test]
    fn former_record_is_cleared_unless_another_proxy_has_used_it() {
        let path = path("leases-former");
        assert!(FormerRecord::read(&path).unwrap().is_none());
        let (record, _) = HolderRecord::open(&path).unwrap();
        assert!(FormerRecord::read(&path).unwrap().is_none(), "nobody is listed");
        record.write(&holders()).unwrap();
        assert!(FormerRecord::read(&path).unwrap().is_none(), "a proxy uses it");
        drop(record);
        let (former, found) = FormerRecord::read(&path).unwrap().unwrap();
        assert_eq!(found, holders());
        let (record, _) = HolderRecord::open(&path).unwrap();
        former.clear().unwrap();
        record.write(&holders()[1..]).unwrap();
        drop(record);
        former.clear().unwrap();
        let (former, found) = FormerRecord::read(&path).unwrap().unwrap();
        assert_eq!(found, holders()[1..], "another proxy has changed it");
        former.clear().unwrap();
        assert!(FormerRecord::read(&path).unwrap().is_none());
        remove(&path);
    }
}
