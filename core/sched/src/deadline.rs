//! A time at which something is due, or never.

use model::Time;

/// A time or never, in the size of a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Time);

impl Deadline {
    /// Makes it no later than `at`.
    #[inline]
    pub(crate) fn bring_forward(&mut self, at: Option<Time>) {
        if let Some(at) = at {
            self.0 = self.0.min(at);
        }
    }

    #[inline]
    pub(crate) fn is_due(self, now: Time) -> bool {
        self.0 <= now
    }

    /// The time, if there is one.
    pub(crate) fn get(self) -> Option<Time> {
        (self.0 < Time::MAX).then_some(self.0)
    }
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline(Time::MAX)
    }
}
