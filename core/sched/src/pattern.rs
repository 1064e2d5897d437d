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
pub(crate) type SubjectPattern = Option<Box<[Accesses; 2]>>;

impl Dispatcher {
    /// Counts what a running read or write moved, and whether it began where the last one through
    /// the same open file ended. Other requests are not counted. To be called before `complete`.
    ///
    /// # Panics
    /// If the request is not running.
    pub fn count_access(&mut self, id: RequestId, moved: Bytes, random: bool) {
        let index = self.running(id);
        let request = &self.requests[index];
        let place = match request.kind.direction() {
            Direction::Read => 0,
            Direction::Write => 1,
            Direction::Metadata => return,
        };
        let pattern = &mut self.subjects[request.subject].pattern;
        pattern.get_or_insert_default()[place].count(moved.get(), random);
    }
}

/// The statistics of reads and of writes.
pub(crate) fn of(pattern: &SubjectPattern) -> (Accesses, Accesses) {
    pattern.as_ref().map_or_else(Default::default, |both| (both[0], both[1]))
}
