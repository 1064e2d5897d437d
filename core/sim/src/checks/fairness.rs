//! Fairness: classes that both wait all the time are served by weight.
//!
//! ```text
//!   | W_f / φ_f − W_g / φ_g |  ≤  (D + 1)(c_f / φ_f + c_g / φ_g) + what overtaking adds
//! ```
//!
//! Checked where rules have only weights, the page cache answers nothing and costs are as
//! configured. Reservations and meters rightly give a class more or less than its weight, and
//! learnt costs weigh differently. W counts from the moment from which both have waited.

use super::classes::ClassOf;

/// The classes of one proxy.
#[derive(Debug)]
pub(super) struct Fairness {
    off: bool,
    classes: Vec<Own>,
}

#[derive(Clone, Debug, Default)]
struct Own {
    weight: u64,
    waiting: u64,
    /// Service divided by weight, in parts of a nanosecond.
    service: u128,
    /// The largest cost so far.
    largest: u64,
    /// The service of each other class when both began to wait; none where one does not wait.
    since: Vec<Option<(u128, u128)>>,
}

/// The most classes whose pairs are compared.
const CLASSES_MAX: usize = 12;
const FINE: u128 = 1 << 10;

impl Fairness {
    pub(super) fn new(off: bool) -> Fairness {
        Fairness { off, classes: Vec::new() }
    }

    pub(super) fn forget(&mut self) {
        // The waiting classes are unknown from here on.
        *self = Fairness { off: true, classes: Vec::new() };
    }

    pub(super) fn arrived(&mut self, belongs: &ClassOf, cost: u64) {
        if self.off || !belongs.only_weights {
            self.off = true;
            return;
        }
        let class = belongs.class as usize;
        if class >= CLASSES_MAX {
            self.off = true;
            return;
        }
        if class >= self.classes.len() {
            self.classes.resize(class + 1, Own::default());
        }
        let own = &mut self.classes[class];
        own.weight = belongs.weight;
        own.waiting += 1;
        own.largest = own.largest.max(cost);
        if own.waiting == 1 {
            let services: Vec<_> =
                self.classes.iter().map(|own| (own.waiting > 0, own.service)).collect();
            let mine = services[class].1;
            self.classes[class].since =
                services.iter().map(|(waits, theirs)| waits.then_some((mine, *theirs))).collect();
        }
    }

    pub(super) fn dispatched(
        &mut self,
        belongs: &ClassOf,
        cost: u64,
        target: &sched::TargetParams,
    ) -> Option<String> {
        let class = belongs.class as usize;
        if self.off || class >= self.classes.len() {
            return None;
        }
        let own = &mut self.classes[class];
        if own.waiting == 0 || own.weight == 0 {
            return None;
        }
        own.service += u128::from(cost) * FINE / u128::from(own.weight);
        own.waiting -= 1;
        let ended = own.waiting == 0;
        let unit = target.costs.device.read.at(model::Bytes::ZERO).get();
        let wrong = (0..self.classes.len())
            .filter(|other| *other != class)
            .find_map(|other| self.check_gap(class, other, target.slots_max, unit));
        if ended {
            for other in 0..self.classes.len() {
                self.end_pair(class, other);
            }
        }
        wrong
    }

    /// The service of both classes of a pair when both began to wait.
    fn pair(&self, one: usize, other: usize) -> Option<(u128, u128)> {
        let (a, b) = (&self.classes[one], &self.classes[other]);
        let seen = a.since.get(other).copied().flatten();
        seen.or_else(|| {
            let (theirs, mine) = b.since.get(one).copied().flatten()?;
            Some((mine, theirs))
        })
    }

    fn end_pair(&mut self, one: usize, other: usize) {
        for (a, b) in [(one, other), (other, one)] {
            if let Some(since) = self.classes[a].since.get_mut(b) {
                *since = None;
            }
        }
    }

    fn check_gap(&self, one: usize, other: usize, slots: u32, unit: u64) -> Option<String> {
        let (a, b) = (&self.classes[one], &self.classes[other]);
        let (mine, theirs) = self.pair(one, other)?;
        if a.waiting == 0 || b.waiting == 0 {
            return None;
        }
        let (had, have) = (a.service - mine, b.service - theirs);
        // One request more of each than in the bound of SFQ(D): what had begun when both were found
        // waiting.
        let d = u128::from(slots) + 2;
        let by_weight = |cost: u64, own: &Own| u128::from(cost) * FINE / u128::from(own.weight);
        let pair = d * (by_weight(a.largest, a) + by_weight(b.largest, b));
        let overtaking = 2 * d * (by_weight(unit, a) + by_weight(unit, b));
        let apart = had.abs_diff(have);
        (apart > pair + overtaking).then(|| {
            format!(
                "classes {one} and {other} of weights {} and {} are {} ns apart, more than {}",
                a.weight,
                b.weight,
                apart / FINE,
                (pair + overtaking) / FINE
            )
        })
    }
}
