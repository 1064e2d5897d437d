//! What each path of the control API answers.

use std::sync::Arc;

use api::{Classes, Connections, ErrorReport, Rules, Status, Subjects, path};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use utoipa::OpenApi;

use super::Control;

type Shared = State<Arc<dyn Control>>;
type Refusal = (StatusCode, Json<ErrorReport>);

/// The longest rule file that is taken, in bytes: some ten thousand rules.
const RULES_BYTES_MAX: usize = 4 << 20;

/// The paths and their handlers.
pub(super) fn router(control: Arc<dyn Control>) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::CLASSES, get(classes))
        .route(path::SUBJECTS, get(subjects))
        .route(path::CONNECTIONS, get(connections))
        .route(path::RULES, get(rules).put(set_rules))
        .route(path::OPENAPI, get(|| async { Json(Description::openapi()) }))
        .fallback(nothing_here)
        .layer(DefaultBodyLimit::max(RULES_BYTES_MAX))
        .with_state(control)
}

/// The OpenAPI description of the control API as JSON.
pub fn openapi() -> String {
    Description::openapi().to_pretty_json().expect("a description is plain data")
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluice proxy control API",
        description = "Served on a Unix socket beside each proxy: curl --unix-socket PATH \
                       http://sluice/v1/status. Counters only grow while the proxy lives; \
                       two samples and the difference of their t_ns give rates.",
    ),
    paths(status, classes, subjects, connections, rules, set_rules)
)]
struct Description;

/// What the proxy is and how it fares.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(control): Shared) -> Json<Status> {
    Json(control.status())
}

/// The classes and what each was served.
#[utoipa::path(get, path = "/v1/classes", responses((status = 200, body = Classes)))]
async fn classes(State(control): Shared) -> Json<Classes> {
    Json(control.classes())
}

/// The payers and what each was served.
#[utoipa::path(get, path = "/v1/subjects", responses((status = 200, body = Subjects)))]
async fn subjects(State(control): Shared) -> Json<Subjects> {
    Json(control.subjects())
}

/// The connections of now.
#[utoipa::path(get, path = "/v1/connections", responses((status = 200, body = Connections)))]
async fn connections(State(control): Shared) -> Json<Connections> {
    Json(control.connections())
}

/// The rules in force.
#[utoipa::path(get, path = "/v1/rules", responses((status = 200, body = Rules)))]
async fn rules(State(control): Shared) -> Json<Rules> {
    Json(Rules::from(&*control.rules()))
}

/// Puts a rule file in force: its TOML text is the body.
///
/// It applies at once, to queued requests too, and until the proxy ends or SIGHUP reads
/// the configured file again. A text with an error changes nothing.
#[utoipa::path(
    put,
    path = "/v1/rules",
    request_body(content = String, content_type = "application/toml"),
    responses(
        (status = 200, description = "the rules as they are now", body = Rules),
        (status = 400, description = "an error, with its line and a caret", body = ErrorReport),
    )
)]
async fn set_rules(State(control): Shared, text: String) -> Result<Json<Rules>, Refusal> {
    match control.set_rules(&text) {
        Ok(()) => Ok(Json(Rules::from(&*control.rules()))),
        Err(error) => Err(refusal(StatusCode::BAD_REQUEST, error.in_file("rules"))),
    }
}

async fn nothing_here(uri: axum::http::Uri) -> Refusal {
    let message = format!("there is nothing at {}; see {}", uri.path(), path::OPENAPI);
    refusal(StatusCode::NOT_FOUND, message)
}

fn refusal(status: StatusCode, message: String) -> Refusal {
    (status, Json(ErrorReport { message }))
}
