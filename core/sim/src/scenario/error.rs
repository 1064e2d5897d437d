//! Errors of scenario files, with an excerpt of the line.
//!
//! ```text
//!   hybrid.toml:12:9: "9 MB" is not a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s
//!     12 | rate = "9 MB"
//!        |        ^^^^^^
//! ```

use std::ops::Range;

use rules::{Excerpt, RuleFileError};

/// A scenario that is refused: one fault, the first that was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{}:{}: {problem}\n{excerpt}", excerpt.line, excerpt.column)]
pub struct ScenarioError {
    /// The name of the file.
    pub name: String,
    /// The problem, and what would be right.
    pub problem: String,
    /// The line and characters at fault.
    pub excerpt: Excerpt,
}

/// A fault and the bytes of the file where it is.
#[derive(Clone, Debug)]
pub(crate) struct WrongValue {
    at: Range<usize>,
    problem: String,
    /// A rule file inside the scenario has its fault in a line of its own.
    inner: Option<(usize, usize)>,
}

impl WrongValue {
    pub(crate) fn new(at: Range<usize>, problem: String) -> WrongValue {
        WrongValue { at, problem, inner: None }
    }

    /// A fault of the rules whose text begins at `at`.
    pub(crate) fn in_rules(at: Range<usize>, error: &RuleFileError) -> WrongValue {
        let inner = Some((error.excerpt.line, error.excerpt.column));
        WrongValue { at, problem: error.problem.to_string(), inner }
    }
}

impl ScenarioError {
    pub(super) fn new(source: &str, name: &str, wrong: WrongValue) -> ScenarioError {
        let at = match wrong.inner {
            Some((line, column)) => position_in_rules(source, &wrong.at, line, column),
            None => wrong.at,
        };
        let excerpt = Excerpt::new(source, at);
        ScenarioError { name: name.into(), problem: wrong.problem, excerpt }
    }
}

/// The position in the file of a line and column of a text of several lines.
fn position_in_rules(source: &str, at: &Range<usize>, line: usize, column: usize) -> Range<usize> {
    let written = &source[at.clone()];
    let quotes = if written.starts_with("\"\"\"") || written.starts_with("'''") { 3 } else { 1 };
    // TOML drops a newline right behind the opening quotes.
    let body = &written[quotes.min(written.len())..];
    let skipped = match body {
        _ if body.starts_with("\r\n") => 2,
        _ if body.starts_with('\n') => 1,
        _ => 0,
    };
    let start = at.start + quotes + skipped;
    let mut offset = start.min(at.end);
    for text in source[offset..at.end].split_inclusive('\n').take(line - 1) {
        offset += text.len();
    }
    let rest = source[offset..at.end].chars();
    offset += rest.take(column - 1).map(char::len_utf8).sum::<usize>();
    let word = source[offset..at.end].chars().take_while(|c| !c.is_whitespace());
    offset..offset + word.map(char::len_utf8).sum::<usize>()
}
