//! The deciding half of the controller: which proxies there are, what part of each global limit
//! each of them may give, what each class had elsewhere, and whom a decay holds back.
//!
//! ```text
//!   proxy                                     controller
//!   ┌ Dispatcher ─ uses ─► Standing ─┐ report  ┌ Controller: members, parts, total service
//!   │    ▲                    │      ├────────►│      ▲
//!   │    └──── grants ◄───────┘      │◄────────┤      └─ rates ─ Decays ◄─ what was served
//!   └ (core/sched)                   │  order  └ events ◄──────────┘
//! ```
//!
//! Everything here is told the time and what happened, and gives reports, orders, grants and
//! events back; who carries them is no concern of it. The simulator and the proxy run the same
//! [`ControllerSession`], the simulator and the controller the same [`ShareAllocator`].
//!
//! Messages may be lost, doubled, late or in another order. What members may use together never
//! exceeds a limit for that: the controller keeps for each member the most that it may be using,
//! lowers first, and raises others when the lower part is acknowledged. docs/algorithms/global.md
//! and decay.md have the rules in words, their sources and the worked tables that are tests here.

mod allocator;
mod controller_session;
mod decay;
mod epochs;
mod in_use;
mod messages;
mod proxies;
mod shares;
mod split;
mod total_service;
mod unreported;

pub use allocator::{AllocatorSettings, ShareAllocator};
pub use controller_session::{ControllerSession, LeaseExpiry, SessionSettings};
pub use decay::{DecayAccounts, DecayEvent, DecayLevel, DecayStatus, UsageMinute};
pub use epochs::{EpochCheck, ProxyEpochs};
pub use messages::{Assignment, Holdings, Membership, RemoteService, ServiceTotal, ShareReport};
pub use proxies::ProxySnapshot;
