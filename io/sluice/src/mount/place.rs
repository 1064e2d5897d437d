//! The table of mounts and the paths in it.
//!
//! Except for [`MountEntry::call`] no function calls the mounted file system: its process may be
//! dead or wait for its proxy without end. Callers of `call` wait with a deadline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::io::Errno;

/// A line of the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// The kernel's number of the mount. It gives the number of a mount that is gone to a new one.
    id: u64,
    /// The source that was given to mount.
    pub(crate) source: String,
    /// The device's number, as `0:98`: the same for every copy of the mount. Once the mount's
    /// process has ended, it too is given to a new mount.
    device: String,
    /// The directory of the file system that is mounted, `/` for all of it.
    root: PathBuf,
    kind: String,
    at: PathBuf,
}

/// One mount of a device that is mounted several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountCopy {
    /// The kernel's number of the mount.
    id: u64,
    /// A process that sees it.
    pub(crate) process: u32,
    /// The mount point in that process's name space.
    pub(crate) at: PathBuf,
}

impl MountEntry {
    /// Returns the topmost mount at a path that [`absolute`] returned.
    pub(crate) fn at(place: &Path) -> io::Result<Option<MountEntry>> {
        let table = MountEntry::all("self")?;
        Ok(table.into_iter().rfind(|mounted| mounted.at == place))
    }

    /// Reads the table of mounts of a process, by its number or as `self`.
    pub(crate) fn all(process: &str) -> io::Result<Vec<MountEntry>> {
        let table = fs::read(format!("/proc/{process}/mountinfo"))?;
        Ok(table.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect())
    }

    /// Finds the mounts of this device, this one included, each with one process of its name space.
    pub(crate) fn copies(&self) -> Vec<MountCopy> {
        let mut spaces = BTreeSet::new();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut copies = Vec::new();
        for process in processes.collect::<BTreeSet<u32>>() {
            // A process that has ended, or that may not be read, is skipped.
            let space = fs::read_link(format!("/proc/{process}/ns/mnt"));
            if !space.is_ok_and(|space| spaces.insert(space)) {
                continue;
            }
            let table = MountEntry::all(&process.to_string()).unwrap_or_default();
            let same = table.into_iter().filter(|mounted| mounted.device == self.device);
            let copy = |entry: MountEntry| MountCopy { id: entry.id, process, at: entry.at };
            copies.extend(same.map(copy));
        }
        copies
    }

    /// Returns those of `before`, which [`MountEntry::copies`] found before this mount was removed,
    /// that are mounted still. What is mounted since then may have the device's number.
    pub(crate) fn remaining_copies(&self, before: &[MountCopy]) -> Vec<MountCopy> {
        let was_there = |copy: &MountCopy| {
            before.iter().any(|earlier| (earlier.id, &earlier.at) == (copy.id, &copy.at))
        };
        self.copies().into_iter().filter(was_there).collect()
    }

    /// Returns the mount point.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.at
    }

    /// Returns the directory of the export that is at the mount point: `/`, or that of a bind mount.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the export that the source names, of a mount of sluice.
    pub(crate) fn export(&self) -> Option<&str> {
        let first = self.source.split(',').next()?;
        let (_, export) = match first.strip_prefix("tcp://") {
            Some(rest) => rest.split_once('/')?,
            None => first.strip_prefix("unix://")?.split_once("//")?,
        };
        Some(export)
    }

    /// Returns whether it is a mount of sluice.
    pub(crate) fn is_sluice(&self) -> bool {
        self.kind == "fuse.sluice"
    }

    /// Returns whether its process has ended. A mount without an answer in time counts as alive.
    pub(crate) fn is_dead(&self) -> bool {
        let answer = self.call(|place| fs::metadata(place));
        matches!(answer.recv_timeout(ANSWER_TIME), Ok(Err(error)) if is_dead_error(&error))
    }

    /// Calls the mount in a thread, which hangs as long as the mount does and ends with this
    /// process.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Receiver<io::Result<T>> {
        let (to, answer) = channel();
        let place = self.at.clone();
        std::thread::spawn(move || to.send(what(&place)));
        answer
    }

    /// Parses a line of /proc/self/mountinfo, proc_pid_mountinfo(5).
    pub(crate) fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = String::from_utf8_lossy(fields.nth(1)?).into_owned();
        let (root, at) = (unescaped(fields.next()?), unescaped(fields.next()?));
        // Optional fields end with a field "-".
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, source) = (unescaped(fields.next()?), unescaped(fields.next()?));
        Some(MountEntry {
            id,
            device,
            source: source.to_string_lossy().into(),
            kind: kind.to_string_lossy().into(),
            root: root.into(),
            at: at.into(),
        })
    }
}

/// Returns whether the error means that the mount's process has ended, `ECONNABORTED` during the
/// call.
pub(crate) fn is_dead_error(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Returns a directory's path as in the table of mounts: absolute, without symbolic links.
///
/// # Errors
/// If a parent directory is missing or cannot be searched. The directory itself may be missing.
pub(crate) fn absolute(dir: &Path) -> io::Result<PathBuf> {
    resolve_links(dir, LINKS_MAX)
}

fn resolve_links(dir: &Path, links: u32) -> io::Result<PathBuf> {
    let path = std::path::absolute(dir)?;
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return path.canonicalize();
    };
    let above = above.canonicalize()?;
    let path = above.join(name);
    match fs::read_link(&path) {
        Ok(_) if links == 0 => Err(Errno::LOOP.into()),
        Ok(target) => resolve_links(&above.join(target), links - 1),
        // Not a link, or missing.
        Err(_) => Ok(path),
    }
}

/// Decodes octal escapes such as `\040`.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Encodes a path as part of a file name, like systemd-escape(1): `/mnt/a-b` is `mnt-a\x2db`.
pub(crate) fn escaped(place: &Path) -> String {
    let bytes = place.as_os_str().as_bytes();
    let trimmed = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let mut name = String::new();
    for byte in trimmed {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => {
                name.push(char::from(*byte));
            }
            _ => name += &format!("\\x{byte:02x}"),
        }
    }
    if name.is_empty() { "-".into() } else { name }
}

/// Time limit of a call that a mount answers from memory, or the kernel for a dead mount.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Limit of symbolic links, as in the kernel.
const LINKS_MAX: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_of_mounts_is_read() {
        let line = br"36 35 0:98 / /mnt/a\040b rw,nosuid shared:1 master:2 - fuse.sluice unix:///s//x rw,user_id=0";
        let mounted = MountEntry::parse(line).unwrap();
        assert_eq!((mounted.at.as_path(), &*mounted.device), (Path::new("/mnt/a b"), "0:98"));
        assert_eq!(mounted.id, 36);
        assert_eq!(mounted.source, "unix:///s//x");
        assert!(mounted.is_sluice());
        assert_eq!((mounted.export(), mounted.root()), (Some("x"), Path::new("/")));
        let plain = MountEntry::parse(b"22 27 0:21 / /proc rw - proc proc rw").unwrap();
        assert!(!plain.is_sluice() && plain.at == Path::new("/proc"));
        assert_eq!(MountEntry::parse(b""), None);
    }

    #[test]
    fn escapes_are_undone_and_other_backslashes_stay() {
        assert_eq!(unescaped(br"a\134b\011c\9x\04"), OsString::from("a\\b\tc\\9x\\04"));
    }

    #[test]
    fn proc_is_found_and_an_ordinary_directory_is_not() {
        assert_eq!(MountEntry::at(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert_eq!(MountEntry::at(Path::new("/proc/self")).unwrap(), None);
    }

    #[test]
    fn a_mount_that_was_made_since_is_no_remaining_copy() {
        let proc = MountEntry::at(Path::new("/proc")).unwrap().unwrap();
        let found = proc.copies();
        let own = found.iter().find(|copy| copy.at == Path::new("/proc")).unwrap();
        assert_eq!(own.id, proc.id);
        assert!(proc.remaining_copies(&found).contains(own));
        // The same number at another path, and another number at the same path.
        let elsewhere = MountCopy { at: "/elsewhere".into(), ..own.clone() };
        let other = MountCopy { id: own.id + 1, ..own.clone() };
        assert_eq!(proc.remaining_copies(&[elsewhere, other]), []);
    }

    #[test]
    fn links_are_followed_and_the_directory_itself_may_be_missing() {
        let dir = std::env::temp_dir().join(format!("sluice-place-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("real")).unwrap();
        let dir = dir.canonicalize().unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        std::os::unix::fs::symlink(dir.join("link"), dir.join("second")).unwrap();
        std::os::unix::fs::symlink("loop", dir.join("loop")).unwrap();
        assert_eq!(absolute(&dir.join("second")).unwrap(), dir.join("real"));
        assert_eq!(absolute(&dir.join("link/../second/.")).unwrap(), dir.join("real"));
        assert_eq!(absolute(&dir.join("real/missing")).unwrap(), dir.join("real/missing"));
        assert_eq!(absolute(&dir.join("real/..")).unwrap(), dir);
        assert_eq!(absolute(Path::new("/")).unwrap(), Path::new("/"));
        assert!(absolute(&dir.join("loop")).is_err());
        assert!(absolute(&dir.join("missing/below")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn paths_become_names_that_cannot_be_mixed_up() {
        for (path, name) in [
            ("/mnt/scratch", "mnt-scratch"),
            ("/mnt/a-b", "mnt-a\\x2db"),
            ("/mnt/a b/.c", "mnt-a\\x20b-.c"),
            ("/", "-"),
        ] {
            assert_eq!(escaped(Path::new(path)), name);
        }
    }
}
