//! Reaching a proxy: the first time, again, and another one in its place.
//!
//! ```text
//!   connection lost ─► the same proxy ─┬─ answers ─► resume, or reclaim and restart
//!                                      └─ long gone ─► the next one ─► reclaim and restart
//!   failed over, and the own proxy is back ─► pause ─► nothing in flight ─► disconnect ─► own proxy
//! ```
//!
//! A session moves as a whole: its channels agree on where it is under the lock of its state. To the
//! proxy that it moves to it is a new session, so that proxy receives what a restarted proxy
//! receives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fuse::Errno;

use super::channel::{ChannelPhase, SLOTS};
use super::handshake::{Handshake, HandshakeError};
use super::reclaim::Retake;
use super::socket::Broken;
use super::{ClientSession, in_doubt, lock, reclaim};
use crate::helpers;

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
                }
                Err(error) => return Err(error),
            }
        }
        Err(first.expect("there is a source"))
    }

    fn connect_to(&self, at: usize) -> Result<Vec<u8>, HandshakeError> {
        let mut root = Vec::new();
        for on in 0..self.channels.len() {
            let from = lock(&self.state).source;
            root = self.attach(on, from, at, &Outage::default(), self.handshake_with(at)?)?;
        }
        Ok(root)
    }

    fn handshake_with(&self, at: usize) -> Result<Handshake, HandshakeError> {
        let talk = Handshake::begin(&self.sources[at], self.gateway.as_deref(), self.msize)?;
        match talk.msize == self.msize {
            true => Ok(talk),
            false => Err(HandshakeError::Smaller { msize: talk.msize, wanted: self.msize }),
        }
    }

    /// A channel's connection broke; a helper sees to another one.
    pub(super) fn disconnect(self: &Arc<ClientSession>, on: usize, why: &Broken) {
        let given_up = {
            let mut channel = self.lock_channel(on);
            if !matches!(channel.phase, ChannelPhase::Up(_)) {
                return;
            }
            channel.disconnect(Instant::now())
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

    /// Tries until there is a connection, or the mount is gone.
    fn reconnect(&self, on: usize) {
        let (mut pause, mut gone) = (PAUSE_MIN, Outage::default());
        while !self.shared.over.load(Ordering::SeqCst) {
            let from = lock(&self.state).source;
            let others = (0..self.sources.len()).filter(|at| *at != from);
            for at in std::iter::once(from).chain(others) {
                if at != from && !gone.may_fail_over(Instant::now()) {
                    break;
                }
                let attached =
                    self.handshake_with(at).and_then(|talk| self.attach(on, from, at, &gone, talk));
                let proxy = &self.sources[at].address;
                match attached {
                    Ok(_) => {
                        tracing::info!(channel = on, home = self.home, %proxy, "reconnected");
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(channel = on, %proxy, %error, "cannot reconnect yet");
                        if at == from {
                            gone.failed(&error, Instant::now());
                        }
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Gives a channel a connection, with everything resumed or sent again. `from` is where the
    /// session was believed to be and found to be `gone`, `at` is the source of the connection.
    /// Returns the root.
    fn attach(
        &self,
        on: usize,
        from: usize,
        at: usize,
        gone: &Outage,
        mut talk: Handshake,
    ) -> Result<Vec<u8>, HandshakeError> {
        let began = Instant::now();
        let mut life = lock(&self.state);
        if life.source != from {
            return Err(Broken::Protocol(
                "the session has failed over to a different proxy".into(),
            )
            .into());
        }
        let id = if at == from { life.id } else { life.id.wrapping_add(1) };
        let terms = talk.session(id, on as u16, SLOTS, &self.sources[at].export)?;
        if self.root.get().is_some_and(|root| *root != terms.root) {
            return Err(HandshakeError::OtherExport);
        }
        if at != from {
            tracing::warn!(home = self.home, proxy = %self.sources[at].address, "failed over");
            (life.source, life.id) = (at, id);
        }
        if !terms.resumed {
            life.epoch += 1;
            life.restored = false;
            life.reclaim = match talk.is_gateway {
                // A server of another kind gives locks back as soon as it loses a connection.
                true => Retake::Never,
                false => self.reclaim_policy(at == from, gone),
            };
        }
        if !life.restored {
            self.epoch.store(life.epoch, Ordering::SeqCst);
            self.wait_for_receivers();
            reclaim::restore(self, life.reclaim, &mut talk)?;
            life.restored = true;
        }
        let (epoch, is_away) = (life.epoch, life.source != 0);
        drop(life);
        self.handle_header(epoch, talk.header);
        let same = self.lock_channel(on).epoch == epoch;
        if same {
            self.lock_channel(on).resume();
        } else {
            // A restarted proxy reserves locks for the former holders by itself.
            let locks_from = is_away.then(|| match epoch {
                1 => Instant::now() + DEAD_PATIENCE + LOCK_GRACE,
                _ => Instant::now() + LOCK_GRACE,
            });
            let given_up = self.lock_channel(on).restart(terms.slots, epoch, locks_from);
            for done in given_up {
                done(Err(Errno::INTR));
            }
        }
        in_doubt::resolve_all(self, on, &mut talk)?;
        let socket = Arc::new(talk.into_socket());
        self.lock_channel(on).up(socket, began);
        self.shared.wake_thread(on);
        // Those that still have a connection of the life before learn that it is over.
        if !terms.resumed {
            (0..self.channels.len()).for_each(|other| self.shared.wake_thread(other));
        }
        Ok(terms.root)
    }

    /// Whether locks may be taken again: where the session was, or at another proxy.
    fn reclaim_policy(&self, is_same: bool, gone: &Outage) -> Retake {
        let renewed = (0..self.channels.len()).map(|on| self.lock_channel(on).renewed()).max();
        match renewed {
            _ if is_same => Retake::Reclaim,
            Some(then) if gone.is_dead() => Retake::Until(then + DEAD_PATIENCE + LOCK_GRACE),
            // One that is silent may live, and have granted others what this mount had.
            _ => Retake::Never,
        }
    }

    /// Fails back to the own proxy once it is present again and that harms no caller. False if a
    /// later attempt is better: calls in flight did not end.
    pub(super) fn try_fail_back(&self) -> bool {
        let away = lock(&self.state).source != 0;
        // A lock would be free for a moment; a waiter for one waits for others.
        let locked = || {
            let waits = (0..self.channels.len()).any(|on| !self.lock_channel(on).can_be_quiet());
            waits || self.shared.locks.any_at(self.home)
        };
        if !away || locked() || self.handshake_with(0).is_err() {
            return true;
        }
        self.pausing.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + DRAIN;
        let drained = loop {
            if (0..self.channels.len()).all(|on| self.lock_channel(on).is_quiet()) {
                break true;
            }
            if Instant::now() >= deadline {
                break false;
            }
            std::thread::sleep(PAUSE_MIN);
        };
        if drained && !self.has_new_lock() {
            let mut life = lock(&self.state);
            (life.source, life.id) = (0, life.id.wrapping_add(1));
            life.epoch += 1;
            life.restored = false;
            self.epoch.store(life.epoch, Ordering::SeqCst);
            tracing::info!(home = self.home, proxy = %self.sources[0].address, "failed back");
        }
        // A thread that sees the end of the pause sees the new life, too, in which the present
        // connections count as lost.
        self.pausing.store(false, Ordering::SeqCst);
        (0..self.channels.len()).for_each(|on| self.shared.wake_thread(on));
        drained
    }

    /// Whether a lock was granted during the check; no call is in flight and none begins, so that
    /// the answer stays true.
    fn has_new_lock(&self) -> bool {
        // It may not be known yet.
        self.wait_for_receivers();
        self.shared.locks.any_at(self.home)
    }
}

/// Since when a proxy is not there, and how surely.
#[derive(Debug, Default)]
struct Outage {
    dead: Option<Instant>,
    silent_since: Option<Instant>,
}

impl Outage {
    fn failed(&mut self, why: &HandshakeError, now: Instant) {
        self.silent_since.get_or_insert(now);
        self.dead = why.is_dead().then(|| self.dead.unwrap_or(now));
    }

    /// Whether the proxy's machine refuses connections.
    fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Whether it is time for another proxy to take over.
    fn may_fail_over(&self, now: Instant) -> bool {
        let over = |since: Option<Instant>, patience| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= patience)
        };
        over(self.dead, DEAD_PATIENCE) || over(self.silent_since, SILENT_MAX)
    }
}

/// Between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a proxy that is dead, as its machine says, is waited for before another takes over:
/// one that is only started again is back before.
const DEAD_PATIENCE: Duration = Duration::from_secs(3);
/// Time without a message after which a silent proxy counts as gone. A proxy that is cut off drops
/// a silent connection and what is queued on it before (`io/proxy`, `KEEPALIVE_TIMEOUT`), so nothing
/// is executed there afterwards.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// Time, after another proxy could first have taken over, for which locks are reserved for their
/// former holders: many times as long as a mount that looks for a proxy pauses.
const LOCK_GRACE: Duration = Duration::from_secs(10);
/// How long new calls wait for those in flight before a session moves back.
const DRAIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn another_proxy_takes_over_soon_from_a_dead_one_and_late_from_a_silent_one() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let refused = HandshakeError::Connect(Error::from(ErrorKind::ConnectionRefused));
        let silent = HandshakeError::Connect(Error::from(ErrorKind::TimedOut));
        let mut gone = Outage::default();
        assert!(!gone.may_fail_over(after(100)), "it was not tried");
        gone.failed(&refused, start);
        gone.failed(&refused, after(2));
        assert!(!gone.may_fail_over(after(2)) && gone.may_fail_over(after(3)));
        assert!(gone.is_dead());
        // It was started, but does not answer.
        gone.failed(&silent, after(3));
        assert!(!gone.may_fail_over(after(29)) && gone.may_fail_over(after(30)));
        assert!(!gone.is_dead(), "it may live, and its locks with it");
    }
}
