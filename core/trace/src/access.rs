//! Where an access to an open file begins, seen from the one before it.

/// Where a read or a write begins, seen from the last access through the same fid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Where the last one ended; the first access is sequential at offset 0.
    Sequential,
    /// Where the last one began.
    Same,
    /// Further on than the last one began.
    Forward,
    /// Before the last one began.
    Backward,
}

impl Access {
    /// Every one, in the order of their numbers in a trace, which begin with 1.
    pub const ALL: [Access; 4] =
        [Access::Sequential, Access::Same, Access::Forward, Access::Backward];

    /// The word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Access::Sequential => "sequential",
            Access::Same => "same",
            Access::Forward => "forward",
            Access::Backward => "backward",
        }
    }
}
