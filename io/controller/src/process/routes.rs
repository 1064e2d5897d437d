//! The handlers of a controller's API, by path.
//!
//! ```text
//!   body, bounded ─► checked: 4xx names the value ─► plan | store | ledger ─► reply
//!                                                      └ its queue is full: 503, retry
//! ```

mod access;
mod described;
mod edits;
mod events;
mod jobs;
mod ledger;
mod metrics;
mod page;
mod proxies;
mod report;
mod reservations;
mod used;
mod why;

use std::collections::BTreeMap;
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use api::{ControllerStatus, ErrorCode, ErrorReport, Role, UsageRow, UsageTable, WireRules, path};
use axum::extract::rejection::{QueryRejection, StringRejection};
use axum::extract::{DefaultBodyLimit, Extension, Query, Request, State};
use axum::http::header::ETAG;
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::{RouteError, version_to_match};
use model::{JobId, Moment, MomentError, Service, Time};
use tokio::sync::oneshot;
use utoipa::OpenApi;

use super::access::ApiCaller;
use super::calendar::CalendarMsg;
use super::queue::MsgQueue;
use super::records::{PublishedRules, RulePublishError};
use super::rights::{self, Routes};
use super::usage;
use super::{ApiState, plan_actor};
use crate::ledger::SubjectKind;
use crate::store::{RECORD_BYTES_MAX, StoreError};

type RouteQuery = State<Arc<ApiState>>;
/// Rules, and their version as the header ETag.
type TaggedRules = ([(HeaderName, String); 1], Json<WireRules>);

/// The paths and their handlers.
pub(super) fn router(shared: Arc<ApiState>) -> Router {
    let rules = get(rules).put(set_rules).layer(DefaultBodyLimit::max(RECORD_BYTES_MAX));
    let job = get(jobs::job).put(jobs::register).delete(jobs::end);
    let job = job.layer(DefaultBodyLimit::max(jobs::BYTES_MAX));
    Routes::new()
        .route(path::STATUS, get(status))
        .route(path::RULES, rules)
        .route(path::RULE_EDITS, post(edits::edit))
        .route(path::PROXIES, get(proxies::proxies))
        .route(path::PROXY, delete(proxies::forget))
        .route(path::REPORT, post(proxies::report).layer(DefaultBodyLimit::max(proxies::BYTES_MAX)))
        .route(path::USAGE, get(used))
        .route(path::WHY, get(why::why))
        .route(path::WHY_TOP, get(why::top))
        .route(path::JOB_REPORT, get(report::of_job))
        .route(path::LIVE, get(why::live))
        .route(path::LEDGER_CHANGES, get(ledger::changes))
        .route(path::LEDGER_FILE, get(ledger::file))
        .route(path::METRICS, get(metrics::page))
        .route(path::TOKENS, get(access::tokens).post(access::make_token))
        .route(path::TOKEN, delete(access::revoke_token))
        .route(path::AUDIT, get(access::audit))
        .route(path::DECAYS, get(events::decays))
        .route(path::RESERVATIONS, get(reservations::list).post(reservations::request))
        .route(path::RESERVATION, get(reservations::reservation).delete(reservations::remove))
        .route(path::RESERVATION_CLAIM, post(reservations::claim))
        .route(path::RESERVATION_PHASES, post(reservations::add_phase))
        .route(path::RESERVATION_EXTEND, post(reservations::extend))
        .route(path::RESERVATION_MOVE, post(reservations::move_start))
        .route(path::RESERVATION_FINISH, post(reservations::finish))
        .route(path::JOBS, get(jobs::list))
        .route(path::JOB, job)
        .route(path::JOB_TOKEN, post(jobs::token))
        .route(path::CALENDAR, get(reservations::calendar))
        .route(path::CREDIT, get(reservations::credit))
        .route(path::EVENTS, get(events::events))
        .route(path::OPENAPI, get(|| async { Json(described::description()) }))
        .into_router()
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn(described::check))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), rights::check))
        // The page has no data of its own: it calls the API as its user.
        .merge(page::router())
        .layer(axum::middleware::from_fn(with_time_limit))
        .with_state(shared)
}

/// The OpenAPI description of a controller's API as JSON.
pub fn openapi() -> String {
    serde_json::to_string_pretty(described::description()).expect("a description is plain data")
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluice controller API",
        description = "One controller for all proxies: curl http://127.0.0.1:5650/v1/status.",
    ),
    components(schemas(ErrorReport)),
    paths(
        status,
        rules,
        set_rules,
        edits::edit,
        proxies::proxies,
        proxies::forget,
        proxies::report,
        used,
        events::decays,
        events::events,
        why::why,
        why::top,
        why::live,
        report::of_job,
        ledger::changes,
        ledger::file,
        metrics::page,
        reservations::list,
        reservations::request,
        reservations::reservation,
        reservations::remove,
        reservations::claim,
        reservations::add_phase,
        reservations::extend,
        reservations::move_start,
        reservations::finish,
        jobs::list,
        jobs::job,
        jobs::register,
        jobs::token,
        jobs::end,
        reservations::calendar,
        reservations::credit,
        access::tokens,
        access::make_token,
        access::revoke_token,
        access::audit
    )
)]
struct Description;

/// The status of the controller.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = ControllerStatus)))]
async fn status(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
) -> Result<Json<ControllerStatus>, RouteError> {
    let view = plan_view(&shared).await?;
    let mut names: Vec<_> = view.proxies.iter().map(|(_, member)| &member.name).collect();
    names.sort();
    names.dedup();
    Ok(Json(ControllerStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        t_ns: view.now.as_nanos(),
        term: shared.term,
        is_leader: true,
        role: Some(by.role),
        leader: None,
        replication_lag_ns: None,
        store: shared.store_location.clone(),
        listeners: shared.listeners.clone(),
        rules: in_force(&shared).version.clone(),
        proxies: names.len() as u64,
        scopes: view.scopes as u64,
    }))
}

/// The rules of all proxies. The header ETag is their version.
#[utoipa::path(get, path = "/v1/rules", responses((status = 200, body = WireRules)))]
async fn rules(State(shared): RouteQuery) -> TaggedRules {
    tagged(&in_force(&shared))
}

/// Puts a rule file in force at every proxy: its TOML text is the body.
///
/// The rules are stored when this call returns, and are sent to each proxy at once. With
/// `If-Match` they replace only the rules of that version: read, change, put, and retry on 409.
/// A refused call changes nothing. `save` is accepted and has no effect: rules are always stored.
#[utoipa::path(
    put,
    path = "/v1/rules",
    params(
        ("If-Match" = Option<String>, Header, description = "the version to replace"),
        ("save" = Option<bool>, Query, description = "as at a proxy; without effect here, because rules are always stored"),
    ),
    request_body(content = String, content_type = "application/toml"),
    responses(
        (status = 200, description = "the rules now in force", body = WireRules),
    ),
    extensions(("x-error-codes" = json!(["invalid_rules", "version_conflict"]))),
)]
async fn set_rules(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    saving: Result<Query<PutRulesQuery>, QueryRejection>,
    headers: HeaderMap,
    text: Result<String, StringRejection>,
) -> Result<TaggedRules, RouteError> {
    saving?;
    described::is_text(&headers)?;
    let over = version_to_match(&headers)?.map(str::to_owned);
    let text = text?;
    match put_in_force(&shared, text, over, by).await? {
        Ok(()) => Ok(tagged(&in_force(&shared))),
        Err(why) => Err(refusal_of(&why)),
    }
}

/// Puts rules in force, in place of the version `over` if one is named.
async fn put_in_force(
    shared: &ApiState,
    text: String,
    over: Option<String>,
    by: ApiCaller,
) -> Result<Result<(), RulePublishError>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::SetRules { text, over, by, answer })?;
    outcome.await.map_err(|_| shutting_down())
}

fn refusal_of(why: &RulePublishError) -> RouteError {
    let code = match why {
        RulePublishError::Wrong(error) => return ErrorReport::of_rules(error).into(),
        RulePublishError::Stale { .. } => {
            return RouteError::new(ErrorCode::VersionConflict, why.to_string()).at("If-Match");
        }
        RulePublishError::Promised(_) => ErrorCode::DoesNotFit,
        RulePublishError::ShuttingDown => return shutting_down(),
        RulePublishError::Store(StoreError::TooLarge { .. }) => ErrorCode::TooLarge,
        RulePublishError::Store(_) => ErrorCode::StoreFailed,
    };
    RouteError::new(code, why.to_string())
}

/// The query parameters of a PUT.
#[derive(serde::Deserialize)]
struct PutRulesQuery {
    #[serde(default, rename = "save")]
    _save: bool,
}

/// The usage in a span of time, by job, user, group, project, proxy or kind of operation.
///
/// `from` and `to` are seconds since 1970, `now`, a time ago such as `-1h`, or a date with its
/// zone such as `2026-11-23T14:00Z`. Usage is counted by the minute, older usage in coarser steps.
/// A caller of role user sees `by=user` only, and there its own usage; one of role job `by=job`, and
/// there its own.
#[utoipa::path(
    get,
    path = "/v1/usage",
    params(
        ("by" = Option<String>, Query, description = "job (the default), user, group, project, class, export, proxy or kind"),
        ("from" = Option<String>, Query, description = "start of the span [default: -1h]"),
        ("to" = Option<String>, Query, description = "end of the span [default: now]"),
        ("user" = Option<u32>, Query, description = "with by=user, this user only"),
    ),
    responses(
        (status = 200, body = UsageTable),
    )
)]
async fn used(
    State(shared): RouteQuery,
    Extension(caller): Extension<ApiCaller>,
    span: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Json<UsageTable>, RouteError> {
    let Query(span) = span?;
    let now = shared.clock.now();
    let by = span.by.as_deref().unwrap_or("job");
    let kind = kind_of(by)?;
    if span.user.is_some() && kind != SubjectKind::User {
        return Err(invalid("user", format!("user is valid with by=user only, not with by={by}")));
    }
    let only = match kind {
        SubjectKind::Job if caller.job.is_some() => caller.job.as_ref().map(JobId::to_string),
        SubjectKind::User if caller.job.is_none() => {
            visible_user(&caller, span.user)?.map(|user| user.to_string())
        }
        _ if caller.may_see(None) => None,
        _ => {
            let seen = if caller.job.is_some() { "job" } else { "user" };
            let (name, role) = (&caller.name, caller.role);
            let message = format!("{name} has role {role} and sees by={seen} only; add it");
            return Err(RouteError::new(ErrorCode::PermissionDenied, message).at("user"));
        }
    };
    let from = time_of("from", span.from.as_deref().unwrap_or("-1h"), now)?;
    let to = time_of("to", span.to.as_deref().unwrap_or("now"), now)?;
    if from > to {
        let seconds = |time: Time| time.as_nanos() / 1_000_000_000;
        let message = format!("from {} is after to {}", seconds(from), seconds(to));
        return Err(invalid("from", message));
    }
    if let Some(job) = &caller.job {
        report::check_owner(&shared, &caller, job.as_str(), from, to).await?;
    }
    let table = sums_by(&shared, kind, from, to).await?;
    let asked = |name: &str| only.as_deref().is_none_or(|only| name == only);
    let rows = table.iter().filter(|(name, service)| !service.is_zero() && asked(name));
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(name, service)| (std::cmp::Reverse(service.cost_ns), *name));
    let omitted = rows.len().saturating_sub(ROWS_MAX) as u64;
    let row =
        |(name, service): (&String, &Service)| UsageRow { name: name.clone(), service: *service };
    Ok(Json(UsageTable {
        by: by.into(),
        from_s: from.as_nanos() / 1_000_000_000,
        to_s: to.as_nanos() / 1_000_000_000,
        rows: rows.into_iter().take(ROWS_MAX).map(row).collect(),
        omitted,
    }))
}

/// What stands behind the `?` of a look at usage.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    by: Option<String>,
    from: Option<String>,
    to: Option<String>,
    user: Option<u32>,
}

// ---- what the handlers share ----

/// Returns the one user of whom is asked and may be seen: the caller's own, or if none is named
/// `None`, which is everybody.
fn visible_user(by: &ApiCaller, user: Option<u32>) -> Result<Option<u32>, RouteError> {
    let user = user.or(by.user.filter(|_| matches!(by.role, Role::User | Role::Job)));
    if by.may_see(user) {
        return Ok(user);
    }
    let whom = user.map_or("everybody".into(), |user| format!("user {user}"));
    let message = format!("{} has role {} and may not see {whom}", by.name, by.role);
    Err(RouteError::new(ErrorCode::PermissionDenied, message).at("user"))
}

/// Returns the one job of which is asked and may be seen: of a caller of role job its own.
fn visible_job(by: &ApiCaller, job: Option<String>) -> Result<Option<String>, RouteError> {
    let Some(own) = &by.job else { return Ok(job) };
    match job.filter(|job| job != own.as_str()) {
        None => Ok(Some(own.to_string())),
        Some(job) => {
            let message =
                format!("{} may see its own job only, not {:?}", by.name, truncated(&job));
            Err(RouteError::new(ErrorCode::PermissionDenied, message).at("job"))
        }
    }
}

fn kind_of(by: &str) -> Result<SubjectKind, RouteError> {
    BY.iter().find(|kind| kind.name() == by).copied().ok_or_else(|| {
        let known: Vec<_> = BY.iter().map(|kind| kind.name()).collect();
        let message = format!("by: {:?} is not one of {}", truncated(by), known.join(", "));
        invalid("by", message)
    })
}

/// The ledger's sums by subject.
async fn sums_by(
    shared: &ApiState,
    by: SubjectKind,
    from: Time,
    to: Time,
) -> Result<BTreeMap<String, Service>, RouteError> {
    let (answer, table) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Table { by, from, to, answer })?;
    let table = table.await.map_err(|_| shutting_down())?;
    table.map_err(|why| RouteError::new(ErrorCode::StoreFailed, why.to_string()))
}

async fn plan_view(shared: &ApiState) -> Result<plan_actor::PlanView, RouteError> {
    let (answer, view) = oneshot::channel();
    submit(&shared.plan, plan_actor::PlanMsg::View(answer))?;
    view.await.map_err(|_| shutting_down())
}

fn in_force(shared: &ApiState) -> Arc<PublishedRules> {
    shared.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn tagged(in_force: &PublishedRules) -> TaggedRules {
    let rules = WireRules { saved: true, ..WireRules::of(&in_force.text, &in_force.set) };
    ([(ETAG, rules.tag())], Json(rules))
}

/// Parses a point of time. The caller may be in another time zone, so a date must name its
/// own.
fn time_of(key: &str, text: &str, now: Time) -> Result<Time, RouteError> {
    let point = text.parse::<Moment>().and_then(|moment| moment.resolve_without_zone(now));
    point.map_err(|why| {
        let why = match why {
            MomentError::NotAMoment => {
                "not a time such as -1h, 1767225600 or 2026-11-23T14:00Z".into()
            }
            why => why.to_string(),
        };
        invalid(key, format!("{key}: {:?}: {why}", truncated(text)))
    })
}

/// Sends a message to a thread, unless its queue is full.
fn submit<T>(to: &MsgQueue<T>, ask: T) -> Result<(), RouteError> {
    to.try_send(ask).map_err(|why| match why {
        TrySendError::Full(_) => {
            RouteError::new(ErrorCode::Overloaded, "the controller is overloaded; retry in 1 s")
        }
        TrySendError::Disconnected(_) => shutting_down(),
    })
}

/// Waits for the calendar's reply to a read. It waits for the store, which may not answer for long.
async fn read_of<T>(reply: oneshot::Receiver<T>) -> Result<T, RouteError> {
    read_within(READ_TIME_MAX, reply).await
}

async fn read_within<T>(limit: Duration, reply: oneshot::Receiver<T>) -> Result<T, RouteError> {
    match tokio::time::timeout(limit, reply).await {
        Ok(reply) => reply.map_err(|_| shutting_down()),
        Err(_) => {
            let message = "the calendar of reservations waits for its store; retry in 5 s";
            Err(RouteError::new(ErrorCode::Overloaded, message))
        }
    }
}

fn shutting_down() -> RouteError {
    RouteError::new(ErrorCode::ShuttingDown, "the controller is shutting down")
}

/// Ends an exchange that takes too long, such as one whose body does not arrive.
async fn with_time_limit(request: Request, next: Next) -> Result<Response, RouteError> {
    let path = request.uri().path();
    let waits = path == path::EVENTS || path.starts_with(path::RESERVATIONS);
    if waits && request.method() == axum::http::Method::GET {
        // It waits for the time that the caller chose, and takes no body.
        return Ok(next.run(request).await);
    }
    match tokio::time::timeout(EXCHANGE_TIME_MAX, next.run(request)).await {
        Ok(response) => Ok(response),
        Err(_) => {
            let message =
                format!("the request was not complete within {} s", EXCHANGE_TIME_MAX.as_secs());
            Err(RouteError::new(ErrorCode::Timeout, message))
        }
    }
}

async fn not_found(uri: axum::http::Uri) -> RouteError {
    let message = format!("{:?} not found; see {}", truncated(uri.path()), path::OPENAPI);
    RouteError::new(ErrorCode::NotFound, message)
}

async fn method_not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> RouteError {
    let message = format!(
        "method {method} is not allowed at {:?}; see {}",
        truncated(uri.path()),
        path::OPENAPI
    );
    RouteError::new(ErrorCode::MethodNotAllowed, message)
}

/// The refusal of one parameter, header, name in the path or field.
fn invalid(at: &str, message: String) -> RouteError {
    RouteError::new(ErrorCode::InvalidArgument, message).at(at)
}

/// Cuts a wrong value to the length that a message repeats.
fn truncated(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(at, _)| &text[..at])
}

/// The kinds of subjects by which usage can be listed.
const BY: [SubjectKind; 8] = [
    SubjectKind::Job,
    SubjectKind::User,
    SubjectKind::Group,
    SubjectKind::Project,
    SubjectKind::Class,
    SubjectKind::Export,
    SubjectKind::Proxy,
    SubjectKind::OpKind,
];
/// The most rows of one table.
const ROWS_MAX: usize = 10_000;
/// The longest that a read waits for the calendar: less than clients wait.
const READ_TIME_MAX: Duration = Duration::from_secs(3);
/// The longest that one exchange may take.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_that_the_calendar_does_not_answer_ends_with_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = |reply| runtime.block_on(read_within(Duration::ZERO, reply));
        let (answer, reply) = oneshot::channel::<u8>();
        assert!(read(reply).is_err());
        assert!(answer.send(1).is_err(), "nobody waits any more");
        let (answer, reply) = oneshot::channel();
        answer.send(7).unwrap();
        assert_eq!(read(reply).ok(), Some(7));
        let (_, reply) = oneshot::channel::<u8>();
        assert!(read(reply).is_err());
    }
}
