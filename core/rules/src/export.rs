//! Writing a rule set as the file that it could have been read from.
//!
//! Defaults are left out and each value takes its shortest form, so that `sluice rule list` prints
//! what a person would have written. Reading it again gives the same set.

use std::fmt::{self, Write};

use model::{Bytes, Ops, Rate, Weight};

use super::limit::{default_kinds, names_of};
use super::{
    DependencyKind, KeyField, Limit, LimitMode, Match, MeterRule, Rule, RuleDependency, RuleSet,
};

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for rule in &self.rules {
            write!(f, "{between}{rule}")?;
            between = "\n";
        }
        for meter in &self.meters {
            write!(f, "{between}{meter}")?;
            between = "\n";
        }
        for decay in &self.decays {
            write!(f, "{between}{decay}")?;
            between = "\n";
        }
        Ok(())
    }
}

/// The `[[rule]]` section of a file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, "rule", &self.name, &self.matcher, &self.per)?;
        if self.weight != Weight::ONE {
            writeln!(f, "weight = {}", self.weight)?;
        }
        if let Some(reservation) = self.reservation {
            writeln!(f, "reservation = \"{reservation}\"")?;
        }
        if let Some(ppm) = self.reservation_metadata_ppm {
            writeln!(f, "reservation_metadata = \"{}\"", percent(ppm))?;
        }
        if !self.limits.is_empty() {
            writeln!(f, "limit = {}", limits(&self.limits))?;
        }
        if self.limit_mode != LimitMode::Hard {
            writeln!(f, "{} = true", self.limit_mode.key())?;
        }
        if let Some(dependency) = &self.depends_on {
            writeln!(f, "depends_on = {dependency}")?;
        }
        if let Some(slots) = self.slots {
            writeln!(f, "slots = {slots}")?;
        }
        if let Some(slots) = self.reserved_slots {
            writeln!(f, "reserved_slots = {slots}")?;
        }
        if let Some(ppm) = self.min_local_service_ppm {
            writeln!(f, "min_local_service = \"{}\"", percent(ppm))?;
        }
        if let Some(mode) = self.write_mode {
            writeln!(f, "write_mode = \"{mode}\"")?;
        }
        if let Some(max) = self.max_classes {
            writeln!(f, "max_classes = {max}")?;
        }
        Ok(())
    }
}

/// The value of a rule's `depends_on`.
impl fmt::Display for RuleDependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, value) = (self.kind.name(), self.kind);
        let rule = text(&self.rule);
        write!(f, "{{ rule = {rule}, {kind} = \"{value}\", min = \"{}\" }}", self.min)
    }
}

/// The value of the key that names the kind of dependence.
impl fmt::Display for DependencyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DependencyKind::Follow { part_ppm } => f.write_str(&percent(*part_ppm)),
            DependencyKind::Remainder { total } => total.fmt(f),
            DependencyKind::WhenIdle { idle } => idle.fmt(f),
        }
    }
}

/// The `[[meter]]` section of a file.
impl fmt::Display for MeterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, "meter", &self.name, &self.matcher, &self.per)?;
        for (key, value) in entries(&self.limit) {
            writeln!(f, "{key} = {value}")?;
        }
        Ok(())
    }
}

/// Parts per million as a percentage.
pub(super) fn percent(ppm: u32) -> String {
    let (whole, rest) = (ppm / 10_000, format!("{:04}", ppm % 10_000));
    let rest = rest.trim_end_matches('0');
    let point = if rest.is_empty() { "" } else { "." };
    format!("{whole}{point}{rest}%")
}

/// The value of a rule's `limit`.
struct RuleLimits<'l>(&'l [Limit]);

fn limits(list: &[Limit]) -> RuleLimits<'_> {
    RuleLimits(list)
}

impl fmt::Display for RuleLimits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(keys) = keys_of(self.0) {
            let pairs = keys.iter().zip(self.0);
            let pairs: Vec<_> = pairs.map(|(key, l)| format!("{key} = \"{}\"", l.rate)).collect();
            return write!(f, "{{ {} }}", pairs.join(", "));
        }
        let values: Vec<String> = self.0.iter().map(single).collect();
        match &*values {
            [one] => f.write_str(one),
            _ => write!(f, "[{}]", values.join(", ")),
        }
    }
}

/// The keys of the table by kind, if the limits can be written as one: each has a name
/// of its own and no burst, and it is not the one that needs no table.
fn keys_of(limits: &[Limit]) -> Option<Vec<&'static str>> {
    if let [one] = limits
        && one.kinds == default_kinds(one.rate)
    {
        return None;
    }
    let mut keys = Vec::with_capacity(limits.len());
    for limit in limits {
        let names = names_of(limit.kinds);
        let key = match &*names {
            _ if limit.burst.is_some() => return None,
            _ if limit.kinds == default_kinds(limit.rate) => "all",
            [name] => name,
            _ => return None,
        };
        if keys.contains(&key) {
            return None;
        }
        keys.push(key);
    }
    Some(keys)
}

fn single(limit: &Limit) -> String {
    let entries = entries(limit);
    if let [(_, rate)] = &*entries {
        return rate.clone();
    }
    let pairs: Vec<String> =
        entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// `kinds`, `rate` and `burst` as they must be written; `rate` alone if the others are defaults.
fn entries(limit: &Limit) -> Vec<(&'static str, String)> {
    let mut entries = Vec::with_capacity(3);
    if limit.kinds != default_kinds(limit.rate) {
        entries.push(("kinds", list(&names_of(limit.kinds))));
    }
    entries.push(("rate", format!("\"{}\"", limit.rate)));
    if let Some(units) = limit.burst {
        let text = match limit.rate {
            Rate::Bytes(_) => Bytes::new(units).to_string(),
            Rate::Ops(_) => Ops::new(units).to_string(),
        };
        entries.push(("burst", format!("\"{text}\"")));
    }
    entries
}

pub(super) fn write_head(
    f: &mut fmt::Formatter<'_>,
    section: &str,
    name: &str,
    matcher: &Match,
    per: &[KeyField],
) -> fmt::Result {
    writeln!(f, "[[{section}]]")?;
    writeln!(f, "name = {}", text(name))?;
    if !matcher.is_any() {
        writeln!(f, "match = {}", text(&matcher.to_string()))?;
    }
    if !per.is_empty() {
        let names: Vec<_> = per.iter().map(|field| field.name()).collect();
        writeln!(f, "per = {}", list(&names))?;
    }
    Ok(())
}

fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// A text as TOML writes it.
pub(super) fn text(value: &str) -> String {
    let mut written = String::with_capacity(value.len() + 2);
    written.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => written.extend(['\\', c]),
            c if c.is_control() => {
                write!(written, "\\u{:04X}", u32::from(c)).expect("a String takes every text");
            }
            c => written.push(c),
        }
    }
    written.push('"');
    written
}
