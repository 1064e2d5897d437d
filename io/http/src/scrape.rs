//! The server of a process's metrics: `GET /metrics` and nothing else.
//!
//! Access is decided by the address: the mode 0600 of a Unix socket, the reach of an IP address.
//! Web pages of other origins are refused ([`AllowedHosts`]). Nothing can be changed here.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use api::{MetricsPage, path};
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{Method, StatusCode};
use axum::{Extension, Router, extract::Request};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{AllowedHosts, BindError, ConnectionLimits, Endpoint, HttpListener, HttpServer, Peer};

/// The address where metrics are served: `http://127.0.0.1:9400` or
/// `unix:///run/sluice/metrics.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsAddress(Endpoint);

/// Text that is not an address for metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a place for metrics such as http://127.0.0.1:9400 or unix:///run/x.sock")]
pub struct ParseMetricsAddressError {
    text: String,
}

/// An error of serving metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// An address where this process cannot listen.
    #[error("cannot serve metrics")]
    Listen(#[from] BindError),
    /// A thread or runtime that cannot be started.
    #[error("cannot start the thread for metrics")]
    Thread(#[source] io::Error),
}

/// A server of the metrics of a process; stops when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: MetricsAddress,
    _server: HttpServer,
}

impl MetricsAddress {
    /// Whether other machines may reach it.
    pub fn is_open_to_others(&self) -> bool {
        !self.0.is_local()
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MetricsAddress {
    type Err = ParseMetricsAddressError;

    /// TCP takes an IP address, not a name: which machines can connect must not depend on a name
    /// server.
    fn from_str(text: &str) -> Result<MetricsAddress, ParseMetricsAddressError> {
        let wrong = || ParseMetricsAddressError { text: text.into() };
        match text.parse().map_err(|_| wrong())? {
            Endpoint::Http { host, port } if host.parse::<IpAddr>().is_ok() => {
                Ok(MetricsAddress(Endpoint::Http { host, port }))
            }
            Endpoint::Unix(path) => Ok(MetricsAddress(Endpoint::Unix(path))),
            _ => Err(wrong()),
        }
    }
}

impl Serialize for MetricsAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MetricsAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<MetricsAddress, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl MetricsServer {
    /// Listens, and answers each scrape with what `make` says then.
    ///
    /// # Errors
    /// If the address is in use or cannot be bound.
    pub fn start(
        at: &MetricsAddress,
        make: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<MetricsServer, MetricsError> {
        let listener = HttpListener::bind(&at.0, None)?;
        let address = MetricsAddress(listener.endpoint().clone());
        let make = Arc::new(make);
        let router =
            Router::new().fallback(async move |Extension(peer): Extension<Peer>, request| {
                answer(&request, &peer, &*make)
            });
        let limits = ConnectionLimits::one_exchange(CONNECTIONS_MAX);
        let server = HttpServer::start("metrics", [listener], limits, router);
        Ok(MetricsServer { address, _server: server.map_err(MetricsError::Thread)? })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

fn answer(
    request: &Request,
    peer: &Peer,
    make: &impl Fn() -> String,
) -> (StatusCode, [(HeaderName, &'static str); 1], String) {
    let (uri, headers) = (request.uri(), request.headers());
    let hosts = AllowedHosts::default().check(uri, headers, peer.is_over_loopback());
    let (status, text) = match (hosts, request.method(), uri.path()) {
        (Err(refused), ..) => (StatusCode::FORBIDDEN, format!("{refused}\n")),
        (Ok(()), &Method::GET, path::METRICS) => {
            return (StatusCode::OK, [(CONTENT_TYPE, MetricsPage::CONTENT_TYPE)], make());
        }
        (Ok(()), method, path::METRICS) => {
            let text = format!("method {method} is not allowed; use GET\n");
            (StatusCode::METHOD_NOT_ALLOWED, text)
        }
        (Ok(()), _, path) => {
            let text =
                format!("there is nothing at {path}; the metrics are at {}\n", path::METRICS);
            (StatusCode::NOT_FOUND, text)
        }
    };
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], text)
}

/// The most connections at a time; one more waits in the socket's backlog.
const CONNECTIONS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn exchange(mut stream: impl Read + Write, request: &str) -> String {
        write!(stream, "{request} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn tcp(server: &MetricsServer) -> TcpStream {
        TcpStream::connect(server.address().0.name()).unwrap()
    }

    #[test]
    fn each_scrape_gets_a_page_of_its_own() {
        let count = std::sync::atomic::AtomicU32::new(0);
        let make =
            move || format!("n {}\n", count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let server = MetricsServer::start(&"http://127.0.0.1:0".parse().unwrap(), make).unwrap();
        for n in 0..2 {
            let answer = exchange(tcp(&server), "GET /metrics");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\nn {n}\n")), "{answer}");
        }
    }

    #[test]
    fn a_unix_socket_serves_the_same_and_goes_with_the_server() {
        let path = std::env::temp_dir().join(format!("sluice-metrics-{}", std::process::id()));
        let at = format!("unix://{}", path.display()).parse().unwrap();
        let server = MetricsServer::start(&at, || "x 1\n".into()).unwrap();
        let answer = exchange(UnixStream::connect(&path).unwrap(), "GET /metrics");
        assert!(answer.ends_with("\r\n\r\nx 1\n"), "{answer}");
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn whatever_else_is_asked_is_refused_and_says_what_is_here() {
        let at = "http://127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::start(&at, String::new).unwrap();
        for (request, status, says) in [
            ("GET /", "404", "there is nothing at /; the metrics are at /metrics\n"),
            ("PUT /v1/rules", "404", "there is nothing at /v1/rules; "),
            ("POST /metrics", "405", "method POST is not allowed; use GET\n"),
        ] {
            let answer = exchange(tcp(&server), request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.contains(says), "{answer}");
        }
    }

    #[test]
    fn a_web_page_of_elsewhere_reads_no_metrics() {
        let server =
            MetricsServer::start(&"http://127.0.0.1:0".parse().unwrap(), || "x 1\n".into());
        let server = server.unwrap();
        for (head, status) in [
            ("host: evil.example:9400", "403"),
            ("host: localhost\r\norigin: http://evil.example", "403"),
            ("host: localhost\r\norigin: null", "403"),
            ("accept: text/plain", "403"),
            ("host: 127.0.0.1:9400", "200"),
        ] {
            let (mut stream, mut answer) = (tcp(&server), String::new());
            write!(stream, "GET /metrics HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
            assert_eq!(answer.ends_with("x 1\n"), status == "200", "{head}: {answer}");
        }
    }

    #[test]
    fn who_says_nothing_does_not_hold_up_others_or_the_end() {
        let at = "http://127.0.0.1:0".parse().unwrap();
        let server = MetricsServer::start(&at, || "x 1\n".into()).unwrap();
        let mute: Vec<_> = (0..8).map(|_| tcp(&server)).collect();
        assert!(exchange(tcp(&server), "GET /metrics").ends_with("x 1\n"));
        drop(server);
        drop(mute);
    }

    #[test]
    fn places_parse_and_print_both_ways_and_what_is_none_is_named() {
        for text in ["http://127.0.0.1:9400", "http://[::1]:0", "unix:///run/x.sock"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for text in ["", "127.0.0.1:9400", "tcp://127.0.0.1:1", "http://host:1", "http://:1"] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert_eq!(error, ParseMetricsAddressError { text: text.into() });
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("http://{}", taken.local_addr().unwrap());
        let error = MetricsServer::start(&at.parse().unwrap(), String::new).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(why, format!("cannot listen at {at}"));
    }
}
