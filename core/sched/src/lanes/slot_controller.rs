//! Meeting a latency target by D: fewer slots where requests take too long.
//!
//! ```text
//!   completions ─► service time less what their size alone costs ─► mean of a window
//!                                                                       │ target − mean
//!   slots of the device lane ◄── D := D · (1 + error / 4), 1 … calibrated D ◄┘
//! ```
//!
//! An integral controller as in IBIS's SFQ(D2). It is off unless the target names a latency, as a
//! smaller D costs throughput: calibration found the D that costs none. Each step is a fraction of
//! D, so it converges equally on a disk of 4 slots and on a flash device of 256.

use model::{Nanos, TargetId, Time};

use super::lane::DEVICE;
use super::{Lanes, TargetParams};
use crate::index::{ClassIndex, OptionalIndex, RequestIndex, TableIndex as _};
use crate::observation::{CompletedRequest, Observation};

/// How often D may change.
const WINDOW_NS: u64 = 100_000_000;
/// The least completions of a window; a window with fewer goes on until it has them.
const SAMPLES_MIN: u64 = 16;
/// D is kept in thousandths, so that small steps add up.
const MILLI: u64 = 1000;
/// The greatest step in a window: down by a quarter, up by an eighth. Waiting requests suffer at
/// once from too large a D, and from too small a D only later.
const DOWN: u64 = 4;
const UP: u64 = 8;

/// The controller of one target's D.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotController {
    target_ns: u64,
    /// D in thousandths of a slot.
    depth: u64,
    /// The calibrated D, which it never exceeds.
    most: u64,
    since: Time,
    samples: u64,
    sum_ns: u64,
    /// Whether a request waited for slots in this window: only then more slots would be used.
    full: bool,
}

impl SlotController {
    /// Creates the controller of a target, if the target names a latency.
    pub(super) fn of(target: &TargetParams) -> Option<SlotController> {
        target.latency.map(|latency| SlotController::new(latency, target.slots_max))
    }

    fn new(target: Nanos, slots_max: u32) -> SlotController {
        let most = u64::from(slots_max.max(1)) * MILLI;
        let since = Time::ZERO;
        SlotController {
            target_ns: target.get().max(1),
            depth: most,
            most,
            since,
            samples: 0,
            sum_ns: 0,
            full: false,
        }
    }

    /// Counts a request of the device lane that took `service` and alone costs `own` more than the
    /// smallest. `waited`: other requests wait for slots.
    fn completed(&mut self, service: u64, own: u64, waited: bool) {
        self.samples += 1;
        self.sum_ns = self.sum_ns.saturating_add(service.saturating_sub(own));
        self.full |= waited;
    }

    /// D for the next window, if this one is over and D changed.
    fn update(&mut self, now: Time) -> Option<u32> {
        if now.since(self.since).get() < WINDOW_NS || self.samples < SAMPLES_MIN {
            return None;
        }
        let before = self.slots();
        let mean = self.sum_ns / self.samples;
        if mean > self.target_ns {
            let over = (mean - self.target_ns).min(self.target_ns);
            self.depth -= self.part(over) / DOWN;
        } else if self.full {
            self.depth += self.part(self.target_ns - mean) / UP;
        }
        self.depth = self.depth.clamp(MILLI, self.most);
        (self.since, self.samples, self.sum_ns, self.full) = (now, 0, 0, false);
        Some(self.slots()).filter(|slots| *slots != before)
    }

    /// The change of D for an error, as a fraction of the target.
    fn part(&self, error: u64) -> u64 {
        (u128::from(self.depth) * u128::from(error) / u128::from(self.target_ns)) as u64
    }

    /// D of the target now.
    pub(super) fn slots(&self) -> u32 {
        (self.depth / MILLI) as u32
    }
}

impl Lanes {
    /// Passes a completed request of the device lane to the controller of D and to the calibration.
    /// Returns whether costs have changed: what waits is to be charged by them.
    #[inline]
    pub(crate) fn record_completion(
        &mut self,
        index: RequestIndex,
        target: TargetId,
        done: CompletedRequest,
        now: Time,
        seen: &mut Observation,
    ) -> bool {
        let CompletedRequest { kind, served, service_time: service, .. } = done;
        let lanes = &mut self.targets[target];
        let alone = lanes.single_request == index.into();
        if alone {
            lanes.single_request = OptionalIndex::NONE;
        }
        let mut are_slots_changed = false;
        if let Some(control) = &mut lanes.slot_controller {
            let beyond = lanes.params.costs.beyond_smallest(kind, served);
            let waits = lanes.states[DEVICE].ready.first().is_some();
            control.completed(service.get(), beyond, waits);
            are_slots_changed = control.update(now).is_some();
        }
        let mut are_costs_changed = false;
        if alone && lanes.params.recalibrate {
            let device = lanes.observed.sample(&lanes.params.costs.device, kind, served, service);
            are_costs_changed = device.is_some();
            if let Some(device) = device {
                lanes.params.costs.device = device;
            }
        }
        if are_slots_changed {
            self.apply_division(target, now, seen);
        }
        are_costs_changed
    }

    /// Changes the slots here; classes with a cap on slots may fit now, or no longer.
    pub(super) fn set_slots(
        &mut self,
        target: TargetId,
        slots: u32,
        now: Time,
        seen: &mut Observation,
    ) {
        self.targets[target].states[DEVICE].slots_max = slots;
        for class in self.capped_classes(target) {
            self.refresh(class, DEVICE, now, seen);
        }
    }

    /// Classes of a target with a cap on slots or a reservation, which has one, that have requests.
    fn capped_classes(&self, target: TargetId) -> Vec<ClassIndex> {
        let classes = (0..self.classes.span()).map(|raw| ClassIndex::new(raw as u32));
        let is_capped = |class: &ClassIndex| {
            let own = &self.classes[*class];
            let is_busy = own.queued > 0 || own.running > 0;
            own.target == target && (own.slots_cap != u32::MAX || own.reserved) && is_busy
        };
        classes.filter(is_capped).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that serves 10 requests a ms, so D in flight take D · 100 µs.
    fn settle(control: &mut SlotController, slots_max: u32, windows: u64) -> u32 {
        let mut slots = slots_max;
        for window in 1..=windows {
            for _ in 0..100 {
                control.completed(u64::from(slots) * 100_000, 0, true);
            }
            let now = Time::from_nanos(window * WINDOW_NS);
            slots = control.update(now).unwrap_or(slots);
        }
        slots
    }

    #[test]
    fn d_settles_where_the_latency_is_the_target() {
        let mut control = SlotController::new(Nanos::from_micros(2_000), 64);
        let slots = settle(&mut control, 64, 200);
        assert!((19..=20).contains(&slots), "{slots}");
    }

    #[test]
    fn d_is_never_above_the_calibrated_one_nor_below_one() {
        let mut generous = SlotController::new(Nanos::from_micros(1_000_000), 8);
        assert_eq!(settle(&mut generous, 8, 100), 8);
        let mut strict = SlotController::new(Nanos::new(1), 8);
        assert_eq!(settle(&mut strict, 8, 100), 1);
    }

    #[test]
    fn d_does_not_grow_while_nobody_waits_for_slots() {
        let mut control = SlotController::new(Nanos::from_micros(100), 64);
        settle(&mut control, 64, 100);
        for window in 101..200 {
            (0..100).for_each(|_| control.completed(1_000, 0, false));
            assert_eq!(control.update(Time::from_nanos(window * WINDOW_NS)), None);
        }
    }
}
