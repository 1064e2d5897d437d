//! Totals of the service of a subject, as a proxy reports and a controller counts them.
//!
//! ```text
//!   totals of one moment ─ since ─► what was served between ─ add ─► totals of a class, a proxy
//! ```

use crate::{Accesses, OpKind};

/// The service of a subject, a class or a proxy since its beginning. Every number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// The cost of the requests to their targets.
    pub cost_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    pub delayed: u64,
    /// The time that the delayed requests waited, summed up.
    pub delayed_ns: u64,
    /// The payload bytes of the delayed requests.
    pub delayed_bytes: u64,
    /// The time in which the job had requests.
    pub active_ns: u64,
    /// The part of that time in which a request was delayed.
    pub delayed_span_ns: u64,
    /// Operations by kind, in the order of [`OpKind::ALL`].
    pub ops: [u64; OpKind::COUNT],
    /// The sizes and order of reads.
    pub reads: Accesses,
    /// The sizes and order of writes.
    pub writes: Accesses,
}

impl UsageTotals {
    /// Adds other totals, each number by itself.
    pub fn add(&mut self, other: &UsageTotals) {
        self.merge(other, u64::saturating_add);
    }

    /// The growth since earlier totals.
    pub fn since(mut self, before: &UsageTotals) -> UsageTotals {
        self.merge(before, u64::saturating_sub);
        self
    }

    /// The payload bytes of requests of a kind.
    pub fn bytes_of(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read => self.read_bytes,
            OpKind::Write => self.written_bytes,
            _ => 0,
        }
    }

    /// The operations of a kind.
    pub fn ops_of(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    fn merge(&mut self, other: &UsageTotals, with: impl Fn(u64, u64) -> u64) {
        let merge = |sum: &mut u64, other: u64| *sum = with(*sum, other);
        merge(&mut self.read_bytes, other.read_bytes);
        merge(&mut self.written_bytes, other.written_bytes);
        merge(&mut self.cost_ns, other.cost_ns);
        merge(&mut self.delayed, other.delayed);
        merge(&mut self.delayed_ns, other.delayed_ns);
        merge(&mut self.delayed_bytes, other.delayed_bytes);
        merge(&mut self.active_ns, other.active_ns);
        merge(&mut self.delayed_span_ns, other.delayed_span_ns);
        self.ops.iter_mut().zip(other.ops).for_each(|(sum, other)| merge(sum, other));
        for (sums, others) in [(&mut self.reads, other.reads), (&mut self.writes, other.writes)] {
            let mut fields = sums.fields();
            fields.iter_mut().zip(others.fields()).for_each(|(sum, other)| merge(sum, other));
            *sums = Accesses::from_fields(fields);
        }
    }
}
