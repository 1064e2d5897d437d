//! A directory that is served: looking up names below it, and never above.
//!
//! Every name is opened relative to a descriptor with RESOLVE_BENEATH and
//! RESOLVE_NO_MAGICLINKS, one component at a time and never through a symbolic
//! link: the client's kernel follows links, not we. Paths of any depth work,
//! because no path is ever put together.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use api::ProjectsKnown;
use bounds::Holder;
use ninep::Qid;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::bounds::{Charge, SharedBound, SharedBounds};
use crate::handles::HandleTable;
use crate::hard_links::{FileKey, HardLinkTable};
use crate::sys::{self, Project};
use crate::target::Target;

/// One `[[export]]` section of the configuration, opened.
pub(crate) struct Export {
    pub(crate) name: Arc<str>,
    pub(crate) dir: std::path::PathBuf,
    pub(crate) readonly: bool,
    pub(crate) root: Arc<ExportNode>,
    /// Its directory, open for as long as it is exported: syncfs tells of failures since then.
    pub(crate) open: OwnedFd,
    /// The dispatcher that its requests pass.
    pub(crate) target: Arc<Target>,
    pub(crate) handles: HandleTable,
    /// The project of the root directory, where the file system has them.
    pub(crate) project: Option<Project>,
    /// Of which files the project is known.
    pub(crate) projects: ProjectsKnown,
    /// What leases mean for its requests.
    pub(crate) leases: ExportLeases,
    /// The names of files that have several.
    pub(crate) links: Arc<HardLinkTable>,
}

/// What leases mean for the requests of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExportLeases {
    /// Whether mounts get leases of its files.
    pub(crate) grants: bool,
    /// Whether its changes may need leases back: it, or an export that shares files with it, grants some.
    pub(crate) recalls: bool,
}

/// A file or directory that a fid refers to.
pub(crate) struct ExportNode {
    /// O_PATH, or opened for reading or writing.
    pub(crate) fd: OwnedFd,
    pub(crate) kind: FileType,
    pub(crate) qid: Qid,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// How many names it had when it was found.
    names: u32,
    /// Whether names in it that differ in bytes may be one, once that is known.
    pub(crate) folds_names: OnceLock<bool>,
    /// Holder of its descriptor, from the first fid on.
    charge: Mutex<Option<Charge>>,
}

const OPEN_PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// Fields of statx that a qid needs, and the number of names.
const QID_MASK: StatxFlags =
    StatxFlags::TYPE.union(StatxFlags::INO).union(StatxFlags::NLINK).union(TIMES);
const TIMES: StatxFlags = StatxFlags::CTIME.union(StatxFlags::MTIME);
const EMPTY: &CStr = c"";
/// Directories deeper than this below an export cannot be left upwards.
const DEPTH_MAX: usize = 65_536;

impl ExportNode {
    /// Wraps a descriptor; `export_dev` is the device of the export's root.
    pub(crate) fn new(fd: OwnedFd, export_dev: Option<u64>) -> io::Result<ExportNode> {
        let stat = rustix::fs::statx(&fd, EMPTY, AtFlags::EMPTY_PATH, QID_MASK)?;
        let dev = device(&stat);
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let mix = if export_dev.is_none_or(|d| d == dev) { 0 } else { mount_mix(fd.as_fd()) };
        let qid = qid_of(&stat, mix);
        let (ino, names) = (stat.stx_ino, stat.stx_nlink);
        let (charge, folds_names) = (Mutex::default(), OnceLock::new());
        Ok(ExportNode { qid, kind, dev, ino, names, folds_names, charge, fd })
    }

    /// Charges the descriptor to a holder, if it has none; returns whether that is new.
    ///
    /// # Errors
    /// `ENFILE` if the holder, its peer or all have as many as they may.
    pub(crate) fn charge(
        &self,
        holder: impl FnOnce() -> Holder,
        bounds: &Arc<SharedBounds>,
    ) -> Result<bool, Errno> {
        let mut charge = self.charge.lock().expect("not poisoned");
        let is_new = charge.is_none();
        if is_new {
            *charge = Some(bounds.charge(SharedBound::OpenFiles, holder(), 1)?);
        }
        Ok(is_new)
    }

    /// Is paid for by what was paid for the node that it replaces; whether there was anything.
    pub(crate) fn inherit(&self, old: &ExportNode) -> bool {
        let charge = old.charge.lock().expect("not poisoned").take();
        let pays = charge.is_some();
        *self.charge.lock().expect("not poisoned") = charge;
        pays
    }

    /// The file under a name of this directory, which must not be `.` or `..`.
    pub(crate) fn lookup(&self, name: &[u8], export: &Export) -> io::Result<ExportNode> {
        let fd = rustix::fs::openat2(&self.fd, name, OPEN_PATH, Mode::empty(), BENEATH)?;
        ExportNode::new(fd, Some(export.root.dev))
    }

    /// Whether a name in this directory is that file, which is not opened for it.
    ///
    /// # Errors
    /// `EINVAL` for `.` and `..`; else what the backend says.
    pub(crate) fn names(&self, name: &[u8], file: &ExportNode) -> Result<bool, Errno> {
        if let b"." | b".." = name {
            return Err(Errno::INVAL);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&self.fd, name, flags, StatxFlags::INO)?;
        Ok((device(&stat), stat.stx_ino) == (file.dev, file.ino))
    }

    /// The directory above this one; the export's root is above itself.
    pub(crate) fn parent(&self, export: &Export) -> io::Result<ExportNode> {
        let up = |from: BorrowedFd<'_>| {
            let fd = rustix::fs::openat(from, c"..", OPEN_PATH, Mode::empty())?;
            ExportNode::new(fd, Some(export.root.dev))
        };
        if self.same_file(&export.root) {
            return up_to_root(export);
        }
        let parent = up(self.fd.as_fd())?;
        if parent.same_file(&export.root) {
            return Ok(parent);
        }
        // A directory may have been moved out of the export on the file system itself: check that
        // the root is above.
        let mut above = up(parent.fd.as_fd())?;
        for _ in 0..DEPTH_MAX {
            if above.same_file(&export.root) {
                return Ok(parent);
            }
            let next = up(above.fd.as_fd())?;
            if next.same_file(&above) {
                break;
            }
            above = next;
        }
        Err(Errno::XDEV.into())
    }

    pub(crate) fn same_file(&self, other: &ExportNode) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }

    /// Returns the key that identifies the file among present files.
    pub(crate) fn key(&self) -> FileKey {
        (self.dev, self.ino)
    }

    /// Whether it had more than one name when it was found. A directory never has.
    pub(crate) fn has_several_names(&self) -> bool {
        self.names > 1 && self.kind != FileType::Directory
    }

    /// Whether it had any name when it was found.
    pub(crate) fn has_names(&self) -> bool {
        self.names > 0
    }

    /// Returns how many names the file has now; 0 if that cannot be read.
    pub(crate) fn names_now(&self) -> u32 {
        let stat = rustix::fs::statx(&self.fd, EMPTY, AtFlags::EMPTY_PATH, StatxFlags::NLINK);
        stat.map_or(0, |stat| stat.stx_nlink)
    }

    /// The file's project. That of one that is open costs a call; any other is asked for only if
    /// it is `wanted`, and known where the kernel tells it without an open.
    pub(crate) fn project(&self, wanted: bool) -> Option<Project> {
        match sys::project(self.fd.as_fd()) {
            Err(error) if wanted && error.raw_os_error() == Some(libc::EBADF) => {
                sys::project_of_path(self.proc_path().as_c_str()).ok()
            }
            project => project.ok(),
        }
    }

    /// Opens the file itself, whatever its names are by now. The caller has become the requesting
    /// user, and the kernel checks that user's permission.
    pub(crate) fn reopen(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::open(self.proc_path().as_c_str(), flags, Mode::empty())?)
    }

    /// A path that names this very file to calls that take no descriptor.
    pub(crate) fn proc_path(&self) -> ProcPath {
        ProcPath::new(self.fd.as_raw_fd())
    }

    /// All that getattr answers.
    pub(crate) fn stat(&self) -> io::Result<Statx> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(rustix::fs::statx(&self.fd, EMPTY, AtFlags::EMPTY_PATH, mask)?)
    }

    /// The path below the export's root, beginning with `/`; an error if it is
    /// longer than the kernel can tell (PATH_MAX) or the file is outside by now.
    pub(crate) fn path_below(&self, export: &Export) -> io::Result<Vec<u8>> {
        let read = |node: &ExportNode| {
            rustix::fs::readlink(node.proc_path().as_c_str(), Vec::new()).map(|p| p.into_bytes())
        };
        let (root, path) = (read(&export.root)?, read(self)?);
        let below = if root == b"/" { Some(&path[..]) } else { path.strip_prefix(&root[..]) };
        match below {
            Some([]) => Ok(b"/".to_vec()),
            Some(below) if below[0] == b'/' => Ok(below.to_vec()),
            _ => Err(Errno::XDEV.into()),
        }
    }
}

fn up_to_root(export: &Export) -> io::Result<ExportNode> {
    let fd = rustix::fs::openat(&export.root.fd, c".", OPEN_PATH, Mode::empty())?;
    ExportNode::new(fd, Some(export.root.dev))
}

/// Opens a new or existing file by name in a directory.
pub(crate) fn open_at(
    dir: &ExportNode,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::openat2(&dir.fd, name, flags, mode, BENEATH)?)
}

pub(crate) fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

/// The qid of a file: its path is the inode number, which stays over restarts;
/// its version changes with every change of data or attributes.
pub(crate) fn qid_of(stat: &Statx, mix: u64) -> Qid {
    let kind = qid_kind(FileType::from_raw_mode(stat.stx_mode.into()));
    let time = stat.stx_ctime.tv_sec as u64 ^ u64::from(stat.stx_ctime.tv_nsec).rotate_left(32);
    let other = stat.stx_mtime.tv_sec as u64 ^ u64::from(stat.stx_mtime.tv_nsec) << 16;
    let hash = (time ^ other.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Version 0 would mean "never cache".
    Qid { kind, version: (hash >> 32) as u32 | 1, path: stat.stx_ino ^ mix }
}

pub(crate) fn qid_kind(kind: FileType) -> u8 {
    match kind {
        FileType::Directory => ninep::QTDIR,
        FileType::Symlink => ninep::QTSYMLINK,
        _ => ninep::QTFILE,
    }
}

/// Keeps inodes of another file system mounted below the export apart from the
/// export's own; from the file system's id, since device numbers change.
pub(crate) fn mount_mix(fd: BorrowedFd<'_>) -> u64 {
    let id = rustix::fs::fstatvfs(fd).map_or(0, |fs| fs.f_fsid);
    (id | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ff00_0000_0000
}

/// `/proc/self/fd/N` without an allocation.
pub(crate) struct ProcPath {
    text: [u8; 32],
    len: usize,
}

impl ProcPath {
    fn new(fd: i32) -> ProcPath {
        use std::io::Write;
        let mut text = [0; 32];
        let mut rest = &mut text[..];
        write!(rest, "/proc/self/fd/{fd}").expect("a descriptor's number has at most 10 digits");
        let len = 32 - rest.len();
        ProcPath { text, len }
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.text[..=self.len]).expect("zeros follow the text")
    }
}
