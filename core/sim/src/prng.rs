//! Reproducible randomness: a generator with a seed.
//!
//! ```text
//!   seed ─► state += golden ratio ─► three rounds of mixing ─► 64 bits     (SplitMix64)
//! ```
//!
//! Each consumer has a generator of its own, so that one more draw by a device does not move the
//! arrivals of a client: two schedulers under one seed see the same clients.

/// SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Prng {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Prng {
    pub(crate) fn new(seed: u64) -> Prng {
        Prng { state: mixed(seed.wrapping_add(GOLDEN)) }
    }

    /// The generator of one of many consumers under a seed.
    pub(crate) fn of(seed: u64, whose: u64) -> Prng {
        Prng::new(mixed(seed) ^ whose.wrapping_mul(GOLDEN))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mixed(self.state)
    }

    /// Evenly from 0 to `bound` - 1; 0 where there is nothing to choose.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Evenly from `low` to `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with a probability in millionths.
    pub(crate) fn chance_ppm(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }

    /// A span by the exponential law, for independent gaps between arrivals.
    ///
    /// The method is J. von Neumann's (1951), which only compares: among even draws the first rise
    /// comes at an even place with probability e^-x if the first draw is x.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0u64;
        loop {
            let first = self.next() >> 32;
            let (mut last, mut length) = (first, 1);
            loop {
                let next = self.next() >> 32;
                if next > last {
                    break;
                }
                (last, length) = (next, length + 1);
            }
            if length % 2 == 1 {
                let units = u128::from(whole) << 32 | u128::from(first);
                return ((units * u128::from(mean)) >> 32) as u64;
            }
            whole += 1;
        }
    }
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let draw = |seed| {
            let mut prng = Prng::new(seed);
            [prng.next(), prng.next(), prng.next()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn even_draws_stay_below_their_bound_and_meet_each_part_alike() {
        let mut prng = Prng::new(1);
        let mut counts = [0u64; 10];
        (0..100_000).for_each(|_| counts[prng.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 400), "{counts:?}");
        assert_eq!(prng.below(0), 0);
    }

    #[test]
    fn exponential_spans_have_their_mean_and_their_median() {
        let mut prng = Prng::new(1);
        let mut spans: Vec<u64> = (0..100_000).map(|_| prng.exponential(1_000_000)).collect();
        let mean = spans.iter().sum::<u64>() / 100_000;
        spans.sort_unstable();
        assert!(mean.abs_diff(1_000_000) < 15_000, "{mean}");
        assert!(spans[50_000].abs_diff(693_147) < 15_000, "ln 2 of the mean: {}", spans[50_000]);
    }
}
