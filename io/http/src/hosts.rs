//! The host names that a server accepts at this machine's loopback, so that no web page drives it.
//!
//! ```text
//!   evil.example, whose name server says 127.0.0.1 (DNS rebinding)
//!     page in a browser here ─► Host: evil.example:5650 ─► neither loopback nor allowed ─► 403
//!     page from elsewhere ────► Origin: http://evil.example ─► not the Host asked for ──► 403
//!   curl, sluice, the server's own page ─► Host: 127.0.0.1:5650, no Origin or the same one
//! ```
//!
//! A browser sends a page's requests wherever the page's name points, with that name as `Host`,
//! and lets the page read the replies. So a server that replies without a token, because only
//! this machine can connect, must check the name as well. The port is not compared: a forwarded
//! one (`ssh -L`) differs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};
use serde::{Deserialize, Deserializer};

/// A name or an address under which a server answers, without a port: `io-1.site`, `192.0.2.1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// Text that is not a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a host such as io-1.site or 192.0.2.1, without a port")]
pub struct ParseHostNameError {
    text: String,
}

/// The names under which a server answers: those of loopback, and those that it was given.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(Vec<HostName>);

/// The reason why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostRefused {
    /// A call that names no host, or several.
    #[error("{count} headers Host; a call has exactly one, such as Host: 127.0.0.1")]
    Count {
        /// The number of its headers.
        count: usize,
    },
    /// A call for another host.
    #[error("{host:?} is not a name of this machine's loopback such as localhost or 127.0.0.1")]
    Host {
        /// The host that it names.
        host: String,
    },
    /// A call from a page of another origin.
    #[error("a page of {origin:?} may not call {host:?}")]
    Origin {
        /// The origin of the page.
        origin: String,
        /// The host that it calls.
        host: String,
    },
}

impl AllowedHosts {
    /// Returns the names of loopback and these.
    pub fn and(names: impl IntoIterator<Item = HostName>) -> AllowedHosts {
        AllowedHosts(names.into_iter().collect())
    }

    /// Checks whether a call may be served. With `only_loopback`, where no other machine can
    /// connect, each host that it names must be a name of loopback or an allowed one; everywhere a page's
    /// origin must be the host that it calls, or an allowed one.
    ///
    /// # Errors
    /// If it may not: the value at fault.
    pub fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        only_loopback: bool,
    ) -> Result<(), HostRefused> {
        let asked = text_of(headers, &HOST);
        if only_loopback {
            let &[host] = &asked[..] else { return Err(HostRefused::Count { count: asked.len() }) };
            // One in the request's first line counts before the header (RFC 9112, 3.2.2).
            for host in uri.authority().map(Authority::as_str).into_iter().chain([host]) {
                if !host_of(host).is_some_and(|name| name.is_loopback() || self.0.contains(&name)) {
                    return Err(HostRefused::Host { host: truncated(host) });
                }
            }
        }
        for origin in text_of(headers, &ORIGIN) {
            let place = origin.split_once("://").map_or("", |(_, place)| place);
            let is_host = asked.iter().any(|host| host.eq_ignore_ascii_case(place));
            // Another port of loopback is another server, and its pages are foreign.
            let is_allowed = |name: HostName| !name.is_loopback() && self.0.contains(&name);
            if !is_host && !host_of(place).is_some_and(is_allowed) {
                let host = truncated(asked.first().unwrap_or(&""));
                return Err(HostRefused::Origin { origin: truncated(origin), host });
            }
        }
        Ok(())
    }
}

impl HostName {
    fn is_loopback(&self) -> bool {
        let address = self.0.parse::<IpAddr>();
        self.0 == "localhost" || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = ParseHostNameError;

    fn from_str(text: &str) -> Result<HostName, ParseHostNameError> {
        let address = text.parse::<IpAddr>();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_name = (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain);
        match address {
            // Of the ways to write an address, one.
            Ok(address) => Ok(HostName(address.to_string())),
            Err(_) if is_name => {
                let name = text.strip_suffix('.').unwrap_or(text);
                Ok(HostName(name.to_ascii_lowercase()))
            }
            Err(_) => Err(ParseHostNameError { text: text.into() }),
        }
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<HostName, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The host of `HOST` or `HOST:PORT`.
fn host_of(place: &str) -> Option<HostName> {
    let place = place.parse::<Authority>().ok().filter(|place| !place.as_str().contains('@'))?;
    let host = place.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

/// A header's values; what is not text is not a name either.
fn text_of<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect()
}

/// The beginning of a wrong value, 80 characters, for a message.
fn truncated(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The longest name of a machine; RFC 1035 has 253.
const HOST_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> AllowedHosts {
        AllowedHosts::and(names.iter().map(|name| name.parse().unwrap()))
    }

    fn call(
        hosts: &AllowedHosts,
        uri: &str,
        head: &[(HeaderName, &str)],
    ) -> Result<(), HostRefused> {
        let mut headers = HeaderMap::new();
        for (name, value) in head {
            headers.append(name, value.parse().unwrap());
        }
        hosts.check(&uri.parse().unwrap(), &headers, true)
    }

    #[test]
    fn loopback_answers_under_its_own_names_and_those_it_was_given() {
        let hosts = names(&["IO-1.site", "192.0.2.1"]);
        for host in [
            "localhost",
            "LOCALHOST:80",
            "localhost.:80",
            "127.0.0.1:5650",
            "127.9.9.9",
            "[::1]:5650",
            "[::ffff:127.0.0.1]",
            "io-1.SITE:443",
            "192.0.2.1",
        ] {
            assert_eq!(call(&hosts, "/", &[(HOST, host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:5650",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "192.0.2.2",
            "[::2]:1",
            "0.0.0.0",
            "",
        ] {
            let refused = HostRefused::Host { host: host.into() };
            assert_eq!(call(&hosts, "/", &[(HOST, host)]), Err(refused), "{host}");
        }
        assert_eq!(call(&hosts, "/", &[]), Err(HostRefused::Count { count: 0 }));
        let twice = [(HOST, "localhost"), (HOST, "evil.example")];
        assert_eq!(call(&hosts, "/", &twice), Err(HostRefused::Count { count: 2 }));
        let elsewhere = call(&hosts, "http://evil.example/", &[(HOST, "localhost")]);
        assert!(matches!(elsewhere, Err(HostRefused::Host { .. })), "{elsewhere:?}");
    }

    #[test]
    fn a_page_calls_only_the_host_that_it_is_from() {
        let hosts = names(&["io-1.site", "localhost", "127.0.0.1"]);
        let from = |origin: &str| call(&hosts, "/", &[(HOST, "localhost:5650"), (ORIGIN, origin)]);
        for origin in ["http://localhost:5650", "http://LocalHost:5650", "https://io-1.site"] {
            assert_eq!(from(origin), Ok(()), "{origin}");
        }
        for origin in
            ["http://evil.example", "http://localhost:3000", "http://127.0.0.1:5650", "null", ""]
        {
            let refused = from(origin);
            assert!(matches!(refused, Err(HostRefused::Origin { .. })), "{origin}: {refused:?}");
        }
    }

    #[test]
    fn what_others_can_reach_answers_under_any_name_and_no_foreign_page() {
        let (hosts, uri) = (AllowedHosts::default(), "/".parse().unwrap());
        let mut headers = HeaderMap::new();
        assert_eq!(hosts.check(&uri, &headers, false), Ok(()));
        headers.insert(HOST, "io-1.site:5650".parse().unwrap());
        assert_eq!(hosts.check(&uri, &headers, false), Ok(()));
        headers.insert(ORIGIN, "https://io-1.site:5650".parse().unwrap());
        assert_eq!(hosts.check(&uri, &headers, false), Ok(()));
        headers.insert(ORIGIN, "https://evil.example".parse().unwrap());
        let refused = hosts.check(&uri, &headers, false);
        assert!(matches!(refused, Err(HostRefused::Origin { .. })), "{refused:?}");
    }

    #[test]
    fn a_name_with_a_port_or_a_scheme_is_refused_and_named() {
        for text in ["", "io-1.site:5650", "http://io-1.site", "a b", "[::1]", &"a".repeat(254)] {
            let error = text.parse::<HostName>().unwrap_err();
            assert_eq!(error, ParseHostNameError { text: text.into() });
        }
    }
}
