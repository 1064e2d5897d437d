//! The deciding half of the controller: proxies, shares of global limits, total service and decays.
//!
//! ```text
//!   proxy                                           controller
//!   ┌ Dispatcher ─ usage ─► ControllerSession ─┐ report      ┌ ShareAllocator: proxies, shares
//!   │    ▲                    │                ├────────────►│      ▲      rows
//!   │    └─ grants, rows ◄────┘                │◄────────────┤      └─ rates ─ DecayAccounts ◄─ usage
//!   └ (core/sched)                             │  assignment └ events ◄──────────┘
//! ```
//!
//! Everything here is passed the time and what happened, and returns reports, assignments, grants
//! and events. Callers carry the messages. The simulator and the proxy run the same
//! [`ControllerSession`], the simulator and the controller the same [`ShareAllocator`].
//!
//! Messages may be lost, duplicated, late or reordered. Even then, what proxies may use together
//! never exceeds a limit. The controller keeps for each proxy the most that it may be using. It
//! lowers shares first, and raises others when the lower share is acknowledged.
//! docs/algorithms/global.md and decay.md have the rules in words, their sources and the worked
//! tables that are tests here.

mod activity;
mod allocator;
mod controller_session;
mod decay;
mod epochs;
mod in_use;
mod lateness;
mod messages;
mod proxies;
mod rows;
mod scopes;
mod session_rows;
mod shares;
mod split;
mod squeeze;
mod target_rows;
mod total_service;
mod unreported;

pub use allocator::{AllocatorSettings, RowsState, ShareAllocator};
pub use controller_session::{ControllerSession, LeaseExpiry, SessionSettings};
pub use decay::{DecayAccounts, DecayEvent, DecayLevel, DecayStatus, UsageMinute};
pub use epochs::{EpochCheck, ProxyEpochs};
pub use lateness::LateReservation;
pub use messages::{Assignment, Holdings, Membership, RemoteService, ServiceTotal, ShareReport};
pub use proxies::ProxySnapshot;
pub use scopes::{ProxyScopes, ScopeName};
pub use target_rows::{AwaitedRows, TargetRows};
