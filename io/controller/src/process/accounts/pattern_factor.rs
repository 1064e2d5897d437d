//! The recent patterns of requests of decays' keys, and their effect on entitlements.
//!
//! ```text
//!   growth of a report's lines ─► AccessStats of the key ─ a pattern of its decay? ─► set_pattern_factor
//!                                         └─ not within WINDOW: forgotten
//! ```
//!
//! Only decays with `pattern_factors` are checked. The state is in memory only: after a restart the
//! next hundred requests show the same pattern again.

use std::collections::BTreeMap;

use model::{AccessStats, Nanos, OpKind, Scope, Service, Time};
use plan::DecayAccounts;
use rules::RuleSet;

use super::rule_of;

/// The statistics of keys that have shown no pattern yet.
#[derive(Default)]
pub(super) struct RecentPatterns(BTreeMap<Scope, (Time, AccessStats)>);

impl RecentPatterns {
    /// Adds the requests of keys. If there are too many keys, new ones are ignored.
    pub(super) fn add(&mut self, scope: &Scope, more: &Service, now: Time) {
        if self.0.len() >= KEYS_MAX && !self.0.contains_key(scope) {
            return;
        }
        let (_, seen) = self.0.entry(scope.clone()).or_insert((now, AccessStats::default()));
        seen.bytes = seen.bytes.saturating_add(more.read_bytes).saturating_add(more.written_bytes);
        for kind in OpKind::ALL {
            let ops = &mut seen.ops[*kind as usize];
            *ops = ops.saturating_add(more.ops_of(*kind));
        }
        seen.reads.add(&more.reads);
        seen.writes.add(&more.writes);
    }

    /// Reports keys with a pattern to the accounts, and drops those without one for long. Call it
    /// when a report was counted.
    pub(super) fn report_patterns(
        &mut self,
        rules: &RuleSet,
        decays: &mut DecayAccounts,
        now: Time,
    ) {
        self.0.retain(|scope, (since, seen)| {
            let Some(decay) = rule_of(rules, scope).map(|at| &rules.decays[at]) else {
                return false;
            };
            let shown = seen.patterns().find_map(|pattern| {
                decay.pattern_factors.iter().find(|(named, _)| *named == pattern).copied()
            });
            if let Some((pattern, factor_ppm)) = shown {
                decays.set_pattern_factor(scope, factor_ppm, pattern.name(), now);
            }
            shown.is_none() && now.since(*since) < WINDOW
        });
    }
}

/// The time over which requests are summed up.
const WINDOW: Nanos = Nanos::from_secs(60);
/// The most keys that are checked: some 60 MB.
const KEYS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Accesses, KeyValue};

    use super::*;

    fn rules(behaviour: &str) -> Arc<RuleSet> {
        let text = format!(
            "[[decay]]\nname = \"w\"\nper = [\"uid\"]\nresource = \"write\"\nentitlement = \"1MB/s\"\n\
             floor = \"1kB/s\"\nmode = \"period\"\nperiod = \"1h\"\npattern_factors = {behaviour}\n"
        );
        Arc::new(RuleSet::parse(&text).unwrap_or_else(|error| panic!("{error}")))
    }

    fn writes(sizes: [u64; 4]) -> Service {
        let writes = Accesses { sizes, random: 0 };
        let mut more = Service { written_bytes: 1 << 30, writes, ..Service::default() };
        more.ops[OpKind::Write as usize] = writes.all();
        more
    }

    #[test]
    fn a_key_that_shows_a_pattern_has_its_factor_and_one_that_shows_none_is_forgotten() {
        let rules = rules("{ small-writes = \"50%\", sequential = \"120%\" }");
        let at = |second: u64| Time::from_nanos(second * 1_000_000_000);
        let scope = |uid: u32| Scope::decay("w", &[KeyValue::Uid(uid)]);
        let mut decays = DecayAccounts::new(rules.clone(), at(0));
        (1..=3).for_each(|uid| decays.charge(&scope(uid), 1_000, at(0)));
        let mut recent = RecentPatterns::default();
        for _ in 0..2 {
            recent.add(&scope(1), &writes([60, 0, 0, 0]), at(1));
            recent.add(&scope(2), &writes([0, 0, 0, 60]), at(1));
        }
        recent.add(&scope(3), &writes([99, 0, 0, 0]), at(1));
        recent.report_patterns(&rules, &mut decays, at(1));
        let known = |decays: &DecayAccounts| -> Vec<_> {
            decays
                .reports()
                .map(|r| r.pattern_factor.map(|(p, ppm)| (p.to_string(), ppm)))
                .collect()
        };
        let of = |pattern: &str, ppm| Some((pattern.to_string(), ppm));
        let wanted = [of("small-writes", 500_000), of("sequential", 1_200_000), None];
        assert_eq!(known(&decays), wanted);
        assert_eq!(recent.0.keys().collect::<Vec<_>>(), [&scope(3)], "the others start again");

        // A hundredth write within the minute would show it; after it, it is the first.
        recent.report_patterns(&rules, &mut decays, at(61));
        recent.add(&scope(3), &writes([1, 0, 0, 0]), at(62));
        recent.report_patterns(&rules, &mut decays, at(62));
        assert_eq!(known(&decays)[2], None);
        assert_eq!(recent.0[&scope(3)].1.writes.all(), 1);
    }
}
