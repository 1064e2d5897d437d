//! The tests of what is planned for all proxies, as one program.

#![allow(clippy::unwrap_used)]

mod decay;
mod fleet;
mod global;
mod lateness;
mod props;
mod rows;
