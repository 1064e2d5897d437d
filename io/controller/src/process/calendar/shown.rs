//! Reservations, the calendar and credits, as the API shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{
    CalendarResource, CalendarStep, ReducedReservation, WireCalendar, WireCredit, WireRate,
    WireReservation, WireReservationState,
};
use model::{Share, Time};
use reserve::{
    Calendar, CeilingSubject, Load, ReservationId, ReservationOwner, ReservationProgress,
    ReservationState, ResourceId, ResourceKind,
};

use super::rules::RuleReservations;
use super::state::ReservationDetails;

/// A reservation with what the calendar does not know of it.
#[derive(Clone, Debug)]
pub(super) struct KnownReservation {
    pub(super) owner: ReservationOwner,
    pub(super) details: ReservationDetails,
}

/// The proxies of a target that do not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreachableProxies {
    pub(crate) names: Vec<Arc<str>>,
    /// The part of the target that they may still be using.
    pub(crate) given_out: Share,
}

impl KnownReservation {
    /// What is known of it without the calendar.
    pub(super) fn shown(&self, id: ReservationId) -> WireReservation {
        let KnownReservation { owner, details } = self;
        WireReservation {
            id: id.0,
            job: (!owner.job.as_str().is_empty()).then(|| owner.job.to_string()),
            user: owner.uid,
            account: owner.account.as_deref().map(str::to_owned),
            project: owner.project,
            target: details.target.clone(),
            directory: details.directory.clone(),
            read: details.read.map(WireRate::Bytes),
            write: details.write.map(WireRate::Bytes),
            metadata: details.metadata.map(WireRate::Ops),
            spontaneous: details.is_spontaneous,
            ..WireReservation::default()
        }
    }

    /// The reservation as it is now.
    pub(super) fn shown_now(
        &self,
        id: ReservationId,
        calendar: &Calendar,
        unreachable: &BTreeMap<Arc<str>, UnreachableProxies>,
        now: Time,
    ) -> WireReservation {
        let (status, progress) = (calendar.status(id), calendar.progress(id));
        let state = match status.state {
            ReservationState::Undefined => WireReservationState::Undefined,
            ReservationState::Scheduled => WireReservationState::Scheduled,
            ReservationState::Active => WireReservationState::Active,
        };
        let is_active = state == WireReservationState::Active;
        let is_waiting = progress.as_ref().is_some_and(|progress| progress.is_waiting);
        let span = status.span.filter(|_| !is_waiting);
        let reduced = progress.as_ref().filter(|_| is_active).and_then(|progress| {
            let unreachable = unreachable.get(self.details.target.as_str());
            self.reduced(progress, calendar, unreachable, now)
        });
        WireReservation {
            state,
            reduced,
            ended: status.ended.map(|reason| reason.name().to_owned()),
            start_ns: span.map(|span| span.from.as_nanos()),
            end_ns: span.map(|span| span.until.as_nanos()),
            guaranteed_ns: status.guaranteed.map(Time::as_nanos),
            claim_by_ns: progress.and_then(|progress| progress.claim_by).map(Time::as_nanos),
            ..self.shown(id)
        }
    }

    /// What an active reservation lacks: by a loss of capacity, or by proxies that may still be using
    /// what it has.
    fn reduced(
        &self,
        progress: &ReservationProgress,
        calendar: &Calendar,
        unreachable: Option<&UnreachableProxies>,
        now: Time,
    ) -> Option<ReducedReservation> {
        let rows = progress.rows.as_ref()?;
        let resources = calendar.resources();
        let mut least = ReducedReservation { ppm: 1_000_000, because: String::new() };
        let mut note = |has: u128, of: u128, because: &dyn Fn() -> String| {
            let ppm = (has * 1_000_000).checked_div(of).unwrap_or(1_000_000);
            if ppm < u128::from(least.ppm) {
                least = ReducedReservation { ppm: ppm as u32, because: because() };
            }
        };
        for (resource, load) in &rows.loads {
            let Some((name, kind)) = resources.describe(*resource) else { continue };
            let wanted = self.wanted(kind);
            let lost = || format!("{} {name} has lost capacity", kind.name());
            note(load.read_per_sec().into(), wanted.read_per_sec().into(), &lost);
            note(load.write_per_sec().into(), wanted.write_per_sec().into(), &lost);
            let unreachable = unreachable.filter(|_| kind.has_best_effort());
            let Some(of) = unreachable.filter(|of| of.given_out > Share::ZERO) else { continue };
            let whole = resources.whole(*resource, now);
            let (booked, _) = resources.used(*resource, now);
            let (read, write) =
                (u128::from(whole.read_per_sec()), u128::from(whole.write_per_sec()));
            let cost = u128::from(booked.read_per_sec()) * write
                + u128::from(booked.write_per_sec()) * read;
            let left = Share::WHOLE.less(of.given_out).of(whole.read_per_sec());
            let available = u128::from(left) * write;
            if cost > available {
                let names = of.names.iter().take(8).map(|name| &**name).collect::<Vec<_>>();
                let because = || {
                    let names = names.join(", ");
                    format!("unreachable: {names}; may still use {} of {name}", of.given_out)
                };
                // A million times the greatest product would not fit 128 bits.
                let scale = (cost >> 100) as u32;
                let shift = u32::BITS - scale.leading_zeros();
                note(available >> shift, cost >> shift, &because);
            }
        }
        (least.ppm < 1_000_000).then_some(least)
    }

    /// What it has reserved of a kind of resource.
    fn wanted(&self, kind: ResourceKind) -> Load {
        let of = |rate: Option<u64>| rate.unwrap_or(0);
        let ReservationDetails { read, write, metadata, .. } = &self.details;
        let (read, write) = match kind {
            ResourceKind::Metadata => (of(*metadata), 0),
            _ => (of(*read), of(*write)),
        };
        Load::per_sec(read, write).expect("checked at the request")
    }
}

/// The calendar in a span.
pub(super) fn calendar(
    calendar: &Calendar,
    rules: &RuleReservations,
    span: (Time, Time),
    now: Time,
) -> WireCalendar {
    let (from, until) = span;
    let mut changes: BTreeMap<ResourceId, BTreeMap<Time, (i128, i128)>> = BTreeMap::new();
    for (_, resource, load, span) in calendar.booked() {
        let (begin, end) = (span.from.max(from), span.until.min(until));
        if begin >= end {
            continue;
        }
        let of = changes.entry(resource).or_default();
        let (read, write) = (i128::from(load.read_per_sec()), i128::from(load.write_per_sec()));
        for (at, sign) in [(begin, 1), (end, -1)] {
            let level = of.entry(at).or_default();
            *level = (level.0 + sign * read, level.1 + sign * write);
        }
    }
    let resources = calendar.resources();
    let shown = resources.ids().filter_map(|resource| {
        let (name, kind) = resources.describe(resource)?;
        let (whole, unreserved) = (resources.whole(resource, now), resources.unreserved(resource));
        Some(CalendarResource {
            kind: kind.name().into(),
            name: name.to_string(),
            read_per_sec: whole.read_per_sec(),
            write_per_sec: whole.write_per_sec(),
            best_effort_ppm: unreserved.best_effort.billionths() / 1_000,
            unseen_ppm: unreserved.unseen.billionths() / 1_000,
            rules: rules.named(kind),
            steps: steps(changes.remove(&resource).unwrap_or_default(), from, until),
            used: Vec::new(),
        })
    });
    let resources = shown.collect();
    let (from_ns, until_ns) = (from.as_nanos(), until.as_nanos());
    WireCalendar { at_ns: now.as_nanos(), from_ns, until_ns, resources }
}

fn steps(changes: BTreeMap<Time, (i128, i128)>, from: Time, until: Time) -> Vec<CalendarStep> {
    let mut level = (0, 0);
    let mut steps = vec![CalendarStep { from_ns: from.as_nanos(), ..CalendarStep::default() }];
    for (at, (read, write)) in changes.into_iter().filter(|(at, _)| *at < until) {
        level = (level.0 + read, level.1 + write);
        let amount = |level| u64::try_from(level).unwrap_or(0);
        let step = CalendarStep {
            from_ns: at.as_nanos(),
            read_per_sec: amount(level.0),
            write_per_sec: amount(level.1),
        };
        if steps.last().is_some_and(|last| last.from_ns == step.from_ns) {
            steps.pop();
        }
        steps.push(step);
    }
    steps.truncate(STEPS_MAX);
    steps
}

/// The credit and what is outstanding of a subject.
pub(super) fn credit(calendar: &Calendar, subject: &CeilingSubject) -> WireCredit {
    let outstanding = calendar.outstanding(subject);
    WireCredit {
        subject: subject.to_string(),
        bytes: calendar.credit(subject).get(),
        outstanding_bytes: outstanding.bytes.get(),
        outstanding: outstanding.count,
    }
}

/// The most steps of a resource that are shown.
const STEPS_MAX: usize = 10_000;
