//! The endpoints of the API: bound before any thread, then served with the bounds of all callers.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use http::{AllowedHosts, ConnectionLimits, Endpoint, HttpListener, HttpServer, Permit, ServerTls};

use super::bounds::{Bounded, ControllerBounds, acquire_body, holder};
use super::{ControllerStartError, hosts};

/// Endpoints that are bound and not served yet. Of two servers of clones, either takes a
/// connection.
#[derive(Clone)]
pub(super) struct BoundListener {
    listeners: Vec<HttpListener>,
    hosts: Arc<AllowedHosts>,
    bounds: Arc<ControllerBounds>,
}

/// Listens at each endpoint, at `https://` ones with `tls`, on loopback under the names of `hosts`;
/// returns the endpoints with their real ports.
pub(super) fn bind(
    places: &[Endpoint],
    tls: Option<&ServerTls>,
    hosts: AllowedHosts,
) -> Result<(BoundListener, Vec<String>), ControllerStartError> {
    let listeners = places.iter().map(|place| HttpListener::bind(place, tls));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    let names = listeners.iter().map(|listener| listener.endpoint().to_string()).collect();
    let bounds = ControllerBounds::new(api::descriptor_limit());
    Ok((BoundListener { listeners, hosts: Arc::new(hosts), bounds }, names))
}

impl BoundListener {
    /// The bounds that all callers share.
    pub(super) fn bounds(&self) -> &Arc<ControllerBounds> {
        &self.bounds
    }

    /// Starts the thread that serves the endpoints; dropping the result ends it.
    pub(super) fn serve(self, router: Router) -> Result<HttpServer, ControllerStartError> {
        let router = router.layer(from_fn_with_state(self.bounds.clone(), acquire_body));
        let router = router.layer(from_fn_with_state(self.hosts, hosts::check));
        let limits = ConnectionLimits::admitted(move |peer| {
            let place = self.bounds.acquire(Bounded::Connections, &holder(peer), 1);
            place.map(|place| Box::new(place) as Permit)
        });
        HttpServer::start("control", self.listeners, limits, router)
            .map_err(ControllerStartError::Thread)
    }
}
