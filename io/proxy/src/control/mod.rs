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
//! connection carries one exchange and ends within 30 s, so a viewer that hangs costs one place and
//! for a bounded time. The socket's mode decides which users may connect: the
//! proxy's own user and root.

mod figures;
mod routes;
mod why;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{BindError, ConnectionLimits, Endpoint, HttpListener, HttpServer, ServerAddress};
use tracing::warn;

use crate::config::ApiSocket;
use crate::rules::RuleUpdateError;

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

/// Why the control API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// Its thread or its runtime cannot be made.
    #[error("cannot start the control thread")]
    Thread(#[source] io::Error),
}

/// The running server of a control API; stops and removes its socket when dropped.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    _server: HttpServer,
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
        let listener = HttpListener::bind(&Endpoint::Unix(path.into()), None)?;
        let limits = ConnectionLimits::one_exchange(CONNECTIONS_MAX);
        let server = HttpServer::start("control", [listener], limits, routes::router(control));
        Ok(ControlServer { path: path.into(), _server: server.map_err(ControlError::Thread)? })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
