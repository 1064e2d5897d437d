//! Classes come and go, and their terms change.

use model::{Rate, Share, TargetId, Time};

use super::Lanes;
use super::class::{ClassTerms, DormantLanes, LaneClass, NO_SIZE};
use super::lane::LANES;
use super::reservation::{Reservation, ReservationTerms};
use crate::ids::ClassId;
use crate::index::{ClassIndex, DormantIndex};
use crate::observation::Observation;

impl Lanes {
    /// Makes the queues of a class; one that was dormant has the tags and the reservation that it
    /// had.
    pub(crate) fn add_class(
        &mut self,
        index: ClassIndex,
        id: ClassId,
        target: TargetId,
        dormant: Option<DormantIndex>,
        now: Time,
    ) {
        let mut class = LaneClass::new(id, index, target);
        if let Some(dormant) = dormant {
            let DormantLanes { finish, reservation } = self.dormant[dormant];
            for (standing, finish) in class.lanes.iter_mut().zip(finish) {
                standing.finish = finish;
            }
            class.reservation = reservation;
            let clock = self.targets[target].reservation_clock.at(now);
            class.reservation.iter_mut().for_each(|own| _ = own.follow(clock));
        }
        self.classes.put(index, class);
        let classes = self.classes.span();
        for lane in &mut self.targets[target].states {
            lane.grow_classes(classes);
        }
    }

    /// Keeps what is needed of a class that becomes dormant.
    pub(crate) fn rest_class(&mut self, index: ClassIndex, dormant: DormantIndex) {
        self.leave(index);
        let class = &self.classes[index];
        let finish = class.lanes.map(|standing| standing.finish);
        let kept = DormantLanes { finish, reservation: class.reservation };
        self.dormant.put(dormant, kept);
    }

    /// Whether a class has requests.
    #[inline]
    pub(crate) fn has_requests(&self, class: ClassIndex) -> bool {
        let own = &self.classes[class];
        own.queued > 0 || own.running > 0
    }

    /// Gives a class what the rules grant it now.
    pub(crate) fn set_terms(&mut self, class: ClassIndex, terms: &ClassTerms, now: Time) {
        let clock = self.of_class(class).reservation_clock.at(now);
        self.classes[class].set_terms(terms, clock);
        self.bound_lag(class);
        self.refresh_reserves(class, now);
    }

    /// Handles that the cap on slots of a class may be another: its heads and those of its
    /// branches stand again for the device and the cache, and nothing has overtaken them.
    pub(crate) fn replace_cap(&mut self, class: ClassIndex, now: Time, seen: &mut Observation) {
        for lane in 0..LANES.len() {
            self.classes[class].lanes[lane].overtaken = 0;
            let has_heads = |of: ClassIndex| {
                let standing = &self.classes[of].lanes[lane];
                standing.ready | standing.waiting != 0
            };
            if self.with_branches(class).any(has_heads) {
                self.refresh(class, lane, now, seen);
            }
        }
    }

    /// Changes the shares of the weight and of the reservation of a class, not of a branch.
    pub(crate) fn set_part(&mut self, class: ClassIndex, part: Share, proxies: u32, now: Time) {
        let own = &mut self.classes[class];
        own.set_weight(own.weight, part, proxies);
        self.bound_lag(class);
        let clock = self.of_class(class).reservation_clock.at(now);
        if let Some(reservation) = &mut self.classes[class].reservation {
            reservation.set(ReservationTerms { part, ..reservation.terms() }, clock);
        }
        self.refresh_reserves(class, now);
    }

    /// Changes what is reserved for a branch.
    pub(crate) fn set_reservation(
        &mut self,
        branch: ClassIndex,
        terms: Option<ReservationTerms>,
        now: Time,
    ) {
        let clock = self.of_class(branch).reservation_clock.at(now);
        self.classes[branch].set_reservation(terms, clock);
        self.refresh_reserves(branch, now);
    }

    /// What is reserved for a class or a branch.
    pub(crate) fn reserved_terms(&self, class: ClassIndex) -> Option<ReservationTerms> {
        self.classes[class].reservation.as_ref().map(Reservation::terms)
    }

    /// Handles that what is reserved for a new branch is so since a time.
    pub(crate) fn begin_reservation(&mut self, branch: ClassIndex, since: Time, now: Time) {
        let clock = self.of_class(branch).reservation_clock.at(now);
        if let Some(reservation) = &mut self.classes[branch].reservation {
            reservation.save_from(clock.before(now.since(since)));
        }
    }

    /// Changes the share of the reservation of a dormant class.
    pub(crate) fn set_part_of_dormant(
        &mut self,
        dormant: DormantIndex,
        target: TargetId,
        part: Share,
        now: Time,
    ) {
        let clock = self.targets[target].reservation_clock.at(now);
        if let Some(reservation) = &mut self.dormant[dormant].reservation {
            reservation.set(ReservationTerms { part, ..reservation.terms() }, clock);
        }
    }

    /// Changes the rate of the reservation of a class, if it has one.
    pub(crate) fn set_reserved_rate(&mut self, class: ClassIndex, rate: Rate, now: Time) {
        let clock = self.of_class(class).reservation_clock.at(now);
        if let Some(reservation) = &mut self.classes[class].reservation {
            reservation.set(ReservationTerms { rate, ..reservation.terms() }, clock);
        }
        self.refresh_reserves(class, now);
    }

    /// Bounds the tags of a class whose weight changed by what its weight allows.
    fn bound_lag(&mut self, class: ClassIndex) {
        for lane in 0..LANES.len() {
            let own = &mut self.classes[class];
            let state = &self.targets[own.target].states[lane];
            let standing = &mut own.lanes[lane];
            standing.finish = standing.finish.min(state.lag_bound(0, own.phi));
            let start = standing.start.min(standing.finish.max(state.v));
            if standing.size == NO_SIZE || start == standing.start {
                continue;
            }
            standing.start = start;
            self.stand(class, lane);
        }
    }
}
