//! State machine of one connection of the session: what waits, what is in flight, what is to be
//! sent.
//!
//! ```text
//!   push ─► queues ─► begin ─► out ─► socket     disconnect ─► resume: the same once more
//!                      │                                 └───► restart: again, or in doubt
//!                   by tag: Call ─► received ─► done
//!                           Call, flushed ─► received or Rflush ─► done
//! ```
//!
//! Nothing here calls an [`OnReply`]: they are handed out, to be called after the channel is
//! unlocked.
//!
//! Invariant: `in_flight[tag]` is something exactly while `calls` has the tag.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuse::{Errno, FuseRequestId};
use model::Direction;
use ninep::Tag;
use ninep::dialect::{AnyReply, ExtReply};
use session::client::{CallId, CallQueues, CallTable, ChannelRoom};

use super::abandoned::Abandoned;
use super::call::{CallReply, CallSpec, CallWaiter, OnReply, ServerCall, answer_of, errno_of};
use super::control::SessionControl;
use super::identities::SessionIdentity;
use super::signals::FLUSH_PATIENCE;
use super::socket::{Broken, SocketOutbox};
use crate::write_behind::SentWrite;

/// One connection of the session.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    pub(crate) phase: ChannelPhase,
    /// The session's life in which what is in flight was begun.
    pub(crate) epoch: u64,
    /// Calls that may have been executed before the proxy forgot the session.
    pub(crate) in_doubt: Vec<ServerCall>,
    calls: CallTable<()>,
    in_flight: Vec<Option<CallInFlight>>,
    /// How many of them are calls that are being flushed, and how many wait for news: known
    /// without looking at all of them in every turn.
    flushed: usize,
    waits: usize,
    slots_free: u16,
    control: VecDeque<SessionControl>,
    queues: CallQueues<ServerCall>,
    /// Locks to be asked for later: the proxy had no room for one that waits, or others go first.
    later: Vec<(Instant, ServerCall)>,
    /// Time until which locks are reserved for their holders in the former session.
    locks_from: Option<Instant>,
    out: SocketOutbox,
    last_received: Instant,
    /// The session was there then: what was sent at that time has been answered since.
    renewed: Instant,
    pinged: Option<Instant>,
    /// Number of waiting calls whose processes were checked.
    waiters_checked: usize,
    tally: ChannelStats,
    abandoned: Arc<Abandoned>,
}

/// Counters of a channel since the mount began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelStats {
    /// Calls that were answered, and
    pub(crate) ok: u64,
    /// those that were answered with an error.
    pub(crate) errors: u64,
    /// Connections that were made.
    pub(crate) connected: u64,
    /// 1 while it has none and should.
    pub(crate) connections_down: u64,
}

/// Whether a channel has a connection.
#[derive(Clone, Debug)]
pub(crate) enum ChannelPhase {
    /// It has this one.
    Up(Arc<OwnedFd>),
    /// Without a connection since then; a thread reconnects.
    Disconnected(Instant),
    /// It will have none any more.
    Over,
}

#[derive(Debug)]
enum CallInFlight {
    /// With the time when it was sent, and that since which it is being flushed, if it is.
    Call {
        call: ServerCall,
        begun: Instant,
        flushed: Option<Instant>,
    },
    /// Answered, but its tag is named by a flush that is not; with `once` it has a slot.
    Flushed {
        once: bool,
    },
    Control(SessionControl),
}

/// Action for a received message.
#[allow(clippy::large_enum_variant, reason = "it lives for one match, on the stack")]
pub(crate) enum ChannelNews<'a> {
    /// Nothing is to be done.
    Unchanged,
    /// Call this. With what was written and its number, if that is to be kept.
    Done { done: OnReply, answer: CallReply<'a>, written: Option<(u64, SentWrite)> },
    /// This identity may be used now, or not at all.
    Identity(Arc<SessionIdentity>),
    /// Encoded events of the session, in one message.
    Events(&'a [u8]),
}

/// Result of looking for an interrupted request.
pub(crate) enum Interrupted {
    NotHere,
    /// It is being flushed.
    Flushing,
    /// It is given up: answer `EINTR`.
    Abandoned(OnReply),
}

impl LinkChannel {
    /// Without a connection, at first.
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> LinkChannel {
        LinkChannel {
            abandoned,
            phase: ChannelPhase::Disconnected(Instant::now()),
            epoch: 0,
            in_doubt: Vec::new(),
            calls: CallTable::new(TAGS, 0),
            in_flight: (0..TAGS).map(|_| None).collect(),
            flushed: 0,
            waits: 0,
            slots_free: 0,
            control: VecDeque::new(),
            queues: CallQueues::default(),
            later: Vec::new(),
            out: SocketOutbox::default(),
            last_received: Instant::now(),
            renewed: Instant::now(),
            pinged: None,
            waiters_checked: 0,
            locks_from: None,
            tally: ChannelStats::default(),
        }
    }

    /// A call comes; it begins when it may.
    pub(crate) fn push(&mut self, call: ServerCall) {
        if call.payer.begin_send() {
            self.control.push_back(SessionControl::Identity(call.payer.clone()));
        }
        self.queues.push(call);
    }

    /// Something is to be said besides.
    pub(crate) fn push_control(&mut self, what: SessionControl) {
        self.control.push_back(what);
    }

    /// A call is to be made again after a while.
    pub(crate) fn push_later(&mut self, call: ServerCall, at: Instant) {
        self.later.push((at, call));
    }

    /// Begins what may begin, into the outbox. Gives the calls that failed before they began.
    pub(crate) fn begin(&mut self, now: Instant) -> Vec<(OnReply, Errno)> {
        let mut failed = Vec::new();
        if !matches!(self.phase, ChannelPhase::Up(_)) {
            return failed;
        }
        for at in (0..self.later.len()).rev() {
            if self.later[at].0 <= now {
                let (_, call) = self.later.swap_remove(at);
                self.queues.push(call);
            }
        }
        while self.calls.len() < TAGS.into()
            && let Some(control) = self.control.pop_front()
        {
            self.begin_control(control);
        }
        while self.calls.len() < CALLS_MAX
            && let Some(next) = self.queues.next(self.room())
        {
            match next {
                Ok(call) => {
                    match self.locks_from.filter(|from| call.spec.needs.takes_lock && now < *from) {
                        Some(from) => {
                            self.queues.ended(&call);
                            self.later.push((from, call));
                        }
                        None => self.begin_call(call, now),
                    }
                }
                Err((call, error)) => failed.push((call.done, errno_of(error))),
            }
        }
        failed
    }

    /// Sends what is to be sent. True when nothing is left.
    pub(crate) fn send(&mut self) -> Result<bool, Errno> {
        match &self.phase {
            ChannelPhase::Up(socket) => self.out.send(std::os::fd::AsFd::as_fd(socket)),
            _ => Ok(true),
        }
    }

    /// Notes the time at which a message arrived.
    pub(crate) fn note_received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// When the proxy last had the session for certain.
    pub(crate) fn renewed(&self) -> Instant {
        self.renewed
    }

    /// A reply came.
    ///
    /// # Errors
    /// If there is no request for it.
    pub(crate) fn received<'a>(
        &mut self,
        tag: Tag,
        reply: AnyReply<'a>,
    ) -> Result<ChannelNews<'a>, Broken> {
        let unasked = || Broken::Protocol(format!("received a reply with the unused tag {tag}"));
        let place = self.in_flight.get_mut(usize::from(tag.0)).ok_or_else(unasked)?;
        match place.take().ok_or_else(unasked)? {
            CallInFlight::Call { call, begun, flushed } => {
                self.queues.ended(&call);
                self.renewed = self.renewed.max(begun);
                if flushed.is_some() {
                    self.flushed -= 1;
                    // Tag and slot stay taken until the flush is answered, which names them.
                    *place = Some(CallInFlight::Flushed { once: call.spec.needs.once });
                } else {
                    self.end(tag, call.spec.needs.once);
                }
                let answer = answer_of(reply);
                match &answer {
                    Ok(_) => self.tally.ok += 1,
                    Err(_) => self.tally.errors += 1,
                }
                let ServerCall { payer, spec: ask, done, .. } = call;
                let written = written(payer, ask, &answer);
                Ok(ChannelNews::Done { done, answer, written })
            }
            CallInFlight::Flushed { .. } => Err(unasked()),
            CallInFlight::Control(control) => {
                self.end(tag, false);
                self.waits -= usize::from(matches!(control, SessionControl::Events));
                self.answered(control, reply)
            }
        }
    }

    /// A request is interrupted.
    pub(crate) fn interrupt(&mut self, request: FuseRequestId, now: Instant) -> Interrupted {
        let is = |call: &ServerCall| call.is_for(request);
        if let Some(call) = self.queues.remove(is) {
            return Interrupted::Abandoned(call.done);
        }
        if let Some(at) = self.later.iter().position(|(_, call)| is(call)) {
            return Interrupted::Abandoned(self.later.swap_remove(at).1.done);
        }
        if let Some(at) = self.in_doubt.iter().position(is) {
            return Interrupted::Abandoned(self.in_doubt.swap_remove(at).done);
        }
        let found = self.in_flight.iter_mut().zip(0..).find_map(|(place, tag)| match place {
            Some(CallInFlight::Call { call, flushed, .. }) if is(call) => {
                Some((call, flushed, Tag(tag)))
            }
            _ => None,
        });
        let Some((call, flushed, tag)) = found else { return Interrupted::NotHere };
        if flushed.replace(now).is_none() {
            self.flushed += 1;
            self.control.push_front(SessionControl::Flush(tag));
        }
        if let ChannelPhase::Up(_) = self.phase {
            return Interrupted::Flushing;
        }
        // It is sent once more with the others and flushed then, so that its slot goes on
        // counting; nobody waits for that.
        Interrupted::Abandoned(call.detach_waiter(&self.abandoned))
    }

    /// Lends a waiter's queue to the writes that `is` names. True if there is something to be sent
    /// for it.
    pub(crate) fn donate(
        &mut self,
        is: impl Fn(&ServerCall) -> bool,
        donor: &Arc<SessionIdentity>,
    ) -> bool {
        let mut any = self.queues.donate(&is, donor);
        for (place, tag) in self.in_flight.iter_mut().zip(0..) {
            let Some(CallInFlight::Call { call, flushed: None, .. }) = place else { continue };
            if is(call)
                && let Some(fid) = call.spec.frame.written_fid()
                && self.queues.donate_begun(call, donor)
            {
                self.control.push_back(SessionControl::Donate(Tag(tag), fid, donor.clone()));
                any = true;
            }
        }
        any
    }

    /// The call of this request, wherever it is.
    pub(crate) fn find(&self, request: FuseRequestId) -> Option<&ServerCall> {
        let under_way = self.in_flight.iter().flatten().filter_map(|one| match one {
            CallInFlight::Call { call, .. } => Some(call),
            _ => None,
        });
        let later = self.later.iter().map(|(_, call)| call);
        let mut all = under_way.chain(later).chain(&self.in_doubt);
        let is = |call: &ServerCall| call.is_for(request);
        self.queues.find(is).or_else(|| all.find(|call| is(call)))
    }

    /// Returns waiters for a flush that the proxy does not answer: it, or what it executes, hangs.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<CallWaiter> {
        if self.flushed == 0 {
            return Vec::new();
        }
        let calls = self.in_flight.iter().flatten();
        let overdue = calls.filter_map(|one| match one {
            CallInFlight::Call { call, flushed: Some(since), .. } => {
                call.waiter.filter(|_| now.saturating_duration_since(*since) > FLUSH_PATIENCE)
            }
            _ => None,
        });
        overdue.collect()
    }

    /// Detaches the waiter of this request, whatever becomes of the call.
    pub(crate) fn abandon(&mut self, request: FuseRequestId) -> Option<OnReply> {
        self.in_flight.iter_mut().flatten().find_map(|one| match one {
            CallInFlight::Call { call, .. } if call.is_for(request) => {
                Some(call.detach_waiter(&self.abandoned))
            }
            _ => None,
        })
    }

    /// Notes that the connection is lost. Returns the callbacks of interrupted calls.
    pub(crate) fn disconnect(&mut self, now: Instant) -> Vec<OnReply> {
        self.phase = ChannelPhase::Disconnected(now);
        self.out.clear();
        self.pinged = None;
        let mut given_up: Vec<OnReply> = Vec::new();
        for tag in 0..TAGS {
            match &mut self.in_flight[usize::from(tag)] {
                Some(CallInFlight::Call { call, flushed: Some(_), .. }) => {
                    given_up.push(call.detach_waiter(&self.abandoned))
                }
                Some(CallInFlight::Control(SessionControl::Ping(_))) => {
                    self.in_flight[usize::from(tag)] = None;
                    self.end(Tag(tag), false);
                }
                _ => {}
            }
        }
        self.control.retain(|control| !matches!(control, SessionControl::Ping(_)));
        given_up
    }

    /// The session goes on over another connection: everything in flight is sent once more.
    pub(crate) fn resume(&mut self) {
        self.out.clear();
        let tickets: Vec<CallId> =
            self.calls.calls_to_replay().into_iter().map(|(ticket, ())| ticket).collect();
        for ticket in tickets {
            match &self.in_flight[usize::from(ticket.tag.0)] {
                Some(CallInFlight::Call { call, .. }) => self.out.push(&call.spec.frame),
                Some(CallInFlight::Control(control)) => self.out.push(&control.frame(ticket)),
                Some(CallInFlight::Flushed { .. }) | None => {}
            }
        }
    }

    /// Another session begins, with `slots` slots here: what may be repeated waits again, what
    /// may not is in doubt. Gives those whose calls were interrupted.
    ///
    /// No lock is taken before `locks_from`: the former holders may take theirs again.
    pub(crate) fn restart(
        &mut self,
        slots: u16,
        epoch: u64,
        locks_from: Option<Instant>,
    ) -> Vec<OnReply> {
        self.locks_from = locks_from;
        let order = self.calls.calls_to_replay().into_iter().map(|(ticket, ())| ticket.tag);
        let order: Vec<Tag> = order.collect();
        self.calls.restart(slots);
        self.out.clear();
        self.queues.all_ended();
        (self.slots_free, self.epoch) = (slots, epoch);
        (self.flushed, self.waits) = (0, 0);
        let mut given_up = Vec::new();
        for tag in order.into_iter().rev() {
            match self.in_flight[usize::from(tag.0)].take() {
                Some(CallInFlight::Call { call, flushed: Some(_), .. }) => given_up.push(call.done),
                Some(CallInFlight::Call { call, .. }) if call.spec.needs.once => {
                    self.in_doubt.push(call)
                }
                Some(CallInFlight::Call { call, .. }) => self.queues.push_front(call),
                Some(CallInFlight::Control(control)) => self.control.push_front(control),
                Some(CallInFlight::Flushed { .. }) | None => {}
            }
        }
        // Flushes and waits of the old session are gone with it.
        let outlives = |control: &SessionControl| {
            matches!(control, SessionControl::Identity(_) | SessionControl::Events)
        };
        self.control.retain(outlives);
        given_up
    }

    /// A call in doubt was not executed: it is made again.
    pub(crate) fn requeue(&mut self, call: ServerCall) {
        self.queues.push_front(call);
    }

    /// There is a connection again, over which the session was begun later than `now`.
    pub(crate) fn up(&mut self, socket: Arc<OwnedFd>, now: Instant) {
        self.phase = ChannelPhase::Up(socket);
        (self.last_received, self.renewed) = (now, now);
        self.tally.connected += 1;
    }

    /// Returns the counters of the channel.
    pub(crate) fn tally(&self) -> ChannelStats {
        ChannelStats {
            connections_down: matches!(self.phase, ChannelPhase::Disconnected(_)).into(),
            ..self.tally
        }
    }

    /// Sends a ping if one is due: after some silence while an answer is owed, and in any case while
    /// there are locks, to know since when they may be lost.
    ///
    /// # Errors
    /// If the last one was not answered in time.
    pub(crate) fn tick(&mut self, has_locks: bool, now: Instant) -> Result<(), Broken> {
        if !matches!(self.phase, ChannelPhase::Up(_)) || !(self.is_owed() || has_locks) {
            return Ok(());
        }
        let since = |then: Instant| now.saturating_duration_since(then);
        let silent = since(self.last_received);
        match self.pinged {
            Some(at) if at > self.last_received => {
                let patience = since(at) < PING_PATIENCE;
                patience.then_some(()).ok_or(Broken::TimedOut(silent))
            }
            last if silent >= PING_AFTER
                || has_locks
                    && since(last.map_or(self.renewed, |at| at.max(self.renewed)))
                        >= PING_AFTER =>
            {
                self.pinged = Some(now);
                self.control.push_back(SessionControl::Ping(now));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// How long nothing may happen before [`LinkChannel::tick`] or [`LinkChannel::begin`] is due.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        match self.phase {
            ChannelPhase::Up(_) if self.is_owed() || !self.later.is_empty() => Some(TICK),
            ChannelPhase::Disconnected(_) => Some(TICK),
            _ => None,
        }
    }

    /// Takes all calls out, wherever they are. Those in flight are flushed once that can be
    /// said: their slots go on counting, and a new session is not asked for them again.
    pub(crate) fn abandon_all(&mut self, now: Instant) -> Vec<OnReply> {
        let mut all: Vec<OnReply> = self.queues.drain().into_iter().map(|call| call.done).collect();
        all.extend(self.later.drain(..).map(|(_, call)| call.done));
        all.extend(self.in_doubt.drain(..).map(|call| call.done));
        for (place, tag) in self.in_flight.iter_mut().zip(0..) {
            if let Some(CallInFlight::Call { call, flushed, .. }) = place {
                all.push(call.detach_waiter(&self.abandoned));
                if flushed.replace(now).is_none() {
                    self.flushed += 1;
                    self.control.push_front(SessionControl::Flush(Tag(tag)));
                }
            }
        }
        all
    }

    /// Whether too many calls wait to take more requests from the kernel.
    pub(crate) fn is_full(&self) -> bool {
        let (calls, bytes) = self.queues.waiting();
        calls > WAITING_MAX || bytes > WAITING_BYTES_MAX
    }

    /// Returns some waiters if the channel is full, different ones each time.
    pub(crate) fn waiters_if_full(&mut self) -> Vec<CallWaiter> {
        if !self.is_full() {
            return Vec::new();
        }
        self.waiters_checked = self.waiters_checked.wrapping_add(WAITERS_CHECKED_MAX);
        self.queues.waiters(self.waiters_checked, WAITERS_CHECKED_MAX, |call| call.waiter)
    }

    /// Whether no call waits for a reply.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.waiting().0 == 0 && self.later.is_empty() && !self.is_owed()
    }

    /// Whether what is in flight will end before long.
    pub(crate) fn can_be_quiet(&self) -> bool {
        matches!(self.phase, ChannelPhase::Up(_)) && !self.queues.any_patient()
    }

    /// Whether nothing is in flight, whatever waits to begin.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.phase, ChannelPhase::Up(_)) && !self.is_owed()
    }

    /// Whether an answer is owed, other than news.
    fn is_owed(&self) -> bool {
        self.calls.len() > self.waits
    }

    fn room(&self) -> ChannelRoom {
        let calls = CALLS_MAX.saturating_sub(self.calls.len());
        ChannelRoom { calls: calls as u32, slots: self.slots_free.into() }
    }

    fn begin_call(&mut self, mut call: ServerCall, begun: Instant) {
        let ticket = self.calls.begin(call.spec.needs.once, ()).expect("tag and slot were free");
        if call.spec.needs.once {
            self.slots_free -= 1;
            call.since = Some(SystemTime::now());
        }
        let remote_ops = match call.spec.frame.direction() {
            Direction::Metadata => call.payer.count_remote_ops(),
            Direction::Read | Direction::Write => 0,
        };
        call.spec.frame.stamp(ticket, call.pays().number, remote_ops);
        self.out.push(&call.spec.frame);
        self.in_flight[usize::from(ticket.tag.0)] =
            Some(CallInFlight::Call { call, begun, flushed: None });
    }

    fn begin_control(&mut self, control: SessionControl) {
        if let SessionControl::Donate(tag, _, donor) = &control {
            // It may have been answered meanwhile, and its tag be another's.
            let waits = match &self.in_flight[usize::from(tag.0)] {
                Some(CallInFlight::Call { call, .. }) => Arc::ptr_eq(call.pays(), donor),
                _ => false,
            };
            if !waits {
                return;
            }
        }
        let ticket = self.calls.begin(false, ()).expect("a tag was free");
        self.waits += usize::from(matches!(control, SessionControl::Events));
        self.out.push(&control.frame(ticket));
        self.in_flight[usize::from(ticket.tag.0)] = Some(CallInFlight::Control(control));
    }

    fn answered<'a>(
        &mut self,
        control: SessionControl,
        reply: AnyReply<'a>,
    ) -> Result<ChannelNews<'a>, Broken> {
        match (control, answer_of(reply)) {
            (SessionControl::Flush(old), _) => {
                let place = self.in_flight[usize::from(old.0)].take();
                match place {
                    Some(CallInFlight::Call { call, .. }) => {
                        self.flushed -= 1;
                        self.end(old, call.spec.needs.once);
                        self.queues.ended(&call);
                        let answer = Err(Errno::INTR);
                        Ok(ChannelNews::Done { done: call.done, answer, written: None })
                    }
                    Some(CallInFlight::Flushed { once }) => {
                        self.end(old, once);
                        Ok(ChannelNews::Unchanged)
                    }
                    _ => {
                        Err(Broken::Protocol(format!("received two replies to the flush of {old}")))
                    }
                }
            }
            (SessionControl::Identity(payer), answer) => {
                match answer {
                    Ok(AnyReply::Ext(ExtReply::Identity { requests, bytes })) => {
                        payer.set_window(requests, bytes);
                    }
                    Ok(_) => return Err(Broken::Protocol("unexpected reply to Identity".into())),
                    Err(error) => payer.refuse(error),
                }
                Ok(ChannelNews::Identity(payer))
            }
            (SessionControl::Events, Ok(AnyReply::Ext(ExtReply::Events { data }))) => {
                Ok(ChannelNews::Events(data))
            }
            (SessionControl::Ping(at), _) => {
                self.renewed = self.renewed.max(at);
                Ok(ChannelNews::Unchanged)
            }
            // A proxy that does not know it leaves them in the writer's queue.
            (
                SessionControl::Donate(..) | SessionControl::Events | SessionControl::Retire(_),
                _,
            ) => Ok(ChannelNews::Unchanged),
        }
    }

    fn end(&mut self, tag: Tag, once: bool) {
        self.calls.end(tag);
        self.slots_free += u16::from(once);
    }
}

/// Returns the range of an answered write, and its number.
fn written(
    payer: Arc<SessionIdentity>,
    ask: CallSpec,
    answer: &CallReply<'_>,
) -> Option<(u64, SentWrite)> {
    let (node, place) = ask.replayable?;
    let (number, start) = match answer {
        Ok(AnyReply::Ext(ExtReply::Write { count, number }))
            if u64::from(*count) == place.end - place.start =>
        {
            (*number, place.start)
        }
        Ok(AnyReply::Ext(ExtReply::Append { offset, number })) => (*number, *offset),
        _ => return None,
    };
    let place = start..start + (place.end - place.start);
    Some((number, SentWrite { node, payer, frame: ask.frame, range: place }))
}

impl AddAssign for ChannelStats {
    fn add_assign(&mut self, other: ChannelStats) {
        self.ok += other.ok;
        self.errors += other.errors;
        self.connected += other.connected;
        self.connections_down += other.connections_down;
    }
}

/// Messages of a channel at a time: the windows of some tens of throttled jobs.
pub(crate) const TAGS: u16 = 1024;
/// Calls of a channel at a time; the rest of the tags is for what the channel says itself.
const CALLS_MAX: usize = 992;
/// Slots that a channel asks for: calls at a time that must not be executed twice.
pub(crate) const SLOTS: u16 = 64;
/// Calls that wait in one channel before no more are taken from the kernel, and their bytes: a
/// throttled job with a thousand writers is to leave room for the next request of others.
const WAITING_MAX: usize = 16_384;
const WAITING_BYTES_MAX: usize = 512 << 20;
/// Number of processes that are checked in a full channel at once: each is a file of /proc to read.
const WAITERS_CHECKED_MAX: usize = 512;
/// Time without a message, with calls in flight, after which the proxy is asked for a sign of life,
const PING_AFTER: Duration = Duration::from_secs(5);
/// and time after that when the connection counts as lost.
const PING_PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks of time limits.
pub(super) const TICK: Duration = Duration::from_millis(500);

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
