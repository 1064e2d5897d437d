//! How long requests of each kind and lane waited and took, and what they moved.
//!
//! ```text
//!   a request ends ─► Gate, locked for the dispatcher anyway ─► Cell of its kind and lane
//!   a scrape ───────► a copy of all cells, taken under the same lock
//! ```
//!
//! Counted where every request passes one at a time, so that it takes a few additions and no
//! atomic, and nothing has to be summed over threads that come and go. A bucket is the number
//! of binary digits of the time: finding it is one instruction.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU32, Ordering};

use model::{Amount, Lane, Nanos, OpKind};

/// The times of one target's requests.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTimes {
    /// By kind and lane; most are never used.
    cells: Vec<Cell>,
}

/// Times of the requests of one kind in one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) ops: u64,
    pub(crate) queue: TimesHistogram,
    pub(crate) service: TimesHistogram,
}

/// How often times of each length came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimesHistogram {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

/// Recent durations of a target's calls, by kind, lane and size, in nanoseconds.
pub(crate) struct CallTimes([AtomicU32; OpKind::COUNT * 4]);

/// The first bucket has what took up to 2^10 ns, the last but one up to 2^36 ns, the last
/// what took longer.
const BUCKETS: usize = 28;
const FIRST_BITS: u32 = 10;

impl CallTimes {
    pub(crate) fn new() -> CallTimes {
        CallTimes(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Returns the recent duration of a group of calls.
    pub(crate) fn usual(&self, call: usize) -> Nanos {
        Nanos::new(self.0[call].load(Ordering::Relaxed).into())
    }

    /// Moves the estimate towards the median: one call that a busy machine delayed for milliseconds
    /// says nothing about the next. A lost update does no harm.
    pub(crate) fn note(&self, call: usize, took: Nanos) {
        let cell = &self.0[call];
        let took = took.get().min(1_000_000_000) as u32;
        let old = cell.load(Ordering::Relaxed);
        let step = old / 8 + 1_000;
        let new = took.clamp(old.saturating_sub(step), old + step);
        cell.store(new, Ordering::Relaxed);
    }
}

impl ServiceTimes {
    pub(crate) fn new() -> ServiceTimes {
        ServiceTimes { cells: vec![Cell::default(); OpKind::COUNT * 2] }
    }

    /// Counts a request that ended.
    pub(crate) fn count(
        &mut self,
        kind: OpKind,
        lane: Lane,
        served: Amount,
        queued: Nanos,
        service: Nanos,
    ) {
        let cell = &mut self.cells[kind as usize * 2 + lane as usize];
        cell.requests += 1;
        cell.bytes += served.bytes.get();
        cell.ops += served.ops.get();
        cell.queue += queued;
        cell.service += service;
    }

    /// The cells of kinds and lanes that there were requests of.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (OpKind, Lane, &Cell)> {
        let keys = OpKind::ALL.iter().flat_map(|kind| LANES.map(|lane| (*kind, lane)));
        let cells = keys.zip(&self.cells).map(|((kind, lane), cell)| (kind, lane, cell));
        cells.filter(|(_, _, cell)| cell.requests > 0)
    }
}

impl TimesHistogram {
    /// The bounds in nanoseconds, each with how many were at most so long and longer than the
    /// bound before.
    pub(crate) fn buckets(&self) -> [(u64, u64); BUCKETS - 1] {
        std::array::from_fn(|at| (1 << (FIRST_BITS + at as u32), self.counts[at]))
    }

    /// How many were longer than every bound.
    pub(crate) fn beyond(&self) -> u64 {
        self.counts[BUCKETS - 1]
    }

    /// Returns the sum of all, in nanoseconds.
    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

impl AddAssign<Nanos> for TimesHistogram {
    fn add_assign(&mut self, time: Nanos) {
        let ns = time.get();
        // A bound belongs to its own bucket, as the format has it.
        let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BITS) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.sum_ns += ns;
    }
}

/// In the order of their numbers.
const LANES: [Lane; 2] = [Lane::Cached, Lane::Device];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_first_bucket_whose_bound_it_does_not_pass() {
        for (ns, bound) in [
            (0, 1 << 10),
            (1 << 10, 1 << 10),
            ((1 << 10) + 1, 1 << 11),
            (1 << 11, 1 << 11),
            (1_000_000, 1 << 20),
            (1 << 36, 1 << 36),
        ] {
            let mut histogram = TimesHistogram::default();
            histogram += Nanos::new(ns);
            let filled: Vec<_> = histogram.buckets().into_iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!((filled, histogram.sum_ns()), (vec![(bound, 1)], ns), "{ns}");
        }
        let mut histogram = TimesHistogram::default();
        histogram += Nanos::new((1 << 36) + 1);
        histogram += Nanos::from_secs(3_600);
        assert_eq!(histogram.beyond(), 2);
    }

    #[test]
    fn kinds_and_lanes_are_counted_apart_and_those_without_requests_left_out() {
        let mut times = ServiceTimes::new();
        let (waited, took) = (Nanos::new(5), Nanos::new(7));
        times.count(OpKind::Read, Lane::Cached, Amount::new(100, 1), waited, took);
        times.count(OpKind::Read, Lane::Device, Amount::new(20, 1), waited, took);
        times.count(OpKind::Read, Lane::Device, Amount::new(30, 2), waited, took);
        let told: Vec<_> = times
            .cells()
            .map(|(kind, lane, c)| (kind, lane, c.requests, c.bytes, c.ops, c.queue.sum_ns()))
            .collect();
        let expected = [
            (OpKind::Read, Lane::Cached, 1, 100, 1, 5),
            (OpKind::Read, Lane::Device, 2, 50, 3, 10),
        ];
        assert_eq!(told, expected);
    }
}
