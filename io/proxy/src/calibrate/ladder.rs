//! From throughput by number outstanding to costs and slots.
//!
//! ```text
//!   requests/s │        ●────●  saturated: c = 1 / this
//!              │     ●
//!              │  ●             a request of this size holds s = slots_held(c) of D slots, so
//!              │●               floor(D / s) of them run: what does that cost it?
//!              └─1──2──4──8──── outstanding
//! ```
//!
//! D is the smallest number of slots that costs no measured size more than
//! [`LOSS_MAX`] of its saturated rate, or more than the noise of its measurements:
//! otherwise a disturbance would pass for parallelism, and D, which holds the queue
//! in the device short, would grow with it. Nothing here measures.

use model::{Bytes, Nanos};
use sched::slots_needed;

/// Rates of one size in one direction, by number outstanding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ladder {
    pub(super) size: Bytes,
    /// Number outstanding, rising from 1, and requests per second, never falling.
    steps: Vec<(u32, f64)>,
    saturated: f64,
    /// How far rounds of one step lay apart, in parts of their median.
    pub(super) spread: f64,
}

/// Loss with a number of slots, for the request size that suffers most.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct SlotLoss {
    /// The number of slots.
    pub slots_max: u32,
    /// The part of its saturated rate that the size loses, in percent.
    pub loss_percent: f64,
    /// The size of the requests.
    pub size_bytes: u64,
    /// Whether its writes lose that, rather than its reads.
    pub write: bool,
}

/// The part of its saturated rate that D may cost a request size.
pub(super) const LOSS_MAX: f64 = 0.03;
/// Steps this close to the highest stand for the plateau: of many equal rates that are
/// measured with noise, the highest is too high.
const PLATEAU: f64 = 0.05;
/// The greatest D that is measured: above it requests queue in the device anyway.
const SLOTS_MAX: u32 = 4096;

impl Ladder {
    /// A ladder from samples of several rounds: the median of each step, and then the
    /// closest rates that never fall as more are outstanding (pooling neighbours that do).
    ///
    /// `samples` has at least one step, and each step at least one rate.
    pub(super) fn new(size: Bytes, samples: &[(u32, Vec<f64>)]) -> Ladder {
        let medians = samples.iter().map(|(outstanding, rates)| (*outstanding, median(rates)));
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (_, rate) in medians.clone() {
            pools.push((rate, 1));
            while let [.., (low, n), (high, m)] = pools[..] {
                if low <= high {
                    break;
                }
                pools.truncate(pools.len() - 2);
                pools.push(((low * n as f64 + high * m as f64) / (n + m) as f64, n + m));
            }
        }
        let rates = pools.into_iter().flat_map(|(rate, n)| std::iter::repeat_n(rate, n));
        let mut steps: Vec<_> = medians.map(|(outstanding, _)| outstanding).zip(rates).collect();
        let saturated = plateau(&steps);
        for (_, rate) in &mut steps {
            *rate = rate.min(saturated);
        }
        let spreads: Vec<_> = samples.iter().map(|(_, rates)| spread(rates)).collect();
        Ladder { size, steps, saturated, spread: median(&spreads) }
    }

    /// Requests per second when more outstanding gain nothing.
    pub(super) fn saturated(&self) -> f64 {
        self.saturated
    }

    /// Requests per second with one at a time.
    pub(super) fn single(&self) -> f64 {
        self.steps[0].1
    }

    /// Requests per second with that many outstanding, between the measured steps in a straight line.
    pub(super) fn rate_at(&self, outstanding: u32) -> f64 {
        let above = self.steps.iter().position(|(step, _)| *step >= outstanding);
        match above {
            None => self.saturated(),
            Some(0) => self.single(),
            Some(i) => {
                let ((low, slow), (high, fast)) = (self.steps[i - 1], self.steps[i]);
                let way = f64::from(outstanding - low) / f64::from(high - low);
                slow + (fast - slow) * way
            }
        }
    }

    /// The fewest outstanding that lose no more than [`Ladder::tolerance`].
    pub(super) fn enough(&self) -> u32 {
        let last = self.steps.last().expect("a ladder has a step").0;
        (1..=last).find(|n| self.loss(*n) <= self.tolerance()).unwrap_or(last)
    }

    /// Returns the loss that is acceptable: [`LOSS_MAX`], or the standard error of a median of
    /// three if that is greater. The error is about four tenths of their range for normal noise.
    fn tolerance(&self) -> f64 {
        LOSS_MAX.max(0.4 * self.spread)
    }

    /// The time that one request costs the saturated device.
    pub(super) fn cost(&self) -> Nanos {
        Nanos::new((1e9 / self.saturated()).ceil() as u64)
    }

    fn loss(&self, outstanding: u32) -> f64 {
        1.0 - self.rate_at(outstanding) / self.saturated()
    }
}

/// The points of a cost curve: a larger request never costs less than a smaller one.
pub(super) fn curve_points(ladders: &[Ladder]) -> Vec<(Bytes, Nanos)> {
    let mut most = Nanos::new(1);
    let point = |ladder: &Ladder| {
        most = most.max(ladder.cost());
        (ladder.size, most)
    };
    ladders.iter().map(point).collect()
}

/// D for these reads and writes, and what the powers of two around it would cost.
pub(super) fn slots_max(reads: &[Ladder], writes: &[Ladder]) -> (u32, Vec<SlotLoss>) {
    // The dispatcher's unit is the smallest read (core/sched, Costs).
    let unit = curve_points(reads)[0].1;
    let worst = |slots| worst_loss(&losses(slots, unit, reads, writes));
    let enough = |slots: &u32| {
        let all = losses(*slots, unit, reads, writes);
        all.iter().all(|(loss, ladder)| loss.loss_percent <= 100.0 * ladder.tolerance())
    };
    let best = (1..=SLOTS_MAX).find(enough).unwrap_or(SLOTS_MAX);
    let mut shown: Vec<u32> = (0..13).map(|power| 1 << power).filter(|n| *n <= 2 * best).collect();
    if let Err(place) = shown.binary_search(&best) {
        shown.insert(place, best);
    }
    (best, shown.into_iter().map(worst).collect())
}

/// Returns the loss of every size in each direction.
fn losses<'a>(
    slots: u32,
    unit: Nanos,
    reads: &'a [Ladder],
    writes: &'a [Ladder],
) -> Vec<(SlotLoss, &'a Ladder)> {
    let sides = [(false, reads), (true, writes)];
    let each = sides.into_iter().flat_map(|(write, ladders)| {
        ladders.iter().zip(curve_points(ladders)).map(move |(ladder, (size, cost))| {
            let outstanding = slots / slots_needed(cost, unit, slots);
            let loss_percent = 100.0 * ladder.loss(outstanding);
            (SlotLoss { slots_max: slots, loss_percent, size_bytes: size.get(), write }, ladder)
        })
    });
    each.collect()
}

fn worst_loss(losses: &[(SlotLoss, &Ladder)]) -> SlotLoss {
    let most = losses.iter().max_by(|a, b| a.0.loss_percent.total_cmp(&b.0.loss_percent));
    most.expect("something was measured").0
}

/// The mean of the steps that are as good as the highest.
fn plateau(steps: &[(u32, f64)]) -> f64 {
    let highest = steps.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let near = |rate: &f64| *rate >= highest * (1.0 - PLATEAU);
    let top: Vec<f64> = steps.iter().map(|(_, rate)| *rate).filter(near).collect();
    top.iter().sum::<f64>() / top.len() as f64
}

fn spread(rates: &[f64]) -> f64 {
    let most = rates.iter().copied().fold(f64::MIN, f64::max);
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    (most - least) / median(rates)
}

/// The middle one; the mean of both where there are two.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    (sorted[low] + sorted[high]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(size: u64, steps: &[(u32, f64)]) -> Ladder {
        let samples: Vec<_> = steps.iter().map(|(n, rate)| (*n, vec![*rate])).collect();
        Ladder::new(Bytes::new(size), &samples)
    }

    #[test]
    fn a_dip_is_pooled_with_its_neighbour_and_one_outlier_is_no_saturation() {
        let rates =
            [(1, vec![10.0, 11.0, 90.0]), (2, vec![22.0]), (4, vec![18.0]), (8, vec![30.0])];
        let ladder = Ladder::new(Bytes::kib(4), &rates);
        assert_eq!(ladder.steps, [(1, 11.0), (2, 20.0), (4, 20.0), (8, 30.0)]);
        assert_eq!((ladder.single(), ladder.saturated()), (11.0, 30.0));
        assert_eq!([1, 6, 8, 99].map(|n| ladder.rate_at(n)), [11.0, 25.0, 30.0, 30.0]);
        assert_eq!(ladder.spread, 0.0);
    }

    #[test]
    fn equal_rates_with_noise_saturate_at_their_mean() {
        let ladder = ladder(4096, &[(1, 50.0), (2, 98.0), (4, 102.0), (8, 100.0)]);
        assert_eq!((ladder.saturated(), ladder.enough()), (100.0, 2));
        assert_eq!(spread(&[90.0, 100.0, 120.0]), 0.3);
    }

    #[test]
    fn the_cost_is_the_time_of_one_request_at_saturation_and_never_falls_with_size() {
        let ladders =
            [ladder(4096, &[(1, 50_000.0), (4, 100_000.0)]), ladder(8192, &[(1, 110_000.0)])];
        let points = curve_points(&ladders);
        assert_eq!(points, [4096, 8192].map(|size| (Bytes::new(size), Nanos::from_micros(10))));
    }

    #[test]
    fn d_is_the_smallest_number_that_costs_no_size_more_than_three_percent() {
        // Small: 10 µs each, saturated with 8. Large: 40 µs each, so 4 slots, saturated with 3.
        let small = ladder(4096, &[(1, 20_000.0), (8, 100_000.0)]);
        let large = ladder(65536, &[(1, 20_000.0), (3, 25_000.0)]);
        let (best, losses) =
            slots_max(&[small.clone(), large.clone()], std::slice::from_ref(&small));
        // Two large ones (8 slots) reach 90 %, three need 12.
        assert_eq!(best, 12);
        let at = |slots| losses.iter().find(|loss| loss.slots_max == slots).unwrap();
        assert!((at(8).loss_percent - 10.0).abs() < 1e-9);
        assert_eq!((at(8).size_bytes, at(8).write), (65536, false));
        assert_eq!(at(12).loss_percent, 0.0);
        assert_eq!(large.enough(), 3);
    }

    #[test]
    fn a_gain_within_the_noise_asks_for_no_slots() {
        let small = ladder(4096, &[(1, 100_000.0)]);
        let noisy = [(1, vec![950.0, 800.0, 1000.0]), (2, vec![1000.0, 900.0, 1100.0])];
        // 5 % more with two, but rounds lie 20 % apart: a tolerance of 8 %.
        let large = Ladder::new(Bytes::mib(1), &noisy);
        assert_eq!(large.enough(), 1);
        assert_eq!(slots_max(&[small.clone(), large], &[small]).0, 1);
    }
}
