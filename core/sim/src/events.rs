//! Future events, by time and then by the order in which they were added.
//!
//! ```text
//!   push(time, event) ─► heap by (time, sequence) ─► pop(until): the next one, or none yet
//! ```
//!
//! An event is a few plain numbers: indices into the world's tables. Events that name a request
//! carry its stamp, and are void when the request has another one by then.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use model::Time;

/// An event at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimEvent {
    /// A request reaches its proxy.
    Arrive { request: u32, stamp: u32 },
    /// The target has served a request.
    Served { request: u32, stamp: u32 },
    /// The target may have served some of those that share it.
    Tick { proxy: u32, epoch: u32 },
    /// A target has written back a piece.
    Flushed { proxy: u32, life: u32 },
    /// A reply reaches its client.
    Reply { request: u32, stamp: u32 },
    /// A client's timeout for a reply expires, and it sends again.
    Resend { request: u32, stamp: u32 },
    /// The deadline of a scheduler is reached.
    Poll { proxy: u32 },
    /// The think time of one of a client's loops is over.
    Loop { client: u32 },
    /// A client's next request of an open loop is due.
    Timer { client: u32 },
    /// A client's pause is over.
    Next { client: u32 },
    /// A copy of a job begins.
    Begin { copy: u32 },
    /// A copy of a job ends.
    End { copy: u32 },
    /// A fault of the scenario begins.
    Fault { fault: u32 },
    /// A fault is over.
    FaultEnd { fault: u32 },
    /// Other rules come into force.
    Change { change: u32 },
    /// Rows of entitlements change.
    Rows { change: u32 },
    /// A proxy reports its usage.
    Account { proxy: u32 },
    /// A control message between a proxy and a controller arrives.
    ControlMsg { message: u32 },
    /// A controller is to be polled.
    Decide { control: u32 },
    /// Something is done with reservations.
    Reserve { change: u32 },
    /// The calendar reads its clock.
    CalendarTick,
    /// The store has written a record of the calendar.
    CalendarWritten { number: u32 },
    /// A second is over.
    Second,
    /// Waiting requests are sampled.
    Sample,
}

/// The future events of a run, in order of time and then of insertion.
#[derive(Debug, Default)]
pub(crate) struct SimEvents {
    heap: BinaryHeap<SimEventEntry>,
    sequence: u64,
}

#[derive(Debug)]
struct SimEventEntry {
    time: Time,
    sequence: u64,
    event: SimEvent,
}

impl SimEvents {
    pub(crate) fn push(&mut self, time: Time, event: SimEvent) {
        self.sequence += 1;
        self.heap.push(SimEventEntry { time, sequence: self.sequence, event });
    }

    /// The next event, unless it is later than `until`.
    pub(crate) fn pop(&mut self, until: Time) -> Option<(Time, SimEvent)> {
        if self.heap.peek()?.time > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.time, entry.event))
    }

    /// The time of the next event.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.time)
    }
}

impl Ord for SimEventEntry {
    /// The heap returns its greatest: the earliest event.
    fn cmp(&self, other: &SimEventEntry) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

impl PartialOrd for SimEventEntry {
    fn partial_cmp(&self, other: &SimEventEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SimEventEntry {
    fn eq(&self, other: &SimEventEntry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SimEventEntry {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_time_as_they_were_put_in() {
        let mut events = SimEvents::default();
        let at = Time::from_nanos;
        for (time, client) in [(5, 0), (3, 1), (5, 2), (3, 3), (9, 4)] {
            events.push(at(time), SimEvent::Loop { client });
        }
        let order: Vec<_> = std::iter::from_fn(|| events.pop(at(5))).collect();
        let expected = [(3, 1), (3, 3), (5, 0), (5, 2)];
        assert_eq!(order, expected.map(|(time, client)| (at(time), SimEvent::Loop { client })));
        assert_eq!(events.next_time(), Some(at(9)));
    }
}
