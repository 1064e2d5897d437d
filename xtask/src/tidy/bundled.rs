//! Signatures of functions: an argument each, with a name and a type of its own.
//!
//!   `fn` ─► parameters ─► `(a, b): (A, B)`: two arguments in one, to mend
//!
//! Left out are closures, which take what an iterator gives, patterns of a named type, such as
//! `Query(query): Query<Values>`, and test modules.

use std::path::Path;

use anyhow::Result;

use super::code::without_tests;
use crate::source::{blank, find_word, is_word, line_of, read, rust_files};

/// Folders that are judged: of core and io only what is in `src`.
const FOLDERS: &[&str] = &["core", "io", "testkit", "bench", "xtask"];
const SOURCES_ONLY: &[&str] = &["core", "io"];

/// The functions that have a tuple pattern as a parameter.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder))? {
            let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            if name.contains("/src/") || !SOURCES_ONLY.contains(folder) {
                judge(&name, &read(&file)?, &mut found);
            }
        }
    }
    Ok(found)
}

fn judge(file: &str, text: &str, found: &mut Vec<String>) {
    let code = blank(text);
    let code = without_tests(&code);
    for at in find_word(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let name: String = rest.bytes().take_while(|b| is_word(*b)).map(char::from).collect();
        // `fn(u8) -> u8` is a type and has no name
        if name.is_empty() {
            continue;
        }
        for parameter in parameters(&rest[name.len()..]) {
            if is_bundle(without_attributes(parameter)) {
                let line = line_of(code, at);
                let shown = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
                found.push(format!("{file}:{line}: fn {name}: arguments in a tuple: {shown}"));
            }
        }
    }
}

/// Whether a parameter has a pattern and a type that are both tuples. One value of a named type,
/// such as `(index, stamp): ServiceId`, is not a bundle.
fn is_bundle(parameter: &str) -> bool {
    let Some(tuple) = tuple_in(parameter) else { return false };
    let mut depth = 0;
    let close = tuple.bytes().position(|byte| {
        depth += i32::from(byte == b'(') - i32::from(byte == b')');
        depth == 0
    });
    let after = close.map_or("", |close| tuple[close + 1..].trim_start());
    after.strip_prefix(':').is_some_and(|kind| tuple_in(kind).is_some())
}

/// The tuple that a pattern or a type is, without the reference to it.
fn tuple_in(text: &str) -> Option<&str> {
    let open = text.find('(')?;
    let mut before = text[..open].split(['&', ' ']).filter(|word| !word.is_empty());
    before.all(|word| word == "mut" || word.starts_with('\'')).then(|| &text[open..])
}

/// The parameters of a function, from the code after its name.
fn parameters(code: &str) -> Vec<&str> {
    let (mut found, mut depth, mut angles) = (Vec::new(), 0usize, 0usize);
    let mut start = None;
    let bytes = code.as_bytes();
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' if depth == 0 && angles == 0 => (depth, start) = (1, Some(at + 1)),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if let Some(start) = start.filter(|_| depth == 0) {
                    found.push(code[start..at].trim());
                    break;
                }
            }
            b'<' => angles += 1,
            // not of `Fn(u8) -> u8`
            b'>' if at > 0 && bytes[at - 1] != b'-' => angles = angles.saturating_sub(1),
            b',' if depth == 1 && angles == 0 => {
                if let Some(start) = start.replace(at + 1) {
                    found.push(code[start..at].trim());
                }
            }
            _ => {}
        }
    }
    found
}

fn without_attributes(mut parameter: &str) -> &str {
    while let Some(rest) = parameter.strip_prefix("#[") {
        parameter = rest.split_once(']').map_or("", |(_, after)| after).trim_start();
    }
    parameter
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
    fn tuple_patterns_of_parameters_are_to_mend() {
        assert_eq!(
            judged(
                "\npub(crate) async fn f<T: Fn(u8, u8) -> (u8, u8)>(\n    &self,\n    (a, b): (u8, Vec<(T, u8)>),\n) {}\n"
            ),
            ["x.rs:2: fn f: arguments in a tuple: (a, b): (u8, Vec<(T, u8)>)"]
        );
        assert_eq!(judged("fn f(#[cfg(x)] &(S::A(a), b): &'s mut (A, B), (c,): (C,)) {}").len(), 2);
    }

    #[test]
    fn names_closures_and_types_are_no_bundles() {
        for text in [
            "fn f(pair: (A, B), each: impl Fn((A, B)) -> C, Query(query): Query<(A, B)>) -> (A, B) {}",
            "fn f() { all.map(|(a, b): (A, B)| (a, b)); }",
            "fn f((a, b): Pair, (c, d) in pairs()) {}",
            "type F = fn((A, B)) -> C;\nfn f(g: fn((A, B))) {}",
            "fn f<A, B>(a: BTreeMap<A, B>, b: [(A, B); 2]) where (A, B): Ord {}",
            "// fn f((a, b): (A, B))\n#[cfg(test)]\nmod tests { fn f((a, b): (A, B)) {} }",
        ] {
            assert_eq!(judged(text), [""; 0], "{text}");
        }
    }
}
