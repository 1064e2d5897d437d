//! `sluice reserve` and `qosp` against a server that answers as a controller would: what they
//! send, what they print, and the exit status.
//!
//! ```text
//!   sluice reserve, qosp ─► StubController: records each call, answers by the test's function
//! ```

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use testkit::TestFolder;

use crate::stub::StubController;

fn held(id: u64, state: &str) -> Value {
    json!({"id": id, "state": state, "user": 5, "target": "fs", "start_ns": 4_000_000_000_000_000_000u64,
           "end_ns": 4_000_000_100_000_000_000u64, "write": {"bytes": 100_000_000}})
}

fn refused(next_start_ns: Option<u64>) -> Value {
    let mut refusal = json!({"kind": "target", "bottleneck": "scratch-0",
                             "taken_by": ["rule jobs: 100MB/s"], "fits_now_ppm": 310_000});
    if let Some(at) = next_start_ns {
        refusal["next_start_ns"] = json!(at);
    }
    json!({"code": "does_not_fit", "message": "31% fits at scratch-0", "refusal": refusal})
}

#[test]
fn a_request_is_sent_as_it_was_typed_and_answered_with_its_start() {
    let stub = StubController::start(|_| (200, held(7, "SCHEDULED")));
    let words =
        "add --bandwidth 100MB/s --direction write --for 100s --job 4711 --path scratch/run7";
    let (status, text, _) = stub.reserve(words);
    assert!(
        status == 0 && text.contains("SCHEDULED") && text.contains("2096-10-02T07:06:40Z"),
        "{text}"
    );
    let (line, body) = stub.calls().remove(0);
    assert_eq!(line, "POST /v1/reservations");
    let (ns, sent) = (100_000_000_000u64, body.as_object().unwrap());
    for (key, value) in [
        ("write", json!({"bytes": 100_000_000})),
        ("duration_ns", json!(ns)),
        ("job", json!("4711")),
        ("export", json!("scratch")),
        ("directory", json!("run7")),
    ] {
        assert_eq!(sent[key], value, "{key}");
    }
    assert!(!sent.contains_key("read") && !sent.contains_key("not_before_ns"), "{body}");
    let (status, text, _) = stub.reserve(&format!("{words} --json"));
    assert_eq!(
        (status, serde_json::from_str::<Value>(&text).unwrap()["id"].clone()),
        (0, json!(7))
    );
}

#[test]
fn a_refusal_has_a_status_of_its_own_and_names_the_bottleneck() {
    for (next, expected) in [(Some(4_000_000_000_000_000_000), 3), (None, 4)] {
        let stub = StubController::start(move |_| (409, refused(next)));
        let words = "add --bandwidth 100MB/s --direction both --for 100s";
        let (status, text, error) = stub.reserve(words);
        assert_eq!((status, text.as_str()), (expected, ""));
        for part in ["31% fits at scratch-0", "rule jobs: 100MB/s"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.contains("2096-10-02T07:06:40Z"), next.is_some(), "{error}");
        let (status, _, error) = stub.reserve(&format!("{words} --json"));
        let report: Value = serde_json::from_str(&error).unwrap();
        assert_eq!((status, report["code"].as_str()), (expected, Some("does_not_fit")));
        assert_eq!(report["refusal"]["bottleneck"], "scratch-0");
        assert_eq!(stub.reserve("extend 7 --by 30s").0, expected);
        assert_eq!(stub.reserve("move 7").0, expected);
    }
    let denied = json!({"code": "permission_denied", "message": "no"});
    let stub = StubController::start(move |_| (403, denied.clone()));
    for words in
        ["show 7", "list", "finish 7", "wait 7", "add --metadata 1ops/s --for 1s", "credit"]
    {
        assert_eq!(stub.reserve(words).0, 1, "{words}");
    }
    for words in ["add --metadata 1ops/s --for 0s", "add --for 1s", "extend 7", "show x"] {
        assert_eq!(stub.reserve(words).0, 2, "{words}");
    }
}

#[test]
fn a_move_is_exact_or_from_a_time_on() {
    let stub = StubController::start(|_| (200, held(7, "SCHEDULED")));
    for words in ["move 7 --at 1h", "move 7 --not-before 1h --by 2h", "move 7"] {
        assert_eq!(stub.reserve(words).0, 0, "{words}");
    }
    assert_eq!(stub.reserve("move 7 --at 1h --by 2h").0, 2);
    let calls = stub.calls();
    assert!(calls.iter().all(|(line, _)| line == "POST /v1/reservations/7/move"), "{calls:?}");
    let sent: Vec<_> = calls.iter().map(|(_, body)| body).collect();
    let has = |at: usize| ["not_before_ns", "by_ns"].map(|key| sent[at][key].is_u64());
    assert_eq!([has(0), has(1), has(2)], [[true, false], [true, true], [false, false]]);
    assert_eq!(
        [0, 1, 2].map(|at| sent[at]["exact"].clone()),
        [true, false, false].map(|is| json!(is))
    );
}

#[test]
fn who_is_not_known_to_the_controller_reserves_as_the_user_of_the_process() {
    let missing = json!({"code": "invalid_argument", "message": "no", "at": "user"});
    let is_first = Arc::new(AtomicBool::new(true));
    let stub = StubController::start(move |_| match is_first.swap(false, Ordering::Relaxed) {
        true => (400, missing.clone()),
        false => (200, held(7, "SCHEDULED")),
    });
    assert_eq!(stub.reserve("add --metadata 1ops/s --for 1s").0, 0);
    let users: Vec<_> = stub.calls().iter().map(|(_, body)| body["user"].clone()).collect();
    assert_eq!(users, [Value::Null, json!(rustix::process::getuid().as_raw())]);
}

#[test]
fn waiting_ends_when_it_is_active_and_claims_it() {
    let polls = Arc::new(Mutex::new(0));
    let stub = StubController::start(move |call| match call.starts_with("GET") {
        true => {
            *polls.lock().unwrap() += 1;
            let is_active = *polls.lock().unwrap() == 3;
            (200, held(7, if is_active { "ACTIVE" } else { "SCHEDULED" }))
        }
        false => (200, held(7, if call.ends_with("/claim") { "ACTIVE" } else { "SCHEDULED" })),
    });
    let (status, text, _) = stub.reserve("add --metadata 1ops/s --for 1s --wait");
    assert!(status == 0 && text.contains("ACTIVE"), "{text}");
    let poll = "GET /v1/reservations/7?until=active&wait=30s";
    let claim = "POST /v1/reservations/7/claim";
    assert_eq!(stub.lines(), ["POST /v1/reservations", poll, poll, poll, claim]);
    let (status, text, _) = stub.reserve("wait 7 --timeout 0s");
    assert!(status == 3 && text.contains("SCHEDULED"), "{text}");
    assert_eq!(stub.lines(), ["GET /v1/reservations/7?until=active&wait=0s"]);
    let stub = StubController::start(|_| {
        let mut held = held(7, "UNDEFINED");
        held["ended"] = json!("removed");
        (200, held)
    });
    let (status, text, _) = stub.reserve("wait 7");
    assert!(status == 4 && text.contains("removed"), "{text}");
}

#[test]
fn each_action_makes_its_call() {
    let stub = StubController::start(|call| {
        let (_, path) = call.split_once(' ').unwrap();
        let reply = match path.split('?').next().unwrap() {
            "/v1/reservations" => {
                json!({"at_ns": 0, "reservations": [held(7, "ACTIVE")], "omitted": 0})
            }
            "/v1/calendar" => {
                json!({"at_ns": 0, "from_ns": 0, "until_ns": 3_600_000_000_000u64, "resources": [
                {"kind": "target", "name": "fs", "read_per_sec": 1000, "write_per_sec": 1000,
                 "best_effort_ppm": 150_000, "unseen_ppm": 0, "rules": [], "used": [],
                 "steps": [{"from_ns": 0, "read_per_sec": 500, "write_per_sec": 0},
                           {"from_ns": 60_000_000_000u64, "read_per_sec": 0, "write_per_sec": 0}]}]})
            }
            "/v1/credit" => {
                json!({"subject": "user 5", "bytes": 7, "outstanding_bytes": 0, "outstanding": 0})
            }
            _ => held(7, "ACTIVE"),
        };
        (200, reply)
    });
    let folder = TestFolder::new();
    let svg = folder.path().join("calendar.svg");
    let drawing = format!("calendar --target fs --svg {}", svg.display());
    for (words, line, shown) in [
        (
            "list --user 5 --job a&b --ended",
            "GET /v1/reservations?user=5&job=a%26b&ended=true",
            "ACTIVE",
        ),
        ("list --all", "GET /v1/reservations", "ACTIVE"),
        ("show 7", "GET /v1/reservations/7", "100MB/s"),
        ("extend 7 --by 30s", "POST /v1/reservations/7/extend", "ACTIVE"),
        ("finish 7", "POST /v1/reservations/7/finish", "ACTIVE"),
        ("remove 7", "DELETE /v1/reservations/7", "ACTIVE"),
        (
            "calendar --from 1970-01-02T00:00Z --to 2096-10-02T00:00Z",
            "GET /v1/calendar?from=86400&to=3999974400",
            "target fs",
        ),
        ("calendar", "GET /v1/calendar?to=", "│▄▄▄▄"),
        (&drawing, "GET /v1/calendar?target=fs&to=", ""),
        ("credit --account a", "GET /v1/credit?account=a", "user 5"),
        ("credit", "GET /v1/credit", "7"),
    ] {
        let (status, text, error) = stub.reserve(words);
        assert!(status == 0 && text.contains(shown), "{words}: {text}{error}");
        let asked = stub.lines().remove(0);
        assert!(
            asked == line || line.contains("/calendar") && asked.starts_with(line),
            "{words}: {asked}"
        );
        if !words.contains("--svg") {
            let (status, text, _) = stub.reserve(&format!("{words} --json"));
            assert!(status == 0 && serde_json::from_str::<Value>(&text).is_ok(), "{words}: {text}");
            stub.lines();
        }
    }
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert_eq!(stub.reserve("calendar --from 2096-10-02 --to 1h").0, 1);
}

#[test]
fn a_link_named_qosp_takes_the_command_line_of_the_planner() {
    let stub = StubController::start(|call| match call.starts_with("GET") {
        true => (
            200,
            json!({"at_ns": 0, "reservations": [held(7, "ACTIVE"), held(9, "SCHEDULED")], "omitted": 0}),
        ),
        false => (200, held(7, "SCHEDULED")),
    });
    let run = |words: &str| stub.run_as("/usr/bin/qosp", words).status.code().unwrap();
    assert_eq!(run("reserve -throughput 100 -duration 100 -filenames s/run/a,s/run/b -id=4711"), 0);
    let (line, body) = stub.calls().remove(0);
    assert_eq!(line, "POST /v1/reservations");
    for (key, value) in [
        ("write", json!({"bytes": 100_000_000})),
        ("duration_ns", json!(100_000_000_000u64)),
        ("job", json!("4711")),
        ("export", json!("s")),
        ("directory", json!("run")),
    ] {
        assert_eq!(body[key], value, "{key}");
    }
    assert_eq!(run("delete -id=4711"), 0);
    let removed = ["DELETE /v1/reservations/7", "DELETE /v1/reservations/9"];
    assert_eq!(stub.lines(), ["GET /v1/reservations?job=4711", removed[0], removed[1]]);
    assert_eq!(run("list --json"), 0);
    assert_eq!(run("reserve -throughput 100 -duration 0 -filenames s -id=4711"), 2);
    let stub = StubController::start(|_| (409, refused(Some(1))));
    let run = |words: &str| stub.run_as("qosp", words).status.code().unwrap();
    assert_eq!(run("reserve -throughput 100 -duration 100 -filenames s -id=4711"), 3);
    let none = json!({"at_ns": 0, "reservations": [], "omitted": 0});
    let stub = StubController::start(move |_| (200, none.clone()));
    assert_eq!(stub.run_as("qosp", "delete -id=4711").status.code(), Some(1));
}
