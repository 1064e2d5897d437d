//! Wait causes: for each class the time that its requests waited, by cause.
//!
//! ```text
//!   queue of a class:  length × time ─┬─ head waits at a meter ──────────► that meter
//!     (an area: request-time)         ├─ head is ready, its class at its cap ► slots
//!                                     ├─ … others were served meanwhile ───► weight, or remote
//!                                     │                                      service if delayed by it
//!                                     └─ … no other was served ────────────► busy
//! ```
//!
//! A queue adds up its length times the time that passed. The sum goes to the cause for which its
//! head waited when that cause ends. So the causes of a class sum up to the time that its requests
//! waited. Queues that were empty again before their requests had waited [`WAIT_MIN_NS`] in all are
//! left out. A request that does not wait costs a few additions in its queue, and nothing is kept
//! of it. A class keeps its greatest causes, [`METERS_MAX`] meters at most; the rest goes to
//! `other`.
//!
//! A *span* is the time during which at least one queue waited for a cause. If queues of one class
//! waited one within the other, time counts from the end of the inner one. A span may be reported
//! too short, never too long.

mod report;

use model::{Nanos, Time};

use crate::class::{Class, ClassQueue, DELAYED, NO_CAUSE, NO_SIZE, QUEUES};
use crate::dispatcher::Dispatcher;
use crate::lane::DEVICE;
use crate::meter::MeterKey;

pub use report::{MeterPayers, MeterStatus, SubjectDetail, WaitCause, WaitCauseReport, WaitReport};

/// The wait causes of one class.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitCauses {
    causes: Vec<WaitRecord>,
}

#[derive(Clone, Debug)]
struct WaitRecord {
    by: CauseKey,
    since: Time,
    last: Time,
    wait: u64,
    span: u64,
    /// The span since `since`.
    active: u64,
    requests: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CauseKey {
    /// The place and generation of a meter, and its key for when it is gone.
    Meter(u32, u32, Box<MeterKey>),
    Weight,
    Busy,
    Slots,
    RemoteService,
    Other,
}

impl WaitCauses {
    /// The place of a cause without a key.
    fn plain(&mut self, by: CauseKey, now: Time) -> usize {
        let known = self.causes.iter().position(|cause| cause.by == by);
        known.unwrap_or_else(|| self.add(by, now))
    }

    /// The place of a meter, and the place of the cause that was evicted for it.
    fn meter(&mut self, index: u32, generation: u32, key: &MeterKey, now: Time) -> (usize, bool) {
        let of = |cause: &WaitRecord| matches!(cause.by, CauseKey::Meter(i, g, _) if (i, g) == (index, generation));
        if let Some(at) = self.causes.iter().position(of) {
            return (at, false);
        }
        let by = CauseKey::Meter(index, generation, Box::new(key.clone()));
        let meters = self.causes.iter().enumerate();
        let meters = meters.filter(|(_, cause)| matches!(cause.by, CauseKey::Meter(..)));
        if meters.clone().count() < METERS_MAX {
            return (self.add(by, now), false);
        }
        let oldest = meters.min_by_key(|(_, cause)| cause.last).map(|(at, _)| at);
        let at = oldest.expect("there are as many as may be");
        let gone = std::mem::replace(&mut self.causes[at], WaitRecord::new(by, now));
        let other = self.plain(CauseKey::Other, gone.since);
        self.causes[other].merge(&gone);
        (at, true)
    }

    fn add(&mut self, by: CauseKey, now: Time) -> usize {
        self.causes.push(WaitRecord::new(by, now));
        self.causes.len() - 1
    }
}

impl WaitRecord {
    fn new(by: CauseKey, now: Time) -> WaitRecord {
        WaitRecord { by, since: now, last: now, wait: 0, span: 0, active: 0, requests: 0, bytes: 0 }
    }

    /// Adds that requests waited for `area` in all, from `began` to `now`.
    fn count(&mut self, area: u64, began: Time, now: Time) {
        let is_new = self.wait == 0;
        if is_new || began.since(self.last) > PAUSE_MAX {
            (self.since, self.active) = (began, 0);
        }
        self.wait = self.wait.saturating_add(area);
        let from = if is_new { began } else { began.max(self.last) };
        let held = now.since(from).get();
        self.span += held;
        self.active += held;
        self.last = self.last.max(now);
    }

    /// Whether the class waits for this cause now.
    fn is_current(&self, now: Time) -> bool {
        let since = now.since(self.since).max(PAUSE_MAX).get();
        now.since(self.last) <= PAUSE_MAX && self.active.saturating_mul(20) >= since
    }

    fn merge(&mut self, other: &WaitRecord) {
        self.wait = self.wait.saturating_add(other.wait);
        self.span += other.span;
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.last = self.last.max(other.last);
    }
}

impl ClassQueue {
    /// Adds the time since the last call for every request that waited in it.
    #[inline]
    pub(crate) fn add_elapsed(&mut self, now: Time) {
        if self.area == 0 {
            self.began = self.mark;
        }
        let waited = now.since(self.mark).get();
        self.area = self.area.saturating_add(waited.saturating_mul(self.len.into()));
        self.mark = now;
    }

    /// The waiting since the last call: how long in all, and since when.
    fn take_area(&mut self, now: Time) -> Option<(u64, Time)> {
        self.add_elapsed(now);
        let area = std::mem::take(&mut self.area);
        (area > 0).then_some((area, self.began))
    }
}

impl Dispatcher {
    /// Handles that the head of a queue is about to leave the meter that it waits at.
    pub(crate) fn count_metered(&mut self, class: u32, lane: usize, queue: usize) {
        let now = self.now;
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        let Some((area, began)) = fifo.take_area(now) else { return };
        let index = self.meter_waited_for(class, lane, queue);
        let own = &mut self.classes[class];
        let held = own.causes.get_or_insert_default();
        let generation = self.meters.generation(index);
        let (at, replaced) = held.meter(index, generation, &self.meters[index].key, now);
        held.causes[at].count(area, began, now);
        if replaced {
            clear_cause(own, at);
        }
        self.classes[class].lanes[lane].queues[queue].by = at as u8;
    }

    /// Handles that a ready head of a queue is about to change state, or was ready for long.
    pub(crate) fn count_ready(&mut self, class: u32, lane: usize, queue: usize) {
        let now = self.now;
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        let Some((area, began)) = fifo.take_area(now) else { return };
        let by = self.ready_cause(class, lane, began);
        let is_cap = by == CauseKey::Slots;
        let own = &mut self.classes[class];
        let held = own.causes.get_or_insert_default();
        let at = held.plain(by, now);
        held.causes[at].count(area, began, now);
        if is_cap {
            own.lanes[lane].queues[queue].by = at as u8;
        }
    }

    /// Handles that the cap on a class's slots is about to begin or to cease to delay its ready
    /// heads.
    pub(crate) fn count_capped(&mut self, class: u32, lane: usize) {
        for queue in 0..QUEUES {
            if self.classes[class].lanes[lane].ready >> queue & 1 == 1 {
                self.count_ready(class, lane, queue);
            }
        }
    }

    /// Handles that the head of a queue goes: called while it is still there.
    #[inline]
    pub(crate) fn count_head(&mut self, class: u32, lane: usize, queue: usize) {
        let now = self.now;
        let fifo = &mut self.classes[class].lanes[lane].queues[queue];
        fifo.add_elapsed(now);
        let waited = now.since(self.requests[fifo.head].arrived).get();
        let last = fifo.len == 1;
        let area_min = if last { WAIT_MIN_NS } else { AREA_MAX_NS };
        if waited >= WAIT_MIN_NS || fifo.area >= area_min {
            self.count_waiting_head(class, lane, queue, waited);
        } else if last {
            fifo.area = 0;
        }
    }

    #[inline(never)]
    fn count_waiting_head(&mut self, class: u32, lane: usize, queue: usize, waited: u64) {
        let fifo = self.classes[class].lanes[lane].queues[queue];
        let request = &self.requests[fifo.head];
        let (arrived, subject) = (request.arrived, request.subject);
        let bytes = request.amount.bytes.get();
        let by_ready = self.ready_cause(class, lane, arrived);
        if fifo.area >= AREA_MAX_NS || fifo.len == 1 {
            self.count_ready(class, lane, queue);
        }
        if waited < WAIT_MIN_NS {
            return;
        }
        let now = self.now;
        let held = self.classes[class].causes.get_or_insert_default();
        let barred = held.causes.get(usize::from(fifo.by));
        let delayed = barred.is_some_and(|cause| cause.last >= arrived);
        let at = match delayed {
            true => {
                self.requests[fifo.head].flags |= DELAYED;
                usize::from(fifo.by)
            }
            false => held.plain(by_ready, now),
        };
        let cause = &mut held.causes[at];
        cause.requests += 1;
        cause.bytes += bytes;
        if delayed {
            self.count_delayed(subject, arrived);
        }
    }

    /// The meter at which the head of a queue waits.
    fn meter_waited_for(&self, class: u32, lane: usize, queue: usize) -> u32 {
        let fifo = &self.classes[class].lanes[lane].queues[queue];
        let route = self.requests[fifo.head].route;
        self.links[self.routes[route].links()[usize::from(fifo.at)]].meter
    }

    /// The cause for which a ready head waits, or waited since `began`.
    fn ready_cause(&self, class: u32, lane: usize, began: Time) -> CauseKey {
        let (own, state) = (&self.classes[class], &self.lanes[lane]);
        let standing = &own.lanes[lane];
        if lane == DEVICE && own.slots_cap != u32::MAX && standing.size == NO_SIZE {
            return CauseKey::Slots;
        }
        let held_by_it = if lane == DEVICE { own.slots_in_use } else { own.running };
        let others = state.slots_in_use > held_by_it || state.others_served(class) >= Some(began);
        match (others, standing.moved_for_remote) {
            (false, _) => CauseKey::Busy,
            (true, true) => CauseKey::RemoteService,
            (true, false) => CauseKey::Weight,
        }
    }
}

/// Handles that a place becomes free.
fn clear_cause(class: &mut Class, at: usize) {
    let queues = class.lanes.iter_mut().flat_map(|standing| &mut standing.queues);
    queues.filter(|queue| usize::from(queue.by) == at).for_each(|queue| queue.by = NO_CAUSE);
}

/// A shorter wait is not counted as waiting.
pub(crate) const WAIT_MIN_NS: u64 = 100_000;
/// A queue that is never empty passes on its waiting after this much request-time.
const AREA_MAX_NS: u64 = 10_000_000;
/// A cause that delayed nothing for longer starts a new span.
const PAUSE_MAX: Nanos = Nanos::from_secs(1);
/// Meters that are kept apart for one class: as many as one request can pay.
const METERS_MAX: usize = model::RuleSet::METERS_MAX;
