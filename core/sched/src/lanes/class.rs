//! A class in the lanes: its queues, tags, slots and reservation.
//!
//! ```text
//!   class ─┬─ cached lane ─┬─ queue: read      each a FIFO of requests; the head is
//!          │               ├─ queue: write     ready (its meters let it),
//!          └─ device lane ─├─ queue: metadata  waiting (at one meter), or absent
//!                          └─ queue: returned  missed the cache, has paid already
//! ```
//!
//! A class has at most one entry in its lane's ready heaps: its earliest-arrived ready head.
//!
//! A *branch* of a class has queues and a reservation of its own. Tags, weight and slots are those of
//! the class, in whose place it stands in the ready heaps.
//! Requests live in one slab and are linked both ways, so any of them can leave in O(1).

use model::{Direction, OpKind, Share, TargetId, Time, Weight};
use rules::WriteMode;

use super::lane::{DEVICE, LaneState};
use super::remote_delay::RemoteDelay;
use super::request::{NewHead, QUEUES, QueuePlace, QueuedRequest};
use super::reservation::{Reservation, ReservationTerms, ReservedStanding};
use crate::ids::ClassId;
use crate::index::{ChainIndex, ClassIndex, MeterBits, OptionalIndex, RequestIndex};
use crate::observation::{CausePlace, QueueWait};
use crate::slab::Slab;
use crate::tags::{EffectiveWeight, VirtualTime};

/// The size of a class lane that is in no ready heap.
pub(super) const NO_SIZE: u8 = u8::MAX;

/// What the rules and a controller give a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassTerms {
    /// As its rule says.
    pub(crate) weight: Weight,
    /// The share of weight and reservation that is granted here.
    pub(crate) part: Share,
    /// The number of proxies.
    pub(crate) proxies: u32,
    /// The most device slots it may use; `u32::MAX` where the rule sets no cap.
    pub(crate) slots_cap: u32,
    /// The least part of its share here, in parts per million; 0 for none.
    pub(crate) min_local_service_ppm: u32,
    pub(crate) write_mode: Option<WriteMode>,
    pub(crate) reservation: Option<ReservationTerms>,
    /// Bits of the parents of other rules that its requests count for.
    pub(crate) watched: u64,
}

/// What is kept of a class that becomes dormant: enough to leave it no better and no worse off.
#[derive(Clone, Copy, Debug)]
pub(super) struct DormantLanes {
    pub(super) finish: [VirtualTime; 2],
    pub(super) reservation: Option<Reservation>,
}

/// In the order of cache lines: with thousands of classes each line that a request touches is a
/// cache miss. What every call reads is the first line; in each lane the tags are one, and the queue
/// of reads is within the next; the rate of the reservation begins one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct LaneClass {
    /// The weight of its reads and writes: the rule's weight times the share granted here.
    pub(super) phi: EffectiveWeight,
    /// The weight of its metadata: the rule's full weight, since remote service counts here.
    pub(super) full_weight: EffectiveWeight,
    /// The most device slots it may use; `u32::MAX` where the rule sets no cap.
    pub(super) slots_cap: u32,
    /// Device slots in use by it.
    pub(super) slots_in_use: u32,
    pub(super) queued: u32,
    pub(super) running: u32,
    pub(super) write_mode: Option<WriteMode>,
    /// Whether `reservation` is set.
    pub(super) reserved: bool,
    /// Whether it is a branch, or has branches.
    pub(super) branched: bool,
    pub(super) target: TargetId,
    /// Of a branch the class whose tags, weight and slots it has; else itself.
    owner: ClassIndex,
    /// Bits of the parents of other rules that its requests count for.
    pub(super) watched: u64,
    pub(super) id: ClassId,
    /// The least part of its share here, in parts per million; 0 for none.
    pub(super) min_local_service_ppm: u32,
    /// As its rule says.
    pub(super) weight: Weight,
    pub(super) lanes: [ClassLane; 2],
    pub(super) reservation: Option<Reservation>,
}

/// A class in one lane: the tags, then the queues.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct ClassLane {
    /// Start tag of its next request, valid while it is in a ready heap.
    pub(super) start: VirtualTime,
    /// Finish tag of its last request.
    pub(super) finish: VirtualTime,
    /// Bit q: the head of queue q is ready.
    pub(super) ready: u8,
    /// Bit q: the head of queue q waits at a meter.
    pub(super) waiting: u8,
    /// The size whose ready heap it is in, or [`NO_SIZE`].
    pub(super) size: u8,
    /// Its tags were moved for remote service since its last dispatch.
    pub(super) moved_for_remote: bool,
    /// Slots dispatched past its head since that became the blocked head.
    pub(super) overtaken: u32,
    /// Since when it has had heads that go by the reservation that it has.
    pub(super) reserved: ReservedStanding,
    /// Remote service that is not applied yet: only in the device lane.
    pub(super) delay: RemoteDelay,
    pub(super) queues: [ClassQueue; QUEUES],
}

/// A FIFO of requests.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ClassQueue {
    pub(super) head: OptionalIndex<RequestIndex>,
    pub(super) tail: OptionalIndex<RequestIndex>,
    /// Bit i: meter i of the head's chain let it go in its turn, which gives it a right.
    pub(super) passed: MeterBits,
    /// Bit i: that meter had its whole burst and let it try.
    pub(super) tried: MeterBits,
    /// The meter of the head's chain that it waits at, while it waits.
    pub(super) at: u8,
    /// The place of its last meter or cap among its class's wait causes.
    pub(super) by: CausePlace,
    /// Number of requests in the queue.
    pub(super) len: u32,
    /// How long they have waited.
    pub(super) wait: QueueWait,
}

/// All requests that wait or run.
pub(super) type Requests = Slab<RequestIndex, QueuedRequest>;

impl LaneClass {
    pub(super) fn new(id: ClassId, owner: ClassIndex, target: TargetId) -> LaneClass {
        LaneClass {
            lanes: [ClassLane::EMPTY; 2],
            phi: EffectiveWeight::ONE,
            full_weight: EffectiveWeight::ONE,
            slots_cap: u32::MAX,
            slots_in_use: 0,
            reserved: false,
            target,
            reservation: None,
            write_mode: None,
            queued: 0,
            running: 0,
            min_local_service_ppm: 0,
            watched: 0,
            id,
            owner,
            branched: false,
            weight: Weight::ONE,
        }
    }

    /// The class of which it is a branch; of any other, itself. So the processor predicts the usual
    /// answer, and reads on while the first line of the class is still to come.
    #[inline]
    pub(super) fn owner_or(&self, itself: ClassIndex) -> ClassIndex {
        if self.branched { self.branched_owner() } else { itself }
    }

    #[inline(never)]
    fn branched_owner(&self) -> ClassIndex {
        self.owner
    }

    /// Whether this class, which has that index, is a branch of another one.
    #[inline]
    pub(super) fn is_branch(&self, itself: ClassIndex) -> bool {
        self.branched && self.owner != itself
    }

    /// The queues in a lane of this class, which has that index, whose heads may go by its
    /// reservation: ready ones, and of a branch also those that wait at a meter.
    pub(super) fn reserving_queues(
        &self,
        itself: ClassIndex,
        lane: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let standing = &self.lanes[lane];
        let waiting = if self.is_branch(itself) { standing.waiting } else { 0 };
        let heads = standing.ready | waiting;
        (0..QUEUES).filter(move |queue| heads >> queue & 1 == 1)
    }

    /// Makes it a branch of another class.
    pub(super) fn join(&mut self, owner: ClassIndex, id: ClassId) {
        (self.owner, self.branched, self.id) = (owner, true, id);
    }

    /// Sets what the rules and a controller give it. `clock` is the reservations' time.
    pub(super) fn set_terms(&mut self, terms: &ClassTerms, clock: Time) {
        self.set_weight(terms.weight, terms.part, terms.proxies);
        self.slots_cap = terms.slots_cap;
        self.min_local_service_ppm = terms.min_local_service_ppm;
        self.write_mode = terms.write_mode;
        self.watched = terms.watched;
        self.set_reservation(terms.reservation, clock);
    }

    /// Sets what is reserved for it; with the same unit what is owed stays. `clock` is the
    /// reservations' time.
    pub(super) fn set_reservation(&mut self, terms: Option<ReservationTerms>, clock: Time) {
        match (&mut self.reservation, terms) {
            (Some(known), Some(terms)) if known.rate().is_bytes() == terms.rate.is_bytes() => {
                known.set(terms, clock);
            }
            (reservation, terms) => {
                *reservation = terms.map(Reservation::new);
                // No head has waited for it yet.
                self.lanes.iter_mut().for_each(|lane| lane.reserved.begin(clock));
            }
        }
        self.reserved = self.reservation.is_some();
    }

    /// Sets the weights from the rule's weight, the share of it and the number of proxies.
    pub(super) fn set_weight(&mut self, weight: Weight, part: Share, proxies: u32) {
        self.weight = weight;
        self.phi = EffectiveWeight::of(weight, part, proxies);
        self.full_weight = EffectiveWeight::of(weight, Share::WHOLE, 1);
    }

    /// The weight for its requests of a kind.
    #[inline]
    pub(super) fn phi_of(&self, kind: OpKind) -> EffectiveWeight {
        match kind.direction() {
            Direction::Metadata => self.full_weight,
            Direction::Read | Direction::Write => self.phi,
        }
    }

    /// Whether a head that needs `slots` of the device is within the cap. One that needs more than
    /// the cap may run alone; otherwise it could never run.
    #[inline]
    pub(super) fn cap_allows(&self, slots: u32) -> bool {
        self.slots_in_use == 0 || self.slots_in_use.saturating_add(slots) <= self.slots_cap
    }

    /// Size and number of a head, if it is within the cap.
    #[inline(always)]
    pub(super) fn if_fitting(
        &self,
        lane: usize,
        state: &LaneState,
        head: &QueuedRequest,
    ) -> Option<(u8, u64)> {
        let fits = lane != DEVICE || self.cap_allows(state.slots(head.size));
        fits.then_some((head.size, head.number))
    }
}

impl ClassLane {
    const EMPTY: ClassLane = ClassLane {
        start: VirtualTime::ZERO,
        finish: VirtualTime::ZERO,
        queues: [ClassQueue::EMPTY; QUEUES],
        ready: 0,
        waiting: 0,
        size: NO_SIZE,
        moved_for_remote: false,
        overtaken: 0,
        reserved: ReservedStanding::NONE,
        delay: RemoteDelay::NONE,
    };

    /// The queue whose ready head arrived first.
    #[inline]
    pub(super) fn first(&self, requests: &Requests) -> Option<usize> {
        match self.ready.is_power_of_two() {
            true => Some(self.ready.trailing_zeros() as usize),
            false => {
                self.ready_queues().min_by_key(|queue| requests[self.queues[*queue].head()].number)
            }
        }
    }

    /// The ready head that arrived first.
    #[inline(always)]
    pub(super) fn first_head(&self, requests: &Requests) -> Option<RequestIndex> {
        self.first(requests).map(|queue| self.queues[queue].head())
    }

    /// Handles that a queue has another head, if it is not empty. One that pays no meters is ready.
    #[inline]
    pub(super) fn show_head(
        &mut self,
        place: QueuePlace,
        head: OptionalIndex<RequestIndex>,
        requests: &Requests,
    ) -> Option<NewHead> {
        let bit = 1 << place.queue;
        self.ready &= !bit;
        let is_ready = requests[head.get()?].unpaid_chain().is_none();
        if is_ready {
            self.ready |= bit;
        }
        Some(NewHead { place, is_ready })
    }

    /// The queues whose head is ready.
    pub(super) fn ready_queues(&self) -> impl Iterator<Item = usize> + use<> {
        let ready = self.ready;
        (0..QUEUES).filter(move |queue| ready >> queue & 1 == 1)
    }
}

impl ClassQueue {
    pub(super) const EMPTY: ClassQueue = ClassQueue {
        head: OptionalIndex::NONE,
        tail: OptionalIndex::NONE,
        passed: 0,
        tried: 0,
        at: 0,
        by: CausePlace::NONE,
        len: 0,
        wait: QueueWait::NONE,
    };

    /// The first request, of a queue that is not empty.
    #[inline]
    pub(super) fn head(&self) -> RequestIndex {
        self.head.known()
    }

    /// Adds a request at the end.
    #[inline]
    pub(super) fn push(&mut self, index: RequestIndex, requests: &mut Requests, now: Time) {
        self.wait.add_elapsed(self.len, now);
        self.len += 1;
        let request = &mut requests[index];
        (request.prev, request.next) = (self.tail, OptionalIndex::NONE);
        match self.tail.get() {
            None => self.head = index.into(),
            Some(tail) => requests[tail].next = index.into(),
        }
        self.tail = index.into();
    }

    /// Removes the head, whose waiting was counted. Returns the next one.
    #[inline]
    pub(super) fn pop(&mut self, requests: &mut Requests) -> OptionalIndex<RequestIndex> {
        (self.passed, self.tried) = (0, 0);
        self.len -= 1;
        self.head = requests[self.head()].next;
        match self.head.get() {
            None => self.tail = OptionalIndex::NONE,
            Some(head) => requests[head].prev = OptionalIndex::NONE,
        }
        self.head
    }

    /// Removes a request at any position.
    #[inline]
    pub(super) fn unlink(&mut self, index: RequestIndex, requests: &mut Requests, now: Time) {
        self.wait.add_elapsed(self.len, now);
        self.len -= 1;
        let QueuedRequest { prev, next, .. } = requests[index];
        match prev.get() {
            None => self.head = next,
            Some(prev) => requests[prev].next = next,
        }
        match next.get() {
            None => self.tail = prev,
            Some(next) => requests[next].prev = prev,
        }
    }

    /// The chain of its head and the meters that this has passed in turn, if there are any.
    #[inline]
    pub(super) fn passed(&self, requests: &Requests) -> Option<(ChainIndex, MeterBits)> {
        (self.passed != 0).then(|| (requests[self.head()].chain.known(), self.passed))
    }

    /// The meters of its head that let it go, or let it try.
    #[inline]
    pub(super) fn visited(&self) -> MeterBits {
        self.passed | self.tried
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}
