//! Why a configuration cannot be used, with the line and a caret where there is one.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something in the file is wrong.
    #[error("{0}")]
    Place(Box<Place>),
    /// Something is wrong that has no line, as it came from a flag or from both.
    #[error("{message}")]
    Value {
        /// What is wrong.
        message: String,
    },
    /// An exported directory cannot be looked at.
    #[error("export {name:?}: cannot use the directory {}", .dir.display())]
    ExportDir {
        /// The export.
        name: String,
        /// Its directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A place in a configuration file and what is wrong there.
///
/// Shown in the form of compilers, and of the rule file's errors:
///
/// ```text
/// sluice.toml:7:11: "64" is not an amount of data such as 64KiB, 4MiB or 1GB
///   7 | msize_max = "64"
///     |             ^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the user named it.
    pub file: String,
    /// Counts from 1.
    pub line: usize,
    /// Counts from 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    excerpt: String,
    width: usize,
}

impl Place {
    /// The place of the byte range `span` in `text`, which came from `file`.
    pub(crate) fn new(file: &str, text: &str, span: Range<usize>, message: String) -> Place {
        let start = floor_char(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = floor_char(text, span.end).clamp(start, line_end);
        Place {
            file: file.into(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            message,
            excerpt: text[line_start..line_end].trim_end().replace('\t', " "),
            width: text[start..end].chars().count().max(1),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { file, line, column, message, excerpt, width } = self;
        writeln!(f, "{file}:{line}:{column}: {message}")?;
        let margin = format!("  {line} | ");
        writeln!(f, "{margin}{excerpt}")?;
        let blank = margin.len() - 2;
        write!(f, "{:blank$}| {:before$}{}", "", "", "^".repeat(*width), before = column - 1)
    }
}

/// The start of the character that `index` lies in, or the end of the text.
fn floor_char(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_below_the_fault() {
        let text = "a = 1\nlänge = \"x\"\nb = 2\n";
        let at = text.find("\"x\"").unwrap();
        let place = Place::new("f.toml", text, at..at + 3, "wrong".into());
        assert_eq!(place.to_string(), "f.toml:2:9: wrong\n  2 | länge = \"x\"\n    |         ^^^");
    }

    #[test]
    fn a_fault_that_spans_lines_is_marked_on_its_first() {
        let text = "x = [\n  1,\n]\n";
        let place = Place::new("f", text, 4..12, "wrong".into());
        assert_eq!(place.to_string(), "f:1:5: wrong\n  1 | x = [\n    |     ^");
    }

    #[test]
    fn a_fault_at_the_very_end_has_a_place() {
        let place = Place::new("f", "x =", 3..3, "wrong".into());
        assert_eq!(place.to_string(), "f:1:4: wrong\n  1 | x =\n    |    ^");
    }
}
