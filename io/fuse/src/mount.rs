//! Mounting, unmounting, and what is left where a mount's process died.
//!
//! mount(2) ties a descriptor of /dev/fuse to a place; the kernel then sends FUSE_INIT to it.
//! That needs CAP_SYS_ADMIN. A mount outlives the process behind it: everything in it then
//! fails with `ENOTCONN`, until it is unmounted ([`clear_dead_mount`]).

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount, unmount};

use crate::device::FuseDevice;
use crate::negotiate::NegotiateError;
use crate::options::Options;

/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseMountError {
    /// The mount point does not exist or cannot be read.
    #[error("cannot mount at {}: {error}", path.display())]
    MountPoint {
        /// Where it should be mounted.
        path: PathBuf,
        /// The error of the system.
        error: Errno,
    },
    /// A mount is there whose process is gone.
    #[error("the mount at {} is dead: its process has ended; run umount -l", path.display())]
    Dead {
        /// Where it should be mounted.
        path: PathBuf,
    },
    /// /dev/fuse cannot be opened.
    #[error("cannot open /dev/fuse: {0}")]
    Device(Errno),
    /// The kernel refused mount(2).
    #[error("the kernel refused to mount at {}: {error}{}", path.display(), hint(*error))]
    Refused {
        /// Where it should be mounted.
        path: PathBuf,
        /// The error of the system.
        error: Errno,
    },
    /// Kernel and file system did not come to terms.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// Memory or threads are lacking.
    #[error("cannot start serving: {0}")]
    Start(#[from] std::io::Error),
}

fn hint(error: Errno) -> &'static str {
    if error == Errno::PERM { "; run with CAP_SYS_ADMIN" } else { "" }
}

/// A place where a file system of ours is mounted.
#[derive(Debug)]
pub(crate) struct MountPoint {
    path: PathBuf,
    /// Minor number of the mount's device; its major number is 0.
    minor: u32,
}

impl MountPoint {
    /// Mounts the connection of `device` at `path`.
    pub(crate) fn mount(
        path: &Path,
        device: &FuseDevice,
        options: &Options,
    ) -> Result<MountPoint, FuseMountError> {
        let place = |error| FuseMountError::MountPoint { path: path.to_owned(), error };
        let kind = match rustix::fs::stat(path) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOTCONN) => return Err(FuseMountError::Dead { path: path.to_owned() }),
            Err(error) => return Err(place(error)),
        };
        let path = path
            .canonicalize()
            .map_err(|error| place(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)))?;
        let data = mount_data(device, kind, options);
        mount(options.source.as_str(), &path, FS_TYPE, options.flags, data.as_c_str())
            .map_err(|error| FuseMountError::Refused { path: path.clone(), error })?;
        let mut point = MountPoint { path, minor: 0 };
        match point.find_minor() {
            Ok(minor) => point.minor = minor,
            Err(error) => {
                point.detach();
                return Err(FuseMountError::MountPoint { path: point.path, error });
            }
        }
        Ok(point)
    }

    /// The number of the connection, below /sys/fs/fuse/connections.
    pub(crate) fn minor(&self) -> u32 {
        self.minor
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the mount's root for its device without asking the file system.
    fn find_minor(&self) -> Result<u32, Errno> {
        let root = rustix::fs::open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        Ok(rustix::fs::statx(&root, "", flags, StatxFlags::empty())?.stx_dev_minor)
    }

    /// Lets the kernel read ahead as far as was agreed: on its own it stops at 128 KiB.
    pub(crate) fn set_readahead(&self, bytes: u32) {
        let path = format!("/sys/class/bdi/0:{}/read_ahead_kb", self.minor);
        if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
            tracing::debug!(path, %error, "cannot set the read-ahead");
        }
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// `EBUSY` if it is in use.
    pub(crate) fn unmount(&self) -> Result<(), Errno> {
        unmount(&self.path, UnmountFlags::NOFOLLOW)
    }

    /// Ends the connection, so that waiting processes get an error, and removes the mount even if
    /// it is in use.
    pub(crate) fn detach(&self) {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
        if let Err(error) = unmount(&self.path, flags) {
            tracing::warn!(path = %self.path.display(), %error, "cannot unmount");
        }
    }
}

fn mount_data(device: &FuseDevice, kind: FileType, options: &Options) -> CString {
    use std::os::fd::AsFd;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},max_read={}",
        device.as_fd().as_raw_fd(),
        kind.as_raw_mode(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        options.max_write,
    );
    for (wanted, option) in
        [(options.allow_other, "allow_other"), (options.default_permissions, "default_permissions")]
    {
        if wanted {
            write!(data, ",{option}").expect("writing to a string does not fail");
        }
    }
    CString::new(data).expect("numbers and words have no NUL")
}

/// Takes a mount away whose process is gone; true if one was there. Several on top of each
/// other go one by one.
///
/// # Errors
/// Errors of unmounting.
pub fn clear_dead_mount(path: &Path) -> Result<bool, Errno> {
    match rustix::fs::stat(path) {
        Err(Errno::NOTCONN) => {
            unmount(path.as_os_str().as_bytes(), UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// The type in the table of mounts.
const FS_TYPE: &str = "fuse.sluice";
