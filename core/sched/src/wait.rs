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

/// The wait causes of one class. A cause's place is that of its [`PlainCause`], or follows these by
/// its position among the meters.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct WaitCauses {
    plain: [WaitRecord; PlainCause::ALL.len()],
    meters: Vec<MeterWaits>,
}

/// A cause that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlainCause {
    Weight,
    Busy,
    Slots,
    RemoteService,
    Other,
}

/// What waited at one meter.
#[derive(Clone, Debug)]
struct MeterWaits {
    /// The place and generation of the meter, and its key for when it is gone.
    index: u32,
    generation: u32,
    key: MeterKey,
    waits: WaitRecord,
}

/// What waited for one cause; all zero where nothing did.
#[derive(Clone, Copy, Debug, Default)]
struct WaitRecord {
    since: Time,
    last: Time,
    wait: u64,
    span: u64,
    /// The span since `since`.
    active: u64,
    requests: u64,
    bytes: u64,
}

impl PlainCause {
    const ALL: [PlainCause; 5] = [
        PlainCause::Weight,
        PlainCause::Busy,
        PlainCause::Slots,
        PlainCause::RemoteService,
        PlainCause::Other,
    ];
}

impl WaitCauses {
    /// The place of a meter, and whether another one was evicted for it.
    fn meter(&mut self, index: u32, generation: u32, key: &MeterKey) -> (usize, bool) {
        let is = |meter: &MeterWaits| (meter.index, meter.generation) == (index, generation);
        if let Some(at) = self.meters.iter().position(is) {
            return (PlainCause::ALL.len() + at, false);
        }
        let new = MeterWaits { index, generation, key: key.clone(), waits: WaitRecord::default() };
        if self.meters.len() < METERS_MAX {
            self.meters.push(new);
            return (PlainCause::ALL.len() + self.meters.len() - 1, false);
        }
        let by_age = self.meters.iter().enumerate().min_by_key(|(_, meter)| meter.waits.last);
        let (at, _) = by_age.expect("there are as many as may be");
        let gone = std::mem::replace(&mut self.meters[at], new);
        self.plain[PlainCause::Other as usize].merge(&gone.waits);
        (PlainCause::ALL.len() + at, true)
    }

    /// The record at a place, if there is one.
    fn at(&mut self, place: usize) -> Option<&mut WaitRecord> {
        let meters = place.checked_sub(PlainCause::ALL.len());
        match meters {
            None => self.plain.get_mut(place),
            Some(at) => self.meters.get_mut(at).map(|meter| &mut meter.waits),
        }
    }
}

impl WaitRecord {
    fn is_empty(&self) -> bool {
        self.wait == 0 && self.requests == 0
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

    /// Adds a request that waited for it last and goes now.
    fn count_request(&mut self, bytes: u64, now: Time) {
        if self.is_empty() {
            (self.since, self.last) = (now, now);
        }
        self.requests += 1;
        self.bytes += bytes;
    }

    fn merge(&mut self, other: &WaitRecord) {
        if self.is_empty() {
            self.since = other.since;
        }
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
        let (at, replaced) = held.meter(index, generation, &self.meters[index].key);
        held.at(at).expect("its place").count(area, began, now);
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
        let own = &mut self.classes[class];
        own.causes.get_or_insert_default().plain[by as usize].count(area, began, now);
        if by == PlainCause::Slots {
            own.lanes[lane].queues[queue].by = by as u8;
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
        let barred = held.at(fifo.by.into()).filter(|cause| cause.last >= arrived);
        if let Some(cause) = barred {
            cause.count_request(bytes, now);
            self.requests[fifo.head].flags |= DELAYED;
            self.count_delayed(subject, arrived);
        } else {
            held.plain[by_ready as usize].count_request(bytes, now);
        }
    }

    /// The meter at which the head of a queue waits.
    fn meter_waited_for(&self, class: u32, lane: usize, queue: usize) -> u32 {
        let fifo = &self.classes[class].lanes[lane].queues[queue];
        let route = self.requests[fifo.head].route;
        self.links[self.routes[route].links()[usize::from(fifo.at)]].meter
    }

    /// The cause for which a ready head waits, or waited since `began`.
    fn ready_cause(&self, class: u32, lane: usize, began: Time) -> PlainCause {
        let (own, state) = (&self.classes[class], &self.lanes[lane]);
        let standing = &own.lanes[lane];
        if lane == DEVICE && own.slots_cap != u32::MAX && standing.size == NO_SIZE {
            return PlainCause::Slots;
        }
        let held_by_it = if lane == DEVICE { own.slots_in_use } else { own.running };
        let others = state.slots_in_use > held_by_it || state.others_served(class) >= Some(began);
        match (others, standing.moved_for_remote) {
            (false, _) => PlainCause::Busy,
            (true, true) => PlainCause::RemoteService,
            (true, false) => PlainCause::Weight,
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
