//! The order of the accesses to an open file.
//!
//! ```text
//!   arrival ─► one of the recent runs ends here? ─ yes ─► sequential: the run grows, and if it meets
//!                      │ no                               one that had followed none, they are one
//!                      ▼
//!            same, forward, backward: random, a run of its own that has followed none
//! ```
//!
//! A mount sends the requests of one file over several connections, so they arrive a little out of
//! order; and several threads of a program may read their own parts through one descriptor. Both are
//! sequential. The accesses are recorded while requests are taken in, so their order is that of the
//! client's messages and not that of their replies.
//!
//! A reader that goes backwards never joins two runs: only an access that follows another one does.
//!
//! A run also keeps whether the page cache missed one of its reads. The kernel then reads ahead for
//! it, so what follows is found in the page cache although the device has served it.

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
    /// Whether the page cache missed an earlier access of its run.
    pub(crate) fetched: bool,
}

#[derive(Debug)]
struct RecentAccesses {
    /// The start of the last access.
    last: u64,
    /// The runs, those that grew last first.
    runs: [Option<AccessRun>; RUNS],
}

/// Accesses each of which begins where the one before it ends.
#[derive(Clone, Copy, Debug)]
struct AccessRun {
    start: u64,
    end: u64,
    /// Whether its first access is counted as random.
    jumped: bool,
    /// Whether the page cache missed one of its accesses.
    fetched: bool,
}

impl AccessHistory {
    /// Takes note of an access to `len` bytes at `offset`.
    pub(crate) fn record(&self, offset: u64, len: u64) -> AccessOrder {
        self.0.lock().expect("not poisoned").record(offset, len)
    }

    /// Notes that the page cache missed an access at `offset`: what follows it was read ahead.
    pub(crate) fn mark_fetched(&self, offset: u64) {
        let mut recent = self.0.lock().expect("not poisoned");
        let mut runs = recent.runs.iter_mut().flatten();
        if let Some(run) = runs.find(|run| (run.start..run.end).contains(&offset)) {
            run.fetched = true;
        }
    }
}

impl RecentAccesses {
    fn record(&mut self, start: u64, len: u64) -> AccessOrder {
        let last = std::mem::replace(&mut self.last, start);
        let end = start.saturating_add(len);
        let mut joined = 0;
        let (run, access) = match self.take(|run| run.end == start) {
            Some(before) => {
                let mut run = AccessRun { end, ..before };
                while let Some(next) = self.take(|next| next.jumped && next.start == run.end) {
                    run.end = next.end;
                    run.fetched |= next.fetched;
                    joined += 1;
                }
                (run, Access::Sequential)
            }
            None => {
                let access = match start {
                    _ if start == last => Access::Same,
                    _ if start > last => Access::Forward,
                    _ => Access::Backward,
                };
                (AccessRun { start, end, jumped: true, fetched: false }, access)
            }
        };
        // The place of a run that was taken, or that of the oldest.
        let place = self.runs.iter().position(Option::is_none).unwrap_or(RUNS - 1);
        self.runs[..=place].rotate_right(1);
        self.runs[0] = Some(run);
        AccessOrder { access, joined, fetched: run.fetched }
    }

    fn take(&mut self, is: impl Fn(&AccessRun) -> bool) -> Option<AccessRun> {
        self.runs.iter_mut().find(|run| run.as_ref().is_some_and(&is))?.take()
    }
}

impl Default for RecentAccesses {
    /// The first access is sequential at the beginning of the file.
    fn default() -> RecentAccesses {
        let mut runs = [None; RUNS];
        runs[0] = Some(AccessRun { start: 0, end: 0, jumped: false, fetched: false });
        RecentAccesses { last: 0, runs }
    }
}

/// How many runs are remembered: twice the four channels of a mount.
const RUNS: usize = 8;

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
        assert_eq!(order, AccessOrder { access: Forward, joined: 0, fetched: false });
    }

    #[test]
    fn what_follows_a_miss_is_fetched_and_nothing_else() {
        let history = AccessHistory::default();
        let fetched = |piece: u64| history.record(piece << 16, 1 << 16).fetched;
        assert!(!fetched(0) && !fetched(1));
        history.mark_fetched(1 << 16);
        assert!(fetched(2) && fetched(3));
        assert!(!fetched(9), "a run of its own");
        assert!(fetched(4));
        // Two runs that meet are one.
        assert!(!fetched(11));
        history.mark_fetched(11 << 16);
        assert!(fetched(10) && fetched(12));
        // What is read once more is a run of its own: the page cache may have it now.
        assert!(!fetched(0) && !fetched(1));
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
    fn channels_that_send_several_pieces_at_once_are_sequential() {
        // Four pieces of each channel arrive together, those of the last channel first.
        let pieces = (0..100).flat_map(|round| {
            [3, 2, 1, 0]
                .into_iter()
                .flat_map(move |channel| (0..4).map(move |piece| 16 * round + 4 * channel + piece))
        });
        assert_eq!(random(pieces.map(|piece: u64| (piece << 20, 1 << 20))), 0);
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
            ((stream << 30) + ((nth / 2) << 16), 1 << 16)
        };
        assert_eq!(random((0..1_000).map(piece)), 1, "the second one begins somewhere");
    }
}
