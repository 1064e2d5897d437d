//! The endpoint of a control API, as people write it: `http://127.0.0.1:5650`,
//! `https://io-1.site:5650`, `unix:///run/sluice/proxy.sock`; the endpoints of
//! several controllers are separated by commas. The command and the library of programs share it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ServerAddress;

/// An endpoint of the control API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `http://HOST:PORT`: a name, an IPv4 address or an IPv6 address in brackets.
    Http {
        /// As it was written, without brackets.
        host: String,
        /// The TCP port, 0 to 65535.
        port: u16,
    },
    /// `https://HOST:PORT`, the same over TLS.
    Https {
        /// As it was written, without brackets: what its certificate must name.
        host: String,
        /// The TCP port, 0 to 65535.
        port: u16,
    },
    /// `unix:///path`: a Unix socket by its absolute path.
    Unix(PathBuf),
}

/// The endpoints of all controllers of one file system, at least one; one of them leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<Endpoint>);

/// Text that is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an endpoint such as http://127.0.0.1:5650, https://io-1.site:5650 or \
     unix:///run/sluice/controller.sock"
)]
pub struct ParseEndpointError {
    text: String,
}

/// A `localhost` that is another machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("localhost has the address {at} here, which is not of this machine alone; give 127.0.0.1")]
pub struct LocalhostError {
    at: IpAddr,
}

impl ParseEndpointError {
    fn new(text: &str) -> ParseEndpointError {
        ParseEndpointError { text: text.chars().take(TEXT_CHARS_MAX).collect() }
    }
}

impl Endpoint {
    /// Returns its name in messages: `HOST:PORT` or the path.
    pub fn name(&self) -> String {
        match self {
            Endpoint::Unix(path) => path.display().to_string(),
            Endpoint::Http { host, port } | Endpoint::Https { host, port } => {
                match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                }
            }
        }
    }

    /// Returns whether only this machine can connect, as far as its text shows: a name other than
    /// `localhost` may mean any machine.
    pub fn is_local(&self) -> bool {
        match self.host_and_port() {
            Some(("localhost", _)) | None => true,
            Some((host, _)) => {
                host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
            }
        }
    }

    /// Returns whether a token may be sent there: encrypted, or within this machine.
    pub fn is_private(&self) -> bool {
        !matches!(self, Endpoint::Http { .. }) || self.is_local()
    }

    /// Refuses an unencrypted `localhost` with an address of another machine, as
    /// [`Endpoint::is_local`] goes by the name.
    ///
    /// # Errors
    /// If one of the addresses of `localhost` is not a loopback address.
    pub fn check_localhost(&self, addresses: &[SocketAddr]) -> Result<(), LocalhostError> {
        let elsewhere = addresses.iter().find(|at| !at.ip().to_canonical().is_loopback());
        match (self, elsewhere) {
            (Endpoint::Http { host, .. }, Some(at)) if host == "localhost" => {
                Err(LocalhostError { at: at.ip() })
            }
            _ => Ok(()),
        }
    }

    /// Returns machine and port, unless it is a Unix socket.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Endpoint::Http { host, port } | Endpoint::Https { host, port } => Some((host, *port)),
            Endpoint::Unix(_) => None,
        }
    }

    /// Returns the text before `://`.
    pub fn scheme(&self) -> &'static str {
        match self {
            Endpoint::Http { .. } => "http",
            Endpoint::Https { .. } => "https",
            Endpoint::Unix(_) => "unix",
        }
    }
}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Endpoint, ParseEndpointError> {
        let wrong = || ParseEndpointError::new(text);
        let plain = text.strip_prefix("http://");
        let Some(place) = plain.or_else(|| text.strip_prefix("https://")) else {
            return match text.parse() {
                Ok(ServerAddress::Unix(path)) => Ok(Endpoint::Unix(path)),
                _ => Err(wrong()),
            };
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None => host.to_string(),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let known = inner.is_some() || host.bytes().all(is_name);
        match !host.is_empty() && host.len() <= HOST_BYTES_MAX && known {
            true if plain.is_some() => Ok(Endpoint::Http { host, port }),
            true => Ok(Endpoint::Https { host, port }),
            false => Err(wrong()),
        }
    }
}

impl Endpoints {
    /// Returns the endpoints in the order in which they were written.
    pub fn all(&self) -> &[Endpoint] {
        &self.0
    }
}

impl From<&Endpoint> for Endpoints {
    fn from(one: &Endpoint) -> Endpoints {
        Endpoints(vec![one.clone()])
    }
}

impl From<&Endpoints> for Endpoints {
    fn from(all: &Endpoints) -> Endpoints {
        all.clone()
    }
}

/// Parses endpoints that are separated by commas.
impl FromStr for Endpoints {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Endpoints, ParseEndpointError> {
        let places = text.split(',').take(ENDPOINTS_MAX + 1).map(|place| place.trim().parse());
        let places = places.collect::<Result<Vec<_>, _>>()?;
        match places.len() <= ENDPOINTS_MAX {
            true => Ok(Endpoints(places)),
            false => Err(ParseEndpointError::new(text)),
        }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, place) in self.0.iter().enumerate() {
            write!(f, "{}{place}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.name())
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Endpoints, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Endpoints {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Endpoint, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The longest name of a machine; RFC 1035 has 253.
const HOST_BYTES_MAX: usize = 253;
/// The length of a wrong value that a message repeats.
const TEXT_CHARS_MAX: usize = 200;
/// Controllers of one file system; more than seven of an etcd's members are no use either.
const ENDPOINTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse_and_print_both_ways() {
        for text in [
            "http://127.0.0.1:5650",
            "http://[::1]:80",
            "http://io-1.site:1",
            "https://io-1.site:1",
            "https://[::1]:80",
            "unix:///s",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let slash = "http://localhost:5650/".parse::<Endpoint>().unwrap();
        assert_eq!(slash.to_string(), "http://localhost:5650");
    }

    #[test]
    fn what_is_no_endpoint_is_named() {
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
            "https://a",
            "tls://a:80",
            "tcp://127.0.0.1:80",
            "unix://s",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, ParseEndpointError { text: text.into() });
        }
        let error = format!("http://{}", "a".repeat(9_000)).parse::<Endpoint>().unwrap_err();
        assert_eq!(error.text.len(), TEXT_CHARS_MAX);
    }

    #[test]
    fn localhost_is_this_machine_or_refused() {
        let check = |text: &str, at: &[&str]| {
            let addresses: Vec<_> = at.iter().map(|at| at.parse().unwrap()).collect();
            text.parse::<Endpoint>().unwrap().check_localhost(&addresses)
        };
        assert_eq!(check("http://localhost:1", &["127.0.0.1:1", "[::1]:1"]), Ok(()));
        let error = check("http://localhost:1", &["127.0.0.1:1", "192.0.2.1:1"]).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
        assert_eq!(check("https://localhost:1", &["192.0.2.1:1"]), Ok(()));
        assert_eq!(check("http://io:1", &["192.0.2.1:1"]), Ok(()));
    }

    #[test]
    fn a_token_is_sent_unencrypted_within_this_machine_only() {
        let private = |text: &str| text.parse::<Endpoint>().unwrap().is_private();
        for text in ["http://127.0.0.2:1", "http://localhost:1", "https://a:1", "unix:///s"] {
            assert!(private(text), "{text}");
        }
        for text in ["http://192.0.2.1:1", "http://[::]:1", "http://io:1"] {
            assert!(!private(text), "{text}");
        }
    }

    #[test]
    fn places_of_several_controllers_parse_and_print_both_ways() {
        let text = "http://a:1,unix:///s,http://[::1]:2";
        let places = text.parse::<Endpoints>().unwrap();
        assert_eq!((places.to_string().as_str(), places.all().len()), (text, 3));
        assert_eq!(places, "http://a:1, unix:///s,http://[::1]:2".parse().unwrap());
        for text in ["", "http://a:1,", ",http://a:1", "http://a:1,b"] {
            assert!(text.parse::<Endpoints>().is_err(), "{text}");
        }
        let many = vec!["http://a:1"; ENDPOINTS_MAX + 1].join(",");
        assert!(many.parse::<Endpoints>().is_err());
    }

    #[test]
    fn only_loopback_and_sockets_are_local() {
        let local = |text: &str| text.parse::<Endpoint>().unwrap().is_local();
        for text in ["http://127.0.0.2:1", "http://[::1]:1", "http://localhost:1", "unix:///s"] {
            assert!(local(text), "{text}");
        }
        for text in [
            "http://192.0.2.1:1",
            "http://0.0.0.0:1",
            "http://[::]:1",
            "http://io:1",
            "https://io:1",
        ] {
            assert!(!local(text), "{text}");
        }
    }
}
