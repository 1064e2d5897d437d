//! The one 9P client of all tests and benches.
//!
//! ```text
//!   P9Wire ─┬─► P9Client   9P2000.L: fids, one method for each message
//!           └─► P9Channel  the mounts' dialect: handles, reply slots, sessions that outlive connections
//! ```
//!
//! Both send exactly the given messages, and fail the test where the connection does. An error
//! of a server is the plain errno, so that a test can name it.

mod channel;
mod client;
pub mod errno;
mod leases;
mod messages;
mod wire;

pub use channel::{P9Channel, P9Session};
pub use client::{P9Client, P9Entry, names};
pub use leases::P9Recall;
pub use messages::{
    P9File, P9Listed, P9Opened, appended, lock_request, open_request, opened, rename_request,
};
pub use wire::{P9Address, P9Frame, P9Wire};
