//! Whom a command asks: one proxy by its control socket, or a controller for all of them.
//!
//! ```text
//!   --api unix:///PATH ──────────────► a proxy
//!   --controller URL ────────────────► a controller
//!   neither: $SLUICE_CONTROLLER, then the proxy's usual socket
//! ```

use std::time::Duration;

use api::{ApiClient, Endpoints, ServerAddress};

use crate::credentials::{CredentialArgs, named_controller};
use crate::top::DEFAULT_API;

/// Whom to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The control socket of the proxy that is asked.
    ///
    /// Without it, $SLUICE_CONTROLLER, and without that unix:///run/sluice/proxy.sock.
    #[arg(
        long,
        visible_alias = "proxy",
        value_name = "unix:///PATH",
        conflicts_with = "controller"
    )]
    api: Option<ServerAddress>,
    /// The controller that is asked, for all its proxies: https://HOST:PORT, http://127.0.0.1:PORT
    /// or unix:///path; of several all of them, with commas.
    #[arg(long, value_name = "URL")]
    controller: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArgs,
}

/// Who answers.
pub(crate) enum ApiServer {
    /// One proxy.
    Proxy(ApiClient),
    /// A controller.
    Controller(ApiClient),
}

impl ServerArgs {
    /// Whether the command line names one.
    pub(crate) fn is_named(&self) -> bool {
        self.api.is_some() || self.controller.is_some()
    }

    /// Whether it is the usual proxy of this machine, and there is none.
    pub(crate) fn is_nobody(&self) -> anyhow::Result<bool> {
        let ServerAddress::Unix(path) = DEFAULT_API.parse::<ServerAddress>()? else {
            return Ok(false);
        };
        Ok(!self.is_named() && named_controller()?.is_none() && !path.exists())
    }

    /// A client of whoever is to be asked.
    pub(crate) fn answerer(&self) -> anyhow::Result<ApiServer> {
        if let Some(api) = &self.api {
            return Ok(ApiServer::Proxy(ApiClient::new(api)?));
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
    /// Whose calls may take so long.
    pub(crate) fn with_time_limit(self, limit: Duration) -> ApiServer {
        match self {
            ApiServer::Proxy(client) => ApiServer::Proxy(client.with_time_limit(limit)),
            ApiServer::Controller(client) => ApiServer::Controller(client.with_time_limit(limit)),
        }
    }

    /// The client, whoever it asks.
    pub(crate) fn client(&self) -> &ApiClient {
        match self {
            ApiServer::Proxy(client) | ApiServer::Controller(client) => client,
        }
    }
}
