//! The export and the directory of a path: `EXPORT/DIR`, or a path below a mount of this machine.
//!
//! ```text
//!   /mnt/scratch/run7 ─► links resolved ─► table of mounts ─► source …/scratch, below it run7
//!   scratch/run7 ────────────────────────────────────────────► export scratch, directory run7
//! ```

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::channel;

use anyhow::Context as _;

use crate::failure::CommandError;
use crate::mount::place::{ANSWER_TIME, MountEntry, absolute};

/// An export, and a directory below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExportPath {
    /// The name of the export; absent if none is given.
    pub(super) export: Option<String>,
    /// The directory, such as `run7/out`; absent for the whole export.
    pub(super) directory: Option<String>,
}

impl ExportPath {
    /// Finds the export and the directory of a path; a file stands for its directory.
    ///
    /// # Errors
    /// If the path is absolute and not below a mount of sluice, or does not answer in time, or if
    /// it is not `EXPORT/DIR`.
    pub(super) fn find(path: &str) -> anyhow::Result<ExportPath> {
        if !path.starts_with('/') {
            return ExportPath::named(Path::new(path));
        }
        let found = directory_in_time(Path::new(path))?;
        let mounts = MountEntry::all("self").context("cannot read the table of mounts")?;
        ExportPath::mounted(&found, &mounts)
    }

    /// Returns the deepest directory that several paths of one export have in common.
    ///
    /// # Errors
    /// As of [`ExportPath::find`], or if the exports differ.
    pub(super) fn of_all(paths: &[String]) -> anyhow::Result<ExportPath> {
        let mut common: Option<ExportPath> = None;
        for path in paths {
            let found = ExportPath::find(path)?;
            common = Some(match common {
                None => found,
                Some(before) => before.narrowed_to(&found, path)?,
            });
        }
        Ok(common.unwrap_or_default())
    }

    fn narrowed_to(self, other: &ExportPath, path: &str) -> anyhow::Result<ExportPath> {
        if self.export != other.export {
            let [one, two] =
                [&self.export, &other.export].map(|name| name.clone().unwrap_or_default());
            let message = format!(
                "{path:?} is of export {two}, and others are of export {one}; name paths of one export"
            );
            return Err(wrong(message));
        }
        let [one, two] =
            [&self.directory, &other.directory].map(|path| path.as_deref().unwrap_or(""));
        let same = one.split('/').zip(two.split('/')).take_while(|(a, b)| a == b);
        let common: Vec<_> = same.map(|(part, _)| part).collect();
        let directory = Some(common.join("/")).filter(|path| !path.is_empty());
        Ok(ExportPath { directory, ..self })
    }

    fn named(path: &Path) -> anyhow::Result<ExportPath> {
        let mut parts = path.components();
        let is_plain = parts.clone().all(|part| matches!(part, Component::Normal(_)));
        let export = parts.next().filter(|_| is_plain).and_then(|name| name.as_os_str().to_str());
        let Some(export) = export else {
            return Err(wrong(format!("{path:?} is not EXPORT/DIR or an absolute path")));
        };
        ExportPath { export: Some(export.into()), directory: None }
            .below(&parts.collect::<PathBuf>())
    }

    /// Finds the mount that a path without links is below.
    fn mounted(path: &Path, mounts: &[MountEntry]) -> anyhow::Result<ExportPath> {
        let above = mounts.iter().filter(|mounted| path.starts_with(mounted.mount_point()));
        // The last of the deepest ones: a later mount hides an earlier one.
        let mounted = above.max_by_key(|mounted| mounted.mount_point().components().count());
        let Some(mounted) = mounted.filter(|mounted| mounted.is_sluice()) else {
            let message =
                format!("{path:?} is not below a mount of sluice on this machine; give EXPORT/DIR");
            return Err(wrong(message));
        };
        // A server that supports only 9P2000.L names its exports by their paths.
        let export = mounted.export().filter(|export| !export.starts_with('/'));
        let Some(export) = export else {
            let message = format!(
                "{path:?} is on {}, which is not an export of a sluice proxy",
                mounted.source
            );
            return Err(wrong(message));
        };
        let inside = path.strip_prefix(mounted.mount_point()).expect("it is below it");
        let place = ExportPath { export: Some(export.into()), directory: None };
        place.below(&mounted.root().join(inside))
    }

    fn below(self, path: &Path) -> anyhow::Result<ExportPath> {
        let text = path.to_str().map(|path| path.trim_matches('/').to_owned());
        let text = text.ok_or_else(|| wrong(format!("{path:?} is not UTF-8")))?;
        Ok(ExportPath { directory: Some(text).filter(|text| !text.is_empty()), ..self })
    }
}

/// Resolves links in a thread, as a mount may not answer.
fn directory_in_time(path: &Path) -> anyhow::Result<PathBuf> {
    let (to, answer) = channel();
    let asked = path.to_owned();
    std::thread::spawn(move || to.send(directory(&asked)));
    match answer.recv_timeout(ANSWER_TIME) {
        Ok(found) => found.with_context(|| format!("cannot resolve {path:?}")),
        Err(_) => {
            let limit = ANSWER_TIME.as_secs();
            Err(wrong(format!("{path:?} does not answer within {limit} s; give EXPORT/DIR")))
        }
    }
}

/// Returns a path without links; of a file its directory.
fn directory(path: &Path) -> io::Result<PathBuf> {
    let path = absolute(path)?;
    let is_file = fs::metadata(&path).is_ok_and(|found| !found.is_dir());
    let above = path.parent().filter(|_| is_file);
    Ok(above.map_or_else(|| path.clone(), Path::to_owned))
}

fn wrong(message: String) -> anyhow::Error {
    CommandError::argument("--path", message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(export: &str, directory: Option<&str>) -> ExportPath {
        ExportPath { export: Some(export.into()), directory: directory.map(Into::into) }
    }

    fn mounts() -> Vec<MountEntry> {
        let lines = [
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "2 1 0:90 / /mnt/a rw - fuse.sluice tcp://h:5640/scratch,tcp://i:5640/scratch rw",
            "3 1 0:91 /home/b /b rw - fuse.sluice unix:///run/s//homes rw",
            "4 1 0:92 / /mnt/a/over rw - tmpfs tmpfs rw",
            "5 1 0:93 / /plain rw - fuse.sluice tcp://h:564//srv/x rw",
        ];
        lines.iter().map(|line| MountEntry::parse(line.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn a_path_below_a_mount_is_of_its_export() {
        for (path, export, directory) in [
            ("/mnt/a/run7/out", "scratch", Some("run7/out")),
            ("/mnt/a", "scratch", None),
            ("/b/x", "homes", Some("home/b/x")),
            ("/b", "homes", Some("home/b")),
        ] {
            let found = ExportPath::mounted(Path::new(path), &mounts()).unwrap();
            assert_eq!(found, place(export, directory), "{path}");
        }
        for path in ["/home", "/mnt/ab", "/mnt/a/over/x", "/plain/x"] {
            assert!(ExportPath::mounted(Path::new(path), &mounts()).is_err(), "{path}");
        }
    }

    #[test]
    fn a_name_and_a_directory_are_taken_apart() {
        for (text, export, directory) in [
            ("scratch", "scratch", None),
            ("scratch/", "scratch", None),
            ("scratch/run7//out/", "scratch", Some("run7/out")),
        ] {
            assert_eq!(ExportPath::find(text).unwrap(), place(export, directory), "{text}");
        }
        for text in ["", "./a", "../a", "a/../b"] {
            assert!(ExportPath::find(text).is_err(), "{text}");
        }
    }

    #[test]
    fn several_paths_have_their_directory_in_common() {
        let common = |paths: &[&str]| {
            ExportPath::of_all(&paths.iter().map(|path| (*path).into()).collect::<Vec<_>>())
        };
        let found = common(&["s/run/a/x", "s/run/a/y", "s/run/ab"]).unwrap();
        assert_eq!(found, place("s", Some("run")));
        assert_eq!(common(&["s/a", "s/b"]).unwrap(), place("s", None));
        assert_eq!(common(&["s/a"]).unwrap(), place("s", Some("a")));
        assert!(common(&["s/a", "t/a"]).is_err());
    }

    #[test]
    fn a_file_stands_for_its_directory() {
        assert_eq!(directory(Path::new("/proc/version")).unwrap(), Path::new("/proc"));
        assert_eq!(directory(Path::new("/proc")).unwrap(), Path::new("/proc"));
        assert_eq!(directory(Path::new("/missing")).unwrap(), Path::new("/missing"));
    }
}
