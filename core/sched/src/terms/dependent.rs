//! Limits that depend on another rule, recomputed here and not by a controller outside.
//!
//! ```text
//!   dispatches of the parent's classes ─► units of this window ─┐ each 100 ms
//!   its requests, waiting and running ──► active, or since when ├─► effective limit of the child
//!   its own effective limit ────────────────────────────────────┤      └─► all its meters
//!   its activity at other proxies (controller) ─────────────────┘
//! ```
//!
//! | kind | effective limit, between `min` and the rule's own |
//! |---|---|
//! | follow | a part of the parent's effective limit |
//! | remainder_of | a total, less what the parent had: its rate over windows of 100 ms, half of it of the last |
//! | when_idle | the rule's own while the parent has had no request for some time, else `min` |
//!
//! A change of the effective limit keeps what is owed and what is saved, in units: it refills
//! nothing. Dependent rules are those of Lustre's TBF (Qian et al., SC'17), whose formulas were not
//! published.

use std::sync::Arc;

use model::{Nanos, Rate, RuleActivity, Time};
use rules::{DependencyKind, RuleDependency, RuleSet};

/// How often the service of parents is read.
const WINDOW_NS: u64 = 100_000_000;
/// Parents that have a bit: twice as many as the parser allows, each in bytes and in operations.
const BITS_MAX: usize = 64;

/// The rules that others depend on, and those that do.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    parents: Vec<Watched>,
    /// In an order in which each comes after the one that it depends on.
    children: Vec<Child>,
    /// When the window that is counted began.
    since: Time,
}

/// The state of a rule that others depend on.
#[derive(Debug)]
struct Watched {
    rule: Arc<str>,
    used: ParentUse,
    /// The unit in which it is counted.
    in_bytes: bool,
    /// Units dispatched in this window.
    units: u64,
    /// Thousandths of a unit a second, over the last windows.
    rate_milli: u64,
    /// Requests that wait or run.
    outstanding: u32,
    /// Since when there are none.
    idle_since: Time,
    /// Its activity at all other proxies, and when that became known.
    remote: RuleActivity,
    remote_at: Time,
}

/// Whether a place among the parents is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParentUse {
    /// By a rule that others depend on.
    Used,
    /// No rule depends on it any more; classes may still count for it.
    Gone,
    Free,
}

#[derive(Debug)]
struct Child {
    rule: String,
    parent: RuleDependency,
    /// The index of its parent among the parents.
    on: usize,
    /// The rule's own limit.
    own: Rate,
    /// The current limit.
    effective: Rate,
}

impl Dependents {
    /// Creates the dependents of a rule set. A parent that stays keeps its state and its bit, and
    /// one that goes keeps its bit until [`Dependents::settle`].
    pub(super) fn of(rules: &RuleSet, before: &Dependents, now: Time) -> Dependents {
        let mut new = Dependents { since: before.since, ..Dependents::default() };
        new.parents = before.parents.iter().map(Watched::unused).collect();
        for rule in &rules.rules {
            let (Some(parent), Some(own)) = (&rule.depends_on, rule.limits.first()) else {
                continue;
            };
            let on = new.parent_place(&parent.rule, own.rate.is_bytes(), now);
            let in_bytes = own.rate.is_bytes();
            let (own, known) = (own.rate, before.children.iter().find(|one| one.rule == rule.name));
            let effective = known.map(|one| one.effective).filter(|one| one.is_bytes() == in_bytes);
            let effective = effective.unwrap_or(own);
            let child =
                Child { rule: rule.name.clone(), parent: parent.clone(), on, own, effective };
            new.children.push(child);
        }
        new.children.sort_by_key(|child| dependency_depth(rules, &child.rule));
        new
    }

    /// The place of a parent; a new one takes the first free one.
    fn parent_place(&mut self, rule: &str, in_bytes: bool, now: Time) -> usize {
        let is_free = |known: &Watched| known.used == ParentUse::Free;
        let is_it =
            |known: &Watched| *known.rule == *rule && known.in_bytes == in_bytes && !is_free(known);
        if let Some(at) = self.parents.iter().position(is_it) {
            self.parents[at].used = ParentUse::Used;
            return at;
        }
        let new = Watched::new(rule, in_bytes, now);
        let at = self.parents.iter().position(is_free).unwrap_or(self.parents.len());
        match self.parents.get_mut(at) {
            Some(free) => *free = new,
            None => self.parents.push(new),
        }
        at
    }

    /// Frees the bits of parents that are gone, which no class has any more. True if a parent that
    /// had none has one now, and classes do not have it yet.
    pub(super) fn settle(&mut self) -> bool {
        for parent in &mut self.parents {
            if parent.used == ParentUse::Gone {
                debug_assert_eq!(parent.outstanding, 0, "requests of {}", parent.rule);
                parent.used = ParentUse::Free;
            }
        }
        let is_free = |known: &Watched| known.used == ParentUse::Free;
        let mut has_moved = false;
        while self.parents.last().is_some_and(is_free) {
            self.parents.pop();
        }
        while self.parents.len() > BITS_MAX
            && let Some(free) = self.parents.iter().position(is_free)
        {
            let last = self.parents.len() - 1;
            self.parents.swap_remove(free);
            for child in self.children.iter_mut().filter(|child| child.on == last) {
                child.on = free;
            }
            has_moved = true;
        }
        has_moved
    }

    /// Panics unless the requests of each parent are those of the classes that count for it.
    pub(super) fn check(&self, classes: impl Iterator<Item = (u64, u32)>) {
        let mut outstanding = vec![0; self.parents.len()];
        for (bits, requests) in classes {
            set_bits(bits).for_each(|at| outstanding[at] += requests);
        }
        for (parent, outstanding) in self.parents.iter().zip(outstanding) {
            assert_eq!(parent.outstanding, outstanding, "requests of {}", parent.rule);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// The bits of the parents that requests under a rule count for; more than 64 are none.
    pub(super) fn watched(&self, rule: &str) -> u64 {
        let of_rule = |(_, known): &(usize, &Watched)| known.is_used() && *known.rule == *rule;
        let places = self.parents.iter().enumerate().take(BITS_MAX).filter(of_rule);
        places.fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// A rule's current limit, where it depends on another.
    pub(super) fn effective(&self, rule: &str) -> Option<Rate> {
        self.children.iter().find(|child| child.rule == rule).map(|child| child.effective)
    }

    /// The current limits of all dependent rules.
    pub(super) fn effective_limits(&self) -> impl Iterator<Item = (&str, Rate)> {
        self.children.iter().map(|child| (child.rule.as_str(), child.effective))
    }

    /// Counts requests that came (or went, below 0). True if that shuts a gate.
    pub(super) fn count(&mut self, bits: u64, change: i64, now: Time) -> bool {
        let mut shuts = false;
        for at in set_bits(bits) {
            let parent = &mut self.parents[at];
            let outstanding = i64::from(parent.outstanding) + change;
            parent.outstanding = u32::try_from(outstanding).expect("a request that goes has come");
            if change != 0 {
                parent.idle_since = now;
            }
            let is_open = |child: &Child| {
                let gate = matches!(child.parent.kind, DependencyKind::WhenIdle { .. });
                gate && child.on == at && child.effective != child.parent.min
            };
            shuts |= change > 0 && self.children.iter().any(is_open);
        }
        shuts
    }

    /// Counts a dispatched request.
    pub(super) fn dispatched(&mut self, bits: u64, amount: model::Amount) {
        for at in set_bits(bits) {
            let parent = &mut self.parents[at];
            let units = if parent.in_bytes { amount.bytes.get() } else { amount.ops.get() };
            parent.units = parent.units.saturating_add(units);
        }
    }

    /// The activity of each parent here.
    pub(super) fn activity(&self, now: Time) -> Vec<(Arc<str>, RuleActivity)> {
        let mut all: Vec<(Arc<str>, RuleActivity)> = Vec::new();
        for parent in self.parents.iter().filter(|parent| parent.is_used()) {
            let at = all.iter().position(|(rule, _)| *rule == parent.rule);
            let at = at.unwrap_or_else(|| {
                all.push((parent.rule.clone(), parent.here(now)));
                all.len() - 1
            });
            match parent.in_bytes {
                true => all[at].1.bytes_per_sec = parent.rate(),
                false => all[at].1.ops_per_sec = parent.rate(),
            }
        }
        all
    }

    /// Replaces the activity of all parents at other proxies.
    pub(super) fn set_remote(&mut self, remote: &[(Arc<str>, RuleActivity)], now: Time) {
        for parent in &mut self.parents {
            let found = remote.iter().find(|(rule, _)| *rule == parent.rule);
            parent.remote = found.map_or(RuleActivity::NONE, |(_, activity)| *activity);
            parent.remote_at = now;
        }
    }

    /// When it is to be computed next.
    pub(super) fn next_update(&self) -> Time {
        Time::from_nanos(self.since.as_nanos().saturating_add(WINDOW_NS))
    }

    /// Ends windows that are over. Returns the rules whose limit changed, each with its new limit.
    pub(super) fn end_windows(&mut self, rules: &RuleSet, now: Time) -> Vec<(String, Rate)> {
        let span = now.since(self.since).get();
        if span >= WINDOW_NS {
            self.since = now;
            for parent in &mut self.parents {
                let units = u128::from(std::mem::take(&mut parent.units)) * 1_000_000_000_000;
                let last = u64::try_from(units / u128::from(span)).unwrap_or(u64::MAX);
                // Half of it is of the last window; a span of several has the same rate in each.
                let windows = (span / WINDOW_NS).min(63);
                parent.rate_milli = (parent.rate_milli >> windows) + (last - (last >> windows));
            }
        }
        let mut changed = Vec::new();
        for at in 0..self.children.len() {
            let now_is = self.compute(at, rules, now);
            let child = &mut self.children[at];
            if child.effective != now_is {
                child.effective = now_is;
                changed.push((child.rule.clone(), now_is));
            }
        }
        changed
    }

    fn compute(&self, at: usize, rules: &RuleSet, now: Time) -> Rate {
        let Child { parent, on, own, .. } = &self.children[at];
        let watched = &self.parents[*on];
        let wanted = match parent.kind {
            DependencyKind::Follow { part_ppm } => {
                let of = self.limit_of(&parent.rule, own.is_bytes(), rules);
                let of = of.map_or(own.per_sec(), Rate::per_sec);
                let part = u128::from(of) * u128::from(part_ppm) / 1_000_000;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
            DependencyKind::Remainder { total } => {
                total.per_sec().saturating_sub(watched.rate_everywhere())
            }
            DependencyKind::WhenIdle { idle } => {
                let open = watched.idle_everywhere(now).is_some_and(|span| span >= idle);
                if open { own.per_sec() } else { 0 }
            }
        };
        let within = wanted.clamp(parent.min.per_sec(), own.per_sec());
        own.with_per_sec(within).expect("min is above zero")
    }

    fn limit_of(&self, rule: &str, in_bytes: bool, rules: &RuleSet) -> Option<Rate> {
        let effective = self.effective(rule).filter(|rate| rate.is_bytes() == in_bytes);
        let found = || rules.rule(rule);
        let own =
            || found()?.limits.iter().map(|limit| limit.rate).find(|r| r.is_bytes() == in_bytes);
        effective.or_else(own)
    }
}

impl Watched {
    fn new(rule: &str, in_bytes: bool, now: Time) -> Watched {
        Watched {
            rule: rule.into(),
            used: ParentUse::Used,
            in_bytes,
            units: 0,
            rate_milli: 0,
            outstanding: 0,
            idle_since: now,
            remote: RuleActivity::NONE,
            remote_at: now,
        }
    }

    /// Whether it is idle here, without its rate.
    fn here(&self, now: Time) -> RuleActivity {
        let idle = (self.outstanding == 0).then(|| now.since(self.idle_since));
        RuleActivity { idle, ..RuleActivity::NONE }
    }

    /// Units a second here, to the nearest.
    fn rate(&self) -> u64 {
        self.rate_milli.saturating_add(500) / 1_000
    }

    /// Units a second at all proxies.
    fn rate_everywhere(&self) -> u64 {
        let RuleActivity { ops_per_sec, bytes_per_sec, .. } = self.remote;
        self.rate().saturating_add(if self.in_bytes { bytes_per_sec } else { ops_per_sec })
    }

    /// For how long no proxy has had a request of it.
    fn idle_everywhere(&self, now: Time) -> Option<Nanos> {
        let since = now.since(self.remote_at).get();
        let remote = self.remote.idle.map(|idle| Nanos::new(idle.get().saturating_add(since)));
        self.here(now).idle.zip(remote).map(|(here, there)| here.min(there))
    }

    fn is_used(&self) -> bool {
        self.used == ParentUse::Used
    }

    /// The same before it is known which rule depends on it.
    fn unused(&self) -> Watched {
        let used = if self.is_used() { ParentUse::Gone } else { self.used };
        Watched { rule: self.rule.clone(), used, ..*self }
    }
}

/// How many rules a rule depends on, one after the other; the parser refuses circles.
fn dependency_depth(rules: &RuleSet, rule: &str) -> usize {
    let found = rules.rule(rule);
    let parent = found.and_then(|rule| rule.depends_on.as_ref());
    parent.map_or(0, |parent| 1 + dependency_depth(rules, &parent.rule))
}

fn set_bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(at)
    })
}

#[cfg(test)]
mod tests {
    use model::KindSet;
    use rules::{Limit, Match, Rule};

    use super::*;

    /// 40 rules on which others depend, with names that begin with a letter.
    fn forty(letter: char) -> RuleSet {
        let rate = Rate::ops_per_sec(10).expect("above zero");
        let mut set = RuleSet::default();
        for number in 0..40 {
            let kind = DependencyKind::Follow { part_ppm: 500_000 };
            let rule = format!("{letter}{number}");
            let child = Rule::new(&format!("child of {rule}"), Match::any());
            set.rules.push(Rule::new(&rule, Match::any()));
            set.rules.push(Rule {
                limits: vec![Limit { kinds: KindSet::ALL, rate, burst: None }],
                depends_on: Some(RuleDependency { rule, kind, min: rate }),
                ..child
            });
        }
        set
    }

    #[test]
    fn a_parent_keeps_its_bit_until_no_class_has_it_and_one_without_has_one_then() {
        let now = Time::ZERO;
        let mut known = Dependents::of(&forty('a'), &Dependents::default(), now);
        let bit = known.watched("a7");
        assert_eq!((bit, known.watched("a39")), (1 << 7, 1 << 39));
        known.count(bit, 3, now);
        known = Dependents::of(&forty('b'), &known, now);
        assert_eq!((known.watched("a7"), known.watched("b39")), (0, 0), "80 parents");
        known.count(bit, -3, now);
        assert!(known.settle(), "b24 and others move");
        let bits = (0..40).map(|number| known.watched(&format!("b{number}")));
        assert_eq!(bits.map(u64::count_ones).sum::<u32>(), 40);
        let on = known.children.iter().map(|child| &*known.parents[child.on].rule);
        assert!(on.eq(known.children.iter().map(|child| &*child.parent.rule)));
        assert!(!known.settle());
    }
}
