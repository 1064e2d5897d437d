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

use crate::faults::Fault;
use crate::network::WireSpec;
use crate::report::Expect;
use crate::scheduler::Policy;
use crate::targets::TargetSpec;
use crate::workloads::{JobSpec, Record, Route, Step};

pub use error::ScenarioError;
pub(crate) use error::Wrong;

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
    pub(crate) jobs: Vec<JobSpec>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) changes: Vec<(Time, Arc<RuleSet>)>,
    pub(crate) expects: Vec<Expect>,
}

/// A recorded client: whose requests, and which.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Who pays for them.
    pub who: Identity,
    /// One after another: each is asked for its `think` after the answer to the one before.
    pub records: Vec<Record>,
}

impl Scenario {
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
            let name = match client.who.job.as_str() {
                "" => format!("uid.{}", client.who.uid),
                job => job.to_string(),
            };
            jobs.push(JobSpec {
                name,
                who: client.who,
                path: None,
                first_address: None,
                nodes: 1,
                copies: 1,
                every: Nanos::ZERO,
                start: Time::ZERO,
                lifetime: None,
                target: 0,
                route: Route::Hash,
                steps: Arc::new([Step::Trace(client.records.into())]),
                repeat: Some(1),
                wire: WireSpec::default(),
            });
        }
        Scenario { jobs, expects: Vec::new(), ..self.clone() }
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
