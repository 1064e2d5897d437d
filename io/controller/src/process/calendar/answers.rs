//! What the calendar's thread answers without a change, and calls that wait for a reservation.

use std::collections::BTreeMap;

use api::{ErrorCode, ErrorReport, WireReservation, WireReservationState, WireReservations};
use model::{Nanos, Time};
use reserve::{ReservationId, ResourceKind, Span};

use super::requests::Refused;
use super::{
    CalendarActor, CalendarFigures, CalendarMsg, CalendarReply, ResourceFigures,
    WantedReservations, shown,
};
use crate::process::access::ApiCaller;

impl CalendarActor {
    pub(super) fn answer(&mut self, read: CalendarMsg) {
        let now = self.now();
        match read {
            CalendarMsg::Get { id, by, answer } => drop(answer.send(self.get(id, &by))),
            CalendarMsg::Watch { id, by, answer } => self.watch(id, &by, answer),
            CalendarMsg::List { wanted, answer } => drop(answer.send(self.list(&wanted, now))),
            CalendarMsg::Promised { span, target, by, answer } => {
                let rules = self.rules.visible_to(&by);
                let target = target.as_deref();
                let span = Span { from: span.0, until: span.1 };
                let mut shown =
                    shown::calendar(&self.calendar, &rules, &self.late, span, target, now);
                for resource in &shown.calendar.resources {
                    let exports = self.fleet.exports_of(&resource.name);
                    shown.exports.insert(resource.name.clone(), exports);
                }
                let _ = answer.send(shown);
            }
            CalendarMsg::Credit(subject, answer) => {
                let _ = answer.send(shown::credit(&self.calendar, &subject));
            }
            CalendarMsg::Job(read) => self.answer_job(read, now),
            CalendarMsg::Figures(answer) => drop(answer.send(self.figures(now))),
            _ => {}
        }
    }

    fn get(&self, id: u64, by: &ApiCaller) -> Result<WireReservation, Refused> {
        let shown = self.show(ReservationId(id)).ok_or_else(|| not_found(id))?;
        match by.may_see_job(Some(shown.user), shown.job.as_deref().unwrap_or_default()) {
            true => Ok(shown),
            false => Err(not_visible(id, by)),
        }
    }

    fn watch(&mut self, id: u64, by: &ApiCaller, answer: CalendarReply<WireReservation>) {
        let shown = self.get(id, by);
        let waits = shown.as_ref().is_ok_and(|one| one.state == WireReservationState::Scheduled);
        if !waits {
            return drop(answer.send(shown));
        }
        let count = |waiting: &BTreeMap<u64, Vec<CalendarReply<WireReservation>>>| {
            waiting.values().map(Vec::len).sum::<usize>()
        };
        if count(&self.waiting) >= WAITING_MAX {
            self.waiting.values_mut().for_each(|of| of.retain(|answer| !answer.is_closed()));
            self.waiting.retain(|_, of| !of.is_empty());
        }
        if count(&self.waiting) >= WAITING_MAX {
            let message = "too many calls wait for reservations; retry in 1 s";
            let report = ErrorReport::new(ErrorCode::Overloaded, message);
            return drop(answer.send(Err(Box::new(report))));
        }
        self.waiting.entry(id).or_default().push(answer);
    }

    pub(super) fn answer_waiting(&mut self, id: ReservationId) {
        if !self.waiting.contains_key(&id.0) {
            return;
        }
        let shown = self.show(id);
        if shown.as_ref().is_some_and(|one| one.state == WireReservationState::Scheduled) {
            return;
        }
        for answer in self.waiting.remove(&id.0).unwrap_or_default() {
            let _ = answer.send(shown.clone().ok_or_else(|| not_found(id.0)));
        }
    }

    pub(super) fn show(&self, id: ReservationId) -> Option<WireReservation> {
        match self.known.get(id) {
            Some(known) => Some(WireReservation {
                phases: self.phases_of(id),
                late: self.late.of_reservation(&known.details.target, id),
                ..known.shown_now(id, &self.calendar, &self.unreachable, self.now())
            }),
            None => self.ended.get(id.0).cloned(),
        }
    }

    fn list(&self, wanted: &WantedReservations, now: Time) -> WireReservations {
        let WantedReservations { user, job, after, with_ended } = wanted;
        let (user, job) = (*user, job.as_deref());
        let mut left = self.known.of(user, job, ReservationId(*after));
        let page: Vec<ReservationId> = left.by_ref().take(LISTED_MAX).collect();
        let mut omitted = left.count();
        let next = page.last().filter(|_| omitted > 0).map(|last| last.0);
        let mut reservations: Vec<_> = page.into_iter().filter_map(|id| self.show(id)).collect();
        if *with_ended && next.is_none() {
            let is_of = |ended: &&WireReservation| {
                user.is_none_or(|user| user == ended.user)
                    && job.is_none_or(|job| job == ended.job.as_deref().unwrap_or_default())
            };
            let mut ended = self.ended.newest().filter(is_of);
            let room = LISTED_MAX - reservations.len();
            reservations.extend(ended.by_ref().take(room).cloned());
            omitted = ended.count();
        }
        reservations.sort_by_key(|one| one.id);
        WireReservations { at_ns: now.as_nanos(), reservations, omitted: omitted as u64, next }
    }

    fn figures(&self, now: Time) -> CalendarFigures {
        let active = self.calendar.active_count() as u64;
        let resources = self.calendar.resources();
        let of = |resource| {
            let (name, kind) = resources.describe(resource)?;
            let at = reserve::Span::new(now, Nanos::new(1));
            let promised = resources.peak(resource, at).billionths() / 1_000;
            let (_, reservable) = resources.used(resource, now);
            Some(ResourceFigures {
                kind: kind.name(),
                name: name.clone(),
                promised_ppm: promised.into(),
                read_per_sec: reservable.read_per_sec(),
                write_per_sec: reservable.write_per_sec(),
            })
        };
        let target = |resource| {
            let (name, kind) = resources.describe(resource)?;
            (kind == ResourceKind::Target).then_some(name)
        };
        CalendarFigures {
            late: self.late.figures(resources.ids().filter_map(target), now),
            scheduled: self.calendar.count() as u64 - active,
            active,
            resources: resources.ids().filter_map(of).collect(),
        }
    }
}

pub(super) fn not_found(id: u64) -> Refused {
    let message = format!("reservation {id} does not exist, or has ended long ago");
    Box::new(ErrorReport::new(ErrorCode::NotFound, message).at("id"))
}

pub(super) fn not_visible(id: u64, by: &ApiCaller) -> Refused {
    let role = by.role;
    let message = format!("{} has role {role} and may not see reservation {id}", by.name);
    Box::new(ErrorReport::new(ErrorCode::PermissionDenied, message).at("id"))
}

/// The most calls that wait for a reservation.
const WAITING_MAX: usize = 4_096;
/// The most reservations of one page of a list.
const LISTED_MAX: usize = 1_000;
