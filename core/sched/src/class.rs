//! A class: the requests with one key under one rule, and where they stand.
//!
//! ```text
//!   class ─┬─ standing (cached lane) ─┬─ queue: read      each a FIFO of requests; the head is
//!          │                      ├─ queue: write       ready (its meters let it),
//!          └─ standing (device lane) ─├─ queue: metadata    waiting (at one meter), or absent
//!                                 └─ queue: returned  missed the cache, has paid already
//! ```
//!
//! A standing stands once in its lane's ready heads, for the earliest-arrived ready head of
//! its queues. Requests live in one slab and are linked both ways, so any of them can
//! leave in O(1).

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

/// Queues of a standing: read, write, metadata, returned.
pub(crate) const QUEUES: usize = 4;
/// Index of the queue of requests that missed the cache.
pub(crate) const RETURNED: usize = 3;
/// No cause held a queue.
pub(crate) const NO_CAUSE: u8 = u8::MAX;
/// A standing that stands in no ready heap.
pub(crate) const NO_SIZE: u8 = u8::MAX;

/// In the order of cache lines, for with thousands of classes each line that a request
/// touches comes from afar: what every call looks at and the lanes' standings, then what
/// completion adds up.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Class {
    /// By what its reads and writes are served beside others: its weight, by the part of it that
    /// it is granted here.
    pub(crate) phi: EffectiveWeight,
    /// By what its metadata is: all of its weight, for what it had elsewhere counts here.
    pub(crate) undivided: EffectiveWeight,
    /// The most device slots it may hold; `u32::MAX` where the rule says nothing.
    pub(crate) slots_cap: u32,
    /// Device slots it holds.
    pub(crate) held: u32,
    pub(crate) queued: u32,
    pub(crate) running: u32,
    /// Kinds of subjects that lead here.
    pub(crate) refs: u32,
    pub(crate) write_mode: Option<WriteMode>,
    /// Whether `reserve` is set.
    pub(crate) reserved: bool,
    pub(crate) standings: [ClassLane; 2],
    pub(crate) reserve: Option<Reservation>,
    pub(crate) usage: Usage,
    /// What it had elsewhere.
    pub(crate) delay: RemoteDelay,
    /// What held it, if anything ever did.
    pub(crate) causes: Option<Box<WaitCauses>>,
    /// The least part of its share here, in parts per million; 0 for none.
    pub(crate) min_share_ppm: u32,
    /// Bits of the parents of other rules that its requests count for.
    pub(crate) watched: u64,
    pub(crate) id: ClassId,
    /// As its rule says.
    pub(crate) weight: Weight,
    /// What it had cost when its uses were taken last.
    pub(crate) taken: Nanos,
    pub(crate) key: Arc<ClassKey>,
}

/// A class in one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassLane {
    /// Start tag of its next request, valid while it stands in a ready heap.
    pub(crate) start: VirtualTime,
    /// Finish tag of its last request.
    pub(crate) finish: VirtualTime,
    pub(crate) queues: [ClassQueue; QUEUES],
    /// Bit q: the head of queue q may go.
    pub(crate) ready: u8,
    /// Bit q: the head of queue q waits at a meter.
    pub(crate) waiting: u8,
    /// The size whose ready heap it stands in, or [`NO_SIZE`].
    pub(crate) size: u8,
    /// Its tags were moved for service elsewhere since its last dispatch.
    pub(crate) put_off: bool,
    /// Slots dispatched past its head since that became the blocked head.
    pub(crate) overtaken: u32,
    /// Since when it has had a head that counts towards its reservation, by the reservations'
    /// clock; valid while it has one.
    pub(crate) promised: Time,
}

/// A FIFO of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassQueue {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// Bit i: meter i of the head's route let it go in its turn, which gives it a right.
    pub(crate) passed: u8,
    /// Bit i: that meter had its whole burst and let it try.
    pub(crate) tried: u8,
    /// Which meter of the head's route it waits at, while it waits.
    pub(crate) at: u8,
    /// The place of the meter or cap that held it last, among its class's causes.
    pub(crate) by: u8,
    /// Requests in it.
    pub(crate) len: u32,
    /// When the time of its requests was added up last.
    pub(crate) mark: Time,
    /// Their time since `began`, summed up, that no cause was told of.
    pub(crate) area: u64,
    pub(crate) began: Time,
}

/// One request, from its arrival to its completion. What is read to dispatch it stands in
/// the first cache line, unless there are meters to pay.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct QueuedRequest {
    /// Arrival number.
    pub(crate) number: u64,
    /// Charged cost in ns.
    pub(crate) cost: u64,
    pub(crate) token: u64,
    /// When it arrived; after a miss, so long before that as it had waited by its dispatch.
    pub(crate) arrived: Time,
    pub(crate) subject: u32,
    pub(crate) class: u32,
    /// Meters it pays, or `NONE`.
    pub(crate) route: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Slots it holds while it runs; none if it is never delayed.
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

/// How far a request has come.
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
/// It keeps a reference of its own on its route.
pub(crate) const OWN_ROUTE: u8 = 4;
/// A meter or a cap held it, or the one before it, while it waited.
pub(crate) const DELAYED: u8 = 8;

impl Class {
    pub(crate) fn new(key: Arc<ClassKey>, id: ClassId) -> Class {
        Class {
            standings: [ClassLane::EMPTY; 2],
            phi: EffectiveWeight::ONE,
            undivided: EffectiveWeight::ONE,
            slots_cap: u32::MAX,
            held: 0,
            reserved: false,
            reserve: None,
            write_mode: None,
            queued: 0,
            running: 0,
            usage: Usage::default(),
            refs: 0,
            delay: RemoteDelay::default(),
            causes: None,
            min_share_ppm: 0,
            watched: 0,
            id,
            weight: Weight::ONE,
            taken: Nanos::ZERO,
            key,
        }
    }

    /// Takes its rule's weight and the part of it, where there are so many members.
    pub(crate) fn set_weight(&mut self, weight: Weight, part: Share, members: u32) {
        self.weight = weight;
        self.phi = EffectiveWeight::of(weight, part, members);
        self.undivided = EffectiveWeight::of(weight, Share::WHOLE, 1);
    }

    /// By what its requests of a kind are served.
    pub(crate) fn phi_of(&self, kind: OpKind) -> EffectiveWeight {
        match kind.direction() {
            Direction::Metadata => self.undivided,
            Direction::Read | Direction::Write => self.phi,
        }
    }

    /// Takes what it is promised now; a rate of the same unit keeps what is owed.
    pub(crate) fn set_reserve(&mut self, terms: Option<ReservationTerms>, now: Time) {
        match (&mut self.reserve, terms) {
            (Some(known), Some(terms)) if known.rate().is_bytes() == terms.rate.is_bytes() => {
                known.set(terms, now);
            }
            (reserve, terms) => *reserve = terms.map(Reservation::new),
        }
        self.reserved = self.reserve.is_some();
    }

    /// Whether a head that needs `slots` of the device is within the cap. One that needs
    /// more than the cap may run alone, or it never would.
    pub(crate) fn cap_allows(&self, slots: u32) -> bool {
        self.held == 0 || self.held.saturating_add(slots) <= self.slots_cap
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
        put_off: false,
        overtaken: 0,
        promised: Time::ZERO,
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
        self.pass(now);
        self.len += 1;
        requests[id].prev = self.tail;
        requests[id].next = NONE;
        match self.tail {
            NONE => self.head = id,
            tail => requests[tail].next = id,
        }
        self.tail = id;
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn unlink(&mut self, id: u32, requests: &mut Slab<QueuedRequest>, now: Time) {
        self.pass(now);
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
