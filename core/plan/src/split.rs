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

use model::Share;

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

    #[test]
    fn a_limit_smaller_than_the_members_is_never_exceeded() {
        use Want::{Idle, Unbounded};
        let wants = [&[Unbounded][..], &[Idle; 9]].concat();
        let parts = split(Share::WHOLE, Share::ratio(1, 5), &wants);
        assert_eq!(parts, [Share::equal(10); 10]);
    }
}
