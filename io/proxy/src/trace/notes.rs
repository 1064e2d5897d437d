//! Trace entries of requests, by how they ended.
//!
//! ```text
//!   taken in ─┬─► refused before the dispatcher ──────────────────────► refused
//!             ├─► Tattach ────────────────────────────────────────────► attached
//!             └─► waits for its turn ─┬─► Tflush, end of the session ─► cancelled
//!                                     └─► has it ─┬─► answered ───────► answered
//!                                                 └─► held ─► ended: granted, given up
//! ```
//!
//! Each request is recorded once, by the thread that ends it.

use model::{Amount, Bytes, Lane, Nanos, OpKind, Time};
use trace::{Access, TraceOutcome, TraceRequest};

use super::subjects::TraceCaller;
use super::{Filling, TraceRecorder};
use crate::connection::Connection;
use crate::fids::ProxyUser;
use crate::gate::{RequestMeta, RunningRequest};

/// The record of a request that has had its turn and has yet to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceDraft {
    request: TraceRequest,
    started: Time,
}

/// A request that is answered with an error before it reaches a dispatcher.
#[derive(Clone, Copy)]
pub(crate) struct RefusedRequest<'a> {
    pub(crate) caller: TraceCaller<'a>,
    pub(crate) kind: OpKind,
    /// Bytes that it asked for.
    pub(crate) asked: Bytes,
    /// Where it is known.
    pub(crate) access: Option<Access>,
}

impl<'a> RefusedRequest<'a> {
    /// A request of no attached user.
    pub(crate) fn of_peer(peer: &'a Connection, kind: OpKind, asked: Bytes) -> RefusedRequest<'a> {
        RefusedRequest { caller: TraceCaller::Peer(peer), kind, asked, access: None }
    }
}

impl TraceRecorder {
    /// Takes down a request that was answered with `errno` (0: with success) at `now`.
    pub(crate) fn record_answered(
        &self,
        running: &RunningRequest,
        served: Amount,
        errno: u32,
        now: Time,
    ) {
        let Some(mut draft) = self.draft(running, now) else { return };
        draft.request.served = served;
        let mut filling = self.shared.filling();
        self.request_class_name(&mut filling, running);
        self.push(&mut filling, &draft.ended(TraceOutcome::of(errno), now));
    }

    /// Begins the record of a request whose reply is held; [`TraceRecorder::record_parked`] takes it
    /// down. `None` if it is lost.
    pub(crate) fn begin_parked(&self, running: &RunningRequest, now: Time) -> Option<TraceDraft> {
        let draft = self.draft(running, now)?;
        self.request_class_name(&mut self.shared.filling(), running);
        Some(draft)
    }

    /// Takes down a request whose reply was held.
    pub(crate) fn record_parked(&self, draft: TraceDraft, outcome: TraceOutcome, now: Time) {
        self.push(&mut self.shared.filling(), &draft.ended(outcome, now));
    }

    /// Takes down a request that was given up before its turn.
    pub(crate) fn cancelled(&self, user: &ProxyUser, asked: &RequestMeta, now: Time) {
        let outcome = TraceOutcome::Cancelled;
        self.record_request(TraceCaller::User(user), now, |subject| TraceRequest {
            lane: asked.lane,
            access: asked.access.map(|order| order.access),
            arrived: asked.arrived,
            queued: now.since(asked.arrived),
            requested: asked.amount.bytes,
            outcome,
            ..untouched(subject, asked.kind, now)
        });
    }

    /// Takes down a request that was answered with `errno` as soon as it was read.
    pub(crate) fn refused(&self, request: RefusedRequest<'_>, errno: u32, now: Time) {
        self.record_request(request.caller, now, |subject| TraceRequest {
            access: request.access,
            requested: request.asked,
            outcome: TraceOutcome::of(errno),
            ..untouched(subject, request.kind, now)
        });
    }

    /// Takes down a Tattach that came at `arrived` and was worked on from `started` on.
    pub(crate) fn attached(
        &self,
        who: TraceCaller<'_>,
        arrived: Time,
        started: Time,
        errno: u32,
        now: Time,
    ) {
        self.record_request(who, now, |subject| TraceRequest {
            queued: started.since(arrived),
            service: now.since(started),
            served: Amount::new(0, 1),
            outcome: TraceOutcome::of(errno),
            ..untouched(subject, OpKind::Attach, arrived)
        });
    }

    fn record_request(
        &self,
        who: TraceCaller<'_>,
        now: Time,
        request: impl FnOnce(u32) -> TraceRequest,
    ) {
        if let Some(subject) = self.subject(who, now) {
            self.push(&mut self.shared.filling(), &request(subject));
        }
    }

    fn draft(&self, running: &RunningRequest, now: Time) -> Option<TraceDraft> {
        let asked = &running.meta;
        let subject = self.subject(TraceCaller::User(running.operation.user()), now)?;
        let request = TraceRequest {
            class: running.class.map(|class| class.to_bits()),
            lane: asked.lane,
            access: asked.access.map(|order| order.access),
            queued: running.queued,
            requested: asked.amount.bytes,
            served: asked.amount,
            ..untouched(subject, asked.kind, asked.arrived)
        };
        Some(TraceDraft { request, started: running.started })
    }

    /// Asks for the name of a class that is met for the first time.
    fn request_class_name(&self, filling: &mut Filling, running: &RunningRequest) {
        let Some(class) = running.class else { return };
        if filling.is_new_class(class.to_bits()) {
            self.shared.want_class(running.operation.target(), class.to_bits());
        }
    }
}

impl TraceDraft {
    fn ended(mut self, outcome: TraceOutcome, now: Time) -> TraceRequest {
        self.request.outcome = outcome;
        self.request.service = now.since(self.started);
        self.request
    }
}

/// A request at which nothing was done and that asked for nothing.
fn untouched(subject: u32, kind: OpKind, arrived: Time) -> TraceRequest {
    TraceRequest {
        subject,
        class: None,
        kind,
        lane: Lane::Device,
        access: None,
        arrived,
        queued: Nanos::ZERO,
        service: Nanos::ZERO,
        requested: Bytes::ZERO,
        served: Amount::new(0, 0),
        outcome: TraceOutcome::Done,
    }
}
