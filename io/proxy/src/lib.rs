//! Serves directories over 9P2000.L and schedules every request by job.
//!
//! ```text
//!   socket ─► connection ─► intake ─► gate (sched::Dispatcher) ─► worker ─► operations ─► directory
//!              frames        fids,     order of requests             leader,    backend calls   │
//!                            identity                                followers                  │
//!   socket ◄─ outbox ◄─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The thread that reads a request also executes the dispatcher's choice and sends the reply.
//! Nothing is handed over unless a backend call has to wait (`thread_pool`). [`Server`] is the
//! whole proxy for the binary and the tests.

mod accept;
mod bounds;
mod buffers;
mod calibrate;
pub mod config;
mod connection;
pub mod control;
mod controller_client;
mod costs_file;
mod credentials;
mod export;
mod fids;
mod gate;
mod handle_paths;
mod handles;
mod hard_links;
mod info;
mod input;
mod intake;
mod leases;
mod limits;
mod listen;
mod location;
mod locks;
mod memory;
mod metrics;
mod operations;
mod outbox;
mod parsed_request;
mod pipes;
mod plain;
mod rule_file;
mod rules;
mod server;
mod sessions;
mod setup;
mod sys;
mod tally;
mod target;
mod thread_pool;
mod times;
mod trace;
mod worker;
mod writes;

pub use self::rules::RuleUpdateError;
pub use calibrate::{CalibrateError, Calibration, ModeFigures, SizeFigures, SlotLoss, calibrate};
pub use controller_client::{ControllerClient, ControllerClientError};
pub use costs_file::{CostsFile, CostsFileError};
pub use rule_file::SavedRuleFile;
pub use server::{ProxyStartError, Server};
pub use trace::{TraceError, TraceReader};
pub use writes::{Alignment, Backing};
