//! Waiters that wait no longer: their calls are cancelled, or go on without them.

use model::{Nanos, Time};
use ninep::Tag;

use super::{ChannelCall, ChannelControl, ChannelPhase, ClientChannel, InFlight};

/// Result of looking for an interrupted call.
#[derive(Debug)]
pub enum Interrupted<C> {
    /// No call of the channel is it.
    NotHere,
    /// It is being flushed: its end follows.
    Flushing,
    /// It was not executed, nor will be: its waiter gets EINTR.
    Removed(C),
    /// It may be executed, and its waiter was detached.
    Detached,
}

impl<C: ChannelCall> ClientChannel<C> {
    /// The call that `is` names is interrupted. `detach` is passed a call that is in flight without a
    /// connection: it is sent once more with the others and flushed then, so that its slot goes on
    /// counting; nobody waits for that.
    pub fn interrupt(
        &mut self,
        is: impl Fn(&C) -> bool,
        detach: impl FnOnce(&mut C),
        now: Time,
    ) -> Interrupted<C> {
        if let Some(call) = self.queues.remove(&is) {
            return Interrupted::Removed(call);
        }
        if let Some(at) = self.later.iter().position(|(_, call)| is(call)) {
            return Interrupted::Removed(self.later.swap_remove(at).1);
        }
        if let Some(at) = self.in_doubt.iter().position(&is) {
            return Interrupted::Removed(self.in_doubt.swap_remove(at));
        }
        let found = self.in_flight.iter_mut().zip(0..).find_map(|(place, tag)| match place {
            Some(InFlight::Call { call, flushed, .. }) if is(call) => {
                Some((call, flushed, Tag(tag)))
            }
            _ => None,
        });
        let Some((call, flushed, tag)) = found else { return Interrupted::NotHere };
        if flushed.replace(now).is_none() {
            self.flushed += 1;
            self.control.push_front(ChannelControl::Flush(tag));
        }
        if self.phase == ChannelPhase::Up {
            return Interrupted::Flushing;
        }
        detach(call);
        Interrupted::Detached
    }

    /// The call that `is` names, wherever it is.
    pub fn find(&self, is: impl Fn(&C) -> bool) -> Option<&C> {
        let in_flight = self.in_flight.iter().flatten().filter_map(|one| match one {
            InFlight::Call { call, .. } => Some(call),
            _ => None,
        });
        let later = self.later.iter().map(|(_, call)| call);
        let mut all = in_flight.chain(later).chain(&self.in_doubt);
        self.queues.find(&is).or_else(|| all.find(|call| is(call)))
    }

    /// The waiters, as `waiter` names them, for flushes that the proxy does not answer for so long:
    /// it, or what it executes, hangs.
    pub fn overdue<W>(
        &self,
        patience: Nanos,
        waiter: impl Fn(&C) -> Option<W>,
        now: Time,
    ) -> Vec<W> {
        if self.flushed == 0 {
            return Vec::new();
        }
        let calls = self.in_flight.iter().flatten();
        let overdue = calls.filter_map(|one| match one {
            InFlight::Call { call, flushed: Some(since), .. } if now.since(*since) > patience => {
                waiter(call)
            }
            _ => None,
        });
        overdue.collect()
    }

    /// The call in flight that `is` names, for its waiter to be detached.
    pub fn in_flight_mut(&mut self, is: impl Fn(&C) -> bool) -> Option<&mut C> {
        self.in_flight.iter_mut().flatten().find_map(|one| match one {
            InFlight::Call { call, .. } if is(call) => Some(call),
            _ => None,
        })
    }

    /// Gives up all calls: returns those that are not in flight. `detach` is passed those that are:
    /// they are flushed once that can be said. Their slots go on counting, and a new session is not
    /// asked for them again.
    pub fn abandon_all(&mut self, mut detach: impl FnMut(&mut C), now: Time) -> Vec<C> {
        let mut all = self.queues.drain();
        all.extend(self.later.drain(..).map(|(_, call)| call));
        all.append(&mut self.in_doubt);
        for (place, tag) in self.in_flight.iter_mut().zip(0..) {
            if let Some(InFlight::Call { call, flushed, .. }) = place {
                detach(call);
                if flushed.replace(now).is_none() {
                    self.flushed += 1;
                    self.control.push_front(ChannelControl::Flush(Tag(tag)));
                }
            }
        }
        all
    }

    /// Some waiters, as `waiter` names them, of calls that have not begun, if the channel is full;
    /// different ones each time.
    pub fn waiters_if_full<W>(&mut self, waiter: impl Fn(&C) -> Option<W> + Clone) -> Vec<W> {
        if !self.is_full() {
            return Vec::new();
        }
        self.waiters_checked = self.waiters_checked.wrapping_add(WAITERS_CHECKED_MAX);
        self.queues.waiters(self.waiters_checked, WAITERS_CHECKED_MAX, waiter)
    }
}

/// Number of waiters that are checked in a full channel at once: for a mount each is a file of /proc
/// to read.
pub(super) const WAITERS_CHECKED_MAX: usize = 512;
