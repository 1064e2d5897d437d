//! The clocks of a mount, in the units of its session.

use model::Time;
use rustix::time::{ClockId, clock_gettime};

/// Now, by the clock that never goes back; its origin is the machine's.
pub(crate) fn now() -> Time {
    read(ClockId::Monotonic)
}

/// Now, by the clock that goes on while the machine is suspended: others' terms do, too.
pub(crate) fn with_suspend() -> Time {
    read(ClockId::Boottime)
}

/// Now, by the wall clock: since 1970.
pub(crate) fn wall_time() -> Time {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Time {
    let time = clock_gettime(clock);
    let (secs, nanos) = (time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u64);
    Time::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}
