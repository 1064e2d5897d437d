//! System calls that rustix lacks: the one place of this crate where `unsafe` is allowed.
//!
//! Each function is safe to call with any argument: what the kernel refuses comes
//! back as an error, and no pointer of the caller's is kept.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

/// Action of [`sync_file_range`] on the pages of an extent (linux: `fs/sync.c`).
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

/// Reads up to `count` bytes at `offset` behind what is in `bytes`, which grows by what was
/// read: the memory need not be cleared before the kernel fills it. `flags` are preadv2's.
///
/// # Errors
/// As preadv2, and `EINVAL` for an offset that no file can have.
pub(crate) fn read_appending(
    file: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    count: usize,
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    bytes.reserve(count);
    let space = &mut bytes.spare_capacity_mut()[..count];
    let into = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: count };
    let flags = flags.bits() as libc::c_int;
    // SAFETY: the kernel writes at most `count` bytes into spare memory of `bytes` that we
    // alone hold until the call returns.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &into, 1, offset, flags) };
    let Ok(read) = usize::try_from(read) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    // SAFETY: the kernel has initialised the first `read` of these bytes.
    unsafe { bytes.set_len(bytes.len() + read) };
    Ok(read)
}

/// Sets the calling thread's file-system uid. The kernel's call cannot say that it
/// failed, so a second one asks.
pub(crate) fn set_fsuid(uid: u32) -> io::Result<()> {
    // SAFETY: setfsuid takes an integer and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    // SAFETY: as above; an impossible uid changes nothing and returns what is set.
    let now = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) };
    if now as u32 == uid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Sets the calling thread's file-system gid.
pub(crate) fn set_fsgid(gid: u32) -> io::Result<()> {
    // SAFETY: setfsgid takes an integer and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: as above.
    let now = unsafe { libc::syscall(libc::SYS_setfsgid, u32::MAX) };
    if now as u32 == gid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Sets the calling thread's supplementary groups, and no other thread's: the C
/// library's call would set them for all.
pub(crate) fn set_thread_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads `len` gids from a slice that lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The longest handle that the kernel gives (linux: MAX_HANDLE_SZ).
const KERNEL_HANDLE_MAX: usize = 128;

/// A file handle as the kernel makes them: its type and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelHandle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// `struct file_handle`.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; KERNEL_HANDLE_MAX],
}

/// The handle of an open file; `file` may be opened with O_PATH.
///
/// # Errors
/// `EOPNOTSUPP` if the file system has none.
pub(crate) fn name_to_handle(file: BorrowedFd<'_>) -> io::Result<KernelHandle> {
    let mut raw =
        RawHandle { len: KERNEL_HANDLE_MAX as u32, kind: 0, bytes: [0; KERNEL_HANDLE_MAX] };
    let mut mount: libc::c_int = 0;
    // SAFETY: the name is an empty string, `raw` has room for as many bytes as it says, and
    // both it and `mount` are ours until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = raw.bytes.get(..raw.len as usize).ok_or(Errno::OVERFLOW)?;
    Ok(KernelHandle { kind: raw.kind, bytes: bytes.to_vec() })
}

/// Opens the file that a handle names, on the file system of `mount`, which is not opened
/// with O_PATH. Needs CAP_DAC_READ_SEARCH.
///
/// # Errors
/// `ESTALE` if the file does not exist, `EPERM` without the capability.
pub(crate) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &KernelHandle,
    flags: rustix::fs::OFlags,
) -> io::Result<OwnedFd> {
    let len = handle.bytes.len();
    if len > KERNEL_HANDLE_MAX {
        return Err(Errno::STALE.into());
    }
    let mut raw = RawHandle { len: len as u32, kind: handle.kind, bytes: [0; KERNEL_HANDLE_MAX] };
    raw.bytes[..len].copy_from_slice(&handle.bytes);
    let flags = flags.bits() as libc::c_int;
    // SAFETY: the kernel reads `raw`, which is ours until the call returns.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Writes at the end of a file, wherever that is, and returns where the data begins and how
/// much was written. Nothing else may move the descriptor's position meanwhile: the caller
/// sees to that.
///
/// # Errors
/// As pwritev2.
pub(crate) fn append(file: BorrowedFd<'_>, data: &[u8]) -> io::Result<(u64, usize)> {
    let from = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the kernel reads `data`, which is borrowed until the call returns.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &from, 1, -1, libc::RWF_APPEND) };
    let Ok(written) = usize::try_from(written) else { return Err(io::Error::last_os_error()) };
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0))?;
    Ok((end - written as u64, written))
}

/// Range of an open-file-description lock: `len` 0 is "to the end of the file".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRange {
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub(crate) kind: i16,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// Takes or gives back a lock of the open file description, without waiting.
pub(crate) fn ofd_lock(file: BorrowedFd<'_>, range: LockRange) -> io::Result<()> {
    let lock = flock(range)?;
    // SAFETY: F_OFD_SETLK reads one flock that lives until the call returns.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The first lock of another open file description that stands in the way.
pub(crate) fn ofd_test(file: BorrowedFd<'_>, range: LockRange) -> io::Result<Option<LockRange>> {
    let mut lock = flock(range)?;
    // SAFETY: F_OFD_GETLK reads and writes one flock of ours.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let found = LockRange { kind: lock.l_type, start: lock.l_start as u64, len: lock.l_len as u64 };
    Ok((lock.l_type != libc::F_UNLCK as i16).then_some(found))
}

fn flock(range: LockRange) -> io::Result<libc::flock> {
    let fits = |n: u64| i64::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    Ok(libc::flock {
        l_type: range.kind,
        l_whence: libc::SEEK_SET as i16,
        l_start: fits(range.start)?,
        l_len: fits(range.len)?,
        l_pid: 0,
    })
}

/// Bytes sent on a TCP socket that its peer's kernel has not confirmed (linux: SIOCOUTQ).
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int of ours.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if result == 0 { bytes.max(0) as usize } else { 0 }
}

/// A file's project: the id that its space is counted for, and whether what is made in it, if
/// it is a directory, gets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: u32,
    pub(crate) inherits: bool,
}

/// FS_XFLAG_PROJINHERIT (linux: `include/uapi/linux/fs.h`).
const PROJECT_INHERIT: u64 = 0x200;

/// The project of a file that is open, not by O_PATH (linux: FS_IOC_FSGETXATTR,
/// `include/uapi/linux/fs.h`).
///
/// # Errors
/// `EBADF` for O_PATH; `ENOTTY` or `EOPNOTSUPP` where the file system has no projects.
pub(crate) fn project(file: BorrowedFd<'_>) -> io::Result<Project> {
    #[repr(C)]
    #[derive(Default)]
    struct FsXattr {
        flags: u32,
        extent_size: u32,
        extents: u32,
        project: u32,
        cow_extent_size: u32,
        padding: [u8; 8],
    }
    const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
    let mut xattr = FsXattr::default();
    // SAFETY: the call fills one struct of the size that its number states.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, &mut xattr) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let inherits = u64::from(xattr.flags) & PROJECT_INHERIT != 0;
    Ok(Project { id: xattr.project, inherits })
}

/// The project of the file at a path, which is not opened for it (linux 6.17: file_getattr(2),
/// `struct file_attr` in `include/uapi/linux/fs.h`). A kernel without the call is asked once.
///
/// # Errors
/// `ENOSYS` on an older kernel; `EOPNOTSUPP` where the file system has no projects.
pub(crate) fn project_of_path(path: &CStr) -> io::Result<Project> {
    #[repr(C)]
    #[derive(Default)]
    struct FileAttr {
        flags: u64,
        extent_size: u32,
        extents: u32,
        project: u32,
        cow_extent_size: u32,
    }
    /// The number is the same on all architectures; libc does not have it yet.
    const SYS_FILE_GETATTR: libc::c_long = 468;
    static MISSING: AtomicBool = AtomicBool::new(false);
    if MISSING.load(Ordering::Relaxed) {
        return Err(Errno::NOSYS.into());
    }
    let mut attr = FileAttr::default();
    // SAFETY: the kernel reads a path that ends with a zero byte and fills at most the given length
    // of `attr`; both are ours until the call returns.
    let result = unsafe {
        let size = size_of::<FileAttr>();
        libc::syscall(SYS_FILE_GETATTR, libc::AT_FDCWD, path.as_ptr(), &raw mut attr, size, 0)
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOSYS) {
            MISSING.store(true, Ordering::Relaxed);
        }
        return Err(error);
    }
    Ok(Project { id: attr.project, inherits: attr.flags & PROJECT_INHERIT != 0 })
}

/// Has the allocator map each buffer of 256 KiB or more by itself, and so give it back to the system
/// when it is freed. Otherwise glibc raises its threshold to the largest buffer that was freed, and
/// from then on such buffers stay in the heaps of the threads that freed them.
pub(crate) fn return_large_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes integers and locks what it changes. It fails for no value of this size.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Returns unused memory to the system: the allocator keeps it otherwise, and a burst would be felt
/// until the process ends.
pub(crate) fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
