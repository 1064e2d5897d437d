//! What is done with reservations in a scenario, and random ones.
//!
//! ```text
//!   3 s: request  job, target, 30 % of its reads, from 5 s on, for 10 s, claimed within 2 s
//!   9 s: extend, finish, remove or test it, or a phase of it
//!  12 s: a target has 60 % of its capacity for 8 s
//! ```
//!
//! A target has capacities that its device can keep whatever else it serves: of the time of a
//! saturated device, [`BYTES_PERCENT`] for bytes and [`OPS_PERCENT`] for metadata.

use std::sync::Arc;

use model::{Amount, Bytes, Lane, Nanos, OpKind, Time};
use sched::{CostMode, slots_needed};

use crate::prng::Prng;
use crate::targets::TargetSpec;
use crate::workloads::{JobRoute, JobSpec, JobStep, StepWork};

/// Something that is done with reservations, by the number of the change that requested one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservationStep {
    Request(ReservationSpec),
    /// More bandwidth for a part of its time, in thousandths of what it has.
    Phase {
        of: u32,
        thousandths: u64,
        after: Nanos,
        duration: Nanos,
    },
    Extend {
        of: u32,
        more: Nanos,
    },
    /// Its owner ends it after it has used all of it so far.
    Finish {
        of: u32,
    },
    Remove {
        of: u32,
    },
    Test {
        of: u32,
    },
    /// A target has a part of its capacity for a span.
    Capacity {
        target: u32,
        percent: u64,
        span: Nanos,
    },
}

/// A request for a reservation: parts of the target's capacities in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationSpec {
    pub(crate) job: u32,
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) metadata: u64,
    /// How long after the request it may start.
    pub(crate) release: Nanos,
    pub(crate) duration: Nanos,
    pub(crate) claim_window: Nanos,
    /// How long after its earliest end it may end.
    pub(crate) deadline: Option<Nanos>,
    pub(crate) is_spontaneous: bool,
}

/// What a calendar knows of a target: its capacity in bytes and operations per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetCapacity {
    pub(crate) bytes: u64,
    pub(crate) metadata: u64,
}

impl TargetCapacity {
    /// What the device of a target can keep of requests of a size, as many at once as its slots let.
    pub(crate) fn of(spec: &TargetSpec, size: Bytes) -> TargetCapacity {
        let costs = spec.scheduled().costs;
        let unit = costs.charge(Lane::Device, OpKind::Read, Amount::new(0, 1));
        let per_sec = |kind, amount, units: u64, percent: u64| {
            let cost = costs.charge(Lane::Device, kind, amount);
            let at_once = (spec.slots / slots_needed(cost, unit, spec.slots)).max(1);
            let busy = u128::from(spec.servers_busy(at_once, cost, unit));
            let rate = u128::from(units) * 10_000_000 * u128::from(percent) * busy;
            let rate = rate / u128::from(cost.get().max(1)) / u128::from(spec.parallelism);
            u64::try_from(rate).unwrap_or(u64::MAX).max(1)
        };
        let one = Amount::new(size.get(), 1);
        let bytes =
            [OpKind::Read, OpKind::Write].map(|kind| per_sec(kind, one, size.get(), BYTES_PERCENT));
        let metadata = per_sec(OpKind::Getattr, Amount::new(0, 1), 1, OPS_PERCENT);
        TargetCapacity { bytes: bytes[0].min(bytes[1]), metadata }
    }
}

/// Makes the target one whose promises can be kept: its proxies are in front of one device, of which
/// the scheduler knows the costs.
pub(crate) fn reservable(target: TargetSpec) -> TargetSpec {
    TargetSpec {
        one_device: target.count > 1,
        mode: CostMode::Calibrated,
        believed_write: None,
        recalibrate: false,
        latency_target: None,
        assumed_costs: None,
        jitter_percent: 0,
        seek: Nanos::ZERO,
        hit_percent: 0,
        dirty: None,
        ..target
    }
}

/// Makes the requests of a job of one size, and none of them one that is never delayed: it would take
/// the device from all others.
pub(crate) fn with_size(job: JobSpec, size: Bytes) -> JobSpec {
    let step = |step: &JobStep| match step {
        JobStep::Work(work) => {
            let mut requests = work.requests.clone();
            for request in &mut requests {
                match request.kind {
                    OpKind::Read | OpKind::Write => request.amount = Amount::new(size.get(), 1),
                    kind if kind.never_delayed() => request.kind = OpKind::Getattr,
                    _ => {}
                }
            }
            JobStep::Work(StepWork { requests, ..work.clone() })
        }
        other => other.clone(),
    };
    let route = match &job.route {
        JobRoute::Stripe(_) => JobRoute::Round,
        other => other.clone(),
    };
    let steps: Arc<[JobStep]> = job.steps.iter().map(step).collect();
    JobSpec { route, steps, ..job }
}

/// The size of all requests in a scenario with a calendar.
pub(crate) fn random_size(seed: u64) -> Bytes {
    Bytes::kib([4, 16, 64, 256][Prng::of(seed, 0x512e).below(4) as usize])
}

/// Random steps, in order of time; none for two thirds of all seeds.
pub(crate) fn random_reservations(
    seed: u64,
    duration: Nanos,
    jobs: u32,
    targets: u32,
) -> Vec<(Time, ReservationStep)> {
    let mut prng = Prng::of(seed, 0xca1e);
    if prng.below(3) > 0 {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let requests = prng.between(1, REQUESTS_MAX);
    let mut at: Vec<u64> = (0..requests).map(|_| prng.below(duration.get() * 7 / 10)).collect();
    at.sort_unstable();
    let mut last = None;
    for (of, at) in (0..).zip(at) {
        let spec = request(&mut prng, jobs, last);
        last = Some(spec.job);
        steps.push((at, of, ReservationStep::Request(spec)));
        for _ in 0..prng.below(4) {
            let later = at + prng.below(20_000_000_000);
            steps.push((later, u32::MAX, change(&mut prng, of)));
        }
    }
    for _ in 0..prng.below(3) {
        let span = Nanos::from_millis(prng.between(500, 15_000));
        let (target, percent) = (prng.below(targets.into()) as u32, prng.between(0, 120));
        let step = ReservationStep::Capacity { target, percent, span };
        steps.push((prng.below(duration.get() * 8 / 10), u32::MAX, step));
    }
    steps.sort_by_key(|(at, of, _)| (*at, *of));
    let place =
        |of: u32| steps.iter().position(|(_, own, _)| *own == of).expect("requested") as u32;
    let renumbered =
        steps.iter().map(|(at, _, step)| (Time::from_nanos(*at), with_place(*step, place)));
    renumbered.collect()
}

/// The step with the place of the request instead of its number.
fn with_place(step: ReservationStep, place: impl Fn(u32) -> u32) -> ReservationStep {
    use ReservationStep::{Capacity, Extend, Finish, Phase, Remove, Request, Test};
    match step {
        Request(_) | Capacity { .. } => step,
        Phase { of, thousandths, after, duration } => {
            Phase { of: place(of), thousandths, after, duration }
        }
        Extend { of, more } => Extend { of: place(of), more },
        Finish { of } => Finish { of: place(of) },
        Remove { of } => Remove { of: place(of) },
        Test { of } => Test { of: place(of) },
    }
}

/// Half of them are of the job of the one before, so that it has several at a time.
fn request(prng: &mut Prng, jobs: u32, last: Option<u32>) -> ReservationSpec {
    let part = |prng: &mut Prng| if prng.below(2) == 0 { 0 } else { prng.between(5, 70) };
    let (read, write, metadata) = (part(prng), part(prng), part(prng));
    let (read, write) = if read + write + metadata == 0 { (30, 30) } else { (read, write) };
    let span = |prng: &mut Prng, low, high| Nanos::from_millis(prng.between(low, high));
    ReservationSpec {
        job: last.filter(|_| prng.below(2) == 0).unwrap_or(prng.below(jobs.into()) as u32),
        read,
        write,
        metadata,
        release: if prng.below(2) == 0 { Nanos::ZERO } else { span(prng, 1, 10_000) },
        duration: span(prng, 500, 20_000),
        claim_window: if prng.below(2) == 0 { Nanos::ZERO } else { span(prng, 100, 5_000) },
        deadline: (prng.below(4) == 0).then(|| span(prng, 0, 20_000)),
        is_spontaneous: prng.below(3) == 0,
    }
}

fn change(prng: &mut Prng, of: u32) -> ReservationStep {
    let span = |prng: &mut Prng, low, high| Nanos::from_millis(prng.between(low, high));
    match prng.below(6) {
        0 => ReservationStep::Extend { of, more: span(prng, 500, 10_000) },
        1 => ReservationStep::Finish { of },
        2 => ReservationStep::Remove { of },
        3 => ReservationStep::Phase {
            of,
            thousandths: prng.between(1_100, 3_000),
            after: span(prng, 0, 3_000),
            duration: span(prng, 500, 5_000),
        },
        _ => ReservationStep::Test { of },
    }
}

/// How much of the time of a device is capacity for bytes, and for metadata.
const BYTES_PERCENT: u64 = 60;
const OPS_PERCENT: u64 = 15;
/// The most requests of a scenario.
const REQUESTS_MAX: u64 = 12;
