//! Amounts, rates and weights, and the text people write for them.
//!
//! `4MiB`, `500MB/s`, `100ops/s`: decimal prefixes count in thousands, binary
//! ones (`Ki`, `Mi`, …) in 1024s. A space before the unit is accepted, none is printed.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use crate::time::Nanos;

/// An amount of data in bytes; the text form is `512B`, `64KiB`, `4MiB`, `1.5GB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// A number of backend operations; the text form is `100ops`, `5kops`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ops(u64);

/// The amount of a request: both its bytes and its backend operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Payload moved, zero for metadata.
    pub bytes: Bytes,
    /// Backend operations; an entry returned with attributes is one.
    pub ops: Ops,
}

/// A rate that is never zero; the text form is `500MB/s` or `100ops/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// A rate in bytes per second.
    Bytes(NonZeroU64),
    /// Backend operations per second.
    Ops(NonZeroU64),
}

/// A class's relative claim on the service: 1 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Bytes {
    /// An amount of no bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// An amount of `count` bytes.
    pub const fn new(count: u64) -> Bytes {
        Bytes(count)
    }

    /// An amount of `count` times 1024 bytes.
    pub const fn kib(count: u64) -> Bytes {
        Bytes(count << 10)
    }

    /// An amount of `count` times 1024² bytes.
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// The amount as a plain count of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Ops {
    /// A number of `count` operations.
    pub const fn new(count: u64) -> Ops {
        Ops(count)
    }

    /// The amount as a plain count.
    pub const fn get(self) -> u64 {
        self.0
    }
}

macro_rules! adds_up {
    ($type:ident) => {
        impl Add for $type {
            type Output = $type;
            fn add(self, other: $type) -> $type {
                $type(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $type {
            fn add_assign(&mut self, other: $type) {
                *self = *self + other;
            }
        }
        impl Sub for $type {
            type Output = $type;
            fn sub(self, other: $type) -> $type {
                $type(self.0.saturating_sub(other.0))
            }
        }
    };
}
adds_up!(Bytes);
adds_up!(Ops);

impl Amount {
    /// An amount of `bytes` bytes moved by `ops` operations.
    pub const fn new(bytes: u64, ops: u64) -> Amount {
        Amount { bytes: Bytes(bytes), ops: Ops(ops) }
    }
}

impl Rate {
    /// Bytes per second; `None` for zero.
    pub const fn bytes_per_sec(count: u64) -> Option<Rate> {
        match NonZeroU64::new(count) {
            Some(count) => Some(Rate::Bytes(count)),
            None => None,
        }
    }

    /// Operations per second; `None` for zero.
    pub const fn ops_per_sec(count: u64) -> Option<Rate> {
        match NonZeroU64::new(count) {
            Some(count) => Some(Rate::Ops(count)),
            None => None,
        }
    }

    /// Whether it counts bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(self, Rate::Bytes(_))
    }

    /// A rate of the same unit; `None` for zero.
    pub const fn with_per_sec(self, count: u64) -> Option<Rate> {
        match self {
            Rate::Bytes(_) => Rate::bytes_per_sec(count),
            Rate::Ops(_) => Rate::ops_per_sec(count),
        }
    }

    /// Units (bytes or operations) per second.
    pub const fn per_sec(self) -> u64 {
        match self {
            Rate::Bytes(count) | Rate::Ops(count) => count.get(),
        }
    }

    /// The part of `amount` that this rate counts: its bytes or its operations.
    pub const fn units_of(self, amount: Amount) -> u64 {
        match self {
            Rate::Bytes(_) => amount.bytes.0,
            Rate::Ops(_) => amount.ops.0,
        }
    }

    /// How long `units` take at this rate, rounded up so that no request goes early.
    pub const fn time_for(self, units: u64) -> Nanos {
        let nanos = (units as u128 * 1_000_000_000).div_ceil(self.per_sec() as u128);
        Nanos::new(if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 })
    }

    /// How many whole units fit into `span`, rounded down, and the rest in units × 10⁻⁹, to be
    /// passed back as `rest`.
    pub const fn amount_in(self, span: Nanos, rest: u64) -> (u64, u64) {
        let total = span.get() as u128 * self.per_sec() as u128 + rest as u128;
        ((total / 1_000_000_000) as u64, (total % 1_000_000_000) as u64)
    }
}

impl Weight {
    /// The weight of a rule that names none.
    pub const ONE: Weight = Weight(1);
    /// The greatest weight of a rule.
    pub const MAX: Weight = Weight(1_000_000);

    /// A weight; `None` outside 1 to 1,000,000.
    pub const fn new(weight: u32) -> Option<Weight> {
        if weight >= 1 && weight <= Weight::MAX.0 { Some(Weight(weight)) } else { None }
    }

    /// The weight as a plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

// ---- text forms ----

/// The error of a text that is not an amount, rate or span.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {want}")]
pub struct ParseUnitError {
    text: String,
    want: &'static str,
}

impl ParseUnitError {
    pub(crate) fn new(text: &str, want: &'static str) -> ParseUnitError {
        ParseUnitError { text: text.into(), want }
    }
}

/// A non-negative decimal number with up to nine places, kept exactly.
pub(crate) struct Decimal {
    billionths: u128,
}

impl Decimal {
    pub(crate) fn is_zero(&self) -> bool {
        self.billionths == 0
    }

    /// The number times `unit`, if that is a whole number that fits.
    pub(crate) fn times(
        &self,
        unit: u64,
        text: &str,
        want: &'static str,
    ) -> Result<u64, ParseUnitError> {
        let product = self.billionths.checked_mul(u128::from(unit));
        let whole = product.map(|p| p / 1_000_000_000).and_then(|p| u64::try_from(p).ok());
        whole.ok_or_else(|| ParseUnitError::new(text, want))
    }
}

/// Splits `1.5 MiB` into its number and its unit.
pub(crate) fn split_number<'t>(
    text: &'t str,
    want: &'static str,
) -> Result<(Decimal, &'t str), ParseUnitError> {
    let wrong = || ParseUnitError::new(text, want);
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 9 || digits.ends_with('.') {
        return Err(wrong());
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let fraction: u128 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    Ok((Decimal { billionths: whole * 1_000_000_000 + fraction }, unit.trim_start()))
}

const SIZES: [(&str, u64); 11] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

const COUNTS: [(&str, u64); 3] = [("Mops", 1_000_000), ("kops", 1_000), ("ops", 1)];

fn print_with(
    f: &mut fmt::Formatter<'_>,
    count: u64,
    units: &[(&str, u64)],
    after: &str,
) -> fmt::Result {
    let fits = |size: u64| count >= size && count.is_multiple_of(size);
    let best = units.iter().filter(|(_, size)| fits(*size)).max_by_key(|(_, size)| *size);
    let (name, size) = best.or(units.last()).expect("every table of units ends with the unit one");
    write!(f, "{}{name}{after}", count / size)
}

fn parse_with(
    text: &str,
    unit: &str,
    number: &Decimal,
    units: &[(&str, u64)],
    want: &'static str,
) -> Result<Option<u64>, ParseUnitError> {
    // `KB` is what many people write for kB; nothing else is ambiguous enough to guess.
    let unit = if unit == "KB" { "kB" } else { unit };
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, size)) => number.times(*size, text, want).map(Some),
        None => Ok(None),
    }
}

const WANT_BYTES: &str = "an amount of data such as 64KiB, 4MiB or 1GB";
const WANT_OPS: &str = "a number of operations such as 100ops or 5kops";
const WANT_RATE: &str = "a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s";
const WANT_WEIGHT: &str = "a weight from 1 to 1000000";

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_with(f, self.0, &SIZES, "")
    }
}

impl FromStr for Bytes {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Bytes, ParseUnitError> {
        let (number, unit) = split_number(text, WANT_BYTES)?;
        let count = parse_with(text, unit, &number, &SIZES, WANT_BYTES)?;
        count.map(Bytes).ok_or_else(|| ParseUnitError::new(text, WANT_BYTES))
    }
}

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_with(f, self.0, &COUNTS, "")
    }
}

impl FromStr for Ops {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Ops, ParseUnitError> {
        let (number, unit) = split_number(text, WANT_OPS)?;
        let count = parse_with(text, unit, &number, &COUNTS, WANT_OPS)?;
        count.map(Ops).ok_or_else(|| ParseUnitError::new(text, WANT_OPS))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Bytes(count) => print_with(f, count.get(), &SIZES, "/s"),
            Rate::Ops(count) => print_with(f, count.get(), &COUNTS, "/s"),
        }
    }
}

impl FromStr for Rate {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Rate, ParseUnitError> {
        let wrong = || ParseUnitError::new(text, WANT_RATE);
        let (number, unit) = split_number(text, WANT_RATE)?;
        let unit = unit.strip_suffix("/s").ok_or_else(wrong)?.trim_end();
        if let Some(count) = parse_with(text, unit, &number, &SIZES, WANT_RATE)? {
            return Rate::bytes_per_sec(count).ok_or_else(wrong);
        }
        let count = parse_with(text, unit, &number, &COUNTS, WANT_RATE)?;
        count.and_then(Rate::ops_per_sec).ok_or_else(wrong)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Weight {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Weight, ParseUnitError> {
        let weight = text.trim().parse().ok().and_then(Weight::new);
        weight.ok_or_else(|| ParseUnitError::new(text, WANT_WEIGHT))
    }
}

/// Gives a type that parses and prints the same text a serde form of that text.
///
/// The second argument says what is expected, for errors.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty, $want:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($want)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                from.deserialize_str(Text)
            }
        }
    };
}

serde_as_text!(Bytes, WANT_BYTES);
serde_as_text!(Ops, WANT_OPS);
serde_as_text!(Rate, WANT_RATE);

impl serde::Serialize for Weight {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Weight {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = <i64 as serde::Deserialize>::deserialize(from)?;
        let weight = u32::try_from(number).ok().and_then(Weight::new);
        weight.ok_or_else(|| serde::de::Error::custom(format!("{number} is not {WANT_WEIGHT}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_rates_parse_and_print_both_ways() {
        for text in ["0B", "512B", "64KiB", "4MiB", "1GB", "1001B", "3PiB"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        for text in ["500MB/s", "1GiB/s", "100ops/s", "5kops/s", "1B/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("1.5 GiB".parse::<Bytes>().unwrap(), Bytes::mib(1536));
        assert_eq!("100 ops/s".parse::<Rate>().unwrap(), Rate::ops_per_sec(100).unwrap());
    }

    #[test]
    fn nonsense_is_named_with_what_would_be_right() {
        for text in ["", "MB/s", "5", "-1MB/s", "0MB/s", "1.MB/s", "99999999999PB/s", "5MB"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is not {WANT_RATE}"));
        }
        assert!("0".parse::<Weight>().is_err());
        assert!("1000001".parse::<Weight>().is_err());
    }

    #[test]
    fn time_for_rounds_up_and_amount_in_keeps_the_rest() {
        let three = Rate::ops_per_sec(3).unwrap();
        assert_eq!(three.time_for(1), Nanos::new(333_333_334));
        let (units, rest) = three.amount_in(Nanos::new(333_333_333), 0);
        assert_eq!((units, rest), (0, 999_999_999));
        assert_eq!(three.amount_in(Nanos::new(1), rest), (1, 2));
    }
}
