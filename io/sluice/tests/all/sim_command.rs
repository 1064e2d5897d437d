//! `sluice sim` on scenarios that hold, fail and are wrong, and on what a proxy recorded.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{Proxy, SLUICE, Setup, USER};
use rustix::process::Signal;
use serde_json::Value;
use testkit::TestFolder;

/// A job at a disk that serves 1000 of its requests a second.
const SCENARIO: &str = r#"from = "a test"
description = "One job at one disk."
duration = "10s"
policies = ["ours", "fifo"]

[[target]]
name = "disk"
slots = 1
parallelism = 1
read = [["4KiB", "1ms"]]

[[job]]
name = "a"
steps = [{ do = "read 4KiB", depth = 2 }]

[[expect]]
what = "rate a"
kind = "own"
between = ["2s", "10s"]
value = 1000
within = "1%"
published = 1024
unknown = "the disk"
source = "a millisecond each"
"#;

/// Writes a file into a directory of the test's own.
fn put(folder: &TestFolder, name: &str, text: &str) -> PathBuf {
    let file = folder.path().join(name);
    fs::write(&file, text).unwrap();
    file
}

fn sim(args: &[&str], files: &[&Path]) -> Output {
    Command::new(SLUICE).arg("sim").args(args).args(files).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_scenario_that_comes_true_ends_with_0_and_says_so_in_a_table() {
    let folder = TestFolder::new();
    let file = put(&folder, "one.toml", SCENARIO);
    let output = sim(&[], &[&file]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("a test") && text.contains("One job at one disk."), "{text}");
    let row = text.lines().find(|line| line.starts_with("rate a")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    let wanted = ["ours", "1000", "within", "1%", "1000", "1024", "own", "ok", "a"];
    assert!(row.starts_with("rate a, 2 to 10 s"), "{row}");
    assert_eq!(words[6..15], wanted, "{row}");
    assert!(row.ends_with("a millisecond each; unknown: the disk"), "{row}");
}

#[test]
fn one_that_does_not_ends_with_1_and_tells_the_command_that_repeats_it() {
    let folder = TestFolder::new();
    let file = put(&folder, "one.toml", &SCENARIO.replace("value = 1000", "value = 1100"));
    let output = sim(&["--quiet", "--seed", "7"], &[&file]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.lines().next().unwrap().contains("one: rate a, 2 to 10 s (ours)"), "{text}");
    let again = text.lines().nth(1).unwrap().trim().strip_prefix("again: sluice ").unwrap();
    let words: Vec<&str> = again.split(' ').collect();
    let repeated = Command::new(SLUICE).args(words).arg("--quiet").output().unwrap();
    assert_eq!((repeated.status.code(), stdout(&repeated)), (Some(1), text));
}

#[test]
fn every_wrong_file_is_told_by_line_and_nothing_is_run() {
    let folder = TestFolder::new();
    put(&folder, "a.toml", SCENARIO);
    let slots = put(&folder, "b.toml", &SCENARIO.replace("slots = 1", "slots = 0"));
    let what = put(&folder, "c.toml", &SCENARIO.replace("rate a", "speed a"));
    let output = sim(&[], &[folder.path()]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
    let text = stderr(&output);
    let told = |file: &Path, rest: &str| text.contains(&format!("{}{rest}", file.display()));
    assert!(told(&slots, ":8:9: ") && told(&what, ":17:8: "), "{text}");
    assert!(text.contains("\"speed\"") && text.contains("rate"), "what there is: {text}");

    let none = sim(&[], &[&folder.path().join("none.toml")]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("none.toml"), "{}", stderr(&none));
}

#[test]
fn json_has_what_was_found_and_a_figure_is_drawn() {
    let folder = TestFolder::new();
    let file = put(&folder, "one.toml", SCENARIO);
    let figures = folder.path().join("figures");
    let output = sim(&["--json", "--out", figures.to_str().unwrap()], &[&file]);
    assert_eq!(output.status.code(), Some(0));
    let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&object["passed"], &object["seed"]), (&true.into(), &1.into()));
    assert_eq!(object["reports"][1]["policy"], "fifo");
    let verdict = &object["verdicts"][0];
    assert_eq!((&verdict["what"], &verdict["kind"]), (&"rate a, 2 to 10 s".into(), &"own".into()));
    assert_eq!((&verdict["published"], &verdict["unknown"]), (&1024.0.into(), &"the disk".into()));
    let svg = fs::read_to_string(figures.join("one.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("ours: requests/s"), "{svg}");
}

#[test]
fn scenarios_by_chance_are_run_from_a_seed_on() {
    let output = sim(&["--seeds", "3", "--seed", "5", "--policy", "ours", "--json"], &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    let found = text.lines().map(|line| {
        let object: Value = serde_json::from_str(line).unwrap();
        (object["seed"].as_u64().unwrap(), object["passed"] == true)
    });
    assert_eq!(found.collect::<Vec<_>>(), [(5, true), (6, true), (7, true)]);
}

#[test]
fn after_random_scenarios_the_sums_show_what_took_part_and_what_did_not() {
    let output = sim(&["--seeds", "3", "--policy", "ours"], &[]);
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("took part: ")).unwrap();
    let counts = line["took part: ".len()..].split(", ").map(|one| one.rsplit_once(' ').unwrap());
    let counts: Vec<(&str, usize)> =
        counts.map(|(name, count)| (name, count.parse().unwrap())).collect();
    assert!(counts.iter().all(|(_, count)| *count <= 3), "{line}");
    let names: Vec<&str> = counts.iter().map(|(name, _)| *name).collect();
    for name in ["partition", "decays with usage reports", "runs that a decay throttled"] {
        assert!(names.contains(&name), "{line}");
    }
}

// ---- replay ----

const READS: u64 = 10;

/// A recording of two jobs, each of which reads 4 KiB so many times, one after the other.
fn recorded(name: &str) -> Proxy {
    let mut proxy = Setup::new(name).top("trace = \"t.slt\"").start();
    for job in ["slow", "quick"] {
        let mut client = proxy.client_of(&format!("x?job={job}"), USER);
        client.make(1, job);
        client.write(1, 0, &[7; 4096]).unwrap();
        for _ in 0..READS {
            assert_eq!(client.read(1, 0, 4096).unwrap().len(), 4096);
        }
    }
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0));
    proxy
}

#[test]
fn a_replay_shows_what_each_job_would_have_had_and_which_rule_held_it_back() {
    let proxy = recorded("sim-replay");
    let trace = proxy.dir.join("t.slt");
    let rules = |name: &str, text: &str| {
        let file = proxy.dir.join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let free = rules("free.toml", "");
    // Each read pays for five seconds, beside which it is little what the test waits for a
    // processor between two.
    let slow =
        "[[rule]]\nname = \"held\"\nmatch = \"jobid={slow}\"\nlimit = { read = \"800B/s\" }\n";
    let slow = rules("slow.toml", slow);
    let args = |more: &[&str]| {
        let mut command = Command::new(SLUICE);
        command.arg("sim").arg("--trace").arg(&trace);
        command.arg("--rules").arg(&free).arg("--rules").arg(&slow).args(more);
        command.output().unwrap()
    };
    let output = args(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(object["method"].is_string(), "{object}");
    let runs = object["targets"][0]["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    let had = |run: usize, job: &str, what: &str| runs[run]["jobs"][job][what].clone();
    let asked = had(0, "slow", "requests");
    assert!(asked.as_u64().unwrap() >= READS);
    for run in [1, 2] {
        assert_eq!(had(run, "slow", "requests"), asked);
        assert_eq!(had(run, "quick", "requests"), asked);
        assert_eq!(had(run, "quick", "delayed"), 0);
    }
    assert_eq!(had(1, "slow", "delayed"), 0);
    // All but the first: the burst is less than one.
    assert!(had(2, "slow", "span_ns").as_u64().unwrap() > (READS - 1) * 5_000_000_000);
    assert_eq!(had(2, "slow", "delayed"), READS - 1);
    assert!(had(2, "slow", "throttled_percent").as_f64().unwrap() > 50.0);
    let held = had(2, "slow", "rules");
    assert_eq!((&held[0]["rule"], &held[0]["requests"]), (&"held".into(), &asked));
    assert!(held[0]["by"].as_str().unwrap().contains("800B/s"), "{held}");

    let text = stdout(&args(&[]));
    let row = |job: &str, rules: &str| {
        let is = |line: &&str| line.starts_with(job) && line.contains(rules);
        text.lines().find(is).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(row("slow", "recorded") != row("slow", "slow.toml"));
    assert!(text.contains(object["method"].as_str().unwrap()), "{text}");
}

#[test]
fn wrong_rules_and_no_trace_end_with_2() {
    let folder = TestFolder::new();
    let rules = put(&folder, "bad.toml", "[[rule]]\nname = \"a\"\nweight = 0\n");
    let empty = put(&folder, "empty.toml", "");
    let replay = |trace: &Path, rules: &Path| {
        let mut command = Command::new(SLUICE);
        let output = command.arg("sim").arg("--trace").arg(trace).arg("--rules").arg(rules);
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let told = replay(&empty, &rules);
    assert!(told.contains(&format!("{}:3:10: ", rules.display())), "{told}");
    let told = replay(&rules, &empty);
    assert!(told.contains("bad.toml"), "{told}");
    let costs = put(&folder, "costs.toml", "slots = 3\n");
    let mut command = Command::new(SLUICE);
    let command = command.arg("sim").arg("--trace").arg(&empty).arg("--rules").arg(&empty);
    let told = stderr(&command.arg("--target").arg(&costs).output().unwrap());
    assert_eq!(told.matches("`slots`").count(), 1, "{told}");
    let without = sim(&["--trace", "t.slt"], &[]);
    assert_eq!(without.status.code(), Some(2), "--rules is wanted");
}
