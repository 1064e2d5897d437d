//! Documents that are made from the code: written, or checked to be up to date.
//!
//!   `sluice docs config`  ─► docs/CONFIG.md
//!   `sluice docs metrics` ─► docs/METRICS.md
//!   `sluice docs access`  ─► docs/ACCESS.md
//!
//! The binary knows its own keys, names, defaults and reasons; this chore only carries the
//! text, so that the documents can't drift from the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Each document with the command of `sluice` that prints it.
const DOCUMENTS: &[(&str, &[&str])] = &[
    ("docs/CONFIG.md", &["docs", "config"]),
    ("docs/METRICS.md", &["docs", "metrics"]),
    ("docs/ACCESS.md", &["docs", "access"]),
];

/// Writes every document again; true unless a command failed.
pub(crate) fn write(root: &Path) -> Result<bool> {
    let sluice = build(root)?;
    for (path, words) in DOCUMENTS {
        let text = printed(&sluice, words)?;
        if fs::read_to_string(root.join(path)).ok().as_ref() == Some(&text) {
            println!("{path}: up to date");
            continue;
        }
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("{path}: written");
    }
    Ok(true)
}

/// Says which documents are out of date by the binary given, or by one built here; true if none is.
pub(crate) fn check(root: &Path, sluice: Option<&str>) -> Result<bool> {
    let sluice = sluice.map_or_else(|| build(root), |path| Ok(root.join(path)))?;
    let mut stale = Vec::new();
    for (path, words) in DOCUMENTS {
        let written = fs::read_to_string(root.join(path)).unwrap_or_default();
        if let Some(line) = first_difference(&written, &printed(&sluice, words)?) {
            stale.push(format!("{path}:{line}: out of date: run `cargo xtask docs`"));
        }
    }
    Ok(crate::report("docs", &stale))
}

/// The first line (from 1) at which two texts differ.
fn first_difference(written: &str, made: &str) -> Option<usize> {
    if written == made {
        return None;
    }
    let same = written.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

/// What `sluice WORDS…` prints.
fn printed(sluice: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(sluice)
        .args(words)
        .output()
        .with_context(|| format!("cannot run {} {}", sluice.display(), words.join(" ")))?;
    if !output.status.success() {
        bail!(
            "sluice {} failed: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds `sluice` from this workspace and says where it is.
fn build(root: &Path) -> Result<PathBuf> {
    let status = crate::as_by_hand(Command::new("cargo"))
        .args(["build", "--quiet", "--package", "sluice"])
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("sluice does not build: cargo build --package sluice says why");
    }
    Ok(crate::ci::target_folder(root).join("debug/sluice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
    }
}
