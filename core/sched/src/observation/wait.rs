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

use super::{IS_COUNTED, Observation};
use crate::index::{ClassIndex, MeterIndex, SubjectIndex};
use crate::keys::MeterKey;

pub use report::{
    MeterPayers, MeterStatus, ReservedRow, SubjectDetail, WaitCause, WaitCauseReport, WaitReport,
};

/// The wait causes of one class. A cause's place is that of its [`ReadyCause`], or follows these by
/// its position among the meters.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct WaitCauses {
    plain: [WaitRecord; PLAIN],
    meters: Vec<MeterWaits>,
}

/// Why a ready head waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadyCause {
    Weight,
    Busy,
    Slots,
    RemoteService,
}

/// The place of the record of causes that are not kept apart, after those of ready heads.
const OTHER: usize = 4;
/// Causes without a key.
const PLAIN: usize = OTHER + 1;

/// What waited at one meter.
#[derive(Clone, Debug)]
#[repr(C)]
struct MeterWaits {
    /// The place and generation of the meter, and its key for when it is gone.
    index: MeterIndex,
    generation: u32,
    waits: WaitRecord,
    key: MeterKey,
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

impl WaitCauses {
    /// The place of a meter, and whether another one was evicted for it.
    fn meter(&mut self, meter: MeterId<'_>) -> (usize, bool) {
        let (index, generation, key) = meter;
        let is = |meter: &MeterWaits| (meter.index, meter.generation) == (index, generation);
        if let Some(at) = self.meters.iter().position(is) {
            return (PLAIN + at, false);
        }
        let new = MeterWaits { index, generation, key: key.clone(), waits: WaitRecord::default() };
        if self.meters.len() < METERS_MAX {
            self.meters.push(new);
            return (PLAIN + self.meters.len() - 1, false);
        }
        let by_age = self.meters.iter().enumerate().min_by_key(|(_, meter)| meter.waits.last);
        let (at, _) = by_age.expect("there are as many as may be");
        let gone = std::mem::replace(&mut self.meters[at], new);
        self.plain[OTHER].merge(&gone.waits);
        (PLAIN + at, true)
    }

    /// The record at a place, if there is one.
    fn at(&mut self, place: usize) -> Option<&mut WaitRecord> {
        let meters = place.checked_sub(PLAIN);
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

/// A meter: its place, its generation there, and its key.
pub(crate) type MeterId<'a> = (MeterIndex, u32, &'a MeterKey);

/// How long the requests of a queue have waited since that was last charged to a cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueWait {
    /// When the time of its requests was added up last.
    mark: Time,
    /// Their time since `began`, summed up, that is not charged to a cause yet.
    area: u64,
    began: Time,
}

/// The place of a cause among those of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CausePlace(u8);

/// Waiting that is to be charged to a cause: the sum over requests, in ns, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitedArea {
    area: u64,
    pub(crate) began: Time,
}

/// A request at the head of its queue that waited and goes now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitedHead {
    pub(crate) subject: SubjectIndex,
    pub(crate) arrived: Time,
    pub(crate) bytes: u64,
    /// The last meter or cap at which its queue waited.
    pub(crate) by: CausePlace,
    /// The cause if it was none of these.
    pub(crate) otherwise: ReadyCause,
}

impl QueueWait {
    pub(crate) const NONE: QueueWait = QueueWait { mark: Time::ZERO, area: 0, began: Time::ZERO };

    /// Adds the time since the last call for every request that waited in the queue.
    #[inline]
    pub(crate) fn add_elapsed(&mut self, len: u32, now: Time) {
        if !IS_COUNTED {
            return;
        }
        if self.area == 0 {
            self.began = self.mark;
        }
        let waited = now.since(self.mark).get();
        self.area = self.area.saturating_add(waited.saturating_mul(len.into()));
        self.mark = now;
    }

    /// The waiting since the last call, if there was any.
    #[inline]
    pub(crate) fn take(&mut self, len: u32, now: Time) -> Option<WaitedArea> {
        self.add_elapsed(len, now);
        let area = std::mem::take(&mut self.area);
        (area > 0).then_some(WaitedArea { area, began: self.began })
    }

    /// The waiting that is not charged yet.
    #[inline]
    pub(crate) fn area(&self) -> u64 {
        self.area
    }

    /// Forgets it: too little to be counted.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.area = 0;
    }
}

impl CausePlace {
    /// The place of no cause.
    pub(crate) const NONE: CausePlace = CausePlace(u8::MAX);
}

impl Observation {
    /// Counts that the head of a queue waited at a meter. Returns the place of that cause, and
    /// whether another cause was there before.
    pub(crate) fn count_metered(
        &mut self,
        class: ClassIndex,
        waited: WaitedArea,
        meter: MeterId<'_>,
        now: Time,
    ) -> (CausePlace, bool) {
        let causes = self.classes[class].causes.get_or_insert_default();
        let (at, replaced) = causes.meter(meter);
        causes.at(at).expect("its place").count(waited.area, waited.began, now);
        (CausePlace(at as u8), replaced)
    }

    /// Counts that a ready head waited. Returns the place of a cause that delays.
    pub(crate) fn count_ready(
        &mut self,
        class: ClassIndex,
        waited: WaitedArea,
        by: ReadyCause,
        now: Time,
    ) -> Option<CausePlace> {
        let causes = self.classes[class].causes.get_or_insert_default();
        causes.plain[by as usize].count(waited.area, waited.began, now);
        (by == ReadyCause::Slots).then_some(CausePlace(by as u8))
    }

    /// Counts a request that waited and goes now. Returns whether a meter or a cap delayed it.
    #[inline]
    pub(crate) fn count_waited(&mut self, class: ClassIndex, head: &WaitedHead, now: Time) -> bool {
        if !IS_COUNTED {
            return false;
        }
        let causes = self.classes[class].causes.get_or_insert_default();
        let last = causes.at(head.by.0.into()).filter(|cause| cause.last >= head.arrived);
        if let Some(cause) = last {
            cause.count_request(head.bytes, now);
            self.count_delayed(head.subject, head.arrived, now);
            return true;
        }
        causes.plain[head.otherwise as usize].count_request(head.bytes, now);
        false
    }

    /// The causes of an active class, to which what waits now is to be added.
    pub(crate) fn causes_of(&self, class: ClassIndex) -> WaitCauses {
        self.classes[class].causes.as_deref().cloned().unwrap_or_default()
    }
}

impl WaitCauses {
    /// Adds what waits now at a meter.
    pub(crate) fn add_metered(&mut self, waited: WaitedArea, meter: MeterId<'_>, now: Time) {
        let (at, _) = self.meter(meter);
        self.at(at).expect("its place").count(waited.area, waited.began, now);
    }

    /// Adds what waits now and is ready.
    pub(crate) fn add_ready(&mut self, waited: WaitedArea, by: ReadyCause, now: Time) {
        self.plain[by as usize].count(waited.area, waited.began, now);
    }
}

/// A shorter wait is not counted as waiting.
pub(crate) const WAIT_MIN_NS: u64 = 100_000;
/// A queue that is never empty passes on its waiting after this much request-time.
pub(crate) const AREA_MAX_NS: u64 = 10_000_000;
/// A cause that delayed nothing for longer starts a new span.
const PAUSE_MAX: Nanos = Nanos::from_secs(1);
/// Meters that are kept apart for one class: as many as one request can pay.
const METERS_MAX: usize = rules::RuleSet::METERS_MAX;
