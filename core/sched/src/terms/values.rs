//! What differs between two rule sets of one structure: rates, bursts and weights.
//!
//! ```text
//!   old ─ values replaced ─┐
//!                          ├─ equal? ─► the sections whose values differ
//!   new ─ values replaced ─┘      └─ no: everything is classified again
//! ```

use model::{Rate, SectionKind, Weight};
use rules::{DecayRule, Limit, MeterRule, Rule, RuleSet};

/// The sections whose values differ, by kind and name, in order. `None` if there is any other
/// difference: in conditions, keys, order, units or names.
pub(super) fn changed_values(old: &RuleSet, new: &RuleSet) -> Option<Vec<(SectionKind, String)>> {
    let mut changed = Vec::new();
    let is_of_one_shape = compare(&old.rules, &new.rules, shape_of_rule, |rule| {
        changed.push((SectionKind::Rule, rule.name.clone()));
    }) && compare(&old.meters, &new.meters, shape_of_meter, |meter| {
        changed.push((SectionKind::Meter, meter.name.clone()));
    }) && compare(&old.decays, &new.decays, shape_of_decay, |decay| {
        changed.push((SectionKind::Decay, decay.name.clone()));
    });
    changed.sort();
    is_of_one_shape.then_some(changed)
}

/// Whether sections differ in their values at most; `note` is called for those that differ.
fn compare<T: PartialEq>(
    old: &[T],
    new: &[T],
    shape_of: fn(&T) -> T,
    mut note: impl FnMut(&T),
) -> bool {
    old.len() == new.len()
        && old.iter().zip(new).all(|(before, after)| {
            let is_same = before == after;
            if !is_same {
                note(after);
            }
            is_same || shape_of(before) == shape_of(after)
        })
}

fn shape_of_rule(rule: &Rule) -> Rule {
    Rule {
        weight: Weight::ONE,
        reservation: rule.reservation.map(shape_of_rate),
        limits: rule.limits.iter().map(shape_of_limit).collect(),
        ..rule.clone()
    }
}

fn shape_of_meter(meter: &MeterRule) -> MeterRule {
    MeterRule { limit: shape_of_limit(&meter.limit), ..meter.clone() }
}

fn shape_of_decay(decay: &DecayRule) -> DecayRule {
    DecayRule {
        entitlement: shape_of_rate(decay.entitlement),
        max: decay.max.map(shape_of_rate),
        floor: shape_of_rate(decay.floor),
        ..decay.clone()
    }
}

fn shape_of_limit(limit: &Limit) -> Limit {
    Limit { rate: shape_of_rate(limit.rate), burst: None, ..*limit }
}

/// Its unit.
fn shape_of_rate(rate: Rate) -> Rate {
    rate.with_per_sec(1).expect("above zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(old: &str, new: &str) -> Option<Vec<(SectionKind, String)>> {
        let parse = |text: &str| RuleSet::parse(text).expect("valid rules");
        changed_values(&parse(old), &parse(new))
    }

    #[test]
    fn values_that_differ_are_named_and_any_other_difference_is_none() {
        const OLD: &str = "[[rule]]\nname = \"a\"\nmatch = \"jobid={a}\"\nlimit = \"5ops/s\"\n\
                           [[rule]]\nname = \"b\"\nmatch = \"jobid={b}\"\nreservation = \"5MB/s\"\n\
                           [[meter]]\nname = \"m\"\nmatch = \"*\"\nrate = \"1MB/s\"\n";
        let same = |to: &str, by: &str| changed(OLD, &OLD.replace(to, by));
        let rule = |name: &str| Some(vec![(SectionKind::Rule, name.to_owned())]);
        assert_eq!(same("x", "y"), Some(vec![]));
        assert_eq!(same("limit = \"5ops/s\"", "limit = \"6ops/s\"\nweight = 2"), rule("a"));
        assert_eq!(same("5MB/s", "6MB/s"), rule("b"));
        let meter = Some(vec![(SectionKind::Meter, "m".to_owned())]);
        assert_eq!(same("1MB/s\"", "2MB/s\"\nburst = \"1MiB\""), meter);
        for (to, by) in [
            ("limit = \"5ops/s\"", "limit = \"5MB/s\""),
            ("limit = \"5ops/s\"", "slots = 2"),
            ("jobid={a}", "jobid={c}"),
            ("name = \"a\"", "name = \"c\""),
            ("match = \"*\"", "match = \"*\"\nper = [\"jobid\"]"),
            ("reservation = \"5MB/s\"", ""),
        ] {
            assert_eq!(same(to, by), None, "{by}");
        }
    }
}
