//! Reservations, the calendar and credits, as the API shows them.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use api::{
    CalendarResource, CalendarStep, ReducedReservation, WireCalendar, WireCredit, WireRate,
    WireReservation, WireReservationState,
};
use model::{Share, Time};
use reserve::{
    Calendar, CeilingSubject, Load, ReservationId, ReservationOwner, ReservationProgress,
    ReservationState, ResourceId, ResourceKind, Span,
};

use super::late::LateTargets;
use super::rules::RuleReservations;
use super::state::ReservationDetails;

/// A reservation with what the calendar does not know of it.
#[derive(Clone, Debug)]
pub(super) struct KnownReservation {
    pub(super) owner: ReservationOwner,
    pub(super) details: ReservationDetails,
    /// The reservation of which it is a phase.
    pub(super) phase_of: Option<ReservationId>,
}

/// The reservations that have not ended, by user and job.
#[derive(Debug, Default)]
pub(super) struct KnownReservations {
    by_id: BTreeMap<ReservationId, KnownReservation>,
    by_user: BTreeMap<u32, BTreeSet<ReservationId>>,
    by_job: BTreeMap<String, BTreeSet<ReservationId>>,
}

/// The calendar in a span, with what the ledger is asked for.
#[derive(Debug, Default)]
pub(crate) struct PromisedCalendar {
    pub(crate) calendar: WireCalendar,
    /// The exports of each target.
    pub(crate) exports: BTreeMap<String, Vec<String>>,
}

/// The proxies of a target that do not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreachableProxies {
    pub(crate) names: Vec<Arc<str>>,
    /// The part of the target that they may still be using.
    pub(crate) given_out: Share,
}

impl KnownReservations {
    pub(super) fn insert(&mut self, id: ReservationId, known: KnownReservation) {
        let job = known.owner.job.as_str();
        if !job.is_empty() {
            self.by_job.entry(job.to_owned()).or_default().insert(id);
        }
        self.by_user.entry(known.owner.uid).or_default().insert(id);
        self.by_id.insert(id, known);
    }

    pub(super) fn remove(&mut self, id: ReservationId) -> Option<KnownReservation> {
        let known = self.by_id.remove(&id)?;
        forget(&mut self.by_user, &known.owner.uid, id);
        forget(&mut self.by_job, known.owner.job.as_str(), id);
        Some(known)
    }

    pub(super) fn get(&self, id: ReservationId) -> Option<&KnownReservation> {
        self.by_id.get(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ReservationId> {
        self.by_id.keys().copied()
    }

    /// The numbers of those of a user and a job above a number, in order. O(those of the user, or
    /// of the job).
    pub(super) fn of(
        &self,
        user: Option<u32>,
        job: Option<&str>,
        after: ReservationId,
    ) -> Box<dyn Iterator<Item = ReservationId> + '_> {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let of_user = user.map(|user| self.by_user.get(&user));
        let of_job = job.filter(|job| !job.is_empty()).map(|job| self.by_job.get(job));
        let of_job_only = |job: Option<&str>, id: &ReservationId| {
            job.is_none_or(|job| self.by_id[id].owner.job.as_str() == job)
        };
        let job = job.map(str::to_owned);
        match (of_job, of_user) {
            (Some(found), _) => {
                let ids = found.into_iter().flat_map(move |ids| ids.range(above).copied());
                Box::new(
                    ids.filter(move |id| user.is_none_or(|user| self.by_id[id].owner.uid == user)),
                )
            }
            (None, Some(found)) => {
                let ids = found.into_iter().flat_map(move |ids| ids.range(above).copied());
                Box::new(ids.filter(move |id| of_job_only(job.as_deref(), id)))
            }
            (None, None) => {
                let ids = self.by_id.range(above).map(|(id, _)| *id);
                Box::new(ids.filter(move |id| of_job_only(job.as_deref(), id)))
            }
        }
    }
}

impl FromIterator<(ReservationId, KnownReservation)> for KnownReservations {
    fn from_iter<I: IntoIterator<Item = (ReservationId, KnownReservation)>>(all: I) -> Self {
        let mut known = KnownReservations::default();
        all.into_iter().for_each(|(id, one)| known.insert(id, one));
        known
    }
}

fn forget<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(
    index: &mut BTreeMap<K, BTreeSet<ReservationId>>,
    key: &Q,
    id: ReservationId,
) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// A state as the API has it.
pub(super) fn state_of(state: ReservationState) -> WireReservationState {
    match state {
        ReservationState::Undefined => WireReservationState::Undefined,
        ReservationState::Scheduled => WireReservationState::Scheduled,
        ReservationState::Active => WireReservationState::Active,
    }
}

impl KnownReservation {
    /// What is known of it without the calendar.
    pub(super) fn shown(&self, id: ReservationId) -> WireReservation {
        let KnownReservation { owner, details, phase_of } = self;
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
            phase_of: phase_of.map(|parent| parent.0),
            idempotency_key: details.idempotency_key.clone(),
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
        let state = state_of(status.state);
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
            claim_by_ns: progress.as_ref().and_then(|of| of.claim_by).map(Time::as_nanos),
            claimed_ns: progress.as_ref().and_then(|of| of.since).map(Time::as_nanos),
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
        // A phase is shown with the whole rate, of which it adds a part to its reservation.
        let parent = progress.parent.and_then(|parent| calendar.progress(parent)?.rows);
        let of_parent = |resource| {
            let mut loads = parent.iter().flat_map(|rows| &rows.loads);
            loads.find(|(of, _)| *of == resource).map(|(_, load)| *load)
        };
        // A network that is known since after the request of that takes nothing from it.
        let target = resources.find(ResourceKind::Target, &self.details.target);
        for (resource, load) in &rows.loads {
            let Some((name, kind)) = resources.describe(*resource) else { continue };
            let target = target.filter(|_| kind == ResourceKind::ProxyNetwork);
            let of_parent = of_parent(*resource).or_else(|| of_parent(target?));
            let load = load.plus(of_parent.unwrap_or(Load::NONE));
            let wanted = self.wanted(kind);
            let lost = || format!("{} {name} has lost capacity", kind.name());
            note(load.read_per_sec().into(), wanted.read_per_sec().into(), &lost);
            note(load.write_per_sec().into(), wanted.write_per_sec().into(), &lost);
            let unreachable = unreachable.filter(|_| kind.is_of_target());
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

/// The calendar in a span, of all targets or one.
pub(super) fn calendar(
    calendar: &Calendar,
    rules: &RuleReservations,
    late: &LateTargets,
    span: Span,
    target: Option<&str>,
    now: Time,
) -> PromisedCalendar {
    let resources = calendar.resources();
    let is_wanted = |of: &ResourceId| {
        let described = resources.describe(*of);
        described.is_some_and(|(name, _)| target.is_none_or(|target| target == &**name))
    };
    let (mut room, mut omitted, mut shown) = (ALL_STEPS_MAX, 0, Vec::new());
    for resource in resources.ids().filter(is_wanted) {
        if room == 0 {
            omitted += 1;
            continue;
        }
        let (name, kind) = resources.describe(resource).expect("it is in the table");
        let (whole, unreserved) = (resources.whole(resource, now), resources.unreserved(resource));
        let levels = resources.levels(resource, span, STEPS_MAX.min(room));
        room -= levels.len();
        let steps = levels.into_iter().map(|(at, load)| CalendarStep {
            from_ns: at.as_nanos(),
            read_per_sec: load.read_per_sec(),
            write_per_sec: load.write_per_sec(),
        });
        shown.push(CalendarResource {
            kind: kind.name().into(),
            name: name.to_string(),
            read_per_sec: whole.read_per_sec(),
            write_per_sec: whole.write_per_sec(),
            best_effort_ppm: unreserved.best_effort.billionths() / 1_000,
            unseen_ppm: unreserved.unseen.billionths() / 1_000,
            rules: rules.named(kind),
            late: late.of_resource(name, kind),
            steps: steps.collect(),
            used: Vec::new(),
        });
    }
    let calendar = WireCalendar {
        at_ns: now.as_nanos(),
        from_ns: span.from.as_nanos(),
        until_ns: span.until.as_nanos(),
        resources: shown,
        omitted,
    };
    PromisedCalendar { calendar, exports: BTreeMap::new() }
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
/// The most steps of one answer; what is left out can be asked for by its target.
const ALL_STEPS_MAX: usize = 65_536;
