//! Leases and the server's requests: messages of holders, recalls on their way, and parked requests.
//!
//! ```text
//!   start ─► recalls ─► the session's events ─► its Tevents that waits, or its next one
//!   Treturn, Trenew, Tgiveback ─► ProxyLeases ─► the leader: resume_parked ─► the gate
//! ```

use std::sync::{Arc, Mutex};

use ninep::Reply;
use ninep::dialect::{
    self, AnyRequest, ExtReply, ExtRequest, RENEW_DONE, RENEW_JOIN, RENEW_LEAVE, RENEW_TERM,
    ReturnedLeases,
};
use rustix::io::Errno;

use super::{BegunAccesses, ParkedRequest, RecallToSend};
use crate::connection::{Connection, NinepSession, ReplyTo, SendOutcome};
use crate::gate::{PendingRequest, RunningRequest};
use crate::outbox::ReplyOutbox;
use crate::server::Server;
use crate::sessions::MountSession;

/// Type of Trenew.
const TRENEW: u8 = 242;
/// Bytes of Revents besides the events, at most.
const EVENTS_HEADER: usize = 64;

impl Server {
    /// The session and the life of a Trenew JOIN that was put aside; none if it is another message.
    pub(crate) fn joins(&self, to: &ReplyTo, frame: &[u8]) -> Option<(Arc<MountSession>, u32)> {
        if ninep::frame_kind(frame) != Some(TRENEW) {
            return None;
        }
        let session = to.path.form.binding()?.session.clone();
        match dialect::decode_request(frame).ok()?.2 {
            AnyRequest::Ext(ExtRequest::Renew { life, what: RENEW_JOIN }) => Some((session, life)),
            _ => None,
        }
    }

    /// Executes a message of a holder that needs no disk.
    pub(crate) fn handle_lease_message<'r>(
        &self,
        session: &MountSession,
        request: &ExtRequest<'_>,
    ) -> Result<ExtReply<'r>, Errno> {
        match *request {
            ExtRequest::Renew { life, what: RENEW_TERM } => {
                let (outcome, term) = self.leases.renew(session, life);
                Ok(ExtReply::Renew { outcome, term })
            }
            ExtRequest::Renew { life, what: RENEW_LEAVE } => {
                self.leases.leave(session, life);
                Ok(ExtReply::Renew { outcome: RENEW_DONE, term: 0 })
            }
            ExtRequest::Return { access, done } if done <= 1 => {
                self.leases.returned(session, access, done == 1);
                Ok(ExtReply::Return)
            }
            ExtRequest::GiveBack { data } => {
                for lease in ReturnedLeases::new(data) {
                    self.leases.give_back(session, lease.map_err(|_| Errno::INVAL)?);
                }
                Ok(ExtReply::GiveBack)
            }
            _ => Err(Errno::INVAL),
        }
    }

    // ---- recalls ----

    /// Sends recalls to sessions that wait for events; the others get them when they do.
    pub(crate) fn deliver_recalls(&self, recalls: Vec<RecallToSend>) {
        for RecallToSend { session, event } in recalls {
            session.events.push(event);
            let Some(connection) = session.events.listener() else { continue };
            let mut own = connection.session.lock().expect("not poisoned");
            let mut outbox = ReplyOutbox::default();
            answer_wait(&connection, &mut own, &session, &mut outbox);
            drop(own);
            while let Some(mut batch) = outbox.pop_batch() {
                // One that is broken is noticed by who reads it.
                if connection.send(&mut batch, &self.poll, self.bounds()) == SendOutcome::Resume {
                    self.resume(connection.clone());
                }
            }
        }
    }

    /// A Tevents came, which waits for events. Over a new connection, recalls that the former one may
    /// have lost go again, and so do those for which there was no room.
    pub(crate) fn begin_wait(
        &self,
        to: &ReplyTo,
        own: &mut NinepSession,
        session: &Arc<MountSession>,
        outbox: &mut ReplyOutbox,
    ) {
        let connection = &to.path.connection;
        own.waits.push(to.tag);
        if session.events.listen(to) {
            let outstanding = self.leases.outstanding(session);
            session.events.push_again(outstanding.into_iter().map(|recall| recall.event));
        }
        answer_wait(connection, own, session, outbox);
    }

    // ---- parked requests ----

    /// Lets a request wait for leases, unless it was flushed or its client is gone.
    pub(crate) fn park(
        &self,
        running: RunningRequest,
        begun: Box<BegunAccesses>,
        outbox: &Mutex<ReplyOutbox>,
    ) {
        let RunningRequest { mut operation, mut meta, .. } = running;
        operation.begun = Some(begun);
        // It was charged for these when it came.
        meta.remote_ops = meta.remote_ops.map(|_| 0);
        let (connection, tag) = (operation.to.path.connection.clone(), operation.to.tag);
        let mut session = connection.session.lock().expect("not poisoned");
        let is_over = session.epoch != operation.to.path.epoch
            || connection.closed.load(std::sync::atomic::Ordering::Acquire);
        let is_flushed = session.flushes.iter().any(|(old, _)| *old == tag);
        if !is_over && !is_flushed && !self.is_draining() {
            self.leases.park(ParkedRequest { operation, meta });
            session.set_parked(tag, true);
            let outcome = connection.resume(&mut session, &self.poll, self.bounds());
            drop(session);
            if outcome == SendOutcome::Resume {
                self.resume(connection);
            }
            return self.poke_leader();
        }
        let flushes = match is_over {
            true => Vec::new(),
            false => {
                session.free(tag);
                session.take_flushes_of(&[tag])
            }
        };
        drop(session);
        let operation = self.abandon_parked(ParkedRequest { operation, meta });
        self.count_cancelled(&connection);
        let mut outbox = outbox.lock().expect("not poisoned");
        for tag in flushes {
            let to = ReplyTo { tag, ..operation.to.clone() };
            outbox.batch(&to).reply(tag, Reply::Flush);
        }
    }

    /// Gives requests to the gate again that need not wait for leases any more.
    pub(crate) fn resume_parked(&self) {
        let is_due = self.leases.next_deadline().is_some_and(|at| at <= self.clock.now());
        if !is_due && !self.leases.has_changes() {
            return;
        }
        for parked in self.leases.take_ready() {
            let connection = parked.operation.to.path.connection.clone();
            let mut session = connection.session.lock().expect("not poisoned");
            let is_over = session.epoch != parked.operation.to.path.epoch
                || connection.closed.load(std::sync::atomic::Ordering::Acquire);
            if is_over {
                drop(session);
                drop(self.abandon_parked(parked));
                continue;
            }
            let ParkedRequest { operation, meta } = parked;
            session.set_parked(operation.to.tag, false);
            self.gate.enqueue(std::iter::once((operation, meta)), |tag, id| {
                if let Some(request) = session.tags.get_mut(&tag.0) {
                    request.request = id;
                }
            });
        }
    }

    /// Notes that a parked request is not executed. Returns it, to be dropped where that may take its time.
    pub(crate) fn abandon_parked(&self, parked: ParkedRequest) -> PendingRequest {
        let ParkedRequest { operation, meta } = parked;
        if let Some(recorder) = self.recorder() {
            recorder.cancelled(operation.user(), &meta, self.clock.now());
        }
        operation.abandon();
        operation
    }

    /// Drops the requests that wait for leases, at shutdown: their clients may ask another proxy.
    pub(crate) fn drop_parked(&self) {
        for connection in self.connections() {
            let mut session = connection.session.lock().expect("not poisoned");
            let parked = self.leases.cancel(&connection, None);
            parked.iter().for_each(|one| session.free(one.operation.to.tag));
            drop(session);
            parked.into_iter().for_each(|one| drop(self.abandon_parked(one)));
        }
    }
}

/// Answers a Tevents of this connection, if there are events.
fn answer_wait(
    connection: &Arc<Connection>,
    own: &mut NinepSession,
    session: &Arc<MountSession>,
    outbox: &mut ReplyOutbox,
) {
    let is_bound =
        own.form().binding().is_some_and(|binding| Arc::ptr_eq(&binding.session, session));
    if !is_bound || own.waits.is_empty() {
        return;
    }
    let most = (own.msize as usize).saturating_sub(EVENTS_HEADER);
    let data = session.events.take(connection, most);
    if data.is_empty() {
        return;
    }
    let tag = own.waits.remove(0);
    let to = own.reply_to(connection, tag);
    outbox.batch(&to).reply(tag, ExtReply::Events { data: &data });
}
