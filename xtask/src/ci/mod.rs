//! Continuous integration: every suite in turn.
//!
//!   suites.rs: what there is ─► run.rs: one suite, its output passed on, counted, timed
//!                                 │
//!                                 └─► table.rs: suite, tests, seconds ─► `N passed, N failed, N skipped`
//!   sizes.rs: how many cases and seeds the tests by chance get, the same in every run
//!   parts.rs: the test programs that take long, by what cargo says
//!   failures.rs: what failed tests printed, once more under the table
//!
//! A suite fails if a command of it fails, if it counts a failed test, or if it
//! hangs, and then the suites after it still run. What is skipped is
//! said aloud with its reason, at its place and once more under the table.

mod failures;
mod parts;
mod run;
mod sizes;
mod suites;
mod table;
mod tally;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A run ends before the 90 minutes after which it would be cut off as a whole, with no table.
const ALL: Duration = Duration::from_secs(85 * 60);
/// A suite that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// Runs the named suites, or all; true if none failed. `--list` only names them.
pub(crate) fn run(root: &Path, names: &[&str]) -> Result<bool> {
    let all = suites::all(&target_folder(root));
    if names == ["--list"] {
        for suite in &all {
            println!("{:<12} {:>4} s  {}", suite.name, suite.usual_s, suite.what);
        }
        return Ok(true);
    }
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|suite| suite.name != **name)) {
        bail!("no suite \"{unknown}\"; `cargo xtask ci --list` names them");
    }
    let chosen: Vec<_> =
        all.iter().filter(|s| names.is_empty() || names.contains(&s.name)).collect();
    let start = Instant::now();
    let limits = run::RunLimits { end: start + ALL, silence: SILENCE };
    let mut outcomes = Vec::new();
    for suite in chosen {
        outcomes.push(run::suite(root, suite, limits)?);
    }
    table::print(&outcomes, start.elapsed());
    Ok(outcomes.iter().all(|outcome| outcome.passed()))
}

/// Where cargo builds: CARGO_TARGET_DIR, or `target` at the root.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}
