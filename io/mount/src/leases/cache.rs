//! What is kept under leases: attributes, names, listings, and files that are open for the next
//! opener.
//!
//! ```text
//!   reply, granted ─► keep_… ─► LeasedFile ─► attributes, name, listing ─► an answer without a message
//!                                  │ recalled, changed from here, given back, the term is over
//!                                  ▼
//!                               Dropped: what the kernel is to be told, and what is to be closed
//! ```
//!
//! Invariants: something is kept only while its lease is held; nothing is kept of what a call of this
//! mount is changing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leases::{HeldLeases, LeaseKinds, LeaseRequestId, LeaseTerms, ObjectId};
use model::Time;
use ninep::dialect::LeaseGrant;
use ninep::{Attributes, QTDIR};
use rustc_hash::FxHashMap;

use super::names::{KERNEL_NAME_MAX, KeptName, LeasedNames, NameFound, NamesSize, UsedName};
use crate::files::OpenFile;
use crate::session::SessionIdentity;

/// The leases of a mount and what it keeps under them.
#[derive(Debug)]
pub(crate) struct LeaseCache {
    pub(crate) held: HeldLeases,
    files: FxHashMap<u64, LeasedFile>,
    /// Calls of this mount that change a file, and are not answered.
    changing: FxHashMap<u64, u32>,
    changing_names: FxHashMap<(u64, Arc<[u8]>), u32>,
    /// The directories of these names.
    changing_directories: FxHashMap<u64, u32>,
    names: NamesSize,
    /// The paths of files that are open for nobody, in the order in which they were closed.
    parked: BTreeMap<u64, u64>,
    last_parked: u64,
    /// Numbers spans in which READ is held without a break.
    spans: u64,
    /// Files whose pages are being dropped for recalls.
    page_drops: FxHashMap<u64, PageDrop>,
}

/// Recalls of one file that are answered once its pages are dropped.
#[derive(Debug, Default)]
struct PageDrop {
    recalls: u32,
    handles: Vec<Arc<[u8]>>,
}

/// What is kept of one file, by the path of its qid.
#[derive(Debug, Default)]
struct LeasedFile {
    handles: Vec<Arc<[u8]>>,
    attributes: Option<KeptAttributes>,
    names: LeasedNames,
    /// The span in which READ is held; 0 without it.
    read_span: u64,
    parked: Vec<ParkedFile>,
}

/// A file that is open for nobody, and its place in the order in which they were closed.
#[derive(Debug)]
struct ParkedFile {
    number: u64,
    file: Arc<OpenFile>,
}

/// Attributes, and when they were asked for, as `WriteBehind::now` says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptAttributes {
    pub(crate) attributes: Attributes,
    pub(crate) requested_at: u64,
}

/// A file as a reply names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileKey<'a> {
    /// The path of its qid.
    pub(crate) path: u64,
    pub(crate) handle: &'a [u8],
}

/// What is to be done about leases that are not held any more.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// Handles of files whose attributes the kernel may believe.
    pub(crate) attributes: Vec<Arc<[u8]>>,
    /// Handles of files whose pages it may have.
    pub(crate) pages: Vec<Arc<[u8]>>,
    /// Names that it may use without asking.
    pub(crate) names: Vec<BelievedName>,
    /// Files that are open at the proxy for nobody.
    pub(crate) parked: Vec<Arc<OpenFile>>,
}

/// A name that the kernel may use without asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BelievedName {
    /// The path of the directory's qid.
    pub(crate) path: u64,
    /// A handle of the directory.
    pub(crate) directory: Arc<[u8]>,
    pub(crate) name: Arc<[u8]>,
    /// It asks again from then on.
    pub(crate) until: Time,
    /// Of a directory: when the kernel may have asked last whether it still is.
    pub(crate) revalidated: Option<Time>,
}

impl LeaseCache {
    pub(crate) fn new(terms: LeaseTerms) -> LeaseCache {
        LeaseCache {
            held: HeldLeases::new(terms),
            files: FxHashMap::default(),
            changing: FxHashMap::default(),
            changing_names: FxHashMap::default(),
            changing_directories: FxHashMap::default(),
            page_drops: FxHashMap::default(),
            names: NamesSize::default(),
            parked: BTreeMap::new(),
            last_parked: 0,
            spans: 0,
        }
    }

    /// The attributes of a file, and until when they may be believed.
    pub(crate) fn attributes(&mut self, path: u64, now: Time) -> Option<(KeptAttributes, Time)> {
        let kept = self.files.get(&path)?.attributes?;
        let rest = self.held.believes(object(path), LeaseKinds::ATTRIBUTES, now)?;
        Some((kept, now + rest))
    }

    /// What a name of a directory leads to.
    pub(crate) fn name(&mut self, directory: u64, name: &[u8], now: Time) -> Option<KeptName> {
        let kept = self.files.get(&directory)?.names.leads_to(name)?.clone();
        self.held.believes(object(directory), LeaseKinds::NAMES, now)?;
        Some(kept)
    }

    /// Until when the kernel may use a name that is kept; `None` if it has to ask each time. From now on a
    /// recall of the name ends with a notice. With `by_revalidation` the kernel may have asked, without a lock, whether
    /// the name still is what it was.
    pub(crate) fn believe_name(
        &mut self,
        directory: u64,
        name: &[u8],
        by_revalidation: bool,
        now: Time,
    ) -> Option<Time> {
        if self.is_over_full() {
            return None;
        }
        let end = now + self.held.believes(object(directory), LeaseKinds::NAMES, now)?;
        let is_directory = match self.files.get(&directory)?.names.leads_to(name)? {
            KeptName::Absent => false,
            // What is not known may be one.
            KeptName::File(file, _) => {
                let kept = self.files.get(file).and_then(|file| file.attributes);
                kept.is_none_or(|kept| kept.attributes.qid.kind & QTDIR != 0)
            }
        };
        let found = NameFound { is_directory, by_revalidation };
        self.files.get_mut(&directory)?.names.believe(name, found, end, now)
    }

    /// The entries of a directory after an offset, and when they were asked for.
    pub(crate) fn listing(
        &mut self,
        directory: u64,
        offset: u64,
        now: Time,
    ) -> Option<(Arc<[u8]>, u64)> {
        let kept = self.files.get(&directory)?.names.listing(offset)?;
        self.held.believes(object(directory), LeaseKinds::NAMES, now)?;
        Some(kept)
    }

    /// Counts what a reply grants of a file: the kinds under which what the reply says may be kept.
    pub(crate) fn granted(
        &mut self,
        request: LeaseRequestId,
        file: FileKey<'_>,
        grant: LeaseGrant,
    ) -> LeaseKinds {
        let kinds = LeaseKinds::from_bits(grant.kinds);
        if kinds.is_empty() {
            return kinds;
        }
        let fresh = self.held.granted(request, object(file.path), kinds, grant.number);
        if !fresh.is_empty() {
            let kept = self.files.entry(file.path).or_default();
            if !kept.handles.iter().any(|handle| **handle == *file.handle)
                && kept.handles.len() < HANDLES_MAX
            {
                kept.handles.push(file.handle.into());
            }
        }
        fresh
    }

    /// Keeps the attributes of a file, if ATTRIBUTES is among these kinds of this reply and no call
    /// of this mount changes them. Returns until when they may be believed.
    pub(crate) fn keep_attributes(
        &mut self,
        file: FileKey<'_>,
        fresh: LeaseKinds,
        kept: KeptAttributes,
        now: Time,
    ) -> Option<Time> {
        let is_changing = self.changing.contains_key(&file.path);
        if !fresh.contains(LeaseKinds::ATTRIBUTES) || is_changing {
            return None;
        }
        self.files.get_mut(&file.path)?.attributes = Some(kept);
        Some(now + self.held.rest(now)?)
    }

    /// Keeps what a name leads to, if NAMES is among these kinds of this reply and no call of this
    /// mount changes the name; `own` counts the call itself. Returns whether it does.
    pub(crate) fn keep_name(
        &mut self,
        directory: u64,
        fresh: LeaseKinds,
        name: &[u8],
        leads_to: KeptName,
        own: u32,
    ) -> bool {
        let is_full = self.names.kept >= NAMES_MAX || self.names.all >= NAMES_MAX * 2;
        if !fresh.contains(LeaseKinds::NAMES) || is_full {
            return false;
        }
        let name: Arc<[u8]> = name.into();
        let changing = self.changing_names.get(&(directory, name.clone()));
        if changing.copied().unwrap_or(0) > own {
            return false;
        }
        self.use_names(directory, |names| names.keep(name, leads_to));
        self.files.contains_key(&directory)
    }

    /// Keeps the entries of a directory after an offset, under the same conditions.
    pub(crate) fn keep_listing(
        &mut self,
        directory: u64,
        fresh: LeaseKinds,
        offset: u64,
        data: &[u8],
        requested_at: u64,
    ) {
        let is_full = self.names.listing + data.len() > LISTING_BYTES_MAX;
        let changes = self.changing_directories.contains_key(&directory);
        if fresh.contains(LeaseKinds::NAMES) && !is_full && !changes {
            self.use_names(directory, |names| names.keep_listing(offset, data, requested_at));
        }
    }

    /// READ was granted with an open: the span in which it is held; 0 if it is not to be used.
    pub(crate) fn begin_read_span(&mut self, path: u64, fresh: LeaseKinds) -> u64 {
        if !fresh.contains(LeaseKinds::READ) || self.changing.contains_key(&path) {
            return 0;
        }
        let Some(file) = self.files.get_mut(&path) else { return 0 };
        if file.read_span == 0 {
            self.spans += 1;
            file.read_span = self.spans;
        }
        file.read_span
    }

    /// Whether READ of a file is held. Counts as a use.
    pub(crate) fn reads(&mut self, path: u64, now: Time) -> bool {
        self.held.believes(object(path), LeaseKinds::READ, now).is_some()
    }

    /// Keeps a file open for the next opener; returns those that are to be closed instead.
    pub(crate) fn park(&mut self, path: u64, file: Arc<OpenFile>, now: Time) -> Vec<Arc<OpenFile>> {
        let (reads, span) = (self.reads(path, now), file.read_span());
        let Some(kept) = self.files.get_mut(&path).filter(|_| reads && span != 0) else {
            return vec![file];
        };
        if kept.read_span != span {
            return vec![file];
        }
        self.last_parked += 1;
        let number = self.last_parked;
        kept.parked.push(ParkedFile { number, file });
        let first_of_file = kept.parked[0].number;
        let is_over = kept.parked.len() > PARKED_OF_FILE;
        self.parked.insert(number, path);
        let closed = match is_over {
            true => Some(first_of_file),
            false if self.parked.len() > PARKED_MAX => self.parked.keys().next().copied(),
            false => None,
        };
        closed.and_then(|number| self.take_parked(number)).into_iter().collect()
    }

    /// Takes a file that this identity had opened with these flags.
    pub(crate) fn unpark(
        &mut self,
        path: u64,
        identity: &Arc<SessionIdentity>,
        flags: u32,
        now: Time,
    ) -> Option<Arc<OpenFile>> {
        let fits = |ParkedFile { file, .. }: &&ParkedFile| {
            Arc::ptr_eq(&file.payer, identity) && file.flags == flags && !file.is_stale()
        };
        let number = self.files.get(&path)?.parked.iter().rev().find(fits)?.number;
        self.reads(path, now).then(|| self.take_parked(number)).flatten()
    }

    fn take_parked(&mut self, number: u64) -> Option<Arc<OpenFile>> {
        let path = self.parked.remove(&number)?;
        let parked = &mut self.files.get_mut(&path)?.parked;
        let at = parked.iter().position(|parked| parked.number == number)?;
        Some(parked.remove(at).file)
    }

    /// A recall came: of these kinds, or of one name alone.
    pub(crate) fn recalled(
        &mut self,
        path: u64,
        kinds: LeaseKinds,
        name: &[u8],
        now: Time,
    ) -> Dropped {
        let held = self.held.recalled(object(path), kinds, !name.is_empty());
        let mut dropped = self.forget(path, kinds, name, now);
        if kinds.contains(LeaseKinds::NAMES) {
            if self.changing_directories.contains_key(&path) {
                self.use_names(path, |names| names.note_shared(now));
            }
            dropped.names = self.believed_names(path, name, now);
        }
        if let Some(file) = self.files.get(&path) {
            if kinds.contains(LeaseKinds::ATTRIBUTES) {
                dropped.attributes.clone_from(&file.handles);
            }
            if held.contains(LeaseKinds::READ) {
                dropped.pages.clone_from(&file.handles);
            }
        }
        if kinds.contains(LeaseKinds::READ) {
            self.join_page_drop(path, &mut dropped);
        }
        self.drop_if_unheld(path, now);
        dropped
    }

    /// The kernel was made to ask for these names.
    pub(crate) fn end_names(&mut self, names: &[BelievedName], now: Time) {
        let mut directories = BTreeSet::new();
        for BelievedName { path, name, until, .. } in names {
            self.use_names(*path, |names| names.ended(name, *until, now));
            directories.insert(*path);
        }
        directories.into_iter().for_each(|path| self.drop_if_unheld(path, now));
    }

    /// A recall that comes while the pages of an earlier one are being dropped has them dropped as well: it
    /// must not be answered before that is over.
    fn join_page_drop(&mut self, path: u64, dropped: &mut Dropped) {
        if let Some(under_way) = self.page_drops.get(&path) {
            dropped.pages.extend(under_way.handles.iter().cloned());
            dropped.pages.sort_unstable();
            dropped.pages.dedup();
        }
        if !dropped.pages.is_empty() {
            let under_way = self.page_drops.entry(path).or_default();
            under_way.recalls += 1;
            under_way.handles.clone_from(&dropped.pages);
        }
    }

    /// The pages of a recall have been dropped.
    pub(crate) fn end_page_drop(&mut self, path: u64) {
        if let Some(under_way) = self.page_drops.get_mut(&path) {
            under_way.recalls -= 1;
            if under_way.recalls == 0 {
                self.page_drops.remove(&path);
            }
        }
    }

    /// A call of this mount is about to change a file: nothing of these kinds is kept until its end.
    pub(crate) fn begin_change(&mut self, path: u64, kinds: LeaseKinds, now: Time) -> Dropped {
        *self.changing.entry(path).or_default() += 1;
        self.forget(path, kinds, b"", now)
    }

    /// Such a call is answered.
    pub(crate) fn end_change(&mut self, path: u64, kinds: LeaseKinds) {
        self.held.changed(object(path), kinds);
        count_down(&mut self.changing, &path);
    }

    /// A call of this mount is about to change a name.
    pub(crate) fn begin_name_change(&mut self, directory: u64, name: &Arc<[u8]>, now: Time) {
        *self.changing_names.entry((directory, name.clone())).or_default() += 1;
        *self.changing_directories.entry(directory).or_default() += 1;
        self.forget(directory, LeaseKinds::NAMES, name, now);
        self.use_names(directory, |names| names.note_changed(now));
    }

    /// Such a call is answered; with an error it may have been executed all the same, or not. Returns the name if
    /// the kernel may use what it believes of it, which is perhaps not so.
    pub(crate) fn end_name_change(
        &mut self,
        directory: u64,
        name: &Arc<[u8]>,
        is_done: bool,
        now: Time,
    ) -> Dropped {
        self.held.changed(object(directory), LeaseKinds::NAMES);
        count_down(&mut self.changing_names, &(directory, name.clone()));
        count_down(&mut self.changing_directories, &directory);
        let names = match is_done {
            true => Vec::new(),
            false => self.believed_names(directory, name, now),
        };
        Dropped { names, ..Dropped::default() }
    }

    /// The kernel is about to move what it believes of one name to another. Returns what it believes then if no
    /// recall of the new one would end that.
    pub(super) fn move_belief(
        &mut self,
        from: (u64, &Arc<[u8]>),
        to: (u64, &Arc<[u8]>),
        now: Time,
    ) -> Option<UsedName> {
        let moved = self.files.get(&from.0)?.names.believed(from.1, now).pop()?;
        self.use_names(to.0, |names| names.believed_since_move(to.1, &moved));
        let is_held = self.held.held(object(to.0)).contains(LeaseKinds::NAMES);
        let there = self.files.get(&to.0).and_then(|file| file.names.believed(to.1, now).pop());
        (!is_held).then(|| there.unwrap_or(UsedName { name: to.1.clone(), ..moved }))
    }

    /// READ of a file is not used any more: a file is open here for writing.
    pub(crate) fn end_read(&mut self, path: u64, now: Time) -> Dropped {
        self.held.recalled(object(path), LeaseKinds::READ, false);
        let dropped = self.forget(path, LeaseKinds::READ, b"", now);
        self.drop_if_unheld(path, now);
        dropped
    }

    /// No attributes are kept: a call changes those of a file that is not known.
    pub(crate) fn forget_all_attributes(&mut self) {
        self.files.values_mut().for_each(|file| file.attributes = None);
    }

    /// All leases are over.
    pub(crate) fn lapse(&mut self, now: Time) -> Dropped {
        let mut dropped = Dropped::default();
        let directories: Vec<u64> = self.files.keys().copied().collect();
        for path in directories {
            // The clock of the kernel's times stands still while the machine is suspended.
            let mut names = self.believed_names(path, b"", Time::ZERO);
            names.iter_mut().for_each(|named| named.until = named.until.max(now + KERNEL_NAME_MAX));
            dropped.names.append(&mut names);
        }
        let page_drops = std::mem::take(&mut self.page_drops);
        dropped.pages.extend(page_drops.into_values().flat_map(|under_way| under_way.handles));
        for (object, kinds) in self.held.lapse() {
            let Some(file) = self.files.get(&object.0[0]) else { continue };
            if kinds.contains(LeaseKinds::READ) {
                dropped.pages.extend(file.handles.iter().cloned());
            }
        }
        for (_, file) in self.files.drain() {
            dropped.attributes.extend(file.handles);
            dropped.parked.extend(file.parked.into_iter().map(|parked| parked.file));
        }
        self.parked.clear();
        self.names = NamesSize::default();
        dropped
    }

    /// Whether there are more leases or names than are to be kept.
    pub(crate) fn is_over_full(&self) -> bool {
        let NamesSize { kept, listing, .. } = self.names;
        let names = kept >= NAMES_MAX || listing >= LISTING_BYTES_MAX / 2;
        !self.held.is_empty() && (self.held.len() > LEASES_MAX || names)
    }

    /// Ends the leases that were not used for longest, some at a time: each with the kinds and the
    /// number to give it back with, once the kernel has forgotten them.
    pub(crate) fn give_back(&mut self, now: Time) -> (Dropped, Vec<(u64, LeaseGrant)>) {
        let mut dropped = Dropped::default();
        let mut leases = Vec::new();
        for (object, kinds, number) in self.held.least_used(GIVE_BACK) {
            let path = object.0[0];
            let forgotten = self.forget(path, kinds, b"", now);
            dropped.parked.extend(forgotten.parked);
            dropped.names.extend(self.believed_names(path, b"", now));
            if let Some(file) = self.files.get(&path) {
                dropped.attributes.extend(file.handles.iter().cloned());
                if kinds.contains(LeaseKinds::READ) {
                    dropped.pages.extend(file.handles.iter().cloned());
                }
            }
            leases.push((path, LeaseGrant { kinds: kinds.bits(), number }));
        }
        (dropped, leases)
    }

    /// The kernel has forgotten what was given back.
    pub(crate) fn given_back(&mut self, leases: &[(u64, LeaseGrant)], now: Time) {
        leases.iter().for_each(|(path, _)| self.drop_if_unheld(*path, now));
    }

    /// The number of files that are open for nobody.
    #[cfg(test)]
    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    fn forget(&mut self, path: u64, kinds: LeaseKinds, name: &[u8], now: Time) -> Dropped {
        let mut dropped = Dropped::default();
        if kinds.contains(LeaseKinds::NAMES) {
            self.use_names(path, |names| names.forget(name, now));
        }
        let Some(file) = self.files.get_mut(&path) else { return dropped };
        if kinds.contains(LeaseKinds::ATTRIBUTES) {
            file.attributes = None;
        }
        if kinds.contains(LeaseKinds::READ) {
            file.read_span = 0;
            for ParkedFile { number, file } in std::mem::take(&mut file.parked) {
                self.parked.remove(&number);
                dropped.parked.push(file);
            }
        }
        dropped
    }

    /// Forgets a file of which it holds no lease, once the kernel uses none of its names.
    fn drop_if_unheld(&mut self, path: u64, now: Time) {
        if self.held.held(object(path)).is_empty() {
            let left = self.forget(path, every(), b"", now);
            debug_assert!(left.parked.is_empty(), "READ ended before");
            if self.files.get(&path).is_some_and(|file| !file.names.is_believed(now)) {
                self.use_names(path, |names| *names = LeasedNames::default());
                self.files.remove(&path);
            }
        }
    }

    /// Uses the names of a directory, and counts those that are there.
    fn use_names(&mut self, directory: u64, use_names: impl FnOnce(&mut LeasedNames)) {
        let Some(file) = self.files.get_mut(&directory) else { return };
        let before = file.names.size();
        use_names(&mut file.names);
        let after = file.names.size();
        let all = &mut self.names;
        all.kept = all.kept + after.kept - before.kept;
        all.all = all.all + after.all - before.all;
        all.listing = all.listing + after.listing - before.listing;
    }

    /// The names of a directory that the kernel may use: this one, or with an empty name all of them.
    fn believed_names(&self, path: u64, name: &[u8], now: Time) -> Vec<BelievedName> {
        let Some(file) = self.files.get(&path) else { return Vec::new() };
        let believed = file.names.believed(name, now).into_iter();
        let of_handle = |used: UsedName| {
            let named = |directory: &Arc<[u8]>| BelievedName::new(path, directory.clone(), &used);
            file.handles.iter().map(named).collect::<Vec<_>>()
        };
        believed.flat_map(of_handle).collect()
    }
}

impl BelievedName {
    pub(super) fn new(path: u64, directory: Arc<[u8]>, used: &UsedName) -> BelievedName {
        let UsedName { name, until, directory: revalidated } = used.clone();
        BelievedName { path, directory, name, until, revalidated }
    }
}

impl Dropped {
    /// Whether there is nothing to be done.
    pub(crate) fn is_empty(&self) -> bool {
        let Dropped { attributes, pages, names, parked } = self;
        attributes.is_empty() && pages.is_empty() && names.is_empty() && parked.is_empty()
    }

    /// Adds what another has.
    pub(crate) fn append(&mut self, other: Dropped) {
        self.attributes.extend(other.attributes);
        self.pages.extend(other.pages);
        self.names.extend(other.names);
        self.parked.extend(other.parked);
    }
}

fn every() -> LeaseKinds {
    LeaseKinds::from_bits(u8::MAX)
}

fn object(path: u64) -> ObjectId {
    ObjectId([path, 0])
}

fn count_down<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Handles of one file: a file has one, except at a proxy whose handles are paths.
const HANDLES_MAX: usize = 32;
/// Leases of a mount.
const LEASES_MAX: usize = 100_000;
/// Names that are kept.
const NAMES_MAX: usize = 200_000;
/// Bytes of listings that are kept.
const LISTING_BYTES_MAX: usize = 64 << 20;
/// Files that are kept open for nobody, and how many of one file.
const PARKED_MAX: usize = 1024;
const PARKED_OF_FILE: usize = 2;
/// Leases that are given back at once.
const GIVE_BACK: usize = 256;

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
