//! The tests of traces, as one program.

#![allow(clippy::unwrap_used)]

mod bytes;
