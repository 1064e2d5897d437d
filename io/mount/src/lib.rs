//! A proxy's export as a file system of this machine.
//!
//! ```text
//!   program ─► kernel ─► fuse::Port ─► filesystem ─► operations ─► link ─► proxy
//!                            ▲             │ nodes, files, locks,    │
//!                            │             │ writes behind           │
//!                            └─ answer ◄───┴──────── done ◄──────────┘
//! ```
//!
//! Each thread has a descriptor of /dev/fuse and a connection to the proxy, and a request
//! stays on the thread that took it. The proxy may die and come back: what was open is opened
//! again, what was asked is asked again, and what must not happen twice is looked for first.
//! Programs wait meanwhile, and can be killed.
//!
//! Left to others: the kernel's protocol (`fuse`), the proxy's (`ninep`), what the proxy does.

mod daemon;
mod files;
mod filesystem;
mod gateway;
mod helpers;
mod jobs;
mod locks;
mod metrics;
mod nodes;
mod notices;
mod operations;
mod options;
mod retries;
mod session;
mod translate;
mod write_behind;

pub use daemon::{MountDaemon, MountError, URING_SWITCH};
pub use options::{MountSettings, MountSettingsError, MountSource};
