//! Rust source as the chores read it: files, and code without words.
//!
//!   text ─► blank(): comments, strings and characters become spaces ─► line numbers still hold
//!
//! Not a parser: enough of the lexical grammar (nested comments, raw strings,
//! lifetimes beside characters) that a word found in the blanked text is code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Every `.rs` file under `folder`, sorted; build output and hidden folders are left out.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if folder.is_dir() {
        walk(folder, &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with("target") && !name.starts_with('.') {
                walk(&path, found)?;
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Reads a file as text.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// What a byte of Rust source belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SourcePart {
    Code,
    Comment,
    Literal,
}

/// The text with every comment, string and character literal overwritten by
/// spaces; newlines stay, so a position has the same line in both.
pub(crate) fn blank(text: &str) -> String {
    keep(text, SourcePart::Code)
}

/// The comments of the text, everything else overwritten by spaces.
pub(crate) fn comments(text: &str) -> String {
    keep(text, SourcePart::Comment)
}

/// The string and character literals of the text, everything else overwritten by spaces.
pub(crate) fn literals(text: &str) -> String {
    keep(text, SourcePart::Literal)
}

fn keep(text: &str, part: SourcePart) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        let this = match bytes[at] {
            _ if end == at => SourcePart::Code,
            b'/' => SourcePart::Comment,
            _ => SourcePart::Literal,
        };
        let end = end.max(at + 1);
        if this != part {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the comment or literal that begins at `at` ends; `at` if none begins there.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest[0] {
        b'"' => quoted_end(bytes, at + 1, b'"'),
        b'r' | b'b' | b'c' if !inside_word => raw_string_end(bytes, at).unwrap_or(at),
        b'\'' if is_character(rest) => quoted_end(bytes, at + 1, b'\''),
        _ => at,
    }
}

/// `'x'` and `'\n'` are characters, `'a` in `&'a str` is a lifetime.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(first) if first.is_ascii() => rest.get(2) == Some(&b'\''),
        Some(_) => true,
        None => false,
    }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn quoted_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"`, `r#"…"#`, `br"…"` and their like, if one begins at `start`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    if matches!(bytes[at], b'b' | b'c') {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    at += 1 + hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &bytes[at + 1..];
    let length = body.windows(close.len()).position(|w| w == close)?;
    Some(at + 1 + length + close.len())
}

/// Whether a byte can be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The line (from 1) of a byte position.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1
}

/// Positions at which `word` stands in `code` with no identifier character beside it.
pub(crate) fn find_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let end = at + word.len();
        let clear_before = at == 0 || !is_word(bytes[at - 1]) || !is_word(word.as_bytes()[0]);
        let clear_after = end == bytes.len() || !is_word(bytes[end]) || !is_word(bytes[end - 1]);
        clear_before && clear_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        let text = "a /* b /* c */ d */ e // f\n\"g\\\"h\" i r#\"j\"k\"# l 'm' '\\'' n";
        let words: Vec<String> = blank(text).split_whitespace().map(String::from).collect();
        assert_eq!(words, ["a", "e", "i", "l", "n"]);
        assert_eq!(blank(text).matches('\n').count(), 1);
    }

    #[test]
    fn comments_and_literals_are_found_and_code_is_not() {
        let text = "let a = \"b // c\"; // d\n/* e */ f('g');";
        assert_eq!(
            comments(text).split_whitespace().collect::<Vec<_>>(),
            ["//", "d", "/*", "e", "*/"]
        );
        assert_eq!(
            literals(text).split_whitespace().collect::<Vec<_>>(),
            ["\"b", "//", "c\"", "'g'"]
        );
        assert_eq!(comments(text).matches('\n').count(), 1);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let text = "fn f<'a>(x: &'a str) -> &'a str { x } // 'b'";
        assert_eq!(blank(text).trim_end(), "fn f<'a>(x: &'a str) -> &'a str { x }");
    }

    #[test]
    fn a_word_ending_in_r_does_not_begin_a_raw_string() {
        assert_eq!(blank("var\"x\" y"), "var    y");
    }

    #[test]
    fn words_are_found_whole_only() {
        let code = "Instant Instants MyInstant x::Instant";
        assert_eq!(find_word(code, "Instant").collect::<Vec<_>>(), [0, 30]);
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(line_of("a\nb\nc", 4), 3);
        assert_eq!(line_of("a", 0), 1);
    }
}
