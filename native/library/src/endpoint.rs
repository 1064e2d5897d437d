//! The endpoint of a controller with the addresses of its name.
//!
//! Names are resolved when a handle is opened: the system's resolver has no time limit that a
//! caller could set, and calls of the handle have one.

use std::net::{SocketAddr, ToSocketAddrs};

use api::Endpoint;

use crate::error::{CallError, CallErrorCode};

/// A controller's endpoint with the addresses of its name.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedEndpoint {
    pub(crate) endpoint: Endpoint,
    /// Empty at a Unix socket.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl ResolvedEndpoint {
    /// Finds the addresses of the name; takes as long as the system's resolver does.
    pub(crate) fn find(endpoint: &Endpoint) -> Result<ResolvedEndpoint, CallError> {
        let addresses = match endpoint.host_and_port() {
            None => Vec::new(),
            Some((host, port)) => {
                let found = (host, port).to_socket_addrs().map_err(|error| {
                    let text = format!("cannot resolve {host}: {error}");
                    CallError::new(CallErrorCode::Unreachable, text)
                })?;
                found.take(ADDRESSES_MAX).collect()
            }
        };
        endpoint.check_localhost(&addresses).map_err(CallError::settings)?;
        Ok(ResolvedEndpoint { endpoint: endpoint.clone(), addresses })
    }
}

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
