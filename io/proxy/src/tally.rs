//! Counters of replies, counted with the replies.
//!
//! ```text
//!   reply ─► batch.tally ─ sent ─► session.tally ─ closed ─► Server's of those that are gone
//! ```
//!
//! A batch is counted under locks that are held anyway, so a request costs a few additions and no
//! line of memory that threads share. Each request is in exactly one of the three places; the
//! reader of the sum holds the last one's lock meanwhile.

use std::sync::atomic::Ordering;

use model::{Amount, Direction, OpKind};

use crate::connection::Connection;
use crate::outbox::ReplyBatch;
use crate::server::Server;

/// Counters since a connection was made, or since the proxy started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyTally {
    /// Answered, with an error or without.
    pub(crate) requests: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) ops: u64,
    /// Answered with an error.
    pub(crate) errors: u64,
    /// Given up by the client, and not answered.
    pub(crate) cancelled: u64,
}

impl ReplyTally {
    /// Counts a request that was answered with `errno`, 0 for success.
    pub(crate) fn count(&mut self, kind: OpKind, served: Amount, errno: u32) {
        self.requests += 1;
        self.errors += u64::from(errno != 0);
        self.ops += served.ops.get();
        match kind.direction() {
            Direction::Read => self.read_bytes += served.bytes.get(),
            Direction::Write => self.written_bytes += served.bytes.get(),
            Direction::Metadata => {}
        }
    }

    /// Moves what `other` has counted here.
    pub(crate) fn merge(&mut self, other: &mut ReplyTally) {
        let other = std::mem::take(other);
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.ops += other.ops;
        self.errors += other.errors;
        self.cancelled += other.cancelled;
    }
}

impl Server {
    /// Returns the counters since the start.
    pub(crate) fn tally(&self) -> ReplyTally {
        let connections = self.connections();
        // Meanwhile nobody closes and is counted twice, or not at all.
        let gone = self.closed_tally.lock().expect("not poisoned");
        let mut sum = *gone;
        for connection in &connections {
            let mut own = connection.session.lock().expect("not poisoned").tally;
            sum.merge(&mut own);
        }
        sum
    }

    /// Takes over what was counted on a connection that is closed.
    pub(crate) fn merge_closed(&self, connection: &Connection) {
        let mut gone = self.closed_tally.lock().expect("not poisoned");
        gone.merge(&mut connection.session.lock().expect("not poisoned").tally);
    }

    /// Counts what a batch still has: replies that cannot be sent any more.
    pub(crate) fn count_late(&self, batch: &mut ReplyBatch) {
        if batch.tally != ReplyTally::default() {
            self.closed_tally.lock().expect("not poisoned").merge(&mut batch.tally);
        }
    }

    /// Counts a request that was cancelled while its session was not held.
    pub(crate) fn count_cancelled(&self, connection: &Connection) {
        let mut gone = self.closed_tally.lock().expect("not poisoned");
        if connection.closed.load(Ordering::Acquire) {
            gone.cancelled += 1;
        } else {
            connection.session.lock().expect("not poisoned").tally.cancelled += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_direction_and_metadata_moves_none() {
        let mut tally = ReplyTally::default();
        tally.count(OpKind::Read, Amount::new(100, 1), 0);
        tally.count(OpKind::Write, Amount::new(20, 1), 0);
        tally.count(OpKind::Getxattr, Amount::new(7, 2), 61);
        let mut sum = ReplyTally { cancelled: 3, ..ReplyTally::default() };
        sum.merge(&mut tally);
        let expected = ReplyTally {
            requests: 3,
            read_bytes: 100,
            written_bytes: 20,
            ops: 4,
            errors: 1,
            cancelled: 3,
        };
        assert_eq!((sum, tally), (expected, ReplyTally::default()));
    }
}
