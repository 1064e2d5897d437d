//! Shares: how much of what the rules grant over all proxies one proxy gives out.
//!
//! ```text
//!   limit 200ops/s ──┬─ proxy a: share 99.5% ─► 199/s       a + b + … ≤ 1, whatever happens
//!                    └─ proxy b: share  0.5% ─►   1/s
//! ```
//!
//! A share is a whole number of ppb, so shares add up exactly. It scales a class's limit,
//! reservation and weight alike; a rule that changes needs no new shares.

use std::fmt;

use crate::{Scope, TargetId};

/// A share of what a rule, meter or decay grants over all proxies: from nothing to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

/// Of what a grant gives a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharePool {
    /// Of limits, those of decays included, which are one over all targets.
    Limits,
    /// Of the reservations and weights at one target.
    Target(TargetId),
}

/// A change of the grants of one proxy; what it does not name stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The number of proxies. A class's weight is multiplied by its share and by this, so that
    /// equal shares leave weights as the rules have them. At least 1.
    pub proxies: u32,
    /// The share of each unlisted scope.
    pub unlisted: Share,
    /// The scopes whose share changed; `None` ends the listing of its scope.
    pub listed: Vec<(Scope, Option<Share>)>,
}

/// One proxy's usage of one scope since it was taken last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeUsage {
    /// The usage, as a fraction of what the whole limit or reservation lets through in that time,
    /// at most the whole. `None` where there is neither and only the weight is divided.
    pub used: Option<Share>,
    /// Whether requests wait for more than the proxy's share.
    pub waiting: bool,
}

/// A proxy's need of the slots of a target. Its classes are those with requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotsClaim {
    /// The part of the device's time that its reservations need.
    pub reserved: Share,
    /// The weights of its classes with a reservation, in sum, as its dispatcher divides by them.
    pub reserved_weight: u64,
    /// The weights of its other classes, in sum.
    pub weight: u64,
    /// The part of the device's time that was used.
    pub used: Share,
    /// Whether requests wait for slots.
    pub waiting: bool,
    /// Whether its reservations are served their rates.
    pub lag: ReservationLag,
}

/// Whether a reservation is served its rate. Of several reservations the greatest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservationLag {
    /// It is, or asks for less, or other requests are not the reason.
    #[default]
    None,
    /// It was served less, and is served its rate or more now.
    CatchingUp,
    /// It is served less.
    Growing,
}

/// What a reservation was owed and served while its requests waited, in units of its rate. Other times
/// do not count: a job that asks for less than it has reserved is not served too little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitedService {
    /// What its rate, or the share of it here, gives in that time.
    pub owed: u64,
    /// What its requests were served in that time, also those that went by weight.
    pub served: u64,
}

impl WaitedService {
    /// The sum of both.
    pub const fn plus(self, other: WaitedService) -> WaitedService {
        WaitedService {
            owed: self.owed.saturating_add(other.owed),
            served: self.served.saturating_add(other.served),
        }
    }
}

impl Share {
    /// The share of nothing.
    pub const ZERO: Share = Share(0);
    /// The whole of a grant.
    pub const WHOLE: Share = Share(1_000_000_000);

    /// A share of `count` ppb; `None` for more than the whole.
    pub const fn from_billionths(count: u32) -> Option<Share> {
        if count <= Share::WHOLE.0 { Some(Share(count)) } else { None }
    }

    /// The fraction of two counts, rounded down; the whole where that is more.
    pub const fn ratio(of: u64, all: u64) -> Share {
        if of >= all {
            return Share::WHOLE;
        }
        Share((of as u128 * Share::WHOLE.0 as u128 / all as u128) as u32)
    }

    /// An equal share for each of `count`, rounded down; the whole for none or one.
    pub const fn equal(count: u32) -> Share {
        Share(Share::WHOLE.0 / if count == 0 { 1 } else { count })
    }

    /// The share in ppb.
    pub const fn billionths(self) -> u32 {
        self.0
    }

    /// Whether the share is the whole.
    pub const fn is_whole(self) -> bool {
        self.0 == Share::WHOLE.0
    }

    /// The sum of two shares, at most the whole.
    pub const fn plus(self, other: Share) -> Share {
        let sum = self.0 as u64 + other.0 as u64;
        if sum > Share::WHOLE.0 as u64 { Share::WHOLE } else { Share(sum as u32) }
    }

    /// The difference of two shares, at least nothing.
    pub const fn less(self, other: Share) -> Share {
        Share(self.0.saturating_sub(other.0))
    }

    /// A multiple of this share, at most the whole.
    pub const fn times(self, count: u32) -> Share {
        let product = self.0 as u64 * count as u64;
        if product > Share::WHOLE.0 as u64 { Share::WHOLE } else { Share(product as u32) }
    }

    /// One of `count` equal parts of the share, rounded down; all of it for none or one.
    pub const fn shared_by(self, count: u32) -> Share {
        Share(self.0 / if count == 0 { 1 } else { count })
    }

    /// This share of an amount, rounded up.
    pub const fn of_rounded_up(self, amount: u64) -> u64 {
        (amount as u128 * self.0 as u128).div_ceil(Share::WHOLE.0 as u128) as u64
    }

    /// This share of an amount, rounded down.
    pub const fn of(self, amount: u64) -> u64 {
        (amount as u128 * self.0 as u128 / Share::WHOLE.0 as u128) as u64
    }
}

/// As a percentage: `12.5%`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000_000, format!("{:07}", self.0 % 10_000_000));
        let rest = rest.trim_end_matches('0');
        let point = if rest.is_empty() { "" } else { "." };
        write!(f, "{whole}{point}{rest}%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_never_add_up_to_more_than_the_whole() {
        for count in [1u32, 2, 3, 7, 1000, 999_983] {
            let sum = u64::from(Share::equal(count).billionths()) * u64::from(count);
            assert!(sum <= 1_000_000_000 && sum > 1_000_000_000 - u64::from(count));
        }
    }

    #[test]
    fn a_part_prints_as_a_percentage_and_scales_exactly() {
        let part = Share::ratio(199, 200);
        assert_eq!((part.to_string().as_str(), part.of(200)), ("99.5%", 199));
        assert_eq!(Share::WHOLE.less(part).to_string(), "0.5%");
        assert_eq!(
            (Share::WHOLE.to_string(), Share::ZERO.to_string()),
            ("100%".into(), "0%".into())
        );
        assert_eq!(
            Share::ratio(1, 3).of(u64::MAX),
            (u64::MAX as u128 * 333_333_333 / 1_000_000_000) as u64
        );
    }
}
