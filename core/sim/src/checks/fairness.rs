//! Fairness: classes that both wait are served by weight.
//!
//! ```text
//!   | W_f / φ_f − W_g / φ_g |  ≤  c_f / φ_f + c_g / φ_g + D·u (1 / φ_f + 1 / φ_g)
//! ```
//!
//! W is the cost of what was dispatched of a class, c its largest request, u the smallest cost and
//! D the slots. The bound follows from the rule of the dispatcher. A class is dispatched if its
//! start tag is the least, or if it overtakes a head by at most D·u/φ. Then its tag grows by c/φ.
//! So the start tags of two waiting classes differ by at most c/φ + D·u/φ of the one that is ahead,
//! and W/φ grows as they do. (The bound of SFQ(D) has a factor D + 1, as it counts what is served.)
//!
//! A class may begin to wait with a tag that is ahead for other reasons: requests that are never
//! delayed, or another weight before a change of rules. The dispatcher bounds this by lag_max/φ.
//! So until both classes of a pair have been dispatched once, lag_max/φ of both is allowed; from
//! then on W is counted again from zero.
//!
//! Pairs are checked at each proxy, in the device lane, of classes that have a weight and nothing
//! else. The cached lane has no such bound: a try that misses the page cache gives back its charge,
//! though not below v. Neither is there one where remote service or a controller's shares count.

use model::Bytes;
use sched::{CostMode, TargetParams};

use super::classes::ClassOf;

/// The classes of one proxy.
#[derive(Debug)]
pub(super) struct Fairness {
    off: bool,
    classes: Vec<WeighedClass>,
}

#[derive(Clone, Debug, Default)]
struct WeighedClass {
    weight: u64,
    waiting: u64,
    /// Some of its requests have more than a weight.
    excluded: bool,
    /// Service divided by weight, in parts of a nanosecond; requests that are never delayed apart.
    service: u128,
    urgent: u128,
    /// The largest cost so far.
    largest: u64,
    /// By each other class with which it waits; of the pair, the later one has it.
    pairs: Vec<Option<WaitingPair>>,
}

/// Two classes that both wait, since W is counted: the one that has it, and the other.
#[derive(Clone, Copy, Debug)]
struct WaitingPair {
    service: [u128; 2],
    urgent: [u128; 2],
    dispatched: [bool; 2],
    /// Whether both have been dispatched since both wait.
    level: bool,
}

/// The most classes whose pairs are compared; further classes are not.
const CLASSES_MAX: usize = 128;
const FINE: u128 = 1 << 10;
/// The least lag_max of the dispatcher, in ns of cost.
const LAG_MAX: u64 = 250_000_000;

impl Fairness {
    pub(super) fn new(off: bool) -> Fairness {
        Fairness { off, classes: Vec::new() }
    }

    /// Begins again: under other rules, or with an empty scheduler.
    pub(super) fn restart(&mut self) {
        self.classes.clear();
    }

    /// Counts W again from zero of every pair, with what classes may begin with: what is dispatched
    /// now may have had another class or weight.
    pub(super) fn unlevel(&mut self) {
        for one in 0..self.classes.len() {
            for other in 0..self.classes[one].pairs.len() {
                let pair = WaitingPair::new(&self.classes[one], &self.classes[other], false);
                let known = &mut self.classes[one].pairs[other];
                *known = known.map(|_| pair);
            }
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.off
    }

    /// Checks nothing from here on.
    pub(super) fn turn_off(&mut self) {
        *self = Fairness::new(true);
    }

    fn class(&mut self, belongs: &ClassOf) -> Option<usize> {
        // What a row reserves for is by weight part of its class.
        let class = belongs.owner as usize;
        if self.off || class >= CLASSES_MAX {
            return None;
        }
        if class >= self.classes.len() {
            self.classes.resize(class + 1, WeighedClass::default());
        }
        if !belongs.by_weight && !self.classes[class].excluded {
            self.end_pairs(class);
            self.classes[class].excluded = true;
        }
        (!self.classes[class].excluded).then_some(class)
    }

    /// Counts a request that waits for the device.
    pub(super) fn arrived(&mut self, belongs: &ClassOf, cost: u64) {
        let Some(class) = self.class(belongs) else { return };
        let own = &mut self.classes[class];
        own.weight = belongs.weight;
        own.waiting += 1;
        own.largest = own.largest.max(cost);
        if own.waiting > 1 {
            return;
        }
        let pairs = (0..self.classes.len()).map(|other| {
            let (own, theirs) = (&self.classes[class], &self.classes[other]);
            let both = other != class && theirs.waiting > 0 && !theirs.excluded;
            both.then(|| WaitingPair::new(own, theirs, false))
        });
        self.classes[class].pairs = pairs.collect();
    }

    /// Counts a request that is never delayed.
    pub(super) fn urgent(&mut self, belongs: &ClassOf, cost: u64) {
        let Some(class) = self.class(belongs) else { return };
        self.classes[class].urgent += by_weight(cost, belongs.weight);
    }

    /// Counts a dispatched request of the device lane; returns the pair that is too far apart.
    pub(super) fn dispatched(
        &mut self,
        belongs: &ClassOf,
        cost: u64,
        target: &TargetParams,
    ) -> Option<String> {
        let class = self.class(belongs)?;
        let own = &mut self.classes[class];
        if own.waiting == 0 {
            return None;
        }
        own.service += by_weight(cost, own.weight);
        own.waiting -= 1;
        let ended = own.waiting == 0;
        let others = 0..self.classes.len();
        let wrong = others.filter(|other| *other != class).find_map(|other| {
            if self.classes[other].waiting == 0 {
                return None;
            }
            let one = [class, other].into_iter().find(|one| {
                let pairs = &self.classes[*one].pairs;
                pairs.get(class + other - *one).is_some_and(Option::is_some)
            })?;
            self.count_pair(one, class + other - one, class, target)
        });
        if ended {
            self.end_pairs(class);
        }
        wrong
    }

    /// Counts a dispatch of one of a pair's classes, and compares their service.
    fn count_pair(
        &mut self,
        one: usize,
        other: usize,
        dispatched: usize,
        target: &TargetParams,
    ) -> Option<String> {
        let (a, b) = (&self.classes[one], &self.classes[other]);
        let mut pair = a.pairs[other]?;
        pair.dispatched[usize::from(dispatched != one)] = true;
        let (slots, unit) = (u64::from(target.slots_max), unit_cost(target));
        let overtaking = slots.saturating_mul(unit);
        let lag_max = |own: &WeighedClass| {
            let lag = LAG_MAX.max(overtaking.saturating_mul(2)).max(own.largest.saturating_mul(4));
            if pair.level { 0 } else { by_weight(lag, own.weight) }
        };
        let bound = |own: &WeighedClass| {
            by_weight(own.largest, own.weight) + by_weight(overtaking, own.weight) + lag_max(own)
        };
        let urgent = a.urgent + b.urgent - pair.urgent[0] - pair.urgent[1];
        let (had, have) = (a.service - pair.service[0], b.service - pair.service[1]);
        let (apart, most) = (had.abs_diff(have), bound(a) + bound(b) + urgent);
        let wrong = (apart > most).then(|| {
            format!(
                "classes {one} and {other} of weights {} and {} are {} ns apart, more than {}",
                a.weight,
                b.weight,
                apart / FINE,
                most / FINE
            )
        });
        if !pair.level && pair.dispatched == [true; 2] {
            pair = WaitingPair::new(a, b, true);
        }
        self.classes[one].pairs[other] = Some(pair);
        wrong
    }

    fn end_pairs(&mut self, class: usize) {
        self.classes[class].pairs.clear();
        for other in &mut self.classes {
            if let Some(pair) = other.pairs.get_mut(class) {
                *pair = None;
            }
        }
    }
}

impl WaitingPair {
    fn new(one: &WeighedClass, other: &WeighedClass, level: bool) -> WaitingPair {
        WaitingPair {
            service: [one.service, other.service],
            urgent: [one.urgent, other.urgent],
            dispatched: [false; 2],
            level,
        }
    }
}

fn by_weight(cost: u64, weight: u64) -> u128 {
    u128::from(cost) * FINE / u128::from(weight.max(1))
}

/// The cost of the smallest request, as the dispatcher charges it.
fn unit_cost(target: &TargetParams) -> u64 {
    match target.costs.mode {
        CostMode::Calibrated => target.costs.device.read.at(Bytes::ZERO).get(),
        CostMode::Bytes => {
            target.costs.device.read.points().next().map_or(1, |(bytes, _)| bytes.get().max(1))
        }
    }
}
