//! Reservations, the calendar and credits.
//!
//! ```text
//!   POST, DELETE … ─► calendar's thread: does it fit? ─► on record ─► reply
//!   GET …?wait=30s&until=active ─► as soon as it is active or has ended, or when the time is over
//! ```

use api::{
    AddedPhase, NewReservation, ReservationExtension, ReservationMove, WireCalendar, WireCredit,
    WireReservation, WireReservations,
};
use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use http::Peer;
use model::{Nanos, Time};
use reserve::CeilingSubject;
use tokio::sync::oneshot;

use super::used::{add_used, bytes_used};
use super::{
    RouteError, RouteQuery, invalid, read_of, shutting_down, submit, time_of, truncated,
    visible_job, visible_user,
};
use crate::process::ApiState;
use crate::process::access::ApiCaller;
use crate::process::calendar::{CalendarMsg, CalendarReply, ReservationChange, WantedReservations};

/// The query parameters of a list.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    user: Option<u32>,
    job: Option<String>,
    after: Option<u64>,
    #[serde(default)]
    ended: bool,
}

/// The query parameters of one reservation.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    until: Option<String>,
    wait: Option<String>,
}

/// The query parameters of the calendar.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpanQuery {
    from: Option<String>,
    to: Option<String>,
    target: Option<String>,
}

/// The query parameters of a credit.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreditQuery {
    user: Option<u32>,
    account: Option<String>,
}

/// The reservations that have not ended, by number, in pages of 1,000. A caller of role user sees its
/// own.
#[utoipa::path(
    get,
    path = "/v1/reservations",
    params(
        ("user" = Option<u32>, Query, description = "of this user only"),
        ("job" = Option<String>, Query, description = "of this job only"),
        ("after" = Option<u64>, Query, description = "the page after this number, which is `next` of the page before"),
        ("ended" = Option<bool>, Query, description = "with those that ended lately, in the last page [default: false]"),
    ),
    responses((status = 200, body = WireReservations)),
)]
pub(super) async fn list(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    wanted: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<WireReservations>, RouteError> {
    let Query(ListQuery { user, job, after, ended }) = wanted?;
    let user = visible_user(&by, user)?;
    let job = visible_job(&by, job)?;
    let after = after.unwrap_or(0);
    let wanted = WantedReservations { user, job, after, with_ended: ended };
    let (answer, list) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::List { wanted, answer })?;
    Ok(Json(read_of(list).await?))
}

/// Requests a reservation.
///
/// It is on record when this call returns: scheduled, or active soon. Without an export it is on the
/// target of all exports. One that does not fit is refused with the bottleneck, the next start and
/// the part that fits. With phases it starts where all of them fit, or is refused. A caller of role
/// user requests for itself only, and names no account, group or project.
#[utoipa::path(
    post,
    path = "/v1/reservations",
    request_body = NewReservation,
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found", "does_not_fit", "limit_reached"]))),
)]
pub(super) async fn request(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Extension(peer): Extension<Peer>,
    new: Result<Json<NewReservation>, JsonRejection>,
) -> Result<Json<WireReservation>, RouteError> {
    let Json(new) = new?;
    let (new, peer) = (Box::new(new), peer.uid());
    ask(&shared, |answer| CalendarMsg::Request { new, by, peer, answer }).await
}

/// A reservation. With `until=active` the reply is sent as soon as it is active or has ended, or
/// when `wait` is over.
#[utoipa::path(
    get,
    path = "/v1/reservations/{id}",
    params(
        ("id" = u64, Path, description = "the number of the reservation"),
        ("until" = Option<String>, Query, description = "active: wait until it is active or has ended"),
        ("wait" = Option<String>, Query, description = "with until, up to 60s [default: 30s]"),
    ),
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn reservation(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
    wanted: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Json<WireReservation>, RouteError> {
    let Query(WaitQuery { until, wait }) = wanted?;
    let id = number(&id)?;
    let patience = match (until.as_deref(), wait) {
        (None, None) => None,
        (Some("active"), wait) => Some(wait_of(wait.as_deref().unwrap_or("30s"))?),
        (None, Some(_)) => {
            return Err(invalid("until", "until is missing: use until=active".into()));
        }
        (Some(until), _) => {
            return Err(invalid("until", format!("until: {:?} is not active", truncated(until))));
        }
    };
    if let Some(patience) = patience {
        let by = by.clone();
        let active = ask(&shared, |answer| CalendarMsg::Watch { id, by, answer });
        if let Ok(active) = tokio::time::timeout(patience.to_duration(), active).await {
            return active;
        }
    }
    let (mut shown, is_waited_for) = (get(&shared, id, &by).await?, patience.is_some());
    if shown.claimed_ns.is_some() && !is_waited_for {
        shown.used_bytes = Some(bytes_used(&shared, &shown, &by).await?.get());
    }
    Ok(Json(shown))
}

/// Removes a reservation at any time; what follows it starts earlier. There is no credit.
#[utoipa::path(
    delete,
    path = "/v1/reservations/{id}",
    params(("id" = u64, Path, description = "the number of the reservation")),
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn remove(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
) -> Result<Json<WireReservation>, RouteError> {
    change(&shared, &id, ReservationChange::Remove, by).await
}

/// Tests a reservation for its owner. The first test that finds it active claims it: the time of the
/// reservation runs from then on. The first request of the job does the same.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/claim",
    params(("id" = u64, Path, description = "the number of the reservation")),
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn claim(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
) -> Result<Json<WireReservation>, RouteError> {
    change(&shared, &id, ReservationChange::Claim, by).await
}

/// Adds a phase to a reservation: higher rates for a part of its time, for a program that learns as it
/// runs when it needs them. The reservation is claimed, or has a guaranteed start and no claim window.
///
/// The reply is the phase, a reservation of its own that ends with the first. One that does not fit
/// within its tolerance is refused with the bottleneck, the next start and the part that fits.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/phases",
    params(("id" = u64, Path, description = "the number of the reservation")),
    request_body = AddedPhase,
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found", "does_not_fit", "limit_reached"]))),
)]
pub(super) async fn add_phase(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
    phase: Result<Json<AddedPhase>, JsonRejection>,
) -> Result<Json<WireReservation>, RouteError> {
    let Json(phase) = phase?;
    let (id, phase) = (number(&id)?, Box::new(phase));
    ask(&shared, |answer| CalendarMsg::AddPhase { id, phase, by, answer }).await
}

/// Lets a claimed reservation end later, if the time after its end is free.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/extend",
    params(("id" = u64, Path, description = "the number of the reservation")),
    request_body = ReservationExtension,
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found", "does_not_fit", "limit_reached"]))),
)]
pub(super) async fn extend(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
    more: Result<Json<ReservationExtension>, JsonRejection>,
) -> Result<Json<WireReservation>, RouteError> {
    let Json(ReservationExtension { more_ns }) = more?;
    change(&shared, &id, ReservationChange::Extend(Nanos::new(more_ns)), by).await
}

/// Has a reservation that has not begun start at another time, with its phases: as early as it fits from
/// `not_before_ns` on, or exactly then. Its own place counts as free meanwhile. The new start is
/// guaranteed. One that does not fit is refused and keeps its place.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/move",
    params(("id" = u64, Path, description = "the number of the reservation")),
    request_body = ReservationMove,
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found", "does_not_fit"]))),
)]
pub(super) async fn move_start(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
    to: Result<Json<ReservationMove>, JsonRejection>,
) -> Result<Json<WireReservation>, RouteError> {
    let Json(ReservationMove { not_before_ns, exact, by_ns }) = to?;
    if exact && by_ns.is_some() {
        return Err(invalid("by_ns", "by_ns and exact exclude each other".into()));
    }
    let to = reserve::MoveRequest {
        not_before: Time::from_nanos(not_before_ns.unwrap_or(0)),
        is_exact: exact,
        deadline: by_ns.map(Time::from_nanos),
    };
    change(&shared, &id, ReservationChange::Move(to), by).await
}

/// Ends a reservation early. If its owner has used enough of it since the claim, there is a credit
/// for the rest. What counts is the bytes of its job, or without a job of its user, as the ledger
/// counts them by the minute, up to those that its target has served. A job of that name that is also
/// another user's counts for nothing.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/finish",
    params(("id" = u64, Path, description = "the number of the reservation")),
    responses((status = 200, body = WireReservation)),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn finish(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(id): Path<String>,
) -> Result<Json<WireReservation>, RouteError> {
    let known = get(&shared, number(&id)?, &by).await?;
    let used = bytes_used(&shared, &known, &by).await?;
    change(&shared, &id, ReservationChange::Finish(used), by).await
}

/// What is promised of each target, as steps, what it gives, and what was used of it. A caller of
/// role user sees sums, and no names of rules.
#[utoipa::path(
    get,
    path = "/v1/calendar",
    params(
        ("from" = Option<String>, Query, description = "start of the span: seconds since 1970, or a date with its zone [default: now]"),
        ("to" = Option<String>, Query, description = "end of the span [default: in 60 days]"),
        ("target" = Option<String>, Query, description = "of this target only"),
    ),
    responses((status = 200, body = WireCalendar)),
)]
pub(super) async fn calendar(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    wanted: Result<Query<SpanQuery>, QueryRejection>,
) -> Result<Json<WireCalendar>, RouteError> {
    let Query(SpanQuery { from, to, target }) = wanted?;
    let now = shared.clock.now();
    let from = from.map_or(Ok(now), |from| time_of("from", &from, now))?;
    let until = to.as_deref().map_or(Ok(now + HORIZON), |to| time_of("to", to, now))?;
    if from >= until {
        return Err(invalid("to", format!("to {:?} is not after from", to.unwrap_or_default())));
    }
    let (answer, calendar) = oneshot::channel();
    let span = (from, until);
    submit(&shared.calendar, CalendarMsg::Promised { span, target, by, answer })?;
    let mut shown = read_of(calendar).await?;
    add_used(&shared, &mut shown, from, until).await?;
    Ok(Json(shown.calendar))
}

/// The credit of an account, or of a user: the caller, if none is named.
#[utoipa::path(
    get,
    path = "/v1/credit",
    params(
        ("user" = Option<u32>, Query, description = "the user"),
        ("account" = Option<String>, Query, description = "the account of the batch system"),
    ),
    responses((status = 200, body = WireCredit)),
)]
pub(super) async fn credit(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Extension(peer): Extension<Peer>,
    whose: Result<Query<CreditQuery>, QueryRejection>,
) -> Result<Json<WireCredit>, RouteError> {
    let Query(CreditQuery { user, account }) = whose?;
    let subject = match (user, account) {
        (Some(_), Some(_)) => {
            return Err(invalid("account", "name a user or an account, not both".into()));
        }
        (None, Some(_)) if by.user.is_some() => {
            let message = format!("{} has role {} and sees its own credit only", by.name, by.role);
            return Err(RouteError::new(api::ErrorCode::PermissionDenied, message).at("account"));
        }
        (None, Some(account)) => CeilingSubject::Account(account.into()),
        (user, None) => {
            let user = visible_user(&by, user)?.or(peer.uid());
            let user = user.ok_or_else(|| {
                invalid("user", "user is missing: name a user or an account".into())
            })?;
            CeilingSubject::User(user)
        }
    };
    let (answer, credit) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::Credit(subject, answer))?;
    Ok(Json(read_of(credit).await?))
}

// ---- what the handlers share ----

async fn change(
    shared: &ApiState,
    id: &str,
    change: ReservationChange,
    by: ApiCaller,
) -> Result<Json<WireReservation>, RouteError> {
    let id = number(id)?;
    ask(shared, |answer| CalendarMsg::Change { id, change, by, answer }).await
}

async fn ask(
    shared: &ApiState,
    msg: impl FnOnce(CalendarReply<WireReservation>) -> CalendarMsg,
) -> Result<Json<WireReservation>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.calendar, msg(answer))?;
    let outcome = outcome.await.map_err(|_| shutting_down())?;
    outcome.map(Json).map_err(|report| (*report).into())
}

async fn get(shared: &ApiState, id: u64, by: &ApiCaller) -> Result<WireReservation, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.calendar, CalendarMsg::Get { id, by: by.clone(), answer })?;
    read_of(outcome).await?.map_err(|report| (*report).into())
}

fn number(id: &str) -> Result<u64, RouteError> {
    id.parse().map_err(|_| {
        invalid("id", format!("{:?} is not the number of a reservation", truncated(id)))
    })
}

fn wait_of(text: &str) -> Result<Nanos, RouteError> {
    let span = text.parse::<Nanos>().ok().filter(|span| *span <= WAIT_MAX);
    span.ok_or_else(|| {
        invalid("wait", format!("wait: {:?} is not a time from 0s to 60s", truncated(text)))
    })
}

/// The longest that a reply is waited for.
const WAIT_MAX: Nanos = Nanos::from_secs(60);
/// The span of the calendar that is shown without another one.
const HORIZON: Nanos = Nanos::from_secs(60 * 86_400);
