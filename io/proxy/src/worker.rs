//! Steps of a request: drain, enqueue, choose, execute, complete, answer.
//!
//! The leader first reads the requests of every readable connection, so that the dispatcher sees
//! the whole backlog. It then executes what the dispatcher chooses, and checks the sockets again
//! after a bounded time. The duration of a call to the backend is unknown, so `thread_pool` lets a
//! standby thread take over when the leader's call takes too long, or the first thread that returns.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex};

use model::{Amount, BusyPoll, Lane, Nanos, OpKind, Time};
use ninep::dialect::{self, AnyRequest, ExtReply, ExtRequest};
use ninep::{Qid, Reply};
use rustix::event::{Timespec, epoll};

use crate::buffers::PooledBuffer;
use crate::connection::{Connection, ReplyTo, SendOutcome};
use crate::fids::ProxyUser;
use crate::gate::{Completion, RunningRequest};
use crate::input::SCRATCH;
use crate::intake::{DeferredClose, IntakeBatch};
use crate::operations::{self, Ending, NewIdentity, On};
use crate::outbox::{ReplyBatch, ReplyOutbox, errno_of};
use crate::server::Server;
use crate::sessions::{BoundChannel, Protocol, SessionParams};
use crate::thread_pool::{BlockingCall, ThreadRole};
use crate::trace::TraceCaller;

/// Time of work after which the leader checks the sockets again.
const POLL_AGAIN_AFTER: Nanos = Nanos::from_micros(200);
/// Usual duration of a call from which a hand-over is worth its cost, if more work waits.
const LONG_CALL: Nanos = Nanos::from_micros(50);
/// Duration of a call during which new work comes: it is handed over in any case, as the standby
/// thread would check only after two or three times as long.
const LONGER_CALL: Nanos = Nanos::from_micros(200);
/// The peer has closed or was reset.
const PEER_CLOSED: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);
/// Number of new requests that keep a thread busy for longer than it takes to wake another.
const HELP_BACKLOG: usize = 96;
/// Maximum number of events taken from the epoll set at once.
const EVENTS: usize = 256;

/// Reply to a message that names an identity.
enum AttachOutcome {
    Attached(Qid),
    Bound(BoundChannel),
    Identified,
}

/// One thread of the proxy.
pub(crate) struct Worker {
    server: Arc<Server>,
    outbox: Arc<Mutex<ReplyOutbox>>,
    /// Empty unless it leads.
    scratch: PooledBuffer,
    arrivals: IntakeBatch,
    events: Vec<epoll::Event>,
    leads: bool,
    busy_poll: BusyPoll,
    /// Ended and chosen requests: kept for its memory only.
    space: (Vec<Completion>, Vec<RunningRequest>),
}

impl Worker {
    pub(crate) fn new(server: Arc<Server>) -> Worker {
        let busy_poll = BusyPoll::new(server.busy_poll());
        Worker {
            server,
            outbox: Arc::default(),
            scratch: PooledBuffer::default(),
            arrivals: IntakeBatch::default(),
            events: Vec::with_capacity(EVENTS),
            leads: false,
            busy_poll,
            space: Default::default(),
        }
    }

    /// Runs until the proxy stops.
    pub(crate) fn run(mut self) {
        let clock = self.server.clock;
        loop {
            match self.server.crew.next_role(|| clock.now()) {
                ThreadRole::Lead => self.lead(),
                ThreadRole::Help => self.execute_all(None),
                ThreadRole::Stop => return,
            }
            self.go_idle();
        }
    }

    fn lead(&mut self) {
        self.leads = true;
        self.scratch = PooledBuffer::new(2 * SCRATCH);
        let before = self.server.leader_outbox(self.outbox.clone());
        self.server.ensure_standby();
        // Replies that the leader before us had ready when it got stuck.
        if let Some(outbox) = before {
            self.flush(&outbox);
        }
        while self.leads && !self.server.crew.stopping() {
            self.poll_and_receive();
            let handed = std::mem::take(&mut self.arrivals.handed);
            if handed >= HELP_BACKLOG && self.server.parallel {
                self.server.call_help();
            }
            if self.leads {
                self.execute_all(Some(self.server.clock.now() + POLL_AGAIN_AFTER));
            }
        }
        self.leads = false;
    }

    /// Waits for work, and takes in all there is.
    fn poll_and_receive(&mut self) {
        let began = self.server.clock.now();
        let timeout = self.server.before_poll(began);
        self.events.clear();
        // What is read now came after this, however long the proxy may be stopped meanwhile.
        self.arrivals.read_after = began;
        let polled = self.wait_for_events(began, timeout);
        let now = self.server.clock.now();
        self.busy_poll.record_wait(now.since(began));
        self.server.after_poll(&self.outbox, now);
        if self.server.lease_upkeep_is_due(now) {
            let call = self.begin_call();
            self.server.leases.rewrite_record();
            self.end_call(call);
        }
        if self.server.lock_retry_is_due(now) {
            let call = self.begin_call();
            self.server.retry_locks(&self.outbox);
            self.end_call(call);
        }
        if polled.is_err() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let key = event.data.u64();
            let Some(connection) = self.server.connection(key) else {
                for idle in self.server.accept_or_wake(key) {
                    self.close(&idle, &"evicted: the table of connections is full");
                }
                continue;
            };
            let flags = event.flags;
            // Nothing more of it is read: its client has not waited for an answer, and may have done
            // the same elsewhere since, if this proxy was stopped for a while.
            if flags.intersects(PEER_CLOSED) {
                self.close(&connection, &"the peer has disconnected");
                continue;
            }
            if flags.contains(epoll::EventFlags::OUT) {
                let bounds = self.server.bounds();
                let sent = connection.send_queued(&self.server.poll, bounds);
                self.after_send(&connection, sent);
            }
            if flags.intersects(!epoll::EventFlags::OUT) {
                self.read(&connection);
            }
        }
        self.events = events;
        self.bind_next();
        self.close_ended_sessions();
        self.server.resume_parked();
        self.server.answer_info(&self.outbox);
        while let Some(connection) = self.server.next_resumed() {
            // What it has sent was read in part, and that may be long ago.
            match connection.is_peer_closed() {
                true => self.close(&connection, &"the peer has disconnected"),
                false => self.read(&connection),
            }
        }
    }

    /// Waits for events: awake for a while if they come soon, then asleep.
    fn wait_for_events(
        &mut self,
        began: Time,
        timeout: Option<Timespec>,
    ) -> rustix::io::Result<usize> {
        let poll = &self.server.poll;
        let span = self.busy_poll.span();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let sleeps = timeout.is_none_or(|timeout| {
            timeout.tv_sec > 0 || u64::try_from(timeout.tv_nsec).is_ok_and(|ns| ns > span.get())
        });
        while sleeps && self.server.clock.now().since(began) < span {
            let into = rustix::buffer::spare_capacity(&mut self.events);
            match epoll::wait(poll, into, Some(&at_once))? {
                0 => std::thread::yield_now(),
                count => return Ok(count),
            }
        }
        let into = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(poll, into, timeout.as_ref())
    }

    /// Reads a connection once and hands its requests to the dispatchers.
    fn read(&mut self, connection: &Arc<Connection>) {
        let server = &self.server;
        let mut outbox = self.outbox.lock().expect("not poisoned");
        let scratch = self.scratch.bytes_mut();
        let result = server.read(connection, scratch, &mut self.arrivals, &mut outbox);
        drop(outbox);
        if let Err(why) = result {
            self.close(connection, &why);
        }
        if !self.arrivals.deferred.is_empty() {
            let call = self.begin_call();
            for leaving in self.arrivals.deferred.drain(..) {
                self.server.close_deferred(leaving, &self.outbox);
            }
            self.end_call(call);
        }
        let attaches = std::mem::take(&mut self.arrivals.attaches);
        if !attaches.is_empty() {
            let arrived = self.server.clock.now();
            attaches.into_iter().for_each(|(to, frame)| self.attach(&to, frame.bytes(), arrived));
        }
    }

    /// Handles a message that names an identity: Tattach, or Tsession or Tidentity of the dialect.
    /// A Tinfo, which waits in no queue either, is handed on.
    fn attach(&mut self, to: &ReplyTo, frame: &[u8], arrived: Time) {
        if self.server.submit_info(to, frame, &mut self.outbox.lock().expect("not poisoned")) {
            return;
        }
        if let Some((session, life)) = self.server.joins(to, frame) {
            let call = self.begin_call();
            let (outcome, term) = self.server.leases.join(&session, life);
            self.end_call(call);
            let mut outbox = self.outbox.lock().expect("not poisoned");
            outbox.batch(to).reply(to.tag, ExtReply::Renew { outcome, term });
            return;
        }
        let started = self.server.clock.now();
        let call = self.begin_call();
        let result = self.handle_identity_message(to, frame);
        self.end_call(call);
        let (who, errno) = match &result {
            // It waits for what the connection before it has in flight.
            Ok(None) => return,
            Ok(Some((Some(user), _))) => (TraceCaller::User(user), 0),
            Ok(Some((None, _))) => (TraceCaller::Peer(&to.path.connection), 0),
            Err(error) => (TraceCaller::Peer(&to.path.connection), errno_of(error)),
        };
        if let Some(recorder) = self.server.recorder() {
            recorder.attached(who, arrived, started, errno, self.server.clock.now());
        }
        match result {
            Ok(greeted) => greeted.into_iter().for_each(|(_, it)| self.answer_greeting(to, it)),
            Err(error) => self.refuse_greeting(to, &error),
        }
    }

    fn handle_identity_message(
        &self,
        to: &ReplyTo,
        frame: &[u8],
    ) -> io::Result<Option<(Option<Arc<ProxyUser>>, AttachOutcome)>> {
        if let Protocol::Base(_) = to.path.form {
            let (user, qid) = operations::attach(&self.server, to, frame)?;
            return Ok(Some((Some(user), AttachOutcome::Attached(qid))));
        }
        let (_, _, request) = dialect::decode_request(frame).expect("decoded when it was taken in");
        match request {
            AnyRequest::Ext(ExtRequest::Session { id, channel, slots, aname }) => {
                let terms = SessionParams { id, channel, slots };
                let entered = self.server.open_session(to, aname, terms, &self.outbox)?;
                let Some(pending) = entered else { return Ok(None) };
                let bound = self.server.bind(&pending)?;
                Ok(bound.map(|bound| (None, AttachOutcome::Bound(bound))))
            }
            AnyRequest::Ext(ExtRequest::Identity { identity, uid, gid, groups, job, .. }) => {
                let who = NewIdentity { identity, uid, gid, groups, job };
                operations::identify(&self.server, to, &who)?;
                Ok(Some((None, AttachOutcome::Identified)))
            }
            _ => unreachable!("nothing else is put aside"),
        }
    }

    /// Gives channels whose former connection has no requests in flight their next one.
    fn bind_next(&mut self) {
        while let Some(pending) = self.server.mounts.next_ready() {
            match self.server.bind(&pending) {
                Ok(Some(bound)) => self.answer_greeting(&pending.to, AttachOutcome::Bound(bound)),
                Ok(None) => {}
                Err(error) => self.refuse_greeting(&pending.to, &error),
            }
        }
    }

    /// Drops sessions whose requests have all ended.
    fn close_ended_sessions(&mut self) {
        if self.server.ended.any() {
            let call = self.begin_call();
            self.server.close_deferred(DeferredClose::default(), &self.outbox);
            self.end_call(call);
        }
    }

    fn answer_greeting(&self, to: &ReplyTo, greeting: AttachOutcome) {
        let mut outbox = self.outbox.lock().expect("not poisoned");
        let to = if let AttachOutcome::Bound(bound) = &greeting { &bound.to } else { to };
        let batch = outbox.batch(to);
        batch.tally.count(OpKind::Attach, Amount::new(0, 1), 0);
        match &greeting {
            AttachOutcome::Attached(qid) => batch.reply(to.tag, Reply::Attach { qid: *qid }),
            AttachOutcome::Bound(BoundChannel { slots, resumed, timeout: keep, root, .. }) => {
                let (slots, resumed, keep) = (*slots, (*resumed).into(), *keep);
                batch.reply(to.tag, ExtReply::Session { slots, resumed, keep, root });
            }
            AttachOutcome::Identified => {
                let settings = self.server.settings();
                let requests = settings.window_requests.min(settings.tags_max);
                let bytes = settings.window_bytes.min(settings.bytes_in_flight_max).get();
                batch.reply(to.tag, ExtReply::Identity { requests, bytes });
            }
        }
    }

    fn refuse_greeting(&self, to: &ReplyTo, error: &io::Error) {
        let mut outbox = self.outbox.lock().expect("not poisoned");
        let batch = outbox.batch(to);
        batch.tally.count(OpKind::Attach, Amount::new(0, 1), errno_of(error));
        batch.error(to.tag, error);
    }

    /// Executes the dispatchers' choices: all of them, or as long as `until` and while this thread
    /// leads. One that does not lead stops where nobody else would read the sockets.
    fn execute_all(&mut self, until: Option<Time>) {
        self.execute_chosen(until);
        self.flush_own();
    }

    /// Whether this thread is to lead next: it has ended its call, and all others are in theirs.
    fn must_lead(&self) -> bool {
        !self.leads && self.server.crew.lacks_leader(|| self.server.clock.now())
    }

    fn execute_chosen(&mut self, until: Option<Time>) {
        let server = self.server.clone();
        let gate = &*server.gate;
        let (mut finished, mut chosen) = std::mem::take(&mut self.space);
        self.outbox.lock().expect("not poisoned").begin_round(gate.len());
        while !self.must_lead() {
            gate.next(&mut finished, &mut chosen);
            let Some(first) = chosen.first() else { break };
            // A read that is fetched was chosen long before its call.
            let late = until.is_some_and(|until| first.called >= until);
            for mut running in chosen.drain(..) {
                if !finished.is_empty() && !running.quick {
                    // It may take long: what ended before it must not wait for it.
                    gate.finish(&mut finished);
                    running.begin(self.server.clock.now());
                } else if running.quick
                    && (running.meta.lane == Lane::Device || self.server.recorder().is_some())
                {
                    running.begin(self.server.clock.now());
                }
                let (ended, flush) = self.execute(running);
                finished.extend(ended);
                if flush {
                    gate.finish(&mut finished);
                    let outbox = self.outbox.clone();
                    self.send_batches(&outbox, ReplyOutbox::pop_due);
                }
            }
            if late && self.leads {
                break;
            }
        }
        gate.finish(&mut finished);
        self.space = (finished, chosen);
    }

    /// Executes one operation; `None` if it goes on waiting. Returns whether to flush before more.
    fn execute(&mut self, mut running: RunningRequest) -> (Option<Completion>, bool) {
        let call = self.prepare_call(&running);
        // The clock is read again: the proxy may have been stopped after it was chosen.
        if !running.quick && running.operation.is_abandoned(self.server.clock.now()) {
            self.end_call(call);
            return (Some(self.drop_abandoned(running)), false);
        }
        let (flush, grants) = (Cell::new(false), Cell::default());
        let begun = running.operation.begun.take();
        let (server, outbox) = (&*self.server, &*self.outbox);
        let on = On { server, running: &running, outbox, flush: &flush, grants: &grants };
        let ending = operations::perform(on, begun);
        let served = match ending {
            Ending::AwaitsLeases(begun) => {
                self.end_call(call);
                let finished = running.postponed();
                self.server.park(running, begun, &self.outbox);
                return (Some(finished), flush.get());
            }
            Ending::Missed => {
                self.end_call(call);
                self.server.gate.miss(running);
                return (None, false);
            }
            Ending::Parked => running.meta.amount,
            Ending::Answered { served, .. } => served,
        };
        let finished = running.finished(served);
        if let (Some(recorder), Ending::Answered { errno, .. }) = (self.server.recorder(), ending) {
            recorder.record_answered(&running, served, errno, self.server.clock.now());
        }
        // It may hold the last use of a file that was clunked: closing is part of the call.
        drop(running);
        self.end_call(call);
        if self.server.leases.has_changes() {
            self.server.poke_leader();
        }
        (Some(finished), flush.get())
    }

    /// Ends the connection of a client that is gone in place of executing its request.
    fn drop_abandoned(&mut self, running: RunningRequest) -> Completion {
        self.server.cancel_chosen(&running);
        let finished = running.dropped();
        self.close(&running.operation.to.path.connection, &"the peer has disconnected");
        finished
    }

    /// Prepares a call that may wait, so that other requests need not wait for it.
    fn prepare_call(&mut self, running: &RunningRequest) -> Option<BlockingCall> {
        if running.quick {
            return None;
        }
        if self.leads {
            let usual = running.meta.usual(running.operation.target());
            if usual > LONGER_CALL || (usual > LONG_CALL && self.server.gate.has_work()) {
                self.flush_own();
                // Flushing may have closed a connection, and that have cost the lead.
                if std::mem::take(&mut self.leads) {
                    // The next leader takes it from the pool.
                    self.scratch = PooledBuffer::default();
                    self.server.crew.resign();
                }
                return None;
            }
            return self.server.crew.begin_call(running.called).into();
        }
        self.flush_own();
        None
    }

    fn begin_call(&self) -> Option<BlockingCall> {
        self.leads.then(|| self.server.crew.begin_call(self.server.clock.now()))
    }

    fn end_call(&mut self, call: Option<BlockingCall>) {
        if let Some(call) = call {
            self.leads = self.server.crew.end_call(call);
        }
    }

    fn flush_own(&mut self) {
        let outbox = self.outbox.clone();
        self.flush(&outbox);
    }

    fn flush(&mut self, outbox: &Mutex<ReplyOutbox>) {
        self.send_batches(outbox, ReplyOutbox::pop_batch);
    }

    fn send_batches(
        &mut self,
        outbox: &Mutex<ReplyOutbox>,
        next: impl Fn(&mut ReplyOutbox) -> Option<ReplyBatch>,
    ) {
        let bounds = self.server.bounds();
        loop {
            let Some(mut batch) = next(&mut outbox.lock().expect("not poisoned")) else { return };
            let connection = batch.path.connection.clone();
            let sent = connection.send(&mut batch, &self.server.poll, bounds);
            self.server.count_late(&mut batch);
            self.after_send(&connection, sent);
            outbox.lock().expect("not poisoned").recycle(batch.bytes);
        }
    }

    fn after_send(&mut self, connection: &Arc<Connection>, sent: SendOutcome) {
        self.server.feed(connection);
        match sent {
            SendOutcome::Ok => {}
            SendOutcome::Resume => self.server.resume(connection.clone()),
            SendOutcome::Broken => self.close(connection, &"the peer has disconnected"),
        }
    }

    /// Ends a connection; closing its files may keep this thread, but no other.
    fn close(&mut self, connection: &Arc<Connection>, why: &dyn std::fmt::Display) {
        let call = self.begin_call();
        let leaving = self.server.close(connection, why);
        self.server.close_deferred(leaving, &self.outbox);
        self.end_call(call);
    }

    /// Prepares to sleep: makes sure that the leader wakes in time for waiting requests.
    fn go_idle(&mut self) {
        self.flush_own();
        self.scratch = PooledBuffer::default();
        self.server.wake_for_deadline();
    }
}
