//! Typed indices: the place of an item in its table. An index of one table does not fit another.
//!
//! ```text
//!   ClassIndex ─► registry: key, references   lanes: queues, tags   observation: sums, causes
//! ```
//!
//! The owners keep their parts of a class, or of a subject, in tables of their own at the same index,
//! which the registry gives out.

use std::fmt;

use model::TargetId;

/// A lane of a target; at a meter, the line of the heads that wait there for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LanePlace {
    pub(crate) target: TargetId,
    pub(crate) lane: usize,
}

/// Bit i: meter i of the chain of meters that a request pays.
pub(crate) type MeterBits = u16;

/// An index of a table.
pub(crate) trait TableIndex: Copy + Eq + fmt::Debug {
    /// The index of that number; any but the greatest.
    fn new(raw: u32) -> Self;

    /// The number of the index.
    fn raw(self) -> u32;
}

macro_rules! indices {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name(u32);

        impl TableIndex for $name {
            #[inline]
            fn new(raw: u32) -> $name {
                $name(raw)
            }

            #[inline]
            fn raw(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}
indices! {
    /// A subject.
    SubjectIndex
    /// An active class.
    ClassIndex
    /// A dormant class.
    DormantIndex
    /// A job with at least one subject.
    JobIndex
    /// A request, from its arrival to its completion.
    RequestIndex
    /// A meter.
    MeterIndex
    /// A class's state at a meter.
    LinkIndex
    /// The meters that requests of a subject pay.
    ChainIndex
}

/// An index or none, in the size of an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionalIndex<I> {
    /// [`NONE`] for none.
    raw: u32,
    of: std::marker::PhantomData<I>,
}

const NONE: u32 = u32::MAX;

impl<I: TableIndex> OptionalIndex<I> {
    pub(crate) const NONE: OptionalIndex<I> =
        OptionalIndex { raw: NONE, of: std::marker::PhantomData };

    #[inline]
    pub(crate) fn get(self) -> Option<I> {
        (self.raw != NONE).then(|| I::new(self.raw))
    }

    /// The index, where there is one; of none its table has no item.
    #[inline]
    pub(crate) fn known(self) -> I {
        debug_assert!(self.raw != NONE);
        I::new(self.raw)
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.raw == NONE
    }

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.raw != NONE
    }
}

impl<I: TableIndex> From<I> for OptionalIndex<I> {
    #[inline]
    fn from(index: I) -> OptionalIndex<I> {
        OptionalIndex { raw: index.raw(), of: std::marker::PhantomData }
    }
}

impl<I: TableIndex> fmt::Debug for OptionalIndex<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
