//! The dialect, spoken to a server in this process: what is in a session, what outlives it, and
//! what is refused.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod data;
mod donated;
mod handles;
mod identity;
mod info;
mod list;
pub(crate) mod locations;
mod names;
mod once;
mod sessions;
mod xattr;
