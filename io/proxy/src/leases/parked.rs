//! Requests that wait for leases to be returned: no thread and no slot is held.
//!
//! ```text
//!   start: not ready ─► park ─► [parked] ─► take_ready ─► the gate ─► executed, or parked again
//!                                  └─ Tflush, Tversion, the end of its connection: cancelled
//! ```
//!
//! What cancels holds the lock of the connection's session, and so does what parks. A request that was
//! taken out counts as being executed: its session is checked before it goes to the gate.

use std::sync::atomic::Ordering;

use model::Time;
use ninep::Tag;

use super::ProxyLeases;
use crate::connection::Connection;
use crate::gate::{PendingRequest, RequestMeta};

/// A request whose accesses have begun and wait.
pub(crate) struct ParkedRequest {
    pub(crate) operation: PendingRequest,
    pub(crate) meta: RequestMeta,
}

impl ParkedRequest {
    fn is_of(&self, connection: &Connection) -> bool {
        std::ptr::eq(&*self.operation.to.path.connection, connection)
    }
}

impl ProxyLeases {
    /// Lets a request wait. The lock of its session is held.
    pub(crate) fn park(&self, parked: ParkedRequest) {
        let mut state = self.state();
        state.last_parked += 1;
        let number = state.last_parked;
        state.parked.insert(number, parked);
        self.parked.store(state.parked.len(), Ordering::SeqCst);
        // What it waits for may have been returned since it was started.
        self.changed.store(true, Ordering::SeqCst);
    }

    /// Takes the requests out that need not wait any more, oldest first.
    pub(crate) fn take_ready(&self) -> Vec<ParkedRequest> {
        if !self.any_parked() {
            return Vec::new();
        }
        self.changed.store(false, Ordering::SeqCst);
        let mut guard = self.state();
        let (state, now) = (&mut *guard, self.clock.now());
        let mut parked = std::mem::take(&mut state.parked);
        let ready: Vec<u64> = parked
            .iter()
            .filter(|(_, one)| {
                one.operation.begun.as_ref().is_none_or(|begun| begun.is_ready(state, now))
            })
            .map(|(number, _)| *number)
            .collect();
        let taken = ready.iter().filter_map(|number| parked.remove(number)).collect();
        state.parked = parked;
        let deadline = state.table.next_deadline().unwrap_or(Time::MAX);
        self.deadline.store(deadline.as_nanos(), Ordering::SeqCst);
        self.parked.store(state.parked.len(), Ordering::SeqCst);
        taken
    }

    /// Takes the parked requests of a connection out: the one of this tag, or all. The lock of its session
    /// is held.
    pub(crate) fn cancel(&self, connection: &Connection, tag: Option<Tag>) -> Vec<ParkedRequest> {
        if !self.any_parked() {
            return Vec::new();
        }
        let mut state = self.state();
        let is_meant = |one: &ParkedRequest| {
            one.is_of(connection) && tag.is_none_or(|tag| one.operation.to.tag == tag)
        };
        let meant = state.parked.iter().filter(|(_, one)| is_meant(one));
        let meant: Vec<u64> = meant.map(|(number, _)| *number).collect();
        let taken = meant.iter().filter_map(|number| state.parked.remove(number)).collect();
        self.parked.store(state.parked.len(), Ordering::SeqCst);
        taken
    }

    /// Whether any request waits.
    pub(crate) fn any_parked(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0
    }

    /// When a parked request may be ready without a message before.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let deadline = Time::from_nanos(self.deadline.load(Ordering::SeqCst));
        (self.any_parked() && deadline < Time::MAX).then_some(deadline)
    }
}
