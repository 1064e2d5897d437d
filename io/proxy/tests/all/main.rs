//! The tests of the proxy's dialect and execution, as one program.

#![allow(clippy::unwrap_used)]

mod busy_threads;
mod cached_reads;
mod descriptors;
mod dialect;
mod disk;
mod entitled;
mod frozen;
mod grace;
mod learning;
mod leases;
mod one_file;
mod peer;
mod promises;
mod reserved;
