//! The tests of FUSE's protocol, as one program.

#![allow(clippy::unwrap_used)]

mod crowd;
mod death;
mod interrupts;
mod mirror;
mod notices;
mod ports;
mod support;
mod transports;

#[path = "../../examples/mirror/backing.rs"]
mod backing;
#[path = "../../examples/mirror/filesystem.rs"]
mod filesystem;
#[path = "../../examples/mirror/inodes.rs"]
mod inodes;
#[path = "../../examples/mirror/owners.rs"]
mod owners;
