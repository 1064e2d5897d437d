//! A proxy's export as a file system of this machine.
//!
//! ```text
//!   program ─► kernel ─► RequestReceiver ─► filesystem ─► operations ─► session ─► proxy
//!                               ▲              │ nodes, files, locks,      │
//!                               │              │ write_behind              │
//!                               └─ reply ◄─────┴───────── done ◄───────────┘
//! ```
//!
//! Each thread has a descriptor of /dev/fuse and a connection to each proxy, and a request stays on
//! the thread that received it. If a proxy crashes and returns, the mount opens its files again and
//! retries calls that may be executed twice. Calls in doubt are looked up, to find out whether they
//! were executed. Programs wait meanwhile, and can be killed.
//!
//! Not in this crate: the kernel's protocol (`fuse`), the messages (`ninep`) and how the proxy
//! executes them (`io/proxy`).

mod clock;
mod daemon;
mod files;
mod filesystem;
mod gateway;
mod helpers;
mod jobs;
mod leases;
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
pub use session::GroupError;
