//! What a job had: as it was recorded, or in a replay under one rule file.
//!
//! ```text
//!   recorded requests ─┐
//!                      ├─► Had: rates from its first request to its last answer, latencies,
//!   report of a run ───┘        how many waited, and the rules that took them
//! ```

use std::collections::BTreeSet;

use model::{Identity, KindSet, Limit, OpKind, PathSet, Rule, RuleSet, Time, Weight};
use serde::Serialize;

use super::{DELAYED, JobResult, JobRule, RunResult};
use crate::recording::{RecordedRequest, RecordedSubject, Recording};

/// What a job had.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Requests that were answered.
    pub requests: u64,
    /// Those of a second of its span.
    pub requests_per_sec: f64,
    /// Backend operations of a second.
    pub ops_per_sec: f64,
    /// Payload of a second.
    pub bytes_per_sec: f64,
    /// From arrival to answer: half of them at most.
    pub latency_ns_median: u64,
    /// The same: all but one of a hundred.
    pub latency_ns_p99: u64,
    /// How long they waited for their turn.
    pub queued_ns_mean: u64,
    /// Requests that waited for their turn for a millisecond or more.
    pub delayed: u64,
    /// Of the time that requests waited, the part in which a limit or a meter held them, in
    /// percent; the rest they waited for their share. None where that is not known.
    pub held_percent: Option<f64>,
    /// From its first request to its last answer.
    pub span_ns: u64,
    /// It was not done when the replay ended.
    pub unfinished: bool,
    /// Which rules took its requests; empty for what was recorded.
    pub rules: Vec<RuleTake>,
    /// Requests and bytes that were answered in each second.
    pub series: Vec<(u64, u64)>,
}

/// What a rule took of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleTake {
    /// The rule's name.
    pub rule: String,
    /// Everything that the rule and the meters beside it can hold its requests back by.
    pub by: String,
    /// How many it took.
    pub requests: u64,
    /// Of those, how many waited for a millisecond or more.
    pub delayed: u64,
    /// How long all of them waited.
    pub queued_ns: u64,
}

impl JobOutcome {
    /// What was recorded of a job's requests.
    pub(crate) fn recorded(asked: &[&RecordedRequest]) -> JobOutcome {
        let first = asked.iter().map(|asked| asked.arrived).min().unwrap_or(Time::ZERO);
        let last = asked.iter().map(|asked| asked.answered()).max().unwrap_or(Time::ZERO);
        let mut latencies: Vec<u64> = asked.iter().map(|asked| asked.latency().get()).collect();
        latencies.sort_unstable();
        let at_percent = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100).max(1);
            latencies.get(rank - 1).copied().unwrap_or(0)
        };
        let requests = asked.len() as u64;
        let queued: u64 = asked.iter().map(|asked| asked.queued.get()).sum();
        let had = JobOutcome {
            requests,
            latency_ns_median: at_percent(50),
            latency_ns_p99: at_percent(99),
            queued_ns_mean: queued / requests.max(1),
            delayed: asked.iter().filter(|asked| asked.queued >= DELAYED).count() as u64,
            span_ns: last.since(first).get(),
            series: series(asked),
            ..JobOutcome::default()
        };
        let ops: u64 = asked.iter().map(|asked| asked.amount.ops.get()).sum();
        let bytes: u64 = asked.iter().map(|asked| asked.amount.bytes.get()).sum();
        had.with_rates(ops, bytes)
    }

    /// What a job had in a run.
    pub(crate) fn replayed(
        job: &JobResult,
        rules: &RuleSet,
        recording: &Recording,
        run: &RunResult,
    ) -> JobOutcome {
        let own = || recording.subjects().filter(move |subject| subject.job() == job.job);
        let first = own().filter_map(|subject| subject.requests.first()).map(|a| a.arrived).min();
        let first = first.map_or(0, Time::as_nanos);
        let end = job.finished_ns.unwrap_or(run.measured_ns);
        let taken = |one: &JobRule| RuleTake {
            rule: one.rule.clone(),
            by: holds_by(rules, &one.rule, own().flat_map(RecordedSubject::asked)),
            requests: one.requests,
            delayed: one.delayed,
            queued_ns: one.queue_ns,
        };
        let idle = job.series.iter().rev().take_while(|(requests, _)| *requests == 0).count();
        let had = JobOutcome {
            requests: job.requests,
            latency_ns_median: job.latency_ns.median,
            latency_ns_p99: job.latency_ns.p99,
            queued_ns_mean: job.queued_ns_mean,
            delayed: job.rules.iter().map(|rule| rule.delayed).sum(),
            held_percent: job.held_ppm.map(|ppm| ppm as f64 / 1e4),
            span_ns: end.saturating_sub(first),
            unfinished: job.finished_ns.is_none(),
            rules: job.rules.iter().map(taken).collect(),
            // After its last answer there is nothing to see.
            series: job.series[..job.series.len() - idle].to_vec(),
            ..JobOutcome::default()
        };
        had.with_rates(job.ops, job.bytes)
    }

    fn with_rates(self, ops: u64, bytes: u64) -> JobOutcome {
        let seconds = self.span_ns.max(1) as f64 / 1e9;
        JobOutcome {
            requests_per_sec: self.requests as f64 / seconds,
            ops_per_sec: ops as f64 / seconds,
            bytes_per_sec: bytes as f64 / seconds,
            ..self
        }
    }
}

fn series(asked: &[&RecordedRequest]) -> Vec<(u64, u64)> {
    let mut series = Vec::new();
    for asked in asked {
        let second = (asked.answered().as_nanos() / 1_000_000_000) as usize;
        if second >= series.len() {
            series.resize(second + 1, (0, 0));
        }
        series[second].0 += 1;
        series[second].1 += asked.amount.bytes.get();
    }
    series
}

/// What a rule and the meters beside it can hold back by, of all that was asked: only what it
/// took counts.
fn holds_by<'a>(
    set: &RuleSet,
    rule: &str,
    asked: impl Iterator<Item = (&'a Identity, OpKind)>,
) -> String {
    let index = set.rules.iter().position(|known| known.name == rule);
    let (mut kinds, mut meters) = (KindSet::NONE, BTreeSet::new());
    for (who, kind) in asked {
        if set.rule_for(who, kind, PathSet::default()) == index {
            kinds = kinds.with(kind);
            meters.extend(set.meters_for(who, kind, PathSet::default()));
        }
    }
    let rule = index.map(|index| &set.rules[index]);
    let mut by: Vec<String> = Vec::new();
    if let Some(rule) = rule {
        let pay = rule.ceilings().iter().filter_map(|limit| paid(limit, kinds));
        by.extend(pay.map(|paid| format!("limit {paid}")));
        by.extend(rule.slots.map(|slots| format!("slots {slots}")));
    }
    for meter in meters.into_iter().filter_map(|index| set.meters.get(index)) {
        by.extend(paid(&meter.limit, kinds).map(|paid| format!("meter {} {paid}", meter.name)));
    }
    let weight = rule.map_or(Weight::ONE, Rule::share);
    by.push(format!("share (weight {weight})"));
    by.join(", ")
}

/// A limit's rate, and which of these kinds pay it if not all do; nothing if none does.
fn paid(limit: &Limit, kinds: KindSet) -> Option<String> {
    let rate = limit.rate;
    let pay: Vec<_> = kinds.iter().filter(|kind| limit.kinds.contains(*kind)).collect();
    Some(match pay.len() {
        0 => return None,
        all if all == kinds.iter().count() => rate.to_string(),
        1..=3 => {
            format!("{rate} {}", pay.into_iter().map(OpKind::name).collect::<Vec<_>>().join(" "))
        }
        many => format!("{rate} of {many} kinds"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_can_hold_back_by_what_the_requests_that_it_took_pay() {
        let text = "[[rule]]\nname = \"slow\"\nmatch = \"jobid={a}&opcode={read getattr}\"\n\
                    limit = \"10ops/s\"\nweight = 3\nslots = 2\n\
                    [[meter]]\nname = \"all\"\nrate = \"5MB/s\"\nkinds = [\"read\"]\n";
        let set = RuleSet::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let who = |job| Identity {
            job: model::JobId::new(job).unwrap(),
            uid: 1,
            gid: 1,
            projid: None,
            nid: model::Nid::local(),
        };
        let (a, b) = (who("a"), who("b"));
        let found =
            |rule, asked: &[(&Identity, OpKind)]| holds_by(&set, rule, asked.iter().copied());
        let asked = [(&a, OpKind::Getattr), (&a, OpKind::Write), (&b, OpKind::Write)];
        assert_eq!(found("slow", &asked), "limit 10ops/s, slots 2, share (weight 3)");
        assert_eq!(found("default", &asked), "share (weight 1)");
        let asked = [(&a, OpKind::Getattr), (&a, OpKind::Read)];
        let meter = "limit 10ops/s, slots 2, meter all 5MB/s read, share (weight 3)";
        assert_eq!(found("slow", &asked), meter);
    }
}
