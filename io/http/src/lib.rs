//! HTTP between the processes of Sluice and with others: one listener and one client.
//!
//! ```text
//!   sluice top, sluice rule ─► ApiClient ──HTTP/JSON, Unix socket──► io/proxy's control server
//!   sluice rule, io/proxy   ─► ApiClient ──HTTP/JSON, TLS or Unix──► io/controller
//!   Prometheus ─► MetricsServer ─► MetricsPage                       proxies and mounts
//!
//!   all servers: HttpListener::bind ─► HttpServer, with ConnectionLimits ─► router, with the Peer
//! ```
//!
//! The messages are in `api`, with the rules for endpoints and credentials.

mod client;
mod hosts;
mod listener;
mod peer;
mod route_error;
mod scrape;
mod server;
mod socket;
mod tls;

pub use api::credentials;
pub use api::{
    Credentials, CredentialsError, Endpoint, Endpoints, ParseAddressError, ParseEndpointError,
    ServerAddress,
};
pub use client::{ApiClient, ClientError};
pub use hosts::{AllowedHosts, HostName, HostRefused, ParseHostNameError};
pub use listener::{BindError, HttpListener};
pub use peer::Peer;
pub use route_error::{RouteError, version_to_match};
pub use scrape::{MetricsAddress, MetricsError, MetricsServer, ParseMetricsAddressError};
pub use server::{ConnectionLimits, HttpServer, Permit};
pub use socket::{ListenerError, Listening, SocketError, check_listener};
pub use tls::{ClientCertificate, ServerTls, TlsFiles};
