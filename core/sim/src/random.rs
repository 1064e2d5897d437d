//! Random scenarios: unforeseen rules, jobs, faults and changes.
//!
//! ```text
//!   seed ─► targets ─► rules as text ─► jobs ─► faults, changes, rows ─► a scenario without claims
//! ```
//!
//! A random scenario has to pass the checks. Rules are written as text and parsed, so that they are
//! rules that an administrator could have.

use std::fmt::Write;
use std::sync::Arc;

use model::{Amount, Bytes, Identity, Nanos, Nid, OpKind, Time};
use rules::RuleSet;
use sched::{CostMode, Curve, LaneCosts};

use crate::faults::Faults;
use crate::network::NicSpec;
use crate::prng::Prng;
use crate::reservations::{random_reservations, random_size, reservable, with_size};
use crate::row_changes::random_rows;
use crate::scenario::{Scenario, job_id};
use crate::scheduler::Policy;
use crate::targets::{Discipline, TargetSpec};
use crate::workloads::{JobRoute, JobSpec, JobStep, LoadModel, RequestShape, Spacing, StepWork};

/// The name prefix of every random scenario.
pub(crate) const NAME: &str = "random";

/// A random scenario: the same one for the same seed.
pub fn random_scenario(seed: u64) -> Scenario {
    let mut prng = Prng::of(seed, 0x5ce0);
    // One in eight is long: a reservation's lag of 500 ms is 1 % of 50 s.
    let long = prng.below(8) == 0;
    let duration = match long {
        true => Nanos::from_secs(120),
        false => Nanos::from_millis(prng.between(15_000, 40_000)),
    };
    let mut targets: Vec<TargetSpec> =
        (0..prng.between(1, 2)).map(|n| target(&mut prng, n)).collect();
    let jobs_count = prng.between(1, if long { 2 } else { 6 });
    let reservations = random_reservations(seed, duration, jobs_count as u32, targets.len() as u32);
    let reserved_size = (!reservations.is_empty()).then(|| random_size(seed));
    // With a calendar nothing else reserves: the promises are to be those of the device.
    let reserves = reserved_size.is_none();
    let rules = rules(&mut prng, jobs_count, reserves);
    let mut jobs: Vec<JobSpec> =
        (0..jobs_count).map(|number| job(&mut prng, number, &targets)).collect();
    if let Some(size) = reserved_size {
        targets = targets.into_iter().map(reservable).collect();
        jobs = jobs.into_iter().map(|job| with_size(job, size)).collect();
    }
    let proxies = targets.iter().map(|target| target.count).sum();
    let changes: Vec<_> = (0..prng.below(3))
        .map(|_| {
            let at = Time::from_nanos(prng.below(duration.get()));
            (at, self::rules(&mut prng, jobs_count, reserves))
        })
        .collect();
    let mut rows = random_rows(seed, duration, &jobs, &targets);
    let is_reservation = |row: &Option<rules::Entitlement>| {
        row.as_ref().is_some_and(|row| row.reservation().is_some())
    };
    rows.retain(|change| reserves || !is_reservation(&change.row));
    let all_rules = changes.iter().map(|(_, rules)| rules).chain([&rules]);
    let decays = all_rules.into_iter().any(|rules| !rules.decays.is_empty());
    Scenario {
        name: NAME.into(),
        from: "chance".into(),
        description: "Rules, jobs and faults by chance.".into(),
        seed,
        duration,
        warmup: Nanos::from_secs(5),
        policies: vec![Policy::Dispatcher],
        targets,
        rules,
        delay: prng.below(3) == 0,
        jobs,
        faults: match prng.below(4) {
            0 => Vec::new(),
            _ => Faults::random(seed, proxies, duration),
        },
        changes,
        rows,
        reservations,
        reserved_size,
        expects: Vec::new(),
        // Decays without a controller are plain limits.
        controller: if !reserves {
            true
        } else if decays {
            prng.below(4) > 0
        } else {
            prng.below(4) == 0
        },
    }
}

fn target(prng: &mut Prng, number: u64) -> TargetSpec {
    let parallelism = 1u32 << prng.below(6);
    // So that a proxy serves from 50 to 3000 a second, and a seed does not take minutes.
    let slowest = if prng.below(2) == 0 { 1_500_000 } else { 20_000_000 };
    let smallest = u64::from(parallelism) * prng.between(300_000, slowest);
    let most = smallest * prng.between(2, 64);
    let points = [(Bytes::kib(4), Nanos::new(smallest)), (Bytes::mib(1), Nanos::new(most))];
    let curve = Curve::new(&points).expect("times that rise");
    let ops = [Nanos::new(prng.between(smallest / 2 + 1, smallest * 2)); OpKind::COUNT];
    let memory = [(Bytes::kib(4), Nanos::new(prng.between(300_000, 3_000_000)))];
    let memory = Curve::new(&memory).expect("one point");
    let slots = (u64::from(parallelism) * prng.between(1, 3)) as u32;
    TargetSpec {
        name: format!("t{number}"),
        one_device: false,
        count: prng.between(1, 3) as u32,
        slots,
        threads: prng.between(1, 16) as u32,
        parallelism,
        discipline: if prng.below(2) == 0 { Discipline::Parallel } else { Discipline::Shared },
        device: LaneCosts { read: curve.clone(), write: curve, ops },
        cached: LaneCosts { read: memory.clone(), write: memory, ops },
        mode: if prng.below(5) == 0 { CostMode::Bytes } else { CostMode::Calibrated },
        believed_write: (prng.below(6) == 0).then(|| {
            // From half of the time to twice the time.
            let percent = prng.between(50, 200);
            let wrong =
                |(size, time): (Bytes, Nanos)| (size, Nanos::new(time.get() * percent / 100));
            Curve::new(&points.map(wrong)).expect("times that rise")
        }),
        recalibrate: prng.below(6) == 0,
        latency_target: (prng.below(8) == 0).then(|| Nanos::new(smallest * prng.between(1, 8))),
        assumed_costs: None,
        jitter_percent: prng.below(3) * 30,
        seek: Nanos::new(prng.below(2) * smallest / 4),
        hit_percent: if prng.below(3) == 0 { prng.below(100) } else { 0 },
        dirty: (prng.below(5) == 0).then(|| Bytes::mib(prng.between(1, 64))),
        nic: nic(prng),
    }
}

fn nic(prng: &mut Prng) -> NicSpec {
    if prng.below(2) == 0 {
        return NicSpec::default();
    }
    let latency = Nanos::new(prng.below(2_000_000));
    let bandwidth = model::Rate::bytes_per_sec(prng.between(1 << 24, 1 << 33));
    NicSpec { latency, bandwidth: bandwidth.filter(|_| prng.below(2) == 0) }
}

fn rules(prng: &mut Prng, jobs: u64, reserves: bool) -> Arc<RuleSet> {
    let mut text = String::new();
    // A third of all scenarios have weights only, so that every pair of classes is compared.
    let only_weights = prng.below(3) == 0;
    let mut earlier = Vec::new();
    for job in 0..jobs {
        if prng.below(5) == 0 {
            continue;
        }
        let weight = prng.between(1, 16);
        line(&mut text, format!("[[rule]]\nname = \"r{job}\"\nmatch = \"jobid={{j{job}*}}\""));
        if only_weights {
            line(&mut text, format!("weight = {weight}"));
            continue;
        }
        let (limit, is_plain) = rate_keys(prng, &mut text, weight, reserves);
        if let (Some(limit), true, 0) = (&limit, is_plain, prng.below(6)) {
            depends_on(prng, &mut text, limit, &earlier);
        }
        earlier.push((job, limit));
        if prng.below(8) == 0 {
            line(&mut text, format!("slots = {}", prng.between(1, 8)));
        }
    }
    if !only_weights && prng.below(2) == 0 {
        let per = ["", "per = [\"jobid\"]\n", "per = [\"nid\"]\n"][prng.below(3) as usize];
        line(&mut text, format!("[[meter]]\nname = \"m\"\n{per}rate = \"{}\"", rate(prng)));
    }
    if !only_weights && prng.below(3) == 0 {
        decay(prng, &mut text);
    }
    Arc::new(RuleSet::parse(&text).expect("rules that are written here are right"))
}

/// A decay whose entitlement a busy job exceeds within seconds. Its name differs from that of earlier
/// and later rules, as their accounts do.
fn decay(prng: &mut Prng, text: &mut String) {
    let (resource, unit) = match prng.below(3) {
        0 => ("read", "kB/s"),
        1 => ("write", "kB/s"),
        _ => ("metadata", "ops/s"),
    };
    let entitlement = prng.between(1, if unit == "ops/s" { 20 } else { 2_000 });
    let max = entitlement * prng.between(2, 20);
    let per = ["", "per = [\"jobid\"]\n", "per = [\"uid\"]\n"][prng.below(3) as usize];
    let mode = match prng.below(3) {
        0 => format!("mode = \"decay\"\nhalf_life = \"{}s\"", prng.between(60, 120)),
        1 => "mode = \"period\"\nperiod = \"1min\"".into(),
        _ => "mode = \"period\"\nperiod = \"1min\"\nwindow = \"sliding\"\n\
              steps = { \"50%\" = \"50%\", \"100%\" = \"floor\" }"
            .into(),
    };
    let contention = if prng.below(4) == 0 { "\ncontention = true" } else { "" };
    line(
        text,
        format!(
            "[[decay]]\nname = \"d{}\"\n{per}resource = \"{resource}\"\n{mode}\n\
             entitlement = \"{entitlement}{unit}\"\nmax = \"{max}{unit}\"\nfloor = \"1{unit}\"\n\
             update_interval = \"{}s\"{contention}",
            prng.below(1 << 32),
            prng.between(1, 5),
        ),
    );
}

/// Makes a rule's limit depend on an earlier rule, given by its number and limit.
fn depends_on(prng: &mut Prng, text: &mut String, limit: &str, earlier: &[(u64, Option<String>)]) {
    if earlier.is_empty() {
        return;
    }
    let (parent, of) = &earlier[prng.below(earlier.len() as u64) as usize];
    let in_bytes = limit.ends_with("kB/s");
    let same_unit = of.as_ref().is_some_and(|of| of.ends_with("kB/s") == in_bytes);
    let (min, total) = match in_bytes {
        true => ("50kB/s", format!("{}kB/s", prng.between(100, 50_000))),
        false => ("2ops/s", format!("{}ops/s", prng.between(4, 400))),
    };
    let kind = match prng.below(3) {
        0 if same_unit => format!("follow = \"{}%\"", prng.between(1, 200)),
        1 => format!("when_idle = \"{}ms\"", prng.between(1, 2_000)),
        _ => format!("remainder_of = \"{total}\""),
    };
    line(text, format!("depends_on = {{ rule = \"r{parent}\", {kind}, min = \"{min}\" }}"));
}

/// Weight, limit and (if it `reserves`) reservation of a rule, also as a limit that is one, in one of
/// the valid combinations; returns the limit, and whether it is neither a reservation nor shared out.
fn rate_keys(
    prng: &mut Prng,
    text: &mut String,
    weight: u64,
    reserves: bool,
) -> (Option<String>, bool) {
    let mode = prng.below(9);
    let mut limit = None;
    if mode != 8 {
        line(text, format!("weight = {weight}"));
    }
    if matches!(mode, 0 | 1 | 7 | 8) {
        let rate = rate(prng);
        line(text, format!("limit = \"{rate}\""));
        limit = Some(rate);
    }
    match mode {
        1..=3 if reserves => {
            let rate = rate(prng);
            line(text, format!("reservation = \"{rate}\""));
            if rate.ends_with("kB/s") && prng.below(2) == 0 {
                line(text, format!("reservation_metadata = \"{}%\"", prng.between(0, 100)));
            }
        }
        7 if reserves => line(text, "realtime = true".into()),
        8 if reserves => line(text, "spare = true".into()),
        _ => {}
    }
    if reserves && matches!(mode, 1..=3 | 7 | 8) && prng.below(6) == 0 {
        line(text, "reserved_slots = 1".into());
    }
    if prng.below(8) == 0 {
        line(text, format!("min_local_service = \"{}%\"", prng.between(1, 99)));
    }
    (limit, matches!(mode, 0 | 1))
}

fn line(text: &mut String, line: String) {
    writeln!(text, "{line}").expect("a String takes every text");
}

fn rate(prng: &mut Prng) -> String {
    match prng.below(2) {
        0 => format!("{}ops/s", prng.between(2, 400)),
        _ => format!("{}kB/s", prng.between(50, 50_000)),
    }
}

fn job(prng: &mut Prng, number: u64, targets: &[TargetSpec]) -> JobSpec {
    let name = format!("j{number}");
    let copies = if prng.below(4) == 0 { prng.between(2, 20) as u32 } else { 1 };
    let first: std::net::IpAddr = [10, 0, number as u8, 1].into();
    let first_address = (prng.below(2) == 0).then_some(first);
    let target = prng.below(targets.len() as u64) as usize;
    JobSpec {
        identity: Identity {
            job: job_id(&name).expect("a short name"),
            uid: 1000 + number as u32,
            gid: 1000,
            projid: None,
            nid: Nid::local(),
        },
        name,
        path: None,
        first_address,
        nodes: prng.between(1, 6) as u32,
        copies,
        every: Nanos::from_millis(prng.below(2_000)),
        start: Time::from_nanos(prng.below(5_000_000_000)),
        lifetime: (copies > 1).then(|| Nanos::from_millis(prng.between(1_000, 8_000))),
        target,
        route: match prng.below(5) {
            0 => JobRoute::Nodes([prng.below(targets[target].count.into()) as u32].into()),
            1 => JobRoute::Nodes((0..targets[target].count).collect()),
            2 => JobRoute::Hash,
            3 => JobRoute::Stripe(Bytes::kib(64)),
            _ => JobRoute::Round,
        },
        steps: (0..prng.between(1, 3)).map(|number| step(prng, number == 0)).collect(),
        repeat: None,
        nic: nic(prng),
    }
}

fn step(prng: &mut Prng, works: bool) -> JobStep {
    if !works && prng.below(6) == 0 {
        return JobStep::Pause(Nanos::from_millis(prng.between(1, 3_000)));
    }
    let requests: Vec<RequestShape> =
        (0..prng.between(1, 4)).map(|_| request_shape(prng)).collect();
    let pace = match prng.below(3) {
        0 => LoadModel::Open {
            gap: Nanos::new(prng.between(2_000_000, 200_000_000)),
            spacing: if prng.below(2) == 0 { Spacing::Even } else { Spacing::Poisson },
            group: prng.between(1, 8) as u32,
        },
        _ => LoadModel::Closed {
            depth: prng.between(1, 32) as u32,
            think: Nanos::from_millis(prng.below(2) * prng.below(50)),
        },
    };
    let work = StepWork::endless(requests, pace);
    match prng.below(2) {
        0 => JobStep::Work(StepWork { count: Some(prng.between(1, 500)), ..work }),
        _ => JobStep::Work(StepWork {
            span: Some(Nanos::from_millis(prng.between(100, 20_000))),
            ..work
        }),
    }
}

fn request_shape(prng: &mut Prng) -> RequestShape {
    let bytes = 1 << prng.between(9, 21);
    match prng.below(6) {
        0 | 1 => RequestShape { kind: OpKind::Write, amount: Amount::new(bytes, 1) },
        2 => {
            let kinds =
                [OpKind::Create, OpKind::Getattr, OpKind::Unlink, OpKind::Clunk, OpKind::Open];
            RequestShape { kind: kinds[prng.below(5) as usize], amount: Amount::new(0, 1) }
        }
        _ => RequestShape { kind: OpKind::Read, amount: Amount::new(bytes, 1) },
    }
}
