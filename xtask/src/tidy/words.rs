//! Words that the project's texts do without: they are unclear, or no English.
//!
//!   documents ─► prose ───────────────────────┐
//!   Rust files ─► string literals, doc comments ─► a refused word: to mend
//!
//! Judged are documents, and the rooms whose texts are finished. Names in code spans stay as they are
//! until what they name has another one.

use super::code::without_tests;
use super::markdown::prose;
use super::tree::TidyTree;
use crate::source::{comments, line_of, literals};

/// Refused words, and what is usually meant.
const REFUSED: &[(&str, &str)] = &[
    ("anew", "again"),
    ("whoever", "a process, user or client that"),
    ("told", "reported, set"),
    ("untold", "unreported"),
    ("likewise", "name what is the same"),
    ("looked at", "read, checked"),
    ("come again", "retry"),
    ("comes again", "is repeated"),
    ("so many", "name the number"),
    ("so much", "name the amount"),
    ("one too many", "the bound is reached"),
    ("is no", "is not a"),
];

/// Where a refused word is plain English.
const PLAIN: &[&str] = &["there is no", "is no longer"];

/// Folders and files whose texts are finished; of crates what is in `src`, of `native/` all texts.
/// Decisions are records, and stay as they were made.
const FINISHED: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "docs/",
    "dashboard/",
    "tests/programs/README.md",
    "core/",
    "io/",
    "native/",
    "bench/",
    "testkit/",
    "xtask/",
];
const RECORDS: &str = "docs/decisions/";
/// This file, which names the words.
const LIST: &str = "xtask/src/tidy/words.rs";

/// The refused words in what is finished.
pub(super) fn check(tree: &TidyTree) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in &tree.texts {
        let is_finished = FINISHED.iter().any(|start| file.starts_with(start));
        if !is_finished || file.starts_with(RECORDS) || file == LIST {
            continue;
        }
        match file.rsplit_once('.') {
            Some((_, "md")) => judge(file, &without_indented(&prose(text)), &mut found),
            Some((_, "rs")) if file.contains("/src/") => judge(file, &spoken(text), &mut found),
            Some((_, "c" | "h" | "hpp" | "cpp" | "lua" | "sh" | "conf" | "service"))
                if file.starts_with("native/") =>
            {
                judge(file, text, &mut found);
            }
            _ => {}
        }
    }
    found
}

fn judge(file: &str, text: &str, found: &mut Vec<String>) {
    let mut small = text.to_lowercase();
    for plain in PLAIN {
        small = small.replace(plain, &" ".repeat(plain.len()));
    }
    for (word, instead) in REFUSED {
        let is_letter = |at: Option<char>| at.is_some_and(char::is_alphanumeric);
        for (at, _) in small.match_indices(word) {
            let (before, after) = (&small[..at], &small[at + word.len()..]);
            if !is_letter(before.chars().next_back()) && !is_letter(after.chars().next()) {
                let line = line_of(&small, at);
                found.push(format!("{file}:{line}: not \"{word}\", but: {instead}"));
            }
        }
    }
}

/// Lines that are code by their indentation become empty.
fn without_indented(text: &str) -> String {
    let lines = text.split('\n').map(|line| if line.starts_with("    ") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// What a Rust file says to people: its literals and doc comments, before its test module.
fn spoken(text: &str) -> String {
    let text = without_tests(text);
    let docs = comments(text);
    let docs = docs.lines().map(|line| {
        let start = line.trim_start();
        if start.starts_with("///") || start.starts_with("//!") { line } else { "" }
    });
    let docs = prose(&docs.collect::<Vec<_>>().join("\n"));
    let said = literals(text);
    let both = docs.split('\n').zip(said.split('\n')).map(|(doc, said)| format!("{doc} {said}"));
    both.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(file: &str, text: &str) -> Vec<String> {
        let mut tree = TidyTree::default();
        tree.texts.insert(file.into(), text.into());
        check(&tree)
    }

    #[test]
    fn prose_is_judged_and_code_is_not() {
        let text = "Begin anew.\n\n    told\n\n`so many`, retold\n```\nanew\n```\nThere is no need. It is no bug, and is no longer one.\n";
        assert_eq!(
            judged("docs/X.md", text),
            ["docs/X.md:1: not \"anew\", but: again", "docs/X.md:9: not \"is no\", but: is not a"]
        );
        assert_eq!(judged("docs/decisions/0001.md", text), [""; 0]);
        assert_eq!(judged("bench/README.md", "Told.").len(), 1);
        assert_eq!(judged("native/a/b.lua", "-- told\n").len(), 1);
    }

    #[test]
    fn rust_files_are_judged_by_what_they_say() {
        let text = "//! Whoever\n/// `told`\nfn told() {} // told\nconst A: &str = \"come again\";\n\
                    #[cfg(test)]\nmod tests { const B: &str = \"anew\"; }\n";
        let mut found = Vec::new();
        judge("x.rs", &spoken(text), &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
        for crates in ["core/a", "testkit", "xtask"] {
            assert_eq!(judged(&format!("{crates}/src/x.rs"), text).len(), 2);
        }
        assert_eq!(judged(LIST, text), [""; 0]);
    }
}
