//! One client's connection: its session, its unfinished input, its unsent replies.
//!
//! Lock order: `session`, then the gate, then `out`. A session begins with
//! Tversion; a further Tversion begins a new one (a new epoch), and replies of the
//! old one are never sent after it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use model::{Nanos, Nid, Time};
use ninep::{MSIZE_MIN, Reply, Tag};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sched::RequestId;

use crate::bounds::{Charge, FREE};
use crate::buffers::FrameBuffer;
use crate::fids::{FidTable, OpenFid};
use crate::input::ReceiveBuffer;
use crate::locks::TLOCK_MAX;
use crate::outbox::ReplyBatch;
use crate::pipes::PipeLoad;
use crate::plain::PlainSession;
use crate::server::{HOUSEKEEPING, Server};
use crate::sessions::Protocol;
use crate::tally::ReplyTally;

/// One connection of a client.
pub(crate) struct Connection {
    /// Number of the connection, unique while the proxy runs.
    pub(crate) id: u64,
    pub(crate) socket: OwnedFd,
    pub(crate) peer: ConnectionPeer,
    pub(crate) session: Mutex<NinepSession>,
    pub(crate) input: Mutex<ReceiveBuffer>,
    out: Mutex<SendQueue>,
    /// Bytes that the peer has not read.
    unsent: AtomicUsize,
    pub(crate) closed: AtomicBool,
    /// Whether its place in the table of connections is another one's already.
    evicted: AtomicBool,
    /// Number of requests in flight when it was last read.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Number of blocking locks that wait: each holds a tag.
    pub(crate) lock_waiters: Arc<AtomicUsize>,
    /// Number of owners that it was the first to lock a file for: each holds a descriptor.
    pub(crate) lock_owners: Arc<AtomicUsize>,
    /// Number in the trace of requests before an attach; 0 before the first request.
    pub(crate) traced: AtomicU32,
    /// Time of the last read, to half a second.
    used: AtomicU64,
}

/// The peer of a connection.
pub(crate) struct ConnectionPeer {
    pub(crate) nid: Nid,
    /// User of a Unix-socket peer.
    pub(crate) uid: Option<u32>,
    /// Whether it may state the groups of its users.
    pub(crate) trusted: bool,
}

/// A 9P session, which Tversion begins.
pub(crate) struct NinepSession {
    /// Number of sessions of the connection.
    pub(crate) epoch: u32,
    /// Largest message in bytes; before Tversion, the largest Tversion.
    pub(crate) msize: u32,
    pub(crate) agreed: bool,
    pub(crate) attached: bool,
    /// The bytes received before the time without an attach, and its length as far as the proxy
    /// looked.
    pub(crate) detached: (u64, Option<Nanos>),
    form: Protocol,
    /// Made with the first request after the protocol was changed. Until the connection is closed
    /// each holds the other.
    path: Option<Arc<ReplyPath>>,
    pub(crate) fids: FidTable,
    pub(crate) tags: FxHashMap<u16, TaggedRequest>,
    /// Pairs (request, flush): flushes whose request is being executed.
    pub(crate) flushes: Vec<(Tag, Tag)>,
    /// Requests that wait for events.
    pub(crate) waits: Vec<Tag>,
    /// Payload of the requests in flight and of their replies.
    pub(crate) bytes: usize,
    /// Those of them that wait for leases.
    parked: ParkedLoad,
    /// Counters of the replies, in all sessions of the connection.
    pub(crate) tally: ReplyTally,
    /// Whether reading is paused until replies have left.
    pub(crate) paused: bool,
    /// A message that waits for memory.
    pub(crate) stalled: Option<FrameBuffer>,
    /// Bound of its bytes in flight, and the charge for it.
    pub(crate) covered: usize,
    pub(crate) memory: Option<Charge>,
    /// Whether it waits in the line for memory.
    pub(crate) awaits_memory: bool,
    server: Weak<Server>,
    interest: epoll::EventFlags,
}

/// A request in flight.
pub(crate) struct TaggedRequest {
    /// Its number in the dispatcher; `None` outside of it.
    pub(crate) request: Option<RequestId>,
    /// Bytes that it counts in [`NinepSession::bytes`].
    pub(crate) bytes: usize,
    /// Whether it waits for leases, and counts in [`NinepSession::parked`].
    pub(crate) is_parked: bool,
}

/// Requests of a connection that wait for leases, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ParkedLoad {
    requests: usize,
    bytes: usize,
}

/// Destination of the reply to a request.
#[derive(Clone)]
pub(crate) struct ReplyTo {
    pub(crate) path: Arc<ReplyPath>,
    pub(crate) tag: Tag,
}

/// Destination and protocol of the replies of a session: one for all of its requests.
pub(crate) struct ReplyPath {
    pub(crate) connection: Arc<Connection>,
    pub(crate) epoch: u32,
    pub(crate) form: Protocol,
}

#[derive(Default)]
struct SendQueue {
    queue: VecDeque<SendChunk>,
}

enum SendChunk {
    Bytes(Vec<u8>, usize),
    Pipe(PipeLoad),
}

/// The result of sending replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// All replies were sent, or wait for the socket.
    Ok,
    /// The connection was paused and may be read again.
    Resume,
    /// The peer has disconnected.
    Broken,
}

/// The bounds of a session, from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    pub(crate) tags_max: usize,
    pub(crate) bytes_max: usize,
    /// Maximum number of bytes before an attach.
    pub(crate) before_attach: usize,
}

/// Turned off while a connection is paused; the end of its peer is reported all the same.
const READ: epoll::EventFlags = epoll::EventFlags::IN;
/// Events that are always reported.
const PEER_CLOSED: epoll::EventFlags = epoll::EventFlags::RDHUP;

/// Factor for the requests in flight on a mount's connection, which carries many jobs.
const MOUNT_TIMES: usize = 4;
/// Requests of a mount's connection that wait for leases beside those in flight, at most, and their
/// bytes: all that a channel of `sluice mount` sends before it has replies. Those above count as in
/// flight.
const PARKED_MAX: ParkedLoad = ParkedLoad { requests: 1024, bytes: 64 << 20 };

impl ConnectionBounds {
    /// Maximum number of blocking locks that wait: at most half of the tags and of the bytes, or
    /// the unlock and the flush that end the waiting would not be read.
    pub(crate) fn lock_waiters_max(&self) -> usize {
        (self.tags_max / 2).min(self.bytes_max / 2 / TLOCK_MAX)
    }
}

impl Connection {
    pub(crate) fn new(
        id: u64,
        socket: OwnedFd,
        peer: ConnectionPeer,
        server: Weak<Server>,
    ) -> Connection {
        Connection {
            id,
            socket,
            peer,
            session: Mutex::new(NinepSession::new(server)),
            input: Mutex::default(),
            out: Mutex::default(),
            unsent: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            lock_waiters: Arc::default(),
            lock_owners: Arc::default(),
            traced: AtomicU32::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Adds the connection to an epoll set, to be notified of input.
    pub(crate) fn register(&self, poll: &OwnedFd) -> io::Result<()> {
        Ok(epoll::add(poll, &self.socket, epoll::EventData::new_u64(self.id), READ | PEER_CLOSED)?)
    }

    /// Gives its place in the table to another one; it is closed soon. Under the lock of the table.
    pub(crate) fn evict(&self) {
        self.evicted.store(true, Ordering::Relaxed);
    }

    /// Returns whether its place in the table is another one's.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Notes the time of a read from the socket.
    pub(crate) fn used_at(&self, now: Time) {
        self.used.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the time of the last read.
    pub(crate) fn last_used(&self) -> Time {
        Time::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Whether the peer has closed or was reset. Calls the kernel.
    pub(crate) fn is_peer_closed(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut polled = [PollFd::new(&self.socket, gone)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(gone)
    }

    /// Drops unread bytes: the connection is closed.
    pub(crate) fn drop_unsent(&self) {
        let queue = std::mem::take(&mut self.out.lock().expect("not poisoned").queue);
        self.unsent.store(0, Ordering::Relaxed);
        drop(queue);
    }

    /// Returns the number of bytes that the peer has not read.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Discards received bytes, up to a mebibyte; `false` if the connection is broken.
    pub(crate) fn discard_input(&self) -> bool {
        let mut space = [0; 16 << 10];
        for _ in 0..64 {
            match rustix::io::read(&self.socket, &mut space) {
                Ok(0) | Err(Errno::AGAIN) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns the bytes on their way to a TCP peer. A Unix socket's are the peer's once sent.
    pub(crate) fn unacknowledged(&self) -> usize {
        if self.peer.uid.is_some() { 0 } else { crate::sys::unacknowledged(self.socket.as_fd()) }
    }

    /// Sends a batch of replies as far as the socket takes them and frees their tags. Counters stay
    /// in the batch if the connection is closed.
    pub(crate) fn send(
        &self,
        batch: &mut ReplyBatch,
        poll: &OwnedFd,
        bounds: ConnectionBounds,
    ) -> SendOutcome {
        let mut session = self.session.lock().expect("not poisoned");
        if self.closed.load(Ordering::Acquire) {
            return SendOutcome::Ok;
        }
        session.tally.merge(&mut batch.tally);
        if batch.path.epoch != session.epoch {
            return SendOutcome::Ok;
        }
        session.finish_answered(batch);
        let mut out = self.out.lock().expect("not poisoned");
        let before = batch.bytes.len() + batch.pipes.iter().map(|(_, p)| p.left()).sum::<usize>();
        self.sent.fetch_add(before as u64, Ordering::Relaxed);
        if out.queue.is_empty() {
            // The common way: straight from the batch to the socket.
            drop(session);
            match self.send_now(batch) {
                Ok(None) => {}
                Ok(Some(rest)) => {
                    self.enqueue(&mut out, rest, batch);
                    drop(out);
                    session = self.session.lock().expect("not poisoned");
                    session.set_interest(self, poll, epoll::EventFlags::OUT, true);
                    return SendOutcome::Ok;
                }
                Err(_) => return SendOutcome::Broken,
            }
            drop(out);
            session = self.session.lock().expect("not poisoned");
        } else {
            self.enqueue(&mut out, 0, batch);
            drop(out);
        }
        self.resume(&mut session, poll, bounds)
    }

    /// Sends waiting replies, now that the socket takes more.
    pub(crate) fn send_queued(&self, poll: &OwnedFd, bounds: ConnectionBounds) -> SendOutcome {
        let mut out = self.out.lock().expect("not poisoned");
        while let Some(chunk) = out.queue.front_mut() {
            let (moved, left) = match chunk {
                SendChunk::Bytes(bytes, at) => {
                    let moved = match self.send_bytes(&bytes[*at..], false) {
                        Ok(moved) => moved,
                        Err(_) => return SendOutcome::Broken,
                    };
                    *at += moved;
                    (moved, bytes.len() - *at)
                }
                SendChunk::Pipe(load) => match load.drain(&self.socket, false) {
                    Ok(moved) => (moved, load.left()),
                    Err(_) => return SendOutcome::Broken,
                },
            };
            self.unsent.fetch_sub(moved, Ordering::Relaxed);
            if left > 0 {
                break;
            }
            out.queue.pop_front();
        }
        let empty = out.queue.is_empty();
        if empty {
            out.queue = VecDeque::new();
        }
        drop(out);
        let mut session = self.session.lock().expect("not poisoned");
        if empty && self.unsent() == 0 {
            session.set_interest(self, poll, epoll::EventFlags::OUT, false);
        }
        self.resume(&mut session, poll, bounds)
    }

    /// Reads again if it was paused and has less in flight than it may.
    pub(crate) fn resume(
        &self,
        session: &mut NinepSession,
        poll: &OwnedFd,
        bounds: ConnectionBounds,
    ) -> SendOutcome {
        if session.paused && !session.is_over(bounds, self.unsent()) {
            session.paused = false;
            session.set_interest(self, poll, READ, true);
            return SendOutcome::Resume;
        }
        SendOutcome::Ok
    }

    /// `Ok(Some(at))`: the socket is full; `at` bytes of the batch have gone.
    fn send_now(&self, batch: &mut ReplyBatch) -> io::Result<Option<usize>> {
        let mut at = 0;
        while at < batch.bytes.len() || !batch.pipes.is_empty() {
            let until = batch.pipes.first().map_or(batch.bytes.len(), |(after, _)| *after);
            if at < until {
                let moved = self.send_bytes(&batch.bytes[at..until], !batch.pipes.is_empty())?;
                at += moved;
                if moved == 0 {
                    return Ok(Some(at));
                }
                continue;
            }
            let (_, load) = &mut batch.pipes[0];
            if load.drain(&self.socket, at < batch.bytes.len())? == 0 {
                return Ok(Some(at));
            }
            if load.left() == 0 {
                batch.pipes.remove(0);
            }
        }
        Ok(None)
    }

    /// Queues the rest of a batch, from byte `at` on.
    fn enqueue(&self, out: &mut SendQueue, mut at: usize, batch: &mut ReplyBatch) {
        let pipes = std::mem::take(&mut batch.pipes);
        for (after, load) in pipes {
            self.enqueue_bytes(out, &batch.bytes[at..after]);
            at = after;
            self.unsent.fetch_add(load.left(), Ordering::Relaxed);
            out.queue.push_back(SendChunk::Pipe(load));
        }
        self.enqueue_bytes(out, &batch.bytes[at..]);
    }

    fn enqueue_bytes(&self, out: &mut SendQueue, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
            out.queue.push_back(SendChunk::Bytes(bytes.to_vec(), 0));
        }
    }

    /// `Ok(0)`: the socket is full.
    fn send_bytes(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if more {
            flags |= SendFlags::MORE;
        }
        match rustix::net::send(&self.socket, bytes, flags) {
            Ok(moved) => Ok(moved),
            Err(Errno::AGAIN) => Ok(0),
            Err(Errno::INTR) => self.send_bytes(bytes, more),
            Err(error) => Err(error.into()),
        }
    }
}

impl ParkedLoad {
    fn add(&mut self, bytes: usize) {
        (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
    }

    fn remove(&mut self, bytes: usize) {
        (self.requests, self.bytes) = (self.requests - 1, self.bytes - bytes);
    }
}

impl NinepSession {
    fn new(server: Weak<Server>) -> NinepSession {
        let plain = PlainSession::new(server.clone());
        NinepSession {
            epoch: 0,
            msize: MSIZE_MIN,
            agreed: false,
            attached: false,
            detached: (0, None),
            fids: plain.fids.clone(),
            form: Protocol::Base(plain.into()),
            path: None,
            tags: FxHashMap::default(),
            flushes: Vec::new(),
            waits: Vec::new(),
            bytes: 0,
            parked: ParkedLoad::default(),
            tally: ReplyTally::default(),
            paused: false,
            stalled: None,
            covered: FREE,
            memory: None,
            awaits_memory: false,
            server,
            interest: READ | PEER_CLOSED,
        }
    }

    pub(crate) fn is_dialect(&self) -> bool {
        !matches!(self.form, Protocol::Base(_))
    }

    /// Begins a session of 9P2000.L without open files; returns the protocol of the one before.
    pub(crate) fn begin_plain(&mut self) -> Protocol {
        let plain = PlainSession::new(self.server.clone());
        self.fids = plain.fids.clone();
        self.set_form(Protocol::Base(plain.into()))
    }

    pub(crate) fn form(&self) -> &Protocol {
        &self.form
    }

    /// Sets the protocol of the requests from now on; returns the former one.
    pub(crate) fn set_form(&mut self, form: Protocol) -> Protocol {
        self.path = None;
        std::mem::replace(&mut self.form, form)
    }

    pub(crate) fn fid(&self, number: ninep::Fid) -> Option<Arc<OpenFid>> {
        self.fids.lock().expect("not poisoned").get(&number.0).cloned()
    }

    /// Returns the destination of the reply to a request of this session.
    pub(crate) fn reply_to(&mut self, connection: &Arc<Connection>, tag: Tag) -> ReplyTo {
        if let Some(path) = self.path.as_ref().filter(|path| path.epoch == self.epoch) {
            return ReplyTo { path: path.clone(), tag };
        }
        let (connection, form) = (connection.clone(), self.form.clone());
        let path = Arc::new(ReplyPath { connection, epoch: self.epoch, form });
        // The thread that closes the connection takes the session after that, and the path with the
        // form.
        if !path.connection.closed.load(Ordering::Acquire) {
            self.path = Some(path.clone());
        }
        ReplyTo { path, tag }
    }

    /// Whether the client has not attached within `patience`, asked every [`HOUSEKEEPING`]. A client
    /// is not late because the proxy was: however long that was stopped, it counts as one interval.
    pub(crate) fn is_late(&mut self, patience: Nanos) -> bool {
        let (_, waited) = &mut self.detached;
        let waited = waited.insert(waited.map_or(Nanos::ZERO, |waited| waited + HOUSEKEEPING));
        !self.attached && *waited >= patience
    }

    /// Whether the client has as much in flight as it may. One request is always allowed.
    ///
    /// Of a mount, what waits for leases does not count: it ends once other mounts have returned them,
    /// and their returns may be behind what waits for the leases of this one. A plain client returns
    /// nothing, so nobody waits for what it sends next.
    pub(crate) fn is_over(&self, bounds: ConnectionBounds, unsent: usize) -> bool {
        let busy = !self.tags.is_empty() || unsent > 0;
        let (mut requests, mut used) = (self.tags.len(), self.bytes + unsent);
        // A throttled job keeps a window's worth here; other jobs need room beside it.
        let mut times = 1;
        if self.is_dialect() {
            times = MOUNT_TIMES;
            requests -= self.parked.requests.min(PARKED_MAX.requests);
            used -= self.parked.bytes.min(PARKED_MAX.bytes);
        }
        busy && (requests >= times * bounds.tags_max || used >= times * bounds.bytes_max)
    }

    /// Notes that a request in flight waits for leases, or does so no longer.
    pub(crate) fn set_parked(&mut self, tag: Tag, is_parked: bool) {
        let Some(request) = self.tags.get_mut(&tag.0) else { return };
        if request.is_parked == is_parked {
            return;
        }
        request.is_parked = is_parked;
        let bytes = request.bytes;
        match is_parked {
            true => self.parked.add(bytes),
            false => self.parked.remove(bytes),
        }
    }

    /// Forgets all requests in flight, which it returns.
    pub(crate) fn take_requests(&mut self) -> FxHashMap<u16, TaggedRequest> {
        (self.bytes, self.parked) = (0, ParkedLoad::default());
        std::mem::take(&mut self.tags)
    }

    /// Pauses reading from the connection until replies have left.
    pub(crate) fn pause(&mut self, connection: &Connection, poll: &OwnedFd) {
        self.paused = true;
        self.set_interest(connection, poll, READ, false);
    }

    /// Notes that there may be memory again.
    pub(crate) fn memory_available(&mut self, connection: &Connection, poll: &OwnedFd) {
        (self.awaits_memory, self.paused) = (false, false);
        self.set_interest(connection, poll, READ, true);
    }

    /// Forgets the answered requests and appends the replies of flushes that waited for them.
    fn finish_answered(&mut self, batch: &mut ReplyBatch) {
        for tag in &batch.answered {
            self.free(*tag);
        }
        if self.flushes.is_empty() {
            return;
        }
        for flush in self.take_flushes_of(&batch.answered) {
            batch.reply(flush, Reply::Flush);
        }
    }

    /// Removes the flushes that waited for these requests, in their order, and the flushes that
    /// waited for such a flush.
    pub(crate) fn take_flushes_of(&mut self, answered: &[Tag]) -> Vec<Tag> {
        let mut due = Vec::new();
        let mut flushes = std::mem::take(&mut self.flushes);
        flushes.retain(|(old, flush)| {
            let waits = !answered.contains(old) && !due.contains(old);
            if !waits {
                due.push(*flush);
            }
            waits
        });
        self.flushes = flushes;
        due.iter().for_each(|flush| self.free(*flush));
        due
    }

    /// Forgets a request that has been answered or cancelled.
    pub(crate) fn free(&mut self, tag: Tag) {
        if let Some(request) = self.tags.remove(&tag.0) {
            self.bytes -= request.bytes;
            if request.is_parked {
                self.parked.remove(request.bytes);
            }
        }
        if self.tags.is_empty() && self.tags.capacity() > 256 {
            self.tags = FxHashMap::default();
        }
    }

    fn set_interest(
        &mut self,
        connection: &Connection,
        poll: &OwnedFd,
        flags: epoll::EventFlags,
        on: bool,
    ) {
        let mut interest = self.interest;
        interest.set(flags, on);
        if interest != self.interest && !connection.closed.load(Ordering::Acquire) {
            self.interest = interest;
            let data = epoll::EventData::new_u64(connection.id);
            // It fails only for a socket that is being closed.
            let _ = epoll::modify(poll, &connection.socket, data, interest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ConnectionBounds =
        ConnectionBounds { tags_max: 2, bytes_max: 4 << 20, before_attach: 0 };

    fn admit(session: &mut NinepSession, tag: u16, bytes: usize) {
        session.tags.insert(tag, TaggedRequest { request: None, bytes, is_parked: false });
        session.bytes += bytes;
    }

    #[test]
    fn what_waits_for_leases_of_other_mounts_does_not_count_as_in_flight_up_to_a_bound() {
        let mut session = NinepSession::new(Weak::new());
        session.set_form(Protocol::Unbound);
        (0..8).for_each(|tag| admit(&mut session, tag, 0));
        assert!(session.is_over(BOUNDS, 0), "four times the tags of a plain client");
        session.set_parked(Tag(3), true);
        session.set_parked(Tag(3), true);
        assert!(!session.is_over(BOUNDS, 0));
        session.set_parked(Tag(3), false);
        assert!(session.is_over(BOUNDS, 0), "it is executed");
        session.set_parked(Tag(3), true);
        session.free(Tag(3));
        assert!(!session.is_over(BOUNDS, 0));
        admit(&mut session, 8, 0);
        assert!(session.is_over(BOUNDS, 0));
        for tag in 9..9 + PARKED_MAX.requests as u16 {
            admit(&mut session, tag, 0);
            session.set_parked(Tag(tag), true);
        }
        session.free(Tag(0));
        assert!(!session.is_over(BOUNDS, 0));
        session.set_parked(Tag(1), true);
        session.set_parked(Tag(2), true);
        admit(&mut session, 0, 0);
        assert!(session.is_over(BOUNDS, 0), "more than the bound of those that wait");
        session.take_requests();
        admit(&mut session, 0, PARKED_MAX.bytes + (16 << 20));
        session.set_parked(Tag(0), true);
        assert!(session.is_over(BOUNDS, 0), "more bytes than that bound and those in flight");
        session.take_requests();
        admit(&mut session, 0, PARKED_MAX.bytes);
        session.set_parked(Tag(0), true);
        assert!(!session.is_over(BOUNDS, 0));
        session.free(Tag(0));
        assert_eq!((session.parked, session.bytes), (ParkedLoad::default(), 0));
    }

    #[test]
    fn of_a_plain_client_all_counts_as_in_flight() {
        let mut session = NinepSession::new(Weak::new());
        (0..2).for_each(|tag| admit(&mut session, tag, 0));
        (0..2).for_each(|tag| session.set_parked(Tag(tag), true));
        assert!(session.is_over(BOUNDS, 0));
    }
}
