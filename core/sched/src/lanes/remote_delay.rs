//! Remote delay: service that a class had from other proxies is charged to it here.
//!
//! ```text
//!   here       ──■────────────────────■──►   S := max(v, F + delay/φ)
//!   remote     ────■──■──■──■──────────►     delay: their cost, since the last request here
//!                                            with min_local_service: at most c · (1/min_local_service − 1)
//! ```
//!
//! Each server divides its own service by weight; with the delay, the sum over all servers follows
//! the weights. A class that is alone here is served at once, whatever its tags. A delay is never
//! longer than any other lag (the bound on F). This is the DSFQ of Wang and Merchant (FAST'07),
//! whose hybrid guarantees a minimum service on each server.

use model::{Nanos, Time};

use super::Lanes;
use super::class::NO_SIZE;
use super::lane::DEVICE;
use crate::index::ClassIndex;
use crate::observation::Observation;
use crate::tags::LAG_MAX_NS;

/// Remote service of a class since its last dispatch here, in ns of cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteDelay {
    reported: u64,
    /// How far its tags were moved for that.
    applied: u64,
}

impl RemoteDelay {
    pub(super) const NONE: RemoteDelay = RemoteDelay { reported: 0, applied: 0 };

    /// Adds remote service of this cost.
    pub(super) fn add(&mut self, cost: Nanos) {
        self.reported = self.reported.saturating_add(cost.get());
    }

    /// Handles a dispatch: the rest counts for the next requests, up to the bound of any lag.
    pub(super) fn carry_over(&mut self) {
        let told = self.reported.saturating_sub(self.applied).min(LAG_MAX_NS);
        *self = RemoteDelay { reported: told, applied: 0 };
    }

    /// How much further the tags must move now that the next request costs `cost`.
    fn due(&mut self, cost: u64, min_local_service_ppm: u32) -> u64 {
        let most = match min_local_service_ppm {
            0 => u64::MAX,
            ppm => {
                let rest = u128::from(1_000_000 - ppm.min(1_000_000));
                u64::try_from(u128::from(cost) * rest / u128::from(ppm)).unwrap_or(u64::MAX)
            }
        };
        let due = self.reported.min(most).saturating_sub(self.applied);
        self.applied += due;
        due
    }
}

impl Lanes {
    /// Charges a class for remote service of this cost since its last dispatch here.
    pub(crate) fn charge_remote(
        &mut self,
        class: ClassIndex,
        cost: Nanos,
        now: Time,
        seen: &mut Observation,
    ) {
        let class = self.owner_of(class);
        let standing = &mut self.classes[class].lanes[DEVICE];
        standing.delay.add(cost);
        if standing.size != NO_SIZE {
            self.apply_delay(class);
            self.refresh(class, DEVICE, now, seen);
        }
    }

    /// Moves the tags of a class that has a ready head by the delay that is due.
    pub(super) fn apply_delay(&mut self, class: ClassIndex) {
        let delay = &self.classes[class].lanes[DEVICE].delay;
        if delay.reported == delay.applied {
            return;
        }
        let Some(first) = self.first_of_all(class, DEVICE) else { return };
        let cost = self.requests[self.head(first)].cost;
        let own = &mut self.classes[class];
        let state = &self.targets[own.target].states[DEVICE];
        let standing = &mut own.lanes[DEVICE];
        let due = standing.delay.due(cost, own.min_local_service_ppm);
        if due > 0 {
            let phi = own.full_weight;
            let bound = state.lag_bound(cost, phi).max(standing.finish);
            standing.finish = standing.finish.after(due, phi).min(bound);
            standing.start = standing.start.max(standing.finish);
            standing.moved_for_remote = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_applied_once_and_with_a_least_share_only_in_part() {
        let mut delay = RemoteDelay { reported: 700, applied: 0 };
        assert_eq!((delay.due(100, 0), delay.due(100, 0)), (700, 0));
        let mut half = RemoteDelay { reported: 700, applied: 0 };
        assert_eq!((half.due(100, 500_000), half.due(100, 500_000)), (100, 0));
        half.reported += 100;
        assert_eq!((half.due(100, 500_000), half.due(300, 500_000)), (0, 200));
    }
}
