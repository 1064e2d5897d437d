//! A mount: the client half of the session, by the rules of `io/mount`.
//!
//! ```text
//!   call ─► waiting ─► CallTable ─► wire      lost ─► connect ─► Session ─┬─ resumed: sent again
//!                         │                                              └─ new: in doubt, or again
//!                 reply ──┴─► kept until durable
//! ```
//!
//! A session moves as a whole to the mount's other proxy, and back when nothing is in flight.

mod calls;

use std::collections::{BTreeMap, VecDeque};

use model::{Nanos, Time};
use ninep::Tag;
use ninep::dialect::ReplyHeader;
use session::client::{CallTable, Outage};

use super::SessionFaults;
use super::backend::SimOp;
use super::checks::{CallEnd, SessionChecks};
use super::kept::SimKeptWrites;
use super::wire::{SimReply, ToMount, ToProxy};

/// A mount with its channels.
#[derive(Debug)]
pub(super) struct SimMount {
    number: usize,
    /// Its own proxy, and the one that takes over.
    proxies: [usize; 2],
    /// The one that has the session.
    source: usize,
    id: u128,
    /// How many sessions there were.
    epoch: u64,
    /// The channel that enters the session now: one at a time.
    attaching: Option<usize>,
    /// What is known against the proxy that has the session.
    outage: Outage,
    channels: Vec<SimChannel>,
    kept: SimKeptWrites,
    /// Writes that were lost and are not written once more yet.
    rewriting: usize,
    /// Since when no call begins, so that the session can move back.
    pausing: Option<Time>,
    syncs: BTreeMap<usize, BegunSync>,
    faults: SessionFaults,
    pub(super) actions: Vec<MountAction>,
    /// How often the session moved to another proxy.
    pub(super) moves: u64,
    /// The header of the Rsession that began the session that is being entered.
    begun_header: ReplyHeader,
}

#[derive(Debug)]
struct SimChannel {
    phase: SimPhase,
    /// The session of what is in flight.
    epoch: u64,
    calls: CallTable<()>,
    in_flight: Vec<Option<SimFlight>>,
    waiting: VecDeque<usize>,
    last_received: Time,
    pinged: Option<Time>,
    /// What this channel alone knows against the proxy.
    outage: Outage,
    attempt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimPhase {
    Up(usize),
    Down,
    /// A connection to the proxy `at`, for a session that is at `from`.
    Attaching {
        wire: usize,
        at: usize,
        from: usize,
        /// The reply slots of a session that begins, until its proxy answers a ping.
        begun: Option<u16>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimFlight {
    Call {
        call: usize,
        flushed: bool,
    },
    /// Answered, but its flush is not.
    Flushed,
    Flush(Tag),
}

/// What an fsync must find durable when it is answered.
#[derive(Debug)]
struct BegunSync {
    losses: u64,
    writes: Vec<usize>,
}

/// Why a channel has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectFailure {
    /// The machine refuses connections: the process is gone.
    Refused,
    /// Nothing answers within the patience.
    Silent,
    /// The connection broke before the session was entered.
    Broken,
}

/// An attempt to connect a channel to the proxy `at`, for a session that is at `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectPath {
    pub(super) at: usize,
    from: usize,
    attempt: u64,
}

/// What a mount does, for the world to carry out.
#[derive(Debug)]
pub(super) enum MountAction {
    /// Sends a message on a connection.
    Send(usize, ToProxy),
    /// Closes a connection to a proxy.
    Close(usize),
    /// Connects a channel to a proxy.
    Connect { channel: usize, path: ConnectPath },
    /// Connects a channel after a pause.
    Retry { channel: usize, attempt: u64 },
}

impl SimMount {
    pub(super) fn new(number: usize, proxies: [usize; 2], faults: SessionFaults) -> SimMount {
        let channel = || SimChannel {
            phase: SimPhase::Down,
            epoch: 0,
            calls: CallTable::new(TAGS, 0),
            in_flight: vec![None; TAGS.into()],
            waiting: VecDeque::new(),
            last_received: Time::ZERO,
            pinged: None,
            outage: Outage::default(),
            attempt: 0,
        };
        SimMount {
            number,
            proxies,
            source: 0,
            id: 1_000_000 * (number as u128 + 1),
            epoch: 0,
            attaching: None,
            outage: Outage::default(),
            channels: (0..CHANNELS).map(|_| channel()).collect(),
            kept: SimKeptWrites::default(),
            rewriting: 0,
            pausing: None,
            syncs: BTreeMap::new(),
            faults,
            actions: Vec::new(),
            moves: 0,
            begun_header: ReplyHeader::default(),
        }
    }

    /// A program makes a call. `false`: too many wait.
    pub(super) fn push(
        &mut self,
        channel: usize,
        op: SimOp,
        checks: &mut SessionChecks,
        now: Time,
    ) -> bool {
        if self.channels[channel].waiting.len() >= WAITING_MAX {
            return false;
        }
        let call = checks.begin(self.number, op, now);
        self.channels[channel].waiting.push_back(call);
        self.begin(channel, checks);
        true
    }

    /// A program's call is interrupted: the newest in flight of a channel that may be.
    pub(super) fn interrupt(&mut self, channel: usize, checks: &mut SessionChecks) {
        let own = &mut self.channels[channel];
        let SimPhase::Up(wire) = own.phase else { return };
        let is_own = |call: usize| {
            !matches!(checks.call(call).op, SimOp::Commit)
                && checks.call(call).op.written().is_none_or(|(_, of)| of == call)
        };
        let found = own.in_flight.iter().zip(0..).filter_map(|(flight, tag)| match flight {
            Some(SimFlight::Call { call, flushed: false }) if is_own(*call) => Some((*call, tag)),
            _ => None,
        });
        let Some((call, old)) = found.max() else { return };
        let Ok(id) = own.calls.begin(false, ()) else { return };
        own.in_flight[usize::from(old)] = Some(SimFlight::Call { call, flushed: true });
        own.in_flight[usize::from(id.tag.0)] = Some(SimFlight::Flush(Tag(old)));
        self.actions.push(MountAction::Send(wire, ToProxy::Flush { tag: id.tag, old: Tag(old) }));
    }

    /// Begins to connect a channel.
    pub(super) fn connect(&mut self, channel: usize, attempt: u64) {
        let own = &mut self.channels[channel];
        if own.phase == SimPhase::Down && own.attempt == attempt {
            let at = self.proxies[self.source];
            let path = ConnectPath { at, from: at, attempt };
            self.actions.push(MountAction::Connect { channel, path });
        }
    }

    /// A channel has a connection to a proxy, on which it can enter the session. `false`: another
    /// channel is entering it, so this one has to wait.
    pub(super) fn connected(
        &mut self,
        channel: usize,
        path: ConnectPath,
        wire: usize,
        now: Time,
    ) -> bool {
        if self.attaching.is_some() {
            return false;
        }
        let ConnectPath { at, from, attempt } = path;
        let own = &self.channels[channel];
        let outage = self.outage_of(channel);
        let is_stale = own.phase != SimPhase::Down || own.attempt != attempt;
        // Another channel may have found the proxy since.
        let may_move = at == from || outage.may_fail_over(now);
        if is_stale || from != self.proxies[self.source] || !may_move {
            self.actions.push(MountAction::Close(wire));
            if !is_stale {
                self.retry(channel);
            }
            return true;
        }
        self.attaching = Some(channel);
        self.channels[channel].phase = SimPhase::Attaching { wire, at, from, begun: None };
        let id = if at == from { self.id } else { self.id + 1 };
        self.actions.push(MountAction::Send(wire, ToProxy::Session { id }));
        true
    }

    /// An attempt to connect a channel has failed.
    pub(super) fn connect_failed(
        &mut self,
        channel: usize,
        path: ConnectPath,
        why: ConnectFailure,
        now: Time,
    ) {
        let ConnectPath { at, from, attempt } = path;
        let own = &mut self.channels[channel];
        if own.attempt != attempt || own.phase != SimPhase::Down {
            return;
        }
        if at != from || from != self.proxies[self.source] {
            return self.retry(channel);
        }
        own.outage.failed(why == ConnectFailure::Refused, now);
        self.outage.failed(why == ConnectFailure::Refused, now);
        if self.outage_of(channel).may_fail_over(now) {
            let at = self.proxies[1 - self.source];
            let path = ConnectPath { at, from, attempt };
            self.actions.push(MountAction::Connect { channel, path });
        } else {
            self.retry(channel);
        }
    }

    /// A message of a proxy arrives.
    pub(super) fn receive(
        &mut self,
        channel: usize,
        wire: usize,
        message: ToMount,
        checks: &mut SessionChecks,
        now: Time,
    ) {
        match self.channels[channel].phase {
            SimPhase::Up(own) if own == wire => {}
            SimPhase::Attaching { wire: own, at, begun, .. } if own == wire => {
                match message {
                    ToMount::Session { slots, resumed: false, header }
                        if !self.faults.resumes_unconfirmed =>
                    {
                        self.begun(channel, at, slots, header, checks);
                    }
                    ToMount::Pong if begun.is_some() => {
                        let (slots, header) = (begun.unwrap_or(0), self.begun_header);
                        self.attached(channel, at, slots, true, header, checks, now);
                    }
                    ToMount::Session { slots, resumed, header } => {
                        self.attached(channel, at, slots, resumed, header, checks, now);
                    }
                    _ => self.attach_failed(channel, ConnectFailure::Broken, now),
                }
                return;
            }
            _ => return,
        }
        self.channels[channel].last_received = now;
        match message {
            ToMount::Reply(frame) => self.answered(channel, &SimReply::decode(&frame), checks),
            ToMount::Flushed { tag } => self.flushed(channel, tag, checks),
            ToMount::Pong => {}
            ToMount::Closed => self.disconnect(channel, checks),
            ToMount::Session { .. } | ToMount::Refused => {
                checks.violate(format!("a second reply to Tsession on connection {wire}"));
            }
        }
        self.begin(channel, checks);
    }

    /// The patience with a channel that enters the session is over.
    pub(super) fn attach_timeout(&mut self, channel: usize, wire: usize, now: Time) {
        if let SimPhase::Attaching { wire: own, .. } = self.channels[channel].phase
            && own == wire
        {
            self.attach_failed(channel, ConnectFailure::Silent, now);
        }
    }

    /// Notices silent connections, makes kept writes durable and moves back, each when it is due.
    pub(super) fn tick(&mut self, own_proxy_answers: bool, checks: &mut SessionChecks, now: Time) {
        for channel in 0..CHANNELS {
            let own = &mut self.channels[channel];
            let SimPhase::Up(wire) = own.phase else { continue };
            if own.calls.is_empty() || now.since(own.last_received) < PING_AFTER {
                continue;
            }
            match own.pinged.filter(|at| *at > own.last_received) {
                Some(at) if now.since(at) >= PING_PATIENCE => self.disconnect(channel, checks),
                Some(_) => {}
                None => {
                    own.pinged = Some(now);
                    self.actions.push(MountAction::Send(wire, ToProxy::Ping));
                }
            }
        }
        if self.kept.begin_commit() {
            self.push_front(0, SimOp::Commit, checks, now);
            self.begin(0, checks);
        }
        self.try_move_back(own_proxy_answers, checks, now);
    }

    /// Makes all that is kept durable, at the end of a run.
    pub(super) fn commit(&mut self, checks: &mut SessionChecks, now: Time) {
        self.push_front(0, SimOp::Commit, checks, now);
        self.begin(0, checks);
    }

    /// How many writes are kept.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Closes the connection of a channel, as after an error of its socket.
    pub(super) fn disconnect(&mut self, channel: usize, checks: &mut SessionChecks) {
        let own = &mut self.channels[channel];
        let SimPhase::Up(wire) = own.phase else { return };
        own.phase = SimPhase::Down;
        own.pinged = None;
        own.outage = Outage::default();
        own.attempt += 1;
        for flight in own.in_flight.iter().flatten() {
            if let SimFlight::Call { call, flushed: true } = flight
                && !checks.has_ended(*call)
            {
                checks.end_call(*call, CallEnd::Interrupted);
            }
        }
        self.actions.push(MountAction::Close(wire));
        self.retry(channel);
    }

    fn retry(&mut self, channel: usize) {
        let attempt = self.channels[channel].attempt;
        self.actions.push(MountAction::Retry { channel, attempt });
    }

    fn attach_failed(&mut self, channel: usize, why: ConnectFailure, now: Time) {
        let SimPhase::Attaching { wire, at, from, .. } = self.channels[channel].phase else {
            return;
        };
        self.attaching = None;
        self.channels[channel].phase = SimPhase::Down;
        self.actions.push(MountAction::Close(wire));
        let attempt = self.channels[channel].attempt;
        self.connect_failed(channel, ConnectPath { at, from, attempt }, why, now);
    }

    fn outage_of(&self, channel: usize) -> Outage {
        match self.faults.moves_while_connected {
            true => self.channels[channel].outage,
            false => self.outage,
        }
    }

    /// A proxy has begun the session; it learns by a ping that this has arrived.
    fn begun(
        &mut self,
        channel: usize,
        at: usize,
        slots: u16,
        header: ReplyHeader,
        checks: &mut SessionChecks,
    ) {
        let SimPhase::Attaching { wire, .. } = self.channels[channel].phase else { return };
        self.enter(channel, at, false, checks);
        self.begun_header = header;
        let begun = Some(slots);
        self.channels[channel].phase = SimPhase::Attaching { wire, at, from: at, begun };
        self.actions.push(MountAction::Send(wire, ToProxy::Ping));
    }

    /// The session is at a proxy; with `resumed` that one knows it.
    fn enter(&mut self, channel: usize, at: usize, resumed: bool, checks: &mut SessionChecks) {
        if at != self.proxies[self.source] {
            (self.source, self.id) = (1 - self.source, self.id + 1);
            self.moves += 1;
        }
        if !resumed {
            self.epoch += 1;
        }
        self.outage = Outage::default();
        for other in 0..CHANNELS {
            if self.channels[other].epoch != self.epoch && other != channel {
                self.disconnect(other, checks);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one message")]
    fn attached(
        &mut self,
        channel: usize,
        at: usize,
        slots: u16,
        resumed: bool,
        header: ReplyHeader,
        checks: &mut SessionChecks,
        now: Time,
    ) {
        self.attaching = None;
        let SimPhase::Attaching { wire, .. } = self.channels[channel].phase else { return };
        self.channels[channel].phase = SimPhase::Up(wire);
        self.enter(channel, at, resumed, checks);
        let changed = self.handle_header(self.epoch, header);
        let own = &mut self.channels[channel];
        (own.last_received, own.pinged) = (now, None);
        if own.epoch == self.epoch {
            self.resume(channel, wire, checks);
        } else {
            self.restart(channel, slots, checks);
        }
        self.take_change(channel, changed, checks);
        self.begin(channel, checks);
    }

    fn push_front(&mut self, channel: usize, op: SimOp, checks: &mut SessionChecks, now: Time) {
        let call = checks.begin(self.number, op, now);
        self.channels[channel].waiting.push_front(call);
    }

    fn try_move_back(&mut self, own_proxy_answers: bool, checks: &mut SessionChecks, now: Time) {
        let is_up = |channel: &SimChannel| matches!(channel.phase, SimPhase::Up(_));
        if self.source == 0 || !own_proxy_answers || !self.channels.iter().all(is_up) {
            self.pausing = None;
            return (0..CHANNELS).for_each(|channel| self.begin(channel, checks));
        }
        let since = *self.pausing.get_or_insert(now);
        if self.channels.iter().all(|channel| channel.calls.is_empty()) {
            (self.source, self.id) = (0, self.id + 1);
            (self.outage, self.pausing) = (Outage::default(), None);
            self.epoch += 1;
            self.moves += 1;
            (0..CHANNELS).for_each(|channel| self.disconnect(channel, checks));
        } else if now.since(since) >= DRAIN {
            self.pausing = None;
            (0..CHANNELS).for_each(|channel| self.begin(channel, checks));
        }
    }
}

/// Channels of a mount.
pub(super) const CHANNELS: usize = 2;
const TAGS: u16 = 16;
/// Calls of a channel at a time; the other tags are for flushes.
const CALLS_MAX: usize = 8;
/// Calls that wait in one channel.
const WAITING_MAX: usize = 16;
/// The times of `io/mount`: session/channel.rs and session/failover.rs.
const PING_AFTER: Nanos = Nanos::from_secs(5);
const PING_PATIENCE: Nanos = Nanos::from_secs(10);
const DRAIN: Nanos = Nanos::from_secs(2);
