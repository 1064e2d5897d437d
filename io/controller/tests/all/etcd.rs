//! How a controller is told of a test's cluster.

use controller::EtcdClient;
use controller::election::FencingToken;
use controller::store::EtcdStore;
use testkit::{Cluster, PATIENCE};

/// The configuration for a store of its own below `prefix`.
pub(crate) fn etcd(cluster: &Cluster, prefix: &str) -> EtcdClient {
    EtcdClient { endpoints: cluster.endpoints(), prefix: prefix.to_string(), user: None }
}

/// A store that waits for an etcd which waits for a processor: a controller would not for so long.
pub(crate) fn store(etcd: &EtcdClient, fence: Option<FencingToken>) -> EtcdStore {
    EtcdStore::open(etcd, fence).unwrap().with_patience(PATIENCE)
}
