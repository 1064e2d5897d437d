//! One connection of a session: what waits, what is in flight, what is to be sent.
//!
//! ```text
//!   push ─► queues ─► begin ─► FrameSink        disconnect ─► resume: the same once more
//!                      │                                └───► restart: again, or in doubt
//!                   by tag: Call ─► received ─► Done
//!                           Call, flushed ─► received or Rflush ─► Done
//! ```
//!
//! Calls come back to the caller, who tells their waiters once the channel is unlocked.
//!
//! Invariant: `in_flight[tag]` is something exactly while `calls` has the tag.
//!
//! Bounds: [`TAGS`] messages in flight; of waiting calls, [`ClientChannel::is_full`] says when to
//! take no more.

mod interrupts;
mod recovery;
mod replies;

use std::collections::VecDeque;
use std::ops::AddAssign;

use model::{Nanos, Time};
use ninep::{Fid, Tag};

pub use interrupts::Interrupted;
pub use replies::{ChannelEvent, IdentityWindow, RenewReply};

use super::call_queues::{CallQueues, ChannelRoom, QueuedCall};
use super::call_table::{CallId, CallTable};

/// A call of the caller's, and what its channel knows of it beside its queue.
pub trait ChannelCall: QueuedCall {
    /// The call's own identity, if the proxy is to learn of that first; for one call only.
    fn unsent_identity(&self) -> Option<Self::Identity>;
    /// Writes the id into the message; a call with a reply slot is passed the time of the wall
    /// clock, to know later what is older than it.
    fn begin(&mut self, id: CallId, wall_time: Option<Time>);
    /// The fid of a write to an open file: another's queue may be lent to it in flight.
    fn written_fid(&self) -> Option<Fid>;
    /// Whether the call goes in the queue of this identity.
    fn is_paid_by(&self, identity: &Self::Identity) -> bool;
}

/// Where a channel's messages go: to the connection, in this order.
pub trait FrameSink<C: ChannelCall> {
    /// Sends a call, whose message has its id.
    fn send_call(&mut self, call: &C);
    /// Sends a message of the channel with this id.
    fn send_control(&mut self, id: CallId, control: &ChannelControl<C::Identity>);
}

/// A message of a channel beside the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelControl<I> {
    /// Tells the proxy of an identity.
    Identity(I),
    /// The number of an identity that is not used any more.
    Retire(u32),
    /// Cancels the call with this tag.
    Flush(Tag),
    /// Another identity waits for the write to this fid with this tag.
    Donate(Tag, Fid, I),
    /// A ping with the time at which it was sent.
    Ping(Time),
    /// Waits for events of the session.
    Events,
    /// Joins the holders of leases, or renews: with the time from when the term counts.
    Renew {
        /// The life as a holder, from 1.
        life: u32,
        /// `RENEW_TERM`, `RENEW_JOIN` or `RENEW_LEAVE`.
        what: u8,
        /// When it was given to the channel.
        sent: Time,
    },
    /// Answers a recall of leases.
    Return {
        /// The number of the access that waits.
        access: u64,
        /// Whether what was recalled is not used any more.
        done: bool,
    },
    /// Gives leases back: encoded items.
    GiveBack(Vec<u8>),
}

/// One connection of the session.
#[derive(Debug)]
pub struct ClientChannel<C: ChannelCall> {
    phase: ChannelPhase,
    /// The session's life in which what is in flight was begun.
    epoch: u64,
    /// Calls that may have been executed before the proxy forgot the session.
    in_doubt: Vec<C>,
    calls: CallTable<()>,
    in_flight: Vec<Option<InFlight<C>>>,
    /// How many of them are calls that are being flushed, and how many wait for events: known
    /// without looking at all of them in every turn.
    flushed: usize,
    waits: usize,
    slots_free: u16,
    control: VecDeque<ChannelControl<C::Identity>>,
    queues: CallQueues<C>,
    /// Locks to be asked for later: the proxy had no room for one that waits, or others go first.
    later: Vec<(Time, C)>,
    /// Time until which locks are reserved for their holders in the former session.
    locks_from: Option<Time>,
    last_received: Time,
    /// The session was there then: what was sent at that time has been answered since.
    renewed: Time,
    pinged: Option<Time>,
    /// Number of waiting calls whose waiters were checked.
    waiters_checked: usize,
    stats: ChannelStats,
}

/// Counters of a channel since the mount began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Calls that were answered without an error.
    pub ok: u64,
    /// Calls that were answered with an error.
    pub errors: u64,
    /// Connections that were made.
    pub connected: u64,
    /// 1 while it has none and should.
    pub connections_down: u64,
}

/// Whether a channel has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelPhase {
    /// It has a connection.
    Up,
    /// Without a connection since then; the caller reconnects.
    Disconnected(Time),
    /// It will have none any more.
    Over,
}

/// Why a connection can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// A reply to nothing.
    #[error("received a reply with the unused tag {0}")]
    UnusedTag(Tag),
    /// A flush was answered twice, or names what was none.
    #[error("received two replies to the flush of {0}")]
    SecondFlush(Tag),
    /// A reply that is none to Tidentity.
    #[error("unexpected reply to Identity")]
    IdentityReply,
    /// Nothing came for so long, although a ping was sent.
    #[error("received nothing from the proxy for {:?}", .0.to_duration())]
    Silent(Nanos),
}

/// A message with a tag.
#[derive(Debug)]
enum InFlight<C: ChannelCall> {
    /// With the time when it was sent, and that since which it is being flushed, if it is.
    Call {
        call: C,
        begun: Time,
        flushed: Option<Time>,
    },
    /// Answered, but its tag is named by a flush that is not; with `once` it has a slot.
    Flushed {
        once: bool,
    },
    Control(ChannelControl<C::Identity>),
}

impl<C: ChannelCall> ClientChannel<C> {
    /// Without a connection, at first.
    pub fn new(now: Time) -> ClientChannel<C> {
        ClientChannel {
            phase: ChannelPhase::Disconnected(now),
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
            locks_from: None,
            last_received: now,
            renewed: now,
            pinged: None,
            waiters_checked: 0,
            stats: ChannelStats::default(),
        }
    }

    /// Adds a call, which begins when it may: poll [`ClientChannel::begin`].
    pub fn push(&mut self, call: C) {
        if let Some(identity) = call.unsent_identity() {
            self.control.push_back(ChannelControl::Identity(identity));
        }
        self.queues.push(call);
    }

    /// Adds a message beside the calls.
    pub fn push_control(&mut self, control: ChannelControl<C::Identity>) {
        self.control.push_back(control);
    }

    /// Adds a call that is made from this time on.
    pub fn push_later(&mut self, call: C, at: Time) {
        self.later.push((at, call));
    }

    /// Begins what may begin, into the sink. Gives the calls that failed before they began, each with
    /// its errno. `wall_time` is asked for calls with a reply slot only.
    pub fn begin(
        &mut self,
        sink: &mut impl FrameSink<C>,
        wall_time: impl Fn() -> Time,
        now: Time,
    ) -> Vec<(C, u32)> {
        let mut failed = Vec::new();
        if self.phase != ChannelPhase::Up {
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
            self.begin_control(control, sink);
        }
        while self.calls.len() < CALLS_MAX
            && let Some(next) = self.queues.next(self.room())
        {
            let call = match next {
                Ok(call) => call,
                Err(refused) => {
                    failed.push(refused);
                    continue;
                }
            };
            let needs = call.needs();
            match self.locks_from.filter(|from| needs.takes_lock && now < *from) {
                Some(from) => {
                    self.queues.ended(&call);
                    self.later.push((from, call));
                }
                None => self.begin_call(call, needs.once.then(&wall_time), sink, now),
            }
        }
        failed
    }

    /// Lends a waiter's queue to the writes that `is` names. True if there is something to be sent
    /// for it.
    pub fn donate(&mut self, is: impl Fn(&C) -> bool, donor: &C::Identity) -> bool
    where
        C::Identity: Clone,
    {
        let mut any = self.queues.donate(&is, donor);
        for (place, tag) in self.in_flight.iter_mut().zip(0..) {
            let Some(InFlight::Call { call, flushed: None, .. }) = place else { continue };
            if is(call)
                && let Some(fid) = call.written_fid()
                && self.queues.donate_begun(call, donor)
            {
                self.control.push_back(ChannelControl::Donate(Tag(tag), fid, donor.clone()));
                any = true;
            }
        }
        any
    }

    /// Sends a ping if one is due: after some silence while an answer is owed, and in any case if
    /// `is_checked`: while there are locks, to know since when they may be lost, and while another
    /// channel looks for the proxy, to know whether this one has it.
    ///
    /// # Errors
    /// If the last one was not answered in time.
    pub fn tick(&mut self, is_checked: bool, now: Time) -> Result<(), ChannelError> {
        if self.phase != ChannelPhase::Up || !(self.is_owed() || is_checked) {
            return Ok(());
        }
        let silent = now.since(self.last_received);
        match self.pinged {
            Some(at) if at > self.last_received => match now.since(at) < PING_PATIENCE {
                true => Ok(()),
                false => Err(ChannelError::Silent(silent)),
            },
            last => {
                let renewed = last.map_or(self.renewed, |at| at.max(self.renewed));
                if silent >= PING_AFTER || is_checked && now.since(renewed) >= PING_AFTER {
                    self.pinged = Some(now);
                    self.control.push_back(ChannelControl::Ping(now));
                }
                Ok(())
            }
        }
    }

    /// How long nothing may happen before [`ClientChannel::tick`] or [`ClientChannel::begin`] is due.
    pub fn next_tick(&self) -> Option<Nanos> {
        match self.phase {
            ChannelPhase::Up if self.is_owed() || !self.later.is_empty() => Some(TICK),
            ChannelPhase::Disconnected(_) => Some(TICK),
            _ => None,
        }
    }

    /// Whether it has a connection.
    pub fn phase(&self) -> ChannelPhase {
        self.phase
    }

    /// The session's life in which what is in flight was begun.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Since when the channel has been without a connection, if it waits for one.
    pub fn down_for(&self, now: Time) -> Option<Nanos> {
        match self.phase {
            ChannelPhase::Disconnected(since) => Some(now.since(since)),
            ChannelPhase::Up | ChannelPhase::Over => None,
        }
    }

    /// When a message last came.
    pub fn last_received(&self) -> Time {
        self.last_received
    }

    /// When the proxy last had the session for certain.
    pub fn renewed(&self) -> Time {
        self.renewed
    }

    /// The counters of the channel.
    pub fn stats(&self) -> ChannelStats {
        let is_down = matches!(self.phase, ChannelPhase::Disconnected(_));
        ChannelStats { connections_down: is_down.into(), ..self.stats }
    }

    /// Whether too many calls wait to take more requests.
    pub fn is_full(&self) -> bool {
        let (calls, bytes) = self.queues.waiting();
        calls > WAITING_MAX || bytes > WAITING_BYTES_MAX
    }

    /// Whether no call waits for a reply.
    pub fn is_idle(&self) -> bool {
        self.queues.waiting().0 == 0 && self.later.is_empty() && !self.is_owed()
    }

    /// Whether what is in flight will end before long.
    pub fn can_be_quiet(&self) -> bool {
        self.phase == ChannelPhase::Up && !self.queues.any_patient()
    }

    /// Whether nothing is in flight, whatever waits to begin.
    pub fn is_quiet(&self) -> bool {
        self.phase == ChannelPhase::Up && !self.is_owed()
    }

    /// Whether an answer is owed, other than events.
    fn is_owed(&self) -> bool {
        self.calls.len() > self.waits
    }

    fn room(&self) -> ChannelRoom {
        let calls = CALLS_MAX.saturating_sub(self.calls.len());
        ChannelRoom { calls: calls as u32, slots: self.slots_free.into() }
    }

    fn begin_call(
        &mut self,
        mut call: C,
        wall_time: Option<Time>,
        sink: &mut impl FrameSink<C>,
        begun: Time,
    ) {
        let once = wall_time.is_some();
        let id = self.calls.begin(once, ()).expect("tag and slot were free");
        self.slots_free -= u16::from(once);
        call.begin(id, wall_time);
        sink.send_call(&call);
        self.in_flight[usize::from(id.tag.0)] = Some(InFlight::Call { call, begun, flushed: None });
    }

    fn begin_control(
        &mut self,
        control: ChannelControl<C::Identity>,
        sink: &mut impl FrameSink<C>,
    ) {
        if let ChannelControl::Donate(tag, _, donor) = &control {
            // It may have been answered meanwhile, and its tag be another's.
            let waits = match &self.in_flight[usize::from(tag.0)] {
                Some(InFlight::Call { call, .. }) => call.is_paid_by(donor),
                _ => false,
            };
            if !waits {
                return;
            }
        }
        let id = self.calls.begin(false, ()).expect("a tag was free");
        self.waits += usize::from(matches!(control, ChannelControl::Events));
        sink.send_control(id, &control);
        self.in_flight[usize::from(id.tag.0)] = Some(InFlight::Control(control));
    }

    fn end(&mut self, tag: Tag, once: bool) {
        self.calls.end(tag);
        self.slots_free += u16::from(once);
    }
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
pub const TAGS: u16 = 1024;
/// Calls of a channel at a time; the rest of the tags is for what the channel says itself.
const CALLS_MAX: usize = 992;
/// Calls that wait in one channel before no more are taken, and their bytes: a throttled job with
/// a thousand writers is to leave room for the next request of others.
const WAITING_MAX: usize = 16_384;
const WAITING_BYTES_MAX: usize = 512 << 20;
/// Time without a message, with calls in flight, after which the proxy is asked for a sign of life,
const PING_AFTER: Nanos = Nanos::from_secs(5);
/// and time after that when the connection counts as lost.
const PING_PATIENCE: Nanos = Nanos::from_secs(10);
/// Interval of checks of time limits.
pub const TICK: Nanos = Nanos::from_millis(500);

#[cfg(test)]
mod tests;
