//! The tests of `sluice-bench`, as one program.

#![allow(clippy::unwrap_used)]

mod demo;
mod leaves_nothing;
mod mount;

/// The laboratory.
const BENCH: &str = env!("CARGO_BIN_EXE_sluice-bench");
