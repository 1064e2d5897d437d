//! Sets of the directories that rules name.

use serde::{Deserialize, Serialize};

/// Which of a rule set's `path={…}` directories contain a file: bit i for path i, at most 64.
///
/// Made by the rule set when a file is walked to or opened, and good only for the set that made it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PathSet(pub u64);

/// Where a file is, as far as rules and entitlements ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePlace {
    /// The directories of the rules that contain it.
    pub paths: PathSet,
    /// The deepest marked directory by which it was looked up.
    pub mark: Option<MarkId>,
}

impl From<PathSet> for FilePlace {
    fn from(paths: PathSet) -> FilePlace {
        FilePlace { paths, mark: None }
    }
}

/// The number of a marked directory: one that an entitlement names. Good within one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkId(pub u32);
