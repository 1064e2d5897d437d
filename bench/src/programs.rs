//! Which programs are started: the product's, and this one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// The `sluice` to measure: the one named, or the one beside this program.
pub(crate) fn find_sluice(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return path.canonicalize().with_context(|| format!("cannot find {}", path.display()));
    }
    let path = own()?.with_file_name("sluice");
    ensure!(
        path.is_file(),
        "there is no {}: build it (.ci/build.sh), or name one with --sluice",
        path.display()
    );
    Ok(path)
}

/// Returns the path of this program.
pub(crate) fn own() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// What a `sluice` says of itself.
pub(crate) fn version_of(sluice: &Path) -> anyhow::Result<String> {
    let output = Command::new(sluice).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", sluice.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.trim().trim_start_matches("sluice ").to_owned())
}
