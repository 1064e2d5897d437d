//! Events of a session that its client has not got yet.
//!
//! ```text
//!   a recall ─► EventQueue ─► Revents, when a Tevents waits
//!                  ▲ the first Tevents of a connection, or after some found no room: those
//!                  └─ that may be lost, once more
//! ```
//!
//! Events go over the connection that waited last, so that what is taken for another one is not lost
//! with it.
//!
//! Lock order: a connection's session, then this.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use crate::connection::{Connection, ReplyTo};

/// The events, and the connection that waits for them.
#[derive(Default)]
pub(crate) struct EventQueue(Mutex<EventState>);

#[derive(Default)]
struct EventState {
    events: VecDeque<Vec<u8>>,
    listener: Weak<Connection>,
    /// The protocol session of the listener.
    epoch: u32,
    /// Whether some are missing here for want of room.
    is_incomplete: bool,
}

/// Events of a session that wait, at most.
const EVENTS_MAX: usize = 16_384;

impl EventQueue {
    /// Adds an event in its wire form.
    pub(crate) fn push(&self, event: Vec<u8>) {
        let mut state = self.0.lock().expect("not poisoned");
        match state.events.len() < EVENTS_MAX {
            true => state.events.push_back(event),
            false => state.is_incomplete = true,
        }
    }

    /// Adds those of these that do not wait.
    pub(crate) fn push_again(&self, events: impl Iterator<Item = Vec<u8>>) {
        let mut state = self.0.lock().expect("not poisoned");
        let known: HashSet<Vec<u8>> = state.events.iter().cloned().collect();
        for event in events.filter(|event| !known.contains(event)) {
            if state.events.len() >= EVENTS_MAX {
                state.is_incomplete = true;
                break;
            }
            state.events.push_back(event);
        }
    }

    /// Takes whole events of at most `most` bytes; none for a connection that did not wait last.
    pub(crate) fn take(&self, connection: &Arc<Connection>, most: usize) -> Vec<u8> {
        let mut state = self.0.lock().expect("not poisoned");
        let mut data = Vec::new();
        if !state.is_listener(connection) {
            return data;
        }
        while let Some(next) = state.events.front() {
            if data.len() + next.len() > most {
                break;
            }
            data.extend_from_slice(next);
            state.events.pop_front();
        }
        data
    }

    /// Notes the connection that waits for events. Returns whether what was not answered is to be
    /// [pushed again](EventQueue::push_again).
    pub(crate) fn listen(&self, to: &ReplyTo) -> bool {
        let (connection, epoch) = (&to.path.connection, to.path.epoch);
        let mut state = self.0.lock().expect("not poisoned");
        let is_new = !state.is_listener(connection) || state.epoch != epoch;
        if is_new {
            (state.listener, state.epoch) = (Arc::downgrade(connection), epoch);
        }
        std::mem::take(&mut state.is_incomplete) || is_new
    }

    /// Returns the connection that waited last.
    pub(crate) fn listener(&self) -> Option<Arc<Connection>> {
        self.0.lock().expect("not poisoned").listener.upgrade()
    }
}

impl EventState {
    fn is_listener(&self, connection: &Arc<Connection>) -> bool {
        std::ptr::eq(self.listener.as_ptr(), Arc::as_ptr(connection))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use model::Nid;
    use ninep::Tag;

    use super::*;
    use crate::connection::ConnectionPeer;

    fn connection() -> Arc<Connection> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        let peer = ConnectionPeer { nid: Nid::local(), uid: None, trusted: false };
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Arc::new(Connection::new(id, socket.into(), peer, Weak::new()))
    }

    fn listen(queue: &EventQueue, connection: &Arc<Connection>) -> bool {
        let to = connection.session.lock().unwrap().reply_to(connection, Tag(1));
        queue.listen(&to)
    }

    #[test]
    fn events_go_over_the_connection_that_waited_last() {
        let (queue, first, second) = (EventQueue::default(), connection(), connection());
        assert!(listen(&queue, &first) && !listen(&queue, &first));
        assert!(listen(&queue, &second));
        queue.push(vec![1; 3]);
        queue.push(vec![2; 3]);
        assert!(queue.take(&first, 100).is_empty(), "what it takes may be lost with it");
        assert_eq!(queue.take(&second, 5), [1; 3], "whole events");
        second.session.lock().unwrap().epoch += 1;
        assert!(listen(&queue, &second), "a protocol session ends with what was on its way");
    }

    #[test]
    fn events_without_room_are_asked_for_again() {
        let (queue, connection) = (EventQueue::default(), connection());
        listen(&queue, &connection);
        (0..=EVENTS_MAX as u32).for_each(|event| queue.push(event.to_le_bytes().to_vec()));
        queue.take(&connection, 40);
        assert!(listen(&queue, &connection));
        let rest = (0..20u32).chain(EVENTS_MAX as u32..EVENTS_MAX as u32 + 20);
        queue.push_again(rest.map(|event| event.to_le_bytes().to_vec()));
        assert!(listen(&queue, &connection), "there was room for ten");
        queue.take(&connection, usize::MAX);
        assert!(!listen(&queue, &connection));
    }
}
