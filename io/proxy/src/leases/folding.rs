//! Directories in which names that differ in bytes are one: of a file system that folds case.
//!
//! ```text
//!   the first lease of names, or change of one ─► known of the directory, or of its device?
//!       └─ no ─► ext4, f2fs, tmpfs, bcachefs: the flag of the directory
//!                others: is an entry found by its name in the other case, too? then all of the device fold
//! ```
//!
//! A change of one such name changes the others, which nobody recalls by their bytes. So no lease of
//! names is granted there, and changes of names of one directory are executed one after the other.
//! Nothing is written to find out. What is not known yet, as in an empty directory, counts as folding.
//!
//! Only the case of ASCII letters is tried. A network file system whose server folds names of some
//! directories only is not recognised (docs/decisions/0025).

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use rustix::fs::{AtFlags, OFlags, RawDir, Statx, StatxFlags};
use rustix::io::Errno;

use crate::export::ExportNode;

/// What is known of devices: by number and type of file system, as a number may be used again.
#[derive(Debug, Default)]
pub(super) struct NameFolding(Mutex<BTreeMap<(u64, i64), bool>>);

impl NameFolding {
    /// Whether names of a directory that differ in bytes may be one. The calling thread acts for a user
    /// who may see the directory; if that user may not list it, they may be one.
    pub(super) fn may_fold(&self, dir: &ExportNode) -> bool {
        if let Some(folds) = dir.folds_names.get() {
            return *folds;
        }
        match self.find(dir) {
            Ok(Some(folds)) => *dir.folds_names.get_or_init(|| folds),
            Ok(None) | Err(_) => true,
        }
    }

    /// None if the directory does not show it.
    fn find(&self, dir: &ExportNode) -> io::Result<Option<bool>> {
        let kind = rustix::fs::fstatfs(&dir.fd)?.f_type;
        let device = (dir.dev, kind);
        if EXACT.contains(&kind) {
            return Ok(Some(false));
        }
        if let Some(known) = self.0.lock().expect("not poisoned").get(&device) {
            return Ok(Some(*known));
        }
        let open = dir.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        if BY_DIRECTORY.contains(&kind) {
            return has_folding_flag(open.as_fd()).map(Some);
        }
        let found = probe(open.as_fd())?;
        let mut devices = self.0.lock().expect("not poisoned");
        if let Some(folds) = found
            && devices.len() < DEVICES_MAX
            && devices.insert(device, folds).is_none()
            && folds
        {
            tracing::warn!(
                device = dir.dev,
                "the file system folds names: no leases of names are granted in it"
            );
        }
        Ok(found)
    }
}

fn has_folding_flag(dir: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::fs::ioctl_getflags(dir) {
        Ok(flags) => Ok(flags.bits() & FS_CASEFOLD_FL != 0),
        // The tmpfs of a kernel that had no such flags.
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether an entry is found by its name in the other case. None if no entry has a letter. Two names of
/// one file that differ in case count as folding, too.
fn probe(dir: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    let mut space = [MaybeUninit::uninit(); LISTED_BYTES];
    let mut entries = RawDir::new(dir, &mut space);
    for _ in 0..LISTED_MAX {
        let Some(entry) = entries.next() else { break };
        let entry = entry?;
        let name = entry.file_name();
        let Some(other) = other_case(name.to_bytes()) else { continue };
        let look = |name: &[u8]| {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            rustix::fs::statx(dir, name, flags, StatxFlags::INO)
        };
        let number = |stat: &Statx| (crate::export::device(stat), stat.stx_ino);
        return match (look(name.to_bytes()), look(&other)) {
            (Ok(one), Ok(other)) => Ok(Some(number(&one) == number(&other))),
            (Ok(_), Err(Errno::NOENT)) => Ok(Some(false)),
            // It was removed meanwhile.
            (Err(Errno::NOENT), _) => continue,
            (Err(error), _) | (_, Err(error)) => Err(error.into()),
        };
    }
    Ok(None)
}

/// The name with all ASCII letters in the other case; none without letters.
fn other_case(name: &[u8]) -> Option<Vec<u8>> {
    let flip = |byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { *byte };
    name.iter().any(u8::is_ascii_alphabetic).then(|| name.iter().map(flip).collect())
}

/// File systems that compare names by their bytes (linux: `include/uapi/linux/magic.h`): btrfs, ramfs,
/// Lustre, BeeGFS.
const EXACT: [i64; 4] = [0x9123_683e, 0x8584_58f6, 0x0bd0_0bd0, 0x1983_0326];
/// Those with a flag for each directory: ext4, f2fs, tmpfs, bcachefs.
const BY_DIRECTORY: [i64; 4] = [0xef53, 0xf2f5_2010, 0x0102_1994, 0xca45_1a4e];
/// The flag (linux: `include/uapi/linux/fs.h`).
const FS_CASEFOLD_FL: u32 = 0x4000_0000;
/// Devices of which it is remembered; of others it is found out for each directory.
const DEVICES_MAX: usize = 256;
/// Entries that are tried for one with a letter, and bytes of a part of the listing.
const LISTED_MAX: usize = 256;
const LISTED_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn entry_that_is_found_in_both_cases_shows_that_names_fold() {
        let path = std::env::temp_dir().join(format!("sluice-{}-folding", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        let probed = || probe(fs::File::open(&path).unwrap().as_fd()).unwrap();
        assert_eq!(probed(), None, "it is empty");
        fs::write(path.join("0-1"), "").unwrap();
        assert_eq!(probed(), None, "no letter");
        fs::write(path.join("Name"), "").unwrap();
        assert_eq!(probed(), Some(false));
        fs::write(path.join("nAME"), "").unwrap();
        assert_eq!(probed(), Some(false), "another file");
        fs::remove_file(path.join("nAME")).unwrap();
        // What a file system that folds shows.
        fs::hard_link(path.join("Name"), path.join("nAME")).unwrap();
        assert_eq!(probed(), Some(true));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn other_case_changes_letters_only() {
        assert_eq!(other_case(b"Ab-1\xc3\xa4"), Some(b"aB-1\xc3\xa4".to_vec()));
        assert_eq!(other_case(b".."), None);
    }
}
