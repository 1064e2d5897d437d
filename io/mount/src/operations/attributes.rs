//! Attributes of files and of the file system.
//!
//! ```text
//!   open file at hand ─► its fid
//!   none ─► the node's handle ─► ESTALE: the name is gone, but somebody has it open? ─► fid
//!           (a change: if the file still has the names by which the kernel may have come)
//! ```
//!
//! A read of attributes waits for nothing: the length includes the writes of this mount, executed
//! or not. A change of attributes comes after the earlier writes.

use std::sync::Arc;
use std::time::Duration;

use fuse::{Attr, Errno, FuseRequest, Handle, InodeId, Reply, SetAttributes, Statfs};
use ninep::dialect::{AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, handle_fid};
use ninep::{Fid, getattr};

use super::behind::{self, FetchedAttributes};
use super::or_error;
use super::stale::FileWalk;
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::leases::{LeaseRequest, OwnChange};
use crate::nodes::MountNode;
use crate::session::{CallReply, CallSpec, lock};
use crate::translate;
use crate::write_behind::KnownSize;

pub(crate) fn get(
    export: &MountFs,
    request: &FuseRequest,
    handle: Option<Handle>,
    reply: Reply<Attr>,
) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    if handle.is_none_or(|handle| export.files().get(handle).is_ok())
        && let Some(known) = export.leased_attributes(&node)
    {
        return reply.ok(&export.attr(&node, &known));
    }
    if let Some(known) = root_without_proxy(export, &node) {
        return reply.ok(&known);
    }
    let message = |fid| ninep::Request::Getattr { fid, mask: getattr::ALL }.into();
    let lease = export.lease_request();
    let (who, asked) = (*request, export.shared().write_behind.now());
    let about = AttributeTarget {
        node: node.clone(),
        by_name: false,
        message,
        lease: lease.clone(),
        change: None,
    };
    by_file_or_handle(export, request, about, handle, reply, move |export, answer, reply| {
        let attributes = match answer {
            Ok(AnyReply::Base(ninep::Reply::Getattr(attributes))) => attributes,
            Ok(_) => return reply.error(Errno::PROTO),
            Err(error) => return reply.error(error),
        };
        if node.id == InodeId::ROOT {
            *lock(&export.root_attributes) = Some(attributes);
        }
        let leased = None;
        let mut fetched = FetchedAttributes { node, attributes, requested_at: asked, leased };
        fetched.leased = export.keep_attributes(&lease, &fetched);
        behind::as_written(export, &who, fetched, reply, |export, node, known| {
            Ok(export.attr(node, &known?))
        });
    });
}

/// The root as it was known last, for no time, while no connection to its proxy is there: the way to the mount's own
/// files leads through it, and they say what is wrong.
fn root_without_proxy(export: &MountFs, node: &MountNode) -> Option<Attr> {
    if node.id != InodeId::ROOT || !export.homes.links[export.homes.of(node)].is_cut_off() {
        return None;
    }
    let known = (*lock(&export.root_attributes))?;
    Some(Attr { attributes: translate::attributes(&known), ttl: Duration::ZERO })
}

/// Changes attributes, all in one message. The size of an open file is changed through it,
/// which needs no permission any more.
pub(crate) fn set(
    export: &MountFs,
    request: &FuseRequest,
    set: &SetAttributes,
    reply: Reply<Attr>,
) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    if set.size.is_some() {
        node.clear_version();
    }
    node.not_plain();
    let through = set.handle.filter(|_| set.size.is_some());
    let set = translate::set_attributes(set);
    let message = move |fid| ExtRequest::Change { fid, set }.into();
    behind::after(export, &node.clone(), request, reply, move |export, who, reply| {
        let change = export.change_of(&node);
        let about =
            AttributeTarget { node: node.clone(), by_name: true, message, lease: None, change };
        by_file_or_handle(export, who, about, through, reply, move |export, answer, reply| {
            reply.send(changed(export, &node, answer));
        });
    });
}

fn changed(export: &MountFs, node: &MountNode, answer: CallReply<'_>) -> Result<Attr, Errno> {
    match answer? {
        AnyReply::Ext(ExtReply::Change { attributes }) => {
            export.shared().write_behind.changed(node);
            Ok(export.attr(node, &KnownSize { attributes, last: true, leased: None }))
        }
        _ => Err(Errno::PROTO),
    }
}

pub(crate) fn statfs(export: &MountFs, request: &FuseRequest, reply: Reply<Statfs>) {
    let node = or_error!(export.nodes.get(request.inode), reply);
    let message = |fid| ninep::Request::Statfs { fid };
    let ask = CallSpec::new(HandleList::one(&node.handle), message(handle_fid(0)));
    let who = *request;
    export.as_caller_with(&node.clone(), request, ask, reply, move |export, _, answer, reply| {
        // It may be gone, and open here all the same.
        let stale = matches!(answer, Err(Errno::STALE));
        match stale.then(|| export.files().of_node(node.id)).flatten() {
            Some(file) => {
                let ask = CallSpec::new(HandleList::NONE, message(file.fid));
                export.as_opener(&who, &file, ask, reply, |_, answer| file_system(answer));
            }
            None => reply.send(file_system(answer)),
        }
    });
}

fn file_system(answer: CallReply<'_>) -> Result<Statfs, Errno> {
    match answer? {
        AnyReply::Base(ninep::Reply::Statfs(told)) => Ok(Statfs {
            blocks: told.blocks,
            blocks_free: told.bfree,
            blocks_available: told.bavail,
            files: told.files,
            files_free: told.ffree,
            block_size: told.bsize,
            fragment_size: told.bsize,
            name_max: told.namelen,
        }),
        _ => Err(Errno::PROTO),
    }
}

/// A message about a file, however that is named in it.
struct AttributeTarget<M> {
    node: Arc<MountNode>,
    /// The kernel may have found it by a name, and means the file that has the name now.
    by_name: bool,
    message: M,
    /// It asks for leases.
    lease: Option<Arc<LeaseRequest>>,
    /// It changes the file.
    change: Option<Arc<OwnChange>>,
}

/// Asks about a file by what is known of it.
fn by_file_or_handle(
    export: &MountFs,
    request: &FuseRequest,
    about: AttributeTarget<impl Fn(Fid) -> AnyRequest<'static> + Send + 'static>,
    handle: Option<Handle>,
    reply: Reply<Attr>,
    then: impl FnOnce(&MountFs, CallReply<'_>, Reply<Attr>) + Send + 'static,
) {
    if let Some(handle) = handle {
        let file = or_error!(export.files().get(handle), reply);
        return by_file(export, request, &file, about, reply, then);
    }
    let node = about.node.clone();
    let first = (about.message)(handle_fid(0));
    let (walk, (ask, named)) = match about.by_name {
        true => {
            let walk = FileWalk::to_use(export, request, &node);
            (walk, export.call_by_name(&node, walk.found, first))
        }
        false => {
            let walk = FileWalk::for_lookup(export, request, &node);
            (walk, (CallSpec::new(HandleList::one(&node.handle), first), false))
        }
    };
    let ask = ask.leased(&about.lease).changing(about.change.clone());
    let who = *request;
    export.as_caller_with(&node, request, ask, reply, move |export, _, answer, reply| {
        let node = about.node.clone();
        if !matches!(answer, Err(Errno::STALE)) {
            return then(export, answer, reply);
        }
        if named && export.is_open_by_descriptor(&node, who.thread) {
            export.expire_names(&node);
            let about = AttributeTarget { by_name: false, ..about };
            return by_file_or_handle(export, &who, about, None, reply, then);
        }
        match export.files().of_node(node.id).filter(|_| !named) {
            // A handle that is a path, or an inode without names: the open file still is one.
            Some(file) => {
                export.expire_names(&node);
                by_file(export, &who, &file, about, reply, then);
            }
            // By a path: the kernel looks it up again.
            None => reply.error(walk.stale_error(export, &node)),
        }
    });
}

fn by_file(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    about: AttributeTarget<impl Fn(Fid) -> AnyRequest<'static>>,
    reply: Reply<Attr>,
    then: impl FnOnce(&MountFs, CallReply<'_>, Reply<Attr>) + Send + 'static,
) {
    let ask = CallSpec::new(HandleList::NONE, (about.message)(file.fid));
    let ask = ask.leased(&about.lease).changing(about.change);
    export.as_opener_with(request, file, ask, reply, then);
}
