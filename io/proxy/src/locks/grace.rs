//! Grace period after a restart, in which clients reclaim their former locks.
//!
//! ```text
//!   start ──────── grace ────────► until          lock with RECLAIM   any other lock   unlock
//!                                       in it     tried once          waits            tried
//!                                       after it  refused             tried            tried
//! ```
//!
//! The locks of a proxy end with its process. Without this time another client could be faster than
//! the one that had a lock and is still on its way back, and would find the data half changed (RFC
//! 8881, section 8.4.2). After it, the proxy cannot know whether another client has had the lock
//! since.

use model::Time;
use ninep::LockKind;

/// Until when it lasts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grace {
    /// The start of the proxy's clock if there is none.
    until: Time,
}

/// Decision about a Tlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is tried now, and waits where it is refused and asks for that.
    Try,
    /// It is tried now, and waits in no case.
    TryOnce,
    /// It is tried when the time is over.
    Wait,
    /// It is not tried: another client may have had the lock.
    Refuse,
}

impl Grace {
    /// One that ends at `until`.
    pub(crate) fn new(until: Time) -> Grace {
        Grace { until }
    }

    /// Whether the time for reclaiming locks still runs.
    pub(super) fn lasts(&self, now: Time) -> bool {
        now < self.until
    }

    /// Decides about a Tlock; `reclaims`: its owner says that it had the lock before.
    pub(super) fn admit(&self, kind: LockKind, reclaims: bool, now: Time) -> Admission {
        match (kind, reclaims, self.lasts(now)) {
            (LockKind::Unlock, _, _) | (_, false, false) => Admission::Try,
            (_, true, true) => Admission::TryOnce,
            (_, false, true) => Admission::Wait,
            (_, true, false) => Admission::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Read, Unlock, Write};

    #[test]
    fn in_it_only_those_who_had_locks_get_them_and_after_it_only_others() {
        let grace = Grace::new(Time::from_nanos(5));
        let (last, over) = (Time::from_nanos(4), Time::from_nanos(5));
        for kind in [Read, Write] {
            assert_eq!(grace.admit(kind, true, last), Admission::TryOnce);
            assert_eq!(grace.admit(kind, false, last), Admission::Wait);
            assert_eq!(grace.admit(kind, true, over), Admission::Refuse);
            assert_eq!(grace.admit(kind, false, over), Admission::Try);
        }
        for (reclaims, now) in [(true, last), (false, last), (true, over), (false, over)] {
            assert_eq!(grace.admit(Unlock, reclaims, now), Admission::Try);
        }
    }

    #[test]
    fn without_one_nothing_waits_and_nothing_is_taken_again() {
        let grace = Grace::default();
        assert_eq!(grace.admit(Write, false, Time::ZERO), Admission::Try);
        assert_eq!(grace.admit(Write, true, Time::ZERO), Admission::Refuse);
    }
}
