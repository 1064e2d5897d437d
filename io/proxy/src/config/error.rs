//! Errors of a configuration, with the line and a caret if there is one.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rules::Excerpt;

/// Reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A key or value in the file is wrong.
    #[error("{0}")]
    InvalidKey(Box<ConfigLocation>),
    /// A value without a line is wrong: it came from a flag, or from a flag and the file.
    #[error("{message}")]
    Value {
        /// The error, with the value and the right form.
        message: String,
    },
    /// An exported directory cannot be read.
    #[error("export {name:?}: cannot use the directory {}", .dir.display())]
    ExportDir {
        /// The name of the export.
        name: String,
        /// The directory that cannot be read.
        dir: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// Position of an error in a configuration file, in the format of the rule file's errors:
///
/// ```text
/// sluice.toml:7:13: "64" is not an amount of data such as 64KiB, 4MiB or 1GB
///   7 | msize_max = "64"
///     |             ^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigLocation {
    /// The file, as the user named it.
    pub file: String,
    /// The error without its position.
    pub message: String,
    /// Where it is wrong.
    pub excerpt: Excerpt,
}

impl fmt::Display for ConfigLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigLocation { file, message, excerpt } = self;
        write!(f, "{file}:{}:{}: {message}\n{excerpt}", excerpt.line, excerpt.column)
    }
}
