//! The split of a subject's service by the classes of its requests.

use model::{Identity, OpKind, PathSet, RuleSet, UsageTotals, key_of};

use crate::reporter::SubjectTotals;

/// Splits the sums by class of the active rules. Operations and payload go by their kind. Sums
/// without a kind, such as cost, delays and times, go with most of the payload, or else of the
/// operations; without any of these, where the subject had most operations until now.
pub(crate) fn by_class(
    totals: &UsageTotals,
    rules: &RuleSet,
    subject: &SubjectTotals,
) -> Vec<(String, UsageTotals)> {
    let class_of = |kind| class_name(rules, &subject.identity, kind, subject.paths);
    let mut parts: Vec<(String, UsageTotals)> = Vec::new();
    let used = OpKind::ALL.iter().filter(|kind| totals.ops[**kind as usize] > 0);
    let used: Vec<OpKind> = used.copied().collect();
    let weight = |kind: &&OpKind| (totals.bytes_of(**kind), totals.ops[**kind as usize]);
    let most = || OpKind::ALL.iter().max_by_key(|kind| subject.totals.ops_of(**kind));
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
        parts[at].1.ops[kind as usize] = totals.ops[kind as usize];
    }
    let reads = &mut parts[reads].1;
    (reads.read_bytes, reads.reads) = (totals.read_bytes, totals.reads);
    let writes = &mut parts[writes].1;
    (writes.written_bytes, writes.writes) = (totals.written_bytes, totals.writes);
    let rest = &mut parts[rest].1;
    rest.cost_ns = totals.cost_ns;
    (rest.delayed, rest.delayed_ns) = (totals.delayed, totals.delayed_ns);
    rest.delayed_bytes = totals.delayed_bytes;
    (rest.active_ns, rest.delayed_span_ns) = (totals.active_ns, totals.delayed_span_ns);
    parts
}

/// A class as people see it: its rule, and the values of that rule's `per`.
fn class_name(rules: &RuleSet, who: &Identity, kind: OpKind, paths: PathSet) -> String {
    let Some(rule) = rules.rule_for(who, kind, paths).map(|at| &rules.rules[at]) else {
        return RuleSet::DEFAULT.to_string();
    };
    let key = key_of(&rule.per, who, kind);
    key.iter().fold(rule.name.clone(), |name, value| format!("{name} {value}"))
}
