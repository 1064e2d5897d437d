//! The calls of a mount's channels: sent, sent once more, answered, flushed.

use ninep::Tag;
use ninep::dialect::{NOSLOT, ReplyHeader};
use session::client::{CallId, Lost};
use session::server::IdempotencyKey;

use super::{BegunSync, CALLS_MAX, MountAction, SimFlight, SimMount, SimPhase};
use crate::sessions::SessionBug;
use crate::sessions::backend::{SimOp, SimOutcome};
use crate::sessions::checks::{CallEnd, SessionChecks};
use crate::sessions::kept::{KeptChange, SimWrite};
use crate::sessions::wire::{SimReply, ToProxy};

impl SimMount {
    /// Everything in flight is sent once more.
    pub(super) fn resume(&mut self, channel: usize, wire: usize, checks: &SessionChecks) {
        let own = &self.channels[channel];
        for (id, ()) in own.calls.calls_to_replay() {
            let message = match own.in_flight[usize::from(id.tag.0)] {
                Some(SimFlight::Call { call, .. }) => message_of(call, id, own.epoch, checks),
                Some(SimFlight::Flush(old)) => ToProxy::Flush { tag: id.tag, old },
                Some(SimFlight::Flushed) | None => continue,
            };
            self.actions.push(MountAction::Send(wire, message));
        }
    }

    /// A new session begins: what may be repeated waits again, what may not is in doubt.
    pub(super) fn restart(&mut self, channel: usize, slots: u16, checks: &mut SessionChecks) {
        let resends = self.faults.bug == Some(SessionBug::ResendsToNewSession);
        let own = &mut self.channels[channel];
        own.epoch = self.epoch;
        let order: Vec<_> = own.calls.calls_to_replay().iter().map(|(id, ())| id.tag).collect();
        let lost = own.calls.restart(slots);
        for (tag, lost) in order.into_iter().zip(lost).rev() {
            let Some(SimFlight::Call { call, flushed }) = own.in_flight[usize::from(tag.0)].take()
            else {
                continue;
            };
            match lost {
                _ if checks.has_ended(call) => {}
                _ if flushed => checks.end_call(call, CallEnd::Interrupted),
                Lost::InDoubt(()) if !resends => checks.end_call(call, CallEnd::InDoubt),
                Lost::InDoubt(()) | Lost::Repeatable(()) => own.waiting.push_front(call),
            }
        }
    }

    /// Sends what may be sent.
    pub(super) fn begin(&mut self, channel: usize, checks: &SessionChecks) {
        let own = &mut self.channels[channel];
        let SimPhase::Up(wire) = own.phase else { return };
        if self.pausing.is_some() {
            return;
        }
        for _ in 0..own.waiting.len() {
            let Some(call) = own.waiting.pop_front() else { break };
            let op = checks.call(call).op;
            if matches!(op, SimOp::Sync { .. }) && self.rewriting > 0 {
                own.waiting.push_back(call);
                continue;
            }
            let full = own.calls.len() >= CALLS_MAX;
            let Some(id) = (!full).then(|| own.calls.begin(op.is_once(), ()).ok()).flatten() else {
                own.waiting.push_front(call);
                break;
            };
            own.in_flight[usize::from(id.tag.0)] = Some(SimFlight::Call { call, flushed: false });
            if let SimOp::Sync { file } = op {
                let writes = checks.answered_writes(self.number, Some(file));
                self.syncs.insert(call, BegunSync { losses: self.kept.losses(), writes });
            }
            let message = message_of(call, id, own.epoch, checks);
            self.actions.push(MountAction::Send(wire, message));
        }
    }

    pub(super) fn answered(
        &mut self,
        channel: usize,
        reply: &SimReply,
        checks: &mut SessionChecks,
    ) {
        let (epoch, tag) = (self.channels[channel].epoch, reply.tag);
        let changed = self.handle_header(epoch, reply.header);
        self.take_change(channel, changed, checks);
        let own = &mut self.channels[channel];
        let place = &mut own.in_flight[usize::from(tag.0)];
        let Some(SimFlight::Call { call, flushed }) = *place else {
            return checks.violate(format!("a reply with the unused tag {tag}"));
        };
        if call != reply.call {
            let other = reply.call;
            return checks.violate(format!("call {call} received the reply of call {other}"));
        }
        if flushed {
            *place = Some(SimFlight::Flushed);
        } else {
            *place = None;
            own.calls.end(tag);
        }
        self.finish(channel, call, reply, checks);
    }

    /// A call was answered: it ends for its caller, unless it has to be made again.
    pub(super) fn finish(
        &mut self,
        channel: usize,
        call: usize,
        reply: &SimReply,
        checks: &mut SessionChecks,
    ) {
        let (op, epoch) = (checks.call(call).op, self.channels[channel].epoch);
        if let (Some((file, write)), SimOutcome::Done) = (op.written(), reply.outcome) {
            if write != call {
                self.rewriting -= 1;
            }
            if self.kept.insert(epoch, reply.number, SimWrite { file, write }) {
                checks.expect_durable(&[write], "a write below the watermark");
            }
        }
        if let SimOp::Sync { .. } = op
            && let Some(begun) = self.syncs.remove(&call)
            && !checks.has_ended(call)
        {
            if begun.losses != self.kept.losses() {
                return self.channels[channel].waiting.push_back(call);
            }
            checks.expect_durable(&begun.writes, "a write before an fsync");
        }
        if op == SimOp::Commit {
            let durable = self.kept.committed(epoch);
            let durable: Vec<usize> = durable.iter().map(|kept| kept.write).collect();
            checks.expect_durable(&durable, "a write before a commit");
        }
        if !checks.has_ended(call) {
            checks.end_call(call, CallEnd::Answered(reply.outcome));
        }
    }

    pub(super) fn handle_header(&mut self, epoch: u64, mut header: ReplyHeader) -> KeptChange {
        if self.faults.bug == Some(SessionBug::IgnoresVerifier) {
            header.verifier = 0;
        }
        self.kept.handle_header(epoch, header)
    }

    pub(super) fn flushed(&mut self, channel: usize, tag: Tag, checks: &mut SessionChecks) {
        let own = &mut self.channels[channel];
        let Some(SimFlight::Flush(old)) = own.in_flight[usize::from(tag.0)].take() else {
            return checks.violate(format!("a reply to the flush {tag}, which is not there"));
        };
        own.calls.end(tag);
        let place = own.in_flight[usize::from(old.0)].take();
        own.calls.end(old);
        match place {
            Some(SimFlight::Call { call, .. }) if !checks.has_ended(call) => {
                checks.end_call(call, CallEnd::Interrupted);
            }
            Some(SimFlight::Call { .. } | SimFlight::Flushed) => {}
            other => checks.violate(format!("the flush {tag} names {old}: {other:?}")),
        }
    }

    /// Does what a header or a commit says of kept writes.
    pub(super) fn take_change(
        &mut self,
        channel: usize,
        change: KeptChange,
        checks: &mut SessionChecks,
    ) {
        let durable: Vec<usize> = change.durable.iter().map(|kept| kept.write).collect();
        checks.expect_durable(&durable, "a write below the watermark");
        for SimWrite { file, write } in change.lost.into_iter().rev() {
            self.rewriting += 1;
            let begun = checks.call(write).begun;
            self.push_front(channel, SimOp::Write { file, write }, checks, begun);
        }
    }
}

/// The message of a call, the same each time it is sent.
fn message_of(call: usize, id: CallId, epoch: u64, checks: &SessionChecks) -> ToProxy {
    let CallId { tag, slot, sequence } = id;
    let key = (slot != NOSLOT).then_some(IdempotencyKey { slot, sequence });
    ToProxy::Call { tag, key, call, op: checks.call(call).op, epoch }
}
