//! Sums of what a subject or a class was served, kept as requests complete.

use std::ops::AddAssign;

use model::{Amount, Bytes, Direction, Nanos, OpKind, Ops};

/// Sums since the subject or class was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    /// The payload that was read.
    pub read: Bytes,
    /// The payload that was written.
    pub written: Bytes,
    /// The number of backend operations.
    pub ops: Ops,
    /// Time from arrival to dispatch.
    pub queue_time: Nanos,
    /// Time from dispatch to completion.
    pub service_time: Nanos,
    /// The cost that was charged.
    pub cost: Nanos,
    /// The number of completed requests.
    pub requests: u64,
    /// The cost of remote service, as far as it was reported.
    pub remote: Nanos,
    /// Completed requests that a meter or a cap on slots had delayed.
    pub delayed: u64,
    /// The waiting time of the delayed requests.
    pub delayed_time: Nanos,
    /// The payload of the delayed reads and writes.
    pub delayed_bytes: Bytes,
}

/// A request at its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRequest {
    pub(crate) kind: OpKind,
    pub(crate) served: Amount,
    /// The cost that was charged.
    pub(crate) cost: Nanos,
    /// From its arrival to its dispatch.
    pub(crate) queue_time: Nanos,
    /// From its dispatch on.
    pub(crate) service_time: Nanos,
    /// Whether it waited for a meter or a cap.
    pub(crate) is_delayed: bool,
}

impl Usage {
    /// The figures that one completed request adds.
    #[inline]
    pub(crate) fn of(done: CompletedRequest) -> Usage {
        let CompletedRequest { kind, served, cost, queue_time, service_time, is_delayed } = done;
        let direction = kind.direction();
        let if_delayed = |amount: u64| if is_delayed { amount } else { 0 };
        let bytes_if = |is| if direction == is { served.bytes } else { Bytes::ZERO };
        Usage {
            read: bytes_if(Direction::Read),
            written: bytes_if(Direction::Write),
            ops: served.ops,
            queue_time,
            service_time,
            cost,
            requests: 1,
            remote: Nanos::ZERO,
            delayed: is_delayed.into(),
            delayed_time: Nanos::new(if_delayed(queue_time.get())),
            delayed_bytes: if direction == Direction::Metadata {
                Bytes::ZERO
            } else {
                Bytes::new(if_delayed(served.bytes.get()))
            },
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.read += other.read;
        self.written += other.written;
        self.ops += other.ops;
        self.queue_time += other.queue_time;
        self.service_time += other.service_time;
        self.cost += other.cost;
        self.requests += other.requests;
        self.remote += other.remote;
        // Seldom, so that most requests leave these fields' cache line alone.
        if other.delayed > 0 {
            self.delayed += other.delayed;
            self.delayed_time += other.delayed_time;
            self.delayed_bytes += other.delayed_bytes;
        }
    }
}
