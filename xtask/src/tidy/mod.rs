//! Tidiness: what a reader would stumble over, by file and line.
//!
//!   Rust files ─► code: long files and functions, leftovers, dead files, banned words
//!                   ├─ listed: to look at
//!                   └─ to mend: the chore fails

mod code;

use std::path::Path;

use anyhow::Result;

/// What the chore found: things to look at, and things to mend.
#[derive(Debug, Default, PartialEq)]
struct Findings {
    listed: Vec<String>,
    to_mend: Vec<String>,
}

/// Judges the project; true if nothing is to mend.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut findings = Findings::default();
    code::check(root, &mut findings)?;
    for line in &findings.listed {
        println!("listed: {line}");
    }
    Ok(crate::report("tidy", &findings.to_mend))
}
