//! The heads that go by reservations: their order, what they are charged, and the clock that they are
//! due by.
//!
//! ```text
//!   head ─► reserved: by R, in both lanes ─► its turn ─► the clock loses what it lags
//!                                                  └─► R, slots, and the other lane's position
//! ```

use model::{Amount, Lane, TargetId, Time};

use super::{CATCH_UP_NS, ReservationCharge, ReservedStanding};
use crate::index::{ClassIndex, RequestIndex, TableIndex as _};
use crate::lanes::Lanes;
use crate::lanes::class::NO_SIZE;
use crate::lanes::lane::{DEVICE, LANES};
use crate::lanes::request::{QueuePlace, QueuedRequest};
use crate::tags::time_key;

impl Lanes {
    /// When a lane's earliest reservation falls due, if that lets a head go that could not go
    /// before.
    pub(crate) fn reservation_deadline(
        &self,
        target: TargetId,
        lane: usize,
        now: Time,
    ) -> Option<Time> {
        let target = &self.targets[target];
        let (state, clock) = (&target.states[lane], &target.reservation_clock);
        let (due, class) = state.first_reserved()?;
        let fits = self.slots_of_reservation(class, lane) <= state.free();
        (due > clock.at(now) && fits).then_some(clock.when(due))
    }

    /// When the share of a target's slots lets a head go by weight that waits for that.
    pub(crate) fn share_deadline(&self, target: TargetId, lane: usize, now: Time) -> Option<Time> {
        self.targets[target].metered_until(now).filter(|_| lane == DEVICE)
    }

    /// The shortfall of a target's reservations in the last second, in parts per million.
    pub(crate) fn reservation_shortfall_ppm(&self, target: TargetId, now: Time) -> u64 {
        let lanes = &self.targets[target];
        lanes.reservation_clock.cut_ppm(self.reservation_lag(target, now), now)
    }

    /// Lets time pass for the reservations.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) {
        if now >= self.window_ends {
            self.end_windows(now);
        }
    }

    /// Ends the windows of the reservations' clocks that are over.
    #[inline(never)]
    fn end_windows(&mut self, now: Time) {
        let clocks = self.targets.iter_mut().map(|target| &mut target.reservation_clock);
        let ends = clocks.map(|clock| clock.advance(now)).min();
        self.window_ends = ends.unwrap_or(Time::ZERO);
    }

    /// Slots for the head of a class that goes first by its reservation.
    #[inline(never)]
    pub(in crate::lanes) fn slots_of_reservation(&self, class: ClassIndex, lane: usize) -> u32 {
        let queue = self.reserved_queue(class, lane).expect("a reserved class has a head");
        let head = self.classes[class].lanes[lane].queues[queue].head();
        self.of_class(class).states[lane].slots(self.requests[head].size)
    }

    /// The queue whose head goes first by its class's reservation.
    pub(in crate::lanes) fn reserved_queue(&self, class: ClassIndex, lane: usize) -> Option<usize> {
        self.reserved_head(class, lane).map(|(_, queue)| queue)
    }

    fn reserved_head(&self, class: ClassIndex, lane: usize) -> Option<(u128, usize)> {
        let own = &self.classes[class];
        let (reservation, standing) = (own.reservation.as_ref()?, &own.lanes[lane]);
        let heads = own.reserving_queues(class, lane).filter_map(|queue| {
            let head = &self.requests[standing.queues[queue].head()];
            Some((time_key(reservation.due(head.amount)?, head.number), queue))
        });
        heads.min()
    }

    /// A class's position among a lane's reserved ones: by when it may go, and by arrival.
    #[inline]
    pub(in crate::lanes) fn reserve_key(&self, class: ClassIndex, lane: usize) -> Option<u128> {
        let owner = &self.classes[self.owner_of(class)];
        if owner.lanes[lane].size == NO_SIZE && !self.is_branch(class) {
            // Its first head is beyond its cap on slots: no head of the class may go.
            return None;
        }
        let (key, queue) = self.reserved_head(class, lane)?;
        let head = &self.requests[self.head(QueuePlace { class, lane, queue })];
        let state = &self.targets[owner.target].states[lane];
        let reservation = self.classes[class].reservation.as_ref()?;
        if lane == DEVICE && reservation.is_full() {
            return None;
        }
        owner.if_fitting(lane, state, head).map(|_| key)
    }

    /// Whether a class has a head in the device lane that waits for slots of its own reservation.
    fn waits_for_own(&self, class: ClassIndex) -> bool {
        let is_full = self.classes[class].reservation.is_some_and(|of| of.is_full());
        is_full && self.reserved_queue(class, DEVICE).is_some()
    }

    /// Updates the position of a class among the reserved ones of both lanes.
    pub(in crate::lanes) fn refresh_reserves(&mut self, class: ClassIndex, now: Time) {
        (0..LANES.len()).for_each(|lane| self.refresh_reserve(class, lane, now));
    }

    /// Updates the position of a class among a lane's reserved ones.
    pub(in crate::lanes) fn refresh_reserve(&mut self, class: ClassIndex, lane: usize, now: Time) {
        let (key, raw) = (self.reserve_key(class, lane), class.raw());
        let waits_for_own = key.is_none() && lane == DEVICE && self.waits_for_own(class);
        let stand = self.reserved_heads(class, lane);
        let own = &mut self.classes[class];
        if let Some(of) = own.reservation.as_mut().filter(|_| lane == DEVICE) {
            of.waited_for_own = waits_for_own || (of.waited_for_own && key.is_some());
        }
        let target = &mut self.targets[own.target];
        // A wait for slots of its own makes no head of the other lane late.
        let other = match target.states[1 - lane].reserved_positions.holds(raw) {
            true => own.lanes[1 - lane].reserved,
            false => ReservedStanding::NONE,
        };
        let standing = &mut own.lanes[lane].reserved;
        if key.is_none() && !waits_for_own {
            *standing = ReservedStanding::NONE;
        } else {
            standing.set(stand, other, target.reservation_clock.at(now));
        }
        let state = &mut target.states[lane];
        match key {
            Some(key) => state.reserved.put(key, raw, &mut state.reserved_positions),
            None if state.reserved_positions.holds(raw) => {
                state.reserved.remove(raw, &mut state.reserved_positions);
            }
            None => {}
        }
    }

    /// Whether a class has heads in a lane that go by the account of its reservation, and whether it has
    /// some that count towards the rate.
    fn reserved_heads(&self, class: ClassIndex, lane: usize) -> [bool; 2] {
        let own = &self.classes[class];
        let Some(reservation) = &own.reservation else { return [false; 2] };
        let mut stand = [false; 2];
        for queue in own.reserving_queues(class, lane) {
            let amount = self.requests[own.lanes[lane].queues[queue].head()].amount;
            if reservation.due(amount).is_some() {
                stand[usize::from(reservation.counts(amount))] = true;
            }
        }
        stand
    }

    /// Since when heads wait for their classes' reservations, by class and lane.
    pub(crate) fn reservation_waits(&self) -> Vec<(ClassIndex, usize, ReservedStanding)> {
        let states = self.targets.iter().flat_map(|target| target.states.iter().enumerate());
        let waits = states.flat_map(|(lane, state)| {
            let classes = state.reserved.iter().map(|(_, class)| ClassIndex::new(class));
            classes.map(move |class| (class, lane, self.classes[class].lanes[lane].reserved))
        });
        waits.collect()
    }

    /// Goes on with what [`Lanes::reservation_waits`] returned before all heads stood again.
    pub(crate) fn resume_reservation_waits(
        &mut self,
        waits: Vec<(ClassIndex, usize, ReservedStanding)>,
    ) {
        for (class, lane, before) in waits {
            self.classes[class].lanes[lane].reserved.resume(before);
        }
    }

    /// Charges the head of a queue to its class's reservation, which both lanes follow.
    pub(in crate::lanes) fn charge_reserve(&mut self, place: QueuePlace, now: Time) {
        let QueuePlace { class, lane, queue } = place;
        self.slow_clock(place, now);
        let index = self.classes[class].lanes[lane].queues[queue].head();
        let QueuedRequest { kind, amount, .. } = self.requests[index];
        let own = &mut self.classes[class];
        let target = &mut self.targets[own.target];
        let Some(reservation) = &mut own.reservation else { return };
        let mut device_ns = 0;
        if lane == DEVICE {
            device_ns = target.params.costs.device_time(self.requests[index].cost);
            reservation.take_slots(target.states[lane].slots(self.requests[index].size));
        }
        self.requests[index].set_reserved(reservation.rate().is_bytes());
        let as_bytes = match reservation.counts(amount) {
            true => 0,
            false => target.params.costs.device_bytes(kind, amount),
        };
        let clock = target.reservation_clock.at(now);
        let charge = ReservationCharge { amount, as_bytes, device_ns };
        if reservation.charge(charge, clock) || reservation.slots_most == u32::MAX {
            reservation.set_slots_most(target.slots_of_reservation(reservation));
        }
        self.refresh_reserve(class, 1 - lane, now);
    }

    /// Slows the reservations' clock down by what the head of a queue lags that is about to go.
    fn slow_clock(&mut self, place: QueuePlace, now: Time) {
        let QueuePlace { class, lane, queue } = place;
        let at = self.classes[class].target;
        if lane == DEVICE {
            let last = std::mem::replace(&mut self.targets[at].reserved_last, now);
            if now.since(last).get() > CATCH_UP_NS {
                // The device stood still, and the first one that goes may have arrived last.
                let lag_ns = self.lag_of_heads(at, now);
                self.targets[at].reservation_clock.lose(lag_ns, false);
            }
        }
        let own = &mut self.classes[class];
        let amount = self.requests[own.lanes[lane].queues[queue].head()].amount;
        let clock = &mut self.targets[at].reservation_clock;
        let standing = own.lanes[lane].reserved;
        if let Some(reservation) = &mut own.reservation
            && let Some(late) = reservation.late_since(amount, standing)
        {
            let for_own = lane == DEVICE && std::mem::take(&mut reservation.waited_for_own);
            clock.lose(clock.at(now).since(late).get(), for_own);
        }
        if clock.take_lost() {
            self.follow_clock(at, now);
        }
    }

    /// Lets the classes of a target follow its reservations' clock, which was set back. A head that stood
    /// before that stands since then.
    #[inline(never)]
    fn follow_clock(&mut self, at: TargetId, now: Time) {
        let clock = self.targets[at].reservation_clock.at(now);
        for class in (0..self.classes.span()).map(|raw| ClassIndex::new(raw as u32)) {
            let own = &mut self.classes[class];
            let Some(reservation) = &mut own.reservation else { continue };
            if own.target != at {
                continue;
            }
            for lane in &mut own.lanes {
                lane.reserved.follow(clock);
            }
            if reservation.follow(clock) {
                self.refresh_reserves(class, now);
            }
        }
    }

    /// Counts the head of a queue, which goes by weight, at its class's reservation.
    #[inline]
    pub(in crate::lanes) fn count_beside(&mut self, place: QueuePlace) {
        let own = &mut self.classes[place.class];
        let Some(reservation) = &mut own.reservation else { return };
        let head = own.lanes[place.lane].queues[place.queue].head();
        reservation.count_beside(Amount::default(), self.requests[head].amount);
    }

    /// Counts a running request that went by weight as what it was served.
    pub(in crate::lanes) fn correct_beside(&mut self, index: RequestIndex, served: Amount) {
        let QueuedRequest { class, amount, .. } = self.requests[index];
        if let Some(reservation) = &mut self.classes[class].reservation {
            reservation.count_beside(amount, served);
        }
    }

    /// Moves the charge of a running request at its class's reservation to the charge for `served`.
    /// A charge to a reservation that was replaced by one of another unit is not corrected.
    pub(in crate::lanes) fn correct_reserve(
        &mut self,
        index: RequestIndex,
        served: Amount,
        now: Time,
    ) {
        let QueuedRequest { class, kind, amount, lane, .. } = self.requests[index];
        let own = &mut self.classes[class];
        let target = &self.targets[own.target];
        let Some(reservation) = &mut own.reservation else { return };
        if reservation.rate().is_bytes() != self.requests[index].is_reserved_in_bytes() {
            return;
        }
        let costs = &target.params.costs;
        let charge_of = |amount: Amount| {
            if amount == Amount::default() {
                return ReservationCharge { amount, as_bytes: 0, device_ns: 0 };
            }
            let device_ns = match usize::from(lane) == DEVICE {
                true => costs.device_time(costs.charge(Lane::Device, kind, amount).get()),
                false => 0,
            };
            ReservationCharge { amount, as_bytes: costs.device_bytes(kind, amount), device_ns }
        };
        let clock = target.reservation_clock.at(now);
        reservation.correct(charge_of(amount), charge_of(served), clock);
        self.refresh_reserves(class, now);
    }

    /// How far the most overdue head lags that waits for its reservation, in ns. All reserved heads
    /// are compared: the next one may have arrived late with credit, while others behind it have
    /// waited for long.
    fn reservation_lag(&self, at: TargetId, now: Time) -> u64 {
        let clock = self.targets[at].reservation_clock.at(now);
        let all = (0..self.classes.span()).map(|raw| ClassIndex::new(raw as u32));
        let for_own = all.filter(|class| {
            let own = &self.classes[*class];
            own.target == at && own.reservation.is_some_and(|of| of.waited_for_own)
        });
        let for_own = for_own.map(|class| clock.since(self.late_since(class, DEVICE)).get());
        for_own.max().unwrap_or(0).max(self.lag_of_heads(at, now))
    }

    /// The same of the heads that did not wait for slots of their own reservation.
    fn lag_of_heads(&self, at: TargetId, now: Time) -> u64 {
        let target = &self.targets[at];
        let clock = target.reservation_clock.at(now);
        let lanes = target.states.iter().enumerate();
        let lags = lanes.flat_map(|(lane, state)| {
            let classes = state.reserved.iter().map(|(_, class)| ClassIndex::new(class));
            let for_others = classes.filter(move |class| {
                let reservation = &self.classes[*class].reservation;
                lane != DEVICE || !reservation.is_some_and(|of| of.waited_for_own)
            });
            for_others.map(move |class| clock.since(self.late_since(class, lane)).get())
        });
        lags.max().unwrap_or(0)
    }

    /// Since when the first of a class's heads is late that go by its reservation.
    fn late_since(&self, class: ClassIndex, lane: usize) -> Time {
        let own = &self.classes[class];
        let standing = &own.lanes[lane];
        let heads = own.reserving_queues(class, lane).filter_map(|queue| {
            let head = &self.requests[standing.queues[queue].head()];
            own.reservation.as_ref()?.late_since(head.amount, standing.reserved)
        });
        heads.min().unwrap_or(Time::MAX)
    }
}
