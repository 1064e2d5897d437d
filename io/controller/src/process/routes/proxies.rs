//! The proxies: their list, their reports, and the assignments in reply.
//!
//! ```text
//!   POST …/report: body ─► ReportDecoder ─┬─► usage ─► ledger
//!                                         └─► usage of scopes ─► plan ─► assignment
//! ```

use std::sync::Arc;

use api::{
    ALL_TARGETS, ErrorCode, Proxies, ProxyReport, REPLY_TYPE, REPORT_TYPE, WireProxyStatus, is_name,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use tokio::sync::oneshot;

use super::super::ApiState;
use super::super::access::ApiCaller;
use super::super::plan_actor::{self, ReportMsg};
use super::super::usage::{self, UsageUpdate};
use super::{RouteError, RouteQuery, invalid, plan_view, shutting_down, submit, truncated};

/// The known proxies, once for each of their targets.
#[utoipa::path(get, path = "/v1/proxies", responses((status = 200, body = Proxies)))]
pub(super) async fn proxies(State(shared): RouteQuery) -> Result<Json<Proxies>, RouteError> {
    Ok(Json(listed(plan_view(&shared).await?)))
}

/// Removes a proxy at once, even if it may still be using its share: for a proxy that has ended
/// for good. Its shares go to the others. A proxy that still runs returns with its next report.
#[utoipa::path(
    delete,
    path = "/v1/proxies/{name}",
    params(("name" = String, Path, description = "the proxy")),
    responses(
        (status = 200, description = "the remaining proxies", body = Proxies),
    ),
    extensions(("x-error-codes" = json!(["not_found"]))),
)]
pub(super) async fn forget(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(name): Path<String>,
) -> Result<Json<Proxies>, RouteError> {
    let (answer, outcome) = oneshot::channel();
    submit(&shared.plan, plan_actor::PlanMsg::Forget(name.clone(), answer))?;
    if !outcome.await.map_err(|_| shutting_down())? {
        let message =
            format!("proxy {:?} not found; list proxies with GET /v1/proxies", truncated(&name));
        return Err(RouteError::new(ErrorCode::NotFound, message).at("name"));
    }
    let (line, of) =
        (by.audit_line(format!("proxy {name}"), Some("known".into()), None), shared.clone());
    tokio::task::spawn_blocking(move || of.access.audit.write(&line))
        .await
        .map_err(|_| shutting_down())?;
    Ok(Json(listed(plan_view(&shared).await?)))
}

/// Reports the usage of a proxy and returns its assignments.
///
/// The reply comes at once if the assignment changes, else with the proxy's next report or
/// after half a second.
#[utoipa::path(
    post,
    path = "/v1/proxies/{name}/report",
    params(("name" = String, Path, description = "the proxy")),
    request_body(
        description = "postcard of a message between processes of one version, which the number is of",
        content((Vec<u8> = "application/vnd.sluice.report-9+postcard")),
    ),
    responses(
        (status = 200, description = "postcard of the reply", body = Vec<u8>,
         content_type = "application/vnd.sluice.reply-8+postcard"),
    ),
    extensions(("x-error-codes" = json!(["duplicate_name", "epoch_superseded"]))),
)]
pub(super) async fn report(
    State(shared): RouteQuery,
    Extension(by): Extension<ApiCaller>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<([(HeaderName, &'static str); 1], Vec<u8>), RouteError> {
    if !is_name(&name) {
        let message = format!(
            "{:?} is not a name of a proxy: 1 to 63 letters, digits, '_', '-' and '.', beginning \
             with a letter or digit",
            truncated(&name)
        );
        return Err(invalid("name", message));
    }
    if !by.may_be(&name) {
        let message = format!("the certificate of {} may not report for proxy {name}", by.name);
        return Err(RouteError::new(ErrorCode::PermissionDenied, message).at("name"));
    }
    let body = body?;
    let name: Arc<str> = name.into();
    let body = decode_report(&shared, &name, &headers, &body)?;
    // And one for its limits.
    if body.targets.len() > TARGETS_MAX + 1 {
        let message = format!("{} targets; {TARGETS_MAX} are the maximum", body.targets.len());
        return Err(invalid("targets", message));
    }
    let fits = |target: &str| !target.is_empty() && target.len() <= TARGET_BYTES_MAX;
    if let Some((target, _)) = body.targets.iter().find(|(target, _)| !fits(target)) {
        let message = format!("{:?} is not a name of a target: 1 to 255 bytes", truncated(target));
        return Err(invalid("targets", message));
    }
    if let Some(usage) = body.usage {
        let counted = UsageUpdate {
            proxy: name.clone(),
            epoch: body.epoch,
            report: usage,
            rules: body.rules.clone(),
            contended: body.contended,
        };
        // If the queue of the ledger is full, the proxy reports the usage again.
        if shared.usage.try_send(usage::UsageMsg::Report(Box::new(counted))).is_err() {
            shared.counts.dropped.add(1);
        }
    }
    let (answer, order) = oneshot::channel();
    let ProxyReport { epoch, rules, targets: reports, replies: answers, description, .. } = body;
    let name_of = name.clone();
    let said = ReportMsg { name: name_of, epoch, rules, reports, answers, description, answer };
    submit(&shared.plan, plan_actor::PlanMsg::Report(Box::new(said)))?;
    let order = order.await.map_err(|_| {
        let message =
            format!("proxy {name} rejected: too many proxies, or the controller is shutting down");
        RouteError::new(ErrorCode::Overloaded, message)
    })?;
    let mut order = order.map_err(|superseded| match superseded.may_restart {
        false => {
            let message = format!(
                "another proxy reports as {name} and started later; rename one of them with --name"
            );
            RouteError::new(ErrorCode::DuplicateName, message).at("name")
        }
        true => {
            let message = format!("another proxy named {name} started later and has ended");
            RouteError::new(ErrorCode::EpochSuperseded, message).at("epoch")
        }
    })?;
    order.usage_acknowledged = shared.usage_acks.of(&name, epoch);
    Ok(([(CONTENT_TYPE, REPLY_TYPE)], order.encode()))
}

fn listed(view: plan_actor::PlanView) -> Proxies {
    let standing = |(target, member): (Arc<str>, ::plan::ProxySnapshot)| WireProxyStatus {
        name: member.name.to_string(),
        target: target.to_string(),
        epoch: member.epoch,
        last_report_ns_ago: view.now.since(member.last_report).get(),
        unreachable: member.unreachable,
        duplicate: view.duplicates.contains(&member.name),
        fallback: member.fallback.billionths(),
        sent: member.revisions.0,
        acknowledged: member.revisions.1,
    };
    // A proxy that has limits has a target.
    let at_targets = view.proxies.into_iter().filter(|(target, _)| **target != *ALL_TARGETS);
    let mut proxies: Vec<_> = at_targets.map(standing).collect();
    proxies.sort_by(|a, b| (&a.name, &a.target).cmp(&(&b.name, &b.target)));
    Proxies { t_ns: view.now.as_nanos(), proxies }
}

/// Decodes the body by its content type.
fn decode_report(
    shared: &ApiState,
    name: &Arc<str>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<ProxyReport, RouteError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        REPORT_TYPE if body.len() > BYTES_MAX => {
            let message = format!("a report of {} bytes; {BYTES_MAX} are the maximum", body.len());
            Err(RouteError::new(ErrorCode::TooLarge, message))
        }
        REPORT_TYPE => {
            let report = shared.reports.decode(name, body);
            report.map_err(|why| RouteError::new(ErrorCode::InvalidArgument, why.to_string()))
        }
        other => {
            let message = format!(
                "Content-Type {:?} is not {REPORT_TYPE}: proxy and controller are of other versions",
                truncated(other)
            );
            Err(RouteError::new(ErrorCode::UnsupportedMediaType, message).at("Content-Type"))
        }
    }
}

/// The longest report, in which a few bytes become a line: 65,536 scopes and as many lines.
pub(super) const BYTES_MAX: usize = 8 << 20;
/// The most targets of one proxy.
const TARGETS_MAX: usize = 64;
const TARGET_BYTES_MAX: usize = 255;
