//! Usage accounting: what a proxy has served is counted once at its controller.
//!
//! ```text
//!   proxy                                                  controller
//!   dispatcher ─ AccountTotals ─► UsageReporter ─ UsageReport ─► UsageCollector ─ growth ─► ledger,
//!                                      ▲                              │                     decays
//!                                      └────────── acknowledgement ◄──┘
//! ```
//!
//! Reports may be lost, late or duplicated, a proxy may restart (its epoch increases), and another
//! controller may lead. Service only grows within an epoch, so a report repeats what the reports before
//! it said, and the growth is counted once. What a proxy had not reported when it ended is lost.
//!
//! The simulator and the proxy run the same [`UsageReporter`]. The controller's ledger counts as
//! [`UsageCollector`] does, within its bounds; a test of io/controller compares the two.

mod collector;
mod reporter;

pub use collector::{CollectedLine, UsageCollector};
pub use reporter::{AccountTotals, UsageLine, UsageReport, UsageReporter};
