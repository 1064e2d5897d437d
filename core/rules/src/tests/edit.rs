//! What an edit does to a text, and what it leaves as it is.

use crate::{KeyEdit, RuleEdit, RuleEditError, RulePosition, RuleSet};

/// A file as people write it, with what an edit must not lose.
const FILE: &str = r#"# Rules of the big file system.

# Checkpoints first.
[[rule]]
name = "ckpt"   # the slurm prefix
match = "jobid={ckpt.*}"
weight = 8      # four times a job
# until the new array is there

[[meter]]
name = "archive"
match = "path={/scratch/archive}"
rate = "300MB/s"

# ---- everybody else ----

[[rule]]
name = 'jobs'
per = [
  "jobid",
  "uid",
]
limit = { read = "1GB/s", metadata = "500ops/s" }

[[rule]]
name = "default"
weight = 2
"#;

fn key(key: &'static str, value: &str) -> KeyEdit {
    let value = (value != "none").then(|| value.into());
    KeyEdit { key, value }
}

fn start(name: &str, keys: &[KeyEdit], position: RulePosition) -> RuleEdit {
    RuleEdit::Start { name: name.into(), keys: keys.to_vec(), position }
}

fn change(name: &str, keys: &[KeyEdit]) -> RuleEdit {
    RuleEdit::Change { name: name.into(), keys: keys.to_vec() }
}

fn stop(name: &str) -> RuleEdit {
    RuleEdit::Stop { name: name.into() }
}

fn rank(name: &str, position: RulePosition) -> RuleEdit {
    RuleEdit::Rank { name: name.into(), position }
}

fn before(name: &str) -> RulePosition {
    RulePosition::Before(name.into())
}

fn names(text: &str) -> Vec<String> {
    RuleSet::parse(text).unwrap().rules.into_iter().map(|rule| rule.name).collect()
}

fn refusal(edit: RuleEdit, text: &str) -> String {
    edit.apply(text).unwrap_err().to_string()
}

#[test]
fn a_new_rule_is_the_first_and_nothing_else_moves() {
    let keys = [key("limit", "\"5MB/s\""), key("match", "\"uid={34}\"")];
    let text = start("backup", &keys, RulePosition::First).apply(FILE).unwrap();
    let section = "[[rule]]\nname = \"backup\"\nmatch = \"uid={34}\"\nlimit = \"5MB/s\"\n\n";
    let place = FILE.find("# Checkpoints").unwrap();
    assert_eq!(text, format!("{}{section}{}", &FILE[..place], &FILE[place..]));
}

#[test]
fn a_new_rule_stands_before_the_named_one_or_last_but_for_default() {
    let named = start("x", &[], before("jobs")).apply(FILE).unwrap();
    assert_eq!(names(&named), ["ckpt", "x", "jobs", "default"]);
    assert!(named.contains("# ---- everybody else ----\n\n[[rule]]\nname = \"x\"\n\n[[rule]]\n"));
    let last = start("x", &[key("match", "\"uid={1}\"")], RulePosition::Last).apply(FILE).unwrap();
    assert_eq!(names(&last), ["ckpt", "jobs", "x", "default"]);
}

#[test]
fn a_rule_named_default_is_started_behind_all_others() {
    let text = "[[rule]]\nname = \"a\"\n\n[[meter]]\nname = \"m\"\nrate = \"1MB/s\"\n";
    let started = start("default", &[key("weight", "3")], RulePosition::First).apply(text).unwrap();
    assert_eq!(
        started,
        "[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"default\"\nweight = 3\n\n\
         [[meter]]\nname = \"m\"\nrate = \"1MB/s\"\n"
    );
}

#[test]
fn the_first_rule_of_an_empty_file_or_behind_a_comment_needs_no_other() {
    let edit = start("a", &[], RulePosition::First);
    assert_eq!(edit.apply("").unwrap(), "[[rule]]\nname = \"a\"\n");
    assert_eq!(edit.apply("# none yet").unwrap(), "# none yet\n\n[[rule]]\nname = \"a\"\n");
}

#[test]
fn a_change_exchanges_values_and_keeps_what_stands_beside_them() {
    let keys = [key("weight", "16"), key("slots", "4"), key("reservation", "\"1MB/s\"")];
    let text = change("ckpt", &keys).apply(FILE).unwrap();
    let expected = FILE.replace(
        "weight = 8      # four times a job\n",
        "weight = 16      # four times a job\nreservation = \"1MB/s\"\nslots = 4\n",
    );
    assert_eq!(text, expected);
}

#[test]
fn a_key_that_is_taken_away_leaves_the_lines_around_it() {
    let keys = [key("per", "none"), key("limit", "none"), key("slots", "none")];
    let text = change("jobs", &keys).apply(FILE).unwrap();
    let from = FILE.find("per = [").unwrap();
    let to = FILE.find("\n[[rule]]\nname = \"default\"").unwrap();
    assert_eq!(text, format!("{}{}", &FILE[..from], &FILE[to..]));
}

#[test]
fn a_value_takes_the_place_of_one_of_several_lines() {
    let text = change("jobs", &[key("per", "[\"nid\"]")]).apply(FILE).unwrap();
    assert_eq!(text, FILE.replace("[\n  \"jobid\",\n  \"uid\",\n]", "[\"nid\"]"));
}

#[test]
fn a_change_is_done_as_a_whole_or_not_at_all() {
    let edit = change("ckpt", &[key("weight", "9"), key("limit", "\"50 MB\"")]);
    assert_eq!(
        refusal(edit, FILE),
        "not changed: the result would be wrong at line 8:9: \"50 MB\" is not a rate above \
         zero such as 500MB/s, 1.5GiB/s or 5000ops/s\n  8 | limit = \"50 MB\"\n    |         ^^^^^^^"
    );
}

#[test]
fn a_stopped_rule_goes_with_its_comments_and_one_gap() {
    let text = stop("ckpt").apply(FILE).unwrap();
    let from = FILE.find("# Checkpoints").unwrap();
    let to = FILE.find("[[meter]]").unwrap();
    assert_eq!(text, format!("{}{}", &FILE[..from], &FILE[to..]));
    let text = stop("jobs").apply(FILE).unwrap();
    assert!(text.contains("# ---- everybody else ----\n\n[[rule]]\nname = \"default\""), "{text}");
    let text = stop("default").apply(FILE).unwrap();
    assert!(text.ends_with("metadata = \"500ops/s\" }\n"), "{text}");
    assert_eq!(stop("a").apply("[[rule]]\nname = \"a\"\n").unwrap(), "");
}

#[test]
fn a_rule_takes_its_comments_to_another_place() {
    let text = rank("ckpt", RulePosition::Last).apply(FILE).unwrap();
    assert_eq!(names(&text), ["jobs", "ckpt", "default"]);
    let piece = &FILE[FILE.find("# Checkpoints").unwrap()..FILE.find("\n[[meter]]").unwrap()];
    assert!(text.contains(&format!("\n\n{piece}\n[[rule]]\nname = \"default\"")), "{text}");
    assert!(text.starts_with("# Rules of the big file system.\n\n[[meter]]"), "{text}");
    assert_eq!(names(&rank("jobs", RulePosition::First).apply(FILE).unwrap())[0], "jobs");
    let again = rank("ckpt", before("jobs")).apply(&text).unwrap();
    assert_eq!(names(&again), ["ckpt", "jobs", "default"]);
}

#[test]
fn a_rank_before_itself_changes_nothing() {
    for (name, place) in [("jobs", before("jobs")), ("default", RulePosition::Last)] {
        assert_eq!(rank(name, place).apply(FILE).unwrap(), FILE);
    }
}

#[test]
fn an_unknown_rule_is_an_error_that_names_the_known_ones() {
    let expected = "rule \"x\" does not exist; the rules are ckpt, jobs, default";
    for edit in [
        stop("x"),
        change("x", &[key("weight", "1")]),
        rank("x", RulePosition::First),
        rank("jobs", before("x")),
        start("new", &[], before("x")),
    ] {
        assert_eq!(refusal(edit, FILE), expected);
    }
    assert_eq!(refusal(stop("x"), ""), "rule \"x\" does not exist; the file has no rules");
    let many: String = (0..40).map(|n| format!("[[rule]]\nname = \"r{n}\"\n")).collect();
    assert!(refusal(stop("x"), &many).ends_with("r30, r31 and 8 more"));
}

#[test]
fn a_name_that_is_taken_is_told_with_its_line() {
    let expected = "rule \"jobs\" exists already in line 18; change it or stop it first";
    assert_eq!(refusal(start("jobs", &[], RulePosition::First), FILE), expected);
}

#[test]
fn a_parent_is_not_stopped_before_its_children() {
    let child = "[[rule]]\nname = \"b\"\nlimit = \"2MB/s\"\n\
                 depends_on = { rule = \"a\", when_idle = \"1s\", min = \"1MB/s\" }\n";
    let text = format!("[[rule]]\nname = \"a\"\nmatch = \"uid={{1}}\"\n{child}");
    let expected = "\"a\" is the parent of b; stop or change the dependent rules first";
    assert_eq!(refusal(stop("a"), &text), expected);
    let freed = change("b", &[key("depends_on", "none")]).apply(&text).unwrap();
    assert_eq!(names(&stop("a").apply(&freed).unwrap()), ["b"]);
}

#[test]
fn default_has_one_place_and_no_rule_unless_it_is_started() {
    for edit in [
        rank("default", RulePosition::First),
        rank("default", before("jobs")),
        start("default", &[], before("a")),
    ] {
        let text = if matches!(edit, RuleEdit::Start { .. }) { "" } else { FILE };
        assert_eq!(edit.apply(text).unwrap_err(), RuleEditError::DefaultPosition);
    }
    assert_eq!(stop("default").apply("").unwrap_err(), RuleEditError::NoDefault);
}

#[test]
fn a_change_of_nothing_is_an_error() {
    assert_eq!(change("jobs", &[]).apply(FILE).unwrap_err(), RuleEditError::Empty);
}

#[test]
fn a_text_that_is_wrong_already_is_shown_with_its_line() {
    let error = stop("a").apply("[[rule]]\nname = \"a\"\nweight = 0\n").unwrap_err().to_string();
    assert!(error.starts_with("3:10: "), "{error}");
}

#[test]
fn lines_that_end_as_on_windows_stay_so() {
    let text = "[[rule]]\r\nname = \"a\"\r\n\r\n[[rule]]\r\nname = \"b\"\r\n";
    let text = start("c", &[key("weight", "2")], before("b")).apply(text).unwrap();
    assert_eq!(
        text,
        "[[rule]]\r\nname = \"a\"\r\n\r\n[[rule]]\r\nname = \"c\"\r\nweight = 2\r\n\r\n\
         [[rule]]\r\nname = \"b\"\r\n"
    );
    assert_eq!(stop("c").apply(&text).unwrap().matches("\r\n").count(), 5);
}

#[test]
fn a_list_of_limits_below_headers_goes_where_its_rule_goes() {
    let list = "[[rule]]\nname = \"a\"\n\n[[rule.limit]]\nkinds = [\"read\"]\nrate = \"1MB/s\"\n\
                [[rule.limit]] # and\nrate = \"5ops/s\" # end\n";
    let other = "[[rule]]\nname = \"b\"\n";
    let text = format!("{list}\n{other}");
    let moved = rank("a", RulePosition::Last).apply(&text).unwrap();
    assert_eq!(moved, format!("{other}\n{list}"));
    assert_eq!(stop("a").apply(&text).unwrap(), other);
    let started = start("c", &[], before("b")).apply(&text).unwrap();
    assert_eq!(started, format!("{list}\n[[rule]]\nname = \"c\"\n\n{other}"));
    for value in ["none", "\"2MB/s\""] {
        let error = change("a", &[key("limit", value)]).apply(&text).unwrap_err();
        assert!(matches!(error, RuleEditError::Unfit(_)), "{error}");
    }
    let changed = change("a", &[key("slots", "2")]).apply(&text).unwrap();
    assert_eq!(changed, text.replace("\"a\"\n", "\"a\"\nslots = 2\n"));
}

#[test]
fn what_a_writer_of_toml_would_unify_stays() {
    let dotted = "[[rule]]\nlimit.read = \"1MB/s\"\nname = \"b\"\nlimit.write = \"2MB/s\"\n";
    let text = format!("# mixed\r\n[[ rule ]]\nname='a'\n\n{dotted}");
    let changed = change("a", &[key("name", "\"c\"")]).apply(&text);
    assert!(matches!(changed, Err(RuleEditError::Unfit(_))), "{changed:?}");
    let changed = change("a", &[key("weight", "2")]).apply(&text).unwrap();
    assert_eq!(changed, text.replace("'a'\n", "'a'\nweight = 2\r\n"));
    let again = change("c", &[key("weight", "3")])
        .apply(&text.replace("name='a'", "'name'=\"c\"\n\"weight\"\t=2 #"))
        .unwrap();
    assert!(again.contains("'name'=\"c\"\n\"weight\"\t=3 #"), "{again}");
    let first = rank("b", RulePosition::First).apply(&text).unwrap();
    assert_eq!(first, format!("{dotted}\r\n# mixed\r\n[[ rule ]]\nname='a'\n"));
}

#[test]
fn a_byte_order_mark_stays_first() {
    let text = "\u{feff}[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"b\"\n";
    let moved = rank("a", RulePosition::Last).apply(text).unwrap();
    assert_eq!(moved, "\u{feff}[[rule]]\nname = \"b\"\n\n[[rule]]\nname = \"a\"\n");
    assert_eq!(rank("a", RulePosition::First).apply(&moved).unwrap(), text);
    assert_eq!(stop("a").apply(&stop("b").apply(text).unwrap()).unwrap(), "\u{feff}");
}

#[test]
fn what_is_written_in_a_way_that_cannot_be_exchanged_is_refused() {
    let list = "rule = [{ name = \"a\" }, { name = \"b\" }]\n";
    let table = "[[rule]]\nname = \"a\"\n[rule.limit]\nread = \"1MB/s\"\n";
    let dotted = "[[rule]]\nname = \"a\"\nlimit.read = \"1MB/s\"\n";
    let torn = "[[rule]]\nname = \"a\"\n[[meter]]\nname = \"m\"\nrate = \"1MB/s\"\n\
                [rule.limit]\nread = \"1MB/s\"\n";
    for (edit, text) in [
        (stop("a"), list),
        (change("a", &[key("limit", "\"2MB/s\"")]), table),
        (change("a", &[key("limit", "none")]), dotted),
        (stop("a"), torn),
    ] {
        assert!(RuleSet::parse(text).is_ok(), "{text}");
        let error = edit.apply(text).unwrap_err();
        assert!(matches!(error, RuleEditError::Unfit(_)), "{text}: {error}");
    }
    // What does not touch the table goes on working, and the table goes where its rule goes.
    let text = change("a", &[key("weight", "2")]).apply(table).unwrap();
    assert_eq!(text, table.replace("\"a\"\n", "\"a\"\nweight = 2\n"));
    let two = format!("{table}[[rule]]\nname = \"b\"\n");
    let moved = rank("b", RulePosition::First).apply(&two).unwrap();
    assert_eq!(moved, format!("[[rule]]\nname = \"b\"\n\n{table}"));
}
