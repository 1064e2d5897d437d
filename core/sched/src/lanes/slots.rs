//! Slots: how much of the backend's parallelism a request uses while it runs.
//!
//! Sizes are powers of two, the greatest being D itself. So the ready heads of one size are in one
//! heap, and "which one fits" reads a few heap roots:
//!
//! ```text
//!   size 0 1 2 3 …  ceil(log2 D)          D = 48:  1 2 4 8 16 32 48
//!   slots 1 2 4 8 …  D
//! ```
//!
//! A request that needs more than D slots could never run; it uses D and runs alone.

use model::Nanos;

/// The slots that a request uses: its cost in units, rounded up to a power of two, from 1 to
/// `slots_max`.
///
/// `unit` is what the smallest read costs the device ([`Costs`](crate::Costs)); a unit of
/// zero counts as one nanosecond. `slots_max` is at least 1.
pub fn slots_needed(cost: Nanos, unit: Nanos, slots_max: u32) -> u32 {
    slots_of(size_of(cost.get(), unit.get(), slots_max), slots_max)
}

/// The most sizes there can be: D is a u32.
pub(crate) const SIZES_MAX: usize = 33;

/// The slots of a size where there are `slots_max`.
pub(crate) fn slots_of(size: u8, slots_max: u32) -> u32 {
    1u32.checked_shl(u32::from(size)).map_or(slots_max, |slots| slots.min(slots_max))
}

/// The size of a request that costs `cost` where the smallest costs `unit`.
pub(crate) fn size_of(cost: u64, unit: u64, slots_max: u32) -> u8 {
    let unit = unit.max(1);
    let mut size = 0;
    while size < largest(slots_max) && unit << size < cost {
        size += 1;
    }
    size
}

/// The size that uses all of `slots_max`.
pub(crate) fn largest(slots_max: u32) -> u8 {
    (u32::BITS - (slots_max.max(1) - 1).leading_zeros()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_and_the_last_is_everything() {
        let sizes: Vec<u32> = (0..=largest(48)).map(|size| slots_of(size, 48)).collect();
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 48]);
        assert_eq!((largest(1), largest(64), largest(u32::MAX)), (0, 6, 32));
        assert_eq!(slots_of(32, u32::MAX), u32::MAX);
    }

    #[test]
    fn a_request_larger_than_the_device_holds_all_of_it() {
        assert_eq!(size_of(20, 20, 8), 0);
        assert_eq!(size_of(21, 20, 8), 1);
        assert_eq!(size_of(80, 20, 8), 2);
        assert_eq!(size_of(20_000, 20, 8), 3);
        assert_eq!(slots_of(size_of(20_000, 20, 10), 10), 10);
    }

    #[test]
    fn a_request_holds_its_cost_in_units_as_a_power_of_two() {
        let unit = Nanos::from_micros(20);
        let held = [0, 1, 20, 21, 80, 81, 20_000];
        let held = held.map(|us| slots_needed(Nanos::from_micros(us), unit, 48));
        assert_eq!(held, [1, 1, 1, 2, 4, 8, 48]);
        assert_eq!(slots_needed(Nanos::new(u64::MAX), Nanos::ZERO, 1), 1);
    }
}
