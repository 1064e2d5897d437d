//! Write capabilities of a backing directory, found out once by trying.
//!
//! A file without a name is made in it (`O_TMPFILE`, else one that is unlinked at
//! once), and each way of writing is tried on it. What the file system says about
//! itself is not trusted further than for memory file systems, where every way
//! "works" and none has a device behind it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use model::Bytes;
use rules::WriteMode;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};

use crate::sys::{SyncRange, sync_file_range};

/// Result of the probe of one backing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// RWF_DONTCACHE is accepted (kernel 6.14 or later, and the file system takes part).
    pub dontcache: bool,
    /// The file system accepts sync_file_range(2), which paced writes need.
    pub paced: bool,
    /// Alignment that O_DIRECT requires; `None` where it is refused.
    pub direct: Option<Alignment>,
    /// tmpfs or ramfs: without a device, a write is as clean as it will ever be.
    pub memory_fs: bool,
    /// False if no file could be made to try on (a read-only mount); the rest is then a guess.
    pub probed: bool,
}

/// Alignment that O_DIRECT requires of its callers, in bytes; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Of the buffer's address.
    pub memory: u32,
    /// Of offset and length.
    pub offset: u32,
}

/// Asked for where the kernel (before 6.1) cannot tell: no disk in use has larger blocks.
const ALIGNMENT_SAFE: Alignment = Alignment { memory: 4096, offset: 4096 };

/// From this size on a write by itself keeps a device busy, and one stream is as fast with
/// O_DIRECT as through the page cache: on a 2 GB/s disk four in flight gave 0.9 GB/s either
/// way at 512 KiB, but 0.55 against 1.1 GB/s at 128 KiB.
pub(crate) const DIRECT_MIN: Bytes = Bytes::kib(512);

/// `RWF_DONTCACHE` of linux/fs.h, which rustix does not name yet.
pub(crate) const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

impl Backing {
    /// Tries every way of writing in `dir`.
    ///
    /// # Errors
    /// Errors of making a file there, except that a directory that may not be written to gives an
    /// unprobed `Backing`.
    pub(crate) fn probe(dir: BorrowedFd<'_>) -> io::Result<Backing> {
        if on_memory(dir)? {
            return Ok(Backing::in_memory());
        }
        match nameless_file(dir) {
            Ok(file) => Ok(Backing::try_on(file.as_fd())),
            // ENOSYS: a FUSE file system that creates nothing.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOSYS) => Ok(Backing {
                dontcache: false,
                paced: true,
                direct: None,
                memory_fs: false,
                probed: false,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the best mode that was found for writes of `length` bytes, which is the default of a
    /// target. Small writes are gathered in the page cache, as each would wait for the device by
    /// itself.
    pub(crate) fn best(&self, length: u64) -> WriteMode {
        match self {
            Backing { memory_fs: true, .. } => WriteMode::Cached,
            Backing { direct: Some(_), .. } if length >= DIRECT_MIN.get() => WriteMode::Direct,
            Backing { paced: true, .. } => WriteMode::Paced,
            _ => WriteMode::Cached,
        }
    }

    /// The modes that are worth trying here, the strictest first.
    pub(crate) fn modes(&self) -> Vec<WriteMode> {
        WriteMode::ALL.iter().copied().filter(|mode| self.allows(*mode)).collect()
    }

    /// Whether the probe found that `mode` works.
    pub(crate) fn allows(&self, mode: WriteMode) -> bool {
        match mode {
            WriteMode::Direct => self.direct.is_some(),
            WriteMode::Dontcache => self.dontcache && self.paced,
            WriteMode::Paced => self.paced,
            WriteMode::Cached => true,
        }
    }

    fn in_memory() -> Backing {
        Backing { dontcache: false, paced: false, direct: None, memory_fs: true, probed: true }
    }

    fn try_on(file: BorrowedFd<'_>) -> Backing {
        let block = [0; 4096];
        let dropped = rustix::io::pwritev2(file, &[IoSlice::new(&block)], 0, RWF_DONTCACHE);
        let dontcache = dropped == Ok(block.len());
        let written = dontcache || rustix::io::pwrite(file, &block, 0) == Ok(block.len());
        let paced = written && sync_file_range(file, 0, 4096, SyncRange::Finish).is_ok();
        let direct = direct_alignment(file);
        Backing { dontcache, paced, direct, memory_fs: false, probed: true }
    }
}

/// Whether `dir` lies on a file system that keeps its files in memory alone.
fn on_memory(dir: BorrowedFd<'_>) -> io::Result<bool> {
    // linux/magic.h; the kernel's word is signed on some machines.
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(dir)?.f_type as u32;
    Ok(kind == TMPFS || kind == RAMFS)
}

/// A file in `dir` that no name leads to and that vanishes with its descriptor.
pub(crate) fn nameless_file(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
        // EISDIR: a kernel or file system that does not know the flag. EOPNOTSUPP: NFS, 9P, FUSE.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {}
        answer => return answer,
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let name = format!(".sluice-{}-{now}", std::process::id());
    let made = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, &name, made, mode)?;
    rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
    Ok(file)
}

/// A second, independent descriptor of an open file, by way of /proc.
///
/// # Errors
/// As for opening the file by name, and `ENOENT` where /proc is not mounted.
pub(crate) fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the alignment that O_DIRECT requires on this file; `None` if it cannot be used.
pub(crate) fn direct_alignment(file: BorrowedFd<'_>) -> Option<Alignment> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let wanted = match told {
        Ok(s) if s.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => match s.stx_dio_offset_align {
            0 => return None,
            offset => Alignment { memory: s.stx_dio_mem_align.max(1), offset },
        },
        _ => ALIGNMENT_SAFE,
    };
    reopen(file, OFlags::WRONLY | OFlags::DIRECT).ok().map(|_| wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_memory_file_system_has_only_the_cached_mode() {
        let dir = File::open("/dev/shm").unwrap();
        let backing = Backing::probe(dir.as_fd()).unwrap();
        assert_eq!(backing, Backing::in_memory());
        assert_eq!(backing.best(1 << 20), WriteMode::Cached);
        assert_eq!(backing.modes(), [WriteMode::Cached]);
    }

    #[test]
    fn the_probe_leaves_nothing_behind() {
        let path = std::env::temp_dir().join(format!("sluice-probe-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let backing = Backing::probe(File::open(&path).unwrap().as_fd()).unwrap();
        assert!(backing.probed);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_is_guessed_at() {
        // sysfs has no call to create a file, so the kernel answers EACCES.
        let backing = Backing::probe(File::open("/sys").unwrap().as_fd()).unwrap();
        assert!(!backing.probed);
        assert_eq!(backing.best(1 << 20), WriteMode::Paced);
    }
}
