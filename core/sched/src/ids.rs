//! Ids: an index, and a generation that tells it from later ones at the same place. A class, which
//! moves when it becomes dormant, has a number of its own.

/// A request, from `enqueue` to `complete` or `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A subject: an identity at work in certain directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A class, active or dormant; never reused for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub(crate) u64);

impl ClassId {
    /// The id as a plain number, for tables and traces.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
}

macro_rules! bits {
    ($($id:ident)*) => {$(
        impl $id {
            /// The id as a plain number, for a shell that keeps it in an atomic or a table.
            pub const fn to_bits(self) -> u64 {
                (self.generation as u64) << 32 | self.index as u64
            }

            /// The id of a number that [`Self::to_bits`] gave.
            pub const fn from_bits(bits: u64) -> $id {
                $id { index: bits as u32, generation: (bits >> 32) as u32 }
            }
        }
    )*};
}
bits!(RequestId SubjectId);
