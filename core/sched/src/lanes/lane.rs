//! A lane: one resource's slots, its virtual time, and the heads that are ready for it.
//!
//! ```text
//!   urgent: FIFO ──────────────► before everything, holds no slots
//!   reserved: heap by R ───────► those due, before weights
//!   ready: a heap for each size, by (S, arrival)
//!            size 1: ●●●●   size 2: ●●   size 4: ●     the true head is the least root;
//!                                                      one that may overtake it is a root too
//! ```
//!
//! The two lanes contend for different resources (memory and processor; the device), so each has
//! its own start tags. Meters and reservations belong to classes and span both.

use model::{Lane, Time};

use super::class::{ClassLane, ClassQueue, NO_SIZE};
use super::slots::{SIZES_MAX, slots_of};
use crate::heap::{Heap, HeapPositions};
use crate::index::{ClassIndex, OptionalIndex, TableIndex as _};
use crate::tags::{EffectiveWeight, LAG_MAX_NS, VirtualTime, time_of_key};

/// One lane: its slots, its virtual time and its ready heads.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) slots_max: u32,
    /// Slots in use by running requests; above `slots_max` only after that was lowered.
    pub(super) slots_in_use: u32,
    /// Slots in use by requests that went by a reservation.
    pub(super) reservation_slots_in_use: u32,
    /// Slots that weights leave free for reservations; below `slots_max`.
    pub(super) reserved_slots: u32,
    /// The greatest lag of a class beyond a few requests of its own, in ns of cost.
    lag_max: u64,
    /// Virtual time of the lane, from which start tags are made.
    pub(super) v: VirtualTime,
    /// The class that was served last, and when; then the last other one.
    served: [(OptionalIndex<ClassIndex>, Time); 2],
    pub(super) ready: Ready,
    /// Classes with a reservation and a head that counts towards it, by R.
    pub(super) reserved: Heap,
    pub(super) reserved_positions: HeapPositions,
    /// Requests that are never delayed.
    pub(super) urgent: ClassQueue,
}

/// Classes with a ready head, by the size of that head.
#[derive(Debug)]
pub(super) struct Ready {
    heaps: [Heap; SIZES_MAX],
    /// Bit i: heap i is not empty.
    occupied: u64,
    pub(super) positions: HeapPositions,
}

/// The lanes, in the order of their indices.
pub(crate) const LANES: [Lane; 2] = [Lane::Cached, Lane::Device];
/// Index of the device lane.
pub(crate) const DEVICE: usize = Lane::Device as usize;

impl LaneState {
    pub(super) fn new(slots_max: u32) -> LaneState {
        LaneState {
            slots_max: slots_max.max(1),
            slots_in_use: 0,
            reservation_slots_in_use: 0,
            reserved_slots: 0,
            lag_max: LAG_MAX_NS,
            v: VirtualTime::ZERO,
            served: [(OptionalIndex::NONE, Time::ZERO); 2],
            ready: Ready::default(),
            reserved: Heap::default(),
            reserved_positions: HeapPositions::default(),
            urgent: ClassQueue::EMPTY,
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.slots_max.saturating_sub(self.slots_in_use)
    }

    /// The free slots that a request which goes by weight may take. One that needs more than the
    /// slots that are not reserved runs when no other such request does; otherwise it could never
    /// run.
    pub(super) fn free_for_weights(&self) -> u32 {
        let by_share = self.slots_by_weight();
        if by_share == 0 {
            return self.free();
        }
        let kept = self.reserved_slots.min(self.slots_max.saturating_sub(1));
        self.free().min((self.slots_max - kept).saturating_sub(by_share))
    }

    /// Slots in use by requests that went by weight.
    #[inline]
    pub(super) fn slots_by_weight(&self) -> u32 {
        self.slots_in_use.saturating_sub(self.reservation_slots_in_use)
    }

    /// Sets the cost of the smallest request. On a slow device with many slots the requests in
    /// flight alone can exceed the usual bound, though none of them is beyond a class's weight.
    pub(super) fn set_unit(&mut self, unit_cost: u64) {
        let in_flight = unit_cost.saturating_mul(u64::from(self.slots_max));
        self.lag_max = LAG_MAX_NS.max(in_flight.saturating_mul(2));
    }

    /// Puts a class where its head of that size and number belongs.
    #[inline(always)]
    pub(super) fn stand(
        &mut self,
        class: ClassIndex,
        standing: &mut ClassLane,
        head: Option<(u8, u64)>,
    ) {
        match head {
            None if standing.size == NO_SIZE => {}
            None => {
                self.ready.remove(standing.size, class);
                standing.size = NO_SIZE;
            }
            Some((size, number)) => {
                if standing.size == NO_SIZE {
                    standing.start = standing.finish.max(self.v);
                    standing.overtaken = 0;
                } else if standing.size != size {
                    self.ready.remove(standing.size, class);
                }
                standing.size = size;
                self.ready.put(size, standing.start.key(number), class);
            }
        }
    }

    /// The latest finish tag that a class of that weight may have after a request of that cost. The
    /// lag between equals is about one request of each, so four of its own are always within it.
    pub(super) fn lag_bound(&self, cost: u64, weight: EffectiveWeight) -> VirtualTime {
        self.v.after(self.lag_max.max(cost.saturating_mul(4)), weight)
    }

    /// Handles that a request of a class begins or ends.
    pub(super) fn note_served(&mut self, class: ClassIndex, now: Time) {
        let class = OptionalIndex::from(class);
        if self.served[0].0 != class {
            self.served[1] = self.served[0];
        }
        self.served[0] = (class, now);
    }

    /// When a request of any other class began or ended last.
    pub(super) fn others_served(&self, class: ClassIndex) -> Option<Time> {
        let other = usize::from(self.served[0].0 == class.into());
        let (of, at) = self.served[other];
        of.is_some().then_some(at)
    }

    /// The slots of a head of that size here.
    pub(super) fn slots(&self, size: u8) -> u32 {
        slots_of(size, self.slots_max)
    }

    /// The class with the earliest R and that R.
    pub(super) fn first_reserved(&self) -> Option<(Time, ClassIndex)> {
        self.reserved.first().map(|(key, class)| (time_of_key(key), ClassIndex::new(class)))
    }

    /// Makes room for `classes` classes.
    pub(super) fn grow_classes(&mut self, classes: usize) {
        self.ready.positions.grow(classes);
        self.reserved_positions.grow(classes);
    }
}

impl Ready {
    /// Puts a class into the heap of `size`; it must be in no other one.
    #[inline(always)]
    pub(super) fn put(&mut self, size: u8, key: u128, class: ClassIndex) {
        self.heaps[usize::from(size)].put(key, class.raw(), &mut self.positions);
        self.occupied |= 1 << size;
    }

    pub(super) fn remove(&mut self, size: u8, class: ClassIndex) {
        let heap = &mut self.heaps[usize::from(size)];
        heap.remove(class.raw(), &mut self.positions);
        if heap.is_empty() {
            self.occupied &= !(1 << size);
        }
    }

    /// The least key of all: its size and class.
    pub(super) fn first(&self) -> Option<(u8, ClassIndex)> {
        match self.occupied {
            0 => None,
            one if one.is_power_of_two() => {
                let size = one.trailing_zeros() as u8;
                let first = self.heaps[usize::from(size)].first();
                first.map(|(_, class)| (size, ClassIndex::new(class)))
            }
            many => self.least_of(many),
        }
    }

    /// The least key among the sizes up to `size`.
    pub(super) fn first_up_to(&self, size: u8) -> Option<(u8, ClassIndex)> {
        self.least_of(self.occupied & ((2 << size) - 1))
    }

    pub(super) fn clear(&mut self) {
        for heap in &mut self.heaps {
            heap.clear(&mut self.positions);
        }
        self.occupied = 0;
    }

    /// Every class in it, with its size and key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, u128, ClassIndex)> {
        let sizes = self.heaps.iter().enumerate();
        sizes.flat_map(|(size, heap)| {
            heap.iter().map(move |(key, class)| (size as u8, key, ClassIndex::new(class)))
        })
    }

    /// Panics unless the heaps are in order and the bits say which are empty.
    pub(super) fn check(&self) {
        for (size, heap) in self.heaps.iter().enumerate() {
            heap.check(&self.positions);
            assert_eq!(self.occupied >> size & 1 == 0, heap.is_empty(), "size {size} mislabelled");
        }
    }

    fn least_of(&self, mut sizes: u64) -> Option<(u8, ClassIndex)> {
        let mut best: Option<(u128, u8, u32)> = None;
        while sizes != 0 {
            let size = sizes.trailing_zeros() as u8;
            sizes &= sizes - 1;
            let (key, class) = self.heaps[usize::from(size)].first().expect("its bit is set");
            if best.is_none_or(|(least, _, _)| key < least) {
                best = Some((key, size, class));
            }
        }
        best.map(|(_, size, class)| (size, ClassIndex::new(class)))
    }
}

impl Default for Ready {
    fn default() -> Ready {
        Ready {
            heaps: std::array::from_fn(|_| Heap::default()),
            occupied: 0,
            positions: HeapPositions::default(),
        }
    }
}
