//! The counters of a subject.
//!
//! ```text
//!   Counters: 8 amounts, operations of each kind, sizes and order of reads and of writes:
//!             all fields are a row of numbers
//!   of a line: cumulative, as the proxy reports them      of a subject: sums of differences
//! ```

use model::{Accesses, OpKind};

/// Amounts and operations: cumulative in a report, sums everywhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// The cost of the requests to their targets.
    pub cost_ns: u64,
    /// Requests that waited for a meter.
    pub delayed: u64,
    /// The time that they waited.
    pub delayed_ns: u64,
    /// Operations by kind, in the order of [`OpKind::ALL`]; [`Counters::ops_of`] reads one.
    pub ops: [u64; OpKind::COUNT],
    /// Payload of the requests that waited for a meter.
    pub delayed_bytes: u64,
    /// Sizes and order of reads.
    pub reads: Accesses,
    /// Sizes and order of writes.
    pub writes: Accesses,
    /// The time in which a job had requests; of other subjects a sum over jobs.
    pub active_ns: u64,
    /// The part of it in which a limit delayed at least one request.
    pub delayed_span_ns: u64,
}

/// Fields of [`Counters`]. A row of few fields is the beginning of one of more, so what files
/// have keeps its place.
pub(crate) const FIELDS: usize = TIMES + 2;
/// Fields in the first form of a proxy's state.
pub(crate) const FIELDS_1: usize = LAST + 1;
/// Where operations end.
const LAST: usize = 5 + OpKind::COUNT;
/// Where times begin.
const TIMES: usize = FIELDS_1 + 2 * ACCESSES;
/// Fields of [`Accesses`].
const ACCESSES: usize = Accesses::SIZES + 1;

// one bit for each field in the mask of a row
const _: () = assert!(FIELDS < 64);

impl Counters {
    /// Operations of one kind.
    pub fn ops_of(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    /// Operations that are neither reads nor writes.
    pub fn metadata_ops(&self) -> u64 {
        let data = self.ops_of(OpKind::Read).saturating_add(self.ops_of(OpKind::Write));
        self.ops.iter().fold(0u64, |sum, ops| sum.saturating_add(*ops)).saturating_sub(data)
    }

    /// Returns whether all counters are zero.
    pub fn is_zero(&self) -> bool {
        *self == Counters::default()
    }

    /// Adds `other`, field by field.
    pub fn add(&mut self, other: &Counters) {
        let mut fields = self.fields();
        for (field, more) in fields.iter_mut().zip(other.fields()) {
            *field = field.saturating_add(more);
        }
        *self = Counters::from_fields(fields);
    }

    pub(crate) fn fields(&self) -> [u64; FIELDS] {
        let mut fields = [0; FIELDS];
        fields[..5].copy_from_slice(&[
            self.read_bytes,
            self.written_bytes,
            self.cost_ns,
            self.delayed,
            self.delayed_ns,
        ]);
        fields[5..LAST].copy_from_slice(&self.ops);
        fields[LAST] = self.delayed_bytes;
        fields[FIELDS_1..FIELDS_1 + ACCESSES].copy_from_slice(&self.reads.fields());
        fields[FIELDS_1 + ACCESSES..TIMES].copy_from_slice(&self.writes.fields());
        fields[TIMES..].copy_from_slice(&[self.active_ns, self.delayed_span_ns]);
        fields
    }

    pub(crate) fn from_fields(fields: [u64; FIELDS]) -> Counters {
        let accesses =
            |from: usize| Accesses::from_fields(std::array::from_fn(|nth| fields[from + nth]));
        Counters {
            read_bytes: fields[0],
            written_bytes: fields[1],
            cost_ns: fields[2],
            delayed: fields[3],
            delayed_ns: fields[4],
            ops: std::array::from_fn(|kind| fields[5 + kind]),
            delayed_bytes: fields[LAST],
            reads: accesses(FIELDS_1),
            writes: accesses(FIELDS_1 + ACCESSES),
            active_ns: fields[TIMES],
            delayed_span_ns: fields[TIMES + 1],
        }
    }

    /// A bit for each field that is not zero.
    pub(crate) fn mask_of(fields: &[u64; FIELDS]) -> u64 {
        fields.iter().enumerate().fold(0, |mask, (i, field)| mask | (u64::from(*field != 0) << i))
    }

    /// Returns the part of these sums of one kind of operation: its operations, its payload, and
    /// the accesses that moved it.
    pub(crate) fn part_of(&self, kind: OpKind) -> Counters {
        let mut part = Counters::default();
        part.ops[kind as usize] = self.ops_of(kind);
        match kind {
            OpKind::Read => (part.read_bytes, part.reads) = (self.read_bytes, self.reads),
            OpKind::Write => {
                (part.written_bytes, part.writes) = (self.written_bytes, self.writes);
            }
            _ => {}
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::codec::{LedgerReader, put_sums};

    #[test]
    fn metadata_operations_are_those_without_payload() {
        let mut counters = Counters::default();
        for (kind, ops) in
            [(OpKind::Read, 3), (OpKind::Write, 5), (OpKind::Open, 7), (OpKind::Clunk, 11)]
        {
            counters.ops[kind as usize] = ops;
        }
        assert_eq!(counters.metadata_ops(), 18);
        assert_eq!(counters.part_of(OpKind::Open).metadata_ops(), 7);
    }

    #[test]
    fn a_row_keeps_each_field_apart() {
        let fields = std::array::from_fn(|i| if i % 3 == 0 { 0 } else { i as u64 * 1_000 });
        let counters = Counters::from_fields(fields);
        assert_eq!(counters.fields(), fields);
        let mut out = Vec::new();
        put_sums(&mut out, &counters);
        assert_eq!(LedgerReader::new(&out).sums(), Ok(counters));
    }
}
