//! Names of files that do not exist, wherever people read them.
//!
//!   Rust ─► comments; literals, where the name ends in .md ─┐
//!   Markdown, scripts, TOML, pages ─► all of the text ──────┴─► words ─► is it a file's name? ─► does it exist?
//!
//! A word is a file's name if it ends in `.md`, `.rs` or `.sh`, or if it begins with a folder of
//! the project. It exists as seen from the root, from the file's folder or one above it, from the
//! folder of the file's own modules, or as the end of a path: of one alone, or beside a file that
//! the same text names in full. Words with a placeholder (`*`, `NAME`, `$dir`, `…`) are left alone,
//! and so are absolute paths: those are of other machines.

use std::collections::BTreeSet;

use super::tree::{TidyTree, folder_of, join};
use crate::source::{comments, line_of, literals};

/// Ends of names that are judged without a folder before them.
const KINDS: &[&str] = &["md", "rs", "sh"];

/// Folders of the project with which a path begins.
const FOLDERS: &[&str] = &[
    ".ci",
    "bench",
    "core",
    "dashboard",
    "docs",
    "fuzz",
    "io",
    "native",
    "scenarios",
    "testkit",
    "tests",
    "xtask",
];

/// Parts of a path that stand for something else.
const PLACEHOLDERS: &[&str] = &["NAME", "PROGRAM", "CRATE", "DIR", "FILE", "X", "N", "x", "Y", "y"];

/// Names that many files have; any of them will do.
const COMMON: &[&str] = &["lib.rs", "main.rs", "mod.rs", "README.md"];

/// Names that are none of ours, and why they stand there.
const EXAMPLES: &[(&str, &str)] = &[
    ("fuzz/artifacts", "made by the fuzzer, ignored by git"),
    ("fuzz/corpus", "made by the fuzzer, ignored by git"),
];

/// Names of files that do not exist, a line each.
pub(super) fn check(tree: &TidyTree) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in &tree.texts {
        let names = names_in(name, text);
        let near: BTreeSet<&str> = names.iter().map(|(_, word)| folder_of(word)).collect();
        for (at, word) in names {
            if let Err(why) = resolve(tree, name, &near, word) {
                found.push(format!("{name}:{}: {word}: {why}", line_of(text, at)));
            }
        }
    }
    found
}

/// The names of files that a text has, with their places.
fn names_in<'t>(name: &str, text: &'t str) -> Vec<(usize, &'t str)> {
    if !name.ends_with(".rs") {
        return words(text).filter(|(_, word)| is_judged(word)).collect();
    }
    // test modules name files that they make up
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let comments = comments(text);
    let literals = literals(&text[..end]);
    let of = |blanked: &str, judged: fn(&str) -> bool| {
        let places = words(blanked).filter(|(_, word)| judged(word));
        places.map(|(at, word)| (at, &text[at..at + word.len()])).collect::<Vec<_>>()
    };
    let mut found = of(&comments, is_judged);
    found.extend(of(&literals, |word| word.ends_with(".md") && is_judged(word)));
    found
}

/// Words as paths are written, without what a sentence puts around them.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_space =
        |c: char| c.is_whitespace() || "()[]\"'`,;|=!".contains(c) || (!c.is_ascii() && c != '…');
    text.split(is_space).map(move |word| {
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        // `x.rs:12` and `x.md#part` name x.rs and x.md
        let end = if word.contains("://") {
            word.len()
        } else {
            word.find([':', '#']).unwrap_or(word.len())
        };
        (at, word[..end].trim_end_matches(['.', '\\', '/']))
    })
}

fn is_judged(word: &str) -> bool {
    let strange = |c: char| "*<>{}$…~%?@+:\\&".contains(c);
    if word.is_empty() || word.starts_with(['/', '-']) || word.contains(strange) {
        return false;
    }
    let is_placeholder = |part: &str| {
        let stem = part.split('.').next().unwrap_or(part);
        PLACEHOLDERS.iter().any(|name| stem == *name || stem.ends_with(&format!("-{name}")))
    };
    if word.split('/').any(is_placeholder) {
        return false;
    }
    let last = word.rsplit('/').next().unwrap_or(word);
    let is_kind =
        last.rsplit_once('.').is_some_and(|(stem, kind)| !stem.is_empty() && KINDS.contains(&kind));
    let is_path = word.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first));
    is_kind || is_path
}

/// Finds the file that a word in the file `from` names, which names files of the folders `near`.
fn resolve(tree: &TidyTree, from: &str, near: &BTreeSet<&str>, word: &str) -> Result<(), String> {
    if EXAMPLES.iter().any(|(name, _)| *name == word) {
        return Ok(());
    }
    // a file X.rs has its modules in a folder X
    let mut folder = from.strip_suffix(".rs").unwrap_or(folder_of(from));
    loop {
        if join(folder, word).is_some_and(|path| tree.has(&path)) {
            return Ok(());
        }
        if folder.is_empty() {
            break;
        }
        folder = folder_of(folder);
    }
    // the beginning of a path: `docs/decisions/0006`
    if word.contains('/') && tree.files.iter().any(|file| file.starts_with(word)) {
        return Ok(());
    }
    let end = format!("/{word}");
    let fitting: Vec<_> = tree.files.iter().filter(|file| file.ends_with(&end)).collect();
    match fitting.len() {
        0 => Err("no file of the project has that name".into()),
        1 => Ok(()),
        _ if COMMON.iter().any(|name| word.ends_with(name)) => Ok(()),
        _ if fitting.iter().any(|file| near.contains(folder_of(file))) => Ok(()),
        many => Err(format!("{many} files end so: write more of the path, as in {}", fitting[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in one text beside a tree of a few files.
    fn judged(name: &str, text: &str) -> Vec<String> {
        check(&TidyTree::of(&[
            ("docs/RULES.md", ""),
            ("docs/algorithms/decay.md", ""),
            ("docs/decisions/0006-the-dialect.md", ""),
            ("core/plan/src/decay/account.rs", ""),
            ("core/plan/tests/all/main.rs", ""),
            ("core/plan/tests/all/decay.rs", ""),
            ("io/api/src/rules.rs", ""),
            ("io/proxy/src/rules.rs", ""),
            ("tests/posix.sh", ""),
            (name, text),
        ]))
    }

    #[test]
    fn names_are_seen_from_the_root_a_folder_above_or_as_the_end_of_one_path() {
        let text = "See docs/RULES.md, decay.md. (`core/plan/src/decay`), docs/decisions/0006: \
                    account.rs:12, tests/posix.sh; all/decay.rs and posix.sh, main.rs, \
                    [x](docs/RULES.md#at-a-glance) core/plan/";
        assert_eq!(judged("docs/a.md", text), [""; 0]);
        assert_eq!(
            judged("core/plan/src/lib.rs", "//! tests/all/decay.rs has the table.\n"),
            [""; 0]
        );
    }

    #[test]
    fn names_that_no_file_has_are_told_with_their_line() {
        assert_eq!(
            judged("docs/a.md", "\nsee tbf.md, section 4; core/plan/tests/decay.rs, docs/gone/x1"),
            [
                "docs/a.md:2: tbf.md: no file of the project has that name",
                "docs/a.md:2: core/plan/tests/decay.rs: no file of the project has that name",
                "docs/a.md:2: docs/gone/x1: no file of the project has that name",
            ]
        );
        assert_eq!(
            judged("scenarios/a.toml", "from = \"wrf.md, table 2\"\n# gone.sh\n").len(),
            2,
            "texts and comments of TOML"
        );
    }

    #[test]
    fn an_end_that_several_paths_have_is_too_short() {
        assert_eq!(
            judged("docs/a.md", "rules.rs"),
            [
                "docs/a.md:1: rules.rs: 2 files end so: write more of the path, as in io/api/src/rules.rs"
            ]
        );
        assert_eq!(judged("docs/a.md", "`proxy/src/rules.rs`"), [""; 0]);
        assert_eq!(judged("docs/a.md", "io/api/src/rules.rs, then rules.rs"), [""; 0]);
        assert_eq!(judged("io/api/src/lib.rs", "//! rules.rs\n"), [""; 0]);
        assert_eq!(judged("io/api/src.rs", "//! rules.rs\n"), [""; 0], "its own module");
    }

    #[test]
    fn rust_is_judged_in_comments_and_in_texts_that_cite_a_document() {
        let text = "//! gone.rs\nconst A: &str = \"lime.md section 7\";\nconst B: &str = \"made.rs\";\n\
                    #[cfg(test)]\nmod tests { const C: &str = \"made.md\"; }\n";
        assert_eq!(
            judged("io/api/src/lib.rs", text),
            [
                "io/api/src/lib.rs:1: gone.rs: no file of the project has that name",
                "io/api/src/lib.rs:2: lime.md: no file of the project has that name",
            ]
        );
    }

    #[test]
    fn placeholders_other_machines_and_words_with_a_slash_are_left_alone() {
        let text = "scenarios/NAME.toml, results/qos-NAME.md, docs/*.md, /srv/x.sh, $dir/a.sh, read/write, \
                    https://example.org/docs/a.md, rules.toml, lustre/ptlrpc/nrs_tbf.c, --file=x, …/a.rs, I/O";
        assert_eq!(judged("docs/a.md", text), [""; 0]);
    }
}
