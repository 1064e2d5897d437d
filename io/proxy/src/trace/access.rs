//! The order of the accesses to an open file.
//!
//! ```text
//!   arrival ─► one of the last 8 ends here? ─ yes ─► sequential; does it end where one of the last 8
//!                      │ no                          began that followed none? that one follows it
//!                      ▼
//!            same, forward, backward: random, unless a later arrival fills the gap before it
//! ```
//!
//! A mount sends the requests of one file over several connections, so they arrive a little out of
//! order; and several threads of a program may read their own parts through one descriptor. Both are
//! sequential. The accesses are recorded while requests are taken in, so their order is that of the
//! client's messages and not that of their replies.
//!
//! A reader that goes backwards never fills a gap: only an access that follows another one does.

use std::sync::Mutex;

use trace::Access;

/// The recent accesses through a fid. The channels of a mount share its fids, hence the lock.
#[derive(Debug, Default)]
pub(crate) struct AccessHistory(Mutex<RecentAccesses>);

/// The place of one access among the others of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessOrder {
    /// Its position, relative to the recent accesses.
    pub(crate) access: Access,
    /// How many accesses that arrived before it, and followed none then, now follow it.
    pub(crate) joined: u8,
}

#[derive(Debug)]
struct RecentAccesses {
    /// A ring: `next` is the place of the oldest.
    ring: [RecentAccess; RECENT],
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct RecentAccess {
    start: u64,
    end: u64,
    /// Whether it begins where no earlier access had ended.
    jumped: bool,
    /// Whether another one begins where it ends.
    followed: bool,
}

impl AccessHistory {
    /// Takes note of an access to `len` bytes at `offset`.
    pub(crate) fn record(&self, offset: u64, len: u64) -> AccessOrder {
        self.0.lock().expect("not poisoned").record(offset, len)
    }
}

impl RecentAccesses {
    fn record(&mut self, start: u64, len: u64) -> AccessOrder {
        let last = self.ring[(self.next + RECENT - 1) % RECENT].start;
        let before = self.ring.iter_mut().find(|known| !known.followed && known.end == start);
        let access = match before {
            Some(before) => {
                before.followed = true;
                Access::Sequential
            }
            None if start == last => Access::Same,
            None if start > last => Access::Forward,
            None => Access::Backward,
        };
        let (end, jumped) = (start.saturating_add(len), access != Access::Sequential);
        let mut at = self.next;
        self.ring[at] = RecentAccess { start, end, jumped, followed: false };
        self.next = (at + 1) % RECENT;
        let mut joined = 0;
        while !jumped {
            let end = self.ring[at].end;
            let Some(next) = self.ring.iter().position(|known| known.jumped && known.start == end)
            else {
                break;
            };
            (self.ring[at].followed, self.ring[next].jumped) = (true, false);
            (at, joined) = (next, joined + 1);
        }
        AccessOrder { access, joined }
    }
}

impl Default for RecentAccesses {
    /// The first access is sequential at the beginning of the file.
    fn default() -> RecentAccesses {
        let none = RecentAccess { start: 0, end: 0, jumped: false, followed: true };
        let mut ring = [none; RECENT];
        ring[RECENT - 1].followed = false;
        RecentAccesses { ring, next: 0 }
    }
}

/// How many accesses are remembered: twice the four channels of a mount.
const RECENT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Backward, Forward, Same, Sequential};

    /// How many of these accesses are random in the end.
    fn random(accesses: impl IntoIterator<Item = (u64, u64)>) -> i64 {
        let history = AccessHistory::default();
        let orders = accesses.into_iter().map(|(offset, len)| history.record(offset, len));
        let count =
            |order: AccessOrder| i64::from(order.access != Sequential) - i64::from(order.joined);
        orders.map(count).sum()
    }

    /// Numbers that look random, the same each time.
    fn numbers(below: u64) -> impl Iterator<Item = u64> {
        let next = |seed: &u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        std::iter::successors(Some(9), next).map(move |number| (number >> 33) % below)
    }

    #[test]
    fn an_access_is_judged_by_where_the_last_ones_lay() {
        let history = AccessHistory::default();
        let followed =
            [(0, 100), (100, 50), (100, 50), (120, 10), (500, 1), (0, 4), (4, 4), (501, 9)]
                .map(|(offset, len)| history.record(offset, len).access);
        assert_eq!(
            followed,
            [Sequential, Sequential, Same, Forward, Forward, Backward, Sequential, Sequential]
        );
    }

    #[test]
    fn the_first_access_is_sequential_only_at_the_beginning() {
        let order = AccessHistory::default().record(4096, 1);
        assert_eq!(order, AccessOrder { access: Forward, joined: 0 });
    }

    #[test]
    fn the_last_byte_there_can_be_overflows_nothing() {
        let history = AccessHistory::default();
        assert_eq!(history.record(u64::MAX, u64::MAX).access, Forward);
        assert_eq!(history.record(u64::MAX, 1).access, Sequential);
    }

    #[test]
    fn a_stream_that_four_channels_permute_is_sequential() {
        // Each of four channels has the next piece in hand; which one arrives is anybody's guess.
        let (mut hands, mut next) = ([0, 1, 2, 3], 4);
        let mut arrivals: Vec<u64> = Vec::new();
        for hand in numbers(4).take(10_000) {
            // A piece is not later than four others: the kernel asks no further ahead.
            let oldest = hands.iter().min().copied().unwrap_or(0);
            let hand = match next - oldest > 6 {
                true => hands.iter().position(|piece| *piece == oldest).unwrap_or(0),
                false => hand as usize,
            };
            arrivals.push(hands[hand]);
            (hands[hand], next) = (next, next + 1);
        }
        hands.sort_unstable();
        arrivals.extend(hands);
        assert!(arrivals.windows(2).filter(|two| two[1] != two[0] + 1).count() > 5_000);
        assert_eq!(random(arrivals.into_iter().map(|piece| (piece << 17, 1 << 17))), 0);
    }

    #[test]
    fn random_backward_and_strided_accesses_are_random() {
        let (far, count) = (1 << 30, 10_000);
        assert!(random(numbers(far).take(count).map(|piece| (piece << 12, 1 << 12))) > 9_990);
        assert_eq!(random((1..=1_000).rev().map(|piece| (piece << 12, 1 << 12))), 1_000);
        assert_eq!(random((1..=1_000).map(|piece| (piece << 13, 1 << 12))), 1_000);
        let two = [0, 1].into_iter().cycle().take(1_000);
        assert_eq!(random(two.map(|piece| (piece << 12, 1 << 12))), 499, "to and fro");
    }

    #[test]
    fn two_streams_through_one_file_are_each_sequential() {
        let piece = |nth: u64| {
            let stream = nth % 2;
            ((stream << 30) + (nth / 2 << 16), 1 << 16)
        };
        assert_eq!(random((0..1_000).map(piece)), 1, "the second one begins somewhere");
    }
}
