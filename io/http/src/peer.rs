//! The other end of a connection, as the listener knows it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::ClientCertificate;

/// The other end of a connection; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    address: PeerAddress,
    certificate: Option<ClientCertificate>,
}

#[derive(Clone, Copy, Debug)]
enum PeerAddress {
    Tcp { from: SocketAddr, over_loopback: bool },
    Unix { uid: Option<u32> },
}

impl Peer {
    /// Makes the peer of a TCP connection; `over_loopback` if the socket has an address that only
    /// this machine reaches.
    pub fn tcp(from: SocketAddr, over_loopback: bool) -> Peer {
        Peer { address: PeerAddress::Tcp { from, over_loopback }, certificate: None }
    }

    /// Makes the peer of a connection to a Unix socket; `None` if the kernel does not name its user.
    pub fn unix(uid: Option<u32>) -> Peer {
        Peer { address: PeerAddress::Unix { uid }, certificate: None }
    }

    /// Sets the certificate that the peer has shown.
    pub fn with_certificate(self, certificate: Option<ClientCertificate>) -> Peer {
        Peer { certificate, ..self }
    }

    /// Returns its address; `None` at a Unix socket.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.address {
            PeerAddress::Tcp { from, .. } => Some(from.ip()),
            PeerAddress::Unix { .. } => None,
        }
    }

    /// Returns its user, if it is at a Unix socket and the kernel names the user.
    pub fn uid(&self) -> Option<u32> {
        match self.address {
            PeerAddress::Tcp { .. } => None,
            PeerAddress::Unix { uid } => uid,
        }
    }

    /// Returns whether it connected to an IP address that only this machine reaches.
    pub fn is_over_loopback(&self) -> bool {
        matches!(self.address, PeerAddress::Tcp { over_loopback: true, .. })
    }

    /// Returns its certificate, which its authority has signed.
    pub fn certificate(&self) -> Option<&ClientCertificate> {
        self.certificate.as_ref()
    }
}

/// Prints `ADDRESS:PORT`, or the user at a Unix socket.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            PeerAddress::Tcp { from, .. } => from.fmt(f),
            PeerAddress::Unix { uid: Some(uid) } => write!(f, "uid {uid}, Unix socket"),
            PeerAddress::Unix { uid: None } => f.write_str("uid ?, Unix socket"),
        }
    }
}
