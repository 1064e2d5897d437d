//! Decay: a limit falls when a key's past usage exceeds its entitlement, and rises as usage decays.
//!
//! ```text
//!   [[decay]]                                [[decay]]
//!   name = "writers"                         name = "day"
//!   mode = "decay"                           mode = "period"
//!   half_life = "4h"                         period = "24h"
//!   entitlement = "70MB/s"                   entitlement = "70MB/s"   → 6.05 TB a day
//!   max = "700MB/s"                          floor = "10MB/s"
//!   floor = "10MB/s"
//!
//!   limit ▲ max ────╮                        ▲ none ────┐
//!         │          ╰───╮                   │          │ steps
//!         │              ╰────── floor       │          └─────── floor
//!         └────────┴──────────► usage / E    └────────┴──────► usage in this period (E: entitlement)
//! ```
//!
//! Both are the decay policy of the Lustre Intelligent Management Engine: `period` does what its code
//! does, `decay` what its name says. docs/algorithms/decay.md has the formulas.

use std::fmt;

use model::{Direction, KindSet, Nanos, Pattern, Rate};

use super::dependency::{PercentRange, part_of};
use super::error::{RuleFault, RuleProblem};
use super::export::{percent, text, write_head};
use super::limit;
use super::section::{Section, SectionEntry, in_order};
use super::words::{DecayWindow, Resource};
use super::{KeyField, Match};

/// One `[[decay]]`: a ceiling that falls with a key's past usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayRule {
    /// Unique among the decays.
    pub name: String,
    /// The requests that count and are throttled.
    pub matcher: Match,
    /// The requests that neither count nor are throttled; tested first.
    pub exempt: Option<Match>,
    /// One account for each distinct key of these fields; empty: one for all.
    pub per: Vec<KeyField>,
    /// The resource that is counted.
    pub resource: Resource,
    /// The mean rate that each key is entitled to.
    pub entitlement: Rate,
    /// The rate that a key is limited to in any case, and from which the limit falls.
    pub max: Option<Rate>,
    /// The rate below which the limit never falls.
    pub floor: Rate,
    /// How the limit falls.
    pub mode: DecayMode,
    /// Whether keys are throttled only while there is contention.
    pub contention: bool,
    /// The least change of a limit, in millionths of itself.
    pub hysteresis_ppm: u32,
    /// How often limits are computed.
    pub update_interval: Nanos,
    /// Factors on the entitlement of keys whose requests show a pattern, in millionths, from
    /// 250,000 to 2,000,000. In the order of [`Pattern::ALL`]: the first that applies counts.
    pub pattern_factors: Vec<(Pattern, u32)>,
}

/// How a decay's limit falls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecayMode {
    /// By thresholds, until the period is over.
    Period {
        /// The length of the period, in whole minutes.
        period: Nanos,
        /// The beginning of the period.
        window: DecayWindow,
        /// Thresholds and limits in rising order. A threshold is in millionths of what the
        /// entitlement lets through in a period, a limit in millionths of `max`; `None` is the
        /// floor.
        steps: Vec<(u32, Option<u32>)>,
    },
    /// Continuously, with past usage that decays by half over a half-life.
    HalfLife {
        /// The half-life of usage, at least a minute.
        half_life: Nanos,
        /// The limit halves for each 1000/κ thousandths beyond the entitlement: κ in thousandths.
        steepness_milli: u32,
    },
}

impl Resource {
    /// The kinds of request that use it.
    pub fn kinds(self) -> KindSet {
        KindSet::of(match self {
            Resource::Read => Direction::Read,
            Resource::Write => Direction::Write,
            Resource::Metadata => Direction::Metadata,
        })
    }

    /// Whether it is counted in bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(self, Resource::Read | Resource::Write)
    }
}

/// Reads the keys that only a `[[decay]]` has.
pub(super) fn decay(
    section: &Section<'_>,
    name: String,
    matcher: Match,
    exempt: Option<Match>,
    per: Vec<KeyField>,
) -> Result<DecayRule, RuleFault> {
    if let Some(field) = per.iter().find(|field| matches!(field, KeyField::Nid | KeyField::Opcode))
    {
        let problem = RuleProblem::DecayPer { field: field.name() };
        return Err(section.need("per")?.fault(problem));
    }
    let entry = section.need("resource")?;
    let resource = entry.text("one of read, write, metadata")?.parse();
    let resource: Resource = resource.map_err(|error| entry.fault(RuleProblem::Word(error)))?;
    let entitlement = rate(section.need("entitlement")?, resource)?;
    let max = section.get("max").map(|entry| rate(entry, resource)).transpose()?;
    let floor_entry = section.need("floor")?;
    let floor = rate(floor_entry, resource)?;
    if let Some(max) = max.filter(|max| max.per_sec() < floor.per_sec()) {
        let problem = RuleProblem::DecayFloor { floor: floor.to_string(), max: max.to_string() };
        return Err(floor_entry.fault(problem));
    }
    let update_interval = span(section, "update_interval", EVERY_MIN)?.unwrap_or(EVERY);
    let part =
        section.get("hysteresis").map(|entry| part_of(entry, PercentRange::OfOne)).transpose()?;
    let contention = section.get("contention").map(|entry| entry.truth()).transpose()?;
    Ok(DecayRule {
        name,
        matcher,
        exempt,
        per,
        resource,
        entitlement,
        max,
        floor,
        mode: mode(section, max)?,
        contention: contention.unwrap_or(false),
        hysteresis_ppm: part.unwrap_or(HYSTERESIS_PPM),
        update_interval,
        pattern_factors: section.get("pattern_factors").map_or(Ok(Vec::new()), pattern_factors)?,
    })
}

fn mode(section: &Section<'_>, max: Option<Rate>) -> Result<DecayMode, RuleFault> {
    let entry = section.need("mode")?;
    let (mode, foreign): (_, &[&'static str]) = match entry.text("period or decay")? {
        "period" => ("period", &["half_life", "steepness"]),
        "decay" => ("decay", &["period", "window", "steps"]),
        other => return Err(entry.fault(RuleProblem::DecayMode(other.into()))),
    };
    if let Some(clash) = foreign.iter().find_map(|key| section.get(key)) {
        let problem = RuleProblem::DecayOther { key: clash.key.into(), mode };
        return Err(clash.fault(problem));
    }
    if mode == "decay" {
        section.need("max")?;
        let half_life = span(section, "half_life", MINUTE)?;
        let half_life = half_life.map_or_else(|| Err(missing(section, "half_life")), Ok)?;
        let steepness_milli = section.get("steepness").map_or(Ok(STEEPNESS_MILLI), steepness)?;
        return Ok(DecayMode::HalfLife { half_life, steepness_milli });
    }
    let period = span(section, "period", MINUTE)?;
    let period = period.map_or_else(|| Err(missing(section, "period")), Ok)?;
    if !period.get().is_multiple_of(MINUTE.get()) {
        let problem = RuleProblem::DecaySpan { key: "period", least: "a whole number of minutes" };
        return Err(section.need("period")?.fault(problem));
    }
    let window = section.get("window").map(|entry| {
        let word = entry.text("fixed or sliding")?.parse();
        word.map_err(|error| entry.fault(RuleProblem::Word(error)))
    });
    let steps =
        section.get("steps").map_or(Ok(vec![(1_000_000, None)]), |entry| steps(entry, max))?;
    Ok(DecayMode::Period { period, window: window.transpose()?.unwrap_or_default(), steps })
}

/// Reads `{ "75%" = "50%", "100%" = "floor" }`.
fn steps(entry: SectionEntry<'_>, max: Option<Rate>) -> Result<Vec<(u32, Option<u32>)>, RuleFault> {
    const WANT: &str = "a table such as { \"75%\" = \"50%\", \"100%\" = \"floor\" }";
    let mut steps: Vec<(u32, Option<u32>)> = Vec::new();
    for (at, to) in in_order(entry.table(WANT)?) {
        let threshold = super::dependency::ppm_of_part(to.key, PercentRange::OfAny);
        let threshold = threshold.map_err(|problem| RuleFault::new(problem, at.clone()))?;
        if steps.last().is_some_and(|(before, _)| *before >= threshold) {
            return Err(RuleFault::new(RuleProblem::DecaySteps, at));
        }
        let part = match to.text(WANT)? {
            "floor" => None,
            _ if max.is_none() => return Err(to.fault(RuleProblem::DecayMax)),
            _ => Some(part_of(to, PercentRange::OfOne)?),
        };
        steps.push((threshold, part));
    }
    match steps.is_empty() {
        true => Err(entry.fault(RuleProblem::Empty { key: "steps" })),
        false => Ok(steps),
    }
}

/// Reads `{ small-writes = "50%", sequential = "120%" }`.
fn pattern_factors(entry: SectionEntry<'_>) -> Result<Vec<(Pattern, u32)>, RuleFault> {
    const WANT: &str = "a table such as { small-writes = \"50%\", sequential = \"120%\" }";
    let mut factors = Vec::new();
    for (at, to) in in_order(entry.table(WANT)?) {
        let pattern = to.key.parse::<Pattern>();
        let pattern = pattern.map_err(|why| RuleFault::new(RuleProblem::DecayPattern(why), at))?;
        let factor = part_of(to, PercentRange::OfAny)?;
        if !FACTORS.contains(&factor) {
            return Err(to.fault(RuleProblem::DecayFactor(percent(factor))));
        }
        factors.push((pattern, factor));
    }
    factors.sort_unstable();
    match factors.is_empty() {
        true => Err(entry.fault(RuleProblem::Empty { key: "pattern_factors" })),
        false => Ok(factors),
    }
}

/// A rate in the unit of the resource.
fn rate(entry: SectionEntry<'_>, resource: Resource) -> Result<Rate, RuleFault> {
    let rate = limit::rate(entry)?;
    let fits = rate.is_bytes() == resource.is_bytes();
    let unit = if resource.is_bytes() { "bytes" } else { "operations" };
    let problem =
        || RuleProblem::DecayUnit { rate: rate.to_string(), resource: resource.name(), unit };
    fits.then_some(rate).ok_or_else(|| entry.fault(problem()))
}

fn span(
    section: &Section<'_>,
    key: &'static str,
    least: Nanos,
) -> Result<Option<Nanos>, RuleFault> {
    let Some(entry) = section.get(key) else { return Ok(None) };
    let span: Result<Nanos, _> = entry.text("a text such as \"24h\" or \"10min\"")?.parse();
    let span = span.map_err(|error| entry.fault(RuleProblem::Unit(error)))?;
    let problem = RuleProblem::DecaySpan {
        key,
        least: if least == MINUTE { "a minute or more" } else { "a second or more" },
    };
    if span >= least { Ok(Some(span)) } else { Err(entry.fault(problem)) }
}

fn missing(section: &Section<'_>, key: &'static str) -> RuleFault {
    RuleFault::new(RuleProblem::Missing { section: section.name, key }, section.at.clone())
}

/// A decimal number from 0.1 to 10 as a text, in thousandths.
fn steepness(entry: SectionEntry<'_>) -> Result<u32, RuleFault> {
    let text = entry.text("a text such as \"2\" or \"2.5\"")?;
    let milli = || -> Option<u32> {
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > 3 {
            return None;
        }
        let rest: u32 = format!("{rest:0<3}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(rest)
    };
    let in_range = milli().filter(|milli| (100..=10_000).contains(milli));
    in_range.ok_or_else(|| entry.fault(RuleProblem::DecaySteepness(text.into())))
}

/// The `[[decay]]` section of a file.
impl fmt::Display for DecayRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, "decay", &self.name, &self.matcher, &self.per)?;
        if let Some(exempt) = &self.exempt {
            writeln!(f, "exempt = {}", text(&exempt.to_string()))?;
        }
        writeln!(f, "resource = \"{}\"", self.resource)?;
        writeln!(f, "entitlement = \"{}\"", self.entitlement)?;
        if let Some(max) = self.max {
            writeln!(f, "max = \"{max}\"")?;
        }
        writeln!(f, "floor = \"{}\"", self.floor)?;
        match &self.mode {
            DecayMode::HalfLife { half_life, steepness_milli } => {
                writeln!(f, "mode = \"decay\"\nhalf_life = \"{half_life}\"")?;
                if *steepness_milli != STEEPNESS_MILLI {
                    writeln!(f, "steepness = \"{}\"", thousandths(*steepness_milli))?;
                }
            }
            DecayMode::Period { period, window, steps } => {
                writeln!(f, "mode = \"period\"\nperiod = \"{period}\"")?;
                if *window != DecayWindow::default() {
                    writeln!(f, "window = \"{window}\"")?;
                }
                if **steps != [(1_000_000, None)] {
                    let to = |part: Option<u32>| part.map_or("floor".into(), percent);
                    let pair = |(at, part): &(u32, Option<u32>)| {
                        format!("\"{}\" = \"{}\"", percent(*at), to(*part))
                    };
                    let pairs: Vec<String> = steps.iter().map(pair).collect();
                    writeln!(f, "steps = {{ {} }}", pairs.join(", "))?;
                }
            }
        }
        if self.contention {
            writeln!(f, "contention = true")?;
        }
        if self.hysteresis_ppm != HYSTERESIS_PPM {
            writeln!(f, "hysteresis = \"{}\"", percent(self.hysteresis_ppm))?;
        }
        if self.update_interval != EVERY {
            writeln!(f, "update_interval = \"{}\"", self.update_interval)?;
        }
        if !self.pattern_factors.is_empty() {
            let pair = |(pattern, factor): &(Pattern, u32)| {
                format!("{} = \"{}\"", pattern.name(), percent(*factor))
            };
            let pairs: Vec<String> = self.pattern_factors.iter().map(pair).collect();
            writeln!(f, "pattern_factors = {{ {} }}", pairs.join(", "))?;
        }
        Ok(())
    }
}

fn thousandths(number: u32) -> String {
    let (whole, rest) = (number / 1000, format!("{:03}", number % 1000));
    let rest = rest.trim_end_matches('0');
    let point = if rest.is_empty() { "" } else { "." };
    format!("{whole}{point}{rest}")
}

/// The keys of a `[[decay]]`, in their usual order.
pub(super) const KEYS: &[&str] = &[
    "name",
    "match",
    "per",
    "exempt",
    "resource",
    "entitlement",
    "max",
    "floor",
    "mode",
    "half_life",
    "steepness",
    "period",
    "window",
    "steps",
    "contention",
    "hysteresis",
    "update_interval",
    "pattern_factors",
];

/// The range of a pattern's factor: a quarter to twice (the score of a behaviour in the Lustre
/// Intelligent Management Engine).
const FACTORS: std::ops::RangeInclusive<u32> = 250_000..=2_000_000;
const MINUTE: Nanos = Nanos::from_secs(60);
const EVERY_MIN: Nanos = Nanos::from_secs(1);
/// A change within 5 % is not worth an assignment.
const HYSTERESIS_PPM: u32 = 50_000;
const EVERY: Nanos = Nanos::from_secs(10);
/// κ = 2: a key that always has more load settles at about twice its entitlement.
const STEEPNESS_MILLI: u32 = 2_000;
