//! Layering: a crate depends on strictly lower layers only, and core stays pure.
//!
//!   L6  sluice
//!   L5  proxy  mount  controller  lustre  capi
//!   L4  http   explain  library**
//!   L3  sim*   api    fuse   chart
//!   L2  sched* plan*  pcc*   trace*  bounds*  usage*  reserve*  leases*
//!      session*
//!   L1  rules*
//!   L0  model* ninep*                     (* in core/, ** in native/, the others in io/)
//!
//! Beside them stand `bench` and `testkit`, which may use any layer; what ships may use
//! them for its tests alone.
//!
//! Dependencies between crates are read from `cargo metadata`, so what counts is
//! what cargo builds (development and build dependencies too). What core crates
//! take from outside is a short list of names, each a decision. The source of
//! core/ is checked by [`purity`].

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{purity, source};

/// Every crate of the workspace, by folder, with its layer.
const LAYERS: &[(&str, u32)] = &[
    ("core/model", 0),
    ("core/ninep", 0),
    ("core/rules", 1),
    ("core/bounds", 2),
    ("core/leases", 2),
    ("core/sched", 2),
    ("core/plan", 2),
    ("core/reserve", 2),
    ("core/pcc", 2),
    ("core/trace", 2),
    ("core/session", 2),
    ("core/usage", 2),
    ("core/sim", 3),
    ("io/api", 3),
    ("io/chart", 3),
    ("io/fuse", 3),
    ("io/explain", 4),
    ("io/http", 4),
    ("native/library", 4),
    ("io/proxy", 5),
    ("io/mount", 5),
    ("io/controller", 5),
    ("io/lustre", 5),
    ("io/capi", 5),
    ("io/sluice", 6),
];

/// Crates for tests and measurements: they use what they like, and nothing that ships uses them.
const BESIDE: &[&str] = &["bench", "testkit"];

/// What any core crate may take from outside, beyond its tests.
const CORE_TAKES: &[&str] = &["thiserror", "tracing"];

/// What one core crate may take besides.
const ONE_TAKES: &[(&str, &str)] = &[
    ("core/model", "serde"),
    ("core/reserve", "serde"), // the records that a controller stores
    ("core/rules", "serde"),   // conditions and words in configuration files
    ("core/rules", "toml"),    // rule text, which the simulator parses too
    ("core/sim", "serde"),     // scenarios and reports
    ("core/sim", "toml"),
];

/// The one core file that may calculate with floats.
const FLOATS: &str = "core/sim/src/report";

/// A crate as `cargo metadata` tells of it: its folder below the root and its dependencies.
#[derive(Debug, Default)]
struct Package {
    folder: String,
    dependencies: Vec<Dependency>,
}

/// One dependency: by folder if it is a crate of this workspace.
#[derive(Debug, Default)]
struct Dependency {
    name: String,
    folder: Option<String>,
    for_tests: bool,
}

/// Every violation of the layering, one line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in packages(root)? {
        found.extend(dependency_violations(&package));
    }
    for file in source::rust_files(&root.join("core"))? {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        // core/CRATE/src/…: benches and tests are outside of it
        if name.split('/').nth(2) == Some("src") {
            let floats = name.starts_with(FLOATS);
            found.extend(purity::violations(&name, &source::read(&file)?, floats));
        }
    }
    Ok(found)
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    parse_metadata(&serde_json::from_slice(&output.stdout)?)
}

fn parse_metadata(metadata: &Value) -> Result<Vec<Package>> {
    let root = metadata["workspace_root"].as_str().context("metadata without workspace_root")?;
    let below = |path: &str| {
        let path = path.strip_prefix(root)?.trim_start_matches('/');
        Some(path.trim_end_matches("/Cargo.toml").to_string())
    };
    let mut packages = Vec::new();
    for package in metadata["packages"].as_array().context("metadata without packages")? {
        let manifest =
            package["manifest_path"].as_str().context("package without manifest_path")?;
        let dependencies =
            package["dependencies"].as_array().context("package without dependencies")?;
        packages.push(Package {
            folder: below(manifest).context("a package outside the workspace")?,
            dependencies: dependencies
                .iter()
                .map(|one| Dependency {
                    name: one["name"].as_str().unwrap_or_default().to_string(),
                    folder: one["path"].as_str().and_then(below),
                    for_tests: one["kind"].as_str() == Some("dev"),
                })
                .collect(),
        });
    }
    Ok(packages)
}

fn layer_of(folder: &str) -> Option<u32> {
    LAYERS.iter().find(|(name, _)| *name == folder).map(|(_, layer)| *layer)
}

fn dependency_violations(package: &Package) -> Vec<String> {
    let from = package.folder.as_str();
    if from == "xtask" {
        let inner = package.dependencies.iter().filter(|one| one.folder.is_some());
        return inner
            .map(|one| format!("xtask uses {}: it stands beside the layers", one.name))
            .collect();
    }
    if BESIDE.contains(&from) {
        return Vec::new();
    }
    let Some(layer) = layer_of(from) else {
        return vec![format!("{from} has no layer: give it one in xtask/src/layers.rs")];
    };
    package.dependencies.iter().filter_map(|one| dependency_violation(from, layer, one)).collect()
}

fn dependency_violation(from: &str, layer: u32, dependency: &Dependency) -> Option<String> {
    let name = &dependency.name;
    let Some(to) = dependency.folder.as_deref() else {
        let allowed = !from.starts_with("core/")
            || dependency.for_tests
            || CORE_TAKES.contains(&name.as_str())
            || ONE_TAKES.contains(&(from, name.as_str()));
        return (!allowed).then(|| {
            format!("{from} takes {name}: core crates take {}", CORE_TAKES.join(" and "))
        });
    };
    if BESIDE.contains(&to) {
        return (!dependency.for_tests)
            .then(|| format!("{from} uses {to}: what ships may do so for its tests alone"));
    }
    if from.starts_with("core/") && !to.starts_with("core/") {
        return Some(format!("{from} uses {to}: core knows nothing of io"));
    }
    match layer_of(to) {
        Some(below) if below < layer => None,
        Some(other) => Some(format!(
            "{from} (layer {layer}) uses {to} (layer {other}): only lower layers may be used"
        )),
        None => Some(format!("{from} uses {to}, which has no layer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(from: &str, to: &str) -> Vec<String> {
        let dependency = Dependency { name: to.into(), folder: Some(to.into()), for_tests: false };
        dependency_violations(&Package { folder: from.into(), dependencies: vec![dependency] })
    }

    fn takes(from: &str, name: &str, for_tests: bool) -> Vec<String> {
        let dependency = Dependency { name: name.into(), folder: None, for_tests };
        dependency_violations(&Package { folder: from.into(), dependencies: vec![dependency] })
    }

    #[test]
    fn lower_layers_may_be_used() {
        for (from, to) in
            [("io/sluice", "io/proxy"), ("io/proxy", "core/sched"), ("io/api", "core/model")]
        {
            assert_eq!(uses(from, to), [""; 0], "{from} {to}");
        }
    }

    #[test]
    fn layers_beside_and_above_may_not() {
        assert_eq!(
            uses("core/ninep", "core/model"),
            ["core/ninep (layer 0) uses core/model (layer 0): only lower layers may be used"]
        );
        assert_eq!(uses("io/proxy", "io/mount").len(), 1);
        assert_eq!(uses("io/api", "io/proxy").len(), 1);
        assert_eq!(uses("core/sim", "core/sim").len(), 1);
    }

    #[test]
    fn core_never_uses_io_even_from_above() {
        assert_eq!(
            uses("core/sched", "io/api"),
            ["core/sched uses io/api: core knows nothing of io"]
        );
    }

    #[test]
    fn a_crate_without_a_layer_is_named() {
        assert_eq!(
            uses("io/new", "core/model"),
            ["io/new has no layer: give it one in xtask/src/layers.rs"]
        );
        assert_eq!(uses("io/proxy", "io/new"), ["io/proxy uses io/new, which has no layer"]);
    }

    #[test]
    fn core_takes_only_what_the_list_names() {
        assert_eq!(
            takes("core/sched", "rand", false),
            ["core/sched takes rand: core crates take thiserror and tracing"]
        );
        assert_eq!(takes("core/sched", "serde", false).len(), 1);
        assert_eq!(takes("core/model", "serde", false), [""; 0]);
        assert_eq!(takes("core/sched", "proptest", true), [""; 0]);
        assert_eq!(takes("io/proxy", "rustix", false), [""; 0]);
    }

    #[test]
    fn what_ships_may_use_the_laboratory_for_its_tests_alone() {
        let uses_for = |from: &str, to: &str, for_tests| {
            let dependency = Dependency { name: to.into(), folder: Some(to.into()), for_tests };
            dependency_violations(&Package { folder: from.into(), dependencies: vec![dependency] })
        };
        assert_eq!(
            uses_for("io/sluice", "bench", false),
            ["io/sluice uses bench: what ships may do so for its tests alone"]
        );
        assert_eq!(uses_for("core/plan", "testkit", true), [""; 0]);
        assert_eq!(uses_for("bench", "io/mount", false), [""; 0]);
        assert_eq!(uses_for("bench", "testkit", true), [""; 0]);
    }

    #[test]
    fn xtask_stands_beside_the_layers() {
        assert_eq!(
            uses("xtask", "core/model"),
            ["xtask uses core/model: it stands beside the layers"]
        );
    }

    #[test]
    fn metadata_gives_folders_and_kinds() {
        let text = r#"{"workspace_root": "/r", "packages": [{"manifest_path": "/r/core/sched/Cargo.toml",
            "dependencies": [{"name": "sluice-model", "path": "/r/core/model", "kind": null},
                             {"name": "proptest", "kind": "dev"}]}]}"#;
        let packages = parse_metadata(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(packages[0].folder, "core/sched");
        assert_eq!(packages[0].dependencies[0].folder.as_deref(), Some("core/model"));
        assert!(packages[0].dependencies[1].for_tests);
    }

    #[test]
    fn this_workspace_can_be_read() {
        let root = crate::workspace_root().unwrap();
        let folders: Vec<String> = packages(&root).unwrap().into_iter().map(|p| p.folder).collect();
        assert!(folders.contains(&"core/model".to_string()), "{folders:?}");
    }
}
