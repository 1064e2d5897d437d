//! The proxies: who they are, what one says, and the order that answers it.
//!
//! ```text
//!   POST …/report: body ─► JSON or postcard ─► checked ─┬─► what was used ─► ledger
//!                                                       └─► uses of scopes ─► plan ─► order
//! ```

use std::sync::{Arc, PoisonError};

use api::{
    COMPACT_REPORT, CheckedReport, ControllerReply, ErrorReport, Proxies, ProxyReport,
    WireProxyStatus, WrongMessage, is_name,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use tokio::sync::oneshot;

use super::super::ApiState;
use super::super::access::ApiCaller;
use super::super::bounds::BODY_MAX;
use super::super::plan_actor;
use super::super::usage::{self, UsageUpdate};
use super::{RouteError, RouteQuery, cut, look, refusal, shutting_down, submit};

/// The proxies that are known, once for each of their targets.
#[utoipa::path(get, path = "/v1/proxies", responses((status = 200, body = Proxies)))]
pub(super) async fn proxies(State(shared): RouteQuery) -> Result<Json<Proxies>, RouteError> {
    Ok(Json(listed(look(&shared).await?)))
}

/// Forgets a proxy at once, whatever it may be using: for who knows that it is gone for good.
/// Its parts go to the others. One that is not gone comes back with its next report.
#[utoipa::path(
    delete,
    path = "/v1/proxies/{name}",
    params(("name" = String, Path, description = "the proxy")),
    responses(
        (status = 200, description = "the proxies that are left", body = Proxies),
        (status = 404, description = "there is none of that name", body = ErrorReport),
    )
)]
pub(super) async fn forget(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(name): Path<String>,
) -> Result<Json<Proxies>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.plan, plan_actor::PlanMsg::Forget(name.clone(), answer))?;
    if !outcome.await.map_err(|_| shutting_down())? {
        let message = format!("there is no proxy {:?}; GET /v1/proxies lists them", cut(&name));
        return Err(refusal(StatusCode::NOT_FOUND, message));
    }
    let (line, of) =
        (by.changed(format!("proxy {name}"), Some("known".into()), None), shared.clone());
    tokio::task::spawn_blocking(move || of.access.audit.write(&line))
        .await
        .map_err(|_| shutting_down())?;
    Ok(Json(listed(look(&shared).await?)))
}

/// A proxy says what it did and hears what it is to do.
///
/// The answer comes at once where it changes anything, else with the proxy's next report or
/// after half a second.
#[utoipa::path(
    post,
    path = "/v1/proxies/{name}/report",
    params(("name" = String, Path, description = "the proxy")),
    request_body(
        description = "as JSON, or as postcard of the same message, which the number names",
        content((ProxyReport = "application/json"), (Vec<u8> = "application/vnd.sluice.report-3+postcard")),
    ),
    responses(
        (status = 200, body = ControllerReply),
        (status = 400, description = "a name or value that cannot be", body = ErrorReport),
        (status = 403, description = "another proxy's certificate", body = ErrorReport),
        (status = 409, description = "another process of this name began later", body = ErrorReport),
        (status = 410, description = "it did, and is not heard any more: begin a new life", body = ErrorReport),
        (status = 413, description = "too long", body = ErrorReport),
        (status = 415, description = "neither of these forms", body = ErrorReport),
        (status = 422, description = "not such a message", body = ErrorReport),
        (status = 503, description = "too much to do: come again", body = ErrorReport),
    )
)]
pub(super) async fn report(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ControllerReply>, RouteError> {
    if !is_name(&name) {
        let message = format!(
            "{:?} is no name of a proxy: 1 to 63 letters, digits, '_', '-' and '.', beginning \
             with a letter or digit",
            cut(&name)
        );
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    if !by.may_be(&name) {
        let message = format!("a certificate of {} is none of proxy {name}", by.name);
        return Err(refusal(StatusCode::FORBIDDEN, message));
    }
    let body = body.map_err(|why| refusal(why.status(), why.body_text()))?;
    let name: Arc<str> = name.into();
    let body = taken(&shared, &name, &headers, &body)?;
    let wrong = |why: String| refusal(StatusCode::BAD_REQUEST, why);
    if body.answers.len() > ANSWERS_MAX {
        return Err(wrong(format!("{} answers: {ANSWERS_MAX} at most", body.answers.len())));
    }
    if body.targets.len() > TARGETS_MAX {
        return Err(wrong(format!("{} targets: {TARGETS_MAX} at most", body.targets.len())));
    }
    let fits = |target: &str| !target.is_empty() && target.len() <= TARGET_BYTES_MAX;
    if let Some((target, _)) = body.targets.iter().find(|(target, _)| !fits(target)) {
        return Err(wrong(format!("{:?} is no target: 1 to 255 bytes", cut(target))));
    }
    if let Some(usage) = body.usage {
        let about = (body.rules.clone(), body.contended);
        let counted = UsageUpdate::new(&name, body.epoch, usage, about);
        // Where the ledger is busy, the proxy tells it again.
        if shared.usage.try_send(usage::UsageMsg::Report(Box::new(counted))).is_err() {
            shared.counts.dropped.add(1);
        }
    }
    let (answer, order) = oneshot::channel();
    let CheckedReport { epoch, rules, targets: reports, answers, .. } = body;
    let said = plan_actor::ReportMsg { name: name.clone(), epoch, rules, reports, answers, answer };
    submit(&shared.plan, plan_actor::PlanMsg::Report(Box::new(said)))?;
    let order = order.await.map_err(|_| {
        let message =
            format!("proxy {name} is not taken: there are too many, or the controller ends");
        refusal(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let mut order = order.map_err(|superseded| match superseded.again {
        false => {
            let message = format!(
                "another proxy reports as {name} and began later: give one of them another name \
                 (--node)"
            );
            refusal(StatusCode::CONFLICT, message)
        }
        true => {
            let message = format!("another proxy of the name {name} began later and has ended");
            refusal(StatusCode::GONE, message)
        }
    })?;
    order.usage_taken = shared.taken.of(&name, epoch);
    Ok(Json(order))
}

fn listed(view: plan_actor::PlanView) -> Proxies {
    let standing = |(target, member): (Arc<str>, ::plan::ProxySnapshot)| WireProxyStatus {
        name: member.name.to_string(),
        target: target.to_string(),
        epoch: member.epoch,
        heard_ns_ago: view.now.since(member.heard).get(),
        silent: member.silent,
        duplicate: view.duplicates.contains(&member.name),
        fallback: member.fallback.billionths(),
        sent: member.revisions.0,
        acknowledged: member.revisions.1,
    };
    let mut proxies: Vec<_> = view.members.into_iter().map(standing).collect();
    proxies.sort_by(|a, b| (&a.name, &a.target).cmp(&(&b.name, &b.target)));
    Proxies { t_ns: view.now.as_nanos(), proxies }
}

/// What the body says, in the form that its content type names.
fn taken(
    shared: &ApiState,
    name: &Arc<str>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<CheckedReport, RouteError> {
    let wrong = |why: WrongMessage| refusal(StatusCode::BAD_REQUEST, why.to_string());
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/json" => {
            let said = serde_json::from_slice(body).map_err(|why| {
                let status = match why.is_data() {
                    true => StatusCode::UNPROCESSABLE_ENTITY,
                    false => StatusCode::BAD_REQUEST,
                };
                refusal(status, format!("no report: {why}"))
            })?;
            CheckedReport::new(name, said).map_err(wrong)
        }
        COMPACT_REPORT if body.len() > COMPACT_BYTES_MAX => {
            let message = format!("a report of {} bytes: {COMPACT_BYTES_MAX} at most", body.len());
            Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        COMPACT_REPORT => {
            let mut named = shared.named.lock().unwrap_or_else(PoisonError::into_inner);
            named.report(name, body).map_err(wrong)
        }
        other => {
            let message = format!(
                "Content-Type {:?} is neither application/json nor {COMPACT_REPORT}",
                cut(other)
            );
            Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// The longest report as JSON: 65,536 scopes and as many lines.
pub(super) const BYTES_MAX: usize = BODY_MAX as usize;
/// The same as postcard, in which a few bytes become a line.
const COMPACT_BYTES_MAX: usize = 8 << 20;
/// Answers of one report.
const ANSWERS_MAX: usize = 8;
/// Targets of one proxy.
const TARGETS_MAX: usize = 64;
const TARGET_BYTES_MAX: usize = 255;
