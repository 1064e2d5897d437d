//! One request in the dispatcher, and where it waits.

use model::{Amount, OpKind, Time};

use super::lane::LANES;
use crate::index::{
    ChainIndex, ClassIndex, OptionalIndex, RequestIndex, SubjectIndex, TableIndex as _,
};

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
    pub(crate) subject: SubjectIndex,
    pub(crate) class: ClassIndex,
    /// The meters that it pays; it has a reference on the chain.
    pub(crate) chain: OptionalIndex<ChainIndex>,
    pub(super) prev: OptionalIndex<RequestIndex>,
    pub(super) next: OptionalIndex<RequestIndex>,
    /// Slots in use while it runs; none if it is never delayed.
    pub(crate) slots: u32,
    pub(crate) kind: OpKind,
    pub(crate) lane: u8,
    pub(crate) queue: u8,
    pub(super) size: u8,
    pub(crate) stage: RequestStage,
    flags: u8,
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

impl RequestStage {
    /// The stage of a request that waits.
    #[inline]
    pub(super) fn of(kind: OpKind) -> RequestStage {
        if kind.never_delayed() { RequestStage::Urgent } else { RequestStage::Queued }
    }
}

/// A request as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRequest {
    pub(crate) subject: SubjectIndex,
    pub(crate) class: ClassIndex,
    pub(crate) chain: OptionalIndex<ChainIndex>,
    pub(crate) kind: OpKind,
    pub(crate) amount: Amount,
    pub(crate) lane: usize,
    pub(crate) token: u64,
}

/// A queue of a class in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) class: ClassIndex,
    pub(crate) lane: usize,
    pub(crate) queue: usize,
}

/// The new head of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewHead {
    pub(crate) place: QueuePlace,
    /// It pays no meters, and is ready; otherwise they are to be asked.
    pub(crate) is_ready: bool,
}

/// The queues of a class in a lane: read, write, metadata, returned.
pub(crate) const QUEUES: usize = 4;
/// Index of the queue of requests that missed the cache.
pub(super) const RETURNED: u8 = 3;

/// Its meters are charged.
const PAID: u8 = 1;
/// Its class's reservation is charged.
const RESERVED: u8 = 2;
/// It, or the request before it, waited for a meter or a cap.
const DELAYED: u8 = 4;
/// The reservation that is charged is one in bytes.
const RESERVED_BYTES: u8 = 8;
/// Its meters are charged at its end, as it went by the reservation of a row.
const OWES: u8 = 16;

impl QueuePlace {
    /// All queues of a class.
    pub(crate) fn all_of(class: ClassIndex) -> impl Iterator<Item = QueuePlace> {
        let place = move |at| QueuePlace { class, lane: at / QUEUES, queue: at % QUEUES };
        (0..LANES.len() * QUEUES).map(place)
    }

    /// The number of the queue among waiters of its lane.
    #[inline]
    pub(crate) fn waiter(self) -> u32 {
        self.class.raw() * QUEUES as u32 + self.queue as u32
    }

    /// The queue of that number.
    #[inline]
    pub(crate) fn of_waiter(waiter: u32, lane: usize) -> QueuePlace {
        let class = ClassIndex::new(waiter / QUEUES as u32);
        QueuePlace { class, lane, queue: waiter as usize % QUEUES }
    }
}

impl QueuedRequest {
    /// A request that has just arrived, with its cost and size in its lane.
    #[inline]
    pub(super) fn new(
        new: NewRequest,
        number: u64,
        cost: u64,
        size: u8,
        now: Time,
    ) -> QueuedRequest {
        let NewRequest { subject, class, chain, kind, amount, lane, token } = new;
        QueuedRequest {
            token,
            number,
            amount,
            cost,
            arrived: now,
            started: now,
            subject,
            class,
            chain,
            prev: OptionalIndex::NONE,
            next: OptionalIndex::NONE,
            slots: 0,
            kind,
            lane: lane as u8,
            queue: kind.direction() as u8,
            size,
            stage: RequestStage::of(kind),
            flags: 0,
        }
    }

    /// The place of its queue, while it waits in one.
    #[inline]
    pub(crate) fn place(&self) -> QueuePlace {
        QueuePlace { class: self.class, lane: self.lane.into(), queue: self.queue.into() }
    }

    /// Whether it missed the cache.
    #[inline]
    pub(crate) fn is_returned(&self) -> bool {
        self.queue == RETURNED
    }

    /// The meters that it still has to pay.
    #[inline]
    pub(crate) fn unpaid_chain(&self) -> Option<ChainIndex> {
        if self.flags & PAID == 0 { self.chain.get() } else { None }
    }

    /// Whether its meters are charged.
    #[inline]
    pub(crate) fn has_paid(&self) -> bool {
        self.flags & PAID != 0
    }

    /// Whether it went by its class's reservation.
    #[inline]
    pub(crate) fn is_reserved(&self) -> bool {
        self.flags & RESERVED != 0
    }

    /// Whether it, or the request before it, waited for a meter or a cap.
    #[inline]
    pub(crate) fn is_delayed(&self) -> bool {
        self.flags & DELAYED != 0
    }

    #[inline]
    pub(super) fn set_paid(&mut self) {
        self.flags |= PAID;
    }

    /// Whether its meters are charged at its end.
    #[inline]
    pub(crate) fn owes_meters(&self) -> bool {
        self.flags & OWES != 0
    }

    /// Its meters are charged at its end, if they are not charged yet.
    #[inline]
    pub(super) fn set_owing(&mut self) {
        self.flags |= if self.has_paid() { 0 } else { OWES };
    }

    /// Whether the reservation by which it went was one in bytes.
    pub(super) fn is_reserved_in_bytes(&self) -> bool {
        self.flags & RESERVED_BYTES != 0
    }

    #[inline]
    pub(super) fn set_reserved(&mut self, in_bytes: bool) {
        self.flags |= RESERVED | if in_bytes { RESERVED_BYTES } else { 0 };
    }

    #[inline]
    pub(super) fn clear_reserved(&mut self) {
        self.flags &= !(RESERVED | RESERVED_BYTES | OWES);
    }

    #[inline]
    pub(super) fn set_delayed(&mut self) {
        self.flags |= DELAYED;
    }
}
