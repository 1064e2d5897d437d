//! From the tables of a scenario file to a scenario: names resolved, values checked.
//!
//! ```text
//!   RawScenario ─► targets, rules ─► jobs (target, route, steps) ─► faults, changes, claims
//! ```
//!
//! Every error has its position, the wrong value and what would be right.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use model::{Bytes, Identity, Nanos, Nid, OpKind, Rate, Time};
use rules::RuleSet;
use sched::{CostMode, Costs, Curve, LaneCosts};
use toml::Spanned;

use super::read::{
    RawCost, RawDiscipline, RawFault, RawJob, RawRoute, RawScenario, RawSpacing, RawStep,
    RawTarget, RawTrouble, RawWay,
};
use super::{Scenario, WrongValue, job_id, steps};
use crate::faults::{FaultKind, SimFault};
use crate::network::NicSpec;
use crate::scheduler::Policy;
use crate::targets::{Discipline, TargetSpec};
use crate::workloads::{JobRoute, JobSpec, JobStep, LoadModel, Spacing, StepWork};

/// A greater number is probably a typing error.
const MANY: u64 = 10_000_000;

pub(super) fn build(raw: RawScenario, source: &str, name: &str) -> Result<Scenario, WrongValue> {
    let duration = *raw.duration.get_ref();
    if duration <= raw.warmup {
        let problem =
            format!("duration {duration} leaves nothing after a warmup of {}", raw.warmup);
        return Err(WrongValue::new(raw.duration.span(), problem));
    }
    let targets: Vec<TargetSpec> = raw.target.into_iter().map(target).collect::<Result<_, _>>()?;
    only_once(&targets, |target| &target.name, source, "target")?;
    let jobs: Vec<JobSpec> = raw
        .job
        .into_iter()
        .map(|job| build_job(job, &targets, source))
        .collect::<Result<_, _>>()?;
    only_once(&jobs, |job| &job.name, source, "job")?;
    if targets.is_empty() || jobs.is_empty() {
        return Err(WrongValue::new(0..0, "needs at least one [[target]] and one [[job]]".into()));
    }
    let policies = policies(&raw.policies)?;
    let expects = raw.expect.into_iter().map(|expect| expect.build(&jobs, &policies, duration));
    let faults = raw.fault.into_iter().map(|one| fault(one, &targets));
    let changes = raw.change.iter().map(|one| Ok((Time::ZERO + one.at, rules(&one.rules)?)));
    Ok(Scenario {
        name: name.trim_end_matches(".toml").into(),
        from: raw.from,
        description: raw.description,
        seed: raw.seed,
        duration,
        warmup: raw.warmup,
        expects: expects.collect::<Result<_, _>>()?,
        faults: faults.collect::<Result<_, _>>()?,
        changes: changes.collect::<Result<_, _>>()?,
        rows: Vec::new(),
        reservations: Vec::new(),
        reserved_size: None,
        rules: raw.rules.as_ref().map_or(Ok(Arc::default()), rules)?,
        delay: raw.delay,
        controller: raw.controller,
        policies,
        targets,
        jobs,
    })
}

fn rules(text: &Spanned<String>) -> Result<Arc<RuleSet>, WrongValue> {
    let set = RuleSet::parse(text.get_ref());
    set.map(Arc::new).map_err(|error| WrongValue::in_rules(text.span(), &error))
}

fn policies(names: &[Spanned<String>]) -> Result<Vec<Policy>, WrongValue> {
    if names.is_empty() {
        return Ok(vec![Policy::Dispatcher]);
    }
    let policy = |name: &Spanned<String>| {
        name.get_ref().parse().map_err(|error| WrongValue::new(name.span(), format!("{error}")))
    };
    names.iter().map(policy).collect()
}

fn only_once<T>(
    all: &[T],
    name: impl Fn(&T) -> &String,
    source: &str,
    what: &str,
) -> Result<(), WrongValue> {
    for (index, one) in all.iter().enumerate() {
        if all[..index].iter().any(|other| name(other) == name(one)) {
            let written = format!("name = \"{}\"", name(one));
            let at = source.rfind(&written).map_or(0..0, |at| at..at + written.len());
            return Err(WrongValue::new(
                at,
                format!("{what} {:?} exists already; use another name", name(one)),
            ));
        }
    }
    Ok(())
}

/// A whole number within bounds.
fn number(value: &Spanned<u64>, low: u64, high: u64) -> Result<u32, WrongValue> {
    let found = *value.get_ref();
    if (low..=high).contains(&found) {
        return Ok(found as u32);
    }
    Err(WrongValue::new(value.span(), format!("{found} is not a number from {low} to {high}")))
}

fn optional(
    value: &Option<Spanned<u64>>,
    low: u64,
    high: u64,
    usual: u32,
) -> Result<u32, WrongValue> {
    value.as_ref().map_or(Ok(usual), |value| number(value, low, high))
}

// ---- targets ----

fn target(raw: Spanned<RawTarget>) -> Result<TargetSpec, WrongValue> {
    let raw = raw.into_inner();
    let slots = number(&raw.slots, 1, u32::MAX.into())?;
    let read = curve(&raw.read)?;
    let smallest = read.at(Bytes::ZERO);
    let operation = match &raw.operation {
        None => smallest,
        Some(time) if *time.get_ref() > Nanos::ZERO => *time.get_ref(),
        Some(time) => {
            return Err(WrongValue::new(time.span(), "0s is not a time above zero".into()));
        }
    };
    let mut ops = [operation; OpKind::COUNT];
    for (name, time) in &raw.operations {
        let kind: OpKind = name
            .get_ref()
            .parse()
            .map_err(|error| WrongValue::new(name.span(), format!("{error}")))?;
        ops[kind as usize] = *time;
    }
    let mut cached = Costs::default().cached;
    if let Some(points) = &raw.cached {
        cached.read = curve(points)?;
        cached.write = cached.read.clone();
    }
    Ok(TargetSpec {
        name: raw.name.into_inner(),
        count: raw.count.clamp(1, MANY) as u32,
        one_device: raw.one_device,
        slots,
        threads: optional(&raw.threads, 1, u32::MAX.into(), slots)?,
        parallelism: number(&raw.parallelism, 1, MANY)?,
        discipline: match raw.discipline {
            RawDiscipline::Parallel => Discipline::Parallel,
            RawDiscipline::Shared => Discipline::Shared,
        },
        device: LaneCosts { write: raw.write.as_ref().map_or(Ok(read.clone()), curve)?, read, ops },
        cached,
        mode: match raw.cost {
            RawCost::Time => CostMode::Calibrated,
            RawCost::Bytes => CostMode::Bytes,
        },
        believed_write: raw.believed_write.as_ref().map(curve).transpose()?,
        recalibrate: raw.recalibrate,
        latency_target: raw.latency_target.filter(|latency| *latency > Nanos::ZERO),
        assumed_costs: None,
        jitter_percent: optional(&raw.jitter_percent, 0, 99, 0)?.into(),
        seek: raw.seek,
        hit_percent: optional(&raw.hit_percent, 0, 100, 0)?.into(),
        dirty: raw.dirty.filter(|dirty| *dirty > Bytes::ZERO),
        nic: wire(raw.latency, &raw.bandwidth)?,
    })
}

fn curve(points: &Spanned<Vec<(Bytes, Nanos)>>) -> Result<Curve, WrongValue> {
    Curve::new(points.get_ref()).map_err(|error| WrongValue::new(points.span(), error.to_string()))
}

fn wire(latency: Nanos, bandwidth: &Option<Spanned<Rate>>) -> Result<NicSpec, WrongValue> {
    let rate = bandwidth.as_ref().map(|rate| *rate.get_ref());
    match bandwidth {
        Some(rate) if !rate.get_ref().is_bytes() => {
            let problem = format!("{} is not a rate in bytes such as 10GB/s", rate.get_ref());
            Err(WrongValue::new(rate.span(), problem))
        }
        _ => Ok(NicSpec { latency, bandwidth: rate }),
    }
}

// ---- jobs ----

fn build_job(
    raw: Spanned<RawJob>,
    targets: &[TargetSpec],
    source: &str,
) -> Result<JobSpec, WrongValue> {
    let raw = raw.into_inner();
    let name = raw.name.get_ref();
    if name.is_empty() || name.contains(" / ") {
        let problem = format!(
            "{name:?} is not a name; use one that is not empty and does not contain \" / \""
        );
        return Err(WrongValue::new(raw.name.span(), problem));
    }
    let job_name = raw.jobid.as_ref().unwrap_or(&raw.name);
    let Some(job) = job_id(job_name.get_ref()) else {
        let problem = format!("{:?} is too long for the name of a job", job_name.get_ref());
        return Err(WrongValue::new(job_name.span(), problem));
    };
    let first_address = raw.nid.as_ref().map(address).transpose()?;
    let target = target_of(raw.target.as_ref(), targets)?;
    let steps: Vec<JobStep> =
        raw.steps.get_ref().iter().map(|one| step(one, source)).collect::<Result<_, _>>()?;
    check_steps(&steps, raw.steps.span())?;
    Ok(JobSpec {
        identity: Identity {
            job,
            uid: raw.uid,
            gid: raw.gid,
            projid: raw.projid,
            nid: first_address.map_or_else(Nid::local, Nid::tcp),
        },
        path: raw.path.map(Spanned::into_inner),
        first_address,
        nodes: optional(&raw.nodes, 1, MANY, 1)?,
        copies: optional(&raw.copies, 1, MANY, 1)?,
        every: raw.every,
        start: Time::ZERO + raw.start,
        lifetime: raw.lifetime,
        target,
        route: route(raw.route.as_ref(), &targets[target])?,
        steps: steps.into(),
        repeat: raw.repeat.as_ref().map(|one| number(one, 1, MANY)).transpose()?.map(u64::from),
        nic: wire(raw.latency, &raw.bandwidth)?,
        name: raw.name.into_inner(),
    })
}

fn address(text: &Spanned<String>) -> Result<IpAddr, WrongValue> {
    let problem = || format!("{:?} is not an address such as \"10.0.0.1\"", text.get_ref());
    text.get_ref().parse().map_err(|_| WrongValue::new(text.span(), problem()))
}

fn target_of(name: Option<&Spanned<String>>, targets: &[TargetSpec]) -> Result<usize, WrongValue> {
    let Some(name) = name else { return Ok(0) };
    targets.iter().position(|target| target.name == *name.get_ref()).ok_or_else(|| {
        let known: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        let known = known.join(", ");
        WrongValue::new(
            name.span(),
            format!("target {:?} does not exist; use one of {known}", name.get_ref()),
        )
    })
}

fn route(raw: Option<&Spanned<RawRoute>>, target: &TargetSpec) -> Result<JobRoute, WrongValue> {
    let Some(raw) = raw else { return Ok(JobRoute::Round) };
    let fault = |problem: String| Err(WrongValue::new(raw.span(), problem));
    let last = u64::from(target.count) - 1;
    let nodes = |proxies: &[u64]| match proxies.iter().find(|number| **number > last) {
        Some(number) => {
            fault(format!("{:?} has no proxy {number}; the last is {last}", target.name))
        }
        None => Ok(JobRoute::Nodes(proxies.iter().map(|number| *number as u32).collect())),
    };
    match raw.get_ref() {
        RawRoute::One(number) => nodes(&[*number]),
        RawRoute::Node => nodes(&Vec::from_iter(0..=last)),
        RawRoute::NodesOf(proxies) if proxies.is_empty() => {
            fault("nodes_of needs at least one proxy".into())
        }
        RawRoute::NodesOf(proxies) => nodes(proxies),
        RawRoute::Round => Ok(JobRoute::Round),
        RawRoute::Hash => Ok(JobRoute::Hash),
        RawRoute::Stripe(Bytes::ZERO) => fault("a stripe must be larger than 0B".into()),
        RawRoute::Stripe(bytes) => Ok(JobRoute::Stripe(*bytes)),
    }
}

fn step(raw: &Spanned<RawStep>, source: &str) -> Result<JobStep, WrongValue> {
    let fault = |problem: &str| Err(WrongValue::new(raw.span(), problem.into()));
    let step = raw.get_ref();
    let text = match (&step.requests, step.pause) {
        (None, Some(pause)) if pause > Nanos::ZERO => {
            let alone = step.depth.is_none() && step.rate.is_none() && step.span.is_none();
            return match alone && step.requests_max.is_none() && step.total.is_none() {
                true => Ok(JobStep::Pause(pause)),
                false => fault("a step with pause cannot have other keys"),
            };
        }
        (Some(text), None) => text,
        _ => return fault("a step needs either do or a pause above zero"),
    };
    let requests = steps::requests(text.get_ref()).map_err(|(at, problem)| {
        // The text is between quotes; none of its words need an escape.
        let start = text.span().start + 1;
        let at = start + at.start..start + at.end;
        WrongValue::new(if at.end <= source.len() { at } else { text.span() }, problem)
    })?;
    let depth = optional(&step.depth, 1, 65_536, 1)?;
    let group = optional(&step.group, 1, 1024, 1)?;
    let pace = match step.rate {
        Some(_) if step.depth.is_some() || step.think.is_some() => {
            return fault("rate cannot be combined with depth or think");
        }
        None if step.spacing.is_some() || step.group.is_some() => {
            return fault("spacing and group need rate");
        }
        None => LoadModel::Closed { depth, think: step.think.unwrap_or(Nanos::ZERO) },
        Some(rate) => {
            let spacing = match step.spacing {
                Some(RawSpacing::Poisson) => Spacing::Poisson,
                _ => Spacing::Even,
            };
            if rate.is_bytes() && requests.iter().all(|ask| ask.amount.bytes == Bytes::ZERO) {
                return fault("requests without bytes need a rate in ops/s");
            }
            LoadModel::open(rate, &requests, spacing, group)
        }
    };
    if step.requests_max.is_some() && step.total.is_some() {
        return fault("a step cannot have both requests_max and total");
    }
    if step.total.is_some() && requests.iter().all(|ask| ask.amount.bytes == Bytes::ZERO) {
        return fault("requests without bytes never reach total; use requests_max");
    }
    let none = step.requests_max == Some(0) || step.total == Some(Bytes::ZERO);
    if none || step.span == Some(Nanos::ZERO) {
        return fault("a step without requests takes no time; use pause");
    }
    let (count, total, span) = (step.requests_max, step.total, step.span);
    Ok(JobStep::Work(StepWork { requests, pace, count, total, span }))
}

/// Only the last step may have no end.
fn check_steps(steps: &[JobStep], at: Range<usize>) -> Result<(), WrongValue> {
    let endless = |step: &JobStep| match step {
        JobStep::Work(work) => work.count.is_none() && work.total.is_none() && work.span.is_none(),
        JobStep::Pause(_) | JobStep::Trace(_) => false,
    };
    match steps {
        [] => Err(WrongValue::new(at, "a job needs at least one step".into())),
        [before @ .., _] if before.iter().any(endless) => {
            let problem = "only the last step may be without requests_max, total and span";
            Err(WrongValue::new(at, problem.into()))
        }
        _ => Ok(()),
    }
}

// ---- faults ----

fn fault(raw: Spanned<RawFault>, targets: &[TargetSpec]) -> Result<SimFault, WrongValue> {
    let at = raw.span();
    let raw = raw.into_inner();
    let target = target_of(raw.target.as_ref(), targets)?;
    let first: u32 = targets[..target].iter().map(|target| target.count).sum();
    let last = u64::from(targets[target].count) - 1;
    let proxy = raw.number.as_ref().map(|one| number(one, 0, last)).transpose()?;
    let concerned = if proxy.is_some() { &targets[target..=target] } else { targets };
    let one_device = concerned.iter().any(|target| target.one_device && target.count > 1);
    if *raw.what.get_ref() == RawTrouble::Crash && one_device {
        let problem = "a proxy cannot crash where one_device is true: others are at its device";
        return Err(WrongValue::new(raw.what.span(), problem.into()));
    }
    let percent = |low, high| match &raw.percent {
        Some(percent) => number(percent, low, high).map(u64::from),
        None => Err(WrongValue::new(raw.what.span(), "this fault needs percent".into())),
    };
    let by = || match raw.by {
        Some(by) => Ok(by),
        None => {
            Err(WrongValue::new(raw.what.span(), "this fault needs by, such as \"100ms\"".into()))
        }
    };
    let what = match raw.what.get_ref() {
        RawTrouble::Crash => FaultKind::Crash,
        // At 25 percent of its speed requests take four times as long.
        RawTrouble::Slow => FaultKind::Slow { thousandths: 100_000 / percent(1, 1000)? },
        RawTrouble::ClockAhead => FaultKind::Clock { ahead: true, by: by()? },
        RawTrouble::ClockBehind => FaultKind::Clock { ahead: false, by: by()? },
        RawTrouble::Leader => FaultKind::Leader,
        RawTrouble::Partition => {
            let way = raw.way.as_ref().map_or(RawWay::Both, |way| *way.get_ref());
            let (reports, assignments) = (way != RawWay::Assignments, way != RawWay::Reports);
            FaultKind::Partition { reports, assignments }
        }
        RawTrouble::Drop => FaultKind::Drop { ppm: percent(1, 50)? * 10_000 },
        RawTrouble::Delay => FaultKind::Delay { ppm: percent(1, 100)? * 10_000, by: by()? },
        RawTrouble::Duplicate => FaultKind::Duplicate { ppm: percent(1, 100)? * 10_000 },
        RawTrouble::Forget => FaultKind::Forget { ppm: percent(1, 100)? * 10_000 },
    };
    if let Some(way) = raw.way.filter(|_| !matches!(what, FaultKind::Partition { .. })) {
        return Err(WrongValue::new(way.span(), "only a partition has a way".into()));
    }
    let lasts = !matches!(what, FaultKind::Clock { .. });
    if lasts && raw.span == Nanos::ZERO {
        return Err(WrongValue::new(at, "this fault needs a span, such as \"5s\"".into()));
    }
    let proxy = proxy.map(|number| first + number);
    Ok(SimFault { what, at: Time::ZERO + raw.at, span: raw.span, proxy })
}
