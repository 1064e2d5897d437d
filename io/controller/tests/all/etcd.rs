//! How a controller is told of a test's cluster.

use controller::Etcd;
use testkit::Cluster;

/// The configuration for a store of its own below `prefix`.
pub(crate) fn etcd(cluster: &Cluster, prefix: &str) -> Etcd {
    Etcd { endpoints: cluster.endpoints(), prefix: prefix.to_string(), user: None }
}
