//! Errors of rule files, with an excerpt of the line.
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

use model::{ParsePatternError, ParseUnitError};

use super::matcher::MatchError;
use super::words::ParseWordError;

/// A line of a text with carets under the part at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line's number, from 1.
    pub line: usize,
    /// The first character at fault, from 1.
    pub column: usize,
    /// How many characters of the line are at fault, at least 1.
    pub width: usize,
    /// The whole line of the text.
    pub text: String,
}

/// A rule file that is refused: one fault, the first that was found.
///
/// It prints as `LINE:COLUMN: problem` with an excerpt; [`in_file`](RuleFileError::in_file)
/// puts the file's name before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{}: {problem}\n{excerpt}", excerpt.line, excerpt.column)]
pub struct RuleFileError {
    /// The problem that was found.
    pub problem: RuleProblem,
    /// The line and characters at fault.
    pub excerpt: Excerpt,
}

/// A problem of a rule file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// The text is not TOML.
    #[error("{0}")]
    Syntax(String),
    /// The section does not have this key.
    #[error("{section} has no key {key:?}; use one of {known}")]
    UnknownKey {
        /// The table with the key.
        section: &'static str,
        /// The key that does not exist.
        key: String,
        /// The keys that it may have.
        known: String,
    },
    /// A required key is missing.
    #[error("{section} needs {key}")]
    Missing {
        /// The table without the key.
        section: &'static str,
        /// The key that is missing.
        key: &'static str,
    },
    /// A value has a wrong type.
    #[error("{key} must be {want}, not {found}")]
    WrongType {
        /// The key of the value.
        key: String,
        /// The type or form that is expected.
        want: &'static str,
        /// TOML's name for the type that was found.
        found: &'static str,
    },
    /// A number is out of its range.
    #[error("{key} must be a whole number from 1 to {max}, not {found}")]
    OutOfRange {
        /// The key of the number.
        key: &'static str,
        /// The greatest number that is allowed.
        max: u64,
        /// The number, as written.
        found: String,
    },
    /// A name has characters that tables and metrics do not allow.
    #[error("{0:?} is not a name; use 1 to 63 letters, digits, _, - and .")]
    Name(String),
    /// Two sections have the same name.
    #[error("{section} {name:?} exists already in line {line}; use another name")]
    DoubleName {
        /// `[[rule]]`, `[[meter]]` or `[[decay]]`.
        section: &'static str,
        /// The name of both.
        name: String,
        /// The line of the first one's name.
        line: usize,
    },
    /// A rule "default" is not the last or has a match.
    #[error(
        "rule \"default\" takes what no other rule matches: it must be the last rule, without a match"
    )]
    Default,
    /// A condition cannot be parsed.
    #[error(transparent)]
    Match(MatchError),
    /// No bit is left for a directory.
    #[error(
        "{path:?} exceeds the {} paths that all rules together may name; remove a path",
        super::RuleSet::PATHS_MAX
    )]
    TooManyPaths {
        /// The directory beyond the bound.
        path: String,
    },
    /// An amount, rate, span or weight cannot be parsed.
    #[error(transparent)]
    Unit(ParseUnitError),
    /// A field or mode does not exist.
    #[error(transparent)]
    Word(ParseWordError),
    /// `path` is not allowed in `per`.
    #[error("per cannot contain path; write a rule or meter for each directory")]
    PerPath,
    /// A word is twice in a list.
    #[error("{0:?} is listed twice; remove one")]
    Twice(String),
    /// A name is not a kind of request.
    #[error("{0}")]
    Kinds(String),
    /// A list is empty that must name something.
    #[error("{key} = [] is empty; remove {key} for its default")]
    Empty {
        /// The key of the list.
        key: &'static str,
    },
    /// A rate in bytes cannot limit kinds that move none.
    #[error(
        "{rate:?} cannot limit {kinds}, as only read and write move bytes; use a rate in ops/s"
    )]
    NoBytes {
        /// The rate, as written.
        rate: String,
        /// The kinds, by name.
        kinds: String,
    },
    /// A burst has another unit than its rate, or is zero.
    #[error("{text:?} is not a burst of {rate}; {want}")]
    Burst {
        /// The burst, as written.
        text: String,
        /// The rate of the burst.
        rate: String,
        /// The form that is expected.
        want: &'static str,
    },
    /// A reservation is for an unbounded number of classes.
    #[error("{key} with per needs max_classes: each class reserves the whole rate")]
    ReserveUnbounded {
        /// The key of the reservation.
        key: &'static str,
    },
    /// A limit cannot be `realtime` and `spare`.
    #[error("realtime keeps the limit a ceiling and spare does not; use one of them")]
    SpareRealtime,
    /// A limit cannot be a reservation.
    #[error("{key} needs exactly one limit, for all kinds that its rate counts")]
    ReservationLimit {
        /// The key of the mode, `realtime` or `spare`.
        key: &'static str,
    },
    /// A key contradicts the limit's mode.
    #[error("{with} cannot be combined with {key}: {}", conflict_reason(key, with))]
    ConflictsWithLimitMode {
        /// The key of the mode, `realtime` or `spare`.
        key: &'static str,
        /// The key that contradicts it.
        with: &'static str,
    },
    /// Slots are reserved without a reservation.
    #[error("reserved_slots needs reservation, realtime or spare: the slots are for a reservation")]
    SlotsWithoutReservation,
    /// A percentage for metadata is not one.
    #[error("{0:?} is not a percentage from 0% to 100%, such as 10% or 2.5%")]
    ReserveMetadata(String),
    /// A percentage for metadata is without a reservation in bytes.
    #[error(
        "reservation_metadata needs reservation, realtime or spare in bytes: it is a percentage of that rate"
    )]
    ReserveMetadataAlone,
    /// A percentage for metadata is of a reservation in operations.
    #[error("reservation_metadata needs a rate in bytes: {rate:?} counts every request already")]
    ReserveMetadataOps {
        /// The rate that is reserved.
        rate: String,
    },
    /// A bound on classes is given for a rule with one class.
    #[error("max_classes needs per: without it a rule has one class")]
    MaxClassesUnused,
    /// A dependent rule needs exactly one limit.
    #[error("depends_on needs exactly one limit in its rule, as the upper bound, not {limits}")]
    ParentLimit {
        /// The number of limits.
        limits: usize,
    },
    /// The least value is greater than the limit.
    #[error("min = {min:?} is greater than the rule's limit of {limit:?}")]
    ParentMin {
        /// The least value, as written.
        min: String,
        /// The limit of the rule.
        limit: String,
    },
    /// None or several kinds of dependency are given.
    #[error(
        "depends_on needs exactly one of follow = \"50%\", remainder_of = \"1GB/s\", when_idle = \"500ms\""
    )]
    ParentKind,
    /// A parent does not exist.
    #[error("rule {rule:?} depends on rule {parent:?}, which does not exist")]
    NoParent {
        /// The name of the dependent rule.
        rule: String,
        /// The name of its parent.
        parent: String,
    },
    /// A parent has no limit to take a percentage of.
    #[error("rule {rule:?} follows {parent:?}, which has no limit in the same unit")]
    ParentUnit {
        /// The name of the dependent rule.
        rule: String,
        /// The name of its parent.
        parent: String,
    },
    /// Rules depend on one another in a circle.
    #[error("rules depend on one another in a circle: {0}")]
    ParentCycle(String),
    /// A chain of dependent rules is too long.
    #[error("rule {rule:?} is in a chain of more than {max} rules that depend on one another")]
    ParentDepth {
        /// The last rule of the chain.
        rule: String,
        /// The greatest length of a chain.
        max: usize,
    },
    /// More rules are parents than there are bits for.
    #[error("more than {max} rules are parents of others; remove a parent")]
    TooManyParents {
        /// The most rules that may be parents.
        max: usize,
    },
    /// A rate is in operations where bytes are needed, or the reverse.
    #[error("{rate:?} is not in the unit of the rule's limit, {like:?}")]
    OtherUnit {
        /// The rate, as written.
        rate: String,
        /// The limit of the rule.
        like: String,
    },
    /// A decay is by node or kind.
    #[error("per of a decay cannot contain {field}; use jobid, uid, gid or projid")]
    DecayPer {
        /// The field that is not allowed.
        field: &'static str,
    },
    /// A decay's floor is above its `max`.
    #[error("floor = {floor:?} is greater than max = {max:?}")]
    DecayFloor {
        /// The floor, as written.
        floor: String,
        /// The greatest rate, as written.
        max: String,
    },
    /// A decay's mode does not exist.
    #[error("{0:?} is not a mode of a decay; use period or decay")]
    DecayMode(String),
    /// A key belongs to the other mode.
    #[error("{key} cannot be combined with mode = {mode:?}")]
    DecayOther {
        /// The key of the other mode.
        key: String,
        /// The mode of the decay.
        mode: &'static str,
    },
    /// A span is too short, or is not a whole number of minutes.
    #[error("{key} must be {least}")]
    DecaySpan {
        /// The key of the span.
        key: &'static str,
        /// The least span, in words.
        least: &'static str,
    },
    /// The thresholds of steps do not rise.
    #[error("the thresholds of steps must rise: each must be greater than the one before")]
    DecaySteps,
    /// A step is a percentage of a missing `max`.
    #[error("a step to a percentage needs max; set max or use \"floor\"")]
    DecayMax,
    /// A rate has another unit than the resource.
    #[error("{rate:?} is not in {unit} per second, the unit of resource {resource:?}")]
    DecayUnit {
        /// The rate, as written.
        rate: String,
        /// The resource of the decay.
        resource: &'static str,
        /// The unit of the resource.
        unit: &'static str,
    },
    /// A steepness is out of its range.
    #[error("{0:?} is not a steepness from 0.1 to 10 such as \"2\" or \"2.5\"")]
    DecaySteepness(String),
    /// A pattern does not exist.
    #[error(transparent)]
    DecayPattern(ParsePatternError),
    /// A factor is out of its range.
    #[error("a factor of pattern_factors must be from 25% to 200%, not {0:?}")]
    DecayFactor(String),
    /// A percentage is not one.
    #[error(
        "{text:?} is not a percentage above zero and up to {max_percent}%, such as 50% or 12.5%"
    )]
    Part {
        /// The percentage, as written.
        text: String,
        /// The greatest percentage that is allowed.
        max_percent: u32,
    },
    /// The file has more sections than the bound.
    #[error("more than {max} {section} sections; remove some")]
    TooMany {
        /// `[[rule]]`, `[[meter]]` or `[[decay]]`.
        section: &'static str,
        /// The greatest number of sections.
        max: usize,
    },
    /// One request may have to pay more meters than the bound.
    #[error(
        "a {kind} request could have to pay {count} meters, {}; reduce them to {}",
        format_sections(rule.as_ref(), meter.as_deref()),
        super::RuleSet::METERS_MAX
    )]
    TooManyMeters {
        /// The kind of request.
        kind: model::OpKind,
        /// The number of meters that it could have to pay.
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
    /// The line of `source` in which the bytes `at` begin; the excerpt ends with that line.
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

    /// The position at fault as `line:column`, for programs.
    pub fn position(&self) -> String {
        format!("{}:{}", self.excerpt.line, self.excerpt.column)
    }
}

impl RuleFault {
    pub(super) fn new(problem: RuleProblem, at: Range<usize>) -> RuleFault {
        RuleFault { problem, at }
    }
}

impl fmt::Display for Excerpt {
    /// Writes two lines, the second without a newline behind it. Tabs stay tabs in both, so that
    /// the carets are in the right column whatever the terminal's tab stops are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let blank = " ".repeat(number.len());
        let before = self.text.chars().take(self.column - 1);
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "  {number} | {}", self.text)?;
        write!(f, "  {blank} | {indent}{}", "^".repeat(self.width))
    }
}

/// The sections of the meters, for [`RuleProblem::TooManyMeters`].
fn format_sections(rule: Option<&(String, usize)>, meter: Option<&str>) -> String {
    let limits = rule.map(|(name, limits)| format!("including {limits} limits of rule {name:?}"));
    let last = meter.map(|name| format!("ending with {name:?}"));
    limits.into_iter().chain(last).collect::<Vec<_>>().join(", ")
}

/// The reason why a key contradicts `realtime` or `spare`.
fn conflict_reason(key: &str, with: &str) -> &'static str {
    match (key, with) {
        (_, "reservation") => "the limit is the reservation",
        (_, "weight") => "spare service is divided by rate",
        _ => "parent changes a ceiling, and spare removes it",
    }
}

/// The last position not after `at` where `source` can be cut.
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
