//! What is on record, and what follows from that: rows, answers and events.
//!
//! ```text
//!   unstored ─► one decision ─► store ─┬─► rows, answers, events
//!                                      └─ failed ─► restored from the records; the callers get the error
//! ```

use std::collections::BTreeSet;

use api::{ErrorCode, ErrorReport};
use model::{Directory, JobId};
use reserve::{Calendar, JobChange, JobRegistry, ReservationId, WantedRows};
use tokio::sync::oneshot;

use super::fleet::Fleet;
use super::shown::KnownReservation;
use super::state::{CalendarDecision, CalendarState};
use super::{CalendarActor, EVENTS_MAX, PendingReply};
use crate::process::plan_actor::PlanMsg;
use crate::process::records::StoreMsg;

impl CalendarActor {
    /// Sends the rows of what was restored, before any proxy is answered: a reply without them would
    /// take them from a job that uses them. They are on record, so this does not wait for the store.
    pub(crate) fn send_restored_rows(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        self.send_rows(&changed);
    }

    /// Stores what has changed; then come rows, answers and events.
    pub(super) fn commit(&mut self) {
        let mut decision = std::mem::take(&mut self.unstored);
        decision.records = self.calendar.take_changed();
        decision.jobs = self.jobs.take_changed();
        let jobs: Vec<JobId> = decision.jobs.iter().filter_map(changed_job).collect();
        if !decision.is_empty()
            && let Err((error, state)) = self.store(decision)
        {
            tracing::error!(%error, "cannot store the calendar; it is as it was before");
            let report = ErrorReport::new(ErrorCode::StoreFailed, error);
            for reply in self.replies.drain(..) {
                (reply.send)(Err(Box::new(report.clone())));
            }
            self.ended.roll_back();
            if let Some(state) = state {
                self.restore(*state);
            }
            return;
        }
        self.ended.keep();
        self.publish_job_tokens(&jobs);
        let changed = std::mem::take(&mut self.changed);
        self.send_rows(&changed);
        for PendingReply { send, audit } in std::mem::take(&mut self.replies) {
            audit.iter().for_each(|line| self.to.access.audit.write(line));
            send(Ok(()));
        }
        let events = std::mem::take(&mut self.events);
        events.iter().take(EVENTS_MAX).for_each(|event| self.publish(event));
        changed.iter().for_each(|id| self.answer_waiting(*id));
    }

    /// Stores a decision, or returns the error and what is on record instead.
    pub(super) fn store(
        &mut self,
        decision: CalendarDecision,
    ) -> Result<(), (String, Option<Box<CalendarState>>)> {
        let (answer, outcome) = oneshot::channel();
        let msg = StoreMsg::Calendar { decision: Box::new(decision), answer };
        let sent = self.to.store.send(msg).is_ok();
        match outcome.blocking_recv() {
            Ok(Ok(())) if sent => Ok(()),
            Ok(Err((error, state))) => Err((error.to_string(), Some(state))),
            _ => Err(("the controller is shutting down".into(), None)),
        }
    }

    /// Replaces everything by what is on record. Since the last record nobody may have taken claims.
    pub(super) fn restore(&mut self, state: CalendarState) {
        let now = self.now();
        let records = state.records;
        self.jobs = JobRegistry::restored(state.jobs.into_values());
        self.to.access.jobs.set_all(self.jobs.iter());
        let known = records.reservations.iter().map(|of| {
            let details = state.details.get(&of.id()).cloned().unwrap_or_default();
            let (owner, phase_of) = (of.owner().clone(), of.parent());
            (of.id(), KnownReservation { owner, details, phase_of })
        });
        self.known = known.collect();
        let at = records.at;
        let (calendar, repairs) = Calendar::restore(self.settings.calendar(), records, at);
        self.calendar = calendar;
        for repair in repairs {
            tracing::warn!(%repair, "repaired the stored calendar");
        }
        if now > at {
            self.excuse_claims();
        }
        self.calendar.advance(now);
        self.settings.apply(&mut self.calendar, now);
        self.fleet = Fleet::new(state.proxies);
        self.unstored = CalendarDecision::default();
        self.events.clear();
        self.changed = self.known.ids().chain(self.rows.ids()).collect();
        self.rows.resend();
        self.apply_rules(now);
        self.drain_events();
        // What was left out has no event.
        let left_out: Vec<_> =
            self.known.ids().filter(|id| self.calendar.progress(*id).is_none()).collect();
        left_out.into_iter().for_each(|id| drop(self.known.remove(id)));
    }

    /// Sends the rows of some reservations to the plan, as one message.
    pub(super) fn send_rows(&mut self, ids: &BTreeSet<ReservationId>) {
        let now = self.now();
        let mut changes = Vec::new();
        for id in ids {
            let progress = self.calendar.progress(*id).and_then(|progress| progress.rows);
            let known = self.known.get(*id);
            let path = known.and_then(|known| known.details.directory.as_ref());
            let directory =
                path.map(|path| Directory::new(path.as_bytes()).expect("checked at the request"));
            let wanted = progress.as_ref().zip(known).map(|(loads, known)| WantedRows {
                loads,
                owner: &known.owner,
                target: &known.details.target,
                directory: directory.as_ref(),
            });
            changes.extend(self.rows.update(*id, wanted, self.calendar.resources(), now));
        }
        if !changes.is_empty() {
            // It fails only if the plan's thread has ended.
            let _ = self.to.plan.send(PlanMsg::Rows(changes));
        }
    }
}

/// The job of which a token comes into force or goes out of it.
fn changed_job(change: &JobChange) -> Option<JobId> {
    match change {
        JobChange::Registered(record) => Some(record.registration.job.clone()),
        JobChange::Ended(job) => Some(job.clone()),
        JobChange::Nodes(..) => None,
    }
}
