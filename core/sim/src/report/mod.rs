//! The results of a run: sums while it runs, and the figures at its end.
//!
//! ```text
//!   replies, service ─► RunStats: integers, one histogram a job ─► RunResult: rates, shares, latencies
//!                                                                   │ expectations
//!                                                                   └─► ScenarioVerdict
//! ```
//!
//! This is the only place with floating point. All figures are of the measured span, from the end
//! of the warm-up to the end of the load. The exception is `classes`, which schedulers sum from the
//! start.

mod expect;
mod histogram;
mod job_outcome;

use std::collections::BTreeMap;
use std::fmt;

use model::{Amount, Lane, Nanos, OpKind, Time};
use rules::RuleSet;
use serde::Serialize;

use crate::scenario::Scenario;
use crate::targets::TargetSpec;
use crate::world::World;

pub(crate) use expect::{Expect, RawExpect};
pub use expect::{ExpectKind, ScenarioVerdict, judge};
use histogram::SimHistogram;
pub use job_outcome::{JobOutcome, RuleTake};

/// One scenario under one scheduler and seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunResult {
    /// The name of the scenario.
    pub scenario: String,
    /// The name of the scheduler.
    pub policy: String,
    /// The seed of the run.
    pub seed: u64,
    /// The measured span in nanoseconds.
    pub measured_ns: u64,
    /// Every `[[job]]`, in the scenario's order.
    pub jobs: Vec<JobResult>,
    /// Service of each rule's classes since the start, where the scheduler sums it.
    pub classes: Vec<RuleResult>,
    /// The greatest shortfall of reservations in a measured second, in parts per million.
    pub reservation_shortfall_ppm: u64,
    /// How often a decay began to throttle a key.
    pub throttlings: u64,
    /// What there was of reservations of a calendar.
    pub promises: PromiseStats,
    /// The number of arrivals, dispatches and completions.
    pub request_events: u64,
    /// Violations that the checks found; there should be none.
    pub violations: Vec<InvariantViolation>,
}

/// How much there was to check of the reservations of a calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromiseStats {
    /// How often one became ACTIVE.
    pub active: u64,
    /// How many have ended.
    pub ended: u64,
    /// How often one was scaled, as its target had lost capacity.
    pub scaled: u64,
    /// How often one was found ACTIVE, each 100 ms, beside another one of its job.
    pub overlapping: u64,
    /// For how many seconds it was measured what rows got, in sum over those that do not add up.
    pub measured_secs: u64,
}

/// One `[[job]]`, all its copies and nodes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobResult {
    /// The name of the job.
    pub job: String,
    /// The number of answered requests.
    pub requests: u64,
    /// The payload of these requests.
    pub bytes: u64,
    /// The backend operations of these requests.
    pub ops: u64,
    /// The requests per second.
    pub requests_per_sec: f64,
    /// The payload per second.
    pub bytes_per_sec: f64,
    /// Its part of the service of all jobs, from 0 to 1.
    pub share: f64,
    /// The time from a client's request to its reply.
    pub latency_ns: LatencyResult,
    /// The time from arrival at the proxy to dispatch, on average.
    pub queued_ns_mean: u64,
    /// When the last of its nodes had finished its steps; none if one has not.
    pub finished_ns: Option<u64>,
    /// Requests of open loops that were rejected, as too many were in flight.
    pub rejected: u64,
    /// Messages that were sent again.
    pub resent: u64,
    /// Requests and bytes of each second from the start.
    pub series: Vec<(u64, u64)>,
    /// The rules that took its requests; of replays only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<JobRule>,
    /// The part of the waiting time in which a limit or a meter delayed its requests or one before
    /// them, in parts per million. It is sampled at random times, of replays only, and none if no
    /// waiting was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_ppm: Option<u64>,
}

/// The requests of a job that one rule took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobRule {
    /// The name of the rule; `default` where none matched.
    pub rule: String,
    /// The number of answered requests.
    pub requests: u64,
    /// Requests that waited for their dispatch for a millisecond or more.
    pub delayed: u64,
    /// The total time from arrival at the proxy to dispatch.
    pub queue_ns: u64,
}

/// Latencies in nanoseconds; median and p99 are exact to one part in 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyResult {
    /// The mean of all latencies.
    pub mean: u64,
    /// The median of all latencies.
    pub median: u64,
    /// The 99th percentile of the latency.
    pub p99: u64,
    /// The greatest of all latencies.
    pub max: u64,
}

/// All classes of one rule, over all proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleResult {
    /// The name of the rule.
    pub rule: String,
    /// The number of completed requests.
    pub requests: u64,
    /// Payload read and written.
    pub bytes: u64,
    /// The number of backend operations.
    pub ops: u64,
    /// The total time from arrival to dispatch.
    pub queue_ns: u64,
    /// The cost that was charged.
    pub cost_ns: u64,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InvariantViolation {
    /// When it was found.
    pub at: Time,
    /// What is wrong, as a sentence.
    pub what: String,
    /// The scenario of the run.
    pub scenario: String,
    /// The scheduler of the run.
    pub policy: String,
    /// The seed of the run.
    pub seed: u64,
}

impl InvariantViolation {
    /// The one command that reproduces it.
    pub fn command(&self) -> String {
        let InvariantViolation { scenario, policy, seed, .. } = self;
        match scenario.strip_prefix(crate::random::NAME) {
            Some(_) => format!("sluice sim --seeds 1 --seed {seed} --policy {policy}"),
            None => format!("sluice sim scenarios/{scenario}.toml --policy {policy} --seed {seed}"),
        }
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = Nanos::new(self.at.as_nanos());
        write!(f, "{} at {at}: {}; reproduce with: {}", self.policy, self.what, self.command())
    }
}

impl RunResult {
    /// The results of a job.
    pub fn job(&self, name: &str) -> Option<&JobResult> {
        self.jobs.iter().find(|job| job.job == name)
    }

    pub(crate) fn of(world: &World) -> RunResult {
        let (from, to) = world.measured;
        let measured = world.now.min(to).since(from);
        let all: u128 = world.tally.jobs.iter().map(|job| job.cost).sum();
        RunResult {
            scenario: world.scenario.name.clone(),
            policy: world.policy.name().into(),
            seed: world.seed,
            measured_ns: measured.get(),
            jobs: world
                .tally
                .jobs
                .iter()
                .map(|job| JobResult {
                    rules: job.by_rule(&world.rules),
                    ..job.report(measured, all)
                })
                .collect(),
            classes: by_rule(world),
            reservation_shortfall_ppm: world.tally.cut_ppm,
            throttlings: world.tally.throttlings,
            promises: world.promises(),
            request_events: world.request_events,
            violations: world.violations.clone(),
        }
    }
}

fn by_rule(world: &World) -> Vec<RuleResult> {
    let mut rules: BTreeMap<String, RuleResult> = BTreeMap::new();
    for (rule, usage) in world.usage() {
        let sum = rules.entry(rule.clone()).or_insert(RuleResult { rule, ..Default::default() });
        sum.requests += usage.requests;
        sum.bytes += (usage.read + usage.written).get();
        sum.ops += usage.ops.get();
        sum.queue_ns += usage.queue_time.get();
        sum.cost_ns += usage.cost.get();
    }
    rules.into_values().collect()
}

// ---- sums while it runs ----

/// Counters while the world runs.
#[derive(Debug)]
pub(crate) struct RunStats {
    jobs: Vec<RunSums>,
    /// The index of the counters of each job: recorded clients of one job share an index.
    indices: Vec<usize>,
    cut_ppm: u64,
    pub(crate) throttlings: u64,
    /// The costs that each target's scheduler uses.
    targets: Vec<sched::TargetParams>,
}

#[derive(Debug, Default)]
struct RunSums {
    name: String,
    requests: u64,
    bytes: u64,
    ops: u64,
    cost: u128,
    queued_ns: u128,
    latency: SimHistogram,
    /// Nodes whose steps are not done.
    left: u64,
    finished: Time,
    rejected: u64,
    resent: u64,
    /// The counts of this second.
    second: (u64, u64),
    series: Vec<(u64, u64)>,
    /// By the rule's index; none where none matched.
    rules: BTreeMap<Option<usize>, JobRule>,
    /// Sampled waiting requests, and the number of these that a meter delayed.
    sampled: (u64, u64),
}

impl RunStats {
    pub(crate) fn new(scenario: &Scenario) -> RunStats {
        let (mut jobs, mut places) = (Vec::<RunSums>::new(), Vec::new());
        for spec in &scenario.jobs {
            let known = jobs.iter().position(|sums| sums.name == spec.name);
            let place = known.unwrap_or(jobs.len());
            if known.is_none() {
                jobs.push(RunSums { name: spec.name.clone(), ..RunSums::default() });
            }
            jobs[place].left += u64::from(spec.nodes) * u64::from(spec.copies);
            places.push(place);
        }
        RunStats {
            jobs,
            indices: places,
            cut_ppm: 0,
            throttlings: 0,
            targets: scenario.targets.iter().map(TargetSpec::scheduled).collect(),
        }
    }

    fn at(&mut self, job: u32) -> &mut RunSums {
        &mut self.jobs[self.indices[job as usize]]
    }

    /// The cost of a request at its target, as its scheduler computes it.
    pub(crate) fn cost(&self, target: usize, lane: Lane, kind: OpKind, amount: Amount) -> Nanos {
        self.targets[target].costs.charge(lane, kind, amount)
    }

    pub(crate) fn served(&mut self, job: u32, cost: Nanos) {
        self.at(job).cost += u128::from(cost.get());
    }

    pub(crate) fn answered(
        &mut self,
        job: u32,
        amount: Amount,
        latency: Nanos,
        queued: Nanos,
        measured: bool,
    ) {
        let sums = self.at(job);
        sums.second.0 += 1;
        sums.second.1 += amount.bytes.get();
        if !measured {
            return;
        }
        sums.requests += 1;
        sums.bytes += amount.bytes.get();
        sums.ops += amount.ops.get();
        sums.queued_ns += u128::from(queued.get());
        sums.latency.add(latency.get());
    }

    /// Counts the rule that took a measured request, and how long it waited.
    pub(crate) fn count_rule(&mut self, job: u32, rule: Option<usize>, queued: Nanos) {
        let sum = self.at(job).rules.entry(rule).or_default();
        sum.requests += 1;
        sum.delayed += u64::from(queued >= DELAYED);
        sum.queue_ns += queued.get();
    }

    /// Counts sampled waiting requests of a job.
    pub(crate) fn count_sampled(&mut self, job: &str, requests: u32, for_meter: bool) {
        if let Some(sums) = self.jobs.iter_mut().find(|sums| sums.name == job) {
            sums.sampled.0 += u64::from(requests);
            sums.sampled.1 += u64::from(requests) * u64::from(for_meter);
        }
    }

    pub(crate) fn finished(&mut self, job: u32, now: Time) {
        let sums = self.at(job);
        sums.left = sums.left.saturating_sub(1);
        sums.finished = sums.finished.max(now);
    }

    pub(crate) fn count_rejected(&mut self, job: u32) {
        self.at(job).rejected += 1;
    }

    pub(crate) fn count_resent(&mut self, job: u32) {
        self.at(job).resent += 1;
    }

    pub(crate) fn second(&mut self, cut_ppm: u64, measured: bool) {
        if measured {
            self.cut_ppm = self.cut_ppm.max(cut_ppm);
        }
        for sums in &mut self.jobs {
            sums.series.push(std::mem::take(&mut sums.second));
        }
    }
}

/// A request with a shorter wait for its dispatch was not delayed.
pub const DELAYED: Nanos = Nanos::from_millis(1);

impl RunSums {
    fn by_rule(&self, rules: &RuleSet) -> Vec<JobRule> {
        let named = |(rule, sum): (&Option<usize>, &JobRule)| {
            let rule = rule.and_then(|index| rules.rules.get(index));
            let name = rule.map_or(RuleSet::DEFAULT, |rule| rule.name.as_str());
            JobRule { rule: name.into(), ..sum.clone() }
        };
        self.rules.iter().map(named).collect()
    }

    fn report(&self, measured: Nanos, all_cost: u128) -> JobResult {
        let seconds = measured.get().max(1) as f64 / 1e9;
        let each = |sum: u128| (sum / u128::from(self.requests.max(1))) as u64;
        let latency = &self.latency;
        JobResult {
            job: self.name.clone(),
            requests: self.requests,
            bytes: self.bytes,
            ops: self.ops,
            requests_per_sec: self.requests as f64 / seconds,
            bytes_per_sec: self.bytes as f64 / seconds,
            share: self.cost as f64 / all_cost.max(1) as f64,
            latency_ns: LatencyResult {
                mean: each(latency.sum()),
                median: latency.at_ppm(500_000),
                p99: latency.at_ppm(990_000),
                max: latency.max(),
            },
            queued_ns_mean: each(self.queued_ns),
            finished_ns: (self.left == 0).then_some(self.finished.as_nanos()),
            rejected: self.rejected,
            resent: self.resent,
            series: self.series.clone(),
            rules: Vec::new(),
            throttled_ppm: (self.sampled.0 > 0)
                .then(|| self.sampled.1 * 1_000_000 / self.sampled.0),
        }
    }
}
