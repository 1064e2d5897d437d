//! Messages become requests: what each one asks, of whom, and how much.
//!
//! Everything that a client can do wrong with a whole message is answered here or
//! where the operation runs; a message that is no message ends the connection.
//! Tversion and Tflush are acted on at once, Tattach waits outside the dispatcher
//! (nobody is known yet who could pay), everything else is handed to the gate of
//! the export's target.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use model::{Amount, Kind, Lane};
use ninep::{DecodeError, LockKind, Reply, Request, Tag};
use rustix::io::Errno;

use crate::connection::{Connection, InFlight, ReplyTo, Session};
use crate::fids::{Fid, Role};
use crate::gate::{Asked, Operation};
use crate::input::Incoming;
use crate::outbox::Outbox;
use crate::server::Server;

/// What a round of reading brought for the dispatchers.
#[derive(Default)]
pub(crate) struct Arrivals {
    scheduled: Vec<(Operation, Asked)>,
    /// Requests handed over since this was set to zero.
    pub(crate) handed: usize,
    /// Tattach, by its frame.
    pub(crate) attaches: Vec<(ReplyTo, crate::buffers::Frame)>,
    /// To leave where that may take its time.
    pub(crate) leaving: Vec<Leaving>,
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
    #[error("an offered message size of {0} bytes; at least 4096 are needed")]
    SmallMsize(u32),
}

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
        let (tag, request) = match Request::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.refuse(connection, session, &error, outbox),
        };
        let to = |session: &Session| ReplyTo {
            connection: connection.clone(),
            epoch: session.epoch,
            tag,
        };
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
                self.admit(session, tag, None, 0)?;
                self.hand_over(session, arrivals);
                let cancelled = self.flush(connection, session, oldtag, to(session), outbox);
                arrivals.leaving.extend(cancelled.map(Leaving::operation));
                return Ok(());
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
        let Some((fid, asked)) = ask(session, &request) else {
            self.admit(session, tag, None, 0)?;
            outbox.batch(&to(session)).error(tag, &Errno::BADF.into());
            return Ok(());
        };
        if let Err(error) = check_count(&request, session.msize) {
            self.admit(session, tag, None, 0)?;
            outbox.batch(&to(session)).error(tag, &error);
            return Ok(());
        }
        let expected = match request {
            Request::Read { count, .. } | Request::Readdir { count, .. } => count as usize,
            _ => 0,
        };
        self.admit(session, tag, None, bytes.len() + expected)?;
        let operation = Operation { to: to(session), fid, frame: incoming.into_frame() };
        arrivals.scheduled.push((operation, asked));
        Ok(())
    }

    /// Hands a round's requests to their dispatchers, in order.
    pub(crate) fn hand_over(&self, session: &mut Session, arrivals: &mut Arrivals) {
        arrivals.handed += arrivals.scheduled.len();
        let mut rest = arrivals.scheduled.drain(..).peekable();
        while let Some((first, _)) = rest.peek() {
            let target = first.fid.user.export.target.clone();
            let same = std::iter::from_fn(|| {
                rest.next_if(|(op, _)| Arc::ptr_eq(&op.fid.user.export.target, &target))
            });
            target.enqueue(same, |tag, id| {
                if let (Some(id), Some(request)) = (id, session.tags.get_mut(&tag.0)) {
                    request.request = Some((target.index, id));
                }
            });
        }
    }

    fn admit(
        &self,
        session: &mut Session,
        tag: Tag,
        request: Option<(usize, sched::RequestId)>,
        bytes: usize,
    ) -> Result<(), Violation> {
        if session.tags.insert(tag.0, InFlight { request, bytes }).is_some() {
            return Err(Violation::TagInUse(tag));
        }
        session.bytes += bytes;
        Ok(())
    }

    /// A message that cannot be understood: an error where it has a tag to answer.
    fn refuse(
        &self,
        connection: &Arc<Connection>,
        session: &mut Session,
        error: &DecodeError,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let (Some(tag), true) = (error.tag(), session.agreed) else {
            return Err((*error).into());
        };
        tracing::debug!(connection = connection.id, "{error}");
        self.admit(session, tag, None, 0)?;
        let to = ReplyTo { connection: connection.clone(), epoch: session.epoch, tag };
        let reply = ninep::error_reply(tag, error.errno());
        outbox.batch(&to).bytes.extend_from_slice(&reply);
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
        let answer = ninep::answer_version(version);
        session.epoch += 1;
        session.agreed = answer == ninep::VERSION;
        session.msize = msize.min(self.settings().msize_max.get() as u32);
        self.admit(session, tag, None, 0)?;
        let to = ReplyTo { connection: connection.clone(), epoch: session.epoch, tag };
        let reply = Reply::Version { msize: session.msize, version: answer };
        outbox.batch(&to).reply(tag, &reply);
        Ok(leaving)
    }

    /// Forgets a session: queued requests are cancelled, running ones and locks that
    /// wait go unanswered. What it had open is to [leave](Server::leave).
    pub(crate) fn end_session(&self, connection: &Connection, session: &mut Session) -> Leaving {
        let mut leaving = Leaving::default();
        for (_, request) in session.tags.drain() {
            if let Some((target, id)) = request.request {
                leaving.operations.extend(self.target(target).cancel(id));
            }
        }
        session.bytes = 0;
        session.flushes.clear();
        self.locks.cancel_all(connection);
        leaving.fids.extend(session.fids.drain().map(|(_, fid)| fid));
        // Who never attached gains nothing by beginning again.
        if std::mem::take(&mut session.attached) {
            let received = connection.received.load(Ordering::Relaxed);
            session.detached = (std::time::Instant::now(), received);
        }
        leaving
    }

    /// Gives back the locks of a session that is over, and closes its files. It may take
    /// its time; who gets a lock by it is answered through `outbox`.
    pub(crate) fn leave(&self, leaving: Leaving, outbox: &Mutex<Outbox>) {
        leaving.fids.iter().for_each(|fid| self.give_back_locks(fid, outbox));
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
        let operation = request.and_then(|(target, id)| self.target(target).cancel(id));
        let cancelled = operation.is_some() || (known && self.locks.cancel(connection, old));
        if known && !cancelled {
            session.flushes.push((old, to.tag));
            return None;
        }
        if cancelled {
            session.free(old);
            // Earlier flushes of the same request are answered first.
            for flush in session.flushes_of(&[old]) {
                let to = ReplyTo { tag: flush, ..to.clone() };
                outbox.batch(&to).reply(flush, &Reply::Flush);
            }
        }
        outbox.batch(&to).reply(to.tag, &Reply::Flush);
        operation
    }
}

/// A count that could not be answered in one message is an error, not a short read:
/// the client's idea of the session is wrong.
fn check_count(request: &Request<'_>, msize: u32) -> io::Result<()> {
    let (Request::Read { count, .. } | Request::Readdir { count, .. }) = request else {
        return Ok(());
    };
    let fits = *count <= msize - ninep::READ_REPLY_HEADER_LEN as u32;
    if fits { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The fid that a request is about and what the dispatcher must know; `None` for an
/// unknown fid.
fn ask(session: &Session, request: &Request<'_>) -> Option<(Arc<Fid>, Asked)> {
    let mut bytes = 0;
    let mut ops = 1;
    let (number, kind) = match *request {
        Request::Read { fid, count, .. } => {
            bytes = u64::from(count);
            (fid, Kind::Read)
        }
        Request::Write { fid, data, .. } => {
            bytes = data.len() as u64;
            (fid, Kind::Write)
        }
        Request::Getattr { fid, .. } => (fid, Kind::Getattr),
        Request::Walk { fid, names, .. } => {
            ops = names.len().max(1) as u64;
            (fid, Kind::Walk)
        }
        Request::Clunk { fid } => (fid, Kind::Clunk),
        Request::Lopen { fid, .. } => (fid, Kind::Open),
        Request::Lcreate { fid, .. } => (fid, Kind::Create),
        Request::Readdir { fid, .. } => (fid, Kind::Readdir),
        Request::Setattr { fid, .. } => (fid, Kind::Setattr),
        Request::Fsync { fid, .. } => (fid, Kind::Fsync),
        Request::Statfs { fid } => (fid, Kind::Statfs),
        Request::Readlink { fid } => (fid, Kind::Readlink),
        Request::Xattrwalk { fid, .. } => (fid, Kind::Getxattr),
        Request::Xattrcreate { fid, .. } => (fid, Kind::Setxattr),
        Request::Lock { fid, kind: LockKind::Unlock, .. } => (fid, Kind::Unlock),
        Request::Lock { fid, .. } | Request::Getlock { fid, .. } => (fid, Kind::Lock),
        Request::Symlink { fid, .. } => (fid, Kind::Symlink),
        Request::Mknod { dfid, .. } => (dfid, Kind::Mknod),
        Request::Link { dfid, .. } => (dfid, Kind::Link),
        Request::Mkdir { dfid, .. } => (dfid, Kind::Mkdir),
        Request::Rename { fid, .. } => (fid, Kind::Rename),
        Request::Renameat { olddirfid, .. } => (olddirfid, Kind::Rename),
        Request::Unlinkat { dirfid, .. } => (dirfid, Kind::Unlink),
        Request::Remove { fid } => (fid, Kind::Unlink),
        Request::Version { .. }
        | Request::Auth { .. }
        | Request::Attach { .. }
        | Request::Flush { .. } => return None,
    };
    let fid = session.fids.get(&number.0)?.clone();
    let (kind, lane) = match (&fid.role, kind) {
        (Role::XattrRead(_), Kind::Read) => (Kind::Getxattr, Lane::Cached),
        (Role::XattrWrite(_), Kind::Write) => (Kind::Setxattr, Lane::Cached),
        (_, Kind::Read) => (kind, fid.user.export.target.read_lane()),
        (_, Kind::Write) => (kind, fid.user.export.target.write_lane()),
        _ => (kind, Lane::Device),
    };
    let subject = fid.subject();
    Some((fid, Asked { subject, kind, amount: Amount::new(bytes, ops), lane }))
}
