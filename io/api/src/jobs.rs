//! Jobs that are registered at a controller, and their tokens.
//!
//! ```text
//!   PUT NewJob ─► WireJob (no secret in it)      POST …/token ─► JobToken, for the nodes of the job
//!   DELETE     ─► EndedJob: what became of the reservations of the job
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job to be registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// The user of the job; role `user`: itself, and may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The primary group of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The account of the batch system, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Which attempt to run the job this is; a requeued job has a greater one.
    pub attempt: u32,
    /// The nodes of the job, at most 65,536: each may fetch the job's token with the certificate of
    /// that common name. 1 to 63 letters, digits, `_`, `-` and `.` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When the job ends at the latest. Its token is valid for an hour longer, and then the
    /// controller forgets the job. Absent: until the job is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ns: Option<u64>,
}

/// A registered job, as the controller keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireJob {
    /// The name of the job.
    pub job: String,
    /// The user of the job.
    pub user: u32,
    /// The primary group of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The account of the batch system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Which attempt to run the job this is.
    pub attempt: u32,
    /// The nodes of the job, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When this attempt was registered.
    pub registered_ns: u64,
    /// When the job ends at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ns: Option<u64>,
}

/// A list of registered jobs by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireJobs {
    /// The time of the answer.
    pub at_ns: u64,
    /// The jobs of this page.
    pub jobs: Vec<WireJob>,
    /// The name after which the next page begins; absent in the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The token of one attempt of a job: the same for all its nodes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobToken {
    /// The token itself, with role `job`.
    pub token: String,
    /// The user of the job.
    pub user: u32,
    /// The attempt of the job.
    pub attempt: u32,
    /// When it expires, in seconds since 1970; absent: when the job is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// The end of a job, with what became of its reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedJob {
    /// The name of the job.
    pub job: String,
    /// Whether the job has ended by this call; false: a later attempt is registered, and nothing has
    /// changed.
    pub ended: bool,
    /// The claimed reservations, which were finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<u64>,
    /// The reservations that were not claimed, which were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<u64>,
    /// The credit that the finished ones gave, in bytes.
    #[serde(default)]
    pub credit: u64,
}

impl fmt::Debug for JobToken {
    /// Without the token: what is printed may be in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobToken")
            .field("user", &self.user)
            .field("attempt", &self.attempt)
            .field("expires_s", &self.expires_s)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_token_is_not_printed() {
        let token = JobToken { token: "slc_secret".into(), user: 7, attempt: 1, expires_s: None };
        let shown = format!("{token:?}");
        assert!(shown.contains("attempt: 1") && !shown.contains("secret"), "{shown}");
        assert!(serde_json::to_string(&token).unwrap().contains("slc_secret"));
    }
}
