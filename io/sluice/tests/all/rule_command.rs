//! `sluice rule` on a running proxy and on a file: what it changes, what it refuses, and that
//! requests which wait, and those who edit beside, lose nothing by it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{P9Client, Proxy, SLUICE, Setup, USER, until};
use crate::controlled::api_of;
use ninep::{Fid, Request, Tag};
use rustix::process::Signal;
use serde_json::Value;
use testkit::TestFolder;

/// After one read, `slow` owes its limit more time than any test takes.
const SLOW: &str = "# Held back.\n[[rule]]\nname = \"slow\"   # by the reads\n\
                    limit = { kinds = [\"read\"], rate = \"1B/s\" }\n";

fn proxy(name: &str, rules: &str) -> Proxy {
    Setup::new(name).api().rules(rules).start()
}

fn rule(words: &[&str]) -> Command {
    let mut command = Command::new(SLUICE);
    command.arg("rule").args(words);
    command
}

/// Runs `sluice rule` on a proxy.
fn ask(proxy: &Proxy, words: &[&str]) -> Output {
    let api = format!("unix://{}/api", proxy.dir.display());
    rule(words).args(["--proxy", &api]).output().unwrap()
}

/// Runs `sluice rule` with a text as its standard input.
fn pipe(words: &[&str], text: &str) -> Output {
    let mut command = rule(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn list(proxy: &Proxy) -> Value {
    serde_json::from_str(&stdout(&ask(proxy, &["list", "--json"]))).unwrap()
}

fn names(proxy: &Proxy) -> Vec<String> {
    let rules = list(proxy);
    let name = |rule: &Value| rule["name"].as_str().unwrap().to_owned();
    rules["rules"].as_array().unwrap().iter().map(name).collect()
}

fn export(proxy: &Proxy) -> String {
    stdout(&ask(proxy, &["export"]))
}

/// Requests of a rule that wait.
fn queued(proxy: &Proxy, rule: &str) -> u64 {
    let rules = list(proxy);
    let of = |found: &&Value| found["name"] == rule;
    rules["rules"].as_array().unwrap().iter().find(of).unwrap()["targets"][0]["queued"]
        .as_u64()
        .unwrap()
}

/// A client with an open file of 5000 bytes as fid 1, whose rule is in debt by one read.
fn indebted(proxy: &Proxy) -> P9Client {
    let mut client = proxy.client();
    client.make(1, "f");
    client.write(1, 0, &[7; 5000]).unwrap();
    assert_eq!(client.read(1, 0, 4000).unwrap().len(), 4000);
    client
}

fn read_later(client: &mut P9Client) -> Tag {
    client.send(&Request::Read { fid: Fid(1), offset: 0, count: 100 })
}

#[test]
fn rules_are_started_changed_ranked_and_stopped_over_the_heads_of_what_waits() {
    let proxy = proxy("over-heads", SLOW);
    let mut client = indebted(&proxy);
    let tags: Vec<Tag> = (0..3).map(|_| read_later(&mut client)).collect();
    until("three reads wait", || queued(&proxy, "slow") == 3);
    let class = |rule: &str| {
        let classes = api_of(&proxy).classes().unwrap().classes;
        classes.into_iter().find(|class| class.rule == rule).unwrap()
    };
    let before = class("slow");
    for words in [
        &["start", "other", "--match", "uid={5}", "--per", "jobid"][..],
        &["change", "slow", "--weight", "5", "--slots", "2"],
        &["change", "slow", "--limit", "{ kinds = [\"read\"], rate = \"2B/s\" }"],
        &["rank", "slow", "--before", "other"],
        &["rank", "slow", "--last"],
        &["stop", "other"],
    ] {
        stdout(&ask(&proxy, words));
        // What went by itself would have gone before this is answered.
        client.stat(0).unwrap();
        assert_eq!(queued(&proxy, "slow"), 3, "after {words:?}");
    }
    let after = class("slow");
    assert_eq!((after.id, after.weight, after.usage.throttled), (before.id, 5, true));
    // The first that matches takes what waits.
    stdout(&ask(&proxy, &["start", "free", "--match", &format!("uid={{{USER}}}")]));
    assert_eq!(names(&proxy), ["free", "slow"]);
    for tag in tags {
        assert!(client.wait(tag).is_ok());
    }
    // What slow owes it owes still when its requests are back.
    stdout(&ask(&proxy, &["stop", "free"]));
    let tag = read_later(&mut client);
    client.stat(0).unwrap();
    assert_eq!(queued(&proxy, "slow"), 1);
    stdout(&ask(&proxy, &["change", "slow", "--limit", "none"]));
    assert!(client.wait(tag).is_ok());
}

#[test]
fn what_stands_around_a_rule_stays_as_it_was_written() {
    let proxy = proxy("comments", SLOW);
    let words = ["start", "a", "--match", "uid={5}", "--limit", "1MB/s", "--before", "slow"];
    let told = stdout(&ask(&proxy, &words));
    let file = proxy.dir.join("rules.toml");
    assert!(told.contains(file.to_str().unwrap()) && told.contains("--save"), "{told}");
    let text = export(&proxy);
    assert_eq!(
        text,
        format!("[[rule]]\nname = \"a\"\nmatch = \"uid={{5}}\"\nlimit = \"1MB/s\"\n\n{SLOW}")
    );
    // What export prints import takes.
    stdout(&ask(&proxy, &["import", file.to_str().unwrap()]));
    assert_eq!(export(&proxy), SLOW);
    let mut import =
        rule(&["import", "-", "--proxy", &format!("unix://{}/api", proxy.dir.display())]);
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    import.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(import.wait().unwrap().success());
    assert_eq!(export(&proxy), text);
}

#[test]
fn a_change_that_is_saved_outlives_sighup_and_one_that_is_not_does_not() {
    let proxy = proxy("save", SLOW);
    let file = proxy.dir.join("rules.toml");
    stdout(&ask(&proxy, &["start", "kept", "--match", "uid={5}", "--save"]));
    assert_eq!(list(&proxy)["saved"], true);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with(SLOW) && text == export(&proxy), "{text}");
    stdout(&ask(&proxy, &["start", "lost", "--match", "uid={6}"]));
    assert_eq!(list(&proxy)["saved"], false);
    let unsaved = stdout(&ask(&proxy, &["list"]));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    proxy.signal(Signal::HUP);
    proxy.told("reloaded configuration and rules");
    assert_eq!(names(&proxy), ["kept", "slow"]);
    assert_eq!(list(&proxy)["saved"], true);
    // The table says it where they are not.
    let path = file.to_str().unwrap();
    assert!(unsaved.contains(path) && !stdout(&ask(&proxy, &["list"])).contains(path));
    // An edit by hand that the proxy has not read is not overwritten.
    fs::write(&file, format!("{text}\n# by hand\n")).unwrap();
    let refused = stderr(&ask(&proxy, &["stop", "kept", "--save"]));
    assert!(refused.contains(path), "{refused}");
    assert_eq!(names(&proxy), ["kept", "slow"]);
    proxy.signal(Signal::HUP);
    proxy.told("reloaded configuration and rules");
    stdout(&ask(&proxy, &["stop", "kept", "--save"]));
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{SLOW}\n# by hand\n"));
}

#[test]
fn editors_at_once_all_get_their_changes_in() {
    let proxy = proxy("editors", SLOW);
    let file = proxy.dir.join("beside.toml");
    fs::write(&file, SLOW).unwrap();
    let path = file.to_str().unwrap();
    std::thread::scope(|scope| {
        for editor in 0..3 {
            let proxy = &proxy;
            scope.spawn(move || {
                for turn in 0..8 {
                    let name = format!("e{editor}.{turn}");
                    let words = ["start", &name, "--match", "uid={5}"];
                    stdout(&ask(proxy, &words));
                    stdout(&rule(&words).args(["--file", path]).output().unwrap());
                }
            });
        }
    });
    let mut expected: Vec<String> =
        (0..3).flat_map(|editor| (0..8).map(move |turn| format!("e{editor}.{turn}"))).collect();
    expected.push("slow".into());
    let of_file = stdout(&rule(&["list", "--json", "--file", path]).output().unwrap());
    let of_file: api::WireRules = serde_json::from_str(&of_file).unwrap();
    for mut names in [names(&proxy), of_file.rules.into_iter().map(|rule| rule.name).collect()] {
        names.sort();
        assert_eq!(names, expected);
    }
}

#[test]
fn a_change_over_rules_that_are_not_in_force_any_more_is_refused() {
    let proxy = proxy("stale", SLOW);
    let api = api_of(&proxy);
    let old = api.rules().unwrap();
    stdout(&ask(&proxy, &["start", "new", "--match", "uid={5}"]));
    let error = api.replace_rules("", Some(&old.version), false).unwrap_err();
    assert!(error.is_stale(), "{error}");
    assert_eq!(names(&proxy), ["new", "slow"]);
    let now = api.rules().unwrap();
    assert_eq!(api.replace_rules("", Some(&now.version), false).unwrap().rules, []);
}

#[test]
fn a_change_with_an_error_shows_its_line_and_changes_nothing() {
    let child = "\n[[rule]]\nname = \"child\"\nlimit = \"9ops/s\"\n\
                 depends_on = { rule = \"slow\", when_idle = \"1s\", min = \"2ops/s\" }\n";
    let rules = format!("{SLOW}{child}");
    let proxy = proxy("wrong", &rules);
    let file = proxy.dir.join("rules.toml");
    for (words, named) in [
        (
            &["change", "slow", "--weight", "2", "--limit", "50 MB"][..],
            &[" 5:9: ", "\n  5 | limit = \"50 MB\"\n    |         ^^^^^^^\n"][..],
        ),
        (&["stop", "x"], &["\"x\"", "slow", "child"]),
        (&["stop", "slow"], &["\"slow\"", "child"]),
        (&["start", "slow", "--match", "*"], &["\"slow\"", "line 3"]),
        (&["rank", "slow"], &["--before", "--first", "--last"]),
        (&["change", "slow"], &[]),
    ] {
        let of_proxy = stderr(&ask(&proxy, words));
        let of_file = stderr(&rule(words).arg("--file").arg(&file).output().unwrap());
        for said in [of_proxy, of_file] {
            assert!(said.starts_with("sluice: "), "{said}");
            assert!(named.iter().all(|name| said.contains(name)), "{words:?}: {said}");
        }
    }
    assert_eq!(export(&proxy), rules);
    assert_eq!(fs::read_to_string(&file).unwrap(), rules);
    fs::write(proxy.dir.join("bad.toml"), "[[rule]]\nname = \"new\"\nweight = 0\n").unwrap();
    let why = stderr(&ask(&proxy, &["import", proxy.dir.join("bad.toml").to_str().unwrap()]));
    assert!(why.contains("bad.toml:3:10: "), "{why}");
    assert_eq!(export(&proxy), rules);
}

#[test]
fn a_file_is_edited_in_place_and_standard_input_to_standard_output() {
    let folder = TestFolder::new();
    let file = folder.path().join("in-place.toml");
    fs::write(&file, SLOW).unwrap();
    let path = file.to_str().unwrap();
    let start = ["start", "a", "--match", "uid={5}", "--last", "--file"];
    let told = stdout(&rule(&start).arg(path).output().unwrap());
    let text = format!("{SLOW}\n[[rule]]\nname = \"a\"\nmatch = \"uid={{5}}\"\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    // "slow" has no condition, so nothing is left for it, which a line of its own says.
    assert!(
        told.lines().count() == 2 && told.lines().nth(1).unwrap().contains("\"slow\""),
        "{told}"
    );
    assert_eq!(stdout(&pipe(&[&start[..], &["-"]].concat(), SLOW)), text);
    assert_eq!(stdout(&rule(&["export", "--file", path]).output().unwrap()), text);
    let json = stdout(&rule(&["stop", "a", "--json", "--file", path]).output().unwrap());
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["rules"][0]["name"], "slow");
    assert_eq!(fs::read_to_string(&file).unwrap(), SLOW);
    fs::remove_file(&file).unwrap();
    let missing = stderr(&rule(&["stop", "a", "--file", path]).output().unwrap());
    assert!(missing.contains(path), "{missing}");
}

#[test]
fn a_request_is_told_what_it_would_get_from_a_file_and_from_a_proxy() {
    let rules = "[[rule]]\nname = \"ckpt\"\nmatch = \"jobid={ckpt.*}\"\n\
                 [[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\nlimit = \"100MB/s\"\n\
                 depends_on = { rule = \"ckpt\", when_idle = \"500ms\", min = \"9MB/s\" }\n";
    let proxy = proxy("asked", rules);
    let request = ["check", "--request", "jobid=dd.500 uid=7 opcode=write bytes=4MiB"];
    let of_proxy = stdout(&ask(&proxy, &request));
    let answer = "class       jobs of jobid=dd.500\n\
                  weight      1\n\
                  depends_on  { rule = \"ckpt\", when_idle = \"500ms\", min = \"9MB/s\" }\n";
    let payment = "PAYS  TO                  OF            RATE     BURST\n\
                   4MiB  limit of rule jobs  jobid=dd.500  100MB/s\n";
    let passed = of_proxy.lines().find(|line| line.contains("jobid={ckpt.*}"));
    assert!(passed.is_some_and(|line| line.contains("ckpt:")), "why not that rule: {of_proxy}");
    assert!(of_proxy.contains(answer) && of_proxy.contains("\nlimit now   "), "{of_proxy}");
    assert!(of_proxy.ends_with(payment), "{of_proxy}");
    let file = proxy.dir.join("rules.toml");
    let of_file = stdout(&rule(&request).arg(&file).output().unwrap());
    assert!(of_file.ends_with(&format!("{answer}{payment}")), "{of_file}");
    let of_input = stdout(&pipe(&[&request[..], &["-", "--json"]].concat(), rules));
    let of_input: Value = serde_json::from_str(&of_input).unwrap();
    assert_eq!(of_input["request"]["pays"][0]["units"], "4MiB");
    let wrong = rule(&["check", "--request", "user=7"]).arg(&file).output().unwrap();
    let why = String::from_utf8(wrong.stderr).unwrap();
    assert!(!wrong.status.success() && why.contains("\"user\"") && why.contains("jobid"), "{why}");
}

#[test]
fn a_list_shows_what_dependent_limits_are_now() {
    let rules = "[[rule]]\nname = \"main\"\nmatch = \"uid={1000}\"\n\
                 limit = { kinds = [\"read\"], rate = \"1B/s\" }\n\
                 [[rule]]\nname = \"gated\"\nlimit = \"500ops/s\"\n\
                 depends_on = { rule = \"main\", when_idle = \"1h\", min = \"5ops/s\" }\n";
    let proxy = proxy("now", rules);
    let mut client = indebted(&proxy);
    read_later(&mut client);
    until("a read waits", || queued(&proxy, "main") == 1);
    // The gate is shut while main works.
    let table = stdout(&ask(&proxy, &["list"]));
    let head = table.lines().next().unwrap();
    for column in ["RULE", "MATCH", "NOW", "DEPENDENCY", "CLASSES", "QUEUED"] {
        assert!(head.split_whitespace().any(|word| word == column), "{table}");
    }
    let gated = table.lines().find(|line| line.starts_with("gated ")).unwrap();
    let cells: Vec<_> = gated.split_whitespace().collect();
    assert!(cells.contains(&"500ops/s") && cells.contains(&"5ops/s"), "{table}");
    assert!(cells.iter().any(|cell| cell.starts_with("main,when_idle=")), "{table}");
    let report = list(&proxy);
    assert_eq!(report["rules"][1]["targets"][0]["effective_limit"], "5ops/s");
    assert_eq!(report["rules"][1]["depends_on"]["kind"], "when_idle");
    assert!(Path::new(report["file"].as_str().unwrap()).ends_with("rules.toml"));
    assert_eq!(report["saved"], true);
}
