//! The server of a process's metrics: `GET /metrics` and nothing else.
//!
//! ```text
//!   Prometheus ─► TCP or Unix socket ─► accept ≤ 16 ─► a page, made for each ─► closed
//!                                         one thread of its own
//! ```
//!
//! Each connection carries one exchange and ends within [`EXCHANGE_TIME_MAX`], so an idle
//! connection takes one of 16 places for a bounded time. Nothing can be changed here. Access is
//! decided by the address: the mode 0600 of a Unix socket, the reach of an IP address. Web pages
//! of other origins are refused ([`AllowedHosts`]).

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use api::{MetricsPage, path};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{AllowedHosts, Listening, ServerAddress, SocketError};

/// The address where metrics are served: `http://127.0.0.1:9400` or
/// `unix:///run/sluice/metrics.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsAddress(ServerAddress);

/// Text that is not an address for metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a place for metrics such as http://127.0.0.1:9400 or unix:///run/x.sock")]
pub struct ParseMetricsAddressError {
    text: String,
}

/// An error of serving metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A Unix socket that cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A port that cannot be bound.
    #[error("cannot listen for scrapes at http://{address}")]
    Port {
        /// The address that was to be bound.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A thread or runtime that cannot be started.
    #[error("cannot start the thread for metrics")]
    Thread(#[source] io::Error),
}

/// A server of the metrics of a process; stops when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: MetricsAddress,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Makes the page.
type Make = Arc<dyn Fn() -> String + Send + Sync>;

enum MetricsListener {
    /// The port, and whether only this machine reaches it.
    Tcp(TcpListener, bool),
    /// The socket, and what removes its name.
    Unix(UnixListener, #[expect(dead_code, reason = "held to be dropped")] Listening),
}

/// The most connections at a time; one more waits in the socket's backlog.
const CONNECTIONS_MAX: usize = 16;
/// The longest that one exchange may take.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);

impl MetricsAddress {
    /// Whether other machines may reach it.
    pub fn is_open_to_others(&self) -> bool {
        matches!(&self.0, ServerAddress::Tcp(at) if !at.ip().to_canonical().is_loopback())
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ServerAddress::Tcp(address) => write!(f, "http://{address}"),
            unix => unix.fmt(f),
        }
    }
}

impl FromStr for MetricsAddress {
    type Err = ParseMetricsAddressError;

    fn from_str(text: &str) -> Result<MetricsAddress, ParseMetricsAddressError> {
        let address = match text.strip_prefix("http://") {
            Some(address) => address.trim_end_matches('/').parse().ok().map(ServerAddress::Tcp),
            None => text.parse().ok().filter(|address| matches!(address, ServerAddress::Unix(_))),
        };
        address.map(MetricsAddress).ok_or_else(|| ParseMetricsAddressError { text: text.into() })
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(MetricsError::Thread)?;
        let (listener, address) = runtime.block_on(async { listen(&at.0) })?;
        let (stop, stopped) = oneshot::channel();
        let make: Make = Arc::new(make);
        let run = move || runtime.block_on(serve(&listener, &make, stopped));
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(api::critical(run));
        let thread = Some(thread.map_err(MetricsError::Thread)?);
        Ok(MetricsServer { address: MetricsAddress(address), stop: Some(stop), thread })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread for metrics panicked");
        }
    }
}

/// Listens, within a runtime.
fn listen(at: &ServerAddress) -> Result<(MetricsListener, ServerAddress), MetricsError> {
    match at {
        ServerAddress::Tcp(address) => {
            let port = |source| MetricsError::Port { address: *address, source };
            let listener = std::net::TcpListener::bind(address).map_err(port)?;
            listener.set_nonblocking(true).map_err(port)?;
            let address = listener.local_addr().map_err(port)?;
            let listener = TcpListener::from_std(listener).map_err(port)?;
            let only_loopback = address.ip().to_canonical().is_loopback();
            Ok((MetricsListener::Tcp(listener, only_loopback), ServerAddress::Tcp(address)))
        }
        ServerAddress::Unix(path) => {
            let listening = Listening::at(path, 0o600)?;
            let listener = listening.listener().try_clone().and_then(|listener| {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)
            });
            Ok((
                MetricsListener::Unix(listener.map_err(MetricsError::Thread)?, listening),
                at.clone(),
            ))
        }
    }
}

/// Accepts connections until stopped; those that are open then are cut off.
async fn serve(listener: &MetricsListener, make: &Make, mut stopped: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned();
        let accepted = async {
            let place = place.await.expect("the semaphore is never closed");
            accept(listener, make, place).await
        };
        let accepted = tokio::select! {
            _ = &mut stopped => return,
            accepted = accepted => accepted,
        };
        if let Err(error) = accepted {
            // Out of descriptors, most likely: they come back, and trying again at once
            // would only burn the processor.
            tracing::warn!("cannot accept a scrape: {error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn accept(
    listener: &MetricsListener,
    make: &Make,
    place: OwnedSemaphorePermit,
) -> io::Result<()> {
    match listener {
        MetricsListener::Tcp(listener, only_loopback) => {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(exchange(stream, make.clone(), *only_loopback, place));
        }
        MetricsListener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(exchange(stream, make.clone(), false, place));
        }
    }
    Ok(())
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    make: Make,
    only_loopback: bool,
    _place: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &make, only_loopback);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(EXCHANGE_TIME_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(EXCHANGE_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a scrape broke off: {error}"),
        Err(_) => tracing::debug!("a scrape timed out"),
    }
}

fn answer(request: &Request<Incoming>, make: &Make, only_loopback: bool) -> Response<Full<Bytes>> {
    let hosts = AllowedHosts::default().check(request.uri(), request.headers(), only_loopback);
    if let Err(refused) = hosts {
        return text_of(StatusCode::FORBIDDEN, PLAIN, format!("{refused}\n"));
    }
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, path::METRICS) => (StatusCode::OK, MetricsPage::CONTENT_TYPE, make()),
        (_, path::METRICS) => {
            let text = format!("method {} is not allowed; use GET\n", request.method());
            (StatusCode::METHOD_NOT_ALLOWED, PLAIN, text)
        }
        (_, path) => {
            let text =
                format!("there is nothing at {path}; the metrics are at {}\n", path::METRICS);
            (StatusCode::NOT_FOUND, PLAIN, text)
        }
    };
    text_of(status, kind, text)
}

fn text_of(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind);
    response.body(Full::new(text.into())).expect("its parts are valid")
}

const PLAIN: &str = "text/plain; charset=utf-8";

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
        let ServerAddress::Tcp(at) = &server.address().0 else { panic!("it is TCP") };
        TcpStream::connect(at).unwrap()
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
        assert_eq!(error.to_string(), format!("cannot listen for scrapes at {at}"));
    }
}
