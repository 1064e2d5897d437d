//! Causes of delay over all proxies, delayed subjects, and current activity.
//!
//! ```text
//!   GET /v1/why, /v1/live ─► every proxy is queried, and waited for (fan_out.rs) ─► merged
//!   GET /v1/why           ─► the reservations of these subjects, and those that divide slots
//!   GET /v1/why/top       ─► the ledger's sums of delays by subject
//! ```

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use api::{
    DelayRow, DelayTable, ErrorCode, LiveUsage, QueryKind, QueryReply, SlotHolder, Why,
    WhyDivision, WhyQuery, WireReservation, WireReservationState, WireReservations,
};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use tokio::sync::oneshot;

use super::{
    ApiState, RouteError, RouteQuery, kind_of, plan_actor, submit, sums_by, time_of, visible_job,
};
use crate::process::access::ApiCaller;
use crate::process::calendar::{CalendarMsg, WantedReservations};
use crate::process::fan_out::QueryReplies;

/// The causes that delay a job, a user or the users of a limit, at every proxy: now, and since
/// each proxy started. With the reservations of the job or user, and those of others that leave it
/// a share of a target's slots. A caller of role user sees its own jobs and reservations only, one of
/// role job its own job.
#[utoipa::path(
    get,
    path = "/v1/why",
    params(
        ("job" = Option<String>, Query, description = "the job; empty for requests without one"),
        ("user" = Option<u32>, Query, description = "the user, by number"),
        ("limit" = Option<String>, Query, description = "the rule, meter or decay"),
    ),
    responses(
        (status = 200, body = Why),
    )
)]
pub(super) async fn why(
    State(shared): RouteQuery,
    Extension(caller): Extension<ApiCaller>,
    query: Result<Query<WhyQuery>, QueryRejection>,
) -> Result<Json<Why>, RouteError> {
    let Query(mut query) = query?;
    query.user = query.user.or(caller.user);
    query.job = visible_job(&caller, query.job)?;
    if !caller.may_see(query.user) {
        let (name, role) = (&caller.name, caller.role);
        let message = format!("{name} has role {role} and sees its own jobs only");
        return Err(RouteError::new(ErrorCode::PermissionDenied, message).at("user"));
    }
    let heard = query_proxies(&shared, QueryKind::Why(query.clone())).await?;
    let t_ns = uptime(&shared);
    let mut all = Why { t_ns, query, unanswered: heard.unanswered, ..Why::default() };
    all.scheduling = heard.answers.is_empty();
    for (proxy, answer) in heard.answers {
        if let QueryReply::Why(answer) = answer {
            all.merge(&proxy, *answer);
        }
    }
    all.arrange();
    if all.query.limit.is_none() {
        all.calendar = reservations_for(&shared, &all).await;
        if let Some(found) = &mut all.calendar {
            found.reservations.retain(|of| sees(&caller, of));
        }
        name_holders(&shared, &caller, &mut all.divisions).await;
    }
    Ok(Json(all))
}

/// The subjects that limits and caps on slots delayed in a span of time, the longest delay first.
///
/// Delays are counted by the minute, older ones in coarser steps, like usage.
#[utoipa::path(
    get,
    path = "/v1/why/top",
    params(
        ("by" = Option<String>, Query, description = "job (the default), user, group, project, class, export, proxy or kind"),
        ("since" = Option<String>, Query, description = "a time ago, or seconds since 1970 [default: 1h]"),
    ),
    responses(
        (status = 200, body = DelayTable),
    )
)]
pub(super) async fn top(
    State(shared): RouteQuery,
    span: Result<Query<DelayQuery>, QueryRejection>,
) -> Result<Json<DelayTable>, RouteError> {
    let Query(DelayQuery { by, since }) = span?;
    let by = by.unwrap_or_else(|| "job".into());
    let kind = kind_of(&by)?;
    let to = shared.clock.now();
    let from = time_of("since", since.as_deref().unwrap_or("1h"), to)?;
    let sums = sums_by(&shared, kind, from, to).await?;
    let mut rows: Vec<_> = sums.iter().filter(|(_, sums)| sums.delayed > 0).collect();
    rows.sort_by_key(|(name, sums)| (Reverse(sums.delayed_ns), *name));
    let omitted = rows.len().saturating_sub(ROWS_MAX) as u64;
    let row = |(name, sums): (&String, &model::Service)| DelayRow {
        name: name.clone(),
        delayed: sums.delayed,
        delayed_ns: sums.delayed_ns,
        delayed_bytes: sums.delayed_bytes,
        bytes: sums.read_bytes.saturating_add(sums.written_bytes),
    };
    let rows = rows.into_iter().take(ROWS_MAX).map(row).collect();
    let seconds = |time: model::Time| time.as_nanos() / 1_000_000_000;
    Ok(Json(DelayTable { by, from_s: seconds(from), to_s: seconds(to), rows, omitted }))
}

/// The current activity of every proxy: a sample for `sluice top`.
#[utoipa::path(
    get,
    path = "/v1/live",
    responses(
        (status = 200, body = LiveUsage),
    )
)]
pub(super) async fn live(State(shared): RouteQuery) -> Result<Json<LiveUsage>, RouteError> {
    let heard = query_proxies(&shared, QueryKind::Live).await?;
    let sample = |(proxy, answer): (std::sync::Arc<str>, QueryReply)| match answer {
        QueryReply::Live(sample) => Some(api::LiveSample { proxy: proxy.to_string(), ..*sample }),
        QueryReply::Why(_) => None,
    };
    Ok(Json(LiveUsage {
        t_ns: uptime(&shared),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        samples: heard.answers.into_iter().filter_map(sample).collect(),
        unanswered: heard.unanswered,
    }))
}

/// The query parameters for delays.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelayQuery {
    by: Option<String>,
    since: Option<String>,
}

/// The reservations for the queried requests: those of the job or user, and of a job also those that
/// are for all requests of its users.
async fn reservations_for(shared: &ApiState, why: &Why) -> Option<WireReservations> {
    let WhyQuery { job, user, .. } = &why.query;
    let mut found = listed(shared, *user, job.clone()).await?;
    if job.as_ref().is_some_and(|job| !job.is_empty()) {
        let of_job = why.subjects.iter().map(|subject| subject.uid);
        let users: BTreeSet<u32> = user.map_or_else(|| of_job.collect(), |user| [user].into());
        for user in users.into_iter().take(USERS_MAX) {
            let more = listed(shared, Some(user), Some(String::new())).await?;
            found.reservations.extend(more.reservations);
            found.omitted += more.omitted;
        }
    }
    found.omitted += found.reservations.len().saturating_sub(Why::RESERVATIONS_MAX) as u64;
    found.reservations.truncate(Why::RESERVATIONS_MAX);
    Some(found)
}

/// Whether a caller may see a reservation.
fn sees(caller: &ApiCaller, of: &WireReservation) -> bool {
    caller.may_see_job(Some(of.user), of.job.as_deref().unwrap_or_default())
}

/// Names the active reservations of each divided target that the caller may see, and counts others.
async fn name_holders(shared: &ApiState, caller: &ApiCaller, divisions: &mut [WhyDivision]) {
    if divisions.is_empty() {
        return;
    }
    let Some(all) = listed(shared, None, None).await else { return };
    let is_active = |of: &&WireReservation| of.state == WireReservationState::Active;
    let active: Vec<_> = all.reservations.iter().filter(is_active).collect();
    for division in divisions {
        let there = active.iter().filter(|of| of.target == division.target);
        let count = there.clone().count();
        let holder =
            |of: &&WireReservation| SlotHolder { id: of.id, job: of.job.clone(), user: of.user };
        let seen = there.filter(|of| sees(caller, of));
        division.holders = seen.take(WhyDivision::HOLDERS_MAX).map(holder).collect();
        division.others = (count - division.holders.len()) as u64;
    }
}

/// Reservations that have not ended. What delays a job is to be answered also while the calendar
/// waits for its store: then without them.
async fn listed(
    shared: &ApiState,
    user: Option<u32>,
    job: Option<String>,
) -> Option<WireReservations> {
    let pages = async {
        let mut all = WireReservations::default();
        let mut wanted = WantedReservations { user, job, ..WantedReservations::default() };
        loop {
            let (answer, list) = oneshot::channel();
            let msg = CalendarMsg::List { wanted: wanted.clone(), answer };
            submit(&shared.calendar, msg).ok()?;
            let page = list.await.ok()?;
            all.reservations.extend(page.reservations);
            match page.next {
                Some(next) => wanted.after = next,
                None => return Some(all),
            }
        }
    };
    tokio::time::timeout(CALENDAR_TIME_MAX, pages).await.ok()?
}

pub(super) async fn query_proxies(
    shared: &ApiState,
    question: QueryKind,
) -> Result<QueryReplies, RouteError> {
    let (answer, heard) = oneshot::channel();
    submit(&shared.plan, plan_actor::PlanMsg::Query(question, answer))?;
    // Above the bound of queries at a time the plan drops it.
    heard.await.map_err(|_| {
        let message = "too many queries to the proxies at a time; retry in 1 s";
        RouteError::new(ErrorCode::Overloaded, message)
    })
}

fn uptime(shared: &ApiState) -> u64 {
    u64::try_from(shared.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The most users of one job whose reservations are looked up.
const USERS_MAX: usize = 16;
/// The time limit of an answer of the calendar.
const CALENDAR_TIME_MAX: Duration = Duration::from_secs(2);
/// The most rows of one table.
const ROWS_MAX: usize = 1_000;
