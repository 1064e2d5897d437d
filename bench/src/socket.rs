//! Where a 9P server listens, and a stream to it.
//!
//! `tcp://HOST:PORT` and `unix:///path` are the two forms every command takes.

use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;

/// Where a server listens; the text form is `tcp://HOST:PORT` or `unix:///path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BenchAddress {
    /// Host and port as the resolver takes them.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl BenchAddress {
    /// A blocking stream to the server; small requests are not held back by Nagle's rule.
    pub(crate) fn connect(&self) -> anyhow::Result<OwnedFd> {
        let stream = match self {
            BenchAddress::Tcp(host) => TcpStream::connect(host).and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(OwnedFd::from(stream))
            }),
            BenchAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        };
        stream.with_context(|| format!("cannot connect to {self}"))
    }

    /// A listening socket at this address.
    pub(crate) fn listen(&self) -> anyhow::Result<BenchListener> {
        let listener = match self {
            BenchAddress::Tcp(host) => TcpListener::bind(host).map(BenchListener::Tcp),
            BenchAddress::Unix(path) => UnixListener::bind(path).map(BenchListener::Unix),
        };
        listener.with_context(|| format!("cannot listen on {self}"))
    }
}

/// A listening socket of either family.
pub(crate) enum BenchListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl BenchListener {
    /// The next connection, blocking.
    pub(crate) fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            BenchListener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
            BenchListener::Unix(listener) => Ok(listener.accept()?.0.into()),
        }
    }
}

impl fmt::Display for BenchAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchAddress::Tcp(host) => write!(f, "tcp://{host}"),
            BenchAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl FromStr for BenchAddress {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<BenchAddress> {
        if let Some(host) = text.strip_prefix("tcp://")
            && host.contains(':')
        {
            return Ok(BenchAddress::Tcp(host.into()));
        }
        if let Some(path) = text.strip_prefix("unix://")
            && path.starts_with('/')
        {
            return Ok(BenchAddress::Unix(path.into()));
        }
        anyhow::bail!("{text:?} is not tcp://HOST:PORT or unix:///path")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print_both_ways() {
        for text in ["tcp://127.0.0.1:5640", "tcp://[::1]:5640", "unix:///run/sluice/9p"] {
            assert_eq!(text.parse::<BenchAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_address_without_scheme_port_or_root_is_refused_by_name() {
        for text in ["127.0.0.1:5640", "tcp://localhost", "unix://run/9p", ""] {
            let error = text.parse::<BenchAddress>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is not tcp://HOST:PORT or unix:///path"));
        }
    }
}
