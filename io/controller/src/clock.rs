//! What time it is: of minutes of the ledger, periods of decays and events.
//!
//! ```text
//!   Clock::System ─► the system's, since 1970
//!   Clock::Moved  ─► stands still until somebody moves it: a test says when a period ends
//! ```
//!
//! Whatever expires, tokens and certificates, goes by the system's clock always; and so do
//! time limits, of which nobody is to be able to make an hour a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use model::Time;

/// The clock that a controller's accounts go by.
#[derive(Clone, Debug, Default)]
pub enum WallClock {
    /// The system's.
    #[default]
    System,
    /// Nanoseconds since 1970, moved by whoever holds it too; never back.
    Moved(Arc<AtomicU64>),
}

impl WallClock {
    /// Now, since 1970.
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
