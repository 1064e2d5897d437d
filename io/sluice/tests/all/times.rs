//! Points of time on the command line: every command that takes one reads the same grammar.
//!
//! ```text
//!   command × form ─► sluice … --since FORM ─► a controller with a proxy and a job's requests
//! ```

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{Controller, Proxy, SLUICE, USER, until};
use crate::controlled::{limited, proxy};
use testkit::TestFolder;

/// Points in the past, and whether what the test did surely lies behind them.
const PAST: [(&str, bool); 22] = [
    ("90s", false),
    ("15m", false),
    ("15min", false),
    ("-1h", true),
    ("1h", true),
    ("24h", true),
    ("7d", true),
    ("1w", true),
    ("-30d", true),
    ("30d", true),
    ("36500d", true),
    ("now", false),
    ("today", false),
    ("yesterday", true),
    ("2020-01-02", true),
    ("2020-01-02T14:00", true),
    ("2020-01-02T14:00:05", true),
    ("2020-01-02T14:00Z", true),
    ("2020-01-02T14:00:05Z", true),
    ("2020-01-02T14:00+01:00", true),
    ("2020-01-02T14:00:05-0530", true),
    ("1577973600", true),
];

/// Points to come, for what expires; within what jiff, certificates and tokens can say.
const AHEAD: [&str; 12] = [
    "90s",
    "15m",
    "12h",
    "90d",
    "1w",
    "36500d",
    "2099-01-02",
    "2099-01-02T14:00",
    "2099-01-02T14:00:05",
    "2099-01-02T14:00:05Z",
    "2099-01-02T14:00+01:00",
    "4102444800",
];

/// What is no point of time wherever one is expected.
const NONSENSE: [&str; 12] = [
    "30x",
    "",
    "-",
    "tomorrow",
    "2026-02-30",
    "2026-11-23T25:00",
    "2026-11-23 14:00",
    "2026-11",
    "36500000d",
    "99999999999999999999",
    "99999999999999999999d",
    "1h30",
];

/// Commands that look back, by what stands before and behind the option.
fn that_look_back() -> [(Vec<&'static str>, &'static str); 6] {
    [
        (vec!["usage"], "--since"),
        (vec!["usage", "--since", "0"], "--until"),
        (vec!["report", "--job", "dd.1"], "--since"),
        (vec!["events"], "--since"),
        (vec!["audit"], "--since"),
        (vec!["why", "--top"], "--since"),
    ]
}

/// What a command said.
struct Outcome {
    status: i32,
    stdout: String,
    stderr: String,
}

fn run(words: &[&str], option: &str, value: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new(SLUICE);
    command.args(words).args([option, value]).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let status = output.status.code().unwrap();
    Outcome { status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A controller that knows a rule and a job, as each of the commands wants to show something.
fn stage(name: &str) -> (TestFolder, Controller, Proxy) {
    let data = TestFolder::new();
    let controller = Controller::start(&data.path().join("c"), "http://127.0.0.1:0");
    let admin = controller.client();
    admin.set_rules(&limited(100_000_000)).unwrap();
    let proxy = proxy(name, "a", &controller.url);
    fs::write(proxy.data().join("f"), "x").unwrap();
    let mut client = proxy.client_of("x?job=dd.1", USER);
    client.open_name(1, "f", 0).unwrap();
    client.read(1, 0, 1).unwrap();
    until("the job is in the ledger", || admin.job_report("dd.1", "").is_ok());
    (data, controller, proxy)
}

#[test]
fn every_command_that_looks_back_takes_every_form() {
    let (_data, controller, _proxy) = stage("times");
    let variables = [("SLUICE_CONTROLLER", controller.url.as_str())];
    for (words, option) in that_look_back() {
        for (form, covers) in PAST {
            let Outcome { status, stdout, stderr } = run(&words, option, form, &variables);
            let what = format!("{words:?} {option} {form}: {status}: {stdout}{stderr}");
            let nothing_then = words[0] == "report" && stderr.contains("had no requests");
            assert!(status == 0 || (status == 1 && nothing_then && !covers), "{what}");
            if covers && option == "--since" && words[0] != "why" {
                let shown = ["dd.1", "rules"].iter().any(|word| stdout.contains(word));
                assert!(shown, "{what}");
            }
        }
    }
}

#[test]
fn what_is_no_point_of_time_is_refused_with_the_option_and_what_was_typed() {
    let data = TestFolder::new();
    let authority = data.path().join("tls").display().to_string();
    // None of them gets as far as to ask anybody.
    let variables = [("SLUICE_CONTROLLER", "http://127.0.0.1:1")];
    let mut commands = that_look_back().to_vec();
    commands.push((vec!["token", "create", "ann", "--role", "read"], "--expires"));
    commands.push((vec!["cert", "ca", &authority], "--expires"));
    commands.push((vec!["cert", "issue", &authority, "c1"], "--expires"));
    for (words, option) in &commands {
        let not_there = match *option {
            "--since" => vec!["2099-01-02", "2099-01-02T14:00Z", "4102444800"],
            "--expires" => vec!["-1h", "0s", "now", "today", "yesterday", "2020-01-02", "36501d"],
            _ => vec![],
        };
        for value in NONSENSE.iter().chain(&not_there) {
            let Outcome { status, stderr, .. } = run(words, option, value, &variables);
            let what = format!("{words:?} {option} {value}: {status}: {stderr}");
            assert_eq!(status, 2, "{what}");
            assert!(stderr.contains(option) && stderr.contains(&format!("'{value}'")), "{what}");
        }
        let help = Command::new(SLUICE).args(words).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains(&format!("{option} <TIME>")), "{words:?}: {help}");
        assert!(help.contains("time zone (TZ, or"), "{words:?}: {help}");
    }
    assert!(!Path::new(&authority).exists());
}

#[test]
fn a_span_that_ends_before_it_begins_is_refused_with_both_options() {
    let variables = [("SLUICE_CONTROLLER", "http://127.0.0.1:1")];
    let words = ["usage", "--since", "1h"];
    let Outcome { status, stderr, .. } = run(&words, "--until", "yesterday", &variables);
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("--until \"yesterday\" is before --since \"1h\""), "{stderr}");
}

#[test]
fn a_date_is_of_the_zone_of_whoever_types_it() {
    let (_data, controller, _proxy) = stage("times-zone");
    for (zone, value, from_s) in [
        ("XXX-14", "2020-01-02", 1_577_872_800_u64),
        ("UTC0", "2020-01-02", 1_577_923_200),
        ("XXX-14", "2020-01-02T00:00Z", 1_577_923_200),
    ] {
        let variables = [("SLUICE_CONTROLLER", controller.url.as_str()), ("TZ", zone)];
        let Outcome { stdout, stderr, .. } =
            run(&["usage", "--json"], "--since", value, &variables);
        let used: api::UsageTable = serde_json::from_str(&stdout).expect(&stderr);
        assert_eq!(used.from_s, from_s, "{zone} {value}");
    }
}

#[test]
fn what_expires_may_do_so_at_every_form() {
    let data = TestFolder::new();
    let (tokens, tls) = (data.path().join("c").display().to_string(), data.path().join("tls"));
    let first = ["token", "create", "root", "--role", "admin"];
    assert_eq!(run(&first, "--data", &tokens, &[]).status, 0);
    for (nth, form) in AHEAD.iter().enumerate() {
        let name = format!("t{nth}");
        let dir = tls.join(&name).display().to_string();
        let create = ["token", "create", &name, "--role", "read", "--data", &tokens];
        let commands: [&[&str]; 3] =
            [&create, &["cert", "ca", &dir], &["cert", "issue", &dir, "c1"]];
        for words in commands {
            let Outcome { status, stderr, .. } = run(words, "--expires", form, &[]);
            assert_eq!(status, 0, "{words:?} --expires {form}: {stderr}");
        }
    }
    let listed = run(&["token", "list", "--json"], "--data", &tokens, &[]).stdout;
    let listed: api::Tokens = serde_json::from_str(&listed).unwrap();
    let of = |nth: usize| {
        let named = |token: &&api::TokenReport| token.name == format!("t{nth}");
        listed.tokens.iter().find(named).unwrap().expires_s.unwrap()
    };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let day = 86_400;
    assert!((now_s + 89 * day..=now_s + 90 * day).contains(&of(3)), "{}", of(3));
    assert_eq!(of(9), 4_071_045_605);
    assert_eq!(of(11), 4_102_444_800);
}
