//! The clock of the minutes of the ledger, the periods of decays and events.
//!
//! ```text
//!   Clock::System ─► the system's, since 1970
//!   Clock::Moved  ─► moved by a test, which decides when a period ends
//! ```
//!
//! Expiry of tokens and certificates always uses the clock of the system. So do time limits, which
//! a moved clock must not shorten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use model::Time;

/// The clock of a controller's accounts.
#[derive(Clone, Debug, Default)]
pub enum WallClock {
    /// The clock of the system.
    #[default]
    System,
    /// Nanoseconds since 1970, moved by another holder; never back.
    Moved(Arc<AtomicU64>),
}

impl WallClock {
    /// Returns the time since 1970.
    pub fn now(&self) -> Time {
        match self {
            WallClock::System => system_time(),
            WallClock::Moved(nanos) => Time::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// The system's time, since 1970.
pub(crate) fn system_time() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
