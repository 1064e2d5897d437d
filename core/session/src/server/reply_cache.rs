//! The reply cache: the server's half of exactly-once, one reply for each reply slot of a channel.
//!
//! The idea is NFSv4.1's (RFC 8881, section 2.10.6). A client numbers the calls of a reply slot and
//! has at most one of them in flight, so the server keeps only the last reply. A call that is sent
//! again with the same number is not executed again.
//!
//! ```text
//!          sequence + 1                 end
//!   done ───────────────► executing ───────────► done   the same sequence: the reply again
//!     ▲                       │ abandon
//!     └──── sequence, + 1 ── undone                     the same sequence: executed after all
//! ```

use ninep::Tag;
use ninep::dialect::next_sequence;

/// The replies that are kept for a channel.
#[derive(Clone, Debug, Default)]
pub struct ReplyCache {
    slots: Vec<ReplySlot>,
}

#[derive(Clone, Debug, Default)]
struct ReplySlot {
    sequence: u32,
    /// The type of the message that was called last.
    kind: u8,
    state: ReplySlotState,
}

#[derive(Clone, Debug, Default)]
enum ReplySlotState {
    /// No call yet, or the last call was abandoned.
    #[default]
    Undone,
    Executing,
    Done(Box<[u8]>),
}

/// The result of looking a call up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyLookup<'s> {
    /// A new call: execute it, then [`ReplyCache::end`] or [`ReplyCache::abandon`].
    New,
    /// An executed call: send this reply again, as [`replay`](ReplyCache::replay) does.
    Replay(&'s [u8]),
    /// A call that is being executed: its reply will follow.
    Executing,
}

/// A call that violates the protocol of reply slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplySlotError {
    /// The channel has fewer reply slots.
    #[error("reply slot {slot} does not exist; the channel has {slots}")]
    NoSuchSlot {
        /// The reply slot of the call.
        slot: u16,
        /// The number of reply slots.
        slots: usize,
    },
    /// The number is neither the last call's nor the next.
    #[error("sequence {sequence} in reply slot {slot} must be {last} or its successor")]
    Misordered {
        /// The reply slot of the call.
        slot: u16,
        /// The number of the call.
        sequence: u32,
        /// The number of the last call in that reply slot.
        last: u32,
    },
    /// The next call was sent before the last was answered.
    #[error(
        "sequence {sequence} in reply slot {slot} arrived while the call before it is being executed"
    )]
    Overlapping {
        /// The reply slot of the call.
        slot: u16,
        /// The number of the call.
        sequence: u32,
    },
    /// The number is the last call's, but the message differs.
    #[error(
        "sequence {sequence} in reply slot {slot} changed from message type {first_kind} to {kind}"
    )]
    Different {
        /// The reply slot of the call.
        slot: u16,
        /// The number of the call.
        sequence: u32,
        /// The type of the first call.
        first_kind: u8,
        /// The type of this call.
        kind: u8,
    },
}

impl ReplyCache {
    /// Creates a channel with `count` reply slots and no calls.
    pub fn new(count: u16) -> ReplyCache {
        ReplyCache { slots: vec![ReplySlot::default(); count.into()] }
    }

    /// Looks up a call of message type `kind` in a reply slot.
    ///
    /// # Errors
    /// If the call violates the protocol of reply slots; nothing has changed then.
    pub fn begin(
        &mut self,
        slot: u16,
        sequence: u32,
        kind: u8,
    ) -> Result<ReplyLookup<'_>, ReplySlotError> {
        let slots = self.slots.len();
        let at = self
            .slots
            .get_mut(usize::from(slot))
            .ok_or(ReplySlotError::NoSuchSlot { slot, slots })?;
        let again = sequence == at.sequence && sequence != 0;
        if again && at.kind != kind {
            return Err(ReplySlotError::Different { slot, sequence, first_kind: at.kind, kind });
        }
        match at.state {
            ReplySlotState::Executing if again => return Ok(ReplyLookup::Executing),
            ReplySlotState::Done(_) if again => {
                let ReplySlotState::Done(reply) = &at.state else {
                    unreachable!("its state was checked above")
                };
                return Ok(ReplyLookup::Replay(reply));
            }
            ReplySlotState::Undone if again => {}
            _ if sequence != next_sequence(at.sequence) => {
                return Err(ReplySlotError::Misordered { slot, sequence, last: at.sequence });
            }
            ReplySlotState::Executing => {
                return Err(ReplySlotError::Overlapping { slot, sequence });
            }
            _ => {}
        }
        *at = ReplySlot { sequence, kind, state: ReplySlotState::Executing };
        Ok(ReplyLookup::New)
    }

    /// Keeps the whole reply of an executed call.
    pub fn end(&mut self, slot: u16, sequence: u32, reply: &[u8]) {
        if let Some(at) = self.executing(slot, sequence) {
            at.state = ReplySlotState::Done(reply.into());
        }
    }

    /// Abandons a call that was taken out of a queue and not executed.
    pub fn abandon(&mut self, slot: u16, sequence: u32) {
        if let Some(at) = self.executing(slot, sequence) {
            at.state = ReplySlotState::Undone;
        }
    }

    /// Appends a kept reply as the answer to `tag`.
    pub fn replay(reply: &[u8], tag: Tag, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(reply);
        out[start + 5..start + 7].copy_from_slice(&tag.0.to_le_bytes());
    }

    /// The bytes of all kept replies.
    pub fn bytes(&self) -> usize {
        let reply = |slot: &ReplySlot| match &slot.state {
            ReplySlotState::Done(reply) => reply.len(),
            _ => 0,
        };
        self.slots.iter().map(reply).sum()
    }

    fn executing(&mut self, slot: u16, sequence: u32) -> Option<&mut ReplySlot> {
        let at = self.slots.get_mut(usize::from(slot))?;
        (at.sequence == sequence && matches!(at.state, ReplySlotState::Executing)).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MKDIR: u8 = 72;

    #[test]
    fn a_call_that_comes_again_gets_the_first_reply() {
        let mut slots = ReplyCache::new(2);
        assert_eq!(slots.begin(1, 1, MKDIR), Ok(ReplyLookup::New));
        assert_eq!(slots.begin(1, 1, MKDIR), Ok(ReplyLookup::Executing));
        slots.end(1, 1, b"reply");
        assert_eq!(slots.begin(1, 1, MKDIR), Ok(ReplyLookup::Replay(b"reply")));
        assert_eq!(slots.begin(1, 2, MKDIR), Ok(ReplyLookup::New));
        assert_eq!(slots.begin(0, 1, MKDIR), Ok(ReplyLookup::New), "another slot");
        assert_eq!(slots.bytes(), 0, "the reply is not needed any more");
    }

    #[test]
    fn a_call_that_was_taken_back_is_executed_when_it_comes_again() {
        let mut slots = ReplyCache::new(1);
        assert_eq!(slots.begin(0, 1, MKDIR), Ok(ReplyLookup::New));
        slots.abandon(0, 1);
        assert_eq!(slots.begin(0, 1, MKDIR), Ok(ReplyLookup::New));
        slots.abandon(0, 1);
        assert_eq!(slots.begin(0, 2, MKDIR), Ok(ReplyLookup::New), "or the client gives it up");
        slots.end(0, 1, b"late");
        assert_eq!(
            slots.begin(0, 2, MKDIR),
            Ok(ReplyLookup::Executing),
            "what is late changes nothing"
        );
    }

    #[test]
    fn calls_outside_the_rules_are_named_and_change_nothing() {
        let mut slots = ReplyCache::new(1);
        let no_slot = ReplySlotError::NoSuchSlot { slot: 1, slots: 1 };
        assert_eq!(slots.begin(1, 1, MKDIR), Err(no_slot));
        for got in [0, 2, u32::MAX] {
            let misordered = ReplySlotError::Misordered { slot: 0, sequence: got, last: 0 };
            assert_eq!(slots.begin(0, got, MKDIR), Err(misordered));
        }
        assert_eq!(slots.begin(0, 1, MKDIR), Ok(ReplyLookup::New));
        assert_eq!(
            slots.begin(0, 2, MKDIR),
            Err(ReplySlotError::Overlapping { slot: 0, sequence: 2 })
        );
        slots.end(0, 1, b"made");
        let different =
            ReplySlotError::Different { slot: 0, sequence: 1, first_kind: MKDIR, kind: 76 };
        assert_eq!(slots.begin(0, 1, 76), Err(different));
        assert_eq!(slots.begin(0, 1, MKDIR), Ok(ReplyLookup::Replay(b"made")));
    }

    #[test]
    fn a_repeated_reply_has_the_tag_of_the_new_try() {
        let mut out = b"before".to_vec();
        ReplyCache::replay(&ninep::error_reply(Tag(1), 17), Tag(0x0203), &mut out);
        assert_eq!(out[6..], ninep::error_reply(Tag(0x0203), 17));
    }
}
