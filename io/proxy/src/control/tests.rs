//! The server with a proxy that is only figures.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as Stream;
use std::sync::Mutex;

use api::ErrorCode;
use http::{ApiClient, ClientError};
use rules::RuleSet;

use super::*;

/// A proxy with one class that takes any rule file, and has none to save it in.
#[derive(Default)]
struct ControlFigures {
    text: Mutex<String>,
}

impl ProxyControl for ControlFigures {
    fn status(&self) -> api::ProxyStatus {
        api::ProxyStatus { pid: 7, version: "0".into(), ..Default::default() }
    }
    fn classes(&self) -> api::WireClasses {
        let class = api::WireClass { rule: "default".into(), ..Default::default() };
        api::WireClasses { t_ns: 5, classes: vec![class] }
    }
    fn subjects(&self) -> api::WireSubjects {
        api::WireSubjects::default()
    }
    fn connections(&self) -> api::Connections {
        api::Connections { t_ns: 6, connections: vec![] }
    }
    fn why(&self, query: &api::WhyQuery) -> api::Why {
        api::Why { query: query.clone(), ..Default::default() }
    }
    fn metrics(&self) -> String {
        "x 1\n".into()
    }
    fn rules(&self) -> api::WireRules {
        let text = self.text.lock().unwrap();
        api::WireRules::of(&text, &RuleSet::parse(&text).unwrap())
    }
    fn set_rules(&self, text: &str, over: Option<&str>, save: bool) -> Result<(), RuleUpdateError> {
        RuleSet::parse(text).map_err(RuleUpdateError::Wrong)?;
        let mut now = self.text.lock().unwrap();
        if let Some(over) = over.filter(|over| *over != api::WireRules::version_of(&now)) {
            return Err(RuleUpdateError::Stale { over: over.into() });
        }
        if save {
            return Err(RuleUpdateError::NoFile);
        }
        *now = text.into();
        Ok(())
    }
}

fn serve(name: &str) -> (ControlServer, ApiClient) {
    let path = std::env::temp_dir().join(format!("sluice-{}-api-{name}", std::process::id()));
    let control = Arc::new(ControlFigures::default());
    let server = ControlServer::start(&path, control).unwrap();
    let client = ApiClient::new(&ServerAddress::Unix(path)).unwrap();
    (server, client)
}

#[test]
fn each_path_answers_with_its_message() {
    let (server, client) = serve("paths");
    assert_eq!(client.status().unwrap().pid, 7);
    assert_eq!(client.classes().unwrap().classes[0].rule, "default");
    assert_eq!(client.subjects().unwrap(), api::WireSubjects::default());
    assert_eq!(client.connections().unwrap().t_ns, 6);
    let query = api::WhyQuery { job: Some("a b".into()), user: Some(7), limit: None };
    assert_eq!(client.why(&query).unwrap().query, query);
    let wrong = client.get::<api::Why>("/v1/why?user=x").unwrap_err();
    assert_eq!((wrong.code(), wrong.at()), (ErrorCode::InvalidArgument, Some("user")), "{wrong}");
    assert_eq!(client.rules().unwrap().rules, []);
    drop(server);
    assert!(matches!(client.status().unwrap_err(), ClientError::Connect { .. }));
}

#[test]
fn rules_are_put_in_force_and_read_back() {
    let (_server, client) = serve("rules");
    let text =
        "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={dd.*}\"\nper = [\"jobid\"]\nweight = 4\n";
    let answer = client.set_rules(text).unwrap();
    assert_eq!(answer, client.rules().unwrap());
    let rule = &answer.rules[0];
    assert_eq!((rule.name.as_str(), rule.weight), ("jobs", 4));
    assert_eq!((rule.condition.as_str(), &rule.per[..]), ("jobid={dd.*}", &["jobid".into()][..]));
}

#[test]
fn a_rule_file_with_an_error_is_refused_with_its_line_and_changes_nothing() {
    let (_server, client) = serve("refused");
    client.set_rules("[[rule]]\nname = \"old\"\n").unwrap();
    let error = client.set_rules("[[rule]]\nname = \"new\"\nlimit = \"50 MB\"\n").unwrap_err();
    assert_eq!((error.code(), error.at()), (ErrorCode::InvalidRules, Some("3:9")));
    let lines: Vec<_> = error.to_string().lines().map(String::from).collect();
    assert!(lines[0].starts_with("rules:3:9: \"50 MB\" is not"), "{lines:?}");
    assert_eq!(lines[1..], ["  3 | limit = \"50 MB\"", "    |         ^^^^^^^"]);
    assert_eq!(client.rules().unwrap().rules[0].name, "old");
}

#[test]
fn rules_take_the_place_of_the_version_that_they_were_made_from_and_of_no_other() {
    let (_server, client) = serve("version");
    let first = client.rules().unwrap().version;
    let second = client.replace_rules("[[rule]]\nname = \"a\"\n", Some(&first), false).unwrap();
    assert_ne!(second.version, first);
    let late = client.replace_rules("", Some(&first), false).unwrap_err();
    assert_eq!((late.code(), late.at()), (ErrorCode::VersionConflict, Some("If-Match")));
    assert_eq!(client.rules().unwrap(), second);
    assert_eq!(client.replace_rules("", Some(&second.version), false).unwrap().rules, []);
}

#[test]
fn the_version_is_the_etag_and_what_is_none_is_refused() {
    let (server, client) = serve("etag");
    let ask = |head: &str| {
        let mut stream = Stream::connect(server.path()).unwrap();
        write!(stream, "{head}host: x\r\ncontent-length: 0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let version = client.rules().unwrap().version;
    let answer = ask("GET /v1/rules HTTP/1.1\r\n");
    assert!(answer.contains(&format!("\r\netag: \"{version}\"\r\n")), "{answer}");
    for (header, status) in [
        (format!("if-match: \"{version}\"\r\n"), "200"),
        ("if-match: *\r\n".into(), "200"),
        ("if-match: \"0\"\r\n".into(), "409"),
        ("if-match: 0\r\n".into(), "400"),
        ("if-match: \"0\", \"1\"\r\n".into(), "400"),
    ] {
        let answer = ask(&format!("PUT /v1/rules HTTP/1.1\r\n{header}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{header} {answer}");
    }
}

#[test]
fn saving_without_a_file_is_refused_and_changes_nothing() {
    let (_server, client) = serve("save");
    let error = client.replace_rules("[[rule]]\nname = \"a\"\n", None, true).unwrap_err();
    assert!(matches!(&error, ClientError::Refused { status: 422, .. }), "{error}");
    assert_eq!((error.code(), error.at()), (ErrorCode::NoRuleFile, Some("save")));
    assert_eq!(client.rules().unwrap().rules, []);
}

#[test]
fn metrics_are_text_that_prometheus_knows() {
    let (server, _client) = serve("metrics");
    let mut stream = Stream::connect(server.path()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nx 1\n"), "{answer}");
}

#[test]
fn an_unknown_path_is_refused_and_points_to_the_description() {
    let (_server, client) = serve("unknown");
    let error = client.get::<api::ProxyStatus>("/v2/status").unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert_eq!(error.to_string(), "no resource at \"/v2/status\"; see /openapi.json");
}

#[test]
fn the_description_names_every_path_and_message() {
    let (_server, client) = serve("openapi");
    let description: serde_json::Value = client.get(api::path::OPENAPI).unwrap();
    let paths: Vec<_> = description["paths"].as_object().unwrap().keys().cloned().collect();
    use api::path::{CLASSES, CONNECTIONS, METRICS, RULES, STATUS, SUBJECTS, WHY};
    let mut known = [CLASSES, CONNECTIONS, METRICS, RULES, STATUS, SUBJECTS, WHY].map(String::from);
    known.sort();
    assert_eq!(paths, known);
    assert!(description["paths"][RULES]["put"].is_object());
    let codes = &description["paths"][RULES]["put"]["x-error-codes"];
    assert!(codes.as_array().unwrap().contains(&ErrorCode::NoRuleFile.name().into()), "{codes}");
    assert!(description["components"]["schemas"]["ErrorReport"].is_object());
    let usage = &description["components"]["schemas"]["WireUsage"]["properties"];
    assert_eq!(usage["queue_ns"]["type"], "integer");
    assert!(usage["queue_ns"]["description"].as_str().unwrap().contains("waited"));
}

#[test]
fn a_connection_that_says_nothing_does_not_hold_up_others_or_the_end() {
    let (server, client) = serve("mute");
    let mute: Vec<_> = (0..8).map(|_| Stream::connect(server.path()).unwrap()).collect();
    assert_eq!(client.status().unwrap().pid, 7);
    drop(server);
    for mut stream in mute {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn what_is_no_http_is_answered_and_closed() {
    let (server, client) = serve("garbage");
    let mut stream = Stream::connect(server.path()).unwrap();
    stream.write_all(b"\x13\0\0\0\x64\xff\xff\0\0\x20\0\x08\09P2000.L\n\n\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert_eq!(client.status().unwrap().pid, 7);
}
