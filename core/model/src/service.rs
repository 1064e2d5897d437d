//! Service: what was served, in one shape from the dispatcher to the ledger and the messages.
//!
//! ```text
//!   service of one moment ─ since ─► what was served between ─ add ─► service of a class, a proxy
//! ```
//!
//! In JSON, operations are named by kind, and kinds without any are left out; elsewhere they are
//! pairs of numbers.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Accesses, Identity, OpKind, PathSet};

/// The service of an account, a class or a proxy: since its beginning, when every number only grows,
/// or in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// The cost of the requests to their targets.
    pub cost_ns: u64,
    /// Requests that a limit or a cap on slots delayed.
    #[serde(default)]
    pub delayed: u64,
    /// The time that the delayed requests waited, summed up.
    #[serde(default)]
    pub delayed_ns: u64,
    /// The payload bytes of the delayed reads and writes.
    #[serde(default)]
    pub delayed_bytes: u64,
    /// The time in which a job had requests, with the pauses between them of less than a second. It
    /// is counted once for each job at each proxy; other sums add these up.
    #[serde(default)]
    pub active_ns: u64,
    /// The part of `active_ns` in which a limit or a cap on slots delayed at least one request.
    #[serde(default)]
    pub delayed_span_ns: u64,
    /// Operations by kind, in the order of [`OpKind::ALL`].
    #[serde(with = "by_kind")]
    pub ops: [u64; OpKind::COUNT],
    /// The sizes and order of reads.
    #[serde(default)]
    pub reads: Accesses,
    /// The sizes and order of writes.
    #[serde(default)]
    pub writes: Accesses,
}

/// Whose service an account has: the subject, its export, and its class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountSubject {
    /// The identity of the subject.
    pub identity: Identity,
    /// The rule directories that it works in, as bits of the rules that its proxy has.
    pub paths: PathSet,
    /// The export that it uses; empty for none.
    #[serde(with = "crate::ids::text")]
    pub export: Arc<str>,
    /// The class in which it was served: its rule, and the values of that rule's `per`.
    #[serde(with = "crate::ids::text")]
    pub class: Arc<str>,
}

impl Service {
    /// Adds other service, each number by itself.
    pub fn add(&mut self, other: &Service) {
        self.merge(other, u64::saturating_add);
    }

    /// The growth since earlier service.
    pub fn since(mut self, before: &Service) -> Service {
        self.merge(before, u64::saturating_sub);
        self
    }

    /// Whether every number is zero.
    pub fn is_zero(&self) -> bool {
        *self == Service::default()
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

    /// The operations of all kinds.
    pub fn all_ops(&self) -> u64 {
        self.ops.iter().fold(0, |sum, ops| sum.saturating_add(*ops))
    }

    /// The operations that neither read nor wrote a file.
    pub fn metadata_ops(&self) -> u64 {
        let data = self.ops_of(OpKind::Read).saturating_add(self.ops_of(OpKind::Write));
        self.all_ops().saturating_sub(data)
    }

    /// The kinds that have operations.
    pub fn kinds(&self) -> impl Iterator<Item = (OpKind, u64)> {
        let all = OpKind::ALL.iter().map(|kind| (*kind, self.ops_of(*kind)));
        all.filter(|(_, count)| *count > 0)
    }

    /// The part of one kind of operation: its operations, its payload, and the accesses that moved
    /// it.
    pub fn part_of(&self, kind: OpKind) -> Service {
        let mut part = Service::default();
        part.ops[kind as usize] = self.ops_of(kind);
        match kind {
            OpKind::Read => (part.read_bytes, part.reads) = (self.read_bytes, self.reads),
            OpKind::Write => (part.written_bytes, part.writes) = (self.written_bytes, self.writes),
            _ => {}
        }
        part
    }

    fn merge(&mut self, other: &Service, with: impl Fn(u64, u64) -> u64) {
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

/// The form of operations by kind.
mod by_kind {
    use super::*;

    type Counts = [u64; OpKind::COUNT];

    pub(super) fn serialize<S: Serializer>(ops: &Counts, to: S) -> Result<S::Ok, S::Error> {
        let any = OpKind::ALL.iter().zip(ops).filter(|(_, count)| **count > 0);
        match to.is_human_readable() {
            true => to.collect_map(any.map(|(kind, count)| (kind.name(), count))),
            false => {
                let pairs: Vec<(u8, u64)> =
                    any.map(|(kind, count)| (*kind as u8, *count)).collect();
                to.collect_seq(pairs)
            }
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Counts, D::Error> {
        match from.is_human_readable() {
            true => from.deserialize_map(CountsVisitor),
            false => from.deserialize_seq(CountsVisitor),
        }
    }

    struct CountsVisitor;

    impl<'de> Visitor<'de> for CountsVisitor {
        type Value = Counts;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("operations by kind")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Counts, A::Error> {
            let mut ops = [0; OpKind::COUNT];
            while let Some((name, count)) = from.next_entry::<String, u64>()? {
                let kind = name.parse::<OpKind>().map_err(|_| {
                    let shown: String = name.chars().take(60).collect();
                    A::Error::custom(format!("{shown:?} is not a kind of request"))
                })?;
                ops[kind as usize] = count;
            }
            Ok(ops)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Counts, A::Error> {
            let mut ops = [0; OpKind::COUNT];
            while let Some((kind, count)) = from.next_element::<(u8, u64)>()? {
                *ops.get_mut(usize::from(kind)).ok_or_else(|| {
                    A::Error::custom(format!("{kind} is not the number of a kind of request"))
                })? = count;
            }
            Ok(ops)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        let mut service = Service { read_bytes: 9, cost_ns: 3, ..Service::default() };
        for (kind, ops) in
            [(OpKind::Read, 3), (OpKind::Write, 5), (OpKind::Open, 7), (OpKind::Clunk, 11)]
        {
            service.ops[kind as usize] = ops;
        }
        service
    }

    #[test]
    fn metadata_operations_are_those_without_payload() {
        assert_eq!(service().metadata_ops(), 18);
        assert_eq!(service().part_of(OpKind::Open).metadata_ops(), 7);
    }

    #[test]
    fn what_grew_since_is_what_has_to_be_added() {
        let mut before = service().part_of(OpKind::Read);
        let growth = service().since(&before);
        assert_eq!((growth.read_bytes, growth.cost_ns, growth.ops_of(OpKind::Open)), (0, 3, 7));
        before.add(&growth);
        assert_eq!(before, service());
        assert!(!growth.is_zero() && service().since(&service()).is_zero());
    }
}
