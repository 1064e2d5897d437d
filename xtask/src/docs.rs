//! Documents that are made from the code: written, or checked to be up to date.
//!
//!   `sluice docs config`         ─► docs/CONFIG.md
//!   `sluice docs metrics`        ─► docs/METRICS.md
//!   `sluice docs access`         ─► docs/ACCESS.md
//!   `sluice-bench figures print` ─► docs/FIGURES.md
//!   `sluice-bench figures fill`  ─► the tables of figures in README.md
//!
//! The binaries know their own keys, names, defaults and reasons, and what was measured; this
//! chore only carries the text, so that the documents can't drift from the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Each document with the program and the words that print it.
const DOCUMENTS: &[(&str, &str, &[&str])] = &[
    ("docs/CONFIG.md", "sluice", &["docs", "config"]),
    ("docs/METRICS.md", "sluice", &["docs", "metrics"]),
    ("docs/ACCESS.md", "sluice", &["docs", "access"]),
    ("docs/FIGURES.md", "sluice-bench", &["figures", "print"]),
    ("README.md", "sluice-bench", &["figures", "fill", "README.md"]),
];

/// Writes every document again; true unless a command failed.
pub(crate) fn write(root: &Path) -> Result<bool> {
    let folder = build(root)?;
    for (path, program, words) in DOCUMENTS {
        let text = printed(root, &folder.join(program), words)?;
        if fs::read_to_string(root.join(path)).ok().as_ref() == Some(&text) {
            println!("{path}: up to date");
            continue;
        }
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("{path}: written");
    }
    Ok(true)
}

/// Says which documents are out of date by the binaries in the folder given, or by ones built
/// here; true if none is.
pub(crate) fn check(root: &Path, folder: Option<&str>) -> Result<bool> {
    let folder = folder.map_or_else(|| build(root), |path| Ok(root.join(path)))?;
    let mut stale = Vec::new();
    for (path, program, words) in DOCUMENTS {
        let written = fs::read_to_string(root.join(path)).unwrap_or_default();
        let made = printed(root, &folder.join(program), words)?;
        if let Some(line) = first_difference(&written, &made) {
            stale.push(format!("{path}:{line}: out of date: run `cargo xtask docs`"));
        }
    }
    Ok(crate::report("docs", &stale) && has_form(root, &folder.join("sluice-bench"))?)
}

/// Whether the stored figures have their form: rows that are known and measured, misses with a cause.
fn has_form(root: &Path, bench: &Path) -> Result<bool> {
    let status =
        Command::new(bench).args(["figures", "check", "--complete"]).current_dir(root).status();
    Ok(status.with_context(|| format!("cannot run {}", bench.display()))?.success())
}

/// The first line (from 1) at which two texts differ.
fn first_difference(written: &str, made: &str) -> Option<usize> {
    if written == made {
        return None;
    }
    let same = written.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

/// What a program prints in the project's root.
fn printed(root: &Path, program: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(words)
        .current_dir(root)
        .output()
        .with_context(|| format!("cannot run {} {}", program.display(), words.join(" ")))?;
    if !output.status.success() {
        bail!(
            "{} {} failed: {}",
            program.display(),
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds the programs from this workspace and says in which folder they are.
fn build(root: &Path) -> Result<PathBuf> {
    let status = crate::as_by_hand(Command::new("cargo"))
        .args(["build", "--quiet", "--package", "sluice", "--package", "sluice-bench"])
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("a program does not build: cargo build says why");
    }
    Ok(crate::ci::target_folder(root).join("debug"))
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
