//! Tokens, and the audit log.
//!
//! ```text
//!   POST, DELETE /v1/tokens ─► store's thread: on record ─► in force at once ─► audit.log
//!   GET /v1/audit ─► audit.log, on a thread that may block
//! ```

use api::{AuditLines, ErrorCode, MadeToken, NewToken, Tokens};
use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use tokio::sync::oneshot;

use super::{RouteError, RouteQuery, invalid, shutting_down, submit, time_of};
use crate::clock::system_time;
use crate::process::access::ApiCaller;
use crate::process::records;

/// The tokens on record: names and roles, never the tokens themselves.
#[utoipa::path(get, path = "/v1/tokens", responses((status = 200, body = Tokens)))]
pub(super) async fn tokens(State(shared): RouteQuery) -> Json<Tokens> {
    Json(shared.access.tokens().report())
}

/// Creates a token. Its text is returned this once; only its hash is stored.
///
/// Once there is a token every caller needs one, so the first must have role admin.
#[utoipa::path(
    post,
    path = "/v1/tokens",
    request_body = NewToken,
    responses(
        (status = 200, body = MadeToken),
    ),
    extensions(("x-error-codes" = json!(["already_exists", "last_admin_token", "limit_reached"]))),
)]
pub(super) async fn make_token(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    new: Result<Json<NewToken>, JsonRejection>,
) -> Result<Json<MadeToken>, RouteError> {
    let Json(new) = new?;
    let (answer, outcome) = oneshot::channel();
    submit(&shared.store, records::StoreMsg::MakeToken { new, by, answer })?;
    outcome.await.map_err(|_| shutting_down())?.map(Json).map_err(|why| why.report().into())
}

/// Revokes a token: it is not valid from now on.
#[utoipa::path(
    delete,
    path = "/v1/tokens/{name}",
    params(("name" = String, Path, description = "the token")),
    responses(
        (status = 200, description = "the remaining tokens", body = Tokens),
    ),
    extensions(("x-error-codes" = json!(["not_found", "last_admin_token"]))),
)]
pub(super) async fn revoke_token(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(name): Path<String>,
) -> Result<Json<Tokens>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.store, records::StoreMsg::RevokeToken { name, by, answer })?;
    outcome.await.map_err(|_| shutting_down())?.map(Json).map_err(|why| why.report().into())
}

/// The audit log, oldest first: changes that this controller accepted while it was the leader.
///
/// `since` is seconds since 1970, `now`, a time ago such as `-1h`, or a date with its zone such as
/// `2026-11-23T14:00Z`. Of more lines than `limit` the newest are returned.
#[utoipa::path(
    get,
    path = "/v1/audit",
    params(
        ("since" = Option<String>, Query, description = "start of the log [default: everything]"),
        ("limit" = Option<u64>, Query, description = "maximum number of lines, at most 1000 [default: 1000]"),
    ),
    responses(
        (status = 200, body = AuditLines),
    )
)]
pub(super) async fn audit(
    State(shared): RouteQuery,
    span: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<AuditLines>, RouteError> {
    let Query(AuditQuery { since, limit }) = span?;
    let since = time_of("since", since.as_deref().unwrap_or("0"), system_time())?;
    let limit = limit.unwrap_or(LINES_MAX);
    if !(1..=LINES_MAX).contains(&limit) {
        let message = format!("limit: {limit} is not between 1 and {LINES_MAX}");
        return Err(invalid("limit", message));
    }
    let since_s = since.as_nanos().div_ceil(1_000_000_000);
    let read = move || shared.access.audit.read(since_s, limit);
    let lines = tokio::task::spawn_blocking(read).await.map_err(|_| shutting_down())?;
    let failed = |why| {
        let message = format!("cannot read the audit log: {why}");
        RouteError::new(ErrorCode::StoreFailed, message)
    };
    lines.map(Json).map_err(failed)
}

/// The query parameters of the audit log.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    since: Option<String>,
    limit: Option<usize>,
}

/// The most lines of one reply.
const LINES_MAX: usize = 1_000;
