//! Wrong input to every call of a controller: a clear 4xx, and nothing is changed.
//!
//! ```text
//!   /openapi.json ─► every call × what can be wrong with it ─┬─ for all alike: method, parameter, token
//!                                                            └─ ROWS: missing, type, unknown, foreign, large, kind
//!   before ─► rules, tokens, proxies, usage, audit log, decays ◄─ the same, byte by byte, after all of it
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::SystemTime;

use api::{ErrorCode, ErrorReport, ProxyReport, Role, path};
use http::ApiClient;
use serde_json::Value;

use crate::common::{Controller, SLUICE, until};
use crate::controlled::{LIMIT, limited};
use crate::entrusted::{ask, client, first_token, showing, status, token};
use model::{Scope, ScopeUsage, Service};
use plan::{Membership, ShareReport};
use testkit::{TestFolder, account_subject};
use usage::{UsageLine, UsageReport};

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// A body or parameter that must be there.
    Missing,
    /// A value that is none, or of another type.
    Value,
    /// A field that messages do not have.
    Unknown,
    /// What is another's, or nobody's.
    Foreign,
    /// More than is taken.
    Large,
    /// Another content type.
    Kind,
}
use ErrorCode::{
    AlreadyExists, CursorExpired, InvalidArgument, InvalidMessage, InvalidRules, JobRegistered,
    MethodNotAllowed, NotFound, PermissionDenied, TooLarge, Unauthenticated, UnsupportedMediaType,
    VersionConflict,
};
use Wrong::{Foreign, Kind, Large, Missing, Unknown, Value as Bad};

/// A call, by whom, what it sends, and the code of the reply and what that names.
#[derive(Clone)]
struct Case {
    wrong: Wrong,
    call: &'static str,
    /// What stands behind the path, or in place of `{name}`, `{id}` or `{job}`.
    path: String,
    by: Role,
    head: &'static str,
    body: String,
    code: ErrorCode,
    /// What is at fault; empty if the reply does not name it.
    at: &'static str,
}

const JSON: &str = "content-type: application/json\r\n";
const TEXT: &str = "content-type: text/plain\r\n";
const OF_REPORT: &str = "content-type: application/vnd.sluice.report-9+postcard\r\n";

fn case(wrong: Wrong, call: &'static str, path: &str, code: ErrorCode, at: &'static str) -> Case {
    let (by, path) = (Role::Admin, path.to_owned());
    Case { wrong, call, path, by, head: "", body: String::new(), code, at }
}

impl Case {
    fn json(self, body: impl Into<String>) -> Case {
        Case { head: JSON, body: body.into(), ..self }
    }

    fn sending(self, head: &'static str, body: impl Into<String>) -> Case {
        Case { head, body: body.into(), ..self }
    }

    fn by(self, by: Role) -> Case {
        Case { by, ..self }
    }
}

const STATUS: &str = "GET /v1/status";
const OPENAPI: &str = "GET /openapi.json";
const METRICS: &str = "GET /metrics";
const RULES: &str = "GET /v1/rules";
const SET_RULES: &str = "PUT /v1/rules";
const EDIT: &str = "POST /v1/rules/edits";
const PROXIES: &str = "GET /v1/proxies";
const FORGET: &str = "DELETE /v1/proxies/{name}";
const REPORT: &str = "POST /v1/proxies/{name}/report";
const USAGE: &str = "GET /v1/usage";
const JOB: &str = "GET /v1/report";
const WHY: &str = "GET /v1/why";
const WHY_TOP: &str = "GET /v1/why/top";
const LIVE: &str = "GET /v1/live";
const CHANGES: &str = "GET /v1/ledger/changes";
const FILE: &str = "GET /v1/ledger/file";
const TOKENS: &str = "GET /v1/tokens";
const MAKE_TOKEN: &str = "POST /v1/tokens";
const REVOKE: &str = "DELETE /v1/tokens/{name}";
const AUDIT: &str = "GET /v1/audit";
const DECAYS: &str = "GET /v1/decays";
const EVENTS: &str = "GET /v1/events";
const RESERVATIONS: &str = "GET /v1/reservations";
const RESERVE: &str = "POST /v1/reservations";
const RESERVATION: &str = "GET /v1/reservations/{id}";
const REMOVE: &str = "DELETE /v1/reservations/{id}";
const CLAIM: &str = "POST /v1/reservations/{id}/claim";
const EXTEND: &str = "POST /v1/reservations/{id}/extend";
const MOVE: &str = "POST /v1/reservations/{id}/move";
const JOBS: &str = "GET /v1/jobs";
const GET_JOB: &str = "GET /v1/jobs/{job}";
const PUT_JOB: &str = "PUT /v1/jobs/{job}";
const END_JOB: &str = "DELETE /v1/jobs/{job}";
const JOB_TOKEN: &str = "POST /v1/jobs/{job}/token";
const ADD_PHASE: &str = "POST /v1/reservations/{id}/phases";
const FINISH: &str = "POST /v1/reservations/{id}/finish";
const CALENDAR: &str = "GET /v1/calendar";
const CREDIT: &str = "GET /v1/credit";

/// Calls without body, parameter and name: nothing but what all are asked can be wrong with them.
const PLAIN: [&str; 8] = [STATUS, OPENAPI, METRICS, RULES, PROXIES, LIVE, FILE, TOKENS];

fn of_rules() -> Vec<Case> {
    let edit = |wrong, code, at, body: &str| case(wrong, EDIT, "", code, at).json(body);
    let mib = "#".repeat((1 << 20) + 1);
    vec![
        case(Bad, SET_RULES, "", InvalidRules, "2:8").sending("", "[[rule]]\nname = 3\n"),
        case(Bad, SET_RULES, "", InvalidRules, "1:2").sending("", "\u{0}"),
        case(Bad, SET_RULES, "?save=perhaps", InvalidArgument, "save"),
        case(Bad, SET_RULES, "", InvalidArgument, "If-Match").sending("if-match: 0\r\n", ""),
        case(Unknown, SET_RULES, "", InvalidRules, "1:1").sending("", "colour = \"red\"\n"),
        case(Foreign, SET_RULES, "", VersionConflict, "If-Match")
            .sending("if-match: \"0\"\r\n", ""),
        case(Foreign, SET_RULES, "", PermissionDenied, "").by(Role::Read),
        case(Large, SET_RULES, "", TooLarge, "").sending("", mib.clone()),
        case(Kind, SET_RULES, "", UnsupportedMediaType, "Content-Type").json("{}"),
        edit(Missing, InvalidMessage, "action", r#"{"name": "jobs"}"#),
        edit(Missing, InvalidArgument, "", ""),
        edit(Bad, InvalidMessage, "action", r#"{"action": "begin", "name": "jobs"}"#),
        edit(
            Bad,
            InvalidRules,
            "5:9",
            r#"{"action": "change", "name": "jobs", "keys": {"limit": "fast"}}"#,
        ),
        edit(Unknown, InvalidMessage, "rank", r#"{"action": "stop", "name": "jobs", "rank": 1}"#),
        edit(
            Unknown,
            InvalidArgument,
            "keys",
            r#"{"action": "change", "name": "jobs", "keys": {"limits": "1"}}"#,
        ),
        edit(Foreign, NotFound, "name", r#"{"action": "stop", "name": "nobody"}"#),
        edit(
            Foreign,
            AlreadyExists,
            "name",
            r#"{"action": "start", "name": "jobs", "keys": {"match": "*"}}"#,
        ),
        edit(Large, TooLarge, "", &format!("{{\"action\": \"{}\"}}", "a".repeat(4 << 20))),
        case(Kind, EDIT, "", UnsupportedMediaType, "Content-Type")
            .sending(TEXT, r#"{"action": "stop", "name": "jobs"}"#),
    ]
}

/// A report of these targets, of which each has been used in these scopes.
fn report(targets: &[&str], scopes: &[Scope]) -> String {
    let usage = ScopeUsage { used: None, waiting: false };
    let uses: Vec<_> = scopes.iter().map(|scope| (scope.clone(), usage)).collect();
    let of_target = |name: &&str| {
        let report = ShareReport {
            from: "b".into(),
            epoch: 1,
            sequence: 1,
            term: Membership::default(),
            last_assignment: 0,
            revision: 0,
            lease_expired: false,
            holdings: None,
            uses: Some(uses.clone()),
            slots: None,
            waited: vec![],
            served: vec![],
            parents: vec![],
            scopes: None,
        };
        ((*name).into(), report)
    };
    let targets = targets.iter().map(of_target).collect();
    let report = ProxyReport { epoch: 1, targets, ..ProxyReport::default() };
    String::from_utf8(report.encode()).expect("small numbers and names are text")
}

fn of_proxies() -> Vec<Case> {
    let told = |wrong, code, at, body: String| {
        case(wrong, REPORT, "b", code, at).sending(OF_REPORT, body).by(Role::Proxy)
    };
    let names: Vec<String> = (0..66).map(|n| format!("t{n}")).collect();
    let many: Vec<&str> = names.iter().map(String::as_str).collect();
    let of_t = report(&["t"], &[]);
    vec![
        told(Missing, InvalidArgument, "", String::new()),
        told(Bad, InvalidArgument, "", of_t[..of_t.len() - 1].into()),
        told(Bad, InvalidArgument, "", of_t.clone() + "x"),
        told(Bad, InvalidArgument, "targets", report(&many, &[])),
        told(Bad, InvalidArgument, "targets", report(&[""], &[])),
        told(Bad, InvalidArgument, "", report(&["t"], &[Scope::rule("", &[])])),
        case(Foreign, REPORT, "-b", InvalidArgument, "name")
            .sending(OF_REPORT, of_t.clone())
            .by(Role::Proxy),
        case(Foreign, REPORT, "b", PermissionDenied, "").by(Role::Operate),
        told(Large, TooLarge, "", " ".repeat((8 << 20) + 1)),
        case(Kind, REPORT, "b", UnsupportedMediaType, "Content-Type").json("{}").by(Role::Proxy),
        case(Kind, REPORT, "b", UnsupportedMediaType, "Content-Type").sending(TEXT, of_t),
        case(Foreign, FORGET, "nobody", NotFound, "name"),
        case(Bad, FORGET, "%ff", InvalidArgument, "name"),
        case(Large, FORGET, &"n".repeat(5000), NotFound, "name"),
    ]
}

fn of_looks() -> Vec<Case> {
    let cursor = "?born_ns=1&commit=1&term=1&boot=1&generation=1";
    let long = "x".repeat(5000);
    vec![
        case(Bad, USAGE, "?by=shoe", InvalidArgument, "by"),
        case(Bad, USAGE, "?from=then", InvalidArgument, "from"),
        case(Bad, USAGE, "?from=now&to=-1h", InvalidArgument, "from"),
        case(Bad, USAGE, "?user=-1&by=user", InvalidArgument, "user"),
        case(Bad, USAGE, "?user=1001", InvalidArgument, "user"),
        case(Foreign, USAGE, "?by=user&user=1002", PermissionDenied, "user").by(Role::User),
        case(Foreign, USAGE, "?by=job", PermissionDenied, "user").by(Role::User),
        case(Large, USAGE, &format!("?by={long}"), InvalidArgument, "by"),
        case(Missing, JOB, "", InvalidArgument, "job"),
        case(Bad, JOB, "?job=dd.1&from=then", InvalidArgument, "from"),
        case(Bad, JOB, "?job=dd.1&from=now&to=-1h", InvalidArgument, "from"),
        case(Foreign, JOB, "?job=nobody", NotFound, "job"),
        case(Foreign, JOB, "?job=dd.1", PermissionDenied, "").by(Role::Proxy),
        case(Large, JOB, &format!("?job={long}"), NotFound, "job"),
        case(Bad, WHY, "?user=all", InvalidArgument, "user"),
        case(Foreign, WHY, "?user=1002", PermissionDenied, "user").by(Role::User),
        case(Large, WHY, "?user=4294967296", InvalidArgument, "user"),
        case(Bad, WHY_TOP, "?by=shoe", InvalidArgument, "by"),
        case(Bad, WHY_TOP, "?since=then", InvalidArgument, "since"),
        case(Large, WHY_TOP, &format!("?since={long}"), InvalidArgument, "since"),
        case(Foreign, WHY_TOP, "", PermissionDenied, "").by(Role::User),
        case(Missing, CHANGES, "?born_ns=1", InvalidArgument, "commit"),
        case(Bad, CHANGES, &cursor.replace("commit=1", "commit=one"), InvalidArgument, "commit"),
        case(Foreign, CHANGES, cursor, CursorExpired, ""),
        case(
            Large,
            CHANGES,
            &cursor.replace("boot=1", "boot=18446744073709551616"),
            InvalidArgument,
            "boot",
        ),
        case(Bad, AUDIT, "?since=then", InvalidArgument, "since"),
        case(Bad, AUDIT, "?limit=0", InvalidArgument, "limit"),
        case(Large, AUDIT, "?limit=1001", InvalidArgument, "limit"),
        case(Foreign, AUDIT, "", PermissionDenied, "").by(Role::Operate),
        case(Foreign, DECAYS, "?subject=uid%3D1002", PermissionDenied, "subject").by(Role::User),
        case(Large, DECAYS, &format!("?subject={long}"), PermissionDenied, "subject")
            .by(Role::User),
        case(Bad, DECAYS, "?subject=%ff&shoe", InvalidArgument, "shoe"),
        case(Bad, EVENTS, "?since=then", InvalidArgument, "since"),
        case(Bad, EVENTS, "?wait=long", InvalidArgument, "wait"),
        case(Bad, EVENTS, "", InvalidArgument, "Last-Event-ID").sending("last-event-id: x\r\n", ""),
        case(Large, EVENTS, "?limit=1001", InvalidArgument, "limit"),
        case(Large, EVENTS, "?wait=61s", InvalidArgument, "wait"),
        case(Foreign, EVENTS, "", PermissionDenied, "").by(Role::User),
    ]
}

fn of_tokens() -> Vec<Case> {
    let make = |wrong, code, at, body: &str| case(wrong, MAKE_TOKEN, "", code, at).json(body);
    vec![
        make(Missing, InvalidMessage, "role", r#"{"name": "eve"}"#),
        make(Missing, InvalidArgument, "", ""),
        make(Bad, InvalidMessage, "role", r#"{"name": "eve", "role": "king"}"#),
        make(Bad, InvalidArgument, "name", r#"{"name": "-eve", "role": "read"}"#),
        make(Bad, InvalidArgument, "user", r#"{"name": "eve", "role": "user"}"#),
        make(
            Bad,
            InvalidArgument,
            "expires_s",
            r#"{"name": "eve", "role": "read", "expires_s": 1}"#,
        ),
        make(
            Unknown,
            InvalidMessage,
            "expires",
            r#"{"name": "eve", "role": "read", "expires": 1}"#,
        ),
        make(Foreign, AlreadyExists, "name", r#"{"name": "user", "role": "read"}"#),
        case(Foreign, MAKE_TOKEN, "", PermissionDenied, "").by(Role::Operate),
        make(
            Large,
            InvalidArgument,
            "name",
            &format!(r#"{{"name": "{}", "role": "read"}}"#, "e".repeat(64)),
        ),
        make(Large, TooLarge, "", &" ".repeat(4 << 20)),
        case(Kind, MAKE_TOKEN, "", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        case(Foreign, REVOKE, "nobody", NotFound, "name"),
        case(Foreign, REVOKE, "user", PermissionDenied, "").by(Role::Proxy),
        case(Bad, REVOKE, "%ff", InvalidArgument, "name"),
        case(Large, REVOKE, &"n".repeat(5000), NotFound, "name"),
    ]
}

fn of_reservations() -> Vec<Case> {
    let reserve = |wrong, code, at, body: &str| case(wrong, RESERVE, "", code, at).json(body);
    let extend = |wrong, code, at, body: &str| case(wrong, EXTEND, "77", code, at).json(body);
    let start = |wrong, code, at, body: &str| case(wrong, MOVE, "77", code, at).json(body);
    let add = |wrong, code, at, body: &str| case(wrong, ADD_PHASE, "77", code, at).json(body);
    let foreign = r#"{"duration_ns": 1, "user": 1002, "read": {"bytes": 1}}"#;
    let key = r#"{"duration_ns": 1, "user": 5, "idempotency_key": "a b"}"#;
    let charged = r#"{"duration_ns": 1, "account": "a", "read": {"bytes": 1}}"#;
    let phase = r#"{"duration_ns": 1, "phases": [{"start_ns": 1, "duration_ns": 1, "colour": 1}]}"#;
    let large = " ".repeat(4 << 20);
    let mut cases = vec![
        case(Bad, RESERVATIONS, "?user=all", InvalidArgument, "user"),
        case(Foreign, RESERVATIONS, "?user=1002", PermissionDenied, "user").by(Role::User),
        case(Large, RESERVATIONS, "?user=4294967296", InvalidArgument, "user"),
        reserve(Missing, InvalidMessage, "duration_ns", "{}"),
        reserve(Bad, InvalidMessage, "duration_ns", r#"{"duration_ns": "long"}"#),
        reserve(Unknown, InvalidMessage, "colour", r#"{"duration_ns": 1, "colour": 1}"#),
        reserve(Foreign, PermissionDenied, "user", foreign).by(Role::User),
        reserve(Bad, InvalidArgument, "idempotency_key", key),
        reserve(Large, InvalidMessage, "nodes", r#"{"duration_ns": 1, "nodes": 4294967296}"#),
        reserve(Foreign, PermissionDenied, "account", charged).by(Role::User),
        reserve(
            Bad,
            InvalidMessage,
            "phases[0].start_ns",
            r#"{"duration_ns": 1, "phases": [{"start_ns": "soon"}]}"#,
        ),
        reserve(Unknown, InvalidMessage, "phases[0].colour", phase),
        reserve(Large, TooLarge, "", &large),
        case(Bad, RESERVATIONS, "?after=last", InvalidArgument, "after"),
        case(Kind, RESERVE, "", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        case(Bad, RESERVATION, "1?until=active&wait=long", InvalidArgument, "wait"),
        case(Bad, RESERVATION, "1?until=then", InvalidArgument, "until"),
        extend(Missing, InvalidMessage, "more_ns", "{}"),
        extend(Bad, InvalidMessage, "more_ns", r#"{"more_ns": "long"}"#),
        extend(Unknown, InvalidMessage, "colour", r#"{"more_ns": 1, "colour": 1}"#),
        extend(Foreign, NotFound, "id", r#"{"more_ns": 1}"#),
        extend(Large, TooLarge, "", &large),
        case(Kind, EXTEND, "77", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        start(Missing, InvalidArgument, "", ""),
        start(Bad, InvalidMessage, "by_ns", r#"{"by_ns": "soon"}"#),
        start(Bad, InvalidArgument, "by_ns", r#"{"exact": true, "by_ns": 7}"#),
        start(Unknown, InvalidMessage, "colour", r#"{"colour": 1}"#),
        start(Foreign, NotFound, "id", "{}"),
        start(Foreign, PermissionDenied, "", "{}").by(Role::Read),
        start(Large, TooLarge, "", &large),
        case(Kind, MOVE, "77", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        add(Missing, InvalidMessage, "duration_ns", "{}"),
        add(Bad, InvalidMessage, "tolerance_ns", r#"{"duration_ns": 1, "tolerance_ns": "long"}"#),
        add(Unknown, InvalidMessage, "start_ns", r#"{"duration_ns": 1, "start_ns": 1}"#),
        add(Foreign, NotFound, "id", r#"{"duration_ns": 1, "read": {"bytes": 1}}"#),
        add(Large, TooLarge, "", &large),
        case(Kind, ADD_PHASE, "77", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        case(Bad, CALENDAR, "?from=then", InvalidArgument, "from"),
        case(Bad, CALENDAR, "?from=now&to=-1h", InvalidArgument, "to"),
        case(Large, CALENDAR, &format!("?from={}", "1".repeat(5000)), InvalidArgument, "from"),
        case(Foreign, CALENDAR, "", PermissionDenied, "").by(Role::Proxy),
        case(Bad, CREDIT, "?user=all", InvalidArgument, "user"),
        case(Foreign, CREDIT, "?user=1002", PermissionDenied, "user").by(Role::User),
        case(Foreign, CREDIT, "?account=a", PermissionDenied, "account").by(Role::User),
        case(Large, CREDIT, "?user=4294967296", InvalidArgument, "user"),
    ];
    for call in [RESERVATION, REMOVE, CLAIM, FINISH] {
        cases.push(case(Bad, call, "one", InvalidArgument, "id"));
        cases.push(case(Foreign, call, "77", NotFound, "id"));
        cases.push(case(Large, call, &"7".repeat(5000), InvalidArgument, "id"));
    }
    cases
}

fn of_jobs() -> Vec<Case> {
    let put =
        |wrong, job: &str, code, at, body: &str| case(wrong, PUT_JOB, job, code, at).json(body);
    let own = r#"{"attempt": 0}"#;
    let long = "7".repeat(500);
    let mut cases = vec![
        put(Missing, "7", InvalidMessage, "attempt", "{}"),
        put(Missing, "7", InvalidArgument, "user", own),
        put(Bad, "7", InvalidMessage, "nodes", r#"{"attempt": 0, "nodes": "a"}"#),
        put(Bad, "7", InvalidArgument, "nodes", r#"{"attempt": 0, "user": 5, "nodes": ["a b"]}"#),
        put(Bad, "7", InvalidArgument, "ends_ns", r#"{"attempt": 0, "user": 5, "ends_ns": 1}"#),
        put(Unknown, "7", InvalidMessage, "secret", r#"{"attempt": 0, "secret": "a"}"#),
        put(Foreign, "job", JobRegistered, "user", r#"{"attempt": 1, "user": 5}"#),
        put(Foreign, "7", PermissionDenied, "job", own).by(Role::User),
        put(Foreign, "run.7", PermissionDenied, "user", r#"{"attempt": 0, "user": 5}"#)
            .by(Role::User),
        put(Foreign, "job", PermissionDenied, "", own).by(Role::Job),
        put(Large, &long, InvalidArgument, "job", own),
        put(Large, "7", TooLarge, "", &" ".repeat(6 << 20)),
        case(Kind, PUT_JOB, "7", UnsupportedMediaType, "Content-Type").sending(TEXT, "{}"),
        case(Bad, END_JOB, "7?attempt=last", InvalidArgument, "attempt"),
        case(Foreign, END_JOB, "job", PermissionDenied, "").by(Role::Job),
        case(Foreign, END_JOB, "job", PermissionDenied, "job").by(Role::User),
        case(Foreign, JOBS, "", PermissionDenied, "").by(Role::Proxy),
        case(Bad, JOBS, "?after=%0a", InvalidArgument, "after"),
        case(Large, JOBS, &format!("?before={long}"), InvalidArgument, "before"),
        case(Foreign, GET_JOB, "7", PermissionDenied, "job").by(Role::Job),
        case(Foreign, JOB_TOKEN, "job", PermissionDenied, "job").by(Role::Proxy),
    ];
    for call in [GET_JOB, END_JOB, JOB_TOKEN] {
        cases.push(case(Bad, call, "%0a", InvalidArgument, "job"));
        cases.push(case(Foreign, call, "7", NotFound, "job"));
        cases.push(case(Large, call, &long, InvalidArgument, "job"));
    }
    cases
}

/// The calls of the description, and what of each must be tried.
fn described(all: &Value) -> Vec<(String, BTreeSet<Wrong>)> {
    let mut calls = vec![(OPENAPI.to_owned(), BTreeSet::new())];
    for (path, methods) in all["paths"].as_object().unwrap() {
        for (method, call) in methods.as_object().unwrap() {
            let mut wrong = BTreeSet::new();
            if !call["requestBody"].is_null() {
                wrong.extend([Bad, Foreign, Large, Kind]);
            }
            // A form without names of fields has none that is unknown.
            let is_named = !call["requestBody"]["content"][api::REPORT_TYPE].is_object();
            if !call["requestBody"].is_null() && is_named {
                wrong.insert(Unknown);
            }
            if !api::query_names(call).is_empty() || path.contains('{') {
                wrong.extend([Bad, Foreign, Large]);
            }
            let json = &call["requestBody"]["content"]["application/json"];
            let parameters = call["parameters"].as_array().into_iter().flatten();
            let must =
                |parameter: &Value| parameter["in"] == "query" && parameter["required"] == true;
            if !json.is_null() || parameters.into_iter().any(must) {
                wrong.insert(Missing);
            }
            calls.push((format!("{} {path}", method.to_uppercase()), wrong));
        }
    }
    calls
}

/// All that wrong calls might have changed, as text.
fn state(admin: &ApiClient) -> String {
    let usage = ["job", "user", "group", "project", "proxy", "kind"].map(|by| {
        let table = admin.usage(&format!("by={by}")).unwrap();
        serde_json::to_string(&table.rows).unwrap()
    });
    let proxies = admin.proxies().unwrap().proxies;
    let proxies: Vec<_> = proxies.iter().map(|p| (&p.name, &p.target, p.epoch)).collect();
    let get = |path: &str| admin.get::<Value>(path).unwrap().to_string();
    [
        usage.join("\n"),
        format!("{proxies:?}"),
        get(path::RULES),
        get(path::TOKENS),
        get(path::AUDIT),
        serde_json::to_string(&admin.decays(None).unwrap().decays).unwrap(),
        format!("{:?}", admin.reservations("ended=true").unwrap().reservations),
        format!("{:?}", admin.jobs("").unwrap().jobs),
    ]
    .join("\n")
}

/// Something of each kind: rules, tokens of all roles, a proxy with usage. The roles' tokens.
fn furnish(url: &str, admin: &ApiClient) -> Vec<(Role, String)> {
    let tokens: Vec<_> =
        Role::ALL.into_iter().map(|role| (role, token(admin, role.name(), role))).collect();
    admin.set_rules(&limited(LIMIT)).unwrap();
    let proxy = &tokens.iter().find(|(role, _)| *role == Role::Proxy).unwrap().1;
    let service = Service { read_bytes: 1_000, cost_ns: 1, ..Service::default() };
    let subject = account_subject("dd.1", 1001).into();
    let lines = vec![UsageLine { id: 1, subject, service }];
    let usage = Some(UsageReport { sequence: 1, total: service, lines, ..UsageReport::default() });
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let report = ProxyReport { epoch: since.as_nanos() as u64, usage, ..ProxyReport::default() };
    client(url, &showing(proxy)).report("a", &report).unwrap();
    until("it is counted", || !admin.usage("by=user").unwrap().rows.is_empty());
    tokens
}

#[test]
fn wrong_input_to_any_call_is_refused_with_the_reason_and_changes_nothing() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let url = controller.url.as_str();
    let admin = client(url, &showing(&root));
    let tokens = furnish(url, &admin);
    let before = state(&admin);
    let cases: Vec<_> =
        [of_rules(), of_proxies(), of_looks(), of_tokens(), of_reservations(), of_jobs()].concat();

    let calls = described(&admin.get::<Value>(path::OPENAPI).unwrap());
    for (call, wrong) in &calls {
        let tried: BTreeSet<_> =
            cases.iter().filter(|case| case.call == call).map(|case| case.wrong).collect();
        assert!(wrong.is_subset(&tried), "{call}: of {wrong:?} only {tried:?} are tried");
        assert_eq!(wrong.is_empty(), PLAIN.contains(&call.as_str()), "{call}");
        refused_whoever_asks(url, &root, call);
    }
    for case in &cases {
        assert!(calls.iter().any(|(call, _)| call == case.call), "{} is no call", case.call);
    }
    let wrong: Vec<_> = cases.iter().filter_map(|case| not_refused(url, &tokens, case)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(state(&admin), before);
}

/// What is wrong with any call: another method, an unknown parameter, no token.
fn refused_whoever_asks(url: &str, root: &str, call: &str) {
    let (method, path) = call.split_once(' ').unwrap();
    let path = path.replace("{name}", "user").replace("{id}", "1").replace("{job}", "1");
    let head = format!("authorization: Bearer {root}\r\n");
    let asked = [
        (format!("PATCH {path}"), head.as_str(), MethodNotAllowed, ""),
        (format!("{method} {path}?shoe=1"), &head, InvalidArgument, "shoe"),
        (format!("{method} {path}"), "", Unauthenticated, "Authorization"),
        (
            format!("{method} {path}"),
            "authorization: Bearer slc_x\r\n",
            Unauthenticated,
            "Authorization",
        ),
        (format!("{method} {path}/%00/more"), &head, NotFound, ""),
    ];
    for (call, head, code, at) in asked {
        let answer = ask(url, &call, head, "");
        assert!(is_refusal(&answer, code, at), "{call}: {answer}");
    }
}

/// Whether a reply has the status of the code, and a report with it that names what is at fault.
fn is_refusal(reply: &str, code: ErrorCode, at: &str) -> bool {
    let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let report: ErrorReport = serde_json::from_str(body).unwrap_or_default();
    let named = report.code == code && report.at.unwrap_or_default() == at;
    named && status(reply) == code.status() && !report.message.is_empty() && body.len() < 1_000
}

/// What is wrong with the answer to a wrong call.
fn not_refused(url: &str, tokens: &[(Role, String)], case: &Case) -> Option<String> {
    let token = &tokens.iter().find(|(role, _)| *role == case.by).unwrap().1;
    let head = format!("authorization: Bearer {token}\r\n{}", case.head);
    let call = if case.call.contains('{') {
        let names = ["{name}", "{id}", "{job}"];
        names.iter().fold(case.call.to_owned(), |call, name| call.replace(name, &case.path))
    } else {
        format!("{}{}", case.call, case.path)
    };
    let answer = ask(url, &call, &head, &case.body);
    let shown: String = call.chars().take(80).collect();
    let told = format!("{:?} {shown}: {} {:?} expected: {answer}", case.wrong, case.code, case.at);
    (!is_refusal(&answer, case.code, case.at)).then_some(told)
}

/// The stderr of a command that fails with status 1 and `--json`: one line, its code and what it
/// names. Its stdout is empty.
fn failure(words: &[&str]) -> (ErrorCode, Option<String>) {
    let output = std::process::Command::new(SLUICE).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{words:?}: {stderr}");
    let report: ErrorReport = serde_json::from_str(&stderr).unwrap();
    assert!(!report.message.is_empty(), "{words:?}");
    (report.code, report.at)
}

#[test]
fn a_command_that_fails_with_json_prints_the_code_on_one_line() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let at = ["--controller", &controller.url];
    let with = |words: &[&str]| failure(&[words, &at].concat());
    let named = |code, at: &str| (code, Some(at.to_owned()));

    let nobody = ["status", "--json", "--controller", "http://127.0.0.1:1"];
    assert_eq!(failure(&nobody), (ErrorCode::Unreachable, None));
    let missing = ["rule", "list", "--json", "--proxy", "unix:///nonexistent/api"];
    assert_eq!(failure(&missing), (ErrorCode::Unreachable, None));
    assert_eq!(
        with(&["token", "create", "a b", "--role", "admin", "--json"]),
        named(InvalidArgument, "name")
    );
    assert_eq!(
        with(&["usage", "--json", "--since", "1h", "--until", "yesterday"]),
        named(InvalidArgument, "--until")
    );
    assert_eq!(with(&["report", "--json", "--job", "nobody"]), named(NotFound, "job"));
    let stop = ["rule", "stop", "nobody", "--json"];
    assert_eq!(with(&stop), named(NotFound, "name"));

    let rules = data.path().join("wrong.toml");
    std::fs::write(&rules, "[[rule]]\nname = 3\n").unwrap();
    let rules = rules.to_str().unwrap();
    assert_eq!(with(&["rule", "import", rules, "--json"]), named(InvalidRules, "2:8"));
    let file = ["rule", "list", "--json", "--file", rules];
    assert_eq!(failure(&file), named(InvalidRules, "2:8"));
    let file = ["rule", "list", "--json", "--file", "/nonexistent/rules"];
    assert_eq!(failure(&file), (ErrorCode::Io, None));

    // Without --json the message is for people.
    let words = ["usage", "--controller", "http://127.0.0.1:1"];
    let output = std::process::Command::new(SLUICE).args(words).output().unwrap();
    assert!(output.stderr.starts_with(b"sluice: cannot connect to "), "{output:?}");
}
