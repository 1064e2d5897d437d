//! The endpoints at which a process listens: TCP ports, with TLS or without, and Unix sockets.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::{Endpoint, Listening, Peer, ServerTls, SocketError};

/// An endpoint that is bound. A clone is the same socket: of two servers, either takes a
/// connection.
#[derive(Clone)]
pub struct HttpListener {
    socket: BoundSocket,
    endpoint: Endpoint,
}

#[derive(Clone)]
enum BoundSocket {
    Tcp(Arc<TcpListener>, Option<TlsAcceptor>),
    Unix(Arc<Listening>),
}

/// An endpoint at which this process cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A Unix socket that cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A port that cannot be bound.
    #[error("cannot listen at {endpoint}")]
    Port {
        /// The endpoint as it was given.
        endpoint: Endpoint,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// A listener that the runtime waits for.
pub(crate) enum AsyncListener {
    Tcp { listener: tokio::net::TcpListener, tls: Option<TlsAcceptor>, over_loopback: bool },
    Unix { listener: tokio::net::UnixListener, _name: Arc<Listening> },
}

/// A connection that was accepted.
pub(crate) enum Accepted {
    Tcp(TcpStream, Option<TlsAcceptor>),
    Unix(UnixStream),
}

impl HttpListener {
    /// Listens at an endpoint: at `https://` with `tls`, at a Unix socket for this user and root.
    ///
    /// # Errors
    /// If it is in use, cannot be bound, is `https://` without `tls`, or is a loopback name that
    /// means another machine.
    pub fn bind(at: &Endpoint, tls: Option<&ServerTls>) -> Result<HttpListener, BindError> {
        let (host, port) = match at {
            Endpoint::Unix(path) => {
                let socket = BoundSocket::Unix(Arc::new(Listening::at(path, 0o600)?));
                return Ok(HttpListener { socket, endpoint: at.clone() });
            }
            Endpoint::Http { host, port } | Endpoint::Https { host, port } => (host, *port),
        };
        let failed = |source| BindError::Port { endpoint: at.clone(), source };
        let acceptor = match at {
            Endpoint::Https { .. } => {
                let missing = || failed(io::Error::other("https:// requires a certificate"));
                Some(tls.ok_or_else(missing)?.acceptor())
            }
            _ => None,
        };
        let listener = TcpListener::bind((host.as_str(), port)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // A name may have meant something else than this machine.
        if at.is_local() && !address.ip().is_loopback() {
            let source = io::Error::other(format!("it is {address}, not this machine"));
            return Err(failed(source));
        }
        listener.set_nonblocking(true).map_err(failed)?;
        let (host, port) = (address.ip().to_string(), address.port());
        let endpoint = match acceptor {
            Some(_) => Endpoint::Https { host, port },
            None => Endpoint::Http { host, port },
        };
        Ok(HttpListener { socket: BoundSocket::Tcp(Arc::new(listener), acceptor), endpoint })
    }

    /// Returns the endpoint with the address and port that the system chose.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Registers the socket with the current runtime.
    pub(crate) fn register(self) -> io::Result<AsyncListener> {
        match self.socket {
            BoundSocket::Tcp(listener, tls) => {
                let over_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
                let listener = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
                Ok(AsyncListener::Tcp { listener, tls, over_loopback })
            }
            BoundSocket::Unix(name) => {
                let listener = name.listener().try_clone()?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                Ok(AsyncListener::Unix { listener, _name: name })
            }
        }
    }
}

impl AsyncListener {
    /// Waits for the next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            AsyncListener::Tcp { listener, tls, over_loopback } => {
                let (stream, from) = listener.accept().await?;
                // Small replies must not wait for one another's acknowledgement.
                let _ = stream.set_nodelay(true);
                Ok((Accepted::Tcp(stream, tls.clone()), Peer::tcp(from, *over_loopback)))
            }
            AsyncListener::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Accepted::Unix(stream), Peer::unix(uid)))
            }
        }
    }
}
