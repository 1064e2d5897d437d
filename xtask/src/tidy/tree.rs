//! The files of the project as git lists them, and their texts.
//!
//!   git ls-files ─► tracked ───────► what may be there at all
//!           └─ and untracked ─► files ─► what a name may mean; texts of those that people read

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Kinds of file whose text nobody writes or reads.
const NOT_READ: &[&str] =
    &["json", "svg", "png", "lock", "expected", "proptest-regressions", "LICENSE"];

/// The files of the project, by path from its root.
#[derive(Debug, Default)]
pub(super) struct TidyTree {
    /// The files that git tracks.
    pub(super) tracked: Vec<String>,
    /// What is there: tracked, or new and not ignored.
    pub(super) files: BTreeSet<String>,
    /// The folders that contain `files`.
    pub(super) folders: BTreeSet<String>,
    /// Texts that people write and read.
    pub(super) texts: BTreeMap<String, String>,
}

impl TidyTree {
    /// The tree below `root`; none where git does not know it (a copy without `.git`).
    pub(super) fn read(root: &Path) -> Result<Option<TidyTree>> {
        let Some(tracked) = git_files(root, &["--cached"])? else { return Ok(None) };
        let mut tree = TidyTree { tracked, ..TidyTree::default() };
        let new = git_files(root, &["--others", "--exclude-standard"])?.unwrap_or_default();
        for file in tree.tracked.clone().into_iter().chain(new) {
            let path = root.join(&file);
            if !path.is_file() {
                continue;
            }
            let kind = file.rsplit(['.', '/']).next().unwrap_or_default();
            if !NOT_READ.contains(&kind) {
                let bytes =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let text = String::from_utf8_lossy(&bytes).into_owned();
                tree.texts.insert(file.clone(), text);
            }
            tree.insert(file);
        }
        Ok(Some(tree))
    }

    fn insert(&mut self, file: String) {
        let mut folder = file.as_str();
        while let Some((above, _)) = folder.rsplit_once('/') {
            self.folders.insert(above.to_string());
            folder = above;
        }
        self.files.insert(file);
    }

    /// A tree of these files and texts.
    #[cfg(test)]
    pub(super) fn of(texts: &[(&str, &str)]) -> TidyTree {
        let mut tree = TidyTree::default();
        for (file, text) in texts {
            tree.tracked.push((*file).to_string());
            tree.insert((*file).to_string());
            tree.texts.insert((*file).to_string(), (*text).to_string());
        }
        tree
    }

    /// Whether a file or folder has that path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.files.contains(path) || self.folders.contains(path)
    }
}

/// What `git ls-files` lists; none where there is no repository or no git.
fn git_files(root: &Path, which: &[&str]) -> Result<Option<Vec<String>>> {
    let output =
        Command::new("git").arg("ls-files").arg("-z").args(which).current_dir(root).output();
    let Ok(output) = output else { return Ok(None) };
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    Ok(Some(text.split_terminator('\0').map(String::from).collect()))
}

/// `path` as seen from the folder `from`, without `.` and `..`; none if it leaves the tree.
pub(super) fn join(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The folder of a file; empty for one at the root.
pub(super) fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_their_folder() {
        assert_eq!(join("docs/algorithms", "../RULES.md").as_deref(), Some("docs/RULES.md"));
        assert_eq!(join("", "./a//b").as_deref(), Some("a/b"));
        assert_eq!(join("docs", "../../out"), None);
        assert_eq!(folder_of("a/b/c"), "a/b");
        assert_eq!(folder_of("a"), "");
    }

    #[test]
    fn folders_of_files_are_there() {
        let tree = TidyTree::of(&[("a/b/c.rs", "")]);
        assert!(tree.has("a") && tree.has("a/b") && tree.has("a/b/c.rs") && !tree.has("c.rs"));
    }

    #[test]
    fn a_folder_that_git_does_not_know_has_no_tree() {
        assert!(TidyTree::read(Path::new("/proc")).expect("no error").is_none());
    }
}
