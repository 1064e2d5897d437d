//! The call table: the client's half of exactly-once, the calls in flight on one channel.
//!
//! ```text
//!   begin ─► CallId: tag, slot, sequence ─► sent ─► reply ─► end
//!                          │ connection lost
//!                          ├─ the server knows the session ─► calls_to_replay: sent again with the same ids
//!                          └─ it does not ─► restart: calls with a reply slot are in doubt;
//!                             the client finds out whether they were executed
//! ```
//!
//! The content of a call (`T`) is the caller's: enough to send it again and to complete the waiting
//! call.

use ninep::Tag;
use ninep::dialect::{NOSLOT, next_sequence};

/// The calls of one channel that have not been answered.
#[derive(Clone, Debug)]
pub struct CallTable<T> {
    /// By tag.
    calls: Vec<Option<CallEntry<T>>>,
    free_tags: Vec<u16>,
    /// The number of each reply slot's last call.
    sequences: Vec<u32>,
    free_slots: Vec<u16>,
    calls_begun: u64,
}

#[derive(Clone, Debug)]
struct CallEntry<T> {
    /// The number of calls begun, for their order.
    order: u64,
    slot: u16,
    sequence: u32,
    call: T,
}

/// The id of a call in its message, the same every time it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The tag of the message.
    pub tag: Tag,
    /// The reply slot; [`NOSLOT`] for a call that may be executed twice.
    pub slot: u16,
    /// The reply slot's number for the call; 0 without a reply slot.
    pub sequence: u32,
}

/// A call whose reply was lost with the server that knew the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost<T> {
    /// The call may be sent again.
    Repeatable(T),
    /// The call may have been executed, and must not be executed twice.
    InDoubt(T),
}

impl<T> CallTable<T> {
    /// Creates an empty table; at most `tags` calls at a time (NOTAG is not used), `slots` of them
    /// with a reply slot.
    pub fn new(tags: u16, slots: u16) -> CallTable<T> {
        CallTable {
            calls: (0..tags).map(|_| None).collect(),
            free_tags: (0..tags).rev().collect(),
            sequences: vec![0; slots.into()],
            free_slots: (0..slots).rev().collect(),
            calls_begun: 0,
        }
    }

    /// Begins a call; with `once` it must not be executed twice.
    ///
    /// # Errors
    /// If no tag or no reply slot is free, with the call: a reply will free one.
    pub fn begin(&mut self, once: bool, call: T) -> Result<CallId, T> {
        if self.free_tags.is_empty() || (once && self.free_slots.is_empty()) {
            return Err(call);
        }
        let tag = self.free_tags.pop().expect("checked above");
        let (slot, sequence) = if once {
            let slot = self.free_slots.pop().expect("checked above");
            let last = &mut self.sequences[usize::from(slot)];
            *last = next_sequence(*last);
            (slot, *last)
        } else {
            (NOSLOT, 0)
        };
        self.calls_begun += 1;
        self.calls[usize::from(tag)] =
            Some(CallEntry { order: self.calls_begun, slot, sequence, call });
        Ok(CallId { tag: Tag(tag), slot, sequence })
    }

    /// Ends the call with this tag, which was answered, or flushed without a reply.
    pub fn end(&mut self, tag: Tag) -> Option<T> {
        let call = self.calls.get_mut(usize::from(tag.0))?.take()?;
        self.free_tags.push(tag.0);
        if call.slot != NOSLOT {
            self.free_slots.push(call.slot);
        }
        Some(call.call)
    }

    /// How many calls are in flight.
    pub fn len(&self) -> usize {
        self.calls.len() - self.free_tags.len()
    }

    /// Whether no call is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Resumes the session over another connection: returns what to send again, in the order in
    /// which it was begun.
    pub fn calls_to_replay(&self) -> Vec<(CallId, &T)> {
        let ticket = |(tag, call): (u16, &CallEntry<T>)| CallId {
            tag: Tag(tag),
            slot: call.slot,
            sequence: call.sequence,
        };
        let calls = (0..).zip(&self.calls).filter_map(|(tag, c)| Some((tag, c.as_ref()?)));
        let mut all: Vec<_> = calls.map(|(tag, c)| (c.order, ticket((tag, c)), &c.call)).collect();
        all.sort_unstable_by_key(|(begun, ..)| *begun);
        all.into_iter().map(|(_, ticket, call)| (ticket, call)).collect()
    }

    /// Begins another session, with `slots` new reply slots: returns all calls of the old one, in
    /// the order in which they were begun.
    pub fn restart(&mut self, slots: u16) -> Vec<Lost<T>> {
        let mut all: Vec<_> = self.calls.iter_mut().filter_map(Option::take).collect();
        all.sort_unstable_by_key(|call| call.order);
        let tags = self.calls.len() as u16;
        let begun = self.calls_begun;
        *self = CallTable { calls_begun: begun, ..CallTable::new(tags, slots) };
        let lost = |call: CallEntry<T>| match call.slot {
            NOSLOT => Lost::Repeatable(call.call),
            _ => Lost::InDoubt(call.call),
        };
        all.into_iter().map(lost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_counts_its_calls_and_has_one_at_a_time() {
        let mut calls = CallTable::new(8, 1);
        let first = calls.begin(true, "mkdir").unwrap();
        assert_eq!((first.slot, first.sequence), (0, 1));
        assert_eq!(calls.begin(true, "rmdir"), Err("rmdir"), "the slot is taken");
        assert_eq!(calls.begin(false, "stat").unwrap().slot, NOSLOT);
        assert_eq!(calls.end(first.tag), Some("mkdir"));
        assert_eq!(calls.end(first.tag), None, "it was answered");
        assert_eq!(calls.begin(true, "rmdir").unwrap().sequence, 2);
    }

    #[test]
    fn no_more_calls_than_tags() {
        let mut calls = CallTable::new(2, 2);
        calls.begin(false, 1).unwrap();
        calls.begin(false, 2).unwrap();
        assert_eq!(calls.begin(false, 3), Err(3));
        assert_eq!(calls.len(), 2);
    }

    #[test]
    fn what_is_sent_again_keeps_its_ticket_and_order() {
        let mut calls = CallTable::new(8, 2);
        let early = calls.begin(false, "a").unwrap();
        let middle = calls.begin(true, "b").unwrap();
        calls.end(early.tag);
        let late = calls.begin(false, "c").unwrap();
        assert_eq!(late.tag, early.tag, "the tag is used again");
        assert_eq!(calls.calls_to_replay(), [(middle, &"b"), (late, &"c")]);
        let lost = calls.restart(1);
        assert_eq!(lost, [Lost::InDoubt("b"), Lost::Repeatable("c")]);
        assert!(calls.is_empty());
        assert_eq!(calls.begin(true, "d").unwrap().sequence, 1, "the new session's first");
    }
}
