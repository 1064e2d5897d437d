//! Reaching a proxy: the first time, again, and another one in its place.
//!
//! ```text
//!   connection lost ─► the same proxy ─┬─ answers ─► resume, or reclaim and restart
//!                                      └─ long gone ─► the next one ─► reclaim and restart
//!   failed over, and the own proxy is back ─► pause ─► nothing in flight ─► disconnect ─► own proxy
//! ```
//!
//! When and where it moves is decided in `core/session`
//! ([`SessionLife`](session::client::SessionLife), [`FailBack`]).
//! Its channels agree on where it is under the lock of its life. To the proxy that it moves to it is
//! a new session, so that proxy receives what a restarted proxy receives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fuse::Errno;
use model::Time;
use session::client::{ChannelPhase, FailBack, FailBackStep, LockReclaim, ReconnectPause};

use super::channel::SLOTS;
use super::handshake::{Handshake, HandshakeError};
use super::socket::Broken;
use super::{ClientSession, in_doubt, lock, reclaim};
use crate::{clock, helpers};

impl ClientSession {
    /// Connects every channel, to the first of its proxies that is there.
    ///
    /// # Errors
    /// The refusal of a present proxy, or the reason why the own proxy is not present; none is
    /// waited for.
    pub(super) fn connect(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut first = None;
        for at in 0..self.sources.len() {
            match self.connect_to(at) {
                Ok(root) => return Ok(root),
                Err(error @ (HandshakeError::Connect(_) | HandshakeError::Broken(_))) => {
                    first = first.or(Some(error));
                    lock(&self.life).begin_anew();
                }
                Err(error) => return Err(error),
            }
        }
        Err(first.expect("there is a source"))
    }

    fn connect_to(&self, at: usize) -> Result<Vec<u8>, HandshakeError> {
        let mut root = Vec::new();
        for on in 0..self.channels.len() {
            let from = lock(&self.life).source();
            root = self.attach(on, from, at, self.handshake_with(at)?)?;
        }
        Ok(root)
    }

    fn handshake_with(&self, at: usize) -> Result<Handshake, HandshakeError> {
        let talk = Handshake::begin(&self.sources[at], self.gateway.as_deref(), self.msize)?;
        self.group.check(self.indices[at], talk.group.as_ref())?;
        match talk.msize == self.msize {
            true => Ok(talk),
            false => Err(HandshakeError::Smaller { msize: talk.msize, wanted: self.msize }),
        }
    }

    /// A channel's connection broke; a helper sees to another one.
    pub(super) fn disconnect(self: &Arc<ClientSession>, on: usize, why: &Broken) {
        let given_up = {
            let mut channel = self.lock_channel(on);
            if channel.state.phase() != ChannelPhase::Up {
                return;
            }
            channel.disconnect(clock::now())
        };
        for done in given_up {
            done(Err(Errno::INTR));
        }
        if self.shared.over.load(Ordering::SeqCst) {
            return;
        }
        tracing::warn!(channel = on, home = self.home, %why, "connection lost");
        let link = self.clone();
        let name = format!("reconnect-{on}");
        if let Err(error) = helpers::start(name, move || link.reconnect(on)) {
            tracing::error!(%error, "cannot start a thread to reconnect");
        }
    }

    /// Tries until there is a connection, or the mount is gone. Meanwhile the other channels ping, as the
    /// session stays where one of them is connected.
    fn reconnect(&self, on: usize) {
        self.reconnecting.fetch_add(1, Ordering::SeqCst);
        (0..self.channels.len()).for_each(|other| self.shared.wake_thread(other));
        self.try_until_connected(on);
        self.reconnecting.fetch_sub(1, Ordering::SeqCst);
    }

    fn try_until_connected(&self, on: usize) {
        let mut pause = ReconnectPause::FIRST;
        while !self.shared.over.load(Ordering::SeqCst) {
            let from = lock(&self.life).source();
            let others = (0..self.sources.len()).filter(|at| *at != from);
            for at in std::iter::once(from).chain(others) {
                let is_connected = self.heard_by_others(on).is_some();
                if !lock(&self.life).may_enter(at, is_connected, clock::now()) {
                    break;
                }
                let attached =
                    self.handshake_with(at).and_then(|talk| self.attach(on, from, at, talk));
                let proxy = &self.sources[at].address;
                match attached {
                    Ok(_) => {
                        tracing::info!(channel = on, home = self.home, %proxy, "reconnected");
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(channel = on, %proxy, %error, "cannot reconnect yet");
                        let heard = self.heard_by_others(on);
                        lock(&self.life).failed(at, error.is_dead(), heard, clock::now());
                    }
                }
            }
            std::thread::sleep(pause.advance().to_duration());
        }
    }

    /// Gives a channel a connection, with everything resumed or sent again. `from` is where the
    /// session was believed to be, `at` is the source of the connection. Returns the root.
    fn attach(
        &self,
        on: usize,
        from: usize,
        at: usize,
        mut talk: Handshake,
    ) -> Result<Vec<u8>, HandshakeError> {
        let began = clock::now();
        let mut life = lock(&self.life);
        // Another channel may have found the proxy, or moved the session, since.
        let is_connected = self.heard_by_others(on).is_some();
        if life.source() != from || !life.may_enter(at, is_connected, began) {
            return Err(Broken::Protocol(
                "another channel has found a proxy for the session".into(),
            )
            .into());
        }
        let terms = talk.session(life.id_at(at), on as u16, SLOTS, &self.sources[at].export)?;
        if self.root.get().is_some_and(|root| *root != terms.root) {
            return Err(HandshakeError::OtherExport);
        }
        if at != from {
            tracing::warn!(home = self.home, proxy = %self.sources[at].address, "failed over");
        }
        let policy = |gone: &_| match talk.is_gateway {
            // A server of another kind gives locks back as soon as it loses a connection.
            true => LockReclaim::Never,
            false => LockReclaim::after(gone, at == from, self.renewed()),
        };
        let reclaim = life.enter(at, terms.resumed, policy);
        let is_new = reclaim.is_some();
        if let Some(reclaim) = reclaim {
            self.epoch.store(life.epoch(), Ordering::SeqCst);
            self.wait_for_receivers();
            // Before the open files are told: what was kept open for later is closed.
            self.shared.leases.session_replaced();
            // From here on the proxy resumes it: whether this Rsession has arrived is known there.
            talk.confirm()?;
            reclaim::restore(self, reclaim, &mut talk)?;
            life.restored();
        }
        let epoch = life.epoch();
        let locks_from = life.locks_from(clock::now());
        drop(life);
        self.handle_header(epoch, talk.header);
        let same = self.lock_channel(on).state.epoch() == epoch;
        if same {
            self.lock_channel(on).resume();
        } else {
            let given_up = self.lock_channel(on).restart(terms.slots, epoch, locks_from);
            for done in given_up {
                done(Err(Errno::INTR));
            }
        }
        in_doubt::resolve_all(self, on, &mut talk)?;
        let socket = Arc::new(talk.into_socket());
        self.lock_channel(on).up(socket, began);
        self.shared.wake_thread(on);
        self.shared.leases.wake();
        // Those that still have a connection of the life before learn that it is over.
        if is_new {
            (0..self.channels.len()).for_each(|other| self.shared.wake_thread(other));
        }
        Ok(terms.root)
    }

    /// When a message last came over a connection of another channel in the present life of the session;
    /// none if no other channel has one.
    fn heard_by_others(&self, on: usize) -> Option<Time> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let others = (0..self.channels.len()).filter(|other| *other != on);
        let heard = others.filter_map(|other| {
            let channel = self.lock_channel(other);
            let is_up = channel.state.phase() == ChannelPhase::Up && channel.state.epoch() == epoch;
            is_up.then(|| channel.state.last_received())
        });
        heard.max()
    }

    /// When the proxy last had the session for certain.
    fn renewed(&self) -> Option<Time> {
        (0..self.channels.len()).map(|on| self.lock_channel(on).state.renewed()).max()
    }

    /// Fails back to the own proxy once it is present again and that harms no caller. False if a
    /// later attempt is better: calls in flight did not end.
    pub(super) fn try_fail_back(&self) -> bool {
        let away = lock(&self.life).is_away();
        // A lock would be free for a moment; a waiter for one waits for others.
        let locked = || {
            let waits =
                (0..self.channels.len()).any(|on| !self.lock_channel(on).state.can_be_quiet());
            waits || self.shared.locks.any_at(self.home)
        };
        if !away || locked() || self.handshake_with(0).is_err() {
            return true;
        }
        self.pausing.store(true, Ordering::SeqCst);
        let back = FailBack::new(clock::now());
        let step = loop {
            let quiet = (0..self.channels.len()).all(|on| self.lock_channel(on).state.is_quiet());
            match back.poll(quiet, || self.has_new_lock(), clock::now()) {
                FailBackStep::Wait => std::thread::sleep(DRAIN_CHECK),
                step => break step,
            }
        };
        if step == FailBackStep::Move {
            let mut life = lock(&self.life);
            life.fail_back();
            self.epoch.store(life.epoch(), Ordering::SeqCst);
            tracing::info!(home = self.home, proxy = %self.sources[0].address, "failed back");
        }
        // A thread that sees the end of the pause sees the new life, too, in which the present
        // connections count as lost.
        self.pausing.store(false, Ordering::SeqCst);
        (0..self.channels.len()).for_each(|on| self.shared.wake_thread(on));
        step != FailBackStep::Postpone
    }

    /// Whether a lock was granted during the check; no call is in flight and none begins, so that
    /// the answer stays true.
    fn has_new_lock(&self) -> bool {
        // It may not be known yet.
        self.wait_for_receivers();
        self.shared.locks.any_at(self.home)
    }
}

/// Interval of checks whether calls in flight have ended.
const DRAIN_CHECK: Duration = Duration::from_millis(10);
