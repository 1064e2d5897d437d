//! Scratch files of a calibration in the directory that it measures: one directory, and files
//! without a name.
//!
//! A nameless file goes with its descriptor, whatever ends the process. The
//! directory goes when [`ScratchFiles`] is dropped, on an error and on Ctrl-C too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::Bytes;
use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::CalibrateError;
use crate::writes::{Aligned, Alignment, direct_alignment, nameless_file, reopen};

/// The measured directory and a directory of our own in it.
#[derive(Debug)]
pub(super) struct ScratchFiles {
    measured: OwnedFd,
    own: OwnedFd,
    path: PathBuf,
}

/// A file full of data that no name leads to.
#[derive(Debug)]
pub(super) struct TestFile {
    /// Through the page cache.
    pub(super) cached: OwnedFd,
    /// With O_DIRECT, and what that asks for; `None` where the file system refuses it.
    pub(super) direct: Option<(OwnedFd, Alignment)>,
    /// How much of it is written.
    pub(super) length: Bytes,
}

/// How the file is filled: in pieces as large as the largest requests.
const PIECE: usize = 4 << 20;
/// Below this a file says nothing about a device.
const LENGTH_MIN: u64 = 64 << 20;
const LENGTH_MAX: u64 = 1 << 30;

impl ScratchFiles {
    /// A directory of our own in `dir`.
    pub(super) fn make(dir: &Path) -> Result<ScratchFiles, CalibrateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let wrong = |error: rustix::io::Errno| CalibrateError::Directory {
            path: dir.into(),
            source: error.into(),
        };
        let measured = rustix::fs::open(dir, flags, Mode::empty()).map_err(wrong)?;
        let path = dir.join(format!(".sluice-calibrate-{}", std::process::id()));
        rustix::fs::mkdir(&path, Mode::RWXU).map_err(wrong)?;
        let own = rustix::fs::open(&path, flags, Mode::empty()).map_err(wrong)?;
        Ok(ScratchFiles { measured, own, path })
    }

    /// The directory that is measured.
    pub(super) fn measured(&self) -> BorrowedFd<'_> {
        self.measured.as_fd()
    }

    /// The directory of our own.
    pub(super) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// An empty file without a name.
    pub(super) fn empty_file(&self) -> Result<OwnedFd, CalibrateError> {
        nameless_file(self.own()).map_err(|error| CalibrateError::Backend(error.into()))
    }

    /// A file filled until it is a quarter of the free space, 1 GiB, or `time` is over,
    /// but at least 64 MiB.
    pub(super) fn full_file(
        &self,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<TestFile, CalibrateError> {
        let free = self.free()?;
        if free.get() / 4 < LENGTH_MIN {
            return Err(CalibrateError::Space { path: self.path.clone(), free });
        }
        let cached = self.empty_file()?;
        let direct = direct_alignment(cached.as_fd()).and_then(|alignment| {
            let fd = reopen(cached.as_fd(), OFlags::RDWR | OFlags::DIRECT).ok()?;
            Some((fd, alignment))
        });
        let mut file = TestFile { cached, direct, length: Bytes::ZERO };
        file.fill(LENGTH_MAX.min(free.get() / 4), time, stop)?;
        Ok(file)
    }

    /// Returns the free space of the file system.
    pub(super) fn free(&self) -> Result<Bytes, CalibrateError> {
        let figures = rustix::fs::fstatvfs(self.measured()).map_err(io::Error::from);
        let figures = figures.map_err(CalibrateError::Backend)?;
        Ok(Bytes::new(figures.f_bavail.saturating_mul(figures.f_frsize)))
    }
}

impl Drop for ScratchFiles {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a scratch file");
        }
    }
}

impl TestFile {
    /// The descriptor that reaches the device if any does.
    pub(super) fn best(&self) -> BorrowedFd<'_> {
        self.direct.as_ref().map_or(self.cached.as_fd(), |(fd, _)| fd.as_fd())
    }

    /// A buffer that suits [`TestFile::best`].
    pub(super) fn buffer(&self, length: usize) -> Aligned {
        let align = self.direct.as_ref().map_or(1, |(_, alignment)| alignment.memory);
        Aligned::new(length, align.max(4096))
    }

    fn fill(&mut self, most: u64, time: Duration, stop: &AtomicBool) -> Result<(), CalibrateError> {
        // Where the file system can promise the space now, its extents are long ones.
        let _ = rustix::fs::fallocate(&self.cached, FallocateFlags::empty(), 0, most);
        let (begun, mut buffer) = (Instant::now(), self.buffer(PIECE));
        let mut at = 0;
        while at < most && (at < LENGTH_MIN || begun.elapsed() < time) {
            if stop.load(Ordering::Relaxed) {
                return Err(CalibrateError::Stopped);
            }
            fill_with_noise(&mut buffer, at + 1);
            write_whole(self.best(), &buffer, at).map_err(CalibrateError::Backend)?;
            at += PIECE as u64;
        }
        rustix::fs::fdatasync(&self.cached).map_err(|e| CalibrateError::Backend(e.into()))?;
        self.length = Bytes::new(at);
        Ok(())
    }
}

/// Numbers that look random, from a seed: no two threads read the same places, and
/// the same run reads the same ones again (xorshift64, Marsaglia 2003).
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// An offset of a piece of `size` bytes, at a multiple of it, in a file of `length`.
    pub(super) fn offset(&mut self, size: Bytes, length: Bytes) -> u64 {
        self.next() % (length.get() / size.get()) * size.get()
    }
}

/// Writes all of `data`.
pub(super) fn write_whole(file: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<()> {
    match rustix::io::pwrite(file, data, offset)? {
        done if done == data.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Reads all of `data`.
pub(super) fn read_whole(file: BorrowedFd<'_>, data: &mut [u8], offset: u64) -> io::Result<()> {
    match rustix::io::pread(file, &mut data[..], offset)? {
        done if done == data.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Makes it data that no back end can compress or find twice.
pub(super) fn fill_with_noise(data: &mut [u8], seed: u64) {
    let mut numbers = Numbers::new(seed);
    for word in data.chunks_exact_mut(8) {
        word.copy_from_slice(&numbers.next().to_ne_bytes());
    }
}
