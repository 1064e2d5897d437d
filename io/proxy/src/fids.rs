//! State of a client's fids.
//!
//! A [`OpenFid`] never changes: opening or renaming puts a new one in its place, so a
//! request that is in flight keeps the one it began with.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bounds::Holder;
use model::Identity;
use rustc_hash::FxHashMap;
use rustix::fs::OFlags;
use rustix::io::Errno;
use sched::SubjectId;

use crate::bounds::{Charge, SharedBound, SharedBounds};
use crate::credentials::FsCredentials;
use crate::export::{Export, ExportNode};
use crate::location::Location;
use crate::locks::FidLocks;
use crate::trace::AccessHistory;
use crate::writes::WriteFile;

/// The fids of a session, by number. A mount's are those of all its connections.
pub(crate) type FidTable = Arc<Mutex<FxHashMap<u32, Arc<OpenFid>>>>;

/// One fid of one session.
pub(crate) struct OpenFid {
    pub(crate) user: Arc<ProxyUser>,
    pub(crate) node: Arc<ExportNode>,
    /// The directory and the name by which it was reached; `None` for the root.
    pub(crate) entry: Option<FidEntry>,
    pub(crate) role: FidState,
    /// The subject that pays, as bits. Changes when rules are loaded: its file is looked up again.
    subject: AtomicU64,
    pub(crate) misses: ReadMisses,
    /// Holder of a fid without a descriptor of its own.
    charge: Option<Charge>,
}

/// Whether the page cache lately had what was read through a fid: misses weigh more than
/// hits, since a fast device may have fetched what looks like a hit.
#[derive(Default)]
pub(crate) struct ReadMisses(AtomicU32);

/// The name that Tremove and Trename of a fid mean.
#[derive(Clone)]
pub(crate) struct FidEntry {
    pub(crate) dir: Arc<ExportNode>,
    pub(crate) name: Box<[u8]>,
}

/// State of a fid.
pub(crate) enum FidState {
    /// Walked to, not opened.
    Path,
    /// A file opened for reading or writing.
    File {
        flags: OFlags,
        writing: WriteFile,
        locks: Arc<FidLocks>,
        accesses: AccessHistory,
        /// Held while the descriptor's position is used.
        position: Mutex<()>,
    },
    /// An open directory. The lock keeps two reads from moving one cursor.
    Dir(Mutex<()>),
    /// The value of an extended attribute, or the list of their names, as it was at the walk.
    XattrRead { value: Box<[u8]>, _charge: Charge },
    /// An extended attribute that is set when the fid is clunked.
    XattrWrite(Mutex<XattrWrite>),
}

/// A value on its way to an extended attribute.
pub(crate) struct XattrWrite {
    pub(crate) name: Box<[u8]>,
    pub(crate) size: usize,
    pub(crate) flags: u32,
    pub(crate) value: Vec<u8>,
    /// Holder of the memory, from the start.
    pub(crate) _charge: Charge,
}

/// One attach: a user, a job, an export.
pub(crate) struct ProxyUser {
    pub(crate) export: Arc<Export>,
    pub(crate) credentials: FsCredentials,
    pub(crate) identity: Identity,
    /// The name that the client gave; empty if it gave none.
    pub(crate) uname: Box<str>,
    /// Held until the last fid goes.
    subjects: Mutex<UserSubjects>,
    /// Its number in the trace that is being recorded; 0 before its first request.
    pub(crate) traced: AtomicU32,
}

/// The interned subjects of one user, one for each location met.
#[derive(Default)]
struct UserSubjects {
    known: BTreeMap<Location, SubjectId>,
    /// How many have a project and no mark, and how many have a mark.
    projects: usize,
    marks: usize,
}

/// A bound that is reached with a subject.
#[derive(Debug, PartialEq, Eq)]
enum FullSubjects {
    Projects,
    Marks,
}

/// The most subjects of one user that are kept apart by project and have no mark.
const PROJECTS_MAX: usize = 4096;
/// The most subjects of one user that have a mark, in whatever project. Those of directories that no
/// entitlement names any more count, too, as long as the user is attached.
const MARKS_MAX: usize = 8192;
/// The most bytes of a user's name that are kept, to be shown.
const UNAME_MAX: usize = 64;

impl OpenFid {
    pub(crate) fn new(
        user: Arc<ProxyUser>,
        node: Arc<ExportNode>,
        entry: Option<FidEntry>,
        role: FidState,
        subject: SubjectId,
    ) -> OpenFid {
        OpenFid {
            user,
            node,
            entry,
            role,
            subject: AtomicU64::new(subject.to_bits()),
            misses: ReadMisses::default(),
            charge: None,
        }
    }

    pub(crate) fn subject(&self) -> SubjectId {
        SubjectId::from_bits(self.subject.load(Ordering::Relaxed))
    }

    pub(crate) fn set_subject(&self, subject: SubjectId) {
        self.subject.store(subject.to_bits(), Ordering::Relaxed);
    }

    /// Has its user hold its descriptors; a fid that brings none counts as one. `pays`: one has
    /// been taken over.
    ///
    /// # Errors
    /// `ENFILE` at a bound.
    pub(crate) fn charge(
        &mut self,
        bounds: &Arc<SharedBounds>,
        mut pays: bool,
    ) -> Result<(), Errno> {
        let (root, user) = (&self.user.export.root, &self.user);
        let nodes = [Some(&self.node), self.entry.as_ref().map(|entry| &entry.dir)];
        for node in nodes.into_iter().flatten().filter(|node| !Arc::ptr_eq(node, root)) {
            pays |= node.charge(|| user.holder(), bounds)?;
        }
        if !pays {
            self.charge = Some(bounds.charge(SharedBound::OpenFiles, user.holder(), 1)?);
        }
        Ok(())
    }

    /// Its session is over: no locks are taken through it any more.
    pub(crate) fn end_locks(&self) {
        if let FidState::File { locks, .. } = &self.role {
            locks.end();
        }
    }

    /// Whether it has been opened, as a file or as an attribute.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.role, FidState::Path)
    }
}

impl ReadMisses {
    const MISS: u32 = 8;
    /// Three misses in a row.
    const MANY: u32 = 3 * ReadMisses::MISS;
    const MOST: u32 = 4 * ReadMisses::MISS;

    pub(crate) fn count(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store((now + ReadMisses::MISS).min(ReadMisses::MOST), Ordering::Relaxed);
    }

    /// Notes a read that the page cache served: eight make up for a miss.
    pub(crate) fn make_up(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now != 0 {
            self.0.store(now - 1, Ordering::Relaxed);
        }
    }

    /// From here on reads wait for the device from the start: trying the page cache for them
    /// would have the kernel fetch them, whosever turn it is.
    pub(crate) fn are_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= ReadMisses::MANY
    }
}

impl ProxyUser {
    /// `uname` is cut to [`UNAME_MAX`].
    pub(crate) fn new(
        export: Arc<Export>,
        credentials: FsCredentials,
        identity: Identity,
        uname: &[u8],
    ) -> ProxyUser {
        let uname = String::from_utf8_lossy(&uname[..uname.len().min(UNAME_MAX)]).into();
        let (subjects, traced) = (Mutex::default(), AtomicU32::new(0));
        ProxyUser { export, credentials, identity, uname, subjects, traced }
    }

    /// Returns the holder of the files that this user opens.
    pub(crate) fn holder(&self) -> Holder {
        Holder { peer: self.identity.nid.clone(), uid: Some(self.identity.uid) }
    }

    /// Returns the subject of this user's requests on a file at `location`. For a user with
    /// [`MARKS_MAX`] subjects that have a mark, further marks are not known; nor are further projects
    /// beyond [`PROJECTS_MAX`].
    pub(crate) fn subject(&self, location: Location) -> SubjectId {
        let mut subjects = self.subjects.lock().expect("not poisoned");
        let (subject, full) = subjects.find(location, |location| {
            let who = Identity { projid: location.project, ..self.identity.clone() };
            let (target, place) = (&self.export.target, location.place.clone());
            target.gate.intern(target.id, &who, place, &self.export.name)
        });
        if let Some(full) = full {
            let (uid, export) = (self.identity.uid, &*self.export.name);
            tracing::warn!(uid, export, ?full, "further places of a user are not distinguished");
        }
        subject
    }

    /// The subject for a file that was just walked to or opened, by `name` if that is known; asks
    /// for its path only if a rule or an entitlement does. A path too long to tell lies where its parent lies.
    pub(crate) fn subject_of(
        &self,
        node: &ExportNode,
        name: Option<&[u8]>,
        parent: SubjectId,
    ) -> SubjectId {
        let Some(place) = self.export.place_of(node, name) else { return parent };
        self.subject(self.export.location(node, place))
    }
}

impl UserSubjects {
    /// The subject of a location, or of as much of it as there is room for; and the bound that is
    /// reached with it, if one is.
    fn find(
        &mut self,
        mut location: Location,
        intern: impl FnOnce(&Location) -> SubjectId,
    ) -> (SubjectId, Option<FullSubjects>) {
        if let Some(subject) = self.known.get(&location) {
            return (*subject, None);
        }
        if self.marks >= MARKS_MAX {
            location.place.mark = None;
        }
        if self.projects >= PROJECTS_MAX && location.place.mark.is_none() {
            location.project = None;
        }
        let (count, most, full) = match (&location.place.mark, location.project) {
            (Some(_), _) => (&mut self.marks, MARKS_MAX, FullSubjects::Marks),
            (None, Some(_)) => (&mut self.projects, PROJECTS_MAX, FullSubjects::Projects),
            (None, None) => (&mut 0, usize::MAX, FullSubjects::Projects),
        };
        match self.known.entry(location) {
            Entry::Occupied(known) => (*known.get(), None),
            Entry::Vacant(new) => {
                *count += 1;
                let full = (*count == most).then_some(full);
                let subject = intern(new.key());
                (*new.insert(subject), full)
            }
        }
    }
}

impl Drop for ProxyUser {
    fn drop(&mut self) {
        let subjects = std::mem::take(self.subjects.get_mut().expect("not poisoned"));
        self.export.target.gate.release(subjects.known.into_values());
    }
}

#[cfg(test)]
mod tests {
    use model::{Directory, FilePlace};

    use super::*;

    /// Finds subjects whose numbers are those of their locations; returns the full bounds.
    fn find_all(
        subjects: &mut UserSubjects,
        locations: impl Iterator<Item = Location>,
    ) -> Vec<FullSubjects> {
        let mut last = subjects.known.len() as u64;
        let full = locations.filter_map(|location| {
            let intern = |_: &Location| {
                last += 1;
                SubjectId::from_bits(last)
            };
            subjects.find(location, intern).1
        });
        full.collect()
    }

    fn marked(nth: usize) -> Location {
        let mark = Directory::new(format!("x/{nth}").as_bytes());
        Location { place: FilePlace { mark, ..FilePlace::default() }, project: None }
    }

    fn in_project(nth: usize) -> Location {
        Location { project: Some(nth as u32), ..Location::default() }
    }

    #[test]
    fn marks_take_no_room_of_projects_and_each_full_bound_is_noted_once() {
        let mut subjects = UserSubjects::default();
        let marks = (0..2 * MARKS_MAX).map(marked);
        assert_eq!(find_all(&mut subjects, marks), [FullSubjects::Marks]);
        let projects = (0..2 * PROJECTS_MAX).map(in_project);
        assert_eq!(find_all(&mut subjects, projects), [FullSubjects::Projects]);
        assert!(subjects.known.contains_key(&in_project(PROJECTS_MAX - 1)));
        assert!(!subjects.known.contains_key(&in_project(PROJECTS_MAX)));
        // And the one of those without a place of their own.
        assert_eq!(subjects.known.len(), MARKS_MAX + PROJECTS_MAX + 1);
        let again = (0..MARKS_MAX).map(marked).chain((0..PROJECTS_MAX).map(in_project));
        assert_eq!(find_all(&mut subjects, again), []);
    }
}
