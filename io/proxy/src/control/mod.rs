//! The control API of one proxy: HTTP/JSON on a Unix socket, described by OpenAPI.
//!
//! ```text
//!   sluice top ─┐                    one thread of its own
//!   sluice rule ├─► Unix socket ─► accept ─► router ─► Control (the proxy's own figures)
//!   curl        ┘    mode 0600     ≤ 64        ├──────► /metrics (docs/METRICS.md)
//!                                              └──────► /openapi.json, made from the code
//! ```
//!
//! The path of requests does not come through here: a handler takes the same short locks as a
//! worker and no others. Only a change of rules that is to be saved waits for a disk. Each
//! connection carries one exchange and ends within [`EXCHANGE_TIME_MAX`], so a viewer that hangs
//! costs one place and for a bounded time. The socket's mode decides which users may connect: the
//! proxy's own user and root.

mod figures;
mod route_error;
mod routes;
mod why;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::ServerAddress;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{debug, warn};

use crate::config::ApiSocket;
use crate::rules::RuleUpdateError;

pub use http::{Listening, SocketError};
pub use routes::openapi;

/// Calls of the control API to the proxy. They come from the control thread and must not wait for
/// the backend.
pub trait ProxyControl: Send + Sync + 'static {
    /// Returns identity and state of the proxy.
    fn status(&self) -> api::ProxyStatus;
    /// The classes and what each was served.
    fn classes(&self) -> api::WireClasses;
    /// The payers and what each was served.
    fn subjects(&self) -> api::WireSubjects;
    /// Returns the wait causes of the queried classes.
    fn why(&self, query: &api::WhyQuery) -> api::Why;
    /// The connections of now.
    fn connections(&self) -> api::Connections;
    /// The metrics, as a page of Prometheus text.
    fn metrics(&self) -> String;
    /// The rules in force.
    fn rules(&self) -> api::WireRules;
    /// Puts the TOML text of a rule file in force, at once and for queued requests too, if
    /// `over` is still the version in force; with `save` it is in the rule file then. What
    /// is refused leaves the old rules in force.
    fn set_rules(&self, text: &str, over: Option<&str>, save: bool) -> Result<(), RuleUpdateError>;
}

/// The most connections at a time; one more waits in the socket's backlog.
const CONNECTIONS_MAX: usize = 64;
/// The longest that one exchange may take.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long exchanges in flight may still take when the server stops.
const STOP_TIME_MAX: Duration = Duration::from_millis(500);

/// Why the control API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its thread or its runtime cannot be made.
    #[error("cannot start the control thread")]
    Thread(#[source] io::Error),
}

/// The running server of a control API; stops and removes its socket when dropped.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `control` where the configuration says; `None` where it says nowhere, or
/// `auto` and the default place cannot be had.
///
/// # Errors
/// Only for an address that was given: another process has the socket, or it cannot be created.
pub fn start(
    at: &ApiSocket,
    control: Arc<dyn ProxyControl>,
) -> Result<Option<ControlServer>, ControlError> {
    match at {
        ApiSocket::Off | ApiSocket::At(ServerAddress::Tcp(_)) => Ok(None),
        ApiSocket::At(ServerAddress::Unix(path)) => ControlServer::start(path, control).map(Some),
        ApiSocket::Auto => {
            let path = Path::new(ApiSocket::DEFAULT_PATH);
            match ControlServer::start(path, control) {
                Ok(server) => Ok(Some(server)),
                Err(error) => {
                    let why = std::error::Error::source(&error);
                    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                    warn!("running without control API: {error}{why}; set --api unix:///path");
                    Ok(None)
                }
            }
        }
    }
}

impl ControlServer {
    /// Serves `control` on a Unix socket at `path`, which only this user and root may open.
    pub fn start(
        path: &Path,
        control: Arc<dyn ProxyControl>,
    ) -> Result<ControlServer, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ControlError::Thread)?;
        let listening = Listening::at(path, 0o600)?;
        let (stop, stopped) = oneshot::channel();
        let router = routes::router(control);
        let run = move || {
            let served = runtime.block_on(serve(&listening, router, stopped));
            if let Err(error) = served {
                warn!("the control API ended: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(api::critical(run));
        let thread = thread.map_err(ControlError::Thread)?;
        Ok(ControlServer { path: path.into(), stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the control thread panicked");
        }
    }
}

/// Accepts connections until shutdown, then gives open connections a moment to end.
async fn serve(
    listening: &Listening,
    router: axum::Router,
    mut stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = listening.listener().try_clone()?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            (stream, place) = accept(&listener, &places) => {
                tokio::spawn(exchange(stream, router.clone(), place));
            }
        }
    }
    let all = places.acquire_many(CONNECTIONS_MAX as u32);
    if tokio::time::timeout(STOP_TIME_MAX, all).await.is_err() {
        debug!("aborted control connections");
    }
    Ok(())
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &UnixListener,
    places: &Arc<Semaphore>,
) -> (UnixStream, OwnedSemaphorePermit) {
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            // Out of descriptors, most likely: they come back, and trying again at once
            // would only burn the processor.
            Err(error) => {
                warn!("cannot accept a control connection: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn exchange(stream: UnixStream, router: axum::Router, _place: OwnedSemaphorePermit) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(EXCHANGE_TIME_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(EXCHANGE_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a control connection failed: {error}"),
        Err(_) => debug!("a control connection timed out"),
    }
}

#[cfg(test)]
mod tests;
