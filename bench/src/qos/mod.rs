//! The promises of scheduling, measured: groups of figures on proxies of their own.
//!
//! ```text
//!   bed (directory, proxies) + backend (slow, or the disk) + jobs that compete ─► samples
//! ```
//!
//! Each starts proxies over a new directory, with rules it writes, and stops and removes
//! everything at its end.

mod backend;
mod bed;
pub(crate) mod blocked;
pub(crate) mod controlled;
mod controllers;
mod cost;
pub(crate) mod costs;
pub(crate) mod decayed;
mod descriptors;
mod etcd;
mod job;
pub(crate) mod limits;
mod memory;
mod metadata_phases;
mod metadata_server;
mod mounted;
pub(crate) mod neighbour;
pub(crate) mod node;
pub(crate) mod patterns;
pub(crate) mod promises;
mod quantile;
pub(crate) mod reserved;
pub(crate) mod reserved_jobs;
pub(crate) mod returns;
mod scrape;
mod shares;
mod slow;
pub(crate) mod total;
pub(crate) mod victim;
pub(crate) mod weights;
mod write_modes;
