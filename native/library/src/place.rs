//! The export and the directory that a path means: `EXPORT/DIR`, or an absolute path below a mount
//! of this machine.
//!
//! The path is taken as it is written, without links and `..`: to resolve them is to call the mount,
//! which may not reply. The table of mounts alone is read.

use std::fs;

use crate::error::CallError;

/// An export, and a directory below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservedPlace {
    pub(crate) export: String,
    /// Absent: the whole export.
    pub(crate) directory: Option<String>,
}

impl ReservedPlace {
    /// Finds the place of a path.
    pub(crate) fn find(path: &str) -> Result<ReservedPlace, CallError> {
        let table = match path.starts_with('/') {
            // The mounts of others may have names that are not UTF-8.
            true => fs::read("/proc/self/mountinfo").map_err(|error| {
                CallError::argument(format!("cannot read /proc/self/mountinfo: {error}"))
            })?,
            false => Vec::new(),
        };
        let table = String::from_utf8_lossy(&table);
        ReservedPlace::find_in(path, &table)
    }

    fn find_in(path: &str, table: &str) -> Result<ReservedPlace, CallError> {
        let parts: Vec<&str> =
            path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let wrong = |what: &str| CallError::argument(format!("path {path:?} {what}"));
        if parts.contains(&"..") {
            return Err(wrong("has .. in it; give it without"));
        }
        if !path.starts_with('/') {
            let (export, below) = parts.split_first().ok_or_else(|| wrong("is empty"))?;
            return Ok(place(export, below));
        }
        let mut deepest: Option<MountLine> = None;
        for mount in table.lines().filter_map(MountLine::parse) {
            // a later mount hides an earlier one
            let is_deeper = deepest.as_ref().is_none_or(|at| mount.at.len() >= at.at.len());
            if parts.starts_with(&mount.at_parts()) && is_deeper {
                deepest = Some(mount);
            }
        }
        let mount = deepest.filter(|mount| mount.kind == "fuse.sluice");
        let mount = mount.ok_or_else(|| {
            wrong("is not below a mount of sluice on this machine; give EXPORT/DIR")
        })?;
        let export = mount.export().ok_or_else(|| wrong("is on no export of a sluice proxy"))?;
        let root = mount.root.split('/').filter(|part| !part.is_empty());
        let below: Vec<&str> =
            root.chain(parts[mount.at_parts().len()..].iter().copied()).collect();
        Ok(place(export, &below))
    }
}

fn place(export: &str, below: &[&str]) -> ReservedPlace {
    let directory = Some(below.join("/")).filter(|path| !path.is_empty());
    ReservedPlace { export: export.into(), directory }
}

/// A line of /proc/self/mountinfo, proc_pid_mountinfo(5).
struct MountLine {
    /// The directory of the file system that is mounted.
    root: String,
    at: String,
    kind: String,
    source: String,
}

impl MountLine {
    fn parse(line: &str) -> Option<MountLine> {
        let mut fields = line.split(' ').skip(3);
        let (root, at) = (unescaped(fields.next()?), unescaped(fields.next()?));
        // Optional fields end with a field "-".
        let mut fields = fields.skip_while(|field| *field != "-").skip(1);
        let (kind, source) = (fields.next()?.into(), unescaped(fields.next()?));
        Some(MountLine { root, at, kind, source })
    }

    fn at_parts(&self) -> Vec<&str> {
        self.at.split('/').filter(|part| !part.is_empty()).collect()
    }

    fn export(&self) -> Option<&str> {
        let first = self.source.split(',').next()?;
        let (_, export) = match first.strip_prefix("tcp://") {
            Some(rest) => rest.split_once('/')?,
            None => first.strip_prefix("unix://")?.split_once("//")?,
        };
        Some(export).filter(|export| !export.is_empty() && !export.starts_with('/'))
    }
}

/// Blanks and backslashes are octal there.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (code, byte)| text.replace(code, byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_the_deepest_mount_above_it() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 0:9 / /mnt/my\\040data rw shared:1 - fuse.sluice tcp://127.0.0.1:5640/scratch rw\n\
            3 1 0:10 /sub /mnt/b rw - fuse.sluice unix:///run/9p//x rw\n\
            4 2 8:2 / /mnt/my\\040data/local rw - ext4 /dev/b rw\n";
        let found = |path: &str| {
            let place = ReservedPlace::find_in(path, table).map_err(|error| error.text)?;
            Ok::<_, String>((place.export, place.directory.unwrap_or_default()))
        };
        let is = |export: &str, directory: &str| Ok((export.to_owned(), directory.to_owned()));
        assert_eq!(found("/mnt/my data/run7/./out"), is("scratch", "run7/out"));
        assert_eq!(found("/mnt/my data"), is("scratch", ""));
        assert_eq!(found("/mnt/b/c"), is("x", "sub/c"));
        assert_eq!(found("scratch/run7/"), is("scratch", "run7"));
        assert_eq!(found("scratch"), is("scratch", ""));
        for wrong in ["", "/", "/mnt", "/mnt/bc", "/mnt/my data/local/a", "/mnt/b/../c", "a/.."] {
            assert!(found(wrong).unwrap_err().contains(&format!("{wrong:?}")));
        }
    }
}
