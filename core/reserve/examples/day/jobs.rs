//! The jobs of a day: when each comes, how wide it is, and how long it runs and is said to run.
//!
//! ```text
//!   width ─► runtime ─► estimate of its user ─► load on so many targets
//! ```
//!
//! Widths and runtimes are those of batch jobs in Lublin and Feitelson, "The workload on parallel
//! supercomputers" (JPDC 63, 2003), with the constants of their program for a machine of 128 nodes:
//! a width is 1, or 2 to a power of two uniform stages, mostly rounded; the logarithm of a runtime is
//! one of two gamma distributions, and wide jobs mostly have the longer one. A user's estimate is the
//! runtime divided by an accuracy that is uniform: so Mu'alem and Feitelson (TPDS 12, 2001) found it in
//! traces. Jobs that reach their estimate are ended there.
//!
//! Ours: runtimes are divided by 32, as phases of I/O are shorter than jobs, so a day has about the
//! jobs of a month. Gaps between jobs are exponential, without the cycle of a day: the load is to be
//! high all day. A job has 2 to 20 % of each of its targets, which are neighbours.

use model::{Nanos, Time};
use sluice_reserve::{Demand, Load, ResourceId};

pub(crate) const TARGETS: u64 = 128;
/// What each target gives per second.
pub(crate) const CAPACITY: u64 = 1_000;

/// A job, the same for each scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) submitted: Time,
    pub(crate) demand: Demand,
    pub(crate) runtime: Nanos,
    /// How long its user says that it runs, not less.
    pub(crate) estimate: Nanos,
    /// Whether it wants a promise in a calendar that gives one to half of all.
    pub(crate) wants_promise: bool,
}

impl Job {
    /// What it takes of all targets while it runs, in units of the capacity times seconds.
    pub(crate) fn work(&self) -> u64 {
        self.per_sec() * self.runtime.get() / 1_000_000_000
    }

    pub(crate) fn per_sec(&self) -> u64 {
        self.demand.loads().map(|(_, load)| load.read_per_sec()).sum()
    }
}

/// The jobs of some hours that offer a percentage of all targets.
pub(crate) fn day_of_jobs(seed: u64, hours: u64, percent: u64) -> Vec<Job> {
    let mut draws = Draws(seed);
    let span = hours * 3_600;
    let wanted = TARGETS * CAPACITY * span * percent / 100;
    let (mut jobs, mut work) = (Vec::new(), 0);
    while work < wanted {
        let job = draws.job();
        work += job.work();
        jobs.push(job);
    }
    // exponential gaps are even places, whatever their number
    let mut times: Vec<u64> = jobs.iter().map(|_| draws.below(span * 1_000)).collect();
    times.sort_unstable();
    for (job, millis) in jobs.iter_mut().zip(times) {
        job.submitted = Time::ZERO + Nanos::from_millis(millis);
    }
    jobs
}

/// Pseudo-random numbers (SplitMix64), the same in each run.
struct Draws(u64);

impl Draws {
    fn job(&mut self) -> Job {
        let width = self.width();
        let runtime = self.runtime_ms(width);
        let accuracy = 0.1 + 0.9 * self.unit();
        let percent = 2 + self.below(19);
        let first = self.below(TARGETS);
        let load = Load::per_sec(CAPACITY * percent / 100, 0).expect("in range");
        let target = |at| (ResourceId::new(((first + at) % TARGETS) as u32), load);
        let loads: Vec<_> = (0..width).map(target).collect();
        Job {
            submitted: Time::ZERO,
            demand: Demand::new(&loads).expect("at least one target"),
            runtime: Nanos::from_millis(runtime),
            estimate: Nanos::from_millis((runtime as f64 / accuracy) as u64),
            wants_promise: self.below(2) == 0,
        }
    }

    fn width(&mut self) -> u64 {
        const SERIAL: f64 = 0.2927;
        const POWER_OF_TWO: f64 = 0.6686;
        const LOW: f64 = 1.2;
        const MIDDLE: f64 = 5.0;
        const HIGH: f64 = 7.0;
        let kind = self.unit();
        if kind < SERIAL {
            return 1;
        }
        let (from, until) = if self.unit() < 0.875 { (LOW, MIDDLE) } else { (MIDDLE, HIGH) };
        let power = from + (until - from) * self.unit();
        let power = if kind < SERIAL + POWER_OF_TWO { power.round() } else { power };
        (power.exp2().round() as u64).clamp(1, TARGETS)
    }

    fn runtime_ms(&mut self, width: u64) -> u64 {
        let is_short = self.unit() < (0.6986 - 0.003 * width as f64).max(0.0);
        loop {
            let log = if is_short { self.gamma(6.57, 0.823) } else { self.gamma(639.1, 0.0156) };
            // not more than two days before they are divided, as in the model
            if log < 12.0 {
                return ((log.exp() * 1_000.0 / 32.0) as u64).max(1_000);
            }
        }
    }

    /// Marsaglia and Tsang, "A simple method for generating gamma variables" (TOMS 26, 2000).
    fn gamma(&mut self, shape: f64, scale: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let cube = (1.0 + c * normal).powi(3);
            let bound = 0.5 * normal * normal + d - d * cube + d * cube.max(f64::MIN_POSITIVE).ln();
            if cube > 0.0 && self.unit().max(f64::MIN_POSITIVE).ln() < bound {
                return d * cube * scale;
            }
        }
    }

    /// Box and Muller (1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().max(f64::MIN_POSITIVE).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Evenly from 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
