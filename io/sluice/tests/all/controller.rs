//! One controller and three proxies, as processes: one limit over all of them.
//!
//! ```text
//!   readers ─ 9P ─► proxy a ─┐
//!   readers ─ 9P ─► proxy b ─┼─ http ─► sluice controller ◄─ PUT rules, GET usage
//!   readers ─ 9P ─► proxy c ─┘          (killed, started again on its directory)
//! ```

#![allow(clippy::unwrap_used)]

use std::process::Command;

use api::{ErrorCode, ProxyReport};
use http::{ApiClient, ClientError, Endpoint};

use crate::common::{Controller, SLUICE, until};
use crate::controlled::{
    BLOCK, LIMIT, Reader, all_is_given, api_of, assert_limited, limited, part_at, proxy,
    proxy_with, sum,
};
use model::Time;
use plan::{ControllerSession, SessionSettings};
use testkit::TestFolder;

#[test]
fn a_job_on_three_proxies_gets_its_one_limit_wherever_it_reads() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    client.set_rules(&limited(LIMIT)).unwrap();
    let proxies = ["a", "b", "c"].map(|node| proxy("one-limit", node, &controller.url));
    let mut readers: Vec<_> = proxies.iter().map(Reader::start).collect();
    until("all of it is given", || all_is_given(&proxies));
    assert_limited(&readers, "all three");

    // Two of them rest: the third has their parts soon, and no more than those.
    let [_, b, c] = &mut readers[..] else { unreachable!("three") };
    b.stop();
    c.stop();
    until("parts that rest have moved", || part_at(&proxies[0]) > 950_000_000);
    assert_limited(&readers, "one of them");
}

#[test]
fn other_rules_reach_every_proxy_and_take_the_place_of_its_file() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    let first = client.set_rules(&limited(LIMIT)).unwrap();
    let proxies = ["a", "b", "c"].map(|node| proxy("news", node, &controller.url));
    let apis = proxies.each_ref().map(api_of);
    let have = |version: &str| apis.iter().all(|api| api.rules().unwrap().version == version);
    until("the rules have come", || have(&first.version));
    for round in 1..=5 {
        let rules = client.set_rules(&limited(LIMIT + round)).unwrap();
        until("the change has come", || have(&rules.version));
    }

    // The rule file counts no more.
    let now = apis[0].rules().unwrap().version;
    proxies[0].signal(rustix::process::Signal::HUP);
    proxies[0].told("reloaded configuration and rules");
    assert_eq!(apis[0].rules().unwrap().version, now);

    let error = apis[0].set_rules("").unwrap_err();
    assert!(
        matches!(&error, ClientError::Governed { controller: at, .. } if *at == controller.url)
    );
    assert!(error.to_string().contains(&controller.url), "{error}");
    assert_eq!(error.code(), ErrorCode::RulesManaged, "nobody is to try again");
}

#[test]
fn a_controller_that_was_killed_finds_rules_proxies_and_usage_and_meanwhile_all_are_served() {
    let data = TestFolder::new();
    let mut controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    let rules = client.set_rules(&limited(LIMIT)).unwrap();
    let proxies = ["a", "b", "c"].map(|node| proxy("killed", node, &controller.url));
    let mut readers: Vec<_> = proxies.iter().map(Reader::start).collect();
    until("all of it is given", || all_is_given(&proxies));
    until("usage was counted", || !client.usage("by=job").unwrap().rows.is_empty());
    let term = client.controller_status().unwrap().term;
    controller.kill();

    for reader in &readers {
        let before = reader.bytes();
        until("it is served on", || reader.bytes() > before + u64::from(BLOCK) * 20);
    }
    assert_limited(&readers, "without a controller");

    let controller = Controller::start(data.path(), &controller.url);
    let client = controller.client();
    assert_eq!(client.rules().unwrap().text, rules.text);
    assert!(client.controller_status().unwrap().term > term);
    // They may hold the very parts that they would be given: then nothing is sent.
    until("the proxies are back", || {
        let proxies = client.proxies().unwrap().proxies;
        proxies.len() == 3
            && proxies.iter().all(|p| !p.unreachable && p.fallback > 0 && p.acknowledged == p.sent)
    });
    until("all of it is given again", || all_is_given(&proxies));
    assert_limited(&readers, "with another controller");
    readers.iter_mut().for_each(Reader::stop);
    let expected = sum(&readers);
    let counted = || {
        let table = client.usage("by=job&from=-1h").unwrap();
        table.rows.iter().find(|row| row.name == "dd.1").map_or(0, |row| row.service.read_bytes)
    };
    until("every byte was counted", || counted() == expected);
}

#[test]
fn without_a_controller_a_proxy_falls_back_or_keeps_what_it_had_as_it_was_told() {
    let data = TestFolder::new();
    let mut controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    client.set_rules(&limited(LIMIT)).unwrap();
    let url = &controller.url;
    let rests = proxy("lost", "rests", url);
    let keeps = proxy_with("lost", "keeps", url, "controller_unreachable = \"keep\"");
    let proxies = [keeps, proxy("lost", "falls", url)];
    until("all have come", || client.proxies().unwrap().proxies.len() == 3);
    let readers: Vec<_> = proxies.iter().map(Reader::start).collect();
    let parts = || proxies.each_ref().map(|proxy| part_at(proxy) / 1_000_000);
    // Half each, for the third rests.
    let halves = || parts().iter().all(|part| (470..530).contains(part));
    until("those that work have it all", halves);
    controller.kill();
    // An equal part is a third. What was on its way by then has come.
    until("one has fallen back", || (330..=334).contains(&parts()[1]));
    let kept = parts()[0];
    assert!(kept > 400, "{kept} thousandths");
    assert_limited(&readers, "one that keeps and one that falls back");
    assert_eq!(parts()[0], kept);
    drop(rests);
}

#[test]
fn wrong_calls_are_refused_and_name_what_is_wrong() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let ask = |method: &str, path: &str, head: &str, body: &str| {
        crate::entrusted::ask(&controller.url, &format!("{method} {path}"), head, body)
    };
    let cases = [
        ("GET", "/v2/status", "", String::new(), "404", "/v2/status"),
        ("POST", "/v1/rules", "", String::new(), "405", "POST"),
        ("PUT", "/v1/rules", "", "[[rule]]\nname = 3\n".into(), "400", "rules:2:8"),
        ("PUT", "/v1/rules", "if-match: \"0\"\r\n", String::new(), "409", "0"),
        ("PUT", "/v1/rules", "if-match: 0\r\n", String::new(), "400", "not \\\"0\\\""),
        ("PUT", "/v1/rules", "", "#".repeat((1 << 20) + 1), "413", "limit"),
        ("GET", "/v1/usage?by=shoe", "", String::new(), "400", "shoe"),
        ("GET", "/v1/usage?from=then", "", String::new(), "400", "then"),
        ("GET", "/v1/usage?from=now&to=-1h", "", String::new(), "400", "from"),
        ("GET", "/v1/usage?until=now", "", String::new(), "400", "until"),
        ("DELETE", "/v1/proxies/nobody", "", String::new(), "404", "nobody"),
    ];
    for (method, path, head, body, status, names) in cases {
        let answer = ask(method, path, head, &body);
        let said = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(names);
        assert!(said, "{method} {path} {head}: {status} {names:?} expected: {answer}");
    }
    let client = controller.client();
    let now = Time::from_nanos(1);
    let mut session = ControllerSession::new("a", 1, SessionSettings::default(), now);
    let targets = vec![("t".into(), session.report(Some(vec![]), now).unwrap())];
    client.report("a", &ProxyReport { epoch: 1, targets, ..ProxyReport::default() }).unwrap();
    assert_eq!(client.proxies().unwrap().proxies[0].name, "a");
    assert!(client.forget_proxy("a").unwrap().proxies.is_empty());
}

#[test]
fn a_controller_listens_only_where_this_machine_alone_can_reach_it() {
    let data = TestFolder::new();
    for listen in ["http://0.0.0.0:0", "http://192.0.2.1:1", "http://[::]:0"] {
        let output = Command::new(SLUICE)
            .args(["controller", "--listen", listen, "--data"])
            .arg(data.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(listen), "{said}");
    }
    let held = Controller::start(data.path(), &format!("unix://{}/c", data.path().display()));
    let endpoint = Endpoint::Unix(data.path().join("c"));
    assert!(ApiClient::at(&endpoint).unwrap().controller_status().is_ok());
    let second = Command::new(SLUICE)
        .args(["controller", "--listen", "http://127.0.0.1:0", "--data"])
        .arg(data.path())
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && said.contains(&held.process().to_string()), "{said}");
}

#[test]
fn sluice_rule_changes_the_rules_of_a_controller() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let rule = |args: &[&str], variable: Option<&str>| {
        let mut command = Command::new(SLUICE);
        command.arg("rule").args(args).env_remove("SLUICE_CONTROLLER");
        command.envs(variable.map(|value| ("SLUICE_CONTROLLER", value)));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap()).ok_or(said)
    };
    let url = controller.url.as_str();
    rule(&["start", "jobs", "--match", "*", "--limit", "20MB/s", "--controller", url], None)
        .unwrap();
    rule(&["change", "jobs", "--limit", "30MB/s"], Some(url)).unwrap();
    let text = rule(&["export", "--controller", url], None).unwrap();
    assert!(text.contains("30MB/s"), "{text}");
    let error = rule(&["list"], Some("here")).unwrap_err();
    assert!(error.contains("SLUICE_CONTROLLER") && error.contains("\"here\""), "{error}");
    let error = rule(&["list", "--controller", url, "--proxy", "unix:///x"], None).unwrap_err();
    assert!(error.contains("--controller") && error.contains("--proxy"), "{error}");
}
