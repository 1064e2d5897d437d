//! Sets of the directories that rules name.

use serde::{Deserialize, Serialize};

/// Which of a rule set's `path={…}` directories contain a file: bit i for path i, at most 64.
///
/// Made by the rule set when a file is walked to or opened, and good only for the set that made it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PathSet(pub u64);
