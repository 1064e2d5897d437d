//! Heads of queues: whether they are ready or wait at a meter, and for what they have waited.
//!
//! ```text
//!   new head ─ the dispatcher asks the meters ─┬─► set_ready ─► lanes/choose.rs
//!                                              └─► set_waiting ─ let_go ─► asks again
//! ```

use model::{Amount, Time};

use super::Lanes;
use super::class::{ClassQueue, NO_SIZE};
use super::lane::DEVICE;
use super::request::{QueuePlace, RequestStage};
use crate::index::{ChainIndex, LanePlace, MeterBits, OptionalIndex, RequestIndex};
use crate::meters::MeterPayer;
use crate::observation::{CausePlace, MeterId, Observation, ReadyCause, WaitedArea};

/// A head that has meters to pay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayingHead {
    pub(crate) chain: ChainIndex,
    pub(crate) amount: Amount,
    /// Bit i: meter i of the chain let it go in its turn.
    pub(crate) passed: MeterBits,
    /// Bit i: that meter let it go, or let it try.
    pub(crate) visited: MeterBits,
}

/// What determines the cause for which a ready head waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyCauses {
    is_capped: bool,
    others_run: bool,
    /// When a request of another class began or ended last.
    others_served: Option<Time>,
    moved_for_remote: bool,
}

impl ReadyCauses {
    /// The cause, of a head that waits since `began`.
    #[inline]
    pub(crate) fn since(self, began: Time) -> ReadyCause {
        if self.is_capped {
            return ReadyCause::Slots;
        }
        match (self.others_run || self.others_served >= Some(began), self.moved_for_remote) {
            (false, _) => ReadyCause::Busy,
            (true, true) => ReadyCause::RemoteService,
            (true, false) => ReadyCause::Weight,
        }
    }
}

impl Lanes {
    /// The head of a queue that is not empty, if it has meters to pay.
    #[inline]
    pub(crate) fn paying_head(&self, place: QueuePlace) -> Option<PayingHead> {
        let fifo = self.queue(place);
        let request = &self.requests[fifo.head()];
        let chain = request.unpaid_chain()?;
        let amount = request.amount;
        Some(PayingHead { chain, amount, passed: fifo.passed, visited: fifo.visited() })
    }

    /// The head of a queue, which waits at a meter: what it pays, and how it stands in line.
    #[inline]
    pub(crate) fn waiting_head(&self, place: QueuePlace) -> MeterPayer {
        let own = &self.classes[place.class];
        let fifo = &own.lanes[place.lane].queues[place.queue];
        let request = &self.requests[fifo.head()];
        MeterPayer {
            chain: request.chain.known(),
            at: fifo.at,
            line: LanePlace { target: own.target, lane: place.lane },
            waiter: place.waiter(),
            cost: request.cost,
            number: request.number,
            weight: self.phi(place.class),
        }
    }

    /// The head of a queue that is not empty.
    #[inline]
    pub(crate) fn head(&self, place: QueuePlace) -> RequestIndex {
        self.queue(place).head()
    }

    #[inline]
    pub(crate) fn is_head(&self, index: RequestIndex) -> bool {
        let request = &self.requests[index];
        request.stage == RequestStage::Queued
            && self.queue(request.place()).head == OptionalIndex::from(index)
    }

    #[inline]
    pub(crate) fn is_empty(&self, place: QueuePlace) -> bool {
        self.queue(place).is_empty()
    }

    /// Whether the head of a queue waits at a meter.
    #[inline]
    pub(crate) fn is_waiting(&self, place: QueuePlace) -> bool {
        self.classes[place.class].lanes[place.lane].waiting >> place.queue & 1 == 1
    }

    /// The chain of a head and the meters that it has passed in turn, if there are any.
    pub(crate) fn passed(&self, place: QueuePlace) -> Option<(ChainIndex, MeterBits)> {
        self.queue(place).passed(&self.requests)
    }

    /// Marks the head of a queue as ready or not; the same is returned.
    #[inline]
    pub(crate) fn set_ready(
        &mut self,
        place: QueuePlace,
        ready: bool,
    ) -> Option<(ChainIndex, MeterBits)> {
        let standing = &mut self.classes[place.class].lanes[place.lane];
        let bit = 1 << place.queue;
        standing.ready = if ready { standing.ready | bit } else { standing.ready & !bit };
        standing.queues[place.queue].passed(&self.requests)
    }

    /// Marks the head of a queue as waiting at the meter of that position in its chain.
    pub(crate) fn set_waiting(&mut self, place: QueuePlace, at: u8) {
        let standing = &mut self.classes[place.class].lanes[place.lane];
        standing.waiting |= 1 << place.queue;
        standing.queues[place.queue].at = at;
    }

    pub(crate) fn clear_waiting(&mut self, place: QueuePlace) {
        self.classes[place.class].lanes[place.lane].waiting &= !(1 << place.queue);
    }

    /// Notes that the meter at which the head of a queue waits lets it go: in its turn, or to try.
    pub(crate) fn let_go(&mut self, place: QueuePlace, is_in_turn: bool) {
        let fifo = self.queue_mut(place);
        match is_in_turn {
            true => fifo.passed |= 1 << fifo.at,
            false => fifo.tried |= 1 << fifo.at,
        }
    }

    pub(crate) fn forget_passed(&mut self, place: QueuePlace) {
        let fifo = self.queue_mut(place);
        (fifo.passed, fifo.tried) = (0, 0);
    }

    pub(crate) fn forget_tried(&mut self, place: QueuePlace) {
        self.queue_mut(place).tried = 0;
    }

    #[inline]
    pub(super) fn queue(&self, place: QueuePlace) -> &ClassQueue {
        &self.classes[place.class].lanes[place.lane].queues[place.queue]
    }

    #[inline]
    fn queue_mut(&mut self, place: QueuePlace) -> &mut ClassQueue {
        &mut self.classes[place.class].lanes[place.lane].queues[place.queue]
    }

    // ---- what heads wait for ----

    /// Handles that a ready head of a queue is about to change state, or was ready for long.
    #[inline]
    pub(crate) fn count_ready(&mut self, place: QueuePlace, now: Time, seen: &mut Observation) {
        let fifo = self.queue_mut(place);
        let Some(waited) = fifo.wait.take(fifo.len, now) else { return };
        let causes = self.ready_causes(place);
        self.charge_ready(place, waited, causes, now, seen);
    }

    /// Charges what waited in a queue with a ready head to the cause of that.
    #[inline]
    pub(super) fn charge_ready(
        &mut self,
        place: QueuePlace,
        waited: WaitedArea,
        causes: ReadyCauses,
        now: Time,
        seen: &mut Observation,
    ) {
        let by = causes.since(waited.began);
        if let Some(by) = seen.count_ready(place.class, waited, by, now) {
            self.queue_mut(place).by = by;
        }
    }

    /// Handles that the head of a queue is about to leave the meter that it waits at.
    #[inline]
    pub(crate) fn count_metered<'m>(
        &mut self,
        place: QueuePlace,
        meter: impl FnOnce() -> MeterId<'m>,
        now: Time,
        seen: &mut Observation,
    ) {
        let fifo = self.queue_mut(place);
        let Some(waited) = fifo.wait.take(fifo.len, now) else { return };
        let (by, replaced) = seen.count_metered(place.class, waited, meter(), now);
        if replaced {
            let lanes = &mut self.classes[place.class].lanes;
            let queues = lanes.iter_mut().flat_map(|standing| &mut standing.queues);
            queues.filter(|queue| queue.by == by).for_each(|queue| queue.by = CausePlace::NONE);
        }
        self.queue_mut(place).by = by;
    }

    /// What determines the cause for which a ready head waits.
    #[inline(always)]
    pub(crate) fn ready_causes(&self, place: QueuePlace) -> ReadyCauses {
        let lane = place.lane;
        let class = self.owner_of(place.class);
        let own = &self.classes[class];
        let state = &self.targets[own.target].states[lane];
        let standing = &own.lanes[lane];
        let held_by_it = if lane == DEVICE { own.slots_in_use } else { own.running };
        ReadyCauses {
            is_capped: lane == DEVICE && own.slots_cap != u32::MAX && standing.size == NO_SIZE,
            others_run: state.slots_in_use > held_by_it,
            others_served: state.others_served(class),
            moved_for_remote: standing.moved_for_remote,
        }
    }

    /// What waits now in a queue, if that is long enough to count.
    pub(crate) fn waiting_now(
        &self,
        place: QueuePlace,
        least_ns: u64,
        now: Time,
    ) -> Option<WaitedArea> {
        let mut fifo = *self.queue(place);
        if fifo.is_empty() {
            return None;
        }
        fifo.wait.add_elapsed(fifo.len, now);
        let waited = now.since(self.requests[fifo.head()].arrived).get();
        if fifo.wait.area().max(waited) < least_ns {
            return None;
        }
        fifo.wait.take(fifo.len, now)
    }
}
