//! A scenario: what is simulated, and the expected results.
//!
//! ```text
//!   TOML text ─► read: typed tables with places ─► build: names resolved, values checked ─► Scenario
//!                    └──────── first fault ─► ScenarioError: line, column, value, what is right
//! ```
//!
//! docs/SCENARIOS.md describes the format. A parsed scenario needs no further checks. It determines
//! a run except for the scheduler and, if the caller overrides it, the seed.

mod build;
mod error;
mod read;
mod steps;

use std::sync::Arc;

use model::{Bytes, Identity, JobId, Nanos, Time};
use rules::{Entitlement, Rule, RuleSet};
use sched::Costs;

use crate::faults::{FaultKind, SimFault};
use crate::network::NicSpec;
use crate::report::Expect;
use crate::reservations::ReservationStep;
use crate::row_changes::RowChange;
use crate::scheduler::Policy;
use crate::targets::{Discipline, TargetSpec};
use crate::workloads::{JobRoute, JobSpec, JobStep, ReplayRecord};

pub use error::ScenarioError;
pub(crate) use error::WrongValue;

/// The simulated systems, the schedulers, and the expectations.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name of its file, without `.toml`.
    pub name: String,
    /// The publication or document that it re-enacts.
    pub from: String,
    /// A description in a sentence or two.
    pub description: String,
    /// The seed, unless the caller has another one.
    pub seed: u64,
    /// The duration of the load.
    pub duration: Nanos,
    /// The part of the duration that is not measured.
    pub warmup: Nanos,
    /// The schedulers to be run.
    pub policies: Vec<Policy>,
    pub(crate) targets: Vec<TargetSpec>,
    pub(crate) rules: Arc<RuleSet>,
    /// Whether proxies receive remote service.
    pub(crate) delay: bool,
    /// Whether a controller divides what the rules grant over the proxies of each target.
    pub(crate) controller: bool,
    pub(crate) jobs: Vec<JobSpec>,
    pub(crate) faults: Vec<SimFault>,
    pub(crate) changes: Vec<(Time, Arc<RuleSet>)>,
    /// In order of time.
    pub(crate) rows: Vec<RowChange>,
    /// What is done with reservations, in order of time.
    pub(crate) reservations: Vec<(Time, ReservationStep)>,
    /// The size of requests of which the capacity of the calendar is; `None`: there is no calendar.
    pub(crate) reserved_size: Option<Bytes>,
    pub(crate) expects: Vec<Expect>,
}

/// A recorded client: its identity and its requests.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The identity that pays for them.
    pub identity: Identity,
    /// The requests in order: each is sent its `think` after the reply to the one before.
    pub records: Vec<ReplayRecord>,
}

/// The target of a recording.
#[derive(Clone, Debug)]
pub struct RecordedTarget {
    /// The name of the target.
    pub name: String,
    /// D: the most slots that the scheduler may have in use.
    pub slots: u32,
    /// Slots of the cached lane.
    pub threads: u32,
    /// The number of requests that it serves at once; more wait in it.
    pub parallelism: u32,
    /// The service time of a request, in the device's lane and the cached one.
    pub times: Costs,
    /// The costs that the scheduler uses; the recorded times if none.
    pub believed: Option<Costs>,
}

impl Replayed {
    /// The name of a recorded client's job in reports: its user's where it has none.
    pub fn job_of(who: &Identity) -> String {
        match who.job.as_str() {
            "" => format!("uid.{}", who.uid),
            job => job.to_string(),
        }
    }
}

impl Scenario {
    /// A recording under a set of rules: its clients at its target, for at most a duration.
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
            one_device: false,
            slots: target.slots,
            threads: target.threads,
            parallelism: target.parallelism,
            discipline: Discipline::Parallel,
            device: target.times.device,
            cached: target.times.cached,
            mode: target.times.mode,
            believed_write: None,
            recalibrate: false,
            latency_target: None,
            assumed_costs: target.believed,
            jitter_percent: 0,
            seek: Nanos::ZERO,
            hit_percent: 0,
            dirty: None,
            nic: NicSpec::default(),
        };
        let scenario = Scenario {
            name: name.into(),
            from: "a recording".into(),
            description: "Requests that a proxy traced, under other rules.".into(),
            seed: 1,
            duration,
            warmup: Nanos::ZERO,
            policies: vec![Policy::Dispatcher],
            targets: vec![target],
            rules,
            delay: false,
            controller: false,
            jobs: Vec::new(),
            faults: Vec::new(),
            changes: Vec::new(),
            rows: Vec::new(),
            reservations: Vec::new(),
            reserved_size: None,
            expects: Vec::new(),
        };
        scenario.with_replay(clients)
    }

    /// Reads a scenario file; `name` is its name in messages and reports.
    ///
    /// # Errors
    /// The first fault, with its line and a caret under the characters at fault.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        read::read(text, name).map_err(|wrong| ScenarioError::new(text, name, wrong))
    }

    /// This scenario with the clients of a recording in place of its jobs, at its first target.
    ///
    /// Clients of one job are one job of the report. The scenario's expectations of its own jobs
    /// are dropped.
    pub fn with_replay(&self, clients: Vec<Replayed>) -> Scenario {
        let mut jobs: Vec<JobSpec> = Vec::new();
        for client in clients {
            jobs.push(JobSpec {
                name: Replayed::job_of(&client.identity),
                identity: client.identity,
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
                nic: NicSpec::default(),
            });
        }
        Scenario { jobs, expects: Vec::new(), ..self.clone() }
    }

    /// Whether its clients are recorded ones.
    pub(crate) fn is_replay(&self) -> bool {
        let recorded = |step: &JobStep| matches!(step, JobStep::Trace(_));
        self.jobs.iter().any(|job| job.steps.iter().any(recorded))
    }

    /// The claims, in the scenario's words.
    pub fn expected(&self) -> Vec<&str> {
        self.expects.iter().map(Expect::text).collect()
    }

    /// What takes part in it, by name, whether or not it does: so that a sum over many scenarios
    /// shows what was in none of them.
    pub fn features(&self) -> Vec<(&'static str, bool)> {
        let rules = || self.changes.iter().map(|(_, rules)| rules).chain([&self.rules]);
        let rule = |is: fn(&Rule) -> bool| rules().any(|set| set.rules.iter().any(is));
        let fault = |is: fn(&FaultKind) -> bool| self.faults.iter().any(|fault| is(&fault.what));
        let target = |is: fn(&TargetSpec) -> bool| self.targets.iter().any(is);
        let decays = rules().any(|set| !set.decays.is_empty());
        let row = |is: fn(&Entitlement) -> bool| self.rows.iter().flat_map(|one| &one.row).any(is);
        let step =
            |is: fn(&ReservationStep) -> bool| self.reservations.iter().any(|(_, one)| is(one));
        let is_spontaneous = |step: &ReservationStep| matches!(step, ReservationStep::Request(of) if of.is_spontaneous);
        let has_window = |step: &ReservationStep| matches!(step, ReservationStep::Request(of) if of.claim_window > Nanos::ZERO);
        vec![
            ("limits", rule(|rule| !rule.ceilings().is_empty())),
            ("meters", rules().any(|set| !set.meters.is_empty())),
            ("reservations", rule(|rule| rule.reserved_rate().is_some())),
            ("dependent rules", rule(|rule| rule.depends_on.is_some())),
            ("decays", decays),
            ("decays with usage reports", decays && self.controller),
            ("changes of rules", !self.changes.is_empty()),
            ("entitlements", !self.rows.is_empty()),
            ("entitlements through a controller", !self.rows.is_empty() && self.controller),
            ("rows of limits", row(|row| row.limit().is_some())),
            ("rows of reservations", row(|row| row.reservation().is_some())),
            ("rows of weights", row(|row| row.weight().is_some())),
            ("rows with a span", row(|row| row.until().is_some() || row.from() > Nanos::ZERO)),
            ("calendar", self.reserved_size.is_some()),
            ("extended reservations", step(|step| matches!(step, ReservationStep::Extend { .. }))),
            ("removed reservations", step(|step| matches!(step, ReservationStep::Remove { .. }))),
            ("phases", step(|step| matches!(step, ReservationStep::Phase { .. }))),
            ("spontaneous reservations", step(is_spontaneous)),
            ("claim windows", step(has_window)),
            ("lost capacity", step(|step| matches!(step, ReservationStep::Capacity { .. }))),
            ("removed rows", self.rows.iter().any(|one| one.row.is_none())),
            ("controller and usage reports", self.controller),
            ("remote service", self.delay),
            ("cache hits", target(|target| target.hit_percent > 0)),
            ("recalibration", target(|target| target.recalibrate)),
            ("latency target", target(|target| target.latency_target.is_some())),
            ("faults", !self.faults.is_empty()),
            ("crash", fault(|what| matches!(what, FaultKind::Crash))),
            ("slow device", fault(|what| matches!(what, FaultKind::Slow { .. }))),
            ("clock jump", fault(|what| matches!(what, FaultKind::Clock { .. }))),
            ("leader change", fault(|what| matches!(what, FaultKind::Leader))),
            ("partition", fault(|what| matches!(what, FaultKind::Partition { .. }))),
            ("lost messages", fault(|what| matches!(what, FaultKind::Drop { .. }))),
            ("late messages", fault(|what| matches!(what, FaultKind::Delay { .. }))),
            ("double messages", fault(|what| matches!(what, FaultKind::Duplicate { .. }))),
            ("closed accounts", fault(|what| matches!(what, FaultKind::Forget { .. }))),
        ]
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
