//! Numbers by chance that a seed repeats.

/// A die: xorshift64* (G. Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003;
/// S. Vigna, ACM Transactions on Mathematical Software 42(4), 2016).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The one of this seed; neighbouring seeds have nothing in common.
    pub fn new(seed: u64) -> Dice {
        // None is 0.
        Dice((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    /// One of them; there is one.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// Returns `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}
