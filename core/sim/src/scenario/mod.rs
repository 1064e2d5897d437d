//! A scenario: what is simulated, and what is expected to come of it.
//!
//! ```text
//!   TOML text ─► read: typed tables with places ─► build: names resolved, values checked ─► Scenario
//!                    └──────── first fault ─► ScenarioError: line, column, value, what is right
//! ```
//!
//! The format is docs/SCENARIOS.md. A scenario that was parsed needs no checking again; it says
//! everything about a run but the scheduler and, if the caller wants another, the seed.

mod build;
mod error;
mod read;
mod steps;

use std::sync::Arc;

use model::{Identity, JobId, Nanos, RuleSet, Time};
use sched::Costs;

use crate::faults::SimFault;
use crate::network::NicSpec;
use crate::report::Expect;
use crate::scheduler::Policy;
use crate::targets::{Discipline, TargetSpec};
use crate::workloads::{JobRoute, JobSpec, JobStep, ReplayRecord};

pub use error::ScenarioError;
pub(crate) use error::WrongValue;

/// What is simulated, under which schedulers, and what is expected.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its file's name, without `.toml`.
    pub name: String,
    /// The publication or document that it re-enacts.
    pub from: String,
    /// What it shows, in a sentence or two.
    pub about: String,
    /// What chance is drawn from, unless the caller has another seed.
    pub seed: u64,
    /// How long the load lasts.
    pub duration: Nanos,
    /// What of that is not measured.
    pub warmup: Nanos,
    /// The schedulers it is to be run under.
    pub policies: Vec<Policy>,
    pub(crate) targets: Vec<TargetSpec>,
    pub(crate) rules: Arc<RuleSet>,
    /// Whether proxies are told of service elsewhere.
    pub(crate) delay: bool,
    /// Whether a controller divides what the rules grant over the proxies of each target.
    pub(crate) controller: bool,
    pub(crate) jobs: Vec<JobSpec>,
    pub(crate) faults: Vec<SimFault>,
    pub(crate) changes: Vec<(Time, Arc<RuleSet>)>,
    pub(crate) expects: Vec<Expect>,
}

/// A recorded client: whose requests, and which.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Who pays for them.
    pub who: Identity,
    /// One after another: each is asked for its `think` after the answer to the one before.
    pub records: Vec<ReplayRecord>,
}

/// What a recording says of the target behind the proxy.
#[derive(Clone, Debug)]
pub struct RecordedTarget {
    /// Its name.
    pub name: String,
    /// D: what the scheduler may have outstanding.
    pub slots: u32,
    /// Slots of the cached lane.
    pub threads: u32,
    /// How many requests it serves at once; more wait in it.
    pub parallelism: u32,
    /// How long a request occupies one of those, in the device's lane and the cached one.
    pub times: Costs,
    /// What the scheduler believes that requests cost; the recorded times if none.
    pub believed: Option<Costs>,
}

impl Replayed {
    /// What reports call the job of a recorded client: its user's where it has none.
    pub fn job_of(who: &Identity) -> String {
        match who.job.as_str() {
            "" => format!("uid.{}", who.uid),
            job => job.to_string(),
        }
    }
}

impl Scenario {
    /// A recording under a set of rules: its clients at its target, for at most so long.
    ///
    /// Clients of one job are one job of the report.
    pub fn of_recording(
        name: &str,
        target: RecordedTarget,
        clients: Vec<Replayed>,
        rules: Arc<RuleSet>,
        duration: Nanos,
    ) -> Scenario {
        let target = TargetSpec {
            name: target.name,
            count: 1,
            slots: target.slots,
            threads: target.threads,
            parallelism: target.parallelism,
            discipline: Discipline::Parallel,
            device: target.times.device,
            cached: target.times.cached,
            mode: target.times.mode,
            believed_write: None,
            recalibrate: false,
            held_latency: None,
            believed: target.believed,
            jitter_percent: 0,
            seek: Nanos::ZERO,
            hit_percent: 0,
            dirty: None,
            wire: NicSpec::default(),
        };
        let scenario = Scenario {
            name: name.into(),
            from: "a recording".into(),
            about: "Requests that a proxy traced, under other rules.".into(),
            seed: 1,
            duration,
            warmup: Nanos::ZERO,
            policies: vec![Policy::Ours],
            targets: vec![target],
            rules,
            delay: false,
            controller: false,
            jobs: Vec::new(),
            faults: Vec::new(),
            changes: Vec::new(),
            expects: Vec::new(),
        };
        scenario.with_replay(clients)
    }

    /// Reads a scenario file; `name` is what messages and reports call it.
    ///
    /// # Errors
    /// The first fault, with its line and a caret under what is wrong.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        read::read(text, name).map_err(|wrong| ScenarioError::new(text, name, wrong))
    }

    /// This scenario with the clients of a recording in place of its jobs, at its first target.
    ///
    /// Clients of one job are one job of the report. What the scenario expected of its own jobs
    /// is dropped.
    pub fn with_replay(&self, clients: Vec<Replayed>) -> Scenario {
        let mut jobs: Vec<JobSpec> = Vec::new();
        for client in clients {
            jobs.push(JobSpec {
                name: Replayed::job_of(&client.who),
                who: client.who,
                path: None,
                first_address: None,
                nodes: 1,
                copies: 1,
                every: Nanos::ZERO,
                start: Time::ZERO,
                lifetime: None,
                target: 0,
                route: JobRoute::Hash,
                steps: Arc::new([JobStep::Trace(client.records.into())]),
                repeat: Some(1),
                wire: NicSpec::default(),
            });
        }
        Scenario { jobs, expects: Vec::new(), ..self.clone() }
    }

    /// Whether its clients are recorded ones.
    pub(crate) fn is_replay(&self) -> bool {
        let recorded = |step: &JobStep| matches!(step, JobStep::Trace(_));
        self.jobs.iter().any(|job| job.steps.iter().any(recorded))
    }

    /// What it claims, in its own words.
    pub fn expected(&self) -> Vec<&str> {
        self.expects.iter().map(Expect::text).collect()
    }

    /// How many proxies there are, over all targets.
    pub fn proxies(&self) -> u32 {
        self.targets.iter().map(|target| target.count).sum()
    }

    /// How many clients there are, over all jobs and their copies.
    pub fn clients(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.nodes) * u64::from(job.copies)).sum()
    }
}

/// A job's name in a scenario or rule; `None` if it is too long to have copies.
pub(crate) fn job_id(name: &str) -> Option<JobId> {
    // Room for a dot and the number of a copy.
    JobId::new(name).filter(|_| name.len() + 11 <= JobId::MAX_LEN)
}
