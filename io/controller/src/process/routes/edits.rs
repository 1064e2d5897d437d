//! Adds, changes, removes or moves one rule: for pages and programs that do not edit texts.
//!
//! ```text
//!   POST /v1/rules/edits ─► text in force ─ edit ─► text ─► put in force over that version
//!                               ▲                                    │ changed by others
//!                               └────────────────────────────────────┘
//! ```

use api::{ErrorCode, ErrorReport, RuleChange, WireRules};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;

use super::{
    RouteError, RouteQuery, TaggedRules, in_force, invalid, put_in_force, refusal_of, tagged,
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
    ),
    extensions(("x-error-codes" = json!([
        "invalid_rules",
        "not_found",
        "version_conflict",
        "already_exists",
        "contended"
    ]))),
)]
pub(super) async fn edit(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    headers: HeaderMap,
    change: Result<Json<RuleChange>, JsonRejection>,
) -> Result<TaggedRules, RouteError> {
    let Json(change) = change?;
    let wanted = version_to_match(&headers)?.map(str::to_owned);
    let edit = change.to_edit().map_err(|why| invalid("keys", why))?;
    for _ in 0..TRIES {
        let rules = in_force(&shared);
        let text = edit.apply(&rules.text).map_err(|why| ErrorReport::of_edit(&why))?;
        let over = wanted.clone().unwrap_or_else(|| rules.version.clone());
        match put_in_force(&shared, text, Some(over), by.clone()).await? {
            Ok(()) => return Ok(tagged(&in_force(&shared))),
            Err(RulePublishError::Stale { .. }) if wanted.is_none() => {}
            Err(why) => return Err(refusal_of(&why)),
        }
    }
    let message = "not changed: the rules were changed by others during 8 attempts; retry";
    Err(RouteError::new(ErrorCode::Contended, message))
}

/// The number of attempts while others change the rules.
const TRIES: usize = 8;
