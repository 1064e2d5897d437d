//! Routes of the control API.

use std::sync::Arc;

use api::{
    Connections, ErrorCode, ErrorReport, MetricsPage, ProxyStatus, WireClasses, WireRules,
    WireSubjects, path,
};
use axum::extract::rejection::{QueryRejection, StringRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, HeaderName};
use axum::routing::get;
use axum::{Json, Router};
use http::{RouteError, version_to_match};
use utoipa::OpenApi;

use super::ProxyControl;
use crate::rules::RuleUpdateError;

type ControlState = State<Arc<dyn ProxyControl>>;
/// Rules, and their version as the header ETag.
type ActiveRulesText = ([(HeaderName, String); 1], Json<WireRules>);

/// The longest rule file that is taken, in bytes: some ten thousand rules.
const RULES_BYTES_MAX: usize = 4 << 20;

/// The paths and their handlers.
pub(super) fn router(control: Arc<dyn ProxyControl>) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::CLASSES, get(classes))
        .route(path::SUBJECTS, get(subjects))
        .route(path::CONNECTIONS, get(connections))
        .route(path::WHY, get(super::why::why))
        .route(path::RULES, get(rules).put(set_rules))
        .route(path::METRICS, get(metrics))
        .route(path::OPENAPI, get(|| async { Json(described()) }))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(RULES_BYTES_MAX))
        .with_state(control)
}

/// The OpenAPI description of the control API as JSON.
pub fn openapi() -> String {
    serde_json::to_string_pretty(&described()).expect("a description is plain data")
}

fn described() -> serde_json::Value {
    api::described(Description::openapi(), &[], &[ErrorCode::TooLarge])
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluice proxy control API",
        description = "Served on a Unix socket beside each proxy: curl --unix-socket PATH \
                       http://sluice/v1/status. Counters never fall while the proxy runs. \
                       Two samples and the difference of their t_ns give rates.",
    ),
    components(schemas(ErrorReport)),
    paths(status, classes, subjects, connections, super::why::why, rules, set_rules, metrics)
)]
struct Description;

/// Identity and state of the proxy.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = ProxyStatus)))]
async fn status(State(control): ControlState) -> Json<ProxyStatus> {
    Json(control.status())
}

/// The classes and what each was served.
#[utoipa::path(get, path = "/v1/classes", responses((status = 200, body = WireClasses)))]
async fn classes(State(control): ControlState) -> Json<WireClasses> {
    Json(control.classes())
}

/// The payers and what each was served.
#[utoipa::path(get, path = "/v1/subjects", responses((status = 200, body = WireSubjects)))]
async fn subjects(State(control): ControlState) -> Json<WireSubjects> {
    Json(control.subjects())
}

/// The connections of now.
#[utoipa::path(get, path = "/v1/connections", responses((status = 200, body = Connections)))]
async fn connections(State(control): ControlState) -> Json<Connections> {
    Json(control.connections())
}

/// The metrics of docs/METRICS.md, as Prometheus text.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
async fn metrics(State(control): ControlState) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, MetricsPage::CONTENT_TYPE)], control.metrics())
}

/// The rules in force. The header ETag has their version.
#[utoipa::path(get, path = "/v1/rules", responses((status = 200, body = WireRules)))]
async fn rules(State(control): ControlState) -> ActiveRulesText {
    tagged(control.rules())
}

/// Puts a rule file in force: its TOML text is the body.
///
/// It applies at once, to queued requests too, and until the proxy ends or SIGHUP reads
/// the configured file again; with `save=true` it is written to that file before. With
/// `If-Match` it applies only in place of the rules of that version: read, change, put, and
/// begin again on 409. Without, it takes the place of whatever is in force. What is refused
/// changes nothing.
#[utoipa::path(
    put,
    path = "/v1/rules",
    params(
        ("If-Match" = Option<String>, Header, description = "the version to replace"),
        ("save" = Option<bool>, Query, description = "write the proxy's rule file, too"),
    ),
    request_body(content = String, content_type = "application/toml"),
    responses(
        (status = 200, description = "the active rules", body = WireRules),
    ),
    extensions(("x-error-codes" = json!([
        "invalid_argument",
        "invalid_rules",
        "version_conflict",
        "rules_managed",
        "no_rule_file",
        "rule_file_edited",
        "store_failed"
    ]))),
)]
async fn set_rules(
    State(control): ControlState,
    saving: Result<Query<SaveQuery>, QueryRejection>,
    headers: HeaderMap,
    text: Result<String, StringRejection>,
) -> Result<ActiveRulesText, RouteError> {
    let Query(SaveQuery { save }) = saving?;
    let text = text?;
    let over = version_to_match(&headers)?;
    match control.set_rules(&text, over, save) {
        Ok(()) => Ok(tagged(control.rules())),
        Err(why) => Err(refusal_of(why).into()),
    }
}

fn refusal_of(why: RuleUpdateError) -> ErrorReport {
    let message = why.to_string();
    match why {
        RuleUpdateError::Wrong(error) => ErrorReport::of_rules(&error),
        RuleUpdateError::Stale { .. } => {
            ErrorReport::new(ErrorCode::VersionConflict, message).at("If-Match")
        }
        RuleUpdateError::Governed { controller } => {
            let report = ErrorReport::new(ErrorCode::RulesManaged, message);
            ErrorReport { leader: Some(controller), ..report }
        }
        RuleUpdateError::NoFile => ErrorReport::new(ErrorCode::NoRuleFile, message).at("save"),
        RuleUpdateError::Edited { .. } => {
            ErrorReport::new(ErrorCode::RuleFileEdited, message).at("save")
        }
        RuleUpdateError::Save { .. } => ErrorReport::new(ErrorCode::StoreFailed, message),
    }
}

/// Query parameters of a PUT.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SaveQuery {
    #[serde(default)]
    save: bool,
}

fn tagged(rules: WireRules) -> ActiveRulesText {
    ([(ETAG, rules.tag())], Json(rules))
}

async fn not_found(uri: axum::http::Uri) -> RouteError {
    let message = format!("no resource at {:?}; see {}", uri.path(), path::OPENAPI);
    RouteError::new(ErrorCode::NotFound, message)
}

async fn method_not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> RouteError {
    let message =
        format!("method {method} is not allowed for {:?}; see {}", uri.path(), path::OPENAPI);
    RouteError::new(ErrorCode::MethodNotAllowed, message)
}
