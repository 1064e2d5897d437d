//! A page of elsewhere in a browser of the controller's machine: what it can have that browser
//! send to a loopback port, as one exchange.
//!
//! ```text
//!   http://evil.example:5650, which now means 127.0.0.1 ─► Host: evil.example:5650 ─► 403
//!   http://evil.example ─► Origin: http://evil.example ─────────────────────────────► 403
//! ```

#![allow(clippy::unwrap_used)]

use std::process::Command;

use api::Role;
use rustix::process::Signal;
use testkit::TestFolder;

use crate::common::{Controller, SLUICE, Setup};
use crate::controlled::{LIMIT, limited};
use crate::entrusted::{ask, ask_as, client, first_token, showing, status, text, token};

const JSON: &str = "content-type: application/json\r\n";
/// What locks its administrator out of a controller without tokens.
const TOKEN: (&str, &str) = ("POST /v1/tokens", "{\"name\":\"evil\",\"role\":\"admin\"}");
const START: &str = r#"{"action":"start","name":"evil","keys":{"match":"*","limit":"1MB/s"},
                        "position":"first"}"#;

#[test]
fn a_web_page_of_elsewhere_cannot_drive_a_controller_without_tokens() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let (url, at) = (controller.url.as_str(), controller.at());
    let admin = controller.client();
    admin.set_rules(&limited(LIMIT)).unwrap();
    let before = admin.rules().unwrap();
    let calls = [
        ("GET /", ""),
        ("GET /page/main.js", ""),
        ("GET /v1/status", ""),
        ("GET /v1/rules", ""),
        ("GET /v1/events", ""),
        ("GET /openapi.json", ""),
        ("GET /metrics", ""),
        ("GET /v2/none", ""),
        ("HEAD /v1/rules", ""),
        ("PATCH /v1/rules", ""),
        ("OPTIONS /v1/rules", ""),
        ("PUT /v1/rules", ""),
        ("POST /v1/rules/edits", START),
        ("DELETE /v1/proxies/a", ""),
        ("POST /v1/proxies/a/report", "{}"),
        TOKEN,
    ];
    let port = at.rsplit_once(':').unwrap().1;
    let heads = [
        format!("host: evil.example:{port}\r\norigin: http://evil.example:{port}\r\n"),
        format!("host: evil.example:{port}\r\n"),
        format!("host: 127.0.0.1.evil.example:{port}\r\n"),
        format!("host: {at}\r\nhost: evil.example\r\n"),
        format!("host: {at}\r\norigin: http://evil.example\r\n"),
        format!("host: {at}\r\norigin: http://127.0.0.1:1\r\n"),
        format!("host: {at}\r\norigin: null\r\n"),
        String::new(),
    ];
    for (call, body) in calls {
        for head in &heads {
            let answer = ask_as(url, call, &format!("{head}{JSON}"), body);
            assert_eq!(status(&answer), 403, "{call} {head}: {answer}");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(!head.to_lowercase().contains("access-control-allow"), "{head}");
            if !call.starts_with("HEAD") {
                let report: api::ErrorReport = serde_json::from_str(body).unwrap();
                assert_eq!(report.code, api::ErrorCode::WrongHost, "{call} {head}: {body}");
            }
        }
    }
    assert_eq!(admin.rules().unwrap(), before);
    assert!(admin.tokens().unwrap().tokens.is_empty());
    let absolute = format!("GET http://evil.example:{port}/v1/rules");
    assert_eq!(status(&ask(url, &absolute, "", "")), 403);

    // Under its own names everything goes on, and its own page's changes.
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", at, "127.8.8.8:1", "[::1]:5650"] {
        let answer = ask_as(url, "GET /v1/rules", &format!("host: {host}\r\n"), "");
        assert_eq!(status(&answer), 200, "{host}: {answer}");
    }
    let own = format!("origin: {url}\r\n{JSON}");
    assert_eq!(status(&ask(url, "POST /v1/rules/edits", &own, START)), 200);
    assert_eq!(admin.rules().unwrap().rules[0].name, "evil");
}

#[test]
fn an_allowed_host_is_answered_and_no_other() {
    let data = TestFolder::new();
    let words = ["--allowed-host", "IO-1.site", "--advertise", "http://io-2.site:5650"];
    let controller = Controller::start_with(data.path(), "http://127.0.0.1:0", &words);
    for (head, expected) in [
        ("host: io-1.site\r\n", 200),
        ("host: io-1.site:443\r\norigin: https://io-1.site:443\r\n", 200),
        // A proxy that does not pass the name on.
        ("host: localhost\r\norigin: https://io-1.site\r\n", 200),
        ("host: io-2.site:5650\r\n", 200),
        ("host: io-3.site\r\n", 403),
        ("host: io-1.site\r\norigin: https://io-3.site\r\n", 403),
    ] {
        let answer = ask_as(&controller.url, "GET /v1/rules", head, "");
        assert_eq!(status(&answer), expected, "{head}: {answer}");
    }
    let mut command = Command::new(SLUICE);
    command.args(["controller", "--data", text(data.path()), "--allowed-host", "io-1.site:80"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("io-1.site:80"), "{output:?}");
}

#[test]
fn a_token_is_no_reason_to_answer_a_web_page_of_elsewhere() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let reader = token(&admin, "ann", Role::Read);
    let shown = format!("authorization: Bearer {reader}\r\n");
    for (head, expected) in [
        (format!("host: evil.example\r\n{shown}"), 403),
        (format!("host: localhost\r\norigin: http://evil.example\r\n{shown}"), 403),
        ("host: evil.example\r\n".to_owned(), 403),
        (format!("host: localhost\r\n{shown}"), 200),
    ] {
        let answer = ask_as(&controller.url, "GET /v1/rules", &head, "");
        assert_eq!(status(&answer), expected, "{head}: {answer}");
    }
}

#[test]
fn a_web_page_of_elsewhere_does_not_read_the_metrics_of_a_proxy() {
    let proxy = Setup::new("web-page").top("metrics = \"http://127.0.0.1:0\"").start();
    let url = format!("http://{}", proxy.metrics());
    assert_eq!(status(&ask(&url, "GET /metrics", "", "")), 200);
    for head in ["host: evil.example\r\n", "host: localhost\r\norigin: http://evil.example\r\n"] {
        let answer = ask_as(&url, "GET /metrics", head, "");
        assert_eq!(status(&answer), 403, "{head}: {answer}");
    }
    proxy.signal(Signal::TERM);
}
