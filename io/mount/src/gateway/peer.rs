//! A client of plain 9P2000.L: one connection, which many threads ask over at once.
//!
//! ```text
//!   worker ─► call, call_all ─► tags, one send ─► socket ─► peer
//!     ▲                                                      │
//!     └── its own replies ◄── reader thread, by tag ◄────────┘
//!   flush ─► Tflush for what a job has in flight ─► its reply, or Rflush: EINTR
//! ```
//!
//! A fid is an [`UpstreamFid`]: dropping it makes the server forget it, so no way out of a function
//! leaks one. When a connection breaks, waiting and later calls fail with [`UpstreamError::Disconnected`].
//!
//! Bounds: [`TAGS_MAX`] messages in flight, [`FIDS_MAX`] fids, and no message larger than the
//! agreed size; each is checked before memory is taken.
//!
//! Invariant: a tag is free again only when neither its reply nor that of a flush which names
//! it can come.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fuse::Errno;
use ninep::{Fid, HEADER_LEN, Reply, Request, Tag, frame_kind, frame_len, frame_tag};
use rustix::net::{SendFlags, Shutdown, shutdown};
use slab::Slab;

use crate::session::{errno_of, lock};

/// A connection to a server of plain 9P2000.L.
#[derive(Debug)]
pub(super) struct UpstreamClient {
    socket: OwnedFd,
    /// The largest message that was agreed on, in bytes.
    msize: u32,
    /// Held while a message is sent.
    sending: Mutex<()>,
    table: Mutex<UpstreamTable>,
    /// Tags have become free.
    room: Condvar,
}

#[derive(Debug, Default)]
struct UpstreamTable {
    /// By tag.
    sent: Slab<UpstreamSent>,
    fids: Slab<()>,
    broken: bool,
}

#[derive(Debug)]
struct UpstreamSent {
    /// The number of the job that asks; 0 if none does.
    job: u64,
    waiting: UpstreamWaiting,
    /// A flush names its tag and is not answered.
    flushed: bool,
}

#[derive(Debug)]
enum UpstreamWaiting {
    /// A waiting call, for which it is the message number `at`.
    Asker { to: Sender<(usize, Vec<u8>)>, at: usize },
    /// No call; the fid is free afterwards.
    Clunk(Fid),
    /// No call; the tag is that of a flush of another.
    Flush(usize),
    /// No call any more.
    Answered,
}

/// An operation on the server, of one message or many.
#[derive(Debug)]
pub(super) struct UpstreamOp {
    number: u64,
    flushed: AtomicBool,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamError {
    /// The peer, or the protocol, says so.
    Errno(Errno),
    /// The connection is lost: whether the call was executed is not known.
    Disconnected,
}

impl From<Errno> for UpstreamError {
    fn from(error: Errno) -> UpstreamError {
        UpstreamError::Errno(error)
    }
}

/// A whole reply; empty if the question was flushed instead.
#[derive(Debug)]
pub(super) struct UpstreamReply(Vec<u8>);

/// A fid that the peer knows, until it is dropped.
#[derive(Debug)]
pub(super) struct UpstreamFid {
    pub(super) fid: Fid,
    peer: Arc<UpstreamClient>,
    /// Whether the peer may know it.
    known: bool,
}

impl UpstreamOp {
    /// Makes an operation with a unique `number` other than 0.
    pub(super) fn new(number: u64) -> UpstreamOp {
        UpstreamOp { number, flushed: AtomicBool::new(false) }
    }

    /// Makes an operation that cannot be flushed.
    pub(super) fn steady() -> UpstreamOp {
        UpstreamOp::new(0)
    }
}

impl UpstreamReply {
    /// Decodes the reply; an error reply becomes its errno.
    pub(super) fn reply(&self) -> Result<Reply<'_>, Errno> {
        if self.0.is_empty() {
            return Err(Errno::INTR);
        }
        match Reply::decode(&self.0) {
            Ok((_, Reply::Error { ecode })) => Err(errno_of(ecode)),
            Ok((_, reply)) => Ok(reply),
            Err(error) => {
                tracing::warn!(%error, "received an invalid reply from the server");
                Err(Errno::PROTO)
            }
        }
    }
}

impl UpstreamClient {
    /// Uses a connection that has agreed on plain 9P2000.L and messages of `msize`. The
    /// thread that reads calls `ended` when it breaks.
    pub(super) fn begin(
        socket: OwnedFd,
        msize: u32,
        ended: impl FnOnce(&io::Error) + Send + 'static,
    ) -> io::Result<Arc<UpstreamClient>> {
        let mut reader = BufReader::new(File::from(socket.try_clone()?));
        let (table, sending, room) = Default::default();
        let peer = Arc::new(UpstreamClient { socket, msize, sending, table, room });
        let reads = peer.clone();
        std::thread::Builder::new().name("plain-replies".into()).spawn(api::critical(
            move || {
                let why = loop {
                    match read_frame(&mut reader, reads.msize) {
                        Ok(frame) => reads.receive(frame),
                        Err(why) if why.kind() == ErrorKind::UnexpectedEof => {
                            break io::Error::new(why.kind(), "the server closed the connection");
                        }
                        Err(why) => break why,
                    }
                };
                reads.disconnect();
                ended(&why);
            },
        ))?;
        Ok(peer)
    }

    /// Payload that fits into one message, in bytes.
    pub(super) fn payload(&self) -> u32 {
        self.msize - ninep::IO_HEADER
    }

    /// Whether it can be asked.
    pub(super) fn is_up(&self) -> bool {
        !lock(&self.table).broken
    }

    /// Ends the connection; waiting calls fail.
    pub(super) fn end(&self) {
        // One that is gone already is as good.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Asks one thing; `take` makes of the reply what is wanted.
    pub(super) fn call<T>(
        &self,
        job: &UpstreamOp,
        request: Request<'_>,
        take: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> Result<T, UpstreamError> {
        let told = self.call_all(job, &[request])?;
        let told = told.first().ok_or(UpstreamError::Disconnected)?;
        Ok(take(told.reply()?).ok_or(Errno::PROTO)?)
    }

    /// Asks all of these at once, and waits for every reply. They are executed in any order.
    pub(super) fn call_all(
        &self,
        job: &UpstreamOp,
        requests: &[Request<'_>],
    ) -> Result<Vec<UpstreamReply>, UpstreamError> {
        let mut all = Vec::with_capacity(requests.len());
        for requests in requests.chunks(AT_ONCE) {
            let (to, from) = channel();
            let mut out = Vec::new();
            {
                let mut table = self.table_with_room(requests.len())?;
                if job.flushed.load(Ordering::SeqCst) {
                    return Err(Errno::INTR.into());
                }
                for (at, request) in requests.iter().enumerate() {
                    let waiting = UpstreamWaiting::Asker { to: to.clone(), at };
                    let sent = UpstreamSent { job: job.number, waiting, flushed: false };
                    request.encode(tag_of(table.sent.insert(sent)), &mut out);
                }
            }
            drop(to);
            self.send(&out)?;
            let mut told: Vec<UpstreamReply> =
                requests.iter().map(|_| UpstreamReply(Vec::new())).collect();
            for _ in requests {
                let (at, frame) = from.recv().map_err(|_| UpstreamError::Disconnected)?;
                told[at] = UpstreamReply(frame);
            }
            all.extend(told);
        }
        Ok(all)
    }

    /// Takes back what a job has in flight, as far as the peer still can; what it asks from
    /// now on is `EINTR`.
    pub(super) fn flush(&self, job: &UpstreamOp) {
        let mut out = Vec::new();
        {
            let mut table = lock(&self.table);
            job.flushed.store(true, Ordering::SeqCst);
            let of_job = |sent: &UpstreamSent| {
                sent.job == job.number && matches!(sent.waiting, UpstreamWaiting::Asker { .. })
            };
            let old: Vec<usize> =
                table.sent.iter().filter(|(_, sent)| of_job(sent)).map(|(tag, _)| tag).collect();
            // Above what is asked there is always room for a flush of each.
            for old in old {
                table.sent[old].flushed = true;
                let flush =
                    UpstreamSent { job: 0, waiting: UpstreamWaiting::Flush(old), flushed: false };
                let tag = tag_of(table.sent.insert(flush));
                Request::Flush { oldtag: tag_of(old) }.encode(tag, &mut out);
            }
        }
        // The waiters learn of a connection that is broken.
        let _ = self.send(&out);
    }

    /// A number for a new fid.
    ///
    /// # Errors
    /// `ENFILE` if there are too many.
    pub(super) fn new_fid(self: &Arc<UpstreamClient>) -> Result<UpstreamFid, Errno> {
        let mut table = lock(&self.table);
        if table.fids.len() >= FIDS_MAX {
            return Err(Errno::NFILE);
        }
        let fid = Fid(table.fids.insert(()) as u32);
        Ok(UpstreamFid { fid, peer: self.clone(), known: true })
    }

    /// Makes a new fid by a message that names it; one that the peer has refused is not made.
    pub(super) fn make<T>(
        self: &Arc<UpstreamClient>,
        request: impl FnOnce(Fid) -> Result<T, UpstreamError>,
    ) -> Result<(UpstreamFid, T), UpstreamError> {
        let mut held = self.new_fid()?;
        match request(held.fid) {
            Ok(told) => Ok((held, told)),
            Err(fail) => {
                // Whether a question that was flushed has made it is not known: it is clunked.
                held.known = fail == UpstreamError::Errno(Errno::INTR);
                Err(fail)
            }
        }
    }

    fn table_with_room(
        &self,
        wanted: usize,
    ) -> Result<MutexGuard<'_, UpstreamTable>, UpstreamError> {
        let mut table = lock(&self.table);
        while !table.broken && table.sent.len() + wanted > TAGS_MAX {
            table = self.room.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        if table.broken { Err(UpstreamError::Disconnected) } else { Ok(table) }
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), UpstreamError> {
        let _sending = lock(&self.sending);
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot send");
                    // Half a message may be gone: nothing can follow it.
                    self.end();
                    return Err(UpstreamError::Disconnected);
                }
            }
        }
        Ok(())
    }

    /// Makes the server forget a fid, without waiting for that.
    fn forget(&self, fid: Fid) {
        let mut out = Vec::new();
        {
            let Ok(mut table) = self.table_with_room(1) else { return };
            let sent =
                UpstreamSent { job: 0, waiting: UpstreamWaiting::Clunk(fid), flushed: false };
            let tag = tag_of(table.sent.insert(sent));
            Request::Clunk { fid }.encode(tag, &mut out);
        }
        let _ = self.send(&out);
    }

    /// Handles a reply. A reply without a request is dropped: a flush may have been faster.
    fn receive(&self, frame: Vec<u8>) {
        let tag = frame_tag(&frame).map_or(usize::MAX, |tag| tag.0.into());
        let mut table = lock(&self.table);
        let Some(sent) = table.sent.get_mut(tag) else {
            return tracing::warn!(tag, "received a reply without a request");
        };
        let waiting = std::mem::replace(&mut sent.waiting, UpstreamWaiting::Answered);
        if !sent.flushed {
            table.sent.remove(tag);
        }
        match waiting {
            UpstreamWaiting::Asker { to, at } => {
                let _ = to.send((at, frame));
            }
            UpstreamWaiting::Clunk(fid) => drop(table.fids.try_remove(fid.0 as usize)),
            UpstreamWaiting::Flush(old) => {
                let flushed = table.sent.try_remove(old).map(|sent| sent.waiting);
                if let Some(UpstreamWaiting::Asker { to, at }) = flushed {
                    let _ = to.send((at, Vec::new()));
                }
            }
            UpstreamWaiting::Answered => {
                tracing::warn!(tag, kind = ?frame_kind(&frame), "received two replies to a request")
            }
        }
        drop(table);
        self.room.notify_all();
    }

    fn disconnect(&self) {
        let mut table = lock(&self.table);
        table.broken = true;
        // The senders go with it, and the waiters learn of it.
        table.sent.clear();
        drop(table);
        self.room.notify_all();
    }
}

impl UpstreamFid {
    /// The peer has refused to make it.
    pub(super) fn refused(mut self) {
        self.known = false;
    }

    /// Lets the peer forget it, and says what came of that: of an extended attribute, or of a
    /// write that was delayed.
    pub(super) fn clunk(mut self) -> Result<(), UpstreamError> {
        // Whatever the answer, the peer does not know it any more.
        self.known = false;
        let request = Request::Clunk { fid: self.fid };
        self.peer
            .call(&UpstreamOp::steady(), request, |reply| (reply == Reply::Clunk).then_some(()))
    }

    /// Removes its file; the peer forgets it whatever comes of that.
    pub(super) fn remove(mut self, job: &UpstreamOp) -> Result<(), UpstreamError> {
        let request = Request::Remove { fid: self.fid };
        let removed = self.peer.call(job, request, |reply| (reply == Reply::Remove).then_some(()));
        // One that was flushed may not have been executed.
        self.known = removed == Err(UpstreamError::Errno(Errno::INTR));
        removed
    }
}

impl Drop for UpstreamFid {
    fn drop(&mut self) {
        match self.known {
            true => self.peer.forget(self.fid),
            false => drop(lock(&self.peer.table).fids.try_remove(self.fid.0 as usize)),
        }
    }
}

/// Reads one whole frame of at most `msize` bytes.
pub(super) fn read_frame(from: &mut impl Read, msize: u32) -> io::Result<Vec<u8>> {
    let mut header = [0; HEADER_LEN];
    from.read_exact(&mut header)?;
    let len = frame_len(&header).unwrap_or(0);
    if !(HEADER_LEN as u32..=msize).contains(&len) {
        let why = format!("received a message of {len} bytes, not {HEADER_LEN} to {msize}");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut frame = vec![0; len as usize];
    frame[..HEADER_LEN].copy_from_slice(&header);
    from.read_exact(&mut frame[HEADER_LEN..])?;
    Ok(frame)
}

fn tag_of(place: usize) -> Tag {
    Tag(place as u16)
}

/// Messages in flight, flushes of them not counted; twice as many are far from NOTAG.
const TAGS_MAX: usize = 4096;
/// Questions of one job that are sent before the first answer is waited for.
const AT_ONCE: usize = 32;
/// Fids at a time: as many files as the mount opens, and those that are walked to.
const FIDS_MAX: usize = (1 << 20) + (1 << 16);
