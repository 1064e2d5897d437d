//! The controller of many proxies: its state files, its election, and its process.
//!
//! ```text
//!                        ┌──────────── data directory, locked ─────────────┐
//!   rules, tokens,   ──► │ store: records with revisions (SQLite) ─ or ─┐  │      ┌ etcd cluster ───┐
//!   proxies              │                                              └──┼────► │ records, leader │
//!   reports of proxies ─►│ ledger: sums by subject and minute (SQLite)     │      └───────▲─────────┘
//!                        └────────────────┬────────────────────────────────┘              │
//!                                         └─ replication ─► standby controllers ─ election ┘
//! ```
//!
//! - [`store`]: decisions. An append names the revision that it was based on and fails if another
//!   came first, so two controllers never overwrite each other.
//! - [`election`]: one of several controllers leads while it holds the leader lease in etcd; appends
//!   of a former leader fail. Without etcd, [`DataDirectory`] ensures that a directory has one
//!   controller.
//! - [`ledger`]: usage, as sums of one minute that age into coarser ones.
//! - [`Offline`]: tokens of a controller that does not run. The rights at a running one are in
//!   `process/rights.rs`.
//! - [`StandbyController`], [`Controller`]: the process, which connects these and `plan`, with its
//!   API.
//!
//! Stores, election and ledger block: call them from threads of their own, never from a thread that
//! runs tokio tasks.

mod audit;
mod clock;
mod directory;
mod etcd;
mod process;
mod sqlite;
mod token;

pub mod election;
pub mod ledger;
pub mod store;

pub use audit::AuditError;
pub use clock::WallClock;
pub use directory::{DataDirectory, DirectoryError};
pub use etcd::{EtcdClient, EtcdError};
pub use process::{
    Controller, ControllerSettings, ControllerStartError, Offline, OfflineError, ParseWebhookError,
    ReservationSettings, StandbyController, StorePlace, TokenFailed, Webhook, markdown, openapi,
};
pub use sqlite::SqliteError;
pub use token::TokenRefused;
