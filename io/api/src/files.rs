//! Files and directories of Sluice: made here, with permissions that do not depend on the umask,
//! and trusted only after a check if they exist already.
//!
//! ```text
//!   make_directory ─► missing: 0755, the last as asked ─► /run/sluice, /var/lib/sluice: not 0777
//!   private_file ──► not there ─► 0600
//!                 └► there: whose? may others write? ─► refused    may others read? ─► 0600, warned
//! ```
//!
//! A file or socket is trusted if it belongs to root, to this process's user, or to the owner of
//! the directory that was named, as where root runs `sluice` on a service's directory. Any other
//! user that can write to that directory could have planted it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// The reason why a private file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// A file that another user could have put there.
    #[error(
        "{} belongs to uid {uid}: root, this user or the owner of its directory is expected; \
         chown it if its content is right, else remove it",
        path.display()
    )]
    Owner {
        /// The file that another user owns.
        path: PathBuf,
        /// The user id of its owner.
        uid: u32,
    },
    /// A file that another user could have changed.
    #[error(
        "{} has mode {mode:04o}, so others may write to it; chmod 600 it if its content is \
         right, else remove it",
        path.display()
    )]
    Writable {
        /// The file that others may write.
        path: PathBuf,
        /// Its permission bits, as in chmod(2).
        mode: u32,
    },
    /// A file that others may read, and whose mode this user may not change.
    #[error("{} has mode {mode:04o}, so others may read it; chmod 600 it", path.display())]
    Readable {
        /// The file that others may read.
        path: PathBuf,
        /// Its permission bits, as in chmod(2).
        mode: u32,
    },
    /// A file whose attributes cannot be read.
    #[error("cannot read the attributes of {}", path.display())]
    System {
        /// The file whose attributes were requested.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// Returns options that create a file with mode 0600; the caller adds how it is opened.
pub fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes a directory if it does not exist: `mode` or tighter, and those above it 0755 or tighter.
/// `/run/sluice` and `/var/lib/sluice` are taken from others if they may write there.
///
/// # Errors
/// If it cannot be made.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    for own in OWN_DIRECTORIES.iter().map(Path::new).filter(|own| path.starts_with(own)) {
        close_directory(own)?;
    }
    Ok(())
}

/// Takes the right to write to a directory of Sluice's from all others, with a warning; a
/// directory of another user's is left as it is.
///
/// # Errors
/// If it cannot be changed.
pub fn close_directory(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let mode = found.permissions().mode() & 0o7777;
    let user = geteuid();
    if mode & WRITE_OF_OTHERS == 0 || !user.is_root() && user.as_raw() != found.uid() {
        return Ok(());
    }
    fs::set_permissions(path, PermissionsExt::from_mode(mode & !WRITE_OF_OTHERS))?;
    let path = path.display();
    tracing::warn!(%path, mode = format!("{mode:04o}"), "others could write to this directory");
    Ok(())
}

/// Looks at a file that only its owner should read: false if it is not there. One that others may
/// read is taken from them, with a warning. Its lock, if somebody has one, stays.
///
/// # Errors
/// If others could have put it there or changed it.
pub fn check_private(path: &Path) -> Result<bool, PrivateFileError> {
    let system = |source| PrivateFileError::System { path: path.into(), source };
    // Neither waits for a pipe nor, when it is closed, gives up locks of SQLite's.
    let open = |more| {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((OFlags::PATH | more).bits().cast_signed());
        options.open(path)
    };
    let named = match open(OFlags::NOFOLLOW) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named.map_err(system)?,
    };
    let found = named.metadata().map_err(system)?;
    check_owner(path, found.uid())?;
    let (file, found) = match found.file_type().is_symlink() {
        false => (named, found),
        true => {
            let file = open(OFlags::empty()).map_err(system)?;
            let found = file.metadata().map_err(system)?;
            check_owner(path, found.uid())?;
            (file, found)
        }
    };
    let mode = found.permissions().mode() & 0o7777;
    if mode & WRITE_OF_OTHERS != 0 {
        return Err(PrivateFileError::Writable { path: path.into(), mode });
    }
    if mode & 0o077 != 0 {
        tighten(path, &file, mode)?;
    }
    Ok(true)
}

/// Whether what belongs to `uid` may be believed at this path: it is root's, this user's, or of
/// who owns the directory.
///
/// # Errors
/// If the directory's owner cannot be read.
pub fn is_trusted(uid: u32, path: &Path) -> io::Result<bool> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = fs::metadata(directory.unwrap_or(Path::new(".")))?;
    Ok(uid == 0 || uid == geteuid().as_raw() || uid == directory.uid())
}

/// Refuses a file of `uid` that is not to be believed.
///
/// # Errors
/// If it belongs to another user, or the directory's owner cannot be read.
pub fn check_owner(path: &Path, uid: u32) -> Result<(), PrivateFileError> {
    match is_trusted(uid, path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(PrivateFileError::Owner { path: path.into(), uid }),
        Err(source) => Err(PrivateFileError::System { path: path.into(), source }),
    }
}

/// Takes a file from all but its owner.
fn tighten(path: &Path, file: &File, mode: u32) -> Result<(), PrivateFileError> {
    // By its descriptor: the name may mean another file by now.
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    let tightened = fs::set_permissions(by_number, PermissionsExt::from_mode(mode & 0o700));
    let path_shown = path.display();
    match tightened {
        Ok(()) => {
            tracing::warn!(path = %path_shown, mode = format!("{mode:04o}"), "others could read this file");
            Ok(())
        }
        // Root's, for the group of a service.
        Err(_) if mode & 0o007 == 0 => Ok(()),
        Err(_) => Err(PrivateFileError::Readable { path: path.into(), mode }),
    }
}

const WRITE_OF_OTHERS: u32 = 0o022;
/// Nobody but Sluice puts anything there.
const OWN_DIRECTORIES: [&str; 2] = ["/run/sluice", "/var/lib/sluice"];

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{chown, symlink};

    use super::*;
    use testkit::TestFolder;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn file(folder: &TestFolder, name: &str, mode: u32) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn what_is_made_is_nobody_else_s_to_write() {
        let folder = TestFolder::new();
        let path = folder.path().join("a/b/c");
        make_directory(&path, 0o700).unwrap();
        make_directory(&path, 0o755).unwrap();
        assert_eq!(mode_of(&path), 0o700);
        for above in [folder.path().join("a"), folder.path().join("a/b")] {
            assert_eq!(mode_of(&above) & !0o755, 0, "{above:?}");
        }
        let file = path.join("f");
        private_options()
            .write(true)
            .create_new(true)
            .open(&file)
            .unwrap()
            .write_all(b"x")
            .unwrap();
        assert_eq!(mode_of(&file), 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o1777)).unwrap();
        close_directory(&path).unwrap();
        assert_eq!(mode_of(&path), 0o1755);
    }

    #[test]
    fn a_file_that_others_may_read_is_taken_from_them() {
        let folder = TestFolder::new();
        assert!(!check_private(&folder.path().join("none")).unwrap());
        for mode in [0o600, 0o644, 0o640, 0o604] {
            let path = file(&folder, &format!("{mode:o}"), mode);
            assert!(check_private(&path).unwrap());
            assert_eq!(mode_of(&path), 0o600);
        }
        assert!(check_private(&file(&folder, "400", 0o444)).unwrap());
        assert_eq!(mode_of(&folder.path().join("400")), 0o400);
    }

    #[test]
    fn a_file_that_others_may_write_is_refused_with_its_mode() {
        let folder = TestFolder::new();
        for wanted in [0o660, 0o606, 0o620, 0o602, 0o666] {
            let path = file(&folder, &format!("{wanted:o}"), wanted);
            let error = check_private(&path).unwrap_err();
            assert!(matches!(error, PrivateFileError::Writable { mode, .. } if mode == wanted));
            assert_eq!(mode_of(&path), wanted, "it is left as it was found");
        }
    }

    #[test]
    fn a_file_is_believed_if_it_is_its_directory_s_owner_s_and_no_stranger_s() {
        if !testkit::root_here() {
            return;
        }
        let folder = TestFolder::new();
        let path = file(&folder, "planted", 0o644);
        chown(&path, Some(65_534), None).unwrap();
        let error = check_private(&path).unwrap_err();
        assert!(matches!(error, PrivateFileError::Owner { uid: 65_534, .. }), "{error}");
        assert_eq!(mode_of(&path), 0o644, "a stranger's file is left alone");
        let link = folder.path().join("link");
        symlink(file(&folder, "own", 0o600), &link).unwrap();
        assert!(check_private(&link).unwrap());
        std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
        let error = check_private(&link).unwrap_err();
        assert!(matches!(error, PrivateFileError::Owner { .. }), "{error}");
        chown(folder.path(), Some(65_534), None).unwrap();
        assert!(check_private(&path).unwrap());
        assert_eq!(mode_of(&path), 0o600);
    }
}
