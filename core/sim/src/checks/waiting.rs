//! Waiting requests of a proxy, counted from outside the scheduler.
//!
//! ```text
//!   join, leave ─► by slots ───────────────► the slots that every waiting head fits into
//!              └─► queue of a class: all of its requests wait for one ceiling alone?
//!                                     └─► queues by ceiling: while slots are free, it is in debt
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::Lane;

use super::classes::ClassOf;
use crate::world::SimRequest;

/// The waiting requests of a proxy.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    /// Requests for the device that only slots can delay.
    plain: u32,
    /// Requests for the device by slots, rounded up to a power of two.
    by_slots: [u32; 32],
    queues: Vec<[WaitingQueue; QUEUES]>,
    /// By ceiling and lane: queues in which every request waits for this ceiling alone.
    throttled: Vec<[u32; 2]>,
    /// By ceiling: queues with requests that also pay other ceilings.
    elsewhere: Vec<BTreeSet<(u32, usize)>>,
    /// By ceiling: whether requests of each lane pay it.
    lanes: Vec<[bool; 2]>,
}

/// A queue of a class, which is served in order of arrival.
#[derive(Clone, Debug, Default)]
struct WaitingQueue {
    requests: u32,
    /// Requests for the device that only slots or others of the queue can delay, and those that pay
    /// a row, which delay all behind them.
    plain: u32,
    row_limited: u32,
    /// Requests by the ceiling that alone can delay them.
    by_gauge: BTreeMap<u32, u32>,
}

impl WaitingQueue {
    /// The requests that only slots can delay, whichever request is the head.
    fn unhindered(&self) -> u32 {
        if self.row_limited == 0 { self.plain } else { 0 }
    }

    /// The ceiling that alone can delay the queue, whichever request is its head.
    fn gauge(&self) -> Option<u32> {
        let (gauge, requests) = self.by_gauge.first_key_value()?;
        (*requests == self.requests).then_some(*gauge)
    }
}

impl WaitingRequests {
    /// Begins to count again what waits. What went ahead at a ceiling stays.
    pub(super) fn recount(&mut self) {
        let (elsewhere, lanes) =
            (std::mem::take(&mut self.elsewhere), std::mem::take(&mut self.lanes));
        *self = WaitingRequests { elsewhere, lanes, ..WaitingRequests::default() };
    }

    /// Counts a request with its slots in the device; none of a kind that is never delayed. One that
    /// missed the page cache may have paid its meters.
    pub(super) fn join(&mut self, belongs: &ClassOf, r: &SimRequest, slots: u32, paid: bool) {
        if r.kind.never_delayed() {
            return;
        }
        let class = belongs.class as usize;
        if class >= self.queues.len() {
            self.queues.resize(class + 1, Default::default());
        }
        for gauge in belongs.gauges.iter().filter(|_| !paid) {
            let gauge = *gauge as usize;
            if gauge >= self.lanes.len() {
                self.lanes.resize(gauge + 1, [false; 2]);
                self.elsewhere.resize(gauge + 1, BTreeSet::new());
            }
            self.lanes[gauge][r.lane as usize] = true;
            if belongs.gauges.len() > 1 {
                self.elsewhere[gauge].insert((belongs.class, queue_of(r)));
            }
        }
        self.count(belongs, r, (slots, paid), true);
    }

    /// Counts a request out that was dispatched.
    pub(super) fn leave(&mut self, belongs: &ClassOf, r: &SimRequest, slots: u32, paid: bool) {
        if !r.kind.never_delayed() {
            self.count(belongs, r, (slots, paid), false);
        }
    }

    fn count(&mut self, belongs: &ClassOf, r: &SimRequest, needs: (u32, bool), joins: bool) {
        let (slots, paid) = needs;
        let step = |count: &mut u32| *count = if joins { *count + 1 } else { *count - 1 };
        if r.lane == Lane::Device {
            let power = slots.checked_next_power_of_two().map_or(31, u32::ilog2);
            step(&mut self.by_slots[power as usize]);
        }
        let queue = &mut self.queues[belongs.class as usize][queue_of(r)];
        let (before, unhindered) = (queue.gauge(), queue.unhindered());
        step(&mut queue.requests);
        if belongs.plain && r.lane == Lane::Device {
            step(&mut queue.plain);
        }
        if belongs.row_limited && !paid {
            step(&mut queue.row_limited);
        }
        self.plain = self.plain + queue.unhindered() - unhindered;
        if let Some(gauge) = belongs.single_gauge.filter(|_| !paid) {
            let requests = queue.by_gauge.entry(gauge).or_default();
            step(requests);
            if *requests == 0 {
                queue.by_gauge.remove(&gauge);
            }
        }
        let after = queue.gauge();
        if before != after {
            let lane = r.lane as usize;
            for (gauge, joined) in [(before, false), (after, true)] {
                let Some(gauge) = gauge.map(|gauge| gauge as usize) else { continue };
                if gauge >= self.throttled.len() {
                    self.throttled.resize(gauge + 1, [0; 2]);
                }
                let queues = &mut self.throttled[gauge][lane];
                *queues = if joined { *queues + 1 } else { *queues - 1 };
            }
        }
    }

    /// The number of requests for the device that only slots can delay.
    pub(super) fn plain(&self) -> u32 {
        self.plain
    }

    /// Whether every request that waits for the device fits into free slots, of `max`.
    pub(super) fn fit_into(&self, free: u32, max: u32) -> bool {
        let largest = self.by_slots.iter().rposition(|requests| *requests > 0);
        largest.is_none_or(|power| (1u64 << power).min(max.into()) <= free.into())
    }

    /// Whether a queue waits for a ceiling alone, in one of the lanes with free slots.
    pub(super) fn wait_at(&self, gauge: usize, free: [bool; 2]) -> bool {
        let queues = self.throttled.get(gauge).copied().unwrap_or_default();
        queues.into_iter().zip(free).any(|(queues, free)| free && queues > 0)
    }

    /// The most heads that may pay a ceiling at once though only one of them may go: one of each
    /// lane, and each that it let go and that waits at another ceiling.
    pub(super) fn ahead(&self, gauge: usize) -> u64 {
        let lanes =
            self.lanes.get(gauge).map_or(0, |lanes| lanes.iter().filter(|used| **used).count());
        let elsewhere = self.elsewhere.get(gauge).map_or(0, BTreeSet::len);
        (lanes.max(1) + elsewhere) as u64
    }
}

/// The index of a request's queue: lanes and returned requests, three directions each.
pub(super) fn queue_of(r: &SimRequest) -> usize {
    let lane = if r.returned { 2 } else { r.lane as usize };
    lane * 3 + r.kind.direction() as usize
}

/// Device and cached lane, and returned from the cached one; three directions each.
pub(super) const QUEUES: usize = 9;
