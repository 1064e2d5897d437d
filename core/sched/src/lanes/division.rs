//! This proxy's part of a target's slots, which a controller divides while something is reserved.
//!
//! ```text
//!   classes with requests ─► claim: reserved part of the device's time, weights ─► controller
//!   slots of the device lane ◄─ D · share rounded up; D while something is reserved ◄─ share
//!   requests that go by weight: D · (share − reserved) slots, rounded down; beyond these a meter of
//!                               the device's time, in order
//! ```
//!
//! What is reserved here is worth nothing if other proxies fill the target meanwhile. A share is
//! rarely a whole number of slots, and may be less than one, or than a request needs. So a request
//! that goes by weight and is beyond the whole slots of the share waits until the requests before it
//! have used less of the device's time than the share of that. A meter keeps count: its rate is the
//! share.

use model::{Nanos, Rate, Share, SlotsClaim, TargetId, Time, WaitedService};

use super::lane::DEVICE;
use super::reservation::{AskedService, Reservation, ReservationNeed};
use super::{Lanes, TargetLanes};
use crate::index::ClassIndex;
use crate::observation::Observation;
use crate::pacer::{CATCH_UP_NS, Pacer};

/// The state of the division of one target's slots.
#[derive(Debug)]
pub(super) struct SlotDivision {
    /// The share of the slots here; the whole where they are not divided.
    granted: Share,
    claim: Option<SlotsClaim>,
    /// The part of the device's time that is reserved here.
    reserved: Share,
    /// What was charged in the device lane since usage was taken last.
    charged: u64,
    /// When the usage of classes was taken last.
    taken: Time,
    meter: Option<DeviceMeter>,
}

/// A meter of the device's time, for requests that need more slots than their share has.
#[derive(Debug)]
struct DeviceMeter {
    /// Its unit is a nanosecond of the device's time.
    pace: Pacer,
    /// The whole slots of what is not reserved.
    slots: u32,
}

impl SlotDivision {
    pub(super) fn new() -> SlotDivision {
        SlotDivision {
            granted: Share::WHOLE,
            claim: None,
            reserved: Share::ZERO,
            charged: 0,
            taken: Time::ZERO,
            meter: None,
        }
    }

    /// The slots here of `all` that the target has.
    pub(super) fn slots_of(&self, all: u32) -> u32 {
        // What goes by weight has its share and no more, and reservations what is their rate. With a
        // share of the slots they would lag where the target is slower than it was calibrated.
        if self.granted.is_whole() || self.reserved > Share::ZERO {
            return all.max(1);
        }
        (self.granted.of_rounded_up(all.into()) as u32).clamp(1, all.max(1))
    }

    /// Whether a request may go by weight with which that number of slots are in use by such.
    #[inline]
    pub(super) fn lets(&self, slots_in_use: u32, now: Time) -> bool {
        let is_due = |meter: &DeviceMeter| meter.pace.due() <= now;
        self.meter.as_ref().is_none_or(|meter| slots_in_use <= meter.slots || is_due(meter))
    }

    /// Counts a charge in the device lane. A request that went by weight pays the meter. Where it had
    /// its slots, the meter owes no more than it may save: others may use less than their shares.
    #[inline]
    pub(super) fn charge(&mut self, cost: u64, device_ns: u64, by_weight: Option<u32>, now: Time) {
        self.charged += cost;
        let (Some(meter), Some(slots_in_use)) = (&mut self.meter, by_weight) else { return };
        if slots_in_use > meter.slots || meter.pace.due() <= now + Nanos::new(CATCH_UP_NS) {
            meter.pace.charge(device_ns, None, now);
        }
    }

    /// Sets the meter by the share; what is owed stays, in device time.
    fn set_meter(&mut self, all: u32, now: Time) {
        let part = self.granted.less(self.reserved).max(self.granted.shared_by(LEAST_BY_WEIGHT));
        let slots = part.of(all.into()) as u32;
        match &mut self.meter {
            _ if self.granted.is_whole() => self.meter = None,
            Some(meter) => {
                meter.slots = slots;
                meter.pace.set_pace(DEVICE_TIME, part, now);
            }
            None => self.meter = Some(DeviceMeter { pace: Pacer::new(DEVICE_TIME, part), slots }),
        }
    }
}

impl TargetLanes {
    /// D of the target, for all its proxies.
    pub(super) fn depth(&self) -> u32 {
        let controlled = self.slot_controller.as_ref().map(|control| control.slots());
        controlled.unwrap_or(self.params.slots_max.max(1))
    }

    /// The most slots that a reservation may have in use at once. Where the backend serves one request of
    /// it after the other, more slots would not help it, and nothing else would go: half of the
    /// whole slots here that it does not need are left to others.
    pub(super) fn slots_of_reservation(&self, reservation: &Reservation) -> u32 {
        let part = self.division.granted.less(reservation.device_part(&self.params.costs));
        let others = part.of(self.depth().into()) as u32;
        self.states[DEVICE].slots_max.saturating_sub(others.div_ceil(2)).max(1)
    }

    /// When the meter lets the next head go by weight, if there is one.
    pub(super) fn metered_until(&self, now: Time) -> Option<Time> {
        let meter = self.division.meter.as_ref()?;
        self.states[DEVICE].ready.first()?;
        Some(meter.pace.due()).filter(|due| *due > now)
    }
}

impl Lanes {
    /// Sets the share of a target's slots that is granted here.
    pub(crate) fn set_slots_part(
        &mut self,
        target: TargetId,
        part: Share,
        now: Time,
        seen: &mut Observation,
    ) {
        let division = &mut self.targets[target].division;
        if std::mem::replace(&mut division.granted, part) != part {
            self.apply_division(target, now, seen);
        }
    }

    /// Sets what the classes of a target claim of the slots, where any has requests; what was used and
    /// whether requests wait is added here. What is reserved falls by a quarter a call at most, so that
    /// a short pause gives nothing away.
    pub(crate) fn set_slots_claim(
        &mut self,
        target: TargetId,
        claim: Option<SlotsClaim>,
        span: Nanos,
        now: Time,
        seen: &mut Observation,
    ) {
        let lanes = &mut self.targets[target];
        let waiting = lanes.states[DEVICE].ready.first().is_some();
        let division = &mut lanes.division;
        let used = lanes.params.costs.device_time(std::mem::take(&mut division.charged));
        let used = Share::ratio(used, span.get().max(1));
        let kept = division.reserved.billionths() / 4 * 3;
        let kept = Share::from_billionths(kept).filter(|kept| *kept > NEGLIGIBLE);
        let reserved = claim.map_or(Share::ZERO, |claim| claim.reserved);
        let reserved = reserved.max(kept.unwrap_or(Share::ZERO));
        division.claim = claim.map(|claim| SlotsClaim { reserved, used, waiting, ..claim });
        if std::mem::replace(&mut division.reserved, reserved) != reserved {
            self.apply_division(target, now, seen);
        }
    }

    /// What a target's classes claimed of the slots when their usage was taken last.
    pub(crate) fn slots_claim(&self, target: TargetId) -> Option<SlotsClaim> {
        self.targets[target].division.claim
    }

    /// The time since the usage of a target's classes was taken last; now it is.
    pub(crate) fn begin_taking_usage(&mut self, target: TargetId, now: Time) -> Nanos {
        let taken = &mut self.targets[target].division.taken;
        now.since(std::mem::replace(taken, now))
    }

    /// Takes what went by the reservation of a class or a branch since the last call, `span` ago, and what
    /// it needs of the device's time by what its requests cost lately: all that is reserved while
    /// requests that count for the rate wait or it lags, else half as much again as went by it. What a
    /// job does not ask for is not kept from others.
    pub(crate) fn take_reservation_need(
        &mut self,
        class: ClassIndex,
        span: Nanos,
        now: Time,
    ) -> ReservationNeed {
        // Limits delay nothing that a row reserves.
        let is_branch = self.is_branch(class);
        // A class with a cap on its slots may wait for that.
        let is_capped = self.classes[self.owner_of(class)].slots_cap != u32::MAX;
        let own = &mut self.classes[class];
        let target = &self.targets[own.target];
        let Some(reservation) = &mut own.reservation else { return ReservationNeed::default() };
        let is_throttled = !is_branch && own.lanes.iter().any(|standing| standing.waiting != 0);
        let asks = (own.queued > 0 || own.running > 0) && !is_throttled && !is_capped;
        let heads = own.lanes.iter().flat_map(|standing| &standing.queues);
        let mut heads = heads.filter_map(|queue| queue.head.get());
        let waits_for_rate = heads.any(|head| reservation.counts(self.requests[head].amount));
        let asked = AskedService { asks, waits_for_rate };
        let clock = target.reservation_clock.at(now);
        let need = reservation.take_need(&target.params.costs, asked, span, clock, now);
        reservation.set_slots_most(target.slots_of_reservation(reservation));
        self.refresh_reserve(class, DEVICE, now);
        need
    }

    /// Takes what the reservation of a class or a branch was served while its requests waited.
    pub(crate) fn take_waited(&mut self, class: ClassIndex) -> Option<WaitedService> {
        let waited = self.classes[class].reservation.as_mut()?.take_waited();
        Some(waited).filter(|waited| waited.owed > 0)
    }

    /// Sets slots and meter by the share, what is reserved and D, after one of them changed.
    pub(super) fn apply_division(&mut self, target: TargetId, now: Time, seen: &mut Observation) {
        let lanes = &mut self.targets[target];
        let all = lanes.depth();
        lanes.division.set_meter(all, now);
        let slots = lanes.division.slots_of(all);
        if slots != lanes.states[DEVICE].slots_max {
            self.set_slots(target, slots, now, seen);
        }
    }
}

/// The rate of the meter: a second of the device's time a second.
const DEVICE_TIME: Rate = match Rate::bytes_per_sec(1_000_000_000) {
    Some(rate) => rate,
    None => panic!("it is above nothing"),
};
/// What goes by weight has at least this part of a share: one in 64.
const LEAST_BY_WEIGHT: u32 = 64;
/// Less than this part is not reserved any more.
const NEGLIGIBLE: Share = Share::ratio(1, 1000);
