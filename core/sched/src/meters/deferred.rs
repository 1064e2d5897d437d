//! Deferred charges: what requests that are never delayed owe a meter, paid with later requests.
//!
//! ```text
//!   close ─► runs at once ─► deferred += u, up to a bound
//!   open  ─► waits, runs  ─► pays u and, of what is deferred, at most u more
//! ```
//!
//! A close runs whatever its meters are owed, so no meter can keep it within a rate. Charged at
//! once, a flood of closes would put a shared meter into debt, and the other classes of the meter
//! would wait for it. So the charge stays with the class of the close: until it is paid, each
//! request of this class counts up to twice, against its turn at the meter, too. A class that opens
//! and closes pays for both in full. A change of rules forgives what is not paid; a change of values
//! only what exceeds the bound.

/// What a class still has to pay at a meter, in the meter's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredCharge(u64);

/// The most that a class defers: what the meter lets through in this time, in ns.
pub(crate) const SPAN_MAX_NS: u64 = 10_000_000_000;

impl DeferredCharge {
    /// The state of a class that has paid everything.
    pub(crate) const NONE: DeferredCharge = DeferredCharge(0);

    /// Replaces a charge of `old` by one of `new`; more than `most` is not kept.
    pub(crate) fn replace(&mut self, old: u64, new: u64, most: u64) {
        self.0 = self.0.saturating_add(new).saturating_sub(old).min(most);
    }

    /// Takes what a request that itself pays `own` pays in addition; more than `most` is not kept.
    pub(crate) fn take(&mut self, own: u64, most: u64) -> u64 {
        self.0 = self.0.min(most);
        let paid = self.0.min(own);
        self.0 -= paid;
        paid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferred_charge_is_paid_by_requests_that_count_twice() {
        let mut deferred = DeferredCharge::NONE;
        deferred.replace(0, 5, 100);
        assert_eq!([2, 2, 2, 2].map(|own| deferred.take(own, 100)), [2, 2, 1, 0]);
    }

    #[test]
    fn a_deferred_charge_is_bounded_and_can_be_corrected() {
        let mut deferred = DeferredCharge::NONE;
        (0..1_000).for_each(|_| deferred.replace(0, 3, 100));
        deferred.replace(3, 1, 100);
        assert_eq!(deferred.take(1_000, 100), 98);
        deferred.replace(0, 90, 100);
        assert_eq!(deferred.take(1_000, 9), 9, "its meter is slower now");
        deferred.replace(3, 1, 100);
        assert_eq!(deferred, DeferredCharge::NONE);
    }
}
