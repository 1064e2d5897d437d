//! Doc comments of what other files use: long enough to say more than the name does.
//!
//!   `///` block ─► words ─► fewer than four ─┐
//!   item below it ─► visible beyond its file ┴► to mend
//!
//! Visible are items and fields with `pub`, `pub(crate)` or `pub(super)`, variants of such enums with
//! their fields, and items of such traits. Whether there is a comment at all is rustc's `missing_docs`.

use std::path::Path;

use anyhow::Result;

use super::code::without_tests;
use crate::source::{blank, comments, find_word, read, rust_files};

/// Folders whose crates are judged, by what is in `src`.
const FOLDERS: &[&str] = &["core", "io", "testkit", "bench", "xtask"];
/// Words that a doc comment has at least.
const WORDS_MIN: usize = 4;

/// The doc comments that are too short.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder))? {
            let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            if name.contains("/src/") {
                judge(&name, &read(&file)?, &mut found);
            }
        }
    }
    Ok(found)
}

fn judge(file: &str, text: &str, found: &mut Vec<String>) {
    let code = blank(text);
    let code = without_tests(&code);
    let scopes = scopes(code);
    for block in doc_blocks(&comments(text)[..code.len()]) {
        let item = block.end + item_offset(&code[block.end..]);
        let is_inside = |scope: &&Scope| scope.start < item && item < scope.end;
        // inner scopes come after outer ones
        let has_visible_parent =
            scopes.iter().rfind(is_inside).is_some_and(|scope| scope.kind != ScopeKind::Other);
        let words =
            block.text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
        if (code[item..].starts_with("pub") || has_visible_parent) && words.count() < WORDS_MIN {
            let said = block.text.trim();
            let line = block.line;
            found.push(format!("{file}:{line}: a doc of fewer than {WORDS_MIN} words: {said}"));
        }
    }
}

/// Adjacent lines of `///`.
#[derive(Debug, PartialEq)]
struct DocBlock {
    line: usize,
    end: usize,
    text: String,
}

fn doc_blocks(comments: &str) -> Vec<DocBlock> {
    let mut found: Vec<DocBlock> = Vec::new();
    let (mut end, mut is_open) = (0, false);
    for (index, line) in comments.split_inclusive('\n').enumerate() {
        end += line.len();
        let doc = line.trim().strip_prefix("///").filter(|rest| !rest.starts_with('/'));
        match (doc, found.last_mut().filter(|_| is_open)) {
            (Some(doc), Some(last)) => {
                last.text = format!("{} {}", last.text, doc.trim());
                last.end = end;
            }
            (Some(doc), None) => {
                found.push(DocBlock { line: index + 1, end, text: doc.trim().into() });
            }
            (None, _) => {}
        }
        is_open = doc.is_some();
    }
    found
}

/// Length of the space and the attributes before an item.
fn item_offset(code: &str) -> usize {
    let mut at = 0;
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if !code[at..].starts_with("#[") {
            return at;
        }
        let mut depth = 0;
        let close = code[at..].bytes().position(|byte| {
            depth += i32::from(byte == b'[') - i32::from(byte == b']');
            byte == b']' && depth == 0
        });
        at += close.map_or(code[at..].len(), |close| close + 1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ScopeKind {
    /// Of a visible enum or one of its variants: whatever is in it is visible.
    Enum,
    /// Of a visible trait: its items are visible, but not what their bodies hold.
    Trait,
    Other,
}

/// What a pair of braces encloses.
#[derive(Debug, PartialEq)]
struct Scope {
    kind: ScopeKind,
    start: usize,
    end: usize,
}

/// The scopes of a file, each after the scope around it.
fn scopes(code: &str) -> Vec<Scope> {
    let mut all: Vec<Scope> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'{' => {
                let parent = open.last().map_or(ScopeKind::Other, |parent| all[*parent].kind);
                let header = &code[code[..at].rfind(['{', '}', ';']).map_or(0, |end| end + 1)..at];
                let kind = match parent {
                    ScopeKind::Enum => ScopeKind::Enum,
                    _ if is_visible(header, "enum") => ScopeKind::Enum,
                    _ if is_visible(header, "trait") => ScopeKind::Trait,
                    _ => ScopeKind::Other,
                };
                open.push(all.len());
                all.push(Scope { kind, start: at, end: code.len() });
            }
            b'}' => {
                if let Some(last) = open.pop() {
                    all[last].end = at;
                }
            }
            _ => {}
        }
    }
    all
}

/// Whether a header defines something by this word, and with `pub`.
fn is_visible(header: &str, word: &str) -> bool {
    find_word(header, word).next().is_some_and(|at| {
        let line = header[..at].rfind('\n').map_or(0, |start| start + 1);
        header[line..at].trim_start().starts_with("pub")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        judge("x.rs", text, &mut found);
        found
    }

    #[test]
    fn short_docs_of_visible_items_are_to_mend() {
        assert_eq!(
            judged("/// The name.\n#[serde(a = \"]\",\n b)]\npub(super) name: String,\n"),
            ["x.rs:1: a doc of fewer than 4 words: The name."]
        );
        assert_eq!(judged("/// Its `a` - b.\npub fn f() {}\n").len(), 1);
        assert_eq!(judged("/// One two\n/// three four.\npub fn f() {}\n"), [""; 0]);
        assert_eq!(judged("/// The name.\nname: String,\n//// x\npub fn f() {}\n"), [""; 0]);
        assert_eq!(judged("#[cfg(test)]\nmod tests {\n/// A b.\npub fn f() {}\n}\n"), [""; 0]);
    }

    #[test]
    fn variants_and_their_fields_are_visible_as_their_enum_is() {
        let text = "enum E {\n    /// One.\n    A,\n    B {\n        /// Two.\n        x: u8,\n    },\n}\n";
        assert_eq!(judged(text), [""; 0]);
        assert_eq!(judged(&format!("#[derive(Debug)]\npub(crate) {text}")).len(), 2);
    }

    #[test]
    fn items_of_a_visible_trait_are_visible_and_its_bodies_are_not() {
        let text = "pub trait T {\n    /// One.\n    fn a() {\n        /// Two.\n        struct X;\n    }\n}\n";
        assert_eq!(judged(text), ["x.rs:2: a doc of fewer than 4 words: One."]);
        assert_eq!(judged("pub fn f(t: impl T) {\n    /// One.\n    struct X;\n}\n"), [""; 0]);
    }
}
