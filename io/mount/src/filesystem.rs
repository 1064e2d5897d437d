//! The FUSE file system of an export: each request of the kernel becomes a message to the proxy,
//! and the reply its answer.
//!
//! ```text
//!   FUSE request ─► node or open file ─► CallSpec ─┬─ as_caller: the thread's identity ──┐
//!                                                  └─ as_opener: the opener's identity ─┴─► session
//!   FUSE reply ◄─ then ◄──────────────────────────────────────────────────────── reply
//! ```
//!
//! Operations on a path are paid by the process that calls. Operations on an open file are paid by
//! its opener, since the kernel's read-ahead and write-back have no caller.

use std::ffi::CStr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use fuse::{
    Allocate, Attr, CopiedBytes, CopyRange, Created, DataReply, EntryList, EntryListPlus, Errno,
    FileSystem, FuseConnection, FuseOpen, FuseRead, FuseRequest, FuseRequestId, FuseWrite, Handle,
    InodeEntry, InodeId, Lock, LockOwner, LockRequest, NewFile, Notifier, OpenedFile, Release,
    Reply, ReplyBody as FuseAnswer, SeekPosition, SetAttributes, SetXattr, Statfs, WrittenBytes,
    Xattr,
};
use model::Time;
use ninep::Attributes;
use ninep::dialect::AnyRequest;

use crate::files::{OpenFile, OpenFiles};
use crate::jobs::{JobResolver, by_descriptor};
use crate::nodes::{MountNode, Nodes};
use crate::notices::Notices;
use crate::operations::control_files::{ControlFiles, is_control_file};
use crate::operations::{
    attributes, behind, control_files, data, directory, locks, names, or_error, xattr,
};
use crate::retries::StaleRetries;
use crate::session::{
    CallReply, CallSpec, CallWaiter, HomeRouter, MountState, ServerCall, SessionIdentity, here,
};
use crate::write_behind::KnownSize;
use crate::{clock, translate};

/// The export of a proxy as a file system. Clones share their state.
#[derive(Clone)]
pub(crate) struct MountFs(Arc<MountFsState>);

pub(crate) struct MountFsState {
    pub(crate) homes: HomeRouter,
    pub(crate) nodes: Nodes,
    pub(crate) jobs: Arc<JobResolver>,
    /// Time for which the kernel may cache names and attributes.
    pub(crate) believed: Duration,
    /// Maximum payload of one message in bytes.
    pub(crate) payload: u32,
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) notices: Notices,
    /// Those about names that are recalled: they may wait long for the lock of a directory.
    pub(crate) name_notices: Notices,
    pub(crate) retries: StaleRetries,
    /// The attributes of the root, as they were asked for last.
    pub(crate) root_attributes: Mutex<Option<Attributes>>,
    /// Open control files of the mount.
    pub(crate) control_files: ControlFiles,
}

impl Deref for MountFs {
    type Target = MountFsState;

    fn deref(&self) -> &MountFsState {
        &self.0
    }
}

impl MountFs {
    pub(crate) fn new(inner: MountFsState) -> MountFs {
        MountFs(Arc::new(inner))
    }

    /// Of a state that somebody else has as well.
    pub(crate) fn from_state(state: Arc<MountFsState>) -> MountFs {
        MountFs(state)
    }

    /// Returns a reference that does not keep the export alive.
    pub(crate) fn downgrade(&self) -> Weak<MountFsState> {
        Arc::downgrade(&self.0)
    }

    /// Makes writes that the proxy's machine has lost be written again.
    pub(crate) fn rewrite_lost_writes(&self) {
        // The sessions live as long as this, and must not keep it alive.
        let export = self.downgrade();
        self.homes.on_writes_lost(move |lost| {
            if let Some(export) = export.upgrade() {
                behind::rewrite(&MountFs(export), lost);
            }
        });
    }

    /// Makes the kernel request an inode's attributes again before it uses them. It takes no lock
    /// for that, so a thread that must answer a request about the inode may call it.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode.
    pub(crate) fn invalidate_attributes(&self, inode: InodeId) -> Result<(), Errno> {
        self.notifier.get().map_or(Ok(()), |notifier| notifier.inval_inode(inode, -1, 0))
    }

    /// Calls the home of a file on behalf of the calling process; `then` makes the answer of the
    /// reply.
    pub(crate) fn as_caller<T: FuseAnswer + 'static>(
        &self,
        node: &MountNode,
        request: &FuseRequest,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, &Arc<SessionIdentity>, CallReply<'_>) -> Result<T, Errno>
        + Send
        + 'static,
    ) {
        self.as_caller_with(node, request, ask, reply, move |export, payer, answer, reply| {
            reply.send(then(export, payer, answer));
        });
    }

    /// Like [`MountFs::as_caller`], for replies that are answered otherwise.
    pub(crate) fn as_caller_with<T: 'static>(
        &self,
        node: &MountNode,
        request: &FuseRequest,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, &Arc<SessionIdentity>, CallReply<'_>, Reply<T>) + Send + 'static,
    ) {
        self.as_caller_at(self.homes.of(node), request, ask, reply, then);
    }

    /// Like [`MountFs::as_caller_with`], at a given proxy.
    pub(crate) fn as_caller_at<T: 'static>(
        &self,
        home: usize,
        request: &FuseRequest,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, &Arc<SessionIdentity>, CallReply<'_>, Reply<T>) + Send + 'static,
    ) {
        let (on, thread) = (here(), request.thread);
        self.caller_at(home, request, move |export, payer| match payer {
            Ok(payer) => export.send(on, thread, payer, ask, reply, then),
            Err(error) => reply.error(error),
        });
    }

    /// Returns the identity, at one of the proxies, of the calling process.
    pub(crate) fn caller_at(
        &self,
        home: usize,
        request: &FuseRequest,
        then: impl FnOnce(&MountFs, Result<Arc<SessionIdentity>, Errno>) + Send + 'static,
    ) {
        let export = self.clone();
        let FuseRequest { uid, gid, thread, .. } = *request;
        self.jobs.find(thread, move |caller| {
            let payer = export.homes.links[home].payer(uid, gid, &caller.groups, &caller.job);
            then(&export, payer);
        });
    }

    /// Makes a request on behalf of the opener of a file.
    pub(crate) fn as_opener<T: FuseAnswer + 'static>(
        &self,
        request: &FuseRequest,
        file: &Arc<OpenFile>,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, CallReply<'_>) -> Result<T, Errno> + Send + 'static,
    ) {
        self.as_opener_with(request, file, ask, reply, move |export, answer, reply| {
            reply.send(then(export, answer));
        });
    }

    /// Like [`MountFs::as_opener`], for replies that are answered otherwise.
    pub(crate) fn as_opener_with<T: 'static>(
        &self,
        request: &FuseRequest,
        file: &Arc<OpenFile>,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, CallReply<'_>, Reply<T>) + Send + 'static,
    ) {
        let (payer, file) = (file.payer.clone(), file.clone());
        let (on, thread) = (here(), request.thread);
        self.send(on, thread, payer, ask, reply, move |export, _, answer, reply| match answer {
            // The fid went with a session, and the file could not be opened again.
            Err(Errno::BADF) if file.is_stale() => then(export, Err(Errno::STALE), reply),
            answer => then(export, answer, reply),
        });
    }

    /// Returns the open files.
    pub(crate) fn files(&self) -> &OpenFiles {
        &self.shared().files
    }

    /// Returns the state of the mount that does not depend on the proxy.
    pub(crate) fn shared(&self) -> &MountState {
        &self.homes.shared
    }

    /// Makes a request without a waiter.
    pub(crate) fn call_without_waiter(
        &self,
        payer: &Arc<SessionIdentity>,
        ask: CallSpec,
        then: impl FnOnce(&MountFs, CallReply<'_>) + Send + 'static,
    ) {
        let export = self.clone();
        let done = move |answer: CallReply<'_>| then(&export, answer);
        self.homes.link(payer).call_on(here(), ServerCall::new(payer.clone(), ask, None, done));
    }

    fn send<T: 'static>(
        &self,
        on: usize,
        thread: u32,
        payer: Arc<SessionIdentity>,
        ask: CallSpec,
        reply: Reply<T>,
        then: impl FnOnce(&MountFs, &Arc<SessionIdentity>, CallReply<'_>, Reply<T>) + Send + 'static,
    ) {
        let (export, who, link) = (self.clone(), payer.clone(), self.homes.link(&payer));
        let waiter = CallWaiter { request: reply.id(), thread };
        let done = move |answer: CallReply<'_>| then(&export, &who, answer, reply);
        link.call_on(on, ServerCall::new(payer, ask, Some(waiter), done));
    }

    /// Makes the kernel's entry of a node that was looked up by this name. The kernel caches the
    /// name as long as the attributes, unless there are more names than can be kept; a holder of leases
    /// has it cached until `named_until`.
    pub(crate) fn entry(
        &self,
        directory: InodeId,
        name: &[u8],
        node: &MountNode,
        known: &KnownSize,
        named_until: Option<Time>,
    ) -> InodeEntry {
        let kept = self.nodes.add_name(node, directory, name);
        let ttl = match self.shared().leases.is_holder() {
            true => named_until.map_or(Duration::ZERO, rest),
            false => self.believed,
        };
        InodeEntry {
            inode: node.id,
            generation: known.attributes.generation,
            attributes: translate::attributes(&known.attributes),
            ttl: if kept { ttl } else { Duration::ZERO },
            attributes_ttl: self.attribute_timeout(known),
        }
    }

    /// Makes the kernel's attributes of a file that it knows.
    pub(crate) fn attr(&self, node: &MountNode, known: &KnownSize) -> Attr {
        self.nodes.update_attributes(node, &known.attributes);
        Attr {
            attributes: translate::attributes(&known.attributes),
            ttl: self.attribute_timeout(known),
        }
    }

    fn attribute_timeout(&self, known: &KnownSize) -> Duration {
        match known.last {
            true if self.shared().leases.is_holder() => known.leased.map_or(Duration::ZERO, rest),
            true => self.believed,
            false => Duration::ZERO,
        }
    }

    /// Makes the kernel drop all names of a file that has lost one of them. No request waits for
    /// that, since it takes the directory's lock, which may be held by a process that waits for
    /// this file's.
    pub(crate) fn expire_names(&self, node: &MountNode) {
        let names = self.nodes.expire_places(node);
        let Some(notifier) = self.notifier.get().filter(|_| !names.is_empty()) else { return };
        let export = self.downgrade();
        self.notices.expire_names(notifier, names, move |name| {
            if let Some(export) = export.upgrade() {
                export.nodes.expired(name);
            }
        });
    }

    /// Whether a change of a file that is not at the kernel's cached name applies to this file all
    /// the same: it is open here, and the waiting thread named it by a descriptor.
    pub(crate) fn is_open_by_descriptor(&self, node: &MountNode, thread: u32) -> bool {
        self.files().of_node(node.id).is_some() && by_descriptor(thread)
    }

    /// Makes a message about a file that the kernel may have found by a name: `ESTALE` if the file
    /// has not all the names that the kernel caches. A file to which a name has just led is meant
    /// wherever it is by now. Returns as well whether the message has any names.
    pub(crate) fn call_by_name<'m>(
        &self,
        node: &MountNode,
        was_found: bool,
        message: impl Into<AnyRequest<'m>>,
    ) -> (CallSpec, bool) {
        let places = if was_found { Vec::new() } else { self.nodes.believed_places(node) };
        (CallSpec::of_named(&node.handle, &places, message), !places.is_empty())
    }
}

impl FileSystem for MountFs {
    fn start(&self, _: &FuseConnection, notifier: Notifier) {
        // Once for each mount.
        let _ = self.notifier.set(notifier);
    }

    fn interrupt(&self, id: FuseRequestId) {
        self.homes.interrupt(id);
    }

    fn forget(&self, inode: InodeId, lookups: u64) {
        self.nodes.forget(inode, lookups);
    }

    fn lookup(&self, request: &FuseRequest, name: &CStr, reply: Reply<InodeEntry>) {
        if control_files::is_name(request.inode, name) {
            return control_files::lookup(request, name, reply);
        }
        names::lookup(self, request, name, reply);
    }

    fn getattr(&self, request: &FuseRequest, handle: Option<Handle>, reply: Reply<Attr>) {
        if is_control_file(request.inode) {
            return control_files::getattr(request, reply);
        }
        attributes::get(self, request, handle, reply);
    }

    fn setattr(&self, request: &FuseRequest, set: &SetAttributes, reply: Reply<Attr>) {
        attributes::set(self, request, set, reply);
    }

    fn readlink(&self, request: &FuseRequest, reply: Reply<DataReply>) {
        names::readlink(self, request, reply);
    }

    fn mknod(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        names::make(self, request, name, new, reply);
    }

    fn mkdir(&self, request: &FuseRequest, name: &CStr, new: NewFile, reply: Reply<InodeEntry>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        let new = NewFile { mode: new.mode & 0o7777 | names::DIRECTORY, ..new };
        names::make(self, request, name, new, reply);
    }

    fn unlink(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        names::remove(self, request, name, 0, reply);
    }

    fn rmdir(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        names::remove(self, request, name, ninep::REMOVE_DIR, reply);
    }

    fn symlink(&self, request: &FuseRequest, name: &CStr, target: &CStr, reply: Reply<InodeEntry>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        names::symlink(self, request, name, target, reply);
    }

    fn rename(
        &self,
        request: &FuseRequest,
        from: &CStr,
        directory: InodeId,
        to: &CStr,
        flags: u32,
        reply: Reply<()>,
    ) {
        or_error!(control_files::may_change(request.inode, from), reply);
        or_error!(control_files::may_change(directory, to), reply);
        match flags {
            0 => names::rename(self, request, from, directory, to, reply),
            _ => reply.error(Errno::INVAL),
        }
    }

    fn link(&self, request: &FuseRequest, inode: InodeId, name: &CStr, reply: Reply<InodeEntry>) {
        or_error!(control_files::may_change(request.inode, name), reply);
        names::link(self, request, inode, name, reply);
    }

    fn open(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        if is_control_file(request.inode) {
            return control_files::open(self, request, open, reply);
        }
        data::open(self, request, open, reply);
    }

    fn create(
        &self,
        request: &FuseRequest,
        name: &CStr,
        open: FuseOpen,
        new: NewFile,
        reply: Reply<Created>,
    ) {
        or_error!(control_files::may_change(request.inode, name), reply);
        data::create(self, request, name, open, new, reply);
    }

    fn read(&self, request: &FuseRequest, read: FuseRead, reply: Reply<DataReply>) {
        if is_control_file(request.inode) {
            return control_files::read(self, read, reply);
        }
        data::read(self, request, read, reply);
    }

    fn write(&self, request: &FuseRequest, write: FuseWrite<'_>, reply: Reply<WrittenBytes>) {
        data::write(self, request, write, reply);
    }

    fn flush(&self, request: &FuseRequest, handle: Handle, owner: LockOwner, reply: Reply<()>) {
        if is_control_file(request.inode) {
            return reply.ok(&());
        }
        locks::flush(self, request, handle, owner, reply);
    }

    fn fsync(&self, request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        data::fsync(self, request, handle, data_only, reply);
    }

    fn release(&self, request: &FuseRequest, release: Release, reply: Reply<()>) {
        if is_control_file(request.inode) {
            return control_files::release(self, request.inode, release.handle, reply);
        }
        data::release(self, release, reply);
    }

    fn opendir(&self, request: &FuseRequest, open: FuseOpen, reply: Reply<OpenedFile>) {
        if is_control_file(request.inode) {
            return control_files::open(self, request, open, reply);
        }
        data::open(self, request, open, reply);
    }

    fn readdir(&self, request: &FuseRequest, read: FuseRead, reply: Reply<EntryList>) {
        if is_control_file(request.inode) {
            return control_files::list(read, reply);
        }
        directory::list(self, request, read, reply);
    }

    fn readdirplus(&self, request: &FuseRequest, read: FuseRead, reply: Reply<EntryListPlus>) {
        if is_control_file(request.inode) {
            return control_files::list_plus(read, reply);
        }
        directory::list_plus(self, request, read, reply);
    }

    fn fsyncdir(&self, request: &FuseRequest, handle: Handle, data_only: bool, reply: Reply<()>) {
        data::fsync(self, request, handle, data_only, reply);
    }

    fn releasedir(&self, request: &FuseRequest, release: Release, reply: Reply<()>) {
        if is_control_file(request.inode) {
            return control_files::release(self, request.inode, release.handle, reply);
        }
        data::release(self, release, reply);
    }

    fn statfs(&self, request: &FuseRequest, reply: Reply<Statfs>) {
        attributes::statfs(self, request, reply);
    }

    fn setxattr(&self, request: &FuseRequest, set: SetXattr<'_>, reply: Reply<()>) {
        xattr::set(self, request, set, reply);
    }

    fn getxattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<Xattr>) {
        if is_control_file(request.inode) {
            return reply.error(Errno::NODATA);
        }
        xattr::get(self, request, name, reply);
    }

    fn listxattr(&self, request: &FuseRequest, reply: Reply<Xattr>) {
        if is_control_file(request.inode) {
            return reply.value(b"");
        }
        xattr::list(self, request, reply);
    }

    fn removexattr(&self, request: &FuseRequest, name: &CStr, reply: Reply<()>) {
        xattr::remove(self, request, name, reply);
    }

    fn getlk(&self, request: &FuseRequest, lock: LockRequest, reply: Reply<Lock>) {
        locks::get(self, request, lock, reply);
    }

    fn setlk(&self, request: &FuseRequest, lock: LockRequest, reply: Reply<()>) {
        locks::set(self, request, lock, reply);
    }

    fn fallocate(&self, request: &FuseRequest, allocate: Allocate, reply: Reply<()>) {
        data::allocate(self, request, allocate, reply);
    }

    fn lseek(
        &self,
        request: &FuseRequest,
        handle: Handle,
        offset: u64,
        whence: u32,
        reply: Reply<SeekPosition>,
    ) {
        data::seek(self, request, handle, offset, whence, reply);
    }

    fn copy_file_range(&self, request: &FuseRequest, copy: CopyRange, reply: Reply<CopiedBytes>) {
        data::copy(self, request, copy, reply);
    }
}

/// What is left until then, for the kernel, which counts from when it comes to the reply, and in ticks.
pub(crate) fn rest(until: Time) -> Duration {
    until.since(clock::with_suspend()).to_duration().saturating_sub(KERNEL_LATE)
}

/// How much later than the mount the kernel finds a time to be over.
const KERNEL_LATE: Duration = Duration::from_millis(50);
