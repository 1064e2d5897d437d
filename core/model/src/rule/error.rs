//! What is wrong with a rule file, shown where it is wrong.
//!
//! ```text
//!   rules.toml:7:9: "50 MB" is not a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s
//!     7 | limit = "50 MB"
//!       |         ^^^^^^^
//! ```
//!
//! [`Excerpt`] is the lower two lines, for any text that people write.

use std::fmt;
use std::ops::Range;

use super::matcher::MatchError;
use super::words::ParseWordError;
use crate::ParsePatternError;
use crate::ParseUnitError;

/// A line of a text with carets under the part at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line's number, from 1.
    pub line: usize,
    /// The first character at fault, from 1.
    pub column: usize,
    /// How many characters of the line are at fault, at least 1.
    pub width: usize,
    /// The whole line.
    pub text: String,
}

/// A rule file that is refused: one fault, the first that was found.
///
/// It prints as `LINE:COLUMN: problem` with an excerpt; [`in_file`](RuleFileError::in_file)
/// puts the file's name before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{}: {problem}\n{excerpt}", excerpt.line, excerpt.column)]
pub struct RuleFileError {
    /// What is wrong.
    pub problem: RuleProblem,
    /// Where it is wrong.
    pub excerpt: Excerpt,
}

/// What can be wrong with a rule file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// It is not TOML.
    #[error("{0}")]
    Syntax(String),
    /// A key that does not exist.
    #[error("{section} has no key {key:?}; use one of {known}")]
    UnknownKey {
        /// The table that holds it.
        section: &'static str,
        /// The key.
        key: String,
        /// The keys that it may hold.
        known: String,
    },
    /// A key that must be there.
    #[error("{section} needs {key}")]
    Missing {
        /// The table that lacks it.
        section: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A value of a wrong type.
    #[error("{key} must be {want}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What belongs there.
        want: &'static str,
        /// TOML's name for what stands there.
        found: &'static str,
    },
    /// A number out of its range.
    #[error("{key} must be a whole number from 1 to {max}, not {found}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The greatest number.
        max: u64,
        /// The number, as written.
        found: String,
    },
    /// A name that cannot stand in tables and metrics.
    #[error("{0:?} is not a name; use 1 to 63 letters, digits, _, - and .")]
    Name(String),
    /// Two rules or two meters of one name.
    #[error("{section} {name:?} exists already in line {line}; use another name")]
    DoubleName {
        /// `[[rule]]`, `[[meter]]` or `[[decay]]`.
        section: &'static str,
        /// The name.
        name: String,
        /// The line of the first one's name.
        line: usize,
    },
    /// A rule "default" that is not what its name says.
    #[error(
        "rule \"default\" takes what no other rule matches: it must be the last rule, without a match"
    )]
    Default,
    /// A condition that cannot be read.
    #[error(transparent)]
    Match(MatchError),
    /// A directory for which there is no bit left.
    #[error(
        "{path:?} exceeds the {} paths that all rules together may name; remove a path",
        super::RuleSet::PATHS_MAX
    )]
    TooManyPaths {
        /// The directory.
        path: String,
    },
    /// An amount, rate, span or weight that cannot be read.
    #[error(transparent)]
    Unit(ParseUnitError),
    /// A field or mode that does not exist.
    #[error(transparent)]
    Word(ParseWordError),
    /// `path` in a `per`.
    #[error("per cannot contain path; write a rule or meter for each directory")]
    PerPath,
    /// A word twice in a list.
    #[error("{0:?} is listed twice; remove one")]
    Twice(String),
    /// A name that stands for no kinds of request.
    #[error("{0}")]
    Kinds(String),
    /// An empty list where something must be named.
    #[error("{key} = [] is empty; remove {key} for its default")]
    Empty {
        /// The key.
        key: &'static str,
    },
    /// Bytes of what moves none.
    #[error(
        "{rate:?} cannot limit {kinds}, as only read and write move bytes; use a rate in ops/s"
    )]
    NoBytes {
        /// The rate.
        rate: String,
        /// The kinds, by name.
        kinds: String,
    },
    /// A burst that does not suit its rate.
    #[error("{text:?} is not a burst of {rate}; {want}")]
    Burst {
        /// The burst, as written.
        text: String,
        /// The rate.
        rate: String,
        /// What belongs there.
        want: &'static str,
    },
    /// A reservation for an unbounded number of classes.
    #[error("{key} with per needs max_classes: the whole rate is reserved for each class")]
    ReserveUnbounded {
        /// The key that promises it.
        key: &'static str,
    },
    /// A limit that is to be both.
    #[error("realtime keeps the limit a ceiling and spare does not; use one of them")]
    SpareRealtime,
    /// A limit that cannot be a promise.
    #[error("{key} needs exactly one limit, for all kinds that its rate counts")]
    PromiseLimit {
        /// `realtime` or `spare`.
        key: &'static str,
    },
    /// A key that says what the limit says already.
    #[error("{with} cannot be combined with {key}: {}", why_not(key, with))]
    PromiseTwice {
        /// `realtime` or `spare`.
        key: &'static str,
        /// The other key.
        with: &'static str,
    },
    /// Slots kept for a promise that is not made.
    #[error("keep_slots needs reserve, realtime or spare: the slots are for a reservation")]
    KeepsForNobody,
    /// A part of a promise that is none.
    #[error("{0:?} is not a percentage from 0% to 100%, such as 10% or 2.5%")]
    ReserveMetadata(String),
    /// A part of a promise that is not made.
    #[error(
        "reserve_metadata needs reserve, realtime or spare in bytes: it is a percentage of that rate"
    )]
    ReserveMetadataAlone,
    /// A part of a promise that counts requests without bytes itself.
    #[error("reserve_metadata needs a rate in bytes: {rate:?} counts every request already")]
    ReserveMetadataOps {
        /// What is promised.
        rate: String,
    },
    /// A bound on classes of which there is one.
    #[error("max_classes needs per: without it a rule has one class")]
    MaxClassesUnused,
    /// A dependent rule without the one limit that depends.
    #[error("parent needs exactly one limit, its greatest value, and the rule has {limits}")]
    ParentLimit {
        /// How many there are.
        limits: usize,
    },
    /// A least that is more than the most.
    #[error("min = {min:?} is greater than the rule's limit of {limit:?}")]
    ParentMin {
        /// The least.
        min: String,
        /// The most.
        limit: String,
    },
    /// None or several of the kinds of dependence.
    #[error(
        "parent needs exactly one of follow = \"50%\", complement = \"1GB/s\", gate = \"500ms\""
    )]
    ParentKind,
    /// A parent that is not there.
    #[error("rule {rule:?} depends on rule {parent:?}, which does not exist")]
    NoParent {
        /// The rule.
        rule: String,
        /// Its parent.
        parent: String,
    },
    /// A parent without a limit to take a part of.
    #[error("rule {rule:?} follows {parent:?}, which has no limit in the same unit")]
    ParentUnit {
        /// The rule.
        rule: String,
        /// Its parent.
        parent: String,
    },
    /// Rules that depend on one another in a circle.
    #[error("rules depend on one another in a circle: {0}")]
    ParentCycle(String),
    /// Too many rules that depend on one another.
    #[error("rule {rule:?} is in a chain of more than {max} rules that depend on one another")]
    ParentDepth {
        /// The last one.
        rule: String,
        /// How many there may be.
        max: usize,
    },
    /// More rules that others depend on than there are bits for.
    #[error("more than {max} rules are parents of others; remove a parent")]
    TooManyParents {
        /// How many there may be.
        max: usize,
    },
    /// A rate in operations where bytes are needed, or the other way round.
    #[error("{rate:?} is not in the unit of the rule's limit, {like:?}")]
    OtherUnit {
        /// The rate, as written.
        rate: String,
        /// The limit.
        like: String,
    },
    /// A decay for each node or kind.
    #[error("per of a decay cannot contain {field}; use jobid, uid, gid or projid")]
    DecayPer {
        /// The field.
        field: &'static str,
    },
    /// A decay's floor above its top.
    #[error("floor = {floor:?} is greater than max = {max:?}")]
    DecayFloor {
        /// The floor.
        floor: String,
        /// The top.
        max: String,
    },
    /// A decay of neither mode.
    #[error("{0:?} is not a mode of a decay; use step or decay")]
    DecayMode(String),
    /// A key of the other mode.
    #[error("{key} cannot be combined with mode = {mode:?}")]
    DecayOther {
        /// The key.
        key: String,
        /// The mode.
        mode: &'static str,
    },
    /// A span that is too short to be kept, or is no whole number of minutes.
    #[error("{key} must be {least}")]
    DecaySpan {
        /// The key.
        key: &'static str,
        /// What it must be.
        least: &'static str,
    },
    /// Thresholds that do not rise.
    #[error("the thresholds of steps must rise: each must be greater than the one before")]
    DecaySteps,
    /// A part of a rate that is not there.
    #[error("a step to a percentage is a percentage of max; set max or use \"floor\"")]
    DecayMax,
    /// A rate in another unit than the resource.
    #[error("{rate:?} is not in {unit} per second, the unit of resource {resource:?}")]
    DecayUnit {
        /// The rate, as written.
        rate: String,
        /// The resource.
        resource: &'static str,
        /// Its unit.
        unit: &'static str,
    },
    /// A steepness out of its range.
    #[error("{0:?} is not a steepness from 0.1 to 10 such as \"2\" or \"2.5\"")]
    DecayKappa(String),
    /// A name of no pattern.
    #[error(transparent)]
    DecayPattern(ParsePatternError),
    /// A factor out of its range.
    #[error("a factor of behaviour must be from 25% to 200%, not {0:?}")]
    DecayFactor(String),
    /// A part that is none.
    #[error(
        "{text:?} is not a percentage above zero and up to {max_percent}%, such as 50% or 12.5%"
    )]
    Part {
        /// The part, as written.
        text: String,
        /// The greatest.
        max_percent: u32,
    },
    /// More sections than are kept.
    #[error("more than {max} {section} sections; remove some")]
    TooMany {
        /// `[[rule]]`, `[[meter]]` or `[[decay]]`.
        section: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// More meters than one request may have to pay.
    #[error(
        "a {kind} request could have to pay {count} meters, {}; reduce them to {}",
        of_whom(rule.as_ref(), meter.as_deref()),
        super::RuleSet::METERS_MAX
    )]
    TooManyMeters {
        /// The kind of request.
        kind: crate::OpKind,
        /// How many it could have to pay.
        count: usize,
        /// The rule with the most limits that it pays, if any has one, and how many these are.
        rule: Option<(String, usize)>,
        /// The last `[[meter]]` or `[[decay]]` among them, if there is one.
        meter: Option<String>,
    },
}

/// A problem and its bytes in the file.
#[derive(Debug)]
pub(super) struct RuleFault {
    pub(super) problem: RuleProblem,
    pub(super) at: Range<usize>,
}

impl Excerpt {
    /// The line of `source` in which the bytes `at` begin; what lies beyond that line is cut off.
    pub fn new(source: &str, at: Range<usize>) -> Excerpt {
        let start = floor_char_boundary(source, at.start);
        let end = floor_char_boundary(source, at.end.max(start));
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line = source[line_start..].lines().next().unwrap_or("");
        let line_end = line_start + line.len();
        // The carriage return of an end of line is not part of the line.
        let shown = start.min(line_end);
        let fault = &source[shown..end.clamp(shown, line_end)];
        Excerpt {
            line: source[..start].matches('\n').count() + 1,
            column: source[line_start..shown].chars().count() + 1,
            width: fault.chars().count().max(1),
            text: line.into(),
        }
    }
}

impl RuleFileError {
    pub(super) fn new(source: &str, fault: RuleFault) -> RuleFileError {
        RuleFileError { problem: fault.problem, excerpt: Excerpt::new(source, fault.at) }
    }

    /// The error as people read it, with the file's name before line and column.
    pub fn in_file(&self, name: impl fmt::Display) -> String {
        format!("{name}:{self}")
    }
}

impl RuleFault {
    pub(super) fn new(problem: RuleProblem, at: Range<usize>) -> RuleFault {
        RuleFault { problem, at }
    }
}

impl fmt::Display for Excerpt {
    /// Two lines, the second without a newline behind it. Tabs stay tabs in both, so that the
    /// carets stand right wherever the terminal's tab stops are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let blank = " ".repeat(number.len());
        let before = self.text.chars().take(self.column - 1);
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "  {number} | {}", self.text)?;
        write!(f, "  {blank} | {indent}{}", "^".repeat(self.width))
    }
}

/// Whose meters they are, for [`RuleProblem::TooManyMeters`].
fn of_whom(rule: Option<&(String, usize)>, meter: Option<&str>) -> String {
    let limits = rule.map(|(name, limits)| format!("including {limits} limits of rule {name:?}"));
    let last = meter.map(|name| format!("ending with {name:?}"));
    limits.into_iter().chain(last).collect::<Vec<_>>().join(", ")
}

/// Why a key does not go with `realtime` or `spare`.
fn why_not(key: &str, with: &str) -> &'static str {
    match (key, with) {
        (_, "reserve") => "the limit is the reservation",
        (_, "weight") => "spare service is divided by rate",
        _ => "parent changes a ceiling, and spare removes it",
    }
}

/// The last place not after `at` where `source` can be cut.
fn floor_char_boundary(source: &str, at: usize) -> usize {
    let nearest = (0..=at.min(source.len())).rev().find(|at| source.is_char_boundary(*at));
    nearest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_stand_under_the_fault() {
        let source = "first\n\tlimit = \"5ö\" # x\nlast";
        let at = source.find('"').unwrap();
        assert_eq!(
            Excerpt::new(source, at..at + 5).to_string(),
            "  2 | \tlimit = \"5ö\" # x\n    | \t        ^^^^"
        );
    }

    #[test]
    fn a_fault_of_several_lines_is_marked_in_its_first() {
        let excerpt = Excerpt::new("a = [\n  1,\n]", 4..12);
        assert_eq!((excerpt.line, excerpt.column, excerpt.width), (1, 5, 1));
    }

    #[test]
    fn a_fault_at_the_end_of_the_text_still_has_a_caret() {
        let excerpt = Excerpt::new("a =", 3..3);
        assert_eq!((excerpt.line, excerpt.column, excerpt.width), (1, 4, 1));
        let excerpt = Excerpt::new("a = 1\n", 6..6);
        assert_eq!((excerpt.line, excerpt.column, excerpt.text.as_str()), (2, 1, ""));
        assert_eq!(Excerpt::new("", 0..9).line, 1);
        let excerpt = Excerpt::new("a = \"b\r\nc", 7..8);
        assert_eq!((excerpt.line, excerpt.column, excerpt.text.as_str()), (1, 7, "a = \"b"));
    }
}
