//! The activity of parents (rules on which others depend), of all proxies.
//!
//! ```text
//!   proxy a: checkpoint 30/s ─┐                       ┌─► a: 12/s
//!   proxy b: checkpoint 12/s ─┴─ by rule, by proxy ───┴─► b: 30/s
//! ```
//!
//! A report replaces what its proxy said before, so a lost one is mended by the next. A proxy that
//! is unreachable counts with its last activity until it is forgotten: what is unknown is assumed to
//! be in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Nanos, RuleActivity, Time};
use rules::RuleSet;

/// The activity of all parents by proxy, with sums.
#[derive(Debug, Default)]
pub(crate) struct ParentActivity {
    /// Of the rules on which others depend.
    rules: BTreeMap<Arc<str>, ParentSums>,
}

#[derive(Debug, Default)]
struct ParentSums {
    /// By proxy: operations and bytes per second, and when it last had a request, at the latest;
    /// `None` while it has one.
    proxies: BTreeMap<u32, (u64, u64, Option<Time>)>,
    ops: u64,
    bytes: u64,
    /// How many have a request.
    active: usize,
    /// When the others had their last one.
    last_active: BTreeSet<(Time, u32)>,
}

impl ParentActivity {
    /// Replaces the rules; what was reported of a rule on which others depend stays.
    pub(crate) fn set_rules(&mut self, rules: &RuleSet) {
        let mut before = std::mem::take(&mut self.rules);
        for parent in rules.rules.iter().filter_map(|rule| rule.depends_on.as_ref()) {
            let (rule, sums) = before
                .remove_entry(&*parent.rule)
                .unwrap_or_else(|| (parent.rule.as_str().into(), ParentSums::default()));
            self.rules.entry(rule).or_insert(sums);
        }
    }

    /// Replaces what a proxy reported; rules on which none depends are not counted.
    pub(crate) fn receive(&mut self, id: u32, parents: &[(Arc<str>, RuleActivity)], now: Time) {
        self.remove_proxy(id);
        for (rule, activity) in parents {
            let Some(sums) = self.rules.get_mut(rule) else { continue };
            // A name that is said twice counts once.
            sums.remove(id);
            sums.add(id, *activity, now);
        }
    }

    /// The activity at all proxies but one, of the rules that have any.
    pub(crate) fn elsewhere(&self, id: u32, now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        let of =
            |(rule, sums): (&Arc<str>, &ParentSums)| Some((rule.clone(), sums.elsewhere(id, now)?));
        self.rules.iter().filter_map(of).collect()
    }

    /// Forgets a proxy that is gone or was restarted.
    pub(crate) fn remove_proxy(&mut self, id: u32) {
        self.rules.values_mut().for_each(|sums| sums.remove(id));
    }
}

impl ParentSums {
    fn add(&mut self, id: u32, activity: RuleActivity, now: Time) {
        let RuleActivity { ops_per_sec: ops, bytes_per_sec: bytes, idle } = activity;
        let last = idle.map(|idle| Time::from_nanos(now.as_nanos().saturating_sub(idle.get())));
        // Sums of what comes from the wire: each is bounded so that they cannot overflow.
        let (ops, bytes) = (ops.min(RATE_MAX), bytes.min(RATE_MAX));
        self.ops += ops;
        self.bytes += bytes;
        match last {
            Some(at) => _ = self.last_active.insert((at, id)),
            None => self.active += 1,
        }
        self.proxies.insert(id, (ops, bytes, last));
    }

    fn remove(&mut self, id: u32) {
        let Some((ops, bytes, last)) = self.proxies.remove(&id) else { return };
        self.ops -= ops;
        self.bytes -= bytes;
        match last {
            Some(at) => _ = self.last_active.remove(&(at, id)),
            None => self.active -= 1,
        }
    }

    fn elsewhere(&self, id: u32, now: Time) -> Option<RuleActivity> {
        let own = self.proxies.get(&id).copied();
        let (ops, bytes, last) = own.unwrap_or((0, 0, Some(Time::ZERO)));
        let others = self.proxies.len() - usize::from(own.is_some());
        let active = self.active - usize::from(last.is_none());
        let latest = || self.last_active.iter().rev().find(|(_, of)| *of != id);
        let idle_for = |(at, _): &(Time, u32)| now.since(*at);
        (others > 0).then(|| RuleActivity {
            ops_per_sec: self.ops - ops,
            bytes_per_sec: self.bytes - bytes,
            idle: (active == 0).then(|| latest().map_or(Nanos::new(u64::MAX), idle_for)),
        })
    }
}

/// Units per second of one proxy at most: those of 65,536 proxies have a sum.
const RATE_MAX: u64 = u64::MAX >> 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Nanos::from_millis(millis)
    }

    const RULES: &str = "[[rule]]\nname = \"a\"\nmatch = \"jobid={a}\"\nlimit = \"50ops/s\"\n\
                         [[rule]]\nname = \"b\"\nmatch = \"jobid={b}\"\nlimit = \"70ops/s\"\n\
                         depends_on = { rule = \"a\", remainder_of = \"80ops/s\", min = \"1ops/s\" }\n";

    fn of_rules() -> ParentActivity {
        let mut all = ParentActivity::default();
        all.set_rules(&RuleSet::parse(RULES).unwrap());
        all
    }

    fn told(ops: u64, idle: Option<u64>) -> Vec<(Arc<str>, RuleActivity)> {
        let idle = idle.map(Nanos::from_millis);
        vec![("a".into(), RuleActivity { ops_per_sec: ops, bytes_per_sec: 2 * ops, idle })]
    }

    #[test]
    fn each_proxy_learns_what_all_others_have_and_a_report_replaces_the_last() {
        let mut all = of_rules();
        all.receive(1, &told(30, None), at(1_000));
        assert_eq!(all.elsewhere(1, at(1_000)), []);
        all.receive(2, &told(12, Some(100)), at(1_000));
        all.receive(3, &told(5, Some(300)), at(1_000));
        assert_eq!(all.elsewhere(1, at(1_050)), told(17, Some(150)));
        assert_eq!(all.elsewhere(2, at(1_050)), told(35, None));
        assert_eq!(all.elsewhere(9, at(1_050)), told(47, None));
        all.receive(1, &told(0, Some(0)), at(2_000));
        assert_eq!(all.elsewhere(2, at(2_000)), told(5, Some(0)));
        all.remove_proxy(1);
        assert_eq!(all.elsewhere(2, at(2_000)), told(5, Some(1_300)));
        [2, 3].into_iter().for_each(|id| all.remove_proxy(id));
        assert_eq!(all.elsewhere(9, at(2_000)), []);
    }

    #[test]
    fn what_a_proxy_says_is_bounded_by_the_rules() {
        let mut all = of_rules();
        let huge = RuleActivity { ops_per_sec: u64::MAX, bytes_per_sec: u64::MAX, idle: None };
        let many: Vec<_> = (0..1_000).map(|n| (Arc::from(format!("r{n}")), huge)).collect();
        (0..100).for_each(|id| all.receive(id, &many, at(1)));
        assert_eq!((all.rules.len(), all.elsewhere(7, at(1)).len()), (1, 0));
        (0..100).for_each(|id| all.receive(id, &[("a".into(), huge)], at(1)));
        assert_eq!(all.elsewhere(100, at(1))[0].1.ops_per_sec, 100 * RATE_MAX);
        (0..100).for_each(|id| all.remove_proxy(id));
        let twice = [told(1, None), told(2, None)].concat();
        all.receive(1, &twice, at(1));
        assert_eq!(all.elsewhere(2, at(1))[0].1.ops_per_sec, 2);
        // What is known of a rule stays with other rules beside it, and goes with the dependency.
        all.set_rules(&RuleSet::parse(&RULES.replace("jobid={b}", "jobid={c}")).unwrap());
        assert_eq!(all.elsewhere(2, at(1))[0].1.ops_per_sec, 2);
        all.set_rules(&RuleSet::default());
        assert_eq!(all.elsewhere(2, at(1)), []);
    }
}
