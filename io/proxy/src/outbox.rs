//! Replies on their way out: gathered per connection, sent with few system calls.
//!
//! A worker appends replies to the batch of their connection. It sends a batch that is large or that
//! answers all its client has in flight, and every batch when half of a round is answered, when it
//! has nothing more to do, or before it may have to wait. If the leader hangs in a backend call, the
//! thread that takes over flushes the leader's outbox, so no finished reply waits for an unfinished
//! one.
//!
//! ```text
//!   one client with 64 in flight       ████████████████ send ████████████████ send
//!   4 clients with 16, in turn         ████ send ████ send ████ send ████ send
//!   4 clients with 16, interleaved     ████████ send to each   ████████ send to each
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ninep::dialect::{self, AnyReply, LeaseGrants, ReplyHeader};
use ninep::{Reply, Tag};
use rustix::io::Errno;

use crate::connection::{ReplyPath, ReplyTo};
use crate::pipes::PipeLoad;
use crate::sessions::Protocol;
use crate::tally::ReplyTally;

/// A batch larger than this is sent at once.
const BATCH_BYTES: usize = 256 << 10;
/// Number of requests from which the first half of a round's replies is sent at once: the clients
/// work on those while the rest is executed. Otherwise they and the proxy would work in turns, each
/// asleep while the other is busy.
const SPLIT_FROM: usize = 8;
/// Replies of one worker after which all are sent.
const REPLIES_MAX: usize = 64;

/// The replies that one worker has ready.
#[derive(Default)]
pub(crate) struct ReplyOutbox {
    batches: VecDeque<ReplyBatch>,
    /// Number of replies after which all are sent: see [`ReplyOutbox::begin_round`].
    enough: usize,
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
    /// Number of requests that its client has in flight.
    in_flight: usize,
    /// Whether to send it before more is executed.
    is_due: bool,
    /// Counters of these replies.
    pub(crate) tally: ReplyTally,
}

impl ReplyOutbox {
    /// Notes how many requests wait to be executed.
    pub(crate) fn begin_round(&mut self, requests: usize) {
        let half = if requests < SPLIT_FROM { REPLIES_MAX } else { requests / 2 };
        self.enough = half.min(REPLIES_MAX);
    }

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

    /// Marks what [`ReplyOutbox::pop_due`] is to return; whether there is anything.
    pub(crate) fn mark_due(&mut self) -> bool {
        let replies: usize = self.batches.iter().map(|batch| batch.answered.len()).sum();
        let all = replies >= self.enough;
        let any = all || self.batches.iter().any(ReplyBatch::is_full);
        if any {
            // A client with few requests waits for no more of them than one with many.
            let due = |batch: &ReplyBatch| all || batch.is_full() || batch.answers_all();
            self.batches.iter_mut().for_each(|batch| batch.is_due |= due(batch));
        }
        any
    }

    /// Takes the oldest batch that is to be sent before more is executed.
    pub(crate) fn pop_due(&mut self) -> Option<ReplyBatch> {
        let at = self.batches.iter().position(|batch| batch.is_due)?;
        self.batches.remove(at)
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
        let in_flight = path.connection.in_flight.load(Ordering::Relaxed);
        ReplyBatch { path, bytes, pipes, answered, in_flight, is_due: false, tally }
    }

    /// Whether its client waits for nothing else.
    fn answers_all(&self) -> bool {
        self.answered.len() >= self.in_flight
    }

    /// Whether it is worth a system call of its own.
    fn is_full(&self) -> bool {
        let is_whole = self.in_flight >= SPLIT_FROM && self.answers_all();
        is_whole || self.bytes.len() >= BATCH_BYTES || !self.pipes.is_empty()
    }

    /// Adds a reply, encoded in the connection's protocol.
    pub(crate) fn reply<'r>(&mut self, tag: Tag, reply: impl Into<AnyReply<'r>>) {
        match (self.path.form.header(), reply.into()) {
            (Some(header), reply) => dialect::encode_reply(tag, header, &reply, &mut self.bytes),
            (None, AnyReply::Base(reply)) => reply.encode(tag, &mut self.bytes),
            (None, AnyReply::Ext(_)) => unreachable!("only the dialect has its own requests"),
        }
    }

    /// Adds a reply that grants leases, in the dialect.
    pub(crate) fn reply_granting<'r>(
        &mut self,
        tag: Tag,
        leases: LeaseGrants,
        reply: impl Into<AnyReply<'r>>,
    ) {
        match self.path.form.header() {
            Some(header) => {
                let header = ReplyHeader { leases, ..header };
                dialect::encode_reply(tag, header, &reply.into(), &mut self.bytes);
            }
            None => self.reply(tag, reply),
        }
    }

    /// Adds an error reply that grants leases, in the dialect.
    pub(crate) fn error_granting(&mut self, tag: Tag, leases: LeaseGrants, error: &io::Error) {
        self.reply_granting(tag, leases, Reply::Error { ecode: errno_of(error) });
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Weak;

    use super::*;
    use crate::connection::{Connection, ConnectionPeer};

    fn connection(in_flight: usize) -> Arc<Connection> {
        let (socket, _) = UnixStream::pair().unwrap();
        let peer = ConnectionPeer { nid: model::Nid::local(), uid: None, trusted: false };
        let connection = Connection::new(7, socket.into(), peer, Weak::new());
        connection.in_flight.store(in_flight, Ordering::Relaxed);
        Arc::new(connection)
    }

    /// Adds replies to a connection's requests; whether anything is due then.
    fn answer(outbox: &mut ReplyOutbox, connection: &Arc<Connection>, replies: u16) -> bool {
        let mut due = false;
        for tag in 0..replies {
            let to = connection.session.lock().unwrap().reply_to(connection, Tag(tag));
            outbox.batch(&to).reply(to.tag, Reply::Clunk);
            due = outbox.mark_due();
        }
        due
    }

    /// How many replies each batch has that is sent.
    fn due(outbox: &mut ReplyOutbox) -> Vec<usize> {
        std::iter::from_fn(|| outbox.pop_due()).map(|batch| batch.answered.len()).collect()
    }

    #[test]
    fn a_client_alone_gets_half_of_its_replies_while_the_rest_is_executed() {
        let (mut outbox, only) = (ReplyOutbox::default(), connection(16));
        outbox.begin_round(16);
        assert!(!answer(&mut outbox, &only, 7));
        assert!(answer(&mut outbox, &only, 1));
        assert_eq!(due(&mut outbox), [8]);
        assert!(!answer(&mut outbox, &only, 7));
    }

    #[test]
    fn a_client_whose_requests_are_all_answered_does_not_wait_for_others_and_they_gather_on() {
        let (mut outbox, first, second) = (ReplyOutbox::default(), connection(8), connection(24));
        outbox.begin_round(32);
        assert!(!answer(&mut outbox, &second, 3));
        assert!(answer(&mut outbox, &first, 8));
        assert_eq!(due(&mut outbox), [8]);
        assert!(!answer(&mut outbox, &second, 12));
        assert!(answer(&mut outbox, &second, 1));
        assert_eq!(due(&mut outbox), [16]);
    }

    #[test]
    fn a_client_with_one_request_gets_its_reply_when_anything_is_sent() {
        let (mut outbox, one, many) = (ReplyOutbox::default(), connection(1), connection(8));
        let more = connection(16);
        outbox.begin_round(32);
        assert!(!answer(&mut outbox, &one, 1));
        assert!(!answer(&mut outbox, &more, 1));
        assert!(answer(&mut outbox, &many, 8));
        assert_eq!(due(&mut outbox), [1, 8]);
    }

    #[test]
    fn clients_that_are_served_in_turn_get_the_first_half_of_a_round_together() {
        let clients = [connection(8), connection(8), connection(8)];
        let mut outbox = ReplyOutbox::default();
        outbox.begin_round(24);
        for _ in 0..3 {
            clients.iter().for_each(|client| assert!(!answer(&mut outbox, client, 1)));
        }
        assert!(!answer(&mut outbox, &clients[0], 1));
        assert!(!answer(&mut outbox, &clients[1], 1));
        assert!(answer(&mut outbox, &clients[2], 1));
        assert_eq!(due(&mut outbox), [4, 4, 4]);
    }

    #[test]
    fn no_worker_gathers_more_than_a_bounded_number_of_replies() {
        for requests in [0, 3, 5_000] {
            let (mut outbox, client) = (ReplyOutbox::default(), connection(3));
            outbox.begin_round(requests);
            assert!(!answer(&mut outbox, &client, REPLIES_MAX as u16 - 1), "{requests}");
            assert!(answer(&mut outbox, &client, 1), "{requests}");
        }
    }
}
