//! Serves directories over 9P2000.L and schedules every request by job.
//!
//! ```text
//!   socket ─► connection ─► intake ─► gate (sched::Dispatcher) ─► worker ─► operations ─► directory
//!              frames        fids,     who goes next?              leader,    backend calls   │
//!                            identity                              followers                  │
//!   socket ◄─ outbox ◄───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The thread that reads a request also executes what the dispatcher chooses and
//! sends the reply; nothing is handed over unless a backend call has to wait
//! (`crew`). [`Server`] is the whole of it for the binary and the tests.

mod accept;
mod asked;
mod bounds;
mod buffers;
mod calibrate;
pub mod config;
mod connection;
pub mod control;
mod costs_file;
mod credentials;
mod crew;
mod export;
mod fids;
mod gate;
mod handle_paths;
mod handles;
mod hard_links;
mod input;
mod intake;
mod limits;
mod link;
mod listen;
mod location;
mod locks;
mod memory;
mod metrics;
mod mounts;
mod operations;
mod outbox;
mod pipes;
mod plain;
mod record;
mod rule_file;
mod rules;
mod server;
mod setup;
mod sys;
mod tally;
mod tell;
mod times;
mod worker;
mod writes;

pub use calibrate::{CalibrateError, Calibration, ModeFigures, SizeFigures, SlotLoss, calibrate};
pub use costs_file::{CostsFile, CostsFileError};
pub use link::{ControllerClient, ControllerClientError};
pub use record::{TraceError, TraceReader};
pub use rule_file::SavedRuleFile;
pub use rules::RuleUpdateError;
pub use server::{ProxyStartError, Server};
pub use writes::{Alignment, Backing};
