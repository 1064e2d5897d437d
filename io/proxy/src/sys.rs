//! System calls that rustix lacks: the one place of this crate where `unsafe` is allowed.
//!
//! Each function is safe to call with any argument: what the kernel refuses comes
//! back as an error, and no pointer of the caller's is kept.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What [`sync_file_range`] does with the pages of an extent (linux: `fs/sync.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncRange {
    /// Begin to write the dirty pages; wait only where the device's queue is full.
    Begin,
    /// Write every dirty page and wait until all of them are clean.
    Finish,
}

/// Writes the dirty pages of `[start, end)` of a regular file back, whatever the
/// descriptor was opened for. Neither metadata nor a disk's own cache is flushed:
/// clean is not durable.
///
/// # Errors
/// `ESPIPE` for what is not a file, `EIO` or `ENOSPC` if an earlier write-back failed
/// since this descriptor was opened or last asked, `ENOSYS` where the kernel has no such call.
pub(crate) fn sync_file_range(
    file: BorrowedFd<'_>,
    start: u64,
    end: u64,
    how: SyncRange,
) -> io::Result<()> {
    let range = |value: u64| i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
    let (offset, length) = (range(start)?, range(end.saturating_sub(start))?);
    // The kernel takes a length of zero for "to the end of the file".
    if length == 0 {
        return Ok(());
    }
    let flags = match how {
        SyncRange::Begin => libc::SYNC_FILE_RANGE_WRITE,
        SyncRange::Finish => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    // SAFETY: the call takes integers only, and `file` is borrowed, so it stays open.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
