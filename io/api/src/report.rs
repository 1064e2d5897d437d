//! What became of a job: when, how much, how it was delayed, what its requests looked like.
//!
//! ```text
//!   ledger: the job's points, all jobs' sums ─┐
//!   proxies: what holds and held it ──────────┴─► JobReport ─► GET /v1/report ─► sluice report
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::WireCounters;

/// What one job did in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireJobReport {
    /// The job; empty: requests without one.
    pub job: String,
    /// The users whose requests these were, by number, as far as they are known.
    pub users: Vec<u32>,
    /// When this was, in seconds since 1970.
    pub at_s: u64,
    /// Where its first point of time begins, likewise.
    pub from_s: u64,
    /// Where its last one ends, or now.
    pub to_s: u64,
    /// How long the points are together in which it had any requests: its active time.
    pub active_s: u64,
    /// All it did: payload, operations by kind, what was delayed, sizes and order.
    pub counters: WireCounters,
    /// Payload by active time, in bytes a second.
    pub achieved_per_s: u64,
    /// What it asked for, in bytes a second: an estimate. Each request that a limit delayed stands
    /// for one more of its size that could have gone meanwhile, so this is what was achieved and
    /// what was delayed, by active time.
    pub asked_per_s: u64,
    /// Operations by active time.
    pub achieved_ops_per_s: u64,
    /// Operations and delayed requests by active time, likewise an estimate.
    pub asked_ops_per_s: u64,
    /// What delayed it, the longest first, as its proxies remember it.
    pub holders: Vec<JobDelayCause>,
    /// Whether some proxy still knows its requests. Where none does, what delayed them is not
    /// known any more; how long and how much is.
    pub holders_known: bool,
    /// The other jobs with the most payload from its first point to its last, five at most.
    pub others: Vec<ConcurrentJob>,
    /// How many other jobs there were in all.
    pub others_count: u64,
    /// Its part of all payload in this time, in millionths: near a million the file system was its
    /// own, far below it shared (the coverage factor of correlating jobs with server counters).
    pub coverage_ppm: u32,
    /// Its time, point by point; none where it had no requests.
    pub points: Vec<JobPoint>,
    /// Named patterns of its requests; those that are slow have advice.
    pub patterns: Vec<JobPattern>,
    /// What makes these figures less certain, a sentence each.
    pub doubts: Vec<String>,
}

/// What delayed a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobDelayCause {
    /// In words: `the limit of rule jobs (jobid=dd.1)`.
    pub what: String,
    /// Whether it holds requests now.
    pub now: bool,
    /// Requests that it delayed.
    pub requests: u64,
    /// Their payload.
    pub bytes: u64,
    /// How long they waited, summed up over requests.
    pub wait_ns: u64,
}

/// Another job at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConcurrentJob {
    /// The job; empty: requests without one; `(other)`: those who were too many.
    pub job: String,
    /// What it read and wrote.
    pub bytes: u64,
    /// Its part of all payload in this time, in millionths.
    pub share_ppm: u32,
}

/// A point of a job's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPoint {
    /// Where it begins, in seconds since 1970.
    pub at_s: u64,
    /// How long it is.
    pub span_s: u64,
    /// Payload read.
    pub read_bytes: u64,
    /// Payload written.
    pub written_bytes: u64,
    /// Operations.
    pub ops: u64,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// Their payload.
    pub delayed_bytes: u64,
    /// How long they waited, summed up.
    pub delayed_ns: u64,
}

/// A pattern that the requests show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPattern {
    /// Its name, as in `behaviour` of a `[[decay]]`.
    pub name: String,
    /// What it is.
    pub what: String,
    /// What to do instead; empty where nothing needs to be done.
    pub advice: String,
    /// Why it is slow, or why not.
    pub source: String,
}

impl From<model::Pattern> for JobPattern {
    fn from(pattern: model::Pattern) -> JobPattern {
        JobPattern {
            name: pattern.name().into(),
            what: pattern.what().into(),
            advice: pattern.advice().into(),
            source: pattern.source().into(),
        }
    }
}
