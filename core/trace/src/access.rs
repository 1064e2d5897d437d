//! The position of an access to an open file, relative to those before it.

/// The position of a read or a write, relative to the recent accesses through the same fid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// At the end of a recent one; the first access is sequential at offset 0.
    Sequential,
    /// At the beginning of the last one.
    Same,
    /// Beyond the beginning of the last one.
    Forward,
    /// Before the beginning of the last one.
    Backward,
}

impl Access {
    /// Every position, in the order of the numbers in a trace, which begin with 1.
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
