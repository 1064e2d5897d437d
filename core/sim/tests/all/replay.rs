//! A recording in place of a scenario's jobs.

use model::{Amount, Identity, JobId, Lane, Nanos, Nid, OpKind};
use sluice_sim::{Policy, ReplayRecord, Replayed, Scenario, World};

const BASE: &str = r#"
from = "a test"
description = "Where a recording is replayed."
duration = "10s"
rules = '''
[[rule]]
name = "slow"
match = "jobid={slow}"
limit = "10ops/s"
'''

[[target]]
name = "disk"
slots = 4
parallelism = 4
read = [["4KiB", "1ms"]]
cached = [["4KiB", "10us"]]

[[job]]
name = "unused"
steps = [{ pause = "1s" }]
"#;

fn client(job: &str, count: usize, think_ms: u64, lane: Lane) -> Replayed {
    let who = Identity {
        job: JobId::new(job).expect("a name"),
        uid: 1,
        gid: 1,
        projid: None,
        nid: Nid::local(),
    };
    let think = Nanos::from_millis(think_ms);
    let record = ReplayRecord { think, kind: OpKind::Read, amount: Amount::new(4096, 1), lane };
    Replayed { identity: who, records: vec![record; count] }
}

fn replay(clients: Vec<Replayed>) -> sluice_sim::RunResult {
    let scenario = Scenario::parse(BASE, "replay").expect("a valid scenario").with_replay(clients);
    World::new(&scenario, Policy::Dispatcher, 1).run()
}

#[test]
fn a_client_asks_for_what_it_asked_for_as_long_after_each_answer() {
    let report = replay(vec![client("a", 100, 9, Lane::Device)]);
    let a = report.job("a").unwrap();
    // A hundred times nine milliseconds of thought and one of service.
    assert_eq!((a.requests, a.bytes, a.finished_ns), (100, 409_600, Some(1_000_000_000)));
    assert_eq!(a.latency_ns.max, 1_000_000);
    assert_eq!(report.violations, []);
}

#[test]
fn what_the_page_cache_answered_is_answered_by_it_again() {
    let report = replay(vec![client("a", 100, 1, Lane::Cached)]);
    assert_eq!(report.job("a").unwrap().latency_ns.max, 10_000);
}

#[test]
fn clients_of_one_job_are_one_job_of_the_report_and_rules_bind_it() {
    let slow = || client("slow", 200, 0, Lane::Device);
    let report = replay(vec![slow(), client("quick", 200, 0, Lane::Device), slow()]);
    assert_eq!(report.jobs.len(), 2);
    let (slow, quick) = (report.job("slow").unwrap(), report.job("quick").unwrap());
    assert!(slow.requests.abs_diff(100) <= 2, "ten a second for ten seconds: {}", slow.requests);
    assert_eq!((slow.finished_ns, quick.finished_ns), (None, Some(200_000_000)));
}

#[test]
fn a_report_says_which_rule_took_a_jobs_requests_and_what_they_waited_for() {
    let slow = (0..2).map(|_| client("slow", 200, 0, Lane::Device));
    // Eight at four slots.
    let quick = (0..8).map(|_| client("quick", 2000, 0, Lane::Device));
    let report = replay(slow.chain(quick).collect());
    let (slow, quick) = (report.job("slow").unwrap(), report.job("quick").unwrap());
    let rule = &slow.rules[0];
    assert_eq!((slow.rules.len(), rule.rule.as_str()), (1, "slow"));
    assert_eq!(rule.requests, slow.requests);
    assert!(rule.delayed >= slow.requests - 2, "all but the burst wait: {rule:?}");
    assert!(slow.throttled_ppm > Some(950_000), "for the limit: {:?}", slow.throttled_ppm);
    assert_eq!((quick.rules[0].rule.as_str(), quick.throttled_ppm), ("default", Some(0)));
    assert!(quick.rules[0].queue_ns > 0, "for slots");
}
