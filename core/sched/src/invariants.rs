//! Invariants of the dispatcher, in one place.
//!
//! Debug builds check them after a public call, often while little has happened and occasionally
//! later; property tests check them after each step.

use crate::admission::waiter_id;
use crate::class::{
    Class, ClassLane, ClassQueue, NO_SIZE, QUEUES, QueuedRequest, RESERVED, RequestStage,
};
use crate::dispatcher::Dispatcher;
use crate::lane::{DEVICE, LANES};
use crate::slab::NONE;
use crate::tags::time_key;

impl Dispatcher {
    /// Panics if the dispatcher contradicts itself. O(everything).
    pub fn check_invariants(&self) {
        self.check_slots();
        for (index, class) in self.classes.iter() {
            self.check_counts(index, class);
            for lane in 0..LANES.len() {
                self.check_lane(index, class, lane);
            }
        }
        self.check_heaps();
        self.check_meters();
        self.check_references();
    }

    fn requests_where(
        &self,
        suits: impl Fn(&QueuedRequest) -> bool,
    ) -> impl Iterator<Item = &QueuedRequest> {
        self.requests.iter().map(|(_, request)| request).filter(move |request| suits(request))
    }

    /// Slots in use are those of the running requests.
    fn check_slots(&self) {
        for (lane, state) in self.lanes.iter().enumerate() {
            let here =
                |r: &QueuedRequest| r.stage == RequestStage::Running && usize::from(r.lane) == lane;
            let held: u32 = self.requests_where(here).map(|r| r.slots).sum();
            assert_eq!(state.slots_in_use, held, "slots in use in lane {lane}");
            let promised = |r: &QueuedRequest| here(r) && r.has(RESERVED);
            let promised: u32 = self.requests_where(promised).map(|r| r.slots).sum();
            assert_eq!(
                state.reservation_slots_in_use, promised,
                "slots of reservations in lane {lane}"
            );
        }
        let waiting = self.requests_where(|r| r.stage != RequestStage::Running).count();
        assert_eq!(self.queued, waiting, "requests that wait");
    }

    fn check_counts(&self, index: u32, class: &Class) {
        let of = |stage| self.requests_where(move |r| r.class == index && r.stage == stage);
        let (queued, urgent, running) =
            (of(RequestStage::Queued), of(RequestStage::Urgent), of(RequestStage::Running));
        assert_eq!(class.queued as usize, queued.count() + urgent.count(), "queued in {index}");
        let mut slots = 0;
        let mut count = 0;
        for request in running {
            count += 1;
            slots += if usize::from(request.lane) == DEVICE { request.slots } else { 0 };
        }
        assert_eq!((class.running, class.slots_in_use), (count, slots), "running in {index}");
        assert!(class.in_use(), "class {index} is active and unused");
        assert_eq!(class.reserved, class.reservation.is_some(), "reservation of {index}");
    }

    /// Every head is ready or waits, and the class lane is where its ready heads put it.
    fn check_lane(&self, index: u32, class: &Class, lane: usize) {
        let standing = &class.lanes[lane];
        for queue in 0..QUEUES {
            self.check_queue(index, standing, lane, queue);
        }
        let state = &self.lanes[lane];
        let head = standing.first(&self.requests);
        let head = head.map(|queue| &self.requests[standing.queues[queue].head]);
        let fits = |r: &&QueuedRequest| lane != DEVICE || class.cap_allows(state.slots(r.size));
        let size = head.filter(fits).map_or(NO_SIZE, |head| head.size);
        assert_eq!(standing.size, size, "class {index} stands in the wrong heap of lane {lane}");
        assert_eq!(state.ready.positions.holds(index), size != NO_SIZE);
        let promised = self.reserve_key(index, lane).is_some();
        assert_eq!(state.reserved_positions.holds(index), promised, "reservation of {index}");
        assert!(size == NO_SIZE || standing.start >= state.v, "class {index} starts before v");
    }

    fn check_queue(&self, index: u32, standing: &ClassLane, lane: usize, queue: usize) {
        let fifo = &standing.queues[queue];
        let (ready, waits) = (standing.ready >> queue & 1 == 1, standing.waiting >> queue & 1 == 1);
        assert_eq!(ready ^ waits, !fifo.is_empty(), "head of {index}.{lane}.{queue} is nowhere");
        assert!(!(ready && waits));
        let places = &self.lanes[lane].waiting_positions;
        assert_eq!(places.holds(waiter_id(index, queue)), waits);
        let (mut prev, mut at, mut count) = (NONE, fifo.head, 0);
        while at != NONE {
            let request = &self.requests[at];
            assert_eq!((request.prev, request.class), (prev, index));
            assert_eq!((usize::from(request.lane), usize::from(request.queue)), (lane, queue));
            assert!(request.stage == RequestStage::Queued);
            (prev, at, count) = (at, request.next, count + 1);
        }
        assert_eq!((fifo.tail, fifo.len), (prev, count));
    }

    fn check_heaps(&self) {
        for (lane, state) in self.lanes.iter().enumerate() {
            state.ready.check();
            state.reserved.check(&state.reserved_positions);
            state.deadlines.check(&state.deadline_positions);
            for (size, key, class) in state.ready.iter() {
                let standing = &self.classes[class].lanes[lane];
                let queue = standing.first(&self.requests).expect("a ready head");
                let number = self.requests[standing.queues[queue].head].number;
                assert_eq!((standing.size, standing.start.key(number)), (size, key));
            }
            for (key, class) in state.reserved.iter() {
                let now = self.reserve_key(class, lane);
                assert_eq!(Some(key), now, "class {class} stands at an old R");
                let size = self.classes[class].lanes[lane].size;
                assert!(size != NO_SIZE, "class {class} is reserved, not ready");
            }
        }
    }

    /// Meters are at their due time in the lanes where they have a waiter to release.
    fn check_meters(&self) {
        let mut held = vec![[0u32; 2]; self.meters.span()];
        for (_, class) in self.classes.iter() {
            for (lane, standing) in class.lanes.iter().enumerate() {
                let ready = (0..QUEUES).filter(|queue| standing.ready >> queue & 1 == 1);
                ready.for_each(|queue| self.count_passed(&standing.queues[queue], lane, &mut held));
            }
        }
        for (index, meter) in self.meters.iter() {
            assert_eq!(
                meter.passed_heads(),
                held[index as usize],
                "heads that meter {index} let go"
            );
            for (lane, state) in self.lanes.iter().enumerate() {
                meter.waiting[lane].check(&state.waiting_positions);
                let wanted = !meter.waiting[lane].is_empty();
                assert_eq!(state.deadline_positions.holds(index), wanted, "deadline of {index}");
                if wanted {
                    let (key, at) = (
                        state.deadlines.key_of(index, &state.deadline_positions),
                        meter.release_at(lane),
                    );
                    assert_eq!(key, time_key(at, u64::from(index)));
                    assert!(at > self.now, "meter {index} could release and keeps waiters");
                }
            }
        }
    }

    fn count_passed(&self, fifo: &ClassQueue, lane: usize, held: &mut [[u32; 2]]) {
        if fifo.passed == 0 {
            return;
        }
        let route = &self.routes[self.requests[fifo.head].route];
        for (at, link) in route.links().iter().enumerate() {
            let meter = self.links[*link].meter as usize;
            held[meter][lane] += u32::from(fifo.passed >> at & 1);
        }
    }

    /// Reference counts equal the number of references.
    fn check_references(&self) {
        let mut classes = vec![0u32; self.classes.span()];
        let mut routes = vec![0u32; self.routes.span()];
        for (_, subject) in self.subjects.iter() {
            for way in subject.ways() {
                classes[way.class as usize] += 1;
                if way.route != NONE {
                    routes[way.route as usize] += 1;
                }
            }
        }
        for request in self.requests_where(|r| r.has(crate::class::OWN_ROUTE)) {
            routes[request.route as usize] += 1;
        }
        let mut links = vec![0u32; self.links.span()];
        for (index, route) in self.routes.iter() {
            assert_eq!(route.refs, routes[index as usize], "references on route {index}");
            route.links().iter().for_each(|link| links[*link as usize] += 1);
        }
        let mut meters = vec![0u32; self.meters.span()];
        for (index, link) in self.links.iter() {
            assert_eq!(link.refs, links[index as usize], "references on link {index}");
            meters[link.meter as usize] += 1;
        }
        for (index, class) in self.classes.iter() {
            assert_eq!(class.refs, classes[index as usize], "references on class {index}");
        }
        for (index, meter) in self.meters.iter() {
            assert_eq!(meter.refs, meters[index as usize], "references on meter {index}");
            assert_eq!(meter.refs == 0, meter.idle != 0, "meter {index} idle and used");
        }
        assert_eq!(self.names.idle_classes.iter().count(), self.dormant.iter().count());
        let at_rest = self.names.dormant.values().all(|index| self.dormant.lives(*index));
        assert!(at_rest && self.names.dormant.len() == self.dormant.iter().count());
    }
}
