//! From a file to a fid of the server: walked to, and cached for the next request.
//!
//! ```text
//!   file, uid ─► kept? ─┬─ checked lately: its fid
//!                       ├─ not lately: Tgetattr, the same qid? its fid
//!                       └─ no, or another ─► Twalk by every path that it may have
//!                                              ├─ the file's qid: kept
//!                                              └─ none: ESTALE
//! ```
//!
//! Some servers hold a file by its fid, others only a path. What is said of a file is believed
//! if the qid at the end is the file's; so what others rename or replace is stale, and is
//! never taken for what it was. Between looking and doing a server that goes by paths leaves
//! a gap, as it does for its own clients.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fuse::Errno;
use ninep::{Attributes, Fid, NameList, Qid, Reply, Request, WALK_NAMES_MAX, getattr};

use super::files::UpstreamFile;
use super::life::UpstreamSession;
use super::lru::Lru;
use super::peer::{UpstreamError, UpstreamFid, UpstreamOp};
use crate::session::lock;

/// Fids that were walked to.
#[derive(Debug)]
pub(super) struct WalkedFid {
    /// By a file's serial and a user.
    cached: Mutex<Lru<(u64, u32), KeptWalk>>,
    /// Read by renames in flight, so that others can wait for their ends.
    pub(super) moving: RwLock<()>,
}

#[derive(Debug)]
struct KeptWalk {
    fid: Arc<UpstreamFid>,
    /// When it was known to lead to its file.
    verified_at: Instant,
}

impl WalkedFid {
    pub(super) fn new() -> WalkedFid {
        WalkedFid { cached: Mutex::new(Lru::new(CACHED_FIDS_MAX)), moving: RwLock::default() }
    }

    /// Keeps a fid that leads to a file.
    pub(super) fn insert(&self, file: &UpstreamFile, uid: u32, held: Arc<UpstreamFid>) {
        let gone = lock(&self.cached)
            .insert((file.serial, uid), KeptWalk { fid: held, verified_at: Instant::now() });
        // Dropped outside of the lock: that sends.
        drop(gone);
    }

    /// The file is not where it was.
    pub(super) fn forget(&self, serial: u64) {
        let gone = lock(&self.cached).remove_range((serial, 0)..=(serial, u32::MAX));
        drop(gone);
    }

    /// A directory has moved, and with it everything below.
    pub(super) fn forget_all(&self) {
        let gone = std::mem::replace(&mut *lock(&self.cached), Lru::new(CACHED_FIDS_MAX));
        drop(gone);
    }

    /// The fid of a file, if it may be believed without asking; else with `false`.
    fn get(&self, file: &UpstreamFile, uid: u32) -> Option<(Arc<UpstreamFid>, bool)> {
        let mut kept = lock(&self.cached);
        let KeptWalk { fid: held, verified_at: looked } = kept.get(&(file.serial, uid))?;
        Some((held.clone(), looked.elapsed() < BELIEVED))
    }
}

impl UpstreamSession {
    /// Calls `op` with a fid of a file. If that says that the file is gone, or `op` finds a
    /// different file (`ESTALE`), the file is walked to again, and once more after a rename in
    /// flight.
    pub(super) fn with_file<T>(
        &self,
        job: &UpstreamOp,
        file: &UpstreamFile,
        uid: u32,
        mut op: impl FnMut(Fid) -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        for attempt in 0..3 {
            if attempt == 2 {
                drop(self.walked.moving.write().unwrap_or_else(PoisonError::into_inner));
            }
            let done = self.walk_to(job, file, uid).and_then(|held| op(held.fid));
            match done {
                Err(UpstreamError::Errno(Errno::NOENT | Errno::STALE)) => {
                    self.walked.forget(file.serial)
                }
                done => return done,
            }
        }
        Err(Errno::STALE.into())
    }

    /// A fid of a directory for what names something in it: `ENOENT` may be about the name.
    pub(super) fn walk_to(
        &self,
        job: &UpstreamOp,
        file: &UpstreamFile,
        uid: u32,
    ) -> Result<Arc<UpstreamFid>, UpstreamError> {
        match self.walked.get(file, uid) {
            Some((held, true)) => return Ok(held),
            Some((held, false)) => match self.attributes(job, held.fid) {
                Ok(told) if file.is(told.qid) => {
                    self.walked.insert(file, uid, held.clone());
                    return Ok(held);
                }
                Err(fail @ (UpstreamError::Disconnected | UpstreamError::Errno(Errno::INTR))) => {
                    return Err(fail);
                }
                _ => {}
            },
            None => {}
        }
        let mut why = Errno::STALE.into();
        for path in self.files()?.paths(file) {
            match self.walk_path(job, &path, uid) {
                Ok((held, qid)) if qid.is_none_or(|qid| file.is(qid)) => {
                    self.walked.insert(file, uid, held.clone());
                    return Ok(held);
                }
                Ok(_) | Err(UpstreamError::Errno(Errno::NOENT | Errno::NOTDIR)) => {}
                Err(fail) => why = fail,
            }
        }
        Err(why)
    }

    /// Walks from one fid by names, none to copy it. Gives the qid of the last name.
    pub(super) fn walk(
        &self,
        job: &UpstreamOp,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(UpstreamFid, Option<Qid>), UpstreamError> {
        let (held, found) = self.peer.make(|fid| self.walk_some(job, from, fid, names))?;
        match found.len() == names.len() {
            true => Ok((held, found.last().copied())),
            // Some servers keep a fid of a part of the way.
            false => Err(Errno::NOENT.into()),
        }
    }

    /// A file's attributes, those that every server has.
    pub(super) fn attributes(
        &self,
        job: &UpstreamOp,
        fid: Fid,
    ) -> Result<Attributes, UpstreamError> {
        let request = Request::Getattr { fid, mask: getattr::BASIC };
        self.peer.call(job, request, |reply| match reply {
            Reply::Getattr(told) => Some(basic(told)),
            _ => None,
        })
    }

    /// Walks from the root. The root's qid is not returned: attaching has compared it.
    fn walk_path(
        &self,
        job: &UpstreamOp,
        path: &[u8],
        uid: u32,
    ) -> Result<(Arc<UpstreamFid>, Option<Qid>), UpstreamError> {
        let root = self.root_of(uid)?;
        if path.is_empty() {
            return Ok((root, None));
        }
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let mut at: Option<UpstreamFid> = None;
        let mut last = None;
        for names in names.chunks(WALK_NAMES_MAX) {
            let from = at.as_ref().map_or(root.fid, |held| held.fid);
            let (held, qid) = self.walk(job, from, names)?;
            (at, last) = (Some(held), qid);
        }
        let held = at.ok_or(Errno::NOENT)?;
        Ok((Arc::new(held), last))
    }

    fn walk_some(
        &self,
        job: &UpstreamOp,
        fid: Fid,
        newfid: Fid,
        names: &[&[u8]],
    ) -> Result<Vec<Qid>, UpstreamError> {
        let mut space = Vec::new();
        let names =
            NameList::pack(names.iter().copied(), &mut space).map_err(|_| Errno::NAMETOOLONG)?;
        self.peer.call(job, Request::Walk { fid, newfid, names }, |reply| match reply {
            Reply::Walk { qids } => Some(qids.to_vec()),
            _ => None,
        })
    }
}

/// Attributes without what the peer may say in bits that mean something here.
pub(super) fn basic(told: Attributes) -> Attributes {
    Attributes { valid: told.valid & getattr::BASIC, generation: 0, ..told }
}

/// Fids at a time: more files than programs use at once, and no burden to a server.
const CACHED_FIDS_MAX: usize = 4096;
/// How long a fid is believed to lead to its file: as long as the kernel believes names.
const BELIEVED: Duration = Duration::from_secs(1);
