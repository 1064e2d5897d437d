//! Access patterns: sizes and order of a subject's reads and writes.
//!
//! ```text
//!   the proxy knows where an access lay ─► count_access, before complete ─► the subject's counts
//! ```
//!
//! A subject without reads and writes keeps nothing.

use model::{Accesses, Bytes, Direction};

use crate::dispatcher::Dispatcher;
use crate::ids::RequestId;

/// Statistics of reads, then of writes.
pub(crate) type SubjectPattern = Option<Box<[DirectionPattern; 2]>>;

/// The accesses of one direction.
#[derive(Debug, Default)]
pub(crate) struct DirectionPattern {
    accesses: Accesses,
    /// How many of the random ones were found to follow a later arrival.
    joined: u64,
}

impl Dispatcher {
    /// Counts what a running read or write moved, whether it began where no recent one through the
    /// same open file had ended (`random`), and how many that were counted as such have turned out
    /// to follow it (`joined`). Other requests, and those that moved nothing, are not counted. To be
    /// called before `complete`.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn count_access(&mut self, id: RequestId, moved: Bytes, random: bool, joined: u8) {
        let index = self.running(id);
        let request = &self.requests[index];
        let place = match request.kind.direction() {
            Direction::Read => 0,
            Direction::Write => 1,
            Direction::Metadata => return,
        };
        let pattern = &mut self.subjects[request.subject].pattern;
        let pattern = &mut pattern.get_or_insert_default()[place];
        pattern.accesses.count(moved.get(), random);
        pattern.joined += if moved > Bytes::ZERO { joined.into() } else { 0 };
    }
}

/// The statistics of reads and of writes.
pub(crate) fn of(pattern: &SubjectPattern) -> (Accesses, Accesses) {
    let of = |one: &DirectionPattern| {
        let random = one.accesses.random.saturating_sub(one.joined);
        Accesses { random, ..one.accesses }
    };
    pattern.as_ref().map_or_else(Default::default, |both| (of(&both[0]), of(&both[1])))
}
