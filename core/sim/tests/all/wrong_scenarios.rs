//! What is wrong with a scenario file is told by its place, with what would be right.

use sluice_sim::Scenario;

const RIGHT: &str = r#"from = "a test"
description = "One job at one disk."
duration = "10s"
warmup = "1s"
policies = ["ours", "fifo"]
rules = '''
[[rule]]
name = "a"
match = "jobid={a}"
'''

[[target]]
name = "disk"
slots = 4
parallelism = 4
read = [["4KiB", "1ms"]]

[[job]]
name = "a"
target = "disk"
steps = [{ do = "create, write 4KiB", depth = 2 }]

[[fault]]
what = "slow"
at = "2s"
span = "1s"
percent = 50

[[expect]]
what = "rate a"
kind = "theory"
value = 2000
within = "1%"
source = "a test"
"#;

/// The message when `from` is written as `to` in a scenario that is right.
fn message(from: &str, to: &str) -> String {
    assert_eq!(RIGHT.matches(from).count(), 1, "{from:?} must be there once");
    let text = RIGHT.replace(from, to);
    match Scenario::parse(&text, "t.toml") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{to:?} was taken"),
    }
}

#[test]
fn the_scenario_that_the_others_are_made_from_is_right() {
    let scenario = Scenario::parse(RIGHT, "t.toml").unwrap();
    assert_eq!((scenario.name.as_str(), scenario.clients(), scenario.proxies()), ("t", 1, 1));
}

#[test]
fn a_proxy_with_others_at_its_device_cannot_crash() {
    let text = RIGHT.replace("slots = 4", "slots = 4\ncount = 2\none_device = true");
    assert!(Scenario::parse(&text, "t.toml").is_ok(), "the device may be slow");
    let text = text.replace("\"slow\"", "\"crash\"");
    let error = Scenario::parse(&text, "t.toml").map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:26:8: a proxy cannot crash where one_device"), "{error}");
}

#[test]
fn each_fault_is_told_by_its_place() {
    let table = [
        ("duration = \"10s\"", "duration = \"10\"", "t.toml:3:12: \"10\" is not a span of time"),
        ("duration = \"10s\"", "duration = 10", "t.toml:3:12: invalid type: integer `10`"),
        ("duration = \"10s\"", "duration = \"1s\"", "t.toml:3:12: duration 1s leaves nothing"),
        ("warmup", "warm_up", "t.toml:4:1: unknown field `warm_up`"),
        (
            "\"fifo\"",
            "\"lifo\"",
            "t.toml:5:21: \"lifo\" is not a scheduler; use one of ours, ours-local,",
        ),
        ("{a}", "{b", "t.toml:9:"),
        ("slots = 4", "slots = 0", "t.toml:14:9: 0 is not a number from 1 to"),
        (
            "[\"4KiB\", \"1ms\"]",
            "[\"4KiB\", \"0s\"]",
            "t.toml:16:8: the first time of the cost curve",
        ),
        ("[\"4KiB\", \"1ms\"]", "[\"4\", \"1ms\"]", "\"4\" is not an amount of data"),
        ("target = \"disk\"", "target = \"tape\"", "t.toml:20:10: target \"tape\" does not exist"),
        ("do = \"create, ", "do = \"make, ", "t.toml:21:18: \"make\" is not a kind of request"),
        ("write 4KiB", "write", "t.toml:21:26: write needs a size"),
        ("depth = 2", "rate = \"9 MB\"", "\"9 MB\" is not a rate above zero"),
        ("depth = 2", "spacing = \"even\"", "t.toml:21:10: spacing and group need rate"),
        ("depth = 2", "depth = 2, pause = \"1s\"", "a step needs either do or a pause"),
        ("what = \"slow\"", "what = \"melt\"", "t.toml:24:8: unknown variant `melt`"),
        ("percent = 50", "way = \"up\"", "t.toml:27:7: unknown variant `up`"),
        ("percent = 50", "percent = 50\nway = \"both\"", "t.toml:28:7: only a partition has a way"),
        ("percent = 50", "", "t.toml:24:8: this fault needs percent"),
        ("span = \"1s\"", "", "this fault needs a span"),
        ("rate a", "speed a", "t.toml:30:8: \"speed\" is not a figure; use one of rate,"),
        ("rate a", "rate b", "t.toml:30:8: job \"b\" does not exist; use one of a"),
        ("rate a", "cut a", "t.toml:30:8: cut is of the whole run"),
        ("within = \"1%\"", "within = \"1\"", "t.toml:33:10: \"1\" is not a tolerance"),
        ("within = \"1%\"", "least = 1", "value needs within"),
        ("value = 2000\n", "", "within needs value"),
        ("source = \"a test\"", "", "missing field `source`"),
        ("kind = \"theory\"", "", "missing field `kind`"),
        ("kind = \"theory\"", "kind = \"guess\"", "t.toml:31:8: unknown variant `guess`"),
        (
            "kind = \"theory\"",
            "kind = \"published\"\npublished = 2",
            "t.toml:32:13: of kind published, the expected number is the published one",
        ),
        (
            "kind = \"theory\"",
            "kind = \"own\"\npublished = 2",
            "t.toml:32:13: an own number beside a published one needs unknown",
        ),
        (
            "kind = \"theory\"",
            "kind = \"own\"\nunknown = \"stripes\"",
            "t.toml:32:11: unknown needs published",
        ),
        (
            "kind = \"theory\"\nvalue = 2000\nwithin = \"1%\"",
            "kind = \"own\"\nleast = 1",
            "t.toml:30:8: an own number needs value and within",
        ),
        (
            "kind = \"theory\"",
            "kind = \"theory\"\nbetween = [\"2s\", \"11s\"]",
            "t.toml:32:11: 2s to 11s is not a span of whole seconds within the duration of 10s",
        ),
        (
            "kind = \"theory\"",
            "kind = \"theory\"\nbetween = [\"2s\", \"2500ms\"]",
            "t.toml:32:11: 2s to 2500ms is not a span of whole seconds",
        ),
        (
            "what = \"rate a\"\nkind = \"theory\"",
            "what = \"latency_max a\"\nkind = \"theory\"\nbetween = [\"2s\", \"3s\"]",
            "t.toml:32:11: only rate, bytes and requests have between",
        ),
        (
            "target = \"disk\"",
            "route = { nodes_of = [0, 1] }",
            "t.toml:20:9: \"disk\" has no proxy 1; the last is 0",
        ),
        (
            "target = \"disk\"",
            "route = { nodes_of = [] }",
            "t.toml:20:9: nodes_of needs at least one proxy",
        ),
        ("[[job]]", "[[jobs]]", "unknown field `jobs`"),
        ("from = \"a test\"", "from = ", "t.toml:1:"),
    ];
    for (from, to, wanted) in table {
        let got = message(from, to);
        assert!(got.contains(wanted), "{from:?} as {to:?}: {got}");
    }
}

#[test]
fn a_fault_of_the_rules_is_told_by_its_line_in_the_scenario() {
    let got = message("match = \"jobid={a}\"", "weight = 0");
    assert!(got.starts_with("t.toml:9:10: \"0\" is not a weight"), "{got}");
    assert!(got.ends_with("  9 | weight = 0\n    |          ^"), "{got}");
}

#[test]
fn only_the_last_step_may_be_endless() {
    let got = message("depth = 2 }]", "depth = 2 }, { pause = \"1s\" }]");
    assert!(got.contains("only the last step may be without"), "{got}");
}

#[test]
fn a_name_twice_is_told_where_it_stands_the_second_time() {
    let got =
        message("[[fault]]", "[[job]]\nname = \"a\"\nsteps = [{ pause = \"1s\" }]\n\n[[fault]]");
    assert!(got.starts_with("t.toml:24:1: job \"a\" exists already"), "{got}");
}
