//! A proxy: the server half of the session, with queues and a process that can be killed.
//!
//! ```text
//!   Session ─► SessionTable ─► SessionChannels ─┬─ bind ─► Session reply
//!                                               └─ wait: the older connection is closed
//!   Call ─► reply cache ─┬─ replay              queued: taken back ─┐
//!                        └─ queued ─► running ─► end ───────────────┴─► release ─► the next
//! ```

use std::collections::BTreeMap;

use model::{Nanos, Nid, Time};
use ninep::Tag;
use ninep::dialect::ReplyHeader;
use session::server::{
    ChannelTurn, CommitTracker, IdempotencyKey, ReplyCache, SessionChannels, SessionOwner,
    SessionTable, TabledSession,
};

use super::backend::{SimBackend, SimOp, SimOutcome};
use super::checks::{SentOver, SessionChecks};
use super::wire::{SimReply, ToMount, ToProxy};
use super::{SessionBug, SessionFaults};

/// A proxy and its machine.
#[derive(Debug)]
pub(super) struct SessionProxy {
    pub(super) number: usize,
    /// Whether its process runs.
    pub(super) is_up: bool,
    /// The verifier, which changes when its machine restarts.
    verifier: u64,
    bug: Option<SessionBug>,
    resumes_unconfirmed: bool,
    sessions: SessionTable<SimSession>,
    connections: BTreeMap<usize, SimConnection>,
    calls: BTreeMap<u64, ServedCall>,
    next_call: u64,
}

/// A mount's session.
#[derive(Debug)]
struct SimSession {
    owner: SessionOwner,
    channels: SessionChannels<usize, PendingSession>,
    commits: CommitTracker,
}

/// A Tsession that waits for its turn, or is bound now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingSession {
    connection: usize,
    resumed: bool,
}

#[derive(Debug, Default)]
struct SimConnection {
    channel: u16,
    /// The session that it is bound to.
    session: Option<u128>,
    is_closed: bool,
    /// Its calls that are queued or running.
    calls: usize,
    /// Flushes that wait for the reply of a running call.
    flushes: Vec<PendingFlush>,
}

#[derive(Clone, Copy, Debug)]
struct PendingFlush {
    tag: Tag,
    old: Tag,
}

/// A call that is queued or running.
#[derive(Clone, Copy, Debug)]
struct ServedCall {
    connection: usize,
    tag: Tag,
    key: Option<IdempotencyKey>,
    call: usize,
    op: SimOp,
    epoch: u64,
    /// The marks of a running call: executions of the backend, and writes of the session.
    running: Option<SyncMarks>,
}

#[derive(Clone, Copy, Debug)]
struct SyncMarks {
    executed: u64,
    written: u64,
}

/// What a proxy does with an event, for the world to carry out.
#[derive(Debug)]
pub(super) enum ProxyAction {
    /// Sends a message on a connection.
    Send(usize, ToMount),
    /// Begins a queued call later.
    Queue(u64),
    /// Ends a running call later.
    Run(u64),
}

/// What the proxies share.
#[derive(Debug, Default)]
pub(super) struct ProxySide {
    pub(super) backend: SimBackend,
    pub(super) checks: SessionChecks,
    pub(super) actions: Vec<ProxyAction>,
    /// How many replies came from a cache, and how many connections waited for their turn.
    pub(super) replayed: u64,
    pub(super) waited: u64,
}

impl TabledSession for SimSession {
    fn owner(&self) -> &SessionOwner {
        &self.owner
    }

    fn export(&self) -> &str {
        EXPORT
    }

    fn left(&self) -> Option<Time> {
        self.channels.left()
    }
}

impl SessionProxy {
    pub(super) fn new(number: usize, faults: SessionFaults) -> SessionProxy {
        SessionProxy {
            number,
            is_up: true,
            verifier: 1_000 * (number as u64 + 1),
            bug: faults.bug,
            resumes_unconfirmed: faults.resumes_unconfirmed,
            sessions: SessionTable::default(),
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
        }
    }

    /// A message arrives on a connection of a mount's channel.
    pub(super) fn receive(
        &mut self,
        from: &MessageFrom,
        message: ToProxy,
        side: &mut ProxySide,
        now: Time,
    ) {
        let at = from.connection;
        let connection = self.connections.entry(at).or_default();
        connection.channel = from.channel;
        if connection.is_closed {
            return;
        }
        let is_of_session = !matches!(message, ToProxy::Session { .. } | ToProxy::Closed);
        if let Some(id) = connection.session.filter(|_| is_of_session)
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.channels.confirm();
        }
        match message {
            ToProxy::Session { id } => self.enter(id, from, side, now),
            ToProxy::Call { tag, key, call, op, epoch } => {
                let running = None;
                let served = ServedCall { connection: at, tag, key, call, op, epoch, running };
                self.receive_call(served, side);
            }
            ToProxy::Flush { tag, old } => self.flush(PendingFlush { tag, old }, at, side),
            ToProxy::Ping => side.actions.push(ProxyAction::Send(at, ToMount::Pong)),
            ToProxy::Closed => self.close(at, side, now),
        }
    }

    /// Ends a connection: what is queued is taken back, what runs ends.
    pub(super) fn close(&mut self, at: usize, side: &mut ProxySide, now: Time) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        if std::mem::replace(&mut connection.is_closed, true) {
            return;
        }
        connection.flushes.clear();
        let is_queued = |call: &ServedCall| call.connection == at && call.running.is_none();
        let queued: Vec<u64> =
            self.calls.iter().filter(|(_, call)| is_queued(call)).map(|(id, _)| *id).collect();
        queued.into_iter().for_each(|id| self.take_back(id));
        side.actions.push(ProxyAction::Send(at, ToMount::Closed));
        self.release_if_over(at, side, now);
    }

    /// A queued call begins to be executed.
    pub(super) fn begin_call(&mut self, id: u64, side: &mut ProxySide) {
        let executed = side.backend.executed();
        let Some(call) = self.calls.get(&id) else { return };
        let session = self.connections[&call.connection].session.expect("calls are of a session");
        let written = self.sessions.get_mut(session).map_or(0, |it| it.commits.mark());
        self.calls.get_mut(&id).expect("it is there").running =
            Some(SyncMarks { executed, written });
        side.actions.push(ProxyAction::Run(id));
    }

    /// A running call has been executed.
    pub(super) fn end_call(&mut self, id: u64, side: &mut ProxySide, now: Time) {
        let Some(call) = self.calls.remove(&id) else { return };
        let marks = call.running.expect("it was begun");
        let outcome = self.execute(&call, side);
        let connection = self.connections.get_mut(&call.connection).expect("it has calls");
        connection.calls -= 1;
        let (channel, id) = (connection.channel, connection.session.expect("it is bound"));
        let session = self.sessions.get_mut(id).expect("a bound session is there");
        let number = match call.op {
            SimOp::Append { file, .. } | SimOp::Write { file, .. } => {
                session.commits.written(file.into())
            }
            SimOp::Sync { file } => {
                session.commits.durable(file.into(), marks.written);
                0
            }
            SimOp::Commit => {
                session.commits.all_durable(marks.written);
                0
            }
            _ => 0,
        };
        if let (Some(SessionBug::CommitsEarly), Some((file, _))) = (self.bug, call.op.written()) {
            session.commits.durable(file.into(), number);
        }
        let header = ReplyHeader {
            verifier: self.verifier,
            commit_watermark: session.commits.committed(),
            ..ReplyHeader::default()
        };
        let reply = SimReply { tag: call.tag, header, call: call.call, outcome, number }.encode();
        match (call.key, self.bug) {
            (Some(key), Some(SessionBug::ForgetsReplies)) => session.channels.abandon(channel, key),
            (Some(key), _) => session.channels.end(channel, key, &reply),
            (None, _) => {}
        }
        if !connection.is_closed {
            side.actions.push(ProxyAction::Send(call.connection, ToMount::Reply(reply)));
            let answered = |flush: &mut PendingFlush| flush.old == call.tag;
            for flush in connection.flushes.extract_if(.., answered) {
                let flushed = ToMount::Flushed { tag: flush.tag };
                side.actions.push(ProxyAction::Send(call.connection, flushed));
            }
        }
        self.release_if_over(call.connection, side, now);
    }

    /// The process is killed. Of what was running, `was_executed` says what the kernel still did.
    pub(super) fn kill(&mut self, side: &mut ProxySide, mut was_executed: impl FnMut() -> bool) {
        let calls = std::mem::take(&mut self.calls);
        for call in calls.into_values().filter(|call| call.running.is_some()) {
            if was_executed() {
                self.execute(&call, side);
            }
        }
        self.is_up = false;
        self.sessions = SessionTable::default();
        self.connections.clear();
    }

    /// The machine restarts: its memory is lost.
    pub(super) fn lose_memory(&mut self, side: &mut ProxySide) {
        side.backend.lose(self.number);
        self.verifier += 1;
    }

    /// The process is started again.
    pub(super) fn start(&mut self) {
        self.is_up = true;
    }

    /// Ends sessions that no connection has resumed.
    pub(super) fn expire(&mut self, now: Time) -> usize {
        self.sessions.expire(SESSION_TIMEOUT, now).len()
    }

    fn enter(&mut self, id: u128, from: &MessageFrom, side: &mut ProxySide, now: Time) {
        let peer = Nid::tcp(std::net::Ipv4Addr::new(10, 0, 0, from.mount).into());
        let owner = SessionOwner { uid: None, peer };
        let begun = || SimSession {
            owner: owner.clone(),
            channels: SessionChannels::new(now),
            commits: CommitTracker::default(),
        };
        let entered = self.sessions.enter(id, &owner, EXPORT, SESSIONS_MAX, |_| Vec::new(), begun);
        let turn = entered.and_then(|entered| {
            let pending = PendingSession { connection: from.connection, resumed: entered.resumed };
            let channels = &mut entered.session.channels;
            channels.enter(from.channel, SLOTS, from.connection, pending)
        });
        match turn {
            Ok(ChannelTurn::Bind(pending)) => self.bind(id, from.channel, pending, side, now),
            Ok(ChannelTurn::Wait { before, .. }) => {
                side.waited += 1;
                if self.bug == Some(SessionBug::BindsEarly) {
                    let session = self.sessions.get_mut(id).expect("it was entered");
                    let next = session.channels.release(from.channel, now);
                    return self.bind(id, from.channel, next.expect("it waits"), side, now);
                }
                self.close(before, side, now);
            }
            Err(refusal) => {
                side.checks.violate(format!("a mount's own session is refused: {refusal}"));
                side.actions.push(ProxyAction::Send(from.connection, ToMount::Refused));
            }
        }
    }

    /// Binds a connection that has its turn; one that is gone gives it to the next.
    fn bind(
        &mut self,
        id: u128,
        channel: u16,
        pending: PendingSession,
        side: &mut ProxySide,
        now: Time,
    ) {
        let session = self.sessions.get_mut(id).expect("it was entered");
        let mut next = Some(pending);
        while let Some(pending) = next {
            let connection = self.connections.get_mut(&pending.connection);
            if let Some(connection) = connection.filter(|connection| !connection.is_closed) {
                connection.session = Some(id);
                let header = ReplyHeader {
                    verifier: self.verifier,
                    commit_watermark: session.commits.committed(),
                    ..ReplyHeader::default()
                };
                let knows = session.channels.is_resumed();
                let resumed = if self.resumes_unconfirmed { pending.resumed } else { knows };
                let slots = session.channels.granted(channel);
                let bound = ToMount::Session { slots, resumed, header };
                side.actions.push(ProxyAction::Send(pending.connection, bound));
                return;
            }
            next = session.channels.release(channel, now);
        }
    }

    fn receive_call(&mut self, call: ServedCall, side: &mut ProxySide) {
        let connection = self.connections.get_mut(&call.connection).expect("it was received on");
        let Some(id) = connection.session else {
            return side.checks.violate(format!("call {} came before its session", call.call));
        };
        let session = self.sessions.get_mut(id).expect("a bound session is there");
        if let Some(key) = call.key {
            match session.channels.begin(connection.channel, key, call.op.kind()) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let mut again = Vec::new();
                    ReplyCache::replay(reply, call.tag, &mut again);
                    side.replayed += 1;
                    let reply = ToMount::Reply(again);
                    return side.actions.push(ProxyAction::Send(call.connection, reply));
                }
                Err(error) => {
                    return side.checks.violate(format!("call {}: {error}", call.call));
                }
            }
        }
        connection.calls += 1;
        self.next_call += 1;
        self.calls.insert(self.next_call, call);
        side.actions.push(ProxyAction::Queue(self.next_call));
    }

    fn flush(&mut self, flush: PendingFlush, at: usize, side: &mut ProxySide) {
        let is_old = |call: &ServedCall| call.connection == at && call.tag == flush.old;
        let found = self.calls.iter().find(|(_, call)| is_old(call));
        match found.map(|(id, call)| (*id, call.running.is_some())) {
            Some((_, true)) => {
                let connection = self.connections.get_mut(&at).expect("it has a call");
                return connection.flushes.push(flush);
            }
            Some((id, false)) => self.take_back(id),
            None => {}
        }
        side.actions.push(ProxyAction::Send(at, ToMount::Flushed { tag: flush.tag }));
    }

    /// Takes a queued call back: it is not executed.
    fn take_back(&mut self, id: u64) {
        let Some(call) = self.calls.remove(&id) else { return };
        let connection = self.connections.get_mut(&call.connection).expect("it has a call");
        connection.calls -= 1;
        let session = connection.session.and_then(|id| self.sessions.get_mut(id));
        if let (Some(key), Some(session)) = (call.key, session) {
            session.channels.abandon(connection.channel, key);
        }
    }

    fn execute(&self, call: &ServedCall, side: &mut ProxySide) -> SimOutcome {
        let since = call.running.map_or(0, |marks| marks.executed);
        let outcome = side.backend.execute(call.op, self.number, since);
        let channel = self.connections[&call.connection].channel.into();
        let over = SentOver { channel, connection: call.connection, epoch: call.epoch };
        side.checks.executed(call.call, outcome, over);
        outcome
    }

    /// Gives the channel of a closed connection whose calls have ended to the next in line.
    fn release_if_over(&mut self, at: usize, side: &mut ProxySide, now: Time) {
        let Some(connection) = self.connections.get_mut(&at) else { return };
        if !connection.is_closed || connection.calls > 0 {
            return;
        }
        let channel = connection.channel;
        let Some(id) = connection.session.take() else { return };
        let Some(session) = self.sessions.get_mut(id) else { return };
        if self.bug == Some(SessionBug::BindsEarly) {
            return;
        }
        if let Some(next) = session.channels.release(channel, now) {
            self.bind(id, channel, next, side, now);
        }
    }
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageFrom {
    pub(super) connection: usize,
    pub(super) channel: u16,
    pub(super) mount: u8,
}

/// Reply slots of a channel: few, so that calls wait for them.
pub(super) const SLOTS: u16 = 3;
const EXPORT: &str = "home";
const SESSIONS_MAX: usize = 1_000;
/// Time for which a session is kept without a connection.
const SESSION_TIMEOUT: Nanos = Nanos::from_secs(60);
