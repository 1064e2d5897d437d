//! Which sources a figure depends on: the crates of the programs that run in it, and the modules of
//! the bench that measure it.
//!
//! ```text
//!   FigureProgram ─┬─ its crate ─ Cargo.toml ─► crates that it links, and those that they do
//!                  └─ its command in io/sluice ─┐
//!   sources of the group ───────────────────────┴─ `mod x;`, `use super::x` ─► modules of its crate
//! ```
//!
//! A change anywhere else, and so in the tests of a crate, leaves the figure as it is. What stores and
//! shows figures does not measure them, and `main.rs` is one more file: the modules that it names are
//! not all in a figure.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;

/// A program of the product, or a part of it, that runs while a figure is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FigureProgram {
    /// The command `sluice proxy`.
    Proxy,
    /// The command `sluice mount`.
    Mount,
    /// The command `sluice controller`.
    Controller,
    /// The command `sluice calibrate`.
    Calibrate,
    /// The command `sluice report`.
    Report,
    /// The simulator and the scheduler, in the process of the bench.
    Simulator,
}

impl FigureProgram {
    /// The folder of its crate, and the file of its command.
    fn begins_in(self) -> (&'static str, Option<&'static str>) {
        match self {
            FigureProgram::Proxy => ("io/proxy", Some("io/sluice/src/proxy.rs")),
            FigureProgram::Mount => ("io/mount", Some("io/sluice/src/mount.rs")),
            FigureProgram::Controller => ("io/controller", Some("io/sluice/src/controller.rs")),
            FigureProgram::Calibrate => ("io/proxy", Some("io/sluice/src/calibrate.rs")),
            FigureProgram::Report => ("io/http", Some("io/sluice/src/report.rs")),
            FigureProgram::Simulator => ("core/sim", None),
        }
    }
}

/// The files and folders of the product that run in these programs, from the repository's root.
pub(crate) fn of_programs(
    root: &Path,
    programs: &[FigureProgram],
) -> anyhow::Result<BTreeSet<String>> {
    let mut found: BTreeSet<String> = BUILD.iter().map(|path| (*path).into()).collect();
    for (folder, command) in programs.iter().map(|program| program.begins_in()) {
        add_crates(root, folder, &mut found)?;
        if let Some(command) = command {
            found.insert("io/sluice/Cargo.toml".into());
            add_modules(root, "io/sluice/src/main.rs", &mut found)?;
            add_modules(root, "io/sluice/src/server_args.rs", &mut found)?;
            add_modules(root, command, &mut found)?;
        }
    }
    Ok(found)
}

/// These files and folders, and all modules of the bench that they use.
pub(crate) fn of_bench(root: &Path, sources: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for source in sources {
        let path = root.join(source);
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).with_context(|| format!("no {source}"))?;
            for entry in entries {
                let name = entry?.file_name();
                add_modules(root, &format!("{source}/{}", name.display()), &mut found)?;
            }
        } else {
            add_modules(root, source, &mut found)?;
        }
    }
    Ok(found)
}

/// Adds what a crate is built from, and the crates of this repository that it links.
fn add_crates(root: &Path, folder: &str, found: &mut BTreeSet<String>) -> anyhow::Result<()> {
    if !found.insert(format!("{folder}/Cargo.toml")) {
        return Ok(());
    }
    for entry in std::fs::read_dir(root.join(folder)).with_context(|| format!("no {folder}"))? {
        let name = entry?.file_name();
        if !NOT_BUILT.iter().any(|not| name == *not) {
            found.insert(format!("{folder}/{}", name.display()));
        }
    }
    let workspace = read_toml(root, "Cargo.toml")?;
    let all = &workspace["workspace"]["dependencies"];
    let own = read_toml(root, &format!("{folder}/Cargo.toml"))?;
    for section in ["dependencies", "build-dependencies"] {
        for name in own.get(section).and_then(toml::Value::as_table).into_iter().flatten() {
            let path = all.get(name.0).and_then(|known| known.get("path")?.as_str());
            if let Some(path) = path {
                add_crates(root, path, found)?;
            }
        }
    }
    Ok(())
}

fn read_toml(root: &Path, path: &str) -> anyhow::Result<toml::Value> {
    let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("no {path}"))?;
    Ok(toml::Value::Table(text.parse().with_context(|| path.to_owned())?))
}

/// Adds a file and all modules of its crate that it names.
fn add_modules(root: &Path, file: &str, found: &mut BTreeSet<String>) -> anyhow::Result<()> {
    if !found.insert(file.into()) || !file.ends_with(".rs") {
        return Ok(());
    }
    let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("no {file}"))?;
    let Some((source, within)) = file.split_once("/src/") else { return Ok(()) };
    let mut here: Vec<&str> = within.trim_end_matches(".rs").split('/').collect();
    let is_root = here == ["main"];
    if is_root || here.last() == Some(&"mod") {
        here.pop();
    }
    // The longest beginning of a path that is a file: what follows is an item in it.
    let file_of = |path: &[String]| {
        (1..=path.len()).rev().find_map(|len| {
            let stem = format!("{source}/src/{}", path[..len].join("/"));
            let files = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
            files.into_iter().find(|file| root.join(file).is_file())
        })
    };
    for path in named_modules(&text, &here) {
        // What the root of the crate declares is not all in use.
        let is_left = path[0] == "figures" || (is_root && path.len() == 1);
        match file_of(&path).filter(|_| !is_left) {
            Some(file) => add_modules(root, &file, found)?,
            None => continue,
        }
    }
    Ok(())
}

/// Paths from the crate's root of all that a module declares or names through `super` or `crate`.
fn named_modules(text: &str, here: &[&str]) -> BTreeSet<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut found = BTreeSet::new();
    let owned = |path: &[&str]| path.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
    for line in code.lines() {
        let declared = line.trim_start().trim_end().strip_suffix(';');
        let name = declared.and_then(|words| words.rsplit_once("mod ")).map(|(_, name)| name);
        if let Some(name) = name.filter(|name| name.chars().all(is_of_a_name)) {
            found.insert([owned(here), vec![name.to_owned()]].concat());
        }
    }
    let mut rest = code.as_str();
    while let Some(at) = [rest.find("super::"), rest.find("crate::")].into_iter().flatten().min() {
        let is_whole = !rest[..at].ends_with(is_of_a_name);
        rest = &rest[at..];
        let mut base = if rest.starts_with("crate::") { Vec::new() } else { owned(here) };
        rest = rest.strip_prefix("crate::").unwrap_or(rest);
        while let Some(after) = rest.strip_prefix("super::") {
            base.pop();
            rest = after;
        }
        if is_whole {
            let mut tree = rest;
            take_tree(&mut tree, &base, &mut found);
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

/// Reads what follows `a::b::` in a path: a name, more of the path, or several of them in braces.
fn take_tree(text: &mut &str, base: &[String], found: &mut BTreeSet<Vec<String>>) {
    *text = text.trim_start();
    if let Some(inside) = text.strip_prefix('{') {
        *text = inside;
        loop {
            take_tree(text, base, found);
            *text = text.trim_start();
            match text.chars().next() {
                Some(',') => *text = &text[1..],
                Some('}') => break *text = &text[1..],
                _ => break,
            }
        }
        return;
    }
    let len = text.find(|c| !is_of_a_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(len);
    *text = rest;
    let mut path = base.to_vec();
    if !["", "self"].contains(&name) {
        path.push(name.into());
    }
    match rest.strip_prefix("::") {
        Some(more) => {
            *text = more;
            take_tree(text, &path, found);
        }
        None => {
            found.insert(path);
        }
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What every program is built from.
const BUILD: &[&str] = &["Cargo.lock", "Cargo.toml"];

/// What is in a crate's folder and in no program.
const NOT_BUILT: &[&str] = &["tests", "benches", "examples"];

#[cfg(test)]
mod tests {
    use super::super::groups::GROUPS;
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn a_program_has_the_crates_that_it_links_and_no_others() {
        let of = |program| of_programs(root(), &[program]).unwrap();
        let proxy = of(FigureProgram::Proxy);
        let has = |paths: &[&str]| paths.iter().all(|path| proxy.contains(*path));
        assert!(has(&[
            "Cargo.lock",
            "core/sched/src",
            "core/ninep/src",
            "core/model/src",
            "core/rules/src",
            "io/api/src"
        ]));
        assert!(has(&["core/sched/Cargo.toml"]) && !has(&["io/proxy/tests"]));
        assert!(has(&["io/sluice/src/main.rs", "io/sluice/src/log.rs", "io/sluice/src/proxy.rs"]));
        let others = ["core/sim", "io/controller", "io/mount", "io/fuse", "io/sluice/src/sim.rs"];
        let has_other = |path: &String| others.iter().any(|other| path.starts_with(other));
        assert!(!proxy.iter().any(has_other), "{proxy:?}");
        assert!(of(FigureProgram::Mount).contains("io/fuse/src"));
        assert!(of(FigureProgram::Simulator).contains("core/sched/src"));
    }

    #[test]
    fn modules_are_named_by_declarations_and_by_paths() {
        let text = "mod cases;\nuse super::super::work::{self, WorkOp};\n// use super::nothing;\n\
                    use super::{bed::{QosBed, drop_cache}, job};\nfn f() { super::now() }\n\
                    #[cfg(test)]\nmod tests { use super::other; }\n";
        let found = named_modules(text, &["qos", "promises"]);
        let found: Vec<String> = found.into_iter().map(|path| path.join("/")).collect();
        let wanted = ["qos/bed/QosBed", "qos/bed/drop_cache", "qos/job", "qos/now"];
        assert_eq!(found, [&wanted[..], &["qos/promises/cases", "work", "work/WorkOp"]].concat());
    }

    #[test]
    fn every_group_has_the_modules_that_its_sources_use() {
        for group in GROUPS {
            let found = of_bench(root(), group.sources).unwrap();
            assert!(!found.iter().any(|file| file.contains("/figures/")), "{}", group.name);
            assert!(!group.programs.is_empty(), "{}", group.name);
            // A file that declares the modules of all groups would make each of them old.
            assert!(!found.contains("bench/src/qos/mod.rs"), "{}: {found:?}", group.name);
            of_programs(root(), group.programs).unwrap();
        }
        let limits = GROUPS.iter().find(|group| group.name == "limits").unwrap();
        let limits = of_bench(root(), limits.sources).unwrap();
        let has = |name: &str| limits.contains(&format!("bench/src/{name}.rs"));
        assert!(has("qos/limits") && has("qos/job") && has("qos/bed") && has("work"), "{limits:?}");
        assert!(!has("qos/weights") && !has("qos/mounted") && !has("servers"), "{limits:?}");
    }
}
