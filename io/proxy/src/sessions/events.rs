//! Events of a session that its client has not got yet.
//!
//! ```text
//!   a recall ─► EventQueue ─► Revents, when a Tevents waits
//! ```
//!
//! Lock order: a connection's session, then this.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use crate::connection::Connection;

/// The events, and the connection that waits for them.
#[derive(Default)]
pub(crate) struct EventQueue(Mutex<EventState>);

#[derive(Default)]
struct EventState {
    events: VecDeque<Vec<u8>>,
    listener: Weak<Connection>,
}

/// Events of a session that wait, at most. A recall that is dropped makes its holder late.
const EVENTS_MAX: usize = 16_384;

impl EventQueue {
    /// Adds an event in its wire form.
    pub(crate) fn push(&self, event: Vec<u8>) {
        let mut state = self.0.lock().expect("not poisoned");
        if state.events.len() < EVENTS_MAX {
            state.events.push_back(event);
        }
    }

    /// Adds those of these that do not wait.
    pub(crate) fn push_again(&self, events: impl Iterator<Item = Vec<u8>>) {
        let mut state = self.0.lock().expect("not poisoned");
        let known: HashSet<Vec<u8>> = state.events.iter().cloned().collect();
        let room = EVENTS_MAX.saturating_sub(state.events.len());
        state.events.extend(events.filter(|event| !known.contains(event)).take(room));
    }

    /// Takes whole events of at most `most` bytes.
    pub(crate) fn take(&self, most: usize) -> Vec<u8> {
        let mut state = self.0.lock().expect("not poisoned");
        let mut data = Vec::new();
        while let Some(next) = state.events.front() {
            if data.len() + next.len() > most {
                break;
            }
            data.extend_from_slice(next);
            state.events.pop_front();
        }
        data
    }

    /// Notes the connection that waits for events; whether it is another one than before.
    pub(crate) fn listen(&self, connection: &Arc<Connection>) -> bool {
        let mut state = self.0.lock().expect("not poisoned");
        let is_new = !std::ptr::eq(state.listener.as_ptr(), Arc::as_ptr(connection));
        if is_new {
            state.listener = Arc::downgrade(connection);
        }
        is_new
    }

    /// Returns the connection that waited last.
    pub(crate) fn listener(&self) -> Option<Arc<Connection>> {
        self.0.lock().expect("not poisoned").listener.upgrade()
    }
}
