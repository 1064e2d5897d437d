//! Totals of the service of a payer: the numbers of one line.

use api::{WireCounters, WireOps};
use model::{Accesses, Identity, OpKind, PathSet, RuleSet, key_of};
use sched::SubjectReport;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageTotals {
    read_bytes: u64,
    written_bytes: u64,
    cost_ns: u64,
    delayed: u64,
    delayed_ns: u64,
    delayed_bytes: u64,
    active_ns: u64,
    delayed_span_ns: u64,
    ops: [u64; OpKind::COUNT],
    reads: Accesses,
    writes: Accesses,
}

impl UsageTotals {
    pub(super) fn of(subject: &SubjectReport) -> UsageTotals {
        UsageTotals {
            read_bytes: subject.usage.read.get(),
            written_bytes: subject.usage.written.get(),
            cost_ns: subject.usage.cost.get(),
            delayed: subject.usage.delayed,
            delayed_ns: subject.usage.delayed_time.get(),
            delayed_bytes: subject.usage.delayed_bytes.get(),
            active_ns: subject.activity.active.get(),
            delayed_span_ns: subject.activity.delayed.get(),
            ops: subject.ops.map(|ops| ops.get()),
            reads: subject.reads,
            writes: subject.writes,
        }
    }

    pub(super) fn add(&mut self, other: &UsageTotals) {
        self.merge(other, u64::saturating_add);
    }

    /// By how much it is more than it was.
    pub(super) fn since(mut self, before: &UsageTotals) -> UsageTotals {
        self.merge(before, u64::saturating_sub);
        self
    }

    /// Splits the sums by class of the active rules. Operations and payload go by their kind. Sums
    /// without a kind, such as cost, delays and times, go with most of the payload, or else of the
    /// operations; without any of these, where the subject had most operations until now.
    pub(super) fn by_class(
        &self,
        rules: &RuleSet,
        subject: &SubjectReport,
    ) -> Vec<(String, UsageTotals)> {
        let class_of = |kind| class_name(rules, &subject.identity, kind, subject.paths);
        let mut parts: Vec<(String, UsageTotals)> = Vec::new();
        let used = OpKind::ALL.iter().filter(|kind| self.ops[**kind as usize] > 0);
        let used: Vec<OpKind> = used.copied().collect();
        let weight = |kind: &&OpKind| (self.bytes_of(**kind), self.ops[**kind as usize]);
        let most = || OpKind::ALL.iter().max_by_key(|kind| subject.ops[**kind as usize]);
        let main = used.iter().max_by_key(weight).or_else(most);
        let main = main.copied().unwrap_or(OpKind::Read);
        let mut place_of = |kind: OpKind| {
            let class = class_of(if used.contains(&kind) { kind } else { main });
            let known = parts.iter().position(|(name, _)| *name == class);
            known.unwrap_or_else(|| {
                parts.push((class, UsageTotals::default()));
                parts.len() - 1
            })
        };
        let of_kinds: Vec<_> = used.iter().map(|kind| (*kind, place_of(*kind))).collect();
        let [reads, writes, rest] = [OpKind::Read, OpKind::Write, main].map(place_of);
        for (kind, at) in of_kinds {
            parts[at].1.ops[kind as usize] = self.ops[kind as usize];
        }
        let reads = &mut parts[reads].1;
        (reads.read_bytes, reads.reads) = (self.read_bytes, self.reads);
        let writes = &mut parts[writes].1;
        (writes.written_bytes, writes.writes) = (self.written_bytes, self.writes);
        let rest = &mut parts[rest].1;
        rest.cost_ns = self.cost_ns;
        (rest.delayed, rest.delayed_ns) = (self.delayed, self.delayed_ns);
        rest.delayed_bytes = self.delayed_bytes;
        (rest.active_ns, rest.delayed_span_ns) = (self.active_ns, self.delayed_span_ns);
        parts
    }

    pub(super) fn form(&self) -> WireCounters {
        WireCounters {
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            cost_ns: self.cost_ns,
            delayed: self.delayed,
            delayed_ns: self.delayed_ns,
            delayed_bytes: self.delayed_bytes,
            active_ns: self.active_ns,
            delayed_span_ns: self.delayed_span_ns,
            ops: WireOps(self.ops),
            reads: self.reads.into(),
            writes: self.writes.into(),
        }
    }

    fn bytes_of(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read => self.read_bytes,
            OpKind::Write => self.written_bytes,
            _ => 0,
        }
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

/// A class as people see it: its rule, and the values of that rule's `per`.
fn class_name(rules: &RuleSet, who: &Identity, kind: OpKind, paths: PathSet) -> String {
    let Some(rule) = rules.rule_for(who, kind, paths).map(|at| &rules.rules[at]) else {
        return RuleSet::DEFAULT.to_string();
    };
    let key = key_of(&rule.per, who, kind);
    key.iter().fold(rule.name.clone(), |name, value| format!("{name} {value}"))
}
