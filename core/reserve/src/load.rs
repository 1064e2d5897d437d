//! Loads and capacities of one resource, and the bound that both directions share.
//!
//! ```text
//!   write W ┐\
//!           │ \      r/R + w/W ≤ 1   ⟺   r·W + w·R ≤ R·W
//!           │  \     (cost of a load)     (the whole capacity)
//!           └───\ read R
//! ```
//!
//! A disk that reads R or writes W bytes a second does a mix of both in proportion. Products of two
//! amounts fit into 128 bits, so the bound is exact.

use model::{Rate, Share};
use serde::{Deserialize, Serialize};

use crate::record::AmountsRecord;

/// What is taken of one resource per second, in the resource's unit: bytes or operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AmountsRecord", into = "AmountsRecord")]
pub struct Load {
    read: u64,
    write: u64,
}

/// What one resource gives per second, if only one direction is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AmountsRecord", into = "AmountsRecord")]
pub struct Capacity {
    read: u64,
    write: u64,
}

impl Load {
    /// A load of nothing at all.
    pub const NONE: Load = Load { read: 0, write: 0 };
    /// The greatest amount per second of one direction.
    pub const PER_SEC_MAX: u64 = 1 << 60;

    /// A load of both directions; `None` if one is above [`Load::PER_SEC_MAX`].
    pub const fn per_sec(read: u64, write: u64) -> Option<Load> {
        let fits = read <= Load::PER_SEC_MAX && write <= Load::PER_SEC_MAX;
        if fits { Some(Load { read, write }) } else { None }
    }

    /// A load of reads, or of a resource with one amount; `None` above [`Load::PER_SEC_MAX`].
    pub const fn reads(rate: Rate) -> Option<Load> {
        Load::per_sec(rate.per_sec(), 0)
    }

    /// A load of writes; `None` above [`Load::PER_SEC_MAX`].
    pub const fn writes(rate: Rate) -> Option<Load> {
        Load::per_sec(0, rate.per_sec())
    }

    /// The amount read per second.
    pub const fn read_per_sec(self) -> u64 {
        self.read
    }

    /// The amount written per second.
    pub const fn write_per_sec(self) -> u64 {
        self.write
    }

    /// Whether it takes nothing.
    pub const fn is_none(self) -> bool {
        self.read == 0 && self.write == 0
    }

    /// The sum of both loads.
    pub const fn plus(self, other: Load) -> Load {
        Load { read: self.read + other.read, write: self.write + other.write }
    }

    /// What this load has beyond another, in each direction.
    pub const fn beyond(self, other: Load) -> Load {
        Load {
            read: self.read.saturating_sub(other.read),
            write: self.write.saturating_sub(other.write),
        }
    }

    /// A share of the load, rounded down.
    pub const fn scaled(self, share: Share) -> Load {
        Load { read: share.of(self.read), write: share.of(self.write) }
    }

    /// The load without one that it contains.
    ///
    /// # Panics
    /// If it does not contain it: something was removed that was never added.
    pub(crate) const fn minus(self, other: Load) -> Load {
        assert!(self.read >= other.read && self.write >= other.write, "removes more than is there");
        Load { read: self.read - other.read, write: self.write - other.write }
    }
}

impl Capacity {
    /// A resource that gives nothing.
    pub const CLOSED: Capacity = Capacity { read: 0, write: 0 };

    /// A resource that bounds no load that can be requested.
    pub const BOUNDLESS: Capacity = Capacity { read: Load::PER_SEC_MAX, write: Load::PER_SEC_MAX };

    /// A capacity of two directions, per second. A zero closes the resource for both. `None` if one
    /// is above [`Load::PER_SEC_MAX`].
    pub const fn per_sec(read: u64, write: u64) -> Option<Capacity> {
        if read > Load::PER_SEC_MAX || write > Load::PER_SEC_MAX {
            return None;
        }
        if read == 0 || write == 0 {
            return Some(Capacity::CLOSED);
        }
        Some(Capacity { read, write })
    }

    /// A capacity of one amount, whatever the direction; `None` above [`Load::PER_SEC_MAX`].
    pub const fn single(rate: Rate) -> Option<Capacity> {
        Capacity::per_sec(rate.per_sec(), rate.per_sec())
    }

    /// What is left beside a share that stays outside of the calendar, rounded down.
    pub const fn without(self, share: Share) -> Capacity {
        let kept = Share::WHOLE.less(share);
        match Capacity::per_sec(kept.of(self.read), kept.of(self.write)) {
            Some(capacity) => capacity,
            None => unreachable!(),
        }
    }

    /// What is left beside a load that is always there, rounded down; nothing if it does not fit.
    pub fn less(self, load: Load) -> Capacity {
        let kept = |amount: u64, other: u64| match u128::from(other) {
            0 => 0,
            // its share cost / (R·W) of this amount, without a product of three
            other => u128::from(amount).saturating_sub(self.cost(load).div_ceil(other)) as u64,
        };
        let (read, write) = (kept(self.read, self.write), kept(self.write, self.read));
        Capacity::per_sec(read, write).expect("less than a capacity")
    }

    /// The amount read per second, if nothing is written.
    pub const fn read_per_sec(self) -> u64 {
        self.read
    }

    /// The amount written per second, if nothing is read.
    pub const fn write_per_sec(self) -> u64 {
        self.write
    }

    /// Whether it is at least another one in both directions.
    pub const fn contains(self, other: Capacity) -> bool {
        self.read >= other.read && self.write >= other.write
    }

    /// Whether a load fits.
    pub const fn fits(self, load: Load) -> bool {
        self.cost(load) <= self.whole()
    }

    /// The share of the capacity that a load takes, rounded down; the whole if it is more.
    pub fn used_by(self, load: Load) -> Share {
        ratio(self.cost(load), self.whole())
    }

    /// The greatest share of `more`, rounded down, that fits beside `used`.
    pub(crate) fn share_that_fits(self, used: Load, more: Load) -> Share {
        ratio(self.whole().saturating_sub(self.cost(used)), self.cost(more))
    }

    /// The share of loads with that cost which fits, rounded down.
    pub(crate) fn share_of_cost(self, cost: u128) -> Share {
        ratio(self.whole(), cost)
    }

    /// What a load costs of the whole: r·W + w·R. A closed resource has cost and no whole.
    pub(crate) const fn cost(self, load: Load) -> u128 {
        let (read, write) = if self.read == 0 { (1, 1) } else { (self.read, self.write) };
        load.read as u128 * write as u128 + load.write as u128 * read as u128
    }

    /// The whole capacity as a cost: R·W.
    pub(crate) const fn whole(self) -> u128 {
        self.read as u128 * self.write as u128
    }
}

/// The fraction of two costs, rounded down; the whole where `of` is as much or more.
fn ratio(of: u128, all: u128) -> Share {
    if of >= all {
        return Share::WHOLE;
    }
    // both are shifted alike, the divisor rounded up, so that the result is never too great
    let shift = 64 - all.leading_zeros().min(64);
    let (of, all) = (of >> shift, ((all - 1) >> shift) + 1);
    let billionths = of * Share::WHOLE.billionths() as u128 / all;
    Share::from_billionths(billionths as u32).expect("less than the whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(read: u64, write: u64) -> Load {
        Load::per_sec(read, write).unwrap()
    }

    #[test]
    fn mixed_loads_obey_the_convex_bound() {
        let capacity = Capacity::per_sec(1_000, 500).unwrap();
        for (read, write, fits) in [
            (1_000, 0, true),
            (1_001, 0, false),
            (0, 500, true),
            (500, 250, true),
            (501, 250, false),
            (500, 251, false),
            (999, 1, false),
            (998, 1, true),
        ] {
            assert_eq!(capacity.fits(load(read, write)), fits, "{read} {write}");
        }
    }

    #[test]
    fn closed_capacity_takes_no_load_and_the_greatest_one_does_not_overflow() {
        assert!(Capacity::CLOSED.fits(Load::NONE));
        assert!(!Capacity::CLOSED.fits(load(0, 1)) && !Capacity::CLOSED.fits(load(1, 0)));
        assert_eq!(Capacity::per_sec(5, 0), Some(Capacity::CLOSED));
        let (most, max) = (Load::PER_SEC_MAX, Capacity::per_sec(1 << 60, 1 << 60).unwrap());
        assert!(max.fits(load(most / 2, most / 2)) && !max.fits(load(most, most)));
        assert_eq!(max.used_by(load(most / 4, 0)).to_string(), "25%");
        assert_eq!(Load::per_sec(most + 1, 0), None);
    }

    #[test]
    fn share_that_fits_really_fits() {
        let capacity = Capacity::per_sec(1_000, 300).unwrap();
        let (used, more) = (load(500, 60), load(400, 210));
        let share = capacity.share_that_fits(used, more);
        assert!(capacity.fits(used.plus(more.scaled(share))));
        assert_eq!(share.to_string(), "27.2727272%");
        assert_eq!(Capacity::CLOSED.share_that_fits(Load::NONE, more), Share::ZERO);
    }

    #[test]
    fn load_of_others_leaves_what_it_does_not_cost() {
        let capacity = Capacity::per_sec(1_000, 500).unwrap();
        // 300 reads and 50 writes cost 40 %
        let left = capacity.less(load(300, 50));
        assert_eq!((left.read_per_sec(), left.write_per_sec()), (600, 300));
        assert_eq!(capacity.less(load(1, 0)), Capacity::per_sec(999, 499).unwrap());
        assert_eq!(capacity.less(load(900, 50)), Capacity::CLOSED);
        assert_eq!(capacity.less(load(2_000, 0)), Capacity::CLOSED);
        let most = Capacity::per_sec(1 << 60, 1 << 60).unwrap();
        assert_eq!(most.less(load(1 << 60, 1 << 60)), Capacity::CLOSED);
    }

    #[test]
    fn best_effort_share_stays_outside() {
        let share = Share::ratio(15, 100);
        let capacity = Capacity::per_sec(1_000, 500).unwrap().without(share);
        assert_eq!((capacity.read_per_sec(), capacity.write_per_sec()), (850, 425));
    }
}
