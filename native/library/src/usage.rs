//! What a caller may see of its own: usage, credit, and what delays its requests.

use api::{Why, WhyQuery, WireCredit, path};
use rustix::process::getuid;
use serde::Deserialize;

use crate::client::{ControllerClient, Repetition};
use crate::deadline::Deadline;
use crate::error::{CallError, CallErrorCode};
use crate::exchange::HttpRequest;
use crate::reservations::is_unknown_user;

/// What was served to a user or a job.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct ServedUsage {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// The time that limits delayed its requests, summed up.
    #[serde(default)]
    pub(crate) delayed_ns: u64,
}

#[derive(Deserialize)]
struct ServedTable {
    rows: Vec<ServedRow>,
}

#[derive(Deserialize)]
struct ServedRow {
    name: String,
    #[serde(flatten)]
    served: ServedUsage,
}

#[derive(Deserialize)]
struct ServedReport {
    counters: ServedUsage,
}

impl ControllerClient {
    /// Reads the usage of the caller in the last seconds, or of its job; zero if it had none.
    pub(crate) fn usage(
        &self,
        job: Option<&str>,
        since_s: u32,
        deadline: Deadline<'_>,
    ) -> Result<ServedUsage, CallError> {
        match job {
            Some(job) => self.usage_of_job(job, since_s, deadline),
            None => self.usage_of_user(since_s, deadline),
        }
    }

    fn usage_of_user(&self, since_s: u32, at: Deadline<'_>) -> Result<ServedUsage, CallError> {
        let read = |more: &str| {
            let query = format!("by=user&from=-{since_s}s{more}");
            let request = HttpRequest::get(format!("{}?{query}", path::USAGE));
            let reply = self.call::<ServedTable>(&request, Repetition::Harmless, at)?;
            Ok::<_, CallError>(reply.value.rows)
        };
        let name = getuid().as_raw().to_string();
        let row = match read(&format!("&user={name}")) {
            // A token of a user whose number this process does not have shows that user's row alone.
            Err(error) if error.code == CallErrorCode::PermissionDenied && self.has_token() => {
                read("")?.into_iter().next()
            }
            rows => rows?.into_iter().find(|row| row.name == name),
        };
        Ok(row.map(|row| row.served).unwrap_or_default())
    }

    /// By the report of the job, which role user may read, too.
    fn usage_of_job(
        &self,
        job: &str,
        since_s: u32,
        deadline: Deadline<'_>,
    ) -> Result<ServedUsage, CallError> {
        let query = WhyQuery { job: Some(job.into()), ..WhyQuery::default() }.text();
        let request = HttpRequest::get(format!("{}?{query}&from=-{since_s}s", path::JOB_REPORT));
        match self.call::<ServedReport>(&request, Repetition::Harmless, deadline) {
            Err(error) if error.code == CallErrorCode::NotFound => Ok(ServedUsage::default()),
            reply => Ok(reply?.value.counters),
        }
    }

    /// Reads the credit of the caller.
    pub(crate) fn credit(&self, deadline: Deadline<'_>) -> Result<WireCredit, CallError> {
        let read = |query: &str| {
            let request = HttpRequest::get(format!("{}{query}", path::CREDIT));
            self.call::<WireCredit>(&request, Repetition::Harmless, deadline)
        };
        let reply = match read("") {
            Err(error) if is_unknown_user(&error) && !self.has_token() => {
                read(&format!("?user={}", getuid().as_raw()))
            }
            reply => reply,
        };
        Ok(reply?.value)
    }

    /// Reads what delays a job of the caller, or all its requests: limits, shares and reservations,
    /// as the JSON of `GET /v1/why`.
    pub(crate) fn why(
        &self,
        job: Option<&str>,
        deadline: Deadline<'_>,
    ) -> Result<String, CallError> {
        let query = match job {
            Some(job) => WhyQuery { job: Some(job.into()), ..WhyQuery::default() },
            // The controller knows whose token it is.
            None if self.has_token() => WhyQuery::default(),
            None => WhyQuery { user: Some(getuid().as_raw()), ..WhyQuery::default() },
        };
        let request = HttpRequest::get(format!("{}?{}", path::WHY, query.text()));
        let why = self.call::<Why>(&request, Repetition::Harmless, deadline)?.value;
        serde_json::to_string(&why).map_err(|error| CallError::new(CallErrorCode::Internal, error))
    }
}
