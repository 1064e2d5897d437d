//! The channels of a session: which connection has each, who is next, and what each remembers.
//!
//! ```text
//!   enter ─┬─ the channel is free ─► Bind ─► calls: begin, end or abandon ─► release ─► free
//!          └─ another has it ─────► Wait: the other is closed, its calls end │
//!                  next ◄────────── the one to bind now ◄────────────────────┘
//! ```
//!
//! Invariant: a channel is given to its next connection when the calls of the one before have
//! ended, which the caller says with [`SessionChannels::release`]. So no call of a connection is
//! executed after one of the next (docs/decisions/0006).

use std::collections::BTreeMap;

use model::Time;

use super::{ReplyCache, ReplyLookup, ReplySlotError, SessionRefusal};

/// The channels of one session. A connection is a `K` of the caller, and a Tsession that waits
/// for its turn a `P`.
#[derive(Clone, Debug)]
pub struct SessionChannels<K, P> {
    channels: BTreeMap<u16, SessionChannel<K, P>>,
    left: Time,
    is_confirmed: bool,
}

#[derive(Clone, Debug)]
struct SessionChannel<K, P> {
    replies: ReplyCache,
    /// Number of reply slots.
    granted: u16,
    /// The connection that has it, or is next in line for it.
    connection: Option<K>,
    /// The next connection, once the calls of the former one have ended.
    next: Option<P>,
}

/// What becomes of a connection that enters a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelTurn<K, P> {
    /// The channel was free: it is bound now.
    Bind(P),
    /// Another connection has the channel or was next in line; the newcomer is next.
    Wait {
        /// The connection to close.
        before: K,
        /// The Tsession that was next in line: it is given up.
        given_up: Option<P>,
    },
}

/// The reply slot and sequence of a call that must be executed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The reply slot, from 0.
    pub slot: u16,
    /// The number of the call in its reply slot, from 1.
    pub sequence: u32,
}

impl<K, P> SessionChannels<K, P> {
    /// A session without channels, begun at `now`.
    pub fn new(now: Time) -> SessionChannels<K, P> {
        SessionChannels { channels: BTreeMap::new(), left: now, is_confirmed: false }
    }

    /// Puts a connection in line for a channel, which has `slots` reply slots if it is new, at
    /// most [`SLOTS_MAX`].
    ///
    /// # Errors
    /// If the channel is new and the session has [`CHANNELS_MAX`].
    pub fn enter(
        &mut self,
        channel: u16,
        slots: u16,
        connection: K,
        pending: P,
    ) -> Result<ChannelTurn<K, P>, SessionRefusal> {
        if self.channels.len() >= CHANNELS_MAX && !self.channels.contains_key(&channel) {
            return Err(SessionRefusal::TooManyChannels);
        }
        let granted = slots.min(SLOTS_MAX);
        let channel = self.channels.entry(channel).or_insert_with(|| SessionChannel {
            replies: ReplyCache::new(granted),
            granted,
            connection: None,
            next: None,
        });
        let Some(before) = channel.connection.replace(connection) else {
            return Ok(ChannelTurn::Bind(pending));
        };
        // The request that waited before is gone, or it would not have been sent again.
        Ok(ChannelTurn::Wait { before, given_up: channel.next.replace(pending) })
    }

    /// Notes that a message has come over a bound connection: its client has an Rsession of this
    /// session, since it may send nothing before.
    pub fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether a connection that is bound now resumes the session. Until the client has shown that it
    /// knows of the session, its Rsession may be lost, and each Tsession begins it: nothing has been
    /// executed in it.
    pub fn is_resumed(&self) -> bool {
        self.is_confirmed
    }

    /// Notes that no call of the channel's connection is in flight any more; returns the next in
    /// line, to be bound now.
    pub fn release(&mut self, channel: u16, now: Time) -> Option<P> {
        self.left = self.left.max(now);
        let channel = self.channels.get_mut(&channel)?;
        let next = channel.next.take();
        if next.is_none() {
            channel.connection = None;
        }
        next
    }

    /// Looks up a call of message type `kind`. `Some`: it was executed, and this was its reply.
    ///
    /// # Errors
    /// If the call violates the protocol of reply slots; nothing has changed then.
    ///
    /// # Panics
    /// If no connection has entered the channel.
    pub fn begin(
        &mut self,
        channel: u16,
        call: IdempotencyKey,
        kind: u8,
    ) -> Result<Option<&[u8]>, ReplySlotError> {
        let IdempotencyKey { slot, sequence } = call;
        match self.replies(channel).begin(slot, sequence, kind)? {
            ReplyLookup::New => Ok(None),
            ReplyLookup::Replay(reply) => Ok(Some(reply)),
            // On one connection a call is made once.
            ReplyLookup::Executing => Err(ReplySlotError::Overlapping { slot, sequence }),
        }
    }

    /// Keeps the whole reply of an executed call.
    ///
    /// # Panics
    /// If no connection has entered the channel.
    pub fn end(&mut self, channel: u16, call: IdempotencyKey, reply: &[u8]) {
        self.replies(channel).end(call.slot, call.sequence, reply);
    }

    /// Abandons a call that was cancelled before it was executed.
    ///
    /// # Panics
    /// If no connection has entered the channel.
    pub fn abandon(&mut self, channel: u16, call: IdempotencyKey) {
        self.replies(channel).abandon(call.slot, call.sequence);
    }

    /// The number of reply slots of a channel; 0 if no connection has entered it.
    pub fn granted(&self, channel: u16) -> u16 {
        self.channels.get(&channel).map_or(0, |channel| channel.granted)
    }

    /// The time when the last connection ended; `None` while one has, or waits for, a channel.
    pub fn left(&self) -> Option<Time> {
        let is_bound = self.channels.values().any(|channel| channel.connection.is_some());
        (!is_bound).then_some(self.left)
    }

    fn replies(&mut self, channel: u16) -> &mut ReplyCache {
        &mut self.channels.get_mut(&channel).expect("a bound channel is there").replies
    }
}

/// The most reply slots of a channel: each keeps a reply.
pub const SLOTS_MAX: u16 = 64;
/// The most channels of a session.
pub const CHANNELS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const MKDIR: u8 = 72;
    const FIRST: IdempotencyKey = IdempotencyKey { slot: 0, sequence: 1 };

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn a_connection_has_its_turn_when_the_calls_of_the_one_before_have_ended() {
        let mut channels = SessionChannels::new(at(1));
        assert_eq!(channels.enter(0, 2, 'a', "A"), Ok(ChannelTurn::Bind("A")));
        let waits = ChannelTurn::Wait { before: 'a', given_up: None };
        assert_eq!(channels.enter(0, 2, 'b', "B"), Ok(waits));
        assert_eq!(channels.release(0, at(5)), Some("B"));
        assert_eq!(channels.left(), None, "b has it");
        assert_eq!(channels.release(0, at(7)), None);
        assert_eq!(channels.left(), Some(at(7)));
        assert_eq!(channels.enter(0, 2, 'c', "C"), Ok(ChannelTurn::Bind("C")));
    }

    #[test]
    fn of_those_that_wait_the_last_is_next_and_the_others_are_given_up() {
        let mut channels = SessionChannels::new(at(1));
        channels.enter(0, 2, 'a', "A").unwrap();
        channels.enter(0, 2, 'b', "B").unwrap();
        let waits = ChannelTurn::Wait { before: 'b', given_up: Some("B") };
        assert_eq!(channels.enter(0, 2, 'c', "C"), Ok(waits));
        assert_eq!(channels.release(0, at(5)), Some("C"));
        assert_eq!(channels.release(0, at(6)), None);
    }

    #[test]
    fn a_session_is_new_until_its_client_has_sent_a_message_after_rsession() {
        let mut channels = SessionChannels::new(at(1));
        channels.enter(0, 2, 'a', "A").unwrap();
        assert!(!channels.is_resumed());
        channels.release(0, at(2));
        channels.enter(1, 2, 'b', "B").unwrap();
        assert!(!channels.is_resumed(), "the first Rsession may be lost");
        channels.confirm();
        channels.release(1, at(3));
        channels.enter(0, 2, 'c', "C").unwrap();
        assert!(channels.is_resumed());
    }

    #[test]
    fn replies_outlive_their_connection_and_are_those_of_their_channel() {
        let mut channels = SessionChannels::new(at(1));
        channels.enter(0, 1, 'a', "A").unwrap();
        assert_eq!(channels.begin(0, FIRST, MKDIR), Ok(None));
        let overlapping = ReplySlotError::Overlapping { slot: 0, sequence: 1 };
        assert_eq!(channels.begin(0, FIRST, MKDIR), Err(overlapping));
        channels.end(0, FIRST, b"made");
        channels.release(0, at(2));
        channels.enter(0, 1, 'b', "B").unwrap();
        assert_eq!(channels.begin(0, FIRST, MKDIR), Ok(Some(&b"made"[..])));
        channels.enter(1, 1, 'c', "C").unwrap();
        assert_eq!(channels.begin(1, FIRST, MKDIR), Ok(None), "another channel");
        channels.abandon(1, FIRST);
        assert_eq!(channels.begin(1, FIRST, MKDIR), Ok(None), "it was not executed");
    }

    #[test]
    fn a_channel_keeps_the_reply_slots_that_it_was_given_first() {
        let mut channels = SessionChannels::new(at(1));
        channels.enter(0, 3, 'a', "A").unwrap();
        channels.enter(0, 9, 'b', "B").unwrap();
        channels.enter(1, u16::MAX, 'c', "C").unwrap();
        assert_eq!([0, 1, 2].map(|channel| channels.granted(channel)), [3, SLOTS_MAX, 0]);
    }

    #[test]
    fn more_channels_than_a_session_may_have_are_refused() {
        let mut channels = SessionChannels::new(at(1));
        for channel in 0..CHANNELS_MAX as u16 {
            channels.enter(channel, 1, channel, channel).unwrap();
        }
        let beyond = CHANNELS_MAX as u16;
        assert_eq!(channels.enter(beyond, 1, 0, 0), Err(SessionRefusal::TooManyChannels));
        assert!(channels.enter(3, 1, 0, 0).is_ok(), "one that is there may be entered");
    }
}
