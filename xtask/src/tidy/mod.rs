//! Tidiness: what a reader would stumble over, by file and line.
//!
//!   Rust files ┬► code: long files and functions, leftovers, dead files, banned words
//!              ├► types: names that more than one type has
//!              ├► short_docs: doc comments too short to say anything
//!              └► bundled: parameters that are tuples of arguments
//!   git's list ─┬► tracked: what runs left behind, and folders that nobody knows
//!               ├► names: names of files that do not exist
//!               ├► links: Markdown links whose file or heading does not exist
//!               ├► cited: tests that a document names and nobody wrote
//!               └► words: refused words in finished texts
//!
//! A finding is listed, to look at, or to mend: then the chore fails.

mod bundled;
mod cited;
mod code;
mod links;
mod markdown;
mod names;
mod short_docs;
mod tracked;
mod tree;
mod types;
mod words;

use std::path::Path;

use anyhow::Result;

use tree::TidyTree;

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
    findings.to_mend.extend(types::check(root)?);
    findings.to_mend.extend(short_docs::check(root)?);
    findings.to_mend.extend(bundled::check(root)?);
    match TidyTree::read(root)? {
        Some(tree) => {
            for check in [tracked::check, names::check, links::check, cited::check, words::check] {
                findings.to_mend.extend(check(&tree));
            }
        }
        None => println!(
            "skipped: tidy: what is tracked, names of files, links, cited tests: git does not know this folder"
        ),
    }
    for line in &findings.listed {
        println!("listed: {line}");
    }
    Ok(crate::report("tidy", &findings.to_mend))
}
