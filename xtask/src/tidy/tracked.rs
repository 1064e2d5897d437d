//! Tracked files: only in known folders, and none of the kinds that runs leave.
//!
//!   git's list ─┬─ outside the known folders and top-level files ─► to mend
//!               └─ a database, log, socket, profile, copy, core ───► to mend
//!
//! A folder or top-level file that is new on purpose gets its line here, in the same commit.

use super::tree::TidyTree;

/// Folders at the root that are the project's.
const FOLDERS: &[&str] = &[
    ".cargo",
    ".ci",
    "bench",
    "core",
    "dashboard",
    "docs",
    "fuzz",
    "io",
    "native",
    "scenarios",
    "testkit",
    "tests",
    "xtask",
];

/// Files at the root that are the project's.
const TOP_FILES: &[&str] = &[
    ".gitignore",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "clippy.toml",
    "rustfmt.toml",
];

/// Ends of names of what runs leave behind.
const LEAVINGS: &[(&str, &str)] = &[
    (".db", "a database"),
    (".db-wal", "a database"),
    (".db-shm", "a database"),
    (".db-journal", "a database"),
    (".sqlite", "a database"),
    (".log", "a log"),
    (".sock", "a socket"),
    (".pid", "a process's number"),
    (".lock.tmp", "a lock"),
    (".tmp", "a temporary file"),
    (".orig", "a merge's leaving"),
    (".rej", "a merge's leaving"),
    (".bak", "a copy"),
    (".swp", "an editor's leaving"),
    ("~", "an editor's leaving"),
    (".profraw", "a profile"),
    (".profdata", "a profile"),
    (".gcda", "a profile"),
    (".slt", "a trace"),
];

/// Tracked files that should not be, a line each.
pub(super) fn check(tree: &TidyTree) -> Vec<String> {
    tree.tracked.iter().filter_map(|file| judge(file)).collect()
}

fn judge(file: &str) -> Option<String> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let leaving = LEAVINGS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, what)| *what);
    let is_core = name == "core" || name.strip_prefix("core.").is_some_and(is_number);
    if let Some(what) = leaving.or(is_core.then_some("a core dump")) {
        return Some(format!("{file}: {what} that a run left: git rm it"));
    }
    let (known, what) = match file.split_once('/') {
        Some((folder, _)) => (FOLDERS.contains(&folder), "folder"),
        None => (TOP_FILES.contains(&file), "top-level file"),
    };
    (!known).then(|| format!("{file}: no known {what}: xtask/src/tidy/tracked.rs lists them"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(files: &[&str]) -> Vec<String> {
        let texts: Vec<_> = files.iter().map(|file| (*file, "")).collect();
        check(&TidyTree::of(&texts))
    }

    #[test]
    fn files_of_known_folders_are_let_through() {
        let files =
            ["README.md", "core/model/src/lib.rs", "testkit/src/lib.rs", "bench/src/main.rs"];
        assert_eq!(judged(&files), [""; 0]);
    }

    #[test]
    fn folders_and_files_that_nobody_listed_are_refused() {
        assert_eq!(
            judged(&["sluice-qos-13235/half-life.json", "notes.txt"]),
            [
                "sluice-qos-13235/half-life.json: no known folder: xtask/src/tidy/tracked.rs lists them",
                "notes.txt: no known top-level file: xtask/src/tidy/tracked.rs lists them",
            ]
        );
    }

    #[test]
    fn what_runs_leave_is_refused_wherever_it_is() {
        let left = [
            "bench/used.db",
            "bench/used.db-wal",
            "bench/used.db-shm",
            "io/a.log",
            "io/a.sock",
            "tests/a.pid",
            "docs/a.md.orig",
            "docs/a.md.rej",
            "fuzz/default_1.profraw",
            "core/core",
            "io/core.4711",
            "docs/a.md~",
            "docs/b.bak",
            "docs/c.tmp",
        ];
        assert_eq!(judged(&left).len(), left.len(), "{:?}", judged(&left));
        assert_eq!(judged(&["io/a.log"]), ["io/a.log: a log that a run left: git rm it"]);
        assert_eq!(judged(&["core/model/src/core.rs", "io/api/src/log.rs"]), [""; 0]);
    }
}
