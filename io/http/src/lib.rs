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
//! The messages are in `api`.

mod address;
mod client;
pub mod credentials;
mod endpoint;
mod hosts;
mod listener;
mod peer;
mod route_error;
mod scrape;
mod server;
mod socket;
mod tls;

pub use address::{ParseAddressError, ServerAddress};
pub use client::{ApiClient, ClientError};
pub use credentials::{Credentials, CredentialsError};
pub use endpoint::{Endpoint, Endpoints, ParseEndpointError};
pub use hosts::{AllowedHosts, HostName, HostRefused, ParseHostNameError};
pub use listener::{BindError, HttpListener};
pub use peer::Peer;
pub use route_error::{RouteError, version_to_match};
pub use scrape::{MetricsAddress, MetricsError, MetricsServer, ParseMetricsAddressError};
pub use server::{ConnectionLimits, HttpServer, Permit};
pub use socket::{ListenerError, Listening, SocketError, check_listener};
pub use tls::{ClientCertificate, ServerTls, TlsFiles};
