//! Replies on their way out: gathered per connection, sent with few system calls.
//!
//! A worker appends replies to the batch of their connection. It flushes when it has nothing more
//! to do, when a batch is large, or before it may have to wait. If the leader hangs in a backend
//! call, the thread that takes over flushes the leader's outbox, so no finished reply waits for an
//! unfinished one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ninep::dialect::{self, AnyReply};
use ninep::{Reply, Tag};
use rustix::io::Errno;

use crate::connection::{ReplyPath, ReplyTo};
use crate::pipes::PipeLoad;
use crate::sessions::Protocol;
use crate::tally::ReplyTally;

/// A batch larger than this is sent at once.
const BATCH_BYTES: usize = 256 << 10;
/// Number of requests in flight from which a client gets the first half of the replies at once: it
/// works on those while the rest is executed. Otherwise the client and the proxy would work in
/// turns, each asleep while the other is busy.
const SPLIT_FROM: usize = 8;
/// Connections that one outbox serves before it flushes.
const BATCHES_MAX: usize = 64;

/// The replies that one worker has ready.
#[derive(Default)]
pub(crate) struct ReplyOutbox {
    batches: VecDeque<ReplyBatch>,
    /// Memory of batches that were sent.
    spare: Vec<Vec<u8>>,
}

/// Replies to one session of one connection, in order.
pub(crate) struct ReplyBatch {
    pub(crate) path: Arc<ReplyPath>,
    pub(crate) bytes: Vec<u8>,
    /// Payload in pipes, each with its position in `bytes`.
    pub(crate) pipes: Vec<(usize, PipeLoad)>,
    /// The requests answered here.
    pub(crate) answered: Vec<Tag>,
    /// How many answers are worth a system call of their own: see [`SPLIT_FROM`].
    enough: usize,
    /// Counters of these replies.
    pub(crate) tally: ReplyTally,
}

impl ReplyOutbox {
    /// The batch to which the reply to a request is about to be added.
    pub(crate) fn batch(&mut self, to: &ReplyTo) -> &mut ReplyBatch {
        let at = self.find(to).unwrap_or_else(|| {
            let bytes = self.spare.pop().unwrap_or_default();
            self.batches.push_back(ReplyBatch::new(to, bytes));
            self.batches.len() - 1
        });
        let batch = &mut self.batches[at];
        if let (Protocol::Unbound, Protocol::Bound(_)) = (&batch.path.form, &to.path.form) {
            batch.path = to.path.clone();
        }
        batch.answered.push(to.tag);
        batch
    }

    /// How many bytes wait for a session, for [`ReplyOutbox::written_since`].
    pub(crate) fn batch_len(&self, to: &ReplyTo) -> usize {
        self.find(to).map_or(0, |at| self.batches[at].bytes.len())
    }

    /// Returns the bytes that were added for a session since then.
    pub(crate) fn written_since(&self, to: &ReplyTo, start: usize) -> &[u8] {
        self.find(to).map_or(&[], |at| &self.batches[at].bytes[start..])
    }

    fn find(&self, to: &ReplyTo) -> Option<usize> {
        let is = |b: &ReplyBatch| {
            Arc::ptr_eq(&b.path.connection, &to.path.connection) && b.path.epoch == to.path.epoch
        };
        self.batches.iter().rposition(is)
    }

    /// Whether it would be wrong to go on without flushing.
    pub(crate) fn is_full(&self) -> bool {
        let full = |b: &ReplyBatch| {
            b.answered.len() >= b.enough || b.bytes.len() >= BATCH_BYTES || !b.pipes.is_empty()
        };
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(full)
    }

    /// Takes the oldest batch, to be sent.
    pub(crate) fn pop_batch(&mut self) -> Option<ReplyBatch> {
        self.batches.pop_front()
    }

    /// Keeps the memory of a batch that was sent.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < 4 && bytes.capacity() <= 4 * BATCH_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

impl ReplyBatch {
    pub(crate) fn new(to: &ReplyTo, bytes: Vec<u8>) -> ReplyBatch {
        let path = to.path.clone();
        let (pipes, answered, tally) = (Vec::new(), Vec::new(), ReplyTally::default());
        let enough = match path.connection.in_flight.load(Ordering::Relaxed) {
            few if few < SPLIT_FROM => usize::MAX,
            many => many / 2,
        };
        ReplyBatch { path, bytes, pipes, answered, enough, tally }
    }

    /// Adds a reply, encoded in the connection's protocol.
    pub(crate) fn reply<'r>(&mut self, tag: Tag, reply: impl Into<AnyReply<'r>>) {
        match (self.path.form.header(), reply.into()) {
            (Some(header), reply) => dialect::encode_reply(tag, header, &reply, &mut self.bytes),
            (None, AnyReply::Base(reply)) => reply.encode(tag, &mut self.bytes),
            (None, AnyReply::Ext(_)) => unreachable!("only the dialect has its own requests"),
        }
    }

    /// Adds an error reply with the errno of `error`.
    pub(crate) fn error(&mut self, tag: Tag, error: &io::Error) {
        self.reply(tag, Reply::Error { ecode: errno_of(error) });
    }

    /// Adds the header of a read's reply whose `count` bytes come after it.
    pub(crate) fn read_header(&mut self, tag: Tag, count: u32) {
        let start = self.begin_read();
        self.end_read(tag, start, count);
    }

    /// Makes place for the header of a read's reply; what is read is put behind it. Returns
    /// where the reply begins, for [`ReplyBatch::end_read`].
    pub(crate) fn begin_read(&mut self) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + self.read_header_len(), 0);
        start
    }

    /// Fills the header in, now that `count` bytes are behind it.
    pub(crate) fn end_read(&mut self, tag: Tag, start: usize, count: u32) {
        let place = &mut self.bytes[start..];
        match self.path.form.header() {
            None => place[..ninep::READ_REPLY_HEADER_LEN]
                .copy_from_slice(&ninep::read_reply_header(tag, count)),
            Some(header) => place[..dialect::READ_REPLY_HEADER_LEN]
                .copy_from_slice(&dialect::read_reply_header(tag, header, count)),
        }
    }

    fn read_header_len(&self) -> usize {
        read_header_len(&self.path.form)
    }
}

/// Bytes of a read's reply before its payload.
pub(crate) fn read_header_len(form: &Protocol) -> usize {
    match form {
        Protocol::Base(_) => ninep::READ_REPLY_HEADER_LEN,
        Protocol::Unbound | Protocol::Bound(_) => dialect::READ_REPLY_HEADER_LEN,
    }
}

/// The Linux errno that a client gets for a failure here.
pub(crate) fn errno_of(error: &io::Error) -> u32 {
    let code = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    code as u32
}
