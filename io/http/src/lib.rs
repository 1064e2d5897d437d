//! HTTP between the processes of Sluice and with others: one listener and one client.
//!
//! ```text
//!   sluice top, sluice rule ─► ApiClient ──HTTP/JSON, Unix socket──► io/proxy's control server
//!   sluice rule, io/proxy   ─► ApiClient ──HTTP/JSON, TLS or Unix──► io/controller
//!   Prometheus ─► MetricsServer ─► MetricsPage                       proxies and mounts
//! ```
//!
//! The messages are in `api`.

mod address;
mod client;
pub mod credentials;
mod endpoint;
mod hosts;
mod scrape;
mod socket;

pub use address::{ParseAddressError, ServerAddress};
pub use client::{ApiClient, ClientError};
pub use credentials::{Credentials, CredentialsError};
pub use endpoint::{Endpoint, Endpoints, ParseEndpointError};
pub use hosts::{AllowedHosts, HostName, HostRefused, ParseHostNameError};
pub use scrape::{MetricsAddress, MetricsError, MetricsServer, ParseMetricsAddressError};
pub use socket::{ListenerError, Listening, SocketError, check_listener};
