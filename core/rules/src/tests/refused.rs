//! Files that are refused: each problem with its text and its caret.

use crate::RuleSet;

/// The error of a file whose lines are given, below the file's name.
fn refusal(lines: &str) -> String {
    RuleSet::parse(lines).unwrap_err().in_file("rules.toml")
}

/// A rule of one more line than its name; the fault is in that line, the third.
fn in_rule(line: &str) -> String {
    refusal(&format!("[[rule]]\nname = \"x\"\n{line}\n"))
}

fn in_meter(lines: &str) -> String {
    refusal(&format!("[[meter]]\nname = \"x\"\n{lines}\n"))
}

#[test]
fn a_rate_without_its_unit_is_shown_with_a_caret() {
    let text = "\n[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"b\"\nlimit = \"50 MB\"\n";
    assert_eq!(
        refusal(text),
        "rules.toml:7:9: \"50 MB\" is not a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s\n\
         \x20 7 | limit = \"50 MB\"\n\
         \x20   |         ^^^^^^^"
    );
}

#[test]
fn a_parent_that_is_not_there_or_cannot_be_followed_is_named() {
    let child = "[[rule]]\nname = \"x\"\nlimit = \"1MB/s\"\n\
                 depends_on = { rule = \"y\", follow = \"50%\", min = \"1kB/s\" }\n";
    assert!(
        refusal(child).contains(":2:8: rule \"x\" depends on rule \"y\", which does not exist")
    );
    let other = format!("{child}[[rule]]\nname = \"y\"\nlimit = \"5ops/s\"\n");
    let message = ":2:8: rule \"x\" follows \"y\", which has no limit in the same unit";
    assert!(refusal(&other).contains(message), "{}", refusal(&other));
}

#[test]
fn a_fault_inside_a_condition_is_shown_at_its_word() {
    assert_eq!(
        in_rule("match = \"uid={500 ann}\""),
        "rules.toml:3:19: \"ann\" is not an id from 0 to 4294967294 or -1 for \"not known\"\n\
         \x20 3 | match = \"uid={500 ann}\"\n\
         \x20   |                   ^^^"
    );
    assert_eq!(
        in_rule("match = \"jobid={\\\"a b\\\"}&opcode={ost_read}\""),
        "rules.toml:3:34: \"ost_read\" is a name of Lustre; use \"read\"\n\
         \x20 3 | match = \"jobid={\\\"a b\\\"}&opcode={ost_read}\"\n\
         \x20   |                                  ^^^^^^^^"
    );
    assert_eq!(
        in_rule("match = '''\nuid={1},\n  group={5}'''"),
        "rules.toml:5:3: \"group\" is not a field; use one of jobid, uid, gid, projid, nid, opcode, path\n\
         \x20 5 |   group={5}'''\n\
         \x20   |   ^^^^^"
    );
    assert_eq!(
        in_rule("match = \"uid={1\""),
        "rules.toml:3:16: unexpected end: expected an item or }\n\
         \x20 3 | match = \"uid={1\"\n\
         \x20   |                ^"
    );
}

/// A line of a rule, the columns (from, width) of its fault, and the message.
const IN_RULE: [(&str, usize, usize, &str); 59] = [
    (
        "depends_on = { rule = \"y\" }",
        14,
        14,
        "depends_on needs exactly one limit in its rule, as the upper bound, not 0",
    ),
    (
        "depends_on = 5\nlimit = \"1MB/s\"",
        14,
        1,
        "depends_on must be a table such as { rule = \"a\", follow = \"50%\", min = \"1MB/s\" }, not a whole number",
    ),
    ("depends_on = { rule = \"y\" }\nlimit = \"1MB/s\"", 14, 14, "depends_on needs min"),
    (
        "depends_on = { rule = \"y\", min = \"2MB/s\" }\nlimit = \"1MB/s\"",
        34,
        7,
        "min = \"2MB/s\" is greater than the rule's limit of \"1MB/s\"",
    ),
    (
        "depends_on = { rule = \"y\", min = \"2ops/s\" }\nlimit = \"1MB/s\"",
        34,
        8,
        "\"2ops/s\" is not in the unit of the rule's limit, \"1MB/s\"",
    ),
    (
        "depends_on = { rule = \"y\", min = \"1kB/s\" }\nlimit = \"1MB/s\"",
        14,
        29,
        "depends_on needs exactly one of follow = \"50%\", remainder_of = \"1GB/s\", when_idle = \"500ms\"",
    ),
    (
        "depends_on = { rule = \"y\", min = \"1kB/s\", when_idle = \"5\" }\nlimit = \"1MB/s\"",
        55,
        3,
        "\"5\" is not a span of time such as 10ms, 2s or 5min",
    ),
    (
        "depends_on = { rule = \"y\", min = \"1kB/s\", follow = \"0%\" }\nlimit = \"1MB/s\"",
        52,
        4,
        "\"0%\" is not a percentage above zero and up to 10000%, such as 50% or 12.5%",
    ),
    (
        "depends_on = { rule = \"y\", min = \"1kB/s\", remainder_of = \"5ops/s\" }\nlimit = \"1MB/s\"",
        58,
        8,
        "\"5ops/s\" is not in the unit of the rule's limit, \"1MB/s\"",
    ),
    (
        "depends_on = { rule = \"y\", min = \"1kB/s\", when_idle = \"1s\", follow = \"50%\" }\nlimit = \"1MB/s\"",
        14,
        63,
        "depends_on needs exactly one of follow = \"50%\", remainder_of = \"1GB/s\", when_idle = \"500ms\"",
    ),
    (
        "nmae = 1",
        1,
        4,
        "[[rule]] has no key \"nmae\"; use one of name, match, per, weight, reservation, reservation_metadata, limit, realtime, spare, depends_on, slots, reserved_slots, min_local_service, write_mode, max_classes",
    ),
    (
        "rate = \"1MB/s\"",
        1,
        4,
        "[[rule]] has no key \"rate\"; use one of name, match, per, weight, reservation, reservation_metadata, limit, realtime, spare, depends_on, slots, reserved_slots, min_local_service, write_mode, max_classes",
    ),
    ("weight = 0", 10, 1, "\"0\" is not a weight from 1 to 1000000"),
    ("weight = 1_000_001", 10, 9, "\"1000001\" is not a weight from 1 to 1000000"),
    ("weight = 1.5", 10, 3, "weight must be a whole number such as 4, not a fraction"),
    ("weight = \"4\"", 10, 3, "weight must be a whole number such as 4, not a text"),
    ("match = 5", 9, 1, "match must be a condition such as \"jobid={dd.*}\", not a whole number"),
    ("match = \"\"", 10, 1, "the condition is empty; write \"*\" for every request"),
    ("per = \"jobid\"", 7, 7, "per must be a list of fields such as [\"jobid\"], not a text"),
    ("per = [1]", 8, 1, "per must be a list of fields such as [\"jobid\"], not a whole number"),
    (
        "per = [\"user\"]",
        8,
        6,
        "\"user\" is not a field that divides classes; use one of jobid, uid, gid, projid, nid, opcode",
    ),
    ("per = [\"path\"]", 8, 6, "per cannot contain path; write a rule or meter for each directory"),
    ("per = [\"uid\", \"uid\"]", 15, 5, "\"uid\" is listed twice; remove one"),
    ("reservation = 5", 15, 1, "reservation must be a rate such as \"50MB/s\", not a whole number"),
    (
        "reservation = \"0MB/s\"",
        15,
        7,
        "\"0MB/s\" is not a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s",
    ),
    (
        "reservation = \"1MB/s\"\nper = [\"uid\"]",
        15,
        7,
        "reservation with per needs max_classes: each class reserves the whole rate",
    ),
    (
        "realtime = true\nlimit = \"1MB/s\"\nper = [\"uid\"]",
        12,
        4,
        "realtime with per needs max_classes: each class reserves the whole rate",
    ),
    ("spare = \"yes\"", 9, 5, "spare must be true or false, not a text"),
    ("spare = true", 9, 4, "spare needs exactly one limit, for all kinds that its rate counts"),
    (
        "realtime = true\nlimit = { read = \"1MB/s\" }",
        12,
        4,
        "realtime needs exactly one limit, for all kinds that its rate counts",
    ),
    (
        "spare = true\nlimit = \"1MB/s\"\nrealtime = true",
        9,
        4,
        "realtime keeps the limit a ceiling and spare does not; use one of them",
    ),
    (
        "weight = 2\nspare = true\nlimit = \"1MB/s\"",
        10,
        1,
        "weight cannot be combined with spare: spare service is divided by rate",
    ),
    (
        "reservation = \"1MB/s\"\nrealtime = true\nlimit = \"1MB/s\"",
        15,
        7,
        "reservation cannot be combined with realtime: the limit is the reservation",
    ),
    (
        "reserved_slots = 2",
        18,
        1,
        "reserved_slots needs reservation, realtime or spare: the slots are for a reservation",
    ),
    (
        "reservation_metadata = \"10%\"",
        24,
        5,
        "reservation_metadata needs reservation, realtime or spare in bytes: it is a percentage of that rate",
    ),
    (
        "reservation_metadata = \"10%\"\nreservation = \"50ops/s\"",
        24,
        5,
        "reservation_metadata needs a rate in bytes: \"50ops/s\" counts every request already",
    ),
    (
        "reservation_metadata = \"101%\"\nreservation = \"1MB/s\"",
        24,
        6,
        "\"101%\" is not a percentage from 0% to 100%, such as 10% or 2.5%",
    ),
    (
        "reservation_metadata = 0.1\nreservation = \"1MB/s\"",
        24,
        3,
        "reservation_metadata must be a text such as \"10%\", not a fraction",
    ),
    (
        "min_local_service = \"150%\"",
        21,
        6,
        "\"150%\" is not a percentage above zero and up to 100%, such as 50% or 12.5%",
    ),
    ("max_classes = 5", 15, 1, "max_classes needs per: without it a rule has one class"),
    (
        "max_classes = 0\nper = [\"uid\"]",
        15,
        1,
        "max_classes must be a whole number from 1 to 4294967295, not 0",
    ),
    ("slots = -1", 9, 2, "slots must be a whole number from 1 to 4294967295, not -1"),
    (
        "slots = 0x1_0000_0000",
        9,
        13,
        "slots must be a whole number from 1 to 4294967295, not 4294967296",
    ),
    (
        "write_mode = \"fast\"",
        14,
        6,
        "\"fast\" is not a write mode; use one of direct, dontcache, paced, cached",
    ),
    (
        "write_mode = true",
        14,
        4,
        "write_mode must be one of direct, dontcache, paced, cached, not true or false",
    ),
    (
        "limit = 100",
        9,
        3,
        "limit must be a rate such as \"100MB/s\", a table of rates or a list of both, not a whole number",
    ),
    ("limit = []", 9, 2, "limit = [] is empty; remove limit for its default"),
    ("limit = {}", 9, 2, "limit needs a rate"),
    ("limit = { burst = \"1s\" }", 9, 16, "limit needs a rate"),
    (
        "limit = { reads = \"1MB/s\" }",
        11,
        5,
        "\"reads\" is not a kind of request; use one of read, write, walk, getattr, setattr, open, create, mkdir, symlink, mknod, link, unlink, rename, readlink, readdir, statfs, fsync, getxattr, setxattr, lock, unlock, attach, clunk, metadata, all",
    ),
    (
        "limit = { ost_write = \"1MB/s\" }",
        11,
        9,
        "\"ost_write\" is a name of Lustre; use \"write\"",
    ),
    (
        "limit = { metadata = \"1MB/s\" }",
        11,
        8,
        "\"1MB/s\" cannot limit metadata, as only read and write move bytes; use a rate in ops/s",
    ),
    (
        "limit = { read = \"0ops/s\" }",
        18,
        8,
        "\"0ops/s\" is not a rate above zero such as 500MB/s, 1.5GiB/s or 5000ops/s",
    ),
    (
        "limit = { read = 5 }",
        18,
        1,
        "read must be a rate such as \"100MB/s\" or \"5000ops/s\", not a whole number",
    ),
    (
        "limit = { read = \"1MB/s\", burst = \"5ops\" }",
        35,
        6,
        "\"5ops\" is not a burst of 1MB/s; use data such as 4MiB or a time such as 100ms, above zero",
    ),
    (
        "limit = { read = \"1ops/s\", burst = \"100ms\" }",
        36,
        7,
        "\"100ms\" is not a burst of 1ops/s; use operations such as 50ops or a time such as 1s, above zero",
    ),
    (
        "limit = { read = \"1ops/s\", burst = 4 }",
        36,
        1,
        "burst must be a text such as \"4MiB\", \"50ops\" or \"100ms\", not a whole number",
    ),
    (
        "limit = [{ rate = \"1MB/s\", per = [] }]",
        28,
        3,
        "a limit has no key \"per\"; use one of kinds, rate, burst",
    ),
    ("limit = [{ kinds = [\"read\"] }]", 10, 20, "a limit needs rate"),
];

#[test]
fn every_fault_of_a_rule_is_named_and_marked() {
    for (line, column, width, message) in IN_RULE {
        let first = line.lines().next().unwrap();
        let carets = " ".repeat(column - 1) + &"^".repeat(width);
        let want = format!("rules.toml:3:{column}: {message}\n  3 | {first}\n    | {carets}");
        assert_eq!(in_rule(line), want);
    }
}

#[test]
fn names_must_suit_tables_and_metrics() {
    for name in ["", "two words", "ü", "a/b", &"x".repeat(64)] {
        let error = refusal(&format!("[[rule]]\nname = \"{name}\"\n"));
        let want = format!(
            "rules.toml:2:8: {name:?} is not a name; use 1 to 63 letters, digits, _, - and ."
        );
        assert_eq!(error.lines().next().unwrap(), want);
    }
    assert!(RuleSet::parse(&format!("[[rule]]\nname = \"a_B-9.{}\"", "x".repeat(57))).is_ok());
}

#[test]
fn a_name_is_taken_once_among_rules_and_once_among_meters() {
    let text = "[[rule]]\nname = \"a\"\nmatch = \"uid={1}\"\n[[rule]]\nname = \"a\"\n";
    assert_eq!(
        refusal(text),
        "rules.toml:5:8: [[rule]] \"a\" exists already in line 2; use another name\n\
         \x20 5 | name = \"a\"\n\
         \x20   |        ^^^"
    );
    assert!(
        RuleSet::parse("[[rule]]\nname = \"a\"\n[[meter]]\nname = \"a\"\nrate = \"1ops/s\"")
            .is_ok()
    );
}

#[test]
fn a_section_without_a_needed_key_is_marked_at_its_head() {
    assert_eq!(
        refusal("[[rule]]\nweight = 2\n"),
        "rules.toml:1:1: [[rule]] needs name\n  1 | [[rule]]\n    | ^^^^^^^^"
    );
    assert_eq!(
        in_meter("kinds = [\"read\"]"),
        "rules.toml:1:1: [[meter]] needs rate\n  1 | [[meter]]\n    | ^^^^^^^^^"
    );
}

#[test]
fn faults_of_a_meter_are_named_and_marked() {
    assert_eq!(
        in_meter("rate = \"1MB/s\"\nkinds = [\"read\", \"open\"]"),
        "rules.toml:4:18: \"1MB/s\" cannot limit open, as only read and write move bytes; use a rate in ops/s\n\
         \x20 4 | kinds = [\"read\", \"open\"]\n\
         \x20   |                  ^^^^^^"
    );
    assert_eq!(
        in_meter("rate = \"1MB/s\"\nkinds = []"),
        "rules.toml:4:9: kinds = [] is empty; remove kinds for its default\n\
         \x20 4 | kinds = []\n\
         \x20   |         ^^"
    );
    assert_eq!(
        in_meter("limit = \"1MB/s\""),
        "rules.toml:3:1: [[meter]] has no key \"limit\"; use one of name, match, per, kinds, rate, burst\n\
         \x20 3 | limit = \"1MB/s\"\n\
         \x20   | ^^^^^"
    );
}

#[test]
fn the_default_rule_is_last_and_takes_everything() {
    let message = "rule \"default\" takes what no other rule matches: it must be the last rule, without a match";
    for (text, line) in [
        ("[[rule]]\nname = \"default\"\n[[rule]]\nname = \"x\"\n", 2),
        ("[[rule]]\nname = \"default\"\nmatch = \"uid={1}\"\n", 2),
    ] {
        assert_eq!(
            refusal(text),
            format!(
                "rules.toml:{line}:8: {message}\n  2 | name = \"default\"\n    |        ^^^^^^^^^"
            )
        );
    }
    assert!(RuleSet::parse("[[rule]]\nname = \"default\"\nmatch = \"*\"").is_ok());
}

#[test]
fn text_that_is_not_toml_is_marked_where_it_stops_being_so() {
    let error = RuleSet::parse("[[rule]]\nname = \"x\nweight = 2\n").unwrap_err();
    assert_eq!((error.excerpt.line, error.excerpt.text.as_str()), (2, "name = \"x"));
    let error = RuleSet::parse("[[rule]]\nname = \"x\"\nname = \"y\"\n").unwrap_err();
    assert_eq!(error.to_string(), "3:1: duplicate key\n  3 | name = \"y\"\n    | ^^^^");
    let error = RuleSet::parse("[rule]\nname = \"x\"\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "1:1: rule must be a list of [[rule]] sections, not a table\n  1 | [rule]\n    | ^^^^^^"
    );
    let error = RuleSet::parse("[[rules]]\nname = \"x\"\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "1:3: the file has no key \"rules\"; use one of rule, meter, decay\n  1 | [[rules]]\n    |   ^^^^^"
    );
}

#[test]
fn the_sixty_fifth_directory_is_one_too_many() {
    let rule = |i: usize| format!("[[rule]]\nname = \"r{i}\"\nmatch = \"path={{/d{i}}}\"\n");
    let text: String = (0..65).map(rule).collect();
    assert_eq!(
        refusal(&text),
        "rules.toml:195:9: \"/d64\" exceeds the 64 paths that all rules together may name; remove a path\n\
         \x20 195 | match = \"path={/d64}\"\n\
         \x20     |         ^^^^^^^^^^^^^"
    );
}

#[test]
fn more_meters_than_a_request_can_pay_are_refused() {
    let meter = |i: usize| format!("[[meter]]\nname = \"m{i}\"\nrate = \"1MB/s\"\n");
    let nine: String = (0..9).map(meter).collect();
    assert_eq!(
        refusal(&nine),
        "rules.toml:26:8: a read request could have to pay 9 meters, ending with \"m8\"; reduce them to 8\n\
         \x20 26 | name = \"m8\"\n\
         \x20    |        ^^^^"
    );
    let seven: String = (0..7).map(meter).collect();
    let limited =
        "[[rule]]\nname = \"r\"\nlimit = [\"1MB/s\", { kinds = [\"write\"], rate = \"1MB/s\" }]\n";
    assert_eq!(
        refusal(&format!("{limited}{seven}")),
        "rules.toml:23:8: a write request could have to pay 9 meters, including 2 limits of rule \"r\", \
         ending with \"m6\"; reduce them to 8\n\
         \x20 23 | name = \"m6\"\n\
         \x20    |        ^^^^"
    );
    let rates = ["\"1ops/s\""; 9].join(", ");
    assert_eq!(
        in_rule(&format!("limit = [{rates}]")),
        "rules.toml:2:8: a read request could have to pay 9 meters, including 9 limits of rule \"x\"; \
         reduce them to 8\n\
         \x20 2 | name = \"x\"\n\
         \x20   |        ^^^"
    );
}

#[test]
fn meters_too_long_to_compare_count_as_paid_together() {
    let meter = |i: usize| {
        let uids: Vec<String> = (i * 1024..(i + 1) * 1024).map(|uid| uid.to_string()).collect();
        let list = uids.join(" ");
        format!("[[meter]]\nname = \"m{i}\"\nmatch = \"uid={{{list}}}\"\nrate = \"1ops/s\"\n")
    };
    let text = |count| (0..count).map(meter).collect::<String>();
    assert!(RuleSet::parse(&text(8)).is_ok());
    let error = refusal(&text(30));
    assert!(error.contains(" meters, ending with \"m29\"; reduce them to 8\n"), "{error}");
}

#[test]
fn sections_and_lists_have_bounds() {
    let rules: String = (0..16_385).map(|i| format!("[[rule]]\nname = \"r{i}\"\n")).collect();
    let error = refusal(&rules);
    assert!(error.contains(": more than 16384 [[rule]] sections; remove some\n"), "{error}");
    let meters: String = (0..257)
        .map(|i| {
            format!("[[meter]]\nname = \"m{i}\"\nmatch = \"uid={{{i}}}\"\nrate = \"1ops/s\"\n")
        })
        .collect();
    let error = refusal(&meters);
    assert!(error.contains(": more than 256 [[meter]] sections; remove some\n"), "{error}");
    let uids: Vec<String> = (0..1025).map(|i| i.to_string()).collect();
    let error = in_rule(&format!("match = \"uid={{{}}}\"", uids.join(" ")));
    assert!(error.starts_with("rules.toml:3:14: uid={…} has more than 1024 items\n"), "{error}");
}
