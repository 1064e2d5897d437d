//! Usage that a proxy has not reported yet, and whether its report can wait.
//!
//! ```text
//!   each tick: scopes in use, waiting ─┬─ as in the tick before ─► kept: a mean each second
//!                                      └─ changed ─► reported each tick for a second
//! ```
//!
//! The claim of the target's slots goes along: the last one, with the mean of what was used.
//!
//! So a limit that moves follows within a tick. A thousand proxies with steady usage cost their
//! controller one report a second each.

use std::collections::BTreeMap;

use model::{Nanos, Scope, ScopeUsage, Share, SlotsClaim, Time, WaitedService};

/// Usage since the last report, by scope.
#[derive(Debug, Default)]
pub(crate) struct UnreportedUsage {
    sums: BTreeMap<Scope, UsageSum>,
    ticks: u32,
    /// Scopes of the last tick, and whether requests waited there.
    last: Vec<(Scope, bool)>,
    /// The claim of the last tick; the sum of what claims say was used, and whether any waited.
    claim: Option<SlotsClaim>,
    /// What the last claim is compared with: the last one that was new.
    compared: Option<SlotsClaim>,
    is_claim_new: bool,
    slots_used: u64,
    slots_waited: bool,
    /// What reservations were served while their requests waited.
    waited: BTreeMap<Scope, WaitedService>,
    /// The first tick that equalled the last one.
    since: Time,
}

#[derive(Clone, Copy, Debug)]
struct UsageSum {
    /// The sum over all ticks, in ppb.
    used: Option<u64>,
    /// The usage in the last tick.
    waiting: bool,
}

impl UnreportedUsage {
    /// Adds what was used in a tick.
    pub(crate) fn add(&mut self, uses: Vec<(Scope, ScopeUsage)>, now: Time) {
        let same = !self.is_claim_new
            && uses.len() == self.last.len()
            && uses.iter().zip(&self.last).all(|((scope, what), (before, waiting))| {
                what.waiting == *waiting && scope == before
            });
        if !same {
            self.last = uses.iter().map(|(scope, what)| (scope.clone(), what.waiting)).collect();
            self.since = now;
        }
        self.ticks += 1;
        self.sums.values_mut().for_each(|sum| sum.waiting = false);
        for (scope, what) in uses {
            let sum = self.sums.entry(scope).or_insert(UsageSum { used: None, waiting: false });
            let used = what.used.map(|used| u64::from(used.billionths()));
            sum.used = used.map(|used| sum.used.unwrap_or(0) + used).or(sum.used);
            sum.waiting = what.waiting;
        }
    }

    /// Sets the claim of a tick, before its usage is added.
    pub(crate) fn claim(&mut self, claim: Option<SlotsClaim>) {
        let weights = |claim: SlotsClaim| (claim.reserved_weight, claim.weight, claim.lag);
        let reserved = |claim: Option<SlotsClaim>| claim.unwrap_or_default().reserved.billionths();
        let (now, before) = (reserved(claim), reserved(self.compared));
        self.is_claim_new = self.compared.map(weights) != claim.map(weights)
            || now.abs_diff(before) > now.max(before) / 8;
        if self.is_claim_new {
            self.compared = claim;
        }
        self.claim = claim;
        let SlotsClaim { used, waiting, .. } = claim.unwrap_or_default();
        self.slots_used += u64::from(used.billionths());
        self.slots_waited |= waiting;
    }

    /// The claim for the next report. To be taken before its usage.
    pub(crate) fn report_claim(&mut self) -> Option<SlotsClaim> {
        let mean = std::mem::take(&mut self.slots_used) / u64::from(self.ticks.max(1));
        let (used, waiting) =
            (Share::ratio(mean, 1_000_000_000), std::mem::take(&mut self.slots_waited));
        self.claim.filter(|_| self.ticks > 0).map(|claim| SlotsClaim { used, waiting, ..claim })
    }

    /// Adds what reservations were served in a tick while their requests waited.
    pub(crate) fn add_waited(&mut self, all: Vec<(Scope, WaitedService)>) {
        for (scope, waited) in all {
            let sum = self.waited.entry(scope).or_default();
            *sum = sum.plus(waited);
        }
    }

    /// Takes that for the next report.
    pub(crate) fn report_waited(&mut self) -> Vec<(Scope, WaitedService)> {
        std::mem::take(&mut self.waited).into_iter().collect()
    }

    /// Whether nothing was used in the last tick.
    pub(crate) fn is_idle(&self) -> bool {
        self.last.is_empty()
    }

    /// Whether the last ticks were the same for `span`.
    pub(crate) fn is_steady(&self, span: Nanos, now: Time) -> bool {
        now.since(self.since) > span
    }

    /// Takes what was used since the last call, as means over the ticks; `None` if there was none.
    pub(crate) fn report(&mut self) -> Option<Vec<(Scope, ScopeUsage)>> {
        let ticks = u64::from(std::mem::take(&mut self.ticks));
        if ticks == 0 {
            return None;
        }
        let mean = |(scope, sum): (Scope, UsageSum)| {
            let used = sum.used.map(|used| Share::ratio(used / ticks, 1_000_000_000));
            (scope, ScopeUsage { used, waiting: sum.waiting })
        };
        Some(std::mem::take(&mut self.sums).into_iter().map(mean).collect())
    }
}

#[cfg(test)]
mod tests {
    use model::ReservationLag;

    use super::*;

    fn using(used: u32, waiting: bool) -> Vec<(Scope, ScopeUsage)> {
        vec![(Scope::rule("a", &[]), ScopeUsage { used: Share::from_billionths(used), waiting })]
    }

    fn tick(at: u64) -> Time {
        Time::from_nanos(at * 100_000_000)
    }

    #[test]
    fn what_goes_on_is_told_as_a_mean() {
        let mut uses = UnreportedUsage::default();
        (0..10).for_each(|at| uses.add(using(100 + 10 * at, false), tick(at.into())));
        uses.add(Vec::new(), tick(10));
        assert_eq!(uses.report(), Some(using(145 * 10 / 11, false)));
        assert_eq!(uses.report(), None);
        uses.add(Vec::new(), tick(11));
        assert_eq!(uses.report(), Some(vec![]));
    }

    #[test]
    fn a_claim_that_grows_by_more_than_an_eighth_is_new_at_once_or_by_and_by() {
        let second = Nanos::from_secs(1);
        let mut uses = UnreportedUsage::default();
        let mut claim = |at: u64, reserved: u64, lag: ReservationLag| {
            let reserved = Share::ratio(reserved, 1_000);
            uses.claim(Some(SlotsClaim { reserved, lag, ..SlotsClaim::default() }));
            uses.add(using(1, false), tick(at));
            uses.is_steady(second, tick(at))
        };
        let none = ReservationLag::None;
        let steady: Vec<bool> = (0..20).map(|at| claim(at, 600 + at % 2 * 60, none)).collect();
        assert!(!steady[10] && steady[11..].iter().all(|steady| *steady), "{steady:?}");
        assert!(!claim(20, 690, none), "by an eighth of what was reported");
        assert!(claim(40, 700, none));
        assert!(!claim(41, 700, ReservationLag::Growing));
    }

    #[test]
    fn it_is_steady_until_another_scope_is_used_or_somebody_waits() {
        let second = Nanos::from_secs(1);
        let mut uses = UnreportedUsage::default();
        (0..30).for_each(|at| uses.add(using(at, false), tick(at.into())));
        assert!(uses.is_steady(second, tick(30)));
        uses.add(using(7, true), tick(31));
        assert!(!uses.is_steady(second, tick(41)) && uses.is_steady(second, tick(42)));
        uses.add(Vec::new(), tick(50));
        assert!(!uses.is_steady(second, tick(50)), "it stopped");
    }
}
