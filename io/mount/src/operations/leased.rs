//! Answers that need no message, and what is kept of those that did.
//!
//! ```text
//!   the kernel asks ─► held? ─┬─ yes ─► node, attributes, with the writes of this mount ─► answered
//!                             └─ no ──► CallSpec::leased ─► reply ─► keep_… ─► answered
//!   a change ─► change_of, change_of_name: nothing is kept of it until it is answered
//! ```
//!
//! The kernel believes attributes for the rest of the term, and names for some seconds of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuse::{FuseRequest, Reply};
use leases::LeaseKinds;
use model::Time;
use ninep::dialect::{AnyReply, HandleList, ListEntries, PLAIN_FILE};
use ninep::{Attributes, getattr, open as bits};

use super::behind::FetchedAttributes;
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::leases::{
    ChangedFile, DirectoryName, FileKey, KeptAttributes, KeptName, LeaseCache, LeaseRequest,
    OwnChange,
};
use crate::nodes::MountNode;
use crate::session::{CallSpec, SessionIdentity};
use crate::write_behind::{KnownSize, WaitingSince};

/// What a name leads to, without having asked.
pub(crate) enum LeasedName {
    /// To nothing; the kernel may believe that until then.
    Absent(Option<Time>),
    File(NamedFile),
}

/// A file that a name leads to, and its attributes.
pub(crate) struct NamedFile {
    pub(crate) handle: Arc<[u8]>,
    pub(crate) attributes: Attributes,
    pub(crate) requested_at: u64,
    /// Until when the attributes may be believed.
    pub(crate) until: Time,
    /// Until when the kernel may believe the name.
    pub(crate) named_until: Option<Time>,
}

/// A file of a listing.
pub(super) struct ListedFile {
    pub(super) attributes: Attributes,
    pub(super) requested_at: u64,
    /// Until when the attributes may be believed under a lease; none without one.
    pub(super) until: Option<Time>,
    pub(super) named_until: Option<Time>,
}

impl ListedFile {
    /// As the reply says that was asked for at that time, without leases.
    pub(super) fn new(attributes: &Attributes, requested_at: u64) -> ListedFile {
        ListedFile { attributes: *attributes, requested_at, until: None, named_until: None }
    }
}

impl LeasedName {
    fn find(
        cache: &mut LeaseCache,
        directory: u64,
        name: &[u8],
        was_known: bool,
        now: Time,
    ) -> Option<LeasedName> {
        let (file, handle) = match cache.name(directory, name, now)? {
            KeptName::Absent => {
                let until = cache.believe_name(directory, name, was_known, now);
                return Some(LeasedName::Absent(until));
            }
            KeptName::File(file, handle) => (file, handle),
        };
        let (kept, until) = cache.attributes(file, now)?;
        let KeptAttributes { attributes, requested_at } = kept;
        let named_until = cache.believe_name(directory, name, was_known, now);
        Some(LeasedName::File(NamedFile { handle, attributes, requested_at, until, named_until }))
    }
}

/// What a reply about a name is of.
#[derive(Clone, Copy)]
pub(super) struct NameReply {
    /// Own calls that change the name: 1 for the reply to such a call.
    pub(super) own: u32,
    /// The kernel may have had the name before.
    pub(super) was_known: bool,
}

/// Until when the kernel may believe what a reply says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BelievedUntil {
    pub(super) attributes: Option<Time>,
    pub(super) name: Option<Time>,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct NamePlace<'a> {
    pub(super) directory: &'a MountNode,
    pub(super) name: &'a [u8],
    /// Whether the kernel has found a file there.
    pub(super) exists: bool,
}

impl MountFs {
    /// Begins a call that asks for leases; none if the mount is not a holder.
    pub(super) fn lease_request(&self) -> Option<Arc<LeaseRequest>> {
        self.shared().leases.request()
    }

    /// The attributes of a node, with the writes of this mount, if no message is needed.
    pub(super) fn leased_attributes(&self, node: &MountNode) -> Option<KnownSize> {
        let path = node.path()?;
        let (kept, until) =
            self.shared().leases.with(|cache, _, now| cache.attributes(path, now))?;
        let since = node.write_behind.since(kept.requested_at);
        if since == WaitingSince::Changed {
            return None;
        }
        let known = since.applied_to(kept.attributes);
        self.shared().leases.count(|stats| stats.attributes += 1);
        Some(KnownSize { leased: Some(until), ..known })
    }

    /// What a name leads to, if no message is needed; the kernel is to receive it, and may have had the name.
    pub(super) fn leased_name(
        &self,
        directory: &MountNode,
        name: &[u8],
        was_known: bool,
    ) -> Option<LeasedName> {
        let path = directory.path()?;
        self.shared().leases.with(|cache, stats, now| {
            let found = LeasedName::find(cache, path, name, was_known, now)?;
            stats.lookups += 1;
            Some(found)
        })
    }

    /// A file that is an entry of a directory, with attributes that are held.
    pub(super) fn leased_entry(
        &self,
        directory: &MountNode,
        name: &[u8],
        file: FileKey<'_>,
    ) -> Option<ListedFile> {
        let path = directory.path()?;
        self.shared().leases.with(|cache, _, now| {
            let (KeptAttributes { attributes, requested_at }, until) =
                cache.attributes(file.path, now)?;
            let named_until = match cache.name(path, name, now) {
                Some(KeptName::File(_, known)) if *known == *file.handle => {
                    cache.believe_name(path, name, false, now)
                }
                _ => None,
            };
            Some(ListedFile { attributes, requested_at, until: Some(until), named_until })
        })
    }

    /// Keeps what a reply says of the one file that its message names, and returns until when that may
    /// be believed.
    pub(super) fn keep_attributes(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        fetched: &FetchedAttributes,
    ) -> Option<Time> {
        let file = key(&fetched.node.handle, &fetched.attributes);
        let kept = kept(fetched);
        lease.as_ref()?.keep(|cache, id, grants, now| {
            let fresh = cache.granted(id, file, grants.named);
            cache.keep_attributes(file, fresh, kept, now)
        })
    }

    /// Keeps what a look-up or a call that made a name says. Returns until when the kernel may believe it.
    pub(super) fn keep_name(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        directory: &MountNode,
        name: &[u8],
        fetched: &FetchedAttributes,
        by: NameReply,
    ) -> BelievedUntil {
        let Some(lease) = lease else { return BelievedUntil::default() };
        let (file, of) = (key(&fetched.node.handle, &fetched.attributes), directory.path());
        let kept = kept(fetched);
        lease.keep(|cache, id, grants, now| {
            let fresh = cache.granted(id, file, grants.found);
            let attributes = cache.keep_attributes(file, fresh, kept, now);
            let name = of.and_then(|path| {
                let directory = FileKey { path, handle: &directory.handle };
                let fresh = cache.granted(id, directory, grants.named);
                let leads_to = KeptName::File(file.path, fetched.node.handle.clone());
                let is_kept = cache.keep_name(path, fresh, name, leads_to, by.own);
                is_kept.then(|| cache.believe_name(path, name, by.was_known, now)).flatten()
            });
            BelievedUntil { attributes, name }
        })
    }

    /// Keeps what the reply to a call says that has made a name. Returns until when the kernel may believe it: it
    /// takes the attributes of an inode that it knows whatever recall came meanwhile.
    pub(super) fn keep_made(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        directory: &MountNode,
        name: &[u8],
        fetched: &FetchedAttributes,
    ) -> BelievedUntil {
        let until =
            self.keep_name(lease, directory, name, fetched, NameReply { own: 1, was_known: false });
        match self.nodes.is_known_before(&fetched.node) {
            true => BelievedUntil { attributes: None, ..until },
            false => until,
        }
    }

    /// Keeps that a name is absent. Returns until when the kernel may believe it.
    pub(super) fn keep_absent(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        directory: &MountNode,
        name: &[u8],
    ) -> Option<Time> {
        let (lease, path) = (lease.as_ref()?, directory.path()?);
        lease.keep(|cache, id, grants, now| {
            let directory = FileKey { path, handle: &directory.handle };
            let fresh = cache.granted(id, directory, grants.named);
            let is_kept = cache.keep_name(path, fresh, name, KeptName::Absent, 0);
            is_kept.then(|| cache.believe_name(path, name, false, now)).flatten()
        })
    }

    /// Keeps the entries of a directory after an offset, and what they say of their files.
    pub(super) fn keep_listing(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        directory: &MountNode,
        offset: u64,
        data: &[u8],
        requested_at: u64,
    ) {
        let (Some(lease), Some(path)) = (lease, directory.path()) else { return };
        lease.keep(|cache, id, grants, now| {
            let of = FileKey { path, handle: &directory.handle };
            let names = cache.granted(id, of, grants.named);
            cache.keep_listing(path, names, offset, data, requested_at);
            for entry in ListEntries::new(data).map_while(Result::ok) {
                let Some((handle, attributes)) = entry.file else { continue };
                let file = key(handle, &attributes);
                let fresh = cache.granted(id, file, entry.lease);
                let kept = KeptAttributes { attributes, requested_at };
                cache.keep_attributes(file, fresh, kept, now);
                let leads_to = KeptName::File(file.path, handle.into());
                cache.keep_name(path, names, entry.name, leads_to, 0);
            }
        });
    }

    /// The entries of a directory after an offset, if no message is needed, and when they were asked
    /// for.
    pub(super) fn leased_listing(
        &self,
        directory: &MountNode,
        offset: u64,
    ) -> Option<(Arc<[u8]>, u64)> {
        let path = directory.path()?;
        self.shared().leases.with(|cache, stats, now| {
            let found = cache.listing(path, offset, now)?;
            stats.listings += 1;
            Some(found)
        })
    }

    /// An open for reading was answered: the file may be kept open for the next opener.
    pub(super) fn keep_open(
        &self,
        lease: &Option<Arc<LeaseRequest>>,
        file: &OpenFile,
        fetched: &FetchedAttributes,
    ) {
        let Some(lease) = lease else { return };
        let (of, kept) = (key(&file.node.handle, &fetched.attributes), kept(fetched));
        let span = lease.keep(|cache, id, grants, now| {
            let fresh = cache.granted(id, of, grants.named);
            cache.keep_attributes(of, fresh, kept, now);
            match is_plain_read(file.flags) && file.node.writers.load(Ordering::SeqCst) == 0 {
                true => cache.begin_read_span(of.path, fresh),
                false => 0,
            }
        });
        file.set_read_span(span);
    }

    /// Goes on once READ of a file that is read through the page cache is held, or was asked for in vain: while
    /// another mount writes it, the proxy grants none.
    pub(super) fn with_read_lease<T: 'static>(
        &self,
        request: &FuseRequest,
        file: &Arc<OpenFile>,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
    ) {
        let lease = self.lacks_read_lease(file).then(|| self.lease_request()).flatten();
        if lease.is_none() {
            return then(self, request, reply);
        }
        let message = ninep::Request::Getattr { fid: file.fid, mask: getattr::ALL };
        let ask = CallSpec::new(HandleList::NONE, message).leased(&lease);
        let (who, node) = (*request, file.node.clone());
        let requested_at = self.shared().write_behind.now();
        self.as_opener_with(request, file, ask, reply, move |export, answer, reply| {
            if let Ok(AnyReply::Base(ninep::Reply::Getattr(attributes))) = answer {
                let leased = None;
                let fetched = FetchedAttributes { node, attributes, requested_at, leased };
                export.keep_attributes(&lease, &fetched);
            }
            then(export, &who, reply);
        });
    }

    /// Drops the pages of a file that was read without a lease: no recall would.
    pub(super) fn drop_pages_without_lease(&self, file: &OpenFile) {
        if self.lacks_read_lease(file) {
            self.drop_pages_later(&file.node);
        }
    }

    /// A file is closed: if it was the last that is open for writing here, those that are open for reading have pages
    /// without a lease.
    pub(super) fn drop_pages_of_writer(&self, file: &OpenFile) {
        let is_last = file.writes() && file.node.writers.load(Ordering::SeqCst) == 0;
        if is_last
            && self.shared().leases.is_holder()
            && self.files().of_node(file.node.id).is_some()
        {
            self.drop_pages_later(&file.node);
        }
    }

    fn drop_pages_later(&self, node: &Arc<MountNode>) {
        let (Some(notifier), node) = (self.notifier.get().cloned(), node.clone()) else { return };
        if node.dropping_pages.swap(true, Ordering::SeqCst) {
            return;
        }
        self.notices.run(move || {
            node.dropping_pages.store(false, Ordering::SeqCst);
            // What the kernel does not know it has no pages of.
            let _ = notifier.inval_inode(node.id, 0, 0);
        });
    }

    /// Whether a file is read through the page cache without READ. A file that is open for writing here is used
    /// without.
    fn lacks_read_lease(&self, file: &OpenFile) -> bool {
        let leases = &self.shared().leases;
        if !leases.is_holder()
            || !is_plain_read(file.flags)
            || file.node.writers.load(Ordering::SeqCst) != 0
        {
            return false;
        }
        let reads = |path| leases.with(|cache, _, now| cache.reads(path, now).then_some(()));
        file.node.path().and_then(reads).is_none()
    }

    /// Opens a file that this very identity had opened, under a lease that was held since.
    pub(super) fn open_parked(
        &self,
        node: &Arc<MountNode>,
        identity: &Arc<SessionIdentity>,
        flags: u32,
    ) -> Option<Arc<OpenFile>> {
        let path = node.path()?;
        self.shared().leases.with(|cache, stats, now| {
            let parked = cache.unpark(path, identity, flags, now)?;
            stats.opens += 1;
            // In one step: a session that ends meanwhile has it open, or not at all.
            let file = self.files().opened(parked.fid, node.clone(), identity.clone(), flags);
            file.set_read_span(parked.read_span());
            Some(file)
        })
    }

    /// A file is open for nobody any more: keeps it for the next opener, or gives back those that are
    /// to be closed.
    pub(super) fn park(&self, file: Arc<OpenFile>) -> Vec<Arc<OpenFile>> {
        let path = file.node.path().filter(|_| file.read_span() != 0 && !file.is_stale());
        let Some(path) = path else { return vec![file] };
        file.forget_listing();
        let back = file.clone();
        let closed = self.shared().leases.with(|cache, _, now| Some(cache.park(path, file, now)));
        closed.unwrap_or_else(|| vec![back])
    }

    /// A file was opened: if for writing, READ of it is not used any more.
    pub(super) fn end_read_of_writer(&self, file: &OpenFile) {
        if let Some(path) = file.node.path().filter(|_| file.writes()) {
            self.shared().leases.end_read(path);
        }
    }

    /// Begins a change of a file's data or attributes.
    pub(super) fn change_of(&self, node: &MountNode) -> Option<Arc<OwnChange>> {
        let kinds = LeaseKinds::ATTRIBUTES.and(LeaseKinds::READ);
        let file = node.path().map(|path| ChangedFile { path, kinds });
        self.shared().leases.begin_change(file.into_iter().collect(), Vec::new())
    }

    /// A call has changed a name in a directory: what the kernel is just receiving of the directory, asked for before,
    /// does not count.
    pub(super) fn directory_changed(&self, directory: &MountNode) {
        if self.shared().leases.is_holder() {
            // What the kernel does not know it does not believe.
            let _ = self.invalidate_attributes(directory.id);
        }
    }

    /// Begins a change of a name that may be made: `file` gets it, or a new one.
    pub(super) fn change_of_new_name(
        &self,
        directory: &MountNode,
        name: &[u8],
        file: Option<&MountNode>,
    ) -> Option<Arc<OwnChange>> {
        self.change_of_names(&[NamePlace { directory, name, exists: false }], file)
    }

    /// Begins a change of names; what they lead to changes, too, and so does `file`.
    pub(super) fn change_of_names(
        &self,
        names: &[NamePlace<'_>],
        file: Option<&MountNode>,
    ) -> Option<Arc<OwnChange>> {
        let leases = &self.shared().leases;
        if !leases.is_wanted() {
            return None;
        }
        let (mut files, mut all): (Vec<ChangedFile>, Vec<DirectoryName>) = Default::default();
        let attributes = |path| ChangedFile { path, kinds: LeaseKinds::ATTRIBUTES };
        // Nor is it kept open for nobody: it may be the last name.
        let with_opens =
            |path| ChangedFile { path, kinds: LeaseKinds::ATTRIBUTES.and(LeaseKinds::READ) };
        files.extend(file.and_then(MountNode::path).map(attributes));
        for NamePlace { directory, name, exists } in names {
            let Some(path) = directory.path() else { continue };
            files.push(attributes(path));
            let kept = leases.with(|cache, _, now| cache.name(path, name, now));
            let led_to = match kept {
                Some(KeptName::File(file, _)) => Some(file),
                _ => self.nodes.node_at(directory.id, name).and_then(|node| node.path()),
            };
            if *exists && led_to.is_none() {
                // It may be known by another name.
                leases.forget_all_attributes();
            }
            files.extend(led_to.map(with_opens));
            let handle = directory.handle.clone();
            all.push(DirectoryName { directory: path, handle, name: (*name).into() });
        }
        leases.begin_change(files, all)
    }

    /// Whether the node is known to have neither ACL nor extended attributes.
    pub(super) fn is_plain(&self, node: &MountNode) -> bool {
        let leases = &self.shared().leases;
        if !leases.is_holder() {
            return node.is_plain();
        }
        let kept =
            node.path().and_then(|path| leases.with(|cache, _, now| cache.attributes(path, now)));
        kept.is_some_and(|(kept, _)| kept.attributes.valid & PLAIN_FILE != 0)
    }
}

/// Whether a file that is opened with these flags is only read, through the page cache.
pub(super) fn is_plain_read(flags: u32) -> bool {
    flags & (bits::ACCESS_MASK | bits::TRUNC | bits::DIRECT | bits::APPEND) == bits::RDONLY
}

fn key<'a>(handle: &'a [u8], attributes: &Attributes) -> FileKey<'a> {
    FileKey { path: attributes.qid.path, handle }
}

fn kept(fetched: &FetchedAttributes) -> KeptAttributes {
    let FetchedAttributes { attributes, requested_at, .. } = *fetched;
    KeptAttributes { attributes, requested_at }
}
