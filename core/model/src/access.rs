//! Statistics of reads or writes: their sizes, and whether they followed one another.
//!
//! ```text
//!   bytes moved  <4 KiB │ <64 KiB │ <1 MiB │ more      one count each
//!   where        at the end of a recent one through the same open file, or not: random
//! ```
//!
//! Only requests that reach a server are counted. A mount that gathers small writes before it sends
//! them shows fewer and larger ones than its programs made.

use serde::{Deserialize, Serialize};

/// Reads or writes by size and order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accesses {
    /// How many moved less than 4 KiB, less than 64 KiB, less than 1 MiB, and more.
    pub sizes: [u64; Accesses::SIZES],
    /// How many did not begin where a recent one through the same open file ended. An access without
    /// an offset, such as an append, is not counted as random.
    pub random: u64,
}

impl Accesses {
    /// The number of size classes.
    pub const SIZES: usize = 4;
    /// The upper bounds of the first three size classes, in bytes.
    pub const BOUNDS: [u64; Accesses::SIZES - 1] = [4 << 10, 64 << 10, 1 << 20];

    /// Counts one access of this length; an access that moved nothing is not counted.
    pub fn count(&mut self, bytes: u64, random: bool) {
        if bytes > 0 {
            let size = Accesses::BOUNDS.iter().filter(|bound| bytes >= **bound).count();
            self.sizes[size] += 1;
            self.random += u64::from(random);
        }
    }

    /// The number of all accesses.
    pub fn all(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The number of accesses below 64 KiB.
    pub fn small(&self) -> u64 {
        self.sizes[0].saturating_add(self.sizes[1])
    }

    /// The counts as numbers: the sizes, then the random ones.
    pub const fn fields(&self) -> [u64; Accesses::SIZES + 1] {
        let [a, b, c, d] = self.sizes;
        [a, b, c, d, self.random]
    }

    /// Restores the counts from [`Accesses::fields`].
    pub const fn from_fields([a, b, c, d, random]: [u64; Accesses::SIZES + 1]) -> Accesses {
        Accesses { sizes: [a, b, c, d], random }
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &Accesses) {
        let mut fields = self.fields();
        for (field, more) in fields.iter_mut().zip(other.fields()) {
            *field = field.saturating_add(more);
        }
        *self = Accesses::from_fields(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_access_has_one_size_and_may_be_random() {
        let mut accesses = Accesses::default();
        for bytes in [0, 1, 4_095, 4_096, 65_535, 65_536, (1 << 20) - 1, 1 << 20, 1 << 30] {
            accesses.count(bytes, bytes % 2 == 1);
        }
        assert_eq!(accesses, Accesses { sizes: [2, 2, 2, 2], random: 4 });
        assert_eq!((accesses.all(), accesses.small()), (8, 4));
        let mut twice = accesses;
        twice.add(&Accesses::from_fields(accesses.fields()));
        assert_eq!(twice, Accesses { sizes: [4; 4], random: 8 });
    }
}
