//! Sets of the directories that rules name.

use serde::{Deserialize, Serialize};

use crate::Directory;

/// Which of a rule set's `path={…}` directories contain a file: bit i for path i, at most 64.
///
/// Made by the rule set when a file is walked to or opened, and good only for the set that made it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PathSet(pub u64);

/// Where a file is, as far as rules and entitlements ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePlace {
    /// The directories of the rules that contain it.
    pub paths: PathSet,
    /// The deepest directory by which it was looked up and that an entitlement named then.
    pub mark: Option<Directory>,
}

impl From<PathSet> for FilePlace {
    fn from(paths: PathSet) -> FilePlace {
        FilePlace { paths, mark: None }
    }
}
