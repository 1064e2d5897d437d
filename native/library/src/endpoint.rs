//! Where controllers listen: `http://HOST:PORT`, `https://HOST:PORT`, `unix:///path`, separated by
//! commas, as for the command.
//!
//! Names are resolved when a handle is opened: the system's resolver has no time limit that a
//! caller could set, and calls of the handle have one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::error::{CallError, CallErrorCode};

/// Where one controller listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControllerEndpoint {
    /// Over TCP, with TLS or without.
    Tcp {
        /// As it was written, without brackets.
        host: String,
        port: u16,
        tls: bool,
    },
    /// At a Unix socket.
    Unix(PathBuf),
}

/// A controller's endpoint with the addresses of its name.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedEndpoint {
    pub(crate) endpoint: ControllerEndpoint,
    /// Empty at a Unix socket.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl ControllerEndpoint {
    /// Parses endpoints that are separated by commas.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<ControllerEndpoint>, CallError> {
        let all = text.split(',').take(ENDPOINTS_MAX + 1);
        let all = all.map(|one| parse(one.trim())).collect::<Option<Vec<_>>>();
        all.filter(|all| all.len() <= ENDPOINTS_MAX).ok_or_else(|| {
            let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
            CallError::settings(format!(
                "controller {text:?} is not an endpoint such as http://127.0.0.1:5650, \
                 https://io-1.site:5650 or unix:///run/sluice/controller.sock, nor up to \
                 {ENDPOINTS_MAX} of them separated by commas"
            ))
        })
    }

    /// Its name in messages and in the header `Host`.
    pub(crate) fn name(&self) -> String {
        match self {
            ControllerEndpoint::Unix(path) => path.display().to_string(),
            ControllerEndpoint::Tcp { host, port, .. } => match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            },
        }
    }

    /// Whether a token may be sent there: encrypted, or within this machine.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            ControllerEndpoint::Unix(_) | ControllerEndpoint::Tcp { tls: true, .. } => true,
            ControllerEndpoint::Tcp { host, .. } if host == "localhost" => true,
            ControllerEndpoint::Tcp { host, .. } => {
                host.parse::<IpAddr>().is_ok_and(|at| at.to_canonical().is_loopback())
            }
        }
    }

    pub(crate) fn needs_tls(&self) -> bool {
        matches!(self, ControllerEndpoint::Tcp { tls: true, .. })
    }

    /// Finds the addresses of the name; takes as long as the system's resolver does.
    pub(crate) fn resolve(self) -> Result<ResolvedEndpoint, CallError> {
        let addresses = match &self {
            ControllerEndpoint::Unix(_) => Vec::new(),
            ControllerEndpoint::Tcp { host, port, .. } => {
                let found = (host.as_str(), *port).to_socket_addrs().map_err(|error| {
                    let text = format!("cannot resolve {host}: {error}");
                    CallError::new(CallErrorCode::Unreachable, text)
                })?;
                found.take(ADDRESSES_MAX).collect()
            }
        };
        self.check_localhost(&addresses)?;
        Ok(ResolvedEndpoint { endpoint: self, addresses })
    }

    /// Refuses a `localhost` that is another machine: `is_private` trusts the name.
    fn check_localhost(&self, addresses: &[SocketAddr]) -> Result<(), CallError> {
        let is_elsewhere = |at: &&SocketAddr| !at.ip().to_canonical().is_loopback();
        match (self, addresses.iter().find(is_elsewhere)) {
            (ControllerEndpoint::Tcp { host, tls: false, .. }, Some(at)) if host == "localhost" => {
                let at = at.ip();
                Err(CallError::settings(format!(
                    "localhost has the address {at} here, which is not of this machine alone; \
                     give 127.0.0.1"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn parse(text: &str) -> Option<ControllerEndpoint> {
    if let Some(path) = text.strip_prefix("unix://") {
        let is_path = path.starts_with('/') && path.len() <= SOCKET_BYTES_MAX;
        return is_path.then(|| ControllerEndpoint::Unix(path.into()));
    }
    let plain = text.strip_prefix("http://");
    let place = plain.or_else(|| text.strip_prefix("https://"))?;
    let (host, port) = place.strip_suffix('/').unwrap_or(place).rsplit_once(':')?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| digits)?;
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let host = match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().ok()?.to_string(),
        None if host.is_empty() || host.len() > HOST_BYTES_MAX => return None,
        None => host.bytes().all(is_name).then(|| host.to_owned())?,
    };
    Some(ControllerEndpoint::Tcp { host, port, tls: plain.is_none() })
}

/// Controllers of one file system.
const ENDPOINTS_MAX: usize = 16;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// The longest name of a machine, RFC 1035.
const HOST_BYTES_MAX: usize = 253;
/// The longest path of a Unix socket, unix(7).
const SOCKET_BYTES_MAX: usize = 107;
/// The length of a wrong value that a message repeats.
const TEXT_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_those_of_the_command() {
        let text = "http://a:1, unix:///s,https://[::1]:2/";
        let all = ControllerEndpoint::parse_all(text).unwrap();
        let names: Vec<_> = all.iter().map(ControllerEndpoint::name).collect();
        assert_eq!(names, ["a:1", "/s", "[::1]:2"]);
        assert_eq!(all.iter().map(ControllerEndpoint::needs_tls).filter(|tls| *tls).count(), 1);
        for text in [
            "",
            "127.0.0.1:80",
            "http://a",
            "http://:80",
            "http://a:x",
            "http://a:+8",
            "http://a:70000",
            "http://a b:80",
            "http://a/b:80",
            "http://[a]:80",
            "tcp://a:1",
            "unix://s",
            "http://a:1,",
        ] {
            let error = ControllerEndpoint::parse_all(text).unwrap_err();
            assert_eq!(error.code, CallErrorCode::Settings);
            assert!(error.text.contains(&format!("{text:?}")), "{}", error.text);
        }
        let many = vec!["http://a:1"; ENDPOINTS_MAX + 1].join(",");
        assert!(ControllerEndpoint::parse_all(&many).is_err());
    }

    #[test]
    fn localhost_is_this_machine_or_refused() {
        let check = |text: &str, at: &[&str]| {
            let addresses: Vec<_> = at.iter().map(|at| at.parse().unwrap()).collect();
            parse(text).unwrap().check_localhost(&addresses).map_err(|error| error.text)
        };
        assert_eq!(check("http://localhost:1", &["127.0.0.1:1", "[::1]:1"]), Ok(()));
        let error = check("http://localhost:1", &["127.0.0.1:1", "192.0.2.1:1"]).unwrap_err();
        assert!(error.contains("192.0.2.1"), "{error}");
        assert_eq!(check("https://localhost:1", &["192.0.2.1:1"]), Ok(()));
        assert_eq!(check("http://io:1", &["192.0.2.1:1"]), Ok(()));
    }

    #[test]
    fn a_token_is_sent_unencrypted_within_this_machine_only() {
        let private = |text: &str| parse(text).unwrap().is_private();
        for text in ["http://127.0.0.2:1", "http://[::1]:1", "http://localhost:1", "https://a:1"] {
            assert!(private(text), "{text}");
        }
        for text in ["http://192.0.2.1:1", "http://[::]:1", "http://io:1"] {
            assert!(!private(text), "{text}");
        }
    }
}
