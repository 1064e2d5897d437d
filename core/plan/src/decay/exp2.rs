//! Powers of two with negative exponents, in whole numbers.
//!
//! ```text
//!   2^−(w + f),  f = 0.b₁b₂b₃…  ─►  2^−w · 2^−b₁/2 · 2^−b₂/4 · 2^−b₃/8 · …
//! ```
//!
//! An account that is restored from its ledger, on another machine or by another compiler, is the
//! same to the byte. A floating-point `exp2` of the system's library would not guarantee that.

/// A fraction from 0 to 1, in 2⁻⁶³.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fraction(u64);

impl Fraction {
    /// 2 to the power of −(num/den), rounded down by less than 2⁻²⁶ of itself. `den` is above 0.
    pub(crate) fn half_to(num: u64, den: u64) -> Fraction {
        let whole = num / den;
        if whole >= 63 {
            return Fraction(0);
        }
        let bits = (u128::from(num % den) << ROOTS.len()) / u128::from(den);
        let mut power = 1u128 << 63;
        for (at, root) in ROOTS.iter().enumerate() {
            if bits >> (ROOTS.len() - 1 - at) & 1 == 1 {
                power = (power * u128::from(*root)) >> 63;
            }
        }
        Fraction((power >> whole) as u64)
    }

    /// This fraction of an amount, rounded down.
    pub(crate) fn of(self, amount: u64) -> u64 {
        ((u128::from(amount) * u128::from(self.0)) >> 63) as u64
    }
}

/// The logarithm to base 2 of num/den in thousandths, rounded down; 0 where that is not above 1.
pub(crate) fn log2_milli(num: u64, den: u64) -> u64 {
    if num <= den || den == 0 {
        return 0;
    }
    let mut whole = (num / den).ilog2();
    // From 1 to 2, in 2⁻³².
    let mut rest = ((u128::from(num) << 32) / u128::from(den)) >> whole;
    if rest >> 33 != 0 {
        (rest, whole) = (rest >> 1, whole + 1);
    }
    let mut bits = 0u64;
    for _ in 0..16 {
        rest = (rest * rest) >> 32;
        let over = (rest >> 33) as u64;
        rest >>= over;
        bits = bits << 1 | over;
    }
    u64::from(whole) * 1000 + ((bits * 1000) >> 16)
}

/// 2^(−1/2), 2^(−1/4), 2^(−1/8), … in 2⁻⁶³.
const ROOTS: [u64; 32] = [
    6521908912666391106,
    7755900482342532474,
    8457869449776733335,
    8832331321595618838,
    9025734193507008925,
    9124017994966720698,
    9173560510430823462,
    9198432556164277331,
    9210893855724328809,
    9217130834664616070,
    9220250907674776491,
    9221811340221203999,
    9222591655524303666,
    9222981837935769002,
    9223176935331786073,
    9223274485577403901,
    9223323261087119913,
    9223347648938705290,
    9223359842888679895,
    9223365939869712687,
    9223368988361740456,
    9223370512608132184,
    9223371274731422509,
    9223371655793091287,
    9223371846323931579,
    9223371941589353202,
    9223371989222064382,
    9223372013038420064,
    9223372024946597928,
    9223372030900686866,
    9223372033877731337,
    9223372035366253572,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_tables() {
        const TEN_18: u64 = 1_000_000_000_000_000_000;
        for (num, den, wanted) in [
            (0, 1, TEN_18),
            (1, 1, TEN_18 / 2),
            (1, 2, 707_106_781_186_547_524),
            (1, 3, 793_700_525_984_099_737),
            (10, 4, 176_776_695_296_636_881),
            (7_200, 3_600, TEN_18 / 4),
            (1, 1_440, 999_518_764_640_493_012),
        ] {
            let got = Fraction::half_to(num, den).of(TEN_18);
            assert!(got.abs_diff(wanted) <= wanted >> 26, "2^-({num}/{den}): {got}, not {wanted}");
        }
        assert_eq!(Fraction::half_to(63, 1).of(u64::MAX), 0);
    }

    #[test]
    fn logarithms_undo_powers() {
        for (num, den, wanted) in [
            (1, 1, 0),
            (1, 2, 0),
            (2, 1, 1000),
            (3, 2, 584),
            (1_000, 1, 9965),
            (2_120_000, 1_000_000, 1084),
        ] {
            assert_eq!(log2_milli(num, den), wanted, "{num}/{den}");
        }
    }
}
