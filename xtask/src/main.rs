//! The project's chores behind one door: `cargo xtask ci | layers | tidy | docs`.
//!
//!   make test ─► xtask ci ─► one suite after another ─► table, `N passed, N failed`
//!                   │
//!                   └─► the other chores are suites of it, and commands of their own
//!
//! Every chore prints what it found and ends with status 0 or 1. None of them
//! changes a file but `docs`, which writes docs/CONFIG.md, docs/METRICS.md and docs/ACCESS.md.

mod ci;
mod docs;
mod layers;
mod purity;
mod source;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask CHORE
  ci [SUITE…]      run every suite of CI, or only those named; `ci --list` names them
  layers           crates depend on lower layers only; core/ names nothing of the world
  tidy             long files and functions, dead files, leftovers, words the glossary bans;
                   what runs left in git; names of files, links and tests that do not exist
  docs             write docs/CONFIG.md, METRICS.md and ACCESS.md from the code
  docs --check [FOLDER]   only say whether they are up to date, by the binaries in FOLDER if it is given";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one chore; false if it found something to mend.
fn run(words: &[&str]) -> Result<bool> {
    let root = workspace_root()?;
    match words {
        ["ci", suites @ ..] => ci::run(&root, suites),
        ["layers"] => Ok(report("layers", &layers::check(&root)?)),
        ["tidy"] => tidy::run(&root),
        ["docs"] => docs::write(&root),
        ["docs", "--check"] => docs::check(&root, None),
        ["docs", "--check", folder] => docs::check(&root, Some(folder)),
        _ => bail!("{USAGE}"),
    }
}

/// Prints each violation and a closing line; true if there were none.
fn report(chore: &str, violations: &[String]) -> bool {
    for violation in violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => println!("{chore}: nothing to mend"),
        count => println!("{chore}: {count} to mend"),
    }
    violations.is_empty()
}

/// A command without what `cargo xtask` has set for this program about its own package. Build
/// scripts look at it, and cargo builds what they belong to once more where it has another value
/// than when a developer types the command.
fn as_by_hand(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The folder of the workspace's Cargo.toml, one above this crate's.
fn workspace_root() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .context("xtask has no folder above it")
}
