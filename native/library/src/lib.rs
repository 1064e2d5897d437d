//! `libsluice.so`: reservations for programs, by the calls of `include/sluice.h`.
//!
//! ```text
//!   C, C++, Python, Fortran ─► ffi: pointers become values, panics become a code
//!        └► reservations: one function a call ─► client: controllers in turn, repeats, time limit
//!              └► exchange: HTTP/1.1 ─► stream: TCP, Unix socket, TLS 1.3; poll until the deadline
//! ```
//!
//! It is loaded into the programs of others. So it starts no thread, prints nothing, installs no
//! handler of signals, raises no SIGPIPE and ends each call within its time limit. Each call opens
//! a connection of its own: no state is left that a fork would share. Only `ffi` is unsafe.

mod abi;
mod cancel;
mod client;
mod deadline;
mod endpoint;
mod error;
mod exchange;
pub mod ffi;
mod place;
mod reservations;
mod stream;
mod usage;

#[cfg(test)]
mod tests;
