//! New connections: accepted while there are descriptors and places, otherwise later.
//!
//! ```text
//!   listener readable ─► accept ─► a place? ─yes─► poll set
//!                          │          └ no ─► of an idle connection of the largest peer ─► that ends
//!                          │                  └ none ─► closed, and a pause
//!                          └ no descriptor ─► a pause: the backlog waits in the kernel
//! ```
//!
//! A listener is level-triggered: without the pause, what cannot be accepted would be tried again
//! and again at the full speed of a processor.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bounds::{Holder, ReclaimPlace, Worth, reclaim};
use model::{Nanos, Time};
use rustc_hash::FxHashMap;
use rustix::event::epoll;

use crate::connection::{Connection, ConnectionPeer};
use crate::listen::NinepListener;
use crate::server::{FIRST_LISTENER, Server};
use crate::sessions::Protocol;

/// Until when nothing is accepted, and what was taken back so far.
#[derive(Default)]
pub(crate) struct Accepting {
    paused_until: AtomicU64,
    refused: AtomicU64,
    reclaimed: AtomicU64,
}

impl Accepting {
    /// When to accept again, if that is paused.
    pub(crate) fn resume_time(&self) -> Option<Time> {
        match self.paused_until.load(Ordering::Relaxed) {
            0 => None,
            until => Some(Time::from_nanos(until)),
        }
    }

    /// Connections that were refused so far, and those that were ended for others.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.refused, &self.reclaimed].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Server {
    /// Accepts what waits at a listener. Returns the connections that are to end for that.
    pub(crate) fn accept(self: &Arc<Server>, listener: &NinepListener) -> Vec<Arc<Connection>> {
        let settings = self.settings();
        let mut ending = Vec::new();
        while self.accepting.resume_time().is_none() {
            // Those that end give their places back only after this.
            if !ending.is_empty() && self.is_full() {
                break;
            }
            match listener.accept(&settings) {
                Ok(Some((socket, peer))) => self.register_or_close(socket, peer, &mut ending),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.pause_accepting();
                }
            }
        }
        ending
    }

    /// Accepts again if a pause is over.
    pub(crate) fn resume_accepting(&self, now: Time) {
        if self.accepting.resume_time().is_some_and(|until| until <= now) {
            self.accepting.paused_until.store(0, Ordering::Relaxed);
            self.watch_listeners(epoll::EventFlags::IN);
        }
    }

    /// Whether the table has no place.
    fn is_full(&self) -> bool {
        let connections = self.connections.read().expect("not poisoned");
        places_taken(&connections, self.limits().connections) >= self.limits().connections
    }

    /// Gives a new connection a place, or closes it.
    fn register_or_close(
        self: &Arc<Server>,
        socket: OwnedFd,
        peer: ConnectionPeer,
        ending: &mut Vec<Arc<Connection>>,
    ) {
        let most = self.limits().connections;
        let mut connections = self.connections.write().expect("not poisoned");
        if places_taken(&connections, most) >= most {
            let victims = self.least_used(&connections, &peer);
            if victims.is_empty() {
                tracing::warn!(
                    max = most, peer = %peer.nid, uid = peer.uid,
                    "refused a connection: the table of connections is full"
                );
                drop(connections);
                self.accepting.refused.fetch_add(1, Ordering::Relaxed);
                return self.pause_accepting();
            }
            self.accepting.reclaimed.fetch_add(victims.len() as u64, Ordering::Relaxed);
            // Another thread may accept before these are closed: they give their places once.
            victims.iter().for_each(|victim| victim.evict());
            ending.extend(victims);
        }
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(id, socket, peer, Arc::downgrade(self)));
        connection.used_at(self.clock.now());
        match connection.register(&self.poll) {
            Ok(()) => drop(connections.insert(id, connection)),
            Err(error) => tracing::warn!(%error, "cannot watch a connection"),
        }
    }

    /// The connections whose places a newcomer and others after it may have.
    fn least_used(
        &self,
        connections: &FxHashMap<u64, Arc<Connection>>,
        newcomer: &ConnectionPeer,
    ) -> Vec<Arc<Connection>> {
        let staying = connections.values().filter(|connection| !connection.is_evicted());
        let places: Vec<_> = staying.map(|connection| reclaim_place(connection)).collect();
        let newcomer = newcomer.holder();
        let ids = reclaim(&places, &newcomer, AT_ONCE, self.clock.now());
        let victims: Vec<_> =
            ids.iter().filter_map(|id| connections.get(&(*id as u64)).cloned()).collect();
        if let Some(first) = victims.first() {
            tracing::warn!(
                from = %first.peer.nid, uid = first.peer.uid, by = %newcomer.peer,
                count = victims.len(),
                "closed idle connections: the table of connections is full"
            );
        }
        victims
    }

    fn pause_accepting(&self) {
        let until = self.clock.now() + PAUSE;
        self.accepting.paused_until.store(until.as_nanos(), Ordering::Relaxed);
        self.watch_listeners(epoll::EventFlags::empty());
    }

    fn watch_listeners(&self, flags: epoll::EventFlags) {
        for (at, listener) in self.listeners().iter().enumerate() {
            let key = epoll::EventData::new_u64(FIRST_LISTENER + at as u64);
            // It fails only for one that is not in the poll set any more.
            let _ = epoll::modify(&self.poll, listener, key, flags);
        }
    }
}

impl ConnectionPeer {
    /// Returns the holder of what its connections use.
    pub(crate) fn holder(&self) -> Holder {
        Holder { peer: self.nid.clone(), uid: self.uid }
    }
}

/// The places that are taken, of `most`: of a table that may be full, those of evicted connections
/// that are not closed yet are free.
fn places_taken(connections: &FxHashMap<u64, Arc<Connection>>, most: usize) -> usize {
    match connections.len() < most {
        true => connections.len(),
        false => connections.values().filter(|connection| !connection.is_evicted()).count(),
    }
}

/// A connection's place in the table. One that is locked is being used.
fn reclaim_place(connection: &Connection) -> ReclaimPlace {
    let worth = connection.session.try_lock().ok().and_then(|session| {
        let is_idle =
            session.tags.is_empty() && session.stalled.is_none() && connection.unsent() == 0;
        let has_fids = || !session.fids.lock().expect("not poisoned").is_empty();
        is_idle.then(|| match session.form() {
            Protocol::Bound(_) => Worth::Reconnect,
            Protocol::Base(_) | Protocol::Unbound if has_fids() => Worth::State,
            Protocol::Base(_) | Protocol::Unbound => Worth::Nothing,
        })
    });
    let (holder, used) = (connection.peer.holder(), connection.last_used());
    ReclaimPlace { id: connection.id.into(), holder, worth, used }
}

/// How long nothing is accepted when something is missing for it.
const PAUSE: Nanos = Nanos::from_millis(100);
/// Maximum number of connections that one scan of the table evicts.
const AT_ONCE: usize = 16;
