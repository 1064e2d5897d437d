//! The tests of the codec, as one program.

#![allow(clippy::unwrap_used)]

mod dialect;
mod props;
mod samples;
mod wire;
