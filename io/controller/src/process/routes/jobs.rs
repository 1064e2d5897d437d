//! Registered jobs, and their tokens.
//!
//! ```text
//!   PUT, DELETE /v1/jobs/{job} ─► calendar's thread ─► on record with the calendar ─► reply
//!   POST …/token ─► after the record ─► audit.log ─► the token of the job
//! ```

use std::collections::BTreeMap;

use api::{EndedJob, JobToken, NewJob, WireJob, WireJobs};
use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use http::Peer;
use model::{Bytes, JobId};
use tokio::sync::oneshot;

use super::used::bytes_used;
use super::{RouteError, RouteQuery, invalid, read_of, shutting_down, submit, truncated};
use crate::process::ApiState;
use crate::process::access::ApiCaller;
use crate::process::calendar::{CalendarMsg, CalendarReply, JobMsg, WantedReservations};

/// The query parameters of a list.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobsQuery {
    #[serde(default)]
    after: String,
}

/// The query parameters of an end.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndQuery {
    attempt: Option<u32>,
}

/// The registered jobs by name, in pages of 1,000 jobs or 65,536 nodes. A caller of role user sees its
/// own, one of role job itself.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    params(("after" = Option<String>, Query, description = "the page after this name, which is `next` of the page before")),
    responses((status = 200, body = WireJobs)),
)]
pub(super) async fn list(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    wanted: Result<Query<JobsQuery>, QueryRejection>,
) -> Result<Json<WireJobs>, RouteError> {
    let Query(JobsQuery { after }) = wanted?;
    if JobId::new(&after).is_none() {
        let message = format!("after: {:?} is not a job", truncated(&after));
        return Err(invalid("after", message));
    }
    let (answer, list) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::Job(JobMsg::List { after, by, answer }))?;
    Ok(Json(read_of(list).await?))
}

/// A registered job with its nodes.
#[utoipa::path(
    get,
    path = "/v1/jobs/{job}",
    params(("job" = String, Path, description = "the name of the job")),
    responses((status = 200, body = WireJob)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn job(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(job): Path<String>,
) -> Result<Json<WireJob>, RouteError> {
    Ok(Json(get(&shared, job, &by).await?))
}

/// Registers a job, or a later attempt of it.
///
/// It is on record when this call returns. The same attempt again changes its nodes, end, group and
/// account, and not its token; with the same values it changes nothing. A later attempt replaces an
/// earlier one, whose token is invalid then; an earlier one is refused. A caller of role user registers
/// jobs for itself only, whose names begin with `run.`, and names no account or group.
#[utoipa::path(
    put,
    path = "/v1/jobs/{job}",
    params(("job" = String, Path, description = "the name of the job")),
    request_body = NewJob,
    responses((status = 200, body = WireJob)),
    extensions(("x-error-codes" = json!(["job_registered", "limit_reached"]))),
)]
pub(super) async fn register(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Extension(peer): Extension<Peer>,
    Path(job): Path<String>,
    new: Result<Json<NewJob>, JsonRejection>,
) -> Result<Json<WireJob>, RouteError> {
    let Json(new) = new?;
    let (new, peer) = (Box::new(new), peer.uid());
    ask(&shared, |answer| JobMsg::Register { job, new, by, peer, answer }).await
}

/// Returns the token of a job: role `job`, for this attempt. It is the same one at each call.
///
/// It is valid until the job is ended or a later attempt is registered, and no longer than an hour after
/// `ends_ns`. Besides roles batch, operate and admin, the job's user may read it, and each of the job's
/// nodes by a client certificate of its name; a token of role proxy does not suffice.
#[utoipa::path(
    post,
    path = "/v1/jobs/{job}/token",
    params(("job" = String, Path, description = "the name of the job")),
    responses((status = 200, body = JobToken)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn token(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(job): Path<String>,
) -> Result<Json<JobToken>, RouteError> {
    ask(&shared, |answer| JobMsg::Token { job, by, answer }).await
}

/// Ends a job: its claimed reservations are finished with their credit, its others are removed, and its
/// token is invalid.
///
/// With an attempt, it changes nothing if a later one is registered. A caller of role user ends its own
/// jobs whose names begin with `run.`.
#[utoipa::path(
    delete,
    path = "/v1/jobs/{job}",
    params(
        ("job" = String, Path, description = "the name of the job"),
        ("attempt" = Option<u32>, Query, description = "the attempt that has ended [default: the registered one]"),
    ),
    responses((status = 200, body = EndedJob)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn end(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(job): Path<String>,
    wanted: Result<Query<EndQuery>, QueryRejection>,
) -> Result<Json<EndedJob>, RouteError> {
    let Query(EndQuery { attempt }) = wanted?;
    let known = get(&shared, job.clone(), &by).await?;
    let used = match attempt.is_some_and(|attempt| attempt < known.attempt) {
        true => BTreeMap::new(),
        false => used_by(&shared, &known, &by).await?,
    };
    ask(&shared, |answer| JobMsg::End { job, attempt, used, by, answer }).await
}

// ---- what the handlers share ----

/// What the claimed reservations of a job have moved, for their credit. A ledger that cannot be read
/// costs a credit and does not keep a job from ending.
async fn used_by(
    shared: &ApiState,
    job: &WireJob,
    by: &ApiCaller,
) -> Result<BTreeMap<u64, Bytes>, RouteError> {
    let (answer, list) = oneshot::channel();
    let (user, name) = (Some(job.user), Some(job.job.clone()));
    let wanted = WantedReservations { user, job: name, ..WantedReservations::default() };
    submit(&shared.calendar, CalendarMsg::List { wanted, answer })?;
    let found = read_of(list).await?.reservations;
    let claimed = found.iter().filter(|of| of.claimed_ns.is_some() && of.phase_of.is_none());
    let mut used = BTreeMap::new();
    for of in claimed.take(CREDITED_MAX) {
        match bytes_used(shared, of, by).await {
            Ok(bytes) => drop(used.insert(of.id, bytes)),
            Err(_) => tracing::warn!(id = of.id, "no credit, as what was used cannot be read"),
        }
    }
    Ok(used)
}

async fn get(shared: &ApiState, job: String, by: &ApiCaller) -> Result<WireJob, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::Job(JobMsg::Get { job, by: by.clone(), answer }))?;
    read_of(outcome).await?.map_err(|report| (*report).into())
}

async fn ask<T>(
    shared: &ApiState,
    msg: impl FnOnce(CalendarReply<T>) -> JobMsg,
) -> Result<Json<T>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::Job(msg(answer)))?;
    let outcome = outcome.await.map_err(|_| shutting_down())?;
    outcome.map(Json).map_err(|report| (*report).into())
}

/// The most bytes of a job to be registered: 65,536 nodes of names of 63 bytes.
pub(super) const BYTES_MAX: usize = 5 << 20;
/// The most claimed reservations of a job that get a credit at its end: each is a read of the ledger.
const CREDITED_MAX: usize = 64;
