//! Virtual time: the unit of start and finish tags.
//!
//! One unit is 2⁻¹⁶ ns of cost at weight 1. A heap key is the tag's low 80 bits above 48 bits of
//! arrival number, so that the earlier arrival wins a tie:
//!
//! ```text
//!   127                          48 47                0
//!   │ tag: cost-ns × 2¹⁶ / weight  │ arrival number   │
//! ```
//!
//! 80 bits hold 1.8·10¹⁹ ns of cost at weight 1: nine years of a device that serves
//! 64 cost-seconds a second, all of it to a single class of weight 1. 48 bits hold
//! nine years of a million requests a second.

use model::{Share, Time, Weight};

/// A point in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualTime(u128);

/// A class's weight here: the rule's weight times the share that this proxy is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EffectiveWeight(u64);

impl EffectiveWeight {
    /// Weight 1 of a class that is not divided over proxies.
    pub(crate) const ONE: EffectiveWeight = EffectiveWeight(1 << PHI_BITS);

    /// The weight of a class with a share of it, for a number of proxies: with equal shares it is
    /// the weight itself.
    pub(crate) fn of(weight: Weight, part: Share, members: u32) -> EffectiveWeight {
        let fine = u128::from(weight.get()) << PHI_BITS;
        if part.is_whole() && members == 1 {
            return EffectiveWeight(fine as u64);
        }
        let granted = fine * u128::from(part.billionths()) * u128::from(members);
        let granted = granted / u128::from(Share::WHOLE.billionths());
        EffectiveWeight((granted as u64).max(PHI_MIN))
    }

    /// The weight in 1024ths.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// How far a class's finish tag may run ahead of v, times its weight. Service beyond its weight
/// counts against a class up to this cost (`LaneState::lag_bound` in lanes/lane.rs).
pub(crate) const LAG_MAX_NS: u64 = 250_000_000;

const FRACTION_BITS: u32 = 16;
const PHI_BITS: u32 = 10;
/// A 16th of weight 1: less would use up virtual time in months.
const PHI_MIN: u64 = 1 << (PHI_BITS - 4);
const NUMBER_BITS: u32 = 48;
/// Beyond this the shift by the fraction would overflow; it is 39 hours of cost.
const COST_MAX_NS: u64 = 1 << 47;

impl VirtualTime {
    /// Where every lane and meter begins.
    pub(crate) const ZERO: VirtualTime = VirtualTime(0);

    /// The point `cost` (ns, or a meter's units) further on for a class of that weight.
    pub(crate) fn after(self, cost: u64, weight: EffectiveWeight) -> VirtualTime {
        VirtualTime(self.0 + span(cost, weight))
    }

    /// The point `cost` earlier, not before zero.
    pub(crate) fn before(self, cost: u64, weight: EffectiveWeight) -> VirtualTime {
        VirtualTime(self.0.saturating_sub(span(cost, weight)))
    }

    /// A heap key: this tag, then the arrival number.
    pub(crate) fn key(self, number: u64) -> u128 {
        self.0 << NUMBER_BITS | u128::from(number & ((1 << NUMBER_BITS) - 1))
    }

    /// The tag in a heap key.
    pub(crate) fn of_key(key: u128) -> VirtualTime {
        VirtualTime(key >> NUMBER_BITS)
    }
}

/// A heap key of real time, then a number.
pub(crate) fn time_key(time: Time, number: u64) -> u128 {
    VirtualTime(u128::from(time.as_nanos())).key(number)
}

/// The time in a key made by [`time_key`].
pub(crate) fn time_of_key(key: u128) -> Time {
    Time::from_nanos((key >> NUMBER_BITS) as u64)
}

/// Rounded up: a cost is never free, however great the weight.
fn span(cost: u64, weight: EffectiveWeight) -> u128 {
    let scaled = cost.min(COST_MAX_NS) << FRACTION_BITS;
    if weight == EffectiveWeight::ONE {
        return scaled.into();
    }
    match scaled.checked_mul(1 << PHI_BITS) {
        Some(fine) => fine.div_ceil(weight.0).into(),
        None => (u128::from(scaled) << PHI_BITS).div_ceil(weight.0.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(weight: Weight) -> EffectiveWeight {
        EffectiveWeight::of(weight, Share::WHOLE, 1)
    }

    #[test]
    fn an_equal_part_leaves_a_weight_as_it_is() {
        let three = Weight::new(3).unwrap();
        assert_eq!(EffectiveWeight::of(three, Share::equal(4), 4), whole(three));
        assert_eq!(
            EffectiveWeight::of(three, Share::ratio(1, 2), 4),
            whole(Weight::new(6).unwrap())
        );
        assert_eq!(EffectiveWeight::of(three, Share::ZERO, 4), EffectiveWeight(PHI_MIN));
    }

    #[test]
    fn a_year_at_weight_one_keeps_keys_in_order() {
        let year = 365 * 24 * 3_600 * 1_000_000_000u128;
        let late = VirtualTime((64 * year) << FRACTION_BITS);
        assert!(late.0 < 1 << 80);
        assert!(late.key(5) < late.after(1, whole(Weight::MAX)).key(0));
        assert_eq!(VirtualTime::of_key(late.key(7)), late);
    }

    #[test]
    fn cost_counts_inversely_to_weight_and_rounds_up() {
        let three = whole(Weight::new(3).unwrap());
        assert_eq!(VirtualTime::default().after(3, three).0, 1 << 16);
        assert_eq!(VirtualTime::default().after(1, three).0, 21_846);
        assert_eq!(VirtualTime::default().after(1, whole(Weight::MAX)).0, 1);
        assert_eq!(VirtualTime::default().after(9, three).before(9, three).0, 0);
        let long = 1 << 46;
        assert_eq!(
            VirtualTime::default().after(3 * long, three),
            VirtualTime::default().after(COST_MAX_NS, three)
        );
        assert_eq!(
            VirtualTime::default().after(long, EffectiveWeight(PHI_MIN)).0,
            1 << (46 + 16 + 4)
        );
    }
}
