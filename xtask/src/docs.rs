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

/// Writes every document anew; true unless a command failed.
pub(crate) fn write(root: &Path) -> Result<bool> {
    for (path, words) in DOCUMENTS {
        let text = printed(root, words)?;
        if fs::read_to_string(root.join(path)).ok().as_ref() == Some(&text) {
            println!("{path}: up to date");
            continue;
        }
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("{path}: written");
    }
    Ok(true)
}

/// Says which documents are out of date; true if none is.
pub(crate) fn check(root: &Path) -> Result<bool> {
    let mut stale = Vec::new();
    for (path, words) in DOCUMENTS {
        let written = fs::read_to_string(root.join(path)).unwrap_or_default();
        if let Some(line) = first_difference(&written, &printed(root, words)?) {
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

/// What `sluice WORDS…` prints, from a build of this workspace.
fn printed(root: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(sluice(root)?)
        .args(words)
        .output()
        .with_context(|| format!("cannot run sluice {}", words.join(" ")))?;
    if !output.status.success() {
        bail!(
            "sluice {} failed: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds the release binary as CI does, which has it already, and says where it is: built alone
/// it would have other features, and all of it would be built once more.
fn sluice(root: &Path) -> Result<PathBuf> {
    let status = crate::as_by_hand(Command::new(root.join(".ci/build.sh")))
        .args(["sluice", "sluice-bench"])
        .current_dir(root)
        .stderr(std::process::Stdio::null())
        .status()
        .context("cannot run .ci/build.sh")?;
    if !status.success() {
        bail!("sluice does not build: .ci/build.sh sluice sluice-bench says why");
    }
    Ok(crate::ci::target_folder(root).join("release/sluice"))
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
