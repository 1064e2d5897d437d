//! The server of HTTP: one thread that accepts at all endpoints and serves within limits.
//!
//! ```text
//!   accept ─► a place? ─► admitted? ─► (TLS handshake) ─► request, with its Peer ─► router
//!              │            └ no: closed     10 s           │ head: 30 s
//!              └ no: it waits in the backlog                └ one exchange: 30 s in all
//! ```
//!
//! The time of a reply on a kept connection, and the size of a body, are bounded by the router.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::listener::{Accepted, AsyncListener};
use crate::{ClientCertificate, HttpListener, Peer};

/// A running server; stops when dropped. Its Unix sockets are removed then.
#[derive(Debug)]
pub struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Connections that a server has at a time, and how long each may last.
pub struct ConnectionLimits {
    places: Arc<Semaphore>,
    admit: Box<Admit>,
    /// Whether a connection carries several exchanges.
    is_kept: bool,
}

/// Holds what a connection takes of a limit until it is dropped.
pub type Permit = Box<dyn Send>;

type Admit = dyn Fn(&Peer) -> Option<Permit> + Send + Sync;

/// What all connections of a server share.
struct HttpService {
    router: Router,
    limits: ConnectionLimits,
}

impl ConnectionLimits {
    /// At most `connections_max` at a time, each for one exchange of at most 30 s. Others wait in
    /// the backlog of the socket.
    pub fn one_exchange(connections_max: usize) -> ConnectionLimits {
        let places = Arc::new(Semaphore::new(connections_max));
        ConnectionLimits { places, admit: Box::new(|_| Some(Box::new(()))), is_kept: false }
    }

    /// Those that `admit` gives a permit, kept between exchanges for at most 30 s each. Others are
    /// closed.
    pub fn admitted(
        admit: impl Fn(&Peer) -> Option<Permit> + Send + Sync + 'static,
    ) -> ConnectionLimits {
        let places = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        ConnectionLimits { places, admit: Box::new(admit), is_kept: true }
    }
}

impl HttpServer {
    /// Serves `router` at the listeners, in a thread of that name whose panic ends the process.
    /// Each request has its [`Peer`] as an extension.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        thread: &str,
        listeners: impl IntoIterator<Item = HttpListener>,
        limits: ConnectionLimits,
        router: Router,
    ) -> io::Result<HttpServer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let registered = {
            let _context = runtime.enter();
            listeners.into_iter().map(HttpListener::register).collect::<io::Result<Vec<_>>>()?
        };
        let (stop, stopped) = oneshot::channel();
        let service = Arc::new(HttpService { router, limits });
        let run = move || {
            runtime.block_on(serve(registered, service, stopped));
            runtime.shutdown_timeout(STOP_TIME_MAX);
        };
        let thread = std::thread::Builder::new().name(thread.into()).spawn(api::critical(run))?;
        Ok(HttpServer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an HTTP server panicked");
        }
    }
}

/// Serves until it is stopped. Single exchanges may end then; kept connections are cut off, because
/// they carry streams that do not end.
async fn serve(
    listeners: Vec<AsyncListener>,
    service: Arc<HttpService>,
    stopped: oneshot::Receiver<()>,
) {
    let graceful = Arc::new(GracefulShutdown::new());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept_all(listener, service.clone(), graceful.clone()));
    }
    // An error means that the other end has gone, which means the same.
    let _ = stopped.await;
    accepting.shutdown().await;
    let graceful = Arc::into_inner(graceful).expect("no task accepts any more");
    if !service.limits.is_kept && timeout(STOP_TIME_MAX, graceful.shutdown()).await.is_err() {
        tracing::debug!("aborted HTTP connections");
    }
}

async fn accept_all(
    listener: AsyncListener,
    service: Arc<HttpService>,
    graceful: Arc<GracefulShutdown>,
) {
    loop {
        let place = service.limits.places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(permit) = (service.limits.admit)(&peer) else { continue };
                let (service, watcher) = (service.clone(), graceful.watcher());
                tokio::spawn(async move {
                    service.connection(stream, peer, watcher).await;
                    drop((place, permit));
                });
            }
            Err(error) => {
                // Most likely a lack of descriptors: they become free again, and retrying at once
                // would only use the processor.
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl HttpService {
    /// Serves a connection: the TLS handshake within its time limit, and then the exchanges.
    async fn connection(&self, stream: Accepted, peer: Peer, watcher: Watcher) {
        match stream {
            Accepted::Unix(stream) => self.exchanges(TokioIo::new(stream), peer, watcher).await,
            Accepted::Tcp(stream, None) => {
                self.exchanges(TokioIo::new(stream), peer, watcher).await;
            }
            Accepted::Tcp(stream, Some(tls)) => {
                let stream = match timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => {
                        return tracing::debug!(%peer, %error, "TLS handshake failed");
                    }
                    Err(_) => return tracing::debug!(%peer, "TLS handshake timed out"),
                };
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let peer = peer.with_certificate(shown.and_then(ClientCertificate::of));
                self.exchanges(TokioIo::new(stream), peer, watcher).await;
            }
        }
    }

    /// Serves the exchanges of one connection, one after the other. A request head that is not
    /// complete in time ends it.
    async fn exchanges<S>(&self, stream: S, peer: Peer, watcher: Watcher)
    where
        S: Read + Write + Unpin + 'static,
    {
        let router = TowerToHyperService::new(self.router.clone());
        let connection_peer = peer.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(connection_peer.clone());
            router.call(request)
        });
        let is_kept = self.limits.is_kept;
        let connection = http1::Builder::new()
            .keep_alive(is_kept)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .serve_connection(stream, service);
        let time_max = if is_kept { Duration::MAX } else { EXCHANGE_TIME_MAX };
        match timeout(time_max, watcher.watch(connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "an HTTP connection broke"),
            Err(_) => tracing::debug!(%peer, "an HTTP connection timed out"),
        }
    }
}

/// The longest idle time of a connection, and the longest time of a request head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time of a connection that carries one exchange.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time of a TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time of exchanges, and of their work on disk, in flight at the end.
const STOP_TIME_MAX: Duration = Duration::from_millis(500);
/// The pause after an error of accepting.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;
    use crate::Endpoint;

    /// Serves in a runtime whose clock jumps to the next timer when nothing else is to do.
    fn with_server(limits: ConnectionLimits, test: impl AsyncFnOnce(SocketAddr)) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        let router = Router::new()
            .route("/", get(|Extension(peer): Extension<Peer>| async move { peer.to_string() }))
            .route("/never", get(pending::<()>));
        let at: Endpoint = "http://127.0.0.1:0".parse().unwrap();
        let listener = HttpListener::bind(&at, None).unwrap();
        let address = listener.endpoint().name().parse().unwrap();
        runtime.block_on(async {
            let listeners = vec![listener.register().unwrap()];
            let (stop, stopped) = oneshot::channel();
            let service = Arc::new(HttpService { router, limits });
            let serving = tokio::spawn(serve(listeners, service, stopped));
            test(address).await;
            drop(stop);
            serving.await.unwrap();
        });
    }

    async fn send(stream: &mut TcpStream, path: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
    }

    /// Reads until the server closes.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        // A connection that was refused may be reset.
        let _ = stream.read_to_string(&mut text).await;
        text
    }

    fn everybody(_: &Peer) -> Option<Permit> {
        Some(Box::new(()))
    }

    #[test]
    fn one_exchange_a_connection_and_the_next_waits_for_its_place() {
        with_server(ConnectionLimits::one_exchange(1), async |at| {
            let mut first = TcpStream::connect(at).await.unwrap();
            let mut second = TcpStream::connect(at).await.unwrap();
            send(&mut first, "/never").await;
            send(&mut second, "/").await;
            let began = Instant::now();
            assert!(rest(&mut second).await.contains("connection: close"));
            assert!(began.elapsed() >= EXCHANGE_TIME_MAX, "the first had the only place");
            assert_eq!(rest(&mut first).await, "");
        });
    }

    #[test]
    fn an_admitted_connection_is_kept_and_an_idle_one_is_closed() {
        with_server(ConnectionLimits::admitted(everybody), async |at| {
            let mut stream = TcpStream::connect(at).await.unwrap();
            let from = stream.local_addr().unwrap().to_string();
            send(&mut stream, "/").await;
            send(&mut stream, "/").await;
            let began = Instant::now();
            let text = rest(&mut stream).await;
            assert_eq!(text.matches(&from).count(), 2, "{text}");
            assert!(began.elapsed() >= HEAD_TIME_MAX);
        });
    }

    #[test]
    fn a_head_that_is_not_complete_in_time_ends_its_connection() {
        for head in ["", "GET / HTTP/1.1\r\nhost:"] {
            with_server(ConnectionLimits::admitted(everybody), async |at| {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(head.as_bytes()).await.unwrap();
                let began = Instant::now();
                let text = rest(&mut stream).await;
                assert!(!text.contains("200"), "{text}");
                assert!(began.elapsed() >= HEAD_TIME_MAX);
            });
        }
    }

    #[test]
    fn a_connection_that_is_not_admitted_is_closed_and_a_permit_lasts_as_long_as_its_connection() {
        let held = Arc::new(AtomicUsize::new(0));
        struct Held(Arc<AtomicUsize>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let of_server = held.clone();
        let admit = move |_: &Peer| {
            let first = of_server.fetch_add(1, Ordering::Relaxed) == 0;
            let permit = Held(of_server.clone());
            first.then(|| Box::new(permit) as Permit)
        };
        with_server(ConnectionLimits::admitted(admit), async |at| {
            let mut first = TcpStream::connect(at).await.unwrap();
            send(&mut first, "/").await;
            first.readable().await.unwrap();
            let mut second = TcpStream::connect(at).await.unwrap();
            assert_eq!(rest(&mut second).await, "");
            assert_eq!(held.load(Ordering::Relaxed), 1);
            assert!(rest(&mut first).await.contains("200 OK"));
            let mut third = TcpStream::connect(at).await.unwrap();
            send(&mut third, "/").await;
            assert!(rest(&mut third).await.contains("200 OK"));
        });
    }
}
