//! A queue between two threads that knows its length.
//!
//! ```text
//!   Queue ─ send, try_send ─► std's bounded channel ─► Inbox ─ recv … ─► its thread
//!      └──── waiting + 1                                 └─ waiting − 1
//! ```
//!
//! The standard channel does not know its length, and a full queue is the first sign that a thread
//! does not keep up. Senders that wait for room are counted, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{
    Receiver, RecvError, RecvTimeoutError, SendError, SyncSender, TrySendError, sync_channel,
};
use std::time::Duration;

/// The sending end of a bounded queue.
#[derive(Debug)]
pub(crate) struct MsgQueue<T> {
    sender: SyncSender<T>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

/// The receiving end of a bounded queue.
#[derive(Debug)]
pub(crate) struct MsgInbox<T> {
    receiver: Receiver<T>,
    waiting: Arc<AtomicUsize>,
}

/// Makes a queue for `most` messages at a time.
pub(crate) fn queue<T>(most: usize) -> (MsgQueue<T>, MsgInbox<T>) {
    let (sender, receiver) = sync_channel(most);
    let waiting = Arc::new(AtomicUsize::new(0));
    (MsgQueue { sender, waiting: waiting.clone(), most }, MsgInbox { receiver, waiting })
}

impl<T> MsgQueue<T> {
    /// Sends a message, or returns it if the queue is full.
    pub(crate) fn try_send(&self, one: T) -> Result<(), TrySendError<T>> {
        // Counted first: the message may be received before this returns.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.sender.try_send(one);
        if outcome.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Sends a message as soon as there is room.
    pub(crate) fn send(&self, one: T) -> Result<(), SendError<T>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.sender.send(one);
        if outcome.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Returns how many messages wait now, and how many can.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.waiting.load(Ordering::Relaxed), self.most)
    }
}

impl<T> Clone for MsgQueue<T> {
    fn clone(&self) -> MsgQueue<T> {
        MsgQueue { sender: self.sender.clone(), waiting: self.waiting.clone(), most: self.most }
    }
}

impl<T> MsgInbox<T> {
    /// Receives the next message.
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        self.count_received(self.receiver.recv())
    }

    /// Receives the next message, if it comes in time.
    pub(crate) fn recv_timeout(&self, patience: Duration) -> Result<T, RecvTimeoutError> {
        self.count_received(self.receiver.recv_timeout(patience))
    }

    /// Returns the messages that are there, without waiting.
    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        self.receiver.try_iter().inspect(|_| self.count_out())
    }

    fn count_received<E>(&self, outcome: Result<T, E>) -> Result<T, E> {
        if outcome.is_ok() {
            self.count_out();
        }
        outcome
    }

    fn count_out(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_in_and_out_and_what_is_refused_is_not() {
        let (queue, inbox) = queue(3);
        for one in 0..3 {
            queue.try_send(one).unwrap();
        }
        assert_eq!(queue.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(queue.clone().waiting(), (3, 3));
        assert_eq!(inbox.recv(), Ok(0));
        assert_eq!(inbox.recv_timeout(Duration::ZERO), Ok(1));
        assert_eq!(queue.waiting(), (1, 3));
        assert_eq!(inbox.try_iter().collect::<Vec<_>>(), [2]);
        assert_eq!(inbox.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
        assert_eq!(queue.waiting(), (0, 3));
        drop(inbox);
        assert!(queue.send(4).is_err() && queue.try_send(4).is_err());
        assert_eq!(queue.waiting(), (0, 3));
    }
}
