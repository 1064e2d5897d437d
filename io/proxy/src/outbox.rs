//! Replies on their way out: gathered per connection, sent with few system calls.
//!
//! A worker appends replies to the batch of their connection and flushes when it
//! has nothing more to do, when a batch is large, or before it may have to wait.
//! Should the leader get stuck in a backend call, whoever takes over flushes the
//! leader's outbox, so no finished reply waits for an unfinished one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ninep::{Reply, Tag};
use rustix::io::Errno;

use crate::connection::{Connection, ReplyTo};
use crate::pipes::PipeLoad;
use crate::tally::Tally;

/// A batch larger than this is sent at once.
const BATCH_BYTES: usize = 256 << 10;
/// With so many requests in flight or more, a client gets the replies to half of them at
/// once: it works on those while the rest is executed. Otherwise it and the proxy would work
/// in turns, each asleep while the other is busy.
const SPLIT_FROM: usize = 8;
/// Connections that one outbox serves before it flushes.
const BATCHES_MAX: usize = 64;

/// The replies that one worker has ready.
#[derive(Default)]
pub(crate) struct Outbox {
    batches: VecDeque<Batch>,
    /// Memory of batches that were sent.
    spare: Vec<Vec<u8>>,
}

/// Replies to one session of one connection, in order.
pub(crate) struct Batch {
    pub(crate) connection: Arc<Connection>,
    pub(crate) epoch: u32,
    pub(crate) bytes: Vec<u8>,
    /// Payload in pipes, each after so many of `bytes`.
    pub(crate) pipes: Vec<(usize, PipeLoad)>,
    /// The requests answered here.
    pub(crate) answered: Vec<Tag>,
    /// How many answers are worth a system call of their own: see [`SPLIT_FROM`].
    enough: usize,
    /// The same in numbers.
    pub(crate) tally: Tally,
}

impl Outbox {
    /// The batch to which the reply to a request is about to be added.
    pub(crate) fn batch(&mut self, to: &ReplyTo) -> &mut Batch {
        let is = |b: &Batch| Arc::ptr_eq(&b.connection, &to.connection) && b.epoch == to.epoch;
        let at = self.batches.iter().rposition(is).unwrap_or_else(|| {
            let bytes = self.spare.pop().unwrap_or_default();
            self.batches.push_back(Batch::new(to, bytes));
            self.batches.len() - 1
        });
        let batch = &mut self.batches[at];
        batch.answered.push(to.tag);
        batch
    }

    /// Whether it would be wrong to go on without flushing.
    pub(crate) fn is_full(&self) -> bool {
        let full = |b: &Batch| {
            b.answered.len() >= b.enough || b.bytes.len() >= BATCH_BYTES || !b.pipes.is_empty()
        };
        self.batches.len() >= BATCHES_MAX || self.batches.iter().any(full)
    }

    /// Takes the oldest batch, to be sent.
    pub(crate) fn take(&mut self) -> Option<Batch> {
        self.batches.pop_front()
    }

    /// Keeps the memory of a batch that was sent.
    pub(crate) fn give_back(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < 4 && bytes.capacity() <= 4 * BATCH_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

impl Batch {
    pub(crate) fn new(to: &ReplyTo, bytes: Vec<u8>) -> Batch {
        let connection = to.connection.clone();
        let (pipes, answered, tally) = (Vec::new(), Vec::new(), Tally::default());
        let enough = match connection.in_flight.load(Ordering::Relaxed) {
            few if few < SPLIT_FROM => usize::MAX,
            many => many / 2,
        };
        Batch { connection, epoch: to.epoch, bytes, pipes, answered, enough, tally }
    }

    pub(crate) fn reply(&mut self, tag: Tag, reply: &Reply<'_>) {
        reply.encode(tag, &mut self.bytes);
    }

    pub(crate) fn error(&mut self, tag: Tag, error: &io::Error) {
        self.bytes.extend_from_slice(&ninep::error_reply(tag, errno_of(error)));
    }
}

/// The Linux errno that a client gets for a failure here.
pub(crate) fn errno_of(error: &io::Error) -> u32 {
    let code = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    code as u32
}
