//! Invariants of the lanes; those that hold between owners are the dispatcher's.

use super::Lanes;
use super::class::{ClassLane, LaneClass, NO_SIZE};
use super::lane::{DEVICE, LANES, LaneState};
use super::request::{QUEUES, QueuePlace, QueuedRequest, RequestStage};
use crate::index::{ClassIndex, OptionalIndex, TableIndex as _};

impl Lanes {
    /// Panics if the lanes contradict themselves. `classes` are all that are active. O(everything).
    pub(crate) fn check(&self, classes: impl Iterator<Item = ClassIndex>) {
        self.check_slots();
        for index in classes {
            let class = &self.classes[index];
            self.check_counts(index, class);
            for lane in 0..LANES.len() {
                self.check_lane(index, class, lane);
            }
        }
        self.check_heaps();
        self.check_branches();
    }

    fn requests_where(
        &self,
        suits: impl Fn(&QueuedRequest) -> bool,
    ) -> impl Iterator<Item = &QueuedRequest> {
        self.requests().filter(move |request| suits(request))
    }

    /// Slots in use are those of the running requests.
    fn check_slots(&self) {
        for (at, lane, state) in self.all_states() {
            let is_at = |r: &QueuedRequest| {
                self.classes[r.class].target.index() == at && usize::from(r.lane) == lane
            };
            let here = |r: &QueuedRequest| r.stage == RequestStage::Running && is_at(r);
            let held: u32 = self.requests_where(here).map(|r| r.slots).sum();
            assert_eq!(state.slots_in_use, held, "slots in use in lane {lane}");
            let promised = |r: &QueuedRequest| here(r) && r.is_reserved();
            let promised: u32 = self.requests_where(promised).map(|r| r.slots).sum();
            assert_eq!(
                state.reservation_slots_in_use, promised,
                "slots of reservations in lane {lane}"
            );
        }
        for (at, target) in self.targets.iter().enumerate() {
            let is_at = |r: &QueuedRequest| self.classes[r.class].target.index() == at;
            let waits = |r: &QueuedRequest| r.stage != RequestStage::Running && is_at(r);
            assert_eq!(target.queued, self.requests_where(waits).count(), "requests that wait");
        }
    }

    /// The lanes of all targets.
    fn all_states(&self) -> impl Iterator<Item = (usize, usize, &LaneState)> {
        let targets = self.targets.iter().enumerate();
        targets.flat_map(|(at, target)| {
            target.states.iter().enumerate().map(move |(lane, state)| (at, lane, state))
        })
    }

    fn check_counts(&self, index: ClassIndex, class: &LaneClass) {
        let of = |stage| self.requests_where(move |r| r.class == index && r.stage == stage);
        let (queued, urgent, running) =
            (of(RequestStage::Queued), of(RequestStage::Urgent), of(RequestStage::Running));
        assert_eq!(class.queued as usize, queued.count() + urgent.count(), "queued in {index:?}");
        assert_eq!(class.running as usize, running.count(), "running in {index:?}");
        let owned =
            |r: &QueuedRequest| self.owner_of(r.class) == index && usize::from(r.lane) == DEVICE;
        let held = self.requests_where(|r| r.stage == RequestStage::Running && owned(r));
        let slots: u32 = held.map(|request| request.slots).sum();
        assert_eq!(class.slots_in_use, slots, "slots of {index:?}");
        assert_eq!(class.reserved, class.reservation.is_some(), "reservation of {index:?}");
    }

    /// Every head is ready or waits, and the class lane is where its ready heads put it.
    fn check_lane(&self, index: ClassIndex, class: &LaneClass, lane: usize) {
        let standing = &class.lanes[lane];
        for queue in 0..QUEUES {
            self.check_queue(QueuePlace { class: index, lane, queue }, standing);
        }
        let state = &self.targets[class.target].states[lane];
        let size = match self.owner_of(index) == index {
            true => self.first_fitting(index, lane).map_or(NO_SIZE, |(size, _)| size),
            false => NO_SIZE,
        };
        assert_eq!(standing.size, size, "class {index:?} stands in the wrong heap of lane {lane}");
        assert_eq!(state.ready.positions.holds(index.raw()), size != NO_SIZE);
        let promised = self.reserve_key(index, lane).is_some();
        assert_eq!(
            state.reserved_positions.holds(index.raw()),
            promised,
            "reservation of {index:?}"
        );
        assert!(size == NO_SIZE || standing.start >= state.v, "class {index:?} starts before v");
    }

    fn check_queue(&self, place: QueuePlace, standing: &ClassLane) {
        let QueuePlace { class, lane, queue } = place;
        let fifo = &standing.queues[queue];
        let (ready, waits) = (standing.ready >> queue & 1 == 1, standing.waiting >> queue & 1 == 1);
        assert_eq!(ready ^ waits, !fifo.is_empty(), "head of {place:?} is nowhere");
        assert!(!(ready && waits));
        let (mut prev, mut at, mut count) = (OptionalIndex::NONE, fifo.head, 0);
        while let Some(index) = at.get() {
            let request = &self.requests[index];
            assert_eq!((request.prev, request.class), (prev, class));
            assert_eq!((usize::from(request.lane), usize::from(request.queue)), (lane, queue));
            assert!(request.stage == RequestStage::Queued);
            (prev, at, count) = (at, request.next, count + 1);
        }
        assert_eq!((fifo.tail, fifo.len), (prev, count));
    }

    fn check_heaps(&self) {
        for (at, lane, state) in self.all_states() {
            state.ready.check();
            state.reserved.check(&state.reserved_positions);
            for (size, key, class) in state.ready.iter() {
                assert_eq!(self.classes[class].target.index(), at, "target of {class:?}");
                let standing = &self.classes[class].lanes[lane];
                let first = self.first_of_all(class, lane).expect("a ready head");
                let number = self.requests[self.head(first)].number;
                assert_eq!((standing.size, standing.start.key(number)), (size, key));
            }
            for (key, class) in state.reserved.iter() {
                let class = ClassIndex::new(class);
                let now = self.reserve_key(class, lane);
                assert_eq!(Some(key), now, "class {class:?} stands at an old R");
                let size = self.classes[self.owner_of(class)].lanes[lane].size;
                assert!(
                    size != NO_SIZE || self.is_branch(class),
                    "class {class:?} is reserved, not ready"
                );
            }
        }
    }
}
