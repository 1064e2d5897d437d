//! A thread's channel of the session with its connection: the socket, and what it has not taken yet.
//!
//! ```text
//!   call ─► ClientChannel ─ frames ─► SocketOutbox ─► socket
//!   reply ─► ClientChannel ─ the call ─► what its waiter is told, once the channel is unlocked
//! ```
//!
//! Nothing here calls an [`OnReply`]: they are handed out, to be called after the channel is
//! unlocked.
//!
//! Invariant: there is a socket exactly while the channel is up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fuse::{Errno, FuseRequestId};
use model::Time;
use ninep::Tag;
use ninep::dialect::{AnyReply, ExtReply};
use session::client::{ChannelEvent, ClientChannel, Interrupted, RenewReply};

use super::abandoned::Abandoned;
use super::call::{CallReply, CallSpec, CallWaiter, OnReply, ServerCall, errno_of};
use super::identities::SessionIdentity;
use super::signals::FLUSH_PATIENCE;
use super::socket::{Broken, SocketOutbox};
use crate::clock;
use crate::leases::{LeaseRequest, OwnChange};
use crate::options::nanos;
use crate::write_behind::SentWrite;

/// One connection of the session.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    pub(crate) state: ClientChannel<ServerCall>,
    socket: Option<Arc<OwnedFd>>,
    out: SocketOutbox,
    abandoned: Arc<Abandoned>,
}

/// Action for a received message.
#[allow(clippy::large_enum_variant, reason = "it lives for one match, on the stack")]
pub(crate) enum ChannelNews<'a> {
    /// Nothing is to be done.
    Unchanged,
    /// Call this. With what was written and its number, if that is to be kept.
    Done {
        done: OnReply,
        answer: CallReply<'a>,
        written: Option<(u64, SentWrite)>,
        lease: Option<Arc<LeaseRequest>>,
        /// To be dropped once `done` has been called.
        change: Option<Arc<OwnChange>>,
    },
    /// This identity may be used now, or not at all.
    Identity(Arc<SessionIdentity>),
    /// Encoded events of the session, in one message.
    Events(&'a [u8]),
    /// The mount's term as a holder of leases was asked for.
    Renewed(RenewReply),
}

/// Result of looking for an interrupted request.
pub(crate) enum InterruptOutcome {
    NotHere,
    /// It is being flushed.
    Flushing,
    /// It is given up: answer `EINTR`.
    Abandoned(OnReply),
}

impl LinkChannel {
    /// Without a connection, at first.
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> LinkChannel {
        let state = ClientChannel::new(clock::now());
        LinkChannel { state, socket: None, out: SocketOutbox::default(), abandoned }
    }

    /// Begins what may begin, into the outbox. Gives the calls that failed before they began.
    pub(crate) fn begin(&mut self, now: Time) -> Vec<(OnReply, Errno)> {
        let failed = self.state.begin(&mut self.out, clock::wall_time, now);
        failed.into_iter().map(|(call, errno)| (call.done, errno_of(errno))).collect()
    }

    /// Sends what is to be sent. True when nothing is left.
    pub(crate) fn send(&mut self) -> Result<bool, Errno> {
        match &self.socket {
            Some(socket) => self.out.send(socket.as_fd()),
            None => Ok(true),
        }
    }

    /// A reply came.
    ///
    /// # Errors
    /// If there is no request for it.
    pub(crate) fn received<'a>(
        &mut self,
        tag: Tag,
        reply: AnyReply<'a>,
    ) -> Result<ChannelNews<'a>, Broken> {
        Ok(match self.state.received(tag, reply)? {
            ChannelEvent::Unchanged => ChannelNews::Unchanged,
            ChannelEvent::Done { call, answer } => {
                let answer = answer.map_err(errno_of);
                let ServerCall { payer, spec: mut ask, done, .. } = call;
                let (lease, change) = (ask.lease.take(), ask.change.take());
                let written = written(payer, ask, &answer);
                ChannelNews::Done { done, answer, written, lease, change }
            }
            ChannelEvent::Identity { identity, answer } => {
                match answer {
                    Ok(window) => identity.set_window(window.requests, window.bytes),
                    Err(errno) => identity.refuse(errno_of(errno)),
                }
                ChannelNews::Identity(identity)
            }
            ChannelEvent::Events(data) => ChannelNews::Events(data),
            ChannelEvent::Renewed(reply) => ChannelNews::Renewed(reply),
        })
    }

    /// A request is interrupted.
    pub(crate) fn interrupt(&mut self, request: FuseRequestId, now: Time) -> InterruptOutcome {
        let LinkChannel { state, abandoned, .. } = self;
        let mut detached = None;
        let detach = |call: &mut ServerCall| detached = Some(call.detach_waiter(abandoned));
        let found = state.interrupt(|call| call.is_for(request), detach, now);
        match (found, detached) {
            (Interrupted::NotHere, _) => InterruptOutcome::NotHere,
            (Interrupted::Removed(call), _) => InterruptOutcome::Abandoned(call.done),
            (_, Some(done)) => InterruptOutcome::Abandoned(done),
            (Interrupted::Flushing | Interrupted::Detached, None) => InterruptOutcome::Flushing,
        }
    }

    /// The call of this request, wherever it is.
    pub(crate) fn find(&self, request: FuseRequestId) -> Option<&ServerCall> {
        self.state.find(|call| call.is_for(request))
    }

    /// Returns waiters for a flush that the proxy does not answer: it, or what it executes, hangs.
    pub(crate) fn overdue(&self, now: Time) -> Vec<CallWaiter> {
        self.state.overdue(nanos(FLUSH_PATIENCE), |call| call.waiter, now)
    }

    /// Detaches the waiter of this request, whatever becomes of the call.
    pub(crate) fn abandon(&mut self, request: FuseRequestId) -> Option<OnReply> {
        let call = self.state.in_flight_mut(|call| call.is_for(request))?;
        Some(call.detach_waiter(&self.abandoned))
    }

    /// Returns some waiters if the channel is full, different ones each time.
    pub(crate) fn waiters_if_full(&mut self) -> Vec<CallWaiter> {
        self.state.waiters_if_full(|call| call.waiter)
    }

    /// Notes that the connection is lost. Returns the callbacks of interrupted calls.
    pub(crate) fn disconnect(&mut self, now: Time) -> Vec<OnReply> {
        let LinkChannel { state, abandoned, .. } = self;
        let mut given_up = Vec::new();
        state.disconnect(|call| given_up.push(call.detach_waiter(abandoned)), now);
        self.socket = None;
        self.out.clear();
        given_up
    }

    /// The session goes on over another connection: everything in flight is sent once more.
    pub(crate) fn resume(&mut self) {
        self.out.clear();
        self.state.resume(&mut self.out);
    }

    /// Another session begins, with `slots` slots here. Gives those whose calls were interrupted.
    ///
    /// No lock is taken before `locks_from`: the former holders may take theirs again.
    pub(crate) fn restart(
        &mut self,
        slots: u16,
        epoch: u64,
        locks_from: Option<Time>,
    ) -> Vec<OnReply> {
        self.out.clear();
        let flushed = self.state.restart(slots, epoch, locks_from);
        flushed.into_iter().map(|call| call.done).collect()
    }

    /// There is a connection again, over which the session was begun later than `now`.
    pub(crate) fn up(&mut self, socket: Arc<OwnedFd>, now: Time) {
        self.socket = Some(socket);
        self.state.up(now);
    }

    /// There will be no connection any more. Takes all calls out.
    pub(crate) fn close(&mut self, now: Time) -> Vec<OnReply> {
        self.socket = None;
        self.state.close();
        self.abandon_all(now)
    }

    /// Takes all calls out, wherever they are.
    pub(crate) fn abandon_all(&mut self, now: Time) -> Vec<OnReply> {
        let LinkChannel { state, abandoned, .. } = self;
        let mut all = Vec::new();
        let waiting = state.abandon_all(|call| all.push(call.detach_waiter(abandoned)), now);
        all.extend(waiting.into_iter().map(|call| call.done));
        all
    }

    /// The connection, if there is one.
    pub(crate) fn socket(&self) -> Option<&Arc<OwnedFd>> {
        self.socket.as_ref()
    }
}

/// Returns the range of an answered write, and its number.
fn written(
    payer: Arc<SessionIdentity>,
    ask: CallSpec,
    answer: &CallReply<'_>,
) -> Option<(u64, SentWrite)> {
    let (node, place) = ask.replayable?;
    let (number, start) = match answer {
        Ok(AnyReply::Ext(ExtReply::Write { count, number }))
            if u64::from(*count) == place.end - place.start =>
        {
            (*number, place.start)
        }
        Ok(AnyReply::Ext(ExtReply::Append { offset, number })) => (*number, *offset),
        _ => return None,
    };
    let place = start..start + (place.end - place.start);
    Some((number, SentWrite { node, payer, frame: ask.frame, range: place }))
}

/// Slots that a channel asks for: calls at a time that must not be executed twice.
pub(crate) const SLOTS: u16 = 64;

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
