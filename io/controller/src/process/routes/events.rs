//! Events, as a stream or by the page, and the accounts of decays.
//!
//! ```text
//!   GET /v1/events ─► recent? ─no─► file ─► a page ─ empty ─► wait ─┐
//!                        ▲──────────────────── there is one ◄───────┘
//!     Accept: text/event-stream ─► task ─ 64 KiB ─► body: each event at once, while it is read
//!   GET /v1/decays ─► usage's thread ─► policies, accounts
//! ```

use std::sync::Arc;
use std::time::Duration;

use api::{ControllerEvent, ControllerEvents, ErrorCode, WireDecayAccounts};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use http::Peer;
use model::Nanos;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use tokio_util::io::ReaderStream;

use super::{RouteError, RouteQuery, invalid, shutting_down, submit, time_of, truncated};
use crate::process::access::ApiCaller;
use crate::process::bounds::{Bounded, holder};
use crate::process::events::{EventMsg, EventsSince};
use crate::process::{ApiState, usage};

/// The query parameters for events.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    since: Option<String>,
    limit: Option<usize>,
    wait: Option<String>,
}

/// The query parameters for decays.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecayQuery {
    subject: Option<String>,
}

/// Events: warnings of decays, proxies that are lost and return, leaders, rules.
///
/// `since` is the number of the last known event (`next` of the last reply), a time ago such as
/// `-1h`, or a date with its zone such as `2026-11-23T14:00Z`; without it the newest events are
/// returned. With `wait`, a reply without events is sent only after that time. With the header
/// `Accept: text/event-stream` each event is sent at once; `Last-Event-ID` continues after that
/// event.
#[utoipa::path(
    get,
    path = "/v1/events",
    params(
        ("since" = Option<String>, Query, description = "a number, a time ago such as -1h, or a date"),
        ("limit" = Option<usize>, Query, description = "maximum number of events, 1 to 1000 [default: 100]"),
        ("wait" = Option<String>, Query, description = "up to 60s [default: 0s]"),
        ("Last-Event-ID" = Option<u64>, Header, description = "like since, for an event stream"),
    ),
    responses(
        (status = 200, body = ControllerEvents),
    )
)]
pub(super) async fn events(
    State(shared): RouteQuery,
    Extension(peer): Extension<Peer>,
    wanted: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, RouteError> {
    let Query(wanted) = wanted?;
    let most = wanted.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&most) {
        return Err(invalid(
            "limit",
            format!("limit: {most} is not a number from 1 to {PAGE_MAX}"),
        ));
    }
    let since =
        wanted.since.as_deref().map(|text| since_of(text, shared.clock.now())).transpose()?;
    let last = last_event(&headers)?;
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/event-stream") {
        return stream(&shared, &peer, last.or(since));
    }
    let wait = wanted.wait.as_deref().map_or(Ok(Duration::ZERO), wait_of)?;
    let page = page(&shared, since.unwrap_or(EventsSince::Newest), most, wait).await?;
    Ok(Json(page).into_response())
}

/// The decays in force, each with its accounts: usage, entitlement, level and limit. A caller of
/// role user sees its own accounts only.
#[utoipa::path(
    get,
    path = "/v1/decays",
    params(("subject" = Option<String>, Query, description = "one account only, such as uid=1000")),
    responses(
        (status = 200, body = WireDecayAccounts),
    )
)]
pub(super) async fn decays(
    State(shared): RouteQuery,
    Extension(caller): Extension<ApiCaller>,
    whose: Result<Query<DecayQuery>, QueryRejection>,
) -> Result<Json<WireDecayAccounts>, RouteError> {
    let Query(DecayQuery { subject }) = whose?;
    let own = caller.user.map(|user| format!("uid={user}"));
    if let (Some(own), Some(subject)) = (&own, &subject)
        && own != subject
    {
        let message = format!(
            "{} has role user and sees {own} only, not {}",
            caller.name,
            truncated(subject)
        );
        return Err(RouteError::new(ErrorCode::PermissionDenied, message).at("subject"));
    }
    let subject = own.or(subject);
    let (answer, decays) = oneshot::channel();
    submit(&shared.usage, usage::UsageMsg::Decays { subject, answer })?;
    Ok(Json(decays.await.map_err(|_| shutting_down())?))
}

/// Waits for a page with events; returns an empty one when the time is over.
async fn page(
    shared: &ApiState,
    since: EventsSince,
    most: usize,
    wait: Duration,
) -> Result<ControllerEvents, RouteError> {
    let until = tokio::time::Instant::now() + wait;
    let mut newest = shared.recent.watch();
    loop {
        let seen = *newest.borrow_and_update();
        let events = read(shared, since, most).await?;
        let known = match since {
            EventsSince::Sequence(sequence) => sequence,
            _ => seen,
        };
        let next = events.last().map_or(known, |event| event.sequence);
        if !events.is_empty() {
            return Ok(ControllerEvents { events, next });
        }
        match tokio::time::timeout_at(until, newest.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(shutting_down()),
            Err(_) => return Ok(ControllerEvents { events, next }),
        }
    }
}

async fn read(
    shared: &ApiState,
    since: EventsSince,
    most: usize,
) -> Result<Vec<ControllerEvent>, RouteError> {
    if let Some(events) = shared.recent.page(since, most) {
        return Ok(events);
    }
    let (answer, page) = oneshot::channel();
    submit(&shared.events, EventMsg::Page { since, most, answer })?;
    let page = page.await.map_err(|_| shutting_down())?;
    page.map_err(|why| RouteError::new(ErrorCode::StoreFailed, why.to_string()))
}

// ---- as they come ----

fn stream(
    shared: &Arc<ApiState>,
    peer: &Peer,
    since: Option<EventsSince>,
) -> Result<Response, RouteError> {
    // Without a word of from where: what comes from now on.
    let now = EventsSince::Sequence(*shared.recent.watch().borrow());
    let since = since.unwrap_or(now);
    let place = shared.bounds.acquire(Bounded::EventStreams, &holder(peer), 1);
    let Some(place) = place else {
        let message = "too many event streams of this address or user; use wait=30s instead";
        return Err(RouteError::new(ErrorCode::Overloaded, message));
    };
    let (body, out) = tokio::io::duplex(STREAM_BYTES);
    let shared = shared.clone();
    tokio::spawn(async move {
        // It ends with an error when the reader has gone.
        let _ = write_all(&shared, since, out).await;
        drop(place);
    });
    let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((head, Body::from_stream(ReaderStream::new(body))).into_response())
}

async fn write_all(
    shared: &ApiState,
    mut since: EventsSince,
    mut out: DuplexStream,
) -> Result<(), std::io::Error> {
    loop {
        let Ok(page) = page(shared, since, PAGE, ALIVE).await else { return Ok(()) };
        since = EventsSince::Sequence(page.next);
        if page.events.is_empty() {
            // A comment, so that both sides see whether the other is there.
            out.write_all(b":\n\n").await?;
        }
        for event in &page.events {
            let data = serde_json::to_string(event).expect("an event is plain data");
            let (id, kind) = (event.sequence, event.kind.name());
            out.write_all(format!("id: {id}\nevent: {kind}\ndata: {data}\n\n").as_bytes()).await?;
        }
    }
}

// ---- values ----

/// Returns the event after which a broken stream continues.
fn last_event(headers: &HeaderMap) -> Result<Option<EventsSince>, RouteError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let number = text.parse().map(|number| Some(EventsSince::Sequence(number)));
    number.map_err(|_| {
        let message = format!("Last-Event-ID: {:?} is not a number of an event", truncated(text));
        invalid("Last-Event-ID", message)
    })
}

/// Parses a number of an event, or a point of time.
fn since_of(text: &str, now: model::Time) -> Result<EventsSince, RouteError> {
    match text.parse() {
        Ok(sequence) => Ok(EventsSince::Sequence(sequence)),
        Err(_) => time_of("since", text, now).map(EventsSince::Time),
    }
}

fn wait_of(text: &str) -> Result<Duration, RouteError> {
    let span = text.parse::<Nanos>().ok().filter(|span| *span <= WAIT_MAX);
    span.map(Nanos::to_duration).ok_or_else(|| {
        invalid("wait", format!("wait: {:?} is not a time from 0s to 60s", truncated(text)))
    })
}

/// The default number of events in one reply.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;
const WAIT_MAX: Nanos = Nanos::from_secs(60);
/// The time without events after which a stream sends a sign of life.
const ALIVE: Duration = Duration::from_secs(15);
/// The bytes by which a stream may be ahead of its reader.
const STREAM_BYTES: usize = 64 << 10;
