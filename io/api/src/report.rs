//! The report of a job: when, how much, its delays and the pattern of its requests.
//!
//! ```text
//!   ledger: the job's points, all jobs' sums ─┐
//!   proxies: causes of delay ─────────────────┴─► WireJobReport ─► GET /v1/report ─► sluice report
//! ```

use model::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema::ServiceSchema;

/// The report of one job in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireJobReport {
    /// The job; empty: requests without one.
    pub job: String,
    /// The users of these requests, by number, as far as known.
    pub users: Vec<u32>,
    /// The time of the report, in seconds since 1970.
    pub at_s: u64,
    /// The start of its first point of time, in seconds since 1970.
    pub from_s: u64,
    /// The end of its last point of time, or now.
    pub to_s: u64,
    /// Its active time: it had requests, or a pause of less than a second between two. Times at
    /// several targets add up, within the length of each point.
    pub active_ns: u64,
    /// All counters: payload, operations by kind, delays, sizes and order.
    #[schema(value_type = ServiceSchema)]
    pub counters: Service,
    /// The part of the active time in which a limit or a cap on slots delayed at least one request.
    pub delayed_span_ns: u64,
    /// Payload by active time, in bytes per second.
    pub achieved_per_s: u64,
    /// Operations by active time.
    pub achieved_ops_per_s: u64,
    /// The highest rate of a point without delays, if others had delays and it is above the achieved
    /// rate. Absent: how much it would have moved without limits was not seen.
    pub undelayed: Option<UndelayedRate>,
    /// The causes of delay, the longest first, as its proxies remember them.
    pub delay_causes: Vec<JobDelayCause>,
    /// Whether any proxy still knows its requests. If not, the causes of delay are no longer known;
    /// their time and number are.
    pub delay_causes_known: bool,
    /// The other jobs with the most payload from its first point to its last, five at most.
    pub others: Vec<ConcurrentJob>,
    /// The number of other jobs.
    pub others_count: u64,
    /// Its part of all payload in this time, in millionths: near a million it had the file system
    /// to itself, far below it shared it (the coverage factor of correlating jobs with server
    /// counters).
    pub coverage_ppm: u32,
    /// Its time, point by point, without points that had no requests.
    pub points: Vec<JobPoint>,
    /// Named patterns of its requests; those that are slow have advice.
    pub patterns: Vec<JobPattern>,
    /// Caveats about these figures, a sentence each.
    pub caveats: Vec<String>,
}

/// A cause of delay of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobDelayCause {
    /// The cause in words: `the limit of rule jobs (jobid=dd.1)`.
    pub what: String,
    /// Whether it is a limit or a cap on slots. Others are its own load, or the weights.
    pub is_limit: bool,
    /// Whether it delays requests now.
    pub current: bool,
    /// Requests that it delayed.
    pub requests: u64,
    /// The payload bytes of the delayed requests.
    pub bytes: u64,
    /// The time that they waited, summed up over requests.
    pub wait_ns: u64,
    /// The time in which it delayed at least one request, summed up over proxies and targets.
    pub span_ns: u64,
}

/// The rate of a job in a point in which no limit delayed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UndelayedRate {
    /// The start of the point, in seconds since 1970.
    pub at_s: u64,
    /// Payload by active time, in bytes per second.
    pub bytes_per_s: u64,
    /// Operations by active time.
    pub ops_per_s: u64,
}

/// Another job at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConcurrentJob {
    /// The job; empty: requests without one; `(other)`: jobs beyond the bound.
    pub job: String,
    /// Its payload read and written.
    pub bytes: u64,
    /// Its part of all payload in this time, in millionths.
    pub traffic_ppm: u32,
}

/// A point of a job's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPoint {
    /// Its start, in seconds since 1970.
    pub at_s: u64,
    /// The length of the span, in seconds.
    pub span_s: u64,
    /// The active time in the span. The first report after its begin may bring some seconds from
    /// before it.
    pub active_ns: u64,
    /// The part of it in which a limit or a cap on slots delayed at least one request.
    pub delayed_span_ns: u64,
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// Backend operations in the span.
    pub ops: u64,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// The payload bytes of the delayed reads and writes.
    pub delayed_bytes: u64,
    /// The time that they waited, summed up.
    pub delayed_ns: u64,
}

/// A pattern of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPattern {
    /// Its name, as in `pattern_factors` of a `[[decay]]`.
    pub name: String,
    /// A description of the pattern.
    pub what: String,
    /// What to do instead; empty if there is nothing to do.
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
