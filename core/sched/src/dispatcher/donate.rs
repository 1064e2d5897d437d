//! Donation: a request that another subject waits for goes in the lane of the waiting subject.
//!
//! ```text
//!   a job writes under a limit; another reads the file and must wait for these writes
//!   donate: the write leaves the writer's class ─► the waiter's class, if it gets on sooner there
//! ```
//!
//! This is priority inheritance (Sha, Rajkumar and Lehoczky, "Priority Inheritance Protocols", IEEE
//! Transactions on Computers 39(9), 1990) with a price: the waiter pays, in start tags and at
//! meters, for the donated request. So no subject gets more than its rules grant. A waiter that is
//! throttled by a tighter limit than the writer donates nothing.

use std::cmp::Reverse;
use std::sync::Arc;

use model::{Amount, Identity, OpKind, Time};

use super::{Arrival, Dispatcher};
use crate::ids::{RequestId, SubjectId};
use crate::index::SubjectIndex;
use crate::keys::MeterKey;
use crate::lanes::{LANES, QueuedRequest, RequestStage};
use crate::observation::{DonationReport, PendingDonation};
use crate::tags::EffectiveWeight;

/// A donated request: its new id and its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Donated {
    /// Its id from now on.
    pub id: RequestId,
    /// The caller's name for it, as before.
    pub token: u64,
    /// The subject that it goes as.
    pub subject: SubjectId,
}

impl Dispatcher {
    /// Donates a request that waits here and that `waiter` waits for. It goes as the waiter's from
    /// now on, behind the waiter's own requests, if it gets on sooner there. `file` is the file
    /// that it is about, for [`Dispatcher::donations`]. Returns where it is from now on; `None` if
    /// it runs or is gone. Poll afterwards.
    ///
    /// # Panics
    /// If the waiter was released as often as it was taken.
    pub fn donate(
        &mut self,
        id: RequestId,
        waiter: SubjectId,
        file: &Arc<str>,
        now: Time,
    ) -> Option<Donated> {
        let index = self.lanes.find(id)?;
        let request = self.lanes.request(index);
        let QueuedRequest { kind, amount, lane, token, subject, stage, .. } = *request;
        // What has paid and waits again goes before others already.
        let stays = request.has_paid() || stage == RequestStage::Urgent;
        if stage == RequestStage::Running {
            return None;
        }
        let writer = self.registry.id_of(subject);
        let subject = match stays {
            true => writer,
            false => self.subject_for_donation(writer, waiter, kind, amount, file, now),
        };
        if subject == writer {
            return Some(Donated { id, token, subject: writer });
        }
        self.cancel(id, now)?;
        let lane = LANES[usize::from(lane)];
        let arrival = Arrival { subject, kind, amount, lane, token };
        Some(Donated { id: self.enqueue(arrival, now), token, subject })
    }

    /// The subject as which a request of `writer` is to be enqueued that `waiter` waits for.
    ///
    /// # Panics
    /// If one of them was released as often as it was taken.
    pub fn subject_for_donation(
        &mut self,
        writer: SubjectId,
        waiter: SubjectId,
        kind: OpKind,
        amount: Amount,
        file: &Arc<str>,
        now: Time,
    ) -> SubjectId {
        self.advance(now);
        let both = [writer, waiter].map(|subject| self.registry.find(subject));
        let [writer_is, waiter_is] = both.map(|subject| self.registry.identity(subject).clone());
        let targets = both.map(|subject| self.registry.target(subject));
        if writer_is == waiter_is || targets[0] != targets[1] {
            self.finish_call();
            return writer;
        }
        let (own, by) = self.prospect(both[0], kind, amount);
        let (others, _) = self.prospect(both[1], kind, amount);
        let goes = others < own;
        self.observation.count_donation(PendingDonation {
            target: targets[0],
            writer: writer_is,
            waiter: waiter_is,
            file: file.clone(),
            by,
            requests: 1,
            bytes: amount.bytes.get(),
            donated: goes.into(),
            since: self.now,
            last: self.now,
        });
        self.finish_call();
        if goes { waiter } else { writer }
    }

    /// Recent donations between pairs of `wanted` (writer, waiter), the last first; a bounded
    /// number is kept.
    pub fn donations(
        &self,
        now: Time,
        wanted: impl Fn(&Identity, &Identity) -> bool,
    ) -> Vec<DonationReport> {
        let now = self.now.max(now);
        let asked = self.observation.donations().filter(|one| wanted(&one.writer, &one.waiter));
        let report = asked.map(|one| {
            let meter = one.by.as_ref().and_then(|key| self.meters.find(key));
            one.report(meter.map(|meter| self.status_of(&self.meters.figures(meter, now))))
        });
        report.collect()
    }

    /// How soon a subject's request gets on, lower is sooner, and the meter that decides. First the
    /// time that the slowest meter takes for it counts, among meters with waiters, then the weight.
    fn prospect(
        &mut self,
        subject: SubjectIndex,
        kind: OpKind,
        amount: Amount,
    ) -> ((u64, Reverse<EffectiveWeight>), Option<MeterKey>) {
        let way = self.classification(subject, kind);
        let weight = Reverse(self.lanes.weight_of(way.class, kind));
        let slowest =
            way.chain.get().and_then(|chain| self.meters.slowest(chain, amount, self.now));
        match slowest {
            None => ((0, weight), None),
            Some((takes, key)) => ((takes, weight), Some(key.clone())),
        }
    }
}
