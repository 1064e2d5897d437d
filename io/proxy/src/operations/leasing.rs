//! What each request does to leases: those that its reply grants, and those that must be free first.
//!
//! ```text
//!   a change ─► needed: accesses to files and names ─► start ─┬─ ready: names looked up again ─► executed
//!                                ▲                            └─ waits ─► parked ─┐
//!                                └────────────────────────────────────────────────┘
//!   a look ─► acquire ─► the backend is asked ─► reply with the grant
//! ```
//!
//! A lease is acquired before what it covers is read: a change that comes between is recalled from it.

use std::io;
use std::sync::Arc;

use leases::{LeaseKinds, ObjectAccess};
use ninep::dialect::{AnyRequest, ExtRequest, LeaseGrant, LeaseGrants};
use ninep::{Request, open, setattr};

use super::Context;
use crate::export::ExportNode;
use crate::fids::{FidState, OpenFid};
use crate::leases::{BegunAccesses, NeededAccess};

/// How often what is behind the names of a request is looked up again before it is executed.
const LOOKED_UP_MAX: usize = 16;

/// What becomes of a request that may change what others have leases of.
pub(super) enum LeaseBegin {
    /// It may be executed; its accesses, if it has any, are to be dropped after that.
    Ready(Option<Box<BegunAccesses>>),
    /// It must wait for leases, with these accesses begun.
    Waits(Box<BegunAccesses>),
}

/// Begins the accesses of a request, those of `begun` among them.
///
/// # Errors
/// If it cannot be known what the request would change.
pub(super) fn begin(
    cx: &Context<'_>,
    request: &AnyRequest<'_>,
    begun: Option<Box<BegunAccesses>>,
) -> io::Result<LeaseBegin> {
    if !cx.fid().user.export.leases.recalls || !cx.server.leases.is_needed() {
        return Ok(LeaseBegin::Ready(None));
    }
    let mut needed = needed(cx, request)?;
    if needed.is_empty() {
        return Ok(LeaseBegin::Ready(None));
    }
    let leases = &cx.server.leases;
    let by = cx.mount().and_then(|mount| mount.lease_holder());
    let mut begun = begun.unwrap_or_else(|| leases.begun());
    for _ in 0..LOOKED_UP_MAX {
        let (is_ready, recalls) = leases.start(&mut begun, &needed, by);
        cx.server.deliver_recalls(recalls);
        if !is_ready {
            return Ok(LeaseBegin::Waits(begun));
        }
        if !names_files(request) {
            break;
        }
        // Only now can no other request change what the names lead to.
        let again = self::needed(cx, request)?;
        if again == needed {
            break;
        }
        needed = again;
    }
    Ok(LeaseBegin::Ready(Some(begun)))
}

/// Whether a request changes files that it reaches by name.
fn names_files(request: &AnyRequest<'_>) -> bool {
    match request {
        AnyRequest::Base(request) => matches!(
            request,
            Request::Unlinkat { .. }
                | Request::Renameat { .. }
                | Request::Rename { .. }
                | Request::Lcreate { .. }
        ),
        AnyRequest::Ext(request) => matches!(request, ExtRequest::Open { .. }),
    }
}

/// Leases of an error reply: an absent name may be kept.
pub(super) fn of_error(grants: LeaseGrants, error: &io::Error) -> LeaseGrants {
    let kinds = LeaseKinds::from_bits(grants.named.kinds).common(LeaseKinds::NAMES);
    if error.raw_os_error() != Some(libc::ENOENT) || kinds.is_empty() {
        return LeaseGrants::NONE;
    }
    let named = LeaseGrant { kinds: kinds.bits(), ..grants.named };
    LeaseGrants { named, found: LeaseGrant::NONE }
}

impl Context<'_> {
    /// Acquires leases of a file, if the client wants some and the export grants them.
    pub(super) fn acquire(&self, node: &ExportNode, kinds: LeaseKinds) -> LeaseGrant {
        if self.lease_life == 0 || kinds.is_empty() || !self.fid().user.export.leases.grants {
            return LeaseGrant::NONE;
        }
        let leases = &self.server.leases;
        let Some(holder) = self.mount().and_then(|mount| mount.lease_holder()) else {
            return LeaseGrant::NONE;
        };
        let kinds = match kinds.contains(LeaseKinds::NAMES) && leases.may_fold_names(node) {
            true => kinds.without(LeaseKinds::NAMES),
            false => kinds,
        };
        match kinds.is_empty() {
            true => LeaseGrant::NONE,
            false => leases.acquire(holder, self.lease_life, node, kinds),
        }
    }

    /// Grants leases of the file that the message names first, with its reply.
    pub(super) fn grant_named(&self, node: &ExportNode, kinds: LeaseKinds) {
        let named = self.acquire(node, kinds);
        self.grants.set(LeaseGrants { named, ..self.grants.get() });
    }

    /// Grants leases of another file that the reply is about, unless it has some.
    pub(super) fn grant_found(&self, node: &ExportNode, kinds: LeaseKinds) {
        let grants = self.grants.get();
        if grants.found == LeaseGrant::NONE && !node.same_file(&self.fid().node) {
            let found = self.acquire(node, kinds);
            self.grants.set(LeaseGrants { found, ..grants });
        }
    }

    /// The file under a name; none where there is none, or the user may not look.
    ///
    /// # Errors
    /// If it is not known whether there is one: then nothing is changed.
    fn child(&self, dir: &ExportNode, name: &[u8]) -> io::Result<Option<ExportNode>> {
        if matches!(name, b"" | b"." | b"..") {
            return Ok(None);
        }
        self.as_user()?;
        match dir.lookup(name, &self.fid().user.export) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_of_this_machine(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

/// What a request does that breaks leases.
fn needed(cx: &Context<'_>, request: &AnyRequest<'_>) -> io::Result<Vec<NeededAccess>> {
    let mut needed = NeededAccesses { cx, all: Vec::new() };
    match request {
        AnyRequest::Base(request) => needed.add_base(request)?,
        AnyRequest::Ext(request) => needed.add_ext(request)?,
    }
    Ok(needed.all)
}

/// Whether an error says nothing of the files, but of this machine.
fn is_of_this_machine(error: &io::Error) -> bool {
    let of_machine = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::EINTR];
    error.raw_os_error().is_none_or(|errno| of_machine.contains(&errno))
}

struct NeededAccesses<'a> {
    cx: &'a Context<'a>,
    all: Vec<NeededAccess>,
}

impl NeededAccesses<'_> {
    fn add_base(&mut self, request: &Request<'_>) -> io::Result<()> {
        let fid = self.cx.fid();
        let node: &ExportNode = &fid.node;
        match *request {
            Request::Write { .. } if !matches!(fid.role, FidState::XattrWrite(_)) => {
                self.add_data(node);
            }
            Request::Clunk { .. } if matches!(fid.role, FidState::XattrWrite(_)) => {
                self.add_attributes(node);
            }
            Request::Lopen { flags, .. } if flags & open::TRUNC != 0 => self.add_data(node),
            Request::Lcreate { name, flags, .. } => self.add_create(name, flags)?,
            Request::Setattr { set, .. } => self.add_set(node, set.valid),
            Request::Symlink { name, .. }
            | Request::Mknod { name, .. }
            | Request::Mkdir { name, .. } => self.add_name(node, name),
            Request::Link { fid: file, name, .. } => {
                self.add_name(node, name);
                if let Some(file) = self.other(file)? {
                    self.add_attributes(&file.node);
                }
            }
            Request::Unlinkat { name, .. } => self.add_removed(node, name)?,
            Request::Remove { .. } => {
                if let Some(entry) = &fid.entry {
                    self.add_name(&entry.dir, &entry.name);
                    self.add_attributes(node);
                }
            }
            Request::Rename { dfid, name, .. } => {
                if let (Some(entry), Some(to)) = (&fid.entry, self.other(dfid)?) {
                    self.add_name(&entry.dir, &entry.name);
                    self.add_attributes(node);
                    self.add_removed(&to.node, name)?;
                }
            }
            Request::Renameat { oldname, newdirfid, newname, .. } => {
                if let Some(to) = self.other(newdirfid)? {
                    self.add_removed(node, oldname)?;
                    self.add_removed(&to.node, newname)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_ext(&mut self, request: &ExtRequest<'_>) -> io::Result<()> {
        let node: &ExportNode = &self.cx.fid().node;
        match *request {
            ExtRequest::Open { name, flags, .. } if flags & open::CREATE != 0 => {
                self.add_create(name, flags)?;
            }
            ExtRequest::Open { name, flags, .. } if flags & open::TRUNC != 0 => {
                match name.is_empty() {
                    true => self.add_data(node),
                    false => {
                        // The name stays as it is until the file is cut.
                        self.add_name(node, name);
                        let file = self.cx.child(node, name)?;
                        file.iter().for_each(|file| self.add_data(file));
                    }
                }
            }
            ExtRequest::Mknode { name, .. } => self.add_name(node, name),
            ExtRequest::Change { set, .. } => self.add_set(node, set.valid),
            ExtRequest::Write { .. } | ExtRequest::Append { .. } | ExtRequest::Allocate { .. } => {
                self.add_data(node);
            }
            ExtRequest::Copy { tofid, .. } => {
                if let Some(to) = self.other(tofid)? {
                    self.add_data(&to.node);
                }
            }
            ExtRequest::Setxattr { .. } | ExtRequest::Removexattr { .. } => {
                self.add_attributes(node);
            }
            _ => {}
        }
        Ok(())
    }

    fn add_data(&mut self, node: &ExportNode) {
        self.add(NeededAccess::of(node, ObjectAccess::WriteData));
    }

    fn add_attributes(&mut self, node: &ExportNode) {
        self.add(NeededAccess::of(node, ObjectAccess::ChangeAttributes));
    }

    fn add_set(&mut self, node: &ExportNode, valid: u32) {
        if valid & setattr::SIZE != 0 { self.add_data(node) } else { self.add_attributes(node) }
    }

    fn add_name(&mut self, dir: &ExportNode, name: &[u8]) {
        let may_fold = self.cx.as_user().is_err() || self.cx.server.leases.may_fold_names(dir);
        self.add(NeededAccess::of_name(dir, name, may_fold));
    }

    /// A name that is removed or replaced, and its file.
    fn add_removed(&mut self, dir: &ExportNode, name: &[u8]) -> io::Result<()> {
        self.add_name(dir, name);
        if let Some(file) = self.cx.child(dir, name)? {
            self.add_attributes(&file);
        }
        Ok(())
    }

    /// A name that is made, or the file that has it already, which may be cut.
    fn add_create(&mut self, name: &[u8], flags: u32) -> io::Result<()> {
        let dir: &ExportNode = &self.cx.fid().node;
        self.add_name(dir, name);
        if flags & open::TRUNC != 0
            && let Some(file) = self.cx.child(dir, name)?
        {
            self.add_data(&file);
        }
        Ok(())
    }

    fn add(&mut self, access: NeededAccess) {
        if !self.all.contains(&access) {
            self.all.push(access);
        }
    }

    /// Another file of the message; none if the message is refused for it.
    fn other(&self, fid: ninep::Fid) -> io::Result<Option<Arc<OpenFid>>> {
        match self.cx.other_in_export(fid) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_of_this_machine(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }
}
