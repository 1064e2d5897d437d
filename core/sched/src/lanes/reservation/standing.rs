//! Since when heads wait for a class's reservation, by the reservations' clock: those that count towards
//! the rate, and those that go by the account. One may stand for long because the account owes, and says
//! nothing about the other.

use model::Time;

/// Since when a class has had heads in a lane that go by its reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedStanding {
    rate: Option<Time>,
    account: Option<Time>,
}

impl ReservedStanding {
    pub(in crate::lanes) const NONE: ReservedStanding =
        ReservedStanding { rate: None, account: None };

    /// Since when it has had a head that counts towards the rate, or one that does not.
    pub(super) fn since(self, counts: bool) -> Option<Time> {
        if counts { self.rate } else { self.account }
    }

    /// Sets whether heads for the account stand now, and whether some for the rate do. Those that did not
    /// are new, at `clock`; but both lanes serve the one rate, so they count since they stood in the
    /// `other` one.
    pub(super) fn set(&mut self, stand: [bool; 2], other: ReservedStanding, clock: Time) {
        let since = |stands: bool, own: Option<Time>, other: Option<Time>| {
            stands.then(|| own.or(other).unwrap_or(clock))
        };
        let [account, rate] = stand;
        self.rate = since(rate, self.rate, other.rate);
        self.account = since(account, self.account, other.account);
    }

    /// No head has waited before this time, which a new reservation begins with.
    pub(in crate::lanes) fn begin(&mut self, clock: Time) {
        self.times().for_each(|since| *since = clock);
    }

    /// Follows a clock that was set back.
    pub(super) fn follow(&mut self, clock: Time) {
        self.times().for_each(|since| *since = clock.min(*since));
    }

    /// Goes on with what stood before, where it still stands.
    pub(super) fn resume(&mut self, before: ReservedStanding) {
        self.rate = self.rate.map(|since| before.rate.unwrap_or(since));
        self.account = self.account.map(|since| before.account.unwrap_or(since));
    }

    fn times(&mut self) -> impl Iterator<Item = &mut Time> {
        self.rate.iter_mut().chain(&mut self.account)
    }
}
