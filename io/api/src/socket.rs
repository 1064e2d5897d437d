//! Listening on a Unix socket whose name belongs to us while we live.
//!
//! ```text
//!   nothing there ─ make its folder ────────────► bind
//!   a socket that nobody listens at (stale) ────► remove, bind
//!   a socket that somebody listens at ──────────► InUse
//!   anything else ──────────────────────────────► Foreign, left alone
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A Unix socket that listens; its name is removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the name: what is removed at the end is only ours.
    name: (u64, u64),
}

/// Why a Unix socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("{} is in use by a running process", .path.display())]
    InUse {
        /// The name.
        path: PathBuf,
    },
    /// What is there is no socket and not ours to remove.
    #[error("{} exists and is no socket", .path.display())]
    Foreign {
        /// The name.
        path: PathBuf,
    },
    /// Its folder is not there and cannot be made.
    #[error("cannot make the folder of {}", .path.display())]
    Folder {
        /// The name.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot listen at {}", .path.display())]
    Refused {
        /// The name.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Connections that wait to be accepted, at most; listen(2). A thousand proxies may come back at once.
const BACKLOG: i32 = 1024;

impl Listening {
    /// Listens at `path`, taking the place of a socket that its process left behind. The folder
    /// is made if it is not there, as /run/sluice is not after each boot. `mode` is the name's permissions, as in chmod(2): who may write may connect.
    pub fn at(path: &Path, mode: u32) -> Result<Listening, SocketError> {
        let refused = |source| SocketError::Refused { path: path.into(), source };
        make_folder_of(path).map_err(|source| SocketError::Folder { path: path.into(), source })?;
        remove_stale(path)?;
        let listener = bind(path, mode).map_err(|error| match error {
            // Somebody was quicker between the look and the bind.
            rustix::io::Errno::ADDRINUSE => SocketError::InUse { path: path.into() },
            error => refused(error.into()),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(refused)?;
        Ok(Listening { listener, path: path.into(), name: (metadata.dev(), metadata.ino()) })
    }

    /// The socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.name);
        if ours {
            // It may have gone since; then there is nothing left to do.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the folder of a socket if it is not there: everybody may look into it, only its owner
/// change it.
///
/// # Errors
/// It cannot be made.
pub fn make_folder_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.exists()) {
        Some(folder) => fs::DirBuilder::new().recursive(true).mode(0o755).create(folder),
        None => Ok(()),
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
/// never exists with any other (linux: net/unix/af_unix.c, unix_bind_bsd takes the
/// socket inode's mode); the umask is the whole process's and other threads use it.
fn bind(path: &Path, mode: u32) -> rustix::io::Result<UnixListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
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
