//! One rule started, changed, stopped or ranked: for pages and programs that do not edit texts.
//!
//! ```text
//!   POST /v1/rules/edits ─► text in force ─ edit ─► text ─► put in force over that version
//!                               ▲                                    │ others were faster
//!                               └────────────────────────────────────┘
//! ```

use api::{ErrorReport, RuleChange, WireRules};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use model::RuleEditError;

use super::{
    RouteError, RouteQuery, TaggedRules, in_force, put_in_force, refusal, refusal_of, tagged,
};
use super::{RulePublishError, version_to_match};
use crate::process::access::ApiCaller;

/// Starts, changes, stops or ranks one rule at every proxy; all else in the text stays as it is.
///
/// With `If-Match` only if the rules are of that version; without it, whatever they are.
#[utoipa::path(
    post,
    path = "/v1/rules/edits",
    params(("If-Match" = Option<String>, Header, description = "the version that is changed")),
    request_body = RuleChange,
    responses(
        (status = 200, description = "the rules as they are now", body = WireRules),
        (status = 400, description = "what cannot be, with its line and a caret", body = ErrorReport),
        (status = 404, description = "no rule of that name", body = ErrorReport),
        (status = 409, description = "other rules by now, or one of that name", body = ErrorReport),
        (status = 413, description = "more text than a record takes", body = ErrorReport),
        (status = 415, description = "no JSON", body = ErrorReport),
        (status = 422, description = "not such a message", body = ErrorReport),
        (status = 500, description = "they cannot be kept", body = ErrorReport),
        (status = 503, description = "too much to do: come again", body = ErrorReport),
    )
)]
pub(super) async fn edit(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    headers: HeaderMap,
    change: Result<Json<RuleChange>, JsonRejection>,
) -> Result<TaggedRules, RouteError> {
    let Json(change) = change.map_err(|why| refusal(why.status(), why.body_text()))?;
    let wanted = version_to_match(&headers)?.map(str::to_owned);
    let edit = change.to_edit().map_err(|why| refusal(StatusCode::BAD_REQUEST, why))?;
    for _ in 0..TRIES {
        let rules = in_force(&shared);
        let text = edit.apply(&rules.text).map_err(|why| {
            let status = match &why {
                RuleEditError::NoRule { .. } => StatusCode::NOT_FOUND,
                RuleEditError::Exists { .. } => StatusCode::CONFLICT,
                _ => StatusCode::BAD_REQUEST,
            };
            refusal(status, why.to_string())
        })?;
        let over = wanted.clone().unwrap_or_else(|| rules.version.clone());
        match put_in_force(&shared, text, Some(over), by.clone()).await? {
            Ok(()) => return Ok(tagged(&in_force(&shared))),
            Err(RulePublishError::Stale { .. }) if wanted.is_none() => {}
            Err(why) => return Err(refusal_of(&why)),
        }
    }
    let message = "others change the rules all the time: come again".into();
    Err(refusal(StatusCode::SERVICE_UNAVAILABLE, message))
}

/// How often it begins again after others were faster.
const TRIES: usize = 8;
