//! How a controller is told of a test's cluster.

use controller::Etcd;
use controller::election::Fence;
use controller::store::EtcdStore;
use testkit::{Cluster, PATIENCE};

/// The configuration for a store of its own below `prefix`.
pub(crate) fn etcd(cluster: &Cluster, prefix: &str) -> Etcd {
    Etcd { endpoints: cluster.endpoints(), prefix: prefix.to_string(), user: None }
}

/// A store that waits for an etcd which waits for a processor: a controller would not for so long.
pub(crate) fn store(etcd: &Etcd, fence: Option<Fence>) -> EtcdStore {
    EtcdStore::open(etcd, fence).unwrap().with_patience(PATIENCE)
}
