//! Leases of mounts: what is granted, what a change recalls, and what waits.

#![allow(clippy::unwrap_used)]

mod changes;
mod folding;
mod grants;
mod holders;
mod waits;

use ninep::Tag;

use crate::peer::{P9Channel, P9Recall, Served, Setup};

pub(crate) const NAMES: u8 = 1;
pub(crate) const ATTRIBUTES: u8 = 2;
pub(crate) const READ: u8 = 4;

/// A server with one export `x` that grants leases, and these lines at the top of its configuration.
pub(crate) fn setup(name: &str, top: &str) -> Setup {
    let setup = Setup::new(name).top("lease_state = \"@/leases\"").top(top);
    setup.tables("[[export]]\nname = \"x\"\ndir = \"@/data\"\nleases = \"read\"\n")
}

pub(crate) fn served(name: &str) -> Served {
    setup(name, "").start()
}

/// A session that holds leases and waits for recalls.
pub(crate) fn holder(served: &Served) -> (P9Channel, Tag) {
    let mut client = served.client();
    client.join(1);
    let listening = client.listen();
    (client, listening)
}

/// The one recall that comes next, with the kinds that it names.
pub(crate) fn recall(client: &mut P9Channel, listening: &mut Tag) -> P9Recall {
    let mut all = client.recalls(*listening);
    *listening = client.listen();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Whether the metrics show this figure of leases.
pub(crate) fn shows(served: &Served, name: &str, value: u64) -> bool {
    let line = format!("sluice_proxy_lease{name} {value}");
    served.control().metrics().lines().any(|shown| shown == line)
}
