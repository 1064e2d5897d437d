//! Analysis of a rule set as a whole, before any request.
//!
//! - A rule is **shadowed** if an earlier one takes everything that it could take.
//! - A request must never have to pay more than [`RuleSet::METERS_MAX`] meters, as the
//!   dispatcher keeps room for no more. How many match at once is bounded from above:
//!   meters whose conditions exclude each other are never paid together.

use model::OpKind;

use super::index::RuleIndex;
use super::matcher::Conjunction;
use super::{DecayRule, MeterRule, Rule, RuleSet};

/// A rule that never takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// Its index among the rules.
    pub rule: usize,
    /// The earlier rule that takes all of its requests.
    pub by: usize,
}

/// The most meters that one request could have to pay.
pub(super) struct WorstCase {
    pub(super) kind: OpKind,
    pub(super) count: usize,
    /// The last meter that is part of it.
    pub(super) meter: Option<usize>,
    /// The last decay that is part of it.
    pub(super) decay: Option<usize>,
    /// The rule whose limits are part of it, and how many of them are.
    pub(super) rule: Option<(usize, usize)>,
}

/// Each rule that one single earlier rule certainly shadows, in order. Rules with wildcards beyond
/// the budget, in sets of thousands, are left out.
pub(super) fn shadowed(rules: &[Rule], index: &RuleIndex) -> Vec<Shadowed> {
    let mut budget = COMPARISONS_MAX;
    let mut by = |rule: usize| {
        let matcher = &rules[rule].matcher;
        let everything = Conjunction::everything();
        // A rule that takes all of it takes its first alternative.
        let first = matcher.any_of.first().unwrap_or(&everything);
        let earlier = index.of_alternative(first).take_while(|earlier| *earlier < rule);
        let mut affordable = earlier.take_while(|earlier| {
            let cost = rules[*earlier].matcher.size() * matcher.size();
            budget = budget.saturating_sub(cost);
            budget > 0
        });
        affordable.find(|earlier| rules[*earlier].matcher.covers(matcher))
    };
    (0..rules.len()).filter_map(|rule| by(rule).map(|by| Shadowed { rule, by })).collect()
}

/// Which meters exclude each other: bit `other` of row `meter`, for `other` before `meter`.
struct Exclusions(Vec<Vec<bool>>);

/// An upper bound, for the kind of request where it is highest; `None` without any meter.
pub(super) fn worst_case(set: &RuleSet) -> Option<WorstCase> {
    let exclusions = Exclusions::of(&set.meters);
    let cases = OpKind::ALL.iter().map(|kind| {
        let (groups, meter) = groups(&set.meters, &exclusions, *kind);
        let rule = limits(&set.rules, *kind);
        let limits = rule.map_or(0, |(_, limits)| limits);
        let held = |decay: &DecayRule| {
            decay.resource.kinds().contains(*kind) && decay.matcher.kinds().contains(*kind)
        };
        let decays = set.decays.iter().filter(|decay| held(decay)).count();
        let count = groups + limits + decays;
        WorstCase { kind: *kind, count, meter, decay: set.decays.iter().rposition(held), rule }
    });
    let worst = cases.reduce(|worst, case| if case.count > worst.count { case } else { worst });
    worst.filter(|case| case.count > 0)
}

/// Divides the meters for a kind into groups within which all exclude each other, each
/// into the first group that it fits. One request pays at most one meter of each group.
/// Gives the number of groups, and the meter that opened the last one.
fn groups(meters: &[MeterRule], known: &Exclusions, kind: OpKind) -> (usize, Option<usize>) {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut last = None;
    for (index, meter) in meters.iter().enumerate() {
        if !meter.limit.kinds.contains(kind) || !meter.matcher.kinds().contains(kind) {
            continue;
        }
        let fits = |group: &&mut Vec<usize>| group.iter().all(|other| known.0[index][*other]);
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(index),
            None => {
                groups.push(vec![index]);
                last = Some(index);
            }
        }
    }
    (groups.len(), last)
}

impl Exclusions {
    /// Compares each pair while the budget lasts. The rest counts as "cannot tell", so that no file
    /// takes long to refuse.
    fn of(meters: &[MeterRule]) -> Exclusions {
        let mut budget = COMPARISONS_MAX;
        let mut excludes = |meter: &MeterRule, other: &MeterRule| {
            let cost = meter.matcher.size() * other.matcher.size();
            let paid = budget >= cost;
            budget -= if paid { cost } else { 0 };
            paid && meter.matcher.excludes(&other.matcher)
        };
        let row = |index: usize| {
            let meter: &MeterRule = &meters[index];
            meters[..index].iter().map(|other| excludes(meter, other)).collect()
        };
        Exclusions((0..meters.len()).map(row).collect())
    }
}

/// The rule with the most limits that a kind pays, and how many.
fn limits(rules: &[Rule], kind: OpKind) -> Option<(usize, usize)> {
    let taking = rules.iter().enumerate().filter(|(_, r)| r.matcher.kinds().contains(kind));
    let counted = taking.map(|(index, rule)| {
        (index, rule.ceilings().iter().filter(|limit| limit.kinds.contains(kind)).count())
    });
    counted.filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count)
}

/// The budget of comparisons between items, for the whole file: some tens of milliseconds, and
/// enough for 256 meters of a dozen items each, or 2,000 rules with a wildcard each.
const COMPARISONS_MAX: u64 = 8_000_000;
