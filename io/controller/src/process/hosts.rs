//! Refuses what a web page of elsewhere has a browser of this machine send ([`AllowedHosts`]),
//! before anything else looks at the call.

use std::sync::Arc;

use api::ErrorCode;
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{AllowedHosts, Endpoint, HostName, HostRefused, Peer, RouteError};

use super::ControllerSettings;

/// Under which names a controller answers on loopback: those that it was given, and those by
/// which others are to find it.
pub(super) fn of(settings: &ControllerSettings) -> AllowedHosts {
    let advertised = settings.advertise.as_ref().and_then(Endpoint::host_and_port);
    let advertised = advertised.and_then(|(host, _)| host.parse::<HostName>().ok());
    AllowedHosts::and(settings.allowed_hosts.iter().cloned().chain(advertised))
}

/// Lets a call through if its host and origin are this controller's.
pub(super) async fn check(
    State(hosts): State<Arc<AllowedHosts>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let checked = hosts.check(request.uri(), request.headers(), peer.is_over_loopback());
    let Err(refused) = checked else { return next.run(request).await };
    let message = match &refused {
        HostRefused::Count { .. } => refused.to_string(),
        HostRefused::Host { .. } | HostRefused::Origin { .. } => {
            format!("{refused}; allow another with --allowed-host NAME of the controller")
        }
    };
    let at = match &refused {
        HostRefused::Count { .. } | HostRefused::Host { .. } => "Host",
        HostRefused::Origin { .. } => "Origin",
    };
    RouteError::new(ErrorCode::WrongHost, message).at(at).into_response()
}
