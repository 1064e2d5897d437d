//! The simulator: the proxy's own scheduler in simulated time, among modelled targets, networks,
//! workloads and faults.
//!
//! ```text
//!   scenario ─► world: clients ─► proxies (scheduler) ─► targets ─► report ─► verdicts
//!                        ▲                │ checks at every step │
//!                        └── events ◄─────┴──────────────────────┘
//! ```
//!
//! The scheduler is `sched::Dispatcher`, the very struct of the proxy; the published ones that it
//! is compared with are in `baselines`. Time, chance and order come from the scenario and its seed:
//! a run repeats bit for bit on any machine.
//!
//! ```
//! let text = r#"
//!     from = "an example"
//!     description = "Two jobs with weights 3 : 1 on a device of 100 requests a second."
//!     duration = "60s"
//!     warmup = "10s"
//!     rules = '''
//! [[rule]]
//! name = "heavy"
//! match = "jobid={heavy}"
//! weight = 3
//!
//! [[rule]]
//! name = "light"
//! match = "jobid={light}"
//!     '''
//!
//!     [[target]]
//!     name = "disk"
//!     slots = 10
//!     parallelism = 10
//!     read = [["4KiB", "100ms"]]
//!
//!     [[job]]
//!     name = "heavy"
//!     steps = [{ do = "read 4KiB", depth = 20 }]
//!
//!     [[job]]
//!     name = "light"
//!     steps = [{ do = "read 4KiB", depth = 20 }]
//!
//!     [[expect]]
//!     what = "rate heavy / light"
//!     kind = "theory"
//!     value = 3
//!     within = "1%"
//!     source = "start-time fair queueing"
//! "#;
//! let scenario = sluice_sim::Scenario::parse(text, "example").expect("a valid scenario");
//! let reports: Vec<_> = scenario
//!     .policies
//!     .iter()
//!     .map(|policy| sluice_sim::World::new(&scenario, *policy, scenario.seed).run())
//!     .collect();
//! assert!(sluice_sim::judge(&scenario, &reports).iter().all(|verdict| verdict.met));
//! assert!(reports[0].violations.is_empty());
//! ```

mod backlog;
mod baselines;
mod checks;
mod events;
mod faults;
mod network;
mod prng;
mod random;
mod recording;
mod report;
mod reservations;
mod row_changes;
mod scenario;
mod scheduler;
mod sessions;
mod targets;
mod workloads;
mod world;

pub use backlog::Backlog;
pub use random::random_scenario;
pub use recording::{Recording, Recordings};
pub use report::{
    DELAYED, ExpectKind, InvariantViolation, JobOutcome, JobResult, JobRule, LatencyResult,
    PromiseStats, RuleResult, RuleTake, RunResult, ScenarioVerdict, judge,
};
pub use scenario::{RecordedTarget, Replayed, Scenario, ScenarioError};
pub use scheduler::{ParsePolicyError, Policy};
pub use sessions::{SessionFaults, SessionRunResult, SessionViolation, SessionWorld};
pub use workloads::ReplayRecord;
pub use world::World;
