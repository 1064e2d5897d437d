//! One connection to a controller, whose every step ends by the deadline.
//!
//! ```text
//!   exchange ─ read, write ─► ControllerStream ─┬─► TLS 1.3 ─┐
//!                                               └────────────┴─► socket, non-blocking, and poll
//! ```
//!
//! Bytes are sent with MSG_NOSIGNAL: a controller that closes raises no SIGPIPE in the program.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use api::credentials::no_ca;
use api::{Endpoint, check_owner};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::deadline::Deadline;
use crate::endpoint::ResolvedEndpoint;
use crate::error::{CallError, CallErrorCode};

/// A connection within the time limit of one call.
pub(crate) enum ControllerStream<'a> {
    Plain(WaitingSocket<'a>),
    Tls(Box<StreamOwned<ClientConnection, WaitingSocket<'a>>>),
}

/// A socket whose reads and writes wait until the deadline.
pub(crate) struct WaitingSocket<'a> {
    socket: OwnedFd,
    deadline: Deadline<'a>,
    /// Why the wait ended, which `io::Error` has no place for.
    ended: Option<CallError>,
}

impl<'a> ControllerStream<'a> {
    /// Connects to an endpoint and, if it has TLS, verifies it.
    pub(crate) fn connect(
        at: &ResolvedEndpoint,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Deadline<'a>,
    ) -> Result<ControllerStream<'a>, CallError> {
        match &at.endpoint {
            Endpoint::Unix(path) => {
                let address = SocketAddrUnix::new(path).map_err(CallError::settings)?;
                let socket = open(AddressFamily::UNIX, &address, deadline, &at.endpoint)?;
                check_listener(&socket, path)?;
                Ok(ControllerStream::Plain(WaitingSocket::new(socket, deadline)))
            }
            Endpoint::Http { .. } => {
                let socket = connect_to_one(at, deadline)?;
                Ok(ControllerStream::Plain(WaitingSocket::new(socket, deadline)))
            }
            Endpoint::Https { host, .. } => {
                let plain = WaitingSocket::new(connect_to_one(at, deadline)?, deadline);
                let tls = tls.ok_or_else(|| no_ca(&at.endpoint))?.clone();
                let name = ServerName::try_from(host.clone()).map_err(CallError::settings)?;
                let session = ClientConnection::new(tls, name).map_err(CallError::settings)?;
                let mut stream = ControllerStream::Tls(Box::new(StreamOwned::new(session, plain)));
                stream.handshake(&at.endpoint)?;
                Ok(stream)
            }
        }
    }

    fn handshake(&mut self, at: &Endpoint) -> Result<(), CallError> {
        let ControllerStream::Tls(stream) = self else { return Ok(()) };
        let StreamOwned { conn, sock } = &mut **stream;
        while conn.is_handshaking() {
            if let Err(error) = conn.complete_io(sock) {
                return Err(sock.ended.take().unwrap_or_else(|| {
                    let CallError { code, text, .. } = lost(&error);
                    let code = match code {
                        // Nothing was sent yet.
                        CallErrorCode::InDoubt => CallErrorCode::Unreachable,
                        code => code,
                    };
                    CallError::new(code, format!("{}: {text}", at.name()))
                }));
            }
        }
        Ok(())
    }

    /// Gives all further steps this deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline<'a>) {
        self.socket().deadline = deadline;
    }

    fn socket(&mut self) -> &mut WaitingSocket<'a> {
        match self {
            ControllerStream::Plain(socket) => socket,
            ControllerStream::Tls(stream) => &mut stream.sock,
        }
    }

    /// Sends all bytes.
    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        let outcome = match self {
            ControllerStream::Plain(socket) => socket.write_all(bytes),
            ControllerStream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        outcome.map_err(|error| self.broke(&error))
    }

    /// Reads some bytes, none at the end.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        let outcome = match self {
            ControllerStream::Plain(socket) => socket.read(buffer),
            ControllerStream::Tls(stream) => stream.read(buffer),
        };
        outcome.map_err(|error| self.broke(&error))
    }

    fn broke(&mut self, error: &io::Error) -> CallError {
        self.socket().ended.take().unwrap_or_else(|| lost(error))
    }
}

impl<'a> WaitingSocket<'a> {
    fn new(socket: OwnedFd, deadline: Deadline<'a>) -> WaitingSocket<'a> {
        WaitingSocket { socket, deadline, ended: None }
    }

    fn wait(&mut self, flags: PollFlags) -> io::Result<()> {
        self.deadline.wait_for(self.socket.as_fd(), flags).map_err(|error| {
            self.ended = Some(error);
            io::Error::from(io::ErrorKind::TimedOut)
        })
    }
}

impl Read for WaitingSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // First, so that a peer that always has more bytes does not outlast the deadline.
            self.wait(PollFlags::IN)?;
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Write for WaitingSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::OUT)?;
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error of a connection that was refused by TLS, on either side, or broke.
fn lost(error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            CallError::new(CallErrorCode::Untrusted, format!("TLS failed: {error}"))
        }
        _ => CallError::new(CallErrorCode::InDoubt, format!("connection lost: {error}")),
    }
}

/// Tries the addresses of a name, each in its part of the time.
fn connect_to_one(at: &ResolvedEndpoint, deadline: Deadline<'_>) -> Result<OwnedFd, CallError> {
    let mut failed = CallError::new(CallErrorCode::Unreachable, "the name has no address");
    for (tried, address) in at.addresses.iter().enumerate() {
        let left = (at.addresses.len() - tried) as u32;
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let part = deadline.within(deadline.remaining() / left);
        match open(family, address, part, &at.endpoint) {
            Ok(socket) => {
                // Only a hint: a request is one write.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                return Ok(socket);
            }
            Err(error) if error.code == CallErrorCode::Cancelled => return Err(error),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn open(
    family: AddressFamily,
    address: &impl SocketAddrArg,
    deadline: Deadline<'_>,
    at: &Endpoint,
) -> Result<OwnedFd, CallError> {
    let failed = |error: Errno| {
        let text = format!("cannot connect to {}: {error}", at.name());
        CallError::new(CallErrorCode::Unreachable, text)
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    loop {
        match connect(&socket, address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS | Errno::INTR | Errno::ALREADY) => {
                deadline.wait_for(socket.as_fd(), PollFlags::OUT)?;
                return match sockopt::socket_error(&socket).map_err(failed)? {
                    Ok(()) => Ok(socket),
                    Err(error) => Err(failed(error)),
                };
            }
            // The queue of a Unix listener is full, and poll does not say when that changes.
            Err(Errno::AGAIN) => deadline.pause(std::time::Duration::from_millis(5))?,
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Refuses a listener of another user, who would receive the token.
fn check_listener(socket: &OwnedFd, path: &Path) -> Result<(), CallError> {
    let untrusted = |text: String| CallError::new(CallErrorCode::Untrusted, text);
    let peer = sockopt::socket_peercred(socket);
    let peer = peer.map_err(|error| untrusted(format!("{}: {error}", path.display())))?;
    let uid = peer.uid.as_raw();
    check_owner(path, uid).map_err(|_| {
        untrusted(format!(
            "uid {uid} listens at {}: root, this user or the owner of its directory is expected",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_tls_is_no_lost_connection() {
        let refused = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        let error = lost(&io::Error::new(io::ErrorKind::InvalidData, refused));
        assert_eq!(error.code, CallErrorCode::Untrusted);
        assert!(error.text.contains("CertificateRequired"), "{}", error.text);
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof] {
            assert_eq!(lost(&kind.into()).code, CallErrorCode::InDoubt);
        }
    }
}
