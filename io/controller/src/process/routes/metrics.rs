//! The controller's page of metrics, made for each request.
//!
//! ```text
//!   GET /metrics ─► Counts, queues, the ledger's file ─┬─► Page (names: io/api/src/metrics.rs)
//!                   plan: a view of all proxies ───────┘
//! ```
//!
//! Proxies are counted by target only: there may be thousands, and `GET /v1/proxies` lists them. If
//! the plan is overloaded, or the calendar waits for its store, its figures are missing and the others,
//! which show that, are served.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use api::metrics as names;
use api::{MetricsPage, write_process_metrics};
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use tokio::sync::oneshot;

use super::super::bounds::Bounded;
use super::super::calendar::{CalendarFigures, CalendarMsg};
use super::super::plan_actor::PlanView;
use super::super::standby::ledger_path;
use super::super::{ApiState, Counts};
use super::{RouteQuery, in_force, plan_view, read_of, submit};

/// The proxies of one target.
#[derive(Default)]
struct TargetProxyCounts {
    known: u64,
    unreachable: u64,
    unacked: u64,
}

/// The metrics of docs/METRICS.md, as Prometheus text.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(super) async fn page(State(shared): RouteQuery) -> ([(HeaderName, &'static str); 1], String) {
    let began = Instant::now();
    let view = plan_view(&shared).await.ok();
    let (answer, figures) = oneshot::channel();
    let asked = submit(&shared.calendar, CalendarMsg::Figures(answer)).is_ok();
    let figures = if asked { read_of(figures).await.ok() } else { None };
    let mut page = MetricsPage::new();
    page.family(&names::INFO).line(&["controller", env!("CARGO_PKG_VERSION")], 1);
    write_process_metrics(&mut page);
    page.single(&names::SCRAPE, shared.counts.scrape_ns.get());
    page.single(&names::CONTROLLER_TERM, shared.term);
    write_rules(&mut page, &shared);
    if let Some(view) = &view {
        write_proxies(&mut page, view);
    }
    write_reports(&mut page, &shared.counts);
    write_ledger(&mut page, &shared.counts, &ledger_path(&shared.data));
    if let Some(figures) = figures {
        write_reservations(&mut page, &figures, shared.counts.lapsed.get());
    }
    write_events(&mut page, &shared.counts);
    write_queues(&mut page, &shared);
    write_bounds(&mut page, &shared);
    shared.counts.scrape_ns.set(began.elapsed().as_nanos() as u64);
    ([(CONTENT_TYPE, MetricsPage::CONTENT_TYPE)], page.finish())
}

fn write_rules(page: &mut MetricsPage, shared: &ApiState) {
    let rules = in_force(shared);
    // No rules are stored yet: proxies keep their own.
    let version = if rules.is_stored { rules.version.as_str() } else { "none" };
    page.family(&names::CONTROLLER_RULES).line(&[version], 1);
}

fn write_proxies(page: &mut MetricsPage, view: &PlanView) {
    let mut targets: BTreeMap<&Arc<str>, TargetProxyCounts> = BTreeMap::new();
    for (target, member) in &view.proxies {
        let standing = targets.entry(target).or_default();
        let (sent, acknowledged) = member.revisions;
        standing.known += 1;
        standing.unreachable += u64::from(member.unreachable);
        standing.unacked += u64::from(acknowledged < sent);
    }
    let mut tell = |metric, of: fn(&TargetProxyCounts) -> u64| {
        let mut family = page.family(metric);
        targets.iter().for_each(|(target, standing)| family.line(&[target], of(standing)));
    };
    tell(&names::CONTROLLER_PROXIES, |standing| standing.known);
    tell(&names::CONTROLLER_UNREACHABLE, |standing| standing.unreachable);
    tell(&names::CONTROLLER_UNACKED, |standing| standing.unacked);
    page.single(&names::CONTROLLER_SCOPES, view.scopes as u64);
}

fn write_reservations(page: &mut MetricsPage, figures: &CalendarFigures, lapsed: u64) {
    let mut states = page.family(&names::CONTROLLER_RESERVATIONS);
    states.line(&["scheduled"], figures.scheduled);
    states.line(&["active"], figures.active);
    let mut promised = page.family(&names::CONTROLLER_PROMISED);
    for of in &figures.resources {
        promised.line(&[of.kind, &of.name], of.promised_ppm);
    }
    let mut reservable = page.family(&names::CONTROLLER_RESERVABLE);
    for of in &figures.resources {
        reservable.line(&[of.kind, &of.name, "read"], of.read_per_sec);
        reservable.line(&[of.kind, &of.name, "write"], of.write_per_sec);
    }
    page.single(&names::CONTROLLER_LAPSED, lapsed);
    let mut late = page.family(&names::CONTROLLER_LATE);
    figures.late.iter().for_each(|of| late.line(&[&of.target], of.late));
    let mut time = page.family(&names::CONTROLLER_LATE_TIME);
    figures.late.iter().for_each(|of| time.line(&[&of.target], of.span.get()));
}

fn write_reports(page: &mut MetricsPage, counts: &Counts) {
    let mut reports = page.family(&names::CONTROLLER_REPORTS);
    reports.line(&["accepted"], counts.reports.get());
    reports.line(&["rejected"], counts.refused.get());
    reports.line(&["duplicate"], counts.duplicate.get());
    page.single(&names::CONTROLLER_ASSIGNMENTS, counts.assignments.get());
    let mut usage = page.family(&names::CONTROLLER_USAGE);
    usage.line(&["counted"], counts.counted.get());
    usage.line(&["duplicate"], counts.stale.get());
    usage.line(&["failed"], counts.failed.get());
    usage.line(&["dropped"], counts.dropped.get());
}

fn write_ledger(page: &mut MetricsPage, counts: &Counts, file: &Path) {
    let mut commits = page.family(&names::CONTROLLER_COMMITS);
    commits.line(&["ok"], counts.written.get());
    commits.line(&["error"], counts.unwritten.get());
    page.single(&names::CONTROLLER_LEDGER_PROXIES, counts.ledger_proxies.get());
    page.single(&names::CONTROLLER_LEDGER_LINES, counts.ledger_lines.get());
    page.single(&names::CONTROLLER_LEDGER_SUBJECTS, counts.ledger_subjects.get());
    page.single(&names::CONTROLLER_LEDGER_BYTES, bytes_of(file));
}

fn write_events(page: &mut MetricsPage, counts: &Counts) {
    let mut accounts = page.family(&names::CONTROLLER_DECAYS);
    accounts.line(&["throttled"], counts.throttled.get());
    accounts.line(&["all"], counts.accounts.get());
    let mut events = page.family(&names::CONTROLLER_EVENTS);
    events.line(&["published"], counts.events.get());
    events.line(&["unpersisted"], counts.events_unpersisted.get());
    events.line(&["dropped"], counts.events_dropped.get());
    let mut deliveries = page.family(&names::CONTROLLER_DELIVERIES);
    for (by, told) in [("command", &counts.commands), ("webhook", &counts.posts)] {
        deliveries.line(&[by, "delivered"], told.done.get());
        deliveries.line(&[by, "failed"], told.failed.get());
        deliveries.line(&[by, "dropped"], told.dropped.get());
        deliveries.line(&[by, "retried"], told.retried.get());
    }
}

fn write_queues(page: &mut MetricsPage, shared: &ApiState) {
    let queues = [
        ("plan", shared.plan.waiting()),
        ("store", shared.store.waiting()),
        ("usage", shared.usage.waiting()),
        ("events", shared.events.waiting()),
        ("calendar", shared.calendar.waiting()),
    ];
    let mut waiting = page.family(&names::CONTROLLER_QUEUED);
    queues.iter().for_each(|(queue, (now, _))| waiting.line(&[queue], *now as u64));
    let mut most = page.family(&names::CONTROLLER_QUEUE_MAX);
    queues.iter().for_each(|(queue, (_, max))| most.line(&[queue], *max as u64));
}

fn write_bounds(page: &mut MetricsPage, shared: &ApiState) {
    let names = [
        &names::CONTROLLER_BOUND_USED,
        &names::CONTROLLER_BOUND_MAX,
        &names::CONTROLLER_BOUND_REFUSED,
    ];
    for (at, metric) in names.into_iter().enumerate() {
        let mut family = page.family(metric);
        for what in Bounded::ALL {
            family.line(&[what.name()], shared.bounds.figures(what)[at]);
        }
    }
}

/// The size of an SQLite file and of the log that it is written through.
fn bytes_of(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let sizes = [file, Path::new(&log)].map(|path| std::fs::metadata(path).map(|meta| meta.len()));
    sizes.into_iter().flatten().sum()
}
