//! The tests of traces, as one program.

#![allow(clippy::unwrap_used)]

extern crate sluice_trace as trace;

mod bytes;
mod samples;
