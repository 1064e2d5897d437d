//! The description of a controller's calls, and what every call is held to by it.
//!
//! ```text
//!   call ─► names in the path are UTF-8? ─► names behind the `?` are described? 400 ─► rights, handler
//! ```

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::{AnyReplyBody, path};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{Description, RouteError, cut, refusal};

/// The description of all calls.
pub(super) fn description() -> &'static Value {
    static ALL: LazyLock<Value> = LazyLock::new(|| {
        let mut all = api::described(Description::openapi(), &ANY, &WITH_BODY);
        let what = "needed from the first token on that is made: see docs/ACCESS.md";
        let bearer = json!({ "type": "http", "scheme": "bearer", "description": what });
        all["components"]["securitySchemes"] = json!({ "token": bearer });
        all["security"] = json!([{ "token": [] }]);
        all
    });
    &ALL
}

/// Refuses a call whose path or query no handler could mean.
pub(super) async fn check(request: Request, next: Next) -> Result<Response, RouteError> {
    let (mut parts, body) = request.into_parts();
    let names = Path::<BTreeMap<String, String>>::from_request_parts(&mut parts, &()).await;
    names.map_err(|why: PathRejection| refusal(why.status(), why.body_text()))?;
    if let Some(matched) = parts.extensions.get::<MatchedPath>() {
        let wrong = |why: QueryRejection| refusal(why.status(), why.body_text());
        let asked = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(wrong)?;
        let known = names_of(&parts.method, matched.as_str());
        if let Some((name, _)) = asked.0.iter().find(|(name, _)| !known.contains(name)) {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!(
                "{:?} is no parameter of {} {}: it takes {known}",
                cut(name),
                parts.method,
                matched.as_str()
            );
            return Err(refusal(StatusCode::BAD_REQUEST, message));
        }
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// What a call takes behind the `?`.
fn names_of(method: &Method, path: &str) -> Vec<String> {
    let method = if method == Method::HEAD { "get".into() } else { method.as_str().to_lowercase() };
    api::query_names(&description()["paths"][path][method])
}

/// Takes a body as a rule file's text, if it does not say that it is something else. What says
/// nothing, or only what curl says of any body, is taken.
pub(super) fn is_text(headers: &HeaderMap) -> Result<(), RouteError> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or("?");
    let plain = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if plain.starts_with("text/") || TOML.contains(&plain.as_str()) {
        return Ok(());
    }
    let message = format!(
        "Content-Type {:?} is no rule file: send its text as application/toml to {}",
        cut(kind),
        path::RULES
    );
    Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

const TOML: [&str; 3] =
    ["application/toml", "application/octet-stream", "application/x-www-form-urlencoded"];

/// What any call may get.
const ANY: [AnyReplyBody; 7] = [
    (400, "a path or parameter that no call has, or a value that cannot be"),
    (401, "a token is needed, or this one is not known"),
    (403, "it is for another role, or a web page of elsewhere sends it"),
    (408, "no whole request within 30 s"),
    (421, "another controller leads: it is named"),
    (500, "it failed here"),
    (503, "too much to do, or the end is near: come again"),
];
/// What any call with a body may get.
const WITH_BODY: [AnyReplyBody; 3] =
    [(413, "too long"), (415, "not of that content type"), (422, "not such a message")];
