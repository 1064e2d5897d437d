//! The tests of the controller, as one program.

#![allow(clippy::unwrap_used)]

mod collector;
mod copies;
mod election;
mod etcd;
mod kills;
mod ledger;
mod proxies;
mod store;
mod takeover;
