//! Names of types: a reader who searches for one finds one.
//!
//!   type definitions of every crate ─► a `pub` one: once in the workspace
//!                                   └► a `pub(crate)` or `pub(super)` one: once in its crate
//!
//! Test programs, examples and benchmarks are crates of their own, of which nobody imports a type:
//! they are left out.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::code::without_tests;
use crate::source::{blank, find_word, is_word, line_of, read, rust_files};

/// Folders whose crates are judged.
const FOLDERS: &[&str] = &["core", "io", "testkit", "bench", "xtask"];
/// Words that define a type.
const DEFINING: &[&str] = &["struct", "enum", "union", "trait", "type"];
/// One in each command of a program, by clap's custom.
const EACH_COMMAND: &str = "Args";
/// What two protocols have both, always written with the crate: `ninep::Statfs`, `fuse::Statfs`.
const TWINS: &[&str] =
    &["Attributes", "SetAttributes", "Statfs", "DirEntry", "LockKind", "Timestamp"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Visibility {
    Public,
    Crate,
    File,
}

/// A type's definition.
#[derive(Debug, PartialEq)]
struct Definition {
    name: String,
    visibility: Visibility,
    krate: String,
    place: String,
}

/// Names that more than one type has.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder))? {
            let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            if let Some((krate, _)) = name.split_once("/src/") {
                all.extend(definitions(krate, &name, &read(&file)?));
            }
        }
    }
    Ok(twice(&all))
}

fn twice(all: &[Definition]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&Definition>> = BTreeMap::new();
    for one in all {
        by_name.entry(&one.name).or_default().push(one);
    }
    let mut found = Vec::new();
    for (name, all) in by_name {
        if name == EACH_COMMAND || TWINS.contains(&name) {
            continue;
        }
        let clash = |one: &Definition, other: &Definition| match one.visibility {
            Visibility::Public => other.visibility != Visibility::File || one.krate == other.krate,
            Visibility::Crate => one.krate == other.krate,
            Visibility::File => false,
        };
        for (at, one) in all.iter().enumerate() {
            let mut others = all.iter().enumerate().filter(|(other, _)| *other != at);
            if let Some((_, other)) = others.find(|(_, other)| clash(one, other)) {
                found.push(format!("{}: a type {name} is at {}, too", one.place, other.place));
            }
        }
    }
    found
}

/// The types that a file defines, but those that belong to a trait or an impl, and test modules'.
fn definitions(krate: &str, file: &str, text: &str) -> Vec<Definition> {
    let code = blank(text);
    let code = without_tests(&code);
    let mut found = Vec::new();
    for word in DEFINING {
        for at in find_word(code, word) {
            let start = code[..at].rfind('\n').map_or(0, |line| line + 1);
            let before = code[start..at].trim_end();
            let name: String = code[at + word.len()..]
                .trim_start()
                .bytes()
                .take_while(|byte| is_word(*byte))
                .map(char::from)
                .collect();
            let visibility = match before.trim_start().trim_end_matches("unsafe").trim_end() {
                "pub" => Visibility::Public,
                "pub(crate)" | "pub(super)" => Visibility::Crate,
                "" => Visibility::File,
                _ => continue,
            };
            // `type` of a trait or an impl is indented.
            if name.is_empty() || (*word == "type" && code[start..at].starts_with(' ')) {
                continue;
            }
            let place = format!("{file}:{}", line_of(code, at));
            found.push(Definition { name, visibility, krate: krate.into(), place });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(files: &[(&str, &str)]) -> Vec<String> {
        let all: Vec<_> = files
            .iter()
            .flat_map(|(file, text)| definitions(file.split_once("/src/").unwrap().0, file, text))
            .collect();
        twice(&all)
    }

    #[test]
    fn public_names_are_unique_in_the_workspace() {
        let found = judged(&[
            ("a/src/x.rs", "pub struct Place;\n"),
            ("b/src/y.rs", "/// pub struct Place\n\npub(crate) enum Place {}\n"),
        ]);
        assert_eq!(found, ["a/src/x.rs:1: a type Place is at b/src/y.rs:3, too"]);
    }

    #[test]
    fn crate_names_are_unique_in_their_crate() {
        let one = ("a/src/x.rs", "pub(super) struct Place;\n");
        assert_eq!(judged(&[one, ("a/src/y.rs", "struct Place;\n")]).len(), 1);
        assert_eq!(judged(&[one, ("b/src/y.rs", "pub(crate) struct Place;\n")]).len(), 0);
        assert_eq!(
            judged(&[("a/src/x.rs", "struct Place;\n"), ("a/src/y.rs", "struct Place;\n")]).len(),
            0
        );
    }

    #[test]
    fn exempt_are_types_of_impls_twins_and_arguments() {
        let text =
            "pub struct Args;\npub struct Statfs;\nimpl Iterator for X {\n    type Item = u8;\n}\n";
        assert_eq!(judged(&[("a/src/x.rs", text), ("b/src/x.rs", text)]), [""; 0]);
    }
}
