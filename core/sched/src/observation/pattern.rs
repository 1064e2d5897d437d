//! Access patterns: sizes and order of a subject's reads and writes.
//!
//! ```text
//!   the proxy knows where an access lay ─► count_access, before complete ─► the subject's counts
//! ```
//!
//! A subject without reads and writes keeps nothing.

use model::{Accesses, Bytes, Direction, OpKind};

/// Statistics of reads, then of writes.
pub(super) type SubjectPattern = Option<Box<[DirectionPattern; 2]>>;

/// The accesses of one direction.
#[derive(Debug, Default)]
pub(super) struct DirectionPattern {
    accesses: Accesses,
    /// How many of the random ones were found to follow a later arrival.
    joined: u64,
}

/// Counts a read or write; other requests, and those that moved nothing, are not counted.
pub(super) fn count(
    pattern: &mut SubjectPattern,
    kind: OpKind,
    moved: Bytes,
    random: bool,
    joined: u8,
) {
    let place = match kind.direction() {
        Direction::Read => 0,
        Direction::Write => 1,
        Direction::Metadata => return,
    };
    let pattern = &mut pattern.get_or_insert_default()[place];
    pattern.accesses.count(moved.get(), random);
    pattern.joined += if moved > Bytes::ZERO { joined.into() } else { 0 };
}

/// The statistics of reads and of writes.
pub(super) fn of(pattern: &SubjectPattern) -> (Accesses, Accesses) {
    let of = |one: &DirectionPattern| {
        let random = one.accesses.random.saturating_sub(one.joined);
        Accesses { random, ..one.accesses }
    };
    pattern.as_ref().map_or_else(Default::default, |both| (of(&both[0]), of(&both[1])))
}
