//! The report of one job: usage from the ledger, causes of delay from the proxies.
//!
//! ```text
//!   job, from, to ─► ledger ─► none: 404 ─► the caller's own? 403 ─┬─ delayed? ─► proxies
//!                                                                  └─► WireJobReport ◄──┘
//! ```

use api::{ErrorCode, QueryKind, QueryReply, Why, WhyQuery, WireJobReport};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use model::Time;
use tokio::sync::oneshot;

use super::{
    RouteError, RouteQuery, invalid, shutting_down, submit, time_of, truncated, visible_job, why,
};
use crate::process::ApiState;
use crate::process::access::ApiCaller;
use crate::process::{report, usage};

/// The report of a job in a span of time: when, how much, its delays, the pattern of its
/// requests, concurrent jobs, and what would make it faster.
///
/// `from` and `to` are seconds since 1970, `now`, a time ago such as `-1h`, or a date with its
/// zone such as `2026-11-23T14:00Z`. A caller of role user sees the jobs in which all requests
/// were its own, one of role job such a job that is itself.
#[utoipa::path(
    get,
    path = "/v1/report",
    params(
        ("job" = String, Query, description = "the job; empty for requests without one"),
        ("from" = Option<String>, Query, description = "start of the span [default: -7d]"),
        ("to" = Option<String>, Query, description = "end of the span [default: now]"),
    ),
    responses(
        (status = 200, body = WireJobReport),
    ),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn of_job(
    State(shared): RouteQuery,
    Extension(caller): Extension<ApiCaller>,
    asked: Result<Query<JobReportQuery>, QueryRejection>,
) -> Result<Json<WireJobReport>, RouteError> {
    let Query(asked) = asked?;
    let (job, now) = (asked.job, shared.clock.now());
    visible_job(&caller, Some(job.clone()))?;
    let from = time_of("from", asked.from.as_deref().unwrap_or("-7d"), now)?;
    let to = time_of("to", asked.to.as_deref().unwrap_or("now"), now)?;
    if from > to {
        let seconds = |time: model::Time| time.as_nanos() / 1_000_000_000;
        let message = format!("from {} is after to {}", seconds(from), seconds(to));
        return Err(invalid("from", message));
    }
    let (answer, found) = oneshot::channel();
    let ask = usage::UsageMsg::Job { job: job.clone(), from, to, answer };
    submit(&shared.usage, ask)?;
    let found = found.await.map_err(|_| shutting_down())?;
    let found =
        found.map_err(|wrong| RouteError::new(ErrorCode::StoreFailed, wrong.to_string()))?;
    if found.points.is_empty() {
        let message = format!(
            "job {:?} had no requests in this time span; sluice usage --by job lists jobs",
            truncated(&job)
        );
        return Err(RouteError::new(ErrorCode::NotFound, message).at("job"));
    }
    let owner = match found.users[..] {
        [user] => Some(user),
        _ => None,
    };
    if !caller.may_see(owner) {
        let message = format!(
            "{} has role {} and sees its own jobs only, and job {:?} is not",
            caller.name,
            caller.role,
            truncated(&job)
        );
        return Err(RouteError::new(ErrorCode::PermissionDenied, message).at("job"));
    }
    let mut made = report::summary(&job, &found, now);
    if made.counters.delayed > 0 {
        let query = WhyQuery { job: Some(job), ..WhyQuery::default() };
        let heard = why::query_proxies(&shared, QueryKind::Why(query)).await?;
        let mut all = Why::default();
        for (proxy, answer) in heard.answers {
            if let QueryReply::Why(answer) = answer {
                all.merge(&proxy, *answer);
            }
        }
        report::add_delay_causes(&mut made, &all, &heard.unanswered);
    }
    Ok(Json(made))
}

/// Refuses a job of which other users had requests in a span, as their usage is part of its.
pub(super) async fn check_owner(
    shared: &ApiState,
    caller: &ApiCaller,
    job: &str,
    from: Time,
    to: Time,
) -> Result<(), RouteError> {
    let (answer, found) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Job { job: job.into(), from, to, answer })?;
    let found = found.await.map_err(|_| shutting_down())?;
    let found =
        found.map_err(|wrong| RouteError::new(ErrorCode::StoreFailed, wrong.to_string()))?;
    match found.users.iter().all(|user| caller.may_see(Some(*user))) {
        true => Ok(()),
        false => {
            let message =
                format!("job {job} is also another user's, and {} sees its own", caller.name);
            Err(RouteError::new(ErrorCode::PermissionDenied, message).at("job"))
        }
    }
}

/// The query parameters of a job's report.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobReportQuery {
    job: String,
    from: Option<String>,
    to: Option<String>,
}
