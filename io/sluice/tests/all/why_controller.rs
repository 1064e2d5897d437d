//! `sluice why` and `sluice top` over all proxies of a controller.
//!
//! ```text
//!   dd.1 ─ proxy a ─┐  questions with orders, answers with reports
//!   dd.1 ─ proxy b ─┴──────────── controller ◄─ sluice why, why --top, top
//! ```

#![allow(clippy::unwrap_used)]

use std::process::Command;

use api::{DelayTable, ErrorCode, Why, WhyQuery, WireWaitKind};
use http::ApiClient;

use crate::common::{Controller, SLUICE, until};
use crate::controlled::{LIMIT, Reader, limited, proxy};
use testkit::TestFolder;

fn sluice(args: &[&str]) -> String {
    let out = Command::new(SLUICE).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn of_job(client: &ApiClient) -> Why {
    client.why(&WhyQuery { job: Some("dd.1".into()), ..WhyQuery::default() }).unwrap()
}

#[test]
fn one_answer_comes_from_all_proxies_and_those_that_do_not_answer_are_named() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    client.set_rules(&limited(LIMIT)).unwrap();
    let [a, b] = ["a", "b"].map(|node| proxy("why-all", node, &controller.url));
    let _at_a = Reader::start(&a);
    let at_b = Reader::start(&b);
    // By the limit: a busy machine may make it wait for a thread, too.
    let held_at = |why: &Why| -> Vec<String> {
        let holds =
            why.waits.iter().filter(|hold| hold.current && hold.kind == WireWaitKind::Limit);
        let mut at: Vec<_> = holds.map(|hold| hold.proxy.clone()).collect();
        at.sort();
        at
    };
    let halves = |why: &Why| {
        let limits = why.waits.iter().filter_map(|hold| hold.limit.as_ref());
        limits.clone().count() == 2
            && limits.clone().all(|l| l.share_ppb.abs_diff(500_000_000) < 50_000_000)
    };
    until("both hold it, with half of the limit each", || {
        let why = of_job(&client);
        held_at(&why) == ["a", "b"] && halves(&why)
    });
    let mut text = String::new();
    until("it is said, too", || {
        text = sluice(&["why", "--job", "dd.1", "--controller", &controller.url]);
        text.contains("[a fs] jobid=dd.1 (rule jobs) is throttled by the limit of rule jobs")
    });
    assert!(text.contains("2.00 MB/s over all proxies, "), "{text}");

    // Who was throttled, over a time: the ledger's minutes.
    let args = ["why", "--top", "--since", "10min", "--json", "--controller", &controller.url];
    let table = || serde_json::from_str::<DelayTable>(&sluice(&args)).unwrap();
    until("the delays were counted", || {
        table().rows.first().is_some_and(|row| row.name == "dd.1" && row.delayed > 100)
    });
    let row = &table().rows[0];
    // What waits for less than 100 µs is not counted as delayed.
    assert!(row.delayed_ns >= row.delayed * 100_000, "{row:?}");
    assert!(row.delayed_bytes > 0 && row.delayed_bytes <= row.bytes, "{row:?}");
    until("the delays of both proxies were counted", || {
        let table = sluice(&["why", "--top", "--by", "proxy", "--controller", &controller.url]);
        let mut names: Vec<_> = table.lines().skip(1).map(|line| &line[..1]).collect();
        names.sort_unstable();
        names == ["a", "b"]
    });

    // One sample of each proxy, and their sum in the table.
    until("both have a sample", || {
        let live = client.live().unwrap();
        let mut proxies: Vec<_> = live.samples.iter().map(|sample| sample.proxy.as_str()).collect();
        proxies.sort_unstable();
        (proxies, live.unanswered.len()) == (vec!["a", "b"], 0)
    });
    let args = ["top", "--once", "--json", "--interval", "2s", "--controller", &controller.url];
    let mut report = serde_json::Value::Null;
    until("both are in the table, and the job with what it reads", || {
        report = serde_json::from_str(&sluice(&args)).unwrap();
        let targets = report["status"]["targets"].as_array().map(Vec::len);
        targets == Some(2) && report["rows"][0]["read_bytes_per_s"].as_u64() > Some(0)
    });
    let row = &report["rows"][0];
    assert_eq!(row["name"], "dd.1");
    let rate = row["read_bytes_per_s"].as_u64().unwrap();
    assert!(rate <= LIMIT * 2, "{rate} B/s over both: not in these units");

    drop((at_b, b));
    until("one answers, and the other one is named", || {
        let why = of_job(&client);
        why.unanswered == ["b"] && held_at(&why) == ["a"]
    });
    until("it is said, too", || {
        let text = sluice(&["why", "--job", "dd.1", "--controller", &controller.url]);
        text.starts_with("No answer in time from: b.\n")
    });
}

#[test]
fn wrong_questions_are_refused_and_with_no_proxies_the_answer_is_there_at_once() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    assert_eq!(explain::why(&of_job(&client)), "No requests from job dd.1 found.\n");
    assert!(client.live().unwrap().samples.is_empty());
    for (query, at) in [("by=shoe", "by"), ("since=x", "since"), ("until=1h", "until")] {
        let error = client.why_top(query).unwrap_err();
        let expected = (ErrorCode::InvalidArgument, Some(at));
        assert_eq!((error.code(), error.at()), expected, "{query}: {error}");
    }
    let wrong = client.get::<Why>("/v1/why?user=x").unwrap_err();
    assert_eq!((wrong.code(), wrong.at()), (ErrorCode::InvalidArgument, Some("user")));
}
