//! Wait causes at this proxy: for people, for a mount's user and for the controller.
//!
//! ```text
//!   dispatchers ─ standings of who is asked about ─► classes ─┐
//!               ─ what held these classes ────────────────────┴─► Why
//! ```
//!
//! Only the figures are taken while a target's gate is held; they become a message afterwards.

mod reserved;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{
    LimitState, LiveSample, ProxyQuery, ProxyReply, QueryKind, QueryReply, Why, WhyQuery,
    WhySubject, WireClasses, WireDonation, WireSubjects, WireUsage, WireWait, WireWaitKind,
};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use http::RouteError;
use model::{Identity, JobId, KeyValue, PathSet, Time};
use sched::{
    DonationReport, MeterPayers, MeterStatus, SubjectDetail, WaitCause, WaitCauseReport, WaitReport,
};

use reserved::FoundReservations;

use super::ProxyControl;
use crate::server::Server;

/// Wait causes of a job, of a user or of the payers of a limit, now and since the proxy started.
#[utoipa::path(
    get,
    path = "/v1/why",
    params(
        ("job" = Option<String>, Query, description = "the job; empty for requests without one"),
        ("user" = Option<u32>, Query, description = "the user's uid"),
        ("limit" = Option<String>, Query, description = "the rule, meter or decay"),
    ),
    responses((status = 200, body = Why)),
    extensions(("x-error-codes" = json!(["invalid_argument"]))),
)]
pub(super) async fn why(
    State(control): State<Arc<dyn ProxyControl>>,
    query: Result<Query<WhyQuery>, QueryRejection>,
) -> Result<Json<Why>, RouteError> {
    let Query(query) = query?;
    Ok(Json(control.why(&query)))
}

impl Server {
    /// Returns the wait causes of the queried classes.
    pub(crate) fn why_of(&self, query: &WhyQuery) -> Why {
        let scheduling = self.settings().schedule;
        let t_ns = self.clock.now().as_nanos();
        let mut why = Why { t_ns, query: query.clone(), scheduling, ..Why::default() };
        self.add_waits(query, &mut why);
        why.arrange();
        why
    }

    /// Returns the limits of an identity: those that its job's requests have paid, and those that
    /// the rules have for any request of it, although it has made none yet.
    pub(crate) fn limits_of(&self, who: &Identity) -> Why {
        let query = WhyQuery { job: Some(who.job.to_string()), user: Some(who.uid), limit: None };
        let payers = MeterPayers { job: Some(&who.job), user: Some(who.uid) };
        let scheduling = self.settings().schedule;
        let t_ns = self.clock.now().as_nanos();
        let mut why = Why { t_ns, scheduling, ..Why::default() };
        let names = self.target_names();
        let found = self.gate.with_dispatcher(|dispatcher, now| {
            let standings = dispatcher.subject_details(now, payers);
            (dispatcher.limits_of(who, PathSet::default(), now), standings, now)
        });
        if let Some((limits, standings, now)) = found {
            why.subjects.push(WhySubject {
                limits: limits.iter().map(|meter| limit(meter, now)).collect(),
                ..WhySubject::default()
            });
            let of = standings.iter().map(|one| subject(names.of(one.target), one, now));
            why.subjects.extend(of);
        }
        Why { query, ..why }
    }

    /// Adds what the queried classes waited for.
    fn add_waits(&self, query: &WhyQuery, why: &mut Why) {
        let job = query.job.as_deref().map(JobId::new);
        // No job has such a name.
        let Ok(job) = job.map(|known| known.ok_or(())).transpose() else { return };
        let payers = MeterPayers { job: job.as_ref(), user: query.user };
        let found = self.gate.with_dispatcher(|dispatcher, now| {
            let standings = dispatcher.subject_details(now, payers);
            let held = match payers {
                MeterPayers { job: Some(_), user: Some(_) } => {
                    dispatcher.wait_reports_of(&standings, now)
                }
                MeterPayers { job: None, user: None } => {
                    dispatcher.wait_reports(now, |_, _, _| true)
                }
                _ => {
                    let of = standings.iter().flat_map(|one| one.classes.iter());
                    let classes: BTreeSet<_> = of.collect();
                    dispatcher.wait_reports(now, |class, _, key| {
                        classes.contains(&class) || matches_key(query, key)
                    })
                }
            };
            let donations =
                dispatcher.donations(now, |writer, who| payers.has(writer) || payers.has(who));
            let are_of_job = payers.job.is_some();
            let reservations = FoundReservations::of(dispatcher, &standings, are_of_job, now);
            let parts = reserved::divided(dispatcher, &standings, &held);
            (now, standings, held, donations, reservations, parts)
        });
        let Some((now, standings, held, donations, reservations, parts)) = found else { return };
        let names = self.target_names();
        if query.limit.is_none() {
            why.reservations = reservations.described(&standings, now, |of| names.of(of));
            why.divisions = reserved::divisions(&parts, |of| names.of(of));
        }
        let of_limit = |name: &str| query.limit.as_ref().is_none_or(|limit| limit == name);
        let subjects = standings.iter().map(|one| subject(names.of(one.target), one, now));
        why.subjects.extend(subjects.filter(|subject| {
            query.limit.is_none() || subject.limits.iter().any(|limit| of_limit(&limit.name))
        }));
        let waits = held.iter().flat_map(|report| waits_of(names.of(report.target), report, now));
        why.waits.extend(waits.filter(|wait| match &wait.limit {
            Some(limit) => of_limit(&limit.name),
            None => query.limit.is_none(),
        }));
        let donations = donations.iter().map(|one| donation(names.of(one.target), one, now));
        why.donations.extend(donations.filter(|donation| match &donation.limit {
            Some(limit) => of_limit(&limit.name),
            None => query.limit.is_none(),
        }));
    }

    /// Answers a query of a controller.
    pub(crate) fn answer_controller(&self, question: &ProxyQuery) -> ProxyReply {
        let what = match &question.what {
            QueryKind::Why(query) => QueryReply::Why(Box::new(self.why_of(query))),
            QueryKind::Live => QueryReply::Live(Box::new(self.sample())),
        };
        ProxyReply { number: question.number, what }
    }

    fn sample(&self) -> LiveSample {
        let (status, subjects, classes) =
            (self.status(), self.subjects(), ProxyControl::classes(self));
        let WireSubjects { t_ns, mut subjects } = subjects;
        most(&mut subjects, |subject| &subject.usage);
        let subjects = WireSubjects { t_ns, subjects };
        let WireClasses { t_ns, mut classes } = classes;
        most(&mut classes, |class| &class.usage);
        LiveSample {
            proxy: String::new(),
            status,
            subjects,
            classes: WireClasses { t_ns, classes },
        }
    }
}

/// Keeps the rows with requests in flight, and of the others those with the most usage.
fn most<T>(rows: &mut Vec<T>, usage: impl Fn(&T) -> &WireUsage) {
    rows.sort_by_key(|row| {
        let WireUsage { queued, running, cost_ns, .. } = usage(row);
        std::cmp::Reverse((queued + running > 0, *cost_ns))
    });
    rows.truncate(ROWS_MAX);
}

/// Whether a class's key names the queried job or user, which may be gone.
fn matches_key(query: &WhyQuery, key: &[KeyValue]) -> bool {
    key.iter().any(|value| match value {
        KeyValue::Jobid(job) => query.job.as_deref() == Some(job.as_str()),
        KeyValue::Uid(uid) => query.user == Some(*uid),
        _ => false,
    })
}

fn subject(target: &str, standing: &SubjectDetail, now: Time) -> WhySubject {
    let SubjectDetail { identity: who, usage, meters, .. } = standing;
    WhySubject {
        proxy: String::new(),
        target: target.into(),
        job: who.job.to_string(),
        uid: who.uid,
        nid: who.nid.to_string(),
        requests: usage.requests,
        bytes: usage.read.get() + usage.written.get(),
        ops: usage.ops.get(),
        queue_ns: usage.queue_time.get(),
        delayed: usage.delayed,
        delayed_ns: usage.delayed_time.get(),
        delayed_bytes: usage.delayed_bytes.get(),
        limits: meters.iter().map(|meter| limit(meter, now)).collect(),
    }
}

fn waits_of(target: &str, report: &WaitReport, now: Time) -> impl Iterator<Item = WireWait> {
    let key: Vec<_> = report.key.iter().map(|value| value.to_string()).collect();
    let key = key.join(" ");
    report.causes.iter().map(move |cause| {
        let WaitCauseReport { by, meter, .. } = cause;
        let kind = match by {
            WaitCause::Meter { .. } => WireWaitKind::Limit,
            WaitCause::Weight => WireWaitKind::Weight,
            WaitCause::Busy => WireWaitKind::Busy,
            WaitCause::Slots => WireWaitKind::Slots,
            WaitCause::RemoteService => WireWaitKind::RemoteService,
            WaitCause::Other => WireWaitKind::Other,
        };
        let limit = limit_of(by, meter.as_ref(), now);
        WireWait {
            proxy: String::new(),
            target: target.into(),
            rule: report.rule.clone(),
            key: key.clone(),
            kind,
            limit,
            current: cause.now,
            since_ns_ago: now.since(cause.since).get(),
            last_ns_ago: now.since(cause.last).get(),
            active_ns: cause.active.get(),
            wait_ns: cause.wait.get(),
            span_ns: cause.span.get(),
            requests: cause.requests,
            bytes: cause.bytes.get(),
            queued: report.queued.into(),
        }
    })
}

fn donation(target: &str, report: &DonationReport, now: Time) -> WireDonation {
    let DonationReport { writer, waiter, file, by, meter, .. } = report;
    WireDonation {
        proxy: String::new(),
        target: target.into(),
        writer_job: writer.job.to_string(),
        writer_uid: writer.uid,
        waiter_job: waiter.job.to_string(),
        waiter_uid: waiter.uid,
        file: file.to_string(),
        limit: limit_of(by, meter.as_ref(), now),
        requests: report.requests,
        bytes: report.bytes.get(),
        donated: report.donated,
        since_ns_ago: now.since(report.since).get(),
        last_ns_ago: now.since(report.last).get(),
    }
}

/// The meter that holds, if it is one; without figures if it is gone.
fn limit_of(by: &WaitCause, meter: Option<&MeterStatus>, now: Time) -> Option<LimitState> {
    let WaitCause::Meter { scope, in_bytes } = by else { return None };
    Some(meter.map_or_else(|| LimitState::of(scope, *in_bytes), |meter| limit(meter, now)))
}

fn limit(meter: &MeterStatus, now: Time) -> LimitState {
    LimitState {
        per_s: meter.rate.per_sec(),
        share_ppb: meter.part.billionths(),
        used_per_s: meter.used_per_sec,
        next_ns: meter.due.since(now).get(),
        waiting: meter.waiting as u64,
        depends_on: meter.depends_on.clone(),
        ..LimitState::of(&meter.scope, meter.rate.is_bytes())
    }
}

/// Payers and classes of one sample, each.
const ROWS_MAX: usize = 1_024;
