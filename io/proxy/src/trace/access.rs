//! How one access to an open file follows the one before it.
//!
//! A fid remembers where the last requested access begins and ends. The fid is read while requests
//! are taken in, under the lock of the fid's session, so it follows the order of the client's
//! messages and not that of their replies.

use std::sync::atomic::{AtomicU64, Ordering};

use trace::Access;

/// The last access through a fid. One thread at a time follows it; the atomics only
/// spare it a lock of its own.
#[derive(Debug, Default)]
pub(crate) struct LastAccess {
    start: AtomicU64,
    end: AtomicU64,
}

impl LastAccess {
    /// Takes note of an access to `len` bytes at `offset` and says how it follows the last.
    pub(crate) fn record(&self, offset: u64, len: u64) -> Access {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        self.start.store(offset, Ordering::Relaxed);
        self.end.store(offset.saturating_add(len), Ordering::Relaxed);
        match offset {
            _ if offset == end => Access::Sequential,
            _ if offset == start => Access::Same,
            _ if offset > start => Access::Forward,
            _ => Access::Backward,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_judged_by_where_the_last_one_lay() {
        let last = LastAccess::default();
        let followed: Vec<_> =
            [(0, 100), (100, 50), (100, 50), (120, 10), (500, 1), (0, 4), (4, 4)]
                .map(|(offset, len)| last.record(offset, len))
                .to_vec();
        use Access::{Backward, Forward, Same, Sequential};
        assert_eq!(
            followed,
            [Sequential, Sequential, Same, Forward, Forward, Backward, Sequential]
        );
    }

    #[test]
    fn the_first_access_is_sequential_only_at_the_beginning() {
        assert_eq!(LastAccess::default().record(4096, 1), Access::Forward);
    }

    #[test]
    fn the_last_byte_there_can_be_overflows_nothing() {
        let last = LastAccess::default();
        assert_eq!(last.record(u64::MAX, u64::MAX), Access::Forward);
        assert_eq!(last.record(u64::MAX, 1), Access::Sequential);
    }
}
