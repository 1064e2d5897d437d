//! Unix sockets: a listener that owns its name while it lives, and a check of the process that
//! listens.
//!
//! ```text
//!   nothing there ─ make its directory ─────────► bind
//!   a socket without a listener (stale) ────────► remove, bind
//!   a socket with a listener ───────────────────► InUse
//!   anything else ──────────────────────────────► Foreign, not touched
//!
//!   connected ─ SO_PEERCRED: root, this user, or the directory's owner? ─no─► Stranger
//! ```

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use api::{is_trusted, make_directory};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// A Unix socket that listens; its name is removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the name, so that only our own is removed at the end.
    name: (u64, u64),
}

/// An error of listening at a Unix socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("{} is in use by a running process", .path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The name is not a socket and is not removed.
    #[error("{} exists and is not a socket", .path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
    },
    /// The directory does not exist and cannot be created.
    #[error("cannot create the directory of {}", .path.display())]
    Folder {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to create the socket.
    #[error("cannot listen at {}", .path.display())]
    Refused {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The reason why the listener at a Unix socket is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The socket belongs to another user.
    #[error(
        "{} is the socket of uid {uid}: root, this user or the owner of its directory is \
         expected; if that user is the right one, run this command as that user",
        .path.display()
    )]
    Stranger {
        /// The path of the socket.
        path: PathBuf,
        /// The user that listens.
        uid: u32,
    },
    /// The kernel does not name the user.
    #[error("cannot find the user that listens at {}", .path.display())]
    Unknown {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The most connections that wait to be accepted; listen(2). A thousand proxies may reconnect at
/// once.
const BACKLOG: i32 = 1024;

impl Listening {
    /// Listens at `path`, replacing a socket that its process left behind. The directory is created
    /// if it does not exist, such as /run/sluice after a boot. `mode` is the permissions of the
    /// name, as in chmod(2): users that may write may connect.
    pub fn at(path: &Path, mode: u32) -> Result<Listening, SocketError> {
        let refused = |source| SocketError::Refused { path: path.into(), source };
        let folder = path.parent().map_or(Ok(()), |folder| make_directory(folder, 0o755));
        folder.map_err(|source| SocketError::Folder { path: path.into(), source })?;
        remove_stale(path)?;
        let listener = bind(path, mode).map_err(|error| match error {
            // Another process was faster between the check and the bind.
            rustix::io::Errno::ADDRINUSE => SocketError::InUse { path: path.into() },
            error => refused(error.into()),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(refused)?;
        Ok(Listening { listener, path: path.into(), name: (metadata.dev(), metadata.ino()) })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket that accepts connections.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.name);
        if ours {
            // It may have been removed since; then there is nothing to do.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks the process at the other end of a socket that was connected by its name: it is trusted if
/// it runs as root, as this user, or as the owner of the directory of the name, like a service in
/// its own directory.
///
/// # Errors
/// If it is another user, or unknown.
pub fn check_listener(stream: impl AsFd, path: &Path) -> Result<(), ListenerError> {
    let unknown = |source| ListenerError::Unknown { path: path.into(), source };
    let peer = sockopt::socket_peercred(stream).map_err(|error| unknown(error.into()))?;
    let uid = peer.uid.as_raw();
    match is_trusted(uid, path).map_err(unknown)? {
        true => Ok(()),
        false => Err(ListenerError::Stranger { path: path.into(), uid }),
    }
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let refused = |source| SocketError::Refused { path: path.into(), source };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(refused)?,
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::Foreign { path: path.into() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(refused)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error)),
        Ok(_) => Err(SocketError::InUse { path: path.into() }),
    }
}

/// Binds and listens. The mode is set on the socket before it has a name, so the name
/// never exists with a wider one (linux: net/unix/af_unix.c, unix_bind_bsd takes the
/// socket inode's mode without what the umask takes, which is then given back).
fn bind(path: &Path, mode: u32) -> rustix::io::Result<UnixListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    widen(path, mode)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Gives the name the permissions that the umask removed. It is opened first: a user that can write
/// to the directory could put a link there, to anything.
fn widen(path: &Path, mode: u32) -> rustix::io::Result<()> {
    let name = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let found = rustix::fs::fstat(&name)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_mode & 0o7777 == mode {
        return Ok(());
    }
    let by_number = format!("/proc/self/fd/{}", name.as_raw_fd());
    rustix::fs::chmod(by_number, Mode::from_raw_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn the_name_has_the_mode_and_goes_with_the_socket() {
        let path = path("mode");
        let listening = Listening::at(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(listening);
        assert!(!path.exists());
        let _for_all = Listening::at(&path, 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666, "whatever the umask is");
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_living_one_is_not() {
        let path = path("stale");
        drop(UnixListener::bind(&path).unwrap());
        let listening = Listening::at(&path, 0o600).unwrap();
        let second = Listening::at(&path, 0o600).unwrap_err();
        assert!(matches!(second, SocketError::InUse { .. }));
        UnixStream::connect(&path).unwrap();
        drop(listening);
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let path = path("file");
        fs::write(&path, "precious").unwrap();
        let error = Listening::at(&path, 0o600).unwrap_err();
        assert!(matches!(error, SocketError::Foreign { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_name_that_somebody_else_took_over_is_not_removed() {
        let path = path("taken");
        let listening = Listening::at(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        drop(listening);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_missing_folder_is_made_and_nobody_else_may_write_there() {
        let folder = path("folder");
        let _ = fs::remove_dir_all(&folder);
        let _listening = Listening::at(&folder.join("in/s"), 0o600).unwrap();
        assert_eq!(fs::metadata(folder.join("in")).unwrap().mode() & 0o022, 0);
        UnixStream::connect(folder.join("in/s")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = path("no-folder");
        fs::write(&file, "").unwrap();
        let error = Listening::at(&file.join("in/s"), 0o600).unwrap_err();
        assert!(error.to_string().ends_with("no-folder/in/s"), "{error}");
        assert!(matches!(error, SocketError::Folder { .. }));
        fs::remove_file(&file).unwrap();
    }
}
