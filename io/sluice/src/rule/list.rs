//! Formats rules and meters as tables for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use api::{DecayRuleReport, LimitReport, RuleLoad, WireRule, WireRuleDependency, WireRules};
use model::Nanos;
use rules::{Rule, RuleSet};

use crate::top::table;

/// Formats the tables, and below them further remarks.
pub(super) fn list(rules: &WireRules) -> String {
    let mut text = String::new();
    if rules.rules.is_empty() && rules.meters.is_empty() && rules.decays.is_empty() {
        text += "no rules: every request is in the class \"default\"\n";
    }
    if !rules.rules.is_empty() {
        text += &rule_table(rules);
    }
    if !rules.meters.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text += gap;
        text += &meter_table(rules);
    }
    if !rules.decays.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text += gap;
        text += &decay_table(rules);
    }
    for (rule, by) in shadowed(rules) {
        let _ = writeln!(text, "{}", never_matches(rule, by));
    }
    for (target, cut) in rules.reservation_shortfall_ppm.iter().filter(|(_, cut)| **cut > 0) {
        let percent = cut.div_ceil(10_000);
        let _ = writeln!(
            text,
            "target {target}: reservations exceed its capacity; each is cut by {percent} %"
        );
    }
    if is_of_proxy(rules) && !rules.saved && !rules.text.is_empty() {
        let _ = match &rules.file {
            Some(file) => {
                writeln!(
                    text,
                    "in force until the proxy ends or reloads {file} (SIGHUP); not saved there"
                )
            }
            None => writeln!(text, "in force until the proxy ends: it has no rule file (--rules)"),
        };
    }
    text
}

/// Returns the rules that never match, each with the rule that takes all of its requests.
pub(super) fn shadowed(rules: &WireRules) -> impl Iterator<Item = (&str, &str)> {
    rules.rules.iter().filter_map(|rule| Some((&*rule.name, rule.shadowed_by.as_deref()?)))
}

pub(super) fn never_matches(rule: &str, by: &str) -> String {
    format!("rule {rule:?} never matches: {by:?} takes all of its requests")
}

/// Formats a limit for one cell: `100MB/s read write`.
fn limit(limit: &LimitReport) -> String {
    let all = model::OpKind::ALL.len();
    match limit.kinds.len() {
        kinds if kinds == all => limit.rate.clone(),
        kinds if kinds > 3 => format!("{} of {kinds} kinds", limit.rate),
        _ => format!("{} {}", limit.rate, limit.kinds.join(" ")),
    }
}

/// Formats the current value of a limit that depends on another rule: one for all targets, or one for each.
pub(super) fn effective(loads: &[RuleLoad]) -> String {
    let limits = || loads.iter().filter_map(|load| load.effective_limit.as_deref());
    match limits().collect::<BTreeSet<_>>().len() {
        0 | 1 => limits().next().unwrap_or_default().into(),
        _ => {
            let of_target = |load: &RuleLoad| {
                load.effective_limit.as_ref().map(|limit| format!("{limit} on {}", load.target))
            };
            loads.iter().filter_map(of_target).collect::<Vec<_>>().join(", ")
        }
    }
}

/// A column: its head, whether its cells are numbers, and its value for a rule.
type RuleColumn = (&'static str, bool, fn(&WireRule) -> String);

const COLUMNS: &[RuleColumn] = &[
    ("RULE", false, |rule| rule.name.clone()),
    ("MATCH", false, |rule| rule.condition.clone()),
    ("PER", false, |rule| rule.per.join(" ")),
    ("WEIGHT", true, |rule| rule.weight.to_string()),
    ("RESERVATION", false, |rule| rule.reservation.clone().unwrap_or_default()),
    ("METADATA", true, |rule| metadata(rule.reservation_metadata_ppm)),
    ("LIMIT", false, |rule| rule.limits.iter().map(limit).collect::<Vec<_>>().join(", ")),
    ("MODE", false, |rule| rule.limit_mode.clone().unwrap_or_default()),
    ("NOW", false, |rule| effective(&rule.targets)),
    ("DEPENDENCY", false, |rule| rule.depends_on.as_ref().map(dependency).unwrap_or_default()),
    ("SLOTS", true, |rule| number(rule.slots)),
    ("RESERVED", true, |rule| number(rule.reserved_slots)),
    ("LOCAL", true, |rule| rule.min_local_service_ppm.map(percent).unwrap_or_default()),
    ("WRITES", false, |rule| rule.write_mode.clone().unwrap_or_default()),
    ("MAX", true, |rule| number(rule.max_classes)),
    ("CLASSES", true, |rule| sum(rule, |load| load.classes)),
    ("QUEUED", true, |rule| sum(rule, |load| load.queued)),
    ("RUNNING", true, |rule| sum(rule, |load| load.running)),
];

fn rule_table(rules: &WireRules) -> String {
    let mut rows: Vec<WireRule> = rules.rules.clone();
    if !rules.unmatched.is_empty() {
        rows.push(WireRule {
            name: RuleSet::DEFAULT.into(),
            condition: "all the rest".into(),
            weight: 1,
            targets: rules.unmatched.clone(),
            ..WireRule::default()
        });
    }
    let shown =
        COLUMNS.iter().filter(|(_, _, cell)| rows.iter().any(|rule| !cell(rule).is_empty()));
    let shown: Vec<_> = shown.collect();
    let head: Vec<_> = shown.iter().map(|(head, ..)| *head).collect();
    let right: Vec<_> = (0..shown.len()).filter(|column| shown[*column].1).collect();
    let cells = rows.iter().map(|rule| shown.iter().map(|(_, _, cell)| cell(rule)).collect());
    table::aligned(&head, &right, cells)
}

fn meter_table(rules: &WireRules) -> String {
    let rows = rules.meters.iter().map(|meter| {
        let per = meter.per.join(" ");
        vec![meter.name.clone(), meter.condition.clone(), per, limit(&meter.limit)]
    });
    table::aligned(&["METER", "MATCH", "PER", "RATE"], &[], rows)
}

fn decay_table(rules: &WireRules) -> String {
    let rows = rules.decays.iter().map(|decay| {
        let DecayRuleReport { name, condition, per, resource, entitlement, floor, .. } = decay;
        let span = Nanos::new(decay.span_ns);
        let exempt = decay.exempt.as_ref().map(|exempt| format!(" but {exempt}"));
        vec![
            name.clone(),
            format!("{condition}{}", exempt.unwrap_or_default()),
            per.join(" "),
            resource.clone(),
            entitlement.clone(),
            decay.max.clone().unwrap_or_default(),
            floor.clone(),
            match decay.mode.as_str() {
                "period" => format!("each {span}"),
                _ => format!("half after {span}"),
            },
        ]
    });
    let head = ["DECAY", "MATCH", "PER", "OF", "ENTITLEMENT", "MAX", "FLOOR", "WINDOW"];
    table::aligned(&head, &[], rows)
}

/// Formats a dependency as the value of `--depends-on`.
fn dependency(depends_on: &WireRuleDependency) -> String {
    let WireRuleDependency { rule, kind, value, min } = depends_on;
    format!("{rule},{kind}={value},min={min}")
}

/// Formats the part of a reservation for requests without bytes, if it is not the default.
fn metadata(ppm: Option<u32>) -> String {
    ppm.filter(|ppm| *ppm != Rule::RESERVATION_METADATA_PPM).map(percent).unwrap_or_default()
}

fn number(value: Option<u32>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Formats parts per million as a percentage.
pub(super) fn percent(ppm: u32) -> String {
    let (whole, rest) = (ppm / 10_000, format!("{:04}", ppm % 10_000));
    let rest = rest.trim_end_matches('0');
    let point = if rest.is_empty() { "" } else { "." };
    format!("{whole}{point}{rest}%")
}

/// Sums over all targets; empty if there is no load information.
fn sum(rule: &WireRule, part: fn(&RuleLoad) -> u64) -> String {
    match rule.targets.as_slice() {
        [] => String::new(),
        loads => loads.iter().map(part).sum::<u64>().to_string(),
    }
}

/// Returns whether the rules are those of a scheduling proxy, not of a file.
fn is_of_proxy(rules: &WireRules) -> bool {
    !rules.reservation_shortfall_ppm.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> WireRules {
        WireRules::of(text, &RuleSet::parse(text).unwrap())
    }

    #[test]
    fn rules_and_meters_are_listed_in_their_order_without_empty_columns() {
        let rules = rules(
            "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={dd.*}\"\nper = [\"jobid\"]\nweight = 4\n\
             limit = \"100MB/s\"\n\
             [[rule]]\nname = \"rest\"\nslots = 8\nreservation = \"1MB/s\"\nreservation_metadata = \"25%\"\n\
             [[rule]]\nname = \"late\"\nmatch = \"uid={500}\"\n\
             [[meter]]\nname = \"opens\"\nkinds = [\"open\"]\nrate = \"100ops/s\"\n",
        );
        assert_eq!(
            list(&rules),
            "RULE  MATCH         PER    WEIGHT  RESERVATION  METADATA  LIMIT               SLOTS\n\
             jobs  jobid={dd.*}  jobid       4                         100MB/s read write\n\
             rest  *                         1  1MB/s             25%                          8\n\
             late  uid={500}                 1\n\
             \n\
             METER  MATCH  PER  RATE\n\
             opens  *           100ops/s open\n\
             rule \"late\" never matches: \"rest\" takes all of its requests\n"
        );
    }

    #[test]
    fn a_running_proxy_shows_what_is_under_way_and_what_limits_are_now() {
        let mut rules = rules(
            "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\n\
             [[rule]]\nname = \"b\"\nmatch = \"uid={2}\"\nlimit = \"9ops/s\"\n\
             depends_on = { rule = \"a\", when_idle = \"1s\", min = \"2ops/s\" }\n",
        );
        let load = |target: &str, queued, limit: Option<&str>| RuleLoad {
            target: target.into(),
            effective_limit: limit.map(String::from),
            classes: 1,
            queued,
            running: 1,
        };
        rules.rules[0].targets = vec![load("x", 3, None), load("y", 4, None)];
        rules.rules[1].targets = vec![load("x", 0, Some("9ops/s")), load("y", 0, Some("2ops/s"))];
        rules.unmatched = vec![load("x", 5, None)];
        rules.reservation_shortfall_ppm = [("x".into(), 0), ("y".into(), 120_001)].into();
        rules.file = Some("/r.toml".into());
        assert_eq!(
            list(&rules),
            "RULE     MATCH         WEIGHT  LIMIT   NOW                       \
             DEPENDENCY                 CLASSES  QUEUED  RUNNING\n\
             a        uid={1}            1                                    \
             \x20                                2       7        2\n\
             b        uid={2}            1  9ops/s  9ops/s on x, 2ops/s on y  \
             a,when_idle=1s,min=2ops/s        2       0        2\n\
             default  all the rest       1                                    \
             \x20                                1       5        1\n\
             target y: reservations exceed its capacity; each is cut by 13 %\n\
             in force until the proxy ends or reloads /r.toml (SIGHUP); not saved there\n"
        );
        assert_eq!(effective(&rules.rules[1].targets[..1]), "9ops/s");
    }

    #[test]
    fn no_rules_are_said_in_words() {
        assert_eq!(list(&rules("")), "no rules: every request is in the class \"default\"\n");
    }
}
