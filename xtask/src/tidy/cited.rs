//! Tests that documents name: each is there.
//!
//!   `long_names_with_underscores` of a document ─► a fn, or some other word of the code
//!   `long_names_with_…` ─► a fn that begins so
//!   cargo test … --test PROGRAM ─► tests/PROGRAM.rs or tests/PROGRAM/main.rs of a crate
//!
//! A document names keys, metrics and fields in the same way as tests, so a name may be any word of
//! the code: one that was renamed is neither.

use std::collections::BTreeSet;

use super::markdown::spans;
use super::tree::TidyTree;
use crate::source::{blank, comments, find_word, is_word, line_of};

/// Underscores from which a name is looked for: shorter ones are of other programs, too.
const UNDERSCORES: usize = 2;

/// Names of other projects that no text of ours has but documents, and why they stand there. Hooks that
/// `native/` has, such as those of burst_buffer/lua, are words of the code.
const FOREIGN: &[(&str, &str)] = &[
    ("nrs_tbf_rule", "a file of Lustre's that holds rules"),
    ("bb_array_stage_cnt", "how many tasks of an array Slurm stages at a time"),
    ("init_post_opt", "short for the hook of a SPANK plug-in after it has all options"),
];

/// Tests that documents name and nobody wrote, a line each.
pub(super) fn check(tree: &TidyTree) -> Vec<String> {
    let code = Words::of(tree);
    let mut found = Vec::new();
    for (name, text) in tree.texts.iter().filter(|(name, _)| is_document(name)) {
        for (at, span) in spans(text) {
            // a path is judged as one
            let span = span.split_whitespace().filter(|word| !word.contains('/'));
            for word in span.flat_map(|word| word.split(|c: char| !(is_name(c) || c == '…'))) {
                if let Some(why) = code.judge(word) {
                    found.push(format!("{name}:{}: {word}: {why}", line_of(text, at)));
                }
            }
        }
    }
    for (name, text) in &tree.texts {
        let read = if name.ends_with(".rs") { comments(text) } else { text.clone() };
        let programs =
            programs(&read).into_iter().filter(|(_, program)| !has_program(tree, program));
        found.extend(programs.map(|(at, program)| {
            format!(
                "{name}:{}: --test {program}: no crate has such a test program",
                line_of(text, at)
            )
        }));
    }
    found
}

fn is_document(name: &str) -> bool {
    name == "README.md" || (name.starts_with("docs/") && name.ends_with(".md"))
}

/// A name with a capital letter in it is not a function of ours, and is passed over as a whole: Slurm's
/// `Burst_buffer_pre_run_error` is not a name that begins after its first letter.
fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// The words of the project's code.
struct Words {
    functions: BTreeSet<String>,
    all: BTreeSet<String>,
}

impl Words {
    fn of(tree: &TidyTree) -> Words {
        let (mut functions, mut all) = (BTreeSet::new(), BTreeSet::new());
        for (name, text) in &tree.texts {
            if name.ends_with(".rs") {
                let code = blank(text);
                functions.extend(
                    find_word(&code, "fn").map(|at| first_word(code[at + 2..].trim_start())),
                );
            }
            if !name.ends_with(".md") {
                let words = text.split(|c: char| !is_name(c)).filter(|word| is_long(word));
                all.extend(words.map(String::from));
            }
        }
        Words { functions, all }
    }

    /// What is wrong with a name that a document has.
    fn judge(&self, word: &str) -> Option<String> {
        let is_foreign = FOREIGN.iter().any(|(name, _)| *name == word);
        // docs/METRICS.md is made from the names of metrics, which the code puts together
        if is_foreign || word.starts_with("sluice_") {
            return None;
        }
        if let Some(start) = word.strip_suffix('…') {
            let begins = self.functions.iter().any(|function| function.starts_with(start));
            return (is_long(start) && !begins).then(|| "no fn begins so".into());
        }
        let is_there = self.functions.contains(word) || self.all.contains(word);
        (is_long(word) && !is_there)
            .then(|| "no fn of that name, nor any other word of the code".into())
    }
}

fn is_long(word: &str) -> bool {
    word.bytes().filter(|byte| *byte == b'_').count() >= UNDERSCORES
        && !word.starts_with('_')
        && word.bytes().all(|byte| is_word(byte) && !byte.is_ascii_uppercase())
}

fn first_word(text: &str) -> String {
    text.bytes().take_while(|byte| is_word(*byte)).map(char::from).collect()
}

/// The names after `--test`, with their places.
fn programs(text: &str) -> Vec<(usize, String)> {
    let places =
        text.match_indices("--test ").map(|(at, flag)| (at, first_word(&text[at + flag.len()..])));
    let is_name = |name: &str| name.bytes().any(|byte| byte.is_ascii_lowercase());
    places.filter(|(_, name)| is_name(name)).collect()
}

fn has_program(tree: &TidyTree, name: &str) -> bool {
    let ends = [format!("/tests/{name}.rs"), format!("/tests/{name}/main.rs")];
    tree.files.iter().any(|file| ends.iter().any(|end| file.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: (&str, &str) = (
        "core/a/tests/all/main.rs",
        "//! E.\n#[test]\nfn small_request_passes_head() { let bytes_in_flight = 1; }\n",
    );

    fn judged(text: &str) -> Vec<String> {
        let lua = ("native/a/b.lua", "function of_a_lua_file() end");
        check(&TidyTree::of(&[CODE, lua, ("docs/A.md", text)]))
    }

    #[test]
    fn tests_and_keys_that_exist_are_let_through() {
        let text = "`small_request_passes_head`, `small_request_…`, `bytes_in_flight = 2`, \
                    `sluice_made_of_parts_total`, one_that_is_prose_only, `short_name`, \
                    `Burst_buffer_pre_run_error`, `bb_array_stage_cnt`, `of_a_lua_file`";
        assert_eq!(judged(text), [""; 0]);
    }

    #[test]
    fn tests_that_nobody_wrote_are_named() {
        assert_eq!(
            judged("\n`small_request_passes_tail`, `large_request_passes_…`"),
            [
                "docs/A.md:2: small_request_passes_tail: no fn of that name, nor any other word of the code",
                "docs/A.md:2: large_request_passes_…: no fn begins so",
            ]
        );
    }

    #[test]
    fn a_name_in_a_fenced_block_is_left_alone() {
        assert_eq!(judged("```\n`none_of_these_exists`\n```\n"), [""; 0]);
    }

    #[test]
    fn test_programs_are_looked_for_in_every_text() {
        assert_eq!(judged("    cargo test -p a --test all some_name\n"), [""; 0]);
        assert_eq!(judged("`cargo test -p X --test PROGRAM`"), [""; 0]);
        assert_eq!(
            judged("`cargo test -p a --test cases`"),
            ["docs/A.md:1: --test cases: no crate has such a test program"]
        );
    }
}
