//! How a write reaches the backend, and when it counts as done.
//!
//! ```text
//!   Writes::write ─┬─ direct ────► second descriptor with O_DIRECT ──────────────► clean
//!                  │    └ not aligned: as paced
//!                  ├─ dontcache ─► pwritev2(RWF_DONTCACHE), write-back begins ─┐
//!                  ├─ paced ─────► pwrite ─────────────────────────────────────┤
//!                  │                             listed in the account's dirty bytes;
//!                  │                             above the budget: sync the oldest, then return
//!                  └─ cached ────► pwrite, no promise
//! ```
//!
//! A pwrite into the page cache ends at memory speed and leaves the device to the
//! kernel's flusher, which knows no classes. So, except in `cached`, [`Writes::write`]
//! returns when the bytes are clean or inside the account's dirty budget; the
//! caller holds the request's slots until then (docs/ARCHITECTURE.md, "A write
//! counts until it is clean").
//!
//! Clean is what the device has been given, not what survives a power cut: that
//! stays with [`Writes::fsync`].
//!
//! If no mode is configured, the size decides ([`Backing::best`]): a large write goes to the device
//! as it is. Small ones are gathered, since a device that is handed 16 KiB at a time is slow for
//! all clients.
//!
//! Every mode but `cached` may wait for the device. A file that refuses a mode
//! (EINVAL, EOPNOTSUPP) gets the next one from then on, so nothing fails that
//! would work without Sluice.

mod bounce;
mod dirty;
mod flusher;
mod probe;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use model::Bytes;
use rules::WriteMode;
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSlice};

pub(crate) use self::bounce::Aligned;
use self::bounce::Bounces;
pub(crate) use self::dirty::DirtyAccount;
use self::dirty::{DirtyPiece, DirtyWrite, SyncFile};
use self::flusher::FlusherQueue;
pub use self::probe::{Alignment, Backing};
use self::probe::{DIRECT_MIN, RWF_DONTCACHE};
pub(crate) use self::probe::{direct_alignment, nameless_file, reopen};
use crate::sys::{SyncRange, sync_file_range};

/// The writing side of one target, shared by all threads that write to it.
#[derive(Debug)]
pub(crate) struct Writes {
    backing: Backing,
    /// The mode of writes that name none; [`BY_SIZE`] or a mode's number.
    default: AtomicU8,
    dirty: FlusherQueue,
    bounces: Bounces,
    /// Modes that some file has refused, each logged once.
    refused: AtomicU8,
}

/// State of an open file for writing; kept beside its descriptor for as long as that is open. It
/// costs nothing until the first write.
#[derive(Debug, Default)]
pub(crate) struct WriteFile {
    direct: OnceLock<Option<Direct>>,
    sync: OnceLock<Option<Arc<SyncFile>>>,
    refused: AtomicU8,
}

#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    alignment: Alignment,
}

/// One write to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRequest<'a> {
    /// Whose dirty budget pays.
    pub account: DirtyAccount,
    /// `None`: as the target says.
    pub mode: Option<WriteMode>,
    /// Where in the file.
    pub offset: u64,
    /// The data; any alignment.
    pub data: &'a [u8],
}

/// Default dirty budget of a class. Beside 16 writers of 1 MiB on a 2 GB/s disk a neighbour's
/// fdatasync took 13 ms (p99 37) with this, 24 ms (p99 100 to 190) with 16 MiB, and the writers
/// were as fast.
pub(crate) const DIRTY_BUDGET: Bytes = Bytes::mib(4);
/// No device has smaller blocks, so what is not aligned to this never suits O_DIRECT.
const BLOCK_MIN: u32 = 512;
/// In `Writes::default`: what is best for the size of each write.
const BY_SIZE: u8 = u8::MAX;
/// The bit in `Writes::refused` that says that a failed write-back has been logged.
const FAILED: u8 = 1 << 7;

impl Writes {
    /// The writing side of a target with this backing; `default` is used where neither
    /// rule nor request names a mode (`None`: the best that the probe found for the size of
    /// each), and `budget` is what each class may have dirty.
    ///
    /// Starts one thread that finishes what idle classes have left; it ends when this is dropped.
    ///
    /// # Errors
    /// If that thread cannot be started.
    pub(crate) fn start(
        backing: Backing,
        default: Option<WriteMode>,
        budget: Bytes,
    ) -> io::Result<Writes> {
        Ok(Writes {
            backing,
            default: AtomicU8::new(number_of(default)),
            dirty: FlusherQueue::start(budget)?,
            bounces: Bounces::default(),
            refused: AtomicU8::new(0),
        })
    }

    /// Changes what [`Writes::start`] was given, from the next write on.
    pub(crate) fn set(&self, default: Option<WriteMode>, budget: Bytes) {
        self.default.store(number_of(default), Ordering::Relaxed);
        self.dirty.set_budget(budget);
    }

    /// The mode of a write of `length` bytes that names none.
    fn default_mode(&self, length: u64) -> WriteMode {
        let number = self.default.load(Ordering::Relaxed);
        let configured = WriteMode::ALL.iter().find(|mode| **mode as u8 == number);
        configured.copied().unwrap_or_else(|| self.backing.best(length))
    }

    /// The mode of writes that name none, in words: `paced`, or `direct from 512KiB, paced below`.
    pub(crate) fn default_text(&self) -> String {
        let (small, large) = (self.default_mode(0), self.default_mode(DIRECT_MIN.get()));
        if small == large {
            return small.to_string();
        }
        format!("{large} from {DIRECT_MIN}, {small} below")
    }

    /// Returns the result of the probe.
    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Writes `request.data` to `file`, whose other half is `side`, and returns how many
    /// bytes were written: fewer only if the file system took fewer. May wait for the
    /// device in every mode but `Cached`; the request's slots are free when it returns.
    ///
    /// # Errors
    /// Errors of the file system. An error of an earlier write-back shows at the next
    /// [`Writes::fsync`] of the client, not here.
    pub(crate) fn write(
        &self,
        file: BorrowedFd<'_>,
        side: &WriteFile,
        request: WriteRequest<'_>,
    ) -> io::Result<usize> {
        let end = request.offset.checked_add(request.data.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG.into());
        }
        let length = request.data.len() as u64;
        let mut mode = request.mode.unwrap_or_else(|| self.default_mode(length));
        loop {
            mode = side.allowed(mode);
            match self.write_as(mode, file, side, request) {
                Err(error) if refuses(mode, &error) => self.refuse(mode, side, &error),
                answer => return answer,
            }
        }
    }

    /// Counts data that was appended through the page cache, all of it, and waits for what is
    /// above the account's budget, as [`Writes::write`] does.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn note_appended(
        &self,
        file: BorrowedFd<'_>,
        side: &WriteFile,
        request: WriteRequest<'_>,
    ) -> io::Result<()> {
        let done = request.data.len();
        let mode = request.mode.unwrap_or_else(|| self.default_mode(done as u64));
        if side.allowed(mode) == WriteMode::Cached {
            return Ok(());
        }
        match self.pace_dirty(file, side, request, done, false) {
            Err(error) if refuses(WriteMode::Paced, &error) => {
                self.refuse(WriteMode::Paced, side, &error);
                Ok(())
            }
            settled => settled.map(|_| ()),
        }
    }

    /// Makes the file's data (and, unless `data_only`, its attributes) durable.
    ///
    /// # Errors
    /// Errors of the file system, earlier write-back errors included.
    pub(crate) fn fsync(
        &self,
        file: BorrowedFd<'_>,
        side: &WriteFile,
        data_only: bool,
    ) -> io::Result<()> {
        let listed = side.sync.get().and_then(Option::as_ref);
        let seal = listed.map(|sync| (sync, self.dirty.seal(sync)));
        if data_only {
            rustix::fs::fdatasync(file)?
        } else {
            rustix::fs::fsync(file)?
        }
        if let Some((sync, seal)) = seal {
            self.dirty.synced(sync, seal);
        }
        Ok(())
    }

    /// Bytes of `account` that are inside its budget and not known to be clean.
    #[cfg(test)]
    pub(crate) fn dirty(&self, account: DirtyAccount) -> Bytes {
        self.dirty.bytes(account)
    }

    fn write_as(
        &self,
        mode: WriteMode,
        file: BorrowedFd<'_>,
        side: &WriteFile,
        request: WriteRequest<'_>,
    ) -> io::Result<usize> {
        let WriteRequest { data, offset, .. } = request;
        match mode {
            WriteMode::Direct => match side.direct_for(file, request) {
                Some(direct) => self.write_direct(direct, data, offset),
                None if side.direct_refused() => Err(Errno::OPNOTSUPP.into()),
                None => self.write_as(side.allowed(WriteMode::Paced), file, side, request),
            },
            WriteMode::Dontcache => {
                let done = write_all(data, offset, |part, at| {
                    rustix::io::pwritev2(file, &[IoSlice::new(part)], at, RWF_DONTCACHE)
                })?;
                self.pace_dirty(file, side, request, done, true)
            }
            WriteMode::Paced => {
                let done = write_all(data, offset, |part, at| rustix::io::pwrite(file, part, at))?;
                self.pace_dirty(file, side, request, done, false)
            }
            WriteMode::Cached => {
                write_all(data, offset, |part, at| rustix::io::pwrite(file, part, at))
            }
        }
    }

    fn write_direct(&self, direct: &Direct, data: &[u8], offset: u64) -> io::Result<usize> {
        let align = direct.alignment.memory;
        if (data.as_ptr() as usize).is_multiple_of(align as usize) {
            return write_all(data, offset, |part, at| rustix::io::pwrite(&direct.fd, part, at));
        }
        self.bounces.with(align, |buffer| {
            write_all(data, offset, |part, at| {
                let part = &part[..part.len().min(buffer.len())];
                buffer[..part.len()].copy_from_slice(part);
                rustix::io::pwrite(&direct.fd, &buffer[..part.len()], at)
            })
        })
    }

    /// Lists `done` bytes that are in the page cache now and waits for what is above
    /// the budget. EOPNOTSUPP and the like mean that this file cannot be paced; its
    /// bytes are written all the same.
    fn pace_dirty(
        &self,
        file: BorrowedFd<'_>,
        side: &WriteFile,
        request: WriteRequest<'_>,
        done: usize,
        begun: bool,
    ) -> io::Result<usize> {
        let (start, end) = (request.offset, request.offset + done as u64);
        let Some(sync) = side.sync_for(file) else {
            // Without a descriptor of our own nothing can be left for later; and an error
            // of the write-back is then this write's.
            return finish_now(file, start, end).map(|()| done);
        };
        let piece = DirtyPiece { file: sync.clone(), start, end };
        let work = self.dirty.add(DirtyWrite { account: request.account, piece, begun });
        let begin = work.begin.iter().map(|piece| (piece, SyncRange::Begin));
        let finish = work.finish.iter().map(|piece| (piece, SyncRange::Finish));
        for (piece, how) in begin.chain(finish) {
            if let Err(error) = sync_piece(piece, how) {
                self.note_failure(piece, &error);
            }
        }
        Ok(done)
    }

    /// Remembers that a file refused a mode; logs the first refusal of each mode.
    fn refuse(&self, mode: WriteMode, side: &WriteFile, error: &io::Error) {
        side.refused.fetch_or(bit(mode), Ordering::Relaxed);
        if self.refused.fetch_or(bit(mode), Ordering::Relaxed) & bit(mode) == 0 {
            tracing::warn!(?mode, %error, "a file refused this write mode; using the next one");
        }
    }

    /// Logs the first write-back that failed. The kernel marks such pages clean, so
    /// there is nothing left to wait for; the client learns of it at its next fsync.
    fn note_failure(&self, piece: &DirtyPiece, error: &io::Error) {
        if self.refused.fetch_or(FAILED, Ordering::Relaxed) & FAILED == 0 {
            let (start, end) = (piece.start, piece.end);
            tracing::warn!(%error, start, end, "write-back failed; further failures are not logged");
        }
    }
}

impl WriteFile {
    /// The mode to use when `mode` is wanted and some have been refused.
    fn allowed(&self, mode: WriteMode) -> WriteMode {
        let refused = self.refused.load(Ordering::Relaxed);
        let mut mode = mode;
        while refused & bit(mode) != 0 && mode != WriteMode::Cached {
            mode = match mode {
                WriteMode::Direct | WriteMode::Dontcache => WriteMode::Paced,
                WriteMode::Paced | WriteMode::Cached => WriteMode::Cached,
            };
        }
        mode
    }

    /// The O_DIRECT descriptor, if there is one and offset and length suit it.
    fn direct_for(&self, file: BorrowedFd<'_>, request: WriteRequest<'_>) -> Option<&Direct> {
        let open = || {
            let alignment = direct_alignment(file)?;
            let fd = reopen(file, OFlags::WRONLY | OFlags::DIRECT).ok()?;
            Some(Direct { fd, alignment })
        };
        let suits = |block: u32| {
            (request.offset | request.data.len() as u64).is_multiple_of(u64::from(block))
        };
        if !suits(BLOCK_MIN) {
            return None;
        }
        let direct = self.direct.get_or_init(open).as_ref()?;
        suits(direct.alignment.offset).then_some(direct)
    }

    /// Whether O_DIRECT was tried on this file and could not be had.
    fn direct_refused(&self) -> bool {
        matches!(self.direct.get(), Some(None))
    }

    fn sync_for(&self, file: BorrowedFd<'_>) -> Option<&Arc<SyncFile>> {
        let open = || {
            let fd = reopen(file, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
            Some(Arc::new(SyncFile::new(fd)))
        };
        self.sync.get_or_init(open).as_ref()
    }
}

impl Drop for WriteFile {
    fn drop(&mut self) {
        if let Some(Some(sync)) = self.sync.get() {
            sync.closed.store(true, Ordering::Relaxed);
        }
    }
}

/// Calls `write` until all of `data` is written or it takes no more. An error after
/// some bytes is left to the next write, as write(2) does.
fn write_all(
    data: &[u8],
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
) -> io::Result<usize> {
    let mut done = 0;
    loop {
        match write(&data[done..], offset + done as u64) {
            Ok(0) => return Ok(done),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) if done == 0 => return Err(error.into()),
            Err(_) => return Ok(done),
        }
        if done == data.len() {
            return Ok(done);
        }
    }
}

/// Whether an error says that the file cannot be written in this mode at all.
fn refuses(mode: WriteMode, error: &io::Error) -> bool {
    let refusal = match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP | Errno::NOSYS) => true,
        Some(Errno::INVAL) => mode == WriteMode::Direct,
        _ => false,
    };
    refusal && mode != WriteMode::Cached
}

fn finish_now(file: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    match sync_file_range(file, start, end, SyncRange::Finish) {
        Err(error) if error.raw_os_error() == Some(Errno::SPIPE.raw_os_error()) => {
            Err(Errno::OPNOTSUPP.into())
        }
        answer => answer,
    }
}

/// Begins or finishes one extent.
fn sync_piece(piece: &DirtyPiece, how: SyncRange) -> io::Result<()> {
    let file = piece.file.fd.as_fd();
    let closed = piece.file.closed.load(Ordering::Relaxed);
    if closed && rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0) {
        // Deleted and closed by the client: the kernel drops these pages with our descriptor.
        return Ok(());
    }
    sync_file_range(file, piece.start, piece.end, how)
}

fn bit(mode: WriteMode) -> u8 {
    1 << mode as u8
}

fn number_of(mode: Option<WriteMode>) -> u8 {
    mode.map_or(BY_SIZE, |mode| mode as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Nanos;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const A: DirtyAccount = DirtyAccount(7);

    fn on(dir: &str, budget: Bytes) -> (Writes, File) {
        let dir = File::open(dir).unwrap();
        let backing = Backing::probe(dir.as_fd()).unwrap();
        let file = nameless_file(dir.as_fd()).unwrap();
        (Writes::start(backing, None, budget).unwrap(), file.into())
    }

    fn disk() -> String {
        std::env::temp_dir().to_str().unwrap().to_owned()
    }

    fn request(mode: WriteMode, offset: u64, data: &[u8]) -> WriteRequest<'_> {
        WriteRequest { account: A, mode: Some(mode), offset, data }
    }

    #[test]
    fn every_mode_writes_the_same_bytes_at_any_alignment() {
        let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let cases =
            [(0, 0, 4096), (0, 1, 8192), (4096, 3, 2_097_152), (777, 0, 70_001), (8192, 5, 99)];
        for dir in [disk().as_str(), "/dev/shm"] {
            for mode in WriteMode::ALL.iter().copied() {
                let (writes, file) = on(dir, Bytes::kib(256));
                let side = WriteFile::default();
                for (offset, skip, length) in cases {
                    let part = &data[skip..skip + length];
                    let done =
                        writes.write(file.as_fd(), &side, request(mode, offset, part)).unwrap();
                    assert_eq!(done, length);
                    let mut back = vec![0; length];
                    file.read_exact_at(&mut back, offset).unwrap();
                    assert!(back == part, "{mode:?} at {offset} in {dir}");
                    assert!(writes.dirty(A) <= Bytes::kib(256));
                }
            }
        }
    }

    #[test]
    fn a_file_that_refuses_a_mode_is_written_in_the_next_one_and_remembers() {
        // tmpfs answers EOPNOTSUPP to RWF_DONTCACHE.
        let (writes, file) = on("/dev/shm", DIRTY_BUDGET);
        let side = WriteFile::default();
        assert_eq!(writes.default_text(), "cached");
        assert_eq!(
            writes.write(file.as_fd(), &side, request(WriteMode::Dontcache, 0, b"x")).unwrap(),
            1
        );
        assert_eq!(side.allowed(WriteMode::Dontcache), WriteMode::Paced);
        assert_eq!(side.allowed(WriteMode::Direct), WriteMode::Direct);
        assert_eq!(WriteFile::default().allowed(WriteMode::Dontcache), WriteMode::Dontcache);
    }

    #[test]
    fn without_a_mode_the_size_decides() {
        let (writes, _) = on(&disk(), DIRTY_BUDGET);
        let large = DIRECT_MIN.get();
        let modes = [0, large - 1, large].map(|length| writes.default_mode(length));
        assert_eq!(modes, [WriteMode::Paced, WriteMode::Paced, WriteMode::Direct]);
        assert_eq!(writes.default_text(), "direct from 512KiB, paced below");
        writes.set(Some(WriteMode::Dontcache), DIRTY_BUDGET);
        assert_eq!(writes.default_mode(large), WriteMode::Dontcache);
        assert_eq!(writes.default_text(), "dontcache");
    }

    #[test]
    fn a_refused_direct_falls_to_paced_and_that_to_cached() {
        let side = WriteFile::default();
        side.refused.store(bit(WriteMode::Direct), Ordering::Relaxed);
        assert_eq!(side.allowed(WriteMode::Direct), WriteMode::Paced);
        side.refused.fetch_or(bit(WriteMode::Paced), Ordering::Relaxed);
        assert_eq!(side.allowed(WriteMode::Direct), WriteMode::Cached);
        assert_eq!(side.allowed(WriteMode::Dontcache), WriteMode::Dontcache);
    }

    #[test]
    fn an_error_of_the_file_system_is_handed_on_in_every_mode() {
        let (writes, file) = on(&disk(), DIRTY_BUDGET);
        let reader: File = reopen(file.as_fd(), OFlags::RDONLY).unwrap().into();
        for mode in [WriteMode::Dontcache, WriteMode::Paced, WriteMode::Cached] {
            let side = WriteFile::default();
            let error = writes.write(reader.as_fd(), &side, request(mode, 0, b"x")).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::BADF), "{mode:?}");
            let far = request(mode, i64::MAX as u64, b"x");
            let error = writes.write(file.as_fd(), &side, far).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::FBIG), "{mode:?}");
        }
    }

    #[test]
    fn a_closed_file_is_let_go_by_the_sweep() {
        let (writes, file) = on(&disk(), DIRTY_BUDGET);
        let side = WriteFile::default();
        writes.write(file.as_fd(), &side, request(WriteMode::Paced, 0, &[1; 4096])).unwrap();
        let held = Arc::downgrade(side.sync.get().unwrap().as_ref().unwrap());
        drop((side, file));
        assert!(held.upgrade().is_some());
        writes.dirty.sweep(Nanos::ZERO);
        assert!(held.upgrade().is_none());
        assert_eq!(writes.dirty(A), Bytes::ZERO);
    }

    #[test]
    fn an_fsync_frees_the_budget_without_further_waits() {
        let (writes, file) = on(&disk(), Bytes::kib(8));
        let side = WriteFile::default();
        writes.write(file.as_fd(), &side, request(WriteMode::Paced, 0, &[1; 8192])).unwrap();
        writes.fsync(file.as_fd(), &side, true).unwrap();
        writes.write(file.as_fd(), &side, request(WriteMode::Paced, 1 << 20, &[1; 8192])).unwrap();
        assert_eq!(writes.dirty(A), Bytes::kib(8));
    }
}
