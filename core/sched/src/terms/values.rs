//! What differs between two rule sets of one structure: rates, bursts and weights.
//!
//! ```text
//!   old ─ values replaced ─┐
//!                          ├─ equal? ─► the sections whose values differ
//!   new ─ values replaced ─┘      └─ no: everything is classified again
//! ```

use model::{DecayRule, Limit, MeterRule, Rate, Rule, RuleSet, SectionKind, Weight};

/// The sections whose values differ, by kind and name, in order. `None` if there is any other
/// difference: in conditions, keys, order, units or names.
pub(super) fn changed_values(old: &RuleSet, new: &RuleSet) -> Option<Vec<(SectionKind, String)>> {
    let mut changed = Vec::new();
    let mut compare = |kind, name: &str, is_same: bool, is_of_one_shape: bool| {
        if !is_same {
            changed.push((kind, name.to_owned()));
        }
        is_same || is_of_one_shape
    };
    let lens = |of: &RuleSet| [of.rules.len(), of.meters.len(), of.decays.len()];
    let rules = old.rules.iter().zip(&new.rules);
    let meters = old.meters.iter().zip(&new.meters);
    let decays = old.decays.iter().zip(&new.decays);
    let is_of_one_shape = lens(old) == lens(new)
        && { rules }.all(|(a, b)| {
            compare(SectionKind::Rule, &a.name, a == b, shape_of_rule(a) == shape_of_rule(b))
        })
        && { meters }.all(|(a, b)| {
            compare(SectionKind::Meter, &a.name, a == b, shape_of_meter(a) == shape_of_meter(b))
        })
        && { decays }.all(|(a, b)| {
            compare(SectionKind::Decay, &a.name, a == b, shape_of_decay(a) == shape_of_decay(b))
        });
    changed.sort();
    is_of_one_shape.then_some(changed)
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
