//! The condition of a rule.

use crate::{Identity, Kind};

/// Which of a rule set's `path={…}` directories a file lies in: bit i for path i, at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSet(pub u64);

/// A condition on identity, kind and path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {}

impl Match {
    /// Whether a request satisfies the condition.
    pub fn accepts(&self, _who: &Identity, _kind: Kind, _paths: PathSet) -> bool {
        true
    }
}
