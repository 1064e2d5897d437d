//! Why targets were missed: bench/causes.toml, written by hand after looking.
//!
//! ```text
//!   [[cause]]
//!   rows = ["mount/find"]            which rows
//!   target = "sluice unix ≤ 3 …"     only this target of them
//!   text = "…"                       what was found
//!   evidence = "sluice-bench …"      the command or file that shows it
//! ```

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// The causes of every target that was missed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FigureCauses {
    #[serde(default)]
    cause: Vec<FigureCause>,
}

/// One cause of one or several misses.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FigureCause {
    pub(crate) rows: Vec<String>,
    pub(crate) target: Option<String>,
    pub(crate) text: String,
    pub(crate) evidence: String,
}

impl FigureCauses {
    /// Reads them; without a file there are none.
    pub(crate) fn read(path: &Path) -> anyhow::Result<FigureCauses> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        FigureCauses::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<FigureCauses> {
        let causes: FigureCauses = toml::from_str(text)?;
        for cause in &causes.cause {
            ensure!(!cause.rows.is_empty(), "a cause without rows: {:?}", cause.text);
            ensure!(!cause.evidence.is_empty(), "a cause without evidence: {:?}", cause.text);
        }
        Ok(causes)
    }

    /// The cause of a row's missed target.
    pub(crate) fn of(&self, row: &str, target: &str) -> Option<&FigureCause> {
        self.cause.iter().find(|cause| cause.is_of(row, target))
    }

    /// Causes that none of these misses has.
    pub(crate) fn unused<'c>(&'c self, missed: &[(String, String)]) -> Vec<&'c FigureCause> {
        let is_used = |cause: &&FigureCause| {
            cause
                .rows
                .iter()
                .all(|row| missed.iter().any(|(id, target)| id == row && cause.is_of(id, target)))
        };
        self.cause.iter().filter(|cause| !is_used(cause)).collect()
    }
}

impl FigureCause {
    fn is_of(&self, row: &str, target: &str) -> bool {
        let is_row = self.rows.iter().any(|name| name == row);
        is_row && self.target.as_deref().is_none_or(|own| own == target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[cause]]\nrows = [\"a/b\", \"a/c\"]\ntext = \"slow\"\nevidence = \"perf\"\n\
                        [[cause]]\nrows = [\"a/d\"]\ntarget = \"t\"\ntext = \"far\"\nevidence = \"x\"\n";

    #[test]
    fn a_cause_is_of_its_rows_and_its_target() {
        let causes = FigureCauses::parse(TEXT).unwrap();
        assert_eq!(causes.of("a/c", "anything").map(|cause| cause.text.as_str()), Some("slow"));
        assert_eq!(causes.of("a/d", "t").map(|cause| cause.text.as_str()), Some("far"));
        assert!(causes.of("a/d", "u").is_none() && causes.of("a/e", "t").is_none());
    }

    #[test]
    fn a_cause_of_what_is_not_missed_is_found() {
        let causes = FigureCauses::parse(TEXT).unwrap();
        let missed = |ids: &[&str]| -> Vec<(String, String)> {
            ids.iter().map(|id| ((*id).into(), "t".into())).collect()
        };
        assert!(causes.unused(&missed(&["a/b", "a/c", "a/d"])).is_empty());
        assert_eq!(causes.unused(&missed(&["a/b", "a/d"])).len(), 1);
        let told = FigureCauses::parse("[[cause]]\nrows = []\ntext = \"t\"\nevidence = \"e\"");
        assert_eq!(told.unwrap_err().to_string(), "a cause without rows: \"t\"");
    }
}
