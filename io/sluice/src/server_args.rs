//! The server that a command calls: a proxy by its control socket, or a controller for all proxies.
//!
//! ```text
//!   --proxy unix:///PATH ──────────────► a proxy
//!   --controller URL ────────────────► a controller
//!   neither: $SLUICE_CONTROLLER, then the proxy's default socket
//! ```

use std::time::Duration;

use http::{ApiClient, Endpoints, ServerAddress};

use crate::credentials::{CredentialArgs, named_controller};
use crate::top::DEFAULT_API;

/// The flags that choose the server to call.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Control socket of the proxy [default: unix:///run/sluice/proxy.sock, without a controller]
    #[arg(long, value_name = "unix:///PATH", conflicts_with = "controller")]
    proxy: Option<ServerAddress>,
    /// URL of the controller, for all its proxies: https://HOST:PORT, http://127.0.0.1:PORT or
    /// unix:///path, with commas between several [default: $SLUICE_CONTROLLER]
    #[arg(long, value_name = "URL")]
    controller: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArgs,
}

/// The server that answers a command.
pub(crate) enum ApiServer {
    /// One proxy, by its control socket.
    Proxy(ApiClient),
    /// A controller, by its URL.
    Controller(ApiClient),
}

impl ServerArgs {
    /// Returns whether the command line names a server.
    pub(crate) fn is_named(&self) -> bool {
        self.proxy.is_some() || self.controller.is_some()
    }

    /// Returns whether it is the default proxy of this machine, which does not run.
    pub(crate) fn is_default_absent(&self) -> anyhow::Result<bool> {
        let ServerAddress::Unix(path) = DEFAULT_API.parse::<ServerAddress>()? else {
            return Ok(false);
        };
        Ok(!self.is_named() && named_controller()?.is_none() && !path.exists())
    }

    /// Connects to the chosen proxy or controller.
    pub(crate) fn connect(&self) -> anyhow::Result<ApiServer> {
        if let Some(proxy) = &self.proxy {
            return Ok(ApiServer::Proxy(ApiClient::new(proxy)?));
        }
        let controller = match &self.controller {
            Some(controller) => Some(controller.clone()),
            None => named_controller()?,
        };
        match controller {
            Some(places) => {
                let client = ApiClient::at(places)?.with(&self.credentials.credentials())?;
                Ok(ApiServer::Controller(client))
            }
            None => Ok(ApiServer::Proxy(ApiClient::new(&DEFAULT_API.parse::<ServerAddress>()?)?)),
        }
    }
}

impl ApiServer {
    /// Sets the time limit of calls.
    pub(crate) fn with_time_limit(self, limit: Duration) -> ApiServer {
        match self {
            ApiServer::Proxy(client) => ApiServer::Proxy(client.with_time_limit(limit)),
            ApiServer::Controller(client) => ApiServer::Controller(client.with_time_limit(limit)),
        }
    }

    /// Returns the client of the proxy or controller.
    pub(crate) fn client(&self) -> &ApiClient {
        match self {
            ApiServer::Proxy(client) | ApiServer::Controller(client) => client,
        }
    }
}
