//! The outcome of a job: as it was recorded, or in a replay under one rule file.
//!
//! ```text
//!   recorded requests ─┐
//!                      ├─► JobOutcome: rates from its first request to its last reply, latencies,
//!   report of a run ───┘              how many waited, and the rules that took them
//! ```

use std::collections::BTreeSet;

use model::{Identity, KindSet, OpKind, PathSet, Time, Weight};
use rules::{Limit, Rule, RuleSet};
use serde::Serialize;

use super::{DELAYED, JobResult, JobRule, RunResult};
use crate::recording::{RecordedRequest, RecordedSubject, Recording};

/// The outcome of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    /// The number of answered requests.
    pub requests: u64,
    /// Requests per second of its span.
    pub requests_per_sec: f64,
    /// Backend operations per second.
    pub ops_per_sec: f64,
    /// The payload per second.
    pub bytes_per_sec: f64,
    /// The median latency, from arrival to reply.
    pub latency_ns_median: u64,
    /// The 99th percentile of the latency.
    pub latency_ns_p99: u64,
    /// The total time that they waited for their dispatch.
    pub queued_ns_mean: u64,
    /// Requests that waited for their dispatch for a millisecond or more.
    pub delayed: u64,
    /// The part of the waiting time for a limit or a meter, in percent; the rest they waited for
    /// their share. None where that is not known.
    pub throttled_percent: Option<f64>,
    /// The time from its first request to its last reply.
    pub span_ns: u64,
    /// Whether it was not done when the replay ended.
    pub unfinished: bool,
    /// The rules that took its requests; empty for what was recorded.
    pub rules: Vec<RuleTake>,
    /// Requests and bytes that were answered in each second.
    pub series: Vec<(u64, u64)>,
}

/// The requests of a job that a rule took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RuleTake {
    /// The name of the rule.
    pub rule: String,
    /// Every limit and meter that can delay its requests.
    pub by: String,
    /// The number of requests that it took.
    pub requests: u64,
    /// The number of these that waited for a millisecond or more.
    pub delayed: u64,
    /// The total time that they waited.
    pub queued_ns: u64,
}

impl JobOutcome {
    /// The outcome of a job's requests as recorded.
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

    /// The outcome of a job in a run.
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
            by: limits_of_rule(
                rules,
                &one.rule,
                own().flat_map(RecordedSubject::identity_and_kinds),
            ),
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
            throttled_percent: job.throttled_ppm.map(|ppm| ppm as f64 / 1e4),
            span_ns: end.saturating_sub(first),
            unfinished: job.finished_ns.is_none(),
            rules: job.rules.iter().map(taken).collect(),
            // After its last reply the series is empty.
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

/// The limits and meters of a rule that delay requests of the job: only those of kinds that it took
/// count.
fn limits_of_rule<'a>(
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
    let weight = rule.map_or(Weight::ONE, Rule::effective_weight);
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
            |rule, asked: &[(&Identity, OpKind)]| limits_of_rule(&set, rule, asked.iter().copied());
        let asked = [(&a, OpKind::Getattr), (&a, OpKind::Write), (&b, OpKind::Write)];
        assert_eq!(found("slow", &asked), "limit 10ops/s, slots 2, share (weight 3)");
        assert_eq!(found("default", &asked), "share (weight 1)");
        let asked = [(&a, OpKind::Getattr), (&a, OpKind::Read)];
        let meter = "limit 10ops/s, slots 2, meter all 5MB/s read, share (weight 3)";
        assert_eq!(found("slow", &asked), meter);
    }
}
