//! Selection of subjects with a line of their own: those that used most lately; all others share
//! one.
//!
//! ```text
//!   scrape: each subject's sums ─► what is new ─► job's line, if it has one
//!                                      └────────► its score, halved each minute
//!           the highest scores ─► lines from now on
//!           served by all − ever given to lines ─► other
//! ```
//!
//! Prometheus takes a counter that falls for one of a restarted process, and adds all of it. So a
//! line never falls and never takes over the value of another subject. A subject that gets a line
//! has it from 0, or from its value when it left the line; its usage meanwhile is part of the line
//! of others. Then the rates of all lines add up to the rate of the target at any time.
//!
//! A subject keeps its line until another's score is twice as high: near equals do not change
//! places with each scrape, and leave no series behind that were used for a minute.

use std::cmp::Reverse;
use std::hash::Hash;
use std::time::Duration;

use rustc_hash::FxHashMap;

/// How many figures there are of each.
pub(super) const FIGURES: usize = 8;
/// Index of the cost: the subject with the highest cost comes first.
const COST: usize = 7;

/// Payload read and written, operations, those of metadata, requests, queue, service, cost.
pub(super) type MetricSums = [u64; FIGURES];

/// The lines for jobs, or for users, of one target.
#[derive(Debug)]
pub(super) struct Lines<K> {
    most: usize,
    accounts: FxHashMap<K, MetricAccount>,
    /// Counts scrapes.
    round: u32,
    /// All that lines of their own were ever given.
    own_totals: MetricSums,
    other: MetricSums,
}

#[derive(Debug, Default)]
struct MetricAccount {
    /// Recent cost.
    score: u64,
    /// The scrape at which it was last seen.
    round: u32,
    /// Whether it has a line now.
    is_shown: bool,
    /// Whether it has one from the scrape on that is being settled.
    is_chosen: bool,
    /// Its line, if it ever had one: small, as tens of thousands have none.
    line: Option<Box<MetricsLine>>,
}

#[derive(Debug, Default)]
struct MetricsLine {
    sums: MetricSums,
    /// Totals since the last scrape.
    fresh: MetricSums,
}

impl<K: Clone + Eq + Hash + Ord> Lines<K> {
    /// Makes lines for at most `most` subjects.
    pub(super) fn new(most: usize) -> Lines<K> {
        let (given, other) = Default::default();
        Lines { most, accounts: FxHashMap::default(), round: 0, own_totals: given, other }
    }

    /// Adds the service of a subject since the last scrape; for every present subject, also without
    /// service.
    pub(super) fn add(&mut self, who: &K, fresh: &MetricSums) {
        let Some(account) = self.accounts.get_mut(who) else {
            let new =
                MetricAccount { round: self.round, score: fresh[COST], ..MetricAccount::default() };
            self.accounts.insert(who.clone(), new);
            return;
        };
        account.round = self.round;
        account.score = account.score.saturating_add(fresh[COST]);
        if let (true, Some(line)) = (account.is_shown, &mut account.line) {
            add(&mut line.fresh, fresh);
        }
    }

    /// Ends a scrape: `since` the last one, and the totals of all until now. A subject that was not
    /// added is forgotten; `may_have` says which subjects may have a line.
    pub(super) fn end_scrape(
        &mut self,
        served: &MetricSums,
        since: Duration,
        may_have: fn(&K) -> bool,
    ) {
        let round = self.round;
        self.accounts.retain(|_, account| account.round == round);
        self.round += 1;
        for who in self.choose(may_have) {
            if let Some(account) = self.accounts.get_mut(&who) {
                account.is_chosen = true;
            }
        }
        let part = part_left(since);
        for account in self.accounts.values_mut() {
            account.score = (account.score as f64 * part) as u64;
            let (was_shown, is_shown) = (account.is_shown, std::mem::take(&mut account.is_chosen));
            account.is_shown = is_shown;
            if is_shown {
                account.line.get_or_insert_default();
            }
            if let Some(line) = &mut account.line {
                let fresh = std::mem::take(&mut line.fresh);
                if was_shown && is_shown {
                    add(&mut self.own_totals, &fresh);
                    add(&mut line.sums, &fresh);
                }
            }
        }
        for ((other, served), given) in self.other.iter_mut().zip(served).zip(&self.own_totals) {
            // The usage of a subject that was forgotten during a scrape is missing until the next
            // scrape.
            *other = (*other).max(served.saturating_sub(*given));
        }
    }

    /// Returns the subjects that have a line from now on.
    fn choose(&self, may_have: fn(&K) -> bool) -> Vec<K> {
        let candidates = self.accounts.iter().filter(|(who, _)| may_have(who));
        let rank = candidates.map(|(who, account)| {
            let score = account.score.saturating_mul(1 + u64::from(account.is_shown));
            (Reverse(score), !account.is_shown, who)
        });
        let mut ranked: Vec<_> = rank.collect();
        if ranked.len() > self.most {
            ranked.select_nth_unstable(self.most);
            ranked.truncate(self.most);
        }
        ranked.into_iter().map(|(_, _, who)| who.clone()).collect()
    }

    /// The lines, in the order of their names.
    pub(super) fn shown(&self) -> Vec<(&K, &MetricSums)> {
        let lines = self.accounts.iter().filter(|(_, account)| account.is_shown);
        let mut lines: Vec<_> =
            lines.filter_map(|(who, account)| Some((who, &account.line.as_ref()?.sums))).collect();
        lines.sort_by_key(|(who, _)| *who);
        lines
    }

    /// The line of all others.
    pub(super) fn other(&self) -> &MetricSums {
        &self.other
    }

    /// How many there are now.
    pub(super) fn len(&self) -> usize {
        self.accounts.len()
    }
}

/// Adds sums to others.
pub(super) fn add(to: &mut MetricSums, what: &MetricSums) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}

/// Returns the fraction of a score that is left after some time without use.
fn part_left(after: Duration) -> f64 {
    0.5f64.powf(after.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

/// After so long without use a score is half of what it was.
const HALF_LIFE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn cost(ns: u64) -> MetricSums {
        let mut sums = MetricSums::default();
        sums[COST] = ns;
        sums
    }

    /// Jobs that are served and scraped; what they were served is kept beside.
    struct SummedClass {
        lines: Lines<&'static str>,
        served: u64,
    }

    impl SummedClass {
        fn new(most: usize) -> SummedClass {
            SummedClass { lines: Lines::new(most), served: 0 }
        }

        fn scrape(&mut self, fresh: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
            for (who, ns) in fresh {
                self.lines.add(who, &cost(*ns));
                self.served += ns;
            }
            self.lines.end_scrape(&cost(self.served), MINUTE, |who| *who != "other");
            let mut shown: Vec<_> =
                self.lines.shown().into_iter().map(|(who, sums)| (*who, sums[COST])).collect();
            shown.push(("other", self.lines.other()[COST]));
            shown
        }
    }

    #[test]
    fn a_line_begins_at_zero_and_counts_from_then_on() {
        let mut world = SummedClass::new(2);
        assert_eq!(world.scrape(&[("a", 100)]), [("a", 0), ("other", 100)]);
        assert_eq!(world.scrape(&[("a", 7)]), [("a", 7), ("other", 100)]);
    }

    #[test]
    fn who_leaves_a_line_and_comes_back_goes_on_where_it_was() {
        let mut world = SummedClass::new(1);
        world.scrape(&[("a", 100), ("b", 1)]);
        assert_eq!(world.scrape(&[("a", 10), ("b", 1)]), [("a", 10), ("other", 102)]);
        // b uses far more: it has the line now, and its own sums begin.
        assert_eq!(world.scrape(&[("a", 1), ("b", 5_000)]), [("b", 0), ("other", 5_103)]);
        assert_eq!(world.scrape(&[("a", 1), ("b", 50)]), [("b", 50), ("other", 5_104)]);
        let back = world.scrape(&[("a", 1_000_000), ("b", 0)]);
        assert_eq!(back, [("a", 10), ("other", 1_005_104)]);
    }

    #[test]
    fn near_equals_do_not_change_places() {
        let mut world = SummedClass::new(1);
        world.scrape(&[("a", 100), ("b", 99)]);
        for (a, b) in [(100, 110), (100, 110), (100, 110)] {
            assert_eq!(world.scrape(&[("a", a), ("b", b)])[0].0, "a");
        }
    }

    #[test]
    fn no_line_ever_falls_and_together_they_are_what_was_served() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let mut world = SummedClass::new(3);
        let (mut known, mut state) = (FxHashMap::default(), 1u64);
        for _ in 0..500 {
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 40
            };
            let fresh =
                names.map(|name| (name, random() % 1_000 * (random() % 3) * (random() % 9)));
            for (name, now) in world.scrape(&fresh) {
                let before = known.insert(name, now).unwrap_or(0);
                assert!(now >= before, "{name} fell from {before} to {now}");
            }
            // Lines that are not shown now stand still.
            assert_eq!(known.values().sum::<u64>(), world.served);
        }
    }

    #[test]
    fn who_is_gone_is_forgotten_and_what_it_had_is_in_no_other_line() {
        let mut world = SummedClass::new(2);
        world.scrape(&[("a", 10), ("b", 1)]);
        assert_eq!(world.scrape(&[("a", 5), ("b", 1)]), [("a", 5), ("b", 1), ("other", 11)]);
        assert_eq!(world.scrape(&[("b", 1)]), [("b", 2), ("other", 11)]);
        assert_eq!(world.lines.len(), 1);
    }

    #[test]
    fn a_job_that_is_named_as_the_others_are_is_among_them() {
        let mut world = SummedClass::new(2);
        world.scrape(&[("other", 10), ("a", 1)]);
        assert_eq!(world.scrape(&[("other", 10), ("a", 1)]), [("a", 1), ("other", 21)]);
    }
}
