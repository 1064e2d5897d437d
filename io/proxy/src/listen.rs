//! Sockets that clients connect to.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use http::{Listening, ServerAddress};
use model::Nid;

use crate::config::ProxyConfig;
use crate::connection::ConnectionPeer;

/// One address that clients connect to.
pub(crate) enum NinepListener {
    Tcp(TcpListener),
    Unix(Listening),
}

impl NinepListener {
    pub(crate) fn bind(address: &ServerAddress) -> io::Result<NinepListener> {
        match address {
            ServerAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(NinepListener::Tcp(listener))
            }
            ServerAddress::Unix(path) => {
                // Every user that may connect may attach; the kernel names the user.
                let listening = Listening::at(path, 0o666).map_err(io::Error::other)?;
                listening.listener().set_nonblocking(true)?;
                Ok(NinepListener::Unix(listening))
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub(crate) fn address(&self) -> ServerAddress {
        match self {
            NinepListener::Tcp(listener) => {
                ServerAddress::Tcp(listener.local_addr().expect("a bound socket has an address"))
            }
            NinepListener::Unix(listening) => ServerAddress::Unix(listening.path().into()),
        }
    }

    /// The next connection; `Ok(None)` for one that was not let in.
    ///
    /// # Errors
    /// If there is none, or nothing can be accepted now.
    pub(crate) fn accept(
        &self,
        settings: &ProxyConfig,
    ) -> io::Result<Option<(OwnedFd, ConnectionPeer)>> {
        let accepted = match self {
            NinepListener::Tcp(listener) => listener
                .accept()
                .map(|(socket, from)| NinepListener::admit_tcp(socket, from, settings)),
            NinepListener::Unix(listening) => {
                listening.listener().accept().map(|(socket, _)| NinepListener::admit_unix(socket))
            }
        };
        match accepted {
            Ok(let_in) => Ok(let_in.unwrap_or_else(|error| {
                tracing::debug!(%error, "a connection ended before it was accepted");
                None
            })),
            // The peer was faster, or a signal came.
            Err(error) if IS_OF_ONE.contains(&error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn admit_tcp(
        socket: TcpStream,
        from: SocketAddr,
        settings: &ProxyConfig,
    ) -> io::Result<Option<(OwnedFd, ConnectionPeer)>> {
        let address = from.ip().to_canonical();
        if !settings.allows(address) {
            tracing::debug!(%address, "refused a connection: its address is not in allow");
            return Ok(None);
        }
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        set_keepalive(&socket)?;
        let trusted = settings.trusts(address);
        Ok(Some((socket.into(), ConnectionPeer { nid: Nid::tcp(address), uid: None, trusted })))
    }

    fn admit_unix(socket: UnixStream) -> io::Result<Option<(OwnedFd, ConnectionPeer)>> {
        socket.set_nonblocking(true)?;
        let uid = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
        let peer = ConnectionPeer { nid: Nid::local(), uid: Some(uid), trusted: uid == 0 };
        Ok(Some((socket.into(), peer)))
    }
}

/// Errors of accept for one connection, while the next may be whole.
const IS_OF_ONE: [io::ErrorKind; 3] =
    [io::ErrorKind::ConnectionAborted, io::ErrorKind::Interrupted, io::ErrorKind::ConnectionReset];

impl AsFd for NinepListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            NinepListener::Tcp(listener) => listener.as_fd(),
            NinepListener::Unix(listening) => listening.listener().as_fd(),
        }
    }
}

/// Has the kernel end a connection whose peer does not answer it any more, and with it what is
/// queued here: mounts that were cut off from this proxy go to another one after
/// 30 s, and nothing of theirs may be executed here afterwards.
fn set_keepalive(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_TIMEOUT / 4)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_TIMEOUT / 4)?;
    sockopt::set_tcp_user_timeout(socket, KEEPALIVE_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

/// How long the machine of a client may not answer.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
