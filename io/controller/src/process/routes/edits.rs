//! Adds, changes, removes or moves one rule: for pages and programs that do not edit texts.
//!
//! ```text
//!   POST /v1/rules/edits ─► text in force ─ edit ─► text ─► put in force over that version
//!                               ▲                                    │ changed by others
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

/// Starts, changes, stops or ranks one rule at every proxy; the rest of the text does not change.
///
/// With `If-Match` only if the rules have that version; without it, whatever their version.
#[utoipa::path(
    post,
    path = "/v1/rules/edits",
    params(("If-Match" = Option<String>, Header, description = "the version to change")),
    request_body = RuleChange,
    responses(
        (status = 200, description = "the rules now in force", body = WireRules),
        (status = 400, description = "an error in the rule, with its line and a caret", body = ErrorReport),
        (status = 404, description = "no rule of that name", body = ErrorReport),
        (status = 409, description = "the rules were changed by others, or a rule of that name exists", body = ErrorReport),
        (status = 413, description = "the rules are too long for a record", body = ErrorReport),
        (status = 415, description = "the body is not JSON", body = ErrorReport),
        (status = 422, description = "not a change of a rule", body = ErrorReport),
        (status = 500, description = "the rules cannot be stored", body = ErrorReport),
        (status = 503, description = "the controller is overloaded; retry in 1 s", body = ErrorReport),
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
    let message = "not changed: the rules were changed by others during 8 attempts; retry".into();
    Err(refusal(StatusCode::SERVICE_UNAVAILABLE, message))
}

/// The number of attempts while others change the rules.
const TRIES: usize = 8;
