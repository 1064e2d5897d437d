//! The OpenAPI description of a controller's calls, and the checks of every call by it.
//!
//! ```text
//!   call ─► names in the path are UTF-8? ─► names behind the `?` are described? 400 ─► rights, handler
//! ```

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::{ErrorCode, path};
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{Description, RouteError, invalid, truncated};

/// The description of all calls.
pub(super) fn description() -> &'static Value {
    static ALL: LazyLock<Value> = LazyLock::new(|| {
        let mut all = api::described(Description::openapi(), &ANY, &WITH_BODY);
        let what = "required once a token has been created: see docs/ACCESS.md";
        let bearer = json!({ "type": "http", "scheme": "bearer", "description": what });
        all["components"]["securitySchemes"] = json!({ "token": bearer });
        all["security"] = json!([{ "token": [] }]);
        all
    });
    &ALL
}

/// Refuses a call with a path or parameter that is not described.
pub(super) async fn check(request: Request, next: Next) -> Result<Response, RouteError> {
    let (mut parts, body) = request.into_parts();
    let names = Path::<BTreeMap<String, String>>::from_request_parts(&mut parts, &()).await;
    names.map_err(|why| RouteError::from(why).at("name"))?;
    if let Some(matched) = parts.extensions.get::<MatchedPath>() {
        let asked = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)?;
        let known = names_of(&parts.method, matched.as_str());
        if let Some((name, _)) = asked.0.iter().find(|(name, _)| !known.contains(name)) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!(
                "{:?} is not a parameter of {} {}: it takes {known}",
                truncated(name),
                parts.method,
                matched.as_str()
            );
            return Err(invalid(truncated(name), message));
        }
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Returns the query parameters of a call.
fn names_of(method: &Method, path: &str) -> Vec<String> {
    let method = if method == Method::HEAD { "get".into() } else { method.as_str().to_lowercase() };
    api::query_names(&description()["paths"][path][method])
}

/// Accepts a body as the text of a rule file, unless its content type is another one. Without a
/// content type, or with the one that curl sends for any body, it is accepted.
pub(super) fn is_text(headers: &HeaderMap) -> Result<(), RouteError> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or("?");
    let plain = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if plain.starts_with("text/") || TOML.contains(&plain.as_str()) {
        return Ok(());
    }
    let message = format!(
        "Content-Type {:?} is not a rule file; send its text as application/toml to {}",
        truncated(kind),
        path::RULES
    );
    Err(RouteError::new(ErrorCode::UnsupportedMediaType, message).at("Content-Type"))
}

const TOML: [&str; 3] =
    ["application/toml", "application/octet-stream", "application/x-www-form-urlencoded"];

/// The errors of any call.
const ANY: [ErrorCode; 11] = [
    ErrorCode::InvalidArgument,
    ErrorCode::Unauthenticated,
    ErrorCode::PermissionDenied,
    ErrorCode::WrongHost,
    ErrorCode::Timeout,
    ErrorCode::NotLeader,
    ErrorCode::NoLeader,
    ErrorCode::Internal,
    ErrorCode::StoreFailed,
    ErrorCode::Overloaded,
    ErrorCode::ShuttingDown,
];
/// The errors of any call with a body.
const WITH_BODY: [ErrorCode; 3] =
    [ErrorCode::TooLarge, ErrorCode::UnsupportedMediaType, ErrorCode::InvalidMessage];
