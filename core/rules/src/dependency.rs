//! Rules whose limit depends on another rule.
//!
//! ```text
//!   limit = "500MB/s"
//!   depends_on = { rule = "checkpoint", follow = "50%",         min = "10MB/s" }   half of its limit
//!   depends_on = { rule = "checkpoint", remainder_of = "1GB/s", min = "10MB/s" }   the remainder of that
//!   depends_on = { rule = "checkpoint", when_idle = "500ms",    min = "10MB/s" }   min while it is active
//! ```
//!
//! The effective limit is between `min` and the rule's own `limit`. Dependent rules are those of
//! Lustre's TBF (Qian et al., SC'17), whose syntax was never published.

use std::ops::Range;

use model::{Nanos, Rate};

use super::error::{RuleFault, RuleProblem};
use super::section::{Section, SectionEntry};
use super::{DependencyKind, Rule, RuleDependency, limit};

/// The most rules that others may depend on, in either unit: a bit each in the dispatcher.
const PARENTS_MAX: usize = 32;
/// The longest chain of rules that depend on one another.
const DEPTH_MAX: usize = 8;

/// Reads the value of `depends_on`, of a rule with these limits.
pub(super) fn dependency(
    entry: SectionEntry<'_>,
    limits: &[super::Limit],
) -> Result<RuleDependency, RuleFault> {
    let [limit] = limits else {
        return Err(entry.fault(RuleProblem::ParentLimit { limits: limits.len() }));
    };
    let section = Section::new("depends_on", entry.table(WANT)?, entry.at(), &KEYS)?;
    let rule = section.need("rule")?.text("a rule's name")?.into();
    let min = same_unit(section.need("min")?, limit.rate)?;
    if min.per_sec() > limit.rate.per_sec() {
        let problem =
            RuleProblem::ParentMin { min: min.to_string(), limit: limit.rate.to_string() };
        return Err(section.need("min")?.fault(problem));
    }
    let kinds = [section.get("follow"), section.get("remainder_of"), section.get("when_idle")];
    let kind = match kinds {
        [Some(part), None, None] => {
            DependencyKind::Follow { part_ppm: part_of(part, PercentRange::OfAny)? }
        }
        [None, Some(total), None] => {
            DependencyKind::Remainder { total: same_unit(total, limit.rate)? }
        }
        [None, None, Some(idle)] => {
            let text = idle.text(WANT_TIME)?;
            let idle_for: Result<Nanos, _> = text.parse();
            let idle_for = idle_for.map_err(|error| idle.fault(RuleProblem::Unit(error)))?;
            DependencyKind::WhenIdle { idle: idle_for }
        }
        _ => return Err(entry.fault(RuleProblem::ParentKind)),
    };
    Ok(RuleDependency { rule, kind, min })
}

/// Checks that every parent exists, has the limit that its dependent rules need, and depends on
/// none of them.
pub(super) fn check(rules: &[Rule], places: &[Range<usize>]) -> Result<(), RuleFault> {
    let mut parents: Vec<&str> = Vec::new();
    let place = |rule: &str| rules.iter().position(|known| known.name == rule);
    for (rule, at) in rules.iter().zip(places) {
        let Some(parent) = &rule.depends_on else { continue };
        let fault = |problem| RuleFault::new(problem, at.clone());
        let Some(found) = place(&parent.rule) else {
            let problem =
                RuleProblem::NoParent { rule: rule.name.clone(), parent: parent.rule.clone() };
            return Err(fault(problem));
        };
        if !parents.contains(&parent.rule.as_str()) {
            parents.push(&parent.rule);
        }
        if parents.len() > PARENTS_MAX {
            return Err(fault(RuleProblem::TooManyParents { max: PARENTS_MAX }));
        }
        let same = |limit: &super::Limit| limit.rate.is_bytes() == rule.limits[0].rate.is_bytes();
        if matches!(parent.kind, DependencyKind::Follow { .. })
            && !rules[found].limits.iter().any(same)
        {
            let problem =
                RuleProblem::ParentUnit { rule: rule.name.clone(), parent: parent.rule.clone() };
            return Err(fault(problem));
        }
        let mut chain = vec![rule.name.as_str()];
        let mut next = Some(found);
        while let Some(index) = next {
            let name = rules[index].name.as_str();
            if chain[0] == name {
                chain.push(name);
                return Err(fault(RuleProblem::ParentCycle(chain.join(" on "))));
            }
            chain.push(name);
            if chain.len() > DEPTH_MAX {
                return Err(fault(RuleProblem::ParentDepth {
                    rule: rule.name.clone(),
                    max: DEPTH_MAX,
                }));
            }
            next = rules[index].depends_on.as_ref().and_then(|parent| place(&parent.rule));
        }
    }
    Ok(())
}

fn same_unit(entry: SectionEntry<'_>, like: Rate) -> Result<Rate, RuleFault> {
    let rate = limit::rate(entry)?;
    match rate.is_bytes() == like.is_bytes() {
        true => Ok(rate),
        false => {
            let (rate, like) = (rate.to_string(), like.to_string());
            Err(entry.fault(RuleProblem::OtherUnit { rate, like }))
        }
    }
}

/// The range of a percentage.
#[derive(Clone, Copy)]
pub(super) enum PercentRange {
    /// A part of the whole.
    OfOne = 100,
    /// A multiple that may exceed the whole.
    OfAny = 10_000,
}

/// Reads a percentage such as `50%` or `12.5%`, in parts per million.
pub(super) fn part_of(entry: SectionEntry<'_>, most: PercentRange) -> Result<u32, RuleFault> {
    ppm_of_part(entry.text(WANT_PART)?, most).map_err(|problem| entry.fault(problem))
}

/// Like `part_of`, for a text that is not a value.
pub(super) fn ppm_of_part(text: &str, most: PercentRange) -> Result<u32, RuleProblem> {
    let max_percent = most as u32;
    let in_range = |ppm: &u32| (1..=max_percent * 10_000).contains(ppm);
    let ppm = text.strip_suffix('%').and_then(ppm_of).filter(in_range);
    ppm.ok_or_else(|| RuleProblem::Part { text: text.into(), max_percent })
}

/// Ten thousandths of a decimal number with at most four digits behind the point.
fn ppm_of(number: &str) -> Option<u32> {
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(rest) || rest.len() > 4 {
        return None;
    }
    let rest: u32 = format!("{rest:0<4}").parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(rest)
}

const KEYS: [&str; 5] = ["rule", "follow", "remainder_of", "when_idle", "min"];
const WANT: &str = "a table such as { rule = \"a\", follow = \"50%\", min = \"1MB/s\" }";
const WANT_PART: &str = "a text such as \"50%\"";
const WANT_TIME: &str = "a text such as \"500ms\"";
