//! The client's half of exactly-once: the calls that one channel has under way.
//!
//! ```text
//!   begin ─► Ticket: tag, slot, sequence ─► sent ─► reply ─► end
//!                          │ connection lost
//!                          ├─ the server knows the session ─► again: the same tickets once more
//!                          └─ it does not ─► restart: calls with a slot may have been
//!                             executed or not, and must be settled by looking
//! ```
//!
//! What a call is (`T`) is the caller's: enough to send it again and to answer whoever
//! waits for it.

use super::{NOSLOT, next_sequence};
use crate::types::Tag;

/// The calls of one channel that have not been answered.
#[derive(Clone, Debug)]
pub struct CallTable<T> {
    /// By tag.
    calls: Vec<Option<CallEntry<T>>>,
    free_tags: Vec<u16>,
    /// The number of each slot's last call.
    sequences: Vec<u32>,
    free_slots: Vec<u16>,
    begun: u64,
}

#[derive(Clone, Debug)]
struct CallEntry<T> {
    /// Counts calls, for their order.
    begun: u64,
    slot: u16,
    sequence: u32,
    call: T,
}

/// What a call's message carries, the first time and every time it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The message's tag.
    pub tag: Tag,
    /// [`NOSLOT`] for a call that may be executed twice.
    pub slot: u16,
    /// The slot's number for the call; 0 without a slot.
    pub sequence: u32,
}

/// A call whose reply died with the server that knew the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost<T> {
    /// It may be called again.
    Repeatable(T),
    /// It may have been executed, and must not be executed twice.
    InDoubt(T),
}

impl<T> CallTable<T> {
    /// No calls; at most `tags` at a time (NOTAG is none of them), `slots` of them remembered by
    /// the server.
    pub fn new(tags: u16, slots: u16) -> CallTable<T> {
        CallTable {
            calls: (0..tags).map(|_| None).collect(),
            free_tags: (0..tags).rev().collect(),
            sequences: vec![0; slots.into()],
            free_slots: (0..slots).rev().collect(),
            begun: 0,
        }
    }

    /// Begins a call; with `once` it must not be executed twice.
    ///
    /// # Errors
    /// Gives the call back if no tag or no slot is free: an answer will free one.
    pub fn begin(&mut self, once: bool, call: T) -> Result<CallId, T> {
        if self.free_tags.is_empty() || (once && self.free_slots.is_empty()) {
            return Err(call);
        }
        let tag = self.free_tags.pop().expect("looked at above");
        let (slot, sequence) = if once {
            let slot = self.free_slots.pop().expect("looked at above");
            let last = &mut self.sequences[usize::from(slot)];
            *last = next_sequence(*last);
            (slot, *last)
        } else {
            (NOSLOT, 0)
        };
        self.begun += 1;
        self.calls[usize::from(tag)] = Some(CallEntry { begun: self.begun, slot, sequence, call });
        Ok(CallId { tag: Tag(tag), slot, sequence })
    }

    /// The call with this tag was answered, or flushed without an answer.
    pub fn end(&mut self, tag: Tag) -> Option<T> {
        let call = self.calls.get_mut(usize::from(tag.0))?.take()?;
        self.free_tags.push(tag.0);
        if call.slot != NOSLOT {
            self.free_slots.push(call.slot);
        }
        Some(call.call)
    }

    /// How many calls are under way.
    pub fn len(&self) -> usize {
        self.calls.len() - self.free_tags.len()
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The session goes on over another connection: what to send again, in the order in
    /// which it was begun.
    pub fn again(&self) -> Vec<(CallId, &T)> {
        let ticket = |(tag, call): (u16, &CallEntry<T>)| CallId {
            tag: Tag(tag),
            slot: call.slot,
            sequence: call.sequence,
        };
        let calls = (0..).zip(&self.calls).filter_map(|(tag, c)| Some((tag, c.as_ref()?)));
        let mut all: Vec<_> = calls.map(|(tag, c)| (c.begun, ticket((tag, c)), &c.call)).collect();
        all.sort_unstable_by_key(|(begun, ..)| *begun);
        all.into_iter().map(|(_, ticket, call)| (ticket, call)).collect()
    }

    /// Another session begins, with `slots` new slots: all calls of the old one, in the
    /// order in which they were begun.
    pub fn restart(&mut self, slots: u16) -> Vec<Lost<T>> {
        let mut all: Vec<_> = self.calls.iter_mut().filter_map(Option::take).collect();
        all.sort_unstable_by_key(|call| call.begun);
        let tags = self.calls.len() as u16;
        let begun = self.begun;
        *self = CallTable { begun, ..CallTable::new(tags, slots) };
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
        assert_eq!(calls.again(), [(middle, &"b"), (late, &"c")]);
        let lost = calls.restart(1);
        assert_eq!(lost, [Lost::InDoubt("b"), Lost::Repeatable("c")]);
        assert!(calls.is_empty());
        assert_eq!(calls.begin(true, "d").unwrap().sequence, 1, "the new session's first");
    }
}
