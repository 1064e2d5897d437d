//! Reading a rule file.
//!
//! ```text
//!   TOML text ─► toml's tree with places ─► [[rule]] …  ─► names, default, meters checked ─► RuleSet
//!                                           [[meter]] …      as a whole
//!                        first fault anywhere ─► RuleFileError, the old set stays in force
//! ```
//!
//! Every check is in this file, so that a parsed [`RuleSet`] needs no further checks. Limits are
//! read in limit.rs, conditions in language.rs.

use std::collections::BTreeMap;
use std::ops::Range;

use model::Weight;
use toml::de::DeTable;

use super::decay;
use super::dependency;
use super::error::{RuleFault, RuleFileError, RuleProblem};
use super::limit;
use super::path::PathPattern;
use super::section::{Section, SectionEntry, position_in_text};
use super::{DecayRule, KeyField, Match, MeterRule, Rule, RuleSet, analysis, limit_mode};

/// Reads a whole file.
pub(super) fn parse(source: &str) -> Result<RuleSet, RuleFileError> {
    read(source).map_err(|fault| RuleFileError::new(source, fault))
}

fn read(source: &str) -> Result<RuleSet, RuleFault> {
    let document = DeTable::parse(source).map_err(|error| syntax(source, &error))?;
    let whole = 0..source.len();
    let file = Section::new("the file", document.get_ref(), whole, &["rule", "meter", "decay"])?;
    let mut reader = RuleFileReader { source, paths: Vec::new() };
    let (rules, rules_at) = reader.sections(&file, &RULE, RuleFileReader::rule)?;
    let (meters, meters_at) = reader.sections(&file, &METER, RuleFileReader::meter)?;
    let (decays, decays_at) = reader.sections(&file, &DECAY, RuleFileReader::decay)?;
    let set = RuleSet { rules, meters, decays, paths: reader.paths, ..RuleSet::default() };
    check_default(&set.rules, &rules_at)?;
    dependency::check(&set.rules, &rules_at)?;
    check_meters(&set, &rules_at, &meters_at, &decays_at)?;
    Ok(set.indexed())
}

/// Context that all sections need while they are read.
struct RuleFileReader<'t> {
    source: &'t str,
    paths: Vec<PathPattern>,
}

/// A kind of section: `[[rule]]`, `[[meter]]` or `[[decay]]`.
struct TableShape {
    key: &'static str,
    name: &'static str,
    want: &'static str,
    keys: &'static [&'static str],
    max: usize,
}

/// Sections that were read, and the position of each one's name.
type Placed<T> = (Vec<T>, Vec<Range<usize>>);

impl<'t> RuleFileReader<'t> {
    fn sections<T>(
        &mut self,
        file: &Section<'t>,
        shape: &TableShape,
        read: impl Fn(&mut Self, &Section<'t>, String) -> Result<T, RuleFault>,
    ) -> Result<Placed<T>, RuleFault> {
        let Some(all) = file.get(shape.key) else { return Ok((Vec::new(), Vec::new())) };
        let (mut list, mut places) = (Vec::new(), Vec::new());
        let mut names = BTreeMap::new();
        for entry in all.list(shape.want)? {
            let section =
                Section::new(shape.name, entry.table(shape.want)?, entry.at(), shape.keys)?;
            if list.len() == shape.max {
                let problem = RuleProblem::TooMany { section: shape.name, max: shape.max };
                return Err(RuleFault::new(problem, section.at));
            }
            let name_entry = section.need("name")?;
            let name = name(name_entry)?;
            if let Some(first) = names.insert(name.clone(), name_entry.at()) {
                return Err(name_entry.fault(self.double(shape.name, name, &first)));
            }
            list.push(read(self, &section, name)?);
            places.push(name_entry.at());
        }
        Ok((list, places))
    }

    fn rule(&mut self, section: &Section<'t>, name: String) -> Result<Rule, RuleFault> {
        let weight = section.get("weight").map_or(Ok(Weight::ONE), weight)?;
        let text_of = |key, want| section.get(key).map(|e| e.text(want).map(|text| (e, text)));
        let reservation = text_of("reservation", "a rate such as \"50MB/s\"").transpose()?;
        let reservation = reservation.map(|(entry, text)| {
            text.parse().map_err(|error| entry.fault(RuleProblem::Unit(error)))
        });
        let mode = text_of("write_mode", "one of direct, dontcache, paced, cached").transpose()?;
        let write_mode = mode.map(|(entry, text)| {
            text.parse().map_err(|error| entry.fault(RuleProblem::Word(error)))
        });
        let limits = section.get("limit").map_or(Ok(Vec::new()), limit::limits)?;
        let limit_mode = limit_mode::limit_mode(section, &limits)?;
        let dependency =
            section.get("depends_on").map(|entry| dependency::dependency(entry, &limits));
        let rule = Rule {
            name,
            matcher: self.matcher(section)?,
            per: per(section)?,
            weight,
            reservation: reservation.transpose()?,
            reservation_metadata_ppm: limit_mode::reservation_metadata(section)?,
            limits,
            limit_mode,
            depends_on: dependency.transpose()?,
            slots: count(section, "slots")?,
            reserved_slots: count(section, "reserved_slots")?,
            min_local_service_ppm: limit_mode::min_local_service(section)?,
            write_mode: write_mode.transpose()?,
            max_classes: count(section, "max_classes")?,
        };
        check_classes(&rule, section)?;
        limit_mode::check(&rule, section)?;
        Ok(rule)
    }

    fn meter(&mut self, section: &Section<'t>, name: String) -> Result<MeterRule, RuleFault> {
        Ok(MeterRule {
            name,
            matcher: self.matcher(section)?,
            per: per(section)?,
            limit: limit::limit_of(section)?,
        })
    }

    fn decay(&mut self, section: &Section<'t>, name: String) -> Result<DecayRule, RuleFault> {
        let exempt = section.get("exempt").map(|entry| self.condition(entry)).transpose()?;
        decay::decay(section, name, self.matcher(section)?, exempt, per(section)?)
    }

    fn matcher(&mut self, section: &Section<'t>) -> Result<Match, RuleFault> {
        section.get("match").map_or_else(|| Ok(Match::any()), |entry| self.condition(entry))
    }

    fn condition(&mut self, entry: SectionEntry<'t>) -> Result<Match, RuleFault> {
        let text = entry.text("a condition such as \"jobid={dd.*}\"")?;
        let place = |offset| position_in_text(self.source, &entry.at(), offset);
        let mut matcher: Match = text.parse().map_err(|error: super::MatchError| {
            let at = place(error.at.start)..place(error.at.end);
            RuleFault::new(RuleProblem::Match(error), at)
        })?;
        let resolved = matcher.resolve(&mut self.paths);
        resolved.map_err(|path| entry.fault(RuleProblem::TooManyPaths { path }))?;
        Ok(matcher)
    }

    fn double(&self, section: &'static str, name: String, first: &Range<usize>) -> RuleProblem {
        let line = self.source[..first.start].matches('\n').count() + 1;
        RuleProblem::DoubleName { section, name, line }
    }
}

fn name(entry: SectionEntry<'_>) -> Result<String, RuleFault> {
    let text = entry.text("a text")?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if text.is_empty() || text.len() > RuleSet::NAME_LEN_MAX || !text.bytes().all(allowed) {
        return Err(entry.fault(RuleProblem::Name(text.into())));
    }
    Ok(text.into())
}

fn per(section: &Section<'_>) -> Result<Vec<KeyField>, RuleFault> {
    const WANT: &str = "a list of fields such as [\"jobid\"]";
    let Some(entry) = section.get("per") else { return Ok(Vec::new()) };
    let mut fields = Vec::new();
    for item in entry.list(WANT)? {
        let text = item.text(WANT)?;
        if text == "path" {
            return Err(item.fault(RuleProblem::PerPath));
        }
        let field = text.parse().map_err(|error| item.fault(RuleProblem::Word(error)))?;
        if fields.contains(&field) {
            return Err(item.fault(RuleProblem::Twice(text.into())));
        }
        fields.push(field);
    }
    Ok(fields)
}

fn weight(entry: SectionEntry<'_>) -> Result<Weight, RuleFault> {
    let number = entry.whole("a whole number such as 4")?;
    number.to_string().parse().map_err(|error| entry.fault(RuleProblem::Unit(error)))
}

/// A whole number above zero.
fn count(section: &Section<'_>, key: &'static str) -> Result<Option<u32>, RuleFault> {
    let Some(entry) = section.get(key) else { return Ok(None) };
    let number = entry.whole("a whole number such as 4")?;
    let fits = u32::try_from(number).ok().filter(|count| *count > 0);
    let found = number.to_string();
    let problem = RuleProblem::OutOfRange { key, max: u32::MAX.into(), found };
    fits.map(Some).ok_or_else(|| entry.fault(problem))
}

fn check_classes(rule: &Rule, section: &Section<'_>) -> Result<(), RuleFault> {
    let divided = !rule.per.is_empty();
    if divided && rule.reserved_rate().is_some() && rule.max_classes.is_none() {
        let key = if rule.reservation.is_some() { "reservation" } else { rule.limit_mode.key() };
        return Err(section.need(key)?.fault(RuleProblem::ReserveUnbounded { key }));
    }
    if !divided && rule.max_classes.is_some() {
        return Err(section.need("max_classes")?.fault(RuleProblem::MaxClassesUnused));
    }
    Ok(())
}

/// "default" names requests without a rule, in tables and metrics. A rule of that name configures
/// these and must not mean anything else.
fn check_default(rules: &[Rule], places: &[Range<usize>]) -> Result<(), RuleFault> {
    let named = rules.iter().position(|rule| rule.name == RuleSet::DEFAULT);
    match named {
        Some(index) if index + 1 != rules.len() || !rules[index].matcher.is_any() => {
            Err(RuleFault::new(RuleProblem::Default, places[index].clone()))
        }
        _ => Ok(()),
    }
}

/// Checks the number of meters of a request. The fault is shown at the last meter that exceeds the
/// bound, or, if limits alone do, at the rule with the most.
fn check_meters(
    set: &RuleSet,
    rules_at: &[Range<usize>],
    meters_at: &[Range<usize>],
    decays_at: &[Range<usize>],
) -> Result<(), RuleFault> {
    let Some(worst) = analysis::worst_case(set) else { return Ok(()) };
    if worst.count <= RuleSet::METERS_MAX {
        return Ok(());
    }
    let at = match (worst.decay, worst.meter, worst.rule) {
        (Some(decay), ..) => decays_at[decay].clone(),
        (None, Some(meter), _) => meters_at[meter].clone(),
        (None, None, Some((rule, _))) => rules_at[rule].clone(),
        (None, None, None) => unreachable!("a count above zero has something in it"),
    };
    let problem = RuleProblem::TooManyMeters {
        kind: worst.kind,
        count: worst.count,
        rule: worst.rule.map(|(rule, limits)| (set.rules[rule].name.clone(), limits)),
        meter: match (worst.decay, worst.meter) {
            (Some(decay), _) => Some(set.decays[decay].name.clone()),
            (None, meter) => meter.map(|meter| set.meters[meter].name.clone()),
        },
    };
    Err(RuleFault::new(problem, at))
}

/// The keys of a `[[rule]]`, in their usual order.
pub(super) fn rule_keys() -> &'static [&'static str] {
    RULE.keys
}

fn syntax(source: &str, error: &toml::de::Error) -> RuleFault {
    let at = error.span().unwrap_or(source.len()..source.len());
    RuleFault::new(RuleProblem::Syntax(error.message().into()), at)
}

const RULE: TableShape = TableShape {
    key: "rule",
    name: "[[rule]]",
    want: "a list of [[rule]] sections",
    keys: &[
        "name",
        "match",
        "per",
        "weight",
        "reservation",
        "reservation_metadata",
        "limit",
        "realtime",
        "spare",
        "depends_on",
        "slots",
        "reserved_slots",
        "min_local_service",
        "write_mode",
        "max_classes",
    ],
    max: RuleSet::RULES_MAX,
};

const METER: TableShape = TableShape {
    key: "meter",
    name: "[[meter]]",
    want: "a list of [[meter]] sections",
    keys: &["name", "match", "per", "kinds", "rate", "burst"],
    max: RuleSet::METER_RULES_MAX,
};

const DECAY: TableShape = TableShape {
    key: "decay",
    name: "[[decay]]",
    want: "a list of [[decay]] sections",
    keys: decay::KEYS,
    max: RuleSet::DECAYS_MAX,
};
