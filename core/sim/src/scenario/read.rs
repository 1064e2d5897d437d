//! The tables of a scenario file as they are written.
//!
//! Serde reads these types. Texts that name something else in the file keep their position, so that
//! build.rs can report the position of a wrong name. Defaults are given here, each with its reason
//! where it has one.

use model::{Bytes, Nanos, Rate};
use serde::Deserialize;
use toml::Spanned;

use super::{Scenario, WrongValue, build};
use crate::report::RawExpect;

/// Reads and builds a scenario.
pub(super) fn read(text: &str, name: &str) -> Result<Scenario, WrongValue> {
    let raw: RawScenario = toml::from_str(text).map_err(|error| {
        let at = error.span().unwrap_or(0..0);
        WrongValue::new(at, error.message().trim_end().to_string())
    })?;
    build::build(raw, text, name)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    pub(super) from: String,
    pub(super) description: String,
    #[serde(default = "one")]
    pub(super) seed: u64,
    pub(super) duration: Spanned<Nanos>,
    #[serde(default)]
    pub(super) warmup: Nanos,
    /// Our scheduler alone if none is named.
    #[serde(default)]
    pub(super) policies: Vec<Spanned<String>>,
    /// A rule file's text; without it everything is in one class.
    pub(super) rules: Option<Spanned<String>>,
    /// Whether each proxy receives the service of the others (total-service sharing).
    #[serde(default)]
    pub(super) delay: bool,
    /// Whether a controller divides what the rules grant over the proxies of a target.
    #[serde(default)]
    pub(super) controller: bool,
    pub(super) target: Vec<Spanned<RawTarget>>,
    pub(super) job: Vec<Spanned<RawJob>>,
    #[serde(default)]
    pub(super) fault: Vec<Spanned<RawFault>>,
    #[serde(default)]
    pub(super) change: Vec<RawChange>,
    #[serde(default)]
    pub(super) expect: Vec<RawExpect>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTarget {
    pub(super) name: Spanned<String>,
    #[serde(default = "one")]
    pub(super) count: u64,
    #[serde(default)]
    pub(super) one_device: bool,
    pub(super) slots: Spanned<u64>,
    /// As many as there are slots, so that the cached lane is not the narrower one.
    pub(super) threads: Option<Spanned<u64>>,
    pub(super) parallelism: Spanned<u64>,
    #[serde(default)]
    pub(super) discipline: RawDiscipline,
    pub(super) read: Spanned<Vec<(Bytes, Nanos)>>,
    /// Like `read`, for writes.
    pub(super) write: Option<Spanned<Vec<(Bytes, Nanos)>>>,
    /// The time of every kind that moves no bytes; that of the smallest read.
    pub(super) operation: Option<Spanned<Nanos>>,
    /// Times of kinds that differ from `operation`.
    #[serde(default)]
    pub(super) operations: std::collections::BTreeMap<Spanned<String>, Nanos>,
    #[serde(default)]
    pub(super) cost: RawCost,
    /// The costs of writes that the scheduler uses; the real ones by default.
    pub(super) believed_write: Option<Spanned<Vec<(Bytes, Nanos)>>>,
    #[serde(default)]
    pub(super) recalibrate: bool,
    /// `latency` is the network interface's.
    pub(super) latency_target: Option<Nanos>,
    #[serde(default)]
    pub(super) jitter_percent: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) seek: Nanos,
    #[serde(default)]
    pub(super) hit_percent: Option<Spanned<u64>>,
    /// The time of a read or write in memory; the default of an uncalibrated proxy.
    pub(super) cached: Option<Spanned<Vec<(Bytes, Nanos)>>>,
    pub(super) dirty: Option<Bytes>,
    #[serde(default)]
    pub(super) latency: Nanos,
    pub(super) bandwidth: Option<Spanned<Rate>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawDiscipline {
    #[default]
    Parallel,
    Shared,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawCost {
    #[default]
    Time,
    Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawJob {
    pub(super) name: Spanned<String>,
    /// The job's name in rules; its name by default.
    pub(super) jobid: Option<Spanned<String>>,
    #[serde(default = "user")]
    pub(super) uid: u32,
    #[serde(default = "user")]
    pub(super) gid: u32,
    pub(super) projid: Option<u32>,
    /// The first node's address; without it all nodes are one identity.
    pub(super) nid: Option<Spanned<String>>,
    pub(super) path: Option<Spanned<String>>,
    pub(super) nodes: Option<Spanned<u64>>,
    pub(super) copies: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) every: Nanos,
    #[serde(default)]
    pub(super) start: Nanos,
    pub(super) lifetime: Option<Nanos>,
    /// The first target by default.
    pub(super) target: Option<Spanned<String>>,
    pub(super) route: Option<Spanned<RawRoute>>,
    pub(super) steps: Spanned<Vec<Spanned<RawStep>>>,
    pub(super) repeat: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) latency: Nanos,
    pub(super) bandwidth: Option<Spanned<Rate>>,
}

/// `route = "round"`, `{ one = 3 }`, `{ nodes_of = [0, 1] }`, `{ stripe = "1MiB" }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawRoute {
    One(u64),
    Node,
    NodesOf(Vec<u64>),
    Round,
    Hash,
    Stripe(Bytes),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStep {
    #[serde(rename = "do")]
    pub(super) requests: Option<Spanned<String>>,
    pub(super) pause: Option<Nanos>,
    pub(super) depth: Option<Spanned<u64>>,
    pub(super) think: Option<Nanos>,
    pub(super) rate: Option<Rate>,
    pub(super) spacing: Option<RawSpacing>,
    pub(super) group: Option<Spanned<u64>>,
    pub(super) requests_max: Option<u64>,
    pub(super) total: Option<Bytes>,
    pub(super) span: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawSpacing {
    Even,
    Poisson,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFault {
    pub(super) what: Spanned<RawTrouble>,
    pub(super) at: Nanos,
    #[serde(default)]
    pub(super) span: Nanos,
    pub(super) target: Option<Spanned<String>>,
    /// The proxy of the target; all by default.
    pub(super) number: Option<Spanned<u64>>,
    pub(super) percent: Option<Spanned<u64>>,
    pub(super) by: Option<Nanos>,
    pub(super) way: Option<Spanned<RawWay>>,
}

/// The directions of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawWay {
    Both,
    Reports,
    Assignments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawTrouble {
    Crash,
    Slow,
    ClockAhead,
    ClockBehind,
    Leader,
    Partition,
    Drop,
    Delay,
    Duplicate,
    Forget,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChange {
    pub(super) at: Nanos,
    pub(super) rules: Spanned<String>,
}

fn one() -> u64 {
    1
}

fn user() -> u32 {
    1000
}
