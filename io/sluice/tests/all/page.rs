//! The controller's page, and the call by which it changes single rules.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::collections::BTreeSet;

use crate::common::Controller;
use crate::entrusted::{ask, first_token, status};
use api::WireRules;
use testkit::TestFolder;

/// What a page names: `"/page/x"` in its texts.
fn named(text: &str) -> BTreeSet<String> {
    let parts = text.split("\"/page/").skip(1);
    parts.filter_map(|part| Some(format!("/page/{}", part.split_once('"')?.0))).collect()
}

#[test]
fn everybody_gets_the_page_and_all_that_it_names_and_its_figures_only_who_may() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let (mut known, mut left) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = left.pop() {
        let answer = ask(&controller.url, &format!("GET {path}"), "", "");
        assert_eq!(status(&answer), 200, "{path}: {answer}");
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(
            head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
            "{head}"
        );
        let kind = match path.rsplit_once('.').map(|(_, end)| end) {
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            _ => "text/html",
        };
        assert!(head.contains(&format!("content-type: {kind}; charset=utf-8")), "{path}: {head}");
        assert!(
            !text.contains("http://") && !text.contains("https://"),
            "{path} names another place"
        );
        left.extend(named(text).into_iter().filter(|path| known.insert(path.clone())));
    }
    assert!(known.len() >= 8, "{known:?}");
    for (call, head, wanted) in [
        ("GET /page/..%2f..%2fCargo.toml", String::new(), 404),
        ("POST /", String::new(), 405),
        ("GET /v1/live", String::new(), 401),
        ("GET /v1/live", format!("authorization: Bearer {root}\r\n"), 200),
    ] {
        let answer = ask(&controller.url, call, &head, "");
        assert_eq!(status(&answer), wanted, "{call}: {answer}");
    }
}

#[test]
fn one_rule_is_started_ranked_changed_and_stopped_and_the_others_stay_to_the_byte() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    let text = "# ours\n[[rule]]\nname = \"a\"\nmatch = \"uid={5}\"\n";
    client.set_rules(text).unwrap();
    let json = "content-type: application/json\r\n";
    let edit = |body: &str| {
        let answer = ask(&controller.url, "POST /v1/rules/edits", json, body);
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (status(&answer), body)
    };
    let start = r#"{"action": "start", "name": "b", "position": {"before": "a"},
                    "keys": {"match": "jobid={dd.*}", "limit": "5MB/s,9ops/s"}}"#;
    let (code, body) = edit(start);
    assert_eq!(code, 200, "{body}");
    let rules: WireRules = serde_json::from_str(&body).unwrap();
    let names =
        |rules: &WireRules| rules.rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&rules), ["b", "a"]);
    assert_eq!(rules.rules[0].limits.len(), 2);
    assert_eq!(edit(r#"{"action": "rank", "name": "b", "position": "last"}"#).0, 200);
    assert_eq!(edit(r#"{"action": "change", "name": "b", "keys": {"limit": "none"}}"#).0, 200);
    let rules = client.rules().unwrap();
    assert_eq!((names(&rules), rules.rules[1].limits.len()), (vec!["a".into(), "b".into()], 0));
    for (body, code, said) in [
        (start, 409, "rule \"b\" exists already"),
        (r#"{"action": "stop", "name": "c"}"#, 404, "rule \"c\" does not exist"),
        (r#"{"action": "change", "name": "b", "keys": {"limit": "much"}}"#, 400, "much"),
        (
            r#"{"action": "change", "name": "b", "keys": {"limits": "1MB/s"}}"#,
            400,
            "not a key of a rule",
        ),
        (r#"{"action": "drop", "name": "b"}"#, 422, "drop"),
        (r#"{"action": "stop"}"#, 422, "name"),
        ("{", 400, ""),
    ] {
        let (got, answer) = edit(body);
        assert_eq!(got, code, "{body}: {answer}");
        assert!(answer.contains(&said.replace('"', "\\\"")), "{body}: {answer}");
    }
    assert_eq!(client.rules().unwrap().version, rules.version, "what is refused changes nothing");
    let stale = format!("{json}if-match: \"0\"\r\n");
    let stop = r#"{"action": "stop", "name": "b"}"#;
    assert_eq!(status(&ask(&controller.url, "POST /v1/rules/edits", &stale, stop)), 409);
    assert_eq!(edit(stop).0, 200);
    assert_eq!(client.rules().unwrap().text.trim_end(), text.trim_end());
}
