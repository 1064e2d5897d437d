//! Properties: any text is read or refused without a panic, and what was read is
//! written so that it reads the same.

use model::{Identity, JobId, Nid, OpKind, PathSet, Weight};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{KeyEdit, Match, Rule, RuleEdit, RulePosition, RuleSet, Shadowed};

/// One predicate, in any of the spellings.
fn predicate() -> impl Strategy<Value = String> {
    let word = "[a-c*.]{1,4}";
    let quoted = prop_oneof!["\"[a-c ,{}'*]{0,4}\"", "'[a-c ,{}\"*]{0,4}'"];
    let jobs = vec(prop_oneof![word.prop_map(String::from), quoted], 1..4);
    let id = prop_oneof![
        Just("-1".to_string()),
        (0..4u32).prop_map(|n| n.to_string()),
        (0..4u32).prop_map(|n| format!("{n:#x}")),
        (0..4u32).prop_map(|n| format!("0{n:o}")),
    ];
    let octet =
        prop_oneof!["[0-9]", Just("*".to_string()), "\\[[0-4](-[5-9])?(,2[0-4]-25[0-5])?\\]"];
    let nid = prop_oneof![
        Just("*".to_string()),
        "\\*@(tcp|lo|o2ib1)",
        "[0-3]@lo",
        (vec(octet, 4), "tcp[0-2]?").prop_map(|(o, net)| format!("{}@{net}", o.join("."))),
    ];
    let kind = prop::sample::select(OpKind::ALL).prop_map(|kind| kind.name().to_string());
    let path = vec("[a-c*]{1,3}", 0..3).prop_map(|names| format!("/{}", names.join("/")));
    let between = prop_oneof![Just(" "), Just(","), Just(" , "), Just("\n")];
    let field = prop_oneof![
        jobs.prop_map(|items| ("jobid", items)),
        (prop::sample::select(&["uid", "gid", "projid"]), vec(id, 1..4)),
        vec(nid, 1..4).prop_map(|items| ("nid", items)),
        vec(kind, 1..4).prop_map(|items| ("opcode", items)),
        vec(path, 1..4).prop_map(|items| ("path", items)),
    ];
    (field, between)
        .prop_map(|((name, items), between)| format!("{name}={{{}}}", items.join(between)))
}

fn condition() -> impl Strategy<Value = String> {
    let conjunction = vec(predicate(), 1..4).prop_map(|list| list.join("&"));
    vec(conjunction, 1..4).prop_map(|list| list.join(" , "))
}

fn identity() -> impl Strategy<Value = Identity> {
    let id = || prop_oneof![0..4u32, Just(u32::MAX)];
    let nid = prop_oneof![
        Just(Nid::local()),
        any::<[u8; 4]>().prop_map(|octets| Nid::tcp(octets.map(|o| o % 10).into())),
    ];
    ("[a-c.]{0,4}", id(), id(), prop::option::of(0..4u32), nid).prop_map(
        |(job, uid, gid, projid, nid)| Identity {
            job: JobId::new(&job).unwrap(),
            uid,
            gid,
            projid,
            nid,
        },
    )
}

fn limit() -> impl Strategy<Value = String> {
    let bytes = (1..2000u64, prop::sample::select(&["B/s", "kB/s", "MiB/s"]));
    let bytes = bytes.prop_map(|(count, unit)| format!("{count}{unit}"));
    let ops = (1..5000u64).prop_map(|count| format!("{count}ops/s"));
    let rate = || prop_oneof![bytes.clone(), ops.clone()];
    let kinds = || vec(prop::sample::select(OpKind::ALL), 1..3);
    let names = |kinds: Vec<OpKind>| {
        kinds.iter().map(|k| format!("\"{k}\"")).collect::<Vec<_>>().join(", ")
    };
    let entry =
        (ops.clone(), kinds(), prop::option::of(1..90u32)).prop_map(move |(rate, kinds, burst)| {
            let burst = burst.map_or(String::new(), |secs| format!(", burst = \"{secs}s\""));
            format!("{{ kinds = [{}], rate = \"{rate}\"{burst} }}", names(kinds))
        });
    let table = (rate(), ops.clone()).prop_map(|(read, metadata)| {
        format!("{{ write = \"{read}\", metadata = \"{metadata}\", burst = \"5s\" }}")
    });
    let single = prop_oneof![rate().prop_map(|rate| format!("\"{rate}\"")), entry];
    prop_oneof![
        single.clone(),
        table,
        vec(single, 1..3).prop_map(|list| format!("[{}]", list.join(", "))),
    ]
}

fn file() -> impl Strategy<Value = String> {
    let reservation = prop::option::of((1..9u32, 0..101u32));
    let rule = (condition(), prop::option::of(limit()), 1..100u32, any::<bool>(), reservation);
    let meter = (condition(), 1..1000u32);
    (vec(rule, 0..4), vec(meter, 0..4)).prop_map(|(rules, meters)| {
        let mut text = String::new();
        for (i, (condition, limit, weight, divided, reservation)) in rules.into_iter().enumerate() {
            text += &format!("[[rule]]\nname = \"r{i}\"\nmatch = '''{condition}'''\n");
            text += &format!("weight = {weight}\n");
            text += &limit.map_or(String::new(), |limit| format!("limit = {limit}\n"));
            text += if divided { "per = [\"nid\", \"uid\"]\nslots = 2\n" } else { "" };
            if let Some((rate, percent)) = reservation {
                text += &format!(
                    "reservation = \"{rate}MB/s\"\nreservation_metadata = \"{percent}%\"\n"
                );
                text += if divided { "max_classes = 5\n" } else { "" };
            }
        }
        for (i, (condition, rate)) in meters.into_iter().enumerate() {
            text += &format!("[[meter]]\nname = \"m{i}\"\nmatch = '''{condition}'''\n");
            text += &format!("rate = \"{rate}kB/s\"\nburst = \"10ms\"\n");
        }
        text
    })
}

/// A file with comments and blank lines before its lines, comments behind them, and either end of
/// line.
fn commented_file() -> impl Strategy<Value = String> {
    let layout = vec((0..4usize, any::<bool>()), 32);
    (file(), layout, any::<bool>()).prop_map(|(file, layout, crlf)| {
        let mut layout = layout.into_iter().cycle().enumerate();
        let mut text = String::new();
        for line in file.lines() {
            // Other lines may be inside of a text.
            if line.starts_with("[[") || line.starts_with("weight = ") {
                let (number, (above, behind)) = layout.next().unwrap();
                let comment = format!("# above {number}\n");
                text += ["", "\n", &comment, &format!("\n{comment}\n{comment}")][above];
                text += line;
                text += &if behind { format!("  # behind {number}\n") } else { "\n".into() };
            } else {
                text += &format!("{line}\n");
            }
        }
        if crlf { text.replace('\n', "\r\n") } else { text }
    })
}

/// The comments of a file, in no order.
fn comments(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> =
        text.lines().filter_map(|line| Some(line.split_once('#')?.1)).collect();
    found.sort_unstable();
    found
}

/// An edit of the rule at a place, and the rules after it.
fn edit(set: &RuleSet, at: usize, what: usize) -> (RuleEdit, Vec<crate::Rule>) {
    let mut rules = set.rules.clone();
    let name = rules[at].name.clone();
    let to_place = |position| RuleEdit::Rank { name: name.clone(), position };
    let edit = match what {
        0 => {
            rules.remove(at);
            RuleEdit::Stop { name }
        }
        1 => {
            let rule = rules.remove(at);
            rules.insert(0, rule);
            to_place(RulePosition::First)
        }
        2 => {
            let rule = rules.remove(at);
            rules.push(rule);
            to_place(RulePosition::Last)
        }
        3 => {
            let next = rules[rules.len() / 2].name.clone();
            let rule = rules.remove(at);
            let to = rules.iter().position(|rule| rule.name == next).unwrap_or(at);
            rules.insert(to, rule);
            to_place(RulePosition::Before(next))
        }
        4 => {
            (rules[at].weight, rules[at].slots) = (Weight::new(777).unwrap(), Some(5));
            let set = |key, value: &str| KeyEdit { key, value: Some(value.into()) };
            RuleEdit::Change { name, keys: vec![set("slots", "5"), set("weight", "777")] }
        }
        _ => {
            (rules[at].limits, rules[at].slots) = (vec![], None);
            let none = |key| KeyEdit { key, value: None };
            RuleEdit::Change { name, keys: vec![none("slots"), none("limit")] }
        }
    };
    (edit, rules)
}

/// What the language means, said as plainly as it can be.
fn glob_by_hand(glob: &[u8], text: &[u8]) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob_by_hand(rest, &text[skip..])),
        Some((c, rest)) => text.first() == Some(c) && glob_by_hand(rest, &text[1..]),
    }
}

/// Sets aside a text that may rightly be refused: too many of them fail the test.
fn refused(error: impl ToString) -> TestCaseError {
    TestCaseError::reject(error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 256, ..ProptestConfig::default() })]

    #[test]
    fn conditions_read_as_they_print(text in condition()) {
        // Kinds that exclude each other are the one fault such a text can have.
        let parsed = text.parse::<Match>().map_err(refused)?;
        let printed = parsed.to_string();
        let again: Match = printed.parse().unwrap();
        prop_assert_eq!(&again, &parsed);
        prop_assert_eq!(again.to_string(), printed);
    }

    #[test]
    fn files_read_as_they_print(text in file()) {
        let set = RuleSet::parse(&text).map_err(refused)?;
        let again = RuleSet::parse(&set.to_toml()).unwrap();
        prop_assert_eq!(&again, &set);
    }

    /// A set finds its rules by what they name; asked one by one, they say the same.
    #[test]
    fn the_first_rule_that_matches_is_found(
        conditions in vec(condition(), 1..16),
        asked in vec((identity(), prop::sample::select(OpKind::ALL)), 1..16),
    ) {
        let readable = conditions.iter().filter_map(|text| text.parse::<Match>().ok());
        let rule = |(number, matcher): (usize, Match)| Rule::new(&format!("r{number}"), matcher);
        let rules: Vec<Rule> = readable.enumerate().map(rule).collect();
        let set = RuleSet { rules: rules.clone(), ..RuleSet::default() }.indexed();
        for (who, kind) in asked {
            let first = rules.iter().position(|r| r.matcher.accepts(&who, kind, PathSet(0)));
            prop_assert_eq!(set.rule_for(&who, kind, PathSet(0)), first);
        }
        let by = |rule: usize| {
            rules[..rule].iter().position(|earlier| earlier.matcher.covers(&rules[rule].matcher))
        };
        let shadowed = (0..rules.len()).filter_map(|rule| Some(Shadowed { rule, by: by(rule)? }));
        prop_assert_eq!(set.shadowed(), shadowed.collect::<Vec<_>>());
        for rule in &rules {
            prop_assert_eq!(set.rule(&rule.name), Some(rule));
        }
    }

    #[test]
    fn edits_do_to_the_text_what_they_do_to_the_rules(
        mut text in file(),
        edits in vec((0..4usize, 0..6usize), 1..6),
    ) {
        let mut set = RuleSet::parse(&text).map_err(refused)?;
        for (at, what) in edits {
            if at >= set.rules.len() {
                continue;
            }
            let (edit, rules) = edit(&set, at, what);
            text = edit.apply(&text).unwrap();
            let meters = set.meters;
            set = RuleSet::parse(&text).unwrap();
            prop_assert_eq!(&set.rules, &rules);
            prop_assert_eq!(&set.meters, &meters);
        }
    }

    #[test]
    fn an_edit_and_its_inverse_leave_the_text_and_its_comments(
        text in commented_file(),
        at in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let set = RuleSet::parse(&text).map_err(refused)?;
        let names: Vec<&String> = set.rules.iter().map(|rule| &rule.name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let before = |at: usize| match names.get(at) {
            Some(next) => RulePosition::Before(next.to_string()),
            None => RulePosition::Last,
        };
        let (at, to) = (at.index(names.len()), before(to.index(names.len() + 1)));
        let name = || names[at].clone();
        let change = |key, value: Option<String>| {
            RuleEdit::Change { name: name(), keys: vec![KeyEdit { key, value }] }
        };
        let there_and_back = |there: RuleEdit, back: RuleEdit| {
            let between = there.apply(&text).unwrap();
            prop_assert_eq!(comments(&between), comments(&text));
            let again = back.apply(&between).unwrap();
            prop_assert_eq!(comments(&again), comments(&text));
            prop_assert_eq!(&RuleSet::parse(&again).unwrap(), &set);
            Ok(again)
        };
        let weight = set.rules[at].weight.to_string();
        let again = there_and_back(change("weight", Some("777".into())), change("weight", Some(weight)))?;
        prop_assert_eq!(&again, &text);
        let mode = Some("\"paced\"".to_string());
        let again = there_and_back(change("write_mode", mode), change("write_mode", None))?;
        prop_assert_eq!(&again, &text);
        let start = RuleEdit::Start { name: "new".into(), keys: vec![], position: to.clone() };
        let again = there_and_back(start, RuleEdit::Stop { name: "new".into() })?;
        // A gap may be left where the text had none.
        let full = |line: &&str| !line.is_empty();
        prop_assert!(again.lines().filter(full).eq(text.lines().filter(full)), "{again:?}");
        let there = RuleEdit::Rank { name: name(), position: to };
        there_and_back(there, RuleEdit::Rank { name: name(), position: before(at + 1) })?;
    }

    #[test]
    fn any_text_is_read_or_refused_at_a_place_in_it(text in "\\PC{0,40}") {
        if let Err(error) = text.parse::<Match>() {
            prop_assert!(text.get(error.at).is_some());
        }
        let file = format!("[[rule]]\nname = \"x\"\n{text}\n");
        if let Err(error) = RuleSet::parse(&file) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn faults_in_any_spelling_of_a_text_have_a_place(text in "[a-z={}, \\\\\"'\n*utx0-9]{0,30}") {
        for quotes in ["\"", "'", "\"\"\"", "'''"] {
            let file = format!("[[rule]]\nname = \"x\"\nmatch = {quotes}{text}{quotes}\n");
            if let Err(error) = RuleSet::parse(&file) {
                prop_assert!(error.excerpt.line >= 1);
            }
        }
    }

    #[test]
    fn globs_mean_what_they_say(glob in "[ab*]{1,8}", job in "[ab]{0,8}", who in identity()) {
        let matcher: Match = format!("jobid={{{glob}}}").parse().unwrap();
        let who = Identity { job: JobId::new(&job).unwrap(), ..who };
        let want = glob_by_hand(glob.as_bytes(), job.as_bytes());
        prop_assert_eq!(matcher.accepts(&who, OpKind::Read, Default::default()), want);
    }

    #[test]
    fn covering_and_excluding_hold_for_every_request(
        (left, right) in (condition(), condition()),
        people in vec(identity(), 8),
        kind in prop::sample::select(OpKind::ALL),
        path in "(/[a-c]{1,2}){0,3}",
    ) {
        let file = |condition: &str, name: &str| {
            format!("[[rule]]\nname = \"{name}\"\nmatch = '''{condition}'''\n")
        };
        let text = file(&left, "a") + &file(&right, "b");
        let set = RuleSet::parse(&text).map_err(refused)?;
        let (a, b) = (&set.rules[0].matcher, &set.rules[1].matcher);
        let paths = set.path_set(path.as_bytes());
        for who in &people {
            let (in_a, in_b) = (a.accepts(who, kind, paths), b.accepts(who, kind, paths));
            prop_assert!(!(a.covers(b) && in_b) || in_a);
            prop_assert!(!(a.excludes(b) && in_a && in_b));
        }
    }
}
