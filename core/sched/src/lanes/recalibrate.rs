//! Calibration in the background: what requests cost, learnt from those that ran alone.
//!
//! ```text
//!   dispatched into an empty device lane ─► nothing else until it completes ─► a sample of its
//!   kind and size ─► 31 of them: their median ─► off by more than an eighth? ─► the known time
//!                                                                  moves half of the way
//! ```
//!
//! No request of its own disturbs the service. A device that never runs one request alone keeps its
//! calibrated costs. Only sizes that the curve has points for are learnt, and times stay rising
//! with sizes.

use std::collections::BTreeMap;

use model::{Amount, Direction, Nanos, OpKind};

use super::cost::LaneCosts;

/// Samples that a median is made of; odd.
const SAMPLES: usize = 31;
/// A median within this part of the known time changes nothing.
const NEAR: u64 = 8;

/// Samples since the last changes: times by kind and point of the curve.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    samples: BTreeMap<(usize, usize), Vec<u64>>,
}

impl Observed {
    /// Adds a request that ran alone and took `service`. Returns the new costs, if it changed them.
    pub(super) fn sample(
        &mut self,
        costs: &LaneCosts,
        kind: OpKind,
        amount: Amount,
        service: Nanos,
    ) -> Option<LaneCosts> {
        let (point, known, service) = match kind.direction() {
            Direction::Metadata => {
                (0, costs.ops[kind as usize], service.get() / amount.ops.get().max(1))
            }
            direction => {
                let curve = if direction == Direction::Read { &costs.read } else { &costs.write };
                let mut points = curve.points().enumerate();
                let (point, (_, time)) = points.find(|(_, (size, _))| *size == amount.bytes)?;
                (point, time, service.get())
            }
        };
        let samples = self.samples.entry((kind as usize, point)).or_default();
        samples.push(service.max(1));
        if samples.len() < SAMPLES {
            return None;
        }
        samples.sort_unstable();
        let median = samples[SAMPLES / 2];
        samples.clear();
        let known = known.get().max(1);
        if median.abs_diff(known) <= known / NEAR {
            return None;
        }
        let time = Nanos::new(known.midpoint(median));
        let mut new = costs.clone();
        match kind {
            OpKind::Read => new.read = costs.read.with_time(point, time),
            OpKind::Write => new.write = costs.write.with_time(point, time),
            _ => new.ops[kind as usize] = time,
        }
        (new != *costs).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Costs;

    fn learn(costs: &mut LaneCosts, kind: OpKind, bytes: u64, us: u64, times: usize) {
        let mut observed = Observed::default();
        for _ in 0..times {
            let amount = Amount::new(bytes, 1);
            if let Some(new) = observed.sample(costs, kind, amount, Nanos::from_micros(us)) {
                *costs = new;
            }
        }
    }

    #[test]
    fn a_device_that_became_slower_is_known_to_be_after_some_medians() {
        let mut costs = Costs::default().device;
        learn(&mut costs, OpKind::Read, 4096, 80, SAMPLES);
        assert_eq!(costs.read.points().next().unwrap().1, Nanos::from_micros(50));
        learn(&mut costs, OpKind::Read, 4096, 80, 9 * SAMPLES);
        let times: Vec<_> = costs.read.points().map(|(_, time)| time.get() / 1000).collect();
        // The larger ones take at least as long as the smallest.
        assert!((70..=80).contains(&times[0]) && times[1] == times[0], "{times:?}");
        learn(&mut costs, OpKind::Getattr, 0, 300, 9 * SAMPLES);
        assert!(costs.ops[OpKind::Getattr as usize] > Nanos::from_micros(260));
    }

    #[test]
    fn what_is_near_enough_and_sizes_without_a_point_change_nothing() {
        let before = Costs::default().device;
        let mut costs = before.clone();
        learn(&mut costs, OpKind::Read, 4096, 22, 100 * SAMPLES);
        learn(&mut costs, OpKind::Write, 5000, 900, 100 * SAMPLES);
        assert_eq!(costs, before);
    }
}
