//! Messages become requests: what each one asks, of whom, and how much.
//!
//! Everything that a client can do wrong with a whole message is answered here or
//! where the operation runs; a message that is no message ends the connection.
//! Tversion and Tflush are acted on at once, Tattach waits outside the dispatcher
//! (nobody is known yet who could pay), everything else is handed to the gate of
//! the export's target.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use model::{Amount, Bytes, OpKind, Time};
use ninep::{DecodeError, Reply, Request, Tag, dialect};
use rustix::io::Errno;
use sched::RequestId;
use trace::Access;

use crate::asked::{About, kind_of_type};
use crate::buffers::Frame;
use crate::connection::{Connection, InFlight, ReplyTo, Session};
use crate::fids::Fid;
use crate::gate::{Asked, File, Operation, Running};
use crate::input::Incoming;
use crate::location::Location;
use crate::mounts::Form;
use crate::outbox::{Outbox, read_header_len};
use crate::record::Who;
use crate::server::Server;

/// Type of Tversion, whose form is always that of 9P2000.L.
const TVERSION: u8 = 100;

/// What a round of reading brought for the dispatchers.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) scheduled: Vec<(Operation, Asked)>,
    /// Requests handed over since this was set to zero.
    pub(crate) handed: usize,
    /// Tattach, and the dialect's Tsession and Tidentity, by their frames.
    pub(crate) attaches: Vec<(ReplyTo, Frame)>,
    /// To leave where that may take its time.
    pub(crate) leaving: Vec<Leaving>,
    /// A time before any of it was read.
    pub(crate) looked: Time,
}

/// Files that nobody refers to any more, for [`Server::leave`]: giving back their locks
/// asks the backend, and closing them waits for it where the last use of a removed file
/// ends or a close writes back. So never while holding a lock.
#[must_use]
#[derive(Default)]
pub(crate) struct Leaving {
    fids: Vec<Arc<Fid>>,
    operations: Vec<Operation>,
}

impl Leaving {
    pub(crate) fn files(fids: Vec<Arc<Fid>>) -> Leaving {
        Leaving { fids, operations: Vec::new() }
    }

    fn operation(cancelled: Operation) -> Leaving {
        Leaving { fids: Vec::new(), operations: vec![cancelled] }
    }
}

/// Why a connection must end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("tag {0} is in use by an unanswered request")]
    TagInUse(Tag),
    #[error("message type {0} before Tversion")]
    NoVersion(u8),
    #[error("message type {0} before Tsession")]
    NoSession(u8),
    #[error("an offered message size of {0} bytes; at least 4096 are needed")]
    SmallMsize(u32),
}

mod own;

impl Server {
    /// Takes in one message.
    pub(crate) fn take_in(
        &self,
        connection: &Arc<Connection>,
        session: &mut Session,
        incoming: Incoming<'_>,
        arrivals: &mut Arrivals,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let bytes = incoming.bytes();
        if session.is_dialect() && ninep::frame_kind(bytes) != Some(TVERSION) {
            return self.take_in_dialect(connection, session, incoming, arrivals, outbox);
        }
        let (tag, request) = match Request::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.misread(connection, session, (bytes, error), outbox),
        };
        let to = |session: &mut Session| session.reply_to(connection, tag);
        match request {
            Request::Version { msize, version } => {
                // What came in the same reading must be in the queue to be taken out of it.
                self.hand_over(session, arrivals);
                let leaving = self.begin(connection, session, (tag, msize, version), outbox)?;
                arrivals.leaving.push(leaving);
                return Ok(());
            }
            _ if !session.agreed => {
                return Err(Violation::NoVersion(ninep::frame_kind(bytes).unwrap_or(0)));
            }
            Request::Flush { oldtag } => {
                return self.take_flush((connection, session), (tag, oldtag), arrivals, outbox);
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
        let about = About::of(&request).expect("what is about the session was acted on");
        let to = to(session);
        let Some(fid) = session.fid(about.fid) else {
            let what = (about.kind, about.amount.bytes, None);
            let who = Who::Peer(connection);
            return self.refuse(session, (who, what), &to, Errno::BADF, outbox);
        };
        let file = File::Fid(fid);
        let asked = about.ask(&file, Location::default());
        let expected = expected_bytes(&request);
        let looked = arrivals.looked;
        let operation =
            Operation { to, file, frame: Frame::EMPTY, once: None, donor: None, looked };
        if !session.has_room(expected) {
            let what = (asked.kind, asked.amount.bytes, asked.access);
            let who = Who::User(operation.user());
            return self.refuse(session, (who, what), &operation.to, Errno::INVAL, outbox);
        }
        self.admit(session, tag, None, bytes.len() + expected)?;
        let operation = Operation { frame: incoming.into_frame(), ..operation };
        arrivals.scheduled.push((operation, asked));
        Ok(())
    }

    /// Tflush. What came in the same reading must be in the queue to be taken out of it.
    pub(crate) fn take_flush(
        &self,
        (connection, session): (&Arc<Connection>, &mut Session),
        (tag, oldtag): (Tag, Tag),
        arrivals: &mut Arrivals,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.admit(session, tag, None, 0)?;
        self.hand_over(session, arrivals);
        let to = session.reply_to(connection, tag);
        let cancelled = self.flush(connection, session, oldtag, to, outbox);
        arrivals.leaving.extend(cancelled.map(Leaving::operation));
        Ok(())
    }

    /// Hands a round's requests to their dispatchers, in order.
    pub(crate) fn hand_over(&self, session: &mut Session, arrivals: &mut Arrivals) {
        arrivals.handed += arrivals.scheduled.len();
        let mut rest = arrivals.scheduled.drain(..).peekable();
        while let Some((first, _)) = rest.peek() {
            let target = first.user().export.target.clone();
            let same = std::iter::from_fn(|| {
                rest.next_if(|(op, _)| Arc::ptr_eq(&op.user().export.target, &target))
            });
            target.enqueue(same, |tag, id| {
                if let (Some(id), Some(request)) = (id, session.tags.get_mut(&tag.0)) {
                    request.request = Some((target.index, id));
                }
            });
        }
    }

    pub(crate) fn admit(
        &self,
        session: &mut Session,
        tag: Tag,
        request: Option<(usize, RequestId)>,
        bytes: usize,
    ) -> Result<(), Violation> {
        if session.tags.insert(tag.0, InFlight { request, bytes }).is_some() {
            return Err(Violation::TagInUse(tag));
        }
        session.bytes += bytes;
        Ok(())
    }

    /// A message that cannot be understood: an error where it has a tag to answer.
    pub(crate) fn misread(
        &self,
        connection: &Arc<Connection>,
        session: &mut Session,
        (bytes, error): (&[u8], DecodeError),
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let (Some(tag), true) = (error.tag(), session.agreed) else {
            return Err(error.into());
        };
        tracing::debug!(connection = connection.id, "{error}");
        let to = session.reply_to(connection, tag);
        let errno = Errno::from_raw_os_error(error.errno() as i32);
        match ninep::frame_kind(bytes).and_then(kind_of_type) {
            Some(kind) => {
                let who = (Who::Peer(connection), (kind, Bytes::ZERO, None));
                self.refuse(session, who, &to, errno, outbox)
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
        session: &mut Session,
        (who, what): (Who<'_>, (OpKind, Bytes, Option<Access>)),
        to: &ReplyTo,
        errno: Errno,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.admit(session, to.tag, None, 0)?;
        let batch = outbox.batch(to);
        batch.error(to.tag, &errno.into());
        batch.tally.count(what.0, Amount::default(), errno.raw_os_error() as u32);
        if let Some(recorder) = self.recorder() {
            recorder.refused(who, what, errno.raw_os_error() as u32, self.clock.now());
        }
        Ok(())
    }

    /// Tversion: ends the session there was, with all it had under way.
    fn begin(
        &self,
        connection: &Arc<Connection>,
        session: &mut Session,
        (tag, msize, version): (Tag, u32, &[u8]),
        outbox: &mut Outbox,
    ) -> Result<Leaving, Violation> {
        if msize < ninep::MSIZE_MIN {
            return Err(Violation::SmallMsize(msize));
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
            session.set_form(Form::Unbound);
        }
        let reply = Reply::Version { msize: session.msize, version: answer };
        outbox.batch(&to).reply(tag, reply);
        Ok(leaving)
    }

    /// Forgets what Tversion began: queued requests are cancelled, running ones and locks that
    /// wait go unanswered. What it had queued is to [leave](Server::leave); what it had open does
    /// so with it, or when the last of what is being executed has ended.
    pub(crate) fn end_session(&self, connection: &Connection, session: &mut Session) -> Leaving {
        let mut leaving = Leaving::default();
        for (_, request) in session.tags.drain() {
            if let Some((target, id)) = request.request {
                leaving.operations.extend(self.cancel(target, id));
            }
        }
        session.tally.cancelled += leaving.operations.len() as u64;
        session.bytes = 0;
        session.flushes.clear();
        for waiter in self.locks.cancel_all(connection) {
            self.note_held(&waiter);
            session.tally.cancelled += 1;
        }
        session.waits.clear();
        // A mount's session goes on, and its files with it.
        if let Form::Plain(ended) = session.begin_plain() {
            ended.end();
        }
        // Who never attached gains nothing by beginning again.
        if std::mem::take(&mut session.attached) {
            let received = connection.received.load(Ordering::Relaxed);
            session.detached = (std::time::Instant::now(), received);
        }
        leaving
    }

    /// Gives back the locks of sessions that are over, and closes their files. It may take
    /// its time; who gets a lock by it is answered through `outbox`.
    pub(crate) fn leave(&self, leaving: Leaving, outbox: &Mutex<Outbox>) {
        let Leaving { fids, operations } = leaving;
        // They may be the last that held their session.
        drop(operations);
        let ended = std::iter::from_fn(|| self.ended.next());
        let all = std::iter::once(fids).chain(ended);
        all.for_each(|fids| fids.iter().for_each(|fid| self.give_back_locks(fid, outbox)));
    }

    /// Takes a request out of its dispatcher's queue, if it has not been chosen yet.
    fn cancel(&self, target: usize, id: RequestId) -> Option<Operation> {
        let (operation, asked) = self.target(target).cancel(id)?;
        if let Some(recorder) = self.recorder() {
            recorder.cancelled(operation.user(), &asked, self.clock.now());
        }
        operation.abandon();
        Some(operation)
    }

    /// An operation that was chosen is not executed after all.
    pub(crate) fn cancel_chosen(&self, running: &Running) {
        let operation = &running.operation;
        if let Some(recorder) = self.recorder() {
            recorder.cancelled(operation.user(), &running.asked, self.clock.now());
        }
        operation.abandon();
        self.count_cancelled(&operation.to.path.connection);
    }

    /// Tflush: a request that still waits is gone at once; one that is being
    /// executed is answered first. Returns what was taken out of a queue.
    fn flush(
        &self,
        connection: &Arc<Connection>,
        session: &mut Session,
        old: Tag,
        to: ReplyTo,
        outbox: &mut Outbox,
    ) -> Option<Operation> {
        let known = old != to.tag && session.tags.contains_key(&old.0);
        let request = session.tags.get(&old.0).and_then(|known| known.request);
        let operation = request.and_then(|(target, id)| self.cancel(target, id));
        let waiter = if known { self.locks.cancel(connection, old) } else { None };
        waiter.iter().for_each(|waiter| self.note_held(waiter));
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
            for flush in session.flushes_of(&[old]) {
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

impl Session {
    /// Whether what is asked for could be answered in one message. More is an error, not a
    /// short read: the client's idea of the session is wrong.
    pub(crate) fn has_room(&self, expected: usize) -> bool {
        expected <= self.msize as usize - read_header_len(self.form())
    }
}
