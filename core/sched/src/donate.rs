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

use model::{Amount, Bytes, Identity, OpKind, Time};

use crate::class::{PAID, QueuedRequest, RequestStage};
use crate::dispatcher::{Arrival, Dispatcher};
use crate::ids::{RequestId, SubjectId};
use crate::lane::LANES;
use crate::meter::MeterKey;
use crate::slab::NONE;
use crate::tags::EffectiveWeight;
use crate::wait::{MeterStatus, WaitCause};

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

/// Donated requests of one writer for one waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonationReport {
    /// The subject whose requests they are.
    pub writer: Arc<Identity>,
    /// The subject that waits for them.
    pub waiter: Arc<Identity>,
    /// The file that they write, as the caller named it; empty without a name.
    pub file: Arc<str>,
    /// The cause for which the last of them waited in its own class.
    pub by: WaitCause,
    /// The status of that meter, where it is one that still exists.
    pub meter: Option<MeterStatus>,
    /// The number of requests that were waited for.
    pub requests: u64,
    /// The payload of these requests.
    pub bytes: Bytes,
    /// The number of requests that went in the waiter's lane.
    pub donated: u64,
    /// When the first request was waited for.
    pub since: Time,
    /// When the last request was waited for.
    pub last: Time,
}

/// Recent donations, the last at the end.
#[derive(Debug, Default)]
pub(crate) struct Donations(Vec<PendingDonation>);

#[derive(Debug)]
struct PendingDonation {
    writer: Arc<Identity>,
    waiter: Arc<Identity>,
    file: Arc<str>,
    by: Option<MeterKey>,
    requests: u64,
    bytes: u64,
    donated: u64,
    since: Time,
    last: Time,
}

impl Donations {
    fn count(&mut self, new: PendingDonation) {
        let same = |known: &PendingDonation| {
            known.writer == new.writer && known.waiter == new.waiter && known.file == new.file
        };
        let known = self.0.iter().position(same).map(|at| self.0.remove(at));
        if self.0.len() == DONATIONS_MAX {
            self.0.remove(0);
        }
        let new = match known {
            None => new,
            Some(known) => PendingDonation {
                requests: known.requests + new.requests,
                bytes: known.bytes.saturating_add(new.bytes),
                donated: known.donated + new.donated,
                since: known.since,
                ..new
            },
        };
        self.0.push(new);
    }
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
        if !self.requests.has(id.index, id.generation) {
            return None;
        }
        let request = self.requests[id.index];
        let QueuedRequest { kind, amount, lane, token, subject: index, .. } = request;
        let writer = SubjectId { index, generation: self.subjects.generation(index) };
        if request.stage == RequestStage::Running {
            return None;
        }
        // What has paid and waits again goes before others already.
        if request.has(PAID) || request.stage == RequestStage::Urgent {
            return Some(Donated { id, token, subject: writer });
        }
        let subject = self.subject_for_donation(writer, waiter, kind, amount, file, now);
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
        for subject in [writer, waiter] {
            let SubjectId { index, generation } = subject;
            assert!(self.subjects.has(index, generation), "subject {index} is gone");
        }
        let who = [writer, waiter].map(|subject| self.subjects[subject.index].identity.clone());
        let [writer_is, waiter_is] = who;
        if writer_is == waiter_is {
            self.finish_call();
            return writer;
        }
        let (own, by) = self.prospect(writer, kind, amount);
        let (others, _) = self.prospect(waiter, kind, amount);
        let goes = others < own;
        self.donations.count(PendingDonation {
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
        let known = self.donations.0.iter().rev();
        let asked = known.filter(|one| wanted(&one.writer, &one.waiter));
        let report = asked.map(|one| DonationReport {
            writer: one.writer.clone(),
            waiter: one.waiter.clone(),
            file: one.file.clone(),
            by: one.by.as_ref().map_or(WaitCause::Weight, |key| WaitCause::Meter {
                scope: key.scope(),
                in_bytes: key.in_bytes,
            }),
            meter: one.by.as_ref().and_then(|key| self.report_named_meter(key, now)),
            requests: one.requests,
            bytes: Bytes::new(one.bytes),
            donated: one.donated,
            since: one.since,
            last: one.last,
        });
        report.collect()
    }

    /// How soon a subject's request gets on, lower is sooner, and the meter that decides. First the
    /// time that the slowest meter takes for it counts, among meters with waiters, then the weight.
    fn prospect(
        &mut self,
        subject: SubjectId,
        kind: OpKind,
        amount: Amount,
    ) -> ((u64, Reverse<EffectiveWeight>), Option<MeterKey>) {
        let way = self.classification(subject.index, kind);
        let phi = self.classes[way.class].phi_of(kind);
        if way.route == NONE {
            return ((0, Reverse(phi)), None);
        }
        let now = self.now;
        let links = self.routes[way.route].links().iter();
        let meters = links.map(|link| &self.meters[self.links[*link].meter]);
        let takes = meters.filter_map(|meter| {
            let units = meter.pacer.rate().units_of(amount);
            let holds = units > 0 && (meter.pacer.due() > now || !meter.has_no_waiters());
            holds.then(|| (meter.pacer.time_of(units).0, &meter.key))
        });
        match takes.max_by_key(|(takes, _)| *takes) {
            None => ((0, Reverse(phi)), None),
            Some((takes, key)) => ((takes.max(1), Reverse(phi)), Some(key.clone())),
        }
    }
}

/// How many pairs of writer and waiter, with files, are remembered.
const DONATIONS_MAX: usize = 64;
