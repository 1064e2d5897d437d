//! Memory for what connections have in flight: charged before it is used, given back after.
//!
//! ```text
//!   message ─► bytes in flight + unsent + its own ─► covered? ─yes─► taken in
//!                                                       │no: charge blocks
//!                                                       ├─ granted ─► taken in
//!                                                       └─ refused ─► kept aside; the connection is
//!                                                          not read until memory is free
//! ```
//!
//! A connection keeps what it was charged until the next look at all of them, twice a second: so
//! in the plain case a request compares two numbers, and nothing else. The first [`FREE`] bytes of
//! each connection are not counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use model::{Nanos, Time};

use crate::bounds::{FREE, SharedBound};
use crate::connection::{Connection, NinepSession};
use crate::server::Server;
use crate::{buffers, sys};

/// Connections that wait for memory, and how much there was.
#[derive(Default)]
pub(crate) struct MemoryState {
    /// Connections that are not read for want of memory.
    starved: Mutex<VecDeque<Arc<Connection>>>,
    starving: AtomicUsize,
    swept: AtomicU64,
    /// Something was charged since memory was last given back to the system.
    may_release: AtomicBool,
    /// The most that was charged since then.
    burst: AtomicU64,
}

impl MemoryState {
    /// Whether there may be something to give back to the system.
    pub(crate) fn may_release(&self) -> bool {
        self.may_release.load(Ordering::Relaxed)
    }
}

impl NinepSession {
    /// Charges what a connection has in flight and a message more; `false` if it is not read until
    /// there is memory.
    pub(crate) fn cover(
        &mut self,
        server: &Server,
        connection: &Arc<Connection>,
        more: usize,
    ) -> bool {
        let need = self.bytes + connection.unsent() + more;
        if need <= self.covered || self.charge(server, connection, need) {
            return true;
        }
        if server.sweep_is_due() {
            server.sweep_memory();
            if self.charge(server, connection, need) {
                return true;
            }
        }
        if !self.awaits_memory {
            self.awaits_memory = true;
            let memory = &server.memory;
            memory.starved.lock().expect("not poisoned").push_back(connection.clone());
            memory.starving.fetch_add(1, Ordering::Relaxed);
        }
        self.pause(connection, &server.poll);
        false
    }

    fn charge(&mut self, server: &Server, connection: &Connection, need: usize) -> bool {
        let blocks = blocks(need);
        let granted = match &mut self.memory {
            Some(charge) => charge.resize(blocks),
            none => {
                let holder = connection.peer.holder();
                let charge = server.shared.charge(SharedBound::Memory, holder, blocks);
                charge.map(|charge| *none = Some(charge))
            }
        };
        if granted.is_ok() {
            self.covered = FREE + blocks as usize;
            server.memory.may_release.store(true, Ordering::Relaxed);
        }
        granted.is_ok()
    }

    /// Gives back what is not needed now.
    fn uncover(&mut self, unsent: usize) {
        let blocks = blocks(self.bytes + unsent);
        let Some(charge) = &mut self.memory else { return };
        if blocks < charge.amount() {
            // Less is never refused.
            let _ = charge.resize(blocks);
            self.covered = FREE + blocks as usize;
        }
        if blocks == 0 {
            self.memory = None;
        }
    }
}

impl Server {
    /// Gives memory of sent replies to connections that wait for memory.
    pub(crate) fn feed(&self, sender: &Connection) {
        if self.memory.starving.load(Ordering::Relaxed) == 0 {
            return;
        }
        sender.session.lock().expect("not poisoned").uncover(sender.unsent());
        self.read_starved(1);
    }

    /// Twice a second: gives back what is not needed, to others and after a burst to the system.
    pub(crate) fn release_memory(&self) {
        if !self.memory.may_release() {
            return;
        }
        self.sweep_memory();
        self.read_starved(usize::MAX);
        let (used, peak) = self.shared.memory_used();
        let burst = self.memory.burst.fetch_max(peak, Ordering::Relaxed).max(peak);
        if used > burst / 4 {
            return;
        }
        if burst >= BURST_MIN {
            buffers::release();
            // It may take some milliseconds of a processor for each gigabyte.
            let trim = api::critical(sys::release_memory);
            if let Err(error) = std::thread::Builder::new().name("memory".into()).spawn(trim) {
                return tracing::warn!(%error, "cannot free memory now; retrying");
            }
        }
        self.memory.burst.store(used, Ordering::Relaxed);
        self.memory.may_release.store(used > 0, Ordering::Relaxed);
    }

    /// All connections but those that are being used give back what they do not need.
    fn sweep_memory(&self) {
        for connection in self.connections() {
            if let Ok(mut session) = connection.session.try_lock() {
                session.uncover(connection.unsent());
            }
        }
    }

    fn sweep_is_due(&self) -> bool {
        let now = self.clock.now();
        let last = Time::from_nanos(self.memory.swept.load(Ordering::Relaxed));
        let due = now.since(last) >= SWEEP_EVERY;
        if due {
            self.memory.swept.store(now.as_nanos(), Ordering::Relaxed);
        }
        due
    }

    /// Has some of the connections that wait for memory read again, the first first.
    fn read_starved(&self, most: usize) {
        let mut starved = self.memory.starved.lock().expect("not poisoned");
        let count = starved.len().min(most);
        let next: Vec<_> = starved.drain(..count).collect();
        self.memory.starving.fetch_sub(count, Ordering::Relaxed);
        drop(starved);
        for connection in next {
            connection
                .session
                .lock()
                .expect("not poisoned")
                .memory_available(&connection, &self.poll);
            self.resume(connection);
        }
    }
}

fn blocks(need: usize) -> u64 {
    need.saturating_sub(FREE).next_multiple_of(BLOCK) as u64
}

/// Bytes that are charged at once.
const BLOCK: usize = 256 << 10;
/// Minimum interval between two checks of all connections after refusals.
const SWEEP_EVERY: Nanos = Nanos::from_millis(10);
/// After less than this there is nothing worth giving back to the system.
const BURST_MIN: u64 = 16 << 20;
