//! How one limit is divided over the proxies: Algorithm 2, and better than equal shares where a
//! proxy needs less.
//!
//! ```text
//!   all that may be given ─┬─ idle proxies: σ together, so that they can begin
//!                          └─ active ones, by need:  ████        takes what it needs
//!                                                    ███████████ the rest is filled up
//!                                                    ███████████ to one level (max-min)
//! ```
//!
//! With K of N proxies active, R the limit and σ what the idle ones keep, Algorithm 2 of the global
//! rate limit gives each active one (R − σ)/K and each idle one σ/(N − K). Two cases are missing
//! where it was printed: K = 0, where each has R/N, and K = N, where σ is 0.

use model::{Share, SlotsClaim};

/// A proxy's need of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The proxy moved nothing and has no queue.
    Idle,
    /// This share is enough.
    AtMost(Share),
    /// Requests wait at the proxy: it takes whatever share it can get.
    Unbounded,
}

/// Computes the share of each proxy, in the order of `wants`: together at most `pool`. `least` is
/// the least share of an idle proxy, one unit a second, while that is less than an equal share.
pub(crate) fn split(pool: Share, least: Share, wants: &[Want]) -> Vec<Share> {
    let members = wants.len() as u32;
    let active = wants.iter().filter(|want| **want != Want::Idle).count() as u32;
    let idle = members - active;
    let equal = pool.shared_by(members);
    if active == 0 {
        return vec![equal; wants.len()];
    }
    let each_idle = SIGMA.shared_by(idle).max(least).min(equal);
    let rest = if idle == 0 { pool } else { pool.less(each_idle.times(idle)) };
    let mut parts = fill(rest, active, each_idle, wants);
    for (part, want) in parts.iter_mut().zip(wants) {
        if *want == Want::Idle {
            *part = each_idle;
        }
    }
    parts
}

/// Computes the share of each proxy of a target's slots, in the order of `needs`: together at most
/// `pool`. Each has the least share, and what its reservations need; if that is more than there is,
/// all are cut in the same proportion. The rest goes by the weights of classes, as it does within a
/// dispatcher: at a common level of service for each unit of weight a proxy has that level for its
/// classes without a reservation, and for the others that level or their reservation, whichever is
/// more. No proxy has more than it wants until all have that. Of what goes by weight only the part
/// `by_weight` is given out.
pub(crate) fn split_slots(
    pool: Share,
    by_weight: Share,
    needs: &[(Want, SlotsClaim)],
) -> Vec<Share> {
    let members = needs.len() as u32;
    let is_active = |(want, _): &&(Want, SlotsClaim)| *want != Want::Idle;
    let active = needs.iter().filter(is_active).count() as u32;
    if active == 0 {
        return vec![pool.shared_by(members); needs.len()];
    }
    let least = SIGMA.min(pool).shared_by(members);
    let rest = u128::from(pool.less(least.times(members)).billionths());
    let reserved: u128 = needs.iter().filter(is_active).map(|(_, of)| fixed_of(of)).sum();
    let sum_at =
        |level: u64| -> u128 { needs.iter().map(|need| served_at(need, rest, level)).sum() };
    let level = (0..u64::BITS).rev().fold(0, |level, bit| {
        let higher = level | 1 << bit;
        if sum_at(higher) <= rest { higher } else { level }
    });
    let extra = rest.saturating_sub(sum_at(u64::MAX)) / u128::from(active);
    let part = |need: &(Want, SlotsClaim)| {
        let (want, claim) = need;
        let more = match *want {
            Want::Idle => 0,
            _ if reserved > rest => fixed_of(claim) * rest / reserved,
            _ => {
                let beyond = served_at(need, rest, level) - fixed_of(claim) + extra;
                fixed_of(claim) + u128::from(round_down(by_weight.of(beyond as u64)))
            }
        };
        least.plus(Share::ratio(more as u64, WHOLE))
    };
    needs.iter().map(part).collect()
}

/// What a proxy is served at a level of service for each 2^32 units of weight, of `most` in all.
fn served_at(need: &(Want, SlotsClaim), most: u128, level: u64) -> u128 {
    let (want, claim) = need;
    let fixed = fixed_of(claim);
    let most = match want {
        Want::Idle => return 0,
        Want::AtMost(part) => fixed.max(part.billionths().into()),
        Want::Unbounded => fixed.max(most),
    };
    let of = |weight: u64| (u128::from(weight) * u128::from(level)) >> 32;
    let served = of(claim.weight).saturating_add(fixed.max(of(claim.reserved_weight)));
    served.clamp(fixed, most)
}

fn fixed_of(claim: &SlotsClaim) -> u128 {
    claim.reserved.billionths().into()
}

/// A number to seven significant bits, rounded up: small changes of what proxies claim move no shares.
pub(crate) fn round_up(amount: u64) -> u64 {
    let down = round_down(amount);
    if down == amount { amount } else { down.saturating_add(1 << magnitude(amount)) }
}

fn round_down(amount: u64) -> u64 {
    amount >> magnitude(amount) << magnitude(amount)
}

/// The bits of a number behind its seven most significant ones.
fn magnitude(amount: u64) -> u32 {
    (u64::BITS - amount.leading_zeros()).saturating_sub(7)
}

/// Divides by max-min: the least need first. What remains in the end is divided equally.
fn fill(pool: Share, active: u32, floor: Share, wants: &[Want]) -> Vec<Share> {
    let need = |want: &Want| match want {
        Want::Idle => None,
        Want::AtMost(part) => Some((*part).max(floor)),
        Want::Unbounded => Some(Share::WHOLE),
    };
    let mut order: Vec<(Share, usize)> = wants
        .iter()
        .enumerate()
        .filter_map(|(at, want)| need(want).map(|need| (need, at)))
        .collect();
    order.sort_unstable();
    let mut parts = vec![Share::ZERO; wants.len()];
    let mut left = pool;
    for (before, (need, at)) in order.iter().enumerate() {
        let level = left.shared_by(active - before as u32);
        if *need >= level {
            // All that are left need as much or more: they get equal shares.
            order[before..].iter().for_each(|(_, at)| parts[*at] = level);
            return parts;
        }
        parts[*at] = *need;
        left = left.less(*need);
    }
    let extra = left.shared_by(active);
    for (_, at) in &order {
        parts[*at] = parts[*at].plus(extra);
    }
    parts
}

const WHOLE: u64 = Share::WHOLE.billionths() as u64;
/// What idle proxies keep together: 0.5 %.
const SIGMA: Share = Share::ratio(5, 1000);

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a limit of `rate` that each proxy has.
    fn rates(rate: u64, wants: &[Want]) -> Vec<u64> {
        let parts = split(Share::WHOLE, Share::ratio(1, rate), wants);
        let sum: u64 = parts.iter().map(|part| u64::from(part.billionths())).sum();
        assert!(sum <= 1_000_000_000, "{parts:?}");
        parts.iter().map(|part| part.of(rate)).collect()
    }

    fn of(percent: u64) -> Want {
        Want::AtMost(Share::ratio(percent, 100))
    }

    #[test]
    fn the_trace_of_the_source_is_divided_as_printed() {
        use Want::{Idle, Unbounded};
        assert_eq!(rates(200, &[Idle, Idle]), [100, 100]);
        assert_eq!(rates(200, &[Unbounded, Unbounded]), [100, 100]);
        assert_eq!(rates(200, &[Idle, Unbounded]), [1, 199]);
    }

    #[test]
    fn with_equal_demand_it_is_algorithm_2_exactly() {
        for members in 1..=12u64 {
            for active in 0..=members {
                for rate in [100u64, 200, 1_000, 6_000, 1_000_000] {
                    let wants: Vec<Want> = (0..members)
                        .map(|at| if at < active { Want::Unbounded } else { Want::Idle })
                        .collect();
                    let idle = members - active;
                    // In billionths of the rate, as printed but for K = 0 and K = N.
                    let whole = 1_000_000_000u64;
                    let sigma =
                        (whole / 200).max(idle * (whole / rate)).min(whole / members * idle);
                    let parts = split(Share::WHOLE, Share::ratio(1, rate), &wants);
                    for (at, part) in parts.iter().enumerate() {
                        let printed = match (active, (at as u64) < active) {
                            (0, _) => whole / members,
                            (_, true) if idle == 0 => whole / active,
                            (_, true) => (whole - sigma) / active,
                            (_, false) => sigma / idle,
                        };
                        let off = u64::from(part.billionths()).abs_diff(printed);
                        assert!(
                            off <= members,
                            "{active} of {members} at {rate}: {part} {printed}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn who_needs_less_leaves_the_rest_to_the_others() {
        use Want::{Idle, Unbounded};
        assert_eq!(rates(1000, &[of(10), Unbounded, Unbounded]), [100, 450, 450]);
        assert_eq!(rates(1000, &[of(10), of(20), Unbounded]), [100, 200, 700]);
        assert_eq!(rates(1000, &[of(50), of(40), Unbounded]), [333, 333, 333]);
        assert_eq!(rates(1000, &[of(10), Unbounded, Idle]), [100, 895, 5]);
        assert_eq!(rates(1000, &[of(10), of(30)]), [400, 600], "what no proxy needs is divided");
    }

    /// The percentages of the slots where each proxy needs what is given: reserved, weight with a
    /// reservation, weight without.
    fn slots(needs: &[(Want, u64, u64, u64)]) -> Vec<u64> {
        let claim = |&(want, reserved, reserved_weight, weight): &(Want, u64, u64, u64)| {
            let reserved = Share::ratio(reserved, 100);
            (want, SlotsClaim { reserved, reserved_weight, weight, ..SlotsClaim::default() })
        };
        let needs: Vec<_> = needs.iter().map(claim).collect();
        let parts = split_slots(Share::WHOLE, Share::WHOLE, &needs);
        let sum: u64 = parts.iter().map(|part| u64::from(part.billionths())).sum();
        assert!(sum <= 1_000_000_000, "{parts:?}");
        parts.iter().map(|part| part.of_rounded_up(100)).collect()
    }

    #[test]
    fn slots_are_what_is_reserved_and_then_by_weight_as_within_a_dispatcher() {
        use Want::{Idle, Unbounded};
        assert_eq!(slots(&[(Idle, 0, 0, 0), (Idle, 0, 0, 0)]), [50, 50]);
        let rest = [(Unbounded, 60, 1, 0), (Unbounded, 0, 0, 1), (Unbounded, 0, 0, 3)];
        assert_eq!(slots(&rest), [61, 11, 30]);
        // By its weight the first has more than what is reserved for it.
        assert_eq!(slots(&[(Unbounded, 10, 3, 0), (Unbounded, 0, 0, 1)]), [75, 25]);
        // A class with a reservation and one without at the same proxy.
        assert_eq!(slots(&[(Unbounded, 50, 1, 1), (Unbounded, 0, 0, 1)]), [75, 25]);
        assert_eq!(
            slots(&[(Unbounded, 20, 1, 0), (of(10), 0, 0, 1), (Idle, 0, 0, 0)]),
            [89, 11, 1]
        );
    }

    #[test]
    fn only_what_goes_by_weight_is_squeezed() {
        let claim = |reserved: u64, weight| {
            let reserved = Share::ratio(reserved, 100);
            (Want::Unbounded, SlotsClaim { reserved, weight, ..SlotsClaim::default() })
        };
        let parts = split_slots(Share::WHOLE, Share::ratio(1, 4), &[claim(60, 0), claim(0, 1)]);
        let percent: Vec<u64> = parts.iter().map(|part| part.of_rounded_up(100)).collect();
        assert_eq!(percent, [61, 11]);
    }

    #[test]
    fn reservations_beyond_the_slots_are_cut_in_proportion_and_nobody_has_nothing() {
        use Want::Unbounded;
        let parts = slots(&[(Unbounded, 90, 1, 0), (Unbounded, 45, 1, 0), (Unbounded, 0, 0, 1)]);
        assert_eq!(parts, [67, 34, 1]);
    }

    #[test]
    fn a_limit_smaller_than_the_members_is_never_exceeded() {
        use Want::{Idle, Unbounded};
        let wants = [&[Unbounded][..], &[Idle; 9]].concat();
        let parts = split(Share::WHOLE, Share::ratio(1, 5), &wants);
        assert_eq!(parts, [Share::equal(10); 10]);
    }
}
