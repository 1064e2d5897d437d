//! Names of files that need no walk and outlive the proxy: the dialect's handles.
//!
//! ```text
//!   handle = mac[16] sort[1] body       mac = BLAKE3 keyed for this export, of sort and body
//!     sort 1: type[4] and the backend's own handle (name_to_handle_at)
//!     sort 2: qid path[8] and the path below the export: a backend without handles, and file
//!             systems mounted below the export
//! ```
//!
//! A client has its handles from a proxy with the same key: without the key a handle cannot be
//! made, and a handle of another export does not fit. A handle identifies a file and gives no
//! permission: the kernel checks that, as for a file that was walked to.
//!
//! Directories that were resolved stay open for a while, since most messages name one. Files
//! do not: an open file that is removed keeps its space.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use api::PrivateFileError;
use lru::LruCache;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::credentials;
use crate::export::{Export, ExportNode};
use crate::sys::{self, KernelHandle};

/// Key that the proxies of a group share, so that each accepts the others' handles.
#[derive(Clone)]
pub(crate) struct HandleKey([u8; KEY_LEN]);

/// A key, and where it is from.
pub(crate) struct LoadedHandleKey {
    pub(crate) key: HandleKey,
    /// Its file was there before: a proxy may have run with it.
    pub(crate) is_old: bool,
}

/// Why a file is not used as the key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// Others may know it, or chose it.
    #[error(transparent)]
    Private(#[from] PrivateFileError),
    /// The file is not a key.
    #[error(
        "{} is not a handle key of {KEY_LEN} random bytes: it has {bytes} bytes{}; remove it to \
         make a new key, with which the handles of all mounts become stale",
        path.display(), if *bytes == KEY_LEN { ", all 0" } else { "" }
    )]
    NoKey {
        /// The path of the file.
        path: PathBuf,
        /// How long it is.
        bytes: usize,
    },
    /// It can be neither read nor made.
    #[error("cannot read or create {}", path.display())]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The handles of one export.
pub(crate) struct HandleTable {
    /// The group's key, bound to the export's name.
    key: [u8; KEY_LEN],
    /// A descriptor of the file system that handles are opened on; `None` where it has none.
    mount: Option<OwnedFd>,
    directories: Mutex<LruCache<Box<[u8]>, Arc<ExportNode>>>,
}

const KEY_LEN: usize = 32;
const MAC_LEN: usize = 16;
const BY_KERNEL: u8 = 1;
const BY_PATH: u8 = 2;
/// Directories of one export that stay open: each is a descriptor.
const OPEN_PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

impl LoadedHandleKey {
    /// A key that was made now.
    pub(crate) fn new(key: HandleKey) -> LoadedHandleKey {
        LoadedHandleKey { key, is_old: false }
    }
}

impl HandleKey {
    /// Reads the key file, or makes it.
    ///
    /// # Errors
    /// If the file can be neither read nor created, is not a key, or another user could have put it
    /// there.
    pub(crate) fn load(path: &Path) -> Result<LoadedHandleKey, KeyError> {
        match HandleKey::read(path)? {
            Some(key) => Ok(LoadedHandleKey { key, is_old: true }),
            None => HandleKey::make(path).map(LoadedHandleKey::new),
        }
    }

    /// Makes a key without a file: its handles end with the proxy.
    pub(crate) fn random() -> io::Result<HandleKey> {
        let mut key = [0; KEY_LEN];
        let got = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        if got == KEY_LEN { Ok(HandleKey(key)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn read(path: &Path) -> Result<Option<HandleKey>, KeyError> {
        if !api::check_private(path)? {
            return Ok(None);
        }
        let bytes =
            fs::read(path).map_err(|source| KeyError::System { path: path.into(), source })?;
        // A machine that died may leave zeros where a file was being written.
        let key = <[u8; KEY_LEN]>::try_from(&*bytes).ok().filter(|key| *key != [0; KEY_LEN]);
        let no_key = || KeyError::NoKey { path: path.into(), bytes: bytes.len() };
        key.map(|key| Some(HandleKey(key))).ok_or_else(no_key)
    }

    /// Another proxy may be doing the same: whose file is there first has it.
    fn make(path: &Path) -> Result<HandleKey, KeyError> {
        let failed = |source| KeyError::System { path: path.into(), source };
        let key = HandleKey::random().map_err(failed)?;
        match key.write(path) {
            Ok(()) => Ok(key),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                HandleKey::read(path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Writes it whole or not at all, and never over another one.
    fn write(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |dir| api::make_directory(dir, 0o755))?;
        let own = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = api::private_options().write(true).create_new(true).open(&own)?;
        let written = file.write_all(&self.0).and_then(|()| file.sync_all());
        let linked = written.and_then(|()| fs::hard_link(&own, path));
        fs::remove_file(&own)?;
        linked
    }
}

impl HandleTable {
    /// Handles of the export `name`, whose root directory is open as `root`.
    pub(crate) fn new(
        key: &HandleKey,
        name: &str,
        root: OwnedFd,
        directories: usize,
    ) -> HandleTable {
        let key = *blake3::keyed_hash(&key.0, name.as_bytes()).as_bytes();
        let known = sys::name_to_handle(root.as_fd())
            .and_then(|handle| sys::open_by_handle(root.as_fd(), &handle, OPEN_PATH));
        let mount = known.is_ok().then_some(root);
        let directories = NonZeroUsize::new(directories).unwrap_or(NonZeroUsize::MIN);
        HandleTable { key, mount, directories: Mutex::new(LruCache::new(directories)) }
    }

    /// The handle of a file.
    ///
    /// # Errors
    /// Errors of the backend; `ENAMETOOLONG` for a path that is too long for a handle.
    pub(crate) fn of(&self, node: &ExportNode, export: &Export) -> io::Result<Vec<u8>> {
        let mut handle = vec![0; MAC_LEN];
        if self.mount.is_some() && node.dev == export.root.dev {
            let KernelHandle { kind, bytes } = sys::name_to_handle(node.fd.as_fd())?;
            handle.push(BY_KERNEL);
            handle.extend_from_slice(&kind.to_le_bytes());
            handle.extend_from_slice(&bytes);
        } else {
            handle.push(BY_PATH);
            handle.extend_from_slice(&node.qid.path.to_le_bytes());
            handle.extend_from_slice(&node.path_below(export)?);
        }
        if handle.len() > ninep::dialect::HANDLE_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mac = self.mac(&handle[MAC_LEN..]);
        handle[..MAC_LEN].copy_from_slice(&mac);
        Ok(handle)
    }

    /// The file that a handle means. May wait for the backend, and leaves the calling thread
    /// acting as anybody.
    ///
    /// # Errors
    /// `ESTALE` if it is not a handle of this export, or if its file is gone.
    pub(crate) fn resolve(&self, handle: &[u8], export: &Export) -> io::Result<Arc<ExportNode>> {
        if let Some(node) = self.known(handle) {
            // One that was removed since is not what the handle means any more.
            if rustix::fs::fstat(&node.fd)?.st_nlink > 0 {
                return Ok(node);
            }
            self.directories.lock().expect("not poisoned").pop(handle);
            return Err(Errno::STALE.into());
        }
        let (mac, rest) = handle.split_at_checked(MAC_LEN).ok_or(Errno::STALE)?;
        if !same(mac, &self.mac(rest)) {
            return Err(Errno::STALE.into());
        }
        credentials::become_root();
        let node = Arc::new(self.open(rest, export).map_err(|error| {
            // Errors for handles that are no longer valid, and for a directory on the path that no
            // longer is one.
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Errno::STALE.into(),
                _ => error,
            }
        })?);
        if node.kind == FileType::Directory {
            // An open descriptor keeps it, so that the backend still finds it. All clients get
            // `ESTALE`.
            if !node.has_names() {
                return Err(Errno::STALE.into());
            }
            let mut directories = self.directories.lock().expect("not poisoned");
            directories.put(handle.into(), node.clone());
        }
        Ok(node)
    }

    /// A directory that was resolved lately.
    fn known(&self, handle: &[u8]) -> Option<Arc<ExportNode>> {
        self.directories.lock().expect("not poisoned").get(handle).cloned()
    }

    fn open(&self, rest: &[u8], export: &Export) -> io::Result<ExportNode> {
        let (sort, body) = rest.split_first().ok_or(Errno::STALE)?;
        if *sort == BY_KERNEL {
            let (kind, bytes) = body.split_first_chunk().ok_or(Errno::STALE)?;
            let handle = KernelHandle { kind: i32::from_le_bytes(*kind), bytes: bytes.to_vec() };
            let mount = self.mount.as_ref().ok_or(Errno::STALE)?;
            let fd = sys::open_by_handle(mount.as_fd(), &handle, OPEN_PATH)?;
            return ExportNode::new(fd, Some(export.root.dev));
        }
        let (path, below) = body.split_first_chunk().ok_or(Errno::STALE)?;
        let below = below.strip_prefix(b"/").ok_or(Errno::STALE)?;
        let below = if below.is_empty() { b"." } else { below };
        let fd = rustix::fs::openat2(&export.root.fd, below, OPEN_PATH, Mode::empty(), BENEATH)?;
        let node = ExportNode::new(fd, Some(export.root.dev))?;
        // Another file may have taken the name.
        if node.qid.path == u64::from_le_bytes(*path) { Ok(node) } else { Err(Errno::STALE.into()) }
    }

    fn mac(&self, rest: &[u8]) -> [u8; MAC_LEN] {
        let hash = blake3::keyed_hash(&self.key, rest);
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

/// Takes the same time whatever the bytes are, so that a code cannot be found by measuring.
fn same(one: &[u8], other: &[u8; MAC_LEN]) -> bool {
    one.iter().zip(other).fold(0, |found, (a, b)| found | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_is_nobody_elses_to_read() {
        let dir = std::env::temp_dir().join(format!("sluice-key-{}", std::process::id()));
        let path = dir.join("deep").join("handle.key");
        let LoadedHandleKey { key, is_old } = HandleKey::load(&path).unwrap();
        let again = HandleKey::load(&path).unwrap();
        assert_eq!(again.key.0, key.0);
        assert_eq!((is_old, again.is_old), (false, true));
        assert_ne!(HandleKey::random().unwrap().0, key.0);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        for no_key in [&b""[..], b"short", &[0; KEY_LEN], &[1; KEY_LEN + 1]] {
            fs::write(&path, no_key).unwrap();
            let error = HandleKey::load(&path).err().unwrap();
            assert!(matches!(error, KeyError::NoKey { bytes, .. } if bytes == no_key.len()));
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
