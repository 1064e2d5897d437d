//! Effect of each request on the backend, and its reply.
//!
//! One function owns the branching; the families of calls live in files of their
//! own. A function returns the reply or the errno at the place where it arises.
//! Whatever happens, the request is answered exactly once.

mod attach;
mod attributes;
mod data;
mod directory;
mod leasing;
mod locking;
mod names;
mod open;
mod own;
mod reached;
mod walk;
mod xattr;

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex};

use leases::LeaseKinds;
use model::Amount;
use ninep::dialect::{
    self, AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, HandlePlaces, LeaseGrants,
};
use ninep::{Attributes, Reply, Request};
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use crate::bounds::SharedBound;
use crate::connection::ReplyTo;
use crate::credentials::{self, FsCredentials};
use crate::export::ExportNode;
use crate::fids::{FidState, FidTable, OpenFid, ProxyUser};
use crate::gate::{PendingRequest, RequestFile, RunningRequest};
use crate::leases::BegunAccesses;
use crate::locks::WantedRange;
use crate::outbox::{ReplyBatch, ReplyOutbox, errno_of};
use crate::parsed_request::ParsedRequest;
use crate::server::Server;
use crate::sessions::{MountSession, Protocol};
use leasing::LeaseBegin;
use reached::Reached;

/// How an operation ended.
pub(crate) enum Ending {
    /// Its reply is in the outbox.
    Answered {
        /// The amount that was really moved.
        served: Amount,
        /// 0, or the errno of its reply.
        errno: u32,
    },
    /// The page cache did not have it: it must wait for the device. Nothing was answered.
    Missed,
    /// A lock that must wait: answered later, by the thread that grants it.
    Parked,
    /// A change that must wait for leases: executed later.
    AwaitsLeases(Box<BegunAccesses>),
}

/// One operation and all that it may need.
pub(crate) struct Context<'a> {
    pub(crate) on: On<'a>,
    fid: &'a Arc<OpenFid>,
    /// Handles that other fids of the message may name.
    handles: HandleList<'a>,
    /// The handle that named the file, if one did.
    handle: Option<&'a [u8]>,
    /// The client's life as a holder, if it wants leases with the reply; else 0.
    lease_life: u32,
}

/// Where an operation runs.
#[derive(Clone, Copy)]
pub(crate) struct On<'a> {
    pub(crate) server: &'a Server,
    pub(crate) running: &'a RunningRequest,
    pub(crate) outbox: &'a Mutex<ReplyOutbox>,
    /// Set when replies should leave before more are added.
    pub(crate) flush: &'a Cell<bool>,
    /// The leases that the reply grants.
    pub(crate) grants: &'a Cell<LeaseGrants>,
}

impl<'a> std::ops::Deref for Context<'a> {
    type Target = On<'a>;
    fn deref(&self) -> &On<'a> {
        &self.on
    }
}

impl<'a> Context<'a> {
    /// The file that the message is about. One that was named by handle has a fid for this
    /// one operation.
    fn fid(&self) -> &'a Arc<OpenFid> {
        self.fid
    }

    fn credentials(&self) -> &'a FsCredentials {
        &self.fid().user.credentials
    }

    /// Acts as the user of the fid from now on.
    fn as_user(&self) -> io::Result<()> {
        credentials::become_user(self.credentials(), self.credentials().gid)
    }

    /// Acts as the user, with the group that a new file is to get.
    fn as_creator(&self, gid: u32) -> io::Result<()> {
        let who = self.credentials();
        credentials::become_user(who, who.group_for(gid))
    }

    /// Refuses changes in a read-only export.
    fn writable(&self) -> io::Result<()> {
        if self.fid().user.export.readonly { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Another file of the same message.
    fn other_fid(&self, fid: ninep::Fid) -> io::Result<Arc<OpenFid>> {
        if let Some(handle) = self.handles.get(fid) {
            return resolve(&self.on, &self.fid.user, handle).map(Arc::new);
        }
        let fids = self.fids()?;
        let fids = fids.lock().expect("not poisoned");
        fids.get(&fid.0).cloned().ok_or_else(|| Errno::BADF.into())
    }

    /// The session's fids, as long as it is the one that asked. A mount's is, whatever has
    /// become of the connection.
    fn fids(&self) -> io::Result<FidTable> {
        if let Some(mount) = self.mount() {
            return Ok(mount.fids.clone());
        }
        let session = self.to().path.connection.session.lock().expect("not poisoned");
        if session.epoch == self.to().path.epoch {
            Ok(session.fids.clone())
        } else {
            Err(Errno::BADF.into())
        }
    }

    /// Returns another fid of the message, if both are in one export: names do not lead from one to
    /// the other.
    fn other_in_export(&self, fid: ninep::Fid) -> io::Result<Arc<OpenFid>> {
        let other = self.other_fid(fid)?;
        let same = Arc::ptr_eq(&other.user.export, &self.fid().user.export);
        if same { Ok(other) } else { Err(Errno::XDEV.into()) }
    }

    /// Whether a new fid could have this number; `replaces` is what may be there. Asked
    /// before anything is done that cannot be taken back.
    fn check_fid(&self, at: ninep::Fid, replaces: Option<&Arc<OpenFid>>) -> io::Result<()> {
        if replaces.is_none_or(|old| !is_last_reference(old)) {
            self.check_open_files()?;
        }
        self.check_in(&self.fids()?.lock().expect("not poisoned"), at, replaces)
    }

    /// Refuses to open a file more than the user may.
    fn check_open_files(&self) -> io::Result<()> {
        Ok(self.server.shared.check(SharedBound::OpenFiles, &self.fid.user.holder(), 1)?)
    }

    fn check_in(
        &self,
        fids: &FxHashMap<u32, Arc<OpenFid>>,
        at: ninep::Fid,
        replaces: Option<&Arc<OpenFid>>,
    ) -> io::Result<()> {
        let names_handle = dialect::handle_index(at).is_some()
            && !matches!(self.to().path.form, Protocol::Base(_));
        match (fids.get(&at.0), replaces) {
            (None, None) if fids.len() >= self.server.settings().fids_max as usize => {
                Err(Errno::NFILE.into())
            }
            (None, None) if at == ninep::NOFID || names_handle => Err(Errno::INVAL.into()),
            (None, None) => Ok(()),
            (Some(there), Some(old)) if Arc::ptr_eq(there, old) => Ok(()),
            _ => Err(Errno::BADF.into()),
        }
    }

    /// Puts a new fid into the session's table, under the same conditions.
    fn put_fid(
        &self,
        at: ninep::Fid,
        mut fid: OpenFid,
        replaces: Option<&Arc<OpenFid>>,
    ) -> io::Result<()> {
        let fids = self.fids()?;
        let mut fids = fids.lock().expect("not poisoned");
        self.check_in(&fids, at, replaces)?;
        let ends =
            replaces.filter(|old| is_last_reference(old) && !Arc::ptr_eq(&old.node, &fid.node));
        let pays = ends.is_some_and(|old| fid.node.inherit(&old.node));
        fid.charge(&self.server.shared, pays)?;
        fids.insert(at.0, Arc::new(fid));
        Ok(())
    }

    /// Takes a fid out of the session's table.
    fn take_fid(&self, at: ninep::Fid) {
        let Ok(fids) = self.fids() else { return };
        let mut fids = fids.lock().expect("not poisoned");
        if fids.get(&at.0).is_some_and(|there| Arc::ptr_eq(there, self.fid())) {
            fids.remove(&at.0);
        }
    }

    /// Answers with the handle and attributes of a file that was reached by `path`.
    fn answer_file(
        &self,
        file: io::Result<Arc<ExportNode>>,
        how: Reached<'_>,
        kinds: LeaseKinds,
        reply: impl for<'r> FnOnce(&'r [u8], Attributes) -> ExtReply<'r>,
    ) -> Ending {
        let export = &self.fid().user.export;
        let found = file.and_then(|node| {
            self.grant_found(&node, kinds);
            let attributes = attributes::all_attributes(&node, export)?;
            let handle = export.handles.of(&node, export)?;
            self.learn_reached(&handle, &node, how);
            Ok((handle, attributes))
        });
        match found {
            Ok((handle, attributes)) => self.answer_own(Ok(reply(&handle, attributes))),
            Err(error) => self.answer_own(Err(error)),
        }
    }

    /// A name for a new or existing entry of a directory.
    fn name<'n>(&self, dir: &ExportNode, name: &'n [u8]) -> io::Result<&'n [u8]> {
        if dir.kind != rustix::fs::FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        match name {
            b"" => Err(Errno::NOENT.into()),
            b"." | b".." => Err(Errno::INVAL.into()),
            _ => Ok(name),
        }
    }
}

impl<'a> On<'a> {
    fn to(&self) -> &'a ReplyTo {
        &self.running.operation.to
    }

    /// The largest message of the session in bytes.
    fn msize(&self) -> usize {
        self.to().path.connection.session.lock().expect("not poisoned").msize as usize
    }

    /// The session of the mount that asks.
    fn mount(&self) -> Option<&'a MountSession> {
        Some(&self.to().path.form.binding()?.session)
    }

    fn answer(&self, result: io::Result<Reply<'_>>) -> Ending {
        self.answer_served(result, self.running.meta.amount)
    }

    fn answer_own(&self, result: io::Result<ExtReply<'_>>) -> Ending {
        self.answer_served(result, self.running.meta.amount)
    }

    fn answer_served<'r>(
        &self,
        result: io::Result<impl Into<AnyReply<'r>>>,
        served: Amount,
    ) -> Ending {
        let to = self.to();
        let mut outbox = self.outbox.lock().expect("not poisoned");
        let batch = outbox.batch(to);
        let start = batch.bytes.len();
        let grants = self.grants.get();
        let mut result = result.map(|reply| batch.reply_granting(to.tag, grants, reply));
        // Handles, names and targets may be long; most replies are shorter than any msize.
        let len = batch.bytes.len() - start;
        if len > ninep::MSIZE_MIN as usize && len > self.msize() {
            batch.bytes.truncate(start);
            result = Err(Errno::NAMETOOLONG.into());
        }
        let ending = match result {
            Ok(()) => self.answered(batch, served, 0),
            Err(error) => {
                batch.error_granting(to.tag, leasing::of_error(grants, &error), &error);
                // It cost the backend a call, but moved nothing.
                let served = Amount { bytes: model::Bytes::ZERO, ..served };
                self.answered(batch, served, errno_of(&error))
            }
        };
        if let (Some(once), Some(binding)) = (self.running.operation.once, to.path.form.binding()) {
            binding.end(once, &batch.bytes[start..]);
        }
        self.flush.set(outbox.mark_due());
        ending
    }

    /// Counts a reply that was added to its batch.
    fn answered(&self, batch: &mut ReplyBatch, served: Amount, errno: u32) -> Ending {
        batch.tally.count(self.running.meta.kind, served, errno);
        Ending::Answered { served, errno }
    }
}

/// Executes one operation on the calling thread.
pub(crate) fn perform(on: On<'_>, begun: Option<Box<BegunAccesses>>) -> Ending {
    let PendingRequest { to, file, frame, .. } = &on.running.operation;
    let (handles, places, lease_life, request) = if matches!(to.path.form, Protocol::Base(_)) {
        let (_, request) = Request::decode(frame.bytes()).expect(DECODED);
        (HandleList::NONE, HandlePlaces::NONE, 0, AnyRequest::Base(request))
    } else {
        let (_, header, request) = dialect::decode_request(frame.bytes()).expect(DECODED);
        (header.handles, header.names, header.lease_life, request)
    };
    let named;
    let (fid, handle) = match file {
        RequestFile::Fid(fid) => (fid, None),
        RequestFile::Handle(user) => {
            let about =
                ParsedRequest::of_any(&request).expect("only what is about a file is queued");
            let handle = handles.get(about.fid).expect("checked when it was taken in");
            let found = resolve(&on, user, handle).and_then(|fid| still_at(fid, places));
            match found.and_then(|fid| own::opened_for(fid, &request)) {
                Ok(fid) => named = Arc::new(fid),
                Err(error) => return on.answer(Err(error)),
            }
            (&named, Some(handle))
        }
    };
    let cx = Context { on, fid, handles, handle, lease_life };
    let begun = match leasing::begin(&cx, &request, begun) {
        Ok(LeaseBegin::Ready(begun)) => begun,
        Ok(LeaseBegin::Waits(begun)) => return Ending::AwaitsLeases(begun),
        Err(error) => return on.answer(Err(error)),
    };
    let ending = match request {
        AnyRequest::Base(request) => perform_plain(&cx, request),
        AnyRequest::Ext(request) => perform_own(&cx, request),
    };
    // It is executed: leases that it breaks may be granted again.
    drop(begun);
    ending
}

/// Whether the fid's descriptor goes with it.
fn is_last_reference(fid: &Arc<OpenFid>) -> bool {
    Arc::strong_count(&fid.node) == 1
}

const DECODED: &str = "decoded once when it was taken in";

/// A fid for one operation on the file that a handle means.
fn resolve(on: &On<'_>, user: &Arc<ProxyUser>, handle: &[u8]) -> io::Result<OpenFid> {
    let node = user.export.handles.resolve(handle, &user.export)?;
    on.learn_unknown(handle, &node, &user.export);
    // It pays for nothing: the payer was known when the message was taken in.
    Ok(OpenFid::new(user.clone(), node, None, FidState::Path, on.running.meta.subject))
}

/// Returns the fid, if its file still has all these names. A name in a directory that the user must
/// not search is not checked and counts as present.
///
/// # Errors
/// `ESTALE` if one is another file by now, or none; else what the backend says.
fn still_at(fid: OpenFid, places: HandlePlaces<'_>) -> io::Result<OpenFid> {
    let user = &fid.user;
    for (directory, name) in places {
        let directory = user.export.handles.resolve(directory, &user.export)?;
        credentials::become_user(&user.credentials, user.credentials.gid)?;
        match directory.names(name, &fid.node) {
            Ok(true) | Err(Errno::ACCESS) => {}
            Ok(false) | Err(Errno::NOENT | Errno::NOTDIR) => return Err(Errno::STALE.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(fid)
}

/// The dialect's own messages.
fn perform_own(cx: &Context<'_>, request: ExtRequest<'_>) -> Ending {
    match request {
        ExtRequest::Lookup { name, .. } => names::lookup(cx, name),
        ExtRequest::Open { newfid, name, flags, mode, .. } => {
            open::open_in_one(cx, newfid, name, flags, mode)
        }
        ExtRequest::List { offset, count, .. } => directory::list(cx, offset, count),
        ExtRequest::Mknode { name, mode, rdev, target, .. } => {
            names::make(cx, name, mode, rdev, target)
        }
        ExtRequest::Change { set, .. } => cx.answer_own(attributes::change(cx, &set)),
        ExtRequest::Write { offset, flags, data, .. } => own::write(cx, offset, flags, data),
        ExtRequest::Append { flags, data, .. } => own::append(cx, flags, data),
        ExtRequest::Allocate { mode, offset, length, .. } => {
            cx.answer_own(own::allocate(cx, mode, offset, length))
        }
        ExtRequest::Seek { offset, whence, .. } => cx.answer_own(own::seek(cx, offset, whence)),
        ExtRequest::Copy { offset, tofid, tooffset, length, .. } => {
            own::copy(cx, offset, tofid, tooffset, length)
        }
        ExtRequest::Getxattr { name, count, .. } => xattr::get(cx, name, count),
        ExtRequest::Setxattr { name, flags, data, .. } => {
            cx.answer_own(xattr::set(cx, name, flags, data))
        }
        ExtRequest::Removexattr { name, .. } => cx.answer_own(xattr::remove(cx, name)),
        // The mount's own, not an operation of its user: its cost is charged.
        ExtRequest::Commit { .. } => cx.answer_served(own::commit(cx), Amount::default()),
        ExtRequest::Session { .. }
        | ExtRequest::Identity { .. }
        | ExtRequest::Retire { .. }
        | ExtRequest::Ping
        | ExtRequest::Info { .. }
        | ExtRequest::Donate { .. }
        | ExtRequest::Events
        | ExtRequest::Renew { .. }
        | ExtRequest::Return { .. }
        | ExtRequest::GiveBack { .. }
        | ExtRequest::Proxies => unreachable!("never handed to a dispatcher"),
    }
}

/// The messages of 9P2000.L.
fn perform_plain(cx: &Context<'_>, request: Request<'_>) -> Ending {
    match request {
        Request::Read { offset, count, .. } => data::read(cx, offset, count),
        Request::Write { offset, data, .. } => data::write(cx, offset, data),
        Request::Getattr { mask, .. } => cx.answer(attributes::getattr(cx, mask)),
        Request::Walk { newfid, names, fid } => cx.answer(walk::walk(cx, fid, newfid, names)),
        Request::Clunk { fid } => cx.answer(walk::clunk(cx, fid)),
        Request::Lopen { fid, flags } => cx.answer(open::open(cx, fid, flags)),
        Request::Lcreate { fid, name, flags, mode, gid } => {
            cx.answer(open::create(cx, fid, name, flags, mode, gid))
        }
        Request::Readdir { offset, count, .. } => directory::readdir(cx, offset, count),
        Request::Fsync { datasync, .. } => cx.answer(data::fsync(cx, datasync != 0)),
        Request::Setattr { set, .. } => cx.answer(attributes::setattr(cx, &set)),
        Request::Statfs { .. } => cx.answer(attributes::statfs(cx)),
        Request::Readlink { .. } => names::readlink(cx),
        Request::Xattrwalk { newfid, name, .. } => cx.answer(xattr::walk(cx, newfid, name)),
        Request::Xattrcreate { fid, name, size, flags } => {
            cx.answer(xattr::create(cx, fid, name, size, flags))
        }
        Request::Lock { kind, flags, start, length, proc_id, client_id, .. } => {
            let wanted = WantedRange { kind, start, len: length };
            locking::lock(cx, wanted, client_id, proc_id, flags)
        }
        Request::Getlock { kind, start, length, proc_id, client_id, .. } => {
            let wanted = WantedRange { kind, start, len: length };
            locking::getlock(cx, wanted, client_id, proc_id)
        }
        Request::Symlink { name, target, gid, .. } => {
            cx.answer(names::symlink(cx, name, target, gid))
        }
        Request::Mknod { name, mode, major, minor, gid, .. } => {
            cx.answer(names::mknod(cx, name, mode, major, minor, gid))
        }
        Request::Link { fid, name, .. } => cx.answer(names::link(cx, fid, name)),
        Request::Mkdir { name, mode, gid, .. } => cx.answer(names::mkdir(cx, name, mode, gid)),
        Request::Rename { fid, dfid, name } => cx.answer(names::rename(cx, fid, dfid, name)),
        Request::Renameat { oldname, newdirfid, newname, .. } => {
            cx.answer(names::renameat(cx, oldname, newdirfid, newname))
        }
        Request::Unlinkat { name, flags, .. } => cx.answer(names::unlinkat(cx, name, flags)),
        Request::Remove { fid } => cx.answer(names::remove(cx, fid)),
        Request::Version { .. }
        | Request::Auth { .. }
        | Request::Attach { .. }
        | Request::Flush { .. } => unreachable!("never handed to a dispatcher"),
    }
}

pub(crate) use attach::{NewIdentity, attach, identify};
