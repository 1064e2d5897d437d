//! Busy polling: how long a thread polls for work before it sleeps.
//!
//! ```text
//!   work ──gap──► work ──gap──► work        mean gap short: poll for `most`, yielding, then sleep
//!                                           mean gap long:  sleep at once
//! ```
//!
//! Waking a thread on another processor costs 50 µs and more on a virtual machine, whose idle
//! processors are given back to the host. A request through a mount and a proxy needs four such
//! wake-ups. A thread that polls for a while instead finds the next request of a process that sends
//! one after the other. Where work is rare, polling is in vain and is not done.

use crate::Nanos;

/// A thread's estimate of how soon work comes.
#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    most: u64,
    mean: u64,
}

impl BusyPoll {
    /// The longest time of polling; zero for never.
    pub fn new(most: Nanos) -> BusyPoll {
        let most = most.get().min(MOST_NS);
        BusyPoll { most, mean: most * LONG }
    }

    /// How long to poll now.
    pub fn span(&self) -> Nanos {
        Nanos::new(if self.mean < self.most * WORTH { self.most } else { 0 })
    }

    /// Notes that work came after a wait of this length.
    pub fn record_wait(&mut self, gap: Nanos) {
        let gap = gap.get().min(self.most * LONG);
        self.mean = self.mean - self.mean / SMOOTH + gap / SMOOTH;
    }
}

/// Polling for longer than this would cost more than any wake-up.
const MOST_NS: u64 = 10_000_000;
/// Gaps count as at most this many spans, so that one pause does not outweigh a hundred gaps.
const LONG: u64 = 8;
/// Polling is worth it while gaps are at most this many spans: wake-ups are part of them.
const WORTH: u64 = 4;
/// The weight of the past.
const SMOOTH: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos::from_micros(100);

    #[test]
    fn who_has_work_soon_looks_for_it_and_who_has_not_sleeps() {
        let mut busy_poll = BusyPoll::new(MOST);
        assert_eq!(busy_poll.span(), Nanos::ZERO, "nothing is known yet");
        (0..20).for_each(|_| busy_poll.record_wait(Nanos::from_micros(150)));
        assert_eq!(busy_poll.span(), MOST);
        // One pause changes nothing; a slow trickle does.
        busy_poll.record_wait(Nanos::from_secs(10));
        assert_eq!(busy_poll.span(), MOST);
        (0..5).for_each(|_| busy_poll.record_wait(Nanos::from_millis(5)));
        assert_eq!(busy_poll.span(), Nanos::ZERO);
    }

    #[test]
    fn zero_is_never() {
        let mut busy_poll = BusyPoll::new(Nanos::ZERO);
        (0..100).for_each(|_| busy_poll.record_wait(Nanos::ZERO));
        assert_eq!(busy_poll.span(), Nanos::ZERO);
    }
}
