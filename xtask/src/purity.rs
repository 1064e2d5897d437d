//! Core stays pure: finds where a file under `core/*/src` names the world.
//!
//!   text ─► blanked code ─► words (`Instant`, `async`, `f64`, …)            ─┐
//!                    └────► `use` trees written out, `std::…` paths ─ prefixes ─┴─► violations
//!
//! core/clippy.toml forbids the same types where clippy runs; this check also
//! sees modules, keywords and macros, and needs nothing but the text. Benches
//! and tests outside `src` may look at a clock.

use crate::source::{blank, find_word, is_word, line_of};

/// Words that no core file may use as code, and why.
const WORDS: &[(&[&str], &str)] = &[
    (&["Instant", "SystemTime", "UNIX_EPOCH"], "a clock: the caller passes `now`"),
    (
        &["Mutex", "RwLock", "Condvar", "Barrier", "OnceLock", "LazyLock"],
        "a lock: locking belongs to io/",
    ),
    (
        &["AtomicBool", "AtomicU32", "AtomicU64", "AtomicUsize", "AtomicI64", "AtomicPtr"],
        "shared between threads",
    ),
    (&["thread_local", "static mut"], "a global"),
    (
        &[
            "File",
            "OpenOptions",
            "TcpStream",
            "TcpListener",
            "UdpSocket",
            "ToSocketAddrs",
            "UnixStream",
            "UnixListener",
        ],
        "files and sockets belong to io/",
    ),
    (
        &["HashMap", "HashSet", "RandomState", "thread_rng"],
        "random order: use BTreeMap, an indexed Vec or a Prng",
    ),
    (&["async", "await"], "the core never waits"),
    (&["f32", "f64"], "floats belong to reports"),
    (&["println", "eprintln", "print", "eprint"], "only trace! speaks from the core"),
    (&["unsafe"], "core crates are safe"),
];

/// Paths that no core file may reach into, and why.
const PREFIXES: &[(&str, &str)] = &[
    ("std::thread", "threads belong to io/"),
    ("std::fs", "files belong to io/"),
    ("std::os", "the system belongs to io/"),
    ("std::io", "input and output belong to io/"),
    ("std::env", "the caller passes what it knows"),
    ("std::process", "processes belong to io/"),
    ("std::sync::atomic", "shared between threads"),
    ("std::sync::mpsc", "channels belong to io/"),
    ("std::future", "the core never waits"),
    ("std::task", "the core never waits"),
    ("std::random", "random: a Prng is passed in by seed"),
    ("rand", "random: a Prng is passed in by seed"),
    ("tokio", "the core never waits"),
    ("libc", "the system belongs to io/"),
    ("rustix", "the system belongs to io/"),
    ("nix", "the system belongs to io/"),
];

/// One line per violation in the file called `name`: `name:line: what: why`.
/// With `floats`, floating point is let through (the simulator's report).
pub(crate) fn violations(name: &str, text: &str, floats: bool) -> Vec<String> {
    let code = blank(text);
    let mut found: Vec<(usize, String)> = Vec::new();
    for (words, why) in WORDS {
        for word in *words {
            if floats && word.starts_with('f') {
                continue;
            }
            for at in find_word(&code, word).filter(|&at| !is_field_or_method(&code, at, word)) {
                found.push((line_of(&code, at), format!("{word}: {why}")));
            }
        }
    }
    for (at, path) in used_paths(&code).into_iter().chain(inline_paths(&code)) {
        if let Some((prefix, why)) = PREFIXES.iter().find(|(prefix, _)| begins_with(&path, prefix))
        {
            found.push((line_of(&code, at), format!("{prefix}: {why}")));
        }
    }
    found.sort();
    found.dedup();
    found.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")).collect()
}

/// A name of one's own that happens to read like a macro's (`self.print`, `fn print(`).
fn is_field_or_method(code: &str, at: usize, word: &str) -> bool {
    let is_macro = matches!(word, "println" | "eprintln" | "print" | "eprint" | "thread_local");
    is_macro && !code[at + word.len()..].starts_with('!')
}

fn begins_with(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path that a `use` declaration names, its groups written out.
fn used_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for at in find_word(code, "use") {
        let body = &code[at + 3..];
        let Some(end) = body.find(';') else { continue };
        let tree: String = body[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let mut names = Vec::new();
        write_out("", tree.trim(), &mut names);
        paths.extend(names.into_iter().map(|name| (at, name)));
    }
    paths
}

/// `a::{b, c::{d}}` becomes `a::b`, `a::c::d`; `as x` is dropped.
fn write_out(prefix: &str, tree: &str, names: &mut Vec<String>) {
    let tree = tree.trim().trim_start_matches("::");
    let Some(open) = tree.find('{') else {
        let name = tree.split(" as ").next().unwrap_or(tree).trim();
        let name = name.trim_end_matches("::self").trim_end_matches("::*");
        let joined = if name == "self" {
            prefix.trim_end_matches("::").to_string()
        } else {
            format!("{prefix}{name}")
        };
        return names.push(joined.replace(' ', ""));
    };
    let head = format!("{prefix}{}", tree[..open].trim());
    let inner = &tree[open + 1..];
    let inner = &inner[..matching(inner)];
    for part in split_at_top(inner) {
        write_out(&head, part, names);
    }
}

/// Length of `text` up to the brace that closes a group opened just before it.
fn matching(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

fn split_at_top(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// Paths written where they are used, such as `std::thread::sleep(…)`.
fn inline_paths(code: &str) -> Vec<(usize, String)> {
    let bytes = code.as_bytes();
    let mut paths = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let starts = is_word(bytes[at])
            && (at == 0
                || (!is_word(bytes[at - 1]) && bytes[at - 1] != b':' && bytes[at - 1] != b'.'));
        if !starts {
            at += 1;
            continue;
        }
        let length = bytes[at..].iter().take_while(|b| is_word(**b) || **b == b':').count();
        let path = code[at..at + length].trim_end_matches(':');
        if path.contains("::") {
            paths.push((at, path.to_string()));
        }
        at += length;
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        violations("f.rs", text, false)
    }

    #[test]
    fn a_clock_is_found_wherever_it_hides() {
        assert_eq!(
            found("use std::time::Instant;"),
            ["f.rs:1: Instant: a clock: the caller passes `now`"]
        );
        assert_eq!(found("\n\nfn f() { std::time::SystemTime::now(); }").len(), 1);
        assert_eq!(found("use std::time::{Duration, Instant as Clock};").len(), 1);
    }

    #[test]
    fn threads_locks_files_and_sockets_are_found() {
        assert_eq!(found("use std::thread;"), ["f.rs:1: std::thread: threads belong to io/"]);
        assert_eq!(found("fn f() { std::thread::sleep(d); }").len(), 1);
        assert_eq!(
            found("use std::sync::{Arc, Mutex};"),
            ["f.rs:1: Mutex: a lock: locking belongs to io/"]
        );
        assert_eq!(
            found("use std::{collections::BTreeMap, fs};"),
            ["f.rs:1: std::fs: files belong to io/"]
        );
        assert_eq!(found("use std::{\n    fmt,\n    os::{unix::net::UnixStream},\n};").len(), 2);
        assert_eq!(found("use std::net::{self, TcpStream};").len(), 1);
        assert_eq!(found("use std::net::{IpAddr, Ipv4Addr};"), [""; 0]);
        assert_eq!(found("use std::sync::atomic::{Ordering};").len(), 1);
    }

    #[test]
    fn randomness_floats_and_waiting_are_found() {
        assert_eq!(found("let m: HashMap<u8, u8>;").len(), 1);
        assert_eq!(
            found("let x = rand::random();"),
            ["f.rs:1: rand: random: a Prng is passed in by seed"]
        );
        assert_eq!(found("let x = 1 as f64;"), ["f.rs:1: f64: floats belong to reports"]);
        assert_eq!(found("async fn f() { g().await }").len(), 2);
        assert_eq!(
            found("println!(\"x\");"),
            ["f.rs:1: println: only trace! speaks from the core"]
        );
    }

    #[test]
    fn words_in_comments_strings_and_other_names_are_left_alone() {
        assert_eq!(found("//! No Instant, no Mutex, no std::thread.\n"), [""; 0]);
        assert_eq!(found("let s = \"std::fs HashMap\"; // f64"), [""; 0]);
        assert_eq!(
            found("use std::sync::Arc; use std::fmt; struct Operand; fn print(&self) {}"),
            [""; 0]
        );
        assert_eq!(found("use std::time::Duration; use crate::rand_like;"), [""; 0]);
    }

    #[test]
    fn the_report_may_use_floats_and_nothing_else() {
        let text = "let x: f64; let y: Mutex<u8>;";
        assert_eq!(
            violations("f.rs", text, true),
            ["f.rs:1: Mutex: a lock: locking belongs to io/"]
        );
    }
}
