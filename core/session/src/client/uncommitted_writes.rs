//! Writes that the proxy has executed and that its machine may yet lose.
//!
//! ```text
//!   Rwrite number ─► kept ─┬─ commit_watermark is as high ─► dropped
//!                          ├─ the verifier is another ─► lost: written once more
//!                          └─ much is kept ─► Tcommit
//! ```
//!
//! Numbers are those of one life of the session (an epoch). What was kept when that ended is dropped
//! once a Tcommit of a later one has succeeded with the same verifier: a proxy that was started
//! again has lost nothing, a machine that was has.
//!
//! Bound: [`UncommittedWrites::is_full`] from `limit` bytes on; who writes then waits
//! ([`UncommittedWrites::wait`]).

use std::collections::BTreeMap;
use std::fmt;

use ninep::dialect::ReplyHeader;

/// A write of the caller's that is kept.
pub trait KeptWrite {
    /// The payload of the write in bytes.
    fn bytes(&self) -> u64;
}

/// The executed writes `W` that are not known to be durable, and the waiters `H` for room.
pub struct UncommittedWrites<W, H> {
    /// Bytes that may be kept; 0 keeps none.
    limit: u64,
    bytes: u64,
    /// How often writes were lost.
    losses: u64,
    epoch: u64,
    header: Option<ReplyHeader>,
    writes: BTreeMap<WriteKey, W>,
    committing: bool,
    waiters: Vec<H>,
}

/// The epoch of a write, and its number in that.
type WriteKey = (u64, u64);

/// What a reply's header has changed.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderChange<W, H> {
    /// The writes that the proxy's machine has lost, in the order in which they were executed.
    pub lost_writes: Vec<W>,
    /// The waiters for room, which there is now.
    pub ready: Vec<H>,
}

impl<W: KeptWrite, H> UncommittedWrites<W, H> {
    /// Keeps up to about `limit` bytes; with 0 nothing is kept, and nothing written again.
    pub fn new(limit: u64) -> UncommittedWrites<W, H> {
        UncommittedWrites {
            limit,
            bytes: 0,
            losses: 0,
            epoch: 0,
            header: None,
            writes: BTreeMap::new(),
            committing: false,
            waiters: Vec::new(),
        }
    }

    /// Handles the header of a reply of this epoch; `None` if the session has begun a later one.
    pub fn handle_header(&mut self, epoch: u64, header: ReplyHeader) -> Option<HeaderChange<W, H>> {
        if epoch < self.epoch {
            return None;
        }
        let before = self.header.replace(header);
        self.epoch = epoch;
        let is_same = before.is_none_or(|before| before.verifier == header.verifier);
        let lost_writes = if is_same {
            let committed = self.take_committed();
            self.forget(&committed);
            Vec::new()
        } else {
            self.losses += 1;
            let lost = std::mem::take(&mut self.writes);
            self.forget(&lost);
            lost.into_values().collect()
        };
        Some(HeaderChange { lost_writes, ready: self.take_ready() })
    }

    /// Keeps an executed write. True if the proxy is to be asked to make all of them durable.
    pub fn insert(&mut self, epoch: u64, number: u64, write: W) -> bool {
        if self.limit == 0 || number == 0 {
            return false;
        }
        let committed = self.header.map_or(0, |header| header.commit_watermark);
        if epoch < self.epoch || (epoch == self.epoch && number <= committed) {
            return false;
        }
        self.bytes += write.bytes();
        self.writes.insert((epoch, number), write);
        let much = self.bytes > self.limit / 2;
        let older = self.writes.first_key_value().is_some_and(|((of, _), _)| *of < epoch);
        (much || older) && !std::mem::replace(&mut self.committing, true)
    }

    /// Handles the reply to a Tcommit of this epoch. Returns the waiters that wait no longer: after a
    /// failure all of them, and the next write commits again.
    pub fn committed(&mut self, epoch: u64, is_durable: bool) -> Vec<H> {
        self.committing = false;
        if !is_durable {
            return std::mem::take(&mut self.waiters);
        }
        if epoch != self.epoch {
            return Vec::new();
        }
        let later = self.writes.split_off(&(epoch, 0));
        let mut committed = std::mem::replace(&mut self.writes, later);
        committed.append(&mut self.take_committed());
        self.forget(&committed);
        self.take_ready()
    }

    /// Keeps a waiter until there is room; returns it if it need not wait.
    pub fn wait(&mut self, waiter: H) -> Option<H> {
        if !self.is_full() || !self.committing {
            return Some(waiter);
        }
        self.waiters.push(waiter);
        None
    }

    /// Takes out the waiters that `which` names.
    pub fn take_waiters(&mut self, which: impl Fn(&H) -> bool) -> Vec<H> {
        self.waiters.extract_if(.., |waiter| which(waiter)).collect()
    }

    /// The writes that are kept, from the one that was kept first.
    pub fn kept(&self) -> impl Iterator<Item = &W> {
        self.writes.values()
    }

    /// Whether too many writes are kept to accept more.
    pub fn is_full(&self) -> bool {
        self.limit > 0 && self.bytes >= self.limit
    }

    /// How often writes were lost: an fsync during which that happened is made again.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// The payload of all writes that are kept, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn forget(&mut self, writes: &BTreeMap<WriteKey, W>) {
        self.bytes -= writes.values().map(W::bytes).sum::<u64>();
    }

    fn take_ready(&mut self) -> Vec<H> {
        match self.is_full() {
            true => Vec::new(),
            false => std::mem::take(&mut self.waiters),
        }
    }

    fn take_committed(&mut self) -> BTreeMap<WriteKey, W> {
        let Some(header) = self.header else { return BTreeMap::new() };
        // Those of earlier epochs come first, and stay.
        let mut of_now = self.writes.split_off(&(self.epoch, 0));
        let mut later = of_now.split_off(&(self.epoch, header.commit_watermark.saturating_add(1)));
        self.writes.append(&mut later);
        of_now
    }
}

impl<W, H> fmt::Debug for UncommittedWrites<W, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UncommittedWrites { writes, bytes, epoch, .. } = self;
        write!(f, "UncommittedWrites({}, {bytes} bytes, epoch {epoch})", writes.len())
    }
}

#[cfg(test)]
mod tests {
    use ninep::dialect::LeaseGrants;

    use super::*;

    type Kept = UncommittedWrites<&'static str, u32>;
    type Change = HeaderChange<&'static str, u32>;

    impl KeptWrite for &str {
        fn bytes(&self) -> u64 {
            self.len() as u64
        }
    }

    fn new(limit: u64) -> Kept {
        let mut kept = Kept::new(limit);
        assert!(header(&mut kept, 1, 9, 0).lost_writes.is_empty());
        kept
    }

    fn header(kept: &mut Kept, epoch: u64, verifier: u64, commit_watermark: u64) -> Change {
        let leases = LeaseGrants::NONE;
        kept.handle_header(epoch, ReplyHeader { verifier, commit_watermark, leases }).unwrap()
    }

    fn keys(kept: &Kept) -> Vec<(u64, u64)> {
        kept.writes.keys().copied().collect()
    }

    #[test]
    fn what_is_durable_is_dropped_and_the_rest_stays() {
        let mut kept = new(1 << 20);
        for number in 1..=4 {
            assert!(!kept.insert(1, number, "data"));
        }
        assert!(header(&mut kept, 1, 9, 2).lost_writes.is_empty());
        assert_eq!(keys(&kept), [(1, 3), (1, 4)]);
        assert_eq!(kept.bytes(), 8);
        kept.insert(1, 2, "its reply came late");
        assert_eq!(keys(&kept), [(1, 3), (1, 4)]);
        header(&mut kept, 1, 9, u64::MAX);
        assert_eq!((keys(&kept), kept.bytes()), (vec![], 0));
    }

    #[test]
    fn what_the_machine_lost_is_given_back_once_and_in_order() {
        let mut kept = new(1 << 20);
        for (number, data) in [(1, "one"), (2, "two"), (3, "three")] {
            kept.insert(1, number, data);
        }
        header(&mut kept, 1, 9, 1);
        assert_eq!(kept.losses(), 0);
        assert_eq!(header(&mut kept, 1, 10, 1).lost_writes, ["two", "three"]);
        assert_eq!((kept.losses(), kept.bytes()), (1, 0));
        assert!(header(&mut kept, 1, 10, 1).lost_writes.is_empty(), "once");
        assert_eq!(kept.losses(), 1);
    }

    #[test]
    fn a_proxy_that_was_started_again_has_lost_nothing() {
        let mut kept = new(1 << 20);
        kept.insert(1, 5, "before");
        assert!(header(&mut kept, 2, 9, 0).lost_writes.is_empty());
        assert_eq!(kept.kept().next(), Some(&"before"));
        assert!(kept.insert(2, 1, "after"), "what is older is to be committed");
        assert!(!kept.insert(2, 2, "after"), "that is in flight");
        let late = ReplyHeader { verifier: 10, commit_watermark: 5, ..ReplyHeader::default() };
        assert_eq!(kept.handle_header(1, late), None, "a late reply says nothing of now");
        assert_eq!(keys(&kept), [(1, 5), (2, 1), (2, 2)]);
        // The commit's own reply says what it committed.
        header(&mut kept, 2, 9, 1);
        kept.committed(2, true);
        assert_eq!(keys(&kept), [(2, 2)]);
        // With another verifier what is left is lost, whichever epoch it is of.
        kept.insert(3, 1, "x");
        assert_eq!(header(&mut kept, 3, 10, 0).lost_writes.len(), 2);
    }

    #[test]
    fn who_finds_no_room_waits_for_the_commit_or_leaves() {
        let mut kept = new(10);
        assert!(!kept.insert(1, 1, "12345"));
        assert_eq!(kept.wait(6), Some(6), "there is room");
        assert!(kept.insert(1, 2, "67890"));
        assert!(kept.is_full());
        assert_eq!((kept.wait(7), kept.wait(8)), (None, None));
        assert_eq!(kept.take_waiters(|waiter| *waiter == 8), [8]);
        assert_eq!(header(&mut kept, 1, 9, 2).ready, [7]);
        // A commit that fails delays nobody.
        assert!(kept.committed(1, false).is_empty());
        kept.insert(1, 3, "0123456789");
        assert_eq!(kept.wait(7), None);
        assert_eq!(kept.committed(1, false), [7]);
        assert_eq!(kept.wait(7), Some(7));
    }

    #[test]
    fn nothing_is_kept_with_a_limit_of_zero() {
        let mut kept = new(0);
        assert!(!kept.insert(1, 1, "data"));
        assert!(header(&mut kept, 1, 10, 0).lost_writes.is_empty() && !kept.is_full());
    }
}
