//! Rust files: how long they and their functions are, what was left in them, which are dead.
//!
//!   files ─► long files, long functions ─┬─ longer than is good: listed
//!                                        └─ much longer: to mend
//!         ─► no essay, leftovers, dead files: to mend
//!         ─► words the glossary bans in names of items: listed
//!
//! Lengths count lines of code: no blank line, no comment, no test module.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::Findings;
use crate::source::{blank, find_word, is_word, line_of, read, rust_files};

/// Lines of code above which a file or a function is reported.
#[derive(Clone, Copy)]
struct LengthLimits {
    listed: usize,
    /// It must be cut.
    to_mend: usize,
}

const FILE_LINES: LengthLimits = LengthLimits { listed: 500, to_mend: 700 };
const FUNCTION_LINES: LengthLimits = LengthLimits { listed: 70, to_mend: 120 };
/// Macros that mark unfinished or forgotten work.
const LEFTOVERS: &[&str] = &["todo", "unimplemented", "dbg"];
/// Folders whose Rust files are the project's.
const FOLDERS: &[&str] = &["core", "io", "native", "testkit", "bench", "xtask", "fuzz"];

/// What the glossary never calls it, and what it calls it instead. Only words
/// that have no other meaning here are looked for.
const BANNED: &[(&str, &str)] = &[
    ("policy", "rule"),
    ("flow", "class"),
    ("credit", "burst"),
    ("quota", "limit"),
    ("allocation", "reservation"),
    ("master", "controller"),
    ("host", "node"),
    ("volume", "target"),
    ("utils", "what it does"),
    ("common", "what it does"),
    ("manager", "what it does"),
    ("helper", "what it does"),
];

/// Judges every Rust file of the project.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<()> {
    for folder in FOLDERS {
        let mut texts = Vec::new();
        for file in rust_files(&root.join(folder))? {
            let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            texts.push((name, read(&file)?));
        }
        for (name, text) in &texts {
            judge_file(name, text, findings);
        }
        findings.to_mend.extend(dead_files(&texts));
    }
    Ok(())
}

fn judge_file(name: &str, text: &str, findings: &mut Findings) {
    if !text.trim_start().starts_with("//!") && !text.trim_start().starts_with("#!") {
        findings.to_mend.push(format!("{name}:1: no //! essay at the top"));
    }
    let code = blank(text);
    let code = without_tests(&code);
    judge_length(format!("{name}:1: file"), lines_of_code(code), FILE_LINES, findings);
    for function in functions(code) {
        let what = format!("{name}:{}: fn {}", function.line, function.name);
        judge_length(what, function.lines, FUNCTION_LINES, findings);
    }
    for word in LEFTOVERS {
        for at in find_word(code, word).filter(|at| code[at + word.len()..].starts_with('!')) {
            findings.to_mend.push(format!("{name}:{}: leftover {word}!", line_of(code, at)));
        }
    }
    for (line, item) in item_names(code) {
        let words = words_of(&item);
        for (banned, instead) in
            BANNED.iter().filter(|(banned, _)| words.iter().any(|w| w == banned))
        {
            findings.listed.push(format!("{name}:{line}: {item}: not \"{banned}\" but {instead}"));
        }
    }
}

fn judge_length(what: String, lines: usize, limits: LengthLimits, findings: &mut Findings) {
    let LengthLimits { listed, to_mend } = limits;
    if lines > to_mend {
        findings.to_mend.push(format!("{what} has {lines} lines of code, more than {to_mend}"));
    } else if lines > listed {
        findings.listed.push(format!("{what} has {lines} lines of code, more than {listed}"));
    }
}

/// The code before a test module at the file's end.
pub(super) fn without_tests(code: &str) -> &str {
    code.find("#[cfg(test)]\nmod ").map_or(code, |at| &code[..at])
}

fn lines_of_code(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// A function with a body: its name, first line and lines of code.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for at in find_word(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let name: String = rest.bytes().take_while(|b| is_word(*b)).map(char::from).collect();
        // `fn(u8) -> u8` is a type and has no name
        let Some(body) = body_of(&code[at..]).filter(|_| !name.is_empty()) else { continue };
        found.push(Function { name, line: line_of(code, at), lines: lines_of_code(body) });
    }
    found
}

/// From the signature to the brace that closes the body; none if `;` comes first.
fn body_of(code: &str) -> Option<&str> {
    let (mut braces, mut brackets) = (0usize, 0usize);
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' if braces == 0 => brackets += 1,
            b')' | b']' if braces == 0 => brackets = brackets.saturating_sub(1),
            b';' if braces == 0 && brackets == 0 => return None,
            b'{' => braces += 1,
            b'}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return Some(&code[..=at]);
                }
            }
            _ => {}
        }
    }
    None
}

/// Names that the file gives to items, with their lines.
fn item_names(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for keyword in ["struct", "enum", "trait", "fn", "mod", "type", "const", "static"] {
        for at in find_word(code, keyword) {
            let rest = code[at + keyword.len()..].trim_start();
            let name: String = rest.bytes().take_while(|b| is_word(*b)).map(char::from).collect();
            if !name.is_empty() {
                found.push((line_of(code, at), name));
            }
        }
    }
    found.sort();
    found
}

/// `PolicyTable` and `policy_table` are both `policy`, `table`.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous_lower = false;
    for character in name.chars() {
        if character == '_' || (character.is_uppercase() && previous_lower) {
            words.push(String::new());
        }
        if character != '_' {
            words.last_mut().expect("never empty").extend(character.to_lowercase());
        }
        previous_lower = character.is_lowercase();
    }
    words
}

/// Files under a `src` that no `mod` declaration of the same folder names.
fn dead_files(texts: &[(String, String)]) -> Vec<String> {
    let mut declared = BTreeSet::new();
    for (_, text) in texts {
        let code = blank(text);
        for at in find_word(&code, "mod") {
            let rest = code[at + 3..].trim_start();
            declared.insert(
                rest.bytes().take_while(|b| is_word(*b)).map(char::from).collect::<String>(),
            );
        }
        // `#[path = "x.rs"]` names a file by its own name
        for part in text.split("#[path = \"").skip(1) {
            let file = part.split('"').next().unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or_default();
            declared.insert(file.trim_end_matches(".rs").to_string());
        }
    }
    let mut dead = Vec::new();
    for (name, _) in texts {
        let Some((_, inner)) = name.split_once("/src/") else { continue };
        let stem = inner.trim_end_matches(".rs").trim_end_matches("/mod");
        let last = stem.rsplit('/').next().unwrap_or(stem);
        let is_root = matches!(inner, "lib.rs" | "main.rs") || inner.starts_with("bin/");
        if !is_root && !declared.contains(last) {
            dead.push(format!("{name}:1: dead file: no mod {last}"));
        }
    }
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Findings {
        let mut findings = Findings::default();
        judge_file("f.rs", text, &mut findings);
        findings
    }

    fn function_of(lines: usize) -> String {
        format!("//! Essay.\nfn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_listed_and_very_long_ones_are_to_mend() {
        assert_eq!(judged(&function_of(70)), Findings::default());
        assert_eq!(
            judged(&function_of(71)).listed,
            ["f.rs:2: fn long has 71 lines of code, more than 70"]
        );
        assert_eq!(
            judged(&function_of(121)).to_mend,
            ["f.rs:2: fn long has 121 lines of code, more than 120"]
        );
    }

    #[test]
    fn long_files_are_listed_and_comments_and_tests_do_not_count() {
        let code = "const A: u8 = 1;\n".repeat(500);
        let text =
            format!("//! Essay.\n{code}// a comment\n\n#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(judged(&text), Findings::default());
        let more = text.replacen("const", "const B: u8 = 2;\nconst", 1);
        assert_eq!(judged(&more).listed, ["f.rs:1: file has 501 lines of code, more than 500"]);
    }

    #[test]
    fn a_missing_essay_and_leftovers_are_to_mend() {
        assert_eq!(judged("fn f() {}\n").to_mend, ["f.rs:1: no //! essay at the top"]);
        assert_eq!(judged("//! E.\n\nfn f() { todo!() }\n").to_mend, ["f.rs:3: leftover todo!"]);
        assert_eq!(judged("//! E. dbg!(1)\nfn todo() {}\n"), Findings::default());
    }

    #[test]
    fn banned_words_are_listed_where_they_name_an_item() {
        let found = judged("//! E.\nstruct PolicyTable;\nfn overflow() { let policy = 1; }\n");
        assert_eq!(found.listed, ["f.rs:2: PolicyTable: not \"policy\" but rule"]);
    }

    #[test]
    fn functions_end_at_their_own_brace_and_declarations_have_no_body() {
        let code =
            "trait T { fn a(&self, x: [u8; 2]); }\nfn b() {\n  if c { d }\n}\ntype F = fn(u8);";
        assert_eq!(functions(code), [Function { name: "b".into(), line: 2, lines: 3 }]);
    }

    #[test]
    fn files_that_nobody_declares_are_dead() {
        let file = |name: &str, text: &str| (name.to_string(), text.to_string());
        let texts = [
            file("c/src/lib.rs", "mod a;\n#[path = \"x/odd.rs\"]\nmod even;"),
            file("c/src/a/mod.rs", "mod b;"),
            file("c/src/a/b.rs", ""),
            file("c/src/x/odd.rs", ""),
            file("c/src/left.rs", "// mod left;"),
            file("c/tests/any.rs", ""),
        ];
        assert_eq!(dead_files(&texts), ["c/src/left.rs:1: dead file: no mod left"]);
    }
}
