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
//! [`Standing`], the simulator and the controller the same [`Controller`].
//!
//! Messages may be lost, doubled, late or in another order. What members may use together never
//! exceeds a limit for that: the controller keeps for each member the most that it may be using,
//! lowers first, and raises others when the lower part is acknowledged. docs/algorithms/global.md
//! and decay.md have the rules in words, their sources and the worked tables that are tests here.

mod controller;
mod decay;
mod held;
mod lives;
mod members;
mod messages;
mod metadata;
mod parts;
mod split;
mod standing;
mod uses;

pub use controller::{Controller, ControllerSettings};
pub use decay::{DecayEvent, DecayReport, Decays, Ledger, Stage};
pub use lives::{LifeCheck, Lives};
pub use members::MemberReport;
pub use messages::{Holdings, Order, Report, Served, Term, Told};
pub use standing::{Silence, Standing, StandingSettings};
