//! Sockets that clients connect to.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::Address;
use model::Nid;

use crate::config::Config;
use crate::connection::Peer;

/// One address that clients connect to.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Address::Unix(path) => {
                api::make_folder_of(path)?;
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                // Who may connect is who may attach; the kernel tells us who it is.
                let mode = rustix::fs::Mode::from_raw_mode(0o666);
                rustix::fs::chmod(path, mode)?;
                Ok(Listener::Unix(listener, path.clone()))
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listener::Tcp(listener) => {
                Address::Tcp(listener.local_addr().expect("a bound socket has an address"))
            }
            Listener::Unix(_, path) => Address::Unix(path.clone()),
        }
    }

    /// The next connection; `Ok(None)` for one that was not let in.
    pub(crate) fn accept(&self, settings: &Config) -> io::Result<Option<(OwnedFd, Peer)>> {
        match self {
            Listener::Tcp(listener) => {
                let (socket, from) = listener.accept()?;
                let address = from.ip().to_canonical();
                if !settings.allows(address) {
                    tracing::debug!(%address, "not on the list of allowed addresses");
                    return Ok(None);
                }
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                end_when_silent(&socket)?;
                let trusted = settings.trusts(address);
                let nid = Nid::tcp(address);
                Ok(Some((socket.into(), Peer { nid, uid: None, trusted })))
            }
            Listener::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                let uid = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
                let peer = Peer { nid: Nid::local(), uid: Some(uid), trusted: uid == 0 };
                Ok(Some((socket.into(), peer)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // It may have been replaced or removed meanwhile; that is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Has the kernel end a connection whose peer does not answer it any more, and with it what is
/// queued here: mounts that were cut off from this proxy go to another one after
/// 30 s, and nothing of theirs may be executed here afterwards.
fn end_when_silent(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE_MAX / 4)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE_MAX / 4)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE_MAX.as_millis() as u32)?;
    Ok(())
}

/// How long the machine of a client may not answer.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Removes the socket of a proxy that is gone; leaves one that answers, and anything else.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) if UnixStream::connect(path).is_ok() => Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}
