//! A class: the requests with one key under one rule, and their queues.
//!
//! ```text
//!   class ─┬─ cached lane ─┬─ queue: read      each a FIFO of requests; the head is
//!          │               ├─ queue: write     ready (its meters let it),
//!          └─ device lane ─├─ queue: metadata  waiting (at one meter), or absent
//!                          └─ queue: returned  missed the cache, has paid already
//! ```
//!
//! A class has at most one entry in its lane's ready heaps: its earliest-arrived ready head.
//! Requests live in one slab and are linked both ways, so any of them can leave in O(1).

use std::sync::Arc;

use model::{Amount, Direction, Nanos, OpKind, Share, Time, Weight, WriteMode};

use crate::classify::ClassKey;
use crate::ids::ClassId;
use crate::remote_delay::RemoteDelay;
use crate::report::Usage;
use crate::reservation::{Reservation, ReservationTerms};
use crate::slab::{NONE, Slab};
use crate::tags::{EffectiveWeight, VirtualTime};
use crate::wait::WaitCauses;

/// The queues of a class in a lane: read, write, metadata, returned.
pub(crate) const QUEUES: usize = 4;
/// Index of the queue of requests that missed the cache.
pub(crate) const RETURNED: usize = 3;
/// The cause of a queue that has not waited.
pub(crate) const NO_CAUSE: u8 = u8::MAX;
/// The size of a class lane that is in no ready heap.
pub(crate) const NO_SIZE: u8 = u8::MAX;

/// Fields in the order of cache lines: with thousands of classes each line that a request touches
/// is a cache miss. First comes what every call reads and the class lanes, then what completion
/// adds up.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Class {
    /// The weight of its reads and writes: the rule's weight times the share granted here.
    pub(crate) phi: EffectiveWeight,
    /// The weight of its metadata: the rule's full weight, since remote service counts here.
    pub(crate) full_weight: EffectiveWeight,
    /// The most device slots it may use; `u32::MAX` where the rule sets no cap.
    pub(crate) slots_cap: u32,
    /// Device slots in use by it.
    pub(crate) slots_in_use: u32,
    pub(crate) queued: u32,
    pub(crate) running: u32,
    /// Kinds of subjects that lead here.
    pub(crate) refs: u32,
    pub(crate) write_mode: Option<WriteMode>,
    /// Whether `reservation` is set.
    pub(crate) reserved: bool,
    /// Bits of the parents of other rules that its requests count for.
    pub(crate) watched: u64,
    pub(crate) id: ClassId,
    /// Its wait causes, if it ever waited.
    pub(crate) causes: Option<Box<WaitCauses>>,
    pub(crate) lanes: [ClassLane; 2],
    /// Remote service that is not applied yet.
    pub(crate) delay: RemoteDelay,
    pub(crate) usage: Usage,
    pub(crate) reservation: Option<Reservation>,
    /// The least part of its share here, in parts per million; 0 for none.
    pub(crate) min_local_service_ppm: u32,
    /// As its rule says.
    pub(crate) weight: Weight,
    /// Its total cost when its usage was taken last.
    pub(crate) cost_reported: Nanos,
    pub(crate) key: Arc<ClassKey>,
}

/// A class in one lane: what each call reads comes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ClassLane {
    /// Start tag of its next request, valid while it is in a ready heap.
    pub(crate) start: VirtualTime,
    /// Finish tag of its last request.
    pub(crate) finish: VirtualTime,
    /// Bit q: the head of queue q is ready.
    pub(crate) ready: u8,
    /// Bit q: the head of queue q waits at a meter.
    pub(crate) waiting: u8,
    /// The size whose ready heap it is in, or [`NO_SIZE`].
    pub(crate) size: u8,
    /// Its tags were moved for remote service since its last dispatch.
    pub(crate) moved_for_remote: bool,
    /// Slots dispatched past its head since that became the blocked head.
    pub(crate) overtaken: u32,
    /// Since when it has had a head that counts towards its reservation, by the reservations'
    /// clock; valid while it has one.
    pub(crate) reservation_since: Time,
    pub(crate) queues: [ClassQueue; QUEUES],
}

/// A FIFO of requests.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ClassQueue {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// Bit i: meter i of the head's chain let it go in its turn, which gives it a right.
    pub(crate) passed: u8,
    /// Bit i: that meter had its whole burst and let it try.
    pub(crate) tried: u8,
    /// The meter of the head's chain that it waits at, while it waits.
    pub(crate) at: u8,
    /// The place of its last meter or cap among its class's wait causes.
    pub(crate) by: u8,
    /// Number of requests in the queue.
    pub(crate) len: u32,
    /// When the time of its requests was added up last.
    pub(crate) mark: Time,
    /// Their time since `began`, summed up, that is not charged to a cause yet.
    pub(crate) area: u64,
    pub(crate) began: Time,
}

/// One request, from its arrival to its completion. The fields that a dispatch reads are in the
/// first cache line, unless there are meters to pay.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct QueuedRequest {
    /// Number of the arrival, which orders requests with equal tags.
    pub(crate) number: u64,
    /// Charged cost in ns.
    pub(crate) cost: u64,
    pub(crate) token: u64,
    /// When it arrived; after a miss, earlier than that by the time that it had waited before its
    /// dispatch.
    pub(crate) arrived: Time,
    pub(crate) subject: u32,
    pub(crate) class: u32,
    /// Meters it pays, or `NONE`.
    pub(crate) route: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Slots in use while it runs; none if it is never delayed.
    pub(crate) slots: u32,
    pub(crate) kind: OpKind,
    pub(crate) lane: u8,
    pub(crate) queue: u8,
    pub(crate) size: u8,
    pub(crate) stage: RequestStage,
    pub(crate) flags: u8,
    pub(crate) amount: Amount,
    pub(crate) started: Time,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStage {
    Queued,
    Urgent,
    Running,
}

/// Its meters are charged.
pub(crate) const PAID: u8 = 1;
/// Its class's reservation is charged.
pub(crate) const RESERVED: u8 = 2;
/// It keeps a reference of its own on its meter chain.
pub(crate) const OWN_ROUTE: u8 = 4;
/// It, or the request before it, waited for a meter or a cap.
pub(crate) const DELAYED: u8 = 8;

impl Class {
    pub(crate) fn new(key: Arc<ClassKey>, id: ClassId) -> Class {
        Class {
            lanes: [ClassLane::EMPTY; 2],
            phi: EffectiveWeight::ONE,
            full_weight: EffectiveWeight::ONE,
            slots_cap: u32::MAX,
            slots_in_use: 0,
            reserved: false,
            reservation: None,
            write_mode: None,
            queued: 0,
            running: 0,
            usage: Usage::default(),
            refs: 0,
            delay: RemoteDelay::default(),
            causes: None,
            min_local_service_ppm: 0,
            watched: 0,
            id,
            weight: Weight::ONE,
            cost_reported: Nanos::ZERO,
            key,
        }
    }

    /// Sets the weights from the rule's weight, the share of it and the number of proxies.
    pub(crate) fn set_weight(&mut self, weight: Weight, part: Share, members: u32) {
        self.weight = weight;
        self.phi = EffectiveWeight::of(weight, part, members);
        self.full_weight = EffectiveWeight::of(weight, Share::WHOLE, 1);
    }

    /// The weight for its requests of a kind.
    pub(crate) fn phi_of(&self, kind: OpKind) -> EffectiveWeight {
        match kind.direction() {
            Direction::Metadata => self.full_weight,
            Direction::Read | Direction::Write => self.phi,
        }
    }

    /// Sets the terms of its reservation; a rate of the same unit keeps what is owed.
    pub(crate) fn set_reserve(&mut self, terms: Option<ReservationTerms>, now: Time) {
        match (&mut self.reservation, terms) {
            (Some(known), Some(terms)) if known.rate().is_bytes() == terms.rate.is_bytes() => {
                known.set(terms, now);
            }
            (reservation, terms) => *reservation = terms.map(Reservation::new),
        }
        self.reserved = self.reservation.is_some();
    }

    /// Whether a head that needs `slots` of the device is within the cap. One that needs more than
    /// the cap may run alone; otherwise it could never run.
    pub(crate) fn cap_allows(&self, slots: u32) -> bool {
        self.slots_in_use == 0 || self.slots_in_use.saturating_add(slots) <= self.slots_cap
    }

    pub(crate) fn in_use(&self) -> bool {
        self.refs > 0 || self.queued > 0 || self.running > 0
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
        reservation_since: Time::ZERO,
    };

    /// The queue whose ready head arrived first.
    #[inline]
    pub(crate) fn first(&self, requests: &Slab<QueuedRequest>) -> Option<usize> {
        match self.ready.is_power_of_two() {
            true => Some(self.ready.trailing_zeros() as usize),
            false => {
                self.ready_queues().min_by_key(|queue| requests[self.queues[*queue].head].number)
            }
        }
    }

    /// The queues whose head is ready.
    pub(crate) fn ready_queues(&self) -> impl Iterator<Item = usize> {
        let ready = self.ready;
        (0..QUEUES).filter(move |queue| ready >> queue & 1 == 1)
    }
}

impl ClassQueue {
    const EMPTY: ClassQueue = ClassQueue {
        head: NONE,
        tail: NONE,
        passed: 0,
        tried: 0,
        at: 0,
        by: NO_CAUSE,
        len: 0,
        mark: Time::ZERO,
        area: 0,
        began: Time::ZERO,
    };

    /// Adds a request at the end.
    pub(crate) fn push(&mut self, id: u32, requests: &mut Slab<QueuedRequest>, now: Time) {
        self.add_elapsed(now);
        self.len += 1;
        requests[id].prev = self.tail;
        requests[id].next = NONE;
        match self.tail {
            NONE => self.head = id,
            tail => requests[tail].next = id,
        }
        self.tail = id;
    }

    /// Removes a request at any position.
    pub(crate) fn unlink(&mut self, id: u32, requests: &mut Slab<QueuedRequest>, now: Time) {
        self.add_elapsed(now);
        self.len -= 1;
        let QueuedRequest { prev, next, .. } = requests[id];
        match prev {
            NONE => self.head = next,
            prev => requests[prev].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => requests[next].prev = prev,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl Default for ClassQueue {
    fn default() -> ClassQueue {
        ClassQueue::EMPTY
    }
}

impl QueuedRequest {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}
