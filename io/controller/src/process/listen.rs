//! The listeners of the API, and the thread that serves them.
//!
//! ```text
//!   bind: all endpoints, before any thread ─► serve: accept ─► (TLS) ─► one task a connection, kept
//!                                           Bounds, HEAD_TIME_MAX ┘            └► Peer, with each call
//!                                                       call of a web page of elsewhere ◄─┘ 403
//! ```

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use bounds::Holder;
use http::{AllowedHosts, Endpoint, Listening};
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use model::Nid;
use rustls::ServerConfig;
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use super::access::CallerPeer;
use super::bounds::{BoundPermit, Bounded, ControllerBounds, acquire_body};
use super::{ControllerStartError, hosts};
use crate::tls::ClientCertificate;

/// Endpoints that are bound and not served yet.
pub(super) struct BoundListener {
    tcp: Vec<Tcp>,
    unix: Vec<Arc<Listening>>,
    hosts: Arc<AllowedHosts>,
    bounds: Arc<ControllerBounds>,
}

/// A port, with TLS or without.
struct Tcp {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

/// The thread that serves the endpoints; ends when dropped.
pub(super) struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Listens at each endpoint, at `https://` ones with `tls`, on loopback under the names of `hosts`;
/// returns the endpoints with their real ports.
pub(super) fn bind(
    places: &[Endpoint],
    tls: Option<&Arc<ServerConfig>>,
    hosts: AllowedHosts,
) -> Result<(BoundListener, Vec<String>), ControllerStartError> {
    let (mut tcp, mut unix, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for endpoint in places {
        match endpoint {
            Endpoint::Unix(path) => {
                unix.push(Arc::new(Listening::at(path, 0o600)?));
                names.push(endpoint.to_string());
            }
            Endpoint::Http { host, port } | Endpoint::Https { host, port } => {
                let failed =
                    |source| ControllerStartError::Listen { endpoint: endpoint.clone(), source };
                let listener = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                // A name may have meant something else than this machine.
                if endpoint.is_local() && !address.ip().is_loopback() {
                    let source = io::Error::other(format!("it is {address}, not this machine"));
                    return Err(failed(source));
                }
                listener.set_nonblocking(true).map_err(failed)?;
                names.push(format!("{}://{address}", endpoint.scheme()));
                let tls = tls.filter(|_| matches!(endpoint, Endpoint::Https { .. }));
                let tls = tls.map(|config| TlsAcceptor::from(config.clone()));
                tcp.push(Tcp { listener, tls });
            }
        }
    }
    let bounds = ControllerBounds::new(api::descriptor_limit());
    Ok((BoundListener { tcp, unix, hosts: Arc::new(hosts), bounds }, names))
}

impl BoundListener {
    /// Returns the same endpoints again: of two servers, either takes a connection.
    pub(super) fn try_clone(&self) -> Result<BoundListener, ControllerStartError> {
        let again = |Tcp { listener, tls }: &Tcp| {
            Ok(Tcp { listener: listener.try_clone()?, tls: tls.clone() })
        };
        let tcp = self.tcp.iter().map(again).collect::<io::Result<_>>();
        let (unix, hosts, bounds) = (self.unix.clone(), self.hosts.clone(), self.bounds.clone());
        Ok(BoundListener { tcp: tcp.map_err(ControllerStartError::Thread)?, unix, hosts, bounds })
    }

    /// The bounds that all callers share.
    pub(super) fn bounds(&self) -> &Arc<ControllerBounds> {
        &self.bounds
    }

    /// Starts the thread that serves the endpoints; dropping the result ends it.
    pub(super) fn serve(self, router: Router) -> Result<Serving, ControllerStartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ControllerStartError::Thread)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router.layer(from_fn_with_state(self.bounds.clone(), acquire_body));
        let router = router.layer(from_fn_with_state(self.hosts, hosts::check));
        let run = move || {
            runtime.block_on(async {
                for tcp in self.tcp {
                    tokio::spawn(accept_tcp(tcp, router.clone(), self.bounds.clone()));
                }
                for listening in self.unix {
                    tokio::spawn(accept_unix(listening, router.clone(), self.bounds.clone()));
                }
                // An error means that the other end has gone, which means the same.
                let _ = stopped.await;
            });
            runtime.shutdown_timeout(STOP_TIME_MAX);
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(api::critical(run));
        let thread = thread.map_err(ControllerStartError::Thread)?;
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}

async fn accept_tcp(tcp: Tcp, router: Router, bounds: Arc<ControllerBounds>) {
    let listener = tcp.listener.local_addr().and_then(|address| {
        let over_loopback = address.ip().to_canonical().is_loopback();
        Ok((tokio::net::TcpListener::from_std(tcp.listener)?, over_loopback))
    });
    let (listener, over_loopback) = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections over TCP"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let holder = Holder { peer: Nid::tcp(from.ip()), uid: None };
                let Some(place) = bounds.acquire(Bounded::Connections, &holder, 1) else {
                    continue;
                };
                // Small replies must not wait for one another's acknowledgement.
                let _ = stream.set_nodelay(true);
                let router = router.clone();
                let from = from.to_string();
                let peer = CallerPeer { from, holder, certificate: None, over_loopback };
                match tcp.tls.clone() {
                    Some(tls) => drop(tokio::spawn(secured(stream, peer, tls, router, place))),
                    None => {
                        drop(tokio::spawn(exchanges(TokioIo::new(stream), peer, router, place)))
                    }
                }
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_unix(listening: Arc<Listening>, router: Router, bounds: Arc<ControllerBounds>) {
    let listener = listening.listener().try_clone().and_then(|listener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    });
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections at a Unix socket"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                let holder = Holder { peer: Nid::local(), uid };
                let Some(place) = bounds.acquire(Bounded::Connections, &holder, 1) else {
                    continue;
                };
                let uid = uid.map_or_else(|| "?".into(), |uid| uid.to_string());
                let from = format!("uid {uid}, Unix socket");
                let peer = CallerPeer { from, holder, certificate: None, over_loopback: false };
                tokio::spawn(exchanges(TokioIo::new(stream), peer, router.clone(), place));
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Waits after an error, most likely a lack of descriptors: they become free again, and retrying at
/// once would only use the processor.
async fn pause(error: &std::io::Error) {
    tracing::warn!(%error, "cannot accept a control connection");
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Serves a connection: the TLS handshake within its time limit, and then the exchanges.
async fn secured(
    stream: TcpStream,
    peer: CallerPeer,
    tls: TlsAcceptor,
    router: Router,
    place: BoundPermit,
) {
    let from = &peer.from;
    let stream = match tokio::time::timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%from, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(%from, "TLS handshake timed out"),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.and_then(ClientCertificate::of);
    exchanges(TokioIo::new(stream), CallerPeer { certificate, ..peer }, router, place).await;
}

/// Serves the exchanges of one connection, one after the other. A request head that is not complete
/// in time ends it; the routes bound the time of a reply.
async fn exchanges<S>(stream: S, peer: CallerPeer, router: Router, _place: BoundPermit)
where
    S: Read + Write + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .serve_connection(stream, service);
    if let Err(error) = connection.await {
        tracing::debug!("a control connection broke: {error}");
    }
}

/// The longest idle time of a connection, and the longest time of a request head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time of a TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time of exchanges in flight at the end.
const STOP_TIME_MAX: Duration = Duration::from_millis(500);
