//! Conversion of messages to requests: identity, kind, amount and file.
//!
//! Every error of a client in a whole message is answered here or where the operation runs; a
//! message that cannot be decoded ends the connection. Tversion and Tflush are executed at once.
//! Tattach waits outside the dispatcher, since no identity is known yet that could pay. Every other
//! request goes to the gate.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use model::{Amount, Bytes, Time};
use ninep::{FrameError, Reply, Request, Tag, dialect};
use rustix::io::Errno;
use sched::RequestId;

use crate::buffers::FrameBuffer;
use crate::connection::{Connection, NinepSession, ReplyTo, TaggedRequest};
use crate::fids::OpenFid;
use crate::gate::{PendingRequest, RequestFile, RequestMeta, RunningRequest};
use crate::input::IncomingMessage;
use crate::location::Location;
use crate::outbox::{ReplyOutbox, read_header_len};
use crate::parsed_request::{ParsedRequest, kind_of_type};
use crate::server::Server;
use crate::sessions::Protocol;
use crate::trace::{RefusedRequest, TraceCaller};

/// Type of Tversion, whose form is always that of 9P2000.L.
const TVERSION: u8 = 100;

/// Requests of one round of reading, for the dispatchers.
#[derive(Default)]
pub(crate) struct IntakeBatch {
    pub(crate) scheduled: Vec<(PendingRequest, RequestMeta)>,
    /// Requests handed over since this was set to zero.
    pub(crate) handed: usize,
    /// Tattach, and the dialect's Tsession and Tidentity, by their frames.
    pub(crate) attaches: Vec<(ReplyTo, FrameBuffer)>,
    /// To leave where that may take its time.
    pub(crate) deferred: Vec<DeferredClose>,
    /// A time before any of it was read.
    pub(crate) read_after: Time,
}

/// Files without references, for [`Server::close_deferred`]: releasing their locks calls the backend, and
/// closing them waits for it where the last use of a removed file ends or a close writes back. So
/// never while holding a lock.
#[must_use]
#[derive(Default)]
pub(crate) struct DeferredClose {
    fids: Vec<Arc<OpenFid>>,
    operations: Vec<PendingRequest>,
}

impl DeferredClose {
    pub(crate) fn files(fids: Vec<Arc<OpenFid>>) -> DeferredClose {
        DeferredClose { fids, operations: Vec::new() }
    }

    fn operation(cancelled: PendingRequest) -> DeferredClose {
        DeferredClose { fids: Vec::new(), operations: vec![cancelled] }
    }
}

/// Why a connection must end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("{0}")]
    Decode(#[from] FrameError),
    #[error("tag {0} is in use by an unanswered request")]
    TagInUse(Tag),
    #[error("message type {0} before Tversion")]
    NoVersion(u8),
    #[error("message type {0} before Tsession")]
    NoSession(u8),
    #[error("an offered message size of {0} bytes is less than 4096")]
    SmallMsize(u32),
}

mod ext;

impl Server {
    /// Takes in one message.
    pub(crate) fn receive(
        &self,
        connection: &Arc<Connection>,
        session: &mut NinepSession,
        incoming: IncomingMessage<'_>,
        arrivals: &mut IntakeBatch,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        let bytes = incoming.bytes();
        if session.is_dialect() && ninep::frame_kind(bytes) != Some(TVERSION) {
            return self.receive_dialect(connection, session, incoming, arrivals, outbox);
        }
        let (tag, request) = match Request::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.reject_malformed(connection, session, bytes, error, outbox),
        };
        let to = |session: &mut NinepSession| session.reply_to(connection, tag);
        match request {
            Request::Version { msize, version } => {
                // What came in the same reading must be in the queue to be taken out of it.
                self.enqueue_batch(session, arrivals);
                let leaving = self.begin(connection, session, tag, msize, version, outbox)?;
                arrivals.deferred.push(leaving);
                return Ok(());
            }
            _ if !session.agreed => {
                return Err(ProtocolError::NoVersion(ninep::frame_kind(bytes).unwrap_or(0)));
            }
            Request::Flush { oldtag } => {
                let to = to(session);
                return self.receive_flush(session, to, oldtag, arrivals, outbox);
            }
            Request::Auth { .. } => {
                self.admit(session, tag, None, 0)?;
                // ENOENT is what clients of diod take for "no authentication needed".
                outbox.batch(&to(session)).error(tag, &Errno::NOENT.into());
                return Ok(());
            }
            Request::Attach { .. } => {
                self.admit(session, tag, None, bytes.len())?;
                arrivals.attaches.push((to(session), incoming.into_frame()));
                return Ok(());
            }
            _ => {}
        }
        let about = ParsedRequest::of(&request).expect("what is about the session was acted on");
        let to = to(session);
        let Some(fid) = session.fid(about.fid) else {
            let refused = RefusedRequest::of_peer(connection, about.kind, about.amount.bytes);
            return self.refuse(session, refused, &to, Errno::BADF, outbox);
        };
        let file = RequestFile::Fid(fid);
        let asked = about.meta(&file, Location::default());
        let expected = expected_bytes(&request);
        let looked = arrivals.read_after;
        let operation = PendingRequest {
            to,
            file,
            frame: FrameBuffer::EMPTY,
            once: None,
            donor: None,
            read_after: looked,
            begun: None,
        };
        if !session.has_room(expected) {
            let refused = RefusedRequest {
                caller: TraceCaller::User(operation.user()),
                kind: asked.kind,
                asked: asked.amount.bytes,
                access: asked.access.map(|order| order.access),
            };
            return self.refuse(session, refused, &operation.to, Errno::INVAL, outbox);
        }
        self.admit(session, tag, None, bytes.len() + expected)?;
        let operation = PendingRequest { frame: incoming.into_frame(), ..operation };
        arrivals.scheduled.push((operation, asked));
        Ok(())
    }

    /// Tflush. What came in the same reading must be in the queue to be taken out of it.
    pub(crate) fn receive_flush(
        &self,
        session: &mut NinepSession,
        to: ReplyTo,
        oldtag: Tag,
        arrivals: &mut IntakeBatch,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        self.admit(session, to.tag, None, 0)?;
        self.enqueue_batch(session, arrivals);
        let cancelled = self.flush(session, oldtag, to, outbox);
        arrivals.deferred.extend(cancelled.map(DeferredClose::operation));
        Ok(())
    }

    /// Hands a round's requests to the dispatcher, in order.
    pub(crate) fn enqueue_batch(&self, session: &mut NinepSession, arrivals: &mut IntakeBatch) {
        if arrivals.scheduled.is_empty() {
            return;
        }
        arrivals.handed += arrivals.scheduled.len();
        self.gate.enqueue(arrivals.scheduled.drain(..), |tag, id| {
            if let Some(request) = session.tags.get_mut(&tag.0) {
                request.request = id;
            }
        });
    }

    pub(crate) fn admit(
        &self,
        session: &mut NinepSession,
        tag: Tag,
        request: Option<RequestId>,
        bytes: usize,
    ) -> Result<(), ProtocolError> {
        if session.tags.insert(tag.0, TaggedRequest { request, bytes, is_parked: false }).is_some()
        {
            return Err(ProtocolError::TagInUse(tag));
        }
        session.bytes += bytes;
        Ok(())
    }

    /// A message that cannot be understood: an error where it has a tag to answer.
    pub(crate) fn reject_malformed(
        &self,
        connection: &Arc<Connection>,
        session: &mut NinepSession,
        bytes: &[u8],
        error: FrameError,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        let (Some(tag), true) = (error.tag(), session.agreed) else {
            return Err(error.into());
        };
        tracing::debug!(connection = connection.id, "{error}");
        let to = session.reply_to(connection, tag);
        let errno = Errno::from_raw_os_error(error.errno() as i32);
        match ninep::frame_kind(bytes).and_then(kind_of_type) {
            Some(kind) => {
                let refused = RefusedRequest::of_peer(connection, kind, Bytes::ZERO);
                self.refuse(session, refused, &to, errno, outbox)
            }
            None => {
                self.admit(session, tag, None, 0)?;
                outbox.batch(&to).error(tag, &errno.into());
                Ok(())
            }
        }
    }

    /// Answers a request with an error before any dispatcher hears of it.
    pub(crate) fn refuse(
        &self,
        session: &mut NinepSession,
        refused: RefusedRequest<'_>,
        to: &ReplyTo,
        errno: Errno,
        outbox: &mut ReplyOutbox,
    ) -> Result<(), ProtocolError> {
        self.admit(session, to.tag, None, 0)?;
        let batch = outbox.batch(to);
        batch.error(to.tag, &errno.into());
        batch.tally.count(refused.kind, Amount::default(), errno.raw_os_error() as u32);
        if let Some(recorder) = self.recorder() {
            recorder.refused(refused, errno.raw_os_error() as u32, self.clock.now());
        }
        Ok(())
    }

    /// Tversion: ends the session there was, with all it had in flight.
    fn begin(
        &self,
        connection: &Arc<Connection>,
        session: &mut NinepSession,
        tag: Tag,
        msize: u32,
        version: &[u8],
        outbox: &mut ReplyOutbox,
    ) -> Result<DeferredClose, ProtocolError> {
        if msize < ninep::MSIZE_MIN {
            return Err(ProtocolError::SmallMsize(msize));
        }
        let leaving = self.end_session(connection, session);
        let dialect = dialect::answer_version(version);
        let answer = dialect.unwrap_or_else(|| ninep::answer_version(version));
        session.epoch += 1;
        session.agreed = answer != ninep::VERSION_UNKNOWN;
        session.msize = msize.min(self.settings().msize_max.get() as u32);
        self.admit(session, tag, None, 0)?;
        // Its reply is still in the form that every client knows.
        let to = session.reply_to(connection, tag);
        if dialect.is_some() {
            session.set_form(Protocol::Unbound);
        }
        let reply = Reply::Version { msize: session.msize, version: answer };
        outbox.batch(&to).reply(tag, reply);
        Ok(leaving)
    }

    /// Forgets what Tversion began: queued requests are cancelled, running ones and locks that
    /// wait go unanswered. What it had queued is to [leave](Server::close_deferred); what it had open does
    /// so with it, or when the last of what is being executed has ended.
    pub(crate) fn end_session(
        &self,
        connection: &Connection,
        session: &mut NinepSession,
    ) -> DeferredClose {
        let mut leaving = DeferredClose::default();
        for request in session.take_requests().into_values() {
            leaving.operations.extend(request.request.and_then(|id| self.cancel(id)));
        }
        session.tally.cancelled += leaving.operations.len() as u64;
        session.flushes.clear();
        for waiter in self.locks.cancel_all(connection) {
            self.trace_parked(&waiter);
            session.tally.cancelled += 1;
        }
        for parked in self.leases.cancel(connection, None) {
            leaving.operations.push(self.abandon_parked(parked));
            session.tally.cancelled += 1;
        }
        session.waits.clear();
        // A mount's session goes on, and its files with it.
        if let Protocol::Base(ended) = session.begin_plain() {
            ended.end();
        }
        // A client that never attached gains nothing by beginning again.
        if std::mem::take(&mut session.attached) {
            session.detached = (connection.received.load(Ordering::Relaxed), None);
        }
        leaving
    }

    /// Releases the locks of sessions that are over, and closes their files. It may take its time.
    /// Requests that get a lock by it are answered through `outbox`.
    pub(crate) fn close_deferred(&self, leaving: DeferredClose, outbox: &Mutex<ReplyOutbox>) {
        let DeferredClose { fids, operations } = leaving;
        // They may be the last that held their session.
        drop(operations);
        let ended = std::iter::from_fn(|| self.ended.next());
        let all = std::iter::once(fids).chain(ended);
        all.for_each(|fids| fids.iter().for_each(|fid| self.release_locks(fid, outbox)));
    }

    /// Takes a request out of its dispatcher's queue, if it has not been chosen yet.
    fn cancel(&self, id: RequestId) -> Option<PendingRequest> {
        let (operation, asked) = self.gate.cancel(id)?;
        if let Some(recorder) = self.recorder() {
            recorder.cancelled(operation.user(), &asked, self.clock.now());
        }
        operation.abandon();
        Some(operation)
    }

    /// An operation that was chosen is not executed after all.
    pub(crate) fn cancel_chosen(&self, running: &RunningRequest) {
        let operation = &running.operation;
        if let Some(recorder) = self.recorder() {
            recorder.cancelled(operation.user(), &running.meta, self.clock.now());
        }
        operation.abandon();
        self.count_cancelled(&operation.to.path.connection);
    }

    /// Tflush: a request that still waits is gone at once; one that is being
    /// executed is answered first. Returns what was taken out of a queue.
    fn flush(
        &self,
        session: &mut NinepSession,
        old: Tag,
        to: ReplyTo,
        outbox: &mut ReplyOutbox,
    ) -> Option<PendingRequest> {
        let known = old != to.tag && session.tags.contains_key(&old.0);
        let request = session.tags.get(&old.0).and_then(|known| known.request);
        let operation = request.and_then(|id| self.cancel(id));
        let waiter = if known { self.locks.cancel(&to.path.connection, old) } else { None };
        waiter.iter().for_each(|waiter| self.trace_parked(waiter));
        let operation = operation.or_else(|| {
            let parked = known.then(|| self.leases.cancel(&to.path.connection, Some(old)));
            parked.into_iter().flatten().next().map(|parked| self.abandon_parked(parked))
        });
        let waited = session.waits.iter().position(|tag| known && *tag == old);
        waited.map(|at| session.waits.swap_remove(at));
        let cancelled = operation.is_some() || waiter.is_some() || waited.is_some();
        if known && !cancelled {
            session.flushes.push((old, to.tag));
            return None;
        }
        if cancelled {
            session.tally.cancelled += 1;
            session.free(old);
            // Earlier flushes of the same request are answered first.
            for flush in session.take_flushes_of(&[old]) {
                let to = ReplyTo { tag: flush, ..to.clone() };
                outbox.batch(&to).reply(flush, Reply::Flush);
            }
        }
        outbox.batch(&to).reply(to.tag, Reply::Flush);
        operation
    }
}

/// The bytes that are asked for.
pub(crate) fn expected_bytes(request: &Request<'_>) -> usize {
    match request {
        Request::Read { count, .. } | Request::Readdir { count, .. } => *count as usize,
        _ => 0,
    }
}

impl NinepSession {
    /// Whether what is asked for could be answered in one message. More is an error, not a
    /// short read: the client's idea of the session is wrong.
    pub(crate) fn has_room(&self, expected: usize) -> bool {
        expected <= self.msize as usize - read_header_len(self.form())
    }
}
